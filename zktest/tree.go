package zktest

import (
	"maps"
	"strings"
	"time"
)

// This file has the tree of znodes, and applies changes to the tree. ops.go checks whether a change
// is permitted.

// The type `node` is one znode.
type node struct {
	data     []byte // never changed in place
	acl      []acl  // never changed in place
	children map[string]struct{}
	listed   []string // the result of `listing`, or nil after a change of `children`

	czxid, mzxid, pzxid int64
	ctime, mtime        int64 // milliseconds since 1970
	version, aversion   int32
	cversion            int32 // the number of children ever created, which is the next sequence number

	owner     int64 // the session of an ephemeral, otherwise 0
	ttl       int64 // the time to live in milliseconds, or 0
	container bool
}

// statCversion returns the cversion that clients see: the number of creations and deletions of
// children together. As in ZooKeeper, a node stores only the number of creations.
func (n *node) statCversion() int32 {
	return n.cversion*2 - int32(len(n.children))
}

// The type `tree` is one copy of all znodes. It belongs to a [view].
type tree struct {
	nodes      map[string]*node
	ephemerals map[int64]map[string]struct{} // by session: the paths of its ephemerals
	reapable   map[string]struct{}           // the paths of containers and of nodes with a TTL
	zxid       int64                         // the zxid of the last applied transaction
}

func newTree() *tree {
	t := &tree{
		nodes:      map[string]*node{"/": {acl: openACL, data: []byte{}}},
		ephemerals: map[int64]map[string]struct{}{},
		reapable:   map[string]struct{}{},
	}
	// A new ZooKeeper server has these znodes. The root does not count them as created children.
	for _, path := range []string{"/zookeeper", "/zookeeper/config", "/zookeeper/quota"} {
		t.nodes[path] = &node{acl: openACL, data: []byte{}}
		parent, name := split(path)
		t.nodes[parent].addChild(name)
	}
	t.nodes["/zookeeper/config"].acl = []acl{{permRead, anyone}}
	return t
}

// The method `get` returns the node at path, or nil. As in ZooKeeper, the empty path is the root.
func (t *tree) get(path string) *node {
	if path == "" {
		path = "/"
	}
	return t.nodes[path]
}

// aclOf returns the ACL of the node at path, or nil if there is no node. A nil ACL allows
// everything.
func (t *tree) aclOf(path string) []acl {
	if n := t.get(path); n != nil {
		return n.acl
	}
	return nil
}

// The method `deletion` returns the change that deletes the node at path.
func (t *tree) deletion(path string) change {
	return change{kind: changeDelete, path: path, acl: t.nodes[path].acl}
}

func (n *node) addChild(name string) {
	if n.children == nil {
		n.children = map[string]struct{}{}
	}
	n.children[name] = struct{}{}
	n.listed = nil
}

func (n *node) removeChild(name string) {
	delete(n.children, name)
	n.listed = nil
}

// The method `clone` returns a copy of t that later changes of t do not affect.
func (t *tree) clone() *tree {
	c := &tree{
		nodes:      make(map[string]*node, len(t.nodes)),
		ephemerals: make(map[int64]map[string]struct{}, len(t.ephemerals)),
		reapable:   maps.Clone(t.reapable),
		zxid:       t.zxid,
	}
	for path, n := range t.nodes {
		copied := *n
		copied.children = maps.Clone(n.children)
		c.nodes[path] = &copied
	}
	for session, paths := range t.ephemerals {
		c.ephemerals[session] = maps.Clone(paths)
	}
	return c
}

// The function `split` returns the parent and name of an absolute path other than "/".
func split(path string) (parent, name string) {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return "/", path[i+1:]
	}
	return path[:i], path[i+1:]
}

// parentOf returns the path of the parent.
func parentOf(path string) string {
	parent, _ := split(path)
	return parent
}

// validPath reports whether `path` is a valid path of a znode.
func validPath(path string) bool {
	if path == "/" {
		return true
	}
	if path == "" || path[0] != '/' || path[len(path)-1] == '/' {
		return false
	}
	for name := range strings.SplitSeq(path[1:], "/") {
		if !validName(name) {
			return false
		}
	}
	return true
}

// validName reports whether `name` is a valid name of a znode.
func validName(name string) bool {
	if name == "" || name == "." || name == ".." {
		return false
	}
	for _, r := range name {
		if r <= 0x1f || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0 {
			return false
		}
	}
	return true
}

// A changeKind is the kind of a change.
type changeKind int8

const (
	changeNone changeKind = iota
	changeCreate
	changeDelete
	changeData
	changeACL
	changeSequence
)

// The type `change` is one step of a transaction. Its effect depends only on the change and the
// tree, so equal trees remain equal.
type change struct {
	kind      changeKind
	path      string
	data      []byte
	acl       []acl // of a deletion: the ACL of the deleted node
	version   int32 // the new version of the data or ACL; of a creation: the new cversion of the parent
	owner     int64
	ttl       int64
	container bool
}

// The type `txn` is one transaction. A failed transaction has no changes.
type txn struct {
	zxid    int64
	time    int64 // milliseconds since 1970
	changes []change
	one     [1]change // the storage of `changes` if there is only one change

	// Only an ensemble uses these fields: it agrees on a transaction before it applies the transaction.
	code   int32      // the reason for the failure, or CodeOK
	failed int        // the index of the failed operation of a multi
	opened *session   // the session that the transaction begins, or nil
	closed int64      // the session that the transaction ends, or 0
	origin *pending   // the request that the transaction carries out, or nil
	ahead  *pending   // the place of `origin` in the leader's queue for the session, if `origin` comes through a follower; otherwise nil
	acks   uint64     // bit i is set if member i has logged the transaction
	at     time.Time  // the time of the proposal
	syncs  []*pending // the syncs that the leader answers after the commit
}

// The method `apply` makes the change ch of x.
func (t *tree) apply(x *txn, ch *change) {
	switch ch.kind {
	case changeCreate:
		n := &node{
			data: ch.data, acl: ch.acl,
			czxid: x.zxid, mzxid: x.zxid, pzxid: x.zxid, ctime: x.time, mtime: x.time,
			owner: ch.owner, ttl: ch.ttl, container: ch.container,
		}
		parent, name := split(ch.path)
		p := t.nodes[parent]
		p.addChild(name)
		p.cversion = ch.version
		p.pzxid = x.zxid
		t.insert(ch.path, n)
	case changeDelete:
		parent, name := split(ch.path)
		p := t.nodes[parent]
		p.removeChild(name)
		p.pzxid = x.zxid
		t.remove(ch.path)
	case changeData:
		n := t.nodes[ch.path]
		n.data, n.version, n.mzxid, n.mtime = ch.data, ch.version, x.zxid, x.time
	case changeACL:
		n := t.nodes[ch.path]
		n.acl, n.aversion = ch.acl, ch.version
	case changeSequence:
		t.nodes[ch.path].cversion = ch.version
	}
}

// The method `insert` adds the node n at path to the map and to the indexes.
func (t *tree) insert(path string, n *node) {
	t.nodes[path] = n
	if n.owner != 0 {
		paths := t.ephemerals[n.owner]
		if paths == nil {
			paths = map[string]struct{}{}
			t.ephemerals[n.owner] = paths
		}
		paths[path] = struct{}{}
	}
	if n.container || n.ttl > 0 {
		t.reapable[path] = struct{}{}
	}
}

// The method `remove` removes the node at path from the map and from the indexes.
func (t *tree) remove(path string) {
	n := t.nodes[path]
	delete(t.nodes, path)
	delete(t.reapable, path)
	if n.owner != 0 {
		delete(t.ephemerals[n.owner], path)
		if len(t.ephemerals[n.owner]) == 0 {
			delete(t.ephemerals, n.owner)
		}
	}
}

// The type `undo` has the old values that a change overwrites.
type undo struct {
	gone *node // the deleted node

	// These are values of the changed node or, for a creation or a deletion, of its parent.
	data         []byte
	acl          []acl
	mzxid, pzxid int64
	mtime        int64
	version      int32 // the old version that the change replaces
}

// The method `remember` returns the undo of ch. The caller applies ch after this call.
func (t *tree) remember(ch *change) undo {
	n := t.nodes[ch.path]
	switch ch.kind {
	case changeCreate:
		p := t.nodes[parentOf(ch.path)]
		return undo{pzxid: p.pzxid, version: p.cversion}
	case changeDelete:
		return undo{gone: n, pzxid: t.nodes[parentOf(ch.path)].pzxid}
	case changeData:
		return undo{data: n.data, mzxid: n.mzxid, mtime: n.mtime, version: n.version}
	case changeACL:
		return undo{acl: n.acl, version: n.aversion}
	case changeSequence:
		return undo{version: n.cversion}
	}
	return undo{}
}

// The method `revert` undoes ch. The caller must revert the latest change first.
func (t *tree) revert(ch *change, u undo) {
	n := t.nodes[ch.path]
	switch ch.kind {
	case changeCreate:
		parent, name := split(ch.path)
		p := t.nodes[parent]
		p.removeChild(name)
		p.cversion, p.pzxid = u.version, u.pzxid
		t.remove(ch.path)
	case changeDelete:
		parent, name := split(ch.path)
		p := t.nodes[parent]
		p.addChild(name)
		p.pzxid = u.pzxid
		t.insert(ch.path, u.gone)
	case changeData:
		n.data, n.mzxid, n.mtime, n.version = u.data, u.mzxid, u.mtime, u.version
	case changeACL:
		n.acl, n.aversion = u.acl, u.version
	case changeSequence:
		n.cversion = u.version
	}
}

// The method `descendants` returns the number of nodes below path.
func (t *tree) descendants(path string) int {
	if path == "/" {
		return len(t.nodes) - 1
	}
	n := t.get(path)
	if n == nil {
		return 0
	}
	count := len(n.children)
	for name := range n.children {
		count += t.descendants(path + "/" + name)
	}
	return count
}
