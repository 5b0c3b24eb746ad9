package lock

// This file records the contenders for which a waiter waits. Errors and reports show them. The
// decision about the turn is in acquire.go.

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
)

// An Ahead records the first contender ahead of a waiter, and the number of all contenders ahead.
// The waiter gets them from the listings that it makes anyway. In a long wait, it also makes reads
// for the record. A zero Ahead is empty. Only the waiter changes it; Now may be called at any time.
type Ahead struct{ now atomic.Pointer[Behind] }

// A Behind describes the contenders for which a waiter waits: their number and, if known, the first
// of them.
type Behind struct {
	Own   *Claim       // the first contender, if a goroutine of this process holds it; otherwise nil
	Name  string       // the name of the first contender in the line; "" if this contender is Own, or is unknown
	Node  session.Node // the znode of the same contender; empty before the first read
	Mode  HoldMode
	Place int
	dir   string // the parent of the contenders
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
	b := a.Now()
	if first != b.Name || dir != b.dir { // the recorded contender belongs to another wait, or was deleted
		b = Behind{Name: strings.Clone(first), dir: dir} // a clone, because the original would keep the whole listing in memory
	}
	b.Place = place
	a.now.Store(&b)
}

// Forget empties the record `a`, because the waiter is not in the line. If `a` is nil, Forget does
// nothing.
func (a *Ahead) Forget() {
	if a != nil {
		a.now.Store(nil)
	}
}

// Now returns the first contender ahead, if it is known, and the number of contenders ahead at the
// last listing. Before the first listing, the number is 0.
func (a *Ahead) Now() (b Behind) {
	if now := a.now.Load(); now != nil {
		b = *now
	}
	return b
}

// Look reads the znode of the first contender. If that contender has left, Look calls the function
// `list`, which lists the line and returns the name of the first contender and the number of all
// contenders ahead. After an error, `a` stays unchanged.
func (a *Ahead) Look(ctx context.Context, inc *session.Incarnation, list func(ctx context.Context) (first string, place int, err error)) {
	for again := false; ; again = true {
		b := a.Now()
		if b.Name != "" {
			nodes, err := inc.GetVisible(ctx, []string{session.ChildPath(b.dir, b.Name)})
			if err != nil {
				return
			}
			if nodes[0].Stat != nil {
				b.Node = nodes[0]
				a.now.Store(&b)
				return
			}
		}
		if again {
			return
		}
		first, place, err := list(ctx)
		if err != nil {
			return
		}
		a.Set(b.dir, first, place)
	}
}

// AwaitAny waits until one of `watches` has fired, like Incarnation.AwaitAny. Meanwhile, it calls
// Look at the times of a long wait.
func (a *Ahead) AwaitAny(ctx context.Context, inc *session.Incarnation, watches []*conn.Watch, list func(ctx context.Context) (first string, place int, err error)) error {
	fired := func(w *conn.Watch) bool { return session.IsClosed(w.Fired) }
	pause := lookAfter
	for due := time.Now().Add(pause); ; due, pause = time.Now().Add(pause), min(2*pause, lookEvery) {
		if err := inc.AwaitAny(ctx, watches, due); err != nil || slices.ContainsFunc(watches, fired) {
			return err
		}
		until, stop := inc.Manager.Until(ctx, watches[0].Fired)
		a.Look(until, inc, list)
		stop()
	}
}
