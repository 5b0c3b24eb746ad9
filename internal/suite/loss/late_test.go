package loss

import (
	"fmt"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// wantToldFirst waits until another session holds the Mutex of /m. It checks that lost was
// closed before.
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
		route := harness.NewRoute(e, 0)
		a, err := zsync.Connect(t.Context(), e.Addr(), zsync.WithDialer(route.Dial), zsync.WithSessionTimeout(timeout))
		harness.Must(t, err)
		defer a.Close()
		m := zsync.NewMutex(a, "/m")
		harness.Must(t, m.Lock(t.Context()))
		lost := m.Lost()
		time.Sleep(50 * time.Millisecond)
		e.Server(1).Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpDelete && r.Session == a.ID() {
				time.AfterFunc(1500*time.Microsecond, func() { // the leader has it, and no follower has answered
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

// A member that is asked to continue a session has the leader count what that member grants,
// though its answer is lost.
func TestAHolderIsToldInTimeThoughTheServersGrantDifferentTimeouts(t *testing.T) {
	harness.InMemory(t)
	for name, lose := range map[string]func(e *zktest.Ensemble, route *harness.Route, id int64){
		"nothing is heard of the server": func(_ *zktest.Ensemble, route *harness.Route, _ int64) {
			route.MoveDeaf(1)
		},
		"the answer is lost": func(e *zktest.Ensemble, route *harness.Route, id int64) {
			e.Server(1).Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpConnect && r.Session == id {
					return zktest.DropReply
				}
				return zktest.Pass
			})
			route.Move(1)
		},
		"the answer comes": func(_ *zktest.Ensemble, route *harness.Route, _ int64) { route.Move(1) },
	} {
		t.Run(name, func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				const timeout, less = 30 * time.Second, 4 * time.Second
				e := zktest.StartEnsemble(t, 3, zktest.WithTick(2*time.Second), zktest.WithSessionTimeouts(less, timeout))
				e.Server(1).SetSessionTimeouts(less, less)
				route := harness.NewRoute(e, 0)
				a, err := zsync.Connect(t.Context(), e.Addr(), zsync.WithDialer(route.Dial), zsync.WithSessionTimeout(timeout))
				harness.Must(t, err)
				defer a.Close()
				m := zsync.NewMutex(a, "/m")
				harness.Must(t, m.Lock(t.Context()))
				lost := m.Lost()
				b, err := zsync.Connect(t.Context(), e.Addrs()[2], zsync.WithDialer(e.Dial), zsync.WithSessionTimeout(timeout))
				harness.Must(t, err)
				defer b.Close()
				route.Move(-1)
				time.Sleep(1500 * time.Millisecond) // member 0 has told the leader of the session
				lose(e, route, a.ID())
				time.Sleep(time.Second)
				route.Move(-1)
				wantToldFirst(t, lost, grant(t, b))
			})
		})
	}
}

func TestAHoldIsKeptAtAServerThatGrantsLessThanHasPassed(t *testing.T) {
	harness.InMemory(t)
	harness.VirtualTime(t, func(t *testing.T) {
		const timeout, less = 30 * time.Second, 4 * time.Second
		e := zktest.StartEnsemble(t, 3, zktest.WithTick(2*time.Second), zktest.WithSessionTimeouts(less, timeout))
		e.Server(1).SetSessionTimeouts(less, less)
		route := harness.NewRoute(e, 0)
		a, err := zsync.Connect(t.Context(), e.Addr(), zsync.WithDialer(route.Dial), zsync.WithSessionTimeout(timeout))
		harness.Must(t, err)
		defer a.Close()
		m := zsync.NewMutex(a, "/m")
		harness.Must(t, m.Lock(t.Context()))
		lost := m.Lost()
		route.Move(-1)
		time.Sleep(6 * time.Second)
		route.Move(1)
		suite.AwaitConnected(t, a, 4*time.Second)
		time.Sleep(timeout)
		select {
		case <-lost:
			t.Error("the lock is lost, though the servers have the session")
		default:
		}
		if got := a.Timeout(); got != less {
			t.Errorf("the session's timeout is %v, want %v", got, less)
		}
		harness.Must(t, m.Unlock())
	})
}

func TestAServerThatHangsAtTheHandshakeCostsNoHold(t *testing.T) {
	harness.InMemory(t)
	for range 10 { // the servers are tried in random order
		harness.VirtualTime(t, func(t *testing.T) {
			const timeout = 10 * time.Second
			e := zktest.StartEnsemble(t, 5, zktest.WithTick(2*time.Second), zktest.WithSessionTimeouts(4*time.Second, timeout))
			s, err := zsync.Connect(t.Context(), e.Addr(), zsync.WithDialer(e.Dial), zsync.WithSessionTimeout(timeout))
			harness.Must(t, err)
			defer s.Close()
			m := zsync.NewMutex(s, "/m")
			harness.Must(t, m.Lock(t.Context()))
			lost := m.Lost()
			at := e.MemberOf(s.ID())
			hung := (at + 1) % 5
			e.Server(hung).Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpConnect {
					return zktest.Hang
				}
				return zktest.Pass
			})
			e.Crash(at)
			time.Sleep(3 * timeout)
			select {
			case <-lost:
				t.Error("the lock is lost, though three servers were there")
			default:
			}
			harness.Must(t, m.Unlock())
		})
	}
}

// With a timeout of 100 s, the watchdog looks every 10 s. A handshake that gets no reply can end the
// session 4 s later, so it must wake the watchdog.
func TestAHolderIsToldInTimeThoughAnUnansweredHandshakeMakesTheTimeoutShort(t *testing.T) {
	harness.InMemory(t)
	for phase := range 10 {
		t.Run(fmt.Sprint(phase), func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				const timeout, less = 100 * time.Second, 4 * time.Second
				e := zktest.StartEnsemble(t, 3, zktest.WithTick(2*time.Second), zktest.WithSessionTimeouts(less, timeout))
				e.Server(1).SetSessionTimeouts(less, less)
				time.Sleep(time.Second) // the leader ends sessions every 2 s, the watchdog looks between
				route := harness.NewRoute(e, 0)
				a, err := zsync.Connect(t.Context(), e.Addr(), zsync.WithDialer(route.Dial), zsync.WithSessionTimeout(timeout))
				harness.Must(t, err)
				defer a.Close()
				m := zsync.NewMutex(a, "/m")
				harness.Must(t, m.Lock(t.Context()))
				lost := m.Lost()
				b, err := zsync.Connect(t.Context(), e.Addrs()[2], zsync.WithDialer(e.Dial), zsync.WithSessionTimeout(timeout))
				harness.Must(t, err)
				defer b.Close()
				time.Sleep(time.Duration(phase) * time.Second) // the watchdog looks every 10 s
				route.Move(-1)
				time.Sleep(1500 * time.Millisecond) // member 0 has told the leader of the session
				e.Server(1).Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == zktest.OpConnect && r.Session == a.ID() {
						return zktest.DropReply
					}
					return zktest.Pass
				})
				route.Move(1)
				time.Sleep(time.Second)
				route.Move(-1)
				wantToldFirst(t, lost, grant(t, b))
			})
		})
	}
}
