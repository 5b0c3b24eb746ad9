package session

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// A deafness is servers that accept connections and say nothing, on those that
// there are as on new ones.
type deafness struct {
	srv  *zktest.Server
	mu   sync.Mutex
	deaf map[string]bool // guarded by mu
	last string          // the server that was dialled last; guarded by mu
}

func (d *deafness) set(addrs ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deaf = make(map[string]bool)
	for _, a := range addrs {
		d.deaf[a] = true
	}
}

func (d *deafness) is(addr string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.deaf[addr]
}

func (d *deafness) at() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

func (d *deafness) dial(network, addr string, limit time.Duration) (net.Conn, error) {
	server, err := d.srv.Dial(network, addr, limit)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.last = addr
	d.mu.Unlock()
	client, near := net.Pipe()
	relay := func(to, from net.Conn) {
		defer to.Close()
		p := make([]byte, 4096)
		for {
			n, err := from.Read(p)
			if n > 0 && !d.is(addr) {
				to.Write(p[:n])
			}
			if err != nil {
				return
			}
		}
	}
	go relay(server, near)
	go relay(near, server)
	return client, nil
}

var fiveAddrs = []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4", "127.0.0.1:5"}

// With two of five servers that accept and say nothing, the one that a session is
// connected to among them, nothing that it holds is lost; and who waits is granted
// in time, in the same session.
func TestTwoOfFiveServersThatHangCostNobodyTheSession(t *testing.T) {
	rounds := 12
	if harness.Long() {
		rounds = 300
	}
	for seed := range rounds {
		harness.VirtualTime(t, func(t *testing.T) {
			srv := zktest.Start(t, zktest.WithAddrs(fiveAddrs...))
			rnd := rand.New(rand.NewPCG(uint64(seed), 3))
			holder, waiter := &deafness{srv: srv}, &deafness{srv: srv}
			connect := func(d *deafness) *zsync.Session {
				s, err := zsync.Connect(t.Context(), strings.Join(srv.Addrs(), ","), zsync.WithDialer(d.dial), zsync.WithSessionTimeout(harness.Timeout))
				harness.Must(t, err)
				t.Cleanup(func() { s.Close() })
				return s
			}
			a, b := connect(holder), connect(waiter)
			idA, idB := a.ID(), b.ID()
			held, wanted := zsync.NewMutex(a, "/held"), zsync.NewMutex(b, "/wanted")
			first := zsync.NewMutex(a, "/wanted")
			harness.Must(t, held.Lock(t.Context()))
			harness.Must(t, first.Lock(t.Context()))
			got := harness.Async(func() error { return wanted.Lock(t.Context()) })
			time.Sleep(time.Duration(rnd.Int64N(int64(harness.Timeout))))
			harness.PendingStill(t, got)

			// Theirs, and another.
			hang := func(d *deafness) {
				mine := d.at()
				other := fiveAddrs[rnd.IntN(5)]
				for other == mine {
					other = fiveAddrs[rnd.IntN(5)]
				}
				d.set(mine, other)
			}
			hang(waiter)
			harness.Must(t, first.Unlock())
			start := time.Now()
			harness.Must(t, <-got)
			if took := time.Since(start); took > harness.Timeout*3/4 {
				t.Errorf("seed %d: granted %v after it was free", seed, took)
			}
			harness.Must(t, wanted.Unlock())
			hang(holder)
			for range 4 { // and whichever comes next
				time.Sleep(harness.Timeout)
				if harness.Closed(held.Lost()) {
					t.Fatalf("seed %d: what is held is lost: %v", seed, held.Unlock())
				}
				hang(holder)
			}
			holder.set()
			time.Sleep(harness.Timeout)
			harness.Must(t, held.Unlock())
			if a.ID() != idA || b.ID() != idB {
				t.Errorf("seed %d: sessions %s, want those of before", seed, fmt.Sprint(a.ID() == idA, b.ID() == idB))
			}
		})
		if t.Failed() {
			return
		}
	}
}
