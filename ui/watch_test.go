package ui_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/ui"
	"github.com/zsync/zsync/zktest"
)

// show asks for the page, and returns it.
func show(t *testing.T, page http.Handler) string {
	t.Helper()
	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestALargeTreeIsShownHoweverLongItTakesToLookAtIt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, eyes := suite.Open(t, srv), suite.Open(t, srv)
		for i := range 1000 {
			if err := zsync.NewMutex(s, fmt.Sprintf("/locks/%04d", i)).Lock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		srv.SetLatency(40 * time.Millisecond) // so that it takes 15 s
		page := ui.Handler(eyes, ui.Options{Interval: time.Minute})
		if body := show(t, page); !strings.Contains(body, "has taken longer than 10s") {
			t.Errorf("after 10 s it says\n%.2000s", body)
		}
		time.Sleep(10 * time.Second)
		if body := show(t, page); strings.Contains(body, "What is shown is old") || !strings.Contains(body, "1000 lines") {
			t.Errorf("after 20 s it says\n%.2000s", body)
		}
	})
}

func TestThePageSendsNoMoreThanAboutSoManyRequestsASecond(t *testing.T) {
	for name, use := range map[string]func(ctx context.Context, s *zsync.Session, path string) error{
		"locks": func(ctx context.Context, s *zsync.Session, path string) error {
			return zsync.NewMutex(s, path).Lock(ctx)
		},
		"readers": func(ctx context.Context, s *zsync.Session, path string) error {
			return zsync.NewRWMutex(s, path).RLock(ctx)
		},
		"values": func(ctx context.Context, s *zsync.Session, path string) error {
			return zsync.NewValue[int](s, path).Store(ctx, 1)
		},
		"permits": func(ctx context.Context, s *zsync.Session, path string) error {
			return zsync.NewSemaphore(s, path, 3).Acquire(ctx, 1)
		},
		"once": func(ctx context.Context, s *zsync.Session, path string) error {
			return zsync.NewOnce(s, path).Do(ctx, func(context.Context) error { return nil })
		},
		"queues": func(ctx context.Context, s *zsync.Session, path string) error {
			return zsync.NewQueue[int](s, path).Send(ctx, 1)
		},
		"groups": func(ctx context.Context, s *zsync.Session, path string) error {
			_, err := zsync.NewGroup[int](s, path).Join(ctx, "me", 1)
			return err
		},
		"maps": func(ctx context.Context, s *zsync.Session, path string) error {
			return zsync.NewMap[int](s, path).Store(ctx, "a", 1)
		},
		"parties": func(ctx context.Context, s *zsync.Session, path string) error {
			return zsync.NewWaitGroup(s, path).Enter(ctx, 1)
		},
		"tasks": func(ctx context.Context, s *zsync.Session, path string) error {
			return zsync.NewWaitGroup(s, path).Add(ctx, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, eyes := suite.Open(t, srv), suite.Open(t, srv)
				for i := range 120 {
					if err := use(t.Context(), s, fmt.Sprintf("/all/%d", i)); err != nil {
						t.Fatal(err)
					}
				}
				page := ui.Handler(eyes, ui.Options{})
				go page.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/events", nil))
				const seconds = 20 // several rounds of all that is shown
				time.Sleep(seconds * time.Second)
				before := eyes.Stats().Requests
				time.Sleep(seconds * time.Second)
				if got := (eyes.Stats().Requests - before) / seconds; got > 230 {
					t.Errorf("%d requests a second", got)
				}
			})
		})
	}
}

func TestWhoComesWhenNobodyHasLookedForLongIsShownThePresent(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, eyes := suite.Open(t, srv), suite.Open(t, srv)
		page := ui.Handler(eyes, ui.Options{ReadOnly: true, Interval: time.Minute})
		if body := show(t, page); !strings.Contains(body, "No session holds or waits") {
			t.Fatal(body)
		}
		time.Sleep(5 * time.Hour)
		if err := zsync.NewMutex(s, "/lock").Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if body := show(t, page); !strings.Contains(body, "<code>/lock</code>") {
			t.Errorf("the page is that of hours ago:\n%s", body)
		}
		looks := srv.Counts().Requests["getChildren2"]
		for range 10 { // now the tree is looked at every minute, however many come
			show(t, page)
		}
		if got := srv.Counts().Requests["getChildren2"] - looks; got != 0 {
			t.Errorf("%d listings for ten who came at once", got)
		}
	})
}

func TestWhoComesDuringALongOutageIsShownThePast(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, eyes := suite.Open(t, srv), suite.Open(t, srv)
		if err := zsync.NewMutex(s, "/lock").Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		page := ui.Handler(eyes, ui.Options{})
		show(t, page)
		srv.Intercept(func(zktest.Request) zktest.Action { return zktest.DropRequest })
		time.Sleep(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun, w := time.Now(), httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
		if took := time.Since(begun); took > 20*time.Second || !strings.Contains(w.Body.String(), "What is shown is old") {
			t.Errorf("after %v, the page says\n%.500s", took, w.Body)
		}
		srv.Intercept(nil)
	})
}

// A listener gives a server the connections that are sent.
type listener struct{ conns chan net.Conn }

func (l listener) Accept() (net.Conn, error) {
	if c, ok := <-l.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (l listener) Close() error   { return nil }
func (l listener) Addr() net.Addr { return &net.TCPAddr{} }

// serveInMemory serves a page without the network, for a bubble. The client reaches it at any address.
func serveInMemory(t *testing.T, page http.Handler) (client *http.Client) {
	t.Helper()
	l := listener{make(chan net.Conn)}
	web := &http.Server{Handler: page}
	go web.Serve(l)
	t.Cleanup(func() { close(l.conns); web.Close() })
	client = &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		l.conns <- theirs
		return ours, nil
	}}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

func TestWhoDoesNotReadWhatIsSentIsLeft(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, eyes := suite.Open(t, srv), suite.Open(t, srv)
		if err := zsync.NewMutex(s, "/lock").Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		l := listener{make(chan net.Conn, 2)}
		web := &http.Server{Handler: ui.Handler(eyes, ui.Options{})}
		go web.Serve(l)
		defer func() { close(l.conns); web.Close() }()
		open := func() net.Conn {
			ours, theirs := net.Pipe()
			l.conns <- theirs
			fmt.Fprint(ours, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
			return ours
		}
		stuck, reads := open(), open()
		defer stuck.Close()
		var ended atomic.Bool
		go func() {
			io.Copy(io.Discard, reads)
			ended.Store(true)
		}()
		time.Sleep(10 * time.Minute)
		if ended.Load() {
			t.Error("who reads is left too")
		}
		stuck.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, stuck); err != nil {
			t.Errorf("who has not read for ten minutes is still served: %v", err)
		}
		reads.Close()
		time.Sleep(time.Minute)
		before := srv.Counts().Requests["getChildren2"]
		time.Sleep(10 * time.Minute)
		if got := srv.Counts().Requests["getChildren2"] - before; got > 200 {
			t.Errorf("the tree is listed as if somebody watched: %d times", got)
		}
	})
}

// What turns the direction of text around would show another path than there is.
func TestWhatIsShownOfAPathIsNotTurnedAround(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other, eyes := suite.Open(t, srv), suite.Open(t, srv), suite.Open(t, srv)
		ctx := t.Context()
		const odd = "\u202e<b>cod"
		_, scheduled := zsync.NewSchedule(s, "/"+odd+"/schedule").Do(ctx, time.Date(2030, 6, 1, 0, 0, 0, 0, time.UTC), func(context.Context) error { return nil })
		_, joined := zsync.NewGroup[string](s, "/"+odd+"/group").Join(ctx, odd, odd)
		a, b := zsync.NewMutex(s, "/"+odd+"/a"), zsync.NewMutex(other, "/"+odd+"/b")
		must(t, scheduled, joined, a.Lock(ctx), b.Lock(ctx), zsync.NewQueue[int](s, "/"+odd+"/queue").Send(ctx, 1), zsync.NewValue[string](s, "/"+odd+"/value").Store(ctx, odd))
		go zsync.NewMutex(other, a.Path()).Lock(ctx) // a deadlock
		go zsync.NewMutex(s, b.Path()).Lock(ctx)
		time.Sleep(time.Second)
		page := ui.Handler(eyes, ui.Options{Root: "/" + odd})
		show(t, page)
		must(t, zsync.NewBarrier(s, "/"+odd+"/gate").Close(ctx))
		time.Sleep(2 * time.Second)
		body := show(t, page)
		for _, what := range []string{"schedule", "group", "a", "b", "queue", "value", "gate"} {
			if !strings.Contains(body, `/\u202e&lt;b&gt;cod/`+what) {
				t.Errorf("%s is not shown", what)
			}
		}
		if i := strings.Index(body, "\u202e"); i >= 0 {
			t.Errorf("turned around: %.200q", body[max(i-100, 0):])
		}
		if !strings.Contains(body, "Deadlock:") {
			t.Error("no deadlock is shown")
		}
	})
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
