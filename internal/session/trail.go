package session

// This file decides which servers may continue a session that has left writes without a reply.
// Incarnation.pick chooses among these servers.

import (
	"time"

	"github.com/zsync/zsync/internal/conn"
)

// The type `trail` records the servers at which a session has left writes without a reply.
//
// A write that was sent over server A may still be on its way from A to the leader when the
// connection to A ends. The leader checks the session's server only when it takes the write from
// a queue. It refuses the write if the session is at another server by then. So there are three
// cases:
//
//   - The session returns to A directly. All requests over the new connection reach the leader
//     after the write. So a read over that connection shows the outcome of the write.
//   - The session moves to B, and stays there or moves on to C. The leader may execute the write
//     before it learns of B. Then a read over B shows the write, if the read follows another write,
//     or the first sync of the connection. Otherwise, the leader refuses the write.
//   - The session moves to B and back to A. A read over B does not find the write. Then A asks the
//     leader for the session. This request comes after the write, but it changes the session's
//     server at once, and the write is still in the queue. So the leader executes the write,
//     although a read has found that it was not executed.
//
// Therefore the session does not return to A soon after it has moved to another server. It waits
// for SyncLimit or the session timeout, whichever is longer. A gets nothing after the client has
// closed the connection (Conn.Close). So by then, A has forwarded the write, or the leader has
// dropped A. But the write may still be in the leader's queue. So the session returns only after
// the reply to another write that the client has sent over another server since then. The leader
// takes both from one queue, in order. So the client sends a write at that time: see
// Incarnation.caughtUp. Without such a reply, the session waits twice as long.
//
// There is a fourth case. The session tries to return to A directly, and A is silent, so the session
// moves to B. The handshake may reach the leader later, right after the write. Then it does the same
// as a return to A. So while the session avoids A, the writes have no outcome: their senders wait, and
// do not look for the writes over B. See `caughtUp`. If A closes the connection instead,
// the client assumes that A has not passed on the handshake. Otherwise, each write would wait that
// long after an election, during which all servers close their connections.
//
// Only the goroutine that serves the session uses a trail.
type trail struct {
	left    map[string]exit // by server: the end of the connection that left writes without a reply
	written time.Time       // when the client sent the last answered write
	late    []conn.Request  // the writes without a reply or a failure
}

// The type `exit` is the end of a connection with unanswered writes.
type exit struct {
	at    time.Time
	asked bool // since then, the server has not answered a handshake
	moved bool // since then, another server has caught up, so the client may have read over it
	told  bool // the exclusion of the server was logged
}

// SyncLimit is the time for which a leader keeps a silent server in ZooKeeper's default
// configuration: 5 ticks of 2 s. After that, a write that the server has not forwarded is lost. If
// the session timeout is longer than SyncLimit, the client uses the timeout instead, because
// operators usually choose it to fit the servers' ticks.
const SyncLimit = 10 * time.Second

// The method `leave` is called when the connection to a server has ended. The argument `late` is the
// writes without a reply. They fail after the next call of caughtUp.
func (t *trail) leave(addr string, late []conn.Request) {
	if len(late) == 0 {
		return
	}
	if t.left == nil {
		t.left = map[string]exit{}
	}
	t.left[addr] = exit{at: time.Now()}
	t.late = append(t.late, late...)
}

// The method `unanswered` is called after a handshake that the server has not answered.
func (t *trail) unanswered(addr string) {
	if x, ok := t.left[addr]; ok {
		x.asked = true
		t.left[addr] = x
	}
}

// caughtUp is called when a server that continues the session has answered the sync with which the
// connection begins. The sync came after every request that this server has ever forwarded for the
// session. Before that answer, the client has read nothing over the connection, so no read can have
// missed a write. Until a server answers the sync, the session may return to any server.
//
// caughtUp returns the writes without a reply. From now on, the session avoids the servers that it
// has left. It left the last of them at the time `since`, which is zero without such a server. If
// `wait` is true, such a server may still pass on one of the writes and then a handshake. Otherwise,
// the writes may fail now.
func (t *trail) caughtUp(addr string) (late []conn.Request, since time.Time, wait bool) {
	delete(t.left, addr)
	for other, x := range t.left {
		if !x.moved {
			if x.at.After(since) {
				since = x.at
			}
			wait = wait || x.asked
		}
		x.moved = true
		t.left[other] = x
	}
	late, t.late = t.late, nil
	return late, since, wait
}

// The method `bars` reports whether a server must not continue the session now, and whether this is
// the first such report about the server.
func (t *trail) bars(addr string, timeout time.Duration) (barred, first bool) {
	x, ok := t.left[addr]
	if !ok || !x.moved {
		return false, false
	}
	limit := avoidance(timeout)
	if behind := t.written.Sub(x.at) > limit; behind || time.Since(x.at) >= 2*limit {
		delete(t.left, addr)
		return false, false
	}
	first, x.told = !x.told, true
	t.left[addr] = x
	return true, first
}

// avoidance is the time for which a session avoids a server at least.
func avoidance(timeout time.Duration) time.Duration { return max(timeout, SyncLimit) }
