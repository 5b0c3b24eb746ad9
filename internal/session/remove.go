package session

// This file has the ways in which znodes are deleted: now or in the background, one or
// several, by name. What carries out a deletion in the background, and repeats it, is the
// reaper (reaper.go); the deletion of what may be another session's by now is in own.go.

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"
)

// Settled waits until r is over, or can wait no longer: for ctx, or because the
// session has ended, and the znode with it.
func (r *Removal) Settled(ctx context.Context) {
	select {
	case <-r.Done:
	case <-r.reaper.inc.Ctx.Done():
	case <-ctx.Done():
	}
}

// discard deletes znodes in the background once the request that may make them,
// if there is one, is over.
func (inc *Incarnation) discard(making *pending[[]zk.MultiResponse], paths []string) *Removal {
	return reapAfter(inc, making, &Removal{path: paths[0], kind: removeOwn, f: inc.Removing(paths)})
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

// RemoveAllThen is RemoveAll that calls then when they are gone, or the session has
// ended. then must not wait.
func (inc *Incarnation) RemoveAllThen(paths []string, then func()) *Removal {
	return inc.VacateThen(paths[0], inc.Removing(paths), then)
}

// Removing returns what deletes znodes of unique names as RemoveAllNow does, and is
// called again when the servers have refused a part of it: what one call has deleted
// the next does not miss.
func (inc *Incarnation) Removing(paths []string) func() error {
	d := &removing{inc: inc, left: paths}
	return func() error { return d.attempt(context.Background()) }
}

// RemoveAllNow deletes znodes of unique names, in one transaction if all are there and
// it is not too large. The error is NoNode if one of them certainly was not.
func (inc *Incarnation) RemoveAllNow(ctx context.Context, paths []string) error {
	return (&removing{inc: inc, left: paths}).attempt(ctx)
}

// A removing is the deletion of several znodes, attempt by attempt.
type removing struct {
	inc     *Incarnation
	left    []string // which may be there
	open    bool     // a request without an answer may have deleted one that is not there
	missing bool     // one was gone, and no request of ours had deleted it
}

func (d *removing) attempt(ctx context.Context) (err error) {
	paths := d.left
	d.left = nil
	for len(paths) > 0 {
		n, size := 0, 256
		for ; n < len(paths); n++ {
			if size += d.inc.Manager.SizeOf(paths[n], nil); n > 0 && size > MaxPacket {
				break
			}
		}
		if e := d.some(ctx, paths[:n]); e != nil {
			err = e
		}
		paths = paths[n:]
	}
	if err == nil && d.missing {
		err = zk.ErrNoNode
	}
	return err
}

// some deletes those that fit into one request. Of what fails, those are left.
func (d *removing) some(ctx context.Context, paths []string) error {
	if len(paths) > 1 {
		ops := make([]any, len(paths))
		for i, path := range paths {
			ops[i] = &zk.DeleteRequest{Path: path, Version: -1}
		}
		_, err := d.inc.AttemptMulti(ctx, ops)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrEnded):
			d.left = append(d.left, paths...)
			return err
		}
		d.open = d.open || OutcomeOf(err) == Unknown
		d.missing = d.missing || IsNoNode(err) && !d.open
	}
	// The reply is lost, or one of them is gone and has kept the others: each by
	// itself then, all in one round trip. Names are unique, so to repeat it deletes
	// nothing else.
	var each []*pending[void]
	err := d.inc.retryAll(ctx, func(b *Batch) {
		d.open = d.open || slices.ContainsFunc(each, func(e *pending[void]) bool { return !IsClosed(e.Done) || OutcomeOf(e.err) == Unknown })
		each = nil
		for _, path := range paths {
			each = append(each, add(b, deleteCall(path)))
		}
	})
	if err != nil {
		d.left, d.open = append(d.left, paths...), true
		return err
	}
	for i, e := range each {
		switch {
		case IsNoNode(e.err):
			d.missing = d.missing || !d.open
		case e.err != nil:
			d.left = append(d.left, paths[i])
			err = e.err
		}
	}
	return err
}

// InBackground runs f, which deletes something at path that is in nobody's way,
// until it succeeds. f repeats what has no answer; nil deletes what is at path.
func (inc *Incarnation) InBackground(path string, f func() error) *Removal {
	return inc.reap(&Removal{path: path, f: f, kind: removeIdle})
}

// RemoveBehind deletes the ephemeral znode at path, in the background, when the one at
// other has gone. If somebody else is to delete it before that, Close waits for him, but
// not long.
func (inc *Incarnation) RemoveBehind(path, other string) {
	leaving, stay := inc.Manager.BeforeClose()
	r := inc.InBackground(path, func() error { // again when the servers refuse to tell
		if err := inc.AwaitGone(inc.Ctx, other); err != nil {
			return err
		}
		return inc.RemoveNow(inc.Ctx, path)
	})
	inc.Manager.Spawn(func() {
		defer stay()
		// Where several are ready it has gone, or nothing can be done for it.
		select {
		case <-r.Done:
		case <-inc.Ctx.Done():
		case <-leaving:
			inc.AwaitGone(inc.Ctx, path)
		}
	})
}

// Tidy deletes what is persistent and in nobody's way, in the background: Close waits
// for it, but not long, and not for permissions. f repeats what has no answer, and is
// called again when the servers refuse. With nil what is at path is deleted, and stays
// if that is refused: whoever finds it there again asks again.
func (inc *Incarnation) Tidy(path string, f func() error) *Removal {
	_, stay := inc.Manager.BeforeClose()
	kind := removeIdle
	if f == nil {
		kind = removeOnce
	}
	return inc.reap(&Removal{path: path, f: f, kind: kind, stay: stay})
}

// Vacate is InBackground for ephemeral znodes that others wait for, or may come
// to. Giving them up cannot be refused: what the servers still refuse when a
// session timeout has passed goes with the session, which is given up, and what
// else is held through it is told to be lost, with LossGivenUp. So nobody waits
// longer for one who has left than for one who has died.
func (inc *Incarnation) Vacate(path string, f func() error) *Removal {
	return inc.reap(&Removal{path: path, f: f, kind: removeOwn})
}

// VacateThen is Vacate that calls then when f has succeeded, or the session has ended.
// then must not wait.
func (inc *Incarnation) VacateThen(path string, f func() error, then func()) *Removal {
	return inc.reap(&Removal{path: path, f: f, kind: removeOwn, told: then})
}

// Remove is Vacate of the ephemeral znode at path.
func (inc *Incarnation) Remove(path string) *Removal { return inc.Vacate(path, nil) }

// RemoveThen is Remove that calls then when the znode is gone, or its session has
// ended. then must not wait: it may be called by the goroutine that reads from the
// network.
func (inc *Incarnation) RemoveThen(path string, then func()) *Removal {
	return inc.reap(&Removal{path: path, kind: removeOwn, told: then})
}

// TakeBack deletes, in the background, an ephemeral znode that was made for a
// call which has failed. Where the servers do not permit that, the session is
// given up at once, and where they refuse it for another reason, as with Vacate:
// what nobody uses, and nobody can delete, would hold
// up everybody else for as long as the session lasts. What else is held is told
// to be lost, with LossGivenUp.
//
// To look first, before every create, would cost a round trip each time for what
// hardly ever happens. So we look first where it has happened: see mayTakeBack.
func (inc *Incarnation) TakeBack(path string) *Removal {
	return inc.reap(&Removal{path: path, kind: removeUnused})
}

// RemoveNow deletes the znode at path. Names are unique, so a repeated deletion
// deletes nothing else.
func (inc *Incarnation) RemoveNow(ctx context.Context, path string) error {
	return inc.removeAfter(ctx, nil, path)
}

// removeAfter is RemoveNow whose first attempt, if it is not nil, has been sent.
func (inc *Incarnation) removeAfter(ctx context.Context, p *pending[void], path string) error {
	return inc.repeat(ctx, func(a *attempts) (err error) {
		if p == nil {
			if p, err = start(ctx, inc, deleteCall(path)); err != nil {
				return err
			}
		}
		_, err = p.Wait(ctx, inc)
		p = nil
		if IsNoNode(err) && a.open {
			return nil
		}
		return a.outcome(err)
	})
}

// Await waits for the end of r, but no longer than limit, and not while there
// is no connection.
func (r *Removal) Await(limit time.Duration) {
	r.reaper.inc.AwaitConnected(r.Done, limit)
}

// Result waits for r, the deletion of what was held through its session, and
// says what came of it: nil, or an ErrLost. It does not wait for long, nor while
// there is no connection: the deletion goes on. Nor is it an error that the
// servers refuse it, which they may not do for good: see Vacate.
func (r *Removal) Result() error {
	r.Await(ReleaseTime)
	// Several may be ready. What is known goes before what must be feared.
	switch inc := r.reaper.inc; {
	case IsClosed(r.Done) && r.Err == nil:
		return nil // deleted by us, so it was ours until then, even if the session has ended since
	case IsClosed(r.Done) && IsNoNode(r.Err):
		return inc.Deleted() // by somebody else, so others may have it
	case !inc.Alive():
		return inc.Loss() // r.Err is ErrEnded, if r is over
	}
	// Whether or not the deletion has got through, it will be repeated for as
	// long as the session can last.
	return nil
}
