package session

import (
	"bytes"
	"log/slog"
	"strings"
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
			var log bytes.Buffer
			m := &Manager{Log: slog.New(slog.NewTextHandler(&log, nil)), phase: &phase{over: make(chan struct{})}, outage: true}
			go m.logOutage(m.phase)
			m.enter(nil, StateConnected, Report{})
			time.Sleep(conn.Lasting)
			start := time.Now()
			m.enter(nil, StateSuspended, Report{})
			time.Sleep(firstWord + time.Millisecond)
			m.enter(nil, StateClosed, Report{})
			synctest.Wait()
			want := "since=" + start.Format("2006-01-02T15:04:05.000")
			if strings.Count(log.String(), "since=") != 1 || !strings.Contains(log.String(), want) {
				t.Errorf("the log tells an outage with %q, want %s", log.String(), want)
			}
		})
	}
}
