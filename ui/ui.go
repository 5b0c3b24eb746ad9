// Package ui is a live web page with the primitives of zsync in ZooKeeper: the holders and waiters
// of each lock, deadlocks, leaders, queues, groups and schedules.
//
//	mux.Handle("/zsync/", http.StripPrefix("/zsync", ui.Handler(s, ui.Options{ReadOnly: true})))
//
// The page loads nothing from other hosts, its links are relative, and it works
// without JavaScript. Every user who can open it sees the names of owners and
// the values of znodes, so protect it with the authentication of your program.
//
// # Cost
//
// The page reads the tree once for all its viewers, every [Options.Interval]. It
// sends at most about 200 requests a second, eight at a time, so it reads a
// large tree less often. It sets no watches. While no browser has the page open,
// it reads the tree ten times less often, for the timeline.
package ui

import (
	"bytes"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/look"
	"github.com/zsync/zsync/internal/marks"
)

// Options configure the page. The zero Options are valid.
type Options struct {
	// ReadOnly removes the forms that break locks, and refuses such requests. Set it unless every
	// user who can open the page may break locks.
	ReadOnly bool

	// Format, if not nil, changes a text before the page shows it. The text is the owner of a
	// contender at path, or the info of a member of the group at path.
	Format func(path, text string) string

	// Root limits the page to this path and the paths below it. The default is /,
	// all znodes that the session sees.
	Root string

	// Interval is the time between two looks at the tree. The default is one second.
	Interval time.Duration

	// Timetables has the timetables of schedules, by path. With a timetable, the page shows the
	// time of the next run. ZooKeeper stores only the last run.
	Timetables map[string]zsync.Timetable
}

//go:embed page.html style.css script.js
var assets embed.FS

var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"when":  func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"clock": func(t time.Time) string { return t.Local().Format("15:04:05") },
	"age":   age,
	"name":  look.Printable,
	"plain": look.Plain,
	"sh":    shell,
}).ParseFS(assets, "page.html"))

type page struct {
	s     *zsync.Session
	opts  Options
	token string // the page puts it into its forms and demands it from requests to break a lock
	watch *watcher
	mux   *http.ServeMux
}

// Handler returns a page of the znodes that s sees. You can mount it below any
// path, with [http.StripPrefix]. It reads the tree from the first request on,
// until s is closed.
func Handler(s *zsync.Session, opts Options) http.Handler {
	if opts.Root == "" {
		opts.Root = "/"
	}
	if opts.Interval <= 0 {
		opts.Interval = time.Second
	}
	if opts.Format == nil {
		opts.Format = func(_, text string) string { return text }
	}
	p := &page{s: s, opts: opts, token: rand.Text(), watch: newWatcher(s, opts), mux: http.NewServeMux()}
	p.mux.HandleFunc("GET /{$}", p.index)
	p.mux.HandleFunc("GET /events", p.events)
	p.mux.HandleFunc("GET /break", p.confirm)
	p.mux.HandleFunc("POST /break", p.breakLock)
	for _, name := range []string{"style.css", "script.js"} {
		data, _ := fs.ReadFile(assets, name)
		p.mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(data))
		})
	}
	// A page of another site can neither read the token in this page nor send its forms.
	return http.NewCrossOriginProtection().Handler(p)
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	p.watch.start(r.Context())
	p.mux.ServeHTTP(w, r)
}

// The type `shown` is the data of the templates.
type shown struct {
	*model
	Now      time.Time
	ReadOnly bool
	Root     string
	State    string
}

func (p *page) shown(m *model) shown {
	return shown{m, time.Now(), p.opts.ReadOnly, p.opts.Root, p.s.State().String()}
}

func (p *page) index(w http.ResponseWriter, r *http.Request) {
	m := p.watch.latest(r.Context())
	if m == nil { // the client has disconnected or the session is closed
		http.Error(w, "the session is closed", http.StatusServiceUnavailable)
		return
	}
	p.render(w, http.StatusOK, "page", p.shown(m))
}

func (p *page) render(w http.ResponseWriter, status int, name string, data any) {
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, name, data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	b.WriteTo(w)
}

// sections are the names of the page's parts, which events sends after a change.
var sections = []string{"summary", "deadlocks", "lines", "queues", "groups", "schedules", "others", "timeline"}

// The method `events` sends an event after each change. Its data is a JSON object with the HTML of
// each section that has changed.
func (p *page) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	leave := p.watch.join()
	defer leave()
	sent := map[string]string{}
	beat := time.NewTicker(15 * time.Second)
	defer beat.Stop()
	// A deadline ends the connection of a client that does not read, because it would count as a
	// viewer and make the watcher look often. A ResponseWriter without deadlines, as in tests, has
	// no limit.
	const slow = time.Minute
	for seen := uint64(0); ; {
		_ = out.SetWriteDeadline(time.Now().Add(slow))
		m, changed := p.watch.now()
		if m != nil && m.Version != seen {
			seen = m.Version
			news := map[string]string{}
			for _, name := range sections {
				// Do not send a section in which only ages have changed. The script in the browser
				// counts them.
				var b, still bytes.Buffer
				data := p.shown(m)
				err := pages.ExecuteTemplate(&b, name, data)
				data.Now = time.Time{}
				if err = errors.Join(err, pages.ExecuteTemplate(&still, name, data)); err != nil {
					return
				}
				if sent[name] != still.String() {
					sent[name], news[name] = still.String(), b.String()
				}
			}
			if text, err := json.Marshal(news); err != nil {
				return
			} else if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil {
				return
			}
			if out.Flush() != nil {
				return
			}
		}
		_ = out.SetWriteDeadline(time.Time{})
		select {
		case <-changed:
		case <-p.watch.ended:
			return
		case <-beat.C:
			_ = out.SetWriteDeadline(time.Now().Add(slow))
			if _, err := fmt.Fprint(w, ": still here\n\n"); err != nil || out.Flush() != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// The type `target` is a contender that the user wants to delete, as the page showed it.
type target struct {
	Path, Node, Owner, Session, Token string
	Holding                           bool
	Since                             time.Time
	Czxid                             int64
	Version                           int32
}

// The method `znode` returns the path of a contender's znode, or "" if no line of the latest model
// has it.
func (p *page) znode(at, node string) string {
	m := p.watch.present()
	if m == nil {
		return ""
	}
	for _, l := range m.Lines {
		for _, c := range slices.Concat(l.Holders, l.Waiters) {
			if l.Path == at && c.Node == node {
				return look.Line{Path: at, Kind: l.Kind, Node: node, Holding: c.Holding}.Znode()
			}
		}
	}
	return ""
}

// The method `confirm` shows the current state of the contender that the user wants to delete.
func (p *page) confirm(w http.ResponseWriter, r *http.Request) {
	if p.opts.ReadOnly {
		http.Error(w, "this page is read-only", http.StatusForbidden)
		return
	}
	at, node := r.FormValue("path"), r.FormValue("node")
	znode := p.znode(at, node)
	if znode == "" {
		p.render(w, http.StatusNotFound, "gone", at)
		return
	}
	data, stat, err := p.s.Get(r.Context(), znode)
	if errors.Is(err, zk.ErrNoNode) {
		p.render(w, http.StatusNotFound, "gone", at)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	owner, _ := marks.Outer(string(data)) // as in the lines
	p.render(w, http.StatusOK, "break", target{
		Path: at, Node: node, Owner: p.opts.Format(at, owner), Session: look.SessionText(stat.EphemeralOwner), Token: p.token,
		Since: time.UnixMilli(stat.Ctime), Czxid: stat.Czxid, Version: stat.Version,
	})
}

// breakLock deletes the znode of a contender if it still has the creation zxid and the version on
// the page. ZooKeeper gives each sequence number only once in a line. So between the read and the
// deletion, no other znode can get this name, and the deletion also checks the version.
//
// The owner learns of the loss at once, because it watches its znode.
func (p *page) breakLock(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 1<<16)
	czxid, errC := strconv.ParseInt(r.PostFormValue("czxid"), 10, 64)
	version, errV := strconv.ParseInt(r.PostFormValue("version"), 10, 32)
	at, node := r.PostFormValue("path"), r.PostFormValue("node")
	switch {
	case p.opts.ReadOnly:
		http.Error(w, "this page is read-only", http.StatusForbidden)
		return
	case subtle.ConstantTimeCompare([]byte(r.PostFormValue("token")), []byte(p.token)) != 1:
		http.Error(w, "this form is not from this page; open it anew", http.StatusForbidden)
		return
	case errC != nil || errV != nil:
		http.Error(w, "czxid or version is no number", http.StatusBadRequest)
		return
	}
	znode := p.znode(at, node)
	if znode == "" {
		p.render(w, http.StatusConflict, "gone", at)
		return
	}
	_, stat, err := p.s.Get(r.Context(), znode)
	if err == nil && (stat.Czxid != czxid || stat.Version != int32(version)) {
		err = zk.ErrBadVersion
	}
	if err == nil {
		p.watch.breaks(at, node) // before the deletion, because the watcher may see it before Txn returns
		if _, err = p.s.Txn(r.Context(), &zk.DeleteRequest{Path: znode, Version: int32(version)}); err != nil {
			p.watch.wasBroken(at, node)
		}
	}
	switch {
	case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrBadVersion):
		p.render(w, http.StatusConflict, "gone", at)
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadGateway)
	default:
		p.watch.lookNow()
		w.Header().Set("Location", "./") // http.Redirect would drop the stripped prefix
		w.WriteHeader(http.StatusSeeOther)
	}
}

// The function `age` returns the time from since to now, in at most two units, or "" if now is zero.
func age(now, since time.Time) string {
	if now.IsZero() {
		return ""
	}
	return span(now.Sub(since))
}

func span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// The function `shell` quotes a path for a command line.
func shell(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_.-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(look.Plain(s), "'", `'\''`) + "'"
}
