package znodes

// This file repeats the attempts at deletions, and finds the znodes of creates without a reply.

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/shared"
)

// A backlog has the Deletions of one session that wait for their next attempts. One goroutine makes
// these attempts, so a Deletion that waits costs no goroutine.
type backlog struct {
	mu      sync.Mutex
	waiting []*Deletion // guarded by mu
	working bool        // the goroutine is running; guarded by mu
}

// The function `backlogOf` returns the backlog of the session of inc.
func backlogOf(inc *session.Incarnation) *backlog {
	return shared.Attached(&inc.Attached, func() *backlog { return new(backlog) })
}

// repeatEvery is the interval of repeated attempts. So deletions that become due at slightly different
// times share requests.
const repeatEvery = 5 * time.Millisecond

// The method `again` makes another attempt at d after the time `wait`, as soon as there is a
// connection.
func (d *Deletion) again(wait time.Duration) {
	if wait > 0 {
		wait += repeatEvery - time.Duration(time.Now().Add(wait).UnixNano())%repeatEvery
		stop := context.AfterFunc(d.inc.Ctx, func() { d.again(0) })
		time.AfterFunc(wait, func() {
			if stop() {
				d.again(0)
			}
		})
		return
	}
	b := backlogOf(d.inc)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, d)
	if !b.working {
		b.working = true
		d.inc.Manager.Spawn(func() { b.work(d.inc) })
	}
}

// The method `work` makes attempts until no Deletion waits. While it awaits the replies to a
// search, other attempts wait, too: the servers could not answer them earlier than the write of the
// search.
func (b *backlog) work(inc *session.Incarnation) {
	for {
		inc.OpenConn(inc.Ctx)
		b.mu.Lock()
		ds := b.waiting
		b.waiting, b.working = nil, len(ds) > 0
		b.mu.Unlock()
		if len(ds) == 0 {
			return
		}
		lost := make(map[string][]*Deletion)
		for _, d := range ds {
			switch {
			case inc.Ctx.Err() != nil:
				d.over(session.ErrEnded)
			case d.guid != "":
				lost[ParentPath(d.Paths[0])] = append(lost[ParentPath(d.Paths[0])], d)
			default:
				d.attempt()
			}
		}
		if len(lost) > 0 {
			search(inc, lost)
		}
	}
}

// The function `search` looks for the znodes of these Deletions, by parent path: their creates have no
// reply.
//
// The result is certain, for this reason. The search begins with a write that changes nothing: see
// Incarnation.Flush. When its reply comes, the server has applied every earlier request of this session
// that reached the leader. The leader refuses the other earlier requests, with SessionMoved. A sync alone is
// not enough: the leader answers a sync of its own client at once, before its pending proposals are
// committed. If the write or the sync was not executed, the listings prove nothing, and the search is
// repeated.
func search(inc *session.Incarnation, lost map[string][]*Deletion) {
	dirs := slices.Collect(maps.Keys(lost))
	b := session.Requests{session.NewPending(inc.Flush())}
	synced := session.Add(&b, session.SyncCall(dirs[0]))
	listed := session.AddEach(&b, dirs, session.ChildrenCall)
	failed := b.Start(inc.Ctx, inc)
	if failed == nil {
		failed = b.Wait(inc.Ctx, inc)
	}
	if failed == nil {
		failed = synced.Err
	}
	for i, dir := range dirs {
		names, err := []string(nil), failed
		if err == nil {
			names, err = listed[i].Val.Names, listed[i].Err
		}
		for _, d := range lost[dir] {
			if path := findIn(names, dir, d.guid); path != "" {
				d.found(path)
			} else {
				d.attempted(err) // without an error, or with NoNode, there is no such znode
			}
		}
	}
}

// The method `found` is called when a search or a late reply has shown the path of the znode.
func (d *Deletion) found(path string) {
	if d.Paths[0], d.guid = path, ""; d.keep {
		d.over(nil)
	} else {
		d.again(0)
	}
}
