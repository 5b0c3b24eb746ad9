package session

import (
	"context"
	"errors"
	"sync"
	"time"
)

// endings are those who must hear that an incarnation has ended before others can be
// granted what was held through it.
type endings struct {
	mu   sync.Mutex
	left int           // of them
	none chan struct{} // closed when there is none left, if somebody waits for that
}

// OnEnd has f called once when the incarnation has ended, in a goroutine of its own; if
// it has ended already, at once. The servers are asked to end the session only when f has
// returned, so f must not wait.
//
// A session that ends otherwise was certain to live for longer than f takes. But who closes
// the Session gives up what he holds at that instant, and the next may have it within a
// round trip.
func (inc *Incarnation) OnEnd(f func()) (stop func() bool) {
	inc.endings.add(1)
	stopped := context.AfterFunc(inc.Ctx, func() {
		defer inc.endings.add(-1)
		f()
	})
	return func() bool {
		ok := stopped()
		if ok {
			inc.endings.add(-1)
		}
		return ok
	}
}

func (e *endings) add(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.left += n; e.left == 0 && e.none != nil {
		close(e.none)
		e.none = nil
	}
}

// await waits until all have heard of it, but not for long.
func (e *endings) await() {
	e.mu.Lock()
	if e.left == 0 {
		e.mu.Unlock()
		return
	}
	if e.none == nil {
		e.none = make(chan struct{})
	}
	none := e.none
	e.mu.Unlock()
	select {
	case <-none:
	case <-time.After(farewellTime):
	}
}

// EndError says what the end of an incarnation, for this cause, means to one
// who held something through it: it is ErrLost.
func (inc *Incarnation) EndError(cause error) error {
	if errors.Is(cause, ErrLost) {
		return cause
	}
	return inc.Manager.Config.Lost(LossClosed, inc.ID.Load(), time.Now())
}

// Loss is endError for an incarnation that has ended.
func (inc *Incarnation) Loss() error { return inc.EndError(context.Cause(inc.Ctx)) }

// Deleted is the loss of something in this session whose znode is gone.
func (inc *Incarnation) Deleted() error {
	return inc.Manager.Config.Lost(LossDeleted, inc.ID.Load(), time.Now())
}
