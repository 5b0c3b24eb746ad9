package session

// This file has the events and states of a session. Manager.enter begins each state.

import "time"

// A Report is one event, for the observer of a session.
type Report struct {
	Kind ReportKind
	Op   string        // the operation, such as "lock"; empty for events of the session
	Path string        // the path of the primitive; empty for events of the session
	Wait time.Duration // how long the caller waited, or how long the hold lasted
	Err  error         // reason for the end
}

// A ReportKind is the kind of event.
type ReportKind int

const (
	EventAcquired    ReportKind = iota + 1 // a wait ended with a grant
	EventGaveUp                            // a wait ended without a grant
	EventReleased                          // a hold was released
	EventLost                              // a hold was lost with its session
	EventDead                              // a queue element became a dead letter
	EventConnected                         // a new ZooKeeper session was established
	EventSuspended                         // the connection dropped; the session may survive
	EventReconnected                       // the same session continues over a new connection
	EventExpired                           // the session ended, and every hold through it is lost
	EventStarted                           // the function of a schedule was called
	EventEnded                             // that function has ended
	EventJoined                            // a member has joined its group
	EventLeft                              // a member is no longer in its group
)

// A LossCause says why a hold in a session is lost.
type LossCause int

const (
	LossExpired   LossCause = iota + 1 // the servers have ended the session
	LossCutOff                         // no server has confirmed the session in time
	LossPaused                         // no server could confirm the session, because this process was stopped
	LossReplaced                       // a server has replaced the session by another
	LossDeleted                        // another client has deleted the znode
	LossClosed                         // the Session was closed, or failed permanently
	LossSuspended                      // the connection dropped, and WithLossOnSuspend counts that as a loss
	LossGivenUp                        // this process has abandoned the hold or its session
)

// A ConnState is the state of a session.
type ConnState int

const (
	StateConnecting ConnState = iota // a new ZooKeeper session is being established
	StateConnected                   // a server answers
	StateSuspended                   // the connection dropped; the session may survive
	StateExpired                     // the session ended; StateConnecting follows
	StateClosed                      // the end
)

// A phase is the time for which a session has one state. Each phase leads to the next, so any number of
// readers follow the phases, each at its own pace.
type phase struct {
	state ConnState
	event Report        // that began the phase; its Kind is 0 if there is none
	over  chan struct{} // closed when `next` is set
	next  *phase
}
