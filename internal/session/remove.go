package session

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"
)

// Settled waits until r is over, or can wait no longer: for ctx, or because the
// session has ended, and the znode with it.
func (r *Removal) Settled(ctx context.Context) {
	select {
	case <-r.Done:
	case <-r.inc.Ctx.Done():
	case <-ctx.Done():
	}
}

// discard deletes znodes in the background once the request that may make them,
// if there is one, is over.
func (inc *Incarnation) discard(making *pending[[]zk.MultiResponse], paths []string) *Removal {
	return inc.Vacate(paths[0], inc.discarding(making, paths))
}

// discarding deletes znodes once the request that may make them is over.
func (inc *Incarnation) discarding(making *pending[[]zk.MultiResponse], paths []string) func() error {
	return func() error {
		if making != nil {
			select {
			case <-making.Done:
			case <-inc.Ctx.Done():
				return ErrEnded
			}
		}
		return inc.RemoveAllNow(context.Background(), paths)
	}
}

// Worse returns the error of two deletions that is not just that there was
// nothing to delete.
func Worse(a, b error) error {
	if b == nil || a != nil && IsNoNode(b) {
		return a
	}
	return b
}

// RemoveAll deletes znodes in the background.
func (inc *Incarnation) RemoveAll(paths []string) *Removal { return inc.discard(nil, paths) }

// RemoveAllNow deletes znodes, in one transaction if all are there and it is not
// too large. The error is NoNode if one of them certainly was not.
func (inc *Incarnation) RemoveAllNow(ctx context.Context, paths []string) error {
	if len(paths) == 1 {
		return inc.RemoveNow(ctx, paths[0])
	}
	ops, size := make([]any, len(paths)), 256
	for i, path := range paths {
		ops[i] = &zk.DeleteRequest{Path: path, Version: -1}
		size += inc.Manager.SizeOf(path, nil)
	}
	if size > MaxPacket {
		half := len(paths) / 2
		err := inc.RemoveAllNow(ctx, paths[:half])
		return Worse(err, inc.RemoveAllNow(ctx, paths[half:]))
	}
	_, err := inc.AttemptMulti(ctx, ops)
	if err == nil || errors.Is(err, ErrEnded) {
		return err
	}
	// The reply is lost, or one of them is gone and has kept the others: one
	// by one then.
	missing := IsNoNode(err)
	err = nil
	for _, path := range paths {
		if e := inc.RemoveNow(ctx, path); e != nil && !IsNoNode(e) {
			err = e
		}
	}
	if err == nil && missing {
		err = zk.ErrNoNode
	}
	return err
}

// A Removal is a deletion in the background. It is repeated until the znode is
// gone or the ZooKeeper session, and every ephemeral znode with it, has ended:
// what the servers refuse, they may allow later.
type Removal struct {
	inc     *Incarnation
	Done    chan struct{} // closed when err is set
	Err     error         // nil; NoNode if it was gone before; or ErrEnded
	Refused chan struct{} // closed when refusal is set
	Refusal error         // the servers' first
}

// InBackground runs f, which deletes something at path that is in nobody's way,
// until it succeeds.
func (inc *Incarnation) InBackground(path string, f func() error) *Removal {
	return inc.remove(path, f, 0)
}

// Vacate is InBackground for ephemeral znodes that others wait for, or may come
// to. Giving them up cannot be refused: what the servers still refuse when a
// session timeout has passed goes with the session, which is given up, and what
// else is held through it is told to be lost, with LossGivenUp. So nobody waits
// longer for one who has left than for one who has died.
func (inc *Incarnation) Vacate(path string, f func() error) *Removal {
	return inc.remove(path, f, time.Duration(inc.Timeout.Load()))
}

// remove runs f until it succeeds. If limit is not 0 it is how long the servers may
// refuse before the session is given up.
func (inc *Incarnation) remove(path string, f func() error, limit time.Duration) *Removal {
	r := &Removal{inc: inc, Done: make(chan struct{}), Refused: make(chan struct{})}
	inc.Manager.Spawn(func() {
		defer close(r.Done)
		ctx := context.Background()
		for try := 0; ; try++ {
			r.Err = f()
			if r.Err == nil || IsNoNode(r.Err) || OutcomeOf(r.Err) != Answered {
				return
			}
			if try == 0 {
				inc.Manager.Log.Error("zsync: cannot delete, and goes on trying", "path", path, "err", r.Err)
				r.Refusal = r.Err
				close(r.Refused)
				if limit > 0 {
					// Pauses end there too, however long the user has them be.
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, limit)
					defer cancel()
				}
			}
			switch err := inc.Pause(ctx, try+1); {
			case errors.Is(err, ErrEnded):
				r.Err = err
				return
			case ctx.Err() != nil:
				inc.giveUpOver(path)
				r.Err = ErrEnded
				return
			}
		}
	})
	return r
}

// Remove deletes the ephemeral znode at path in the background.
func (inc *Incarnation) Remove(path string) *Removal {
	return inc.Vacate(path, func() error { return inc.RemoveNow(context.Background(), path) })
}

// RemoveNow deletes the znode at path. Names are unique, so a repeated deletion
// deletes nothing else.
func (inc *Incarnation) RemoveNow(ctx context.Context, path string) error {
	return inc.removeAfter(ctx, nil, path)
}

// removeAfter is RemoveNow whose first attempt, if it is not nil, has been sent.
func (inc *Incarnation) removeAfter(ctx context.Context, p *pending[void], path string) error {
	mayBeDone := false // an attempt without a reply may have been applied
	for try := 0; ; try++ {
		var err error
		if p == nil {
			p, err = start(ctx, inc, deleteCall(path))
		}
		if err == nil {
			_, err = p.Wait(ctx, inc)
		}
		p = nil
		switch {
		case err == nil, IsNoNode(err) && mayBeDone:
			return nil
		case errors.Is(err, ErrEnded), ctx.Err() != nil:
			return err
		case OutcomeOf(err) == Answered:
			return err
		case OutcomeOf(err) == Unknown:
			mayBeDone = true
		}
		if err := inc.Pause(ctx, try); err != nil {
			return err
		}
	}
}

// Unhold deletes the ephemeral znode of what was held, and says what came of it, as
// Result does. What is not done by then goes on in the background. It calls after
// when the znode is gone, or its session has ended.
//
// The first attempt is made here, so that servers that answer cost no goroutine.
func (inc *Incarnation) Unhold(path string, after func()) error {
	limit := time.NewTimer(ReleaseTime)
	defer limit.Stop()
	p := &pending[void]{Done: make(chan struct{}), call: deleteCall(path)}
	if !inc.newestLink().send(p) {
		p.fail(errUnsent) // there is no connection
	}
	// Several may be ready. What is known goes before.
	select {
	case <-p.Done:
	case <-inc.Disconnection():
	case <-inc.Ctx.Done():
	case <-limit.C:
		limit.Reset(0) // for result
	}
	if IsClosed(p.Done) && p.err == nil {
		after()
		return nil // deleted by us, so it was ours until then, even if the session has ended since
	}
	return inc.Vacate(path, func() error {
		err := inc.removeAfter(context.Background(), p, path)
		p = nil // what is refused is sent again
		after()
		return err
	}).result(limit.C)
}

// Await waits for the end of r, but no longer than limit, and not while there
// is no connection.
func (r *Removal) Await(limit time.Duration) {
	select {
	case <-r.Done:
	case <-r.inc.Disconnection():
	case <-r.inc.Ctx.Done():
	case <-time.After(limit):
	}
}

// Result waits for r, the deletion of what was held through its session, and
// says what came of it: nil, or an ErrLost. It does not wait for long, nor while
// there is no connection: the deletion goes on. Nor is it an error that the
// servers refuse it, which they may not do for good: see Vacate.
func (r *Removal) Result() error { return r.result(time.After(ReleaseTime)) }

func (r *Removal) result(limit <-chan time.Time) error {
	select {
	case <-r.Done:
	case <-r.inc.Disconnection():
	case <-r.inc.Ctx.Done():
	case <-limit:
	}
	// Several may be ready. What is known goes before what must be feared.
	switch {
	case IsClosed(r.Done) && r.Err == nil:
		return nil // deleted by us, so it was ours until then, even if the session has ended since
	case IsClosed(r.Done) && IsNoNode(r.Err):
		return r.inc.Deleted() // by somebody else, so others may have it
	case !r.inc.Alive():
		return r.inc.Loss() // r.Err is ErrEnded, if r is over
	}
	// Whether or not the deletion has got through, it will be repeated for as
	// long as the session can last.
	return nil
}
