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

	"github.com/zsync/zsync/internal/codec"
	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
	"github.com/zsync/zsync/internal/txn"
)

// A Once runs a function once among all processes that name the same path:
//
//	once := zsync.NewOnce(s, "/migrations/0042")
//	err := once.Do(ctx, migrate) // in one process, until it succeeds
//	done, err := once.Done(ctx)
//
// The first function that returns nil completes the Once for every process, until [Once.Reset].
// Functions run one at a time: if one fails, or its process dies, the next waiting Do runs its own.
// The successful return synchronizes before the return of any Do of that value.
//
// # Loss
//
// If the session is lost while the function runs, the Once is not completed, and another process
// may run its own. It must tolerate a second run.
//
// # Errors
//
// Do returns the function's error unchanged, and [ErrPanicked] after a panic.
//
// # Cost
//
// Do of a completed Once takes 1 round trip, or none if this process knows. A Do that runs its
// function takes 3 besides the function, and OnceValue 4.
//
// # Znodes
//
// A waiter is in a Mutex's line at path. The mark is the persistent path/done.
type Once struct {
	made
	line lock.Line
	mark *mark
	busy chan struct{} // has a token while a goroutine of this process sends requests, waits or runs

	valued   bool        // the data of the mark are wanted
	panicked atomic.Bool // a function panicked
}

// The protocol is "Locks" from the ZooKeeper recipes, around a mark:
//
//  1. If the mark exists, the Once is complete. Leave a watch on the mark: until it
//     fires, the Once stays complete without a request. If there is no mark, leave a
//     watch on its creation.
//  2. Wait in the line and for the mark, whichever comes first.
//  3. In our turn, look for the mark again, unless no contender was ever ahead and the
//     watch shows that there is still no mark. Then run the function.
//  4. Create the mark and leave the line in one transaction: that we can leave proves
//     that it was still our turn.
//
// It is tempting to wait in the line alone, and to look for the mark in our turn. But then
// the waiters would learn of the mark one after the other, a round trip apart.

// NewOnce returns the Once at path.
func NewOnce(s *Session, path string) *Once {
	o := &Once{made: made{s: s, path: path}, busy: make(chan struct{}, 1)}
	if o.err = checkNew(s, path, nil); o.err == nil {
		o.line = lock.New(s.m, path, session.ProtectedName, "lock-")
		o.line.Kind = trace.Once
		k := &mark{m: s.m, path: session.ChildPath(o.line.Dir, "done")}
		o.mark = s.marks.Of(k.path, k)
	}
	return o
}

// Path returns the path that o was made with.
func (o *Once) Path() string { return o.path }

// Do runs f, unless the Once is complete or another process completes it first, and returns nil
// when it is complete. If f panics, so does Do, and later calls of this value run nothing.
//
// If the session is lost while f runs, f's context ends, and Do returns [ErrLost]: return soon from
// f. If it is lost just when the Once is being completed, Do waits for the outcome. If ctx ends
// while f runs and f returns nil, the Once is completed, if need be in the background, and Do
// returns the error of ctx. After that error, or [ErrClosed], the outcome is unknown. After a Reset
// in another process, Do here still treats the Once as complete until the event of the Reset
// arrives, or the session can have ended.
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

// do is Do for a function that returns the data of the mark. It returns the data that is
// stored. The function receives the name of its znode in the line; do returns its error
// unchanged.
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
	// One goroutine of a process continues at a time. So together they have one place in the line,
	// and only one sends requests.
	select {
	case o.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, o.fail("do", session.CtxErr(ctx))
	case <-o.s.m.Closing: // the goroutine ahead may run a function that never returns
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

// round is do once. After errMarked or ErrEnded, the caller tries another round.
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

// check returns why a method cannot begin, or nil.
func (o *Once) check(ctx context.Context) error {
	if o.misuse() != nil {
		return o.misuse()
	}
	return session.CtxErr(ctx)
}

// doKey is the key of a Mutex at the same path, which has the same line.
func (o *Once) doKey() doKey { return doKey{o.s, o.path, o.line.Bases[0]} }

// settled reports whether this process knows the result without a request: the mark's data,
// or that a function panicked.
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

// A mark is the znode path/done, as far as this process knows it. All Onces of a Session
// with the same path share it.
type mark struct {
	m    *session.Manager
	path string // as the server knows it

	mu      sync.Mutex
	seen    *sight          // nil before the mark was seen; guarded by mu
	unwatch runtime.Cleanup // leaves the watch of seen when this is garbage; guarded by mu
}

// A sight is the mark as it was seen, with the watch that was left on it.
type sight struct {
	inc  *session.Incarnation
	w    *conn.Watch
	read bool // data is set
	data []byte
}

// An absence records that there was no mark, with the watch on its creation. It is nil if
// the read left no watch.
type absence struct {
	inc *session.Incarnation
	w   *conn.Watch // joined
}

// leave leaves the watch of a.
func (a *absence) leave() {
	if a != nil {
		a.inc.Watches.Leave(a.w)
	}
}

// lastsFor reports whether no mark can exist while h holds. When h entered the line, no other
// contender was in it.
//
// The listing that showed h to be the first came after a. Its reply was read, and a's watch was
// armed and has not fired. On one connection, events arrive before every reply that is as new. On a
// new connection, the watch is set again before all calls, and a missed event fires it. So there
// was no mark at the listing. While h's znode exists, no other process creates a mark: all others
// are behind h.
func (a *absence) lastsFor(h *lock.Grant) bool {
	return a != nil && a.inc == h.Claim.Incarnation && a.inc.Watches.Armed(a.w) && !session.IsClosed(a.w.Fired)
}

// stands reports whether the mark is still known to exist. It checks the session too,
// because a client that is cut off receives no event of a deletion.
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

// value returns the mark's data; nil without a mark.
func (g *sight) value() []byte {
	if g == nil {
		return nil
	}
	return g.data
}

// known returns the mark if it was seen and still exists.
func (k *mark) known() *sight {
	k.mu.Lock()
	g := k.seen
	k.mu.Unlock()
	if !g.stands() {
		return nil
	}
	return g
}

// shortMark is less than the length of the data of a Once's mark. They contain the name of a znode
// in the line.
const shortMark = 40

// look looks for the mark and remembers it. Without a mark, it returns the absence, which
// the caller leaves. With value, look reads the mark's data; without a mark, that leaves no
// watch.
func (k *mark) look(ctx context.Context, value bool) (g *sight, none *absence, err error) {
	err = k.m.During(ctx, func(inc *session.Incarnation) error {
		if value {
			g, err = k.lookValue(ctx, inc)
			return err
		}
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: k.path})
		switch stat, err := inc.Exists(ctx, k.path); {
		case err != nil:
			inc.Watches.Leave(w)
			return err
		case stat != nil && (stat.DataLength < shortMark || stat.Cversion != 0 || stat.EphemeralOwner != 0):
			inc.Watches.Leave(w) // path/done may be the parent znode of another primitive
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
	w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: k.path})
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

// await waits until the mark exists or has existed. While the absence none is valid, that costs no
// request.
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

// remember replaces the remembered mark; nil forgets it. The remembered mark stays joined to its
// watch while k is in use, so that the watch is not removed as idle.
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
var errMarked = errors.New("the mark has been made")

// enter waits until it is our turn or the mark is made; then it is errMarked.
//
// If a contender is ahead, enter also waits for the mark: only a contender ahead creates
// it. The read that sets the watch finds an earlier mark. first reports that no contender
// was ever ahead.
func (o *Once) enter(ctx context.Context, none *absence) (h *lock.Grant, first bool, err error) {
	start := time.Now()
	end := o.s.tracers.acquiring(ctx, o.traced)
	wait, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	first = true
	rule := func(ahead []lock.Child) (blocker *lock.Child, alone bool) {
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
		return lock.EveryoneAhead(ahead)
	}
	var behind lock.Ahead
	p, err := o.line.Acquire(wait, o.line.Bases[0], o.s.m.Owner, rule, &behind) // Step 2.
	cancel(nil)
	watching.Wait()
	switch {
	case err == nil:
		// The mark may have been created at this same instant. Step 3 sees it.
		o.s.m.Waited("do", o.path, start, nil)
		g := p.Grant("do")
		end(g.Name(), nil)
		return g, first, nil
	case ctx.Err() != nil:
		err = session.CtxErr(ctx)
	case errors.Is(err, errMarked):
		end("", nil) // the mark exists, so the wait is over
		return nil, false, errMarked
	}
	b := behind.Now()
	err = waitEnded(ctx, o.s, err, start, headContender(b, ModeExclusive), b.Place)
	o.s.m.Waited("do", o.path, start, err)
	end("", err)
	return nil, false, err
}

func (o *Once) traced() Op { return o.s.tracers.traced("once", "do", o.path) }

// run runs f while h holds, and creates the mark if f returns nil. unmarked means that
// there is certainly no mark. The error is errMarked if there is a mark, and ErrEnded if h
// is lost before f begins.
func (o *Once) run(ctx context.Context, h *lock.Grant, unmarked bool, f func(ctx context.Context, place string) ([]byte, error)) (data []byte, err error) {
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
		// look may have used another session than h's. Do returns later, so wait again.
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

// finish creates the mark and leaves the line, even if ctx ends, because f has succeeded.
// When ctx ends it returns after a moment of grace, in which a working server has answered.
// It also returns an earlier loss. After a later loss, the mark may exist.
func (o *Once) finish(ctx context.Context, d *doCall, h *lock.Grant, data []byte) error {
	lost := h.Err()
	done := make(chan error, 1)
	o.s.m.Spawn(func() { defer d.function.End(); done <- o.write(h, data) })
	if err, ok := session.AwaitGrace(done, ctx.Done()); ok {
		return err
	}
	return alsoErr(session.CtxErr(ctx), lost)
}

// write creates the mark and leaves the line: step 4. It remembers the mark, so that the
// next Do costs nothing.
func (o *Once) write(h *lock.Grant, data []byte) error {
	if err := h.Err(); err != nil {
		h.Release()
		return err // h was lost while f ran, so no request was sent
	}
	inc := h.Claim.Incarnation
	// The read after the transaction sets a watch on the data. A watch on the creation may still be
	// set when the read is sent: the creation of the mark fires it.
	w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: o.mark.path})
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
		// A Do creates the mark only in its turn, and there was no mark in ours. So another program has
		// created this mark.
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

// isMine reports whether h's transaction created the mark, after h's session was lost with
// the transaction in flight. An error means that the outcome is unknown. While h's znode
// exists, the transaction can still be applied; after its deletion, the transaction fails.
// So isMine waits for the deletion and then reads the mark.
//
// isMine recognises the mark by its data. The data of Do is unique. If another process has
// stored the same value as ours, every caller gets our value, and it does not matter which
// process stored it.
func (o *Once) isMine(ctx context.Context, h *lock.Grant, data []byte) (mine bool, err error) {
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

// Done reports whether the Once is complete. It takes no request if this process has seen the mark,
// 1 if it finds the mark, and otherwise 3.
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

// Reset deletes the mark, so that the next Do runs its function, also after a panic. A function
// that runs now completes the Once.
func (o *Once) Reset(ctx context.Context) error {
	return o.fail("reset", o.reset(ctx))
}

func (o *Once) reset(ctx context.Context) error {
	if err := o.check(ctx); err != nil {
		return err
	}
	o.mark.remember(nil) // another process may have deleted it, and the watch has not fired yet
	done, err := o.done(ctx)
	if err != nil {
		return err
	}
	if done {
		ops := []any{&zk.DeleteRequest{Path: o.mark.path, Version: -1}}
		if _, err := txn.Across(ctx, o.s.m, o.line.Dir, ops); unlessNoNode(err) != nil {
			return err
		}
		o.mark.remember(nil)
	}
	o.panicked.Store(false)
	return nil
}

// OnceFunc returns a function that calls [Once.Do] with f, for any number of goroutines. To reset
// it, use [Once.Reset] of the same path.
func OnceFunc(s *Session, path string, f func(ctx context.Context) error) func(ctx context.Context) error {
	o := NewOnce(s, path)
	return func(ctx context.Context) error { return o.Do(ctx, f) }
}

// OnceValue returns a function that calls [Once.Do] with f and returns f's value, the same in every
// process: each caller gets the stored bytes, decoded ([WithCodec]). Callers of one process share
// its pointers, slices and maps. If f fails, if its value cannot be encoded, decoded or stored
// ([ErrTooLarge]), or if the session is lost, the Once is not completed: the caller gets value and
// error, so that it can undo f, and the next call runs its own f. If the stored bytes cannot be
// decoded, every call fails until [Once.Reset].
func OnceValue[T any](s *Session, path string, f func(ctx context.Context) (T, error), opts ...ValueOption) func(ctx context.Context) (T, error) {
	c := newValueConfig(opts)
	k := newStored(s, path, c.err,
		func(v T) ([]byte, error) { return codec.Encode(c.codec, v) },
		func(data []byte) (T, error) { return codec.Decode[T](c.codec, data) })
	return func(ctx context.Context) (T, error) { return k.get(ctx, f) }
}

// OnceValues is [OnceValue] for a function of two values.
func OnceValues[T1, T2 any](s *Session, path string, f func(ctx context.Context) (T1, T2, error), opts ...ValueOption) func(ctx context.Context) (T1, T2, error) {
	c := newValueConfig(opts)
	k := newStored(s, path, c.err,
		func(v codec.Pair[T1, T2]) ([]byte, error) { return codec.EncodePair(c.codec, v) },
		func(data []byte) (codec.Pair[T1, T2], error) { return codec.DecodePair[T1, T2](c.codec, data) })
	var both func(ctx context.Context) (codec.Pair[T1, T2], error)
	if f != nil {
		both = func(ctx context.Context) (v codec.Pair[T1, T2], err error) {
			v.First, v.Second, err = f(ctx)
			return v, err
		}
	}
	return func(ctx context.Context) (T1, T2, error) {
		v, err := k.get(ctx, both)
		return v.First, v.Second, err
	}
}

// A storedValue keeps the value of a OnceValue for this process.
type storedValue[T any] struct {
	once   *Once
	encode func(T) ([]byte, error)
	decode func([]byte) (T, error)

	mu   sync.Mutex
	have bool   // whether the other fields are set; guarded by mu
	data []byte // the bytes that have been decoded; guarded by mu
	v    T      // guarded by mu
	err  error  // guarded by mu
}

func newStored[T any](s *Session, path string, err error, encode func(T) ([]byte, error), decode func([]byte) (T, error)) *storedValue[T] {
	o := NewOnce(s, path)
	o.valued = true
	if o.err == nil {
		o.err = err
	}
	return &storedValue[T]{once: o, encode: encode, decode: decode}
}

// get returns the value. It runs f if no process has completed the Once yet.
func (k *storedValue[T]) get(ctx context.Context, f func(ctx context.Context) (T, error)) (T, error) {
	var own T
	if k.once.err == nil && f == nil {
		return own, k.once.fail("do", session.Invalid("the function is nil"))
	}
	data, err := k.once.do(ctx, func(ctx context.Context, _ string) (data []byte, err error) {
		if own, err = f(ctx); err != nil {
			return nil, err
		}
		if data, err = k.encode(own); err != nil {
			return nil, k.once.fail("encode", err)
		}
		if k.once.s.m.SizeOf(k.once.mark.path, data) > session.MaxPacket {
			return nil, k.once.fail("encode", fmt.Errorf("value of %d bytes: %w", len(data), ErrTooLarge))
		}
		// A value that cannot be decoded would make every later call fail.
		_, err = k.decoded(data)
		return data, err
	})
	if err != nil {
		return own, err
	}
	return k.decoded(data)
}

// decoded decodes data, unless these bytes were decoded the last time.
func (k *storedValue[T]) decoded(data []byte) (T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.have || !bytes.Equal(k.data, data) {
		k.v, k.err = k.decode(data)
		k.err = k.once.fail("decode", k.err)
		k.have, k.data = true, data
	}
	return k.v, k.err
}
