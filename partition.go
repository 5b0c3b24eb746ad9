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
	"github.com/zsync/zsync/internal/znodes"
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
	switch err := p.check(ctx); {
	case p.misuse() == nil && f == nil:
		return session.Invalid("the function is nil")
	case err != nil:
		return err
	}
	shards = slices.Sorted(slices.Values(shards))
	for i, shard := range shards {
		switch path := p.shardPath(shard); {
		case i > 0 && shard == shards[i-1]:
			return session.Invalid("shard %q is given twice", shard)
		case !utf8.ValidString(shard):
			return session.Invalid("shard %q is not valid UTF-8, which the plan is", shard)
		case len(path) > znodes.MaxPath:
			return session.Invalid("shard %q: its path has %d bytes; the limit is %d", shard, len(path), znodes.MaxPath)
		}
	}
	unique := znodes.NewGUID()
	id := strings.ToValidUTF8(p.s.m.Config.Owner, "\uFFFD") + " " + unique
	if p.id != nil {
		id = *p.id
	} else if len(znodes.ChildPath(p.path, "members/"))+len(znodes.NameOfKey(id)) > znodes.MaxPath {
		id = unique // the owner text is too long
	}
	group := NewGroup[[]string](p.s, znodes.ChildPath(p.path, "members"))
	plan := NewValue[map[string]string](p.s, znodes.ChildPath(p.path, "plan"), WithCodec(spread.PlanCodec{})) // by shard: the id of its owner
	// If the shards of this member exceeded the size of a plan, no process could store a plan, and
	// every Run would fail.
	if _, err := plan.encode(ctx, spread.Balance(nil, map[string][]string{id: shards})); err != nil {
		return err
	}
	// The group and the plan check the ACLs of their own znodes. Check the ACL of path too,
	// because a client that may delete children of path could delete those znodes.
	err = p.s.m.During(ctx, func(inc *session.Incarnation) error {
		return znodes.Vet(ctx, inc, znodes.Dir{Path: p.s.m.Full(p.path)})
	})
	if err != nil {
		return err
	}
	me, err := group.Join(ctx, id, shards)
	if err != nil {
		return plainError(err)
	}
	// Leave the group only after the release of our shards. After we have left, the plan assigns the
	// shards to other processes, and these should not have to wait for us.
	defer p.s.m.GiveUp(ctx, me.Leave)

	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var runs sync.WaitGroup
	mine := make([]context.CancelCauseFunc, len(shards)) // makes this process release a shard; nil if the plan does not give it the shard
	locks := make([]*Mutex, len(shards))                 // of shards that the plan has given to this process
	var wants map[string][]string                        // shards of each member, as last received; nil before the first event
	var owners map[string]string                         // the plan, as last received; nil without a plan
	members, plans := group.Watch(running), plan.Watch(running)
	// The order of these events does not matter: in the end, every process has received the last plan
	// and the last group. The channels close when the context ends or the Session is closed. Our
	// membership ends only with an error or with the Session.
	for open := true; ; {
		var there []Member[[]string]
		select {
		case there, open = <-members:
			wants = wanted(there)
		case owners, open = <-plans:
		case <-me.ended:
			open = false
			fail(me.err) // return, because the plan would give all our shards to others
		}
		if !open {
			break
		}
		for i, shard := range shards {
			switch owned := owners[shard] == id; {
			case !owned && mine[i] != nil:
				mine[i](ErrNotLocked)
				mine[i] = nil
			case owned && mine[i] == nil:
				if locks[i] == nil { // one value, so a call of f also waits for an earlier call that has lost its session
					locks[i] = NewMutex(p.s, p.shardPath(shard))
				}
				ctx, stop := context.WithCancelCause(running)
				mine[i] = stop
				runs.Go(func() {
					defer stop(nil)
					own(ctx, locks[i], shard, f, fail)
				})
			}
		}
		if wants != nil && (owners == nil || !maps.Equal(spread.Balance(owners, wants), owners)) {
			if err := replan(running, plan, group, id); err != nil {
				fail(err) // no effect if the context has ended
			}
		}
	}
	if running.Err() == nil {
		fail(cmp.Or(p.s.m.Failure(), errors.New("the members or the plan cannot be read; see the log")))
	}
	runs.Wait()
	err = context.Cause(running)
	if ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return session.CtxErr(ctx)
	}
	return err
}

func (p *Partition) shardPath(shard string) string {
	return znodes.ChildPath(znodes.ChildPath(p.path, "shards"), znodes.NameOfKey(shard))
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

// The function `replan` makes the plan fit the group, for the member id.
//
// It reads the plan first and the group second, and writes only if no other process has written the
// plan since. So each plan is made from a newer group than the plan before it. If the group has
// changed by then, Run receives another event, or a plan that does not fit.
func replan(ctx context.Context, plan *Value[map[string]string], group *Group[[]string], id string) error {
	unchanged := errors.New("unchanged")
	_, err := plan.Update(ctx, func(old map[string]string) (map[string]string, error) {
		members, err := group.Members(ctx)
		if members == nil {
			return old, err // all other errors concern members without a list of shards
		}
		wants := wanted(members)
		now, out := spread.Fit(old, wants, func(owners map[string]string) bool {
			_, err := plan.encode(context.Background(), owners)
			return err == nil
		})
		if slices.Contains(out, id) {
			return old, fmt.Errorf("the %d shards of this process fit into no plan together with those of the %d members before it: %w", len(wants[id]), len(members)-1, ErrTooLarge)
		}
		if maps.Equal(now, old) && old != nil {
			return old, unchanged
		}
		return now, nil
	})
	if errors.Is(err, unchanged) {
		return nil
	}
	return plainError(err) // the caller knows no plan
}

// The function `own` calls f for a shard, while it holds m, the lock of the shard. It repeats this until
// ctx ends. If f fails or ends its goroutine, or m cannot be locked, it calls fail.
func own(ctx context.Context, m *Mutex, shard string, f func(ctx context.Context, shard string) error, fail context.CancelCauseFunc) {
	var err error
	defer func() {
		if err != nil && ctx.Err() == nil {
			fail(err)
		}
	}()
	for try := 1; ctx.Err() == nil; try++ {
		err = errors.New("the function ended its goroutine; see runtime.Goexit") // unless Do returns
		err = m.Do(ctx, func(ctx context.Context) error {
			if err := f(ctx, shard); err != nil && ctx.Err() == nil {
				fail(err)
			}
			return nil
		})
		switch {
		case err == nil:
			session.Sleep(ctx, m.s.m.Config.Retry.Delay(try))
		case errors.Is(err, ErrClosed), !errors.Is(err, ErrLost):
			return
		default: // try again in the next session
			try = 0
		}
	}
}
