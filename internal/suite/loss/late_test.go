package loss

import (
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// wantToldFirst waits until another session has been granted the Mutex of /m, and checks that
// its holder was told of the loss before.
func wantToldFirst(t *testing.T, lost <-chan struct{}, granted <-chan error) {
	t.Helper()
	harness.Must(t, <-granted)
	select {
	case <-lost:
	default:
		start := time.Now()
		<-lost
		t.Errorf("two sessions held the Mutex for %v", time.Since(start).Round(time.Millisecond))
	}
}

func grant(t *testing.T, s *zsync.Session) <-chan error {
	granted := make(chan error, 1)
	go func() { granted <- zsync.NewMutex(s, "/m").Lock(t.Context()) }()
	return granted
}

// The leader, 4, proposes the confirmation that the session makes at member 1. Member 0 agrees;
// the answer of member 1 is late, and 1, 2 and 3 elect another leader, which gives the session its
// timeout from then on. The client comes to member 0, which still follows 4, and confirms its
// session again. Now the answer arrives: 4 commits the first confirmation, which proves nothing
// of the second.
func TestTheResultOfAConfirmationOverAnotherConnectionConfirmsNothing(t *testing.T) {
	harness.InMemory(t)
	harness.VirtualTime(t, func(t *testing.T) {
		const timeout = 10 * time.Second
		e := zktest.StartEnsemble(t, 5, zktest.WithTick(2*time.Second), zktest.WithSessionTimeouts(timeout, timeout))
		route := suite.NewRoute(e, 0)
		a, err := zsync.Connect(t.Context(), e.Addr(), zsync.WithDialer(route.Dial), zsync.WithSessionTimeout(timeout))
		harness.Must(t, err)
		defer a.Close()
		m := zsync.NewMutex(a, "/m")
		harness.Must(t, m.Lock(t.Context()))
		lost := m.Lost()
		time.Sleep(50 * time.Millisecond)
		e.Server(1).Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpDelete && r.Session == a.ID() {
				time.AfterFunc(1500*time.Microsecond, func() { // the leader has it, and nobody has answered
					for i := 1; i <= 3; i++ {
						e.Cut(i, 4)
					}
				})
			}
			return zktest.Pass
		})
		route.Move(1)
		suite.AwaitConnected(t, a, time.Second)
		time.Sleep(20 * time.Millisecond)
		moved := time.Now()
		route.Move(-1)
		for i := 1; i <= 3; i++ {
			e.Crash(i)
		}
		for i := 1; i <= 3; i++ {
			e.Restart(i)
		}
		time.Sleep(time.Second)
		if ld := e.Leader(); ld < 1 || ld > 3 {
			t.Fatalf("member %d leads, want one of 1, 2, 3", ld)
		}
		b, err := zsync.Connect(t.Context(), e.Addrs()[e.Leader()], zsync.WithDialer(e.Dial), zsync.WithSessionTimeout(timeout))
		harness.Must(t, err)
		defer b.Close()
		granted := grant(t, b)
		time.Sleep(time.Until(moved.Add(6 * time.Second)))
		route.Move(0)
		suite.AwaitConnected(t, a, time.Second)
		e.Heal(1, 4)
		time.Sleep(300 * time.Millisecond)
		route.Move(-1)
		wantToldFirst(t, lost, granted)
	})
}
