package costs

import (
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// working counts the goroutines in which the library works, or waits for something to do that it
// has begun. A worker of a session without work is none.
func working() (n int) {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		lines := strings.Split(stack, "\n")
		library := strings.Contains(stack, "github.com/zsync/zsync.") || strings.Contains(stack, "zsync/internal/session.") || strings.Contains(stack, "zsync/internal/znodes.")
		if library && !strings.Contains(lines[1], "(*Manager).idle(") {
			n++
		}
	}
	return n
}

func TestAFreeLockRunsInTheGoroutineOfItsCaller(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := zsync.NewMutex(suite.Open(t, srv), "/m")
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		srv.SetLatency(time.Second)
		time.Sleep(time.Minute) // nothing of before is under way
		before := working()
		did := harness.Async(func() error { return m.Lock(t.Context()) })
		synctest.Wait()
		if n := working() - before; n != 1 {
			t.Errorf("%d goroutines work, want that of the caller", n)
		}
		harness.Must(t, <-did)
		harness.Must(t, m.Unlock())
	})
}

// An idle session reads its connection, writes to it, and watches over the time until which it is confirmed. An
// outage must not leave a goroutine behind.
func TestAnIdleSessionHasThreeGoroutines(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		const sessions = 5
		for range sessions {
			suite.Open(t, srv)
		}
		want := func() {
			t.Helper()
			time.Sleep(time.Minute) // nothing of before is under way
			synctest.Wait()
			stacks := make([]byte, 1<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			n := 0
			for stack := range strings.SplitSeq(string(stacks), "\n\n") {
				if strings.Contains(stack, "zsync/internal/session.") || strings.Contains(stack, "zsync/internal/conn.") {
					n++
				}
			}
			if n != 3*sessions {
				t.Errorf("%d sessions have %d goroutines, want 3 each:\n%s", sessions, n, stacks)
			}
		}
		want()
		srv.Stop()
		time.Sleep(2 * time.Second)
		srv.Restart()
		want()
	})
}
