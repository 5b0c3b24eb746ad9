package model

// This file runs small programs of the primitives in every way that a server can serve them. The code
// under test is the real client. The model is a zktest.Server that executes a request only when the
// test picks it. So the test picks the order of all requests, the request that an overloaded server
// refuses, and the moment at which a client goes on.
//
// Each program has a judge, which knows only how far the clients have got. Each client must end.
// Two ways that differ only in the time between two requests count as one.
//
// internal/lock has such a test for the line of a lock, with lost requests and replies.

import (
	"context"
	"encoding/binary"
	"fmt"
	"regexp"
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
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// An everyWay is one program of the test, and its disturbances.
type everyWay struct {
	name      string
	clients   int // each has a session of its own
	begin     func(t *testing.T, ss []*zsync.Session) everyProgram
	throttled int // requests that the server refuses because it is overloaded
}

// An everyProgram is a program that has begun.
type everyProgram struct {
	// The function `client` is the program of client i. It calls `pause` at the states that the judge
	// knows. The call returns when the test picks it.
	client func(i int, pause func(state string)) error

	// The function `judge` gets the states of all clients. It returns the violation, or "".
	judge func(at []string) string
}

// An everyClient is a client whose requests the test executes one by one.
type everyClient struct {
	s      *zsync.Session
	action chan zktest.Action
	goOn   chan struct{}

	// Guarded by everyRun.mu while goroutines of the client or the server run.
	request *zktest.Request // that has reached the server; nil: none
	created int             // number of its znodes
	at      string          // the state at which it pauses; "": it does not pause
	over    bool
	err     error

	seen strings.Builder // its requests and their results so far: the client's state follows from them
}

// An everyRun is one run.
type everyRun struct {
	everyWay
	everyProgram
	srv     *zktest.Server
	admin   *session.Incarnation
	cs      []*everyClient
	free    chan struct{}        // closed: the server executes all requests
	tree    map[string]everyNode // what `look` has read; nil: it may have changed since
	watches [][]string           // of each client
	births  map[string]int64     // the newest Czxid of each path
	born    map[string]int       // how many znodes have been at each path

	mu     sync.Mutex
	names  map[string]string // of GUIDs: the client, and the number of the znode among its znodes
	plains map[string]string // the results of `plain`
}

// An everyNode is a znode, as reads show it.
type everyNode struct {
	children []string // in the order of their numbers
	node     string
}

// run is the model: see package explore.
func (e everyWay) run(t *testing.T, r *explore.Run) {
	var ended any
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		w := e.start(t, srv)
		defer func() {
			ended = recover() // the run must end in its bubble first
			close(w.free)
			srv.Intercept(nil)
		}()
		w.explore(r)
	})
	if ended != nil {
		panic(ended)
	}
}

func (e everyWay) start(t *testing.T, srv *zktest.Server) *everyRun {
	uuid.SetRand(new(countingReader))
	w := &everyRun{everyWay: e, srv: srv, admin: inside.Live(t, suite.Open(t, srv)), free: make(chan struct{}),
		names: make(map[string]string), plains: make(map[string]string), births: make(map[string]int64), born: make(map[string]int)}
	var ss []*zsync.Session
	for range e.clients {
		ss = append(ss, suite.Open(t, srv, zsync.WithRetry(zsync.Backoff{Min: time.Millisecond, Max: time.Millisecond})))
		w.cs = append(w.cs, &everyClient{s: ss[len(ss)-1], action: make(chan zktest.Action), goOn: make(chan struct{})})
	}
	w.everyProgram = e.begin(t, ss)
	time.Sleep(time.Second) // what `begin` has released is deleted
	srv.Intercept(w.hold)
	for i, c := range w.cs {
		go func() {
			err := w.client(i, func(state string) {
				w.mu.Lock()
				c.at = state
				w.mu.Unlock()
				select {
				case <-c.goOn:
				case <-w.free:
				}
			})
			w.mu.Lock()
			defer w.mu.Unlock()
			c.over, c.err = true, err
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
func (w *everyRun) hold(q zktest.Request) zktest.Action {
	i := slices.IndexFunc(w.cs, func(c *everyClient) bool { return c.s.ID() == q.Session })
	if i < 0 || q.Op == zktest.OpConnect || q.Op == zktest.OpPing || q.Op == zktest.OpCloseSession {
		return zktest.Pass
	}
	c := w.cs[i]
	q.Ops = slices.Clone(q.Ops) // the server uses the slice again
	w.mu.Lock()
	c.request = &q
	for _, op := range append(q.Ops, q) {
		if guid := guids.FindString(op.Path); op.Op == zktest.OpCreate && guid != "" && w.names[guid] == "" {
			c.created++
			w.names[guid] = fmt.Sprintf("<%d.%d>", i, c.created)
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

var (
	guids   = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	numbers = regexp.MustCompile(`>(-[a-z]+)?-[0-9]{10}`)
)

// The method `plain` names znodes by their clients, and leaves out the numbers of the server.
func (w *everyRun) plain(text string) string {
	if plain, ok := w.plains[text]; ok {
		return plain
	}
	plain := guids.ReplaceAllStringFunc(text, func(guid string) string {
		if w.names[guid] == "" {
			w.names[guid] = fmt.Sprintf("<%d>", len(w.names))
		}
		return w.names[guid]
	})
	plain = numbers.ReplaceAllString(plain, ">$1")
	w.plains[text] = plain
	return plain
}

// The method `look` reads the whole tree and the watches.
func (w *everyRun) look() {
	w.tree = make(map[string]everyNode)
	w.visit("/")
	w.watches = nil
	for _, c := range w.cs {
		var on []string
		for _, watch := range w.srv.Watches(c.s.ID()) {
			on = append(on, fmt.Sprint(w.plain(watch.Path), watch.Children))
		}
		slices.Sort(on)
		w.watches = append(w.watches, on)
	}
}

func (w *everyRun) visit(path string) {
	names, _, err := w.admin.Children(w.admin.Ctx, path)
	data, stat, err2 := w.admin.Get(w.admin.Ctx, path)
	if err != nil || err2 != nil || path == "/zookeeper" {
		return
	}
	slices.SortFunc(names, func(a, b string) int { // a number has ten digits
		return strings.Compare(a[max(0, len(a)-10):]+a, b[max(0, len(b)-10):]+b)
	})
	if stat.Czxid != w.births[path] {
		w.births[path] = stat.Czxid
		w.born[path]++
	}
	n := everyNode{node: fmt.Sprint(w.born[path], stat.Version, w.plain(string(data)))}
	for _, name := range names {
		n.children = append(n.children, w.plain(name))
		w.visit(znodes.ChildPath(path, name))
	}
	w.tree[w.plain(path)] = n
}

// The method `explore` picks what happens next, until each client has ended.
func (w *everyRun) explore(r *explore.Run) {
	for idle := 0; ; {
		time.Sleep(time.Millisecond) // each request takes time
		time.Sleep(time.Nanosecond)  // now all timers of the same moment have fired
		synctest.Wait()
		var at []string
		ended := true
		for i, c := range w.cs {
			at = append(at, c.at)
			if ended = ended && c.over; c.err != nil {
				r.Fail("client %d: %v", i, c.err)
			}
		}
		if fault := w.judge(at); fault != "" {
			r.Fail("%s", fault)
		}
		if ended {
			return
		}
		next := w.next(r)
		if len(next) == 0 {
			if idle++; idle > 300 {
				r.Fail("a client waits for ever, in %s", w.state())
			}
			time.Sleep(100 * time.Millisecond) // a client that is disconnected waits before it dials
			w.tree = nil
			continue
		}
		idle = 0
		if w.tree == nil { // else `execute` has looked, and the server has executed nothing since
			w.look()
		}
		r.At(w.state)
		next[r.Pick(len(next))]()
	}
}

// The method `next` returns everything that can happen next.
func (w *everyRun) next(r *explore.Run) (acts []func()) {
	for i, c := range w.cs {
		if request := c.request; request != nil {
			execute := func(action zktest.Action, mark string) {
				acts = append(acts, func() {
					r.Note("client %d: %v%s", i, w.plain(what(request)), mark)
					w.execute(c, action, mark)
				})
			}
			execute(zktest.Pass, "")
			if w.throttled > 0 {
				execute(zktest.Fail(zktest.CodeThrottled), " is throttled")
			}
		}
		if c.at != "" {
			acts = append(acts, func() {
				r.Note("client %d: continues from %q", i, c.at)
				fmt.Fprintf(&c.seen, " %s.", c.at)
				c.at = ""
				c.goOn <- struct{}{}
			})
		}
	}
	return acts
}

// what describes a request.
func what(q *zktest.Request) string {
	text := q.Op.String() + " " + q.Path
	for _, op := range q.Ops {
		text += " " + what(&op)
	}
	return text
}

// The method `execute` lets the server execute the request of c, and records the result and the events.
func (w *everyRun) execute(c *everyClient, action zktest.Action, mark string) {
	if action != zktest.Pass {
		w.throttled--
	}
	request, before, watches := c.request, w.tree, w.watches
	c.request = nil
	c.action <- action
	synctest.Wait()
	w.look()
	fmt.Fprintf(&c.seen, " %v%s", request.Op, mark)
	switch request.Op {
	case zktest.OpGetChildren2, zktest.OpGetData, zktest.OpExists:
		fmt.Fprint(&c.seen, before[w.plain(request.Path)])
	case zktest.OpSync, zktest.OpMultiRead:
		fmt.Fprint(&c.seen, before)
	default:
		if fmt.Sprint(before) == fmt.Sprint(w.tree) { // the server has refused it, as this tree demands
			fmt.Fprint(&c.seen, before)
		}
	}
	for i, c := range w.cs {
		for _, watch := range watches[i] {
			if !slices.Contains(w.watches[i], watch) {
				fmt.Fprintf(&c.seen, " ~%s", watch)
			}
		}
	}
}

// The method `state` returns everything on which the rest of the run depends, except times.
func (w *everyRun) state() string {
	var b strings.Builder
	fmt.Fprint(&b, w.tree, w.throttled)
	for i, c := range w.cs {
		fmt.Fprint(&b, "|", c.at, c.over, c.seen.String(), w.watches[i])
		if c.request != nil {
			b.WriteString(w.plain(what(c.request)))
		}
	}
	return b.String()
}

// atMost returns a judge of clients that hold something: at most n of them.
func atMost(n int, lost ...func() <-chan struct{}) func(at []string) string {
	return func(at []string) string {
		out := 0
		for i, state := range at {
			if state == "holds" && !harness.ClosedFunc(lost[i]())() {
				out++
			}
		}
		if out > n {
			return fmt.Sprintf("%d clients hold, and %d may", out, n)
		}
		return ""
	}
}

// semaphores returns the Semaphore of each session. The first `fast` of them know that permits are free,
// so they try without the gate. The others lock the gate.
func semaphores(t *testing.T, limit int64, fast int, ss []*zsync.Session) (ms []*zsync.Semaphore) {
	for i, s := range ss {
		m := zsync.NewSemaphore(s, "/s", limit)
		if i < fast {
			harness.Must(t, m.Acquire(t.Context(), 1))
			harness.Must(t, m.Release(1))
		}
		ms = append(ms, m)
	}
	return ms
}

// acquires is a program in which each client acquires the only permit. The first `fast` clients try
// without the gate.
func acquires(fast int) func(t *testing.T, ss []*zsync.Session) everyProgram {
	return func(t *testing.T, ss []*zsync.Session) everyProgram {
		ms := semaphores(t, 1, fast, ss)
		var lost []func() <-chan struct{}
		for _, m := range ms {
			lost = append(lost, m.Lost)
		}
		return everyProgram{func(i int, pause func(string)) error {
			if err := ms[i].Acquire(t.Context(), 1); err != nil {
				return err
			}
			pause("holds")
			return ms[i].Release(1)
		}, atMost(1, lost...)}
	}
}

// round is a program in which the clients pass a double barrier.
func round(t *testing.T, ss []*zsync.Session) everyProgram {
	var entering, leaving atomic.Int32
	var fault atomic.Pointer[string]
	check := func(what string, n *atomic.Int32) {
		if n.Load() != int32(len(ss)) {
			text := fmt.Sprintf("%s returned when %d of %d clients had called it", what, n.Load(), len(ss))
			fault.Store(&text)
		}
	}
	return everyProgram{func(i int, pause func(string)) error {
		wg := zsync.NewWaitGroup(ss[i], "/w")
		pause("outside")
		entering.Add(1)
		if err := wg.Enter(t.Context(), len(ss)); err != nil {
			return err
		}
		check("Enter", &entering)
		pause("inside")
		leaving.Add(1)
		if err := wg.Leave(t.Context()); err != nil {
			return err
		}
		check("Leave", &leaving)
		return nil
	}, func([]string) string {
		if text := fault.Load(); text != nil {
			return *text
		}
		return ""
	}}
}

// locks is a program in which each client locks and unlocks a Locker.
func locks(locker func(i int, s *zsync.Session) zsync.Locker) func(t *testing.T, ss []*zsync.Session) everyProgram {
	return func(t *testing.T, ss []*zsync.Session) everyProgram {
		var ls []zsync.Locker
		var lost []func() <-chan struct{}
		for i, s := range ss {
			ls = append(ls, locker(i, s))
			lost = append(lost, ls[i].(interface{ Lost() <-chan struct{} }).Lost)
		}
		return everyProgram{func(i int, pause func(string)) error {
			if err := ls[i].Lock(t.Context()); err != nil {
				return err
			}
			pause("holds")
			return ls[i].Unlock()
		}, atMost(1, lost...)}
	}
}

// A reader is the read lock of an RWMutex.
type reader struct{ *zsync.RWMutex }

func (r reader) Lock(ctx context.Context) error { return r.RLock(ctx) }
func (r reader) Unlock() error                  { return r.RUnlock() }

// resizes is a program with a Semaphore of two permits. The last client has one of them, sets the limit
// to one, and releases its permit. The other client acquires a permit: before the limit is set, or after
// the release.
func resizes(t *testing.T, ss []*zsync.Session) everyProgram {
	ms := semaphores(t, 2, 2, ss)
	harness.Must(t, ms[1].Acquire(t.Context(), 1))
	before := []string{"", ""}
	return everyProgram{func(i int, pause func(string)) error {
		if i == 1 {
			if err := ms[1].Resize(t.Context(), 1); err != nil {
				return err
			}
			pause("resized")
			return ms[1].Release(1)
		}
		if err := ms[0].Acquire(t.Context(), 1); err != nil {
			return err
		}
		pause("holds")
		return ms[0].Release(1)
	}, func(at []string) string {
		defer func() { before = at }()
		if before[0] != "holds" && at[0] == "holds" && before[1] == "resized" {
			return "a second permit is granted after Resize has returned"
		}
		return ""
	}}
}

// signals is a program with a Cond: the first client waits for a change that the second makes.
func signals(t *testing.T, ss []*zsync.Session) everyProgram {
	var ready, fault atomic.Bool
	var inside atomic.Int32
	enter := func() {
		if inside.Add(1) != 1 {
			fault.Store(true)
		}
	}
	exit := func() { inside.Add(-1) }
	return everyProgram{func(i int, pause func(string)) error {
		m := zsync.NewMutex(ss[i], "/m")
		cond := zsync.NewCond(ss[i], "/c", m)
		if err := m.Lock(t.Context()); err != nil {
			return err
		}
		enter()
		if i > 0 {
			ready.Store(true)
			pause("changes")
			if err := cond.Signal(t.Context()); err != nil {
				return err
			}
		}
		for i == 0 && !ready.Load() {
			exit()
			if err := cond.Wait(t.Context()); err != nil {
				return err
			}
			enter()
		}
		exit()
		return m.Unlock()
	}, func([]string) string {
		if fault.Load() {
			return "two clients are in the critical section"
		}
		return ""
	}}
}

func TestEveryWayOfAProgramKeepsItsGuarantee(t *testing.T) {
	harness.InMemory(t)
	defer uuid.SetRand(nil)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // a client's two requests of the same moment have one order
	mutex := func(_ int, s *zsync.Session) zsync.Locker { return zsync.NewMutex(s, "/m") }
	readWrite := func(i int, s *zsync.Session) zsync.Locker {
		if rw := zsync.NewRWMutex(s, "/rw"); i == 0 {
			return reader{rw}
		} else {
			return rw
		}
	}
	programs := []everyWay{
		{name: "permits, one through the gate", clients: 2, begin: acquires(1)},
		{name: "reader and writer", clients: 2, begin: locks(readWrite)},
	}
	if harness.Long() {
		programs = append(programs,
			everyWay{name: "permits, none through the gate", clients: 2, begin: acquires(2)},
			everyWay{name: "permits, one through the gate", clients: 2, begin: acquires(1), throttled: 1},
			everyWay{name: "mutex", clients: 2, begin: locks(mutex), throttled: 1},
			everyWay{name: "limit of two is lowered", clients: 2, begin: resizes, throttled: 1},
			everyWay{name: "double barrier", clients: 2, begin: round},
			everyWay{name: "cond", clients: 2, begin: signals},
		)
	}
	limit := 100_000
	if harness.UnderRace {
		limit = 40 // then each run costs 20 times as much
	}
	for _, e := range programs {
		start := time.Now()
		found := explore.Retrying(limit, 10, func(r *explore.Run) { e.run(t, r) })
		t.Logf("%s, %d throttled: %v, %v", e.name, e.throttled, found, time.Since(start).Round(time.Millisecond))
		if found.Fault != "" || found.Cut && !harness.UnderRace {
			t.Errorf("%s, %d throttled: %s", e.name, e.throttled, found.Fault)
		}
	}
}
