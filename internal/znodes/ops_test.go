package znodes

import (
	"crypto/tls"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/sasl"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// A log can be created where the transaction creates its first znode. If the transaction creates none, its
// first operation shows the place.
func TestALogGoesBesideTheFirstCreateOfATransactionOrBesideItsFirstOperation(t *testing.T) {
	create, set := func(p string) any { return &zk.CreateRequest{Path: p} }, func(p string) any { return &zk.SetDataRequest{Path: p} }
	check, remove := func(p string) any { return &zk.CheckVersionRequest{Path: p} }, func(p string) any { return &zk.DeleteRequest{Path: p} }
	m := rooted("/root")
	for _, c := range []struct {
		want string
		ops  []any
	}{
		{"/root/a", []any{set("/a/x")}},
		{"/root/a", []any{remove("/a/x"), set("/b/x"), check("/c/x")}},
		{"/root/b", []any{check("/a/x"), create("/b/x"), set("/c/x"), create("/d/x")}},
		{"/root/a", []any{create("/a/x"), remove("/b/x"), check("/c/x")}},
		{"/root", []any{create("/a/x"), remove("/a")}}, // no log can be created in a znode that is deleted
	} {
		if _, dir, err := CheckOps(m, c.ops); err != nil || dir != c.want {
			t.Errorf("%T: %q, %v; want %q", c.ops, dir, err, c.want)
		}
	}
}

// The znode that a transaction has created is deleted. One read shows that, however many older znodes there are.
func TestTheRecallOfADeletedZnodeDoesNotReadAllOlderOnes(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		harness.Must(t, MakeDir(t.Context(), inc, Dir{Path: "/d"}))
		ops := []any{&zk.CreateRequest{Path: "/d/x-", Flags: zk.FlagSequence, Acl: zk.WorldACL(zk.PermAll)}}
		var path string
		for range 20 {
			rs, err := Multi(t.Context(), inc, ops...)
			harness.Must(t, err)
			path = rs[0].String
		}
		stat, err := inc.Exists(t.Context(), path)
		harness.Must(t, err)
		if rs := Recall(t.Context(), inc, ops, stat.Czxid); rs[0].String != path {
			t.Errorf("%q, want %q", rs[0].String, path)
		}
		harness.Must(t, RemoveNow(t.Context(), inc, path))
		before := s.Requests.Load()
		rs := Recall(t.Context(), inc, ops, stat.Czxid)
		if n := s.Requests.Load() - before; rs[0].String != "" || n != 2 {
			t.Errorf("%q after %d requests, want nothing after a listing and a read", rs[0].String, n)
		}
	})
}

// Of two znodes that one transaction has created with the same prefix, another client deletes the second. Recall does
// not take the first for it.
func TestTheRecallOfTwoZnodesOfWhichOneIsDeletedNamesNeither(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		inc := live(t, open(t, srv))
		harness.Must(t, MakeDir(t.Context(), inc, Dir{Path: "/d"}))
		op := &zk.CreateRequest{Path: "/d/x-", Flags: zk.FlagSequence, Acl: zk.WorldACL(zk.PermAll)}
		made, err := Multi(t.Context(), inc, op, op)
		harness.Must(t, err)
		stat, err := inc.Exists(t.Context(), made[0].String)
		harness.Must(t, err)
		recall := func() []zk.MultiResponse { return Recall(t.Context(), inc, []any{op, op}, stat.Czxid) }
		if rs := recall(); rs[0].String != made[0].String || rs[1].String != made[1].String {
			t.Errorf("%+v, want %+v", rs, made)
		}
		harness.Must(t, RemoveNow(t.Context(), inc, made[1].String))
		if rs := recall(); rs[0].String != "" || rs[1].String != "" {
			t.Errorf("%+v, and the second is deleted", rs)
		}
	})
}

// The servers replace an entry of the scheme auth by an entry for each identity of the client.
func TestTheGrowthOfAnACLCountsEveryIdentityOfTheClient(t *testing.T) {
	all := session.Config{
		Auths: []conn.Auth{{Scheme: "digest", Credentials: []byte("me:secret")}},
		TLS:   &tls.Config{Certificates: make([]tls.Certificate, 1)},
		SASL:  new(sasl.Client),
	}
	for want, cfg := range map[int]session.Config{
		0:               {},
		64 + 15:         {Auths: all.Auths},
		512:             {TLS: all.TLS},
		512 + 512:       {TLS: all.TLS, SASL: all.SASL},
		64 + 15 + 2*512: all,
	} {
		m := &session.Manager{Config: cfg}
		if n := growthOfACL(m, zk.AuthACL(zk.PermAll)); n != want {
			t.Errorf("%d, want %d", n, want)
		}
		if n := growthOfACL(m, zk.WorldACL(zk.PermAll)); n != 0 {
			t.Errorf("an ACL without the scheme auth grows by %d", n)
		}
	}
}
