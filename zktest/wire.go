package zktest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
)

// This file encodes and decodes the fields of packets. proto.go lists the fields of each packet.

// The type `decoder` reads the fields of one packet. If a field does not fit, the decoder sets
// `bad`, and every later field reads as zero. So callers check `bad` once, at the end. The decoder
// does not trust a length or a count: it allocates no memory for bytes that are not in the packet.
type decoder struct {
	b     []byte
	bad   bool
	spare *[]Request // a buffer for the operations of a multi
}

// The method `take` returns the next n bytes, as a slice of the packet.
func (d *decoder) take(n int) []byte {
	if d.bad || n < 0 || n > len(d.b) {
		d.bad = true
		return nil
	}
	p := d.b[:n:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) bool() bool {
	p := d.take(1)
	return p != nil && p[0] != 0
}

func (d *decoder) int32() int32 {
	p := d.take(4)
	if p == nil {
		return 0
	}
	return int32(binary.BigEndian.Uint32(p))
}

func (d *decoder) int64() int64 {
	p := d.take(8)
	if p == nil {
		return 0
	}
	return int64(binary.BigEndian.Uint64(p))
}

// The method `buffer` reads a byte buffer, and returns a copy. For the length -1 it returns nil,
// because ZooKeeper distinguishes null from empty.
func (d *decoder) buffer() []byte { return bytes.Clone(d.part()) }

// The method `part` is `buffer`, but returns a slice of the packet.
func (d *decoder) part() []byte {
	n := d.int32()
	if n == -1 {
		return nil
	}
	p := d.take(int(n))
	if p == nil && !d.bad {
		p = []byte{}
	}
	return p
}

func (d *decoder) string() string {
	return string(d.part())
}

// The method `count` reads the length of a vector whose elements take at least `size` bytes each.
// If the rest of the packet is too short for the vector, the method sets `bad`.
func (d *decoder) count(size int) int {
	n := int(d.int32())
	if n == -1 {
		return 0
	}
	if n < 0 || n > len(d.b)/size {
		d.bad = true
		return 0
	}
	return n
}

func (d *decoder) strings() []string {
	n := d.count(4)
	if n == 0 {
		return nil
	}
	v := make([]string, 0, n)
	for range n {
		v = append(v, d.string())
	}
	return v
}

func (d *decoder) acls() []acl {
	if !d.bad && bytes.HasPrefix(d.b, openACLBytes) { // the most common ACL
		d.b = d.b[len(openACLBytes):]
		return openACL
	}
	n := d.count(12)
	if n == 0 {
		return nil
	}
	v := make([]acl, 0, n)
	for range n {
		perms := d.int32()
		scheme := d.string()
		v = append(v, acl{perms, identity{scheme, d.string()}})
	}
	return v
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendInt32(b []byte, v int32) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(v))
}

func appendInt64(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(v))
}

func appendString(b []byte, s string) []byte {
	return append(appendInt32(b, int32(len(s))), s...)
}

func appendBuffer(b, p []byte) []byte {
	if p == nil {
		return appendInt32(b, -1)
	}
	return append(appendInt32(b, int32(len(p))), p...)
}

func appendACLs(b []byte, list []acl) []byte {
	b = appendInt32(b, int32(len(list)))
	for _, a := range list {
		b = appendInt32(b, a.perms)
		b = appendString(b, a.id.scheme)
		b = appendString(b, a.id.id)
	}
	return b
}

func appendStat(b []byte, n *node) []byte {
	b = appendInt64(b, n.czxid)
	b = appendInt64(b, n.mzxid)
	b = appendInt64(b, n.ctime)
	b = appendInt64(b, n.mtime)
	b = appendInt32(b, n.version)
	b = appendInt32(b, n.statCversion())
	b = appendInt32(b, n.aversion)
	b = appendInt64(b, n.owner)
	b = appendInt32(b, int32(len(n.data)))
	b = appendInt32(b, int32(len(n.children)))
	return appendInt64(b, n.pzxid)
}

func appendChildren(b []byte, n *node) []byte {
	b = appendInt32(b, int32(len(n.children)))
	for _, name := range n.listing() {
		b = appendString(b, name)
	}
	return b
}

// The method `listing` returns the names of the children in the order of a hash, as ZooKeeper does.
// The order looks random, so that clients do not rely on it, but equal trees have the same order.
func (n *node) listing() []string {
	if n.listed != nil {
		return n.listed
	}
	type child struct {
		hash uint64
		name string
	}
	children := make([]child, 0, len(n.children))
	for name := range n.children {
		h := uint64(14695981039346656037) // FNV-1a
		for i := range len(name) {
			h = (h ^ uint64(name[i])) * 1099511628211
		}
		children = append(children, child{h ^ h>>32, name})
	}
	slices.SortFunc(children, func(a, b child) int {
		if a.hash != b.hash {
			return cmp.Compare(a.hash, b.hash)
		}
		return strings.Compare(a.name, b.name)
	})
	names := make([]string, len(children))
	for i, c := range children {
		names[i] = c.name
	}
	n.listed = names
	return names
}

// frameStart is the size of a packet's length and reply header.
const frameStart = 4 + 4 + 8 + 4

// startFrame appends space for the length and the header to b.
func startFrame(b []byte) []byte {
	var room [frameStart]byte
	return append(b, room[:]...)
}

// finishFrame writes the length and the header of the packet b.
func finishFrame(b []byte, xid int32, zxid int64, code int32) {
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	binary.BigEndian.PutUint32(b[4:], uint32(xid))
	binary.BigEndian.PutUint64(b[8:], uint64(zxid))
	binary.BigEndian.PutUint32(b[16:], uint32(code))
}
