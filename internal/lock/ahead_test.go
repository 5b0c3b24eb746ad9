package lock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// A wait ends while its reads are under way. They change nothing in the record, which another wait may use now, and no
// further reads follow.
func TestALookThatOutlastsItsWaitIsTheLast(t *testing.T) {
	for _, next := range []bool{false, true} { // another wait begins
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			inc := incarnation(t, open(t, srv))
			harness.Must(t, inc.MakeDir(t.Context(), mutexOf(inc.Manager, "/m").SessionDir()))
			var a Ahead
			var stop, stopNext func()
			begun := make(chan struct{})
			looks := 0
			a.Set("/m", "deleted", 1)
			stop = a.LookWhileWaiting(inc, func(context.Context) (string, int, error) {
				looks++
				<-begun
				stop()
				if next {
					a.Set("/other", "first", 1)
					stopNext = a.LookWhileWaiting(inc, nil)
				}
				return "second", 1, nil
			})
			close(begun)
			time.Sleep(lookAfter * 3 / 2)
			synctest.Wait()
			if !a.mu.TryLock() {
				t.Fatal("the record is still locked")
			}
			a.mu.Unlock()
			if next {
				if b := a.Now(); b.Name != "first" {
					t.Errorf("behind %q", b.Name)
				}
				stopNext()
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if looks != 1 {
				t.Errorf("%d looks, want 1", looks)
			}
		})
	}
}
