package session

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

func TestCase08AReadThatIsAbandonedOnItsWayLeavesNoWatchToo(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		srv.SetLatency(10 * time.Millisecond)
		for i := range 1000 {
			w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: fmt.Sprintf("/n%d", i)})
			_, err := inc.Exists(within(t, time.Millisecond), w.Key.Path)
			wantErr(t, err, context.DeadlineExceeded)
			inc.Watches.Leave(w)
		}
		time.Sleep(time.Second)
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: "/last"})
		_, err := inc.Exists(t.Context(), w.Key.Path)
		must(t, err)
		inc.Watches.Leave(w)
		time.Sleep(time.Minute)
		if got := srv.Counts().Watches; got > conn.MaxIdleWatches {
			t.Errorf("the server keeps %d watches, want %d at most", got, conn.MaxIdleWatches)
		}
	})
}

// The servers have the watches of those who have left since; and nobody else waits for
// anything, who would see to that.
func TestCase08WaitsThatAllEndWhileTheirReadsAreOnTheirWayLeaveNoWatches(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		srv.SetLatency(10 * time.Millisecond)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: fmt.Sprintf("/n%d", i)})
				defer inc.Watches.Leave(w)
				_, err := inc.Exists(within(t, time.Millisecond), w.Key.Path)
				wantErr(t, err, context.DeadlineExceeded)
			})
		}
		wg.Wait()
		time.Sleep(time.Minute)
		if got := srv.Counts().Watches; got > conn.MaxIdleWatches {
			t.Errorf("the server keeps %d watches, want %d at most", got, conn.MaxIdleWatches)
		}
	})
}

func TestCase08CancelledWaitsLeaveNoWatches(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		n := 100_000
		if harness.UnderRace {
			n = 20_000
		}
		if testing.Short() {
			n = 1000
		}
		for i := range n {
			// All on one znode, and each on one of its own.
			for _, key := range []conn.WatchKey{{Kind: conn.WatchExists, Path: "/one"}, {Kind: conn.WatchExists, Path: fmt.Sprintf("/n%d", i)}} {
				w := inc.Watches.Join(key)
				if _, err := inc.Exists(t.Context(), key.Path); err != nil {
					t.Fatal(err)
				}
				inc.Watches.Leave(w)
			}
		}
		synctest.Wait()
		if got := s.Stats().Watches; got > conn.MaxIdleWatches {
			t.Errorf("the client keeps %d watches, want %d at most", got, conn.MaxIdleWatches)
		}
		if got := srv.Counts().Watches; got > conn.MaxIdleWatches {
			t.Errorf("the server keeps %d watches, want %d at most", got, conn.MaxIdleWatches)
		}
	})
}

func TestCase08RemovingOneWatchLeavesTheOtherOfTheSameZnode(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		_, err := create(t.Context(), inc, "/x", nil)
		must(t, err)
		data, exists := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: "/x"}), inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: "/x"})
		_, _, err = inc.Get(t.Context(), "/x")
		must(t, err)
		_, err = inc.Exists(t.Context(), "/x")
		must(t, err)
		inc.Watches.Leave(data)
		inc.NewestConn().RemoveWatch(data.Key) // as if it were idle for long
		_, err = inc.Set(t.Context(), "/x", []byte("x"), -1)
		must(t, err)
		must(t, AwaitIn(within(t, time.Second), inc, exists.Fired))
		inc.Watches.Leave(exists)
		// A real server has one watch for both, and would have removed that.
		if n := srv.Counts().Requests["removeWatches"]; n != 0 {
			t.Errorf("%d watches removed, want none while the other kind is waited for", n)
		}
	})
}

func TestCase08WaitsThatEndWithoutAConnectionLeaveNoWatches(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		var ws []*conn.Watch
		for i := range 1000 {
			w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: fmt.Sprintf("/n%d", i)})
			_, err := inc.Exists(t.Context(), w.Key.Path)
			must(t, err)
			ws = append(ws, w)
		}
		srv.Stop()
		synctest.Wait()
		for _, w := range ws {
			inc.Watches.Leave(w)
		}
		synctest.Wait()
		srv.Restart()
		_, err := inc.Exists(t.Context(), "/x")
		must(t, err)
		synctest.Wait()
		if got := s.Stats().Watches; got > conn.MaxIdleWatches {
			t.Errorf("the client keeps %d watches, want %d at most", got, conn.MaxIdleWatches)
		}
		if got := srv.Counts().Watches; got > conn.MaxIdleWatches {
			t.Errorf("the server keeps %d watches, want %d at most", got, conn.MaxIdleWatches)
		}
	})
}

func TestCase08EveryWaitThatIsCancelledLeavesItsWatch(t *testing.T) {
	for name, wait := range map[string]func(ctx context.Context, inc *Incarnation) error{
		"AwaitGone": func(ctx context.Context, inc *Incarnation) error { return inc.AwaitGone(ctx, "/ours") },
		"AwaitMade": func(ctx context.Context, inc *Incarnation) error { return inc.AwaitMade(ctx, "/none") },
		"Follow": func(ctx context.Context, inc *Incarnation) error {
			return inc.Follow(ctx, "/ours", func(Node, *conn.Watch) error { return nil })
		},
		"Follow what is missing": func(ctx context.Context, inc *Incarnation) error { return inc.Follow(ctx, "/none", nil) },
	} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			inc := live(t, open(t, srv))
			must(t, second(Retry(t.Context(), inc, createCall("/ours", nil, zk.FlagEphemeral))))
			wantErr(t, wait(within(t, time.Second), inc), context.DeadlineExceeded)
			if len(inc.Watches.All()) == 0 {
				t.Errorf("%s has set no watch: the test shows nothing", name)
			}
			for _, w := range inc.Watches.All() {
				if waiters := inc.Watches.State(w).Waiters; waiters > 0 {
					t.Errorf("%s: the watch %v has %d waiters", name, w.Key, waiters)
				}
			}
		})
	}
}

func TestCase09AChangeWhileDisconnectedFiresTheWatch(t *testing.T) {
	for _, tt := range []struct {
		name   string
		key    conn.WatchKey
		change func(t *testing.T, inc *Incarnation)
		want   zk.EventType
	}{
		{"created", conn.WatchKey{Kind: conn.WatchExists, Path: "/missing"}, func(t *testing.T, inc *Incarnation) {
			_, err := create(t.Context(), inc, "/missing", nil)
			must(t, err)
		}, zk.EventNodeCreated},
		{"changed", conn.WatchKey{Kind: conn.WatchData, Path: "/there"}, func(t *testing.T, inc *Incarnation) {
			_, err := inc.Set(t.Context(), "/there", []byte("x"), -1)
			must(t, err)
		}, zk.EventNodeDataChanged},
		{"deleted, exists", conn.WatchKey{Kind: conn.WatchExists, Path: "/there"}, func(t *testing.T, inc *Incarnation) {
			must(t, remove(t.Context(), inc, "/there"))
		}, zk.EventNodeDeleted},
		{"deleted, children", conn.WatchKey{Kind: conn.WatchChildren, Path: "/there"}, func(t *testing.T, inc *Incarnation) {
			must(t, remove(t.Context(), inc, "/there"))
		}, zk.EventNodeDeleted},
		{"child", conn.WatchKey{Kind: conn.WatchChildren, Path: "/there"}, func(t *testing.T, inc *Incarnation) {
			_, err := create(t.Context(), inc, "/there/c", nil)
			must(t, err)
		}, zk.EventNodeChildrenChanged},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, b := open(t, srv), open(t, srv)
				inc, other := live(t, s), live(t, b)
				_, err := create(t.Context(), other, "/there", nil)
				must(t, err)
				w := inc.Watches.Join(tt.key)
				defer inc.Watches.Leave(w)
				switch tt.key.Kind {
				case conn.WatchExists:
					inc.Exists(t.Context(), tt.key.Path)
				case conn.WatchData:
					inc.Get(t.Context(), tt.key.Path)
				case conn.WatchChildren:
					inc.Children(t.Context(), tt.key.Path)
				}
				srv.Partition(s.ID())
				tt.change(t, other)
				srv.Disconnect(s.ID()) // the event goes down with the connection
				srv.Heal(s.ID())
				must(t, AwaitIn(t.Context(), inc, w.Fired))
				if w.Event != tt.want {
					t.Errorf("got event %v, want %v", w.Event, tt.want)
				}
			})
		})
	}
}

// Many watches are set again in several packets. If the server refuses any of them, the client connects again.
func TestCase09EveryChangeWhileDisconnectedFiresItsWatchThoughTheServerRefusesAPacketOfWatches(t *testing.T) {
	for refused := range int32(7) {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			inc, other, id := live(t, s), live(t, open(t, srv)), s.ID()
			var watches []*conn.Watch
			for i := range 500 {
				w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: fmt.Sprintf("/%d%s", i, strings.Repeat("x", 1000))})
				must(t, second(inc.Exists(t.Context(), w.Key.Path)))
				watches = append(watches, w)
			}
			var packets atomic.Int32
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpSetWatches && r.Session == id && packets.Add(1) == refused+1 {
					return zktest.Fail(zktest.CodeThrottled)
				}
				return zktest.Pass
			})
			srv.Partition(id)
			for _, w := range watches {
				must(t, second(create(t.Context(), other, w.Key.Path, nil)))
			}
			srv.Disconnect(id) // the events go down with the connection
			srv.Heal(id)
			for _, w := range watches {
				must(t, AwaitIn(within(t, testTimeout), inc, w.Fired))
			}
			if n := packets.Load(); n <= 7 {
				t.Errorf("%d packets: the test shows nothing", n)
			}
		})
	}
}

// However many packets set the watches again: a sync follows the last of them, ahead of every request. So no read over
// the new connection is older than an event over the connection before.
func TestASyncFollowsAllWatchesThatAreSetAgain(t *testing.T) {
	for _, watches := range []int{40, 240, 280, 400} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			inc, id := live(t, s), s.ID()
			for i := range watches {
				w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: fmt.Sprintf("/%d%s", i, strings.Repeat("x", 1000))})
				must(t, second(inc.Exists(t.Context(), w.Key.Path)))
			}
			var mu sync.Mutex
			var got []zktest.Op
			srv.Intercept(func(r zktest.Request) zktest.Action {
				mu.Lock()
				defer mu.Unlock()
				if r.Session == id && r.Op != zktest.OpConnect {
					got = append(got, r.Op)
				}
				return zktest.Pass
			})
			srv.Disconnect(id)
			must(t, second(inc.Exists(t.Context(), "/y")))
			mu.Lock()
			defer mu.Unlock()
			packets := (watches + 64) / 65 // each has up to 64 KiB
			want := append(slices.Repeat([]zktest.Op{zktest.OpSetWatches}, packets), zktest.OpSync, zktest.OpExists)
			if !slices.Equal(got, want) {
				t.Errorf("%d watches: %v, want %v", watches, got, want)
			}
		})
	}
}

// The server knows one watch for the data of a znode and for its existence.
func TestDataIsWatchedThoughTheWatchOfItsExistenceIsRemovedBehindTheRead(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := open(t, srv), open(t, srv)
		inc := live(t, s)
		_, err := create(t.Context(), inc, "/n", nil)
		must(t, err)
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: "/n"})
		_, err = inc.Exists(t.Context(), "/n")
		must(t, err)
		inc.Watches.Leave(w)
		srv.SetLatency(10 * time.Millisecond)
		w = inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: "/n"})
		_, _, err = inc.Get(within(t, time.Millisecond), "/n") // its reply comes when it has gone
		wantErr(t, err, context.DeadlineExceeded)
		inc.Watches.Leave(w)
		inc.NewestConn().RemoveWatch(conn.WatchKey{Kind: conn.WatchExists, Path: "/n"})
		time.Sleep(time.Second)
		w = inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: "/n"})
		defer inc.Watches.Leave(w)
		_, _, err = inc.Get(t.Context(), "/n")
		must(t, err)
		_, err = live(t, o).Set(t.Context(), "/n", []byte("x"), -1)
		must(t, err)
		must(t, AwaitIn(within(t, time.Second), inc, w.Fired))
	})
}

func TestRemovalOfAWatchThatIsWrittenInPartEndsTheConnectionAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var fail atomic.Bool
		s := open(t, srv, WithDialer(func(network, addr string, d time.Duration) (net.Conn, error) {
			c, err := srv.Dial(network, addr, d)
			return cutWriter{c, &fail}, err
		}))
		inc := live(t, s)
		MakeIdle(t, inc, "/x")
		fail.Store(true)
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: "/y"})
		_, err := inc.Exists(t.Context(), "/y")
		must(t, err)
		inc.Watches.Leave(w)
		synctest.Wait()
		if fail.Load() {
			t.Fatal("nothing was removed")
		}
		start := time.Now()
		_, err = inc.Exists(t.Context(), "/z")
		must(t, err)
		if d := time.Since(start); d > 100*time.Millisecond {
			t.Errorf("the next request was answered after %v", d)
		}
		if n := s.Stats().Reconnects; n != 1 {
			t.Errorf("%d reconnects, want 1", n)
		}
	})
}

// idleWatches returns how many watches nobody waits for.
func idleWatches(inc *Incarnation) int {
	inc.Watches.Mu.Lock()
	defer inc.Watches.Mu.Unlock()
	return len(inc.Watches.Idle)
}

// MakeIdle sets watches and leaves them, until as many are kept as can be: one
// more has some of them removed.
func MakeIdle(t *testing.T, inc *Incarnation, prefix string) {
	t.Helper()
	for i := 0; idleWatches(inc) < conn.MaxIdleWatches; i++ {
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: fmt.Sprint(prefix, i)})
		_, err := inc.Exists(t.Context(), w.Key.Path)
		must(t, err)
		inc.Watches.Leave(w)
	}
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
