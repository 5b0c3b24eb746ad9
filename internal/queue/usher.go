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
	arrived []string // the paths of the last elements of a Send that nobody looks after yet; guarded by mu
	busy    bool     // guarded by mu

	nobody bool // was in the line at the last look; belongs to the goroutine that runs
}

// ushersPatience is how long a consumer has to claim an element, twice.
const ushersPatience = 250 * time.Millisecond

// maxEvictions is how many consumers lose their places because of one element. It
// may be one that all of them pass over.
const maxEvictions = 3

// sent is told of the last elements of a Send.
func (u *usher) sent(inc *session.Incarnation, arrived []string) {
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

func (u *usher) lookAfter(inc *session.Incarnation, arrived []string) error {
	before := "" // who was the head when it should have claimed
	for evictions := 0; evictions < maxEvictions; {
		if err := session.Sleep(inc.Ctx, ushersPatience); err != nil {
			return err
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
// nobody consumes the line is looked at first.
func (u *usher) idleHead(inc *session.Incarnation, arrived []string) (head string, err error) {
	lineFirst := u.nobody
	if !lineFirst {
		if free, err := anyFree(inc.Ctx, inc, arrived); err != nil || !free {
			return "", err
		}
	}
	head, err = u.line.First(inc.Ctx, inc, inc.Children)
	if u.nobody = err == nil && head == ""; err != nil || head == "" || !lineFirst {
		return head, err
	}
	if free, err := anyFree(inc.Ctx, inc, arrived); err != nil || !free {
		return "", err
	}
	return head, nil
}

// anyFree reports whether one of the elements of these paths is there and not claimed.
func anyFree(ctx context.Context, inc *session.Incarnation, elements []string) (bool, error) {
	var paths []string
	for _, path := range elements {
		paths = append(paths, session.ParentPath(path), path)
	}
	nodes, err := inc.GetAll(ctx, paths)
	if err != nil {
		return false, err
	}
	for i, path := range elements {
		in, there := nodes[2*i], nodes[2*i+1].Stat != nil
		e, _ := parseElement(bucket{}, session.BaseName(path))
		if there && in.Stat != nil && !parseSpans(string(in.Data)).has(e.seq) {
			return true, nil
		}
	}
	return false, nil
}
