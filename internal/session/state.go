package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/marks"
)

// ErrMixed means that something of another kind, or of another layout, is used at a path.
var ErrMixed = errors.New("something of another kind, or of another layout, is used at this path")

// The servers must not remove a znode in which a confirmed write has stored something. They
// remove an ephemeral znode with its session, and a container when it has become empty. No Stat
// shows that a znode is a container. Our own containers are marked by their data: see [Dir]. A
// container of another program has no data, and nobody has written it. A znode like that gets a
// persistent child, which keeps it. A znode with data holds a value already, and lasts.

// keptBy is the name of what keeps a znode from being empty. No key of a Map is written so.
const keptBy = "%kept"

// Unstored reports whether a znode holds nothing that was stored at its path: it is ephemeral, or
// the marked directory of a primitive.
func Unstored(data []byte, stat *zk.Stat) bool { return stat.EphemeralOwner != 0 || marks.IsDir(data) }

// NeverStored is Unstored for a path below which nothing else is made. There a znode without data
// that has or had children is a directory of another program, or above one.
func NeverStored(data []byte, stat *zk.Stat) bool {
	return Unstored(data, stat) || untouched(stat) && stat.Cversion != 0
}

// GetMade reads a path with read. The error is ErrMixed if the znode is NeverStored.
func (inc *Incarnation) GetMade(ctx context.Context, path string, read func(context.Context, string) ([]byte, *zk.Stat, error)) ([]byte, *zk.Stat, error) {
	data, stat, err := read(ctx, path)
	if err == nil && NeverStored(data, stat) {
		err = inc.Manager.Mixed(path)
	}
	return data, stat, err
}

// Entry returns the key of a Map that a read has found. Its Stat is nil if there is no znode, or
// if the znode is NeverStored.
func Entry(data []byte, stat *zk.Stat, err error) (Node, error) {
	if IsNoNode(err) || err == nil && NeverStored(data, stat) {
		return Node{}, nil
	}
	return Node{Data: data, Stat: stat}, err
}

// SwapOps returns what writes data if the znode's counter is at version.
//
// The counter wraps after 2^31-1 and passes -1, except on the newest servers. A request cannot
// ask for the version -1, which means any. So at -1 the transaction writes whatever the counter
// is, and checks that the write took it to 0: an operation sees the effects of those before it.
func SwapOps(path string, data []byte, version int32) []any {
	set := &zk.SetDataRequest{Path: path, Data: data, Version: version}
	if version != -1 {
		return []any{set}
	}
	return []any{set, &zk.CheckVersionRequest{Path: path, Version: version + 1}}
}

// Mixed is the error of a write to path, a full one, where nothing may be stored.
func (m *Manager) Mixed(path string) error {
	return fmt.Errorf("%w: %s is the directory of a lock, a group, a queue or the like, or is ephemeral", ErrMixed, m.Bare(path))
}

// untouched reports whether a znode is as another program makes a directory.
func untouched(stat *zk.Stat) bool { return stat.DataLength == 0 && stat.Version == 0 }

// A Stored is a path at which a primitive stores something that must last.
type Stored struct {
	Path string
	Dir  string // the directory of Path, if that must last too
	Leaf bool   // nothing else is made below Path, so a znode that is NeverStored is refused
}

// Storable returns the czxid of the znode at at, which lasts, or 0 if there is none yet. The error
// is ErrMixed if the servers may remove that znode. A session reads each znode once, unless it
// uses very many.
func (inc *Incarnation) Storable(ctx context.Context, at Stored) (czxid int64, err error) {
	var unknown []Stored
	var paths []string
	for _, s := range []Stored{{Path: at.Dir}, at} {
		if s.Path == "" {
			continue
		}
		if known, ok := inc.lasting.Load(s.Path); ok {
			if s.Path == at.Path {
				czxid = known
			}
			continue
		}
		if !s.Leaf { // the ACL of its directory decides
			if err := inc.VetHere(ctx, s.Path); err != nil {
				return 0, err
			}
		}
		unknown, paths = append(unknown, s), append(paths, s.Path)
	}
	if paths == nil {
		return czxid, nil
	}
	nodes, err := inc.GetAll(ctx, paths)
	for i, n := range nodes {
		if err = inc.outlast(ctx, unknown[i], n); err != nil {
			return 0, err
		}
		if n.Stat != nil && unknown[i].Path == at.Path {
			czxid = n.Stat.Czxid
		}
	}
	return czxid, err
}

// Saw notes that the caller has read at, so that Storable need not.
func (inc *Incarnation) Saw(at Stored, n Node) {
	if !Unstored(n.Data, n.Stat) && !untouched(n.Stat) {
		inc.lasting.Store(at.Path, n.Stat.Czxid)
	}
}

// outlast makes the znode n that was read at at last, and remembers it. The error is ErrMixed for
// the directory of a primitive and for an ephemeral znode.
func (inc *Incarnation) outlast(ctx context.Context, at Stored, n Node) error {
	switch {
	case n.Stat == nil:
		return nil
	case Unstored(n.Data, n.Stat), at.Leaf && NeverStored(n.Data, n.Stat):
		return inc.Manager.Mixed(at.Path)
	case untouched(n.Stat) && !at.Leaf:
		if err := inc.keep(ctx, at.Path); err != nil {
			return err
		}
	}
	inc.lasting.Store(at.Path, n.Stat.Czxid)
	return nil
}

// Wrote checks, behind a write to at, that it changed the znode of czxid, which lasts. stat is that
// of the answer, or nil if the answer was lost. Another znode has replaced it since the read. If it
// was a directory, the write has removed its mark: so it is kept, or refused if it is a Leaf.
func (inc *Incarnation) Wrote(ctx context.Context, at Stored, stat *zk.Stat, czxid int64) (err error) {
	if stat == nil {
		if stat, err = inc.ExistsFresh(ctx, at.Path); err != nil || stat == nil {
			return err
		}
	}
	if stat.Czxid == czxid {
		return nil
	}
	inc.lasting.Delete(at.Path)
	switch {
	case !at.Leaf:
		err = inc.keep(ctx, at.Path)
	case stat.EphemeralOwner != 0 || stat.Cversion != 0:
		err = inc.Manager.Mixed(at.Path)
	}
	if err != nil {
		return fmt.Errorf("it was stored, and the servers may remove it: %w", err)
	}
	return nil
}

// keep makes the persistent child that keeps the znode at path. It is no error if there is no such
// znode, or if the session may not make the child.
func (inc *Incarnation) keep(ctx context.Context, path string) error {
	_, err := retry(ctx, inc, inc.createCall(ChildPath(path, keptBy), nil, zk.FlagPersistent))
	if IsNodeExists(err) || IsNoNode(err) || IsAnswer(err, zk.ErrNoAuth) {
		err = nil
	}
	return err
}
