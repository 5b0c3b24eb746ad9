package session

import (
	"testing"

	"github.com/go-zookeeper/zk"
)

// A log can be created where the transaction creates its first znode. If the transaction creates none, its
// first operation shows the place.
func TestALogGoesBesideTheFirstCreateOfATransactionOrBesideItsFirstOperation(t *testing.T) {
	create, set := func(p string) any { return &zk.CreateRequest{Path: p} }, func(p string) any { return &zk.SetDataRequest{Path: p} }
	check, remove := func(p string) any { return &zk.CheckVersionRequest{Path: p} }, func(p string) any { return &zk.DeleteRequest{Path: p} }
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
		if _, dir, err := (&Manager{chroot: "/root"}).CheckOps(c.ops); err != nil || dir != c.want {
			t.Errorf("%T: %q, %v; want %q", c.ops, dir, err, c.want)
		}
	}
}
