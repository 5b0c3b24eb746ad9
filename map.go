package zsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/txn"
	"github.com/zsync/zsync/internal/znodes"
)

// A Map is a map from strings to values that processes share, like [sync.Map]:
//
//	m := zsync.NewMap[Settings](s, "/services")
//	err := m.Store(ctx, "billing", Settings{Replicas: 3})
//	v, version, err := m.Load(ctx, "billing")
//	for all := range m.Watch(ctx) { … } // the whole map, now and after each change
//
// Operations on one key are linearizable. A key that was deleted and stored again is never mistaken
// for the old key, unless another program deletes path itself. [Map.Range] and [Map.All] read a
// snapshot. Any string is a key; about ten thousand work well. Each deletion makes a running Swap,
// CompareAndSwap, LoadAndDelete or CompareAndDelete start again.
//
// # Loss
//
// No process holds a Map, so a lost session loses nothing.
//
// # Errors
//
// Load returns [ErrNoValue] for a missing key.
//
// # Cost
//
// Load, Store, Delete, Len: 1 round trip. LoadOrStore: 2. Range: 4. Others: 3.
//
// # Znodes
//
// Each key is the persistent znode path/<key> with its encoded value ([WithCodec]). path is
// persistent, and its version counts deletions.
type Map[V any] struct {
	made
	codec Codec
}

// A MapEntry is a key of a [Map], its value and the value's Version.
type MapEntry[V any] struct {
	Key     string
	Value   V
	Version Version
}

// NewMap returns the Map at path.
func NewMap[V any](s *Session, path string, opts ...ValueOption) *Map[V] {
	c := valueSetup(opts)
	return &Map[V]{made: made{s: s, path: path, err: checkNew(s, path, c.err)}, codec: c.codec}
}

func (m *Map[V]) dir() string      { return m.s.m.Full(m.path) }
func (m *Map[V]) receipts() string { return m.dir() + "-receipts" }

func (m *Map[V]) fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return opError(op, m.path, fmt.Errorf("key %q: %w", key, plainError(err)))
}

// The method `entry` returns the Value in which key is stored.
func (m *Map[V]) entry(key string) *Value[V] {
	path := znodes.ChildPath(m.path, znodes.NameOfKey(key))
	e := &Value[V]{made: made{s: m.s, path: path, err: m.misuse()}, codec: m.codec}
	switch {
	case e.err != nil:
	case len(path) > znodes.MaxPath:
		e.err = session.Invalid("its path has %d bytes; the limit is %d", len(path), znodes.MaxPath)
	default:
		e.at, e.receipts = znodes.Stored{Path: m.s.m.Full(path), Dir: m.dir(), Leaf: true}, m.receipts()
	}
	return e
}

// Load returns the value and the Version of key, at least as new as the call, or [ErrNoValue]. A
// decoding error comes with the Version, too.
func (m *Map[V]) Load(ctx context.Context, key string) (v V, version Version, err error) {
	v, version, err = m.entry(key).Load(ctx)
	return v, version, m.fail("load", key, err)
}

// Store makes v the value of key, whatever it was.
func (m *Map[V]) Store(ctx context.Context, key string, v V) error {
	return m.fail("store", key, m.entry(key).Store(ctx, v))
}

// LoadOrStore returns the value of key. If there is none, it stores v.
func (m *Map[V]) LoadOrStore(ctx context.Context, key string, v V) (actual V, loaded bool, err error) {
	e := m.entry(key)
	data, err := e.encode(ctx, v)
	for err == nil {
		var n session.Node
		if _, n, err = e.read(ctx, true, false); n.Stat != nil || err != nil {
			return m.former("loadorstore", key, n, err)
		}
		if err = e.commit(ctx, e.write(n, data)...); err == nil {
			return v, false, nil
		}
		if session.IsNodeExists(err) {
			err = nil
		}
	}
	return actual, false, m.fail("loadorstore", key, err)
}

// Swap stores v and returns the former value, if any, or its decoding error.
func (m *Map[V]) Swap(ctx context.Context, key string, v V) (previous V, loaded bool, err error) {
	var was session.Node
	e := m.entry(key)
	data, err := e.encode(ctx, v)
	if err == nil {
		was, err = e.change(ctx, func(now session.Node) ([]any, error) { return e.write(now, data), nil })
	}
	return m.former("swap", key, was, err)
}

// The method `former` decodes the value that a key had before a change.
func (m *Map[V]) former(op, key string, was session.Node, err error) (v V, loaded bool, _ error) {
	if err != nil || was.Stat == nil {
		return v, false, m.fail(op, key, err)
	}
	v, err = decoded[V](m.codec, was.Data)
	return v, true, m.fail(op, key, err)
}

// CompareAndSwap stores v if key still has the Version old, and reports whether it did.
// With the zero Version, it stores v if the key is missing.
func (m *Map[V]) CompareAndSwap(ctx context.Context, key string, old Version, v V) (bool, error) {
	swapped, err := m.entry(key).CompareAndSwap(ctx, old, v)
	return swapped, m.fail("compareandswap", key, err)
}

// CompareAndDelete deletes key if it has the Version old, and reports if so.
func (m *Map[V]) CompareAndDelete(ctx context.Context, key string, old Version) (bool, error) {
	was, err := m.take(ctx, key, func(now Version) bool { return now == old })
	return err == nil && was.Stat != nil && versionOf(was.Stat) == old, m.fail("compareanddelete", key, err)
}

// LoadAndDelete deletes key and returns its value, or its decoding error.
func (m *Map[V]) LoadAndDelete(ctx context.Context, key string) (v V, loaded bool, err error) {
	was, err := m.take(ctx, key, nil)
	return m.former("loadanddelete", key, was, err)
}

// The method `take` deletes key if it exists with a Version that fits; nil fits all. It returns the
// state of key before that.
func (m *Map[V]) take(ctx context.Context, key string, fits func(Version) bool) (was session.Node, err error) {
	e := m.entry(key)
	return e.change(ctx, func(now session.Node) (ops []any, err error) {
		if now.Stat == nil || fits != nil && !fits(versionOf(now.Stat)) {
			return nil, nil
		}
		version := now.Stat.Version
		if version == -1 { // in a request, -1 would mean any version; a write first sets the counter to 0
			ops, version = znodes.SwapOps(e.at.Path, nil, -1), 0
		}
		return append(ops, &zk.DeleteRequest{Path: e.at.Path, Version: version}), nil
	})
}

// Delete deletes key, if it is there.
func (m *Map[V]) Delete(ctx context.Context, key string) error {
	err := m.entry(key).check(ctx)
	if err == nil {
		err = m.deleteAll(ctx, []string{znodes.NameOfKey(key)})
	}
	return m.fail("delete", key, err)
}

// deleteAll deletes keys in one transaction or, if one of them is missing or has children, one by one.
// The transaction counts a deletion. The data of that write show that the path is a map's, and that the
// servers do not remove it.
func (m *Map[V]) deleteAll(ctx context.Context, names []string) error {
	ops := make([]any, 0, len(names)+1)
	for _, name := range names {
		ops = append(ops, &zk.DeleteRequest{Path: znodes.ChildPath(m.dir(), name), Version: -1})
	}
	ops = append(ops, &zk.SetDataRequest{Path: m.dir(), Data: []byte(marks.Map), Version: -1})
	err := txn.Store(ctx, m.s.m, m.receipts(), znodes.Stored{Path: m.dir(), Map: true}, ops)
	if !session.IsNoNode(err) && !session.IsAnswer(err, zk.ErrNotEmpty) {
		return err
	}
	if len(names) == 1 { // a server that lags may not have the map's znode yet
		key, _ := znodes.KeyOfName(names[0])
		_, err := m.take(ctx, key, nil)
		return err
	}
	for _, name := range names {
		if err := m.deleteAll(ctx, []string{name}); err != nil {
			return err
		}
	}
	return nil
}

// Len returns the number of keys.
func (m *Map[V]) Len(ctx context.Context) (int, error) {
	names, err := m.names(ctx)
	return len(names), opError("len", m.path, err)
}

// Clear deletes, in several steps, the keys that exist when it is called. A key that is stored
// during the call may stay.
func (m *Map[V]) Clear(ctx context.Context) error {
	names, err := m.names(ctx)
	if err != nil {
		return opError("clear", m.path, err)
	}
	most := max(1, min(500, znodes.MaxPacket/2/(znodes.MaxPath+len(m.dir())+64))) // as many as one transaction can always delete
	for batch := range slices.Chunk(names, most) {
		if err := m.deleteAll(ctx, batch); err != nil {
			return opError("clear", m.path, err)
		}
	}
	return nil
}

func (m *Map[V]) names(ctx context.Context) (names []string, err error) {
	err = m.during(ctx, func(inc *session.Incarnation) error {
		names, err = inc.NamesFresh(ctx, m.dir())
		return err
	})
	return ofKeys(names), err
}

// The function `ofKeys` deletes the names that are not the encoding of a key: they come from another
// program.
func ofKeys(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { _, ok := znodes.KeyOfName(name); return !ok })
}

// Range calls f for each key and value, in the order of the keys, until f returns false. It sees
// the whole map at one moment of the call, or, if keys change faster than the servers answer,
// during its last few round trips. It skips a value that cannot be decoded, and returns the first
// such error.
func (m *Map[V]) Range(ctx context.Context, f func(key string, v V) bool) error {
	if m.misuse() == nil && f == nil {
		return opError("range", m.path, session.Invalid("the function is nil"))
	}
	var first error
	for e, err := range m.All(ctx) {
		if err != nil {
			first = cmp.Or(first, err)
		} else if !f(e.Key, e.Value) {
			break
		}
	}
	return first
}

// All is [Map.Range] for a range loop, with Versions. A value that cannot be decoded comes with its
// error. If the read fails, All yields only its error.
func (m *Map[V]) All(ctx context.Context) iter.Seq2[MapEntry[V], error] {
	return func(yield func(MapEntry[V], error) bool) {
		nodes, err := m.snapshot(ctx)
		if err != nil {
			yield(MapEntry[V]{}, opError("range", m.path, err))
			return
		}
		for _, key := range slices.Sorted(maps.Keys(nodes)) {
			e := MapEntry[V]{Key: key, Version: versionOf(nodes[key].Stat)}
			e.Value, err = decoded[V](m.codec, nodes[key].Data)
			if !yield(e, m.fail("range", key, err)) {
				return
			}
		}
	}
}

// The method `snapshot` returns the znodes of the whole map, by key, as they were at one moment.
//
// It lists the keys and reads them, and then does both again. If the pzxid of the map's znode is
// the same in both listings, no key was added or deleted between them. A value with the same Version
// in both reads did not change between the reads. So the keys and the values are those of the moment
// of the second listing. To compare only the Versions is not enough: a key can be created after the
// first listing and deleted before the second, and other keys may have changed only while it existed.
// If the map changes all the time, `snapshot` follows it instead: see the type `follower` of package
// session.
func (m *Map[V]) snapshot(ctx context.Context) (nodes map[string]session.Node, err error) {
	settled := false
	err = m.during(ctx, func(inc *session.Incarnation) error {
		var before map[string]session.Node
		var listed int64
		list := inc.ChildrenFresh // only the first listing must be fresh: later reads are not older
		for try := 0; try < 4 && !settled; try++ {
			names, stat, err := list(ctx, m.dir())
			if settled = session.IsNoNode(err); settled {
				nodes = nil
				return nil
			}
			if err == nil {
				nodes, err = znodes.GetChildren(ctx, inc, m.dir(), ofKeys(names))
			}
			if err != nil {
				return err
			}
			same := func(a, b session.Node) bool { return versionOf(a.Stat) == versionOf(b.Stat) }
			settled = try > 0 && listed == stat.Pzxid && maps.EqualFunc(before, nodes, same)
			list, before, listed = inc.Children, nodes, stat.Pzxid
		}
		return nil
	})
	if err == nil && !settled {
		errTold := errors.New("told")
		err = znodes.FollowDir(ctx, m.s.m, m.dir(), false, func(found map[string]session.Node, _, _ <-chan struct{}) (bool, error) {
			nodes = found
			return true, errTold
		})
		if err == errTold {
			err = nil
		}
	}
	return keyed(nodes), err
}

// The function `keyed` returns nodes by key instead of by name, without znodes that have no key.
func keyed(nodes map[string]session.Node) map[string]session.Node {
	out := make(map[string]session.Node, len(nodes))
	for name, n := range nodes {
		if key, ok := znodes.KeyOfName(name); ok && !znodes.NeverStored(n.Data, n.Stat) {
			out[key] = n
		}
	}
	return out
}

// Watch returns a channel of the whole map, now and after each change. A snapshot is never older
// than the last, and the receiver may change it. After an outage, Watch sends the contents, changed
// or not.
func (m *Map[V]) Watch(ctx context.Context) <-chan map[string]V {
	return watching(ctx, &m.made, func(ctx context.Context, out chan<- map[string]V) error {
		return znodes.FollowDir(ctx, m.s.m, m.dir(), true, func(nodes map[string]session.Node, changed, lost <-chan struct{}) (bool, error) {
			all := make(map[string]V, len(nodes))
			for key, n := range keyed(nodes) {
				v, err := decoded[V](m.codec, n.Data)
				if err != nil {
					m.s.m.Log.Error("zsync: cannot watch a value", "path", m.path, "key", key, "err", err)
					continue
				}
				all[key] = v
			}
			return session.Offer(ctx, out, all, changed, lost)
		})
	})
}
