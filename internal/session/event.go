package session

import (
	"time"
)

// An Event is one thing that the observer of a session is told.
type Event struct {
	Kind EventKind
	Op   string        // the operation, such as "lock"; empty for events of the session
	Path string        // the path of the primitive; empty for events of the session
	Wait time.Duration // how long the caller waited, or how long it was held
	Err  error         // why it ended
}

// An EventKind says what happened.
type EventKind int

const (
	EventAcquired    EventKind = iota + 1 // a wait ended with a grant
	EventGaveUp                           // a wait ended without one
	EventReleased                         // a hold was given back to the servers
	EventLost                             // a hold was lost with its session
	EventDead                             // a queue element went to the dead letters
	EventConnected                        // a new ZooKeeper session was established
	EventSuspended                        // the connection dropped; the session may survive
	EventReconnected                      // the same session goes on over a new connection
	EventExpired                          // the session ended and everything held through it was lost
)

// A LossReason says why something that was held in a session is lost.
type LossReason int

const (
	LossExpired   LossReason = iota + 1 // the servers have ended the session
	LossCutOff                          // no server has confirmed it in time
	LossPaused                          // nor could one, as this process was stopped
	LossReplaced                        // a server has put another session in its place
	LossDeleted                         // somebody has deleted the znode
	LossClosed                          // closed, or failed for good
	LossSuspended                       // the connection dropped, and that counts
	LossGivenUp                         // this process has given it up by itself
)

// A State is what a session is doing.
type State int

const (
	StateConnecting State = iota // a new ZooKeeper session is being established
	StateConnected               // a server answers
	StateSuspended               // the connection dropped; the session may survive
	StateExpired                 // the session ended; StateConnecting follows
	StateClosed                  // the end
)

// A listener is told of every change of state. It does not wait.
type listener interface{ push(State) }
