package queue

import (
	"errors"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/session/sessiontest"
	"github.com/zsync/zsync/zktest"
)

// A consumer's claim is on its way from member 0 to the leader. The consumer moves to member 1, which
// refuses the claim because the queue is paused. The members' syncLimit is longer than zsync assumes,
// so the leader receives the first request after the pause, and must refuse it, too: the consumer
// would not know of the claim.
func TestAClaimIsNotAppliedAfterAPauseHasRefusedIt(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		e := zktest.StartEnsemble(t, 3, zktest.WithTick(2*time.Second), zktest.WithSyncLimit(30), zktest.WithSessionTimeouts(harness.Timeout, harness.Timeout))
		e.SetBacklog(time.Millisecond)
		at := func(r *harness.Route) *session.Manager { return sessiontest.Open(t, e.Addrs(), r.Dial, closesInTime) }
		r := harness.NewRoute(e, 0)
		q, other := queueAt(at(r), "/q"), queueAt(at(harness.NewRoute(e, 2)), "/q")
		send(t, other, "in hand", "x")
		it := receive(t, q) // from now on, the consumer has a mark
		time.Sleep(time.Second)
		e.Cut(0, 2)
		taken := make(chan error, 1)
		go func() {
			e, err := q.Take(harness.Within(t, time.Minute))
			if err == nil && e != nil {
				err = errors.New("Take has returned " + string(e.Data))
			}
			taken <- err
		}()
		time.Sleep(50 * time.Millisecond)
		harness.Must(t, other.Pause(t.Context()))
		r.Move(1)
		harness.Must(t, <-taken)
		harness.Must(t, other.Resume(t.Context()))
		time.Sleep(12 * time.Second)
		r.Move(0)
		time.Sleep(100 * time.Millisecond)
		e.Heal(0, 2)
		time.Sleep(time.Second)
		wantTake(t, other, "x", 0)
		harness.Must(t, it.Settle(t.Context(), Settlement{Fate: Remove}))
	})
}
