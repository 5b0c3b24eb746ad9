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
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
)

// A Flight runs a function once for all callers of a key, in any process:
// golang.org/x/sync/singleflight across processes.
//
//	prices := zsync.NewFlight[string](s, "/cache/prices", time.Minute)
//	v, shared, err := prices.Do(ctx, "EUR", func(ctx context.Context) (string, error) {
//		return fetch(ctx, "EUR")
//	})
//
// A caller that comes while another runs its function waits for the same result. Callers that come
// within the time keep after a result was stored, by the servers' clock, get it at once. Only
// success is shared: after a failure or panic, a waiting caller runs its own function.
//
// # Loss
//
// If the process dies, the next waiting caller runs its own function when the session has expired.
// If only the session is lost, Do returns the result together with [ErrLost]: another process may
// have run its function, too.
//
// # Cost
//
// Do takes 3 round trips with a result, and 8 if it runs the function.
//
// # Znodes
//
// A key is an RWMutex at path/<key>, and its result is path/<key>/result.
type Flight[T any] struct {
	made
	codec Codec
	keep  time.Duration
}

// NewFlight returns the Flight at path. A result is shared for the time keep after it was stored;
// if keep is 0, only with callers that waited.
func NewFlight[T any](s *Session, path string, keep time.Duration, opts ...ValueOption) *Flight[T] {
	c := newValueConfig(opts)
	if c.err == nil && keep < 0 {
		c.err = session.Invalid("NewFlight: keep is %v; it must not be negative", keep)
	}
	return &Flight[T]{made: made{s: s, path: path, err: checkNew(s, path, c.err)}, codec: c.codec, keep: keep}
}

// Path returns the path that f was made with.
func (f *Flight[T]) Path() string { return f.path }

// Do returns the result of fn, or of another call for key: then, shared is true. fn's context ends,
// with cause [ErrLost], if the session is lost. If fn panics, so does Do. A result that cannot be
// encoded or stored comes with an error. A stored result that cannot be decoded counts as missing.
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
	// A client that may change the path could replace our lock by its own.
	if err := f.s.m.During(ctx, func(inc *session.Incarnation) error { return inc.Vet(ctx, session.Dir{Path: f.s.m.Full(f.path)}) }); err != nil {
		return v, false, err
	}
	var came *zk.Stat // of the first znode of this call, perhaps of an earlier session
	for {
		ran := false
		v, shared, err = f.try(ctx, rw, &came, func(ctx context.Context) (T, error) {
			ran = true
			return fn(ctx)
		})
		// If fn has not begun, only a wait was lost, and the loop continues. But ctx may have ended
		// because the caller has lost another hold.
		if shared || ran || ctx.Err() != nil || !errors.Is(err, ErrLost) || errors.Is(err, ErrClosed) {
			return v, shared, err
		}
		rw = f.lockOf(key)
	}
}

// try is do within one session, with the lock of the key.
func (f *Flight[T]) try(ctx context.Context, rw *RWMutex, came **zk.Stat, fn func(ctx context.Context) (T, error)) (v T, shared bool, err error) {
	// Readers wait for the caller that runs its function, and then read at the same time.
	err = rw.RDo(ctx, func(ctx context.Context) (err error) {
		v, shared, err = f.look(ctx, rw, came)
		return err
	})
	if shared {
		return v, true, nil // even if the lock was lost since
	}
	if err != nil {
		return v, false, plainError(err)
	}
	var own error
	outer := ctx
	err = rw.Do(ctx, func(ctx context.Context) error {
		// A caller ahead may have stored a result after our read, before our write lock.
		if v, shared, err = f.look(ctx, rw, came); shared || err != nil {
			return err
		}
		f.sweepSoon(ctx, rw)
		if v, own = fn(ctx); own != nil {
			return nil
		}
		return f.store(outer, rw, v) // fn has returned v, even if Close has ended ctx; if the lock is lost, nothing is stored
	})
	switch {
	case shared:
		return v, true, nil
	case own != nil:
		return v, false, own // a loss of the lock does not matter: nothing is shared
	}
	return v, false, plainError(err)
}

// plainError is err without the operation of the lock, which does not concern the caller.
func plainError(err error) error {
	if e, ok := err.(*Error); ok {
		return e.Err
	}
	return err
}

// lockOf returns the lock of a key. Each call has its own place in the line; its znode
// proves when the call came.
func (f *Flight[T]) lockOf(key string) *RWMutex {
	rw := NewRWMutex(f.s, session.ChildPath(f.path, session.NameOfKey(key)), WithHandoffs(0))
	rw.local.Line.Part = true
	return rw
}

const flightResult = "result"

// look reads the result, and reports whether it is for this caller: it was stored less than
// keep before the call, or later. Both times are of the servers' clock.
//
// A process that stored a result held the lock for writing before this call got it, and our own
// znode was created later. So the server that answered the request to create it has the result too.
//
// came is the znode that this call created first. look sets it if it is nil.
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

// fresh compares two times of the servers' clock. That is the clock of their leader, which may have
// been set back between the two times. If it was set back by keep or more, the result no longer
// counts; if by less, the result counts for that much longer.
func (f *Flight[T]) fresh(came, stored *zk.Stat) bool {
	age := time.Duration(came.Ctime-stored.Mtime) * time.Millisecond
	return age > -f.keep && age < f.keep || stored.Mzxid > came.Czxid
}

// read reads the znode of g and the result beside it.
func (f *Flight[T]) read(ctx context.Context, g *lock.Grant) (own *zk.Stat, result session.Node, err error) {
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

// store stores v while the lock is held.
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
	// No other client writes there while we hold the lock, so nothing changes between read and
	// write. If the reply is lost, Txn finds out.
	var op any = &zk.SetDataRequest{Path: path, Data: data, Version: -1}
	if result.Stat == nil {
		op = &zk.CreateRequest{Path: path, Data: data, Acl: f.s.m.Config.ACL}
	}
	wait := f.sweepAfter()
	if _, err = rw.Txn(ctx, op); err != nil {
		wait += time.Minute // it may be stored already, or later
	}
	f.lookAfter(rw.path, wait)
	return plainError(err)
}

// lookAfter deletes the result below dir after wait, if it has expired by then. Otherwise, it tries
// again later. It does not keep a closed Session in memory.
//
// If several calls find a key in use, only one tries again, on behalf of all: by then, their
// results have expired, or a later call has stored its own result and looks after it.
func (f *Flight[T]) lookAfter(dir string, wait time.Duration) {
	s, path, keep := weak.Make(f.s), f.path, f.keep
	time.AfterFunc(wait, func() {
		s := s.Value()
		if s == nil {
			return
		}
		f := &Flight[T]{made: made{s: s, path: path}, keep: keep}
		s.m.Spawn(func() {
			if !f.remove(dir) && s.m.Failure() == nil && s.swept.Due(dir+"/", time.Minute) { // a name that no Flight has as its path
				f.lookAfter(dir, time.Minute)
			}
		})
	})
}

// sweepAfter returns how long after it was stored a result is looked after.
func (f *Flight[T]) sweepAfter() time.Duration {
	return min(f.keep, math.MaxInt64-time.Hour) + time.Second
}

// remove deletes the result below dir if it has expired and no caller is about to use the key. It
// reports whether the result is settled, so that no other try is necessary: a caller that uses the
// key may leave the result as it is.
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
	return session.OutcomeOf(plainError(err)) == session.Answered // also without an error
}

// sweepSoon removes the results of processes that have ended. It works in the background,
// one sweep at a time for all Flights of the Session at the path, at the pace at which
// results expire. The caller holds rw, the lock of a key, for writing.
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

// sweep removes the results that had expired when c came. own is the Stat of c's znode.
func (f *Flight[T]) sweep(c *lock.Claim, own *zk.Stat) {
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
		if n.Stat != nil && !f.fresh(own, n.Stat) && inc.Ctx.Err() == nil { // otherwise, a later sweep does it
			f.remove(f.s.m.Bare(strings.TrimSuffix(paths[i], "/"+flightResult)))
		}
	}
}
