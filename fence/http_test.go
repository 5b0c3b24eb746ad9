package fence_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/fence"
)

// send sends a request to a handler, and returns its status.
func send(ctx context.Context, h http.Handler, method, path string, token int64) *http.Response {
	r := httptest.NewRequestWithContext(ctx, method, path, nil)
	if token != 0 {
		fence.SetToken(r.Header, token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func ok(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "done") }

func TestAHandlerAnswersByTheToken(t *testing.T) {
	h := fence.NewHandler(http.HandlerFunc(ok), nil, nil)
	for _, tt := range []struct {
		method, path string
		token        int64
		status       int
		newest       string
	}{
		{"PUT", "/a", 0, http.StatusPreconditionRequired, ""},
		{"GET", "/a", 0, http.StatusOK, ""},
		{"PUT", "/a", -3, http.StatusBadRequest, ""},
		{"PUT", "/a", 5, http.StatusOK, ""},
		{"PUT", "/a", 5, http.StatusOK, ""},
		{"PUT", "/a", 4, http.StatusPreconditionFailed, "5"},
		{"GET", "/a", 4, http.StatusPreconditionFailed, "5"},
		{"PUT", "/b", 4, http.StatusOK, ""},
		{"DELETE", "/a", 6, http.StatusOK, ""},
		{"PUT", "/a", 5, http.StatusPreconditionFailed, "6"},
		{"PUT", "/" + strings.Repeat("x", 300), 5, http.StatusBadRequest, ""},
	} {
		got := send(t.Context(), h, tt.method, tt.path, tt.token)
		if got.StatusCode != tt.status || got.Header.Get(fence.Header) != tt.newest {
			t.Errorf("%s %.5s with %d: got %d, newest %q; want %d, %q", tt.method, tt.path, tt.token, got.StatusCode, got.Header.Get(fence.Header), tt.status, tt.newest)
		}
	}
	for _, bad := range []http.Header{{}, {fence.Header: {"x"}}, {fence.Header: {"0"}}, {fence.Header: {"1", "2"}}} {
		if token, err := fence.Token(bad); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("Token(%v): got %d, %v, want ErrInvalid", bad, token, err)
		}
	}
}

// A broken store lets nothing pass.
type broken struct{}

func (broken) Advance(context.Context, string, int64) error { return errors.New("disk full") }

func TestAHandlerWhoseStoreFailsServesNothing(t *testing.T) {
	h := fence.NewHandler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") }), broken{}, nil)
	if got := send(t.Context(), h, "PUT", "/a", 1); got.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("got %d", got.StatusCode)
	}
}

// A scene has a handler whose requests stay inside until they are let go, if
// their path says so.
type scene struct {
	t      *testing.T
	h      http.Handler
	inside map[string]chan error // gets why each has ended, by its name
	letGo  map[string]chan struct{}
}

func newScene(t *testing.T) *scene {
	s := &scene{t: t, inside: make(map[string]chan error), letGo: make(map[string]chan struct{})}
	for _, name := range []string{"old", "same", "new", "newest"} {
		s.inside[name], s.letGo[name] = make(chan error, 1), make(chan struct{})
	}
	s.h = fence.NewHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Query().Get("name")
		var err error
		select {
		case <-r.Context().Done():
			err = context.Cause(r.Context())
			<-s.letGo[name] // it takes its time to stop
		case <-s.letGo[name]:
		}
		s.inside[name] <- err
	}), nil, nil)
	return s
}

// put sends a request; the channel gets its status.
func (s *scene) put(ctx context.Context, name string, token int64) <-chan int {
	status := make(chan int, 1)
	go func() { status <- send(ctx, s.h, "PUT", "/a?name="+name, token).StatusCode }()
	synctest.Wait()
	return status
}

// waits fails the test if a request has been answered.
func waits(t *testing.T, what string, status <-chan int) {
	t.Helper()
	synctest.Wait()
	select {
	case got := <-status:
		t.Errorf("%s was answered with %d and should wait", what, got)
	default:
	}
}

func TestAGreaterTokenEndsThoseUnderWayAndWaitsForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		old := s.put(t.Context(), "old", 1)
		same := s.put(t.Context(), "same", 1) // beside it
		next := s.put(t.Context(), "new", 2)
		newest := s.put(t.Context(), "newest", 3)
		if got := <-s.put(t.Context(), "none", 1); got != http.StatusPreconditionFailed {
			t.Errorf("token 1 while 2 waits: got %d", got)
		}
		close(s.letGo["old"])
		if err := <-s.inside["old"]; !errors.Is(err, fence.ErrStale) || <-old != http.StatusOK {
			t.Errorf("the old one's context ended with %v, want ErrStale", err)
		}
		waits(t, "token 3", newest) // "same" is still inside
		close(s.letGo["same"])
		<-same
		if got := <-next; got != http.StatusPreconditionFailed {
			t.Errorf("token 2, overtaken by 3 while it waited: got %d", got)
		}
		waits(t, "token 3", newest)
		close(s.letGo["newest"])
		if err := <-s.inside["newest"]; err != nil || <-newest != http.StatusOK {
			t.Errorf("the newest ended with %v", err)
		}
	})
}

func TestARequestThatWaitsForAnOlderOneEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		old := s.put(t.Context(), "old", 1)
		ctx, cancel := context.WithCancel(t.Context())
		next := s.put(ctx, "new", 2)
		cancel()
		if got := <-next; got != http.StatusServiceUnavailable {
			t.Errorf("got %d", got)
		}
		close(s.letGo["old"])
		<-old
		close(s.letGo["same"])
		if got := <-s.put(t.Context(), "same", 1); got != http.StatusPreconditionFailed {
			t.Errorf("token 1 behind 2, which was given up: got %d", got)
		}
	})
}

// Store and handler are two steps. A request whose token was the greatest in
// the first, and is not any more in the second, is refused: it would write
// after the greater.
func TestATokenOvertakenBetweenTheStoreAndTheHandlerIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{passed: make(chan struct{})}
		h := fence.NewHandler(http.HandlerFunc(ok), s, nil)
		status := make(chan int, 1)
		go func() { status <- send(t.Context(), h, "PUT", "/a", 1).StatusCode }()
		synctest.Wait() // 1 is in the store, and paused there
		if got := send(t.Context(), h, "PUT", "/a", 2); got.StatusCode != http.StatusOK {
			t.Errorf("token 2: got %d", got.StatusCode)
		}
		close(s.passed)
		if got := <-status; got != http.StatusPreconditionFailed {
			t.Errorf("token 1, behind 2: got %d", got)
		}
	})
}

// A slow store takes the token 1, and then its time.
type slow struct {
	fence.Memory
	passed chan struct{}
}

func (s *slow) Advance(ctx context.Context, resource string, token int64) error {
	err := s.Memory.Advance(ctx, resource, token)
	if token == 1 {
		<-s.passed
	}
	return err
}

func TestAHandlerThatPanicsLetsTheNextTokenIn(t *testing.T) {
	h := fence.NewHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(fence.Header) == "1" {
			panic(http.ErrAbortHandler)
		}
	}), nil, nil)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic did not go on")
			}
		}()
		send(t.Context(), h, "PUT", "/a", 1)
	}()
	if got := send(t.Context(), h, "PUT", "/a", 2); got.StatusCode != http.StatusOK {
		t.Errorf("got %d", got.StatusCode)
	}
}

// The race detector judges too: a request that ends by itself may do so while a newer
// one takes its place.
func TestRequestsOfRisingTokensMayEndWhileNewerOnesBegin(t *testing.T) {
	var running, done atomic.Int64
	h := fence.NewHandler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		running.Add(1)
		time.Sleep(20 * time.Microsecond) // real time: the work of a request, beside which others begin
		running.Add(-1)
		done.Add(1)
	}), nil, nil)
	var wg sync.WaitGroup
	var last atomic.Int64
	for range 8 {
		wg.Go(func() {
			for range 500 {
				send(t.Context(), h, "PUT", "/a", last.Add(1))
			}
		})
	}
	wg.Wait()
	if running.Load() != 0 || done.Load() == 0 {
		t.Errorf("%d run, and %d have ended", running.Load(), done.Load())
	}
	if got := send(t.Context(), h, "PUT", "/a", 1); got.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("the first token again: got %d", got.StatusCode)
	}
}
