package zsync

import (
	"context"
	"strconv"
	"time"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
)

type lockConfig struct {
	handoffs int
	retain   time.Duration // 0 without retention
	layout   Layout
	limits   limits
	err      error
}

// limits are set by WithMaxHold and WithHealth.
type limits struct {
	max    time.Duration
	health func(ctx context.Context) error
}

// ofLine returns the limits for a line, or nil without limits.
func (l limits) ofLine() *lock.Limits {
	if l.max == 0 && l.health == nil {
		return nil
	}
	return &lock.Limits{Max: l.max, Health: l.health, Lost: givenUp}
}

// A LockOption configures a Mutex, RWMutex or Semaphore. [WithMaxHold], [WithHealth] and
// [WithLayout] also configure an Election, and WithLayout a Group. With any other
// LockOption, their methods return [ErrInvalid].
type LockOption interface {
	applyLock(*lockConfig)
	ElectionOption
	GroupOption
}

// A lockOption is a LockOption with its name. election and group are nil if the option does
// not apply to them.
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

// An ElectionOption changes an Election. See [LockOption] for more.
type ElectionOption interface{ applyElection(*electionConfig) }

type electionOption func(*electionConfig)

func (o electionOption) applyElection(c *electionConfig) { o(c) }

type electionConfig struct {
	id     *string
	layout Layout
	limits limits
	prior  *int // the priority, if it was set
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

// defaultHandoffs is a compromise: while another process waits, a handoff costs a sixteenth
// of a handoff between processes, and the other process waits for at most 16 critical
// sections.
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

// WithHandoffs sets how many times in a row the goroutines that use one value may hand the
// lock over among themselves, without a round trip, while another process, or another value
// of the same path, waits. While no other contender waits, handoffs do not count. With 0,
// every goroutine takes its own place in the line, in the order of arrival across all
// processes. The default is 16.
func WithHandoffs(n int) LockOption {
	return lockOption{name: "WithHandoffs", lock: func(c *lockConfig) {
		if n < 0 {
			c.err = session.Invalid("WithHandoffs(%d): must not be negative", n)
		}
		c.handoffs = n
	}}
}

// WithRetention makes Unlock retain the place in the line for up to d, while no other
// contender waits. The next Lock in this process then sends no request. Use it for a lock
// that others seldom need. It applies to a Mutex, and to the write lock of an RWMutex. The
// default is no retention.
//
// When another contender comes, a watch event recalls the place: the process releases it at
// once or, if goroutines use the lock, after at most [WithHandoffs] handoffs. A hold is as
// safe as without retention: if the session is not confirmed for long enough, Lock waits in
// the line.
//
// The first contender waits for an event and a deletion: one more round trip of each
// process. A process that is paused or cut off retains its place for up to its session
// timeout. A TryLock elsewhere waits up to half a second for the place, and attempts of
// Curator and kazoo that do not wait see a lock that is held. A retained place confirms the
// session as a hold does. A Session retains at most 128 places. WithHandoffs(0) excludes
// WithRetention.
func WithRetention(d time.Duration) LockOption {
	return lockOption{name: "WithRetention", lock: func(c *lockConfig) {
		if d <= 0 {
			c.err = session.Invalid("WithRetention(%v): must be positive", d)
		}
		c.retain = d
	}}
}

// WithLayout sets the names of the znodes, to share the path with programs of another
// library. All programs that use a path must name the same layout. A lock, a Semaphore and
// a Group have LayoutCurator and LayoutKazoo; an Election also has LayoutSelector. The
// default is LayoutCurator.
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

// WithMaxHold ends a hold after d, as a loss with [LossGivenUp]. Without it, a holder that
// hangs but stays connected blocks every waiter. The next waiter is granted when the holder
// releases, or a tenth of the session timeout after the loss. Set d longer than the longest
// work. The default is no limit.
//
// A hold lasts from a grant to its release: each goroutine has d after a handoff. Readers
// of one process that read together lose together. Permits of a Semaphore that were
// acquired first count as released first, and a process loses all of its permits together.
// [Election.Run] campaigns again.
func WithMaxHold(d time.Duration) LockOption {
	var err error
	if d <= 0 {
		err = session.Invalid("WithMaxHold(%v): must be positive", d)
	}
	return limit("WithMaxHold", err, func(l *limits) { l.max = d })
}

// WithHealth calls f every third of the session timeout while the process holds. If f
// fails, or does not return in a third of the session timeout, when its context ends, the
// hold ends as with [WithMaxHold], and the [LostError] has f's error. Shorter holds cost
// nothing. The default is no check.
func WithHealth(f func(ctx context.Context) error) LockOption {
	var err error
	if f == nil {
		err = session.Invalid("WithHealth: the function is nil")
	}
	return limit("WithHealth", err, func(l *limits) { l.health = f })
}

// This file has the layouts of the znodes of a line: the names that zsync, Curator,
// go-zookeeper and kazoo give them. It does no I/O.

// A Layout is a choice of znode names, with which programs that use other libraries can
// share a path with zsync.
type Layout int

const (
	LayoutCurator  Layout = iota // of Apache Curator and go-zookeeper's Lock; of Curator's LeaderLatch for an Election
	LayoutKazoo                  // of kazoo (Python): "<guid>__lock__<seq>"
	LayoutSelector               // of Curator's LeaderSelector, for elections only: "_c_<uuid>-lock-<seq>"
)

// String returns "curator", "kazoo" or "selector".
func (l Layout) String() string {
	switch l {
	case LayoutCurator:
		return "curator"
	case LayoutKazoo:
		return "kazoo"
	case LayoutSelector:
		return "selector"
	}
	return "Layout(" + strconv.Itoa(int(l)) + ")"
}

// naming returns how a znode of the layout is named, up to its number.
func (l Layout) naming() func(guid, base string) string {
	if l == LayoutKazoo {
		return lock.KazooName
	}
	return session.ProtectedName
}
