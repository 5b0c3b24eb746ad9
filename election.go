package zsync

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
)

// WithID sets the id of a candidate: the data of its znode and the Owner of its
// [Contender], for example the leader's address. The default is the Session's owner, see
// [WithOwner].
func WithID(id string) ElectionOption {
	return electionOption(func(c *electionConfig) { c.id = &id })
}

// WithPriority sets the candidate's priority: among waiting candidates, the highest
// priority leads first, and equals lead in the order of arrival. A leader keeps the
// leadership. The default is 0.
//
// A candidate whose turn comes while a candidate of higher priority waits moves to the back
// of the line, for 5 requests each time. So every candidate should set its priority. A
// candidate without one, as of Curator or kazoo, leads when its turn comes. The priority is
// in the name of the znode: path/_c_<uuid>-p<p>-latch-<seq>.
func WithPriority(p int) ElectionOption {
	return electionOption(func(c *electionConfig) { c.prior = &p })
}

// An Election chooses one leader among the processes that name the same path:
//
//	err := e.Run(ctx, func(ctx context.Context) error { … }) // while this process leads
//
// or Campaign and Resign. One *Election is one candidate. At most one live session leads.
// Candidates lead in the order in which the servers stored them.
//
// # Loss
//
// If the session ends, the leadership is lost and another process may lead: [Election.Lost]
// is closed, the context of [Election.Run]'s function ends with cause [ErrLost], and Resign
// returns [ErrLost]. A candidate that campaigns again is a new one, at the back of the
// line. With writes elsewhere, send [Election.Token]; write to ZooKeeper with
// [Election.Txn].
//
// # Errors
//
// Resign, Token and Transfer return [ErrNotLocked] if this Election does not lead, and
// ErrLost if the leadership was lost. Campaign returns [ErrDeadlock] with a ctx that comes
// from Run of the same path, and [ErrMixed] behind a contender of another kind or layout.
// Leader returns [ErrNoLeader] if no candidate leads. Transfer returns [ErrNoCandidate] if
// the heir is not a candidate.
//
// # Cost
//
// Campaign without another candidate, Resign, and Leader take 1 round trip each. Observe
// costs one event and 3 requests for each change.
//
// # Znodes
//
// Each candidate has an ephemeral, sequential znode, path/_c_<uuid>-latch-<seq>, whose data
// is its id ([WithID]), as in Curator's LeaderLatch; see [WithLayout] for other names.
// Children with other names are ignored. path is a container; its parents are persistent.
// The algorithm is "Leader Election" from the ZooKeeper recipes.
type Election struct {
	made
	id   []byte
	line line.Line
	base string // of its own znode's name, up to the number

	mu     sync.Mutex
	term   *term    // of this candidate, if it campaigns or leads; guarded by mu
	owed   bool     // a lost term ended without a Resign, which may still come; guarded by mu
	known  string   // the leader's znode at the last call of Leader; guarded by mu
	wishes []string // names of the wishes for e to lead, read when its turn came; guarded by mu
}

// A term is one candidacy of an Election, from Campaign to Resign.
type term struct {
	grant  *line.Grant             // nil as long as it campaigns; guarded by Election.mu
	led    chan struct{}           // closed, under Election.mu, when grant is set
	ahead  line.Ahead              // of it, while it campaigns
	over   chan struct{}           // closed, under Election.mu, when it is no longer Election.term
	left   chan struct{}           // of Run: closed when its function has returned and the znode is given up; guarded by Election.mu
	traced context.Context         // Campaign's context from the tracer, the parent of Run's function's
	stop   context.CancelCauseFunc // ends the context of Run's function, if there is one; guarded by Election.mu
}

// NewElection returns the Election at path. It does no I/O; a bad argument is
// reported by every method.
func NewElection(s *Session, path string, opts ...ElectionOption) *Election {
	c := newElectionConfig(opts)
	e := &Election{made: made{s: s, path: path}}
	if e.err = checkNew(s, path, c.err); e.err != nil {
		return e
	}
	e.id = s.m.Owner
	if c.id != nil {
		e.id = []byte(*c.id)
	}
	e.line = line.New(s.m, path, c.layout.naming(), electionBases[c.layout])
	e.line.Kept = c.layout == LayoutKazoo // its objects make it once each
	e.line.Strict, e.line.Limits = true, c.limits.ofLine()
	e.line.Kind = trace.Election
	e.base = e.line.Bases[0]
	if c.prior != nil {
		e.base = line.WithPriority(e.base, *c.prior, c.layout == LayoutKazoo)
	}
	e.line.Defers = func(me line.Child, names []string) (defers bool) {
		var wishes []string
		defers, wishes = line.Defers(me, names, e.line.Bases, c.prior)
		e.mu.Lock()
		e.wishes = wishes
		e.mu.Unlock()
		return defers
	}
	return e
}

// Path returns the path that e was made with.
func (e *Election) Path() string { return e.path }

// Campaign waits until e leads. It returns an error if ctx ends or the Session is closed;
// then nothing of the candidacy is left. After the end of ctx, Campaign fails even if no
// candidate leads.
//
// An Election is in the line at most once. While it leads, or campaigns for another
// goroutine, Campaign waits as [Mutex.Lock] would. After a loss, no Resign is needed. With
// a ctx that comes from [Election.Run] of the same path, Campaign returns [ErrDeadlock].
func (e *Election) Campaign(ctx context.Context) error {
	_, err := e.campaign(ctx)
	return opError("campaign", e.path, err)
}

func (e *Election) campaign(ctx context.Context) (*term, error) {
	switch {
	case e.misuse() != nil:
		return nil, e.misuse()
	case ctx.Err() != nil:
		return nil, session.CtxErr(ctx)
	case e.doKey().in(ctx) != nil:
		return nil, ErrDeadlock
	}
	start := time.Now()
	end := e.s.tracers.acquiring(ctx, e.traced)
	t, err := e.stand(ctx, start)
	if err == nil {
		err = e.win(ctx, t, start)
	}
	e.s.m.Waited("campaign", e.path, start, err)
	if err != nil {
		end("", err)
		return t, err
	}
	end(t.grant.Name(), nil)
	t.grant.Within(e.s.m.FunctionOf(ctx))
	t.traced = e.s.tracers.follow(ctx, e.traced, t.grant)
	return t, nil
}

func (e *Election) traced() Op { return e.s.tracers.traced("election", "campaign", e.path) }

// stand begins a term when the previous term is over.
func (e *Election) stand(ctx context.Context, start time.Time) (*term, error) {
	for {
		e.mu.Lock()
		last := e.term
		if last == nil || last.lost() {
			t := &term{over: make(chan struct{}), led: make(chan struct{})}
			if last != nil {
				// The goroutine of the last term may have returned when Lost was closed: it
				// need not call Resign. But its Resign may still come: see resign.
				e.endLocked(ErrLost)
				if last.left == nil { // else Run does, when its function has returned
					e.owed = true
					last.grant.End()
				}
			}
			e.term = t
			e.mu.Unlock()
			return t, nil
		}
		led := last.led
		var lost <-chan struct{}
		if last.grant != nil {
			led, lost = nil, last.grant.Lost()
		}
		e.mu.Unlock()
		// If several cases are ready, each of them is right: we look again, or the caller's
		// ctx or the Session has ended. A loss is enough to end the last term: its goroutine
		// has seen Lost closed, and need not call Resign.
		select {
		case <-last.over:
		case <-led:
		case <-lost:
		case <-ctx.Done():
			return nil, e.waitEnded(ctx, session.CtxErr(ctx), start, last, 1)
		case <-e.s.m.Closing:
			return nil, e.waitEnded(ctx, e.s.m.Failure(), start, last, 1)
		}
	}
}

// waitEnded is waitEnded with t's knowledge of the leader or the candidates ahead. behind is
// the number of this process's candidates that wait behind t.
func (e *Election) waitEnded(ctx context.Context, err error, start time.Time, t *term, behind int) error {
	e.mu.Lock()
	grant := t.grant
	e.mu.Unlock()
	if grant != nil {
		return waitEnded(ctx, e.s, err, start, ownContender(grant.Claim, string(e.id), ModeExclusive), behind)
	}
	head, place := t.ahead.Now()
	if place > 0 {
		place += behind
	}
	return waitEnded(ctx, e.s, err, start, headContender(head, ModeExclusive), place)
}

// win waits in the line until t leads.
func (e *Election) win(ctx context.Context, t *term, start time.Time) error {
	c, err := e.line.Acquire(ctx, e.base, e.id, line.Exclusive, &t.ahead)
	err = e.waitEnded(ctx, err, start, t, 0)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.endLocked(err)
		return err
	}
	t.grant = c.Grant("campaign")
	e.fulfilLocked(c.Incarnation)
	close(t.led)
	return nil
}

// lost reports whether t led and no longer does. Election.mu must be held.
func (t *term) lost() bool { return t.grant != nil && t.grant.Err() != nil }

// endLocked ends the present term. The caller deletes its znode after that.
func (e *Election) endLocked(why error) {
	if e.term.stop != nil {
		e.term.stop(why)
	}
	close(e.term.over)
	e.term = nil
}

// Resign ends the leadership. It returns [ErrNotLocked] if e does not lead, and [ErrLost]
// if the leadership was lost. It ends the context of a Run in progress; no other candidate
// leads before Run's function has returned, or the session has ended.
//
// If a leadership was lost and Campaign was called again without a Resign between the two,
// a later Resign is ambiguous: it ends the current leadership and closes its Lost.
//
// Resign returns within half a second, and at once if the connection is down. The Session
// then resigns in the background.
func (e *Election) Resign() error {
	t, err := e.current()
	if err == nil {
		err = e.resign(context.Background(), t)
	}
	return opError("resign", e.path, err)
}

// resign ends t, unless someone else has ended it.
func (e *Election) resign(ctx context.Context, t *term) error {
	e.mu.Lock()
	if e.term != t {
		e.mu.Unlock()
		return ErrNotLocked
	}
	e.endLocked(ErrNotLocked)
	left := t.left
	if e.owed {
		// This may be the late Resign of a lost term. Then it ends the present term, so the
		// present leader must see a loss; its own Resign may also come late. A Resign that
		// finds no term does not clear owed: many programs resign twice, to be sure.
		t.grant.Revoke()
	}
	e.mu.Unlock()
	if left == nil {
		return e.s.m.GiveUp(ctx, t.grant.Release)
	}
	// The context of Run's function has ended. The next leader begins when the function has
	// returned.
	if err := t.grant.Err(); err != nil {
		return err
	}
	select {
	case <-left:
	case <-time.After(session.ReleaseTime):
	case <-ctx.Done():
	}
	return nil
}

// current returns the term in which e leads.
func (e *Election) current() (*term, error) {
	if e.misuse() != nil {
		return nil, e.misuse()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term == nil || e.term.grant == nil {
		return nil, ErrNotLocked
	}
	return e.term, nil
}

// Run campaigns, calls f when it leads, resigns when f returns, and starts again, until any of
// three things happens:
//
//   - ctx ends: Run returns its error, and f's if f returned another.
//   - f returns an error while it leads: Run returns it.
//   - The Session is closed, or Campaign fails for good. Close waits for f.
//
// f's context ends with the leadership: with cause [ErrLost] after a loss, [ErrClosed] when
// the Session is being closed, and [ErrNotLocked] after a Resign. Return soon from f then:
// its result is logged, and Run campaigns again. So f returns nil to pass the leadership
// on, and an error to leave the election.
//
// The next leader begins when f has returned, unless the session has ended. For a function
// that hangs, use [WithMaxHold] and [WithHealth].
//
// f must not campaign for the same path with its context: see [Election.Campaign]. If f
// panics, Run resigns and panics.
func (e *Election) Run(ctx context.Context, f func(ctx context.Context) error) error {
	if e.misuse() == nil && f == nil {
		return opError("run", e.path, session.Invalid("the function is nil"))
	}
	for {
		t, err := e.campaign(ctx)
		if err != nil {
			return opError("run", e.path, err)
		}
		err, ended := e.lead(ctx, t, f)
		switch closed := e.s.m.Failure(); {
		case ctx.Err() != nil:
			return opError("run", e.path, endOfRun(ctx, err))
		case closed != nil && errors.Is(ended, ErrLost):
			return opError("run", e.path, endOfClosed(ended, err))
		case closed != nil:
			return opError("run", e.path, endOfClosed(closed, err))
		case errors.Is(ended, ErrLost), errors.Is(ended, ErrNotLocked):
			e.s.m.Log.Warn("zsync: leadership ended", "path", e.path, "reason", ended, "err", err)
		case err != nil || ended != nil:
			return opError("run", e.path, cmp.Or(err, ended))
		}
	}
}

// endOfRun returns the error of ctx, joined with err if that is another.
func endOfRun(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)) {
		return session.CtxErr(ctx)
	}
	return errors.Join(session.CtxErr(ctx), err)
}

// endOfClosed returns the error of a Run that Close has ended: closed, joined with err if err
// says more than that the context has ended.
func endOfClosed(closed, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, ErrClosed) {
		return closed
	}
	return errors.Join(closed, err)
}

// lead runs f in t, and ends t. It returns f's error and the error of the release.
func (e *Election) lead(outer context.Context, t *term, f func(ctx context.Context) error) (err, ended error) {
	ctx, end, rest := endingContext(t.traced)
	defer rest()
	defer end(nil)
	e.mu.Lock()
	if t.stop = end; e.term == t {
		t.left = make(chan struct{})
	} else {
		t.stop(ErrNotLocked) // resigned already, and given up
	}
	left := t.left
	e.mu.Unlock()
	d := newDoCall(outer, e.s, nil, t.grant)
	release := func() error {
		if ended = e.leave(outer, t, d); left != nil {
			close(left)
		}
		return nil
	}
	if err := d.function.Begin(); err != nil {
		release()
		return nil, err
	}
	err = doHolding(ctx, e.doKey(), d, f, release)
	return err, ended
}

// leave ends t, whose function has returned. If another goroutine has already ended the term,
// leave releases it now: the next leader must not begin before this function has returned.
func (e *Election) leave(ctx context.Context, t *term, d *doCall) error {
	e.mu.Lock()
	resigned, run := e.term != t, t.left != nil
	if !resigned {
		e.endLocked(ErrNotLocked)
		if e.owed {
			t.grant.Revoke() // as in resign
		}
	}
	e.mu.Unlock()
	var err error
	if !resigned || run {
		err = d.giveUp(ctx, e.s.m, t.grant.Release)
	} else {
		d.function.End()
	}
	if resigned && err == nil {
		err = ErrNotLocked
	}
	return err
}

func (e *Election) doKey() doKey { return doKey{e.s, e.path, "leader " + e.line.Bases[0]} }

// Lost returns a channel that is closed when the present leadership is lost: its session
// has ended or could have ended, or its znode was deleted. If e does not lead, the channel
// is closed. Resign closes it only in the ambiguous case of [Election.Resign].
func (e *Election) Lost() <-chan struct{} {
	t, err := e.current()
	if err != nil {
		return session.ClosedChan
	}
	return t.grant.Lost()
}

// Token returns the fencing token of the present leadership: a number greater than the
// token of every earlier leadership of the path. See [Mutex.Token]. The first call of a
// leadership takes 1 round trip, later calls none. The errors are [ErrNotLocked] and
// [ErrLost].
func (e *Election) Token(ctx context.Context) (int64, error) {
	t, err := e.current()
	if err != nil {
		return 0, opError("token", e.path, err)
	}
	tok, err := t.grant.Token(ctx, true)
	return tok, opError("token", e.path, err)
}

// Txn applies writes to ZooKeeper, all or none, and only while e leads: the servers themselves
// check it. If the leadership is lost, the error is [ErrLost]. See [Session.Txn] for ops, lost
// replies and costs.
func (e *Election) Txn(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	t, err := e.current()
	if err != nil {
		return nil, opError("txn", e.path, err)
	}
	rs, _, err := t.grant.Txn(ctx, ops) // a leadership is never handed over
	return rs, opError("txn", e.path, err)
}

// Contenders returns the leader and the waiting candidates, in their order.
func (e *Election) Contenders(ctx context.Context) ([]Contender, error) {
	if e.misuse() != nil {
		return nil, opError("contenders", e.path, e.misuse())
	}
	cs, err := contenders(ctx, &e.line, func(all []line.Child, i int) (Mode, bool) {
		return ModeExclusive, i == 0
	})
	return cs, opError("contenders", e.path, err)
}

// Leader returns the leader, or [ErrNoLeader], at least as new as the call.
//
// The leader is the first in the line, and no candidate can join ahead of it. Between two
// leaders, Leader can return a candidate that is about to give way (see [WithPriority] and
// [Election.Transfer]) and never leads.
func (e *Election) Leader(ctx context.Context) (Contender, error) {
	c, err := e.leader(ctx)
	return c, opError("leader", e.path, err)
}

func (e *Election) leader(ctx context.Context) (Contender, error) {
	if e.misuse() != nil {
		return Contender{}, e.misuse()
	}
	var c Contender
	err := e.s.m.During(ctx, func(inc *session.Incarnation) error {
		e.mu.Lock()
		known := e.known
		e.mu.Unlock()
		name, n, err := e.line.ReadFirst(ctx, inc, known)
		switch {
		case err != nil:
			return err
		case name == "":
			return ErrNoLeader
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		c, e.known = leader(name, n), name
		return nil
	})
	return c, err
}

// Observe returns a channel of the leader, now and after each change. Each was the first in
// the line at some moment, as with [Election.Leader], and is not sent twice in a row. The
// last contender sent is the leader. While no candidate leads, the channel waits.
//
// The channel has no buffer. A slow reader gets the present leader, not each change; so
// does a reader after a lost connection.
//
// The channel is closed when ctx ends or the Session is closed. A refusal by the servers to
// read e is logged and closes it too. While nothing changes, an observer sends nothing: it
// has one watch.
func (e *Election) Observe(ctx context.Context) <-chan Contender {
	out := make(chan Contender)
	if e.misuse() != nil {
		close(out)
		return out
	}
	e.s.m.Spawn(func() {
		defer close(out)
		o := spectator{line: &e.line, out: out}
		err := e.s.m.During(ctx, func(inc *session.Incarnation) error { return o.observe(ctx, inc) })
		if ctx.Err() == nil && e.s.m.Failure() == nil {
			e.s.m.Log.Error("zsync: cannot observe", "path", e.path, "err", err)
		}
	})
	return out
}

// A spectator follows the first contender of a line.
type spectator struct {
	line *line.Line
	out  chan<- Contender
	told string // the name of the last contender sent
}

// observe follows the line within one session.
//  1. List the children.
//  2. If there are none, watch for the first to come, and go to 1.
//  3. Otherwise, watch the first for its deletion, and read it.
//  4. While it exists, send it, unless it was sent last.
//  5. When it is deleted, go to 1.
func (o *spectator) observe(ctx context.Context, inc *session.Incarnation) error {
	list := inc.ChildrenFresh
	for {
		first, err := o.line.First(ctx, inc, list) // Step 1.
		list = inc.Children
		switch {
		case err != nil:
			return err
		case first == "":
			err = o.awaitAnyone(ctx, inc) // Step 2.
		default:
			err = o.follow(ctx, inc, first) // Steps 3 to 5.
		}
		if err != nil {
			return err
		}
	}
}

// awaitAnyone waits until a contender may be in the line.
func (o *spectator) awaitAnyone(ctx context.Context, inc *session.Incarnation) error {
	w := inc.Watches.Join(session.WatchKey{Kind: session.WatchChildren, Path: o.line.Dir})
	defer inc.Watches.Leave(w)
	switch names, _, err := inc.Children(ctx, o.line.Dir); {
	case session.IsNoNode(err):
		return inc.AwaitMade(ctx, o.line.Dir) // a missing znode can be neither listed nor watched in that way
	case err != nil:
		return err
	case len(line.ParseChildren(names, o.line.Bases...)) > 0:
		return nil
	}
	return inc.AwaitFired(ctx, w)
}

// follow sends the first contender, and waits until it is deleted.
func (o *spectator) follow(ctx context.Context, inc *session.Incarnation, first string) error {
	return inc.WhileThere(ctx, session.ChildPath(o.line.Dir, first), func(w *session.Watch) error { return o.tell(ctx, inc, first, w) })
}

// tell sends the first contender to the reader, and returns when w has fired.
func (o *spectator) tell(ctx context.Context, inc *session.Incarnation, first string, w *session.Watch) error {
	if first == o.told {
		return inc.AwaitFired(ctx, w)
	}
	data, stat, err := inc.Get(ctx, session.ChildPath(o.line.Dir, first))
	if err != nil {
		return err
	}
	select {
	case o.out <- leader(first, session.Node{Data: data, Stat: stat}):
		o.told = first
		return inc.AwaitFired(ctx, w)
	case <-w.Fired:
		return nil // it was deleted before the reader took it
	case <-ctx.Done():
		return session.CtxErr(ctx)
	case <-inc.Ctx.Done():
		return session.ErrEnded
	}
}
