package zsync

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
	"weak"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/codec"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// A Flight runs a function once for all callers of a key, in any process:
// golang.org/x/sync/singleflight across processes.
//
//	prices := zsync.NewFlight[string](s, "/cache/prices", time.Minute)
//	v, shared, err := prices.Do(ctx, "EUR", func(ctx context.Context) (string, error) {
//		return fetch(ctx, "EUR")
//	})
//
// A caller that comes while another runs its function waits for the same result. For the duration
// `keep` after a result was stored, by the servers' clock, new callers get it at once. Only success
// is shared: after a failure or panic, a waiting caller runs its own function.
//
// # Loss
//
// If the process dies, the next waiting caller runs its own function when the session has expired.
// If only the session is lost, Do returns the result together with [ErrLost]: another process may
// have run its function, too.
//
// # Cost
//
// Do takes 3 round trips if it gets a stored result, and 8 if it runs f.
//
// # Znodes
//
// A key is an RWMutex at path/<key>, and its result is path/<key>/result.
type Flight[T any] struct {
	made
	codec Codec
	keep  time.Duration
}

// NewFlight returns the Flight at path. A result is shared for the duration `keep` after it was
// stored. If `keep` is 0, only waiting callers share it.
func NewFlight[T any](s *Session, path string, keep time.Duration, opts ...ValueOption) *Flight[T] {
	c := valueSetup(opts)
	if c.err == nil && keep < 0 {
		c.err = session.Invalid("NewFlight: keep is %v; it must not be negative", keep)
	}
	keep = min(keep, math.MaxInt64-time.Hour) // so that other durations can be added
	return &Flight[T]{made: made{s: s, path: path, err: checkNew(s, path, c.err)}, codec: c.codec, keep: keep}
}

// Do returns the result of fn, or of another call for key: then, shared is true. fn's context ends,
// with cause [ErrLost], if the session is lost. If fn panics, so does Do. A result that cannot be
// encoded or stored comes with an error. A stored result that cannot be decoded counts as missing.
func (f *Flight[T]) Do(ctx context.Context, key string, fn func(ctx context.Context) (T, error)) (v T, shared bool, err error) {
	defer func() {
		if err != nil {
			err = opError("do", f.path, fmt.Errorf("key %q: %w", key, err))
		}
	}()
	if f.misuse() != nil {
		return v, false, f.misuse()
	}
	if fn == nil {
		return v, false, session.Invalid("the function is nil")
	}
	rw := f.lockOf(znodes.NameOfKey(key))
	if err := rw.entering(ctx, rw.local.Line.Bases); err != nil {
		return v, false, err
	}
	// Check the ACL of the path: a client that may change it could replace our lock by its own.
	if err := f.s.m.During(ctx, func(inc *session.Incarnation) error {
		return znodes.Vet(ctx, inc, znodes.Dir{Path: f.s.m.Full(f.path)})
	}); err != nil {
		return v, false, err
	}
	var came *zk.Stat // Stat of the first znode that this call created, perhaps in an earlier session
	for ; ; rw = f.lockOf(znodes.NameOfKey(key)) {
		ran := false
		var own error // of fn
		// The readers wait for the caller that runs its function. Then they all read at the same time.
		err = rw.RDo(ctx, func(ctx context.Context) (err error) {
			v, shared, err = f.look(ctx, rw, &came)
			return err
		})
		if err == nil && !shared {
			err = rw.Do(ctx, func(held context.Context) (err error) {
				// A caller ahead may have stored a result between our read and our write lock.
				if v, shared, err = f.look(held, rw, &came); shared || err != nil {
					return err
				}
				f.sweep(rw, came)
				ran = true
				if v, own = fn(held); own != nil {
					return nil
				}
				return f.store(ctx, rw, v) // not with `held`: fn has returned v, so store v even if Close has begun; if the lock is lost, nothing is stored
			})
		}
		switch {
		case shared: // even if the lock was lost after the read
			return v, true, nil
		case own != nil: // a loss of the lock does not matter, because no result is shared
			return v, false, own
		case ran || ctx.Err() != nil || !errors.Is(err, ErrLost) || errors.Is(err, ErrClosed):
			return v, false, plainError(err)
		}
		// If fn has not begun, the call was only waiting when its hold was lost, so it tries again.
	}
}

// plainError returns err without its operation and path, which do not concern the caller.
func plainError(err error) error {
	if e, ok := err.(*Error); ok {
		return e.Err
	}
	return err
}

// lockOf returns the lock of the key with this name. Each call has its own place in the line, and the znode of
// the place shows when the call began.
func (f *Flight[T]) lockOf(name string) *RWMutex {
	rw := NewRWMutex(f.s, znodes.ChildPath(f.path, name), WithHandoffs(0))
	rw.local.Line.Part = true
	return rw
}

const flightResult = "result"

// The method `look` reads the result, and reports whether it is for this caller: see `fresh`. The
// argument `came` points to the Stat of the first znode of this call. If that is nil, look sets it.
//
// The read needs no sync: our server has applied the release of the lock, and the earlier write of
// the result too.
func (f *Flight[T]) look(ctx context.Context, rw *RWMutex, came **zk.Stat) (v T, ok bool, err error) {
	g, err := rw.current(nil)
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

// The method `fresh` reports whether a result counts for a call: it was stored after the call began,
// or less than the duration `keep` earlier, by the servers' clock. If that clock was set back by
// `keep` or more, the result no longer counts; if by less, it counts for that much longer.
func (f *Flight[T]) fresh(came, stored *zk.Stat) bool {
	age := time.Duration(came.Ctime-stored.Mtime) * time.Millisecond
	return age > -f.keep && age < f.keep || stored.Mzxid > came.Czxid
}

// The method `read` reads the znode of g, and the result next to it.
func (f *Flight[T]) read(ctx context.Context, g *lock.Grant) (own *zk.Stat, result session.Node, err error) {
	c := g.Claim
	nodes, err := znodes.GetAll(ctx, c.Incarnation, []string{c.Znode(), znodes.ChildPath(c.Line.Dir, flightResult)})
	if err == nil && nodes[0].Stat == nil {
		err = zk.ErrNoNode
	}
	if err != nil {
		return nil, result, c.Explain(err)
	}
	return nodes[0].Stat, nodes[1], nil
}

// The method `store` stores v as the result while rw is held.
func (f *Flight[T]) store(ctx context.Context, rw *RWMutex, v T) error {
	data, err := codec.Encode(f.codec, v)
	if err != nil {
		return fmt.Errorf("cannot encode a %T: %w", v, err)
	}
	path := znodes.ChildPath(rw.path, flightResult)
	_, err = rw.Txn(ctx, &zk.CreateRequest{Path: path, Data: data, Acl: f.s.m.Config.ACL})
	if session.IsNodeExists(err) { // an expired result
		_, err = rw.Txn(ctx, &zk.SetDataRequest{Path: path, Data: data, Version: -1})
	}
	wait := f.keep + time.Second
	if err != nil {
		wait += time.Minute // the result may be stored in spite of the error, now or later
	}
	f.lookAfter(rw.path, wait)
	return plainError(err)
}

// lookAfter deletes the result below dir after the duration `wait`, if the result has expired by
// then. If it cannot, it tries again later; if several calls find a key in use, only one does. It
// does not keep a closed Session in memory.
func (f *Flight[T]) lookAfter(dir string, wait time.Duration) {
	s, path, keep := weak.Make(f.s), f.path, f.keep
	time.AfterFunc(wait, func() {
		s := s.Value()
		if s == nil {
			return
		}
		f := &Flight[T]{made: made{s: s, path: path}, keep: keep}
		s.m.Spawn(func() {
			if !f.remove(dir) && s.m.Failure() == nil && s.swept.Due(dir+"/", time.Minute) { // the slash at its end distinguishes this key from the path of every Flight
				f.lookAfter(dir, time.Minute)
			}
		})
	})
}

// The method `remove` deletes the result below dir, if it has expired. If it returns false, another
// try is necessary: for example, a caller is using the key.
func (f *Flight[T]) remove(dir string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rw := f.lockOf(znodes.BaseName(dir))
	g, err := rw.try(ctx, lock.Exclusive)
	if g != nil {
		defer rw.Unlock()
		var own *zk.Stat
		var result session.Node
		if own, result, err = f.read(ctx, g); err == nil && result.Stat != nil && !f.fresh(own, result.Stat) {
			_, err = rw.Txn(ctx, &zk.DeleteRequest{Path: znodes.ChildPath(dir, flightResult), Version: -1})
		}
	}
	if err != nil {
		f.s.m.Log.Debug("zsync: a result of a Flight was not deleted", "path", dir, "err", err)
	}
	used := g == nil && err == nil
	return !used && session.OutcomeOf(plainError(err)) == session.Answered // also true without an error
}

// The method `sweep` removes the results of processes that have ended, in the background, if they
// had expired when the znode with the Stat came was created. The caller holds rw, the lock of a key,
// for writing. All Flights of the Session at the same path share the sweeps: one in the time in which
// a result expires.
func (f *Flight[T]) sweep(rw *RWMutex, came *zk.Stat) {
	if !f.s.swept.Due(f.path, math.MaxInt64) {
		return
	}
	f.s.m.Spawn(func() {
		defer f.s.swept.Again(f.path, f.keep+time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		f.s.m.During(ctx, func(inc *session.Incarnation) error {
			dir := f.s.m.Full(f.path)
			keys, _, err := inc.Children(ctx, dir)
			if err != nil {
				return err
			}
			var paths []string
			for _, k := range keys {
				if d := znodes.ChildPath(dir, k); d != rw.local.Line.Dir {
					paths = append(paths, znodes.ChildPath(d, flightResult))
				}
			}
			nodes, err := znodes.GetVisible(ctx, inc, paths)
			for i, n := range nodes {
				if n.Stat != nil && !f.fresh(came, n.Stat) && inc.Ctx.Err() == nil { // if the session has ended, a later sweep removes the rest
					f.remove(f.s.m.Bare(znodes.ParentPath(paths[i])))
				}
			}
			return err
		})
	})
}
