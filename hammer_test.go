package zsync

import (
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync/zktest"
)

// longTests reports whether ZSYNC_TEST_LONG asks for the long run of a test.
func longTests() bool { return os.Getenv("ZSYNC_TEST_LONG") != "" }

// seeds runs f in a bubble of its own with one random source after another:
// 100, 8 under the race detector, or 1,000 in a long run. The first failure ends it and names the seed;
// ZSYNC_TEST_SEED runs that one alone.
func seeds(t *testing.T, f func(t *testing.T, srv *zktest.Server, rnd *rand.Rand)) {
	t.Helper()
	t.Parallel()
	n := 100
	switch {
	case longTests():
		n = 1000
	case underRace:
		n = 8
	}
	only := os.Getenv("ZSYNC_TEST_SEED")
	for seed := range n {
		if only != "" && only != strconv.Itoa(seed) {
			continue
		}
		ok := t.Run(strconv.Itoa(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				f(t, srv, rand.New(rand.NewPCG(uint64(seed), 2)))
			})
		})
		if !ok {
			return
		}
	}
}

// chaos hurts sessions at random until the channel is closed: it expires them,
// drops their connections, partitions them for a while, and loses requests and
// replies. When it returns everything is whole again. rnd is chaos's own.
func chaos(t testing.TB, srv *zktest.Server, rnd *rand.Rand, sessions []*Session, until <-chan struct{}) {
	t.Helper()
	var mu sync.Mutex
	loss := rnd.Float64() * 0.02
	srv.Intercept(func(r zktest.Request) zktest.Action {
		if r.Op == zktest.OpConnect || r.Op == zktest.OpPing || r.Op == zktest.OpCloseSession {
			return zktest.Pass
		}
		mu.Lock()
		defer mu.Unlock()
		switch x := rnd.Float64(); {
		case x < loss:
			return zktest.DropRequest
		case x < 2*loss:
			return zktest.DropReply
		case x < 4*loss:
			return zktest.Delay(time.Duration(rnd.IntN(20)) * time.Millisecond)
		}
		return zktest.Pass
	})
	defer srv.Intercept(nil)
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n)
	}
	for {
		select {
		case <-until:
			return
		case <-time.After(time.Duration(draw(1000)) * time.Millisecond):
		}
		id := sessions[draw(len(sessions))].ID()
		if id == 0 {
			continue
		}
		switch draw(6) {
		case 0:
			srv.Expire(id)
		case 1:
			srv.Partition(id)
			select {
			case <-until:
			case <-time.After(time.Duration(draw(20_000)) * time.Millisecond):
			}
			srv.Heal(id)
		default:
			srv.Disconnect(id)
		}
	}
}

// onServers runs f, a hammer of about a minute, on the ensemble that
// ZSYNC_TEST_SERVERS names, if ZSYNC_TEST_LONG is set. The connections of its
// sessions break all the time.
func onServers(t *testing.T, f func(t *testing.T, connect func(...Option) *Session)) {
	t.Helper()
	if os.Getenv("ZSYNC_TEST_SERVERS") == "" || !longTests() {
		t.Skip("needs ZSYNC_TEST_SERVERS and ZSYNC_TEST_LONG")
	}
	t.Parallel()
	var mu sync.Mutex
	var conns []net.Conn
	dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
		c, err := net.DialTimeout(network, addr, timeout)
		if err == nil {
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
		}
		return c, err
	}
	stop := make(chan struct{})
	var hurt sync.WaitGroup
	hurt.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(rand.N(200 * time.Millisecond)):
			}
			mu.Lock()
			if len(conns) > 0 {
				i := rand.IntN(len(conns))
				conns[i].Close()
				conns = slices.Delete(conns, i, i+1)
			}
			mu.Unlock()
		}
	})
	defer hurt.Wait()
	defer close(stop)
	anywhere(t, func(t *testing.T, connect func(...Option) *Session) {
		f(t, func(opts ...Option) *Session {
			return connect(append([]Option{WithDialer(dial), WithSessionTimeout(20 * time.Second)}, opts...)...)
		})
	})
}
