package session

import "sync/atomic"

// A sight is what a session has been told of the state of the servers, for the
// trace.
type sight struct {
	zxid  atomic.Int64 // the newest transaction, events included
	blind atomic.Bool  // a newer one since, without its number
}

// see notes that a server has told of the state after transaction zxid, or, if
// that is not positive, after one that it does not name. One link reads at a time.
func (s *sight) see(xid int32, zxid int64) {
	switch {
	case zxid > 0:
		// What is newer than all before covers what was told without a name: the
		// packets of one connection come in the order of the states. The first
		// answers of the next connection may be older.
		if zxid > s.zxid.Load() {
			s.zxid.Store(zxid)
			s.blind.Store(false)
		}
	case xid < 0: // an event, before ZooKeeper 3.9
		s.blind.Store(true)
	}
}
