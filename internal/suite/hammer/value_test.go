package hammer

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
)

func TestHammerValueOnServers(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		var total atomic.Int64
		var updating, watching sync.WaitGroup
		until := time.Now().Add(time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		harness.Must(t, zsync.NewValue[int](connect(), "/v").Store(ctx, 0))
		for range 4 {
			v := zsync.NewValue[int](connect(), "/v")
			values := v.Watch(ctx)
			watching.Go(func() {
				last := -1
				for x := range values {
					if x < last {
						t.Errorf("Watch went back from %d to %d", last, x)
					}
					last = x
				}
			})
			updating.Go(func() {
				for time.Now().Before(until) && !t.Failed() {
					if _, err := v.Update(ctx, func(n int) (int, error) { return n + 1, nil }); err != nil {
						t.Error(err)
					}
					total.Add(1)
				}
			})
		}
		updating.Wait()
		x, _, err := zsync.NewValue[int](connect(), "/v").Load(ctx)
		if harness.Must(t, err); int64(x) != total.Load() {
			t.Errorf("%d after %d increments", x, total.Load())
		}
		cancel()
		watching.Wait()
	})
}
