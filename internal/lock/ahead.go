package lock

// This file records the contenders for which a waiter waits. Errors and reports show them. The
// decision about the turn is in acquire.go.

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// An Ahead records the first contender ahead of a waiter, and the number of all contenders ahead.
// Errors and reports show them. The Ahead gets them from listings that the waiter makes anyway. In
// a long wait, the Ahead also makes reads of its own. A zero Ahead is empty. Its methods may be
// called at any time.
type Ahead struct {
	mu  sync.Mutex
	dir string // the parent of the contenders
	now Behind // at the last listing or read
}

// A Behind describes the contenders for which a waiter waits: their number and, if known, the first
// of them.
type Behind struct {
	Own   *Claim       // the first contender, if a goroutine of this process holds it; otherwise nil
	Name  string       // the name of the first contender in the line; "" if this contender is Own, or is unknown
	Node  session.Node // the znode of the same contender; empty before the first read
	Mode  HoldMode
	Place int
}

// A waiter that has waited for the time lookAfter reads the znode of the first contender. The
// waiter reads again each time that its whole wait has doubled, and at least once in the time
// lookEvery.
const (
	lookAfter = time.Second
	lookEvery = time.Minute
)

// Set records the contenders ahead: their number, and the name of the first of them, which is a child
// of dir.
func (a *Ahead) Set(dir, first string, place int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dir = dir
	a.setLocked(first, place)
}

func (a *Ahead) setLocked(first string, place int) {
	if first != a.now.Name { // the recorded contender belongs to another wait, or was deleted
		a.now = Behind{Name: strings.Clone(first)} // a clone, because the original would keep the whole listing in memory
	}
	a.now.Place = place
}

// Forget empties the record `a`, because the waiter is not in the line. If `a` is nil, Forget does
// nothing.
func (a *Ahead) Forget() {
	if a != nil {
		a.Set("", "", 0)
	}
}

// Now returns the first contender ahead, if it is known, and the number of contenders ahead at the
// last listing. Before the first listing, the number is 0.
func (a *Ahead) Now() Behind {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now
}

// LookWhileWaiting begins to read the first contender in the background: after a second, and then
// after intervals that double, up to a minute. The reads end when the caller calls `stop`. The
// function `list` lists the line, if the first contender has left. It returns the name of the first
// contender, and the number of all contenders ahead. Between two reads, there is only a timer, and no
// goroutine.
func (a *Ahead) LookWhileWaiting(inc *session.Incarnation, list func(ctx context.Context) (first string, place int, err error)) (stop func()) {
	var timer *time.Timer
	wait, over := lookAfter, false // `over`: the wait has ended, and another may use `a` now; guarded by mu, like the other two
	look := func() {
		// After an error, `a` stays unchanged.
		found, err := a.look(inc)
		if err == nil && !found {
			first, place, err := list(inc.Ctx)
			a.mu.Lock()
			again := err == nil && !over
			if again {
				a.setLocked(first, place)
			}
			a.mu.Unlock()
			if again {
				a.look(inc)
			}
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if !over && inc.Ctx.Err() == nil {
			timer.Reset(wait)
			wait = min(2*wait, lookEvery)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	timer = time.AfterFunc(lookAfter, func() { inc.Manager.Spawn(look) })
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		over = true
		timer.Stop()
	}
}

// The method `look` reads and records the znode of the first contender. It reports whether there is
// such a znode.
func (a *Ahead) look(inc *session.Incarnation) (found bool, err error) {
	a.mu.Lock()
	dir, name := a.dir, a.now.Name
	a.mu.Unlock()
	if name == "" {
		return false, nil
	}
	nodes, err := inc.GetVisible(inc.Ctx, []string{session.ChildPath(dir, name)})
	if err != nil {
		return false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.dir != dir || a.now.Name != name:
		return true, nil // a new listing has shown another contender, which the next look reads
	case nodes[0].Stat == nil:
		return false, nil
	}
	a.now.Node = nodes[0]
	return true, nil
}
