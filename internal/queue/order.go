package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// An order knows what this process is about to give back to a queue. An only consumer
// gets elements in order because nothing is claimed, or taken by TryRecv, before that
// is back in its place: what comes later would be received before it.
type order struct {
	mu    sync.Mutex
	backs int             // that are about to be back; guarded by mu
	none  chan struct{}   // closed when there are none; guarded by mu
	since uint64          // how often something untried was to be given back; guarded by mu
	mine  map[string]bool // the claimants of this process, by their GUIDs; guarded by mu
}

// refusedFor is how long what the servers refuse to take back keeps back what comes
// after it. Most often they refuse the claims as well, for the same reason.
const refusedFor = time.Minute

// begin is told that something is to be given back. With untried that was claimed ahead:
// what was found since may come after it.
func (o *order) begin(untried bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.backs++; o.backs == 1 {
		o.none = make(chan struct{})
	}
	if untried {
		o.since++
	}
}

// end is told that it is back, or that it is not waited for any more.
func (o *order) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.backs--; o.backs == 0 {
		close(o.none)
	}
}

// errNoRoom means that a turn is better left for a while: consumers have had as much as
// they want, or something goes back.
var errNoRoom = errors.New("zsync: no room")

// await waits until nothing is about to be back. What is found from then on is
// believed to be first as long as the number that it returns is the present one.
func (o *order) await(ctx context.Context, m *session.Manager, limit time.Duration) (since uint64, err error) {
	var expired <-chan time.Time
	if limit > 0 {
		expired = time.After(limit)
	}
	for {
		o.mu.Lock()
		backs, none, since := o.backs, o.none, o.since
		o.mu.Unlock()
		if backs == 0 {
			return since, nil
		}
		select {
		case <-none:
		case <-expired:
			return 0, errNoRoom
		case <-ctx.Done():
			return 0, session.CtxErr(ctx)
		case <-m.Closing:
			return 0, m.Failure()
		}
	}
}

// now returns the present number.
func (o *order) now() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.since
}

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
		case <-m.Closing:
		}
	})
}

// claimant is told of a claimant of this process, or that it is over.
func (o *order) claimant(guid string, on bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !on {
		delete(o.mine, guid)
		return
	}
	if o.mine == nil {
		o.mine = make(map[string]bool)
	}
	o.mine[guid] = true
}

// others reports whether another process consumes, whose claims ours may have collided
// with: then it has its live mark. (What cancels, clears or takes one element has none.)
func (o *order) others(marks []string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, guid := range marks {
		if !o.mine[guid] {
			return true
		}
	}
	return false
}
