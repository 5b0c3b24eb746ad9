package queue

import (
	"context"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// An usher sees to it that a consumer that hangs does not keep an element from the
// idle consumers behind it for as long as its session stands. Of those who are idle
// only the head of the line is told of an element, so that one wakes one; whether
// it does anything then only the producer can find out, who knows that there is
// something to do. So who has sent looks a moment later whether the last element of
// its Send was claimed. If not, and the same consumer is the head of the line after
// another moment, that loses its place: its znode is deleted, and the next is
// told of it as of any other that leaves.
//
// This is never wrong. Nobody needs a place to claim: what counts is the version of
// the bucket. A head that is only slow claims what it has found, or finds that another
// was quicker, and goes to the end of the line.
type usher struct {
	m    *session.Manager
	line *line.Line // of those who want elements

	mu      sync.Mutex
	arrived []arrival // of the last Send that nobody looks after yet; guarded by mu
	busy    bool      // guarded by mu

	nobody bool // was in the line at the last look; belongs to the goroutine that runs
}

// An arrival is an element that was stored.
type arrival struct {
	bucket string // its path
	path   string
	seq    int32
}

// ushersPatience is how long a consumer has to claim an element, twice.
const ushersPatience = 250 * time.Millisecond

// maxEvictions is how many consumers lose their places because of one element. It
// may be one that all of them pass over.
const maxEvictions = 3

// sent is told of the last elements of a Send.
func (u *usher) sent(inc *session.Incarnation, arrived []arrival) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.arrived = arrived; !u.busy {
		u.busy = true
		u.m.Spawn(func() { u.run(inc) })
	}
}

// run looks after what has arrived, of each 250 ms the newest.
func (u *usher) run(inc *session.Incarnation) {
	for {
		u.mu.Lock()
		arrived := u.arrived
		u.arrived, u.busy = nil, arrived != nil
		u.mu.Unlock()
		if arrived == nil {
			return
		}
		u.lookAfter(inc, arrived) // what fails was not needed: there is no connection
	}
}

func (u *usher) lookAfter(inc *session.Incarnation, arrived []arrival) error {
	before := "" // who was the head when it should have claimed
	for evictions := 0; evictions < maxEvictions; {
		select {
		case <-time.After(ushersPatience):
		case <-u.m.Closing:
			return nil
		case <-inc.Ctx.Done():
			return nil
		}
		head, err := u.idleHead(inc, arrived)
		if err != nil || head == "" {
			return err
		}
		if head != before {
			before = head
			continue
		}
		if err := inc.RemoveNow(inc.Ctx, session.ChildPath(u.line.Dir, head)); err != nil && !session.IsNoNode(err) {
			return err
		}
		evictions++
	}
	return nil
}

// idleHead returns who is the head of the line though one of these elements is free;
// "" if none is, or those who consume are busy. Most often one request tells: where
// nobody consumes the first is for the line.
func (u *usher) idleHead(inc *session.Incarnation, arrived []arrival) (head string, err error) {
	first := func() (bool, error) {
		head, err = u.line.First(inc.Ctx, inc, inc.Children)
		u.nobody = err == nil && head == ""
		return head != "", err
	}
	free := func() (bool, error) { return anyFree(inc.Ctx, inc, arrived) }
	looks := []func() (bool, error){free, first}
	if u.nobody {
		looks = []func() (bool, error){first, free}
	}
	for _, look := range looks {
		if so, err := look(); err != nil || !so {
			return "", err
		}
	}
	return head, nil
}

// anyFree reports whether one of these elements is there and not claimed.
func anyFree(ctx context.Context, inc *session.Incarnation, arrived []arrival) (bool, error) {
	paths := make([]string, 0, 2*len(arrived))
	for _, a := range arrived {
		paths = append(paths, a.bucket, a.path)
	}
	nodes, err := inc.GetAll(ctx, paths)
	if err != nil {
		return false, err
	}
	for i, a := range arrived {
		if bucket, e := nodes[2*i], nodes[2*i+1]; bucket.Stat != nil && e.Stat != nil && !parseSpans(string(bucket.Data)).has(a.seq) {
			return true, nil
		}
	}
	return false, nil
}
