package session

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/zktest"
)

func TestCase01NoCallOfAnExpiredSessionRunsInTheNext(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		must(t, inc.MakeDir(t.Context(), Dir{Path: "/m"}))
		srv.Stop()
		// Calls that go-zookeeper queues and would send once it is connected
		// again, in whatever session that may be.
		var calls []*pending[string]
		for range 5 {
			p := &pending[string]{Done: make(chan struct{})}
			calls = append(calls, p)
			go func() {
				defer close(p.Done)
				p.val, p.err = retry(t.Context(), inc, inc.createCall("/m/x-", nil, zk.FlagEphemeralSequential))
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
			inc.LiveMu.Lock()
			defer inc.LiveMu.Unlock()
			if got := inc.Heard.Mono; !got.Equal(want) {
				t.Errorf("%s: heard of it %v after it was sent", what, got.Sub(want))
			}
		}
		srv.SetLatency(time.Second)
		sent := time.Now()
		s := open(t, srv)
		heard("handshake", sent, s)
		connected := time.Now()
		time.Sleep(testTimeout/3 + 2500*time.Millisecond) // the first ping has been answered
		heard("ping", connected.Add(testTimeout/3), s)
		sent = time.Now()
		_, err := live(t, s).Exists(t.Context(), "/x")
		must(t, err)
		heard("request", sent, s)
	})
}
