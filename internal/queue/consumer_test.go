package queue

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Who works on elements and who sees that the consumer must leave both end it, and what was
// claimed ahead goes back meanwhile. A mutex would stop virtual time, for those who test with it.
func TestASecondLeaveWaitsForTheFirstWhileVirtualTimeGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := 0
		c := &consumer{q: &core{}, Member: &Member{of: &Members{}, left: make(chan struct{}), over: func() {
			time.Sleep(time.Second)
			over++
		}}}
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				c.Leave()
				if over != 1 {
					t.Errorf("Leave has returned, and it was over %d times", over)
				}
			})
		}
		both.Wait()
	})
}
