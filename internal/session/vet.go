package session

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"
)

// Where an ACL other than the open one is asked for, a directory that somebody
// else has made is used only if its ACL lets nobody change what is in it who
// could not by ours. Otherwise a stranger who made it first could delete what is
// held in it, however well each znode is protected.

// protects reports whether the session was given an ACL of its own.
func (m *Manager) protects() bool { return !slices.Equal(m.Config.ACL, zk.WorldACL(zk.PermAll)) }

// lasts reports whether the directory at path must be persistent: the servers
// must not remove it when it is empty, as anyone who may create beside it could
// make it again; or other programs make it once, and do without it no more.
func (m *Manager) lasts(path string) bool {
	if m.protects() {
		return true
	}
	_, ok := m.lasting.Load(path)
	return ok
}

// MakeLasting has the directory at path, if this session makes it, be
// persistent. It is remembered for as long as the Session: not longer than the
// znode that it leaves.
func (m *Manager) MakeLasting(path string) { m.MarkLasting(path, nil) }

// MarkLasting is MakeLasting of a directory that begins with data.
func (m *Manager) MarkLasting(path string, data []byte) { m.lasting.Store(path, data) }

// keptBy is the name of what keeps a directory from being empty. No key is written so.
const keptBy = "%kept"

// KeepDir has the directory at path last, if it is there, before it has the mark that says
// so, which is that of [Manager.MarkLasting]. Others may have made it, as a container or not,
// and no Stat tells which: so what has not the mark is given a persistent child, and the
// mark only then. It is told what stat says of the directory now, or asks, once in a session.
//
// If stat shows the version −1 it writes the mark too: a request cannot ask for that version,
// which means any. It reports whether it has written the mark.
//
// Who may not make the child leaves all as it is: whoever has made the directory allows no more.
func (inc *Incarnation) KeepDir(ctx context.Context, path string, mark []byte, stat *zk.Stat) (marked bool, err error) {
	if stat == nil {
		if _, ok := inc.kept.Load(path); ok {
			return false, nil
		}
		if stat, err = inc.ExistsFresh(ctx, path); err != nil || stat == nil {
			return false, err
		}
	}
	lasts := int(stat.DataLength) == len(mark)
	if !lasts {
		if err := inc.VetHere(ctx, path); err != nil {
			return false, err
		}
		err = inc.makeKept(ctx, path)
	}
	if marked = err == nil && (!lasts || stat.Version == -1); marked {
		// Should it be another by now, it is the one that has the child.
		_, err = inc.Set(ctx, path, mark, -1)
	}
	switch {
	case IsNoNode(err): // it is gone
		return true, nil
	case err != nil && (stat.Version == -1 || !IsAnswer(err, zk.ErrNoAuth)):
		return false, err
	}
	inc.kept.Store(path, stat.Czxid)
	return marked && err == nil, nil
}

// KeepStored has the znode at path last, in which something was stored. rs is the answer to
// that: where its Stat shows that something is or was below it others may have made it, as a
// container, which the servers remove when nothing is left in it. So it is given a persistent
// child, once in a session for each znode that is made there. It is given that also if ctx ends
// meanwhile, and left as it is by who may not make one.
func (m *Manager) KeepStored(ctx context.Context, path string, rs []zk.MultiResponse) {
	if len(rs) == 0 || rs[0].Stat == nil || rs[0].Stat.Cversion == 0 {
		return
	}
	kept := make(chan error, 1)
	_, stay := m.BeforeClose()
	m.Spawn(func() {
		defer stay()
		kept <- m.During(context.Background(), func(inc *Incarnation) error {
			if of, ok := inc.kept.Load(path); ok && of == rs[0].Stat.Czxid {
				return nil
			}
			err := inc.makeKept(inc.Ctx, path)
			if err == nil || IsAnswer(err, zk.ErrNoAuth) {
				inc.kept.Store(path, rs[0].Stat.Czxid)
			}
			return err
		})
	})
	select {
	case <-kept:
	case <-ctx.Done(): // it is stored, whatever becomes of this
	}
}

// makeKept makes the child that keeps the znode at path, unless it is there.
func (inc *Incarnation) makeKept(ctx context.Context, path string) error {
	_, err := retry(ctx, inc, inc.createCall(ChildPath(path, keptBy), nil, zk.FlagPersistent))
	if IsNodeExists(err) {
		err = nil
	}
	return err
}

// mark is what a directory begins with.
func (m *Manager) mark(path string) []byte {
	mark, _ := m.lasting.Load(path)
	data, _ := mark.([]byte)
	return data
}

// Vet refuses the directory at path if others may change what is in it. It asks
// once in a session; if there is no directory it makes one that begins with data.
// Without an ACL of one's own it does nothing.
func (inc *Incarnation) Vet(ctx context.Context, path string, data []byte) error {
	if _, ok := inc.vetted.Load(path); ok || !inc.Manager.protects() || path == "/" {
		return nil
	}
	err := inc.VetNow(ctx, path)
	if IsNoNode(err) {
		// Made now, so that nobody makes it between this look and its use.
		err = inc.makeDirWith(ctx, path, data)
	}
	return err
}

// VetHere is vet of a znode that others make if it is missing.
func (inc *Incarnation) VetHere(ctx context.Context, path string) error {
	if _, ok := inc.vetted.Load(path); ok {
		return nil
	}
	if err := inc.VetNow(ctx, path); !IsNoNode(err) {
		return err
	}
	return nil
}

// VetNow is vet of a znode that is there, whatever was known of it.
func (inc *Incarnation) VetNow(ctx context.Context, path string) error {
	inc.vetted.Delete(path)
	if !inc.Manager.protects() {
		return nil
	}
	acl, err := retry(ctx, inc, aclCall(path))
	if IsAnswer(err, zk.ErrNoAuth) {
		return fmt.Errorf("%w: the ACL of %s, which somebody else has made, cannot be read: %w", ErrUnprotected, inc.Manager.Bare(path), err)
	}
	if err != nil {
		return err
	}
	for _, e := range acl {
		if !inc.Manager.allows(e) {
			return fmt.Errorf("%w: %s, which somebody else has made, gives %s:%s the permissions %s; make it with the ACL of the Session, or another that gives nobody more, or delete it",
				ErrUnprotected, inc.Manager.Bare(path), e.Scheme, e.ID, permText(e.Perms))
		}
	}
	inc.vetted.Store(path, struct{}{})
	return nil
}

// allows reports whether the session's own ACL gives as much as e does, but for
// reading.
func (m *Manager) allows(e zk.ACL) bool {
	var given int32
	for _, own := range m.Config.ACL {
		if m.sameID(own, e) {
			given |= own.Perms
		}
	}
	return e.Perms&^zk.PermRead&^given == 0
}

// sameID reports whether e is for those that own, of the session's ACL, is for.
func (m *Manager) sameID(own, e zk.ACL) bool {
	switch {
	case own.Scheme == "world" && own.ID == "anyone":
		return true // whatever others may, so may everyone
	case own.Scheme != "auth":
		return own.Scheme == e.Scheme && sameUser(own.ID, e.ID)
	case e.Scheme == "world" || e.Scheme == "ip":
		return false
	case e.Scheme != "digest":
		return true // who the servers take us for by our certificate, or the like, is not known here
	}
	return slices.ContainsFunc(m.Config.Auths, func(a Auth) bool {
		return a.Scheme == "digest" && sameUser(digestID(string(a.Credentials)), e.ID)
	})
}

// sameUser compares two ids. The servers show those who may not administer a
// znode "user:x" for the digest of a password.
func sameUser(own, shown string) bool {
	user, _, ok := strings.Cut(own, ":")
	return own == shown || ok && shown == user+":x"
}

// digestID is what the servers make of "user:password".
func digestID(userPassword string) string {
	user, _, _ := strings.Cut(userPassword, ":")
	sum := sha1.Sum([]byte(userPassword))
	return user + ":" + base64.StdEncoding.EncodeToString(sum[:])
}

// permText writes permissions as ZooKeeper's own tools do.
func permText(perms int32) string {
	var b strings.Builder
	for i, c := range "rwcda" {
		if perms&(1<<i) != 0 {
			b.WriteRune(c)
		}
	}
	return b.String()
}
