// Package queue stores elements in ZooKeeper, as bytes, and delivers them to consumers.
// The type Queue of the root package has the element types, codecs and channels.
package queue

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/go-zookeeper/zk"
)

// This file defines the interface between Queue and the engines, one for each layout of znodes.

// Errors of engines, in addition to the errors of internal/session and internal/lock.
var (
	ErrFull  = errors.New("the queue is full")                       // of Send with NoWait
	ErrKnown = errors.New("an element with this ID was sent before") // of Send with an ID
)

// Settings configure an engine. The caller has checked them.
type Settings struct {
	Path string // as the program knows it, for messages

	// The result of Decode becomes Element.Value. An element for which it returns an error is a misfit,
	// and becomes a dead letter: see Skipper.Misfit.
	Decode func(data []byte) (any, error)

	Prefetch      int           // largest number of elements that the consumers may claim ahead
	PrefetchBytes int           // largest size of these elements, in bytes
	MaxLen        int           // largest number of elements in the queue: Send waits for room; 0: no limit
	MaxAttempts   int           // number of attempts after which an element becomes a dead letter; 0: no limit
	Priorities    int           // number of priorities: the priority of a Batch is lower
	IDMemory      time.Duration // time for which the engine remembers an ID
	KeepDead      time.Duration // time for which the engine keeps a dead letter; 0: no limit
}

// An Engine is a queue in one layout of znodes. All methods may be called concurrently. A method
// returns at the latest when its context ends. Then the outcome is unknown, unless the method's
// comment says otherwise. Lost connections and lost sessions do not make it fail.
type Engine interface {
	// Send stores the elements of `b` at the end of the queue, exactly once, all or none, in the order of
	// the calls of all goroutines. It has stored nothing if it returns session.ErrTooLarge, ErrFull or
	// ErrKnown. The caller uses only features of the layout (Due, ID, Keys).
	Send(ctx context.Context, b Batch) error

	// Cancel removes the unclaimed element that was sent with the ID, and reports whether it has.
	Cancel(ctx context.Context, id string) (bool, error)

	// Join adds a consumer, which works until ctx ends or the Session begins to close. The caller must
	// call Leave.
	Join(ctx context.Context, o Joining) *Consumer

	// Take removes the first unclaimed element, and returns it, or nil if there is none. If ctx ends
	// first, an element that Take has claimed goes back to its position. Session.Close waits for that.
	Take(ctx context.Context) (*Element, error)

	// Peek returns the element that `Take` would have returned a moment ago. Peek, Len, Stats and List
	// write nothing. Stats and List see no snapshot.
	Peek(ctx context.Context) (*Element, error)
	Len(ctx context.Context) (int, error)
	Stats(ctx context.Context) (Totals, error)
	List(ctx context.Context, s Status) iter.Seq2[Element, error]

	// Pause keeps all clients from claiming elements, until Resume is called.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error

	// Clear removes all unclaimed elements, and returns the number of removed elements, also with an error.
	Clear(ctx context.Context) (int, error)

	// Letters yields the dead letters, the oldest first. It leaves out letters that are removed before it
	// reads them. It yields the metadata of a letter that this client may not read, with zk.ErrNoAuth, and
	// continues. On any other error, the caller should stop.
	Letters(ctx context.Context) iter.Seq2[*Letter, error]

	// Discard removes a dead letter. The error is zk.ErrNoNode if the letter does not exist.
	Discard(ctx context.Context, d *Letter) error

	// Requeue is Discard, and in the same transaction it stores the element at the end of the queue, with
	// its priority and without attempts.
	Requeue(ctx context.Context, d *Letter) error
}

// A Batch has the elements of one call of `Send`.
type Batch struct {
	Data     [][]byte  // at least one
	Keys     []string  // one for each element, or nil: elements with the same key are delivered in order, one at a time
	Priority int       // 0 is delivered first
	Due      time.Time // no consumer claims an element before this time, by the consumer's clock; zero: no delay
	ID       string    // if not empty: Data must have one element, and Send stores no second element with this ID, see ErrKnown
	NoWait   bool      // Send returns ErrFull instead of waiting for room
	To       Engine    // for an operation of Item.Txn: the queue
}

// An Element is an element that is or was in the queue.
type Element struct {
	ID       string // unique within the queue, and never used again
	Data     []byte // as the producer sent it, without the frame of a foreign layout
	Value    any    // the result of Decode
	Fault    error  // the error of Decode, if the element has no Value
	Sent     time.Time
	Attempts int // number of earlier deliveries

	// Only List sets the fields below.

	State Status
	Due   time.Time // for Delayed: the due time
	Owner string    // for Claimed: the name of the consumer
	found *element  // as the layout names it
}

// A Joining describes the consumer that joins.
type Joining struct {
	// Hand means that the program settles each element that it takes. If Hand is not set, the
	// engine removes an element when the program takes it.
	Hand bool

	// Odd means that the consumer also offers misfits, with their Fault. For such a consumer,
	// `Next` also returns the errors that keep the consumer from consuming.
	Odd bool

	// If Limit is not 0, the consumer claims nothing ahead. The first call of `Next` claims up to Limit
	// elements that are ready, for `Poll`.
	Limit int
}

// An Item is an element that this process has claimed. The claim ends when the Item is settled, or
// with the ZooKeeper session. The methods of an Item may be called concurrently.
type Item interface {
	// Element returns the element. A settled element has neither Data nor Value, and a settled Item
	// does not retain the bytes.
	Element() Element

	// Withdrawn returns two channels: `down` is closed when the connection is lost, and `over` is
	// closed when the claim is lost. Once either is closed, the caller must no longer offer the
	// Item.
	Withdrawn() (down, over <-chan struct{})

	// The caller of Next calls one of these methods. Taken means that the program has the element, and
	// removes it in the background. Handed means that the program has the element and will settle it: if
	// the claim is lost from now on, the delivery counts as an attempt. PutBack means that the program has
	// not taken it: one of the Engine's consumers offers it next, or it returns to its position, untried.
	Taken()
	Handed()
	PutBack()

	// SetAside moves an offered misfit to the dead letters, unless the misfit is settled.
	SetAside()

	// Settle decides the Fate of the element. Only the first decision counts: a later call with the same
	// Fate returns its result, and with another Fate lock.ErrNotLocked.
	//
	// If the servers refuse the decision, or ctx ends, Settle returns the error, and the engine continues
	// in the background while the claim is valid. If the claim is lost, the error is session.ErrLost with
	// the reason. While the client is disconnected, Settle does not wait for the fates Return and Later.
	Settle(ctx context.Context, s Settlement) error

	// Txn removes the element and applies `ops`, in one transaction and exactly once. An operation
	// is a request that go-zookeeper's Multi accepts, or a *Batch. Txn returns the response to
	// each operation that is not a Batch. If the servers refuse one, the element stays claimed, and Txn
	// returns that error. All other errors are the errors of Settle.
	Txn(ctx context.Context, ops []any) ([]zk.MultiResponse, error)

	// Context returns a context that ends with the claim. If the claim was lost, it ends before another
	// consumer can get the element, and its cause is session.ErrLost with the reason. Otherwise, the
	// cause is context.Canceled.
	Context() context.Context
}

// A Fate is the result of a claim.
type Fate int

const (
	Remove Fate = iota // acknowledged
	Return             // back to its position
	Later              // back to the queue; no consumer claims it before Settlement.Due
	Bury               // moved to the dead letters
)

// A Settlement is a Fate with its details.
type Settlement struct {
	Fate    Fate
	Due     time.Time // for Later: the due time, by the consumer's clock
	Reason  error     // for Bury: the reason of the dead letter
	Untried bool      // this delivery does not count as an attempt
}

var untried = Settlement{Fate: Return, Untried: true}

// A Status is the state of an element.
type Status int

const (
	Ready   Status = iota // a consumer may claim it now, unless its key forbids that
	Claimed               // a consumer has claimed it
	Delayed               // it is not due yet
)

// Totals are the numbers of elements in a queue.
type Totals struct {
	Ready    int       // unclaimed elements that are due
	Claimed  int       // elements that a consumer has claimed, in hand or ahead
	Delayed  int       // elements that are not due yet, by the clock of this machine
	Dead     int       // dead letters
	Attempts int       // the largest number of deliveries of one unclaimed element
	Oldest   time.Time // time at which the oldest ready element was stored, not counting elements that were delayed; zero: none
	Holders  []Holder  // consumers with claims, the most claims first
	Paused   bool      // the queue is paused
}

// A Holder is a consumer that has claimed elements.
type Holder struct {
	Owner   string // empty if the session of the consumer has ended: its elements are free
	Claimed int
}

// A Letter is a dead letter.
type Letter struct {
	ID       string
	Data     []byte    // as the producer sent it, if the engine could open the frame; the caller may change it
	Since    time.Time // when it became a dead letter, by the servers' clock
	Reason   string
	Attempts int
	First    time.Time // when the producer sent it
	Priority string    // as the layout writes it

	Framed  []byte // the data as the queue stores it
	Removal []any  // the operations that remove the letter
	digits  string // the random digits in the name
	seq     int32
}
