package zktest

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// This file prints the state of a server for people. The format may change, so only tests of this
// module may parse the output.

// Dump writes the tree, the sessions and the watches to w, for the log of a
// test that failed or hangs. The format is for people and may change.
func (s *Server) Dump(w io.Writer) {
	b := bufio.NewWriter(w)
	defer b.Flush()
	s.mu.Lock()
	text := s.dump()
	s.mu.Unlock()
	_, _ = b.WriteString(text) // after the unlock, because w may be slow
}

// The method `dump` returns the text that Dump writes. Server.mu is held.
func (s *Server) dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "zktest server, zxid %d", s.leader.tree.zxid)
	if s.stopped {
		b.WriteString(", stopped")
	}
	b.WriteString("\n")
	for _, e := range s.endpoints {
		fmt.Fprintf(&b, "address %s", e.addr)
		if !e.up {
			b.WriteString(" down")
		}
		if e.lag > 0 {
			fmt.Fprintf(&b, " lags by %d transactions", len(e.backlog))
		}
		b.WriteString("\n")
	}
	s.dumpSessions(&b)
	s.dumpConns(&b)
	s.dumpTree(&b)
	return b.String()
}

func (s *Server) dumpSessions(b *strings.Builder) {
	fmt.Fprintf(b, "sessions: %d\n", len(s.sessions))
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		x := s.sessions[id]
		fmt.Fprintf(b, "  %#x timeout %v", id, x.granted)
		if s.member == nil {
			fmt.Fprintf(b, ", expires in %v", time.Until(x.deadline).Round(time.Millisecond))
		}
		if s.partitions[id] != nil {
			b.WriteString(", partitioned")
		}
		if x.conn == nil {
			b.WriteString(", not connected")
		}
		fmt.Fprintf(b, ", %d ephemerals\n", len(s.leader.tree.ephemerals[id]))
	}
}

func (s *Server) dumpConns(b *strings.Builder) {
	fmt.Fprintf(b, "connections: %d\n", len(s.conns))
	conns := slices.SortedFunc(maps.Keys(s.conns), func(a, b *conn) int {
		return cmp.Or(a.opened.Compare(b.opened), strings.Compare(a.remote, b.remote))
	})
	for _, c := range conns {
		fmt.Fprintf(b, "  %s to %s", c.remote, c.at.addr)
		if c.session != nil {
			fmt.Fprintf(b, " session %#x", c.session.id)
		}
		fmt.Fprintf(b, ": %s\n", c.doing())
		for _, key := range slices.SortedFunc(maps.Keys(c.watched), compareKeys) {
			what := "node"
			if key.children {
				what = "children of"
			}
			fmt.Fprintf(b, "    watches %s %s%s\n", what, key.path, c.at.view.watches.mode(c, key))
		}
	}
}

func compareKeys(a, b watchKey) int {
	if d := strings.Compare(a.path, b.path); d != 0 || a.children == b.children {
		return d
	}
	if a.children {
		return 1
	}
	return -1
}

// String returns the modes of m except watchOnce, for Dump.
func (m watchMode) String() string {
	text := ""
	if m&watchPersistent != 0 {
		text += " (persistent)"
	}
	if m&watchRecursive != 0 {
		text += " (persistent, recursive)"
	}
	return text
}

func (s *Server) dumpTree(b *strings.Builder) {
	t := s.leader.tree
	fmt.Fprintf(b, "znodes: %d\n", len(t.nodes))
	for _, path := range slices.Sorted(maps.Keys(t.nodes)) {
		n := t.nodes[path]
		fmt.Fprintf(b, "  %s czxid %d version %d", path, n.czxid, n.version)
		if n.owner != 0 {
			fmt.Fprintf(b, " ephemeral of %#x", n.owner)
		}
		if n.container {
			b.WriteString(" container")
		}
		if n.ttl > 0 {
			fmt.Fprintf(b, " ttl %d ms", n.ttl)
		}
		if len(n.data) > 0 {
			const most = 60
			data := n.data[:min(len(n.data), most)]
			fmt.Fprintf(b, " %q", data)
			if len(n.data) > most {
				fmt.Fprintf(b, "... (%d bytes)", len(n.data))
			}
		}
		b.WriteString("\n")
	}
}
