package zsync

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
	"github.com/zsync/zsync/internal/znodes"
)

// WithID sets the id of a candidate, such as an address: the data of its znode, and the Owner of
// its Contender. The default is the text of [WithOwner].
func WithID(id string) ElectionOption {
	return option(func(c *setup) { c.id = &id })
}

// WithPriority sets the candidate's priority. Of the waiting candidates with the highest priority,
// the earliest leads first. A leader keeps the leadership. When a candidate's turn comes, it moves
// to the back of the line (5 requests) if a higher priority waits. A candidate without the option,
// such as Curator's, counts as 0 and never gives way. Set the option for all.
func WithPriority(p int) ElectionOption {
	return option(func(c *setup) { c.prior = &p })
}

// An Election chooses one leader among the processes that name the same path:
//
//	e := zsync.NewElection(s, "/services/scheduler")
//	err := e.Run(ctx, func(ctx context.Context) error { … }) // while this process leads
//	leader, err := e.Leader(ctx)
//
// A program can also call Campaign and Resign instead of Run. One *Election is one candidate. At
// most one live session leads: the first in line.
//
// # Loss
//
// If the session ends, the leadership is lost and another process may lead. A candidate that
// campaigns again is a new one, at the back of the line.
//
// # Errors
//
// Leader can return [ErrNoLeader], and Transfer [ErrNoCandidate].
//
// # Cost
//
// Leader, Resign, and a Campaign without another candidate take 1 round trip each. A change of the
// leader costs Observe one event and 3 requests.
//
// # Znodes
//
// A candidate is path/_c_<uuid>-latch-<seq>, as in Curator's LeaderLatch.
type Election struct {
	localLock
	known atomic.Value // the name of the leader's znode at the last call of Leader

	mu       sync.Mutex
	run      *doCall       // the call of Run's function in the present leadership, or nil; guarded by mu
	left     chan struct{} // closed when that function has returned, and a resigned znode is released; guarded by mu
	resigned func() error  // completes the release that Resign has begun during run; nil before Resign; guarded by mu
}

// NewElection returns the Election at path.
func NewElection(s *Session, path string, opts ...ElectionOption) *Election {
	var c setup
	session.ApplyEach("election", opts, &c.err, func(o ElectionOption) { o.applyElection(&c) })
	c.allow("an Election", c.notElection, LayoutCurator, LayoutKazoo, LayoutSelector)
	c.err = checkNew(s, path, c.err)
	c.handoffs = 1
	base := "latch-"
	if c.layout == LayoutSelector {
		base = "lock-"
	}
	e := new(Election)
	ln := e.init(s, path, c, "election", "campaign", base)
	if ln.Kind = trace.Election; c.id != nil {
		ln.Data = []byte(*c.id)
	}
	ln.Defers = func(me *lock.Claim, names []string) bool {
		defers, wishes := lock.Defers(me.Child, names, ln.Bases, c.prior)
		for _, name := range wishes { // me, which leads now, defers no more; if it leaves instead, they have no effect
			dropWish(me.Incarnation, znodes.ChildPath(ln.Dir, name), "")
		}
		return defers
	}
	e.local.Elects = true
	return e
}

// Campaign waits until e leads, ctx ends, or the Session is closed. An Election is in the line at
// most once: while it leads or campaigns, another Campaign waits as [Mutex.Lock] would. After a
// loss, no Resign is needed.
func (e *Election) Campaign(ctx context.Context) error {
	_, _, err := e.acquire(ctx, lock.Exclusive, false)
	return opError("campaign", e.path, err)
}

// Resign ends the leadership, and the context of a Run in progress. No other candidate leads
// before Run's function has returned, or the session has ended. After a loss and a new Campaign,
// a late Resign ends the new term.
func (e *Election) Resign() error {
	g, err := e.current(nil)
	if err == nil {
		err = cmp.Or(e.resign(context.Background(), g), g.Claim.Loss()) // perhaps g was lost before Run's function returned
	}
	return opError("resign", e.path, err)
}

// The method `resign` ends the leadership of g, unless another goroutine has ended it.
func (e *Election) resign(ctx context.Context, g *lock.Grant) error {
	e.mu.Lock()
	finish, found := g.BeginRelease()
	runs, left := found && e.run != nil && e.run.grant() == g, e.left
	if runs { // the function must return first, so Run completes the release
		e.run.ending().End(ErrNotLocked)
		e.resigned = finish
	}
	e.mu.Unlock()
	if !runs {
		return e.s.m.GiveUp(ctx, finish)
	}
	if err := g.Err(); err != nil {
		return err
	}
	select {
	case <-left:
	case <-time.After(session.ReleaseTime):
	case <-ctx.Done():
	}
	return nil
}

// Run campaigns, calls f when it leads, resigns when f returns, and starts again, also after a
// loss. f returns nil to pass the leadership on. If f returns an error while it leads, Run returns
// that error. Run also returns if the Session is closed or Campaign fails for good. If ctx ends,
// Run returns the error of ctx. If f returns a different error, Run joins the two.
//
// f's context ends as in [Mutex.Do], and with cause [ErrNotLocked] after a Resign. Return soon from
// f then: the next leader begins when f has returned or the session has ended. [WithMaxHold] and
// [WithHealth] end the leadership of a hanging f. If f panics, so does Run.
func (e *Election) Run(ctx context.Context, f func(ctx context.Context) error) (err error) {
	defer e.wrap("run", &err)
	if e.misuse() == nil && f == nil {
		return session.Invalid("the function is nil")
	}
	for {
		var d *doCall
		var failed error
		ended := e.do(ctx, "run", lock.Exclusive, func(leading context.Context) error {
			d = e.within(leading)
			left := make(chan struct{})
			defer close(left)
			e.mu.Lock()
			if !d.holds() { // Resign has released the hold, or it was lost, and another candidate may lead
				e.mu.Unlock()
				return nil
			}
			e.run, e.left, e.resigned = d, left, nil
			e.mu.Unlock()
			defer func() {
				e.mu.Lock()
				var finish func() error
				if e.run == d { // else it was lost, and another Run of e leads
					e.run, finish = nil, e.resigned
				}
				e.mu.Unlock()
				if finish != nil {
					e.s.m.GiveUp(ctx, finish)
				}
			}()
			failed = f(leading)
			return nil
		})
		if d == nil { // e has not led
			return ended
		}
		ended = plainError(ended)
		switch closed := e.s.m.Failure(); {
		case ctx.Err() != nil:
			return endOfRun(session.CtxErr(ctx), failed, ctx.Err(), context.Cause(ctx))
		case closed != nil && errors.Is(ended, ErrLost):
			return endOfRun(ended, failed, context.Canceled, ErrClosed)
		case closed != nil:
			return endOfRun(closed, failed, context.Canceled, ErrClosed)
		case errors.Is(ended, ErrLost), errors.Is(ended, ErrNotLocked):
			e.s.m.Log.Warn("zsync: leadership ended", "path", e.path, "reason", ended, "err", failed)
		case failed != nil || ended != nil:
			return cmp.Or(failed, ended)
		}
	}
}

// endOfRun returns the error `end` that has ended a Run, joined with the function's error err, unless
// that is the end of its context, with one of `causes`.
func endOfRun(end, err error, causes ...error) error {
	if err == nil || slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(err, cause) }) {
		return end
	}
	return errors.Join(end, err)
}

// Leader returns the first candidate in line. The result is never older than the call. Between two
// leaders, it can be a candidate that never leads.
func (e *Election) Leader(ctx context.Context) (c Contender, err error) {
	defer e.wrap("leader", &err)
	err = e.during(ctx, func(inc *session.Incarnation) error {
		known, _ := e.known.Load().(string)
		name, n, err := e.local.Line.ReadFirst(ctx, inc, known)
		switch {
		case err != nil:
			return err
		case name == "":
			return ErrNoLeader
		}
		e.known.Store(name)
		c = contenderOf(name, n, ModeExclusive, true)
		return nil
	})
	return c, err
}

// Observe returns a channel. It receives the result of [Election.Leader] now and after each change.
// While no candidate leads, it sends nothing.
func (e *Election) Observe(ctx context.Context) <-chan Contender {
	return watching(ctx, &e.made, func(ctx context.Context, out chan<- Contender) error {
		told := "" // the name of the last contender sent
		return e.s.m.During(ctx, func(inc *session.Incarnation) error {
			line, list := &e.local.Line, inc.NamesFresh
			for {
				first, err := line.First(ctx, inc, list)
				list = inc.Names
				path := znodes.ChildPath(line.Dir, first)
				switch {
				case err != nil:
					return err
				case first == "": // wait until the line may have a contender
					err = inc.EachChange(ctx, conn.WatchKey{Kind: conn.WatchChildren, Path: line.Dir}, zk.EventNodeChildrenChanged, func(*conn.Watch) (found bool, err error) {
						names, _, err := inc.Children(ctx, line.Dir)
						return len(lock.ParseChildren(names, line.Bases...)) > 0, err
					})
					if session.IsNoNode(err) {
						err = inc.AwaitMade(ctx, line.Dir) // a missing znode has no list of children to watch
					}
				default: // send the first contender, and wait for its deletion
					err = inc.WhileThere(ctx, path, func(_ *zk.Stat, w *conn.Watch) error {
						if first == told {
							return nil
						}
						data, stat, err := inc.Get(ctx, path)
						if err != nil {
							return err
						}
						sent, err := session.Offer(ctx, out, contenderOf(first, session.Node{Data: data, Stat: stat}, ModeExclusive, true), w.Fired, inc.Ctx.Done())
						if sent {
							told = first
						}
						return err
					})
				}
				if err != nil {
					return err
				}
			}
		})
	})
}
