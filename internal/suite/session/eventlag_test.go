package session

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

func TestWhatAnEventHasToldIsNotTakenBackByAServerThatLags(t *testing.T) {
	for _, c := range []struct {
		kind zktest.Op
		read func(t *testing.T, inc *session.Incarnation) (old bool)
	}{
		{zktest.OpGetData, func(t *testing.T, inc *session.Incarnation) bool {
			data, _, err := inc.Get(t.Context(), "/x")
			harness.Must(t, err)
			return string(data) != "new"
		}},
		{zktest.OpExists, func(t *testing.T, inc *session.Incarnation) bool {
			stat, err := inc.Exists(t.Context(), "/x")
			harness.Must(t, err)
			return stat == nil || stat.Version == 0
		}},
		{zktest.OpGetChildren2, func(t *testing.T, inc *session.Incarnation) bool {
			names, _, err := inc.Children(t.Context(), "/x")
			harness.Must(t, err)
			return len(names) == 0
		}},
	} {
		t.Run(c.kind.String(), func(t *testing.T) {
			suite.AfterEvent(t, nil, func(t *testing.T, w, p *zsync.Session, strike func() (mend func())) {
				inc := inside.Live(t, w)
				_, err := znodes.Create(t.Context(), inc, "/x", []byte("old"))
				harness.Must(t, err)
				change := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: "/x"})
				_, _, err = inc.Get(t.Context(), "/x")
				harness.Must(t, err)
				strike()
				_, err = p.Txn(t.Context(), &zk.CreateRequest{Path: "/x/y"}, &zk.SetDataRequest{Path: "/x", Data: []byte("new"), Version: -1})
				harness.Must(t, err)
				<-change.Fired
				inc.Watches.Leave(change)
				if c.read(t, inc) {
					t.Error("an event tells of a change, and a read behind it does not show it")
				}
			})
		})
	}
}

func TestOnceRunsOnceWhenTheServerFailsBehindTheNotificationAndTheNextLags(t *testing.T) {
	suite.AfterEvent(t, nil, func(t *testing.T, w, p *zsync.Session, strike func() (mend func())) {
		var ran atomic.Int32
		begun, end := make(chan struct{}), make(chan struct{})
		first := harness.Async(func() error {
			return zsync.NewOnce(p, "/o").Do(t.Context(), func(context.Context) error {
				ran.Add(1)
				close(begun)
				<-end
				return nil
			})
		})
		<-begun
		second := harness.Async(func() error {
			return zsync.NewOnce(w, "/o").Do(t.Context(), func(context.Context) error {
				ran.Add(1)
				return nil
			})
		})
		synctest.Wait()
		strike()
		close(end)
		harness.Must(t, <-first)
		harness.Must(t, <-second)
		if n := ran.Load(); n != 1 {
			t.Errorf("ran %d times", n)
		}
	})
}

func TestServerThatCannotCatchUpIsNotBelieved(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		b := zsync.NewBarrier(s, "/b")
		harness.Must(t, b.Close(t.Context()))
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
		harness.PendingStill(t, harness.Async(func() error { return b.Wait(harness.Within(t, time.Second)) }))
		if n := s.Stats().Reconnects - before; refused != 3 || n < 4 {
			t.Errorf("%d connections for %d that could not catch up; want one more", n, refused)
		}
	})
}
