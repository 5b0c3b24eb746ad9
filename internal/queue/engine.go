// Package queue keeps elements in ZooKeeper, as bytes, and hands them to
// consumers. It knows no element types, codecs or channels: those are its
// callers'.
package queue

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/go-zookeeper/zk"
)

// Errors of engines, beside those of internal/session and internal/line.
var (
	// ErrFull is returned by Send with NoWait when there is no room.
	ErrFull = errors.New("zsync: the queue is full")

	// ErrKnown is returned by Send when an element with this ID was sent before,
	// within the memory for IDs. Nothing is stored.
	ErrKnown = errors.New("an element with this ID was sent before")
)

// A Config is what an engine is made with. It has been checked.
type Config struct {
	Path string // as the program knows it, for messages

	// Decode is called for each claim before it is offered, and for what Take
	// takes before it is removed. What it returns becomes Element.Value. An error
	// makes the element a misfit, which goes to the dead letters, unless several
	// in a row are misfits: then the fault may be this consumer's, so the others
	// are left where they are for a while, and it is reported.
	Decode func(data []byte) (any, error)

	Prefetch      int           // how many may be claimed ahead
	PrefetchBytes int           // and how many bytes of them
	MaxLen        int           // Send waits while the queue would be longer; 0: no limit
	MaxAttempts   int           // after so many attempts to the dead letters; 0: no limit
	Priorities    int           // a Batch has one below this
	IDMemory      time.Duration // for how long an ID is remembered
	KeepDead      time.Duration // for how long dead letters are kept; 0: for ever
}

// An Engine is a queue in one layout of znodes. All methods may be called at
// once. Those that take a context wait for no longer than it lasts, through
// losses of the connection and of the session; unless said otherwise what was
// under way when it ended is then either done or not.
type Engine interface {
	// Send stores the elements of b at the end of the queue, in order, all or
	// none, exactly once. Batches of one goroutine keep their order, and so do
	// those of many, in the order of the calls. Errors: session.ErrTooLarge,
	// ErrFull, ErrKnown, session.ErrInvalid for what the layout has not (Due, ID,
	// Keys). Nothing is stored then.
	Send(ctx context.Context, b Batch) error

	// Cancel removes the element that was sent with the ID, if nobody has
	// claimed it, and reports whether it did. The ID is not forgotten by that.
	Cancel(ctx context.Context, id string) (bool, error)

	// Join adds a consumer, until ctx has ended or the Session is being closed.
	// It must Leave.
	Join(ctx context.Context, o Joining) Consumer

	// Receive waits for an element that decodes, claims it and up to n-1 more that
	// are there. It calls got with each and takes it for Handed then, not before: what
	// is in hand may be lost, and is without its Value then. Nothing is claimed ahead
	// for it, and when it fails nothing is claimed.
	Receive(ctx context.Context, n int, got func(Claim)) error

	// Take removes the first element that nobody has claimed, and returns it; nil
	// if there is none. It does not wait for elements to come, but for those of a
	// consumer that has died to come back. What it has removed when ctx ends, and
	// does not return, is put back to its place; Session.Close waits for that.
	Take(ctx context.Context) (*Element, error)

	// Peek returns what Take would, perhaps a moment ago, and writes nothing. The
	// element is not decoded.
	Peek(ctx context.Context) (*Element, error)

	// Len returns how many elements are in the queue, those that are claimed or
	// delayed included.
	Len(ctx context.Context) (int, error)

	// Stats counts. It writes nothing, and is no snapshot.
	Stats(ctx context.Context) (Stats, error)

	// List yields the elements that are in a state. It is no snapshot.
	List(ctx context.Context, s State) iter.Seq2[Listed, error]

	// Pause has no consumer claim anything until Resume.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error

	// Clear removes what is there and nobody has claimed, delayed elements too, the
	// last first, and returns how many. When it fails it may have removed some.
	Clear(ctx context.Context) (int, error)

	// Letters yields the dead letters, the oldest first, those that are there when it
	// begins and still when it comes to them. Of one that may not be read it yields the
	// rest, with the error; another error should end it.
	Letters(ctx context.Context) iter.Seq2[*Letter, error]

	// Discard removes a dead letter and reports whether it was there.
	Discard(ctx context.Context, d *Letter) (bool, error)

	// Requeue puts the element of a dead letter at the end of the queue, with its
	// priority and no attempts, and removes the letter, in one transaction. The
	// error is zk.ErrNoNode if it is gone.
	Requeue(ctx context.Context, d *Letter) error
}

// Middle is the priority of a Batch that is given none.
const Middle = -1

// A Batch is what one Send stores.
type Batch struct {
	Data     [][]byte  // at least one
	Keys     []string  // of each, or nil: elements with one key are delivered in order, one at a time
	Priority int       // 0 is served first; or Middle
	Due      time.Time // nobody claims it before, by the consumer's clock; zero: at once
	ID       string    // if not empty the one element is sent once for it, see ErrKnown
	NoWait   bool      // ErrFull instead of waiting for room
}

// An Outgoing is a Batch for another queue, as an operation of Claim.Txn.
type Outgoing struct {
	Engine Engine
	Batch  Batch
}

// An Element is one that is in the queue, or was.
type Element struct {
	ID       string // unique within the queue, for ever
	Data     []byte // without the frame that a foreign layout may have
	Value    any    // as decoded
	Fault    error  // why it is none, if it could not be decoded
	Sent     time.Time
	Attempts int // how often it was delivered before
}

// A Joining says what kind of consumer joins.
type Joining struct {
	// Hand means that what is offered to the consumer is settled by the program,
	// later. Otherwise it is removed when it was taken.
	Hand bool

	// Odd means that the consumer wants misfits offered too, with their Fault, and
	// Next to return the errors that keep it from consuming.
	Odd bool
}

// A Consumer is offered elements, in order. Its methods may be called at once. All
// consumers of one Engine share what is claimed ahead.
type Consumer interface {
	// Next waits for an element that is claimed and may be offered now: the
	// connection is up, the claim stands and, for a consumer with Hand, that it is
	// being tried is written down, or soon will be: before it is offered if
	// attempts are limited. The error says that the consumer's context has ended
	// or the Session is being closed; with Odd there are others, see there. Who works
	// on elements asks for the next when it waits for that, and not before: it would count
	// as tried if the process is killed while it works on another.
	//
	// The claim must be given one of Taken, Handed and PutBack before the caller asks for
	// the next.
	Next() (Claim, error)

	// Leaving is closed when the consumer's context has ended or the Session is
	// being closed.
	Leaving() <-chan struct{}

	// Leave gives back what was claimed ahead if this was the last consumer, and waits
	// a moment until it is back. Next may be under way; a second Leave waits for the first.
	Leave()
}

// A Claim is an element that belongs to us, as long as our ZooKeeper session
// stands and somewhat longer. Its methods may be called at once.
type Claim interface {
	// Element returns the element, without its Data and Value once it is settled.
	Element() Element

	// Data returns Element().Data, or nil when the claim is settled. It lets go
	// of the bytes then.
	Data() []byte

	// Withdrawn returns two channels. When either is closed the claim must not be
	// offered any more: the connection is down, or the session over.
	Withdrawn() (down, over <-chan struct{})

	// Taken removes the element, in the background: a consumer has taken it. It is
	// removed even if the session ends at this moment: by our process in its next
	// session, before anybody else can claim it.
	Taken()

	// Handed is told that the program has the element now, and will settle it. From
	// here on it counts as an attempt if the claim is lost.
	Handed()

	// PutBack makes it the first that is offered to our other consumers, or gives
	// it back to its place if there is none: it was not taken. No attempt is
	// counted.
	PutBack()

	// SetAside has a misfit that was offered go to the dead letters, unless it is
	// settled.
	SetAside()

	// Settle decides what becomes of the element. Only the first decision counts;
	// Settle with the same Fate again tells what came of it, and with another
	// returns line.ErrNotLocked. What is decided is carried out, in the next
	// session if need be, and if the servers refuse it is tried again, though the
	// error is returned; so it is if ctx ends. Fates that give the element back
	// return at once while the connection is down. If the claim is lost, the error
	// is session.ErrLost with its reason, and nothing happens to the element:
	// it may be somebody else's.
	Settle(ctx context.Context, s Settlement) error

	// Txn removes the element in one transaction with ops, which are those of
	// go-zookeeper's Multi and *Outgoing, exactly once; it returns the results of
	// ops, one for each that is not an Outgoing. If one of ops is refused the
	// element stays claimed, and the error is that of the first that was. Other
	// errors are those of Settle.
	Txn(ctx context.Context, ops []any) ([]zk.MultiResponse, error)

	// Context ends with the claim. Its cause is session.ErrLost, with the reason,
	// if the claim was lost, and it ends before anybody else can have the element;
	// and context.Canceled if it was settled.
	Context() context.Context
}

// A Fate is what becomes of an element that is claimed.
type Fate int

const (
	Remove Fate = iota // acknowledged
	Return             // to its place; the attempt counts
	Later              // to the queue, not to be claimed before Settlement.Due
	Bury               // to the dead letters
)

// A Settlement decides what becomes of an element.
type Settlement struct {
	Fate    Fate
	Due     time.Time // of Later, by the consumer's clock
	Reason  error     // of Bury
	Untried bool      // of Return: the attempt does not count
}

// A State is where an element of a queue is.
type State int

const (
	Ready   State = iota // may be received now, but for its key
	Claimed              // belongs to a consumer
	Delayed              // waits for its time
)

// A Listed is an element that List has found.
type Listed struct {
	Element
	State State
	Due   time.Time // of Delayed
	Owner string    // of Claimed
}

// Stats says what is in a queue.
type Stats struct {
	Ready    int       // may be received now
	Claimed  int       // belong to a consumer, in hand or ahead
	Delayed  int       // wait for their time, by the clock of this machine
	Dead     int       // dead letters
	Attempts int       // of those that stand first and those that wait for their time: how often one of them was delivered, at most
	Oldest   time.Time // of those that stand first among the ready ones of each priority, and are not, nor were, delayed: when the oldest was stored; zero if there is none
	Holders  []Holder  // who has claimed what, most first
	Paused   bool      // no consumer claims
}

// A Holder is who has claimed elements.
type Holder struct {
	Owner   string // empty if its session has ended: its elements are free
	Claimed int
}

// A Letter is a dead letter.
type Letter struct {
	ID       string
	Data     []byte    // as it was sent, if its frame could be opened; the caller's own
	Since    time.Time // when it was set aside, by the servers' clock
	Reason   string
	Attempts int
	First    time.Time // when it was sent
	Priority string    // as the layout writes it

	Framed []byte   // as it is stored
	paths  []string // of its znode, and of that which says why, if there is one
}
