package zsync

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"weak"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/codec"
	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// A Flight runs a function once for all who ask for the same key at about the
// same time, in any process: golang.org/x/sync/singleflight across processes.
// It keeps a hundred processes from filling the same cache at once.
//
//	prices := zsync.NewFlight[string](s, "/cache/prices", time.Minute)
//	v, shared, err := prices.Do(ctx, "EUR", fetch)
//
// Whoever calls while another runs the function waits, and gets the same
// result. So does whoever calls less than keep after the result was stored, by
// the servers' clock; keep is the argument of [NewFlight].
//
// Only success is shared. If a function fails, its own caller gets the error,
// and one of those who wait runs its function, whichever is the first to ask for
// that. The same happens if a function panics.
//
// # Loss
//
// If the process dies while its function runs, the next one runs its own as
// soon as the session has expired. If the session is lost but the process
// lives, the caller gets what the function returned together with [ErrLost],
// because another may have run meanwhile. A Do that only waits carries on in
// the next session.
//
// # Errors
//
// Do returns the error of the function, and [ErrDeadlock] with a ctx that
// comes from Do of the same key.
//
// # Znodes
//
// Each key has a read-write lock, path/<key>/_c_<uuid>-__READ__<seq> and
// …__WRIT__…, and its result, path/<key>/result, which is persistent. Keys are
// written as those of a [Map] are. A result whose time is over is deleted by
// the process that stored it or, when that is gone, by the next that runs a
// function for any key. After that nothing is left.
//
// # Cost
//
// Do costs 4 requests in 3 round trips if there is a result: create and list,
// read, delete. A Do that runs the function makes 6 more, in 5 round trips.
type Flight[T any] struct {
	made
	codec Codec
	keep  time.Duration
}

// NewFlight returns the Flight at path. A result is shared with those who call
// less than keep after it was stored; with 0, with those alone who have waited for
// it. It does no I/O; a bad argument is reported by every method.
func NewFlight[T any](s *Session, path string, keep time.Duration, opts ...ValueOption) *Flight[T] {
	c := newValueConfig(opts)
	if c.err == nil && keep < 0 {
		c.err = session.Invalid("NewFlight: keep is %v; it must not be negative", keep)
	}
	return &Flight[T]{made: made{s: s, path: path, err: checkNew(s, path, c.err)}, codec: c.codec, keep: keep}
}

// Path returns the path that f was made with.
func (f *Flight[T]) Path() string { return f.path }

// Do returns the result of fn, or that of another call for key, and then shared is
// true. fn's context ends, with cause [ErrLost], when others may run theirs; if fn
// panics the panic goes on.
//
// The errors are fn's own, those of [Mutex.Lock], [ErrLost] when fn has returned
// without an error after its session was lost, or what it returned could not be
// stored or encoded: v is what it returned then too. If the session is lost before
// fn has begun, Do carries on in the next one. A ctx that comes from Do of the
// same key is refused with [ErrDeadlock]. A result that cannot be decoded is taken for
// none.
func (f *Flight[T]) Do(ctx context.Context, key string, fn func(ctx context.Context) (T, error)) (v T, shared bool, err error) {
	v, shared, err = f.do(ctx, key, fn)
	if err != nil {
		err = opError("do", f.path, fmt.Errorf("key %q: %w", key, err))
	}
	return v, shared, err
}

func (f *Flight[T]) do(ctx context.Context, key string, fn func(ctx context.Context) (T, error)) (v T, shared bool, err error) {
	if f.misuse() != nil {
		return v, false, f.misuse()
	}
	if fn == nil {
		return v, false, session.Invalid("the function is nil")
	}
	rw := f.lockOf(key)
	if rw.misuse() != nil {
		return v, false, rw.misuse()
	}
	if rw.within(ctx).holds() {
		return v, false, ErrDeadlock
	}
	// Whoever may change what is in it may put a lock of his own in the place of ours.
	if err := f.s.m.During(ctx, func(inc *session.Incarnation) error { return inc.Vet(ctx, session.Dir{Path: f.s.m.Full(f.path)}) }); err != nil {
		return v, false, err
	}
	var came *zk.Stat // of the znode that came first, in whichever session
	for {
		ran := false
		v, shared, err = f.try(ctx, rw, &came, func(ctx context.Context) (T, error) {
			ran = true
			return fn(ctx)
		})
		// What was lost before fn began was only a wait; but ctx may have ended
		// because of a loss as well, one of the caller's.
		if shared || ran || ctx.Err() != nil || !errors.Is(err, ErrLost) || errors.Is(err, ErrClosed) {
			return v, shared, err
		}
		rw = f.lockOf(key)
	}
}

// try is do within one session, with the lock of the key.
func (f *Flight[T]) try(ctx context.Context, rw *RWMutex, came **zk.Stat, fn func(ctx context.Context) (T, error)) (v T, shared bool, err error) {
	// Readers wait for who runs, and then read at the same time.
	err = rw.RDo(ctx, func(ctx context.Context) (err error) {
		v, shared, err = f.look(ctx, rw, came)
		return err
	})
	if shared {
		return v, true, nil // whatever became of the lock since
	}
	if err != nil {
		return v, false, plainError(err)
	}
	var own error
	outer := ctx
	err = rw.Do(ctx, func(ctx context.Context) error {
		// Who came before may have stored it meanwhile, or somebody between our two places in the line.
		if v, shared, err = f.look(ctx, rw, came); shared || err != nil {
			return err
		}
		f.sweepSoon(ctx, rw)
		if v, own = fn(ctx); own != nil {
			return nil
		}
		return f.store(outer, rw, v) // fn has returned v, though Close may have ended ctx; if the lock is lost nothing is stored
	})
	switch {
	case shared:
		return v, true, nil
	case own != nil:
		return v, false, own // what became of the lock does not matter: nothing is shared
	}
	return v, false, plainError(err)
}

// plainError is err without the operation of the lock, which is none of the
// caller's.
func plainError(err error) error {
	if e, ok := err.(*Error); ok {
		return e.Err
	}
	return err
}

// lockOf returns the lock of a key. Each call has its own place in the line, which
// says by its znode when it came.
func (f *Flight[T]) lockOf(key string) *RWMutex {
	rw := NewRWMutex(f.s, session.ChildPath(f.path, session.NameOfKey(key)), WithHandoffs(0))
	rw.turnstile.Line.Part = true
	return rw
}

const flightResult = "result"

// look reads the result, if there is one, and says whether it is for this caller:
// if it was stored less than keep before he came, or after. Both times are of the
// servers' clock.
//
// Whoever stored a result had the lock for writing before we got it, and our own
// create is later than that: so the server that has answered it has the result too.
//
// came is the znode that this caller made first. If it is nil it is set.
func (f *Flight[T]) look(ctx context.Context, rw *RWMutex, came **zk.Stat) (v T, ok bool, err error) {
	g, _, err := rw.current()
	if err != nil {
		return v, false, err
	}
	own, node, err := f.read(ctx, g)
	if *came == nil {
		*came = own
	}
	if err != nil || node.Stat == nil || !f.fresh(*came, node.Stat) {
		return v, false, err
	}
	if v, err = codec.Decode[T](f.codec, node.Data); err != nil {
		f.s.m.Log.Warn("zsync: a result of a Flight cannot be decoded", "path", rw.path, "err", err)
		var zero T
		return zero, false, nil
	}
	return v, true, nil
}

// fresh compares two times of the servers' clock, which is that of their leader: it may
// have been set back in between. By keep or more, and the result counts no longer; by
// less, and it is kept for so much longer.
func (f *Flight[T]) fresh(came, stored *zk.Stat) bool {
	age := time.Duration(came.Ctime-stored.Mtime) * time.Millisecond
	return age > -f.keep && age < f.keep || stored.Mzxid > came.Czxid
}

// read reads the znode of g and the result beside it.
func (f *Flight[T]) read(ctx context.Context, g *line.Grant) (own *zk.Stat, result session.Node, err error) {
	c := g.Claim
	nodes, err := c.Incarnation.GetAll(ctx, []string{c.Znode(), session.ChildPath(c.Line.Dir, flightResult)})
	if err == nil && nodes[0].Stat == nil {
		err = zk.ErrNoNode
	}
	if err != nil {
		return nil, result, c.Explain(err)
	}
	return nodes[0].Stat, nodes[1], nil
}

// store stores v while the lock stands.
func (f *Flight[T]) store(ctx context.Context, rw *RWMutex, v T) error {
	data, err := codec.Encode(f.codec, v)
	if err != nil {
		return fmt.Errorf("cannot encode a %T: %w", v, err)
	}
	g, _, err := rw.current()
	if err != nil {
		return err
	}
	path := session.ChildPath(rw.path, flightResult)
	_, result, err := f.read(ctx, g)
	if err != nil {
		return err
	}
	// Nobody else writes there while we have the lock, so nothing can change in
	// between; and after a lost reply Txn finds out.
	var op any = &zk.SetDataRequest{Path: path, Data: data, Version: -1}
	if result.Stat == nil {
		op = &zk.CreateRequest{Path: path, Data: data, Acl: f.s.m.Config.ACL}
	}
	wait := f.sweepAfter()
	if _, err = rw.Txn(ctx, op); err != nil {
		wait += time.Minute // it may be stored, or yet be
	}
	f.lookAfter(rw.path, wait)
	return plainError(err)
}

// lookAfter removes the result below dir when wait is over, if its time is over then,
// or looks after it again. It keeps no Session in memory that is closed.
//
// Of those who find one key in use, as one that is asked for all the time may be each
// time, one looks again on behalf of all: what they have stored is no younger then, or
// whoever stored it since looks after it.
func (f *Flight[T]) lookAfter(dir string, wait time.Duration) {
	s, path, keep := weak.Make(f.s), f.path, f.keep
	time.AfterFunc(wait, func() {
		s := s.Value()
		if s == nil {
			return
		}
		f := &Flight[T]{made: made{s: s, path: path}, keep: keep}
		s.m.Spawn(func() {
			if !f.remove(dir) && s.m.Failure() == nil && s.swept.Due(dir+"/", time.Minute) { // which is no path of a Flight
				f.lookAfter(dir, time.Minute)
			}
		})
	})
}

// sweepAfter is when a result is looked after that was just stored.
func (f *Flight[T]) sweepAfter() time.Duration {
	return min(f.keep, math.MaxInt64-time.Hour) + time.Second
}

// remove deletes the result below dir if its time is over and nobody is about to
// use the key. It reports whether it need not be looked after any more: who uses it
// may leave it as it is.
func (f *Flight[T]) remove(dir string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rw := NewRWMutex(f.s, dir, WithHandoffs(0))
	if ok, err := rw.TryLock(ctx); !ok || err != nil {
		return err != nil && session.OutcomeOf(plainError(err)) == session.Answered
	}
	defer rw.Unlock()
	g, _, err := rw.current()
	if err != nil {
		return false
	}
	own, result, err := f.read(ctx, g)
	if err == nil && result.Stat != nil && !f.fresh(own, result.Stat) {
		_, err = rw.Txn(ctx, &zk.DeleteRequest{Path: session.ChildPath(dir, flightResult), Version: -1})
	}
	if err != nil {
		f.s.m.Log.Debug("zsync: a result of a Flight was not deleted", "path", dir, "err", err)
	}
	return session.OutcomeOf(plainError(err)) == session.Answered // or there is no error
}

// sweepSoon looks after the results of processes that are gone, in the background
// and not more often than results get old, nor while it does so already, however many
// Flights the Session has at the path. rw is that of a key, held for writing.
func (f *Flight[T]) sweepSoon(ctx context.Context, rw *RWMutex) {
	if !f.s.swept.Due(f.path, math.MaxInt64) {
		return
	}
	over := func() { f.s.swept.Again(f.path, f.sweepAfter()) }
	g, _, err := rw.current()
	if err == nil {
		var own *zk.Stat
		if own, _, err = f.read(ctx, g); err == nil {
			f.s.m.Spawn(func() { defer over(); f.sweep(g.Claim, own) })
			return
		}
	}
	over()
}

// sweep removes what is old, compared with when c came, whose znode had own for its
// Stat.
func (f *Flight[T]) sweep(c *line.Claim, own *zk.Stat) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	inc, dir := c.Incarnation, f.s.m.Full(f.path)
	keys, _, err := inc.Children(ctx, dir)
	if err != nil {
		return
	}
	var paths []string
	for _, k := range keys {
		if d := session.ChildPath(dir, k); d != c.Line.Dir {
			paths = append(paths, session.ChildPath(d, flightResult))
		}
	}
	nodes, err := inc.GetVisible(ctx, paths)
	if err != nil {
		return
	}
	for i, n := range nodes {
		if n.Stat != nil && !f.fresh(own, n.Stat) && inc.Ctx.Err() == nil { // else the next sweep, soon
			f.remove(f.s.m.Bare(strings.TrimSuffix(paths[i], "/"+flightResult)))
		}
	}
}
