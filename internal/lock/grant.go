package lock

// This file has the use of a claim whose turn has come: grants, fencing tokens, and requests to
// release. The wait for the turn is in acquire.go.

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
	"github.com/zsync/zsync/internal/znodes"
)

// A Grant is one use of a claim whose turn has come: a goroutine's use of a lock, or a leadership. A
// claim has one grant after another or, if it is shared, several at the same time.
type Grant struct {
	Claim  *Claim
	lost   session.Ending      // ends if the claim is lost during the grant, and not later
	hook   session.Hook        // ends `lost`
	lasts  bool                // false after the end of the grant; guarded by claim.mu
	use    int                 // the number of this grant among the grants of the claim, for the trace
	free   func()              // stops the limits of the grant (Hold.limited); nil if it has no limits
	Pinned bool                // a Do or Run releases the grant; guarded by its Lock's mu
	within []*session.Function // the program's functions that hold the grant, or may hold it (Lock.depart); guarded by claim.mu
	follow func(error)         // called when the grant ends, without locks: see Follow; guarded by claim.mu
}

// Grant begins the next use of c, whose turn has come. op is for the observer. If the session has
// ended already, the grant is lost before Grant returns.
func (c *Claim) Grant(op string) *Grant {
	c.mu.Lock()
	first := c.state == waiting
	g := &Grant{Claim: c, lasts: true}
	g.hook.Owner = g
	if first {
		c.of, c.n = c, 1
		c.guardLocked()
	}
	c.op, c.since = op, time.Now()
	c.granted++
	g.use = c.granted
	c.renew()
	if c.state != lost { // in the trace, a use that begins after the loss is no grant
		c.enter(held)
		c.traceUse(trace.Grant, g.use, "")
	}
	if l := c.Line.Limits; l != nil && c.state == held {
		since := c.since
		g.free = c.limited(l, func() (time.Time, bool) { return since, c.standing() && g.lasts })
	}
	c.lost.Add(&g.hook)
	c.mu.Unlock()
	if first {
		c.begin()
	}
	if session.IsClosed(c.Incarnation.Manager.Closing) {
		// Perhaps Close has released the holds that no function uses before c was granted, so release c
		// here. If the caller is a Do or Run, Close prevents that its function begins.
		c.ReleaseBare()
	}
	return g
}

// Within is called if the program's functions `fs` hold g, or may hold it: Close waits for them before
// it releases g.
func (g *Grant) Within(fs ...*session.Function) {
	g.Claim.mu.Lock()
	defer g.Claim.mu.Unlock()
	g.within = within(g.within, fs)
}

// The function `within` adds `fs` to `former`, without the functions that are over. A function that
// has not begun may be about to begin.
func within(former, fs []*session.Function) []*session.Function {
	former = slices.DeleteFunc(former, (*session.Function).Over)
	for _, f := range fs {
		if f != nil && !slices.Contains(former, f) {
			former = append(former, f)
		}
	}
	return former
}

// OnEnd ends g by the loss `why` or, if `why` is nil, by a release. It is called under Claim.mu.
func (g *Grant) OnEnd(why error) {
	if why != nil {
		g.lost.End(why)
	}
	if f := g.follow; f != nil {
		g.follow = nil
		g.Claim.Line.Manager.Spawn(func() { f(why) })
	}
}

// End is the normal end of g. Later changes of the claim do not affect g.
func (g *Grant) End() {
	c := g.Claim
	c.mu.Lock()
	defer c.mu.Unlock()
	g.overLocked()
}

func (g *Grant) overLocked() {
	c := g.Claim
	if !g.lasts {
		return
	}
	if c.standing() { // the claim continues
		c.traceUse(trace.Pass, g.use, "")
	}
	if g.free != nil {
		g.free()
	}
	g.lasts = false
	c.lost.Remove(&g.hook)
	g.OnEnd(nil)
}

// Follow registers f, which is called once, without locks, when g ends. The argument of f is the
// loss, or nil.
func (g *Grant) Follow(f func(why error)) {
	c := g.Claim
	c.mu.Lock()
	defer c.mu.Unlock()
	g.follow = f
	if why := g.lost.Cause(); why != nil || !g.lasts {
		g.OnEnd(why)
	}
}

func (g *Grant) Err() error { return g.Claim.Err() }

// Recheck is called right before a function of the program begins, if requests were sent since the
// grant: see standsSince. If the znode was deleted, g is lost, and Recheck returns the loss.
func (g *Grant) Recheck(ctx context.Context, lapse session.Lapse) error {
	return g.Claim.Explain(g.Claim.standsSince(ctx, lapse))
}

// Loss returns the Ending of g, which ends if the claim is lost during g, or if another goroutine ends g
// (Lock.depart). If a hook on this Ending cancels a context, the context must be a session.EndingContext.
func (g *Grant) Loss() *session.Ending { return &g.lost }

func (g *Grant) Name() string { return znodes.BaseName(g.Claim.Znode()) }

// The method `release` ends g, the only use of its claim, and the claim. The function `remove` deletes
// the znode, and returns the loss if the claim was lost before. If the loss is known already, `remove`
// is not called.
func (g *Grant) release(remove func() (lost error)) error {
	c := g.Claim
	defer g.End() // deferred, so that a loss during finish still ends g as a loss
	if lost := c.finish(); lost != nil {
		return lost
	}
	if lost := remove(); lost != nil {
		c.lose(lost, func() bool { return true })
		return lost
	}
	c.mu.Lock()
	e := c.event(session.EventReleased, nil)
	c.mu.Unlock()
	c.Incarnation.Manager.Observe(e)
	return nil
}

// ReleaseBy is a variant of Release in which the function f deletes the znode `own`. If f fails,
// ReleaseBy itself deletes the znode, and returns the error of f. If f returns ErrVanished, another
// client had deleted the znode, and ReleaseBy returns the loss.
func (g *Grant) ReleaseBy(f func(own string) error) (err error) {
	c := g.Claim
	lost := g.release(func() error {
		if err = f(c.Znode()); errors.Is(err, session.ErrVanished) {
			err = c.Incarnation.Deleted()
		} else if err != nil {
			return c.GiveBack()
		}
		c.disown()
		return err
	})
	return cmp.Or(err, lost)
}

// Left is a variant of Release for a grant whose znode is already deleted, or will be deleted.
func (g *Grant) Left() { g.release(func() error { return nil }) }

// GiveBack deletes c's znode, like Leave, and waits for the deletion.
func (c *Claim) GiveBack() error { return c.Leave().Result() }

func (g *Grant) Token(ctx context.Context) (int64, error) {
	c := g.Claim
	has := func() bool { return c.state != released && (g.lasts || c.mode() == Shared) } // a shared claim has a grant until its release
	return c.fence(ctx, has, func() string { return c.Path }, c.touch)
}

// The method `touch` writes the data of c's znode again, unchanged. The write requires the version
// of c's own last write, so it never overwrites a request to release (Mutex.Revoke) that was not read
// yet.
func (c *Claim) touch(ctx context.Context, path string) (*zk.Stat, error) {
	c.mu.Lock()
	data, version := c.Line.Data, c.version
	c.mu.Unlock()
	for {
		stat, err := c.Incarnation.Set(ctx, path, data, version)
		switch {
		case err == nil:
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.Path == path { // after two concurrent writes, the greater version counts
				c.version = max(c.version, stat.Version)
			}
			return stat, nil
		case !session.IsBadVersion(err):
			return nil, err
		}
		// The znode has another version: another client has written it, or we have written it and the
		// reply was lost, or another goroutine has written it for a token. So write the present data
		// back.
		if data, stat, err = c.Incarnation.Get(ctx, path); err != nil {
			return nil, err
		}
		version = stat.Version
	}
}

// Move gives c another znode, `to`, which Beside has created. It returns the path of the previous
// znode. The grants of c continue. If c is already lost, Move deletes `to`, and returns the loss. It
// does not delete c's znode then: see Hold.giveUp.
func (c *Claim) Move(to Child, op string) (former string, lost error) {
	path := znodes.ChildPath(c.Line.Dir, to.Name)
	c.Err() // if the session has ended, Err ends c by the loss
	c.mu.Lock()
	if lost = c.lost.Cause(); lost != nil {
		c.mu.Unlock()
		znodes.Remove(c.Incarnation, path)
		return "", lost
	}
	defer c.mu.Unlock()
	e := c.event(session.EventReleased, nil) // before the change
	c.unwatch(true)
	former = c.Path
	was := c.Child.Name
	c.Path, c.Child, c.version = path, to, 0
	c.op, c.since = op, time.Now()
	c.traceUse(trace.Move, 0, was)
	c.renew()
	c.guardLocked()
	c.Line.Manager.Spawn(func() { c.Line.Manager.Observe(e) }) // in another goroutine, because the caller holds a mutex
	return former, nil
}

// RevokeMessage is the data that a client writes to a holder's znode to request a release.
// Curator's Revoker writes the same data.
const RevokeMessage = "__REVOKE__"

// Asked returns a channel that is closed when another client asks the holder of c to release. The
// first call of Asked sets a watch on the data of c's znode.
func (c *Claim) Asked() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked == nil {
		c.asked = make(chan struct{})
		asked, path := c.asked, c.Path
		c.Incarnation.Manager.Spawn(func() { c.listen(path, asked) })
	}
	return c.asked
}

// The method `listen` waits until the znode at `path` contains RevokeMessage, and then closes
// `asked`. It also returns at the release of c, because then a message has no meaning.
func (c *Claim) listen(path string, asked chan struct{}) {
	inc := c.Incarnation
	ctx, stop := inc.Manager.Until(inc.Ctx, c.Left())
	defer stop()
	for ctx.Err() == nil && !session.IsClosed(asked) {
		err := inc.Follow(ctx, path, func(n session.Node, _ *conn.Watch) error {
			if string(n.Data) == RevokeMessage {
				close(asked)
				return context.Canceled // ends Follow
			}
			return nil
		})
		if err != context.Canceled { // the servers have refused the read
			session.AwaitIn(ctx, inc, time.After(znodes.LookAgainAfter))
		}
	}
}

// WasAsked reports whether this process knows that the holder of c was asked to release.
func (c *Claim) WasAsked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked != nil && session.IsClosed(c.asked)
}

// HeldSince returns the time at which a holder got its fencing token: the time of the last write of
// its znode n. The time is zero for a waiter, for a holder without a token, and after a Revoke, which
// also writes the znode.
func HeldSince(holding bool, n session.Node) time.Time {
	if !holding || n.Stat.Mzxid == n.Stat.Czxid || string(n.Data) == RevokeMessage {
		return time.Time{}
	}
	return time.UnixMilli(n.Stat.Mtime)
}

// The method `mode` returns the mode in which c is held. A Downgrade changes it under mu and Lock.mu.
func (c *Claim) mode() HoldMode {
	if base := c.Line.Base(Shared); base != "" && c.Child.Base == base {
		return Shared
	}
	return Exclusive
}

func (c *Claim) Znode() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Path
}

// The methods of a holding.

func (c *Claim) path() string { return c.Line.Manager.Bare(c.Line.Dir) }
func (c *Claim) discard()     { c.Leave() }
func (c *Claim) deleted(path string) { // after a Move, the deletion of the previous znode is no loss
	c.lose(c.Incarnation.Deleted(), func() bool { return c.standing() && (path == "" || path == c.Path) })
}

// inFunction returns true if Close must not release c: a running function of the program holds c. Or
// c is Unwatched: its primitive releases c, or c ends with the session.
func (c *Claim) inFunction() bool {
	return c.Unwatched || slices.ContainsFunc(c.lost.Owners(), func(owner any) bool {
		g, ok := owner.(*Grant)
		return ok && slices.ContainsFunc(g.within, (*session.Function).Runs)
	})
}

// guardLocked starts the watch on c's znode, unless c is Unwatched.
func (c *Claim) guardLocked() {
	if c.Unwatched {
		return
	}
	c.ownWatch = znodes.WatchOwn(c.Incarnation, c.Path, c)
	c.ownWatch.Made(c.own != nil)
}

func (c *Claim) unwatch(gone bool) {
	c.leaveLineWatchLocked()
	if c.ownWatch != nil {
		c.leaveHeld = c.ownWatch.Drop()
		c.ownWatch = nil
	}
	if gone {
		c.disownLocked()
	}
}

func (c *Claim) trace(event string) { c.traceUse(event, 0, "") }

// traceUse writes a record for an event of one use. The event trace.Pass means that the use has
// ended, but the claim continues. The trace does not show a claim without an operation, which is a
// part of another primitive. `from` is the name before a trace.Move.
func (c *Claim) traceUse(event string, use int, from string) {
	if c.Line.Manager.Trace == nil || c.op == "" || c.Line.Kind == "" || c.granted == 0 {
		return
	}
	kind := c.Line.Kind
	if c.op == "rlock" {
		kind = trace.Read
	}
	l := c.Incarnation.TraceLine(event, kind, c.Line.Dir, c.Child.Name)
	l.Use, l.From = use, from
	if event == trace.Token {
		l.Token, l.Zxid, l.Blind = c.token, c.token, false
	}
	c.record(c.Path, l)
}
