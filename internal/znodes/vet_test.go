package znodes

import (
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
)

// An entry of a foreign ACL must give nobody more than the session's own ACL gives.
func TestAnEntryThatGivesMoreThanTheSessionsOwnACLIsNotAllowed(t *testing.T) {
	entry := func(perms int32, scheme, id string) zk.ACL { return zk.ACL{Perms: perms, Scheme: scheme, ID: id} }
	const change = zk.PermCreate | zk.PermDelete
	mine, ids := digestID("me:secret"), []zk.ACL{{Scheme: "ip", ID: "10.0.0.1"}, {Scheme: "x509", ID: "CN=me"}}
	world, digest, auth := entry(change, "world", "anyone"), entry(zk.PermAll, "digest", mine), entry(zk.PermAll, "auth", "")
	for _, c := range []struct {
		own  []zk.ACL
		e    zk.ACL
		want bool
	}{
		{[]zk.ACL{world}, entry(change, "ip", "10.0.0.1"), true}, // everyone may do that
		{[]zk.ACL{world}, entry(zk.PermWrite, "ip", "10.0.0.1"), false},
		{[]zk.ACL{world}, entry(change|zk.PermRead, "digest", mine), true},
		{[]zk.ACL{digest}, entry(zk.PermAll, "digest", mine), true},
		{[]zk.ACL{digest}, entry(zk.PermAll, "digest", "me:x"), true}, // as servers may show it
		{[]zk.ACL{digest}, entry(zk.PermAll, "digest", "you:x"), false},
		{[]zk.ACL{digest}, entry(zk.PermRead, "world", "anyone"), true},
		{[]zk.ACL{digest}, entry(zk.PermCreate, "world", "anyone"), false},
		{[]zk.ACL{world, digest}, entry(zk.PermAll, "digest", mine), true},
		{[]zk.ACL{auth}, entry(zk.PermAll, "digest", mine), true},
		{[]zk.ACL{auth}, entry(zk.PermAll, "x509", "CN=me"), true},
		{[]zk.ACL{auth}, entry(zk.PermAll, "x509", "CN=you"), false},
		{[]zk.ACL{auth}, entry(zk.PermAll, "ip", "10.0.0.1"), false}, // other clients may have this address, too
		{[]zk.ACL{auth}, entry(zk.PermAll, "world", "anyone"), false},
	} {
		m := &session.Manager{Config: session.Config{ACL: c.own, Auths: []conn.Auth{{Scheme: "digest", Credentials: []byte("me:secret")}}}}
		if got := allows(m, c.e, ids); got != c.want {
			t.Errorf("%v beside %v: allowed %v, want %v", c.e, c.own, got, c.want)
		}
	}
}
