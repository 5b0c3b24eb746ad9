package znodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
)

// ErrMixed means that the path is used by another kind of primitive, or with another layout.
var ErrMixed = errors.New("the path has another use")

// This file makes sure that the servers do not delete a znode in which a confirmed write has stored a
// value.
//
// Servers delete an ephemeral znode with its session, and a container when it has become empty. No
// Stat shows that a znode is a container. Our own containers are marked by their data: see [Dir]. A
// container of another program has no data, and was never written. This file gives each such znode
// a persistent child, so the znode never becomes empty.

// keptBy is the name of a child that keeps a znode from being empty. NameOfKey never returns it.
const keptBy = "%kept"

// Unstored reports whether a znode is ephemeral, or the marked parent znode of a primitive.
func Unstored(data []byte, stat *zk.Stat) bool {
	return stat.EphemeralOwner != 0 || marks.IsParent(data)
}

// NeverStored is Unstored for a path below which zsync creates no other znode. There, a value may
// look like the mark of a Map, but a Map's znode has or had children. NeverStored is also true for a
// znode without data that has or had children: it is the parent of another program's znodes.
func NeverStored(data []byte, stat *zk.Stat) bool {
	if stat.EphemeralOwner == 0 && (string(data) == marks.Map || untouched(stat)) {
		return stat.Cversion != 0
	}
	return Unstored(data, stat)
}

// GetMade calls the function `read` for path. The error is ErrMixed if the znode is NeverStored.
func GetMade(ctx context.Context, inc *session.Incarnation, path string, read func(context.Context, string) ([]byte, *zk.Stat, error)) ([]byte, *zk.Stat, error) {
	data, stat, err := read(ctx, path)
	if err == nil && NeverStored(data, stat) {
		err = Mixed(inc.Manager, path)
	}
	return data, stat, err
}

// SwapOps returns operations that write data if the znode has this version.
//
// The version wraps after 2^31-1 and passes -1, except on the newest servers. A request cannot
// expect the version -1, because that means any version. So at -1 the transaction writes
// unconditionally, and then checks that the write has made the version 0: an operation sees the
// effects of the operations before it.
func SwapOps(path string, data []byte, version int32) []any {
	set := &zk.SetDataRequest{Path: path, Data: data, Version: version}
	if version != -1 {
		return []any{set}
	}
	return []any{set, &zk.CheckVersionRequest{Path: path, Version: version + 1}}
}

// Mixed returns the error of a write to path, at which no value may be stored. path includes the
// chroot.
func Mixed(m *session.Manager, path string) error {
	return fmt.Errorf("%w: %s is ephemeral, or the parent znode of a lock, a map, a group or a queue; store the value at its own path", ErrMixed, m.Bare(path))
}

// The function `untouched` reports whether a znode may be a container of another program.
func untouched(stat *zk.Stat) bool { return stat.DataLength == 0 && stat.Version == 0 }

// A Stored is a path at which a primitive stores a persistent value.
type Stored struct {
	Path string
	Dir  string // the parent of Path, if Path is a key of a Map: it must also be persistent
	Leaf bool   // zsync creates no znode below Path, so a NeverStored znode is refused
	Map  bool   // the znode is the parent of a Map's keys, and so has the mark of a Map
}

// Check refuses data that cannot be stored at `at`, because they mark the parent znode of a
// primitive: no read would find the value.
func (at Stored) Check(data []byte) error {
	if marks.IsDir(data) || !at.Leaf && marks.IsParent(data) {
		return session.Invalid("the stored form of the value ends with %q, which marks the parent znode of a primitive", data[bytes.LastIndexByte(data, '\n')+1:])
	}
	return nil
}

// Entry returns the result of a read of `at`. The Stat is nil if nothing is stored there.
func (at Stored) Entry(data []byte, stat *zk.Stat, err error) (session.Node, error) {
	if session.IsNoNode(err) || err == nil && (!at.Leaf && Unstored(data, stat) || at.Leaf && NeverStored(data, stat)) {
		return session.Node{}, nil
	}
	return session.Node{Data: data, Stat: stat}, err
}

// The method `key` returns the key of `at` in known.lasting. A path that lasts for a Map is
// no path for a value.
func (at Stored) key() string {
	if at.Map {
		return at.Path + "/"
	}
	return at.Path
}

// Storable returns the czxid of the persistent znode of `at`, or 0 if there is none yet. The error
// is ErrMixed if the servers may delete that znode. A session usually reads each znode once. If `creates`
// is true, the caller creates the znode of `at`, so Storable does not read it, and forgets an earlier one.
func Storable(ctx context.Context, inc *session.Incarnation, at Stored, creates bool) (czxid int64, err error) {
	czxid, known := of(inc).lasting.Load(at.key())
	dir := Stored{Path: at.Dir, Map: true}
	var unknown []Stored
	if _, ok := of(inc).lasting.Load(dir.key()); !ok && at.Dir != "" {
		unknown = append(unknown, dir)
	}
	if creates {
		of(inc).lasting.Delete(at.key())
	} else if !known {
		unknown = append(unknown, at)
	}
	var paths []string
	for _, s := range unknown {
		if !s.Leaf { // the ACL of the parent decides for a Leaf
			if err := VetHere(ctx, inc, s.Path); err != nil {
				return 0, err
			}
		}
		paths = append(paths, s.Path)
	}
	nodes, err := GetAll(ctx, inc, paths)
	for i, n := range nodes {
		if err = outlast(ctx, inc, unknown[i], n); err != nil {
			return 0, err
		}
		if n.Stat != nil && unknown[i] == at {
			czxid = n.Stat.Czxid
		}
	}
	return czxid, err
}

// Saw is called when the caller has read the znode of `at`, so that Storable need not read it.
func Saw(inc *session.Incarnation, at Stored, n session.Node) {
	if !Unstored(n.Data, n.Stat) && !untouched(n.Stat) {
		of(inc).lasting.Store(at.key(), n.Stat.Czxid)
	}
}

// The function `outlast` makes sure that the servers do not delete n, the znode of `at`, and records the
// czxid of n. The error is ErrMixed if it cannot, or if the znode of a Map contains a value.
func outlast(ctx context.Context, inc *session.Incarnation, at Stored, n session.Node) error {
	switch {
	case n.Stat == nil:
		return nil
	case at.Map && string(n.Data) == marks.Map && n.Stat.EphemeralOwner == 0:
	case !at.Leaf && Unstored(n.Data, n.Stat), at.Leaf && NeverStored(n.Data, n.Stat), n.Stat.Czxid == 0: // 0: a znode of the servers themselves, such as /zookeeper
		return Mixed(inc.Manager, at.Path)
	case at.Map && len(n.Data) > 0: // a deletion of a key would overwrite the value
		return fmt.Errorf("%w: %s contains a value; choose another path for the map", ErrMixed, inc.Manager.Bare(at.Path))
	case untouched(n.Stat) && !at.Leaf:
		if err := keep(ctx, inc, at.Path); err != nil {
			return err
		}
	}
	of(inc).lasting.Store(at.key(), n.Stat.Czxid)
	return nil
}

// Wrote is called after a write to `at`. It checks that the write changed the persistent znode that
// has this czxid. stat is from the reply, or nil if the reply was lost. If the czxid differs,
// another znode has replaced that znode since the read. If the new znode is a Dir, the write has
// overwritten the mark of the Dir. So the new znode gets a persistent child. A Leaf is refused if
// it is ephemeral, or has or had children.
func Wrote(ctx context.Context, inc *session.Incarnation, at Stored, stat *zk.Stat, czxid int64) (err error) {
	if stat == nil {
		switch stat, err = inc.ExistsFresh(ctx, at.Path); {
		case err != nil && session.OutcomeOf(err) == session.Answered:
			return fmt.Errorf("it was stored, and cannot be read: %v", err) // %v: this is no refusal of the write
		case err != nil || stat == nil:
			return err
		}
	}
	if stat.Czxid == czxid {
		return nil
	}
	of(inc).lasting.Delete(at.key())
	switch {
	case !at.Leaf:
		err = keep(ctx, inc, at.Path)
	case stat.EphemeralOwner != 0 || stat.Cversion != 0:
		err = Mixed(inc.Manager, at.Path)
	}
	if err != nil {
		return fmt.Errorf("it was stored, and the servers may remove it: %w", err)
	}
	return nil
}

// The function `keep` creates the persistent child of the znode at path. It is no error if there is
// no such znode, or if the session has no permission to create the child.
func keep(ctx context.Context, inc *session.Incarnation, path string) error {
	_, err := session.Retry(ctx, inc, createCall(inc, ChildPath(path, keptBy), nil, zk.FlagPersistent))
	if session.IsNodeExists(err) || session.IsNoNode(err) || session.IsAnswer(err, zk.ErrNoAuth) {
		err = nil
	}
	return err
}
