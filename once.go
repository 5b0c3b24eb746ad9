package zsync

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	"github.com/zsync/zsync/internal/znodes"
)

// A Once runs a function once among all processes that name the same path:
//
//	once := zsync.NewOnce(s, "/migrations/0042")
//	err := once.Do(ctx, migrate) // in one process, until it succeeds
//	done, err := once.Done(ctx)
//
// The first function that returns nil completes the Once for every process, until [Once.Reset].
// Functions run one at a time: if one fails, or its process dies, the next waiting Do runs its own.
// The return of the successful function synchronizes before the return of any Do of the same *Once.
//
// # Loss
//
// If the session is lost while the function runs, the Once is not completed, and another process
// may run its own. Functions must tolerate a second run.
//
// # Errors
//
// Do returns the function's error unchanged, and [ErrPanicked] after a panic.
//
// # Cost
//
// Do of a completed Once takes 1 round trip, or none if this process knows it. A Do that runs its
// function takes 3 besides the function, and OnceValue 4.
//
// # Znodes
//
// A waiter is in a Mutex's line at path. The mark is the persistent path/done.
type Once struct {
	made
	line lock.Line
	mark string                 // the full path of the mark
	seen *atomic.Pointer[sight] // the mark, if this process has seen it last; all Onces of the Session with the same path share it
	busy chan struct{}          // has a token while one goroutine of this process sends requests, waits in the line or runs its function

	valued   bool        // whether the data of the mark are read
	panicked atomic.Bool // whether a function of this process panicked
}

// The protocol is "Locks" from the ZooKeeper recipes. A mark, the znode path/done, records the
// success:
//
//  1. Look for the mark. If it exists, the Once is complete. Leave a watch on the mark: until that
//     watch fires, the process knows without a request that the Once is complete. If there is no
//     mark, leave a watch on its creation.
//  2. Enter the line. Wait for our turn or for the mark, whichever comes first.
//  3. In our turn, look for the mark again, unless the watch shows that there is still no mark. Then
//     run the function.
//  4. Create the mark and leave the line in one transaction. The transaction succeeds only if
//     it is still our turn.
//
// A waiter that waited only in the line would see the mark a round trip after the waiter before it.

// NewOnce returns the Once at path.
func NewOnce(s *Session, path string) *Once {
	o := &Once{made: made{s: s, path: path}, busy: make(chan struct{}, 1)}
	if o.err = checkNew(s, path, nil); o.err == nil {
		o.line = lock.New(s.m, path, znodes.ProtectedName, "lock-")
		o.line.Kind = trace.Once
		o.mark = znodes.ChildPath(o.line.Dir, "done")
		o.seen = s.marks.Of(o.mark, new(atomic.Pointer[sight]))
	}
	return o
}

// Do runs f, unless the Once is complete or another process completes it first, and returns nil
// when it is complete. If f panics, Do panics, and later calls of this value run nothing.
//
// If the session is lost while f runs, f's context ends, and Do returns [ErrLost]: return soon from
// f. If it is lost just when the Once is being completed, Do waits for the outcome. If ctx ends
// while f runs, and f returns nil, Do completes the Once. If no server answers, it does so in the
// background, and returns the error of ctx. After that error, or [ErrClosed], the outcome is
// unknown. If another process resets the Once, Do treats it as complete until this process gets the
// event, or its session may have ended.
func (o *Once) Do(ctx context.Context, f func(ctx context.Context) error) error {
	if o.misuse() == nil && f == nil {
		return opError("do", o.path, session.Invalid("the function is nil"))
	}
	_, err := o.do(ctx, func(ctx context.Context, place string) ([]byte, error) {
		return []byte(o.s.m.Config.Owner + "\n" + place), f(ctx)
	})
	return err
}

// The method `do` does the work of Do, for a function that returns the data of the mark, and
// receives the name of its znode in the line. It returns the stored data.
func (o *Once) do(ctx context.Context, f func(ctx context.Context, place string) ([]byte, error)) ([]byte, error) {
	if err := o.entering(ctx, o.line.Bases); err != nil {
		return nil, opError("do", o.path, err)
	}
	if data, ok, err := o.settled(); ok {
		return data, opError("do", o.path, err)
	}
	// The goroutines of this process share one place in the line, and one of them sends requests.
	began := time.Now()
	select {
	case o.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, opError("do", o.path, waitEnded(ctx, o.s.m, session.CtxErr(ctx), began, Contender{}, 0))
	case <-o.s.m.Closing: // do not wait for the goroutine that continues: its function may never return
		return nil, opError("do", o.path, waitEnded(ctx, o.s.m, o.s.m.Failure(), began, Contender{}, 0))
	}
	defer func() { <-o.busy }()
	for {
		if data, ok, err := o.settled(); ok {
			return data, opError("do", o.path, err)
		}
		var data []byte
		_, err := o.inTurn(ctx, &o.line, "do", func(ctx context.Context, stands bool) (g sight, err error) {
			if !stands { // Steps 1 and 3.
				if g, err = o.look(ctx); g.there {
					return sight{}, errMarked // the Once stays joined to the watch
				}
			}
			return g, err
		}, func(ctx context.Context, h *lock.Grant) (err error) {
			returned := false
			defer func() {
				if !returned { // a panic, or runtime.Goexit
					o.panicked.Store(true)
				}
			}()
			data, err = f(ctx, znodes.BaseName(h.Claim.Path))
			returned = true
			return err
		}, func(h *lock.Grant) error { return o.write(h, data) })
		if !errors.Is(err, errMarked) && !errors.Is(err, session.ErrEnded) {
			return data, err
		}
	}
}

// The method `settled` reports whether this process knows the result without a request.
func (o *Once) settled() (data []byte, ok bool, err error) {
	if o.panicked.Load() {
		return nil, true, ErrPanicked
	}
	if g := o.known(); g != nil && (g.read || !o.valued) {
		return g.data, true, nil
	}
	return nil, false, nil
}

// The type `sight` is what one read saw at a path, with the watch that it left: on the data of the
// znode or, if there is none, on its creation.
type sight struct {
	inc   *session.Incarnation
	w     *conn.Watch // joined
	there bool        // whether the znode exists
	read  bool        // whether data is set
	data  []byte

	unwatch func() // leaves w, if a Once remembers the sight
}

// The method `leave` leaves the watch of g. The sight of a failed read has none.
func (g sight) leave() {
	if g.w != nil {
		g.inc.Watches.Leave(g.w)
	}
}

// The method `known` returns the mark as it was seen, or nil if it may not exist now. It also checks
// the session, because a client that is cut off receives no event of a deletion.
func (o *Once) known() *sight {
	if g := o.seen.Load(); g != nil && !session.IsClosed(g.w.Fired) && g.inc.Alive() {
		return g
	}
	return nil
}

// The method `see` reads the znode at path: its data if `value` is true, and otherwise only whether it
// is the mark of a Once. If `fresh` is set, it reads the data as of the call or later, without a watch.
func (m *made) see(ctx context.Context, path string, value, fresh bool) (g sight, err error) {
	err = m.s.m.During(ctx, func(inc *session.Incarnation) error {
		get := inc.Get
		if fresh {
			get = inc.GetFresh
		}
		for read := value; ; read = !read { // until a read has seen the znode, or that there is none
			seen := sight{inc: inc, read: read}
			var stat *zk.Stat
			var err error
			if read {
				if !fresh {
					seen.w = inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: path})
				}
				seen.data, stat, err = znodes.GetMade(ctx, inc, path, get)
			} else {
				seen.w = inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: path})
				stat, err = inc.Exists(ctx, path)
				// The data of a mark contain the name of a znode in the line, so they have over 40 bytes.
				if stat != nil && (value || stat.DataLength < 40 || stat.Cversion != 0 || stat.EphemeralOwner != 0) {
					err = zk.ErrNoNode // read it: path/done may be the parent znode of another primitive
				}
			}
			seen.there = stat != nil
			if err == nil {
				g = seen
				return nil
			}
			seen.leave()
			if err = unlessNoNode(err); err != nil || fresh {
				return err
			}
		}
	})
	return g, err
}

// The method `look` looks for the mark, and remembers it. If there is none, the caller must leave the
// watch.
func (o *Once) look(ctx context.Context) (sight, error) {
	g, err := o.see(ctx, o.mark, o.valued, false)
	if err == nil {
		o.remember(g)
	}
	return g, err
}

// The method `remember` replaces the remembered mark by g, or forgets it if g is a sight without a
// mark. The remembered mark stays joined to its watch while a Once of the path is in use.
func (o *Once) remember(g sight) {
	var seen *sight
	if g.there {
		g.unwatch = session.StayJoined(o.seen, g.inc, g.w)
		seen = &g
	}
	if old := o.seen.Swap(seen); old != nil {
		old.unwatch()
	}
}

// errMarked means that the caller must look for the record again: it was written while we waited or
// while our function ran, or we lost our turn before the function began.
var errMarked = errors.New("the mark has been made")

// The method `inTurn` waits in the line and runs f, which must succeed once. A contender that
// succeeds writes a record: the mark of a Once, or path/last of a Schedule.
//
//   - The function `look` reads the record, and returns an error and no sight if f must not run:
//     errMarked, or another error. If `stands` is true, the record has not changed since the previous
//     call, so `look` reads nothing. It is called before the wait, after each change of the record
//     while a contender is ahead, and in our turn.
//   - If f succeeds, `write` writes the record and leaves the line, even if ctx has ended.
//
// The result `ran` reports whether f was called.
func (m *made) inTurn(ctx context.Context, line *lock.Line, op string, look func(ctx context.Context, stands bool) (sight, error), f func(ctx context.Context, h *lock.Grant) error, write func(h *lock.Grant) error) (ran bool, err error) {
	g, err := look(ctx, false)
	if err != nil {
		return false, opError("do", m.path, err)
	}
	defer func() { g.leave() }()
	c, wait, err := m.awaitTurn(ctx, line, op, &g, look)
	if err != nil {
		return false, opError("do", m.path, err)
	}
	lapse, h := c.Incarnation.Lapse(), c.Grant(op)
	ctx = wait.got(ctx, h)
	begun := false
	defer func() {
		if !begun { // also if `look` has panicked
			m.s.m.GiveUp(ctx, h.Release)
		}
	}()
	// If the watch stands, the record is the same while h holds. Argument: a contender writes the record
	// before it deletes its znode, or in the same transaction. So on one connection, the event of the
	// record arrives before any event or listing that shows h to be the first contender. On a new
	// connection, the client sets the watch again before all requests. A turn then needs the reply to
	// a request (Claim.standsAfter), which arrives after the missed events. While h's znode exists, all
	// other contenders are behind h.
	again, err := look(ctx, g.inc == c.Incarnation && c.Incarnation.Watches.Stands(g.w))
	if again.leave(); err == nil {
		err = h.Recheck(ctx, lapse)
	}
	if h.Err() != nil && (err == nil || errors.Is(err, ErrLost)) {
		err = errMarked // `look` may have used a later session than h's
	}
	d := m.newDoCall(ctx, "mutex", line.Bases[0], h) // a Once and a Mutex at the same path use the same line
	if err == nil {
		err = d.function.Begin()
	}
	if err != nil {
		return false, opError("do", m.path, err)
	}
	begun = true
	succeeded := false
	return true, doHolding(ctx, m.s, d, func(ctx context.Context) error {
		err := f(ctx, h)
		succeeded = err == nil
		return err
	}, func() error {
		if !succeeded {
			return opError("do", m.path, d.giveUp(ctx, m.s.m, h.Release))
		}
		// If ctx has ended, wait for a short time, in which a working server answers. If h is lost already,
		// `write` fails at once. Close waits a little for `write`, even if this goroutine calls it.
		_, recorded := m.s.m.BeforeClose()
		err, ok := session.Apart(ctx, m.s.m.Spawn, func() error { defer recorded(); defer d.function.End(); return write(h) })
		if !ok {
			err = session.CtxErr(ctx)
		}
		return opError("do", m.path, err)
	})
}

// The method `awaitTurn` is the wait of inTurn. After each change of the record that the sight g shows, and
// after the end of its session, it replaces g by a new look.
func (m *made) awaitTurn(ctx context.Context, line *lock.Line, op string, g *sight, look func(ctx context.Context, stands bool) (sight, error)) (c *lock.Claim, wait operation, err error) {
	_, wait = m.s.begin(ctx, Op{Kind: OpAcquire, Primitive: line.Kind, Name: op, Path: m.path})
	var behind lock.Ahead
	place := lock.Place{Line: line, Behind: &behind}
	defer func() {
		place.Leave() // if our turn has not come
		switch {
		case c != nil:
		case errors.Is(err, errMarked), errors.Is(err, lock.ErrInterrupted): // the record exists, or `look` has panicked
			wait.endSpan(nil)
		default:
			if ctx.Err() != nil {
				err = session.CtxErr(ctx)
			}
			b := behind.Now()
			err = waitEnded(ctx, m.s.m, err, wait.began, firstAhead(b, ModeExclusive), b.Place)
			wait.end(err)
		}
	}()
	for {
		place.Interrupts = [2]<-chan struct{}{g.w.Fired, g.inc.Ctx.Done()}
		if c, err = place.Take(ctx); !errors.Is(err, lock.ErrInterrupted) {
			return c, wait, err
		}
		now, err := look(ctx, false)
		g.leave()
		if *g = now; err != nil {
			return nil, wait, err
		}
	}
}

// The method `write` creates the mark and leaves the line (step 4).
func (o *Once) write(h *lock.Grant, data []byte) error {
	inc := h.Claim.Incarnation
	// The read after the transaction sets a watch on the data. A watch on the creation may still
	// be set when that read is sent, but the creation of the mark fires that watch.
	w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: o.mark})
	made, open := false, false
	err := h.ReleaseBy(func(own string) (err error) {
		made, open, err = znodes.MakeAndLeave(inc, o.mark, data, own)
		return err
	})
	if made {
		o.remember(sight{inc: inc, w: w, there: true, read: true, data: data})
	} else {
		inc.Watches.Leave(w)
	}
	switch {
	case session.IsNodeExists(err):
		// A Do creates the mark only in its turn. When our turn began, there was no mark. So another
		// program has created this mark.
		return errMarked
	case open:
		// h's session was lost before the reply, or the servers refused a read. While h's znode exists, the
		// transaction can still be applied; after its deletion, it fails. So wait for the deletion, and then
		// read the mark. Do stores unique data. OnceValue may store the same value as another process; then
		// it does not matter which process stored it.
		mine := false
		e := o.s.m.During(context.Background(), func(inc *session.Incarnation) error {
			if err := inc.AwaitGone(context.Background(), h.Claim.Path); err != nil {
				return err
			}
			stored, _, err := inc.Get(context.Background(), o.mark)
			mine = err == nil && bytes.Equal(stored, data)
			return unlessNoNode(err)
		})
		switch {
		case e != nil && session.OutcomeOf(e) == session.Answered:
			// A caller would take the servers' answer about the read for a refusal of the mark.
			return fmt.Errorf("the mark may have been made: %v", e)
		case e != nil:
			return fmt.Errorf("the mark may have been made: %w", e)
		case mine:
			return nil
		}
	}
	return err
}

// Done reports whether the Once is complete. It takes no request if this process has seen the mark,
// 1 if it finds the mark, and otherwise 3.
func (o *Once) Done(ctx context.Context) (bool, error) {
	done, err := o.done(ctx)
	return done, opError("done", o.path, err)
}

func (o *Once) done(ctx context.Context) (bool, error) {
	if err := o.check(ctx); err != nil {
		return false, err
	}
	if o.known() != nil {
		return true, nil
	}
	for synced := false; ; synced = true {
		g, err := o.look(ctx)
		if g.there || err != nil {
			return g.there, err
		}
		if g.leave(); synced {
			return false, nil
		}
		if err := o.s.m.During(ctx, func(inc *session.Incarnation) error { return inc.Sync(ctx, o.mark) }); err != nil {
			return false, err
		}
	}
}

// Reset deletes the mark, so that the next Do runs its function, also after a panic. A function
// that is already running still completes the Once.
func (o *Once) Reset(ctx context.Context) (err error) {
	defer o.wrap("reset", &err)
	if err := o.check(ctx); err != nil {
		return err
	}
	o.remember(sight{}) // another process may have deleted the mark, although the watch has not fired yet
	done, err := o.done(ctx)
	if err != nil {
		return err
	}
	if done {
		ops := []any{&zk.DeleteRequest{Path: o.mark, Version: -1}}
		if _, err := txn.Across(ctx, o.s.m, o.line.Dir, ops); unlessNoNode(err) != nil {
			return err
		}
		o.remember(sight{})
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
// the pointers, slices and maps. If f fails, if its value cannot be encoded, decoded or stored
// ([ErrTooLarge]), or if the session is lost, the Once is not completed: the caller gets value and
// error, so that it can undo f, and the next call runs its own f. If the stored bytes cannot be
// decoded, every call fails until [Once.Reset].
func OnceValue[T any](s *Session, path string, f func(ctx context.Context) (T, error), opts ...ValueOption) func(ctx context.Context) (T, error) {
	return onceValue(s, path, f, opts, codec.Encode[T], codec.Decode[T])
}

// OnceValues is [OnceValue] for a function of two values.
func OnceValues[T1, T2 any](s *Session, path string, f func(ctx context.Context) (T1, T2, error), opts ...ValueOption) func(ctx context.Context) (T1, T2, error) {
	var both func(ctx context.Context) (func() (T1, T2), error)
	if f != nil {
		both = func(ctx context.Context) (func() (T1, T2), error) {
			v1, v2, err := f(ctx)
			return func() (T1, T2) { return v1, v2 }, err
		}
	}
	get := onceValue(s, path, both, opts, func(c codec.Encoding, v func() (T1, T2)) ([]byte, error) {
		v1, v2 := v()
		return codec.EncodePair(c, v1, v2)
	}, func(c codec.Encoding, data []byte) (func() (T1, T2), error) {
		v1, v2, err := codec.DecodePair[T1, T2](c, data)
		return func() (T1, T2) { return v1, v2 }, err
	})
	return func(ctx context.Context) (v1 T1, v2 T2, err error) {
		v, err := get(ctx)
		if v != nil { // f was called, or a stored pair was read
			v1, v2 = v()
		}
		return v1, v2, err
	}
}

// onceValue does the work of OnceValue, with the stored form of encode and decode.
func onceValue[T any](s *Session, path string, f func(ctx context.Context) (T, error), opts []ValueOption, encode func(codec.Encoding, T) ([]byte, error), decode func(codec.Encoding, []byte) (T, error)) func(ctx context.Context) (T, error) {
	c := valueSetup(opts)
	o := NewOnce(s, path)
	o.valued = true
	switch {
	case o.err != nil:
	case c.err != nil:
		o.err = c.err
	case f == nil:
		o.err = session.Invalid("the function is nil")
	}
	var (
		mu   sync.Mutex
		have bool   // whether the variables below are set; guarded by mu
		last []byte // the bytes from which v and bad were decoded; guarded by mu
		v    T      // guarded by mu
		bad  error  // guarded by mu
	)
	decoded := func(data []byte) (T, error) {
		mu.Lock()
		defer mu.Unlock()
		if !have || !bytes.Equal(last, data) {
			v, bad = decode(c.codec, data)
			bad = opError("decode", o.path, bad)
			have, last = true, data
		}
		return v, bad
	}
	return func(ctx context.Context) (T, error) {
		var own T
		data, err := o.do(ctx, func(ctx context.Context, _ string) (data []byte, err error) {
			if own, err = f(ctx); err != nil {
				return nil, err
			}
			if data, err = encode(c.codec, own); err == nil {
				err = znodes.Stored{Path: o.mark, Leaf: true}.Check(data)
			}
			if err == nil && znodes.SizeOf(o.s.m, o.mark, data) > znodes.MaxPacket {
				err = fmt.Errorf("value of %d bytes: %w", len(data), ErrTooLarge)
			}
			if err != nil {
				return nil, opError("encode", o.path, err)
			}
			// Check that the value can be decoded: if it cannot, every later call would fail.
			_, err = decoded(data)
			return data, err
		})
		if err != nil {
			return own, err
		}
		return decoded(data)
	}
}
