package zktest

import (
	"maps"
	"strings"
	"time"
)

// This file has the tree of znodes and applies changes to it, which earlier
// checks have permitted; see ops.go.

// A node is one znode.
type node struct {
	data     []byte // never changed in place
	acl      []acl  // never changed in place
	children map[string]struct{}

	czxid, mzxid, pzxid int64
	ctime, mtime        int64 // milliseconds since 1970
	version, aversion   int32
	cversion            int32 // how many children were ever created: the next sequence number

	owner     int64 // session of an ephemeral, else 0
	ttl       int64 // milliseconds, of a node with a TTL, else 0
	container bool
}

// statCversion returns the cversion that clients see. ZooKeeper stores the
// number of children ever created and shows the number of changes, creations
// and deletions together.
func (n *node) statCversion() int32 {
	return n.cversion*2 - int32(len(n.children))
}

// A tree is one copy of all znodes. It belongs to a [view].
type tree struct {
	nodes      map[string]*node
	ephemerals map[int64]map[string]struct{} // session to paths
	reapable   map[string]struct{}           // paths of containers and of nodes with a TTL
	zxid       int64                         // of the last transaction applied
}

func newTree() *tree {
	t := &tree{
		nodes:      map[string]*node{"/": {acl: openACL, data: []byte{}}},
		ephemerals: map[int64]map[string]struct{}{},
		reapable:   map[string]struct{}{},
	}
	// A new ZooKeeper has these znodes, which it does not count as created.
	for _, path := range []string{"/zookeeper", "/zookeeper/config", "/zookeeper/quota"} {
		t.nodes[path] = &node{acl: openACL, data: []byte{}}
		parent, name := split(path)
		t.nodes[parent].addChild(name)
	}
	t.nodes["/zookeeper/config"].acl = []acl{{permRead, anyone}}
	return t
}

// get returns the node at path, or nil. As in ZooKeeper the empty path is the root.
func (t *tree) get(path string) *node {
	if path == "" {
		path = "/"
	}
	return t.nodes[path]
}

// aclOf returns the ACL of the node at path, or nil, which allows everything.
func (t *tree) aclOf(path string) []acl {
	if n := t.get(path); n != nil {
		return n.acl
	}
	return nil
}

// deletion returns the change that deletes the node at path.
func (t *tree) deletion(path string) change {
	return change{kind: changeDelete, path: path, acl: t.nodes[path].acl}
}

func (n *node) addChild(name string) {
	if n.children == nil {
		n.children = map[string]struct{}{}
	}
	n.children[name] = struct{}{}
}

// clone returns a copy of t that changes to t leave alone.
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

// split returns the parent and name of an absolute path other than "/".
func split(path string) (parent, name string) {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return "/", path[i+1:]
	}
	return path[:i], path[i+1:]
}

// parentOf returns the path of path's parent.
func parentOf(path string) string {
	parent, _ := split(path)
	return parent
}

// validPath reports whether path may name a znode.
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

// validName reports whether a znode may have this name.
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

// A change is one step of a transaction, with nothing left to decide: two
// equal trees are equal after it too.
type change struct {
	kind      changeKind
	path      string
	data      []byte
	acl       []acl // of a delete, the former ACL
	version   int32 // the new version of data or ACL; of a create, the parent's new cversion
	owner     int64
	ttl       int64
	container bool
}

// A txn is one transaction: all of its changes, or, when it failed, none.
type txn struct {
	zxid    int64
	time    int64 // milliseconds since 1970
	changes []change
	one     [1]change // storage for changes, while there is one

	// An ensemble agrees upon a transaction before it applies it.
	code   int32      // why it failed
	failed int        // of a multi that failed, the operation to blame
	opened *session   // the session that it begins: id, password and timeout
	closed int64      // the session that it ends, or 0
	origin *pending   // the request that it carries out, or nil
	ahead  *pending   // the session's requests at the leader itself wait for this one, or nil
	acks   uint64     // bit i: member i has logged it
	at     time.Time  // when it was proposed
	syncs  []*pending // to be answered once it is committed
}

// apply makes one change of x.
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
		delete(p.children, name)
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

// insert puts n at path and into the indexes.
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

// remove takes the node at path out of the map and the indexes.
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

// An undo holds what one change overwrote.
type undo struct {
	gone *node // the node that a deletion removed

	// Of the changed node; of a create or a delete, of its parent.
	data         []byte
	acl          []acl
	mzxid, pzxid int64
	mtime        int64
	version      int32 // of what has changed
}

// remember returns the undo of ch. Call it before ch is applied.
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

// revert undoes ch. Revert the latest change first.
func (t *tree) revert(ch *change, u undo) {
	n := t.nodes[ch.path]
	switch ch.kind {
	case changeCreate:
		parent, name := split(ch.path)
		p := t.nodes[parent]
		delete(p.children, name)
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

// descendants returns how many nodes lie below path.
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
