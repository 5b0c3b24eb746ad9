package lock

// This file records the contenders for which a waiter waits. Errors and reports show them. The
// decision about the turn is in acquire.go.

import (
	"context"
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
	Name  string       // of the first contender; "" if it is unknown
	Node  session.Node // its znode; empty before the first read
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

// Look reads the znode of the first contender. If that contender has left, Look calls `list`, which
// lists the line. Its results are the name of the first contender, and the number of all contenders
// ahead. After an error, `a` stays unchanged.
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

// AwaitEither waits until either watch has fired. During the wait, it calls Look after a second, and
// each time that the wait has doubled.
func (a *Ahead) AwaitEither(ctx context.Context, inc *session.Incarnation, one, two *conn.Watch, list func(ctx context.Context) (first string, place int, err error)) error {
	pause := lookAfter
	for due := time.Now().Add(pause); ; due, pause = time.Now().Add(pause), min(2*pause, lookEvery) {
		if err := inc.AwaitAny(ctx, []*conn.Watch{one, two}, due); err != nil || session.IsClosed(one.Fired) || session.IsClosed(two.Fired) {
			return err
		}
		until, stop := inc.Manager.Until(ctx, one.Fired)
		until, stopToo := inc.Manager.Until(until, two.Fired)
		a.Look(until, inc, list)
		stopToo()
		stop()
	}
}
