package suite

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// This file causes faults at chosen requests of a session. Random faults are the business of
// package harness.

// RequestsOf calls f for each request of a session, one at a time, with its number from 1. f
// returns the action for it. f may wait for another session.
func RequestsOf(srv *zktest.Server, s *zsync.Session, f func(n int, r zktest.Request) zktest.Action) {
	var mu sync.Mutex // because requests of an old and of a new connection can be concurrent
	id, n := s.ID(), 0
	srv.Intercept(func(r zktest.Request) zktest.Action {
		switch {
		case r.Session != id, r.Op == zktest.OpPing, r.Op == zktest.OpConnect, r.Op == zktest.OpCloseSession:
			return zktest.Pass
		}
		mu.Lock()
		defer mu.Unlock()
		n++
		return f(n, r)
	})
}

// MultisOf calls the function `act` for each multi, with its number from 1. It leaves out the
// multis of the session `but`. The result of `act` is the action for the multi.
func MultisOf(srv *zktest.Server, but *zsync.Session, act func(n int, session int64) zktest.Action) {
	var n atomic.Int32
	srv.Intercept(func(r zktest.Request) zktest.Action {
		if r.Op != zktest.OpMulti || r.Session == but.ID() {
			return zktest.Pass
		}
		return act(int(n.Add(1)), r.Session)
	})
}

// The type `mishap` is a fault at a single request of a session.
type mishap struct {
	name   string
	strike func(srv *zktest.Server, session int64) zktest.Action
}

var mishaps = []mishap{
	{"request lost", func(*zktest.Server, int64) zktest.Action { return zktest.DropRequest }},
	{"reply lost", func(*zktest.Server, int64) zktest.Action { return zktest.DropReply }},
	{"session ended before", func(srv *zktest.Server, id int64) zktest.Action {
		srv.Expire(id)
		return zktest.DropRequest
	}},
	{"session ended after", func(srv *zktest.Server, id int64) zktest.Action {
		time.AfterFunc(time.Nanosecond, func() { srv.Expire(id) })
		return zktest.DropReply
	}},
	{"cut off until the session is over", func(srv *zktest.Server, id int64) zktest.Action {
		srv.Partition(id)
		time.AfterFunc(3*harness.Timeout, func() { srv.Heal(id) })
		return zktest.Pass
	}},
}

// EachRequest runs f once for each mishap and each request. In the k'th run, the mishap hits the
// k'th request after f has called the function `arm`. A request counts only if it belongs to the
// ZooKeeper session that the argument of `arm` has at that moment.
func EachRequest(t *testing.T, f func(t *testing.T, srv *zktest.Server, arm func(*zsync.Session))) {
	t.Helper()
	for _, m := range mishaps {
		for k := int64(1); ; k++ {
			var seen, victim atomic.Int64
			ok := t.Run(fmt.Sprintf("%s %d", m.name, k), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					srv.Intercept(func(r zktest.Request) zktest.Action {
						switch r.Op {
						case zktest.OpConnect, zktest.OpPing, zktest.OpCloseSession, zktest.OpSetWatches:
							return zktest.Pass
						}
						if id := victim.Load(); id == 0 || r.Session != id || seen.Add(1) != k {
							return zktest.Pass
						}
						return m.strike(srv, r.Session)
					})
					f(t, srv, func(s *zsync.Session) { victim.Store(s.ID()) })
				})
			})
			if !ok || seen.Load() < k {
				break
			}
		}
	}
}

// AfterEvent runs f with two sessions, w and p, at different servers. After f has called
// strike, the server of w loses the next read of w and stops. Then w continues at another
// server, whose tree does not change between the calls of strike and mend. If hook is not
// nil, it gets each request before the server carries it out.
func AfterEvent(t *testing.T, hook func(zktest.Request), f func(t *testing.T, w, p *zsync.Session, strike func() (mend func()))) {
	t.Helper()
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a := srv.Addrs()
		at := func(addrs string) *zsync.Session {
			s, err := zsync.Connect(t.Context(), addrs, zsync.WithDialer(srv.Dial), zsync.WithSessionTimeout(harness.Timeout))
			harness.Must(t, err)
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

// isRead accepts requests that read a znode or its children.
func isRead(r zktest.Request) bool {
	return r.Op == zktest.OpExists || r.Op == zktest.OpGetData || r.Op == zktest.OpGetChildren2
}

// Ephemerals returns the paths of a session's ephemeral znodes.
func Ephemerals(srv *zktest.Server, id int64) (paths []string) {
	var b strings.Builder
	srv.Dump(&b)
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, fmt.Sprintf("ephemeral of %#x", id)) {
			paths = append(paths, strings.Fields(line)[0])
		}
	}
	return paths
}
