package session

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/lease"
	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

func TestCase01NoCallOfAnExpiredSessionRunsInTheNext(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		must(t, second(create(t.Context(), inc, "/m", nil)))
		srv.Stop()
		// Calls that go-zookeeper queues and would send once it is connected
		// again, in whatever session that may be.
		var calls []*Pending[string]
		for range 5 {
			p := &Pending[string]{Done: make(chan struct{})}
			calls = append(calls, p)
			go func() {
				defer close(p.Done)
				p.Val, p.Err = Retry(t.Context(), inc, createCall("/m/x-", nil, zk.FlagEphemeralSequential))
			}()
		}
		srv.Expire(inc.ID.Load())
		srv.Restart()
		for _, p := range calls {
			if _, err := p.Wait(t.Context(), inc); err == nil {
				t.Error("a call of the expired session returned nil")
			}
		}
		time.Sleep(time.Minute)
		if now := live(t, s); now == inc {
			t.Error("the incarnation outlived its session")
		}
		if n := childrenOf(t, s, "/m"); len(n) != 0 {
			t.Errorf("calls of the expired session ran in the next: %v", n)
		}
	})
}

func TestCase03TheLastContactIsWhenTheAnsweredRequestWasSent(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		heard := func(what string, want time.Time, s *testSession) {
			t.Helper()
			inc := live(t, s)
			inc.LeaseMu.Lock()
			defer inc.LeaseMu.Unlock()
			if got := inc.Lease.Heard.Mono; !got.Equal(want) {
				t.Errorf("%s: heard of it %v after it was sent", what, got.Sub(want))
			}
		}
		srv.SetLatency(time.Second)
		sent := time.Now()
		s := open(t, srv)
		heard("handshake", sent, s)
		connected := time.Now()
		every := lease.PingEvery(time.Duration(live(t, s).Timeout.Load()))
		time.Sleep(every + 2200*time.Millisecond) // the first ping has been answered
		heard("ping", connected.Add(every), s)
		sent = time.Now()
		_, err := live(t, s).Exists(t.Context(), "/x")
		must(t, err)
		heard("request", sent, s)
	})
}

// A reply may be of hundreds of megabytes. What it costs is a few times that.
func TestAListingCostsAFewTimesItsSize(t *testing.T) {
	const names = 1 << 20
	reply := words(names)
	for i := range names {
		reply = wire.AppendString(reply, fmt.Sprintf("%08x", i))
	}
	for name, reply := range map[string][]byte{
		"of names":         reply,
		"of empty strings": append(words(2*names), make([]byte, 8*names)...),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s := wire.Scanner{Rest: reply}
		got := s.Strings()
		runtime.ReadMemStats(&after)
		if cost := int(after.TotalAlloc - before.TotalAlloc); cost > 5*len(reply)/2 || s.Bad {
			t.Errorf("%s: %d bytes, of which %d names are made, cost %d", name, len(reply), len(got), cost)
		}
	}
}

// While a machine sleeps, its monotonic clock stands still, but other clients go on.
func TestALapseCountsTheSleepOfTheMachine(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		l := live(t, open(t, srv)).Lapse()
		if l.Outage() {
			t.Error("an outage at once")
		}
		l.at.Wall = l.at.Wall.Add(-ReleaseTime)
		if !l.Outage() {
			t.Errorf("no outage after a sleep of %v", ReleaseTime)
		}
	})
}

// Nobody has held anything through a session that was never established, so its end is no loss, though a
// server has granted it.
func TestASessionThatIsNotEstablishedIsNotLost(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpAuth { // the server dies between its reply to the handshake and that to the credentials
				srv.Stop()
			}
			return zktest.Pass
		})
		cfg := testConfig()
		cfg.Dialer, cfg.Auths = srv.Dial, []conn.Auth{{Scheme: "digest", Credentials: []byte("u:p")}}
		m := New(srv.Addrs(), "", cfg)
		defer m.Close()
		time.Sleep(3 * testTimeout)
		srv.Intercept(nil)
		srv.Restart()
		must(t, m.Connect(within(t, testTimeout)))
		if n := m.Expiries.Load(); n != 0 {
			t.Errorf("%d sessions were lost", n)
		}
	})
}
