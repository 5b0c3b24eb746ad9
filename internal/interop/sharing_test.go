package interop_test

import (
	"context"
	"testing"
	"time"

	"github.com/zsync/zsync"
)

// These tests have zsync and a foreign program share one path.

// A locker is what the tests below ask of a lock of zsync.
type locker interface {
	Lock(ctx context.Context) error
	TryLock(ctx context.Context) (bool, error)
	Unlock() error
}

// connect opens a session of zsync's own.
func connect(t *testing.T, servers string) *zsync.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := zsync.Connect(ctx, servers, zsync.WithSessionTimeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// layoutOf is the layout in which zsync meets the driver's program.
func layoutOf(d driver) zsync.Layout {
	if d.name == kazoo.name {
		return zsync.LayoutKazoo
	}
	return zsync.LayoutCurator
}

func TestMutexIsSharedWithForeignLocks(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		p, s := d.mortal(t, servers, short), connect(t, servers)
		path := fresh(p) + "/lock"
		passesBetween(t, p, "lock", path, zsync.NewMutex(s, path, zsync.WithLayout(layoutOf(d))))
	})
}

// passesBetween has a lock of zsync and one of the program's take turns, each
// waiting for the other, and the program's holder die in the end.
func passesBetween(t *testing.T, p program, verb, path string, l locker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	check(t, "the program locks", p.Do("%s l %s 10", verb, path), "true")
	ok, err := l.TryLock(ctx)
	if ok || err != nil {
		t.Fatalf("TryLock while the program holds = %v, %v; want false, nil", ok, err)
	}
	p.Do("watchchildren %s", path)
	got := make(chan error, 1)
	go func() { got <- l.Lock(ctx) }()
	check(t, "zsync queues", p.Do("event"), "CHILD "+path)
	p.Do("release l")
	if err := <-got; err != nil {
		t.Fatalf("Lock after the program's release: %v", err)
	}
	check(t, "the program tries", p.Do("%s l %s 0.2", verb, path), "false")
	p.Send("%s l %s 20", verb, path)
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	check(t, "the program locks after zsync's Unlock", p.Ok(), "true")
	go func() { got <- l.Lock(ctx) }()
	p.Kill()
	if err := <-got; err != nil {
		t.Fatalf("Lock after the program's death: %v", err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
}

// A program is a running foreign program.
type program interface {
	Do(format string, args ...any) string
	Send(format string, args ...any)
	Ok() string
	Kill()
}
