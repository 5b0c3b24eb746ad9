package zsync

import (
	"context"
	"math"

	"github.com/zsync/zsync/internal/double"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/tally"
)

// A WaitGroup waits for tasks that run in any number of processes:
//
//	wg := zsync.NewWaitGroup(s, "/imports/42")
//	err := wg.Go(ctx, task) // Add(1), run task in a goroutine, Done
//	err = wg.Wait(ctx)      // in this process or another
//
// A Wait sees every Add that returned before the Wait began, in any process. As in sync, calls of
// Add for the next set of tasks must wait until the Waits for the last set have returned. Done
// synchronizes before the Wait that it releases. [WaitGroup.Enter] is a separate double barrier.
//
// # Loss
//
// A task belongs to the session that added it, and ends with it. So no Wait hangs because of a dead
// process. A process that loses its session gets [ErrLost] from Done, or a negative Add, for its
// tasks. If other processes end them, use [WithPersistentTasks]: else the count can stay too high.
//
// # Errors
//
// A call that would make the counter negative returns [ErrNegativeCounter].
//
// # Cost
//
// Add, Done and Wait take 1 round trip each, which goroutines share. A Wait receives one event for
// each session with open tasks.
//
// # Znodes
//
// Each session with open tasks has one ephemeral znode, path/_c_<uuid>-tasks. Its data is the
// number of tasks. Persistent tasks have a persistent znode.
type WaitGroup struct {
	made
	tally  *tally.Tally
	double *double.DoubleBarrier
}

// A WaitGroupOption changes a WaitGroup.
type WaitGroupOption func(*setup)

// WithPersistentTasks makes tasks outlive their session: a task of this WaitGroup stays open until
// Done. By default, a task ends with its session.
func WithPersistentTasks() WaitGroupOption { return func(c *setup) { c.keep = true } }

// NewWaitGroup returns the WaitGroup at path.
func NewWaitGroup(s *Session, path string, opts ...WaitGroupOption) *WaitGroup {
	var c setup
	session.ApplyEach("WaitGroup", opts, &c.err, func(o WaitGroupOption) { o(&c) })
	wg := &WaitGroup{made: made{s: s, path: path}}
	if wg.err = checkNew(s, path, c.err); wg.err == nil {
		wg.tally = tally.Of(&s.tallies, s.m, s.m.Full(path), c.keep)
		wg.double = double.New(s.m, path, &s.leftovers)
	}
	return wg
}

// Add adds delta, which may be negative, to the counter. An Add that ends tasks of thousands of
// other sessions may end only some. If ctx ends first, a positive delta is not added, or is taken
// back.
func (wg *WaitGroup) Add(ctx context.Context, delta int) error {
	_, err := wg.add(ctx, delta)
	return opError("add", wg.path, err)
}

func (wg *WaitGroup) add(ctx context.Context, delta int) (era int, err error) {
	switch err := wg.check(ctx); {
	case err != nil:
		return 0, err
	case delta > math.MaxInt32 || delta < -math.MaxInt32:
		return 0, session.Invalid("delta %d is out of range; want at most %d tasks at once", delta, math.MaxInt32)
	case delta == 0:
		return 0, nil
	}
	era, err = wg.tally.Add(ctx, delta)
	return era, wg.s.m.Explained(ctx, err)
}

// Done ends one task. If another program's znode hides the open tasks of another session, Done
// returns [ErrInvalid] and ends nothing. If no server answers within half a second, or the servers
// refuse, Done returns nil and the Session ends the task in the background.
func (wg *WaitGroup) Done() error {
	if wg.misuse() != nil {
		return opError("done", wg.path, wg.misuse())
	}
	return opError("done", wg.path, wg.tally.Done())
}

// Go adds one task, calls f in a goroutine, and ends the task when f returns. If the task cannot
// be added, Go does not call f. If f panics, the process ends, as in sync; no Wait counts the
// task as done before the session ends.
func (wg *WaitGroup) Go(ctx context.Context, f func()) error {
	if wg.misuse() == nil && f == nil {
		return opError("go", wg.path, session.Invalid("the function is nil"))
	}
	era, err := wg.add(ctx, 1)
	if err != nil {
		return opError("go", wg.path, err)
	}
	go func() {
		defer func() {
			if x := recover(); x != nil {
				panic(x)
			}
			wg.tally.End(1, era)
		}()
		f()
	}()
	return nil
}

// Wait waits until no task is open. If another program's znode is among the znodes with
// open tasks, Wait and Count return [ErrInvalid].
func (wg *WaitGroup) Wait(ctx context.Context) error {
	return wg.waiting(ctx, "waitgroup", func(ctx context.Context) error {
		wg.s.m.Waiters.Add(1)
		defer wg.s.m.Waiters.Add(-1)
		return wg.during(ctx, func(inc *session.Incarnation) error { return wg.tally.Wait(ctx, inc) })
	})
}

// Count returns the number of open tasks. If the tasks change all the time, Count reads the numbers
// of different sessions at different times.
func (wg *WaitGroup) Count(ctx context.Context) (total int, err error) {
	defer wg.wrap("count", &err)
	err = wg.during(ctx, func(inc *session.Incarnation) (err error) {
		total, err = wg.tally.Count(ctx, inc)
		return err
	})
	return total, err
}

// Enter waits until n parties have entered, and lets all n in together:
//
//	err := wg.Enter(ctx, 3) // returns when three parties have entered
//	err = wg.Leave(ctx)     // returns when the three parties have left
//
// All parties must give the same n; another n returns [ErrInvalid]. Parties are goroutines of one
// process or of many. The party that comes next begins the next round. The servers let a round in
// only if all n parties exist; a dead party leaves when its session expires.
//
// The membership ends with its session, or if another client deletes its znode: Leave then
// returns [ErrLost]. A round takes 5 round trips.
func (wg *WaitGroup) Enter(ctx context.Context, n int) (err error) {
	defer wg.wrap("enter", &err)
	if err := wg.check(ctx); err != nil {
		return err
	}
	if err := wg.double.Check(n); err != nil {
		return err
	}
	_, o := wg.s.begin(ctx, Op{Kind: OpAcquire, Primitive: "double barrier", Name: "enter", Path: wg.path})
	var g *lock.Grant
	err = wg.s.m.WhileOpen(ctx, func(ctx context.Context) (err error) {
		g, err = wg.double.Enter(ctx, n)
		return err
	})
	if err = waited(ctx, wg.s.m, o.began, err); err != nil {
		o.end(err)
	} else {
		o.got(ctx, g)
	}
	return err
}

// Leave ends the earliest membership of Enter, even if Leave fails, and waits until all parties of
// that round have left. Leave returns [ErrNotLocked] if there is no membership, and ErrLost if the
// membership was lost.
func (wg *WaitGroup) Leave(ctx context.Context) error {
	if wg.misuse() != nil {
		return opError("leave", wg.path, wg.misuse())
	}
	return opError("leave", wg.path, wg.s.m.WhileOpen(ctx, wg.double.Leave))
}

// Lost is [Mutex.Lost] for the membership that Leave would end next.
func (wg *WaitGroup) Lost() <-chan struct{} {
	if wg.misuse() != nil {
		return session.ClosedChan
	}
	hold, _ := wg.double.Membership()
	if hold == nil || hold.Err() != nil {
		return session.ClosedChan
	}
	return hold.Loss().Done()
}

// Contenders returns the parties in their order; a party inside is Holding.
func (wg *WaitGroup) Contenders(ctx context.Context) (out []Contender, err error) {
	defer wg.wrap("contenders", &err)
	err = wg.during(ctx, func(inc *session.Incarnation) error {
		names, rounds, _, err := wg.double.Parties(ctx, inc)
		if err == nil {
			out, err = describe(ctx, inc, wg.double.Room, names, func(i int) (Mode, bool) { return ModeParty, rounds[i] != 0 })
		}
		return err
	})
	return out, err
}
