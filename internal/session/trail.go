package session

// This file decides which servers may continue a session that has left writes without a reply.
// Incarnation.serve chooses among these servers.

import (
	"time"

	"github.com/zsync/zsync/internal/conn"
)

// The type `trail` records the servers at which a session has left writes without a reply.
//
// When the connection to a server A ends, such a write may still be on its way from A to the leader.
// The leader refuses the write if the session is at another server when it takes the write from its
// queue. A direct return to A is safe: all later requests reach the leader after the write. A move to
// B is safe, too: a read over B that follows another write, or the first sync of the connection, shows
// the outcome. But if the session then returns to A, the leader learns that at once, with the write
// still in the queue. It executes the write, although a read over B has found that it was not executed.
//
// So the session does not return to A soon after B has answered. It waits for SyncLimit or the session
// timeout, whichever is longer: by then, A has forwarded the write, or the leader has dropped A. Then
// it waits for the reply to another write, which it sends over B after that time (see
// Incarnation.writeAfter): the leader takes both writes from one queue, in order. Without such a
// reply, it waits twice as long.
//
// If A is silent to the handshake of a direct return, and the session moves to B, that handshake may
// follow the write as a return would. So the senders of the writes wait, too: see `caughtUp`. If A
// closes the connection instead, the client assumes that A has not passed on the handshake. Otherwise,
// each write would wait after an election, during which all servers close their connections.
//
// Only the goroutine that serves the session uses a trail.
type trail struct {
	left    map[string]*exit // by server: the end of the connection that left writes without a reply
	written time.Time        // when the client sent the last answered write
	late    []conn.Request   // the writes without a reply or a failure
}

// The type `exit` is the end of a connection with unanswered writes.
type exit struct {
	at    time.Time
	asked bool // since then, the server has not answered a handshake
	moved bool // since then, another server has caught up, so the client may have read over it
}

// SyncLimit is the time for which a leader keeps a silent server in ZooKeeper's default
// configuration: 5 ticks of 2 s. Operators usually choose a longer session timeout if they choose
// longer ticks.
const SyncLimit = 10 * time.Second

// The method `leave` is called when the connection to a server has ended. The argument `late` is the
// writes without a reply. They fail after the next call of caughtUp.
func (t *trail) leave(addr string, late []conn.Request) {
	if len(late) == 0 {
		return
	}
	if t.left == nil {
		t.left = map[string]*exit{}
	}
	t.left[addr] = &exit{at: time.Now()}
	t.late = append(t.late, late...)
}

// The method `unanswered` is called after a handshake that the server has not answered.
func (t *trail) unanswered(addr string) {
	if x := t.left[addr]; x != nil {
		x.asked = true
	}
}

// caughtUp is called when a server that continues the session has answered the sync with which the
// connection begins. Before that answer, the client has read nothing over the connection, so no read
// can have missed a write, and the session may return to any server.
//
// caughtUp returns the writes without a reply. From now on, the session avoids the servers that it
// has left. It left the last of them at the time `since`, which is zero without such a server. If
// `wait` is true, such a server may still pass on one of the writes and then a handshake. Otherwise,
// the writes may fail now.
func (t *trail) caughtUp(addr string) (late []conn.Request, since time.Time, wait bool) {
	delete(t.left, addr)
	for _, x := range t.left {
		if !x.moved {
			if x.at.After(since) {
				since = x.at
			}
			wait = wait || x.asked
		}
		x.moved = true
	}
	late, t.late = t.late, nil
	return late, since, wait
}

// The method `bars` reports whether a server must not continue the session now.
func (t *trail) bars(addr string, timeout time.Duration) bool {
	x := t.left[addr]
	if x == nil || !x.moved {
		return false
	}
	limit := avoidance(timeout)
	if behind := t.written.Sub(x.at) > limit; behind || time.Since(x.at) >= 2*limit {
		delete(t.left, addr)
		return false
	}
	return true
}

// avoidance is the time for which a session avoids a server at least.
func avoidance(timeout time.Duration) time.Duration { return max(timeout, SyncLimit) }
