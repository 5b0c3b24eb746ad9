package costs

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// As for any hold, the watch on its znode is set after 10 ms.
func TestAnInstantThatIsRunCostsFiveRequestsAndAWatch(t *testing.T) {
	for _, latency := range []time.Duration{0, 10 * time.Millisecond} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := suite.Open(t, srv)
			c := zsync.NewSchedule(s, "/p/jobs")
			at := noon
			do := func() {
				at = at.Add(time.Hour)
				ran, err := c.Do(t.Context(), at, func(context.Context) error { return nil })
				if harness.Must(t, err); !ran {
					t.Error("it was not run")
				}
			}
			do() // the paths are there
			time.Sleep(time.Second)
			srv.SetLatency(latency)
			before, start := s.Stats().Requests, time.Now()
			do()
			took := time.Since(start)
			time.Sleep(time.Second)
			synctest.Wait()
			if n := s.Stats().Requests - before; n < 5 || n > 6 || latency == 0 && n > 5 {
				t.Errorf("%d requests with a latency of %v, want 5, and a watch at most", n, latency)
			}
			if took < 4*latency || took > 4*latency+latency/4 {
				t.Errorf("it took %v with a latency of %v, want 4 round trips", took, latency)
			}
			srv.SetLatency(0)
		})
	}
}
