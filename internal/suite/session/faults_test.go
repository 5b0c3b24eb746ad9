package session

import (
	"context"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/ensemble"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/netproxy"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

// These tests bring network faults to sessions over TCP: through a proxy, to an
// in-process server or to a real ensemble, and by hurting the servers of the
// latter.

// proxied gives every session a proxy of its own. It uses real time.
func proxied(t *testing.T, f func(t *testing.T, connect func(opts ...zsync.Option) (*zsync.Session, *netproxy.Proxy))) {
	t.Helper()
	servers := os.Getenv("ZSYNC_TEST_SERVERS")
	if servers == "" {
		servers = strings.Join(zktest.Start(t, zktest.WithTick(100*time.Millisecond)).Addrs(), ",")
	}
	chroot := "/zsync-test-" + uuid.NewString()
	f(t, func(opts ...zsync.Option) (*zsync.Session, *netproxy.Proxy) {
		t.Helper()
		p := netproxy.Start(t, servers)
		opts = append([]zsync.Option{zsync.WithSessionTimeout(40 * time.Second)}, opts...)
		s, err := zsync.Connect(harness.Within(t, time.Minute), p.Addr()+chroot, opts...)
		if err != nil {
			t.Fatalf("Connect: %v", err)
		}
		t.Cleanup(func() { s.Close() })
		return s, p
	})
}

func TestPartitionedHolderSeesLostFirstOverTCP(t *testing.T) {
	t.Parallel()
	rounds := 1
	if os.Getenv("ZSYNC_TEST_LONG") != "" {
		rounds = 30
	}
	proxied(t, func(t *testing.T, connect func(...zsync.Option) (*zsync.Session, *netproxy.Proxy)) {
		// The loss is told half a second before the servers end the session. On a busy machine a
		// process may stand still for as long, the server and the client alike; then both are
		// late, in any order, and the round says nothing. It is tried again, a few times.
		const timeout, early, spare = 5 * time.Second, 500 * time.Millisecond, 10
		stood, silent := harness.StoodStill(t), 0
		a, proxy := connect(zsync.WithSessionTimeout(timeout))
		b, _ := connect()
		ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		ctx := harness.Within(t, 10*time.Minute)
		for round := 0; round < rounds; round++ {
			harness.Must(t, ma.Lock(ctx))
			lost := ma.Lost()
			stood()
			got := harness.Async(func() error { return mb.Lock(ctx) })
			// The cut falls anywhere between two pings.
			harness.Pause(t, rand.N(timeout*2/5))
			proxy.Partition()
			harness.Must(t, <-got)
			if !harness.Closed(lost) {
				still := stood()
				if silent++; still < early/2 || silent > spare {
					t.Fatalf("Lock returned before the former holder's Lost was closed; the process has stood still for %v at most", still)
				}
				round--
				<-lost
			}
			harness.WantErr(t, ma.Unlock(), zsync.ErrLost)
			harness.Must(t, mb.Unlock())
			proxy.Disconnect()
			proxy.Heal()
		}
	})
}

func TestLostRequestsAndRepliesAreResolvedOverTCP(t *testing.T) {
	proxied(t, func(t *testing.T, connect func(...zsync.Option) (*zsync.Session, *netproxy.Proxy)) {
		s, proxy := connect()
		other, _ := connect()
		m := zsync.NewMutex(s, "/m")
		ctx := harness.Within(t, 5*time.Minute)
		harness.Must(t, m.Lock(ctx))
		harness.Must(t, m.Unlock())
		for _, op := range []int32{wire.OpCreate, 2 /* delete */, wire.OpGetChildren2} {
			for _, fault := range []netproxy.Verdict{netproxy.DropRequest, netproxy.DropReply} {
				var done atomic.Bool
				proxy.OnRequest(func(o, _ int32) netproxy.Verdict {
					if o == op && done.CompareAndSwap(false, true) {
						return fault
					}
					return netproxy.Pass
				})
				id := s.ID()
				harness.Must(t, m.Lock(ctx))
				harness.Must(t, inside.Manager(other).During(ctx, func(inc *session.Incarnation) error { return inc.Sync(ctx, inside.Manager(other).Full("/m")) }))
				if n := len(suite.ChildrenOf(t, other, "/m")); n != 1 {
					t.Errorf("op %d, fault %d: %d contenders, want 1", op, fault, n)
				}
				harness.Must(t, m.Unlock())
				om := zsync.NewMutex(other, "/m")
				harness.Must(t, om.Lock(ctx))
				harness.Must(t, om.Unlock())
				if !done.Load() {
					t.Errorf("op %d was never sent", op)
				}
				if s.ID() != id {
					t.Errorf("op %d, fault %d: the session was lost", op, fault)
				}
			}
		}
	})
}

func TestHoldOutlivesTheServersThatAreKilledOrPaused(t *testing.T) {
	e := ensemble.Faults(t)
	s, err := zsync.Connect(harness.Within(t, time.Minute), e.Servers()+"/zsync-test-"+uuid.NewString(), zsync.WithSessionTimeout(time.Minute))
	harness.Must(t, err)
	defer s.Close()
	m := zsync.NewMutex(s, "/m")
	ctx := harness.Within(t, 5*time.Minute)
	harness.Must(t, m.Lock(ctx))
	for i := range e.Addrs() {
		e.Kill(i + 1)
		_, err := m.Token(ctx)
		harness.Must(t, err)
		_, err = m.Contenders(ctx) // some server answers
		harness.Must(t, err)
		e.Restart(i + 1)
	}
	e.Pause(e.Leader())
	_, err = m.Contenders(ctx)
	harness.Must(t, err)
	if harness.Closed(m.Lost()) {
		t.Error("the hold was lost although a quorum was there all the time")
	}
	harness.Must(t, m.Unlock())
}

func TestEveryServerDownAndUpAgain(t *testing.T) {
	e := ensemble.Faults(t)
	s, err := zsync.Connect(harness.Within(t, time.Minute), e.Servers()+"/zsync-test-"+uuid.NewString(), zsync.WithSessionTimeout(40*time.Second))
	harness.Must(t, err)
	defer s.Close()
	m, n := zsync.NewMutex(s, "/m"), zsync.NewMutex(s, "/n")
	ctx := harness.Within(t, 5*time.Minute)
	harness.Must(t, m.Lock(ctx))
	e.Kill(1, 2, 3)
	start := time.Now()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	// Neither waits for the servers, which come back only after both, nor for the end of
	// the session. A process may stand still for seconds on a busy machine: what they
	// take besides is tested in virtual time.
	harness.WantErr(t, n.Lock(short), context.DeadlineExceeded)
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("Lock with a context of 50ms took %v", d)
	}
	start = time.Now()
	harness.Must(t, m.Unlock())
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("Unlock took %v", d)
	}
	e.Restart(1, 2, 3)
	harness.Must(t, n.Lock(ctx))
	for len(suite.ChildrenOf(t, s, "/m")) > 0 {
		if ctx.Err() != nil {
			t.Fatal("the znode of the unlocked Mutex stays")
		}
		harness.Pause(t, 50*time.Millisecond)
	}
	harness.Must(t, n.Unlock())
}
