package zsync

import "time"

// An event is one thing that the observer of a session is told.
type event struct {
	kind eventKind
	op   string        // the operation, such as "lock"; empty for events of the session
	path string        // the path of the primitive; empty for events of the session
	wait time.Duration // how long the caller waited, or how long it was held
	err  error         // why it ended
}

// An eventKind says what happened.
type eventKind int

const (
	eventAcquired    eventKind = iota + 1 // a wait ended with a grant
	eventGaveUp                           // a wait ended without one
	eventReleased                         // a hold was given back to the servers
	eventLost                             // a hold was lost with its session
	eventDead                             // a queue element went to the dead letters
	eventConnected                        // a new ZooKeeper session was established
	eventSuspended                        // the connection dropped; the session may survive
	eventReconnected                      // the same session goes on over a new connection
	eventExpired                          // the session ended and everything held through it was lost
)
