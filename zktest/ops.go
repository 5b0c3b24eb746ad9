package zktest

import (
	"fmt"
	"strings"
)

// This file carries out writes: it checks each write against the tree, and turns the write into a
// change. reads.go carries out reads, and tree.go applies changes.

// maxTTL is ZooKeeper's longest time to live, in milliseconds.
const maxTTL = 1<<40 - 1

// The method `handle` carries out r for c, with Server.mu held. It appends the body of the reply to
// b, and returns b and the code of the reply. If the code is not CodeOK, the caller ignores the
// body.
func (s *Server) handle(c *conn, r *Request, b []byte) ([]byte, int32) {
	if r.malformed {
		return b, CodeMarshallingError
	}
	switch r.Op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL, OpDelete, OpSetData, OpSetACL, OpCheck:
		return s.write(c, r, b)
	case OpMulti:
		return s.multi(c, r, b)
	case OpPing:
		return b, CodeOK
	case OpAuth:
		host := c.ids[0].id
		id, ok := authenticate(r.scheme, r.Data, host)
		if !ok {
			return b, CodeAuthFailed
		}
		c.addID(id)
		return b, CodeOK
	case OpSASL:
		return s.sasl(c, r.Data, b)
	case OpCloseSession:
		c.session.conn = nil
		s.endSession(c.session)
		c.at.catchUp(s)
		return b, CodeOK
	case OpSync:
		c.at.catchUp(s)
		return appendString(b, r.Path), CodeOK
	case OpReconfig:
		return b, CodeReconfigDisabled
	}
	return s.read(c, r, b)
}

// addID adds id to the identities that the client has proved.
func (c *conn) addID(id identity) {
	for _, known := range c.ids {
		if known == id {
			return
		}
	}
	c.ids = append(c.ids, id)
}

// The method `write` carries out a transaction of one operation.
func (s *Server) write(c *conn, r *Request, b []byte) ([]byte, int32) {
	x := s.begin()
	ch, code := s.leader.tree.check(c.who(), r)
	if code == CodeOK && ch.kind != changeNone {
		s.leader.tree.apply(x, &ch)
		x.changes = append(x.one[:0], ch)
	}
	s.commit(x)
	c.at.catchUp(s)
	if code == CodeOK {
		b = s.appendResult(b, r.Op, &ch)
	}
	return b, code
}

// The method `multi` carries out all operations of a transaction, or none. The code of the reply is
// always OK, and the body has the result of each operation.
func (s *Server) multi(c *conn, r *Request, b []byte) ([]byte, int32) {
	t := s.leader.tree
	x := s.begin()
	undos := make([]undo, 0, len(r.Ops))
	x.changes = make([]change, 0, len(r.Ops))
	failed, code := -1, int32(CodeOK)
	for i := range r.Ops {
		var ch change
		if ch, code = t.check(c.who(), &r.Ops[i]); code != CodeOK {
			failed = i
			break
		}
		var u undo
		if ch.kind != changeNone {
			u = t.remember(&ch)
			t.apply(x, &ch)
		}
		undos = append(undos, u)
		x.changes = append(x.changes, ch)
		// Encode the result now, before the next operation changes the node.
		b = appendMultiHeader(b, r.Ops[i].Op.resultInMulti(), 0)
		b = s.appendResult(b, r.Ops[i].Op, &ch)
	}
	if failed >= 0 {
		for i := len(undos) - 1; i >= 0; i-- {
			t.revert(&x.changes[i], undos[i])
		}
		x.changes = nil
		b = appendFailed(b[:frameStart], len(r.Ops), failed, code)
	}
	s.commit(x)
	c.at.catchUp(s)
	return appendMultiEnd(b), CodeOK
}

// resultInMulti returns the kind of op's result in the reply to a multi.
func (op Op) resultInMulti() Op {
	switch op {
	case OpCreateContainer, OpCreateTTL:
		return OpCreate2
	}
	return op
}

// appendFailed appends the results of n operations, of which one has failed. The failed operation
// gets `code`, earlier operations get OK, and later operations get RuntimeInconsistency.
func appendFailed(b []byte, n, failed int, code int32) []byte {
	for i := range n {
		result := int32(CodeOK)
		switch {
		case i == failed:
			result = code
		case i > failed:
			result = CodeRuntimeInconsistency
		}
		b = appendMultiHeader(b, opError, result)
		b = appendInt32(b, result)
	}
	return b
}

func appendMultiHeader(b []byte, op Op, code int32) []byte {
	b = appendInt32(b, int32(op))
	b = appendBool(b, false)
	return appendInt32(b, code)
}

func appendMultiEnd(b []byte) []byte {
	b = appendInt32(b, -1)
	b = appendBool(b, true)
	return appendInt32(b, -1)
}

// appendResult appends the body of the reply to a write that ch has carried out.
func (s *Server) appendResult(b []byte, op Op, ch *change) []byte {
	n := s.leader.tree.get(ch.path)
	switch op {
	case OpCreate:
		b = appendString(b, ch.path)
	case OpCreate2, OpCreateContainer, OpCreateTTL:
		b = appendString(b, ch.path)
		b = appendStat(b, n)
	case OpSetData, OpSetACL:
		b = appendStat(b, n)
	}
	return b
}

// The type `requester` is the client of a write: its session and its identities.
type requester struct {
	session int64
	ids     []identity
}

func (c *conn) who() requester { return requester{c.session.id, c.ids} }

// The method `check` returns the change for a write, or the code of the refusal.
func (t *tree) check(who requester, r *Request) (change, int32) {
	switch r.Op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
		return t.checkCreate(who, r)
	case OpDelete:
		return t.checkDelete(who, r)
	}
	n := t.nodes[r.Path]
	if n == nil && !validPath(r.Path) { // the path of an existing node is valid
		return change{}, CodeBadArguments
	}
	ch := change{path: r.Path}
	switch r.Op {
	case OpSetData:
		if n == nil {
			return ch, CodeNoNode
		}
		if !allowed(n.acl, permWrite, who.ids) {
			return ch, CodeNoAuth
		}
		ch.kind, ch.data, ch.version = changeData, r.Data, n.version+1
		return ch, checkVersion(r.Version, n.version)
	case OpSetACL:
		list, ok := fixACL(r.acl, who.ids)
		if !ok {
			return ch, CodeInvalidACL
		}
		if n == nil {
			return ch, CodeNoNode
		}
		if !allowed(n.acl, permAdmin, who.ids) {
			return ch, CodeNoAuth
		}
		ch.kind, ch.acl, ch.version = changeACL, list, n.aversion+1
		return ch, checkVersion(r.Version, n.aversion)
	default: // OpCheck
		if n == nil {
			return ch, CodeNoNode
		}
		if !allowed(n.acl, permRead, who.ids) {
			return ch, CodeNoAuth
		}
		return ch, checkVersion(r.Version, n.version)
	}
}

// checkVersion compares the version in a request with the version of the node.
func checkVersion(want, have int32) int32 {
	if want != -1 && want != have {
		return CodeBadVersion
	}
	return CodeOK
}

func (t *tree) checkCreate(who requester, r *Request) (change, int32) {
	ch := change{kind: changeCreate, path: r.Path, data: r.Data}
	if r.Flags < 0 || r.Flags > lastFlag {
		return ch, CodeBadArguments
	}
	// The flags say whether the node has a TTL. If the request has a field for a TTL, r.ttl is not
	// negative. The flags and this field must agree.
	isTTL := r.Flags >= flagTTL
	if isTTL != (r.ttl >= 0) || isTTL && (r.ttl == 0 || r.ttl > maxTTL) {
		return ch, CodeBadArguments
	}
	if !strings.Contains(r.Path, "/") || strings.Contains(r.Path, "\x00") {
		return ch, CodeBadArguments
	}
	list, ok := fixACL(r.acl, who.ids)
	if !ok {
		return ch, CodeInvalidACL
	}
	parent := t.get(parentOf(r.Path))
	if parent == nil {
		return ch, CodeNoNode
	}
	if !allowed(parent.acl, permCreate, who.ids) {
		return ch, CodeNoAuth
	}
	sequential := r.Flags == flagTTLSequence || !isTTL && r.Flags&flagSequence != 0
	if sequential {
		ch.path = fmt.Sprintf("%s%010d", r.Path, parent.cversion)
	}
	if t.nodes[ch.path] != nil {
		return ch, CodeNodeExists
	}
	// The parent exists, so its path is valid and only the name needs a check. But the path
	// "//name" also has the parent "/".
	if above, name := split(ch.path); !validName(name) || above == "/" && len(ch.path) != 1+len(name) {
		return ch, CodeBadArguments
	}
	if parent.owner != 0 {
		return ch, CodeNoChildrenForEphemerals
	}
	ch.acl = list
	ch.version = parent.cversion + 1 // wraps from 2^31-1 to -2^31
	switch {
	case r.Op == OpCreateContainer:
		ch.container = true
	case isTTL:
		ch.ttl = r.ttl
	case r.Flags&flagEphemeral != 0:
		ch.owner = who.session
	}
	return ch, CodeOK
}

func (t *tree) checkDelete(who requester, r *Request) (change, int32) {
	ch := change{kind: changeDelete, path: r.Path}
	if !strings.Contains(r.Path, "/") || strings.Contains(r.Path, "\x00") || isSpecial(r.Path) {
		return ch, CodeBadArguments
	}
	parent := t.get(parentOf(r.Path))
	if parent == nil {
		return ch, CodeNoNode
	}
	if !allowed(parent.acl, permDelete, who.ids) {
		return ch, CodeNoAuth
	}
	n := t.get(r.Path)
	if n == nil {
		return ch, CodeNoNode
	}
	if code := checkVersion(r.Version, n.version); code != CodeOK {
		return ch, code
	}
	if len(n.children) > 0 {
		return ch, CodeNotEmpty
	}
	ch.acl = n.acl
	return ch, CodeOK
}

// isSpecial reports whether the node at path can never be deleted.
func isSpecial(path string) bool {
	switch path {
	case "/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config":
		return true
	}
	return false
}

// SetSequence sets the number of the next sequential node below path. Without SetSequence, that
// number is the number of children that path has ever had. After math.MaxInt32, the following node
// gets -2147483648. SetSequence panics if there is no node at path.
func (s *Server) SetSequence(path string, next int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leader.tree.get(path) == nil {
		panic("zktest: SetSequence: no node at " + path)
	}
	if s.member != nil {
		s.member.e.setSequence(path, next)
		return
	}
	x := s.begin()
	ch := change{kind: changeSequence, path: path, version: next}
	s.leader.tree.apply(x, &ch)
	x.changes = []change{ch}
	s.commit(x)
}
