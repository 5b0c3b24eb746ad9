package znodes

// This file creates the parent znodes of a primitive's znodes.

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/wire"
)

// A Dir is the parent znode of a primitive's znodes. Like Curator, a session creates a missing Dir
// as a container: the servers delete it when it has become empty. So a Dir can vanish between any
// two requests, and NoNode always means: create the Dir again and retry. The data of a Dir is
// [marks.Dir], so that no primitive stores a value there.
//
// The znodes above a Dir are persistent and have no data, so a Value may be stored there.
type Dir struct {
	Path string
	Part bool   // the znode above is a Dir of the same primitive
	Data []byte // the first data, if it is more than the mark; see [marks.Mark]
	Kept bool   // the Dir is persistent, because other programs create it once and then need it
}

// dirCall creates the znode at path, which is dir or a znode above dir. If the session has its own
// ACL, a Dir is persistent, not a container. The servers would delete an empty container, and then
// another client could create the znode with a wider ACL.
func dirCall(inc *session.Incarnation, path string, dir Dir) session.Call[string] {
	if ours := path == dir.Path || dir.Part && path == ParentPath(dir.Path); !ours {
		return createCall(inc, path, nil, zk.FlagPersistent)
	}
	data, flags := []byte(marks.Dir), int32(zk.FlagContainer)
	if path == dir.Path && dir.Data != nil {
		data = dir.Data
	}
	if dir.Kept || protects(inc.Manager) {
		flags = zk.FlagPersistent
	}
	return createCall(inc, path, data, flags)
}

// MakeDir creates a Dir and the znodes above it, if they are missing. It vets a Dir that exists.
func MakeDir(ctx context.Context, inc *session.Incarnation, dir Dir) error {
	for {
		made, err := addDir(ctx, inc, dir.Path, dir)
		if made || err != nil {
			return err
		}
		// Either another client has created the znode, or this client has created it but the reply is
		// lost.
		if err := VetNow(ctx, inc, dir.Path); !session.IsNoNode(err) {
			return err
		}
	}
}

// addDir creates the znode at path and the missing parents of that znode. The path is the path of
// dir or of a znode above dir. The result reports whether the znode was missing.
func addDir(ctx context.Context, inc *session.Incarnation, path string, dir Dir) (bool, error) {
	for path != "/" {
		c := dirCall(inc, path, dir)
		_, err := session.Retry(ctx, inc, c)
		switch {
		case session.IsUnimplemented(err) && c.Op == wire.OpCreateContainer: // the next attempt creates no container
		case session.IsNodeExists(err):
			return false, nil
		case session.IsNoNode(err):
			// The ACL of the parents does not matter: the root of a tree is open on most servers.
			if _, err := addDir(ctx, inc, ParentPath(path), dir); err != nil {
				return false, err
			}
		default:
			if err == nil && protects(inc.Manager) { // without an ACL of its own, the session does not read `vetted`
				of(inc).vetted.Store(path, struct{}{})
			}
			return err == nil, err
		}
	}
	return true, nil
}
