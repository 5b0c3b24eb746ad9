package zsync_test

// This file lets clients acquire the permits of a Semaphore in every way that a server can serve
// them. The code under test is the real client. The model is a zktest.Server that executes a request
// only when the test picks it. So the test picks the order of all requests, the request that an
// overloaded server refuses, and the request or reply that is lost.
//
// The judge counts the clients that have a permit and do not know of a loss. Each client gets its
// permit in the end.
//
// internal/lock has the same test for the line of a lock.

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/explore"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// An acquiring is one program of the test: clients that each acquire one permit and release it, and
// the disturbances.
type acquiring struct {
	limit     int64
	fast      int // clients that try without the gate
	gate      int // clients that lock the gate at once
	throttled int // requests that a server refuses because it is overloaded
	lost      int // requests or replies that are lost with their connection
}

// A scriptedClient is a client whose requests the test executes one by one.
type scriptedClient struct {
	m      *zsync.Semaphore
	id     int64 // of its session
	action chan zktest.Action

	// Guarded by acquireRun.mu while goroutines of the client or the server run.
	request *zktest.Request // that has reached the server; nil: none
	created int
	holds   bool
	over    bool // it has released its permit
	err     error

	seen strings.Builder // the requests so far, and the states that the replies show: the client's state follows from them
}

// An acquireRun is one run.
type acquireRun struct {
	acquiring
	t       *testing.T
	srv     *zktest.Server
	admin   *zsync.Session
	clients []*scriptedClient
	free    chan struct{} // closed: the server executes all requests

	mu    sync.Mutex
	names map[string]string // of znodes, by the GUID: the client, and the number of the znode among its znodes
}

// everyAcquire is the model: see package explore.
func (a acquiring) everyAcquire(t *testing.T, r *explore.Run) {
	var ended any
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		w := a.begin(t, srv)
		defer w.end()
		defer func() { ended = recover() }() // the run must end in its bubble first
		w.run(r)
	})
	if ended != nil {
		panic(ended)
	}
}

func (a acquiring) begin(t *testing.T, srv *zktest.Server) *acquireRun {
	uuid.SetRand(new(countingReader))
	w := &acquireRun{acquiring: a, t: t, srv: srv, admin: open(t, srv), names: make(map[string]string), free: make(chan struct{})}
	var sessions []*zsync.Session
	for range a.fast + a.gate {
		sessions = append(sessions, open(t, srv))
	}
	for i, m := range warm(t, a.limit, zsync.LayoutCurator, sessions...) {
		if i >= a.fast {
			zsync.ThroughTheGate(m)
		}
		w.clients = append(w.clients, &scriptedClient{m: m, id: sessions[i].ID(), action: make(chan zktest.Action)})
	}
	time.Sleep(time.Second) // the places at the gate are given up
	srv.Intercept(w.hold)
	for _, c := range w.clients {
		go func() {
			err := c.m.Acquire(t.Context(), 1)
			w.mu.Lock()
			defer w.mu.Unlock()
			c.holds, c.err = err == nil, err
		}()
	}
	return w
}

// A countingReader makes GUIDs almost the same in each run.
type countingReader struct{ n atomic.Uint32 }

func (r *countingReader) Read(p []byte) (int, error) {
	clear(p)
	binary.BigEndian.PutUint32(p, r.n.Add(1))
	return len(p), nil
}

// The method `hold` keeps a request of a client until the test picks it.
func (w *acquireRun) hold(q zktest.Request) zktest.Action {
	i := slices.IndexFunc(w.clients, func(c *scriptedClient) bool { return c.id == q.Session })
	if i < 0 || q.Op == zktest.OpConnect || q.Op == zktest.OpPing || q.Op == zktest.OpCloseSession {
		return zktest.Pass
	}
	c := w.clients[i]
	w.mu.Lock()
	c.request = &q
	for _, op := range append(slices.Clone(q.Ops), q) {
		if guid := guidOf(op.Path); op.Op == zktest.OpCreate && w.names[guid] == "" {
			c.created++
			w.names[guid] = fmt.Sprintf("%d.%d", i, c.created)
		}
	}
	w.mu.Unlock()
	select {
	case action := <-c.action:
		return action
	case <-w.free:
		return zktest.Pass
	}
}

// The method `end` lets all goroutines of the run end, when the sessions are closed.
func (w *acquireRun) end() {
	close(w.free)
	w.srv.Intercept(nil)
}

// guidOf returns the GUID in the path of a znode at the gate or of a permit, or "".
func guidOf(path string) string {
	if _, name, ok := strings.Cut(path, "/_c_"); ok && len(name) >= 36 {
		return name[:36]
	}
	return ""
}

// The method `run` picks what happens next, until each client has had its permit.
func (w *acquireRun) run(r *explore.Run) {
	for idle := 0; ; {
		time.Sleep(time.Millisecond) // each request takes time
		time.Sleep(time.Nanosecond)  // now all timers of the same moment have fired
		synctest.Wait()
		out := 0
		for i, c := range w.clients {
			if c.err != nil {
				r.Fail("client %d: %v", i, c.err)
			}
			if c.holds && !harness.ClosedFunc(c.m.Lost())() {
				out++
			}
		}
		if int64(out) > w.limit {
			r.Fail("%d permits are out, of %d", out, w.limit)
		}
		next := w.next(r)
		if len(next) == 0 {
			if !slices.ContainsFunc(w.clients, func(c *scriptedClient) bool { return !c.over }) {
				return
			}
			if idle++; idle > 300 {
				r.Fail("a client waits for ever: %s", w.state())
			}
			time.Sleep(100 * time.Millisecond) // a client that is disconnected waits before it dials
			continue
		}
		idle = 0
		r.At(w.state)
		next[r.Pick(len(next))]()
	}
}

// The method `next` returns everything that can happen next.
func (w *acquireRun) next(r *explore.Run) (acts []func()) {
	can := func(act func(), format string, args ...any) {
		acts = append(acts, func() {
			r.Note(format, args...)
			gate, leases := w.list(gateDir), w.list(leasesDir)
			act()
			synctest.Wait()
			for dir, before := range map[string]string{gateDir: gate, leasesDir: leases} {
				if w.list(dir) != before { // watches may have fired
					for _, c := range w.clients {
						if on := w.watches(c, dir); len(on) > 0 {
							fmt.Fprintf(&c.seen, " ~%v", on)
						}
					}
				}
			}
		})
	}
	for i, c := range w.clients {
		if request := c.request; request != nil {
			pick := func(action zktest.Action, mark string) {
				c.request = nil
				fmt.Fprintf(&c.seen, " %v%s", request.Op, mark)
				if request.Path == gateDir || request.Path == leasesDir {
					c.seen.WriteString(w.list(request.Path))
				}
				c.action <- action
			}
			what := fmt.Sprint(request.Op, " ", request.Path)
			can(func() { pick(zktest.Pass, "") }, "client %d: %s", i, what)
			if w.throttled > 0 {
				can(func() { w.throttled--; pick(zktest.Fail(zktest.CodeThrottled), "t") }, "client %d: %s is throttled", i, what)
			}
			if w.lost > 0 {
				can(func() { w.lost--; pick(zktest.DropRequest, "-") }, "client %d: %s is lost", i, what)
				can(func() { w.lost--; pick(zktest.DropReply, "!") }, "client %d: the reply to %s is lost", i, what)
			}
		}
		if c.holds {
			can(func() {
				c.holds = false
				c.seen.WriteString(" release")
				go func() {
					err := c.m.Release(1)
					w.mu.Lock()
					defer w.mu.Unlock()
					c.over, c.err = true, err
				}()
			}, "client %d releases its permit", i)
		}
	}
	return acts
}

const gateDir, leasesDir = "/s/locks", "/s/leases"

// The method `list` returns the children of the znode at the path `dir`.
func (w *acquireRun) list(dir string) string {
	children, _, _ := w.admin.Children(w.t.Context(), dir)
	var names []string
	for _, child := range children {
		names = append(names, w.names[guidOf(dir+"/"+child)])
	}
	slices.Sort(names)
	return fmt.Sprint(names)
}

// The method `watches` reports whether c has a watch on the znode at the path `dir` or below it.
func (w *acquireRun) watches(c *scriptedClient, dir string) (on []string) {
	for _, watch := range w.srv.Watches(c.id) {
		if watch.Path == dir {
			on = append(on, dir)
		} else if strings.HasPrefix(watch.Path, dir) {
			on = append(on, w.names[guidOf(watch.Path)])
		}
	}
	slices.Sort(on)
	return on
}

// The method `state` returns everything on which the rest of the run depends, except times.
func (w *acquireRun) state() string {
	var b strings.Builder
	fmt.Fprint(&b, w.list(gateDir), w.list(leasesDir), w.throttled, w.lost)
	for _, c := range w.clients {
		fmt.Fprint(&b, "|", c.holds, c.over, c.seen.String(), w.watches(c, "/s"))
		if c.request != nil {
			fmt.Fprint(&b, c.request.Op, w.names[guidOf(c.request.Path)])
		}
	}
	return b.String()
}

func TestEveryWayOfAnAcquireKeepsTheLimit(t *testing.T) {
	harness.InMemory(t)
	defer uuid.SetRand(nil)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // a client's two requests of the same moment have one order
	programs := []acquiring{{limit: 1, fast: 1, gate: 1}}
	if harness.Long() {
		programs = append(programs,
			acquiring{limit: 1, fast: 2},
			acquiring{limit: 1, fast: 1, gate: 1, throttled: 1},
			acquiring{limit: 1, fast: 1, gate: 1, lost: 1},
			acquiring{limit: 1, fast: 2, throttled: 1},
		)
	}
	limit := 400_000
	if harness.UnderRace {
		limit = 40 // then each run costs 20 times as much
	}
	for _, a := range programs {
		start := time.Now()
		found := explore.Retrying(limit, 10, func(r *explore.Run) { a.everyAcquire(t, r) })
		t.Logf("%+v: %v, %v", a, found, time.Since(start).Round(time.Millisecond))
		if found.Fault != "" || found.Cut && !harness.UnderRace {
			t.Errorf("%+v: %s", a, found.Fault)
		}
	}
}
