package hammer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// kindsOfQueues are those that [TestHammerAllThatAQueueCanDoAtOnce] tries.
var kindsOfQueues = []struct {
	name    string
	opts    []zsync.QueueOption
	unique  bool // all is sent with an ID, by several
	delayed bool // most is sent for later
}{
	{name: "plain"},
	{name: "priority", opts: []zsync.QueueOption{zsync.WithPriorities(3), zsync.WithMaxAttempts(3)}},
	{name: "keyed", opts: []zsync.QueueOption{zsync.WithKey(func(v int) string { return strconv.Itoa(v % 5) })}},
	{name: "maxlen", opts: []zsync.QueueOption{zsync.WithMaxLen(6), zsync.WithPrefetch(2)}},
	{name: "unique", opts: []zsync.QueueOption{zsync.WithIDMemory(24 * time.Hour)}, unique: true},
	{name: "delayed", opts: []zsync.QueueOption{zsync.WithRetryBackoff(zsync.Backoff{Min: time.Millisecond, Max: time.Second})}, delayed: true},
}

// A seat is a process: it has one session after another.
type seat struct{ s atomic.Pointer[zsync.Session] }

func (p *seat) ID() int64 { return p.s.Load().ID() }

// A fortune is what is known of one element.
type fortune struct {
	stored  bool // certainly, by whoever sent it
	removed int  // how often it was certainly removed, by who was told so
	maybe   bool // it may have been removed
	moved   bool // by a Txn, certainly
	log     []string
}

// A ledgerOfAll is what is known of all that was sent.
type ledgerOfAll struct {
	t       testing.TB
	mu      sync.Mutex
	all     map[int]*fortune // guarded by mu, as what follows
	next    int
	cleared int  // by Clear
	vague   bool // a Clear has failed, and may have removed something
}

func (l *ledgerOfAll) note(v int, f func(*fortune), format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.all[v]
	if e == nil {
		l.t.Errorf("%d: nobody has sent it: %s", v, fmt.Sprintf(format, args...))
		return
	}
	e.log = append(e.log, time.Now().Format("04:05.000 ")+fmt.Sprintf(format, args...))
	if f(e); e.removed > 1 {
		l.t.Errorf("%d was removed %d times: %q", v, e.removed, e.log)
	}
}

// another returns an element that is about to be sent.
func (l *ledgerOfAll) another(n int) (vs []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range n {
		l.all[l.next] = &fortune{}
		vs = append(vs, l.next)
		l.next++
	}
	return vs
}

// An actor is a goroutine that does this and that with a queue.
type actor struct {
	*ledgerOfAll
	kind  int
	clear bool
	dice  *rand.Rand

	session func() int64 // ID of the ZooKeeper session
	closing *atomic.Bool // the Session is being closed
}

// excused reports whether a call may fail with err.
func (a *actor) excused(what string, ctx context.Context, err error) bool {
	switch {
	case err == nil:
	case ctx.Err() != nil && errors.Is(err, ctx.Err()), errors.Is(err, zsync.ErrClosed), errors.Is(err, zsync.ErrLost):
	default:
		a.t.Errorf("%s: %v", what, err)
	}
	return err == nil
}

// send sends something in one of all ways.
func (a *actor) send(ctx context.Context, q *zsync.Queue[int]) {
	kind := kindsOfQueues[a.kind]
	what, vs := "Send", a.another(1+a.dice.IntN(4))
	var err error
	switch way := a.dice.IntN(6); {
	case kind.unique || way == 0:
		what, vs = "SendID", vs[:1]
		for range 1 + a.dice.IntN(2) {
			_, err = q.SendID(ctx, strconv.Itoa(vs[0]), vs[0])
		}
	case kind.delayed && way < 5:
		what, err = "SendAt", q.SendAt(ctx, time.Now().Add(time.Duration(a.dice.IntN(3000))*time.Millisecond), vs...)
	case kind.name == "priority" && way < 5:
		what, err = "SendPriority", q.SendPriority(ctx, a.dice.IntN(3), vs...)
	case way == 1:
		if what, err = "TrySend", q.TrySend(ctx, vs...); errors.Is(err, zsync.ErrFull) {
			return
		}
	default:
		err = q.Send(ctx, vs...)
	}
	a.excused(what, ctx, err)
	for _, v := range vs {
		a.note(v, func(e *fortune) { e.stored = e.stored || err == nil }, "%s: %v", what, err)
	}
}

// settle settles a delivery in one of all ways, or leaves it to the end of its session.
func (a *actor) settle(d zsync.Delivery[int], other *zsync.Queue[int]) {
	ctx, v := context.Background(), d.Value
	if a.dice.IntN(4) == 0 {
		time.Sleep(time.Duration(a.dice.IntN(500)) * time.Millisecond)
	}
	what, err := "Ack", error(nil)
	switch a.dice.IntN(14) {
	case 0:
		what, err = "Nack", d.Nack()
	case 1:
		what, err = "NackAfter", d.NackAfter(time.Duration(a.dice.IntN(2000))*time.Millisecond)
	case 2:
		what, err = "Return", d.Return()
	case 3, 4:
		what, err = "Reject", d.Reject(ctx, "tried")
	case 5:
		what = "kept"
	case 6, 7:
		a.note(v, func(e *fortune) { e.maybe = true }, "Txn begins") // it may be told later than it is seen
		what = "Txn"
		_, err = d.Txn(ctx, other.SendOp(v))
		a.note(v, func(e *fortune) {
			if err == nil {
				e.moved = true
				e.removed++
			}
		}, "Txn: %v", err)
	default:
		err = d.Ack(ctx)
		a.note(v, func(e *fortune) {
			if err == nil {
				e.removed++
			} else if !errors.Is(err, zsync.ErrLost) {
				e.maybe = true // the Session was closed meanwhile, or nobody can tell
			}
		}, "Ack: %v", err)
	}
	if !errors.Is(err, zk.ErrNoNode) {
		a.excused(what, ctx, err)
	}
}

// consume receives something in one of all ways.
func (a *actor) consume(ctx context.Context, q, other *zsync.Queue[int]) {
	n := 1 + a.dice.IntN(6)
	got := func(what string, d zsync.Delivery[int]) {
		a.note(d.Value, func(*fortune) {}, "%s, attempt %d", what, d.Attempt)
		a.settle(d, other)
		n--
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	switch a.dice.IntN(7) {
	case 0: // in a silence that outlasts its session another may get it too
		for v := range q.Recv(ctx) {
			a.note(v, func(e *fortune) { e.maybe = true }, "Recv")
			if n--; n == 0 {
				return
			}
		}
	case 1:
		for d := range q.Deliveries(ctx) {
			if got("Deliveries", d); n == 0 {
				return
			}
		}
	case 2:
		for d, err := range q.All(ctx) {
			if err == nil {
				got("All", d)
			}
			if err != nil && d.ID != "" || n == 0 {
				return
			}
		}
	case 3:
		if d, err := q.Receive(ctx); a.excused("Receive", ctx, err) {
			got("Receive", d)
		}
	case 4:
		ds, err := q.ReceiveN(ctx, n)
		if a.excused("ReceiveN", ctx, err); err != nil && len(ds) > 0 {
			a.t.Errorf("ReceiveN: %d deliveries, and %v", len(ds), err)
		}
		for _, d := range ds {
			got("ReceiveN", d)
		}
	case 5:
		var done atomic.Int64
		err := q.Work(ctx, 2, func(_ context.Context, v int) error {
			a.note(v, func(e *fortune) { e.maybe = true }, "Work")
			if done.Add(1)%3 == 0 {
				return errors.New("another time")
			}
			return nil
		})
		a.excused("Work", ctx, err)
	default:
		id := a.session()
		if v, ok, err := q.TryRecv(ctx); a.excused("TryRecv", ctx, err) && ok {
			a.note(v, func(e *fortune) {
				// In the first two cases, the removal is under way. In the last, the reply was lost with
				// the session, so another process may have removed the element.
				if ctx.Err() != nil || a.closing.Load() || a.session() != id {
					e.maybe = true
				} else {
					e.removed++
				}
			}, "TryRecv")
		}
	}
}

// valueOf returns the element that is a dead letter.
func valueOf(l zsync.DeadLetter) (v int) {
	json.Unmarshal(l.Data, &v)
	return v
}

// tend looks after the queue.
func (a *actor) tend(ctx context.Context, q *zsync.Queue[int]) {
	what, err := "Stats", error(nil)
	switch a.dice.IntN(8) {
	case 0:
		what = "Len"
		_, err = q.Len(ctx)
	case 1:
		what = "Peek"
		_, _, err = q.Peek(ctx)
	case 2:
		what = "RequeueDead"
		_, err = q.RequeueDead(ctx, func(zsync.DeadLetter) bool { return true })
	case 3:
		what = "PurgeDead"
		var purged int
		_, err = q.PurgeDead(ctx, func(l zsync.DeadLetter) bool {
			purged++
			a.note(valueOf(l), func(e *fortune) { e.maybe = e.maybe || purged%4 == 0 }, "PurgeDead")
			return purged%4 == 0
		})
	case 4, 5:
		a.mu.Lock()
		v := a.dice.IntN(a.next + 1)
		e := a.all[v]
		a.mu.Unlock()
		if what = "Cancel"; e == nil {
			return
		}
		var done bool
		done, err = q.Cancel(ctx, strconv.Itoa(v))
		a.note(v, func(e *fortune) {
			if e.maybe = e.maybe || err != nil; done {
				e.removed++
			}
		}, "Cancel: %v, %v", done, err)
	case 6:
		if !a.clear {
			return
		}
		var n int
		n, err = q.Clear(ctx)
		what = "Clear"
		a.mu.Lock()
		a.cleared += n
		a.vague = a.vague || err != nil
		a.mu.Unlock()
	default:
		_, err = q.Stats(ctx)
	}
	a.excused(what, ctx, err)
}

// live is the life of a process: some actors, one session after another.
func (a *actor) live(p *seat, open func() *zsync.Session, ops int) {
	opts := kindsOfQueues[a.kind].opts
	for range 2 {
		s, closing := p.s.Load(), new(atomic.Bool)
		shared, other := zsync.NewQueue[int](s, "/q", opts...), zsync.NewQueue[int](s, "/other")
		var actors sync.WaitGroup
		for range 3 {
			b := *a
			b.dice, b.session, b.closing = rand.New(rand.NewPCG(a.dice.Uint64(), 1)), s.ID, closing
			actors.Go(func() {
				for range ops {
					q := shared
					if b.dice.IntN(4) == 0 {
						q = zsync.NewQueue[int](s, "/q", opts...)
					}
					ctx, cancel := context.WithTimeout(b.t.Context(), time.Duration(1+b.dice.IntN(4000))*time.Millisecond)
					switch b.dice.IntN(7) {
					case 0, 1, 2:
						b.send(ctx, q)
					case 3:
						b.tend(ctx, q)
					default:
						b.consume(ctx, q, other)
					}
					cancel()
				}
			})
		}
		if a.dice.IntN(2) == 0 { // in the midst of it all
			time.Sleep(time.Duration(a.dice.IntN(20_000)) * time.Millisecond)
		} else {
			actors.Wait()
		}
		begun := time.Now()
		closing.Store(true)
		harness.Must(a.t, s.Close())
		if d := time.Since(begun); d > time.Minute {
			a.t.Errorf("Close has taken %v", d)
		}
		actors.Wait()
		p.s.Store(open())
	}
}

// left empties a queue and returns how often each element was in it, dead letters too.
func left(t testing.TB, q *zsync.Queue[int]) map[int]int {
	t.Helper()
	found := make(map[int]int)
	n, err := q.Len(t.Context())
	harness.Must(t, err)
	for l, err := range q.Dead(t.Context()) {
		harness.Must(t, err)
		found[valueOf(l)]++
	}
	for ; ; n-- {
		v, ok, err := q.TryRecv(t.Context()) // the first waits for what the dead had claimed
		harness.Must(t, err)
		if !ok {
			break
		}
		found[v]++
	}
	if st, err := q.Stats(t.Context()); err != nil || n != 0 || st.Ready+st.Claimed+st.Delayed+len(st.Holders) > 0 {
		t.Errorf("%d of what Len has counted did not come: %+v, %v", n, st, err)
	}
	return found
}

// check compares what is left, and what was moved, with what is known.
func (l *ledgerOfAll) check(rest, moved map[int]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	missing := 0
	for v, e := range l.all {
		switch n := rest[v]; {
		case n > 1 || moved[v] > 1:
			l.t.Errorf("%d is there %d times, and was moved %d times: %q", v, n, moved[v], e.log)
		case n > 0 && (e.removed > 0 || moved[v] > 0):
			l.t.Errorf("%d was removed, and is there: %q", v, e.log)
		case e.moved && moved[v] == 0:
			l.t.Errorf("%d was moved, and is not there: %q", v, e.log)
		case moved[v] > 0 && e.removed > 0 && !e.moved:
			l.t.Errorf("%d was moved, and removed besides: %q", v, e.log)
		case e.stored && n == 0 && moved[v] == 0 && e.removed == 0 && !e.maybe:
			if missing++; l.cleared == 0 && !l.vague {
				l.t.Errorf("%d is lost: %q", v, e.log)
			}
		}
	}
	if missing > l.cleared && !l.vague {
		l.t.Errorf("%d are lost; Clear has removed %d", missing, l.cleared)
	}
}

// Nothing is lost, nothing is removed by two, no call hangs and nothing goes on, whatever
// is done with a queue at once, while sessions are hurt, and closed.
func TestHammerAllThatAQueueCanDoAtOnce(t *testing.T) {
	t.Parallel()
	for seed := range harness.Seeds(t, 6, 6, 600) {
		kind := seed % len(kindsOfQueues)
		t.Run(fmt.Sprintf("%d/%s", seed, kindsOfQueues[kind].name), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				begun, rnd := time.Now(), rand.New(rand.NewPCG(uint64(seed), 3))
				l := &ledgerOfAll{t: t, all: make(map[int]*fortune)}
				open := func() *zsync.Session { return suite.Open(t, srv) }
				var seats []*seat
				for range 3 {
					p := &seat{}
					p.s.Store(open())
					seats = append(seats, p)
				}
				clear := rnd.IntN(4) == 0
				harness.UnderChaos(t, srv, rnd, seats, func() {
					var lives sync.WaitGroup
					for i, p := range seats {
						a := &actor{ledgerOfAll: l, kind: kind, clear: clear, dice: rand.New(rand.NewPCG(uint64(seed), uint64(4+i)))}
						lives.Go(func() { a.live(p, open, 10) })
					}
					lives.Wait()
				})
				for _, p := range seats {
					harness.Must(t, p.s.Load().Close())
				}
				time.Sleep(time.Minute) // what the dead had is free, and all is due
				s := open()
				l.check(left(t, zsync.NewQueue[int](s, "/q")), left(t, zsync.NewQueue[int](s, "/other")))
				harness.Must(t, s.Close())
				if d := time.Since(begun); d > 30*time.Minute {
					t.Errorf("it has taken %v", d)
				}
			})
		})
	}
}
