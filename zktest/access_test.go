package zktest

import (
	"slices"
	"testing"
)

// Since 3.8.4 and 3.9.2, exists needs the permission to read. A refused exists leaves no watch.
func TestExistsNeedsThePermissionToRead(t *testing.T) {
	s := Start(t)
	owner, other := rawDial(t, s), rawDial(t, s)
	for _, c := range []*rawClient{owner, other} {
		if err := c.handshake(20000); err != nil {
			t.Fatal(err)
		}
	}
	owner.call(OpAuth, authBody("digest", "u:p"))
	wantCode(t, "create", owner.call(OpCreate, createBody("/n", "", []acl{{permAll, identity{"auth", ""}}}, 0)), CodeOK)
	wantCode(t, "the owner's exists", owner.call(OpExists, watchBody("/n", false)), CodeOK)
	wantCode(t, "another's exists", other.call(OpExists, watchBody("/n", true)), CodeNoAuth)
	wantCode(t, "exists of a missing znode", other.call(OpExists, watchBody("/m", true)), CodeNoNode)
	if got := s.Watches(other.id); !slices.Equal(got, []Watch{{Path: "/m"}}) {
		t.Errorf("watches %v", got)
	}
}

// ZooKeeper ignores the watch flags within a multiRead.
func TestAMultiReadSetsNoWatch(t *testing.T) {
	s := Start(t)
	c := rawDial(t, s)
	if err := c.handshake(20000); err != nil {
		t.Fatal(err)
	}
	body := multiBody(multiOp(OpGetData, watchBody("/", true)), multiOp(OpGetChildren, watchBody("/", true)))
	wantCode(t, "multiRead", c.call(OpMultiRead, body), CodeOK)
	if got := s.Watches(c.id); len(got) > 0 {
		t.Errorf("watches %v", got)
	}
}

// The expected lists are those that a ZooKeeper 3.8.0 stored. The list nil means InvalidACL.
func TestAnACLIsStoredAsByARealServer(t *testing.T) {
	me, _ := authenticate("digest", []byte("u:p"), "")
	auth, digest := identity{"auth", ""}, func(id string) []acl { return []acl{{permAll, identity{"digest", id}}} }
	for _, c := range []struct{ list, want []acl }{
		{[]acl{{permAll, auth}, {permAll, me}}, []acl{{permAll, me}, {permAll, me}}},
		{[]acl{{permAll, auth}, {permAll, auth}}, []acl{{permAll, me}}},
		{[]acl{{permAll, auth}, {permRead, me}}, []acl{{permAll, me}, {permRead, me}}},
		{digest("u:"), nil},
		{digest(":h"), digest(":h")},
		{digest("u:h:"), digest("u:h:")},
		{digest("u:h:x"), nil},
		{digest(""), nil},
		{digest(":"), nil},
	} {
		got, ok := fixACL(c.list, []identity{{"ip", "127.0.0.1"}, me})
		if ok != (c.want != nil) || ok && !slices.Equal(got, c.want) {
			t.Errorf("%v is stored as %v, %v; want %v", c.list, got, ok, c.want)
		}
	}
}
