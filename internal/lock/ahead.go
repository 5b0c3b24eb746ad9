package lock

// This file records the contenders that a waiter waits for, for errors and reports. acquire.go
// decides about the turn.

import (
	"context"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// An Ahead records the contenders that a waiter waits for, for errors and reports: which is the
// first, and how many there are. It learns them from listings that the waiter makes anyway and, in
// a long wait, from its own reads. A zero Ahead is empty. All methods may be called at any time.
type Ahead struct {
	mu    sync.Mutex
	dir   string
	first []string // names of the first contenders, in order
	place int      // number of contenders ahead, at the last listing or read
	head  string   // the first contender that was read; "" before the first read
	node  session.Node
	timer *time.Timer // of the present wait, if it has reads
}

// A Behind describes the contenders that a waiter waits for: the first of them, as far as it is
// known, and their number.
type Behind struct {
	Own   *Claim       // held by a goroutine of this process, or nil
	Name  string       // of the first contender in the line, unless it is Own; "" if unknown
	Node  session.Node // of that contender; empty before the first read
	Mode  HoldMode
	Place int
}

// A waiter first reads the first contender when it has waited for lookAfter. It reads again each
// time that its wait has doubled, but at least once in lookEvery.
const (
	lookAfter = time.Second
	lookEvery = time.Minute
)

// Set sets the contenders ahead: the children of dir with these names, in order. a keeps names.
func (a *Ahead) Set(dir string, names []string) { a.set(dir, names, len(names)) }

func (a *Ahead) set(dir string, names []string, place int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dir = dir
	a.setLocked(names, place)
}

func (a *Ahead) setLocked(names []string, place int) {
	a.place = place
	a.first = names[:min(len(names), lookAmong):min(len(names), lookAmong)]
	if len(names) == 0 || names[0] != a.head {
		a.head, a.node = "", session.Node{} // the head belongs to another wait, or is deleted
	}
}

// Forget drops all contenders, because the waiter is not in the line. a may be nil.
func (a *Ahead) Forget() {
	if a != nil {
		a.Set("", nil)
	}
}

// Now returns the first contender ahead, as far as it is known, and the number of contenders ahead
// at the last listing, or 0 before the first listing.
func (a *Ahead) Now() Behind {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := Behind{Name: a.head, Node: a.node, Place: a.place}
	if b.Name == "" && len(a.first) > 0 {
		b.Name = a.first[0]
	}
	return b
}

// LookWhileWaiting reads the first contender after a second, and then at doubling intervals, up to
// once a minute, until the caller stops it. The caller does not wait for the reads. If all
// contenders that a knows have left, LookWhileWaiting calls list. list lists the line, and returns
// the names of the first contenders and the number of all contenders ahead. Between two reads, the
// wait needs only a timer, and no goroutine.
func (a *Ahead) LookWhileWaiting(inc *session.Incarnation, list func(ctx context.Context) (first []string, place int, err error)) (stop func()) {
	var timer *time.Timer // while the wait lasts, a.timer is this timer
	wait := lookAfter
	look := func() {
		ctx := inc.Ctx
		// After an error, a stays unchanged.
		if found, err := a.look(ctx, inc); err == nil && !found {
			if names, place, err := list(ctx); err == nil {
				a.mu.Lock()
				if a.timer != timer { // a belongs to another wait
					a.mu.Unlock()
					return
				}
				a.setLocked(names, place)
				a.mu.Unlock()
				a.look(ctx, inc)
			}
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.timer == timer && ctx.Err() == nil {
			timer.Reset(wait)
			wait = min(2*wait, lookEvery)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	timer = time.AfterFunc(lookAfter, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.timer == timer {
			inc.Manager.Spawn(look)
		}
	})
	a.timer = timer
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		timer.Stop()
		if a.timer == timer {
			a.timer = nil
		}
	}
}

// look reads the first contender, and reports whether any contender in a still exists.
func (a *Ahead) look(ctx context.Context, inc *session.Incarnation) (found bool, err error) {
	a.mu.Lock()
	dir, first := a.dir, a.first
	a.mu.Unlock()
	paths := make([]string, len(first))
	for i, name := range first {
		paths[i] = session.ChildPath(dir, name)
	}
	nodes, err := inc.GetVisible(ctx, paths)
	if err != nil {
		return false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.first) != len(first) || a.dir != dir || len(first) > 0 && a.first[0] != first[0] {
		return true, nil // a new listing has replaced them; the next look uses it
	}
	for i, n := range nodes {
		if n.Stat != nil {
			a.head, a.node = first[i], n
			a.first = a.first[i:]
			a.place -= i
			return true, nil
		}
	}
	return false, nil
}
