package session

// This file decides when each attempt at a background deletion is made.

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/shared"
)

// The type `deletions` is the queue for the [Deletion]s of one ZooKeeper session.
//
// The caller sends a deletion, and the reading goroutine ends it with the reply. So while servers
// answer, a deletion costs no goroutine. While deletions wait for a connection or for their next
// attempt, one goroutine executes `run`. When there is a connection again, `run` sends them all in one
// write.
//
// If a create has no reply, the name of its znode may be unknown. Then `search` looks for the znodes of
// all such creates together: to delete them (Incarnation.undo), or to keep them (Incarnation.Find).
type deletions struct {
	inc *Incarnation

	mu      sync.Mutex
	waiting []*Deletion   // new deletions for `run`; guarded by mu
	running bool          // `run` is running; guarded by mu
	bell    chan struct{} // has a token when `run` must look again

	searching atomic.Int32 // listings of a search that are under way
}

func (inc *Incarnation) deletions() *deletions {
	return shared.Attached(&inc.Attached, func() *deletions { return &deletions{inc: inc, bell: make(chan struct{}, 1)} })
}

// The method `wait` adds d to the deletions of `run`.
func (q *deletions) wait(d *Deletion) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, d)
	if !q.running {
		q.running = true
		q.inc.Manager.Spawn(q.run)
	}
	q.ring()
}

// The method `ring` wakes `run`.
func (q *deletions) ring() {
	select {
	case q.bell <- struct{}{}:
	default: // the token that is already there covers it
	}
}

// passPause is the shortest sleep of `run`. So deletions that become due at slightly different times
// share a pass.
const passPause = 5 * time.Millisecond

// The method `run` makes attempts at the waiting deletions until none is left.
func (q *deletions) run() {
	var ds []*Deletion
	for {
		q.mu.Lock()
		ds = append(ds, q.waiting...)
		q.waiting, q.running = nil, len(ds) > 0
		q.mu.Unlock()
		if len(ds) == 0 {
			return
		}
		up, now := q.inc.connection(), time.Now()
		connected, wake := IsClosed(up), now.Add(time.Hour) // the time to look again
		// One search at a time looks for all unknown znodes, even if some of their deletions are not due.
		search := q.searching.Load() == 0 && slices.ContainsFunc(ds, func(d *Deletion) bool { return d.guid != "" && !now.Before(d.due) })
		var due, left []*Deletion
		for _, d := range ds {
			d.tellRefusal()
			switch {
			case q.inc.Ctx.Err() != nil:
				d.over(ErrEnded)
			case !d.limit.IsZero() && !now.Before(d.limit):
				q.inc.Manager.Log.Error("zsync: no permission to delete an own znode; the ZooKeeper session ends", "path", d.Paths[0])
				q.inc.giveUp()
				d.over(ErrEnded)
			case connected && (d.guid == "" && !now.Before(d.due) || d.guid != "" && search):
				due = append(due, d)
			default:
				left = append(left, d)
				for _, t := range []time.Time{d.due, d.limit} {
					if t.After(now) && t.Before(wake) {
						wake = t
					}
				}
			}
		}
		if ds = left; len(due) > 0 {
			q.attempt(due)
		}
		if len(ds) == 0 {
			continue
		}
		if connected {
			up = nil // wait for the time, not for a connection
		}
		// If several cases are ready, any choice is right: the next pass looks at all deletions.
		select {
		case <-q.bell:
		case <-up:
		case <-time.After(max(time.Until(wake), passPause)):
		case <-q.inc.Ctx.Done():
		}
	}
}

// The method `tellRefusal` is called after an attempt at d, by a goroutine that may block.
func (d *Deletion) tellRefusal() {
	if d.refusal == nil {
		return
	}
	if d.Refused.Cause() == nil {
		d.queue.inc.Manager.Log.Error("zsync: cannot delete; the Session keeps trying", "path", d.Paths[0], "err", d.refusal)
		if !d.MayStay {
			d.limit = time.Now().Add(time.Duration(d.queue.inc.Timeout.Load()))
		}
	}
	d.Refused.End(d.refusal)
	d.refusal = nil
}

// The method `attempt` makes an attempt at each of ds. It sends all requests in one write.
func (q *deletions) attempt(ds []*Deletion) {
	b, lost := new(batch), make(map[string][]*Deletion)
	for _, d := range ds {
		switch {
		case d.guid != "":
			lost[ParentPath(d.Paths[0])] = append(lost[ParentPath(d.Paths[0])], d)
		case d.By != nil:
			q.inc.Manager.Spawn(func() { d.attempted(d.By()) })
		default:
			b.requests = append(b.requests, d.request())
		}
	}
	q.search(b, lost)
	if len(b.requests) > 0 {
		q.inc.newestConn().Send(b.requests...) // the connection may just have ended
	}
}

// The method `request` returns a request that deletes the znodes of d.
func (d *Deletion) request() conn.Request {
	if len(d.Paths) == 1 {
		c := deletion(d.Paths[0], -1)
		c.moot = true
		return &pending[struct{}]{call: c, heir: d.attempted}
	}
	var ops []any
	for _, path := range d.Paths {
		ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
	}
	c := multiCall(ops)
	c.moot = true
	return &pending[[]zk.MultiResponse]{call: c, heir: d.attempted}
}

// The method `search` adds requests to b that look for the znodes of `lost`, by their parent. The
// creates of these znodes have no reply.
//
// The result is certain, for this reason. The search begins with a write that changes nothing (see
// `flush`). When its reply comes, the server has applied every earlier request of this session that
// reached the leader. The leader refuses the other earlier requests, with SessionMoved. A sync alone is
// not enough: the leader answers a sync of its own client at once, before its pending proposals are
// committed. If the write or the sync was not executed, the listings prove nothing, and the search is
// repeated.
func (q *deletions) search(b *batch, lost map[string][]*Deletion) {
	if len(lost) == 0 {
		return
	}
	q.searching.Store(int32(len(lost)))
	write, sync := add(b, flush(q.inc.conns.Nobody)), add(b, syncCall(q.inc.conns.Nobody))
	for dir, ds := range lost {
		l := add(b, childrenCall(dir))
		conclude := func() {
			<-write.Done // a server that answers out of order loses its connection, and both requests end
			<-sync.Done
			q.searching.Add(-1)
			defer q.ring()
			err := cmp.Or(sync.err, l.err)
			if OutcomeOf(write.err) != Answered {
				err = write.err
			}
			for _, d := range ds {
				if path := findIn(l.val.names, dir, d.guid); path != "" && err == nil {
					d.found(path)
				} else {
					d.attempted(err) // without an error, or with NoNode, there is no such znode
				}
			}
		}
		l.then(func(error) { q.inc.Manager.Spawn(conclude) }) // the reading goroutine has no time to search long lists
	}
}

// The method `found` is called when a search or a late reply has shown the path of the znode.
func (d *Deletion) found(path string) {
	if d.Paths[0], d.guid = path, ""; d.keep {
		d.over(nil)
	} else {
		d.queue.wait(d)
	}
}

// The method `attempted` is called when an attempt is over, perhaps by the reading goroutine. So it
// leaves to the method `run` what may block.
func (d *Deletion) attempted(err error) {
	inc, outcome := d.queue.inc, OutcomeOf(err)
	d.mayBe = d.mayBe || outcome == Unknown
	switch {
	case err == nil, IsNoNode(err) && d.mayBe && len(d.Paths) == 1:
		d.over(nil)
	case len(d.Paths) > 1 && outcome != unsent:
		d.split(bundlesOf(d.Paths, 1))
	case IsNoNode(err):
		d.over(err)
	case inc.Ctx.Err() != nil:
		d.over(ErrEnded)
	case d.By != nil && outcome != Answered, d.By == nil && outcome == Answered && d.MayStay:
		d.over(err)
	default:
		try := d.tries
		if d.tries++; outcome == Answered {
			d.refusal, try = err, d.tries
		}
		d.due = time.Now().Add(inc.Manager.Config.Retry.Delay(try))
		d.queue.wait(d)
	}
}

// The method `over` ends d.
func (d *Deletion) over(err error) {
	if d.Err = err; !d.keep && (err == nil || IsNoNode(err)) {
		d.queue.inc.ephemerals.gone(d.Paths...)
	}
	if d.Then != nil {
		d.Then()
	}
	close(d.Done)
}
