package session

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/zktest"
)

// closings notes when the servers are asked to close a session.
func closings(srv *zktest.Server) func() (first time.Time, n int) {
	var at, n atomic.Int64
	srv.Intercept(func(r zktest.Request) zktest.Action {
		if r.Op == zktest.OpCloseSession {
			at.CompareAndSwap(0, time.Now().UnixNano())
			n.Add(1)
		}
		return zktest.Pass
	})
	return func() (time.Time, int) { return time.Unix(0, at.Load()), int(n.Load()) }
}

// Whoever holds something through a session that is given up is told of it, and
// has a tenth of the session timeout, before the servers can grant it to others.
// It is given up once, however many reasons there are.
func TestHoldersHaveTimeBeforeASessionThatIsGivenUpIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		_, err := inc.Stake(t.Context())
		must(t, err)
		closed := closings(srv)
		for range 3 {
			inc.Abandon()
		}
		start := time.Now()
		synctest.Wait()
		if !errors.Is(inc.Loss(), ErrLost) {
			t.Fatal("nobody was told")
		}
		for range 20 { // more reasons, of those who are late
			time.Sleep(testTimeout / 100)
			inc.Abandon()
		}
		next := live(t, s)
		_, err = next.Stake(t.Context())
		must(t, err)
		time.Sleep(time.Minute)
		at, n := closed()
		if took := at.Sub(start); n != 1 || took < testTimeout/10 || took > testTimeout/10+testTimeout/100 {
			t.Errorf("%d sessions were closed, the first after %v; want one after %v", n, took, testTimeout/10)
		}
		if next == inc || next.Ctx.Err() != nil {
			t.Errorf("the next session was given up too: %v", next.Loss())
		}
	})
}

// Holders have that time although the whole Session fails meanwhile, because the servers refuse the
// credentials of the next session. Whoever calls Close gives up all that he holds.
func TestHoldersHaveTimeThoughTheWholeSessionFails(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		id, start := s.ID(), time.Now()
		live(t, s).Abandon()
		live(t, s)
		s.m.fail(zk.ErrAuthFailed)
		time.Sleep(time.Until(start.Add(testTimeout/10 - time.Millisecond)))
		if !slices.Contains(srv.Sessions(), id) {
			t.Error("the servers have ended the session too early")
		}
		s.m.Close()
		if ids := srv.Sessions(); len(ids) != 0 {
			t.Errorf("sessions left: %x", ids)
		}
	})
}

func TestASessionThatIsGivenUpIsClosedWithTheSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		closed := closings(srv)
		start := time.Now()
		inc.Abandon()
		live(t, s)
		s.m.Close()
		if _, n := closed(); n != 2 || time.Since(start) > testTimeout/20 {
			t.Errorf("%d sessions were closed after %v, want both at once", n, time.Since(start))
		}
	})
}
