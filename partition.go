package zsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/spread"
)

// A Partition spreads shards over processes, each shard to one at a time.
//
//	p := zsync.NewPartition(s, "/ingest")
//	err := p.Run(ctx, []string{"eu", "us", "asia"}, func(ctx context.Context, shard string) error {
//		return ingest(ctx, shard) // until ctx ends
//	})
//
// Every process calls Run with the same shards; the shares differ by at most one. When a process
// joins or leaves, only the necessary shards move, each when its owner's function has returned or
// its owner's session has ended. If lists differ during a roll-out, a shard moves only to a process
// that lists it. The plan must fit into 1 MiB (about ten thousand shards); otherwise, Run fails in
// a process whose list makes it too large.
//
// # Loss
//
// The function's context ends with cause [ErrNotLocked] when the shard is to move, and with
// [ErrLost] when another process may own it.
//
// # Cost
//
// Nothing while nothing changes. If a process joins or leaves, every process reads the group and
// the plan, and one writes a new plan.
//
// # Znodes
//
// path/members is a Group, path/plan a Value with the owner of each shard, and path/shards/<shard>
// the line of a Mutex, whose holder owns the shard.
type Partition struct {
	made
	id *string // nil for a new one at each Run
}

// A PartitionOption changes a [Partition].
type PartitionOption func(*setup)

// WithMember sets the process's id; a second process with that id waits until the first leaves. The
// default is the owner, if it fits, and a number.
func WithMember(id string) PartitionOption {
	return func(c *setup) {
		switch c.id = &id; {
		case id == "":
			c.err = session.Invalid("WithMember: the id is empty")
		case !utf8.ValidString(id):
			c.err = session.Invalid("WithMember: the id %q is not valid UTF-8, which the plan is", id)
		}
	}
}

// NewPartition returns the Partition at path.
func NewPartition(s *Session, path string, opts ...PartitionOption) *Partition {
	var c setup
	session.ApplyEach("partition", opts, &c.err, func(o PartitionOption) { o(&c) })
	return &Partition{made: made{s: s, path: path, err: checkNew(s, path, c.err)}, id: c.id}
}

// Run takes part in the Partition: it calls f in a goroutine for each shard of this process, until
// ctx ends or an f fails. Return from f soon after its ctx ends: the shard's move waits for f. One
// Run never runs f twice at a time for one shard, even in two sessions. If f returns nil before
// its ctx ends, Run calls it again after a pause ([WithRetry]). If f returns an error before its
// shard moves or is lost, or f ends its goroutine, Run ends the other calls, leaves, and returns an
// error when all have returned. Otherwise, it returns the error of ctx, or an error that a retry
// cannot cure.
func (p *Partition) Run(ctx context.Context, shards []string, f func(ctx context.Context, shard string) error) (err error) {
	defer p.wrap("run", &err)
	switch {
	case p.misuse() != nil:
		return p.misuse()
	case f == nil:
		return session.Invalid("the function is nil")
	case ctx.Err() != nil:
		return session.CtxErr(ctx)
	}
	shards = slices.Clone(shards)
	slices.Sort(shards)
	for i, shard := range shards {
		if i > 0 && shard == shards[i-1] {
			return session.Invalid("shard %q is given twice", shard)
		}
		if !utf8.ValidString(shard) {
			return session.Invalid("shard %q is not valid UTF-8, which the plan is", shard)
		}
		if path := p.shardPath(shard); len(path) > session.MaxPath {
			return session.Invalid("shard %q: its path has %d bytes; the limit is %d", shard, len(path), session.MaxPath)
		}
	}
	unique := session.NewGUID()
	id := strings.ToValidUTF8(p.s.m.Config.Owner, "\uFFFD") + " " + unique
	if p.id != nil {
		id = *p.id
	} else if len(session.ChildPath(p.path, "members/"))+len(session.NameOfKey(id)) > session.MaxPath {
		id = unique // the owner text is too long
	}
	r := &partitioning{
		p: p, f: f, id: id, shards: shards,
		group: NewGroup[[]string](p.s, session.ChildPath(p.path, "members")),
		plan:  NewValue[map[string]string](p.s, session.ChildPath(p.path, "plan"), WithCodec(spread.PlanCodec{})),
		mine:  make(map[string]context.CancelCauseFunc),
		locks: make(map[string]*Mutex),
	}
	// If the shards of this member exceeded the size of a plan, no process could store a plan, and
	// every Run would fail.
	if _, err := r.plan.encode(spread.Balance(nil, map[string][]string{id: shards})); err != nil {
		return err
	}
	// The group and the plan check the ACLs of their own znodes. Check the ACL of path too,
	// because a client that may delete children of path could delete those znodes.
	err = p.s.m.During(ctx, func(inc *session.Incarnation) error { return inc.Vet(ctx, session.Dir{Path: p.s.m.Full(p.path)}) })
	if err != nil {
		return err
	}
	if r.me, err = r.group.Join(ctx, id, shards); err != nil {
		return plainError(err)
	}
	// Leave the group only after the method `run` has released our shards. After we have left, the
	// plan assigns the shards to other processes, and these should not have to wait for us.
	defer r.me.Leave()
	err = r.run(ctx)
	if ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return session.CtxErr(ctx)
	}
	return err
}

func (p *Partition) shardPath(shard string) string {
	return session.ChildPath(session.ChildPath(p.path, "shards"), session.NameOfKey(shard))
}

// The type `partitioning` is the state of one call of Run.
type partitioning struct {
	p     *Partition
	f     func(ctx context.Context, shard string) error
	id    string
	group *Group[[]string]
	plan  *Value[map[string]string] // by shard: the id of the member that owns it
	me    *Membership[[]string]

	shards []string // the sorted shards that this process names

	// Only the method `run` uses the fields below.
	mine  map[string]context.CancelCauseFunc // by shard that the plan gives to this process: makes it release the shard
	locks map[string]*Mutex                  // by shard that the plan has given to this process
	wants map[string][]string                // shards of each member, as last received; nil before the first event
	told  map[string]string                  // owners of the shards in the plan, as last received; nil without a plan
}

// The method `run` follows the group and the plan until ctx ends or a call fails, and returns the
// cause. Then this process has released all its shards.
func (r *partitioning) run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var runs sync.WaitGroup
	members, plans := r.group.Watch(ctx), r.plan.Watch(ctx)
	// The order of these events does not matter: in the end, every process has received the last plan
	// and the last group. The channels close when ctx ends or the Session is closed. Our membership
	// ends only with an error or with the Session.
	for open := true; open; {
		var there []Member[[]string]
		var now map[string]string
		select {
		case there, open = <-members:
			if open {
				r.wants = wanted(there)
			}
		case now, open = <-plans:
			if open {
				r.told = now
				r.follow(ctx, now, &runs, fail)
			}
		case <-r.me.ended:
			open = false
			fail(r.me.err) // return, because the plan would give all our shards to others
		}
		if open && r.wants != nil && (r.told == nil || !maps.Equal(spread.Balance(r.told, r.wants), r.told)) {
			if err := r.replan(ctx); err != nil {
				fail(err) // no effect if ctx has ended
			}
		}
	}
	if ctx.Err() == nil {
		fail(cmp.Or(r.p.s.m.Failure(), errors.New("the members or the plan cannot be read; see the log")))
	}
	runs.Wait()
	for range members {
	}
	for range plans {
	}
	return context.Cause(ctx)
}

func wanted(members []Member[[]string]) map[string][]string {
	wants := make(map[string][]string, len(members))
	for _, m := range members {
		if utf8.ValidString(m.ID) { // a plan cannot name any other id
			wants[m.ID] = m.Info
		}
	}
	return wants
}

// The method `replan` makes the plan fit the group.
//
// It reads the plan first and the group second, and writes only if no other process has written the
// plan since. So each plan is made from a newer group than the plan before it. If the group has
// changed by then, `run` receives another event, or a plan that does not fit.
func (r *partitioning) replan(ctx context.Context) error {
	unchanged := errors.New("unchanged")
	_, err := r.plan.Update(ctx, func(old map[string]string) (map[string]string, error) {
		members, err := r.group.Members(ctx)
		if members == nil {
			return old, err // all other errors concern members without a list of shards
		}
		now, out := spread.Fit(old, wanted(members), func(plan map[string]string) bool { _, err := r.plan.encode(plan); return err == nil })
		if slices.Contains(out, r.id) {
			return old, fmt.Errorf("the %d shards of this process fit into no plan together with those of the %d members before it: %w", len(r.shards), len(members)-1, ErrTooLarge)
		}
		if maps.Equal(now, old) && old != nil {
			return old, unchanged
		}
		return now, nil
	})
	if errors.Is(err, unchanged) {
		return nil
	}
	if e, ok := err.(*Error); ok && e.Path == r.plan.path {
		return e.Err // the caller knows no plan
	}
	return err
}

// The method `follow` starts the work on the shards that the plan gives to this process, and ends
// the work on all others. After an earlier Run with the same id, the plan may give us a shard that
// this process does not name. That shard has no owner until the plan fits.
func (r *partitioning) follow(ctx context.Context, now map[string]string, runs *sync.WaitGroup, fail context.CancelCauseFunc) {
	for _, shard := range slices.Sorted(maps.Keys(r.mine)) {
		if now[shard] != r.id {
			r.mine[shard](ErrNotLocked)
			delete(r.mine, shard)
		}
	}
	for _, shard := range slices.Sorted(maps.Keys(now)) {
		_, named := slices.BinarySearch(r.shards, shard)
		if now[shard] != r.id || !named || r.mine[shard] != nil {
			continue
		}
		if r.locks[shard] == nil {
			r.locks[shard] = NewMutex(r.p.s, r.p.shardPath(shard))
		}
		owned, stop := context.WithCancelCause(ctx)
		r.mine[shard] = stop
		lock := r.locks[shard] // one value, so a call of f also waits for an earlier call that has lost its session
		runs.Go(func() {
			defer stop(nil)
			err := errors.New("the function ended its goroutine; see runtime.Goexit") // err keeps this value if the method `own` does not return
			defer func() {
				if err != nil && owned.Err() == nil {
					fail(err)
				}
			}()
			err = r.own(owned, lock, shard)
		})
	}
}

// The method `own` waits for m, the lock of a shard, and calls the function for the shard. It
// repeats this until ctx ends or the function fails.
func (r *partitioning) own(ctx context.Context, m *Mutex, shard string) error {
	for try := 0; ; try++ {
		var failed error
		err := m.Do(ctx, func(ctx context.Context) error {
			if err := r.f(ctx, shard); err != nil && ctx.Err() == nil {
				failed = err
			}
			return nil
		})
		switch {
		case failed != nil:
			return failed
		case ctx.Err() != nil:
			return session.CtxErr(ctx)
		case errors.Is(err, ErrClosed), err != nil && !errors.Is(err, ErrLost):
			return err
		}
		if err != nil {
			try = 0
			continue // try again in the next session
		}
		if err := session.Sleep(ctx, r.p.s.m.Config.Retry.Delay(try+1)); err != nil {
			return err
		}
	}
}
