package session

import (
	"sync"
	"time"
)

// Servers may grant different session timeouts, as while their configuration is changed one
// by one. If a server is asked to continue a session, the leader counts the timeout that this
// server grants from then on, even if the client never gets the answer. Such a client could
// believe for too long.
//
// So if something is held, the client finds out beforehand what a server grants, once for each
// server, by a session that it begins and ends there. The session that is to be continued counts
// no more than that before its handshake is sent. If nothing is held, no certainty from before
// the handshake is used afterwards: the next hold rests on an answer that came later.

// grants remembers, by server, which session timeout it has granted.
type grants struct{ m sync.Map }

// A grant is the answer of a server that was asked for a timeout.
type grant struct{ asked, granted time.Duration }

// note remembers a grant.
func (g *grants) note(addr string, answer grant) {
	if known, ok := g.m.Load(addr); ok && known.(grant).asked > answer.asked {
		return // it says less: a server that is asked for less grants that
	}
	g.m.Store(addr, answer)
}

// of returns the least that a server grants if it is asked for a timeout, or false if that
// is not known.
func (g *grants) of(addr string, ask time.Duration) (least time.Duration, known bool) {
	v, ok := g.m.Load(addr)
	if !ok || v.(grant).asked < ask {
		return 0, false
	}
	return min(ask, v.(grant).granted), true
}
