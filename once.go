package zsync

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
)

// A Once has something done once by all processes that name the same path together:
//
//	err := zsync.NewOnce(s, "/migrations/0042").Do(ctx, migrate)
//
// When a function given to [Once.Do] returns nil the thing is done, for every
// process and for ever, or until [Once.Reset]. At most one live session runs a
// function at a time; if it fails, or its process dies, the next that waits
// runs its own. In the terminology of the Go memory model, the return of the
// function that did it synchronizes before the return of any Do of that value.
//
// # Loss
//
// If the session is lost while the function runs, nothing is marked, Do returns
// [ErrLost] and another process may run its own: a function that has effects
// elsewhere should bear being run again. A Do that only waits carries on in the
// next session.
//
// # Errors
//
// Do returns the error of the function as it is. It returns [ErrPanicked] if
// the function given to this *Once has panicked before, and [ErrDeadlock] with
// a ctx that comes from Do of the same path.
//
// # Znodes
//
// Who waits or runs has one ephemeral, sequential znode,
// path/_c_<uuid>-lock-<seq>, whose data is the owner ([WithOwner]); this is the
// line of a [Mutex] at the same path. The mark is the persistent znode
// path/done, whose data is the owner who did it, a line feed and the name of
// its znode in the line; that of [OnceValue] is the value. path is
// a container, which the mark keeps from being removed; its parents are persistent.
//
// # Cost
//
// Do costs nothing when this process has seen the mark, through any Once of the
// path that is still in use, and 1 request when another process made it. The
// Do that runs its function costs 5 requests in 3 round trips, besides what the
// function does, and somewhat more where path is missing; that of [OnceValue] 1
// request and round trip more. A Do that has to wait sends 7 requests. When the
// function has succeeded, each that waits gets one notification, and another when
// the znode ahead of its own is deleted, which it answers with no request.
//
// # Algorithm
//
// The protocol is "Locks" from the ZooKeeper recipes, around a mark:
//
//  1. If the mark is there, it is done. Leave a watch on the mark: until that
//     fires it remains done, and nothing needs to be asked. If it is not there
//     leave a watch too, on its making.
//  2. Wait in line, and for the mark, whichever comes first.
//  3. With our turn, look for the mark again, unless nobody was ahead, and the
//     watch says that it is still missing; and then run the function.
//  4. Make the mark and leave the line, in one transaction: that we can leave is
//     the proof that it was still our turn.
//
// It is tempting to wait in line alone, and look for the mark when our turn has
// come. Then those who wait would learn that it is done one after the other,
// each after the round trips of all before it.
type Once struct {
	made
	line line.Line
	mark *mark
	busy chan struct{} // has a token while a goroutine of this process asks the servers, waits or runs

	valued   bool        // the data of the mark are wanted
	panicked atomic.Bool // a function panicked
}

// NewOnce returns the Once at path. It does no I/O; a bad argument is reported
// by every method.
func NewOnce(s *Session, path string) *Once {
	o := &Once{made: made{s: s, path: path}, busy: make(chan struct{}, 1)}
	if o.err = checkNew(s, path, nil); o.err == nil {
		o.line = line.New(s.m, path, session.ProtectedName, "lock-")
		o.line.Kind = trace.Once
		k := &mark{m: s.m, path: session.ChildPath(o.line.Dir, "done")}
		o.mark = s.marks.Of(k.path, k)
	}
	return o
}

// Path returns the path that o was made with.
func (o *Once) Path() string { return o.path }

// Do runs f, unless it is done already or another process does it first, and
// returns nil when it is done. Of those who wait, one at a time runs its f.
//
// If f fails Do returns its error as it is, nothing is marked, and the next Do
// that waits, in whichever process, runs its own f. If f panics the panic goes
// on and nothing is marked; this Once then counts f as called, as [sync.Once]
// does: later calls of Do return [ErrPanicked] and run nothing. Other processes
// may still run theirs.
//
// f's context ends, with cause [ErrLost], when the session is lost; f should
// then stop as soon as it can. Do returns ErrLost, and nothing is marked. If
// the session is lost at the very moment of marking, Do finds out whether the
// mark was made, which can take until the lost session has ended on the
// servers. If it cannot, because ctx ends or the Session is closed meanwhile, it
// returns the error of ctx, or one that is [ErrClosed] and not ErrLost.
//
// When ctx ends while Do waits, nothing is left in the line. When it ends while
// f runs it is for f to say whether the thing is done. If f then returns nil,
// the mark is made all the same, in the background if the servers do not
// answer at once; Do then returns the error of ctx.
//
// With a ctx that comes from Do of the same path, Do returns [ErrDeadlock]
// instead of waiting for itself.
//
// Do learns of a Reset by another process through a notification, and until that
// arrives takes the thing for done. A process cut off from all servers finds it
// done for no longer than its session can live; after that, and in a new session,
// Do asks.
func (o *Once) Do(ctx context.Context, f func(ctx context.Context) error) error {
	if o.misuse() == nil && f == nil {
		return o.fail("do", session.Invalid("the function is nil"))
	}
	_, err := o.do(ctx, func(ctx context.Context, place string) ([]byte, error) {
		return []byte(o.s.m.Config.Owner + "\n" + place), f(ctx)
	})
	return err
}

func (o *Once) fail(op string, err error) error { return opError(op, o.path, err) }

// do is Do for a function that returns the data of the mark. It returns the data
// of the mark that everyone sees. The function is given the name of its znode
// in the line, and its error is passed on as it is.
func (o *Once) do(ctx context.Context, f func(ctx context.Context, place string) ([]byte, error)) ([]byte, error) {
	if err := o.check(ctx); err != nil {
		return nil, o.fail("do", err)
	}
	if o.doKey().in(ctx) != nil {
		return nil, o.fail("do", ErrDeadlock)
	}
	if data, ok, err := o.settled(); ok {
		return data, o.fail("do", err)
	}
	// The goroutines of a process go one at a time, so they cost one place in the
	// line, and all but one of them no request.
	select {
	case o.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, o.fail("do", session.CtxErr(ctx))
	case <-o.s.m.Closing: // the one ahead may run a function that does not return
		return nil, o.fail("do", o.s.m.Failure())
	}
	defer func() { <-o.busy }()
	for {
		if data, ok, err := o.settled(); ok {
			return data, o.fail("do", err)
		}
		data, err := o.round(ctx, f)
		if errors.Is(err, errMarked) || errors.Is(err, session.ErrEnded) {
			continue
		}
		return data, err
	}
}

// round is do once. If the error is errMarked or ErrEnded it is for another round
// to find out what to do.
func (o *Once) round(ctx context.Context, f func(ctx context.Context, place string) ([]byte, error)) ([]byte, error) {
	g, none, err := o.mark.look(ctx, o.valued) // Step 1.
	if g != nil || err != nil {
		return g.value(), o.fail("do", err)
	}
	defer none.leave()
	h, first, err := o.enter(ctx, none)
	if errors.Is(err, errMarked) {
		return nil, err
	}
	if err != nil {
		return nil, o.fail("do", err)
	}
	return o.run(o.s.tracers.follow(ctx, o.traced, h), h, first && none.lastsFor(h), f)
}

// check is what every method asks first.
func (o *Once) check(ctx context.Context) error {
	if o.misuse() != nil {
		return o.misuse()
	}
	return session.CtxErr(ctx)
}

// doKey is that of a Mutex at the same path, whose line this is.
func (o *Once) doKey() doKey { return doKey{o.s, o.path, o.line.Bases[0]} }

// settled reports whether this process knows the answer without asking: the
// mark's data, or that a function panicked.
func (o *Once) settled() (data []byte, ok bool, err error) {
	if o.panicked.Load() {
		return nil, true, ErrPanicked
	}
	g := o.mark.known()
	if g != nil && o.valued && !g.read {
		return nil, false, nil
	}
	return g.value(), g != nil, nil
}

// A mark is what this process knows of a mark. All Onces of a Session with the
// same path share it.
type mark struct {
	m    *session.Manager
	path string // as the server knows it

	mu      sync.Mutex
	seen    *sight          // if it has been seen; guarded by mu
	unwatch runtime.Cleanup // leaves the watch of seen when this is garbage; guarded by mu
}

// A sight is the mark as it was seen, with the watch that was left on it.
type sight struct {
	inc  *session.Incarnation
	w    *session.Watch
	read bool // data is set
	data []byte
}

// An absence is that the mark was not there, with the watch that was left on its
// making. That of a look that has left none is nil.
type absence struct {
	inc *session.Incarnation
	w   *session.Watch // joined
}

// leave is the end of a.
func (a *absence) leave() {
	if a != nil {
		a.inc.Watches.Leave(a.w)
	}
}

// lastsFor reports whether the mark cannot be there while h stands, before whom
// nobody was in the line when he had entered it.
//
// The listing that showed that h is the first was made after a was. It has been
// read, and a's watch was armed and has not fired: events come ahead of every
// answer that is as new, on one connection; and on each further one the watch is set
// again ahead of all calls, and what it has missed is told. So there was no mark at
// the listing. From then on nobody makes one while h's znode is there: all others
// are behind it.
func (a *absence) lastsFor(h *line.Grant) bool {
	return a != nil && a.inc == h.Claim.Incarnation && a.inc.Watches.Armed(a.w) && !session.IsClosed(a.w.Fired)
}

// stands reports whether the mark is still there, as far as can be known. It
// asks whether the session is alive too, because nobody tells a client that is
// cut off that a mark is gone.
func (g *sight) stands() bool {
	if g == nil {
		return false
	}
	select {
	case <-g.w.Fired:
		return false
	default:
		return g.inc.Alive()
	}
}

// value is the mark's data; that of no mark is nil.
func (g *sight) value() []byte {
	if g == nil {
		return nil
	}
	return g.data
}

// known returns the mark if it has been seen and still stands.
func (k *mark) known() *sight {
	k.mu.Lock()
	g := k.seen
	k.mu.Unlock()
	if !g.stands() {
		return nil
	}
	return g
}

// shortMark is fewer bytes than the mark of a Once has, with the name of its znode in the line.
const shortMark = 40

// look looks for the mark and remembers it. If there is none it is nil, and none is
// that; the caller leaves it. With value the mark is read, which leaves no watch
// where there is none.
func (k *mark) look(ctx context.Context, value bool) (g *sight, none *absence, err error) {
	err = k.m.During(ctx, func(inc *session.Incarnation) error {
		if value {
			g, err = k.lookValue(ctx, inc)
			return err
		}
		w := inc.Watches.Join(session.WatchKey{Kind: session.WatchExists, Path: k.path})
		switch stat, err := inc.Exists(ctx, k.path); {
		case err != nil:
			inc.Watches.Leave(w)
			return err
		case stat != nil && (stat.DataLength < shortMark || stat.Cversion != 0 || stat.EphemeralOwner != 0):
			inc.Watches.Leave(w) // it may be the directory of something
			g, err = k.lookValue(ctx, inc)
			return err
		case stat != nil:
			g = &sight{inc: inc, w: w}
		default:
			none = &absence{inc, w}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	k.remember(g)
	return g, none, nil
}

// lookValue reads the mark. It is nil if there is none.
func (k *mark) lookValue(ctx context.Context, inc *session.Incarnation) (*sight, error) {
	w := inc.Watches.Join(session.WatchKey{Kind: session.WatchData, Path: k.path})
	data, _, err := inc.GetMade(ctx, k.path, inc.Get)
	if err != nil {
		inc.Watches.Leave(w)
		if session.IsNoNode(err) {
			err = nil
		}
		return nil, err
	}
	return &sight{inc, w, true, data}, nil
}

// await waits until the mark is, or was, there. If none still is what was seen of
// it, that costs nothing.
func (k *mark) await(ctx context.Context, none *absence) error {
	return k.m.During(ctx, func(inc *session.Incarnation) error {
		if none != nil && none.inc == inc {
			if err := inc.AwaitFired(ctx, none.w); err != nil || none.w.Event == zk.EventNodeCreated {
				return err
			}
		}
		return inc.AwaitMade(ctx, k.path)
	})
}

// remember replaces what has been seen of the mark; nil is nothing. Who is
// remembered stays joined to its watch for as long as k is in use, so that it
// is not removed as idle, and not longer.
func (k *mark) remember(g *sight) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if old := k.seen; old != nil {
		k.unwatch.Stop()
		old.inc.Watches.Leave(old.w)
	}
	if k.seen = g; g != nil {
		k.unwatch = runtime.AddCleanup(k, func(g *sight) { g.inc.Watches.Abandon(g.w) }, g)
	}
}

// errMarked means that the mark was made while we waited or ran.
var errMarked = errors.New("zsync: the mark has been made")

// enter waits until it is our turn or the mark is made; then it is errMarked.
//
// The mark is waited for once somebody is found to be ahead: nobody else makes it.
// That it was made before is seen by the read that sets the watch. first is that
// nobody ever was.
func (o *Once) enter(ctx context.Context, none *absence) (h *line.Grant, first bool, err error) {
	start := time.Now()
	end := o.s.tracers.acquiring(ctx, o.traced)
	wait, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	first = true
	rule := func(ahead []line.Child) (blocker *line.Child, alone bool) {
		if len(ahead) > 0 && first {
			first = false
			watching.Add(1)
			o.s.m.Spawn(func() {
				defer watching.Done()
				if o.mark.await(wait, none) == nil {
					cancel(errMarked)
				}
			})
		}
		return line.Exclusive(ahead)
	}
	var behind line.Ahead
	p, err := o.line.Acquire(wait, o.line.Bases[0], o.s.m.Owner, rule, &behind) // Step 2.
	cancel(nil)
	watching.Wait()
	switch {
	case err == nil:
		// The mark may have been made at this same instant. Step 3 sees it.
		o.s.m.Waited("do", o.path, start, nil)
		g := p.Grant("do")
		end(g.Name(), nil)
		return g, first, nil
	case ctx.Err() != nil:
		err = session.CtxErr(ctx)
	case errors.Is(err, errMarked):
		end("", nil) // there is nothing to wait for any more
		return nil, false, errMarked
	}
	head, place := behind.Now()
	err = waitEnded(ctx, o.s, err, start, headContender(head, ModeExclusive), place)
	o.s.m.Waited("do", o.path, start, err)
	end("", err)
	return nil, false, err
}

func (o *Once) traced() Op { return o.s.tracers.traced("once", "do", o.path) }

// run runs f while h stands, and makes the mark if it returns nil; unmarked means
// that there is certainly none. If it is found that f need not be run the error is
// errMarked, and if it cannot be, because h is lost, ErrEnded.
func (o *Once) run(ctx context.Context, h *line.Grant, unmarked bool, f func(ctx context.Context, place string) ([]byte, error)) (data []byte, err error) {
	var g *sight
	if !unmarked {
		var none *absence
		g, none, err = o.mark.look(ctx, o.valued) // Step 3.
		none.leave()
	}
	switch {
	case err != nil:
		o.s.m.GiveUp(ctx, h.Release)
		return nil, o.fail("do", err)
	case g != nil:
		o.s.m.GiveUp(ctx, h.Release)
		return nil, errMarked
	case h.Err() != nil:
		// The mark may have been looked for in another session than that of
		// h. Nobody was told anything, so we wait again.
		o.s.m.GiveUp(ctx, h.Release)
		return nil, session.ErrEnded
	}
	d := newDoCall(ctx, o.s, nil, h)
	if err := d.function.Begin(); err != nil {
		o.s.m.GiveUp(ctx, h.Release)
		return nil, o.fail("do", err)
	}
	var failed error
	returned := false
	err = doHolding(ctx, o.doKey(), d, func(ctx context.Context) error {
		data, failed = f(ctx, session.BaseName(h.Claim.Path))
		returned = true
		return failed
	}, func() error {
		switch {
		case !returned: // a panic, or runtime.Goexit
			o.panicked.Store(true)
			return d.giveUp(ctx, o.s.m, h.Release)
		case failed != nil:
			return o.fail("do", d.giveUp(ctx, o.s.m, h.Release))
		}
		return o.fail("do", o.finish(ctx, d, h, data))
	})
	return data, err
}

// finish makes the mark and leaves the line, whatever becomes of ctx: f has
// done its work. It returns when ctx ends, but for a moment of grace, in which
// servers that answer have answered. A loss of before that is told too; of a later
// one, behind the transaction, it is not known that nothing was marked.
func (o *Once) finish(ctx context.Context, d *doCall, h *line.Grant, data []byte) error {
	lost := h.Err()
	done := make(chan error, 1)
	o.s.m.Spawn(func() { defer d.function.End(); done <- o.write(h, data) })
	if err, ok := session.AwaitGrace(done, ctx.Done()); ok {
		return err
	}
	return alsoErr(session.CtxErr(ctx), lost)
}

// write makes the mark, and leaves the line. Step 4. What it has made it reads at
// once, so that the next Do costs nothing.
func (o *Once) write(h *line.Grant, data []byte) error {
	if err := h.Err(); err != nil {
		h.Release()
		return err // lost while f ran: nothing has been sent
	}
	inc := h.Claim.Incarnation
	w := inc.Watches.Join(session.WatchKey{Kind: session.WatchData, Path: o.mark.path})
	made, open := false, false
	err := h.ReleaseBy(func(own string) (err error) {
		made, open, err = inc.MakeAndLeave(o.mark.path, data, own)
		return err
	})
	if made {
		o.mark.remember(&sight{inc, w, true, data})
	} else {
		inc.Watches.Leave(w)
	}
	switch {
	case session.IsNodeExists(err):
		// Not by any Do: they make it in their turn only, and we saw none in
		// ours. Somebody has made it by hand.
		return errMarked
	case open:
		mine, e := o.isMine(context.Background(), h, data)
		if e != nil {
			return fmt.Errorf("the mark may have been made: %w", e)
		}
		if mine {
			return nil
		}
	}
	return err
}

// isMine reports, after the session of h was lost with the transaction in flight,
// whether the mark was made by it; the error is that this cannot be found out. While
// the znode of h is there the transaction may still be applied; once it is gone the
// proof fails. So whoever sees that it is gone, and then reads the mark, knows.
//
// The mark is recognised by its data. That of Do is unique. If another process
// has stored the same value as ours in the meantime, then ours is the one that
// everybody gets, and it does not matter who stored it.
func (o *Once) isMine(ctx context.Context, h *line.Grant, data []byte) (mine bool, err error) {
	err = o.s.m.During(ctx, func(inc *session.Incarnation) error {
		if err := inc.AwaitGone(ctx, h.Claim.Path); err != nil {
			return err
		}
		stored, _, err := inc.Get(ctx, o.mark.path)
		mine = err == nil && bytes.Equal(stored, data)
		return unlessNoNode(err)
	})
	return mine, err
}

// Done reports whether it is done. It costs nothing if this process has seen the
// mark, 1 request if it finds it, and 3 if it does not: that nothing is there is
// believed only of a server that has caught up with the others.
func (o *Once) Done(ctx context.Context) (bool, error) {
	done, err := o.done(ctx)
	return done, o.fail("done", err)
}

func (o *Once) done(ctx context.Context) (bool, error) {
	if err := o.check(ctx); err != nil {
		return false, err
	}
	if o.mark.known() != nil {
		return true, nil
	}
	g, none, err := o.mark.look(ctx, false)
	none.leave()
	if g != nil || err != nil {
		return g != nil, err
	}
	err = o.s.m.During(ctx, func(inc *session.Incarnation) error { return inc.Sync(ctx, o.mark.path) })
	if err != nil {
		return false, err
	}
	g, none, err = o.mark.look(ctx, false)
	none.leave()
	return g != nil, err
}

// Reset makes the thing undone: it deletes the mark, if there is one, and the
// next Do runs its function. That a function panicked is forgotten too, by this
// value. A function that runs now is not disturbed, and its mark is made.
//
// Other processes are notified: a Do of theirs that comes before the
// notification still finds the thing done.
//
// The deletion is applied once, even if the reply to it is lost, so that it
// does not hit a later mark; for that a receipt, path/_c_<uuid>-receipt, is
// made with it, and kept for a second for the next. Reset costs 2 requests in 2
// round trips, and one in the background when the receipt is deleted. If ctx ends
// first the mark may or may not have been deleted.
func (o *Once) Reset(ctx context.Context) error {
	return o.fail("reset", o.reset(ctx))
}

func (o *Once) reset(ctx context.Context) error {
	if err := o.check(ctx); err != nil {
		return err
	}
	o.mark.remember(nil) // another process may have reset it, and the watch not fired yet
	done, err := o.done(ctx)
	if err != nil {
		return err
	}
	if done {
		_, err = o.s.m.CommitAcrossSessions(ctx, o.line.Dir, []any{&zk.DeleteRequest{Path: o.mark.path, Version: -1}})
		if err != nil && !session.IsNoNode(err) {
			return err
		}
		o.mark.remember(nil)
	}
	o.panicked.Store(false)
	return nil
}
