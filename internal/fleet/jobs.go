package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zsync/zsync"
)

func init() {
	arenas["flight"] = func(w *world) arena {
		return &flight{resource: &resource{w: w, name: "/flight", limit: 1}, keep: w.timeout / 2, made: map[int64]time.Time{}}
	}
	arenas["schedule"] = func(w *world) arena {
		return &schedule{resource: &resource{w: w, name: "/schedule", limit: 1}, every: w.timeout / 4, done: map[int64]bool{}}
	}
	arenas["partition"] = func(w *world) arena {
		p := &partition{w: w, shards: map[string]*resource{}}
		for i := range 3 {
			name := fmt.Sprint("s", i)
			p.names = append(p.names, name)
			p.shards[name] = &resource{w: w, name: "/partition shard " + name, limit: 1}
		}
		return p
	}
	arenas["lockall"] = func(w *world) arena {
		a := &lockAll{w: w}
		for i := range 3 {
			path := fmt.Sprint("/all", i)
			a.paths = append(a.paths, path)
			a.locks = append(a.locks, &resource{w: w, name: path, limit: 1})
		}
		return a
	}
	arenas["room"] = func(w *world) arena { return &room{w: w} }
	arenas["group"] = func(w *world) arena {
		return &group{w: w}
	}
}

// This file has the arenas for Flight, Schedule, Partition, LockAll, the double barrier of a
// WaitGroup, and Group. Each arena calls its primitive at random and checks the results. The file
// ledger.go checks for two holders.

// The type `flight` is the arena of a Flight with one key. The process that runs the function holds
// the key.
type flight struct {
	*resource
	keep time.Duration
	made map[int64]time.Time // by result: the time at which the function returned this result; guarded by mu
}

func (f *flight) make(s *zsync.Session) any { return zsync.NewFlight[int64](s, "/flight", f.keep) }

func (f *flight) step(ctx context.Context, a *actor, kit any) {
	k := kit.(*zsync.Flight[int64])
	done, began, ran := a.doing("calls the flight"), time.Now(), false
	v, shared, err := k.Do(ctx, "k", func(inner context.Context) (int64, error) {
		ran = true
		l := lock{resource: f.resource}
		h := f.grantInside(a, 1, l.toldInside(a, inner, nil))
		defer h.end()
		a.hold()
		if a.dice.IntN(4) == 0 {
			return 0, errOwn
		}
		n := f.w.unique()
		f.mu.Lock()
		f.made[n] = time.Now()
		f.mu.Unlock()
		return n, nil
	})
	done()
	if ran {
		a.may("Flight.Do", ctx, err, errOwn, zsync.ErrLost, zsync.ErrClosed, context.Canceled)
		return
	}
	if !a.may("Flight.Do", ctx, err) {
		return
	}
	f.mu.Lock()
	made, ok := f.made[v]
	f.mu.Unlock()
	switch {
	case !ok || !shared:
		f.w.fail("/flight: %s got %d, shared %v: no function returned that", a, v, shared)
	case made.Add(f.keep + 2*f.w.timeout).Before(began): // the servers may have stored the result long after the function returned
		f.w.fail("/flight: %s got %d, which was made at %v, at %v", a, v, f.w.at(made), f.w.at(began))
	}
}

func (f *flight) final(context.Context, *zsync.Session) {}

// The method `keeps` returns true for results: if a process stores a result and dies, the result
// stays until the next call.
func (f *flight) keeps(path string) bool {
	return strings.HasPrefix(path, "/flight") && !strings.Contains(path, "_c_")
}

// The type `schedule` is the arena of a Schedule with an instant every quarter of a timeout. The
// process that runs the job for an instant holds that instant.
type schedule struct {
	*resource
	every time.Duration
	done  map[int64]bool // the instants for which Do has returned nil; guarded by mu
}

func (c *schedule) make(s *zsync.Session) any {
	return zsync.NewSchedule(s, "/schedule", zsync.WithRetries(1000, zsync.Backoff{Min: time.Millisecond, Max: c.w.timeout / 8}))
}

func (c *schedule) step(ctx context.Context, a *actor, kit any) {
	k := kit.(*zsync.Schedule)
	at := time.Now().Add(time.Duration(a.skew.Load())).Truncate(c.every)
	done := a.doing("does the instant %v", c.w.at(at))
	did := false
	ran, err := k.Do(ctx, at, func(inner context.Context) error {
		l := lock{resource: c.resource}
		h := c.grantInside(a, 1, l.toldInside(a, inner, nil))
		defer h.end()
		c.mu.Lock()
		again := c.done[at.UnixNano()]
		c.mu.Unlock()
		if again {
			c.w.fail("/schedule: the instant %v runs again after it was done", c.w.at(at))
		}
		did = true
		a.hold()
		if a.dice.IntN(4) == 0 {
			return errOwn
		}
		return nil
	})
	done()
	if did && !ran && err == nil {
		c.w.fail("/schedule: %s has run the instant %v, and Do says that it has not", a, c.w.at(at))
	}
	if did {
		if a.may("Schedule.Do", ctx, err, errOwn, zsync.ErrLost, zsync.ErrClosed, context.Canceled) {
			c.mu.Lock()
			c.done[at.UnixNano()] = true
			c.mu.Unlock()
		}
		return
	}
	a.may("Schedule.Do", ctx, err)
}

func (c *schedule) final(ctx context.Context, s *zsync.Session) {
	last, err := zsync.NewSchedule(s, "/schedule").Last(ctx)
	for at := range c.done {
		if err != nil || last.UnixNano() < at {
			c.w.fail("/schedule: the instant %v was done, and the last is %v, %v", c.w.at(time.Unix(0, at)), c.w.at(last), err)
		}
	}
}

func (c *schedule) keeps(path string) bool {
	return strings.HasPrefix(path, "/schedule") && !strings.Contains(path, "_c_")
}

// The type `partition` is the arena of a Partition with three shards. The process whose function
// runs for a shard holds the shard.
type partition struct {
	w      *world
	names  []string
	shards map[string]*resource
}

func (p *partition) make(s *zsync.Session) any { return s }

// The method `step` runs the partition for a while. Each actor is a separate member of the
// partition.
func (p *partition) step(_ context.Context, a *actor, kit any) {
	k := zsync.NewPartition(kit.(*zsync.Session), "/partition")
	ctx, cancel := a.atMost(2 * p.w.timeout)
	defer cancel()
	done := a.doing("takes part in the partition")
	err := k.Run(ctx, p.names, func(inner context.Context, shard string) error {
		l := lock{resource: p.shards[shard]}
		h := l.grantInside(a, 1, l.toldInside(a, inner, nil))
		defer h.end()
		select {
		case <-inner.Done():
		case <-a.ctx.Done():
		}
		return nil
	})
	done()
	a.may("Partition.Run", ctx, err, zsync.ErrClosed)
}

func (p *partition) held() []*resource { return slices.Collect(maps.Values(p.shards)) }

func (p *partition) check() {
	for _, r := range p.shards {
		r.check()
	}
}

func (p *partition) final(context.Context, *zsync.Session) {}

func (p *partition) keeps(path string) bool {
	return strings.HasPrefix(path, "/partition") && !strings.Contains(path, "_c_") && !strings.Contains(path, "/members/")
}

// lockAll is the arena of three Mutexes. An actor locks some or all of them together, in any order.
type lockAll struct {
	w     *world
	paths []string
	locks []*resource
}

func (x *lockAll) make(s *zsync.Session) any {
	var ms []*zsync.Mutex
	for _, path := range x.paths {
		ms = append(ms, zsync.NewMutex(s, path))
	}
	return ms
}

func (x *lockAll) step(ctx context.Context, a *actor, kit any) {
	ms := kit.([]*zsync.Mutex)
	some := a.dice.Perm(len(ms))[:1+a.dice.IntN(len(ms))]
	var ls []zsync.Locker
	for _, i := range some {
		ls = append(ls, ms[i])
	}
	done := a.doing("locks %v together", some)
	held, unlock, err := zsync.LockAllContext(ctx, ls...)
	done()
	if !a.may("LockAll", ctx, err, zsync.ErrDeadlock) { // another actor may still have to unlock a lost lock
		return
	}
	var holds []*hold
	for _, i := range some {
		l := lock{resource: x.locks[i]}
		holds = append(holds, l.grant(a, 1, l.toldInside(a, held, ms[i].Lost())))
	}
	a.hold()
	for _, h := range holds {
		h.end()
	}
	done = a.doing("unlocks %v", some)
	err = unlock()
	done()
	if err != nil && !errors.Is(err, zsync.ErrLost) && !a.gone() {
		x.w.fail("unlock of %v by %s: %v", some, a, err)
	}
}

func (x *lockAll) held() []*resource { return x.locks }

func (x *lockAll) check() {
	for _, r := range x.locks {
		r.check()
	}
}

func (x *lockAll) final(context.Context, *zsync.Session) {
	for _, r := range x.locks {
		r.ordered()
	}
}

func (x *lockAll) keeps(string) bool { return false }

// The type `room` is the arena of a double barrier for two parties.
type room struct {
	w       *world
	mu      sync.Mutex
	parties int       // the number of parties that have called Enter and not left; guarded by mu
	failed  time.Time // the time of the last failed Enter or Leave, whose request may arrive later; guarded by mu
}

func (x *room) make(s *zsync.Session) any { return zsync.NewWaitGroup(s, "/room") }

func (x *room) step(_ context.Context, a *actor, kit any) {
	k := kit.(*zsync.WaitGroup)
	ctx, cancel := a.atMost(2 * x.w.timeout)
	defer cancel()
	x.mu.Lock()
	x.parties++
	x.mu.Unlock()
	left := false
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.parties--; !left {
			x.failed = time.Now()
		}
	}()
	done := a.doing("enters the room")
	err := k.Enter(ctx, 2)
	done()
	if !a.may("Enter", ctx, err) {
		return
	}
	x.mu.Lock()
	if x.parties < 2 && (x.failed.IsZero() || time.Since(x.failed) > 2*x.w.timeout) {
		x.w.fail("/room: %s is let in though %d of 2 have come", a, x.parties)
	}
	x.mu.Unlock()
	a.nap(x.w.timeout / 4)
	ctx, cancel = a.atMost(2 * x.w.timeout)
	defer cancel()
	done = a.doing("leaves the room")
	err = k.Leave(ctx)
	done()
	left = a.may("Leave", ctx, err, zsync.ErrLost) && !a.gone()
}

func (x *room) final(context.Context, *zsync.Session) {}

func (x *room) keeps(string) bool { return false }

// The type `group` is the arena of a Group. Each actor is sometimes a member.
type group struct{ w *world }

func (g *group) make(s *zsync.Session) any { return zsync.NewGroup[string](s, "/group") }

func (g *group) step(ctx context.Context, a *actor, kit any) {
	k := kit.(*zsync.Group[string])
	id := fmt.Sprint("m", a.dice.IntN(3))
	done := a.doing("joins as %s", id)
	m, err := k.Join(ctx, id, a.name)
	done()
	if !a.may("Join", ctx, err) {
		return
	}
	// A membership outlives its session. While its process is disconnected, another process may
	// take the id. So step does not check that Members lists this membership.
	a.nap(g.w.timeout / 4)
	ctx, cancel := a.within()
	defer cancel()
	done = a.doing("lists the group")
	members, err := k.Members(ctx)
	done()
	if a.may("Members", ctx, err) {
		seen := map[string]bool{}
		for _, m := range members {
			if seen[m.ID] {
				g.w.fail("/group: %s is there twice", m.ID)
			}
			seen[m.ID] = true
		}
	}
	done = a.doing("leaves as %s", id)
	err = m.Leave()
	done()
	if err != nil && !errors.Is(err, zsync.ErrLost) && !a.gone() {
		g.w.fail("Leave of %s by %s: %v", id, a, err)
	}
}

func (g *group) final(ctx context.Context, s *zsync.Session) {
	members, err := zsync.NewGroup[string](s, "/group").Members(ctx)
	if err != nil || len(members) > 0 {
		g.w.fail("/group: at the end there are %v, %v", members, err)
	}
}

func (g *group) keeps(string) bool { return false }
