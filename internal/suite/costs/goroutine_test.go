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
