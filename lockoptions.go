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

// limits are those of WithMaxHold and WithHealth.
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

// A LockOption changes a Mutex, RWMutex or Semaphore. [WithMaxHold], [WithHealth] and
// [WithLayout] change an Election too, and WithLayout changes a Group. An Election or a Group that
// is given another LockOption is refused with [ErrInvalid].
type LockOption interface {
	applyLock(*lockConfig)
	ElectionOption
	GroupOption
}

// A lockOption is a LockOption with its name. election and group are nil if the option does not
// apply to these.
type lockOption struct {
	name     string
	lock     func(*lockConfig)
	election func(*electionConfig)
	group    func(*groupConfig)
}

func (o lockOption) applyLock(c *lockConfig) { o.lock(c) }

func (o lockOption) applyElection(c *electionConfig) {
	if o.election == nil {
		c.err = session.Invalid("%s is no option of an Election", o.name)
		return
	}
	o.election(c)
}

func (o lockOption) applyGroup(c *groupConfig) {
	if o.group == nil {
		c.err = session.Invalid("%s is no option of a Group", o.name)
		return
	}
	o.group(c)
}

// An ElectionOption changes an Election. [WithLayout], [WithMaxHold] and [WithHealth] are options of
// an Election too.
type ElectionOption interface{ applyElection(*electionConfig) }

type electionOption func(*electionConfig)

func (o electionOption) applyElection(c *electionConfig) { o(c) }

type electionConfig struct {
	id     *string
	layout Layout
	limits limits
	prior  *int // the priority, if it was said
	err    error
}

func newElectionConfig(opts []ElectionOption) electionConfig {
	var c electionConfig
	for i, o := range opts {
		if o == nil {
			c.err = session.Invalid("election option %d is nil", i)
			continue
		}
		o.applyElection(&c)
	}
	return c
}

// electionBases is what marks a candidate's znode, by layout.
var electionBases = map[Layout]string{
	LayoutCurator:  "latch-",
	LayoutSelector: "lock-",
	LayoutKazoo:    "__lock__",
}

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
		o.applyLock(&c)
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
	return lockOption{name: "WithHandoffs", lock: func(c *lockConfig) {
		if n < 0 {
			c.err = session.Invalid("WithHandoffs(%d): must not be negative", n)
		}
		c.handoffs = n
	}}
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
// no more than 128 places; beyond that Unlock keeps none.
// WithHandoffs(0), which wants the order of arrival among all, excludes it.
func WithRetention(d time.Duration) LockOption {
	return lockOption{name: "WithRetention", lock: func(c *lockConfig) {
		if d <= 0 {
			c.err = session.Invalid("WithRetention(%v): must be positive", d)
		}
		c.retain = d
	}}
}

// WithLayout chooses the library with whose programs a path is shared. The default is
// [LayoutCurator]. A lock, a Semaphore and a Group have LayoutCurator and [LayoutKazoo]. An Election
// also has [LayoutSelector]; its LayoutCurator is Curator's LeaderLatch. All programs that use a path
// must name the same layout.
func WithLayout(l Layout) LockOption {
	two := l == LayoutCurator || l == LayoutKazoo
	unknown := func(of string) error {
		return session.Invalid("WithLayout(%v): %s has LayoutCurator or LayoutKazoo", l, of)
	}
	return lockOption{
		name: "WithLayout",
		lock: func(c *lockConfig) {
			if !two {
				c.err = unknown("a lock")
			}
			c.layout = l
		},
		election: func(c *electionConfig) {
			if electionBases[l] == "" {
				c.err = session.Invalid("WithLayout(%v): unknown layout", l)
			}
			c.layout = l
		},
		group: func(c *groupConfig) {
			if !two {
				c.err = unknown("a Group")
			}
			c.kazoo = l == LayoutKazoo
		},
	}
}

// limit is an option of locks and elections that sets a limit of their holds.
func limit(name string, err error, set func(*limits)) LockOption {
	return lockOption{
		name: name,
		lock: func(c *lockConfig) {
			if set(&c.limits); err != nil {
				c.err = err
			}
		},
		election: func(c *electionConfig) {
			if set(&c.limits); err != nil {
				c.err = err
			}
		},
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
// first, and all that a process has are lost together.
// A leadership is limited likewise: [Election.Run] campaigns again at once if the leader is not hung.
func WithMaxHold(d time.Duration) LockOption {
	var err error
	if d <= 0 {
		err = session.Invalid("WithMaxHold(%v): must be positive", d)
	}
	return limit("WithMaxHold", err, func(l *limits) { l.max = d })
}

// WithHealth has f asked, every third of the session timeout, whether the process
// still does its work, as long as it holds. When f fails, or does not return
// within that time, at the end of which its context ends too, what is held is
// given up, as with [WithMaxHold]; the [LostError] has f's error. What is held for
// less than that costs nothing.
func WithHealth(f func(ctx context.Context) error) LockOption {
	var err error
	if f == nil {
		err = session.Invalid("WithHealth: the function is nil")
	}
	return limit("WithHealth", err, func(l *limits) { l.health = f })
}
