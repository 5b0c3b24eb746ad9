package znodes

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/wire"
)

// For a session that has its own ACL, this file checks the parent znodes that another client has
// created. It refuses a parent if the parent's ACL lets other clients change the children, but the
// session's own ACL does not. Otherwise, another client could create the parent first, and then delete
// the holds in it.

func protects(m *session.Manager) bool { return !slices.Equal(m.Config.ACL, zk.WorldACL(zk.PermAll)) }

// Vet refuses a Dir if other clients may change its children. It reads the ACL once in a session.
// If the Dir is missing, Vet creates it. If the session has no ACL of its own, Vet does nothing.
func Vet(ctx context.Context, inc *session.Incarnation, dir Dir) error {
	if _, ok := of(inc).vetted.Load(dir.Path); ok || !protects(inc.Manager) || dir.Path == "/" {
		return nil
	}
	err := VetNow(ctx, inc, dir.Path)
	if session.IsNoNode(err) {
		// Created now, so that no other client can create it between this check and its use.
		err = MakeDir(ctx, inc, dir)
	}
	return err
}

// VetHere is Vet, but does not create a missing znode: its users create it.
func VetHere(ctx context.Context, inc *session.Incarnation, path string) error {
	if _, ok := of(inc).vetted.Load(path); ok {
		return nil
	}
	if err := VetNow(ctx, inc, path); !session.IsNoNode(err) {
		return err
	}
	return nil
}

// VetNow is Vet for a znode that exists. It reads the ACL even if an earlier check has passed.
func VetNow(ctx context.Context, inc *session.Incarnation, path string) error {
	of(inc).vetted.Delete(path)
	if !protects(inc.Manager) {
		return nil
	}
	acl, err := session.Retry(ctx, inc, session.Call[[]zk.ACL]{Op: wire.OpGetACL, Path: path, Take: (*wire.Scanner).ACL})
	if session.IsAnswer(err, zk.ErrNoAuth) {
		return fmt.Errorf("%w, or may be: it cannot be read at %s, which another client has created: %w", session.ErrUnprotected, inc.Manager.Bare(path), err)
	}
	if err != nil {
		return err
	}
	ids, err := identities(ctx, inc, acl)
	if err != nil {
		return err
	}
	for _, e := range acl {
		if !allows(inc.Manager, e, ids) {
			return fmt.Errorf("%w: %s, which another client has created, gives %s:%s the permissions %s; give it the Session's ACL, or delete it",
				session.ErrUnprotected, inc.Manager.Bare(path), e.Scheme, e.ID, permText(e.Perms))
		}
	}
	of(inc).vetted.Store(path, struct{}{})
	return nil
}

// The function `identities` returns the identities that this client has by SASL and by certificate, or
// nil if they cannot matter for acl. It asks a server, once in a session. A server before version 3.7
// cannot answer. Then no entry of such a scheme counts as the session's own.
func identities(ctx context.Context, inc *session.Incarnation, acl []zk.ACL) ([]zk.ACL, error) {
	if !slices.ContainsFunc(inc.Manager.Config.ACL, func(own zk.ACL) bool { return own.Scheme == "auth" }) ||
		!slices.ContainsFunc(acl, func(e zk.ACL) bool { return e.Scheme != "world" && e.Scheme != "ip" && e.Scheme != "digest" }) {
		return nil, nil
	}
	if ids := of(inc).ids.Load(); ids != nil {
		return *ids, nil
	}
	ids, err := session.Retry(ctx, inc, session.Call[[]zk.ACL]{Op: wire.OpWhoAmI, Take: func(s *wire.Scanner) (ids []zk.ACL) {
		for n := s.Int32(); n > 0 && !s.Bad; n-- {
			ids = append(ids, zk.ACL{Scheme: s.String(), ID: s.String()}) // without permissions
		}
		return ids
	}})
	if err != nil && !session.IsUnimplemented(err) {
		return nil, err
	}
	of(inc).ids.Store(&ids)
	return ids, nil
}

// The function `allows` reports whether the session's own ACL also gives all permissions that e
// gives, except the permission to read. The argument ids is the result of `identities`.
func allows(m *session.Manager, e zk.ACL, ids []zk.ACL) bool {
	var given int32
	for _, own := range m.Config.ACL {
		if sameID(m, own, e, ids) {
			given |= own.Perms
		}
	}
	return e.Perms&^zk.PermRead&^given == 0
}

// sameID reports whether e is for the same clients as `own`, an entry of the session's ACL.
func sameID(m *session.Manager, own, e zk.ACL, ids []zk.ACL) bool {
	switch {
	case own.Scheme == "world":
		return true // every client has these permissions anyway
	case own.Scheme != "auth":
		return own.Scheme == e.Scheme && (own.ID == e.ID || e.Scheme == "digest" && sameUser(own.ID, e.ID))
	case e.Scheme != "digest":
		return e.Scheme != "ip" && slices.Contains(ids, zk.ACL{Scheme: e.Scheme, ID: e.ID})
	}
	return slices.ContainsFunc(m.Config.Auths, func(a conn.Auth) bool {
		return a.Scheme == "digest" && sameUser(digestID(string(a.Credentials)), e.ID)
	})
}

// sameUser compares two ids. To a client without admin permission, servers show "user:x" instead
// of the digest of the password.
func sameUser(own, shown string) bool {
	user, _, ok := strings.Cut(own, ":")
	return own == shown || ok && shown == user+":x"
}

func digestID(userPassword string) string {
	user, _, _ := strings.Cut(userPassword, ":")
	sum := sha1.Sum([]byte(userPassword))
	return user + ":" + base64.StdEncoding.EncodeToString(sum[:])
}

// permText formats permissions as ZooKeeper's own tools do.
func permText(perms int32) string {
	var b strings.Builder
	for i, c := range "rwcda" {
		if perms&(1<<i) != 0 {
			b.WriteRune(c)
		}
	}
	return b.String()
}
