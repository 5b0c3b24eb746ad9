package session

// This file deletes znodes. deletions.go has the queue of background deletions.

import (
	"context"
	"sync"
	"time"
)

// A Deletion makes attempts to delete znodes in the background, until they are deleted or the
// session has ended. (The end of a session deletes its ephemeral znodes.) It repeats refused
// attempts, because the servers may permit them later.
//
// Other clients may wait for the deletion of an ephemeral znode. So if the servers still refuse after
// a session timeout, the client abandons the session, and its other holds are lost, with LossGivenUp.
// Then no client waits longer for a process that has released its hold than for one that has crashed.
//
// Several znodes are deleted in one transaction. If the transaction fails, or has no reply, each
// znode gets a Deletion of its own: see `split`. The unexported fields belong to the goroutine that
// handles the Deletion: the sender of the attempt, then the reader of the reply, then the method `run`.
type Deletion struct {
	Paths   []string     // with unique names
	By      func() error // if not nil: deletes the znodes, and repeats a request without a reply; called again after a refusal
	MayStay bool         // no client waits for the znodes, so a refusal does not end the session; without `By`, the znodes stay after a refusal
	Then    func()       // called at the end, perhaps by the reading goroutine: it must not block

	Done    chan struct{} // closed when Err is set
	Err     error         // nil, NoNode if the znode did not exist, ErrEnded, or for a Deletion with MayStay the last refusal
	Refused Ending        // ends at the servers' first refusal, which is its cause

	queue   *deletions
	guid    string    // if set: the path is unknown, but the znode's name begins with guid, and Paths[0] has the same parent
	keep    bool      // d only looks for the znode of guid: see Find
	refusal error     // by which the last attempt has failed, if `run` has not told it yet
	mayBe   bool      // an unanswered attempt may have been applied
	tries   int       // attempts that have failed
	due     time.Time // the time of the next attempt
	limit   time.Time // the time at which the client abandons the session; zero: never
}

// Delete begins d.
func (inc *Incarnation) Delete(d *Deletion) *Deletion {
	inc.deletion(d)
	if groups := bundlesOf(d.Paths, len(d.Paths)); d.By == nil && len(groups) > 1 {
		d.split(groups)
	} else {
		d.queue.attempt([]*Deletion{d})
	}
	return d
}

// The method `deletion` prepares d, but does not begin it.
func (inc *Incarnation) deletion(d *Deletion) *Deletion {
	d.queue, d.Done = inc.deletions(), make(chan struct{})
	return d
}

// The method `split` replaces the attempts at d by parts: Deletions that each delete a group of the
// znodes of d. When all parts have ended, d ends with their worst error.
func (d *Deletion) split(groups [][]string) {
	var mu sync.Mutex
	var worst error
	left := len(groups)
	for _, paths := range groups {
		part := d.queue.inc.deletion(&Deletion{Paths: paths, MayStay: d.MayStay, mayBe: d.mayBe})
		part.Refused.AfterFunc(func(err error) { d.Refused.End(err) })
		part.Then = func() {
			mu.Lock()
			worst = Worse(worst, part.Err)
			left--
			last := left == 0
			mu.Unlock()
			if last {
				d.over(worst)
			}
		}
		d.queue.wait(part)
	}
}

// Remove deletes ephemeral znodes with unique names in the background.
func (inc *Incarnation) Remove(paths ...string) *Deletion {
	return inc.Delete(&Deletion{Paths: paths})
}

// Tidy begins d, which deletes persistent znodes that no client waits for. Close waits for d, but
// not long, and not after a refusal. Tidy sets d.Then.
func (inc *Incarnation) Tidy(d *Deletion) *Deletion {
	_, d.Then = inc.Manager.BeforeClose()
	d.Refused.AfterFunc(func(error) { d.Then() })
	d.MayStay = true
	return inc.Delete(d)
}

// RemoveNow deletes znodes with unique names, and waits. If the servers refuse, the znodes stay. If ctx
// ends, the deletion continues in the background.
func (inc *Incarnation) RemoveNow(ctx context.Context, paths ...string) error {
	if ctx.Err() != nil {
		return CtxErr(ctx)
	}
	return inc.Delete(&Deletion{Paths: paths, MayStay: true}).Outcome(ctx)
}

// RemoveBehind waits, in the background, until the znode at `other` is deleted. Then it deletes the
// ephemeral znode at path. Close waits, but not long, until the znode at path is deleted, even by
// another client.
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
		// If several cases are ready, any choice is right: the znode at path is deleted, or this
		// process cannot help.
		select {
		case <-d.Done:
		case <-inc.Ctx.Done():
		case <-leaving:
			inc.AwaitGone(inc.Ctx, path)
		}
	})
}

// Outcome waits until d is over or refused. It returns the error of d, or the refusal. If ctx or
// the session ends first, it returns the error of that end. d may be nil.
func (d *Deletion) Outcome(ctx context.Context) (err error) {
	if d == nil {
		return nil
	}
	// If several cases are ready, the end of d comes first, because its result is certain.
	select {
	case <-d.Done:
	case <-d.Refused.Done():
		err = d.Refused.Cause()
	case <-d.queue.inc.Ctx.Done():
		err = ErrEnded
	case <-ctx.Done():
		err = CtxErr(ctx)
	}
	if IsClosed(d.Done) {
		return d.Err
	}
	return err
}

// Await waits for the end of d, but no longer than `limit`, and not while there is no connection.
func (d *Deletion) Await(limit time.Duration) {
	d.queue.inc.AwaitConnected(d.Done, limit)
}

// Result waits for d, the deletion of a hold's znodes, and returns nil or an ErrLost. It does not
// wait long, and not at all without a connection. A refusal by the servers is no error, because it does
// not last: see Deletion.
func (d *Deletion) Result() error {
	d.Await(ReleaseTime)
	// Several cases may be true. A known result comes before a possible loss.
	switch inc := d.queue.inc; {
	case IsClosed(d.Done) && d.Err == nil:
		return nil // deleted by us, so it was ours until then, even if the session has ended since
	case IsClosed(d.Done) && IsNoNode(d.Err):
		return inc.Deleted() // deleted by another client, so another session may hold it
	case !inc.Alive():
		return inc.Loss() // d.Err is ErrEnded, if d is over
	}
	// Even if this attempt has failed, the deletion is repeated as long as the session can last.
	return nil
}

// Worse returns the worse of two errors of deletions. NoNode is the least bad error.
func Worse(a, b error) error {
	if b == nil || a != nil && IsNoNode(b) {
		return a
	}
	return b
}
