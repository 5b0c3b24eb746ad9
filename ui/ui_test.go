package ui_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/ui"
	"github.com/zsync/zsync/zktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func session(t *testing.T, srv *zktest.Server, name string) *zsync.Session {
	t.Helper()
	s, err := zsync.Connect(t.Context(), srv.Addr(), zsync.WithOwner(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// serve serves the page below a path of its own.
func serve(t *testing.T, srv *zktest.Server, opts ui.Options) (base string, client *http.Client) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/below/zsync/", http.StripPrefix("/below/zsync", ui.Handler(session(t, srv, "the page"), opts)))
	web := httptest.NewServer(mux)
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
	jar, _ := cookiejar.New(nil)
	client = &http.Client{Transport: &http.Transport{}, Jar: jar}
	t.Cleanup(client.CloseIdleConnections)
	return web.URL + "/below/zsync/", client
}

func get(t *testing.T, c *http.Client, url string) (status int, body string) {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	// real time: tests over HTTP and TCP use it too
	for deadline := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// waiting waits until n are in line.
func waiting(t *testing.T, m *zsync.Mutex, n int) {
	t.Helper()
	await(t, fmt.Sprintf("%d at %s", n, m.Path()), func() bool {
		cs, err := m.Contenders(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return len(cs) == n
	})
}

// ring has three sessions wait for each other at three locks, which have their names.
func ring(t *testing.T, srv *zktest.Server) {
	t.Helper()
	ringOf(t, srv, "billing", "shipping", "stock")
}

// ringOf has sessions of these names wait for each other.
func ringOf(t *testing.T, srv *zktest.Server, names ...string) {
	t.Helper()
	var sessions []*zsync.Session
	for _, name := range names {
		s := session(t, srv, name)
		if err := zsync.NewMutex(s, "/locks/"+name).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, s)
	}
	for i, s := range sessions {
		m := zsync.NewMutex(s, "/locks/"+names[(i+1)%len(names)])
		go m.Lock(t.Context())
		waiting(t, m, 2)
	}
}

// everything makes one of each.
func everything(t *testing.T, srv *zktest.Server) *zsync.Mutex {
	t.Helper()
	ctx := t.Context()
	s := session(t, srv, "worker-1")
	m := zsync.NewMutex(s, "/jobs/nightly")
	q := zsync.NewQueue[string](s, "/work")
	var err error
	_, scheduled := zsync.NewSchedule(s, "/jobs/report").Do(ctx, time.Date(2030, 6, 1, 0, 0, 0, 0, time.UTC), func(context.Context) error { return nil })
	_, err = zsync.NewGroup[string](s, "/services/billing").Join(ctx, "billing-1", "10.0.0.7:8080")
	if err := errors.Join(
		err, scheduled, m.Lock(ctx), q.Send(ctx, "a", "b", "c"), q.SendAt(ctx, time.Now().Add(time.Hour), "later"),
		zsync.NewElection(s, "/services/scheduler", zsync.WithID("worker-1")).Campaign(ctx),
		zsync.NewSemaphore(s, "/pool", 3).Acquire(ctx, 2),
		zsync.NewValue[string](s, "/config/<script>alert(1)</script>").Store(ctx, "<b>"),
	); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestThePageTellsEverythingWithoutScripts(t *testing.T) {
	srv := zktest.Start(t, harness.Patient)
	m := everything(t, srv)
	ring(t, srv)
	go zsync.NewMutex(session(t, srv, "<script>evil</script>"), m.Path()).Lock(t.Context())
	waiting(t, m, 2)
	daily := zsync.Every(24 * time.Hour)
	base, c := serve(t, srv, ui.Options{
		ReadOnly: true, Timetables: map[string]interface{ Next(time.Time) time.Time }{"/jobs/report": daily},
		Format: func(path, text string) string { return strings.ReplaceAll(text, "10.0.0.7", "host-7") },
	})
	status, body := get(t, c, base)
	if status != http.StatusOK {
		t.Fatalf("status %d: %s", status, body)
	}
	for _, want := range []string{
		`<code>/jobs/nightly</code> <small>lock</small>`, `>worker-1</td>`, `&lt;script&gt;evil`,
		`Deadlock:</strong> 3 sessions wait for each other.`, `<li><strong>billing</strong> <span>waits at <code>/locks/shipping</code> for</span></li>`,
		`<li><strong>stock</strong> <span>waits at <code>/locks/billing</code> for</span></li>`, `billing, the first`,
		`<ol class="ring">`, `<small>election, term `, `>leads</td>`, `/services/billing`, `host-7:8080`, `/work`,
		`that of 2030-0`, daily.Next(time.Now()).Local().Format("2006-01-02"), `zsync queue peek /work`, `http-equiv="refresh"`, `read-only`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page does not have %s", want)
		}
	}
	if !regexp.MustCompile(`<code>/work</code>.*Ready">3</td><td data-th="Claimed">0</td><td data-th="Delayed">1</td><td data-th="Dead">0</td>`).MatchString(body) {
		t.Error("the page does not have what is in the queue: 3 ready, 1 delayed")
	}
	for _, bad := range []string{"<script>evil", "<script>alert", "<b>", `href="/`, `src="/`, "http://", "https://", "Break…", "token", "style=", "onclick"} {
		if strings.Contains(body, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	for _, name := range []string{"style.css", "script.js"} {
		if status, body := get(t, c, base+name); status != http.StatusOK || len(body) < 500 {
			t.Errorf("%s: status %d, %d bytes", name, status, len(body))
		}
	}
	resp, err := c.Get(base)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := resp.Header.Get("Content-Security-Policy"); !strings.Contains(got, "default-src 'none'") || strings.Contains(got, "unsafe") {
		t.Errorf("the policy is %q", got)
	}
	if status, _ := get(t, c, base+"nothing"); status != http.StatusNotFound {
		t.Errorf("status %d of what is not there", status)
	}
}

// A stream is the sections that a page is sent.
type stream struct {
	t      *testing.T
	events chan map[string]string
	seen   map[string]string
}

func listen(t *testing.T, c *http.Client, base string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, base+"events", nil)
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	x := &stream{t, make(chan map[string]string, 1000), map[string]string{}}
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done; resp.Body.Close() })
	go func() {
		defer close(done)
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var news map[string]string
				if json.Unmarshal([]byte(text), &news) == nil {
					x.events <- news
				}
			}
		}
	}()
	return x
}

// await waits until a section matches.
func (x *stream) await(section, pattern string) {
	x.t.Helper()
	re := regexp.MustCompile(pattern)
	for timeout := time.After(2 * time.Minute); !re.MatchString(x.seen[section]); {
		select {
		case news := <-x.events:
			for id, html := range news {
				x.seen[id] = html
			}
		case <-timeout:
			x.t.Fatalf("%s never matches %s:\n%s", section, pattern, x.seen[section])
		}
	}
}

func TestAHandOverIsShownAsItHappensAndWhy(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		first := suite.Open(t, srv, zsync.WithOwner("first"))
		m := zsync.NewMutex(first, "/p")
		other := zsync.NewMutex(first, "/other")
		if err := errors.Join(m.Lock(t.Context()), other.Lock(t.Context())); err != nil {
			t.Fatal(err)
		}
		second, third := suite.Open(t, srv, zsync.WithOwner("second")), suite.Open(t, srv, zsync.WithOwner("third"))
		for i, s := range []*zsync.Session{second, third} {
			go zsync.NewMutex(s, "/p").Lock(t.Context())
			waiting(t, m, i+2)
		}
		x := listen(t, serveInMemory(t, ui.Handler(suite.Open(t, srv), ui.Options{Interval: 20 * time.Millisecond})), "http://page/")
		x.await("lines", `(?s)>holds</td><td data-th="Who">first</td>.*>1</td><td data-th="Who">second</td>.*>2</td><td data-th="Who">third</td>`)
		x.await("timeline", `None yet`)
		if err := m.Unlock(); err != nil {
			t.Fatal(err)
		}
		x.await("lines", `(?s)>holds</td><td data-th="Who">second</td>.*>1</td><td data-th="Who">third</td>`)
		x.await("timeline", `<code>/p</code></td><td data-th="Who">first</td><td data-th="Held for">&lt;\d+s</td><td data-th="Why it ended">released</td><td data-th="Then">second</td>`)
		srv.Expire(second.ID())
		x.await("timeline", `<code>/p</code></td><td data-th="Who">second</td><td data-th="Held for">\d+s</td><td data-th="Why it ended"></td><td data-th="Then">third</td>`)
		srv.Close()
		x.await("summary", `What is shown is old: .*the servers do not answer`)
	})
}

func TestTheTreeIsLookedAtOnceForAllWhoWatch(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		if err := zsync.NewMutex(suite.Open(t, srv, zsync.WithOwner("holder")), "/p").Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		eyes := suite.Open(t, srv)
		var looks, all atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op != zktest.OpPing && r.Op != zktest.OpConnect {
				all.Add(1)
			}
			if r.Path == "/" {
				looks.Add(1)
			}
			return zktest.Pass
		})
		const interval = 50 * time.Millisecond
		c := serveInMemory(t, ui.Handler(eyes, ui.Options{Interval: interval}))
		began := time.Now()
		for range 10 {
			listen(t, c, "http://page/").await("lines", `holder`)
		}
		await(t, "ten looks", func() bool { return looks.Load() >= 10 })
		got := looks.Load()
		most := int64(time.Since(began)/interval) + 3 // the first, one for the first viewer, one under way
		if got > most {
			t.Errorf("%d looks in %v", got, time.Since(began))
		}
		if per := float64(all.Load()) / float64(looks.Load()); per > 8 {
			t.Errorf("%.1f requests a look at one lock", per)
		}
	})
}

func TestALockIsBrokenOnlyAsItWasShown(t *testing.T) {
	srv := zktest.Start(t, harness.Patient)
	holder := zsync.NewMutex(session(t, srv, "holder"), "/a path")
	if err := holder.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := zsync.NewMutex(session(t, srv, "next"), "/a path")
	got := make(chan error, 1)
	go func() { got <- next.Lock(t.Context()) }()
	waiting(t, next, 2)

	readOnly, c := serve(t, srv, ui.Options{ReadOnly: true})
	base, _ := serve(t, srv, ui.Options{Interval: 20 * time.Millisecond})
	_, body := get(t, c, base)
	link := regexp.MustCompile(`href="(break\?[^"]*)"`).FindStringSubmatch(body)
	if link == nil {
		t.Fatalf("there is nothing to break in\n%s", body)
	}
	href := strings.ReplaceAll(link[1], "&amp;", "&")
	status, body := get(t, c, base+href)
	if status != http.StatusOK || !strings.Contains(body, "holder") {
		t.Fatalf("status %d:\n%s", status, body)
	}
	form := url.Values{}
	for _, m := range regexp.MustCompile(`name="(\w+)" value="([^"]*)"`).FindAllStringSubmatch(body, -1) {
		form.Set(m[1], m[2])
	}
	if len(form) != 5 || strings.Contains(href, form.Get("token")) {
		t.Fatalf("the form is %v", form)
	}
	post := func(to string, change map[string]string, header ...string) int {
		t.Helper()
		f := url.Values{}
		for k := range form {
			f.Set(k, form.Get(k))
		}
		for k, v := range change {
			f.Set(k, v)
		}
		req, _ := http.NewRequest(http.MethodPost, to+"break", strings.NewReader(f.Encode()))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for _, tt := range []struct {
		name   string
		got    int
		status int
	}{
		{"a read-only page", post(readOnly, nil), http.StatusForbidden},
		{"no token", post(base, map[string]string{"token": ""}), http.StatusForbidden},
		{"another token", post(base, map[string]string{"token": "AAAA"}), http.StatusForbidden},
		{"another site", post(base, nil, "Origin", "https://evil.example"), http.StatusForbidden},
		{"another site, by what the browser says", post(base, nil, "Sec-Fetch-Site", "cross-site"), http.StatusForbidden},
		{"another znode of that name", post(base, map[string]string{"czxid": "1"}), http.StatusConflict},
		{"another version", post(base, map[string]string{"version": "7"}), http.StatusConflict},
		{"no number", post(base, map[string]string{"czxid": "x"}), http.StatusBadRequest},
		{"what is in no line", post(base, map[string]string{"path": "/", "node": "zookeeper"}), http.StatusConflict},
		{"another node", post(base, map[string]string{"node": "../a path"}), http.StatusConflict},
	} {
		if tt.got != tt.status {
			t.Errorf("%s: status %d, want %d", tt.name, tt.got, tt.status)
		}
	}
	select {
	case <-holder.Lost():
		t.Fatal("the lock was broken by what must not")
	default:
	}
	if status, _ := get(t, c, readOnly+href); status != http.StatusForbidden {
		t.Errorf("status %d of the form of a read-only page", status)
	}
	x := listen(t, c, base)
	x.await("lines", "holder")
	if got := post(base, nil); got != http.StatusOK { // and back to the page
		t.Errorf("status %d", got)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
	<-holder.Lost()
	x.await("timeline", `>holder</td><td data-th="Held for">&lt;\d+s</td><td data-th="Why it ended">broken from this page</td><td data-th="Then">next</td>`)
	if got := post(base, nil); got != http.StatusConflict {
		t.Errorf("status %d the second time", got)
	}
}

func TestThePageEndsWithItsSession(t *testing.T) {
	srv := zktest.Start(t, harness.Patient)
	s := session(t, srv, "the page")
	web := httptest.NewServer(ui.Handler(s, ui.Options{}))
	defer web.Close()
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	if status, _ := get(t, c, web.URL); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	resp, err := c.Get(web.URL + "/events")
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := io.ReadAll(resp.Body); err != nil { // it ends
		t.Error(err)
	}
	resp.Body.Close()
}

// The znode of a nested hold also has the outer sessions. The page shows only the owner.
func TestTheFormShowsTheOwnerAsTheLineDoes(t *testing.T) {
	srv := zktest.Start(t, harness.Patient)
	m := zsync.NewMutex(session(t, srv, "worker within 0x1 0x2"), "/inner")
	if err := m.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	format := func(_, text string) string { return "<" + text + ">" }
	base, c := serve(t, srv, ui.Options{Format: format})
	_, body := get(t, c, base)
	link := regexp.MustCompile(`href="(break\?[^"]*)"`).FindStringSubmatch(body)
	if link == nil || !strings.Contains(body, "&lt;worker&gt;") {
		t.Fatalf("there is no worker to break in\n%s", body)
	}
	if _, body = get(t, c, base+strings.ReplaceAll(link[1], "&amp;", "&")); !strings.Contains(body, "wait of &lt;worker&gt;?") {
		t.Errorf("the form is\n%s", body)
	}
}
