package zktest

import (
	"maps"
	"slices"
	"strings"
)

// This file carries out the requests that change no znode, and sets the watches of reads. watch.go
// sends the events of watches.

// The method `read` carries out a request that changes no znode, on the view of c's address.
func (s *Server) read(c *conn, r *Request, b []byte) ([]byte, int32) {
	v := c.at.view
	switch r.Op {
	case OpExists:
		if strings.Contains(r.Path, "\x00") {
			return b, CodeBadArguments
		}
		n := v.tree.get(r.Path)
		if n != nil && !s.existsOpen && !allowed(n.acl, permRead, c.ids) {
			return b, CodeNoAuth
		}
		if r.Watch {
			v.watches.add(c, watchKey{r.Path, false}, watchOnce)
		}
		if n == nil {
			return b, CodeNoNode
		}
		return appendStat(b, n), CodeOK
	case OpGetData, OpGetChildren, OpGetChildren2:
		return s.readNode(c, r, b)
	case OpMultiRead:
		return s.multiRead(c, r, b)
	case OpGetACL:
		return v.readACL(c, r, b)
	case OpSetWatches, OpSetWatches2:
		s.setWatches(c, r.zxid, r.watches)
		return b, CodeOK
	case OpAddWatch:
		code := s.addWatch(c, r.Path, r.kind)
		return appendInt32(b, CodeOK), code
	case OpCheckWatches:
		return b, s.findWatches(c, r.Path, r.kind, false)
	case OpRemoveWatches:
		return b, s.findWatches(c, r.Path, r.kind, true)
	case OpGetEphemerals:
		return v.readEphemerals(c, r, b), CodeOK
	case OpGetAllChildrenNumber:
		n := v.tree.get(r.Path)
		if n == nil {
			return b, CodeNoNode
		}
		if !allowed(n.acl, permRead, c.ids) {
			return b, CodeNoAuth
		}
		return appendInt32(b, int32(v.tree.descendants(r.Path))), CodeOK
	case OpWhoAmI:
		b = appendInt32(b, int32(len(c.ids)))
		for _, id := range c.ids {
			b = appendString(b, id.scheme)
			b = appendString(b, id.userName())
		}
		return b, CodeOK
	}
	return b, CodeUnimplemented
}

// readNode reads data or children. If the request asks for a watch and the client may read the
// node, readNode sets the watch.
func (s *Server) readNode(c *conn, r *Request, b []byte) ([]byte, int32) {
	v := c.at.view
	n := v.tree.get(r.Path)
	if n == nil {
		return b, CodeNoNode
	}
	if !allowed(n.acl, permRead, c.ids) {
		return b, CodeNoAuth
	}
	if r.Watch {
		v.watches.add(c, watchKey{r.Path, r.Op != OpGetData}, watchOnce)
	}
	switch r.Op {
	case OpGetData:
		b = appendBuffer(b, n.data)
		b = appendStat(b, n)
	case OpGetChildren:
		b = appendChildren(b, n)
	case OpGetChildren2:
		b = appendChildren(b, n)
		b = appendStat(b, n)
	}
	return b, CodeOK
}

// multiRead carries out several reads, each with its own result.
func (s *Server) multiRead(c *conn, r *Request, b []byte) ([]byte, int32) {
	for i := range r.Ops {
		op := &r.Ops[i]
		start := len(b)
		b = appendMultiHeader(b, op.Op, CodeOK)
		op.Watch = false // ZooKeeper ignores it here
		var code int32
		if b, code = s.readNode(c, op, b); code != CodeOK {
			b = appendMultiHeader(b[:start], opError, code)
			b = appendInt32(b, code)
		}
	}
	return appendMultiEnd(b), CodeOK
}

func (v *view) readACL(c *conn, r *Request, b []byte) ([]byte, int32) {
	n := v.tree.get(r.Path)
	if n == nil {
		return b, CodeNoNode
	}
	if !allowed(n.acl, permRead|permAdmin, c.ids) {
		return b, CodeNoAuth
	}
	list := n.acl
	if !allowed(n.acl, permAdmin, c.ids) {
		list = redact(list)
	}
	return appendStat(appendACLs(b, list), n), CodeOK
}

// readEphemerals lists the session's ephemerals whose path begins with r.Path.
func (v *view) readEphemerals(c *conn, r *Request, b []byte) []byte {
	prefix := r.Path
	if blank := strings.Trim(prefix, " \t\r\n"); blank == "" || blank == "/" {
		prefix = ""
	}
	var paths []string
	for _, path := range slices.Sorted(maps.Keys(v.tree.ephemerals[c.session.id])) {
		if strings.HasPrefix(path, prefix) {
			paths = append(paths, path)
		}
	}
	b = appendInt32(b, int32(len(paths)))
	for _, path := range paths {
		b = appendString(b, path)
	}
	return b
}
