package zktest

import (
	"fmt"
	"net"
	"strings"
)

// This file answers the four-letter words, in the format of ZooKeeper 3.8. conn.go reads the
// requests of clients with a session.

// The constant `version` is the version of ZooKeeper whose protocol the server speaks.
const version = "3.8.0-zktest"

// The constant `built` is a dummy for the build time of the server, in the format that clients
// parse.
const built = "01/01/2022 00:00 UTC"

// fourLetter returns the answer to a four-letter word. It returns false if `word` is not a
// four-letter word.
func (s *Server) fourLetter(word string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch word {
	case "srvr", "stat", "mntr", "cons", "wchs":
		if s.member != nil && !s.member.serving() {
			return "This ZooKeeper instance is not currently serving requests\n", true
		}
	}
	switch word {
	case "ruok":
		return "imok", true
	case "isro":
		return "rw", true
	case "srvr":
		return s.wordSrvr(false), true
	case "stat":
		return s.wordSrvr(true), true
	case "mntr":
		return s.wordMntr(), true
	case "cons":
		return s.wordClients() + "\n", true
	case "conf":
		return s.wordConf(), true
	case "wchs":
		return s.wordWchs(), true
	case "envi":
		return fmt.Sprintf("Environment:\nzookeeper.version=%s, built on %s\nhost.name=localhost\n", version, built), true
	}
	return "", false
}

// The method `traffic` returns the numbers of packets received and sent on the connections that are
// open now.
func (s *Server) traffic() (received, sent int64) {
	for c := range s.conns {
		received += c.received
		sent += c.sent
	}
	return received, sent
}

// nodeCount returns the number of znodes as ZooKeeper counts them: the root counts twice, as "" and
// as "/".
func (s *Server) nodeCount() int {
	return len(s.leader.tree.nodes) + 1
}

func (s *Server) wordSrvr(clients bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Zookeeper version: %s, built on %s\n", version, built)
	if clients {
		fmt.Fprintf(&b, "Clients:\n%s\n", s.wordClients())
	}
	received, sent := s.traffic()
	b.WriteString("Latency min/avg/max: 0/0.0/0\n")
	fmt.Fprintf(&b, "Received: %d\nSent: %d\nConnections: %d\nOutstanding: 0\n", received, sent, len(s.conns))
	fmt.Fprintf(&b, "Zxid: %#x\nMode: %s\nNode count: %d\n", s.leader.tree.zxid, s.mode(), s.nodeCount())
	return b.String()
}

// The method `mode` returns the server's mode: standalone, leader or follower.
func (s *Server) mode() string {
	switch m := s.member; {
	case m == nil:
		return "standalone"
	case m.ld != nil:
		return "leader"
	}
	return "follower"
}

// wordClients returns a line for each connection.
func (s *Server) wordClients() string {
	var b strings.Builder
	for c := range s.conns {
		fmt.Fprintf(&b, " /%s[1](queued=0,recved=%d,sent=%d", c.remote, c.received, c.sent)
		if c.session != nil {
			fmt.Fprintf(&b, ",sid=%#x,lop=NA,est=%d,to=%d,lcxid=0x0,lzxid=%#x,lresp=0,llat=0,minlat=0,avglat=0,maxlat=0",
				c.session.id, c.opened.UnixMilli(), c.session.granted.Milliseconds(), s.leader.tree.zxid)
		}
		b.WriteString(")\n")
	}
	return b.String()
}

func (s *Server) wordMntr() string {
	var b strings.Builder
	line := func(key string, value any) { fmt.Fprintf(&b, "zk_%s\t%v\n", key, value) }
	t := s.leader.tree
	ephemerals, size := 0, 0
	for _, paths := range t.ephemerals {
		ephemerals += len(paths)
	}
	for path, n := range t.nodes {
		size += len(path) + len(n.data)
	}
	received, sent := s.traffic()
	line("version", version+", built on "+built)
	line("server_state", s.mode())
	line("ephemerals_count", ephemerals)
	line("num_alive_connections", len(s.conns))
	line("avg_latency", "0.0")
	line("outstanding_requests", 0)
	line("znode_count", s.nodeCount())
	line("global_sessions", len(s.sessions))
	line("local_sessions", 0)
	line("packets_received", received)
	line("packets_sent", sent)
	line("approximate_data_size", size)
	line("watch_count", s.leader.watches.count)
	line("min_latency", 0)
	line("max_latency", 0)
	return b.String()
}

func (s *Server) wordConf() string {
	var b strings.Builder
	_, port, _ := net.SplitHostPort(s.endpoints[0].addr)
	fmt.Fprintf(&b, "clientPort=%s\ndataDir=\ndataLogDir=\ntickTime=%d\nmaxClientCnxns=0\n", port, s.tick.Milliseconds())
	fmt.Fprintf(&b, "minSessionTimeout=%d\nmaxSessionTimeout=%d\nserverId=1\n", s.minTimeout.Milliseconds(), s.maxTimeout.Milliseconds())
	return b.String()
}

func (s *Server) wordWchs() string {
	watching := 0
	for c := range s.conns {
		if len(c.watched) > 0 {
			watching++
		}
	}
	paths := map[string]struct{}{}
	for key := range s.leader.watches.byKey {
		paths[key.path] = struct{}{}
	}
	return fmt.Sprintf("%d connections watching %d paths\nTotal watches:%d\n", watching, len(paths), s.leader.watches.count)
}
