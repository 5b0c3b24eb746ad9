package session

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lease"
	"github.com/zsync/zsync/internal/wire"
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

// Everybody behind takes the name in the answer to a create for what was asked for.
func TestTheAnswerToACreateNamesWhatWasAskedFor(t *testing.T) {
	for _, c := range []struct {
		path  string
		flags int32
		made  string
		ok    bool
	}{
		{"/a/b", zk.FlagPersistent, "/a/b", true},
		{"/a/b", zk.FlagContainer, "/a/b", true},
		{"/a/b", zk.FlagEphemeral, "", false},
		{"/a/b", zk.FlagEphemeral, "/a/b0000000000", false},
		{"/a/b", zk.FlagEphemeral, "/a/c", false},
		{"/a/b-", zk.FlagEphemeralSequential, "/a/b-0000000007", true},
		{"/a/b-", zk.FlagEphemeralSequential, "/a/b--2147483648", true},
		{"/a/b-", zk.FlagSequence, "/a/b-", false},
		{"/a/b-", zk.FlagSequence, "", false},
		{"/a/b-", zk.FlagSequence, "/a/b-x", false},
		{"/a/b-", zk.FlagSequence, "/z/b-0000000007", false},
	} {
		inc := &Incarnation{Manager: &Manager{}}
		reply := wire.AppendString(nil, c.made)
		single := newPending(inc.createCall(c.path, nil, c.flags))
		if _, ok := single.Reply(0, reply); ok != c.ok {
			t.Errorf("create of %s with flags %d, answered with %q: %v", c.path, c.flags, c.made, ok)
		}
		multi := newPending(multiCall([]any{&zk.CreateRequest{Path: c.path, Flags: c.flags}}))
		reply = append(append(append(words(wire.OpCreate), 0), words(0)...), reply...)
		reply = append(append(append(reply, words(-1)...), 1), words(-1)...)
		if _, ok := multi.Reply(0, reply); ok != c.ok {
			t.Errorf("transaction with a create of %s with flags %d, answered with %q: %v", c.path, c.flags, c.made, ok)
		}
	}
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
