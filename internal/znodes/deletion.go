package znodes

// This file deletes znodes. deletions.go repeats the attempts.

import (
	"context"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
)

// A Deletion makes attempts to delete znodes in the background, until they are deleted or the
// session has ended. (The end of a session deletes its ephemeral znodes.) It repeats refused
// attempts, because the servers may permit them later.
//
// Other clients may wait for the deletion of an ephemeral znode. So if the servers still refuse after
// a session timeout, the client abandons the session, and its other holds are lost, with LossGivenUp.
// Then no client waits longer for a process that has released its hold than for one that has crashed.
//
// Without `By`, several znodes are deleted in one transaction. If the transaction fails, or has no
// reply, each znode gets a Deletion of its own: see `split`. The unexported fields belong to the
// goroutine that handles the Deletion.
//
// The caller sends the first attempt, and the reading goroutine ends the Deletion with the reply. So
// while servers answer, a Deletion costs no goroutine.
type Deletion struct {
	Paths   []string     // with unique names
	By      func() error // if not nil: deletes the znodes, and repeats a request without a reply; called again after a refusal
	MayStay bool         // no client waits for the znodes, so a refusal does not end the session; without `By`, the znodes stay after a refusal
	Then    func()       // called at the end, perhaps by the reading goroutine: it must not block

	Done    chan struct{}  // closed when Err is set
	Err     error          // nil, NoNode if the znode did not exist, ErrEnded, or for a Deletion with MayStay the last refusal
	Refused session.Ending // ends at the servers' first refusal, which is its cause

	inc   *session.Incarnation
	guid  string // if set: the path is unknown, but the znode's name begins with guid, and Paths[0] has the same parent
	keep  bool   // d only looks for the znode of guid: see Find
	mayBe bool   // an unanswered attempt may have been applied
	tries int    // attempts that have failed
}

// Delete begins d.
func Delete(inc *session.Incarnation, d *Deletion) *Deletion {
	prepare(inc, d)
	if d.By == nil && len(d.Paths) > 1 {
		if groups := bundlesOf(d.Paths, len(d.Paths)); len(groups) > 1 {
			d.split(groups)
			return d
		}
	}
	d.attempt()
	return d
}

// The function `prepare` prepares d, but does not begin it.
func prepare(inc *session.Incarnation, d *Deletion) *Deletion {
	d.inc, d.Done = inc, make(chan struct{})
	return d
}

func (d *Deletion) attempt() {
	if d.By != nil {
		d.inc.Manager.Spawn(func() { d.attempted(d.By()) })
	} else {
		d.inc.NewestConn().Send(d.request()) // the connection may just have ended
	}
}

// The method `request` returns a request that deletes the znodes of d.
func (d *Deletion) request() conn.Request {
	if len(d.Paths) == 1 {
		return moot(session.DeleteCall(d.Paths[0], -1), d.attempted)
	}
	var ops []any
	for _, path := range d.Paths {
		ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
	}
	return moot(multiCall(d.inc, ops, false), d.attempted)
}

// The function `moot` returns a request that may be executed late: see session.Call.
func moot[T any](c session.Call[T], then func(err error)) conn.Request {
	c.Moot = true
	p := &session.Pending[T]{Call: c}
	p.Then(then)
	return p
}

// The method `attempted` is called when an attempt is over, perhaps by the reading goroutine: it must
// not block.
func (d *Deletion) attempted(err error) {
	inc, outcome := d.inc, session.OutcomeOf(err)
	d.mayBe = d.mayBe || outcome == session.Unknown
	switch {
	case err == nil, session.IsNoNode(err) && d.mayBe && len(d.Paths) == 1:
		d.over(nil)
	case d.By == nil && len(d.Paths) > 1 && outcome != session.Unsent:
		d.split(bundlesOf(d.Paths, 1))
	case session.IsNoNode(err):
		d.over(err)
	case inc.Ctx.Err() != nil:
		d.over(session.ErrEnded)
	case d.By != nil && outcome != session.Answered, d.By == nil && outcome == session.Answered && d.MayStay:
		d.over(err)
	case outcome == session.Answered:
		inc.Manager.Spawn(func() { d.refused(err) })
	default:
		d.tries++
		d.again(inc.Manager.Config.Retry.Delay(d.tries - 1))
	}
}

func (d *Deletion) refused(err error) {
	inc, m := d.inc, d.inc.Manager
	if d.Refused.End(err) {
		m.Log.Error("zsync: cannot delete; the Session keeps trying", "path", d.Paths[0], "err", err)
		if !d.MayStay {
			time.AfterFunc(time.Duration(inc.Timeout.Load()), func() {
				if !session.IsClosed(d.Done) && inc.Ctx.Err() == nil {
					m.Log.Error("zsync: no permission to delete an own znode; the ZooKeeper session ends", "path", d.Paths[0])
					inc.Abandon()
				}
			})
		}
	}
	d.tries++
	pace := m.Config.Retry
	pace.Jitter = 0 // deletions that were refused together are repeated together
	d.again(pace.Delay(d.tries))
}

// The method `split` replaces the attempts at d by parts: Deletions that each delete a group of the
// znodes of d. When all parts have ended, d ends with their worst error.
func (d *Deletion) split(groups [][]string) {
	var mu sync.Mutex
	var worst error
	left := len(groups)
	for _, paths := range groups {
		part := prepare(d.inc, &Deletion{Paths: paths, MayStay: d.MayStay, mayBe: d.mayBe})
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
		part.again(0)
	}
}

func (d *Deletion) over(err error) {
	if d.Err = err; !d.keep && (err == nil || session.IsNoNode(err)) {
		of(d.inc).gone(d.Paths...)
	}
	if d.Then != nil {
		d.Then()
	}
	close(d.Done)
}

// Remove deletes ephemeral znodes with unique names in the background.
func Remove(inc *session.Incarnation, paths ...string) *Deletion {
	return Delete(inc, &Deletion{Paths: paths})
}

// Tidy begins d, which deletes persistent znodes that no client waits for. Close waits for d, but
// not long, and not after a refusal. Tidy sets d.Then.
func Tidy(inc *session.Incarnation, d *Deletion) *Deletion {
	_, d.Then = inc.Manager.BeforeClose()
	d.Refused.AfterFunc(func(error) { d.Then() })
	d.MayStay = true
	return Delete(inc, d)
}

// RemoveNow deletes znodes with unique names, and waits. If the servers refuse, the znodes stay. If ctx
// ends, the deletion continues in the background.
func RemoveNow(ctx context.Context, inc *session.Incarnation, paths ...string) error {
	if ctx.Err() != nil {
		return session.CtxErr(ctx)
	}
	return Delete(inc, &Deletion{Paths: paths, MayStay: true}).Outcome(ctx)
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
	case <-d.inc.Ctx.Done():
		err = session.ErrEnded
	case <-ctx.Done():
		err = session.CtxErr(ctx)
	}
	if session.IsClosed(d.Done) {
		return d.Err
	}
	return err
}

// Await waits for the end of d, but no longer than `limit`, and not while there is no connection.
func (d *Deletion) Await(limit time.Duration) {
	d.inc.AwaitConnected(d.Done, limit)
}

// Result waits for d, the deletion of a hold's znodes, and returns nil or an ErrLost. It does not
// wait long, and not at all without a connection. A refusal by the servers is no error, because it does
// not last: see Deletion.
func (d *Deletion) Result() error {
	d.Await(session.ReleaseTime)
	// Several cases may be true. A known result comes before a possible loss.
	switch inc := d.inc; {
	case session.IsClosed(d.Done) && d.Err == nil:
		return nil // deleted by us, so it was ours until then, even if the session has ended since
	case session.IsClosed(d.Done) && session.IsNoNode(d.Err):
		return inc.Deleted() // deleted by another client, so another session may hold it
	case !inc.Alive():
		return inc.Loss() // d.Err is ErrEnded, if d is over
	}
	// Even if this attempt has failed, the deletion is repeated as long as the session can last.
	return nil
}

// Worse returns the worse of two errors of deletions. NoNode is the least bad error.
func Worse(a, b error) error {
	if b == nil || a != nil && session.IsNoNode(b) {
		return a
	}
	return b
}
