package zsync

import (
	"context"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/codec"
	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/dice"
	"github.com/zsync/zsync/internal/marks"
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
// Operations are linearizable, so no Update is lost.
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
	codec    Codec
	at       session.Stored
	receipts string // the full path of the container of the receipts
}

// A Version identifies one write of a Value: Versions of one path are equal only for the same
// write. The zero Version means no value.
type Version struct {
	czxid, mzxid int64 // the zxids of the transactions that created the znode and last wrote it
	mtime        int64 // when the leader wrote the znode, in milliseconds; necessary because zxids begin again if the servers lose their data
	version      int32 // the server's counter, which wraps
}

// versionOf returns the Version of a znode, or the zero Version without a Stat.
func versionOf(stat *zk.Stat) Version {
	if stat == nil {
		return Version{}
	}
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
	if v.err == nil {
		v.at.Path = s.m.Full(path)
		v.receipts = v.at.Path + "-receipts"
	}
}

// Load returns the value, at least as new as the call, and its Version, or [ErrNoValue]. An error
// of decoding comes with the Version, so that the value can be replaced. An empty znode is no
// value, unless the codec decodes it.
func (v *Value[T]) Load(ctx context.Context) (x T, version Version, err error) {
	defer v.wrap("load", &err)
	n, err := v.read(ctx, true)
	if err == nil {
		x, err = v.decode(n)
	}
	return x, versionOf(n.Stat), err
}

// The method `read` reads the znode, as old as the server's state unless it is fresh. If nothing is
// stored, the Stat is nil.
func (v *Value[T]) read(ctx context.Context, fresh bool) (n session.Node, err error) {
	err = v.during(ctx, func(inc *session.Incarnation) error {
		read := inc.Get
		if fresh {
			read = inc.GetFresh
		}
		if n, err = v.at.Entry(read(ctx, v.at.Path)); n.Stat != nil {
			inc.Saw(v.at, n)
		}
		return err
	})
	return n, err
}

// The method `decode` returns the value of n, or ErrNoValue. Other programs create empty znodes: except
// in a Map, empty data that the codec cannot decode are no value.
func (v *Value[T]) decode(n session.Node) (x T, err error) {
	if n.Stat == nil {
		return x, ErrNoValue
	}
	x, err = decoded[T](v.codec, n.Data)
	if err != nil && len(n.Data) == 0 && !v.at.Leaf {
		err = ErrNoValue
	}
	return x, err
}

// The method `encode` returns the stored form of x, which can be stored and fits into a transaction.
func (v *Value[T]) encode(x T) ([]byte, error) {
	data, err := codec.Encode(v.codec, x)
	if err != nil {
		return nil, fmt.Errorf("cannot encode a %T: %w", x, err)
	}
	if err := v.at.Check(data); err != nil {
		return nil, err
	}
	size := v.s.m.SizeOf(v.at.Path, data) + 2*v.s.m.SizeOf(v.receipts, nil) + 256
	if v.at.Dir != "" {
		size += v.s.m.SizeOf(v.at.Dir, nil) + 256
	}
	if size > session.MaxPacket {
		return nil, fmt.Errorf("value of %d bytes: %w", len(data), ErrTooLarge)
	}
	return data, nil
}

// Store stores x.
func (v *Value[T]) Store(ctx context.Context, x T) (err error) {
	defer v.wrap("store", &err)
	if err := v.check(ctx); err != nil {
		return err
	}
	data, err := v.encode(x)
	for err == nil {
		err = v.commit(ctx, &zk.SetDataRequest{Path: v.at.Path, Data: data, Version: -1})
		if !session.IsNoNode(err) {
			break
		}
		if err = v.create(ctx, data); !session.IsNodeExists(err) {
			break
		}
		err = nil // another client has created the znode, so the next attempt sets it
	}
	return err
}

// The method `create` creates the znode. If it exists already, the error is NodeExists.
func (v *Value[T]) create(ctx context.Context, data []byte) error {
	for {
		err := v.commit(ctx, &zk.CreateRequest{Path: v.at.Path, Data: data, Acl: v.s.m.Config.ACL})
		if !session.IsNoNode(err) || v.at.Dir == "" {
			return err
		}
		// The znode of a Map must last, because its version must not start again while a process
		// relies on it.
		err = v.s.m.During(ctx, func(inc *session.Incarnation) error {
			_, err := inc.Create(ctx, v.at.Dir, []byte(marks.Map))
			return err
		})
		if err != nil {
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
	for _, fresh := range []bool{false, true} {
		n, err := v.read(ctx, fresh)
		if err != nil {
			return false, err
		}
		now := versionOf(n.Stat)
		same := now == old
		if old == (Version{}) && !same { // data that cannot be decoded are a value, too, unless they are empty
			_, err := v.decode(n)
			same = err == ErrNoValue
		}
		if same {
			if swapped, err = v.swap(ctx, now, data); swapped || err != nil {
				return swapped, err
			}
		} else if old != (Version{}) && now.mzxid >= old.mzxid {
			break // else this server may lag
		}
	}
	return false, nil
}

// The method `swap` writes `data` if the znode has the version `old`, and reports whether it did.
func (v *Value[T]) swap(ctx context.Context, old Version, data []byte) (bool, error) {
	var err error
	if old == (Version{}) {
		err = v.create(ctx, data)
	} else {
		err = v.commit(ctx, session.SwapOps(v.at.Path, data, old.version)...)
	}
	if session.IsBadVersion(err) || session.IsNoNode(err) || session.IsNodeExists(err) {
		return false, nil
	}
	return err == nil, err
}

// The method `commit` applies ops, which change the znode of the value, exactly once. It creates
// missing parents of the znode, which are also the parents of the receipts. It returns ErrMixed
// if the servers may remove the znode, or the znode of the Map, or if the latter contains a value:
// the versions of these znodes must not start again.
//
// A receipt is necessary, because the znode itself does not show whether our write was applied.
// Another process may have written the same bytes, or may have overwritten ours.
func (v *Value[T]) commit(ctx context.Context, ops ...any) error {
	return txn.Store(ctx, v.s.m, v.receipts, v.at, ops)
}

// Update stores f(value), or f of the zero T if there is no value, and returns the new value. If f
// returns an error, Update stores nothing and returns that error. If another process changes the
// value between the read and the write, Update calls f again: so f must have no effects of its own.
func (v *Value[T]) Update(ctx context.Context, f func(T) (T, error)) (zero T, err error) {
	defer v.wrap("update", &err)
	if v.misuse() == nil && f == nil {
		return zero, session.Invalid("the function is nil")
	}
	for try := 0; ; try++ {
		// The first read may return an old value. Then the swap fails, and the loop reads again. All
		// later reads are fresh.
		fresh := try > 0
		var x T
		var data []byte
		n, err := v.read(ctx, fresh)
		if err == nil {
			x, err = v.decode(n)
		}
		if err == nil || err == ErrNoValue {
			x, err = f(x)
		}
		if err == nil {
			data, err = v.encode(x)
		}
		switch {
		case err != nil && fresh:
			return zero, err
		case err != nil:
			continue // Update may return an error of f only if f's argument was at least as new as the call
		}
		switch ok, err := v.swap(ctx, versionOf(n.Stat), data); {
		case err != nil:
			return zero, err
		case ok:
			return x, nil
		}
		// Competing processes must not try at the same times. The wait is short, because one of them has
		// succeeded.
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
		// Within a session, no read is older than the read before it: a server that lags behind the client
		// refuses the client's connection. The first read of a session is not older than the last read of
		// the previous session either. A later transaction created the new session, and its server has
		// applied that transaction. The call of Sync makes the very first value at least as new as the call
		// of Watch.
		var told Version // of the last value that was sent or could not be decoded; the counter wraps, so it shows no order
		return v.s.m.During(ctx, func(inc *session.Incarnation) error {
			if err := inc.Sync(ctx, v.at.Path); err != nil {
				return err
			}
			return inc.Follow(ctx, v.at.Path, func(n session.Node, change *conn.Watch) error {
				version := versionOf(n.Stat)
				if version == told || session.Unstored(n.Data, n.Stat) {
					return nil
				}
				x, err := v.decode(n)
				if err == ErrNoValue {
					return nil
				}
				sent := err != nil
				if sent {
					inc.Manager.Log.Error("zsync: cannot watch a value", "path", v.path, "version", version, "err", err)
					err = nil
				} else {
					sent, err = session.Offer(ctx, out, x, change.Fired, inc.Ctx.Done())
				}
				if sent {
					told = version
				}
				return err
			})
		})
	})
}
