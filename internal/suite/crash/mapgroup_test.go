package crash

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
)

// Crashes in operations of Map, Int64, Flight, Schedule, Group and Partition, and in
// Semaphore.Resize and Election.Transfer.

// A receipt of a process that has died stays.
const mapLeaves = crashPath + "-receipts(/[^/]*)?"

func afterMap(ctx context.Context, s *zsync.Session) error {
	m := zsync.NewMap[int](s, crashPath)
	switch got, _, err := m.Load(ctx, "k"); {
	case errors.Is(err, zsync.ErrNoValue):
	case err != nil:
		return err
	case got != 1 && got != 2:
		return fmt.Errorf("got the value %d, want that before the operation or after it", got)
	}
	if err := m.Store(ctx, "k", 5); err != nil {
		return err
	}
	got, ok, err := m.LoadAndDelete(ctx, "k")
	if err == nil && (got != 5 || !ok) {
		err = fmt.Errorf("got the value %d, %v, want 5", got, ok)
	}
	return errors.Join(err, m.Clear(ctx))
}

// withMap does an operation on a Map that has a key.
func withMap(f func(ctx context.Context, m *zsync.Map[int], v zsync.Version) error) func(context.Context, *zsync.Session, func()) error {
	return func(ctx context.Context, s *zsync.Session, begin func()) error {
		m := zsync.NewMap[int](s, crashPath)
		if err := m.Store(ctx, "k", 1); err != nil {
			return err
		}
		_, version, err := m.Load(ctx, "k")
		if err != nil {
			return err
		}
		begin()
		return f(ctx, m, version)
	}
}

var mapCrashes = []crash{{
	name: "Map.Store the first time",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewMap[int](s, crashPath).Store(ctx, "k", 1)
	},
	after:    afterMap,
	leaves:   mapLeaves,
	requests: 3,
}, {
	name: "Map.Store",
	child: withMap(func(ctx context.Context, m *zsync.Map[int], _ zsync.Version) error {
		return m.Store(ctx, "k", 2)
	}),
	after:    afterMap,
	leaves:   mapLeaves,
	requests: 1,
}, {
	name: "Map.LoadOrStore",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		_, _, err := zsync.NewMap[int](s, crashPath).LoadOrStore(ctx, "k", 1)
		return err
	},
	after:    afterMap,
	leaves:   mapLeaves,
	requests: 4,
}, {
	name: "Map.LoadAndDelete",
	child: withMap(func(ctx context.Context, m *zsync.Map[int], _ zsync.Version) error {
		_, _, err := m.LoadAndDelete(ctx, "k")
		return err
	}),
	after:    afterMap,
	leaves:   mapLeaves,
	requests: 3,
}, {
	name: "Map.Delete",
	child: withMap(func(ctx context.Context, m *zsync.Map[int], _ zsync.Version) error {
		return m.Delete(ctx, "k")
	}),
	after:    afterMap,
	leaves:   mapLeaves,
	requests: 1,
}, {
	name: "Map.Swap",
	child: withMap(func(ctx context.Context, m *zsync.Map[int], _ zsync.Version) error {
		_, _, err := m.Swap(ctx, "k", 2)
		return err
	}),
	after:    afterMap,
	leaves:   mapLeaves,
	requests: 3,
}, {
	name: "Map.CompareAndSwap",
	child: withMap(func(ctx context.Context, m *zsync.Map[int], v zsync.Version) error {
		_, err := m.CompareAndSwap(ctx, "k", v, 2)
		return err
	}),
	after:    afterMap,
	leaves:   mapLeaves,
	requests: 3,
}, {
	name: "Map.CompareAndDelete",
	child: withMap(func(ctx context.Context, m *zsync.Map[int], v zsync.Version) error {
		_, err := m.CompareAndDelete(ctx, "k", v)
		return err
	}),
	after:    afterMap,
	leaves:   mapLeaves,
	requests: 3,
}, {
	name: "Map.Clear",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		m := zsync.NewMap[int](s, crashPath)
		err := errors.Join(m.Store(ctx, "k", 1), m.Store(ctx, "l", 1))
		begin()
		return errors.Join(err, m.Clear(ctx))
	},
	after:    afterMap,
	leaves:   mapLeaves,
	requests: 3,
}}

func afterInt64(ctx context.Context, s *zsync.Session) error {
	n := zsync.NewInt64(s, crashPath)
	was, err := n.Load(ctx)
	if err == nil && was != 1 && was != 2 {
		err = fmt.Errorf("got %d, want the number before the operation or after it", was)
	}
	if err != nil {
		return err
	}
	now, err := n.Add(ctx, 1)
	if err == nil && now != was+1 {
		err = fmt.Errorf("%d and 1 is %d", was, now)
	}
	return err
}

// withInt64 does an operation on the number 1.
func withInt64(f func(ctx context.Context, n *zsync.Int64) error) func(context.Context, *zsync.Session, func()) error {
	return func(ctx context.Context, s *zsync.Session, begin func()) error {
		n := zsync.NewInt64(s, crashPath)
		if err := n.Store(ctx, 1); err != nil {
			return err
		}
		begin()
		return f(ctx, n)
	}
}

var int64Crashes = []crash{{
	name:     "Int64.Store",
	child:    withInt64(func(ctx context.Context, n *zsync.Int64) error { return n.Store(ctx, 2) }),
	after:    afterInt64,
	leaves:   valueLeaves,
	requests: 1,
}, {
	name:     "Int64.Add",
	child:    withInt64(func(ctx context.Context, n *zsync.Int64) error { _, err := n.Add(ctx, 1); return err }),
	after:    afterInt64,
	leaves:   valueLeaves,
	requests: 2,
}, {
	name:     "Int64.Swap",
	child:    withInt64(func(ctx context.Context, n *zsync.Int64) error { _, err := n.Swap(ctx, 2); return err }),
	after:    afterInt64,
	leaves:   valueLeaves,
	requests: 2,
}, {
	name:     "Int64.CompareAndSwap",
	child:    withInt64(func(ctx context.Context, n *zsync.Int64) error { _, err := n.CompareAndSwap(ctx, 1, 2); return err }),
	after:    afterInt64,
	leaves:   valueLeaves,
	requests: 2,
}}

// What is to be done by a Schedule.
var crashInstant = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func afterSchedule(ctx context.Context, s *zsync.Session) error {
	c := zsync.NewSchedule(s, crashPath)
	if _, err := c.Do(ctx, crashInstant, crashNothing); err != nil {
		return err
	}
	last, err := c.Last(ctx)
	if err == nil && !last.Equal(crashInstant) {
		err = fmt.Errorf("the last instant is %v", last)
	}
	ran, e := c.Do(ctx, crashInstant.Add(time.Hour), crashNothing)
	if e == nil && !ran {
		e = errors.New("the next instant was not done")
	}
	return errors.Join(err, e)
}

var scheduleCrashes = []crash{{
	name: "Schedule.Do",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		_, err := zsync.NewSchedule(s, crashPath).Do(ctx, crashInstant, crashNothing)
		return err
	},
	after:    afterSchedule,
	leaves:   crashPath + "/last",
	requests: 6,
}, {
	name: "Schedule.Do before one who waits",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		_, err := zsync.NewSchedule(s, crashPath).Do(ctx, crashInstant, func(context.Context) error { begin(); return nil })
		return err
	},
	beside: behind(func(ctx context.Context, s *zsync.Session) error {
		_, err := zsync.NewSchedule(s, crashPath).Do(ctx, crashInstant, crashNothing)
		return err
	}),
	after:    afterSchedule,
	leaves:   crashPath + "/last",
	requests: 2,
}}

func newCrashFlight(s *zsync.Session) *zsync.Flight[int] {
	return zsync.NewFlight[int](s, crashPath, time.Millisecond)
}

func flyOnce(v int, begin func()) func(ctx context.Context, s *zsync.Session) error {
	return func(ctx context.Context, s *zsync.Session) error {
		got, shared, err := newCrashFlight(s).Do(ctx, "k", func(context.Context) (int, error) { begin(); return v, nil })
		if err == nil && got != v && !(shared && got == 1) {
			err = fmt.Errorf("got %d, %v", got, shared)
		}
		return err
	}
}

// sweepFlight runs a function for another key: whoever does deletes the results of
// those who have died.
func sweepFlight(ctx context.Context, s *zsync.Session) error {
	time.Sleep(5 * time.Millisecond) // real time: until the result of the other key is old
	_, _, err := newCrashFlight(s).Do(ctx, "l", func(context.Context) (int, error) { return 3, nil })
	return err
}

var flightCrashes = []crash{{
	name: "Flight.Do",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return flyOnce(1, func() {})(ctx, s)
	},
	after:    flyOnce(2, func() {}),
	sweep:    sweepFlight,
	leaves:   crashPath + "/[kl]",
	requests: 9,
}, {
	name:  "Flight.Do while another waits",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error { return flyOnce(1, begin)(ctx, s) },
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		<-child.begun
		done := harness.Async(func() error { return flyOnce(2, func() {})(context.WithoutCancel(ctx), s) })
		ready()
		return <-done
	},
	after:    flyOnce(2, func() {}),
	sweep:    sweepFlight,
	leaves:   crashPath + "/[kl]",
	requests: 3,
}}

// joinOnce joins, as the one member then, and leaves.
func joinOnce(ctx context.Context, s *zsync.Session) error {
	g := zsync.NewGroup[int](s, crashPath)
	me, err := g.Join(ctx, "id", 2)
	if err != nil {
		return err
	}
	members, err := g.Members(ctx)
	if err == nil && (len(members) != 1 || members[0].Info != 2) {
		err = fmt.Errorf("the members are %v", members)
	}
	return errors.Join(err, me.Leave())
}

// withMember does an operation of a member, for whose id another waits.
func withMember(name string, f func(ctx context.Context, me *zsync.Membership[int]) error) crash {
	return crash{
		name: name,
		child: func(ctx context.Context, s *zsync.Session, begin func()) error {
			me, err := zsync.NewGroup[int](s, crashPath).Join(ctx, "id", 1)
			if err != nil {
				return err
			}
			begin()
			return f(ctx, me)
		},
		beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
			<-child.begun
			done := harness.Async(func() error { return joinOnce(context.WithoutCancel(ctx), s) })
			ready()
			return <-done
		},
		after: func(ctx context.Context, s *zsync.Session) error {
			me, err := zsync.NewGroup[int](s, crashPath).Join(ctx, "id", 2) // behind the other
			if err != nil {
				return err
			}
			return me.Leave()
		},
		requests: 1,
	}
}

var groupCrashes = []crash{{
	name: "Group.Join",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		_, err := zsync.NewGroup[int](s, crashPath).Join(ctx, "id", 1)
		return err
	},
	after:    joinOnce,
	requests: 2,
}, {
	name: "Group.Join of an id that another has",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		_, err := zsync.NewGroup[int](s, crashPath).Join(ctx, "id", 1)
		return err
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		me, err := zsync.NewGroup[int](s, crashPath).Join(ctx, "id", 2)
		if err != nil {
			return err
		}
		ready()
		child.awaitWait(ctx)
		return me.Leave()
	},
	after:    joinOnce,
	requests: 3,
},
	withMember("Membership.Set", func(ctx context.Context, me *zsync.Membership[int]) error { return me.Set(ctx, 2) }),
	withMember("Membership.Leave", func(_ context.Context, me *zsync.Membership[int]) error { return me.Leave() }),
}

// ownShards takes part until it owns n of two shards, and calls owns then.
func ownShards(ctx context.Context, s *zsync.Session, n int, owns func(stop func())) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	err := zsync.NewPartition(s, crashPath).Run(ctx, []string{"a", "b"}, func(ctx context.Context, _ string) error {
		mu.Lock()
		n--
		enough := n == 0
		mu.Unlock()
		if enough {
			owns(stop)
		}
		<-ctx.Done()
		return nil
	})
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return err
}

const partitionLeaves = crashPath + "/(members|plan|plan-receipts(/[^/]*)?|shards(/[ab])?)"

func afterPartition(ctx context.Context, s *zsync.Session) error {
	return ownShards(ctx, s, 2, func(stop func()) { stop() })
}

var partitionCrashes = []crash{{
	name: "Partition.Run",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return ownShards(ctx, s, 2, func(stop func()) { stop() })
	},
	after:    afterPartition,
	leaves:   partitionLeaves,
	requests: 10,
}, {
	name: "Partition.Run beside another",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return ownShards(ctx, s, 1, func(stop func()) { stop() })
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		return ownShards(ctx, s, 2, func(func()) { ready() })
	},
	after:    afterPartition,
	leaves:   partitionLeaves,
	requests: 8,
}}

var resizeCrashes = []crash{{
	name: "Semaphore.Resize",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		m := zsync.NewSemaphore(s, crashPath, 3)
		if ok, err := m.TryAcquire(ctx, 1); !ok || err != nil {
			return errors.Join(err, errors.New("there is no permit"))
		}
		begin()
		return m.Resize(ctx, 5)
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		<-child.begun
		// Three are there when the child has made it five, or has died.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), crashBound)
		defer cancel()
		done := harness.Async(func() error { return lockOnce(ctx, permits{zsync.NewSemaphore(s, crashPath, 3), 3}) })
		ready()
		return <-done
	},
	after: func(ctx context.Context, s *zsync.Session) error {
		m := zsync.NewSemaphore(s, crashPath, 3)
		return errors.Join(m.Resize(ctx, 4), lockOnce(ctx, permits{m, 4}))
	},
	leaves:   crashPath + "/(leases|locks|resized)|" + crashPath + "-receipts(/[^/]*)?",
	requests: 2,
}}

var transferCrashes = []crash{{
	name: "Election.Transfer",
	child: withElection(func(ctx context.Context, e *zsync.Election) error {
		all, err := e.Contenders(ctx)
		if err != nil {
			return err
		}
		return e.Transfer(ctx, all[len(all)-1])
	}),
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		<-child.begun
		e := zsync.NewElection(s, crashPath)
		led := harness.Async(func() error { return e.Campaign(context.WithoutCancel(ctx)) })
		if err := crowd(ctx, 2); err != nil {
			return err
		}
		ready()
		err := <-led
		<-ctx.Done() // until Transfer has seen that it leads
		return errors.Join(err, e.Resign())
	},
	after:    afterElection,
	requests: 6,
}}
