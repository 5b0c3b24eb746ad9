package session

import (
	"context"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/marks"
)

// A Dir is the directory of a primitive's znodes. A session that misses it makes it as a
// container, as Curator does: the servers remove it when it has become empty. So it can vanish
// between any two requests, and NoNode always means: make it again and retry. Its data are
// [marks.Dir], so that no primitive stores something there that must last.
//
// The znodes above it are persistent and have no data: a Value may be stored there.
type Dir struct {
	Path string
	Part bool   // the znode above it is a directory of the same primitive
	Data []byte // the first data, instead of the mark alone; see [marks.Mark]
	Kept bool   // it is persistent: other programs make it once, and need it from then on
}

// owns reports whether path, which is Path or above it, is a directory of the primitive.
func (d Dir) owns(path string) bool {
	return path == d.Path || d.Part && path == ParentPath(d.Path)
}

// dirCall makes the znode at path, which is that of dir or above it. If the session has an ACL of
// its own, a directory is persistent: any client that may create beside it could make it again.
func (inc *Incarnation) dirCall(path string, dir Dir) call[string] {
	if !dir.owns(path) {
		return inc.createCall(path, nil, zk.FlagPersistent)
	}
	data, flags := []byte(marks.Dir), int32(zk.FlagContainer)
	if path == dir.Path && dir.Data != nil {
		data = dir.Data
	}
	if dir.Kept || inc.Manager.protects() {
		flags = zk.FlagPersistent
	}
	return inc.createCall(path, data, flags)
}

// missingDirs returns the directories to make in one batch with what is made in
// dir, where that is missing: dir and all above it, as it is not known which of
// them are there. It is nil if that was tried already, or if it must be known
// who has made each: then they are made one by one.
//
// What a server answers to each of them does not matter. One that is there
// already is NodeExists, or NoAuth where it could not be made; and if one of
// them could not be made that is missing, what is made behind it is NoNode again.
func (inc *Incarnation) missingDirs(dir string, tried []string) (dirs []string) {
	if tried != nil || inc.Manager.protects() {
		return nil
	}
	for ; dir != "/"; dir = ParentPath(dir) {
		dirs = append(dirs, dir)
	}
	slices.Reverse(dirs)
	return dirs
}

// MakeDir makes a directory, and the znodes above it, if they are missing. It vets a directory that
// is there.
func (inc *Incarnation) MakeDir(ctx context.Context, dir Dir) error {
	for {
		made, err := inc.addDir(ctx, dir.Path, dir)
		if made || err != nil {
			return err
		}
		// Another client has made it, or we have, and the reply is lost.
		if err := inc.VetNow(ctx, dir.Path); !IsNoNode(err) {
			return err
		}
	}
}

// addDir makes the znode at path, which is that of dir or above it, and its parents if they are
// missing. It reports whether path was missing.
func (inc *Incarnation) addDir(ctx context.Context, path string, dir Dir) (bool, error) {
	if path == "/" {
		return true, nil
	}
	for {
		_, err := retry(ctx, inc, inc.dirCall(path, dir))
		if isUnimplemented(err) { // the next is none of a container
			continue
		}
		switch {
		case IsNodeExists(err):
			return false, nil
		case IsNoNode(err):
			// The ACL of the parents does not matter: the root of a tree is open on
			// most servers.
			if _, err := inc.addDir(ctx, ParentPath(path), dir); err != nil {
				return false, err
			}
		case err == nil:
			if inc.Manager.protects() { // else nobody asks
				inc.vetted.Store(path, struct{}{})
			}
			return true, nil
		default:
			return false, err
		}
	}
}
