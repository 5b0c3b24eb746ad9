package zsync

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/codec"
	"github.com/zsync/zsync/internal/session"
)

// A Value is a value of type T that every process which names the same path
// can read, replace and follow: [atomic.Value], across processes.
//
// All operations are linearizable, whichever servers the processes are connected
// to, and each write is applied exactly once or not at all, even when replies are
// lost and sessions end in between: of a hundred Updates that add one, each counts.
// For Load that holds as far as ZooKeeper's sync does: a leader that was cut off
// from the others may answer for the few seconds until it notices. Writes do not
// depend on such an answer.
//
// All of this is for one znode, which zsync never deletes. ZooKeeper counts the writes
// of each znode from 0: where another program deletes it, and somebody stores
// again, a CompareAndSwap or an Update whose server has not seen the deletion yet
// may take the new value for the old one.
//
// # Loss
//
// A Value is not held by anyone, so a lost session takes nothing away: operations
// and Watch carry on in the next one.
//
// # Errors
//
// Load returns [ErrNoValue] if nothing has been stored. A write returns
// [ErrTooLarge] for a value that does not fit into ZooKeeper's packet of 1
// MiB; nothing is sent then. When ctx ends while a write is on its way, it may
// be applied or not.
//
// # Znodes
//
// The value is the data of the znode at path, persistent, in the form that the
// codec gives it and nothing else ([WithCodec]; the default is JSON), so that
// other programs can read and write it too. Missing parents are persistent. A write is
// [ErrMixed] if a lock, a group, a queue or the like has its directory at path, or an
// ephemeral znode is there: the servers would remove the value with it. An empty znode
// that something else has made may be a container: the first write makes the persistent
// znode path/%kept, which keeps it. The writes of a process also write a znode of unique name below
// <path>-receipts, in the same transaction. It is made by the first, and deleted
// in the background when nothing has been written for a second; a process that
// dies before leaves it, which harms nobody.
//
// # Cost
//
// Load costs 2 requests in 1 round trip. Store costs 1 round trip, CompareAndSwap and an
// Update without competition 2; each of these is one request. A first Store reads the
// znode, in 1 request and round trip more. A second after the
// last write comes one more in the background.
// The first write of all costs some more.
type Value[T any] struct {
	made
	codec Codec
}

// A Version identifies one write of a [Value]. Two Versions of what is at one path
// are equal if, and only if, they are of the same write. The zero Version means
// that there is no value yet.
type Version struct {
	czxid, mzxid int64 // of the transactions that made the znode, and wrote it
	mtime        int64 // when the leader wrote it, in milliseconds: zxids begin again if the servers lose their data
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

// NewValue returns the Value at path. It does no I/O; a bad argument is
// reported by every method.
func NewValue[T any](s *Session, path string, opts ...ValueOption) *Value[T] {
	c := newValueConfig(opts)
	return &Value[T]{made: made{s: s, path: path, err: checkNew(s, path, c.err)}, codec: c.codec}
}

// Path returns the path that v was made with.
func (v *Value[T]) Path() string { return v.path }

// Load returns the value, at least as new as the moment of the call, and its
// Version; or [ErrNoValue]. A value that cannot be decoded is an error, and is
// returned with its Version, so that it can be replaced. An empty znode, as kazoo's
// Counter makes it, is no value, unless it is one to the codec.
func (v *Value[T]) Load(ctx context.Context) (T, Version, error) {
	x, version, err := v.load(ctx, true)
	if err == nil && version == (Version{}) {
		err = ErrNoValue
	}
	return x, version, opError("load", v.path, err)
}

// load reads the value; where there is none it returns the zero Version. If it
// need not be fresh, it may be as old as what the server at hand has.
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

// check is what every operation asks first.
func (v *Value[T]) check(ctx context.Context) error {
	if v.misuse() != nil {
		return v.misuse()
	}
	return session.CtxErr(ctx)
}

func (v *Value[T]) full() string { return v.s.m.Full(v.path) }

func (v *Value[T]) state() session.Stored { return session.Stored{Path: v.full()} }

// decode is ErrNoValue for an empty znode, as other programs make it before they
// have a value, unless that is one to the codec.
func (v *Value[T]) decode(data []byte) (T, error) {
	x, err := decoded[T](v.codec, data)
	if err != nil && len(data) == 0 {
		err = ErrNoValue
	}
	return x, err
}

// encode refuses what does not fit into a transaction.
func (v *Value[T]) encode(x T) ([]byte, error) {
	data, err := codec.Encode(v.codec, x)
	if err != nil {
		return nil, fmt.Errorf("cannot encode a %T: %w", x, err)
	}
	if v.s.m.SizeOf(v.full(), data)+2*v.s.m.SizeOf(v.receipts(), nil)+256 > session.MaxPacket {
		return nil, fmt.Errorf("value of %d bytes: %w", len(data), ErrTooLarge)
	}
	return data, nil
}

// Store makes x the value, whatever it was. A value that does not fit is
// [ErrTooLarge], and nothing was sent. When ctx ends while the write is on its
// way, it may be stored or not.
func (v *Value[T]) Store(ctx context.Context, x T) error {
	return opError("store", v.path, v.store(ctx, x))
}

func (v *Value[T]) store(ctx context.Context, x T) error {
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
		// Made by someone else in between: then it can be set.
		if !session.IsNodeExists(err) {
			return err
		}
	}
}

// CompareAndSwap makes x the value if the value is still the one that old
// identifies, and reports whether it did. With the zero Version it stores x if
// there is no value yet.
//
// ZooKeeper compares a counter that begins anew when the znode is deleted and
// made again. That the znode is the same is checked with a read before the
// write, so only a deletion that the server did not know of at the read, by a
// program other than zsync, which never deletes it, could deceive CompareAndSwap.
//
// If the servers lose their data, no Version from before the loss is that of a value stored after
// it. Only a CompareAndSwap that is under way at the loss may be applied to a value stored after it.
//
// When ctx ends while the write is on its way, it may be stored or not.
func (v *Value[T]) CompareAndSwap(ctx context.Context, old Version, x T) (bool, error) {
	ok, err := v.compareAndSwap(ctx, old, x)
	return ok, opError("compareandswap", v.path, err)
}

func (v *Value[T]) compareAndSwap(ctx context.Context, old Version, x T) (bool, error) {
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
	// The znode may be there without a value.
	_, empty, err := v.load(ctx, true)
	if err != ErrNoValue || empty == (Version{}) {
		return false, err
	}
	return v.swap(ctx, empty, data)
}

// still reports whether the znode has the version old.
func (v *Value[T]) still(ctx context.Context, old Version) (same bool, err error) {
	err = v.s.m.During(ctx, func(inc *session.Incarnation) error {
		data, stat, err := inc.Get(ctx, v.full())
		if session.IsNoNode(err) || err == nil && stat.Mzxid < old.mzxid {
			// This server does not know old yet, or it was deleted.
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

// swap writes data if the version is old, and reports whether it was.
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

// receipts is the container of the receipts.
func (v *Value[T]) receipts() string { return v.full() + "-receipts" }

// commit applies ops, which are about the value, exactly once. It makes missing parents,
// which are those of the receipts as well. It is ErrMixed if the znode need not last.
//
// What is written cannot be recognised in the znode afterwards: another process
// may have written the same bytes, or have written over ours. Hence receipts.
func (v *Value[T]) commit(ctx context.Context, ops ...any) error {
	return v.s.m.CommitState(ctx, v.receipts(), v.state(), ops)
}

// Update replaces the value by what f makes of it, and returns that. If the
// value has changed in the meantime f is called again with the new one, until
// its result applies. Where there is no value yet f is given the zero T. When f
// returns an error nothing is stored, and Update returns it. f must be free of
// effects of its own, as it may be called any number of times.
//
// When ctx ends while the write is on its way, it may be stored or not.
func (v *Value[T]) Update(ctx context.Context, f func(T) (T, error)) (T, error) {
	if v.misuse() == nil && f == nil {
		var zero T
		return zero, opError("update", v.path, session.Invalid("the function is nil"))
	}
	x, err := v.update(ctx, f)
	return x, opError("update", v.path, err)
}

func (v *Value[T]) update(ctx context.Context, f func(T) (T, error)) (zero T, err error) {
	// The first look may be at an old value: if it is, the swap fails, and
	// nobody is told of it. The others look at what beat us.
	fresh := false
	for try := 0; ; try++ {
		x, data, old, err := v.successor(ctx, fresh, f)
		switch {
		case err != nil && fresh:
			return zero, err
		case err != nil:
			// An error, too, must be about a value not older than the call. Nobody
			// knows whether this one was, until a look that is not old has been
			// answered: if that is prevented, by the end of ctx or by a refusal,
			// Update says what prevented it, and not what f thought of an old value.
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
		if err := v.yield(ctx, try); err != nil {
			return zero, err
		}
	}
}

// successor returns what f makes of the value, also encoded, and the Version of
// what f was given.
func (v *Value[T]) successor(ctx context.Context, fresh bool, f func(T) (T, error)) (x T, data []byte, old Version, err error) {
	if x, old, err = v.load(ctx, fresh); err != nil && err != ErrNoValue {
		return x, nil, old, err
	}
	if x, err = f(x); err != nil {
		return x, nil, old, err
	}
	data, err = v.encode(x)
	return x, data, old, err
}

// yield waits a little before the next attempt, so that those who compete do
// not stay in step. Someone's attempt has succeeded: it is no reason to wait
// long.
func (v *Value[T]) yield(ctx context.Context, try int) error {
	const most = 5
	d := v.s.m.Config.Retry.Delay(min(try+1, most)) // which may be as large as there is
	return v.s.m.Sleep(ctx, rand.N(max(d, 1)))
}

// Watch returns a channel of the present value, and then of the latest after
// each change. It never goes back to an older value, whatever server answers
// and through however many sessions, and once nothing changes any more the last
// one sent is the value. While there is no value it waits.
//
// The channel has no buffer. A reader who is slower than the writers gets the
// latest value, not those in between. A value that cannot be decoded is logged
// and left out.
//
// The channel is closed when ctx ends or the Session is closed, or when the
// znode may not be read at all, which is logged. Each change costs one
// notification for each Session and one request for each Watch, and nothing is
// asked while nothing changes.
func (v *Value[T]) Watch(ctx context.Context) <-chan T {
	out := make(chan T)
	if v.misuse() != nil {
		close(out)
		return out
	}
	v.s.m.Spawn(func() {
		defer close(out)
		w := valueWatch[T]{v: v, out: out}
		err := v.s.m.During(ctx, func(inc *session.Incarnation) error { return w.follow(ctx, inc) })
		if ctx.Err() == nil && v.s.m.Failure() == nil {
			v.s.m.Log.Error("zsync: cannot watch", "path", v.path, "err", err)
		}
	})
	return out
}

// A valueWatch is one Watch in progress.
type valueWatch[T any] struct {
	v    *Value[T]
	out  chan<- T
	told Version // what was last sent, or could not be decoded
}

// follow sends every value that it sees within one session.
//
// Within a session no read is older than the one before: a server that has not
// seen what the client has refuses its connection. Nor is the first of a session
// older than the last of the one before: the session itself was made by a later
// transaction, and its server has applied that. The catch-up has the first value
// of all be not older than the call. Versions are compared for being the same
// and for nothing else: the counter wraps, and is no measure of age.
func (w *valueWatch[T]) follow(ctx context.Context, inc *session.Incarnation) error {
	if err := inc.Sync(ctx, w.v.full()); err != nil {
		return err
	}
	for {
		err := w.next(ctx, inc)
		if session.IsNoNode(err) {
			err = inc.AwaitMade(ctx, w.v.full())
		}
		if err != nil {
			return err
		}
	}
}

// next sends the value, unless that has been done, and waits for a change.
func (w *valueWatch[T]) next(ctx context.Context, inc *session.Incarnation) error {
	change := inc.Watches.Join(session.WatchKey{Kind: session.WatchData, Path: w.v.full()})
	defer inc.Watches.Leave(change)
	data, stat, err := inc.Get(ctx, w.v.full())
	if err != nil {
		return err
	}
	version := versionOf(stat)
	if version == w.told || session.Unstored(data, stat) {
		return inc.AwaitFired(ctx, change)
	}
	x, err := w.v.decode(data)
	if err == ErrNoValue {
		return inc.AwaitFired(ctx, change)
	}
	if err != nil {
		inc.Manager.Log.Error("zsync: cannot watch a value", "path", w.v.path, "version", version, "err", err)
		w.told = version
		return inc.AwaitFired(ctx, change)
	}
	select {
	case w.out <- x:
		w.told = version
		return inc.AwaitFired(ctx, change)
	case <-change.Fired:
		return nil // the reader gets the newer one
	case <-ctx.Done():
		return session.CtxErr(ctx)
	case <-inc.Ctx.Done():
		return session.ErrEnded
	}
}
