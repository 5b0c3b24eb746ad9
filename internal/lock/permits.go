package lock

// This file has the permits that a process holds, and their znodes. The code that acquires permits
// is in the root package (semaphore.go).

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
	"github.com/zsync/zsync/internal/znodes"
)

// Permits has all permits that one Semaphore value holds through one ZooKeeper session, from the
// first acquisition to the last release. A permit has no name, so no caller knows which permits are
// its own. Therefore, the deletion of one znode is the loss of all permits.
type Permits struct {
	Hold
	root   string              // path of the semaphore
	dir    string              // path of the parent of the permits' znodes
	limits *Limits             // nil without limits
	limit  *atomic.Int64       // the semaphore's limit, for the trace
	leases []Permit            // guarded by Hold.mu, like the fields below
	taken  []taking            // the acquisitions with permits that are not yet released, oldest first
	free   func()              // stops the limits of p (Hold.limited); nil before the first permit, and without limits
	within []*session.Function // the program's functions that have acquired permits of p
	Traced atomic.Bool         // the tracer was told of this hold
	last   *znodes.Deletion    // the latest deletion by `change` that replaces a znode, or that waits for an earlier deletion
}

// The type `taking` is one Acquire, with the number of its permits that are not yet released.
type taking struct {
	at time.Time
	n  int64
	of *session.Function // the function whose Do releases these permits; nil for an Acquire
}

// A Permit is one znode, which represents Weight permits.
type Permit struct {
	Path     string // as the server knows it
	Weight   int64
	ownWatch *znodes.OwnWatch
}

// NewPermits returns an empty Permits of the semaphore `root` in the session inc. s is its stake in
// inc. The znodes of the permits are children of `dir`. The argument `limit` is the limit of the
// semaphore, for the trace.
func NewPermits(inc *session.Incarnation, s *session.Stake, root, dir string, limits *Limits, limit *atomic.Int64) *Permits {
	p := &Permits{Hold: Hold{Incarnation: inc, Stake: s, op: "acquire", since: time.Now()}, root: root, dir: dir, limits: limits, limit: limit}
	p.of, p.state = p, held
	p.begin()
	return p
}

// Add adds n permits to p. Their znodes, `leases`, exist already. If p is lost, Add adds nothing
// and returns the loss. If Close has begun, Add adds nothing either, and ends p if p is empty.
func (p *Permits) Add(leases []Permit, n int64) error {
	p.mu.Lock()
	if session.IsClosed(p.Incarnation.Manager.Closing) {
		// Close releases the holds that no function uses. Perhaps it has done this before p began.
		// If Close begins after this test, it finds p.
		empty := p.n == 0
		p.mu.Unlock()
		if empty {
			p.finish()
		}
		return p.Incarnation.Manager.Failure()
	}
	defer p.mu.Unlock()
	if lost := p.lost.Cause(); lost != nil {
		return lost
	}
	for i := range leases {
		leases[i].ownWatch = znodes.WatchOwn(p.Incarnation, leases[i].Path, p)
		leases[i].ownWatch.Made(false)
	}
	p.taken = append(p.taken, taking{at: time.Now(), n: n})
	p.leases = append(p.leases, leases...)
	if l := p.limits; l != nil && p.free == nil {
		p.free = p.limited(l, func() (time.Time, bool) { // Max begins at the acquisition of the oldest permits
			if !p.standing() || len(p.taken) == 0 {
				return time.Time{}, false
			}
			return p.taken[0].at, true
		})
	}
	p.traceEach(trace.Grant, "", leases...)
	p.renew()
	p.n += n
	p.Incarnation.Manager.Holds.Add(n)
	return nil
}

// Within is called if the program's function f has acquired permits of p: Close waits for f before it
// releases p. If f is the function of a Do, which releases these permits, n is their number, and
// otherwise 0. p and f may be nil.
func (p *Permits) Within(f *session.Function, n int64) {
	if p == nil || f == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.within = within(p.within, []*session.Function{f})
	// If two goroutines have just acquired n permits each, it does not matter whose entry this is.
	for i, t := range slices.Backward(p.taken) {
		if t.of == nil && t.n == n {
			p.taken[i].of = f
			return
		}
	}
}

func (p *Permits) inFunction() bool {
	return slices.ContainsFunc(p.within, (*session.Function).Runs)
}

func (p *Permits) deleted(path string) {
	ours := func(l Permit) bool { return l.Path == path }
	// giveUp, because the other znodes must not stay
	p.giveUp(p.Incarnation.Deleted(), func() bool { return p.standing() && (path == "" || slices.ContainsFunc(p.leases, ours)) })
}

func (p *Permits) Held() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}

// Release releases n permits of p, which has at least n. The caller is the Do of the function f or,
// if f is nil, no Do. The result `left` reports whether p has any permits after this call. If p was
// lost, Release deletes nothing, and returns the loss.
func (p *Permits) Release(n int64, f *session.Function) (left bool, r *znodes.Deletion, lost error) {
	p.mu.Lock()
	for some := n; some > 0 && len(p.taken) > 0; { // first the caller's own, then those of no Do, each oldest first
		i := slices.IndexFunc(p.taken, func(t taking) bool { return t.of == f })
		if i < 0 {
			i = max(slices.IndexFunc(p.taken, func(t taking) bool { return t.of == nil }), 0)
		}
		k := min(some, p.taken[i].n)
		some -= k
		if p.taken[i].n -= k; p.taken[i].n == 0 {
			p.taken = slices.Delete(p.taken, i, i+1)
		}
	}
	if lost = p.lost.Cause(); lost == nil {
		p.Incarnation.Manager.Holds.Add(-n)
		r = p.give(n)
	}
	p.n -= n
	left = p.n > 0
	p.mu.Unlock()
	if !left {
		p.finish()
	}
	return left, r, lost
}

// Result returns the outcome of r, which Release has returned. If that is a loss, and the session has
// ended or Release has released the last permit, p is lost, too.
func (p *Permits) Result(r *znodes.Deletion) error {
	err := r.Result()
	if err != nil {
		p.Err() // if the session has ended, Err ends the remaining permits by the loss
		p.lose(err, func() bool { return p.state == released })
	}
	return err
}

// The method `give` releases n permits: it deletes their znodes in the background. If it releases a
// part of a znode's permits, another znode replaces this znode.
func (p *Permits) give(n int64) *znodes.Deletion {
	var gone []Permit
	for n > 0 {
		last := len(p.leases) - 1
		l := p.leases[last]
		gone = append(gone, l)
		if l.Weight > n {
			rest := Permit{Path: znodes.ChildPath(p.dir, PermitsName(l.Weight-n)), Weight: l.Weight - n}
			rest.ownWatch = znodes.WatchOwn(p.Incarnation, rest.Path, p)
			p.leases[last] = rest
			p.traceEach(trace.Move, l.Path, rest)
			return p.change(gone, &rest)
		}
		p.leases = p.leases[:last]
		p.traceEach(trace.Release, "", l)
		n -= l.Weight
	}
	return p.change(gone, nil)
}

// The method `change` deletes, in the background, the znodes of the permits in `gone`. If `rest` is
// not nil, its znode replaces the last of them. After such a change, every change waits for the change
// before it: it may delete the new znode.
func (p *Permits) change(gone []Permit, rest *Permit) *znodes.Deletion {
	inc, before, paths, whole := p.Incarnation, p.last, PathsOf(gone), ""
	d := &znodes.Deletion{Paths: paths, Then: drop(gone)}
	if rest == nil && before == nil { // there is no earlier change to wait for
		return znodes.Delete(inc, d)
	}
	d.Paths = []string{paths[0]}
	if rest != nil {
		whole, paths = paths[len(paths)-1], paths[:len(paths)-1]
		then := d.Then
		d.Then = func() { then(); rest.ownWatch.Made(false) }
	}
	var removed *znodes.Deletion
	d.By = func() (err error) {
		if before != nil {
			if err := before.Outcome(context.Background()); !session.IsClosed(before.Done) {
				return err
			}
			before = nil // the change `before` and all earlier changes are over
		}
		if rest != nil {
			// One transaction does both, so no client counts too few permits.
			var rs []zk.MultiResponse
			rs, err = znodes.Multi(context.Background(), inc,
				&zk.CreateRequest{Path: rest.Path, Data: inc.Manager.Owner, Acl: inc.Manager.Config.ACL, Flags: zk.FlagEphemeral},
				&zk.DeleteRequest{Path: whole, Version: -1})
			if len(rs) > 0 && session.IsNodeExists(rs[0].Error) {
				err = nil // no other client creates this name, so an earlier attempt was applied and its reply was lost
			}
		}
		if removed == nil && len(paths) > 0 {
			removed = znodes.Remove(inc, paths...)
		}
		return znodes.Worse(err, removed.Outcome(context.Background()))
	}
	p.last = znodes.Delete(inc, d)
	return p.last
}

// The function `drop` ends the watches of `leases`. The caller must call `left` when the znodes are
// deleted.
func drop(leases []Permit) (left func()) {
	var all []func()
	for _, l := range leases {
		all = append(all, l.ownWatch.Drop())
	}
	return func() {
		for _, f := range all {
			f()
		}
	}
}

func PathsOf(leases []Permit) []string {
	paths := make([]string, len(leases))
	for i, l := range leases {
		paths[i] = l.Path
	}
	return paths
}

func (p *Permits) Token(ctx context.Context) (int64, error) {
	return p.fence(ctx, func() bool { return p.state != released }, func() string {
		if len(p.leases) == 0 {
			return ""
		}
		return p.leases[0].Path
	}, func(ctx context.Context, path string) (*zk.Stat, error) {
		if path == "" { // Release has taken the last znode, and calls `finish` now
			return nil, ErrNotLocked
		}
		if _, err := p.made(ctx); err != nil {
			return nil, err
		}
		return p.Incarnation.Set(ctx, path, p.Incarnation.Manager.Owner, -1) // if the reply is lost, a second write makes the token greater, which is harmless
	})
}

// The method `made` waits until every znode of p exists, and returns their paths.
func (p *Permits) made(ctx context.Context) ([]string, error) {
	for ctx.Err() == nil {
		p.mu.Lock()
		last, paths := p.last, PathsOf(p.leases)
		p.mu.Unlock()
		if err := p.Err(); err != nil {
			return nil, err
		}
		if last == nil || session.IsClosed(last.Done) {
			return paths, nil
		}
		// A change is about to replace a znode.
		if err := last.Outcome(ctx); err != nil && !session.IsClosed(last.Done) && !errors.Is(err, session.ErrEnded) {
			return nil, err
		}
	}
	return nil, session.CtxErr(ctx)
}

// Txn applies ops if all permits of p are still held: see Hold.txn. If some permits are released
// during the call, Txn applies nothing and returns ErrNotLocked.
func (p *Permits) Txn(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	paths, err := p.made(ctx)
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, ErrNotLocked
	}
	full, dir, err := znodes.CheckOps(p.Incarnation.Manager, ops, paths...)
	if err != nil {
		return nil, err
	}
	rs, _, err := p.txn(ctx, dir, full, paths...)
	return rs, err
}

// The following methods implement the interface `holding`.

func (p *Permits) path() string { return p.Incarnation.Manager.Bare(p.root) }
func (p *Permits) unwatch(gone bool) {
	if p.free != nil {
		p.free()
	}
	if gone {
		drop(p.leases)()
	}
}

func (p *Permits) discard() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.leases) > 0 {
		p.change(p.leases, nil)
	}
	p.leases = nil
}

func (p *Permits) trace(event string) { p.traceEach(event, "", p.leases...) }

// traceEach writes a record for each element of `leases`. `from` is the path before a trace.Move.
func (p *Permits) traceEach(event, from string, leases ...Permit) {
	if p.Incarnation.Manager.Trace == nil || event == trace.Token {
		return
	}
	for _, l := range leases {
		line := p.Incarnation.TraceLine(event, trace.Semaphore, p.root, znodes.BaseName(l.Path))
		line.Permits = l.Weight
		switch event {
		case trace.Move:
			line.From, line.Limit = znodes.BaseName(from), p.limit.Load()
		case trace.Grant:
			line.Use, line.Limit = 1, p.limit.Load()
		}
		p.record(l.Path, line)
	}
}
