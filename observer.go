package zsync

import (
	"time"

	"github.com/zsync/zsync/internal/session"
)

// An Observer receives the events of a Session, for metrics. Install it with
// [WithObserver]. Observe is called in the goroutine of the event or of the event before
// it, and must not block. It may call methods that send no request, such as State, Stats,
// ID and Lost. The events of the Session itself arrive one at a time, in order; events of
// holds can arrive at the same time.
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
	Wait time.Duration // EventAcquired, EventGaveUp: how long the caller waited; EventReleased, EventLost: how long it was held
	Err  error         // EventGaveUp, EventLost, EventDead, EventExpired: why
}

// An EventKind is the kind of an [Event].
type EventKind int

// The kinds of Event.
const (
	EventAcquired    EventKind = iota + 1 // a lock, permit, leadership or claim was granted
	EventGaveUp                           // a wait ended without a grant
	EventReleased                         // a hold was given back; a hand-over between goroutines is none
	EventLost                             // a hold was lost with its session
	EventDead                             // a queue element went to the dead letters
	EventConnected                        // a new ZooKeeper session was established
	EventSuspended                        // the connection dropped; the session may survive
	EventReconnected                      // the session continues over a new connection
	EventExpired                          // the session ended and everything held through it was lost
)

var eventKinds = map[EventKind]string{
	EventAcquired: "acquired", EventGaveUp: "gave up", EventReleased: "released", EventLost: "lost", EventDead: "dead",
	EventConnected: "connected", EventSuspended: "suspended", EventReconnected: "reconnected", EventExpired: "expired",
}

// String returns the kind in words.
func (k EventKind) String() string {
	if s := eventKinds[k]; s != "" {
		return s
	}
	return "unknown"
}

// observed returns the callback with which the session calls o.
func observed(o Observer) func(session.Event) {
	if o == nil {
		return nil
	}
	return func(e session.Event) {
		o.Observe(Event{Kind: EventKind(e.Kind), Op: e.Op, Path: e.Path, Wait: e.Wait, Err: e.Err})
	}
}
