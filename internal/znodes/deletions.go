package znodes

// This file repeats the attempts at deletions, and finds the znodes of creates without a reply.

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/shared"
)

// A backlog has Deletions of one session that wait for the same work. One goroutine does the
// work for all. So a Deletion that waits costs no goroutine.
type backlog struct {
	mu      sync.Mutex
	waiting []*Deletion // guarded by mu
	working bool        // the goroutine is running; guarded by mu
}

// The method `join` adds d to b. The goroutine calls `work` with all Deletions that have joined since
// its last call.
func (b *backlog) join(d *Deletion, work func(ds []*Deletion)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, d)
	if b.working {
		return
	}
	b.working = true
	d.inc.Manager.Spawn(func() {
		for {
			b.mu.Lock()
			ds := b.waiting
			b.waiting, b.working = nil, len(ds) > 0
			b.mu.Unlock()
			if len(ds) == 0 {
				return
			}
			work(ds)
		}
	})
}

// The function `backlogs` returns the Deletions that wait for another attempt, and those whose znodes must
// be found.
func backlogs(inc *session.Incarnation) (repeated, lost *backlog) {
	both := shared.Attached(&inc.Attached, func() *[2]backlog { return new([2]backlog) })
	return &both[0], &both[1]
}

// repeatEvery is the interval of repeated attempts. So deletions that become due at slightly different
// times share requests.
const repeatEvery = 5 * time.Millisecond

// The method `again` makes another attempt at d after the time `wait`, as soon as there is a
// connection.
func (d *Deletion) again(wait time.Duration) {
	repeated, _ := backlogs(d.inc)
	join := func() { repeated.join(d, repeatAll) }
	if wait == 0 {
		join()
		return
	}
	wait += repeatEvery - time.Duration(time.Now().Add(wait).UnixNano())%repeatEvery
	stop := context.AfterFunc(d.inc.Ctx, join)
	time.AfterFunc(wait, func() {
		if stop() {
			join()
		}
	})
}

// The function `repeatAll` makes another attempt at each of ds.
func repeatAll(ds []*Deletion) {
	inc := ds[0].inc
	inc.Connection(inc.Ctx)
	for _, d := range ds {
		if inc.Ctx.Err() != nil {
			d.over(session.ErrEnded)
		} else {
			d.attempt()
		}
	}
}

// The function `search` looks for the znodes of ds, whose creates have no reply.
//
// The result is certain, for this reason. The search begins with a write that changes nothing: see
// Incarnation.Flush. When its reply comes, the server has applied every earlier request of this session
// that reached the leader. The leader refuses the other earlier requests, with SessionMoved. A sync alone is
// not enough: the leader answers a sync of its own client at once, before its pending proposals are
// committed. If the write or the sync was not executed, the listings prove nothing, and the search is
// repeated.
func search(ds []*Deletion) {
	inc, lost := ds[0].inc, make(map[string][]*Deletion)
	for _, d := range ds {
		dir := ParentPath(d.Paths[0])
		lost[dir] = append(lost[dir], d)
	}
	dirs := slices.Collect(maps.Keys(lost))
	var synced *session.Pending[struct{}]
	var listed []*session.Pending[session.Listing]
	failed := inc.RetryAll(inc.Ctx, func(b *session.Requests) {
		session.Add(b, inc.Flush())
		synced, listed = session.Add(b, session.SyncCall(dirs[0])), session.AddEach(b, dirs, session.ChildrenCall)
	})
	for i, dir := range dirs {
		for _, d := range lost[dir] {
			if failed != nil {
				d.over(session.ErrEnded)
			} else if path, err := findIn(listed[i].Val.Names, dir, d.guid), cmp.Or(synced.Err, listed[i].Err); path != "" && err == nil {
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
