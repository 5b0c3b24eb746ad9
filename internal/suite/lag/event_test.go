package lag

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// An event tells of a change that the next server of the session may not have
// heard of. In these tests the server of a waiter fails just when an event has
// come, at the first thing that the waiter asks because of it, and the only
// server left to it lags behind the change.
type eventThenLag struct {
	e      *zktest.Ensemble
	lags   int            // the member that does
	waiter *zsync.Session // knows members 0 and that one
	at     int            // the third member
	other  *zsync.Session // knows that one
	struck atomic.Bool
	armed  atomic.Bool
}

// lagAfterEvent runs f in bubbles, with a follower and with the leader, 2, as the member that lags.
// Once strike has been called, that one applies nothing new for some seconds, and member 0 fails at the
// next read of the waiter. A leader answers a sync of its own client before it has applied what it has
// told its followers to be committed.
func lagAfterEvent(t *testing.T, f func(t *testing.T, x *eventThenLag)) {
	t.Run("a follower", func(t *testing.T) { lagsAfterEvent(t, 1, f) })
	t.Run("the leader", func(t *testing.T) { lagsAfterEvent(t, 2, f) })
}

func lagsAfterEvent(t *testing.T, lags int, f func(t *testing.T, x *eventThenLag)) {
	harness.VirtualTime(t, func(t *testing.T) {
		x := &eventThenLag{e: zktest.StartEnsemble(t, 3, zktest.WithTick(2*time.Second)), lags: lags, at: 3 - lags}
		a := x.e.Addrs()
		connect := func(servers string) *zsync.Session {
			s, err := zsync.Connect(t.Context(), servers, zsync.WithDialer(x.e.Dial), zsync.WithSessionTimeout(10*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		}
		x.e.Server(lags).StopAddr(a[lags]) // so that the waiter begins at member 0
		x.waiter, x.other = connect(a[0]+","+a[lags]), connect(a[x.at])
		x.e.Server(lags).RestartAddr(a[lags])
		id := x.waiter.ID()
		x.e.Server(0).Intercept(func(r zktest.Request) zktest.Action {
			read := r.Op == zktest.OpExists || r.Op == zktest.OpGetData || r.Op == zktest.OpGetChildren || r.Op == zktest.OpGetChildren2
			if r.Session == id && read && x.armed.Load() && x.struck.CompareAndSwap(false, true) {
				x.e.Server(0).StopAddr(a[0])
				return zktest.DropRequest
			}
			return zktest.Pass
		})
		f(t, x)
		if !x.struck.Load() {
			t.Error("the waiter asked nothing, so its server did not fail")
		}
	})
}

func (x *eventThenLag) strike() {
	x.e.SetLag(x.lags, 3*time.Second)
	x.armed.Store(true)
}

func wait(t *testing.T, lock func() error) <-chan error {
	t.Helper()
	got := make(chan error, 1)
	go func() { got <- lock() }()
	synctest.Wait()
	return got
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestAPermitIsNotGivenOutTwiceByAServerThatLagsBehindAnEvent(t *testing.T) {
	lagAfterEvent(t, func(t *testing.T, x *eventThenLag) {
		a, b := zsync.NewSemaphore(x.other, "/s", 1), zsync.NewSemaphore(x.waiter, "/s", 1)
		for _, s := range []*zsync.Semaphore{a, b} { // what lies around the permits is made
			if err := s.Acquire(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if err := s.Release(1); err != nil {
				t.Fatal(err)
			}
		}
		// Who does not know the limit yet goes through the gate.
		a, b = zsync.NewSemaphore(x.other, "/s", 1), zsync.NewSemaphore(x.waiter, "/s", 1)
		time.Sleep(time.Second)
		// The other is in the line first, and its permit comes while the waiter waits behind it.
		gate := make(chan struct{})
		id := x.other.ID()
		x.e.Server(x.at).Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id && r.Op == zktest.OpMulti {
				<-gate
			}
			return zktest.Pass
		})
		first := wait(t, func() error { return a.Acquire(t.Context(), 1) })
		time.Sleep(100 * time.Millisecond)
		second := wait(t, func() error { return b.Acquire(t.Context(), 1) })
		time.Sleep(100 * time.Millisecond)
		x.strike()
		close(gate)
		if err := <-first; err != nil {
			t.Fatal(err)
		}
		time.Sleep(8 * time.Second) // more than the lag, and others hold
		select {
		case err := <-second:
			if err == nil && !isClosed(a.Lost()) && !isClosed(b.Lost()) {
				t.Fatal("two permits of one are out")
			}
			t.Fatalf("the waiter has returned, with %v, though it cannot know that the permit is free", err)
		default:
		}
		x.e.SetLag(x.lags, 0) // through a server that lags for ever nothing is confirmed in time
		if err := a.Release(1); err != nil {
			t.Fatal(err)
		}
		if err := soonDone(t, x, second); err != nil {
			t.Errorf("the waiter, when the permit is free: %v", err)
		}
	})
}

func TestAPlaceInTheLineThatIsGoneIsNotServedByAServerThatLagsBehindAnEvent(t *testing.T) {
	lagAfterEvent(t, func(t *testing.T, x *eventThenLag) {
		a, b := zsync.NewMutex(x.other, "/m"), zsync.NewMutex(x.waiter, "/m")
		if err := a.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		second := wait(t, func() error { return b.Lock(t.Context()) })
		time.Sleep(100 * time.Millisecond)
		x.strike()
		// Somebody deletes the waiter's place, and the lock goes on to a third,
		// behind whom the waiter would have to wait.
		conn, _, err := zk.Connect(x.e.Addrs()[x.at:x.at+1], 10*time.Second, zk.WithDialer(x.e.Dial), zk.WithLogInfo(false))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		cs, err := a.Contenders(t.Context())
		if err != nil || len(cs) != 2 {
			t.Fatalf("contenders: %+v, %v", cs, err)
		}
		deletePlaceOf(t, conn, "/m", x.waiter.ID())
		if err := a.Unlock(); err != nil {
			t.Fatal(err)
		}
		if err := a.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(8 * time.Second) // more than the lag, and others hold
		select {
		case err := <-second:
			if err == nil && !isClosed(a.Lost()) && !isClosed(b.Lost()) {
				t.Fatal("two hold the lock")
			}
			t.Fatalf("the waiter has returned, with %v, though it cannot know that the lock is free", err)
		default:
		}
		x.e.SetLag(x.lags, 0) // through a server that lags for ever nothing is confirmed in time
		if err := a.Unlock(); err != nil {
			t.Fatal(err)
		}
		if err := soonDone(t, x, second); err != nil {
			t.Errorf("the waiter, when the lock is free: %v", err)
		}
	})
}

// A function of Once that has been run is not run by a waiter whose next server has not applied that.
func TestAOnceThatIsDoneIsNotDoneAgainThroughAServerThatLagsBehindAnEvent(t *testing.T) {
	lagAfterEvent(t, func(t *testing.T, x *eventThenLag) {
		var ran atomic.Int32
		end := make(chan struct{})
		do := func(s *zsync.Session) func() error {
			return func() error {
				return zsync.NewOnce(s, "/o").Do(t.Context(), func(context.Context) error {
					ran.Add(1)
					<-end
					return nil
				})
			}
		}
		first := wait(t, do(x.other))
		time.Sleep(100 * time.Millisecond)
		second := wait(t, do(x.waiter))
		time.Sleep(100 * time.Millisecond)
		x.strike()
		close(end)
		if err := <-first; err != nil {
			t.Fatal(err)
		}
		time.Sleep(8 * time.Second)
		x.e.SetLag(x.lags, 0)
		if err := soonDone(t, x, second); err != nil {
			t.Error(err)
		}
		if n := ran.Load(); n != 1 {
			t.Errorf("it was done %d times", n)
		}
	})
}

// soonDone returns what comes from done within a minute.
func soonDone(t *testing.T, x *eventThenLag, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		var b strings.Builder
		x.e.Dump(&b)
		t.Fatalf("the waiter still waits after a minute\n%s", b.String())
		return nil
	}
}

// deletePlaceOf deletes the ephemerals of a session below path.
func deletePlaceOf(t *testing.T, conn *zk.Conn, path string, session int64) {
	t.Helper()
	names, _, err := conn.Children(path)
	if err != nil {
		t.Fatal(err)
	}
	deleted := 0
	for _, name := range names {
		_, stat, err := conn.Get(path + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if stat.EphemeralOwner == session {
			if err := conn.Delete(path+"/"+name, -1); err != nil {
				t.Fatal(err)
			}
			deleted++
		}
	}
	if deleted == 0 {
		t.Fatalf("session %#x has no ephemeral below %s", session, path)
	}
}
