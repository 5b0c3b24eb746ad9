package zsync

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
)

// This file has `setup`, which has all options, the options of locks, elections and groups, and the
// layouts. queueoptions.go has the other options of a Queue, and options.go those of a Session.

// A setup has the options of a Session or of a primitive, which uses only some of the fields.
type setup struct {
	conf   *session.Config // of a Session
	tracer Tracer

	handoffs int
	retain   time.Duration // 0 without retention
	layout   Layout
	limits   *lock.Limits // nil without limits
	id       *string      // of a candidate or of a member of a Partition, or nil if it was not set
	prior    *int         // the priority of a candidate, or nil if it was not set

	notElection, notGroup string // the name of an option that an Election, or a Group, does not have, or ""

	codec Codec

	keep    bool          // WithPersistentTasks
	backoff *Backoff      // between attempts, or nil if it was not set
	timeout time.Duration // of Queue.Work, or 0

	queue.Settings // of a Queue, except Path and Decode
	queueLayout    QueueLayout
	key            any // the func(T) string of WithKey, or nil

	err error // the error of an option
}

// The method `allow` sets the error of c if the primitive `of` does not have the option that `odd`
// names, or has none of `layouts`. If odd is "", it has every option.
func (c *setup) allow(of, odd string, layouts ...Layout) {
	switch {
	case c.err != nil:
	case odd != "":
		c.err = session.Invalid("%s is no option of %s", odd, of)
	case !slices.Contains(layouts, c.layout):
		c.err = session.Invalid("WithLayout(%v): %s has no such layout", c.layout, of)
	}
}

// A LockOption configures a Mutex, RWMutex or Semaphore. An Election also takes [WithMaxHold],
// [WithHealth] and [WithLayout], and a Group takes WithLayout. With any other LockOption, the
// methods of both return [ErrInvalid].
type LockOption interface {
	applyLock(*setup)
	ElectionOption
	GroupOption
}

// A GroupOption changes a Group: [WithCodec] or [WithLayout].
type GroupOption interface{ applyGroup(*setup) }

// An ElectionOption changes an Election. [LockOption] names more options.
type ElectionOption interface{ applyElection(*setup) }

// A QueueOption changes a Queue.
type QueueOption interface{ applyQueue(*setup) }

// A ValueOption changes a Value, Map, Int64, Flight, OnceValue or OnceValues.
type ValueOption interface{ applyValue(*setup) }

// A CodecOption is a [QueueOption], a [GroupOption] and a [ValueOption].
type CodecOption interface {
	QueueOption
	GroupOption
	ValueOption
}

// An option is an option of any primitive. The result type of its constructor says of which ones.
type option func(*setup)

// The function `checked` returns an option that calls set. If ok is false, the option fails with
// the reason.
func checked(set func(*setup), ok bool, reason string, args ...any) option {
	return func(c *setup) {
		if !ok {
			c.err = session.Invalid(reason, args...)
		}
		set(c)
	}
}

func (o option) applyLock(c *setup)     { o(c) }
func (o option) applyGroup(c *setup)    { o(c) }
func (o option) applyElection(c *setup) { o(c) }
func (o option) applyQueue(c *setup)    { o(c) }
func (o option) applyValue(c *setup)    { o(c) }

// defaultHandoffs is a compromise: another process waits for at most 16 critical sections, and only one
// handoff in 16 is a slow one between processes.
const defaultHandoffs = 16

func newSetup(opts []LockOption) setup {
	c := setup{handoffs: defaultHandoffs}
	session.ApplyEach("lock", opts, &c.err, func(o LockOption) { o.applyLock(&c) })
	c.allow("a lock", "", LayoutCurator, LayoutKazoo)
	if c.err == nil && c.retain > 0 && c.handoffs == 0 {
		c.err = session.Invalid("WithRetention cannot be combined with WithHandoffs(0): a retained place is handed to goroutines")
	}
	return c
}

// WithHandoffs limits the handoffs in a row while another process, or another value of the path,
// waits. The default is 16. With 0, every goroutine has its own place in the line, in the order of
// arrival across all processes.
func WithHandoffs(n int) LockOption {
	return checked(func(c *setup) {
		c.handoffs, c.notElection, c.notGroup = n, "WithHandoffs", "WithHandoffs"
	}, n >= 0, "WithHandoffs(%d): must not be negative", n)
}

// WithRetention makes Unlock retain the place in the line for up to d, while no other contender
// waits: the next Lock in this process then sends no request. Use it for a lock that others seldom
// need: a Mutex, or the write lock of an RWMutex. The default is no retention.
//
// A new contender fires a watch. It gets the place one round trip later, or after at most
// [WithHandoffs] handoffs, or at most a session timeout later if the retaining process is paused or
// cut off. A TryLock elsewhere waits up to half a second for the place; Curator and kazoo see a
// held lock. A Session retains at most 128 places; meanwhile, it sends requests as a holder does.
func WithRetention(d time.Duration) LockOption {
	return checked(func(c *setup) {
		c.retain, c.notElection, c.notGroup = d, "WithRetention", "WithRetention"
	}, d > 0, "WithRetention(%v): must be positive", d)
}

// WithLayout sets the znode names, to share the path with programs of another library. All
// programs of a path must name the same layout. [LayoutSelector] is for an Election alone. The
// default is [LayoutCurator].
func WithLayout(l Layout) LockOption {
	return option(func(c *setup) { c.layout = l })
}

// WithMaxHold ends a hold after d, as a loss with [LossGivenUp] (default: no limit). The next waiter
// is granted when the holder releases, or a tenth of the session timeout after the loss. A handoff
// starts d again. A process loses its read holds together, and its permits together; Do ends its
// own, Release and RUnlock the oldest.
func WithMaxHold(d time.Duration) LockOption {
	return checked(func(c *setup) {
		c.limits, c.notGroup = cmp.Or(c.limits, new(lock.Limits)), "WithMaxHold"
		c.limits.Max = d
	}, d > 0, "WithMaxHold(%v): must be positive", d)
}

// WithHealth calls f every third of the session timeout during a hold, with a context that ends
// after another third. If f fails, or has not returned by then, the hold ends as with
// [WithMaxHold], and the [LostError] has f's error. A hold that ends before the first call costs
// nothing. The default is no check.
func WithHealth(f func(ctx context.Context) error) LockOption {
	return checked(func(c *setup) {
		c.limits, c.notGroup = cmp.Or(c.limits, new(lock.Limits)), "WithHealth"
		c.limits.Health = f
	}, f != nil, "WithHealth: the function is nil")
}

// A Backoff paces attempts. The n'th pause is Min × Factorⁿ⁻¹, but at most Max: 100, 200, 400 ms
// with Min 100 ms. Each pause is shortened at random by up to the fraction Jitter. In [WithRetry],
// the first repetition has no pause.
type Backoff struct {
	Min, Max time.Duration
	Factor   float64 // at least 1; 0 means 2
	Jitter   float64 // from 0 to 1
}

// The method `check` returns the fault of b as an argument of the given option, or nil.
func (b Backoff) check(of string) error {
	switch {
	case b.Min <= 0 || b.Max < b.Min:
		return session.Invalid("%s: backoff from %v to %v; want 0 < Min <= Max", of, b.Min, b.Max)
	case b.Factor != 0 && b.Factor < 1 || math.IsNaN(b.Factor):
		return session.Invalid("%s: backoff factor %v; want at least 1", of, b.Factor)
	case b.Jitter < 0 || b.Jitter > 1 || math.IsNaN(b.Jitter):
		return session.Invalid("%s: backoff jitter %v; want from 0 to 1", of, b.Jitter)
	}
	return nil
}

// The rest of this file has the layouts of a line: the names that zsync, Curator, go-zookeeper
// and kazoo give to its znodes.

// A Layout is a choice of znode names, to share a path with other libraries.
type Layout int

const (
	LayoutCurator  Layout = iota // of Apache Curator and go-zookeeper's Lock; of Curator's LeaderLatch for an Election
	LayoutKazoo                  // of kazoo (Python): "<guid>__lock__<seq>"
	LayoutSelector               // of Curator's LeaderSelector, for elections only: "_c_<uuid>-lock-<seq>"
)

// String returns "curator", "kazoo" or "selector".
func (l Layout) String() string {
	return nameOf(l, "Layout", "curator", "kazoo", "selector")
}

// A QueueLayout selects the znodes of a Queue, to share its path with programs of other libraries.
// LayoutZsync, the default, gives all guarantees. The znodes of another layout express only some
// methods and options: the rest return [ErrInvalid] (docs/interop.md). There, an element is deleted
// before it is offered. If the process crashes, or the Session is closed while no server answers,
// up to [WithPrefetch] elements and all unsettled ones are lost.
type QueueLayout int

const (
	LayoutZsync            QueueLayout = iota // zsync's own, the default
	LayoutSimpleQueue                         // of Curator's SimpleDistributedQueue, without priorities
	LayoutDistributedQueue                    // of Curator's DistributedPriorityQueue, and of its DistributedQueue without a lock path
	LayoutKazooQueue                          // of kazoo's Queue
)

// String returns the name of the layout.
func (l QueueLayout) String() string {
	return nameOf(l, "QueueLayout", "zsync", "SimpleDistributedQueue", "DistributedQueue", "kazoo")
}
