package session

import (
	"sync"
	"time"
)

// Servers may grant different session timeouts, as while their configuration is changed one
// by one. If a server is asked to continue a session, the leader counts the timeout that this
// server grants from then on, even if the client never gets the answer. So while a handshake
// has no answer, the client counts no more than the least that the server may grant.

// grants remembers, by server, which session timeout it has granted.
type grants struct{ m sync.Map }

// A grant is the answer of a server that was asked for a timeout.
type grant struct{ asked, granted time.Duration }

// leastOfAll is the least that a server is assumed to grant which has not granted anything
// yet: two ticks of 2 s, which is minSessionTimeout in the configuration that comes with
// ZooKeeper.
const leastOfAll = 4 * time.Second

// note remembers a grant.
func (g *grants) note(addr string, answer grant) {
	if known, ok := g.m.Load(addr); ok && known.(grant).asked > answer.asked {
		return // it says less: a server that is asked for less grants that
	}
	g.m.Store(addr, answer)
}

// of returns the least that a server grants if it is asked for a timeout.
func (g *grants) of(addr string, ask time.Duration) time.Duration {
	v, ok := g.m.Load(addr)
	if !ok || v.(grant).asked < ask {
		return min(ask, leastOfAll)
	}
	return min(ask, v.(grant).granted)
}
