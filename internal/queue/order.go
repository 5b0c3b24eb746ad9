package queue

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// A tally counts what is under way.
type tally struct {
	mu   sync.Mutex
	n    int           // guarded by mu
	none chan struct{} // closed when it is over; guarded by mu
}

func (t *tally) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n++; t.n == 1 {
		t.none = make(chan struct{})
	}
}

func (t *tally) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 {
		close(t.none)
	}
}

// pending returns what is closed when nothing is under way any more, or nil if nothing is.
func (t *tally) pending() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == 0 {
		return nil
	}
	return t.none
}

// errNoRoom means that a turn is better left for a while: consumers have had as much as
// they want, or something goes back.
var errNoRoom = errors.New("zsync: no room")

// await waits until pending returns nil: it is asked again when the channel that it has
// returned is closed. With limit await waits no longer than that, and fails with errNoRoom.
func await(ctx context.Context, inc *session.Incarnation, limit time.Duration, pending func() <-chan struct{}) error {
	if limit > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, limit, errNoRoom)
		defer cancel()
		ctx = limited
	}
	for c := pending(); c != nil; c = pending() {
		if err := session.AwaitIn(ctx, inc, c); err != nil {
			return err
		}
	}
	return nil
}

// An order knows what this process is about to give back to a queue. An only consumer
// gets elements in order because nothing is claimed, or taken by TryRecv, before that
// is back in its place: what comes later would be received before it.
type order struct {
	backs tally         // what is about to be back
	since atomic.Uint64 // how often something untried was to be given back
	mine  sync.Map      // the claimants of this process, by their GUIDs
}

// refusedFor is how long what the servers refuse to take back keeps back what comes
// after it. Most often they refuse the claims as well, for the same reason.
const refusedFor = time.Minute

// begin is told that something is to be given back. With untried that was claimed ahead:
// what was found since may come after it.
func (o *order) begin(untried bool) {
	o.backs.begin() // before the number: see await
	if untried {
		o.since.Add(1)
	}
}

// end is told that it is back, or that it is not waited for any more.
func (o *order) end() { o.backs.end() }

// await waits until nothing is about to be back. What is found from then on is
// believed to be first as long as the number that it returns is the present one.
func (o *order) await(ctx context.Context, inc *session.Incarnation, limit time.Duration) (since uint64, err error) {
	err = await(ctx, inc, limit, func() <-chan struct{} {
		// The number is read first: what has moved it on by now is waited for, or back.
		since = o.since.Load()
		return o.backs.pending()
	})
	return since, err
}

// now returns the present number.
func (o *order) now() uint64 { return o.since.Load() }

// leaving is told that the last consumer of a ledger has left: what it had claimed is
// about to go back, also if its claim is still under way. posted is closed then.
func (o *order) leaving(m *session.Manager, posted <-chan struct{}) {
	if session.IsClosed(posted) {
		return
	}
	o.begin(true)
	m.Spawn(func() {
		defer o.end()
		select {
		case <-posted:
		case <-m.Over:
		}
	})
}

// claimant is told of a claimant of this process, until it calls over.
func (o *order) claimant(guid string) (over func()) {
	o.mine.Store(guid, true)
	return func() { o.mine.Delete(guid) }
}

// others reports whether another process consumes, whose claims ours may have collided
// with: then it has its live mark. (What cancels, clears or takes one element has none.)
func (o *order) others(marks []string) bool {
	return slices.ContainsFunc(marks, func(guid string) bool {
		_, mine := o.mine.Load(guid)
		return !mine
	})
}
