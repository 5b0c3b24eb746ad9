package zsync

import (
	"context"
	"time"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

type lockConfig struct {
	handoffs int
	retain   time.Duration // 0 if places are not kept
	layout   Layout
	limits   limits
	err      error
}

// limits are what WithMaxHold and WithHealth, or the like, have said.
type limits struct {
	max    time.Duration
	health func(ctx context.Context) error
}

// ofLine is l for a line, or nil if nothing was said.
func (l limits) ofLine() *line.Limits {
	if l.max == 0 && l.health == nil {
		return nil
	}
	return &line.Limits{Max: l.max, Health: l.health, Lost: givenUp}
}

// A LockOption changes a Mutex, RWMutex or Semaphore.
type LockOption func(*lockConfig)

// defaultHandoffs is a compromise: where others wait a local hand-over costs a
// sixteenth of what one to another process does, and no other process waits for more
// than so many critical sections.
const defaultHandoffs = 16

func newLockConfig(opts []LockOption) lockConfig {
	c := lockConfig{handoffs: defaultHandoffs}
	for i, o := range opts {
		if o == nil {
			c.err = session.Invalid("lock option %d is nil", i)
			continue
		}
		o(&c)
	}
	if c.err == nil && c.retain > 0 && c.handoffs == 0 {
		c.err = session.Invalid("WithRetention and WithHandoffs(0) exclude each other: a place that is kept is handed on")
	}
	return c
}

// WithHandoffs lets the goroutines that use one value pass the lock among
// themselves up to n times in a row while others wait: other processes, or
// other values of the same path in this one. Such a hand-over costs no round
// trip; a listing, asked for while some of them are still to come, tells whether
// somebody else waits. If nobody does, a watch that it sets tells when somebody
// comes, and hand-overs count from then on. With 0
// every goroutine takes its own place in the line, and the order is the order
// of arrival across all processes. The default is 16.
func WithHandoffs(n int) LockOption {
	return func(c *lockConfig) {
		if n < 0 {
			c.err = session.Invalid("WithHandoffs(%d): must not be negative", n)
		}
		c.handoffs = n
	}
}

// WithRetention has Unlock keep the place in the line, for up to d, while nobody
// else is there: the next Lock in this process costs no request. It is for a lock
// that one process takes again and again, and others rarely. It applies to a
// [Mutex], and to the write lock of an [RWMutex].
//
// Whoever else comes to the line recalls the place: a watch tells this process. If
// nobody has the lock then, the place is given up at once; otherwise it is handed
// on no more often than [WithHandoffs] says. A hold is as safe as any other: if
// the session is not certain to live for long enough, Lock goes to the line.
//
// What it costs others:
//
//   - The first who comes after Unlock waits for the notification and the deletion:
//     one round trip of each process more.
//   - A TryLock elsewhere cannot see whether the place is only kept. So it enters the
//     line, and reports false only when the place has not gone within half a second.
//     Attempts of Curator and kazoo that do not wait see a lock that is held.
//   - A process that is paused, or cut off, keeps what it does not use up to its
//     session timeout, as it keeps what it holds. That is why it must be asked for.
//
// Each Lock that goes to the line costs one more notification, when somebody comes or goes.
// While a place is kept the session is confirmed as if it were held. A Session keeps
// no more than 128 places; beyond that the one that was not used for longest goes.
// WithHandoffs(0), which wants the order of arrival among all, excludes it.
func WithRetention(d time.Duration) LockOption {
	return func(c *lockConfig) {
		if d <= 0 {
			c.err = session.Invalid("WithRetention(%v): must be positive", d)
		}
		c.retain = d
	}
}

// WithLayout chooses whose programs the path is shared with. The default is
// [LayoutCurator].
func WithLayout(l Layout) LockOption {
	return func(c *lockConfig) {
		if l != LayoutCurator && l != LayoutKazoo {
			c.err = session.Invalid("WithLayout(%v): unknown layout", l)
		}
		c.layout = l
	}
}

// WithMaxHold gives a hold up that has lasted for d, whatever its holder does: one
// that is hung but connected would keep everybody else waiting for ever. It is a
// loss like others, with [LossGivenUp]: Lost is closed, the context of Do ends, and
// the release says [ErrLost]. Others can be granted it once the holder has released
// it, or a tenth of the session timeout later, which is as long as a holder who is
// cut off has to stop. So d must be longer than what is done under the lock ever
// takes.
//
// A hold lasts from one grant to its release: goroutines that hand a lock on have
// d each. Readers of one process that read together lose together. Permits of a
// [Semaphore] are reckoned as if those that were acquired first were released
// first, and all that a process has are lost together. For an [Election] there is
// [WithMaxTerm].
func WithMaxHold(d time.Duration) LockOption {
	return func(c *lockConfig) {
		if d <= 0 {
			c.err = session.Invalid("WithMaxHold(%v): must be positive", d)
		}
		c.limits.max = d
	}
}

// WithHealth has f asked, every third of the session timeout, whether the process
// still does its work, as long as it holds. When f fails, or does not return
// within that time, at the end of which its context ends too, what is held is
// given up, as with [WithMaxHold]; the [LostError] has f's error. What is held for
// less than that costs nothing. For an [Election] there is [WithLeaderHealth].
func WithHealth(f func(ctx context.Context) error) LockOption {
	return func(c *lockConfig) {
		if f == nil {
			c.err = session.Invalid("WithHealth: the function is nil")
		}
		c.limits.health = f
	}
}
