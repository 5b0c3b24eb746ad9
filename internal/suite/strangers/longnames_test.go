package strangers

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// stand makes a contender with a name of this many bytes, ahead of everybody else.
func stand(t *testing.T, s *zsync.Session, dir string, bytes, number int) (path string) {
	t.Helper()
	path = fmt.Sprintf("%s/%s-lock-%010d", dir, strings.Repeat("x", bytes), number)
	if suite.Exists(t, s, dir) == nil {
		suite.Create(t, s, dir, "")
	}
	suite.Create(t, s, path, "")
	return path
}

// A server closes the connection of a client whose packet is too long. The watches
// that a new connection sets again go in several packets, and a path that is nearly
// as long as a packet goes in one of its own.
func TestOneLongPathThatIsWatchedCostsNoConnection(t *testing.T) {
	t.Parallel()
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		stranger, s, opener := suite.Open(t, srv), suite.Open(t, srv), suite.Open(t, srv)
		long := stand(t, stranger, "/m", 1_000_000, 0)
		locked := harness.Async(func() error { return zsync.NewMutex(s, "/m").Lock(t.Context()) })
		var barriers []*zsync.Barrier
		var waits []<-chan error
		for i := range 100 {
			path := fmt.Sprintf("/b/%03d%s", i, strings.Repeat("y", 1900))
			b := zsync.NewBarrier(opener, path)
			harness.Must(t, b.Close(t.Context()))
			barriers = append(barriers, b)
			waits = append(waits, harness.Async(func() error { return zsync.NewBarrier(s, path).Wait(t.Context()) }))
		}
		synctest.Wait()
		var handshakes atomic.Int32
		id := s.ID()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpConnect && r.Session == id {
				handshakes.Add(1)
			}
			return zktest.Pass
		})
		const times = 10 // in what order the paths go is at random
		for range times {
			srv.Disconnect(id)
			time.Sleep(2 * time.Second)
			synctest.Wait()
		}
		if n := handshakes.Load(); n != times || s.Stats().Reconnects != times {
			t.Errorf("%d handshakes and %d connections behind %d disconnections", n, s.Stats().Reconnects, times)
		}
		for i, b := range barriers {
			harness.Must(t, b.Open(t.Context()))
			harness.Must(t, <-waits[i])
		}
		harness.PendingStill(t, locked)
		_, err := stranger.Txn(t.Context(), &zk.DeleteRequest{Path: long, Version: -1})
		harness.Must(t, err)
		harness.Must(t, <-locked)
	})
}

func TestContendersWithLongForeignNamesAreListedAndCostNoConnection(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		stranger, s := suite.Open(t, srv), suite.Open(t, srv)
		var long []string
		for i := range 3 {
			long = append(long, stand(t, stranger, "/m", 400_000, i))
		}
		m := zsync.NewMutex(s, "/m")
		locked := harness.Async(func() error { return m.Lock(t.Context()) })
		synctest.Wait()
		cs, err := zsync.NewMutex(s, "/m").Contenders(t.Context())
		harness.Must(t, err)
		if len(cs) != 4 || cs[0].Owner != "" {
			t.Errorf("%d contenders, the first of owner %q; want 4, and a foreign one ahead", len(cs), cs[0].Owner)
		}
		for _, path := range long {
			harness.PendingStill(t, locked)
			_, err := stranger.Txn(t.Context(), &zk.DeleteRequest{Path: path, Version: -1})
			harness.Must(t, err)
		}
		harness.Must(t, <-locked)
		for _, s := range []*zsync.Session{stranger, s} {
			if st := s.Stats(); st.Reconnects != 0 || st.Expiries != 0 {
				t.Errorf("%d connections were replaced, %d sessions lost", st.Reconnects, st.Expiries)
			}
		}
	})
}

// The numbers of others may be forged, and there may be many of them.
func TestForgedNumbersOfManyContendersCostOneMoreNothing(t *testing.T) {
	n := 2_000
	if harness.Long() {
		n = 20_000
	}
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		stranger, s := suite.Open(t, srv), suite.Open(t, srv)
		stand(t, stranger, "/m", 10, 2147483647)
		for i := 0; i < n; i += 500 {
			var ops []any
			for k := i; k < i+500; k++ {
				ops = append(ops, &zk.CreateRequest{Path: fmt.Sprintf("/m/%d-lock-%010d", k, k), Acl: zk.WorldACL(zk.PermAll)})
			}
			_, err := stranger.Txn(t.Context(), ops...)
			harness.Must(t, err)
		}
		before := s.Stats().Requests
		m := zsync.NewMutex(s, "/m")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		harness.WantErr(t, m.Lock(ctx), context.DeadlineExceeded) // they are ahead
		time.Sleep(time.Second)
		if n := s.Stats().Requests - before; n > 8 {
			t.Errorf("%d requests", n)
		}
	})
}
