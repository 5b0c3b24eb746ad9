package zsync

import (
	"github.com/zsync/zsync/internal/session"
)

type lockConfig struct {
	handoffs int
	layout   Layout
	err      error
}

// A LockOption changes a Mutex, RWMutex or Semaphore.
type LockOption func(*lockConfig)

// defaultHandoffs is a compromise: an eighth of the local hand-overs' speed is
// lost to asking whether somebody else waits, and no other process waits for
// more than so many critical sections.
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
	return c
}

// WithHandoffs lets the goroutines that use one value pass the lock among
// themselves up to n times in a row while others wait: other processes, or
// other values of the same path in this one. Such a hand-over costs no round
// trip; after n of them one listing tells whether somebody else waits. With 0
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
