package lock

// This file records the contenders for which a waiter waits. Errors and reports show them. The
// decision about the turn is in acquire.go.

import (
	"context"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// An Ahead records the first contenders ahead of a waiter, and the number of all contenders ahead.
// Errors and reports show them. The Ahead gets them from listings that the waiter makes anyway. In
// a long wait, the Ahead also makes reads of its own. A zero Ahead is empty. Its methods may be
// called at any time.
type Ahead struct {
	mu    sync.Mutex
	dir   string
	first []string // names of the first contenders, in order
	now   Behind   // the number of contenders ahead, at the last listing or read; has a Name if the znode of the first contender was read
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

// Set records the contenders ahead: their number, and the names of the first of them, which are
// children of dir, in order. The caller must not change `names` after the call.
func (a *Ahead) Set(dir string, names []string, place int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dir = dir
	a.setLocked(names, place)
}

func (a *Ahead) setLocked(names []string, place int) {
	a.first = names[:min(len(names), lookAmong):min(len(names), lookAmong)]
	if len(names) == 0 || names[0] != a.now.Name {
		a.now = Behind{} // the recorded contender belongs to another wait, or was deleted
	}
	a.now.Place = place
}

// Forget empties the record `a`, because the waiter is not in the line. If `a` is nil, Forget does
// nothing.
func (a *Ahead) Forget() {
	if a != nil {
		a.Set("", nil, 0)
	}
}

// Now returns the present state of `a`: the first contender ahead, if it is known, and the number
// of contenders ahead at the last listing. Before the first listing, the number is 0.
func (a *Ahead) Now() Behind {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.now
	if b.Name == "" && len(a.first) > 0 {
		b.Name = a.first[0]
	}
	return b
}

// LookWhileWaiting begins to read the first contender in the background: after a second, and then
// after intervals that double, up to a minute. The reads end when the caller calls `stop`. If all
// contenders in `a` have left, `list` is called: it lists the line, and returns the names of the
// first contenders and the number of all contenders ahead. Between two reads, there is only a
// timer, and no goroutine.
func (a *Ahead) LookWhileWaiting(inc *session.Incarnation, list func(ctx context.Context) (first []string, place int, err error)) (stop func()) {
	var timer *time.Timer
	wait, over := lookAfter, false // `over`: the wait has ended, and another may use `a` now; guarded by mu, like the other two
	look := func() {
		// After an error, `a` stays unchanged.
		found, err := a.look(inc)
		if err == nil && !found {
			names, place, err := list(inc.Ctx)
			a.mu.Lock()
			again := err == nil && !over
			if again {
				a.setLocked(names, place)
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

// The method `look` reads the znodes of the contenders in `a`, and records the first znode that
// exists. It reports whether there is such a znode.
func (a *Ahead) look(inc *session.Incarnation) (found bool, err error) {
	a.mu.Lock()
	dir, first := a.dir, a.first
	a.mu.Unlock()
	paths := make([]string, len(first))
	for i, name := range first {
		paths[i] = session.ChildPath(dir, name)
	}
	nodes, err := inc.GetVisible(inc.Ctx, paths)
	if err != nil {
		return false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.first) != len(first) || a.dir != dir || len(first) > 0 && a.first[0] != first[0] {
		return true, nil // a new listing has replaced the names; the next look uses the new names
	}
	for i, n := range nodes {
		if n.Stat != nil {
			a.now = Behind{Name: first[i], Node: n, Place: a.now.Place - i}
			a.first = a.first[i:]
			return true, nil
		}
	}
	return false, nil
}
