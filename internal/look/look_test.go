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
	"github.com/zsync/zsync/zktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func connect(t *testing.T, srv *zktest.Server) *zsync.Session {
	t.Helper()
	s, err := zsync.Connect(t.Context(), srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// What a tool deletes or names must be the znode that it has shown.
func TestTheZnodeOfEachWhoHoldsOrWaitsIsWhereItIsSaidToBe(t *testing.T) {
	srv := zktest.Start(t, harness.Patient)
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
}
