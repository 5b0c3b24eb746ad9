package session

// This file has the ways in which znodes are deleted: now, or in the background. The queue of
// the deletions in the background is in deletions.go; the deletion of a znode that another
// session may have made again is in own.go.

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"
)

// A Deletion deletes znodes in the background, until they are gone or the session has ended,
// and every ephemeral znode with it: what the servers refuse now they may permit later.
//
// Other clients wait for ephemeral znodes, or may come to. So a release cannot be refused: if
// the servers still refuse when a session timeout has passed, the session is given up, and
// what else is held through it is lost, with LossGivenUp. No client waits longer for one that
// has left than for one that has died.
//
// A Deletion of one znode is also the request that deletes it. Only one attempt is under way
// at a time. The fields without a name here belong to the goroutine that deals with it: the
// sender of the attempt, then the reader of its answer, then run.
type Deletion struct {
	Paths   []string     // of unique names
	By      func() error // deletes them instead, and repeats what has no answer; called again after a refusal
	MayStay bool         // they are in nobody's way; if the servers refuse, the session stays, and without By the znodes
	Then    func()       // called when it is over, perhaps by the goroutine that reads from the network: it must not wait

	Done    chan struct{} // closed when Err is set
	Err     error         // nil; NoNode if it was gone before; or ErrEnded
	Refused chan struct{} // closed when Refusal is set
	Refusal error         // the servers' first

	queue   *deletions
	guid    string    // begins the name in the directory of Paths[0], while that is not known
	stay    func()    // called when it is over, or was refused once; it must not wait
	err     error     // what came of the last attempt
	mayBe   bool      // an attempt without an answer may have been applied
	tries   int       // attempts without an answer
	refused int       // attempts that were refused
	due     time.Time // of the next attempt
	limit   time.Time // when the session is given up; zero: never
}

// Delete begins d.
func (inc *Incarnation) Delete(d *Deletion) *Deletion {
	inc.deletion(d)
	switch {
	case d.By != nil:
		// At once: it may have something to do even if the session has ended.
		d.queue.attempt([]*Deletion{d})
	case !inc.newestLink().send(d):
		d.queue.wait(d)
	}
	return d
}

// deletion returns d, which is not begun.
func (inc *Incarnation) deletion(d *Deletion) *Deletion {
	d.queue, d.Done, d.Refused = inc.deletions(), make(chan struct{}), make(chan struct{})
	if d.By == nil && len(d.Paths) > 1 {
		d.By = inc.Removing(d.Paths)
	}
	return d
}

// deleteBehind begins d when the request is over that may make what d deletes; at once if
// there is none: the last attempt was not sent, and those before it are over.
func deleteBehind[T any](inc *Incarnation, making *pending[T], d *Deletion) *Deletion {
	if making == nil {
		return inc.Delete(d)
	}
	inc.deletion(d)
	making.then(func() { d.queue.wait(d) })
	return d
}

// Remove deletes ephemeral znodes of unique names in the background.
func (inc *Incarnation) Remove(paths ...string) *Deletion {
	return inc.Delete(&Deletion{Paths: paths})
}

// Tidy begins d, which deletes persistent znodes that are in nobody's way. Close waits for it,
// but not long, and not for permissions.
func (inc *Incarnation) Tidy(d *Deletion) *Deletion {
	_, d.stay = inc.Manager.BeforeClose()
	d.MayStay = true
	return inc.Delete(d)
}

// RemoveNow deletes znodes of unique names, in one transaction if all are there and it is not
// too large. The error is NoNode if one of them certainly was not.
func (inc *Incarnation) RemoveNow(ctx context.Context, paths ...string) error {
	return (&removing{inc: inc, left: paths}).attempt(ctx)
}

// Removing returns what deletes znodes of unique names as RemoveNow does. It is called again
// when the servers have refused a part: what one call has deleted the next does not miss.
func (inc *Incarnation) Removing(paths []string) func() error {
	d := &removing{inc: inc, left: paths}
	return func() error { return d.attempt(context.Background()) }
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

// RemoveBehind deletes the ephemeral znode at path, in the background, when the one at
// other has gone. If somebody else is to delete it before that, Close waits for him, but
// not long.
func (inc *Incarnation) RemoveBehind(path, other string) {
	leaving, stay := inc.Manager.BeforeClose()
	d := inc.Delete(&Deletion{Paths: []string{path}, MayStay: true, By: func() error {
		if err := inc.AwaitGone(inc.Ctx, other); err != nil {
			return err
		}
		return inc.RemoveNow(inc.Ctx, path)
	}})
	inc.Manager.Spawn(func() {
		defer stay()
		// Where several are ready it has gone, or nothing can be done for it.
		select {
		case <-d.Done:
		case <-inc.Ctx.Done():
		case <-leaving:
			inc.AwaitGone(inc.Ctx, path)
		}
	})
}

// Settled waits until d is over, or can wait no longer: for ctx, or because the
// session has ended, and the znode with it.
func (d *Deletion) Settled(ctx context.Context) {
	select {
	case <-d.Done:
	case <-d.queue.inc.Ctx.Done():
	case <-ctx.Done():
	}
}

// Await waits for the end of d, but no longer than limit, and not while there
// is no connection.
func (d *Deletion) Await(limit time.Duration) {
	d.queue.inc.AwaitConnected(d.Done, limit)
}

// Result waits for d, the deletion of what was held through its session, and
// says what came of it: nil, or an ErrLost. It does not wait for long, nor while
// there is no connection: the deletion goes on. Nor is it an error that the
// servers refuse it, which they may not do for good: see Deletion.
func (d *Deletion) Result() error {
	d.Await(ReleaseTime)
	// Several may be ready. What is known goes before what must be feared.
	switch inc := d.queue.inc; {
	case IsClosed(d.Done) && d.Err == nil:
		return nil // deleted by us, so it was ours until then, even if the session has ended since
	case IsClosed(d.Done) && IsNoNode(d.Err):
		return inc.Deleted() // by somebody else, so others may have it
	case !inc.Alive():
		return inc.Loss() // d.Err is ErrEnded, if d is over
	}
	// Whether or not the deletion has got through, it will be repeated for as
	// long as the session can last.
	return nil
}

// Worse returns the error of two deletions that is not just that there was
// nothing to delete.
func Worse(a, b error) error {
	if b == nil || a != nil && IsNoNode(b) {
		return a
	}
	return b
}
