package zsync

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/spread"
)

// A Partition spreads shards over the processes that name the same path: each
// shard has one owner at a time, which runs a function for it.
//
//	p := zsync.NewPartition(s, "/ingest")
//	err := p.Run(ctx, []string{"eu", "us", "asia"}, func(ctx context.Context, shard string) error {
//		return ingest(ctx, shard) // until ctx ends
//	})
//
// Every process calls Run with the same shards. They are spread evenly: no
// process has two more than another. When a process comes or goes only as many
// shards move as that takes. A shard moves only when the function of its owner
// has returned, or its owner's session has ended. While processes have different
// lists, as during a roll-out, a shard goes to those that name it.
//
// # Loss
//
// The function's context ends when the shard is to move, with cause
// [ErrNotLocked], and when the session is lost, with cause [ErrLost]: then
// another process may own the shard already. Run goes on in the next session.
//
// # Znodes
//
// path/members is a [Group] of the processes, each with its shards as info, in
// JSON. path/plan is a [Value] that says who is to have which shard, also JSON:
// so some ten thousand shards are the limit, above which Run returns [ErrTooLarge].
// path/shards/<shard> is the line of a [Mutex], and who holds it owns the shard.
//
// # Cost
//
// While nothing changes a Partition costs nothing. When a process comes or goes
// each process reads the group and the plan, and one writes the plan, as also when
// somebody else has written what does not fit, or is no plan. Each shard that moves
// costs the former owner 1 request and the new one 3, or 4 where it has to wait for
// the former: as a Mutex does.
type Partition struct {
	made
	id string
}

// A PartitionOption changes a [Partition].
type PartitionOption func(*partitionConfig)

type partitionConfig struct {
	id  string
	err error
}

// WithMember sets the id under which the process is a member: one for each
// process, since a second of the same id waits for the first to go. The default
// is the owner ([WithOwner]) with a unique number.
func WithMember(id string) PartitionOption {
	return func(c *partitionConfig) {
		switch c.id = id; {
		case id == "":
			c.err = session.Invalid("WithMember: the id is empty")
		case !utf8.ValidString(id):
			c.err = session.Invalid("WithMember: the id %q is not valid UTF-8, which the plan is", id)
		}
	}
}

// NewPartition returns the Partition at path. It does no I/O; a bad argument is
// reported by Run.
func NewPartition(s *Session, path string, opts ...PartitionOption) *Partition {
	var c partitionConfig
	for i, o := range opts {
		if o == nil {
			c.err = session.Invalid("partition option %d is nil", i)
			continue
		}
		o(&c)
	}
	return &Partition{made: made{s: s, path: path, err: checkNew(s, path, c.err)}, id: c.id}
}

// Path returns the path that p was made with.
func (p *Partition) Path() string { return p.path }

// Run takes part in the Partition: it joins, and calls f in a goroutine of its
// own for each shard that it owns, until ctx ends or an f fails. f should return
// soon after its ctx has ended, as the shard does not move before; for one shard Run
// calls it once at a time, whatever becomes of sessions. When f returns nil although its ctx has not ended it is called again, after a pause
// ([WithRetry]).
//
// When an f returns an error of its own, while its shard was neither to move nor
// lost, Run ends every other, leaves, and returns that error; one that ends its
// goroutine ([runtime.Goexit]) counts as one that fails. Otherwise Run
// returns the error of ctx, or what retrying cannot cure, when every f has
// returned.
func (p *Partition) Run(ctx context.Context, shards []string, f func(ctx context.Context, shard string) error) error {
	return opError("run", p.path, p.run(ctx, shards, f))
}

func (p *Partition) run(ctx context.Context, shards []string, f func(ctx context.Context, shard string) error) error {
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
	id := p.id
	if id == "" {
		id = p.newID()
	}
	r := &partitioning{
		p: p, f: f, id: id, shards: shards,
		group: NewGroup[[]string](p.s, session.ChildPath(p.path, "members")),
		plan:  NewValue[spread.Plan](p.s, session.ChildPath(p.path, "plan"), WithCodec(spread.PlanCodec{})),
		mine:  make(map[string]*shardRun),
	}
	// With it in the group nobody could store a plan that does not fit, and every Run
	// would end.
	if _, err := r.plan.encode(spread.Plan{Owners: spread.Balance(nil, map[string][]string{id: shards})}); err != nil {
		return err
	}
	// The group and the plan vet what is theirs. Who may delete in path could
	// delete these.
	err := p.s.m.During(ctx, func(inc *session.Incarnation) error { return inc.Vet(ctx, session.Dir{Path: p.s.m.Full(p.path)}) })
	if err != nil {
		return err
	}
	if r.me, err = r.group.join(ctx, id, shards); err != nil {
		return err
	}
	// Others are given our shards when we have left, and get them when we have
	// given them up: in this order nobody waits for us.
	defer r.me.Leave()
	err = r.run(ctx)
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return session.CtxErr(ctx)
	}
	return err
}

// newID returns the owner with a unique number; of a long owner as much as fits.
func (p *Partition) newID() string {
	unique := " " + session.NewGUID()
	room := session.MaxPath - len(session.ChildPath(p.path, "members/")) - len(session.NameOfKey(unique))
	return session.KeyThatFits(strings.ToValidUTF8(p.s.m.Config.Owner, "\uFFFD"), room-4) + unique // "." and ".." alone are longer
}

func (p *Partition) shardPath(shard string) string {
	return session.ChildPath(session.ChildPath(p.path, "shards"), session.NameOfKey(shard))
}

// A partitioning is one Run.
type partitioning struct {
	p     *Partition
	f     func(ctx context.Context, shard string) error
	id    string
	group *Group[[]string]
	plan  *Value[spread.Plan]
	me    *Membership[[]string]

	shards []string // that this process names, in order

	// Used by run alone.
	mine  map[string]*shardRun // by shard: what this process owns, or waits for
	wants map[string][]string  // by member: the shards that it names, as last told; nil before that
	told  map[string]string    // the owners in the plan, as last told; nil if there are none
}

// A shardRun is one shard that is to be ours.
type shardRun struct {
	ctx   context.Context // ends when the shard is to move
	stop  context.CancelCauseFunc
	ended chan struct{} // closed when it has been given up
}

// run follows the group and the plan until ctx ends or something fails. Every
// shard has been given up when it returns.
func (r *partitioning) run(outer context.Context) (err error) {
	ctx, fail := context.WithCancelCause(outer)
	defer fail(nil)
	var first sync.Once
	report := func(e error) {
		first.Do(func() { err = e })
		fail(e)
	}
	var runs sync.WaitGroup
	members, plans := r.group.Watch(ctx), r.plan.Watch(ctx)
	// Nothing is decided by the order in which these come: after each the plan is held
	// against the group, as both were last told. In the end the last of both has been
	// told to everyone, and if they did not fit the plan would have been written anew.
	// The channels close when ctx ends or the Session does. When our membership has
	// ended as well, which only an error or that of the Session does, either is told.
	for open := true; open; {
		var there []Member[[]string]
		var now spread.Plan
		select {
		case there, open = <-members:
			if open {
				r.wants = wanted(there)
			}
		case now, open = <-plans:
			if open {
				r.told = now.Owners
				r.follow(ctx, now, &runs, report)
			}
		case <-r.me.ended:
			open = false
			report(r.me.failure()) // others would be given all shards, and we none
		}
		if open && r.wants != nil && (r.told == nil || !maps.Equal(spread.Balance(r.told, r.wants), r.told)) {
			if e := r.replan(ctx); e != nil && ctx.Err() == nil {
				report(e)
			}
		}
	}
	if ctx.Err() == nil {
		report(cmp.Or(r.p.s.m.Failure(), errors.New("the members or the plan cannot be read; see the log")))
	}
	fail(nil)
	runs.Wait()
	for range members {
	}
	for range plans {
	}
	first.Do(func() { err = session.CtxErr(outer) })
	return err
}

// wanted returns the shards that each member names.
func wanted(members []Member[[]string]) map[string][]string {
	wants := make(map[string][]string, len(members))
	for _, m := range members {
		if utf8.ValidString(m.ID) { // else no plan can name it: it would be made anew for ever
			wants[m.ID] = m.Info
		}
	}
	return wants
}

// replan makes the plan fit the group.
//
// The group is read after the plan, so a plan that is written, which it only is
// if nobody has written another since, knows of a newer group than the one
// before it. So a process that lags never undoes what a newer group has led to.
// By the time it is written the group may be another, which run is told of; but not
// of who came and went in between: then the plan that run is told does not fit.
func (r *partitioning) replan(ctx context.Context) error {
	unchanged := errors.New("unchanged")
	_, err := r.plan.update(ctx, func(old spread.Plan) (spread.Plan, error) {
		members, err := r.group.Members(ctx)
		if members == nil {
			return old, err // otherwise it is about members that have no list of shards
		}
		now := spread.Plan{Owners: spread.Balance(old.Owners, wanted(members))}
		if maps.Equal(now.Owners, old.Owners) && old.Owners != nil {
			return old, unchanged
		}
		return now, nil
	})
	if err == unchanged {
		return nil
	}
	return err
}

// follow begins what the plan gives to us, and ends what it does not. What we do not
// name was that of a former Run of our name, and stays with nobody until the plan has
// been made to fit.
func (r *partitioning) follow(ctx context.Context, now spread.Plan, runs *sync.WaitGroup, report func(error)) {
	for shard, run := range r.mine {
		if now.Owners[shard] != r.id {
			run.stop(ErrNotLocked)
		}
		if session.IsClosed(run.ended) {
			delete(r.mine, shard)
		}
	}
	for shard, owner := range now.Owners {
		_, named := slices.BinarySearch(r.shards, shard)
		former := r.mine[shard]
		if owner != r.id || !named || former != nil && former.ctx.Err() == nil {
			continue
		}
		owned, stop := context.WithCancelCause(ctx)
		run := &shardRun{ctx: owned, stop: stop, ended: make(chan struct{})}
		r.mine[shard] = run
		runs.Go(func() {
			defer close(run.ended)
			defer stop(nil)
			if former != nil {
				<-former.ended // the line would do, but for a session that was lost
			}
			err := errors.New("the function ended its goroutine; see runtime.Goexit") // unless own returns
			defer func() {
				if err != nil && owned.Err() == nil {
					report(err)
				}
			}()
			err = r.own(owned, shard)
		})
	}
}

// own waits for a shard and runs the function for it, again and again, until ctx
// ends or the function fails.
func (r *partitioning) own(ctx context.Context, shard string) error {
	m := NewMutex(r.p.s, r.p.shardPath(shard))
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
			continue // in the next session
		}
		if err := session.Sleep(ctx, r.p.s.m.Config.Retry.Delay(try+1)); err != nil {
			return err
		}
	}
}
