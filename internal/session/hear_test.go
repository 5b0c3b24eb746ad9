package session

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// Whoever closes the Session gives up what he holds. Those who must hear of it have heard
// before the servers do, who give it to the next.
func TestServersHearOfACloseBehindThoseWhoHoldSomething(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0:                      0,
		500 * time.Millisecond: 500 * time.Millisecond,
		time.Hour:              hearTime, // a fault must not keep Close from returning
	} {
		harness.VirtualTime(t, func(t *testing.T) {
			srv := zktest.Start(t)
			s := open(t, srv)
			inc := live(t, s)
			var told, ended atomic.Int64
			start := time.Now()
			stop := inc.OnEnd(func() { t.Error("called though it was stopped") })
			if !stop() || stop() {
				t.Error("it cannot be stopped, or twice")
			}
			free := make(chan struct{})
			inc.OnEnd(func() {
				select {
				case <-time.After(took):
				case <-free:
				}
				told.Store(int64(time.Since(start)))
			})
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpCloseSession {
					ended.Store(int64(time.Since(start)))
				}
				return zktest.Pass
			})
			s.Close()
			close(free)
			if at := time.Duration(ended.Load()); at < want || at > want+10*time.Millisecond {
				t.Errorf("closed after %v; want %v", at, want)
			}
			called := make(chan struct{})
			inc.OnEnd(func() { close(called) })
			<-called // though it has ended
		})
	}
}
