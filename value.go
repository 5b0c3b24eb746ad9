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
	"github.com/zsync/zsync/internal/znodes"
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
	at       znodes.Stored
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
	_, n, err := v.read(ctx, true, false)
	if err == nil {
		x, err = v.decode(n)
	}
	return x, versionOf(n.Stat), err
}

// The method `read` reads the znode, as old as the server's state unless it is fresh. If nothing is
// stored, the Stat is nil. With `parent`, it first reads the Stat of a Map's znode. If that does not
// exist, nothing is stored.
func (v *Value[T]) read(ctx context.Context, fresh, parent bool) (dir *zk.Stat, n session.Node, err error) {
	err = v.during(ctx, func(inc *session.Incarnation) (err error) {
		exists, get := inc.Exists, inc.Get
		if fresh {
			exists, get = inc.ExistsFresh, inc.GetFresh
		}
		if parent && v.at.Dir != "" {
			if dir, err = exists(ctx, v.at.Dir); dir == nil || err != nil {
				n = session.Node{}
				return err
			}
			get = inc.Get
		}
		if n, err = v.at.Entry(get(ctx, v.at.Path)); n.Stat != nil {
			znodes.Saw(inc, v.at, n)
		}
		return err
	})
	return dir, n, err
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

// The method `encode` checks v, and returns the stored form of x, which fits into a transaction.
func (v *Value[T]) encode(ctx context.Context, x T) ([]byte, error) {
	if err := v.check(ctx); err != nil {
		return nil, err
	}
	data, err := codec.Encode(v.codec, x)
	if err != nil {
		return nil, fmt.Errorf("cannot encode a %T: %w", x, err)
	}
	if err := v.at.Check(data); err != nil {
		return nil, err
	}
	size := znodes.SizeOf(v.s.m, v.at.Path, data) + 2*znodes.SizeOf(v.s.m, v.receipts, nil) + 256
	if v.at.Dir != "" {
		size += znodes.SizeOf(v.s.m, v.at.Dir, nil) + 256
	}
	if size > znodes.MaxPacket {
		return nil, fmt.Errorf("value of %d bytes: %w", len(data), ErrTooLarge)
	}
	return data, nil
}

// Store stores x.
func (v *Value[T]) Store(ctx context.Context, x T) (err error) {
	defer v.wrap("store", &err)
	data, err := v.encode(ctx, x)
	for err == nil {
		err = v.commit(ctx, &zk.SetDataRequest{Path: v.at.Path, Data: data, Version: -1})
		if !session.IsNoNode(err) {
			break
		}
		if err = v.commit(ctx, v.write(session.Node{}, data)...); !session.IsNodeExists(err) {
			break
		}
		err = nil // another client has created the znode, so the next attempt sets it
	}
	return err
}

// The method `write` returns operations that store data if the znode is still in the state `now`.
func (v *Value[T]) write(now session.Node, data []byte) []any {
	if now.Stat == nil {
		return []any{&zk.CreateRequest{Path: v.at.Path, Data: data, Acl: v.s.m.Config.ACL}}
	}
	return znodes.SwapOps(v.at.Path, data, now.Stat.Version)
}

// The method `commit` applies ops, which change the znode of the value, exactly once. It creates
// missing parents of the znode, which are also the parents of the receipts. It returns ErrMixed
// if the servers may remove the znode, or the znode of the Map, or if the latter contains a value:
// the versions of these znodes must not start again.
//
// A receipt is necessary, because the znode itself does not show whether our write was applied.
// Another process may have written the same bytes, or may have overwritten ours.
func (v *Value[T]) commit(ctx context.Context, ops ...any) error {
	for {
		err := txn.Store(ctx, v.s.m, v.receipts, v.at, ops)
		if _, creates := ops[0].(*zk.CreateRequest); !creates || v.at.Dir == "" || !session.IsNoNode(err) {
			return err
		}
		err = v.s.m.During(ctx, func(inc *session.Incarnation) error {
			_, err := znodes.Create(ctx, inc, v.at.Dir, []byte(marks.Map))
			return err
		})
		if err != nil {
			return err
		}
	}
}

// The method `change` reads the znode and calls next with its state. It applies the operations that
// next returns if the znode is still in that state, and otherwise starts again. It returns the state
// before the change. The first read may be old: then an error, or a result without operations, is not
// final, and `change` reads again. All later reads are fresh.
//
// ZooKeeper compares the counter of a znode. This counter starts again if the znode is deleted and
// created again. So for a key of a Map, the transaction also checks that no key of the map was deleted
// since the read. For that check, the version of the map's znode counts deletions, and is read before
// the key. If no key was deleted, the key's znode is still the same, and its counter is exact. The map's
// znode must not be a container, because the servers remove an empty container.
func (v *Value[T]) change(ctx context.Context, next func(now session.Node) ([]any, error)) (was session.Node, err error) {
	for fresh, beaten := false, 0; ; fresh = true {
		dir, was, err := v.read(ctx, fresh, true)
		var ops []any
		if err == nil {
			ops, err = next(was)
		}
		if err != nil || ops == nil {
			if fresh {
				return was, err
			}
			continue
		}
		if dir != nil && was.Stat != nil {
			guard := []any{&zk.CheckVersionRequest{Path: v.at.Dir, Version: dir.Version}}
			if _, deletes := ops[len(ops)-1].(*zk.DeleteRequest); deletes || dir.Version == -1 { // in a check, -1 would mean any version
				guard = znodes.SwapOps(v.at.Dir, []byte(marks.Map), dir.Version)
			}
			ops = append(guard, ops...)
		}
		if err = v.commit(ctx, ops...); err == nil || unlessChanged(err) != nil {
			return was, err
		}
		// Competing processes must not try at the same times. The wait is short, because one of them has
		// succeeded.
		delay := v.s.m.Config.Retry.Delay(min(beaten, 5)) // it may be the largest Duration
		if err := v.s.m.Sleep(ctx, dice.Below(max(delay, 1))); err != nil {
			return was, err
		}
		beaten++
	}
}

// CompareAndSwap stores x if the value still has the Version old, and reports whether it did. With
// the zero Version, it stores x if there is no value. After a loss of the servers' data, an old
// Version matches no new value.
func (v *Value[T]) CompareAndSwap(ctx context.Context, old Version, x T) (swapped bool, err error) {
	defer v.wrap("compareandswap", &err)
	data, err := v.encode(ctx, x)
	if err != nil {
		return false, err
	}
	_, err = v.change(ctx, func(now session.Node) ([]any, error) {
		if swapped = versionOf(now.Stat) == old; !swapped && old == (Version{}) { // data that cannot be decoded are a value, too, unless they are empty
			_, err := v.decode(now)
			swapped = err == ErrNoValue
		}
		if !swapped {
			return nil, nil
		}
		return v.write(now, data), nil
	})
	return swapped && err == nil, err
}

// Update stores f(value), or f of the zero T if there is no value, and returns the new value. If f
// returns an error, Update stores nothing and returns that error. If another process changes the
// value between the read and the write, Update calls f again: so f must have no effects of its own.
func (v *Value[T]) Update(ctx context.Context, f func(T) (T, error)) (x T, err error) {
	defer v.wrap("update", &err)
	if v.misuse() == nil && f == nil {
		return x, session.Invalid("the function is nil")
	}
	_, err = v.change(ctx, func(now session.Node) ([]any, error) {
		was, err := v.decode(now)
		if err != nil && err != ErrNoValue {
			return nil, err
		}
		if x, err = f(was); err != nil {
			return nil, err
		}
		data, err := v.encode(ctx, x)
		return v.write(now, data), err
	})
	if err != nil {
		x = *new(T)
	}
	return x, err
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
		var told Version // of the last state that was sent or has no value; the counter wraps, so it shows no order
		return v.s.m.During(ctx, func(inc *session.Incarnation) error {
			if err := inc.Sync(ctx, v.at.Path); err != nil {
				return err
			}
			return inc.Follow(ctx, v.at.Path, func(n session.Node, change *conn.Watch) error {
				version := versionOf(n.Stat)
				if version == told || znodes.Unstored(n.Data, n.Stat) {
					return nil
				}
				x, err := v.decode(n)
				if err == nil {
					sent, err := session.Offer(ctx, out, x, change.Fired, inc.Ctx.Done())
					if sent {
						told = version
					}
					return err
				}
				if told = version; err != ErrNoValue {
					inc.Manager.Log.Error("zsync: cannot watch a value", "path", v.path, "version", version, "err", err)
				}
				return nil
			})
		})
	})
}
