package lock

// This file lets contenders wait in a line in every way that a server can serve them. The code under
// test is the real client: session, watches, listings and Take. The model is a zktest.Server that
// executes a request only when the test picks it. So the test picks the order in which the server
// executes the requests of all contenders, the request that is lost or whose reply is lost, and the
// moment at which a contender leaves, is deleted by another client, or gives up.
//
// The judge knows only the znodes: a contender that has its turn must be the first in the line, or it
// knows of the loss, until it has left. Each contender that stays has its turn. If its znode is
// deleted, it enters the line again at once.
//
// Two ways that differ only in the time between two requests count as one. The random tests of
// relist_test.go vary the times.

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/zsync/zsync/internal/explore"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// A queueing is one program of the test: some contenders wait behind others, and this many
// disturbances happen.
type queueing struct {
	ahead     int  // contenders that are in the line at the start, and only leave
	waiters   int  // contenders that enter the line, each in a session of its own
	lost      int  // connections that break, with the request or the reply on them
	deletions int  // by another client, of the znode of a waiter
	cancels   int  // waiters whose ctx ends
	falling   bool // later znodes have lower names: after a reconnect, the server reports deletions in the order of the names
}

// guids are the random bytes of GUIDs: numbers that rise or fall.
type guids struct {
	next, step uint16
}

func (n *guids) Read(p []byte) (int, error) {
	clear(p)
	binary.BigEndian.PutUint16(p, n.next)
	n.next += n.step
	return len(p), nil
}

// A scripted contender is one whose requests the test executes one by one.
type scripted struct {
	id     int64 // of its session
	cancel context.CancelFunc

	mu      sync.Mutex
	request *zktest.Request // that has reached the server; nil: none
	action  chan zktest.Action
	place   string   // the last znode that it has asked for, without its number
	granted []string // the line when its turn had come
	grant   *Grant   // of its turn
	failed  error    // Acquire failed though it had not given up
	leaves  bool     // it has begun to release it
	over    bool     // it has released it, or given up

	seen strings.Builder // all replies and events so far: its state follows from them
}

// everyWait is the model: see explore.
func (q queueing) everyWait(t *testing.T, r *explore.Run) {
	var ended any
	harness.VirtualTime(t, func(t *testing.T) {
		w := q.begin(t)
		defer w.end()
		defer func() { ended = recover() }() // the run must end in its bubble first
		w.run(r)
	})
	if ended != nil {
		panic(ended)
	}
}

// A waitingLine is one run.
type waitingLine struct {
	queueing
	srv     *zktest.Server
	admin   *session.Incarnation // of the contenders that are ahead at the start
	first   []*Claim             // these contenders
	waiters []*scripted
	names   map[string]int  // of the znodes: numbers in the order in which they were seen
	spoilt  map[string]bool // znodes that another client has deleted while they were the first: their contender perhaps knew of its turn
	free    chan struct{}   // closed: the server executes all requests
}

func (q queueing) begin(t *testing.T) *waitingLine {
	source := &guids{next: 1 << 15, step: 1}
	if q.falling {
		source.step = math.MaxUint16 // that is, -1
	}
	uuid.SetRand(source)
	w := &waitingLine{queueing: q, srv: zktest.Start(t), names: make(map[string]int), spoilt: make(map[string]bool), free: make(chan struct{})}
	m, inc := live(t, w.srv)
	w.admin = inc
	for range q.ahead {
		c, _, err := mutexOf(m, "/m").Enter(t.Context(), inc, Exclusive)
		harness.Must(t, err)
		w.first = append(w.first, c)
	}
	var managers []*session.Manager
	for range q.waiters {
		m := openWithJitter(t, w.srv, 0) // a run must be repeatable
		inc, err := m.Incarnation(t.Context())
		harness.Must(t, err)
		managers = append(managers, m)
		w.waiters = append(w.waiters, &scripted{id: inc.ID.Load(), action: make(chan zktest.Action)})
	}
	synctest.Wait()
	w.srv.Intercept(w.hold)
	for i, c := range w.waiters {
		var ctx context.Context
		ctx, c.cancel = context.WithCancel(t.Context())
		go func() {
			claim, err := mutexOf(managers[i], "/m").Acquire(ctx)
			c.mu.Lock()
			defer c.mu.Unlock()
			if err != nil && ctx.Err() == nil {
				c.failed = err
			}
			if c.over = err != nil; !c.over {
				c.granted = w.line()
				c.grant = claim.Grant("lock") // reports a loss if its znode is known to be deleted
			}
		}()
	}
	return w
}

// hold keeps a request of a waiter until the test picks it.
func (w *waitingLine) hold(r zktest.Request) zktest.Action {
	switch r.Op {
	case zktest.OpConnect, zktest.OpPing, zktest.OpCloseSession:
		return zktest.Pass
	}
	i := slices.IndexFunc(w.waiters, func(c *scripted) bool { return c.id == r.Session })
	if i < 0 {
		return zktest.Pass
	}
	c := w.waiters[i]
	c.mu.Lock()
	if name, of := strings.CutPrefix(r.Path, "/m/"); of && r.Op == zktest.OpCreate {
		c.place = name
	}
	c.request = &r
	c.mu.Unlock()
	select {
	case a := <-c.action:
		return a
	case <-w.free:
		return zktest.Pass
	}
}

// end lets all goroutines of the run end.
func (w *waitingLine) end() {
	close(w.free)
	w.srv.Intercept(nil)
	for _, c := range w.waiters {
		c.cancel()
	}
	synctest.Wait()
	for _, c := range w.waiters {
		if c.grant != nil && !c.leaves {
			c.grant.Release()
		}
	}
}

// line lists the line as the server has it, in the order of arrival. It returns nil at the end of the
// run.
func (w *waitingLine) line() (line []string) {
	names, _, _ := w.admin.Children(w.admin.Ctx, "/m") // there is one server, so no sync is needed
	for _, c := range ParseChildren(names, "lock-") {
		line = append(line, c.Name)
	}
	return line
}

// numbers returns the numbers of znodes. It numbers those that it sees for the first time.
func (w *waitingLine) numbers(line []string) (ns []int) {
	for _, name := range line {
		if _, ok := w.names[name]; !ok {
			w.names[name] = len(w.names)
		}
		ns = append(ns, w.names[name])
	}
	return ns
}

// run picks what happens next, until all waiters have had their turns. The line changes only by what it
// picks, and by the end of a session.
func (w *waitingLine) run(r *explore.Run) {
	line := w.line()
	for idle := 0; ; {
		time.Sleep(time.Millisecond) // each request takes time
		time.Sleep(time.Nanosecond)  // now all timers of the same moment have fired
		synctest.Wait()
		w.numbers(line)
		if w.judge(r, line) {
			continue
		}
		next := w.next(r, line)
		if len(next) == 0 {
			if len(line) == 0 && !slices.ContainsFunc(w.waiters, func(c *scripted) bool { return !c.over }) {
				return
			}
			if idle++; idle > 300 {
				r.Fail("a contender waits for ever, or leaves its znode behind; the line is %v", w.numbers(line))
			}
			time.Sleep(100 * time.Millisecond) // a client that is disconnected waits before it dials
			synctest.Wait()
			line = w.line()
			continue
		}
		idle = 0
		r.At(func() string { return w.state(line) })
		watches := make([][]zktest.Watch, len(w.waiters))
		for i, c := range w.waiters {
			watches[i] = w.srv.Watches(c.id)
		}
		next[r.Pick(len(next))]()
		synctest.Wait()
		after := w.line()
		w.events(watches, line, after)
		line = after
	}
}

// judge fails if a contender has its turn that is not the first in the line. A contender that knows
// of a loss releases its claim; judge reports that.
func (w *waitingLine) judge(r *explore.Run, line []string) (released bool) {
	for i, c := range w.waiters {
		if c.failed != nil {
			r.Fail("waiter %d: %v", i, c.failed)
		}
		switch inLine := func(name string) bool { return strings.HasPrefix(name, c.place) }; {
		case c.grant == nil && !c.over && c.request == nil && len(w.srv.Watches(c.id)) > 0 && !slices.ContainsFunc(line, inLine):
			r.Fail("waiter %d waits without a znode; the line is %v", i, w.numbers(line))
		case c.grant == nil || c.leaves:
		case (len(c.granted) == 0 || c.granted[0] != c.grant.Name()) && !w.spoilt[c.grant.Name()]:
			r.Fail("waiter %d was given its turn with znode %d; the line was %v", i, w.names[c.grant.Name()], w.numbers(c.granted))
		case session.IsClosed(c.grant.Loss().Done()):
			c.release("lost")
			released = true
		case w.spoilt[c.grant.Name()]:
		case len(line) == 0 || line[0] != c.grant.Name():
			r.Fail("waiter %d has its turn with znode %d; the line is %v", i, w.names[c.grant.Name()], w.numbers(line))
		}
	}
	return released
}

// next returns all that can happen next.
func (w *waitingLine) next(r *explore.Run, line []string) (acts []func()) {
	can := func(act func(), format string, args ...any) {
		acts = append(acts, func() {
			r.Note(format, args...)
			act()
		})
	}
	for i, c := range w.waiters {
		c.mu.Lock()
		request, turn := c.request, c.grant != nil
		c.mu.Unlock()
		if request != nil {
			pick := func(a zktest.Action, mark string) {
				c.request = nil
				fmt.Fprintf(&c.seen, " %v%s%v", request.Op, mark, w.numbers(line))
				c.action <- a
			}
			what := request.Op.String()
			if name, of := strings.CutPrefix(request.Path, "/m/"); of {
				what += fmt.Sprintf(" of znode %d", w.names[name])
			}
			can(func() { pick(zktest.Pass, "") }, "waiter %d: %s", i, what)
			if w.lost > 0 {
				can(func() { w.lost--; pick(zktest.DropRequest, "-") }, "waiter %d: %s is lost", i, what)
				can(func() { w.lost--; pick(zktest.DropReply, "!") }, "waiter %d: the reply to %s is lost", i, what)
			}
		}
		if request == nil && w.lost > 0 && len(w.srv.Watches(c.id)) > 0 {
			can(func() { w.lost--; c.seen.WriteString(" cut"); w.srv.Disconnect(c.id) }, "waiter %d: its connection breaks", i)
		}
		switch {
		case c.over || c.leaves:
		case turn:
			can(func() { c.release("release") }, "waiter %d releases its claim", i)
		case w.cancels > 0:
			can(func() { w.cancels--; c.seen.WriteString(" cancel"); c.cancel() }, "waiter %d gives up", i)
		}
	}
	for i, c := range w.first {
		can(func() {
			w.first = slices.Delete(slices.Clone(w.first), i, i+1)
			c.Leave()
		}, "the contender with znode %d leaves", w.names[znodes.BaseName(c.Znode())])
	}
	if w.deletions > 0 {
		for _, name := range w.others(line) {
			can(func() {
				w.deletions--
				w.spoilt[name] = name == line[0]
				znodes.Delete(w.admin, &znodes.Deletion{Paths: []string{"/m/" + name}})
			}, "another client deletes znode %d", w.names[name])
		}
	}
	return acts
}

// others returns the names of waiters in the line.
func (w *waitingLine) others(line []string) (names []string) {
	for _, name := range line {
		if !slices.ContainsFunc(w.first, func(c *Claim) bool { return znodes.BaseName(c.Znode()) == name }) {
			names = append(names, name)
		}
	}
	return names
}

// release ends the turn of c.
func (c *scripted) release(why string) {
	c.leaves = true
	c.seen.WriteString(" " + why)
	go func() {
		c.grant.Release() // the judge sees whether the znode is deleted
		c.mu.Lock()
		defer c.mu.Unlock()
		c.over = true
	}()
}

// events records the events of the change from `before` to `after`, for the waiters that had watches.
func (w *waitingLine) events(watches [][]zktest.Watch, before, after []string) {
	for i, c := range w.waiters {
		for _, watch := range watches[i] {
			name, of := strings.CutPrefix(watch.Path, "/m/")
			switch {
			case of && slices.Contains(before, name) && !slices.Contains(after, name):
				fmt.Fprintf(&c.seen, " x%d", w.names[name])
			case watch.Path == "/m" && watch.Children && !slices.Equal(before, after):
				c.seen.WriteString(" ~")
			}
		}
	}
}

// state returns everything on which the rest of the run depends, except times.
func (w *waitingLine) state(line []string) string {
	var b strings.Builder
	fmt.Fprint(&b, w.numbers(line), len(w.first), w.lost, w.deletions, w.cancels)
	for name, spoilt := range w.spoilt { // at most one, as a program has one deletion
		fmt.Fprint(&b, w.names[name], spoilt)
	}
	for _, c := range w.waiters {
		fmt.Fprint(&b, "|", c.grant != nil, c.leaves, c.over, c.seen.String())
		if c.request != nil {
			fmt.Fprint(&b, c.request.Op)
		}
		var on []int
		for _, watch := range w.srv.Watches(c.id) {
			if name, of := strings.CutPrefix(watch.Path, "/m/"); of {
				on = append(on, w.names[name])
			}
		}
		slices.Sort(on) // Watches sorts by name
		fmt.Fprint(&b, on)
	}
	return b.String()
}

func TestEveryWayOfAWaitGivesTheTurnToTheFirst(t *testing.T) {
	harness.InMemory(t)
	defer uuid.SetRand(nil)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // a client's two requests of the same moment have one order
	programs := []queueing{
		{ahead: 1, waiters: 2},
		{ahead: 2, waiters: 1, lost: 1},
		{ahead: 2, waiters: 1, deletions: 1},
		{ahead: 2, waiters: 1, cancels: 1},
	}
	switch {
	case harness.UnderRace:
		programs = []queueing{{ahead: 1, waiters: 1, lost: 1}, {ahead: 1, waiters: 1, deletions: 1}}
	case harness.Long():
		programs = append(programs,
			queueing{ahead: 1, waiters: 2, lost: 1},
			queueing{ahead: 1, waiters: 2, cancels: 1},
			queueing{ahead: 2, waiters: 1, lost: 2},
			queueing{ahead: 1, waiters: 1, lost: 1, deletions: 1},
			queueing{ahead: 1, waiters: 1, lost: 1, deletions: 1, falling: true},
			queueing{ahead: 1, waiters: 1, lost: 2, deletions: 1},
			queueing{ahead: 1, waiters: 1, lost: 2, deletions: 1, falling: true},
		)
	}
	for _, q := range programs {
		start := time.Now()
		found := explore.Retrying(400_000, 10, func(r *explore.Run) { q.everyWait(t, r) })
		t.Logf("%+v: %v, %v", q, found, time.Since(start).Round(time.Millisecond))
		if found.Fault != "" || found.Cut {
			t.Errorf("%+v: %s", q, found.Fault)
		}
	}
}
