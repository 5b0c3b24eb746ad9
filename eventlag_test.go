package zsync_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// afterEvent runs f with two sessions of different servers. Once strike has
// been called, the server of the first fails at its next read, which is lost,
// and the session goes on at a server that has seen nothing since strike was
// called, until mend is. Each request passes hook, if there is one, before it is carried out.
func afterEvent(t *testing.T, hook func(zktest.Request), f func(t *testing.T, w, p *zsync.Session, strike func() (mend func()))) {
	t.Helper()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a := srv.Addrs()
		at := func(addrs string) *zsync.Session {
			s, err := zsync.Connect(t.Context(), addrs, zsync.WithDialer(srv.Dial), zsync.WithSessionTimeout(testTimeout))
			must(t, err)
			t.Cleanup(func() { s.Close() })
			return s
		}
		srv.StopAddr(a[1])
		w, p := at(a[0]+","+a[1]), at(a[2])
		srv.RestartAddr(a[1])
		wid := w.ID()
		var armed, struck atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if hook != nil {
				hook(r)
			}
			if r.Session == wid && armed.Load() && isRead(r) && struck.CompareAndSwap(false, true) {
				srv.StopAddr(a[0])
				return zktest.DropRequest
			}
			return zktest.Pass
		})
		f(t, w, p, func() (mend func()) {
			srv.Freeze(a[1])
			armed.Store(true)
			return func() { srv.Thaw(a[1]) }
		})
		if !struck.Load() {
			t.Error("the server did not fail")
		}
	}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
}

// isRead accepts the requests that read one znode, or list it.
func isRead(r zktest.Request) bool {
	return r.Op == zktest.OpExists || r.Op == zktest.OpGetData || r.Op == zktest.OpGetChildren2
}

func TestWhatAnEventHasToldIsNotTakenBackByAServerThatLags(t *testing.T) {
	for _, c := range []struct {
		kind zktest.Op
		read func(t *testing.T, inc *session.Incarnation) (old bool)
	}{
		{zktest.OpGetData, func(t *testing.T, inc *session.Incarnation) bool {
			data, _, err := inc.Get(t.Context(), "/x")
			must(t, err)
			return string(data) != "new"
		}},
		{zktest.OpExists, func(t *testing.T, inc *session.Incarnation) bool {
			stat, err := inc.Exists(t.Context(), "/x")
			must(t, err)
			return stat == nil || stat.Version == 0
		}},
		{zktest.OpGetChildren2, func(t *testing.T, inc *session.Incarnation) bool {
			names, _, err := inc.Children(t.Context(), "/x")
			must(t, err)
			return len(names) == 0
		}},
	} {
		t.Run(c.kind.String(), func(t *testing.T) {
			afterEvent(t, nil, func(t *testing.T, w, p *zsync.Session, strike func() (mend func())) {
				inc := live(t, w)
				_, err := inc.Create(t.Context(), "/x", []byte("old"))
				must(t, err)
				change := inc.Watches.Join(session.WatchKey{Kind: session.WatchData, Path: "/x"})
				_, _, err = inc.Get(t.Context(), "/x")
				must(t, err)
				strike()
				_, err = p.Txn(t.Context(), &zk.CreateRequest{Path: "/x/y"}, &zk.SetDataRequest{Path: "/x", Data: []byte("new"), Version: -1})
				must(t, err)
				<-change.Fired
				inc.Watches.Leave(change)
				if c.read(t, inc) {
					t.Error("an event tells of a change, and a read behind it does not show it")
				}
			})
		})
	}
}

func TestNoPermitTooManyWhenTheServerFailsBehindANotificationAndTheNextLags(t *testing.T) {
	var taker atomic.Int64 // whose transactions are held up
	var hold chan struct{} // made in the bubble
	hook := func(r zktest.Request) {
		if r.Session == taker.Load() && r.Op == zktest.OpMulti {
			<-hold
		}
	}
	afterEvent(t, hook, func(t *testing.T, w, p *zsync.Session, strike func() (mend func())) {
		hold = make(chan struct{})
		sp, sw := zsync.NewSemaphore(p, "/s", 1), zsync.NewSemaphore(w, "/s", 1)
		for _, m := range []*zsync.Semaphore{sp, sw} { // makes the containers
			must(t, m.Acquire(t.Context(), 1))
			must(t, m.Release(1))
		}
		zsync.ThroughTheGate(sp)
		zsync.ThroughTheGate(sw)
		taker.Store(p.ID())
		gotP := async(func() error { return sp.Acquire(t.Context(), 1) })
		synctest.Wait() // it has the gate, and has found the permit free
		gotW := async(func() error { return sw.Acquire(t.Context(), 1) })
		synctest.Wait() // it waits at the gate
		mend := strike()
		close(hold)
		must(t, <-gotP)
		time.Sleep(2 * time.Second)
		pendingStill(t, gotW)
		mend()
		must(t, sp.Release(1))
		must(t, <-gotW)
	})
}

func TestOnceRunsOnceWhenTheServerFailsBehindTheNotificationAndTheNextLags(t *testing.T) {
	afterEvent(t, nil, func(t *testing.T, w, p *zsync.Session, strike func() (mend func())) {
		var ran atomic.Int32
		begun, end := make(chan struct{}), make(chan struct{})
		first := async(func() error {
			return zsync.NewOnce(p, "/o").Do(t.Context(), func(context.Context) error {
				ran.Add(1)
				close(begun)
				<-end
				return nil
			})
		})
		<-begun
		second := async(func() error {
			return zsync.NewOnce(w, "/o").Do(t.Context(), func(context.Context) error {
				ran.Add(1)
				return nil
			})
		})
		synctest.Wait()
		strike()
		close(end)
		must(t, <-first)
		must(t, <-second)
		if n := ran.Load(); n != 1 {
			t.Errorf("ran %d times", n)
		}
	})
}

func TestServerThatCannotCatchUpIsNotBelieved(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		b := zsync.NewBarrier(s, "/b")
		must(t, b.Close(t.Context()))
		refused := 0
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpSync && refused < 3 {
				refused++
				return zktest.Fail(zktest.CodeThrottled)
			}
			return zktest.Pass
		})
		before := s.Stats().Reconnects
		srv.Disconnect(s.ID())
		time.Sleep(time.Second)
		pendingStill(t, async(func() error { return b.Wait(within(t, time.Second)) }))
		if n := s.Stats().Reconnects - before; refused != 3 || n < 4 {
			t.Errorf("%d connections for %d that could not catch up; want one more", n, refused)
		}
	})
}
