package zsync

import (
	"cmp"
	"context"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// A Tracer is called at the start and at the end of each operation of a Session, to make spans. End
// receives the context that Start returned. The program's functions get a context made from it, so
// spans have parents. End is called once for each Start, in any goroutine. Neither may block.
type Tracer interface {
	Start(ctx context.Context, op Op) context.Context
	End(ctx context.Context, op Op, err error)
}

// An Op is one operation that a [Tracer] follows.
type Op struct {
	Kind      OpKind
	Name      string // lock, rlock, campaign, acquire, enter, do (of a Once); wait; send, receive, ack, nack, return, reject
	Primitive string // mutex, rwmutex, election, semaphore, once, double barrier, barrier, waitgroup, cond, queue
	Path      string // of the primitive
	Owner     string // the owner text of the Session, see WithOwner
	Session   int64  // the ZooKeeper session at the time, or 0
	Hold      string // the name of the hold's znode; set for a hold, and at the end of an acquisition that has succeeded; empty for permits
	Count     int    // the number of permits or elements
}

// An OpKind is the kind of an [Op].
type OpKind int

const (
	OpAcquire OpKind = iota + 1 // a wait for a hold, or a TryLock that succeeds; End's error is why the wait ended
	OpHold                      // a hold, from its grant to its release; the context of the hold's function is made from the result of Start; End's error is a LostError after a loss
	OpWait                      // Wait of a Barrier, WaitGroup or Cond
	OpQueue                     // a send, a receive (when the channel has passed the element on) or a settlement of elements
)

// String returns "acquire", "hold", "wait" or "queue".
func (k OpKind) String() string {
	return cmp.Or(map[OpKind]string{OpAcquire: "acquire", OpHold: "hold", OpWait: "wait", OpQueue: "queue"}[k], "unknown")
}

// An Observer receives the events of a Session, for metrics. Observe must not block, but may call
// methods that send no request, such as State and Lost. Events of the Session arrive in order;
// events of holds can overlap.
type Observer interface {
	Observe(Event)
}

// ObserverFunc makes an Observer of a function.
type ObserverFunc func(Event)

// Observe calls f.
func (f ObserverFunc) Observe(e Event) { f(e) }

// An Event describes one change of a Session or of a hold.
type Event struct {
	Kind EventKind
	Op   string        // the operation, such as "lock"; empty for events of the session
	Path string        // the path of the primitive; empty for events of the session
	Wait time.Duration // EventAcquired, EventGaveUp: how long the caller waited; EventReleased, EventLost: how long it was held; EventEnded: how long the function ran
	Err  error         // EventGaveUp, EventLost, EventDead, EventExpired, EventEnded, EventLeft: why; nil for a success, and for a Leave
}

// An EventKind is the kind of an [Event].
type EventKind int

const (
	EventAcquired    EventKind = iota + 1 // a wait for a hold ended with a grant
	EventGaveUp                           // a wait ended without a grant
	EventReleased                         // a hold was released; a handoff between goroutines is not reported
	EventLost                             // a hold was lost
	EventDead                             // a queue element went to the dead letters
	EventConnected                        // a new ZooKeeper session was established
	EventSuspended                        // the connection dropped; the session may survive
	EventReconnected                      // the session continues over a new connection
	EventExpired                          // the session ended and everything held through it was lost
	EventStarted                          // a Schedule's function was called for an instant
	EventEnded                            // the function ended: its success is recorded, or Err is its error, or the end of its context
	EventJoined                           // a member joined its group, for the first time or again
	EventLeft                             // a member left its group, or its session or znode was lost
)

var eventKinds = map[EventKind]string{
	EventAcquired: "acquired", EventGaveUp: "gave up", EventReleased: "released", EventLost: "lost", EventDead: "dead",
	EventConnected: "connected", EventSuspended: "suspended", EventReconnected: "reconnected", EventExpired: "expired",
	EventStarted: "started", EventEnded: "ended", EventJoined: "joined", EventLeft: "left",
}

// String returns the kind in words.
func (k EventKind) String() string { return cmp.Or(eventKinds[k], "unknown") }

// The function `observed` returns a callback for the session, which passes each report on to o.
func observed(o Observer) func(session.Report) {
	if f, ok := o.(ObserverFunc); o == nil || ok && f == nil {
		return nil
	}
	return func(e session.Report) {
		o.Observe(Event{Kind: EventKind(e.Kind), Op: e.Op, Path: e.Path, Wait: e.Wait, Err: e.Err})
	}
}
