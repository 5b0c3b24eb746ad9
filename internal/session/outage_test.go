package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/internal/conn"
)

// A connection has lasted, and ends at the moment at which its timer fires, or the timer is late because the process
// was stopped. The next outage begins now, not with the one before.
func TestAnOutageBehindAConnectionThatHasLastedIsANewOne(t *testing.T) {
	for range 20 { // either may come first
		synctest.Test(t, func(t *testing.T) {
			var began []time.Time
			changes := make(chan ConnState)
			go logOutages(changes, func(at time.Time) { began = append(began, at) }, nil)
			changes <- StateConnected
			time.Sleep(conn.Lasting)
			start := time.Now()
			changes <- StateSuspended
			time.Sleep(firstWord + time.Millisecond)
			close(changes)
			synctest.Wait()
			if len(began) != 1 || !began[0].Equal(start) {
				t.Errorf("the log tells outages since %v, want %v", began, start)
			}
		})
	}
}
