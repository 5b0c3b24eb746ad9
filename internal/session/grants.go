package session

import (
	"sync"
	"time"
)

// Servers may grant different session timeouts, for example while operators change the
// configuration of one server after another. When a client asks a server to continue a session, the
// server grants a timeout. From then on, the leader uses that timeout, even if the client never
// receives the reply. So while a handshake has no reply, the client counts on no more than the
// least timeout that the server may grant. This file remembers that least timeout. Package lease
// uses it.
//
// The memory is wrong if a server was restarted and now grants less: see same-timeouts in
// docs/guarantees.md. The memory is kept in spite of that: without it, each outage of leastOfAll
// would end all holds, because servers without a leader do not answer handshakes.

// The type `grants` is a table of the session timeout that each server has granted.
type grants struct{ m sync.Map }

// The type `grant` is a server's answer to a requested timeout.
type grant struct{ asked, granted time.Duration }

// leastOfAll is the least timeout that an unknown server is assumed to grant. It is two ticks of 2
// s, the value of minSessionTimeout in ZooKeeper's default configuration.
const leastOfAll = 4 * time.Second

// The method `note` stores the answer of the server at addr.
func (g *grants) note(addr string, answer grant) {
	if known, ok := g.m.Load(addr); ok && known.(grant).asked > answer.asked {
		return // keep the answer to the longer request: a server grants a short request in full
	}
	g.m.Store(addr, answer)
}

// The method `of` returns the least timeout that the server at addr may grant to a request for the
// timeout `ask`.
func (g *grants) of(addr string, ask time.Duration) time.Duration {
	v, ok := g.m.Load(addr)
	if !ok || v.(grant).asked < ask {
		return min(ask, leastOfAll)
	}
	return min(ask, v.(grant).granted)
}
