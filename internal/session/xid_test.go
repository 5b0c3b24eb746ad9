package session

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/zktest"
)

// A follower or observer knows the result of a request by session and xid alone.
func TestNoTwoRequestsOfASessionHaveTheSameXid(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		seen := map[string]zktest.Op{} // by session and xid
		closes := 0
		var mu sync.Mutex
		srv.Intercept(func(r zktest.Request) zktest.Action {
			mu.Lock()
			defer mu.Unlock()
			switch r.Op {
			case zktest.OpConnect, zktest.OpPing, zktest.OpAuth, zktest.OpSetWatches: // not proposed by any server
				return zktest.Pass
			case zktest.OpCloseSession:
				closes++
			}
			key := fmt.Sprintf("session %#x, xid %d", r.Session, r.Xid)
			if before, again := seen[key]; again || r.Xid <= 0 {
				t.Errorf("%s: %v, and %v before", key, r.Op, before)
			}
			seen[key] = r.Op
			if r.Op == zktest.OpCloseSession && closes == 1 {
				return zktest.DropRequest
			}
			return zktest.Pass
		})
		c := open(t, srv)
		inc := live(t, c)
		watch := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: "/w"})
		must(t, second(inc.Exists(t.Context(), "/w")))
		stake, err := inc.Stake(t.Context())
		must(t, err)
		defer stake.Drop()
		for range 3 {
			before := c.Stats().Reconnects
			srv.Disconnect(c.ID())
			for c.Stats().Reconnects == before || c.m.State() != StateConnected {
				time.Sleep(time.Millisecond)
			}
			must(t, second(create(t.Context(), inc, "/x", nil)))
			must(t, remove(t.Context(), inc, "/x"))
		}
		inc.Watches.Leave(watch)
		inc.Abandon() // its end is asked for over this connection, which breaks, and then over others
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if closes < 2 {
			t.Errorf("the servers were asked %d times to end the session, want twice at least", closes)
		}
		if len(seen) < 12 {
			t.Errorf("only %d requests were seen", len(seen))
		}
	})
}
