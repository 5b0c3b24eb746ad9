package zsync

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

// idleWatches returns how many watches nobody waits for.
func idleWatches(inc *incarnation) int {
	inc.hub.mu.Lock()
	defer inc.hub.mu.Unlock()
	return len(inc.hub.idle)
}

// makeIdle sets watches and leaves them, until as many are kept as can be: one
// more has some of them removed.
func makeIdle(t *testing.T, inc *incarnation, prefix string) {
	t.Helper()
	for i := 0; idleWatches(inc) < maxIdleWatches; i++ {
		w := inc.hub.join(watchKey{watchExists, fmt.Sprint(prefix, i)})
		_, err := inc.exists(t.Context(), w.key.path)
		must(t, err)
		inc.hub.leave(w)
	}
}

// Two whose waits overlap give up, and their watch is one too many: it is
// removed behind the second's read, whose reply comes after that.
func TestWaiterIsWokenThoughTheWatchOfThoseBeforeItWasRemovedBehindARead(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := open(t, srv), open(t, srv)
		wait := func(path string, d time.Duration) <-chan error {
			return async(func() error { return NewBarrier(s, path).Wait(within(t, d)) })
		}
		srv.SetLatency(10 * time.Millisecond)
		for k := range 20 { // which of the idle ones goes is random
			path := fmt.Sprint("/b", k)
			must(t, NewBarrier(o, path).Close(t.Context()))
			makeIdle(t, live(t, s), fmt.Sprint("/x", k, "-"))
			one := wait(path, 22*time.Millisecond) // sync until 10, read until 20
			time.Sleep(5 * time.Millisecond)
			two := wait(path, 12*time.Millisecond) // sync until 15, gives up at 17
			wantErr(t, <-two, context.DeadlineExceeded)
			wantErr(t, <-one, context.DeadlineExceeded)
			time.Sleep(100 * time.Millisecond)
			three := wait(path, time.Hour)
			time.Sleep(100 * time.Millisecond)
			must(t, NewBarrier(o, path).Open(t.Context()))
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			select {
			case err := <-three:
				must(t, err)
			default:
				t.Fatalf("%s is open, and its waiter sleeps", path)
			}
		}
	})
}

// The server knows one watch for the data of a znode and for its existence.
func TestDataIsWatchedThoughTheWatchOfItsExistenceIsRemovedBehindTheRead(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := open(t, srv), open(t, srv)
		inc := live(t, s)
		_, err := inc.create(t.Context(), "/n", nil)
		must(t, err)
		w := inc.hub.join(watchKey{watchExists, "/n"})
		_, err = inc.exists(t.Context(), "/n")
		must(t, err)
		inc.hub.leave(w)
		srv.SetLatency(10 * time.Millisecond)
		w = inc.hub.join(watchKey{watchData, "/n"})
		_, _, err = inc.get(within(t, time.Millisecond), "/n") // its reply comes when it has gone
		wantErr(t, err, context.DeadlineExceeded)
		inc.hub.leave(w)
		inc.removeWatch(watchKey{watchExists, "/n"})
		time.Sleep(time.Second)
		w = inc.hub.join(watchKey{watchData, "/n"})
		defer inc.hub.leave(w)
		_, _, err = inc.get(t.Context(), "/n")
		must(t, err)
		_, err = live(t, o).set(t.Context(), "/n", []byte("x"), -1)
		must(t, err)
		must(t, inc.awaitFired(within(t, time.Second), w))
	})
}

// A cutWriter writes one removeWatches in part and fails.
type cutWriter struct {
	net.Conn
	fail *atomic.Bool
}

func (c cutWriter) Write(p []byte) (int, error) {
	if len(p) > 12 && int32(binary.BigEndian.Uint32(p[8:])) == wire.OpRemoveWatches && c.fail.CompareAndSwap(true, false) {
		n, _ := c.Conn.Write(p[:len(p)-9])
		return n, errors.New("the send buffer is full")
	}
	return c.Conn.Write(p)
}

func TestRemovalOfAWatchThatIsWrittenInPartEndsTheConnectionAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var fail atomic.Bool
		s := open(t, srv, WithDialer(func(network, addr string, d time.Duration) (net.Conn, error) {
			c, err := srv.Dial(network, addr, d)
			return cutWriter{c, &fail}, err
		}))
		inc := live(t, s)
		makeIdle(t, inc, "/x")
		fail.Store(true)
		w := inc.hub.join(watchKey{watchExists, "/y"})
		_, err := inc.exists(t.Context(), "/y")
		must(t, err)
		inc.hub.leave(w)
		synctest.Wait()
		if fail.Load() {
			t.Fatal("nothing was removed")
		}
		start := time.Now()
		_, err = inc.exists(t.Context(), "/z")
		must(t, err)
		if d := time.Since(start); d > 100*time.Millisecond {
			t.Errorf("the next request was answered after %v", d)
		}
		if n := s.Stats().Reconnects; n != 1 {
			t.Errorf("%d reconnects, want 1", n)
		}
	})
}
