package zsync

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync/zktest"
)

// longTests reports whether ZSYNC_TEST_LONG asks for the long run of a test.
func longTests() bool { return os.Getenv("ZSYNC_TEST_LONG") != "" }

// seeds runs f in a bubble of its own with one random source after another:
// 100, or 1,000 in a long run. The first failure ends it and names the seed;
// ZSYNC_TEST_SEED runs that one alone.
func seeds(t *testing.T, f func(t *testing.T, srv *zktest.Server, rnd *rand.Rand)) {
	t.Helper()
	n := 100
	if longTests() {
		n = 1000
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
