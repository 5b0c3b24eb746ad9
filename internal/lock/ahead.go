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
	"github.com/zsync/zsync/internal/znodes"
)

// An Ahead records the first contender ahead of a waiter, and the number of all contenders ahead.
// The waiter gets them from the listings that it makes anyway. In a long wait, it also reads the first. A zero Ahead is empty. Only the waiter changes it; Now may be called at any time.
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

// A waiter that has waited for the time lookAfter reads the znode of the first contender. It reads
// again each time that its whole wait has doubled, and at least once in the time lookEvery.
const (
	lookAfter = time.Second
	lookEvery = time.Minute
)

// Set records the contenders ahead: their number, and the name of the first of them, which is a child
// of dir. It reports whether that name is new.
func (a *Ahead) Set(dir, first string, place int) (changed bool) {
	b := a.Now()
	if changed = first != b.Name || dir != b.dir; changed { // the recorded contender belongs to another wait, or was deleted
		b = Behind{Name: strings.Clone(first), dir: dir} // a clone, because the original would keep the whole listing in memory
	}
	b.Place = place
	a.now.Store(&b)
	return changed
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

// Look reads the znode of the first contender, and reports whether that contender has left. The read
// ends when a channel is closed. After an error, `a` stays unchanged.
func (a *Ahead) Look(ctx context.Context, inc *session.Incarnation, one, two <-chan struct{}) (gone bool) {
	ctx, stop := inc.Manager.Until(ctx, one)
	defer stop()
	ctx, stopToo := inc.Manager.Until(ctx, two)
	defer stopToo()
	b := a.Now()
	nodes, err := znodes.GetVisible(ctx, inc, []string{znodes.ChildPath(b.dir, b.Name)})
	if err != nil || nodes[0].Stat == nil {
		return err == nil
	}
	b.Node = nodes[0]
	a.now.Store(&b)
	return false
}

// AwaitEither waits until either watch has fired, and calls Look during the wait. One of the watches
// must fire when the first contender leaves. AwaitEither also returns if Look finds that it has left.
func (a *Ahead) AwaitEither(ctx context.Context, inc *session.Incarnation, one, two *conn.Watch) error {
	for start, gone := time.Now(), false; !gone; {
		due := time.Now().Add(min(max(time.Since(start), lookAfter), lookEvery))
		if err := inc.AwaitAny(ctx, []*conn.Watch{one, two}, due); err != nil || session.IsClosed(one.Fired) || session.IsClosed(two.Fired) {
			return err
		}
		gone = a.Look(ctx, inc, one.Fired, two.Fired)
	}
	return nil
}
