package zsync

import (
	"context"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/dice"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/txn"
)

// A Value is a value of type T that processes share, like [atomic.Value]:
//
//	limit := zsync.NewValue[int](s, "/config/limit")
//	err := limit.Store(ctx, 20)
//	n, version, err := limit.Load(ctx)
//	ok, err := limit.CompareAndSwap(ctx, version, n+1)
//	for n := range limit.Watch(ctx) { … } // the value, now and after each change
//
// Operations are linearizable: a hundred Updates that each add one add a hundred. Load is as new as
// ZooKeeper's sync: a leader that is cut off can return an old value for some seconds. No write
// depends on such a read.
//
// # Loss
//
// No process holds a Value, so a lost session loses nothing.
//
// # Errors
//
// Load returns [ErrNoValue] if nothing is stored.
//
// # Cost
//
// Load and Store take 1 round trip, CompareAndSwap and Update 2 or more.
//
// # Znodes
//
// The value is the data of the persistent znode at path, encoded by the codec ([WithCodec]). Other
// programs can use it, too. If another program deletes the znode, CompareAndSwap can mistake a new
// value for the old one.
type Value[T any] struct {
	made
	codec Codec
}

// A Version identifies one write of a Value: Versions of one path are equal only for the same
// write. The zero Version means no value.
type Version struct {
	czxid, mzxid int64 // the zxids of the transactions that created the znode and last wrote it
	mtime        int64 // when the leader wrote the znode, in milliseconds; necessary because zxids begin again if the servers lose their data
	version      int32 // the server's counter, which wraps
}

func versionOf(stat *zk.Stat) Version {
	return Version{czxid: stat.Czxid, mzxid: stat.Mzxid, mtime: stat.Mtime, version: stat.Version}
}

// String returns v in a form for logs.
func (v Version) String() string {
	if v == (Version{}) {
		return "none"
	}
	return fmt.Sprintf("%d@0x%x", v.version, v.mzxid)
}

// NewValue returns the Value at path.
func NewValue[T any](s *Session, path string, opts ...ValueOption) *Value[T] {
	v := new(Value[T])
	v.init(s, path, opts)
	return v
}

func (v *Value[T]) init(s *Session, path string, opts []ValueOption) {
	c := valueSetup(opts)
	v.made, v.codec = made{s: s, path: path, err: checkNew(s, path, c.err)}, c.codec
}

// Load returns the value, at least as new as the call, and its Version, or [ErrNoValue]. An error
// of decoding comes with the Version, so that the value can be replaced. An empty znode is no
// value, unless the codec decodes it.
func (v *Value[T]) Load(ctx context.Context) (T, Version, error) {
	x, version, err := v.load(ctx, true)
	if err == nil && version == (Version{}) {
		err = ErrNoValue
	}
	return x, version, opError("load", v.path, err)
}

// The method `load` reads the value. If nothing is stored, it returns the zero Version. If fresh is
// false, the value may be as old as the state of the server.
func (v *Value[T]) load(ctx context.Context, fresh bool) (x T, version Version, err error) {
	if err := v.check(ctx); err != nil {
		return x, version, err
	}
	var data []byte
	err = v.s.m.During(ctx, func(inc *session.Incarnation) error {
		read := inc.Get
		if fresh {
			read = inc.GetFresh
		}
		var stat *zk.Stat
		var err error
		data, stat, err = read(ctx, v.full())
		switch {
		case session.IsNoNode(err), err == nil && session.Unstored(data, stat):
			version = Version{}
			return nil
		case err == nil:
			version = versionOf(stat)
			inc.Saw(v.state(), session.Node{Data: data, Stat: stat})
		}
		return err
	})
	if err == nil && version != (Version{}) {
		x, err = v.decode(data)
	}
	return x, version, err
}

func (v *Value[T]) full() string { return v.s.m.Full(v.path) }

func (v *Value[T]) state() session.Stored { return session.Stored{Path: v.full()} }

// The method `decode` decodes the data of the znode. Other programs create empty znodes: if the
// codec cannot decode empty data, decode returns ErrNoValue.
func (v *Value[T]) decode(data []byte) (T, error) {
	x, err := decoded[T](v.codec, data)
	if err != nil && len(data) == 0 {
		err = ErrNoValue
	}
	return x, err
}

// The method `encode` returns the stored form of x. It returns an error if that form cannot be
// stored, or does not fit into a transaction.
func (v *Value[T]) encode(x T) ([]byte, error) {
	return encoded(v.s.m, v.codec, x, v.state(), 2*v.s.m.SizeOf(v.receipts(), nil)+256)
}

// Store stores x.
func (v *Value[T]) Store(ctx context.Context, x T) (err error) {
	defer v.wrap("store", &err)
	if err := v.check(ctx); err != nil {
		return err
	}
	data, err := v.encode(x)
	if err != nil {
		return err
	}
	for {
		err := v.commit(ctx, &zk.SetDataRequest{Path: v.full(), Data: data, Version: -1})
		if session.IsNoNode(err) {
			err = v.commit(ctx, v.creation(data))
		}
		// Another client created the znode after our read, so the next attempt sets it.
		if !session.IsNodeExists(err) {
			return err
		}
	}
}

// CompareAndSwap stores x if the value still has the Version old, and reports whether it did. With
// the zero Version, it stores x if there is no value. After a loss of the servers' data, an old
// Version matches no new value.
func (v *Value[T]) CompareAndSwap(ctx context.Context, old Version, x T) (swapped bool, err error) {
	defer v.wrap("compareandswap", &err)
	if err := v.check(ctx); err != nil {
		return false, err
	}
	data, err := v.encode(x)
	if err != nil {
		return false, err
	}
	if old != (Version{}) {
		if same, err := v.still(ctx, old); !same {
			return false, err
		}
	}
	ok, err := v.swap(ctx, old, data)
	if ok || err != nil || old != (Version{}) {
		return ok, err
	}
	// The znode may exist without a value.
	_, there, err := v.load(ctx, true)
	switch {
	case err == ErrNoValue:
		return v.swap(ctx, there, data)
	case there != (Version{}):
		return false, nil // data that cannot be decoded are a value, too
	}
	return false, err
}

// The method `still` reports whether the znode has the version `old`.
func (v *Value[T]) still(ctx context.Context, old Version) (same bool, err error) {
	err = v.s.m.During(ctx, func(inc *session.Incarnation) error {
		data, stat, err := inc.Get(ctx, v.full())
		if session.IsNoNode(err) || err == nil && stat.Mzxid < old.mzxid {
			// This server has not seen the version `old` yet, or the znode was deleted.
			data, stat, err = inc.GetFresh(ctx, v.full())
		}
		if session.IsNoNode(err) {
			return nil
		}
		if same = err == nil && versionOf(stat) == old; same {
			inc.Saw(v.state(), session.Node{Data: data, Stat: stat})
		}
		return err
	})
	return same, err
}

// The method `swap` writes `data` if the znode has the version `old`. It reports whether it has
// written.
func (v *Value[T]) swap(ctx context.Context, old Version, data []byte) (bool, error) {
	ops := []any{v.creation(data)}
	if old != (Version{}) {
		ops = session.SwapOps(v.full(), data, old.version)
	}
	err := v.commit(ctx, ops...)
	if session.IsBadVersion(err) || session.IsNoNode(err) || session.IsNodeExists(err) {
		return false, nil
	}
	return err == nil, err
}

func (v *Value[T]) creation(data []byte) any {
	return &zk.CreateRequest{Path: v.full(), Data: data, Acl: v.s.m.Config.ACL}
}

// The method `receipts` returns the path of the container of the receipts.
func (v *Value[T]) receipts() string { return v.full() + "-receipts" }

// The method `commit` applies ops, which change the znode of the value, exactly once. It creates
// missing parents of the znode, which are also the parents of the receipts. It returns ErrMixed
// if the servers may remove the znode.
//
// A receipt is necessary, because the znode itself does not show whether our write was applied.
// Another process may have written the same bytes, or may have overwritten ours.
func (v *Value[T]) commit(ctx context.Context, ops ...any) error {
	return txn.Store(ctx, v.s.m, v.receipts(), v.state(), ops)
}

// Update stores f(value), or f of the zero T if there is no value, and returns the new value. If f
// returns an error, Update stores nothing and returns that error. If another process changes the
// value between the read and the write, Update calls f again: so f must have no effects of its own.
func (v *Value[T]) Update(ctx context.Context, f func(T) (T, error)) (T, error) {
	if v.misuse() == nil && f == nil {
		var zero T
		return zero, opError("update", v.path, session.Invalid("the function is nil"))
	}
	x, err := v.update(ctx, f)
	return x, opError("update", v.path, err)
}

func (v *Value[T]) update(ctx context.Context, f func(T) (T, error)) (zero T, err error) {
	// The first read may return an old value. Then the swap fails, and the loop reads again. All
	// later reads are fresh.
	fresh := false
	for try := 0; ; try++ {
		x, old, err := v.load(ctx, fresh)
		if err == nil || err == ErrNoValue {
			x, err = f(x)
		}
		var data []byte
		if err == nil {
			data, err = v.encode(x)
		}
		switch {
		case err != nil && fresh:
			return zero, err
		case err != nil:
			// Update may return an error of f only if f's argument was at least as new as the call of
			// Update. So repeat with a fresh read. If that read fails, Update returns the error of the read,
			// and not f's error about an old value.
			fresh = true
			continue
		}
		switch ok, err := v.swap(ctx, old, data); {
		case err != nil:
			return zero, err
		case ok:
			return x, nil
		}
		fresh = true
		// Wait a little before the next attempt, so that competing processes do not try at the same
		// times. The wait is short, because one of these processes has succeeded.
		delay := v.s.m.Config.Retry.Delay(min(try+1, 5)) // it may be the largest Duration
		if err := v.s.m.Sleep(ctx, dice.Below(max(delay, 1))); err != nil {
			return zero, err
		}
	}
}

// Watch returns a channel, and sends the value on it now and after each change. It never sends an
// older value again. Without a value, it waits.
func (v *Value[T]) Watch(ctx context.Context) <-chan T {
	return watching(ctx, &v.made, func(ctx context.Context, out chan<- T) error {
		var told Version // of the last value that was sent or could not be decoded
		return v.s.m.During(ctx, func(inc *session.Incarnation) error { return v.follow(ctx, inc, out, &told) })
	})
}

// The method `follow` sends every value that it reads within one session, unless its Version is
// *told.
//
// Within a session, no read is older than the read before it: a server that lags behind the client
// refuses the client's connection. The first read of a session is not older than the last read of
// the previous session either. A later transaction created the new session, and its server has
// applied that transaction. The call of Sync makes the very first value at least as new as the call
// of Watch. Versions are compared for equality only: the counter wraps, so it does not show which
// of two values is older.
func (v *Value[T]) follow(ctx context.Context, inc *session.Incarnation, out chan<- T, told *Version) error {
	if err := inc.Sync(ctx, v.full()); err != nil {
		return err
	}
	return inc.Follow(ctx, v.full(), func(n session.Node, change *conn.Watch) error {
		version := versionOf(n.Stat)
		if version == *told || session.Unstored(n.Data, n.Stat) {
			return nil
		}
		x, err := v.decode(n.Data)
		switch {
		case err == ErrNoValue:
			return nil
		case err != nil:
			inc.Manager.Log.Error("zsync: cannot watch a value", "path", v.path, "version", version, "err", err)
			*told = version
			return nil
		}
		sent, err := session.Offer(ctx, inc, change, out, x)
		if sent {
			*told = version
		}
		return err
	})
}
