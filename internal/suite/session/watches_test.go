package session

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// Two whose waits overlap give up, and their watch is one too many: it is
// removed behind the second's read, whose reply comes after that.
func TestWaiterIsWokenThoughTheWatchOfThoseBeforeItWasRemovedBehindARead(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := suite.Open(t, srv), suite.Open(t, srv)
		wait := func(path string, d time.Duration) <-chan error {
			return harness.Async(func() error { return zsync.NewBarrier(s, path).Wait(harness.Within(t, d)) })
		}
		srv.SetLatency(10 * time.Millisecond)
		for k := range 20 { // which of the idle ones goes is random
			path := fmt.Sprint("/b", k)
			harness.Must(t, zsync.NewBarrier(o, path).Close(t.Context()))
			makeIdle(t, inside.Live(t, s), fmt.Sprint("/x", k, "-"))
			one := wait(path, 22*time.Millisecond) // sync until 10, read until 20
			time.Sleep(5 * time.Millisecond)
			two := wait(path, 12*time.Millisecond) // sync until 15, gives up at 17
			harness.WantErr(t, <-two, context.DeadlineExceeded)
			harness.WantErr(t, <-one, context.DeadlineExceeded)
			time.Sleep(100 * time.Millisecond)
			three := wait(path, time.Hour)
			time.Sleep(100 * time.Millisecond)
			harness.Must(t, zsync.NewBarrier(o, path).Open(t.Context()))
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			select {
			case err := <-three:
				harness.Must(t, err)
			default:
				t.Fatalf("%s is open, and its waiter sleeps", path)
			}
		}
	})
}

// makeIdle leaves as many watches of znodes that do not exist, which nobody
// waits for, as a session keeps.
func makeIdle(t *testing.T, inc *session.Incarnation, prefix string) {
	t.Helper()
	for i := range 64 {
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: fmt.Sprint(prefix, i)})
		_, err := inc.Exists(t.Context(), w.Key.Path)
		harness.Must(t, err)
		inc.Watches.Leave(w)
	}
}
