package session

// This file shows when a caller must read a znode of its session again.

import (
	"time"

	"github.com/zsync/zsync/internal/lease"
)

// A Lapse is the time since a moment: see Incarnation.Lapse.
type Lapse struct {
	inc *Incarnation
	on  int64 // number of the connection at that moment
	at  lease.Instant
}

// Lapse begins a Lapse.
func (inc *Incarnation) Lapse() Lapse {
	return Lapse{inc, inc.Watches.Connection(), lease.At(time.Now())}
}

// Outage reports whether there may have been an outage in l: the connection has changed, or
// ReleaseTime has passed. In an outage, another client may delete a znode of this session. Then a third
// contender may get the lock of that znode. So before the caller relies on the znode, it reads the znode
// again.
func (l Lapse) Outage() bool {
	return l.inc.Watches.Connection() != l.on || l.at.Since(time.Now()) >= ReleaseTime
}
