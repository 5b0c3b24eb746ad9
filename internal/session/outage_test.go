package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/internal/conn"
)

// The process was stopped while a connection lasted, and the connection has ended since. The timer of that connection is
// late. The next outage begins now, not with the one before.
func TestAnOutageBehindAConnectionThatHasLastedIsANewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var began []time.Time
		o := &outage{say: func(at time.Time) { began = append(began, at) }, spawn: func(f func()) { f() }}
		o.begin()
		o.connected()
		o.timer.Stop() // it is late
		time.Sleep(conn.Lasting)
		start := time.Now()
		o.begin()
		time.Sleep(firstWord + time.Millisecond)
		o.finish()
		if len(began) != 1 || !began[0].Equal(start) {
			t.Errorf("the log tells outages since %v, want %v", began, start)
		}
	})
}
