package session

import (
	"time"

	"github.com/zsync/zsync/internal/shared"
)

// This file remembers which session timeout each server grants: see "Different timeouts" in
// docs/design.md. The memory is wrong if a server was restarted and now grants less (same-timeouts
// in docs/guarantees.md). Without it, each outage of leastOfAll would end all holds, because servers
// without a leader do not answer handshakes.

// leastOfAll is the least timeout that an unknown server is assumed to grant. It is two ticks of 2
// s, the value of minSessionTimeout in ZooKeeper's default configuration.
const leastOfAll = 4 * time.Second

// noteGrant records that the server at addr has granted the timeout `got` to a request for the
// timeout `asked`. Only a grant of less than the request shows the longest timeout of the server.
func noteGrant(granted *shared.Cache[time.Duration], addr string, asked, got time.Duration) {
	if known, _ := granted.Load(addr); got < asked || got > known {
		granted.Store(addr, got)
	}
}

// leastGrant returns the shortest timeout that the server at addr may grant to a request for the
// timeout `ask`. A server grants each request in full, or a bound of its configuration.
func leastGrant(granted *shared.Cache[time.Duration], addr string, ask time.Duration) time.Duration {
	known, ok := granted.Load(addr)
	if !ok {
		known = leastOfAll
	}
	return min(ask, known)
}
