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

// Vet refuses a directory if others may change what is in it. It asks once in a
// session; if there is no directory it makes it. Without an ACL of one's own it does
// nothing.
func (inc *Incarnation) Vet(ctx context.Context, dir Dir) error {
	if _, ok := inc.vetted.Load(dir.Path); ok || !inc.Manager.protects() || dir.Path == "/" {
		return nil
	}
	err := inc.VetNow(ctx, dir.Path)
	if IsNoNode(err) {
		// Made now, so that nobody makes it between this look and its use.
		err = inc.MakeDir(ctx, dir)
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
