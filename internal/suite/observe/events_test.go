package observe

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// An eventList is the events of some kinds, in order.
type eventList struct {
	kinds []zsync.EventKind

	mu   sync.Mutex
	seen []zsync.Event
}

func (l *eventList) Observe(e zsync.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Contains(l.kinds, e.Kind) {
		l.seen = append(l.seen, e)
	}
}

// want compares the events since the last call with lines of kind, op, path and error.
func (l *eventList) want(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, e := range l.take() {
		got = append(got, fmt.Sprintf("%v %s %s %v", e.Kind, e.Op, e.Path, e.Err))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the events are\n%q\nwant\n%q", got, want)
	}
}

// take returns the events since the last call.
func (l *eventList) take() (seen []zsync.Event) {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	seen, l.seen = l.seen, nil
	return seen
}

func TestAScheduleObservesEachRunAndWhatCameOfIt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		events := &eventList{kinds: []zsync.EventKind{zsync.EventStarted, zsync.EventEnded}}
		s := suite.Open(t, srv, zsync.WithObserver(events))
		c, ctx, at := zsync.NewSchedule(s, "/nightly"), t.Context(), time.Now()
		_, err := c.Do(ctx, at, func(context.Context) error { time.Sleep(time.Minute); return nil })
		harness.Must(t, err)
		if l := events.take(); len(l) != 2 || l[0].Kind != zsync.EventStarted || l[1].Kind != zsync.EventEnded || l[1].Err != nil || l[1].Wait != time.Minute {
			t.Errorf("the events of a run of a minute are %v", l)
		}
		if ran, err := c.Do(ctx, at, func(context.Context) error { return nil }); ran || err != nil {
			t.Errorf("ran %v, %v", ran, err)
		}
		events.want(t)
		c.Do(ctx, at.Add(1), func(context.Context) error { return errors.New("disk full") })
		events.want(t, "started run /nightly <nil>", "ended run /nightly disk full")
		short, cancel := context.WithCancel(ctx)
		c.Do(short, at.Add(2), func(ctx context.Context) error { cancel(); <-ctx.Done(); return errors.New("interrupted") })
		events.want(t, "started run /nightly <nil>", "ended run /nightly context canceled")
		func() {
			defer func() { recover() }()
			c.Do(ctx, at.Add(3), func(ctx context.Context) error { panic("a fault") })
		}()
		events.want(t, "started run /nightly <nil>", "ended run /nightly "+zsync.ErrPanicked.Error())
		c.Do(ctx, at.Add(4), func(ctx context.Context) error { srv.Expire(s.ID()); <-ctx.Done(); return ctx.Err() })
		if l := events.take(); len(l) != 2 || !errors.Is(l[1].Err, zsync.ErrLost) {
			t.Errorf("after a loss the events are %v", l)
		}
	})
}

// A test may leave its Observer by t.FailNow, in a goroutine of the Session.
func TestASessionOutlivesAnObserverThatEndsItsGoroutine(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		events := &eventList{kinds: []zsync.EventKind{zsync.EventExpired, zsync.EventConnected}}
		s := suite.Open(t, srv, zsync.WithObserver(zsync.ObserverFunc(func(e zsync.Event) {
			if e.Kind == zsync.EventSuspended {
				runtime.Goexit()
			}
			events.Observe(e)
		})))
		events.take()
		srv.Disconnect(s.ID())
		time.Sleep(time.Minute)
		if l := events.take(); len(l) != 2 || l[0].Kind != zsync.EventExpired || l[1].Kind != zsync.EventConnected {
			t.Errorf("the later events are %v", l)
		}
		harness.Must(t, zsync.NewMutex(s, "/m").Lock(t.Context()))
	})
}

func TestAGroupObservesItsMembers(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		events := &eventList{kinds: []zsync.EventKind{zsync.EventJoined, zsync.EventLeft}}
		s, other := suite.Open(t, srv, zsync.WithObserver(events)), suite.Open(t, srv)
		m, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "me", "")
		harness.Must(t, err)
		events.want(t, "joined join /g <nil>")
		_, err = other.Txn(t.Context(), &zk.DeleteRequest{Path: "/g/me", Version: -1})
		harness.Must(t, err)
		time.Sleep(time.Second)
		events.want(t, "left join /g lost: the znode was deleted", "joined join /g <nil>")
		srv.Expire(s.ID())
		time.Sleep(time.Minute)
		if l := events.take(); len(l) != 2 || l[0].Kind != zsync.EventLeft || suite.LossOf(l[0].Err) != zsync.LossExpired || l[1].Kind != zsync.EventJoined {
			t.Errorf("after an expiry the events are %v", l)
		}
		harness.Must(t, m.Leave())
		events.want(t, "left join /g <nil>")
	})
}

// A partition is a group, and a lock for each shard.
func TestAPartitionObservesItsMembershipAndItsShards(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		events := &eventList{kinds: []zsync.EventKind{zsync.EventJoined, zsync.EventLeft, zsync.EventAcquired, zsync.EventReleased, zsync.EventLost}}
		s := suite.Open(t, srv, zsync.WithObserver(events))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		zsync.NewPartition(s, "/p").Run(ctx, []string{"a"}, func(ctx context.Context, _ string) error { <-ctx.Done(); return nil })
		events.want(t, "joined join /p/members <nil>", "acquired lock /p/shards/a <nil>", "released lock /p/shards/a <nil>", "left join /p/members <nil>")
	})
}

// A downgrade ends the write hold, which was held for a minute, and begins a read hold.
func TestADowngradeReleasesTheWriteHold(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		events := &eventList{kinds: []zsync.EventKind{zsync.EventAcquired, zsync.EventReleased, zsync.EventLost}}
		rw := zsync.NewRWMutex(suite.Open(t, srv, zsync.WithObserver(events)), "/rw")
		harness.Must(t, rw.Lock(t.Context()))
		events.take()
		time.Sleep(time.Minute)
		harness.Must(t, rw.Downgrade(t.Context()))
		l := events.take()
		i := slices.IndexFunc(l, func(e zsync.Event) bool { return e.Kind == zsync.EventReleased })
		if i < 0 || l[i].Op != "lock" || l[i].Path != "/rw" || l[i].Wait != time.Minute || l[i].Err != nil {
			t.Errorf("the events are %v; want the release of a write hold of a minute", l)
		}
		harness.Must(t, rw.RUnlock())
		events.want(t, "released rlock /rw <nil>")
	})
}

// A party of a double barrier is a hold, whichever party leaves first.
func TestADoubleBarrierObservesTheReleaseOfEachParty(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var all []*eventList
		var leave []func(context.Context) error
		for range 3 {
			events := &eventList{kinds: []zsync.EventKind{zsync.EventReleased, zsync.EventLost}}
			wg := zsync.NewWaitGroup(suite.Open(t, srv, zsync.WithObserver(events)), "/w")
			entered := harness.Async(func() error { return wg.Enter(t.Context(), 3) })
			defer func() { harness.Must(t, <-entered) }()
			all, leave = append(all, events), append(leave, wg.Leave)
		}
		time.Sleep(time.Second)
		var left []<-chan error
		for _, f := range leave {
			left = append(left, harness.Async(func() error { return f(t.Context()) }))
			time.Sleep(time.Second)
		}
		for i, events := range all {
			harness.Must(t, <-left[i])
			events.want(t, "released enter /w <nil>")
		}
	})
}
