package zsync

import (
	"time"

	"github.com/zsync/zsync/internal/session"
)

// An Observer is told what a Session does, for metrics and tracing. Observe is
// called from the goroutine in which the thing happens, or in which the thing
// before it did, and must not block. It may ask the Session and its primitives
// what they know without a request: State, Stats, ID, Lost. The events of a
// Session come one at a time, in order; those of holds come beside them.
type Observer interface {
	Observe(Event)
}

// ObserverFunc makes an Observer of a function.
type ObserverFunc func(Event)

// Observe calls f.
func (f ObserverFunc) Observe(e Event) { f(e) }

// An Event is one thing that an Observer is told.
type Event struct {
	Kind EventKind
	Op   string        // the operation, such as "lock"; empty for events of the session
	Path string        // the path of the primitive; empty for events of the session
	Wait time.Duration // Acquired, GaveUp: how long the caller waited; Released, Lost: how long it was held
	Err  error         // GaveUp, Lost, Dead, Expired: why
}

// An EventKind says what happened.
type EventKind int

// The kinds of Event.
const (
	Acquired    EventKind = iota + 1 // a lock, permit, leadership or claim was granted
	GaveUp                           // a wait ended without a grant
	Released                         // a hold was given back; a hand-over between goroutines is none
	Lost                             // a hold was lost with its session
	Dead                             // a queue element went to the dead letters
	Connected                        // a new ZooKeeper session was established
	Suspended                        // the connection dropped; the session may survive
	Reconnected                      // the same session goes on over a new connection
	Expired                          // the session ended and everything held through it was lost
)

var eventKinds = map[EventKind]string{
	Acquired: "acquired", GaveUp: "gave up", Released: "released", Lost: "lost", Dead: "dead",
	Connected: "connected", Suspended: "suspended", Reconnected: "reconnected", Expired: "expired",
}

// String returns the kind in words.
func (k EventKind) String() string {
	if s := eventKinds[k]; s != "" {
		return s
	}
	return "unknown"
}

// observed is what the session tells o.
func observed(o Observer) func(session.Event) {
	if o == nil {
		return nil
	}
	return func(e session.Event) {
		o.Observe(Event{Kind: EventKind(e.Kind), Op: e.Op, Path: e.Path, Wait: e.Wait, Err: e.Err})
	}
}
