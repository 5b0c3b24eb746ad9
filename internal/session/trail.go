package session

import "time"

// A trail is where a session has left writes without an answer. It decides which
// servers may continue the session.
//
// A write that was sent over server A may still be on its way from A to the leader
// when the connection to A ends. The leader looks at who owns the session behind a
// queue, and refuses the write if the session is at another server by then. So
// there are three cases:
//
//   - The session goes straight back to A. All that is sent over the new connection
//     comes to the leader behind the write. A read there shows its outcome.
//   - The session goes to B, and stays there or goes on to C. The write is carried
//     out before the leader hears of B, and then a read over B, behind the write or
//     the sync with which the connection begins, shows it; or it is refused.
//   - The session goes to B and back to A. Over B the write is not found. Then A
//     asks the leader for the session: that request is behind the write on their
//     connection, but it changes the owner at once, and the write is still in the
//     queue. It is carried out, after it was found not to be.
//
// So the session does not go to A again after another server has had it. It may do so
// later, when the leader would have given A up if A had still not passed the write on.
//
// Only the goroutine that serves the session uses a trail.
type trail struct {
	at   string          // the last server over which the client may have read something
	left map[string]exit // by server
}

// An exit is the end of a connection with writes that had no answer.
type exit struct {
	at   time.Time
	told bool // it was logged that the server is left out
}

// syncLimit is for how long a leader keeps a server that it does not hear, in the
// configuration that comes with ZooKeeper: 5 ticks of 2 s. After that a write which
// the server has not passed on is lost. The session's timeout counts if it is longer, as that
// is mostly chosen for the ticks of the servers.
const syncLimit = 10 * time.Second

// came notes that a server has begun the session.
func (t *trail) came(addr string) { t.at = addr }

// leave notes that the connection to a server has ended, and that there are writes
// without an answer.
func (t *trail) leave(addr string) {
	if t.left == nil {
		t.left = map[string]exit{}
	}
	t.left[addr] = exit{at: time.Now()}
}

// caughtUp notes that a server which continues the session has answered the sync with which
// a connection begins. The sync was behind all requests that this server has ever passed on for the
// session. Until it is answered the client has read nothing over the connection, so nothing was
// found missing there: if the server refuses the sync, the session may go straight back to the
// server before.
func (t *trail) caughtUp(addr string) {
	t.at = addr
	delete(t.left, addr)
}

// bars reports whether a server must not continue the session now, and whether that
// is said for the first time.
func (t *trail) bars(addr string, timeout time.Duration) (barred, first bool) {
	x, ok := t.left[addr]
	if !ok || addr == t.at {
		return false, false
	}
	if time.Since(x.at) >= max(timeout, syncLimit) {
		delete(t.left, addr)
		return false, false
	}
	first, x.told = !x.told, true
	t.left[addr] = x
	return true, first
}
