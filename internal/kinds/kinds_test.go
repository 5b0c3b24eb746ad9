package kinds_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/kinds"
	"github.com/zsync/zsync/zktest"
)

func TestEveryPrimitiveIsToldByTheNamesOfItsChildren(t *testing.T) {
	srv := zktest.Start(t, harness.Patient)
	s, err := zsync.Connect(t.Context(), srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, kazoo := t.Context(), zsync.WithLayout(zsync.LayoutKazoo)
	held := zsync.NewMutex(s, "/held")
	for path, tt := range map[string]struct {
		make func(path string) error
		kind kinds.Kind
	}{
		"/lock":      {func(p string) error { return zsync.NewMutex(s, p).Lock(ctx) }, kinds.Lock},
		"/read":      {func(p string) error { return zsync.NewRWMutex(s, p).RLock(ctx) }, kinds.RWLock},
		"/write":     {func(p string) error { return zsync.NewRWMutex(s, p).Lock(ctx) }, kinds.RWLock},
		"/kazoo":     {func(p string) error { return zsync.NewMutex(s, p, kazoo).Lock(ctx) }, kinds.KazooLock},
		"/kazooread": {func(p string) error { return zsync.NewRWMutex(s, p, kazoo).RLock(ctx) }, kinds.KazooLock},
		"/election":  {func(p string) error { return zsync.NewElection(s, p).Campaign(ctx) }, kinds.Election},
		"/selector": {func(p string) error {
			return zsync.NewElection(s, p, zsync.WithLayout(zsync.LayoutSelector)).Campaign(ctx)
		}, kinds.Lock},
		"/semaphore":      {func(p string) error { return zsync.NewSemaphore(s, p, 3).Acquire(ctx, 1) }, kinds.Semaphore},
		"/kazoosemaphore": {func(p string) error { return zsync.NewSemaphore(s, p, 3, kazoo).Acquire(ctx, 1) }, kinds.KazooPermits},
		"/waitgroup":      {func(p string) error { return zsync.NewWaitGroup(s, p).Add(ctx, 3) }, kinds.WaitGroup},
		"/parties":        {func(p string) error { return zsync.NewWaitGroup(s, p).Enter(ctx, 1) }, kinds.DoubleBarrier},
		"/once": {func(p string) error {
			return zsync.NewOnce(s, p).Do(ctx, func(context.Context) error { return nil })
		}, kinds.Once},
		"/schedule": {func(p string) error {
			_, err := zsync.NewSchedule(s, p).Do(ctx, time.Now(), func(context.Context) error { return nil })
			return err
		}, kinds.Schedule},
		"/party": {func(p string) error {
			_, err := zsync.NewGroup[string](s, p, zsync.WithLayout(zsync.LayoutKazoo)).Join(ctx, "a", "")
			return err
		}, kinds.Group},
		"/queue":       {func(p string) error { return zsync.NewQueue[int](s, p).Send(ctx, 1) }, kinds.Queue},
		"/delayed":     {func(p string) error { return zsync.NewQueue[int](s, p).SendAt(ctx, time.Now().Add(time.Hour), 1) }, kinds.Queue},
		"/simple":      {func(p string) error { return send(ctx, s, p, zsync.LayoutSimpleQueue) }, kinds.ForeignQueue},
		"/distributed": {func(p string) error { return send(ctx, s, p, zsync.LayoutDistributedQueue) }, kinds.ForeignQueue},
		"/kazooqueue":  {func(p string) error { return send(ctx, s, p, zsync.LayoutKazooQueue) }, kinds.ForeignQueue},
		"/cond": {func(p string) error {
			c := zsync.NewCond(s, p, held)
			if err := held.Lock(ctx); err != nil {
				return err
			}
			go c.Wait(ctx)
			for cs, err := c.Contenders(ctx); len(cs) == 0; cs, err = c.Contenders(ctx) {
				if err != nil {
					return err
				}
			}
			return nil
		}, kinds.Cond},
	} {
		if err := tt.make(path); err != nil {
			t.Fatal(path, err)
		}
		names, _, err := s.Children(ctx, path)
		if err != nil {
			t.Fatal(path, err)
		}
		got := kinds.Of(names)
		if len(got) != 1 || got[0] != tt.kind || kinds.Mixed(got) {
			t.Errorf("%s with %v is told to be %v, want %v", path, names, got, tt.kind)
		}
		for _, name := range names {
			if !kinds.Part(name, names) && name != "done" && name != "last" {
				t.Errorf("%s/%s is taken for a place of its own", path, name)
			}
		}
	}
	names, _, err := s.Children(ctx, "/")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if of, ok := kinds.Beside(name); ok && !slices.Contains(names, of) {
			t.Errorf("%s is taken for a neighbour of %s, which is not there", name, of)
		}
	}
}

func send(ctx context.Context, s *zsync.Session, path string, l zsync.QueueLayout) error {
	return zsync.NewQueue[int](s, path, zsync.WithQueueLayout(l)).Send(ctx, 1)
}

func TestKindsThatDoNotSeeEachOtherAreMixed(t *testing.T) {
	const guid = "_c_48e50edc-09ec-4785-b44e-13769185aea0"
	for _, tt := range []struct {
		names []string
		mixed bool
	}{
		{[]string{guid + "-lock-0000000001", guid + "-latch-0000000002"}, true},
		{[]string{guid + "-lock-0000000001", guid + "-__WRIT__-2147483648"}, true},
		{[]string{guid + "-lock-0000000001", guid + "-lock--2147483648"}, false},
		{[]string{guid + "-lock-0000000001", "done"}, false},
		{[]string{guid + "-lock-0000000001", "last", "nightly", "a directory"}, false},
		{[]string{"deb315576356492b9a38f45828136a03__lock__0000000000", guid + "-lock-0000000001"}, true},
		{[]string{"nightly", "build-12", "0000000001", ""}, false},
	} {
		if got := kinds.Mixed(kinds.Of(tt.names)); got != tt.mixed {
			t.Errorf("%q are %v, mixed: %v", tt.names, kinds.Of(tt.names), got)
		}
	}
}
