package line

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
)

// A Grant is one use of a claim whose turn has come: of a lock by one goroutine,
// of a leadership. A claim can be used many times, one after another or, where
// others may share it, at once; what is said of one use says nothing of another.
// So each grant has a lost channel of its own, which is closed when the claim is
// lost while the grant lasts, and never after.
type Grant struct {
	Claim *Claim
	over  bool          // it has been given up; guarded by claim.mu
	told  bool          // it is lost, and lost is closed; guarded by claim.mu
	lost  chan struct{} // if somebody has asked for it; guarded by claim.mu
	most  *time.Timer   // ends it, if it may not last longer
	ended chan struct{} // if it is limited, closed when it is over
	use   int           // counts the grants of a claim, for the trace

	onLoss func(error) // is told, under claim.mu, why it is lost; guarded by claim.mu
	follow func(error) // is told, without locks, why it is over; guarded by claim.mu
}

// A guard watches the znode of a claim that is held.
type guard struct {
	later *time.Timer    // begins it, if it has not begun at once
	told  *session.Watch // which tells it, if it has begun
}

// watchAfter is how long a claim is held before its znode is watched, unless it
// was while it waited. What is held for less costs no request for that.
const watchAfter = 10 * time.Millisecond

// Grant is the next use of c, whose turn has come. op is for the observer. If the session
// has ended by now the grant is lost when Grant returns: the servers may have been asked
// already to let others go on.
func (c *Claim) Grant(op string) *Grant {
	g := c.grant(op)
	if c.Incarnation.Ctx.Err() != nil {
		c.Lose(c.Incarnation.Loss())
	}
	return g
}

func (c *Claim) grant(op string) *Grant {
	g := &Grant{Claim: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun {
		c.begun = true
		c.beginLocked()
	}
	c.op, c.since = op, time.Now()
	c.grants = append(c.grants, g)
	c.uses++
	g.use = c.uses
	c.idleLocked(false)
	c.traceGrantLocked(g)
	if c.why != nil {
		g.told = true
		c.traceLossLocked()
	} else {
		g.limitLocked()
	}
	if c.uses > 1 {
		// A fencing token is not for him who comes after: somebody may have taken it
		// with him who had it before, and a reader elsewhere may have got a greater
		// one, and gone.
		c.newEpochLocked()
	}
	return g
}

func (c *Claim) newEpochLocked() {
	c.token = 0
	c.epoch++
}

// idleLocked says whether c is kept though nobody has it: then it is no hold.
func (c *Claim) idleLocked(idle bool) {
	if c.idle == idle || c.off {
		return
	}
	c.idle = idle
	if idle {
		c.Line.Manager.Holds.Add(-1)
	} else {
		c.Line.Manager.Holds.Add(1)
	}
}

// beginLocked is for the first grant of c: from here on its loss is told.
func (c *Claim) beginLocked() {
	c.Line.Manager.Holds.Add(1)
	heldThrough(c.Incarnation).add(c)
	c.guardLocked()
}

// heldClaims are the claims that are held through one session. All are told of its end
// by one call, so what is held costs none of its own.
type heldClaims struct {
	inc *session.Incarnation

	mu  sync.Mutex // may be taken with Claim.mu held, and never the other way round
	all []*Claim   // in no order
	end bool       // the session has ended, and all who were here by then are told; guarded by mu
}

// heldKey is what an incarnation has its heldClaims for.
type heldKey struct{}

// heldThrough returns those of inc.
func heldThrough(inc *session.Incarnation) *heldClaims {
	if h, ok := inc.Attached.Load(heldKey{}); ok {
		return h.(*heldClaims)
	}
	h, _ := inc.Attached.LoadOrStore(heldKey{}, &heldClaims{inc: inc})
	return h.(*heldClaims)
}

// add has c told of the end of the session, until it is removed.
func (h *heldClaims) add(c *Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.end:
		return // Claim.Grant tells it
	case h.all == nil: // the first
		h.inc.OnEnd(h.lose)
	}
	c.at = len(h.all)
	h.all = append(h.all, c)
}

// remove is the end of add. c may be told at this same instant, which is right: whoever
// gives it up has looked whether it is lost, or does so behind c.mu.
func (h *heldClaims) remove(c *Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := len(h.all) - 1
	if i := c.at; i <= last && h.all[i] == c {
		moved := h.all[last]
		h.all[i], moved.at = moved, i
		h.all[last] = nil
		h.all = h.all[:last]
	}
}

// lose tells all that the session has ended. One does not keep the others waiting:
// nothing that is called under the lock of a claim may block.
func (h *heldClaims) lose() {
	h.mu.Lock()
	all := h.all
	h.all, h.end = nil, true
	h.mu.Unlock()
	for _, c := range all {
		c.Lose(h.inc.Loss())
	}
}

// guardLocked has the znode of c watched soon.
func (c *Claim) guardLocked() {
	if c.Unwatched {
		return
	}
	g := new(guard)
	c.guard = g
	if c.own != nil { // it is watched already
		c.watchSoon(g)
		return
	}
	c.guardAfterLocked(g, watchAfter)
}

func (c *Claim) guardAfterLocked(g *guard, d time.Duration) {
	g.later = time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if g.later = nil; c.guard == g {
			c.watchSoon(g)
		}
	})
}

func (c *Claim) watchSoon(g *guard) {
	c.Incarnation.Manager.Spawn(func() { c.watchOver(g) })
}

// watchOver looks after the znode of c: now, and when its watch fires, until it is
// gone or g has ended. The loss is told as soon as the notification is there. In
// between nobody waits: what is held for long costs no goroutine.
func (c *Claim) watchOver(g *guard) {
	c.mu.Lock()
	if c.guard != g {
		c.mu.Unlock()
		return
	}
	own := c.ownLocked()
	path := c.Path
	c.mu.Unlock()
	if !c.Incarnation.Watches.Armed(own) {
		stands, err := c.lookAt(c.Incarnation.Ctx, path)
		if err != nil {
			if !errors.Is(err, session.ErrEnded) {
				// It may not be read now. The next write, or the release, finds out, or another look.
				c.Incarnation.Manager.Log.Debug("zsync: cannot watch what is held", "path", path, "err", err)
				c.mu.Lock()
				defer c.mu.Unlock()
				if c.guard == g {
					c.guardAfterLocked(g, session.LookAgainAfter)
				}
			}
			return
		}
		if !stands {
			c.loseIf(c.Incarnation.Deleted(), func() bool { return c.guard == g && !c.over })
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.guard != g {
		return
	}
	g.told = own
	// If it has fired meanwhile, this is at once. Look then: it may be that somebody
	// has made it anew.
	c.Incarnation.Watches.Tell(own, g, func() { c.Incarnation.Manager.Spawn(func() { c.watchOver(g) }) })
}

// unguardLocked is the end of guardLocked.
func (c *Claim) unguardLocked() {
	if c.guard != nil {
		if c.guard.later != nil {
			c.guard.later.Stop()
		}
		if w := c.guard.told; w != nil {
			c.Incarnation.Watches.Untell(w, c.guard)
		}
		c.guard = nil
	}
}

// Lose tells everyone who has a grant that c is lost, unless it is given up
// already.
func (c *Claim) Lose(why error) { c.loseIf(why, func() bool { return !c.over }) }

// loseIf is lose if, under c.mu, it is still so. It reports whether c is lost by
// this.
func (c *Claim) loseIf(why error, so func() bool) bool {
	c.mu.Lock()
	if c.why != nil || !so() {
		c.mu.Unlock()
		return false
	}
	c.why = why
	for _, g := range c.grants {
		g.closeLocked(why)
		g.tellLocked(why)
	}
	// Before c.mu is free: whoever is told of the loss by a call finds these told.
	for _, f := range c.onLost {
		f(why)
	}
	c.traceLossLocked()
	e := c.eventLocked(session.EventLost, why)
	if c.idle {
		e.Op = "" // it is nobody's loss
	}
	c.uncountLocked()
	c.mu.Unlock()
	c.Stake.Drop()
	// Whoever has found it out may hold a lock that the observer's questions
	// need.
	c.Line.Manager.Spawn(func() {
		if e.Op != "" { // else it is a part of something else
			c.Line.Manager.Log.Warn("zsync: lost", "op", e.Op, "path", e.Path, "session", session.Text(c.Incarnation.ID.Load()), "reason", why)
		}
		c.Line.Manager.Observe(e)
	})
	return true
}

// OnLost has f called when c is lost, with the reason. f must not block, nor use c or
// a turnstile: it is called under their locks.
func (c *Claim) OnLost(f func(why error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onLost = append(c.onLost, f)
	if c.why != nil {
		f(c.why)
	}
}

// uncountLocked takes c off the gauge.
func (c *Claim) uncountLocked() {
	if !c.off && !c.idle {
		c.Line.Manager.Holds.Add(-1)
	}
	c.off = true
}

// eventLocked is what the observer is told of the end of c, when c.mu is
// not held any more.
func (c *Claim) eventLocked(kind session.EventKind, why error) session.Event {
	e := session.Event{Kind: kind, Op: c.op, Path: c.Line.Manager.Bare(c.Line.Dir), Err: why}
	if c.Line.Manager.Config.Observe != nil {
		e.Wait = time.Since(c.since)
	}
	return e
}

// Err returns nil while c stands, as far as can be known here; otherwise an
// error that is ErrLost, and ErrClosed too after Session.Close.
func (c *Claim) Err() error {
	if !c.Incarnation.Alive() {
		c.Lose(c.Incarnation.Loss()) // what was registered may not have run yet
		return c.Incarnation.Loss()
	}
	return c.Loss()
}

// Loss returns why c is lost, or nil if it is not known to be.
func (c *Claim) Loss() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// Explain turns the error of a request about c's own znode into what it means:
// if the znode or the session is gone, so is c.
func (c *Claim) Explain(err error) error {
	switch {
	case err == nil:
		return c.Err()
	case session.IsNoNode(err):
		c.Lose(c.Incarnation.Deleted())
		if lost := c.Loss(); lost != nil {
			return lost
		}
		return ErrNotLocked // it is just being released
	}
	if lost := c.Err(); lost != nil {
		return lost
	}
	return err
}

// End is the end of g. What becomes of the claim is not told to it any more.
func (g *Grant) End() {
	g.Claim.mu.Lock()
	defer g.Claim.mu.Unlock()
	g.endLocked()
}

func (g *Grant) endLocked() {
	c := g.Claim
	g.unlimitLocked()
	c.tracePassLocked(g)
	g.tellLocked(nil)
	g.over = true
	c.grants = slices.DeleteFunc(c.grants, func(x *Grant) bool { return x == g })
}

// Follow has f called, once and without locks, when g is over: with nil, or with
// why it was lost.
func (g *Grant) Follow(f func(why error)) {
	g.Claim.mu.Lock()
	defer g.Claim.mu.Unlock()
	g.follow = f
	if g.over || g.Claim.why != nil {
		g.tellLocked(g.Claim.why)
	}
}

func (g *Grant) tellLocked(why error) {
	if f := g.follow; f != nil {
		g.follow = nil
		g.Claim.Line.Manager.Spawn(func() { f(why) })
	}
}

// Name returns the name of the znode of g.
func (g *Grant) Name() string {
	g.Claim.mu.Lock()
	defer g.Claim.mu.Unlock()
	return g.Claim.Child.Name
}

// Revoke ends g and closes its lost channel: somebody else gives it up for him
// who has it. The claim stands until it is released.
func (g *Grant) Revoke() {
	c := g.Claim
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why == nil && !g.over {
		g.endLocked()
		g.closeLocked(nil)
	}
}

// OnLoss has f called when Lost is closed, with why g is lost; that is nil after
// Revoke. Contexts end in f, and they must have ended before anybody is told of the
// loss in another way, by the error of a Token for one: so f runs under the lock
// behind which every such answer is, before Lost is closed. It must not block, and
// call nothing of the user's.
func (g *Grant) OnLoss(f func(why error)) {
	g.Claim.mu.Lock()
	defer g.Claim.mu.Unlock()
	if g.onLoss = f; g.told {
		f(g.Claim.why)
	}
}

// Lost returns a channel that is closed, under claim.mu, when the claim is lost while g
// lasts. It is made when somebody asks for it: few do, and many locks may be held.
func (g *Grant) Lost() <-chan struct{} {
	g.Claim.mu.Lock()
	defer g.Claim.mu.Unlock()
	if g.lost == nil {
		if g.told {
			return session.ClosedChan
		}
		g.lost = make(chan struct{})
	}
	return g.lost
}

// IsLost reports whether Lost is closed, and why.
func (g *Grant) IsLost() (bool, error) {
	g.Claim.mu.Lock()
	defer g.Claim.mu.Unlock()
	return g.told, g.Claim.why
}

func (g *Grant) closeLocked(why error) {
	if g.onLoss != nil {
		g.onLoss(why)
	}
	if g.told = true; g.lost != nil {
		close(g.lost)
	}
}

func (g *Grant) Err() error { return g.Claim.Err() }

// Loss returns why g is lost, or nil if it is not known to be.
func (g *Grant) Loss() error { return g.Claim.Loss() }

// Release gives up g, which is the only use of its claim, and the claim with
// it.
func (g *Grant) Release() error {
	// The claim first: if it is lost at this very moment, g still hears of it.
	err := g.Claim.release()
	g.End()
	return err
}

// ReleaseBy is Release by f, a transaction that deletes the znode at own. Where f
// fails the znode is deleted otherwise, and the error is that of f; if it is
// ErrVanished it was deleted before, by somebody else, and that is a loss.
//
// What f deletes is not watched over any more when f begins: the event of that is
// no loss.
func (g *Grant) ReleaseBy(f func(own string) error) error {
	c := g.Claim
	defer g.End()
	if err := c.finish(); err != nil {
		return err
	}
	switch err := f(c.Znode()); {
	case err == nil:
		c.disown()
		c.released()
		return nil
	case errors.Is(err, session.ErrVanished):
		c.disown()
		lost := c.Incarnation.Deleted()
		c.loseIf(lost, func() bool { return true })
		return lost
	default:
		if lost := c.Leave().Result(); lost != nil {
			c.loseIf(lost, func() bool { return true })
		} else {
			c.released()
		}
		return err
	}
}

// Token returns the fencing token of g: the zxid of a write to its own znode,
// made while it stands, and after every write of those who held before. Those
// who share a claim share its token, but for one that is asked for while another
// joins; alone means that nobody can.
func (g *Grant) Token(ctx context.Context, alone bool) (int64, error) {
	c := g.Claim
	for {
		if err := c.Err(); err != nil {
			return 0, err
		}
		c.mu.Lock()
		tok, path, epoch := c.token, c.Path, c.epoch
		c.mu.Unlock()
		if tok != 0 {
			return tok, nil
		}
		stat, err := c.touch(ctx, path)
		c.mu.Lock()
		switch {
		case alone && g.over, len(c.grants) == 0, c.over:
			// It has been unlocked meanwhile. The write may be younger than
			// that of the goroutine to whom the claim has gone.
			c.mu.Unlock()
			return 0, ErrNotLocked
		case err == nil && c.epoch != epoch && c.Path == path:
			// Somebody has come meanwhile, for whom it may be too old. His token serves
			// as well, and none that is less than this is told any more.
			if tok = c.token; tok == 0 {
				tok = stat.Mzxid
				c.told = max(c.told, tok)
			}
			c.mu.Unlock()
			if err := c.Err(); err != nil {
				return 0, err
			}
			return tok, nil
		case c.epoch != epoch:
			c.mu.Unlock()
			continue // it has moved to another znode
		case err == nil && c.token == 0 && stat.Mzxid < c.told:
			c.mu.Unlock()
			continue // written before that was
		case err == nil && c.token == 0: // two callers may have written: the first answer stays
			c.token = stat.Mzxid
			c.traceTokenLocked()
		}
		tok = c.token
		c.mu.Unlock()
		if err := c.Explain(err); err != nil {
			return 0, err
		}
		return tok, nil
	}
}

// touch writes to c's znode what it says already. It expects the version that its
// own last write has left, so that it never writes over what somebody else has
// written meanwhile: that the holder should give up (Mutex.Revoke), which he may
// not have heard yet, or may not listen to before his next call.
func (c *Claim) touch(ctx context.Context, path string) (*zk.Stat, error) {
	c.mu.Lock()
	data, version := c.data, c.version
	c.mu.Unlock()
	for {
		stat, err := c.Incarnation.Set(ctx, path, data, version)
		switch {
		case err == nil:
			c.wrote(path, stat.Version)
			return stat, nil
		case !session.IsBadVersion(err):
			return nil, err
		}
		// Somebody has written it: or we, and the reply was lost, or another
		// goroutine, which wants the token too. What stands there stays.
		if data, stat, err = c.Incarnation.Get(ctx, path); err != nil {
			return nil, err
		}
		version = stat.Version
	}
}

// wrote notes which version a write of ours has left. Of two at the same time the
// later counts; if it is wrong nevertheless, the next write finds out.
func (c *Claim) wrote(path string, version int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Path == path {
		c.version = max(c.version, version)
	}
}

// WasAsked reports whether the holder of c is known to have been asked to give up.
func (c *Claim) WasAsked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked != nil && session.IsClosed(c.asked)
}

// Since returns when c was last granted.
func (c *Claim) Since() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since
}

// Znode returns the path of c's znode.
func (c *Claim) Znode() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Path
}

// Left is release for a grant whose znode is deleted already, or will be.
func (g *Grant) Left() {
	if g.Claim.finish() == nil {
		g.Claim.released()
	}
	g.End()
}

// Move makes c the claim of another znode of the same session, and returns the
// path of the former. Whoever has a grant keeps it.
//
// If c is lost by now it stays what it was, and the other is deleted: whoever has c
// is told of the loss of what he had, and where that was given up it stands for as
// long as he has to notice.
func (c *Claim) Move(to *Claim, op string) (former string, lost error) {
	c.mu.Lock()
	if lost = c.why; lost != nil {
		c.mu.Unlock()
		to.Leave()
		return "", lost
	}
	defer c.mu.Unlock()
	e := c.eventLocked(session.EventReleased, nil) // as what it was
	c.unguardLocked()
	c.disownLocked()
	c.leaveLineWatchLocked()
	former = c.Path
	was := c.Child.Name
	c.Path, c.Child, c.version = to.Path, to.Child, 0
	c.op, c.since = op, time.Now()
	c.traceMoveLocked(was)
	c.newEpochLocked()
	c.guardLocked()
	to.Stake.Drop()                                            // c has its own, in the same session
	c.Line.Manager.Spawn(func() { c.Line.Manager.Observe(e) }) // the caller holds a lock
	return former, nil
}

// errMoved means that the znode of a claim was exchanged while it was named in a
// transaction. Nothing was applied.
var errMoved = errors.New("the lock was downgraded at the same time")

// Txn applies ops if g still stands, in one transaction with the proof. Where it is
// not known whether that was applied, open says that it still may be, until the znode
// is gone or the session has ended.
func (g *Grant) Txn(ctx context.Context, ops []any) (rs []zk.MultiResponse, open bool, err error) {
	c := g.Claim
	m, inc, dir := c.Line.Manager, c.Incarnation, c.Line.Dir
	path := c.Znode()
	ops, _, err = m.CheckOps(ops, path, session.ChildPath(dir, session.ReceiptName))
	if err != nil {
		return nil, false, err
	}
	if err := c.Err(); err != nil {
		return nil, false, err
	}
	proof := &zk.CheckVersionRequest{Path: path, Version: -1}
	rs, err = inc.Commit(ctx, dir, append([]any{proof}, ops...))
	open = session.OutcomeOf(err) != session.Answered
	if len(rs) > 0 {
		if session.IsNoNode(rs[0].Error) {
			if c.Znode() != path {
				return nil, false, errMoved
			}
			return nil, false, c.Explain(rs[0].Error)
		}
		rs = rs[1:]
	}
	if err == session.ErrEnded || errors.Is(err, session.ErrLost) {
		// The session has ended, and what was registered may not have run yet:
		// Lost is closed before anybody is told otherwise.
		if lost := c.Err(); lost != nil {
			err = lost
		}
	}
	return rs, open, err
}

// release gives up c. It returns once the znode is gone; if the
// connection drops, or is down, it returns at once and the deletion goes on in
// the background, as it does when it is refused. It is ErrLost if c was lost, even
// at the last moment, and nothing else.
func (c *Claim) release() error {
	if err := c.finish(); err != nil {
		return err
	}
	if err := c.Incarnation.RemoveThen(c.Znode(), c.gone).Result(); err != nil {
		c.loseIf(err, func() bool { return true })
		return err
	}
	departs(c.Incarnation, c.Line.Dir, c.trip)
	c.released()
	return nil
}

// finish begins a release. It is c.err if there is nothing to release any more.
func (c *Claim) finish() error {
	lost := c.Err()
	defer c.Stake.Drop()
	c.mu.Lock()
	defer c.mu.Unlock()
	defer heldThrough(c.Incarnation).remove(c) // when it is over: until then a Close waits for it
	c.uncountLocked()
	if lost == nil {
		lost = c.why // found out at this same instant
	}
	c.unguardLocked()
	if !c.ended && c.quit != nil {
		close(c.quit)
	}
	c.ended = true
	c.leaveLineWatchLocked()
	if lost != nil {
		c.disownLocked()
		return lost
	}
	c.over = true
	c.traceLocked(trace.Release)
	return nil
}

// end returns what is closed when c is released, or nobody has it any more after a loss.
func (c *Claim) end() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endLocked()
}

func (c *Claim) endLocked() <-chan struct{} {
	if c.quit == nil {
		if c.ended {
			return session.ClosedChan
		}
		c.quit = make(chan struct{})
	}
	return c.quit
}

// Abandon is Release for somebody else than him who has g, and has lost it: who
// takes the place of one who may have gone home when he was told. He may also have
// been told this instant: what was given up stays for him for as long as if nobody
// came. Everything else is gone for the servers already, or was never theirs to keep.
func (g *Grant) Abandon() {
	c := g.Claim
	c.mu.Lock()
	spared := c.spared
	c.mu.Unlock()
	if spared {
		g.End() // giveUp finishes the claim
		return
	}
	g.Release()
}

// released ends a release.
func (c *Claim) released() {
	c.mu.Lock()
	e := c.eventLocked(session.EventReleased, nil)
	c.mu.Unlock()
	c.Line.Manager.Observe(e)
}

// GiveBack releases a claim that nobody was given.
func (c *Claim) GiveBack() error {
	c.Stake.Drop()
	r := c.Incarnation.TakeBack(c.Path)
	err := r.Result()
	c.disown()
	return err
}

// limitLocked begins what ends g of itself.
func (g *Grant) limitLocked() {
	l := g.Claim.Line.Limits
	if l == nil {
		return
	}
	g.ended = make(chan struct{})
	if l.Max > 0 {
		g.most = time.AfterFunc(l.Max, func() { g.giveUp(l.TooLong()) })
	}
	l.Guard(g.Claim.Incarnation, g.ended, g.giveUp)
}

// unlimitLocked is the end of limitLocked.
func (g *Grant) unlimitLocked() {
	if g.ended == nil || g.over {
		return
	}
	close(g.ended)
	if g.most != nil {
		g.most.Stop()
	}
}

// giveUp gives up the claim of g, if g lasts, though whoever has it does nothing.
//
// The order is that of every loss: Lost is closed, and contexts end, first; the
// znode is deleted, and with that another may be granted, when whoever was told
// has given up by himself, or has had as long for it as one who is cut off.
func (g *Grant) giveUp(why error) {
	c := g.Claim
	inc := c.Incarnation
	lost := c.Line.Limits.Lost(inc.ID.Load(), why, time.Now())
	// Under c.mu with the loss, so that whoever finds one finds the other.
	if !c.loseIf(lost, func() bool {
		c.spared = !c.over && !g.over
		return c.spared
	}) {
		return
	}
	inc.Manager.Log.Warn("zsync: given up", "path", inc.Manager.Bare(c.Line.Dir), "reason", why)
	inc.Manager.Spawn(func() {
		stands := inc.AwaitLossTime(c.end())
		c.finish() // nobody may come to do it
		if stands {
			c.Leave()
		}
	})
}

// What follows writes the trace of a claim. All of it is called under c.mu, so the
// lines stand in the order in which people were told.

// tracedLocked reports whether c is traced: if there is a trace, and c is not a
// part of something else, which has no operation.
func (c *Claim) tracedLocked() bool {
	return c.Line.Manager.Trace != nil && c.op != "" && c.Line.Kind != "" && c.uses > 0
}

func (c *Claim) traceLineLocked(event string) trace.Line {
	kind := c.Line.Kind
	if c.op == "rlock" {
		kind = trace.Read
	}
	return c.Incarnation.TraceLine(event, kind, c.Line.Dir, c.Child.Name)
}

func (c *Claim) traceLocked(event string) {
	if c.tracedLocked() {
		c.Line.Manager.Trace.Line(c.traceLineLocked(event))
	}
}

func (c *Claim) traceGrantLocked(g *Grant) {
	if !c.tracedLocked() {
		return
	}
	l := c.traceLineLocked(trace.Grant)
	l.Use, l.From = g.use, c.beside
	if g.use == 1 {
		c.Line.Manager.Trace.Held(c.Path, l)
	} else {
		c.Line.Manager.Trace.Line(l)
	}
}

// tracePassLocked is for the end of a grant whose claim stays.
func (c *Claim) tracePassLocked(g *Grant) {
	if c.tracedLocked() && !g.over && !c.over && c.why == nil {
		l := c.traceLineLocked(trace.Pass)
		l.Use = g.use
		c.Line.Manager.Trace.Line(l)
	}
}

func (c *Claim) traceTokenLocked() {
	if c.tracedLocked() {
		l := c.traceLineLocked(trace.Token)
		l.Token, l.Zxid, l.Blind = c.token, c.token, false
		c.Line.Manager.Trace.Line(l)
	}
}

// traceMoveLocked is for a claim that has another znode from here on.
func (c *Claim) traceMoveLocked(was string) {
	if c.tracedLocked() {
		l := c.traceLineLocked(trace.Move)
		l.From = was
		c.Line.Manager.Trace.Held(c.Path, l)
	}
}

func (c *Claim) traceLossLocked() {
	if c.tracedLocked() {
		c.Line.Manager.Trace.Lost(c.Path, c.Line.Manager.TraceLoss(c.traceLineLocked(trace.Loss), c.why))
	}
}
