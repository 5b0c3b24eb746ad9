package queue

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// The consumer's session ends before the server removes an element. In the next session, the
// consumer looks for the element, and this session ends before the server answers. The consumer
// looks again in the session after that, and finds the element.
func TestAConsumerLooksAgainForAnElementIfTheSessionOfTheLookEnds(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		consumer, other := open(t, srv), open(t, srv)
		q := queueAt(consumer, "/q")
		send(t, q, "x")
		it := receive(t, q)
		first := consumer.SessionID()
		var removals, looks atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session == other.SessionID():
			case r.Op == zktest.OpMulti && slices.ContainsFunc(r.Ops, func(o zktest.Request) bool {
				return o.Op == zktest.OpDelete && strings.HasPrefix(o.Path, "/q/")
			}):
				removals.Add(1)
				srv.Expire(r.Session)
				return zktest.DropRequest
			case r.Op == zktest.OpSync && r.Path == "/q" && r.Session != first && looks.Add(1) == 1:
				srv.Expire(r.Session)
				return zktest.DropRequest
			}
			return zktest.Pass
		})
		harness.WantErr(t, it.Settle(t.Context(), Settlement{Fate: Remove}), session.ErrLost)
		if removals.Load() != 1 || looks.Load() != 2 {
			t.Errorf("the servers have received %d removals and %d looks; want 1 and 2", removals.Load(), looks.Load())
		}
		wantTake(t, queueAt(other, "/q"), "x", 1)
	})
}

// The claimant writes the return of an item and a note about the same item at once: the servers have
// refused both before. The return counts.
func TestANoteAndAReturnInOneWrite(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		q, other := queueAt(open(t, srv), "/q"), queueAt(open(t, srv), "/q")
		send(t, q, "x")
		it := receive(t, q).(*item)
		it.c.turn <- struct{}{} // a write of a board is under way
		returned, _ := it.c.decide(it, entry{fate: Return})
		noted := it.c.note([]*item{it})
		<-it.c.turn
		<-returned.done
		<-noted.done
		wantTake(t, other, "x", 0)
	})
}
