// Package ui is a web page that shows, live, what zsync keeps in ZooKeeper:
// who holds each lock and who waits, deadlocks, leaders, queues, groups and
// schedules.
//
//	mux.Handle("/zsync/", http.StripPrefix("/zsync", ui.Handler(s, ui.Options{ReadOnly: true})))
//
// The page loads nothing from other hosts, its links are relative, and it can
// be read without JavaScript. Whoever can open it sees the names of owners and
// the values of znodes, so put it behind the authentication that the rest of
// your program has.
//
// # Cost
//
// However many people watch, the tree is read once for all of them, every
// [Options.Interval]. A large tree is read less often: the page sends at most
// about 200 requests a second, eight at a time, and sets no watches. While
// nobody has the page open, the tree is read ten times less often, for the
// timeline.
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
)

// Options say what the page shows, and what can be done with it.
type Options struct {
	// ReadOnly removes the forms that break locks, and refuses such requests.
	// Set it, unless everybody who can open the page may break locks.
	ReadOnly bool

	// Format, if not nil, returns the text that is shown in place of the owner of
	// a contender, or of the info of a group's member, at path.
	Format func(path, text string) string

	// Root limits the page to what is at this path and below it. The default is /,
	// everything that the session sees.
	Root string

	// Interval is how often the tree is read. The default is one second.
	Interval time.Duration

	// Timetables has the timetables of schedules by path, so that the page can
	// show when the next run is due: ZooKeeper only knows of the last.
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
	token string // proves that a form is of this page
	watch *watcher
	mux   *http.ServeMux
}

// Handler returns the page of what s sees. It may be mounted below any path,
// with [http.StripPrefix]. It reads the tree from the first request on, until
// s is closed.
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
	// A page of another site can neither read this one, and with it the token,
	// nor send its forms.
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

// A shown is what the templates show.
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
	if m == nil { // whoever asked is gone, or the session is closed
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

// sections are the parts of the page that are sent anew when they change.
var sections = []string{"summary", "deadlocks", "lines", "queues", "groups", "schedules", "others", "timeline"}

// events sends each section when it has changed, as an event whose data is a JSON
// object: HTML by section.
func (p *page) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	leave := p.watch.join()
	defer leave()
	sent := map[string]string{}
	beat := time.NewTicker(15 * time.Second)
	defer beat.Stop()
	// Who does not read what is sent is left: he would keep the tree being looked at. Where
	// there are no deadlines, as in tests, it is as without.
	const slow = time.Minute
	for seen := uint64(0); ; {
		_ = out.SetWriteDeadline(time.Now().Add(slow))
		m, changed := p.watch.now()
		if m != nil && m.Version != seen {
			seen = m.Version
			news := map[string]string{}
			for _, name := range sections {
				// What is the same but for ages is not sent: the page counts them on.
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

// A target is a contender that somebody wants to delete, as it was shown.
type target struct {
	Path, Node, Owner, Session, Token string
	Holding                           bool
	Since                             time.Time
	Czxid                             int64
	Version                           int32
}

// znode is the path of a contender that is in a line, or nothing.
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

// confirm shows what would be deleted, as it is now.
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
	p.render(w, http.StatusOK, "break", target{
		Path: at, Node: node, Owner: p.opts.Format(at, string(data)), Session: look.SessionText(stat.EphemeralOwner), Token: p.token,
		Since: time.UnixMilli(stat.Ctime), Czxid: stat.Czxid, Version: stat.Version,
	})
}

// breakLock deletes a contender, if it is still what was shown: the same znode,
// by the zxid that has made it, at the same version. A name with its number is
// never given twice in a line, so between the read and the deletion, which is bound
// to the version, no other znode can come to stand there.
//
// Its owner is told of the loss at once, by the watch that it has on its znode.
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
		p.watch.breaks(at, node) // before the deletion, which the watcher may see before its reply comes
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
		w.Header().Set("Location", "./") // http.Redirect would make it absolute, without what was stripped
		w.WriteHeader(http.StatusSeeOther)
	}
}

// age is how long ago something was, in two units at most; nothing at the zero
// time.
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

// shell quotes a path for a command line.
func shell(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_.-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(look.Plain(s), "'", `'\''`) + "'"
}
