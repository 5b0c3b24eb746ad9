package session

import "sync/atomic"

// A sight is the newest state of the servers that a session has seen, for the trace.
type sight struct {
	zxid  atomic.Int64 // the newest transaction, events included
	blind atomic.Bool  // a newer one was seen since, without its zxid
}

// see records that a packet showed the state after transaction zxid. A zxid that is not positive
// is unknown. One link reads at a time, so see is not called concurrently.
func (s *sight) see(xid int32, zxid int64) {
	switch {
	case zxid > 0:
		// A zxid that is newer than all before covers packets without a zxid: the packets of one
		// connection come in the order of the states. The first replies of the next connection
		// may be older.
		if zxid > s.zxid.Load() {
			s.zxid.Store(zxid)
			s.blind.Store(false)
		}
	case xid < 0: // an event, before ZooKeeper 3.9
		s.blind.Store(true)
	}
}
