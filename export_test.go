package zsync

import (
	"context"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/double"
	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// What tests from outside have to see of the inside.

var (
	ParseServers = parseServers
	SwapOps      = session.SwapOps
)

func (m *made) sessionOf() *Session { return m.s }

// SessionOf returns the Session of a primitive.
func SessionOf(primitive interface{ sessionOf() *Session }) *Session { return primitive.sessionOf() }

// ManagerOf returns what stands behind s.
func ManagerOf(s *Session) *session.Manager { return s.m }

// CurrentGrant returns the present hold of m.
func CurrentGrant(m *Mutex) (*line.Grant, error) { return m.current() }

// SemaphoreZnodes returns the parents of the znodes of the permits of m and of
// those who stand at its gate.
func SemaphoreZnodes(m *Semaphore) (leases, gate string) { return m.s.m.Bare(m.leases), m.gate.path }

// CondMark returns the operation that wakes the longest waiter of c, and the
// parent of its receipt.
func CondMark(ctx context.Context, c *Cond) (dir string, mark []any, err error) {
	waiting, err := c.waiting(ctx)
	if err != nil {
		return "", nil, err
	}
	return c.line.Dir, c.mark(waiting[0], ""), nil
}

// SwapBlindly is CompareAndSwap without the look that it begins with.
func SwapBlindly[T any](ctx context.Context, v *Value[T], old Version, data []byte) (bool, error) {
	return v.swap(ctx, old, data)
}

// DoubleOf returns the double barrier of wg.
func DoubleOf(wg *WaitGroup) *double.Barrier { return wg.double }

// KeptTallies returns how many tallies s keeps.
func KeptTallies(s *Session) int { return s.tallies.Kept() }

// SetSkew sets how much the clock of c is ahead.
func SetSkew(c *Schedule, skew time.Duration) { c.skew.Store(int64(skew)) }

// Fresh reports whether a Flight of this keep shares a result with a caller.
func Fresh(keep time.Duration, came, stored *zk.Stat) bool {
	return (&Flight[int]{keep: keep}).fresh(came, stored)
}

// ThroughTheGate has m not try to do without its gate.
func ThroughTheGate(m *Semaphore) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.need = 1 << 30
}
