package look_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/look"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func connect(t *testing.T, srv *zktest.Server) *zsync.Session {
	t.Helper()
	s, err := zsync.Connect(t.Context(), srv.Addr(), zsync.WithDialer(srv.Dial))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// What a tool deletes or names must be the znode that it has shown.
func TestTheZnodeOfEachWhoHoldsOrWaitsIsWhereItIsSaidToBe(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		holder, waiter, eyes := connect(t, srv), connect(t, srv), connect(t, srv)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		kazoo := zsync.WithLayout(zsync.LayoutKazoo)
		take := func(s *zsync.Session, wait bool) error {
			calls := []func() error{
				func() error { return zsync.NewMutex(s, "/lock").Lock(ctx) },
				func() error { return zsync.NewRWMutex(s, "/rw").Lock(ctx) },
				func() error { return zsync.NewMutex(s, "/kazoo", kazoo).Lock(ctx) },
				func() error { return zsync.NewElection(s, "/election").Campaign(ctx) },
				func() error { return zsync.NewSemaphore(s, "/semaphore", 1).Acquire(ctx, 1) },
			}
			if !wait {
				calls = append(calls, func() error { return zsync.NewWaitGroup(s, "/parties").Enter(ctx, 1) })
			}
			var errs []error
			for _, call := range calls {
				if wait {
					go call()
				} else {
					errs = append(errs, call())
				}
			}
			return errors.Join(errs...)
		}
		if err := take(holder, false); err != nil {
			t.Fatal(err)
		}
		take(waiter, true)
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
			tree, err := look.Look(ctx, eyes, "/")
			if err != nil {
				t.Fatal(err)
			}
			seen := map[string]int{}
			for _, p := range tree.Places {
				for _, l := range p.Lines {
					if l.Node == "" {
						continue
					}
					_, stat, err := eyes.Get(ctx, l.Znode())
					if err != nil || look.SessionText(stat.EphemeralOwner) != l.Session {
						t.Fatalf("%s of %s at %s: %v", l.Node, l.Kind, l.Znode(), err)
					}
					seen[l.Kind]++
				}
			}
			if seen["lock"] == 2 && seen["read-write lock"] == 2 && seen["kazoo lock"] == 2 && seen["election"] == 2 && seen["semaphore"] == 2 && seen["double barrier"] == 1 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("seen: %v", seen)
			}
		}
	})
}

func TestALookLeavesNoWatchBehind(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, eyes := suite.Open(t, srv), suite.Open(t, srv)
		ctx := t.Context()
		nothing := func(context.Context) error { return nil }
		_, scheduled := zsync.NewSchedule(s, "/schedule").Do(ctx, time.Date(2030, 6, 1, 0, 0, 0, 0, time.UTC), nothing)
		_, joined := zsync.NewGroup[string](s, "/group").Join(ctx, "me", "")
		noError(t, scheduled, joined, zsync.NewOnce(s, "/done").Do(ctx, nothing), zsync.NewMutex(s, "/undone").Lock(ctx), zsync.NewRWMutex(s, "/rw").RLock(ctx),
			zsync.NewSemaphore(s, "/permits", 3).Acquire(ctx, 1), zsync.NewElection(s, "/election").Campaign(ctx), zsync.NewWaitGroup(s, "/parties").Enter(ctx, 1),
			zsync.NewBarrier(s, "/gate").Close(ctx), zsync.NewMap[string](s, "/map").Store(ctx, "a", "b"), zsync.NewQueue[int](s, "/queue").Send(ctx, 1),
			zsync.NewWaitGroup(s, "/tasks").Add(ctx, 1))
		time.Sleep(time.Minute)
		before := srv.Counts().Watches
		told(t, eyes, "/") // and at each path alone
		if got := srv.Counts().Watches - before; got != 0 {
			t.Errorf("%d watches are left", got)
		}
	})
}

func TestDeadLettersAreCountedForOneRequest(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, eyes := suite.Open(t, srv), suite.Open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		const n = 100
		for i := range n {
			noError(t, q.Send(t.Context(), i))
			d, err := q.Receive(t.Context())
			noError(t, err, d.Reject(t.Context(), "no good"))
		}
		noError(t, zsync.NewValue[int](s, "/q-dead/not-one").Store(t.Context(), 1))
		time.Sleep(time.Minute)
		before := eyes.Stats().Requests
		tree, err := look.Look(t.Context(), eyes, "/")
		noError(t, err)
		found := 0
		for _, p := range tree.Places {
			for _, l := range p.Lines {
				if l.Dead != nil {
					found += *l.Dead
				}
			}
		}
		if asked := eyes.Stats().Requests - before; found != n || asked > 20 {
			t.Errorf("%d dead letters found with %d requests, want %d with a few", found, asked, n)
		}
	})
}
