package zsync

import (
	"context"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/tally"
)

// What tests from outside have to see of the inside.

var ParseServers = parseServers

// CurrentGrant returns the present hold of m.
func CurrentGrant(m *Mutex) (*lock.Grant, error) { return m.current(nil) }

// CondMark returns the operation that wakes the longest waiter of c, and the
// parent of its receipt.
func CondMark(ctx context.Context, c *Cond) (dir string, mark []any, err error) {
	waiting, err := c.unwoken(ctx)
	if err != nil {
		return "", nil, err
	}
	return c.line.Dir, c.mark(waiting[0], ""), nil
}

// SwapBlindly is CompareAndSwap without the look that it begins with.
func SwapBlindly[T any](ctx context.Context, v *Value[T], old Version, data []byte) (bool, error) {
	err := v.commit(ctx, v.write(session.Node{Stat: &zk.Stat{Version: old.version}}, data)...)
	if session.IsBadVersion(err) || session.IsNoNode(err) {
		return false, nil
	}
	return err == nil, err
}

// KeptTallies returns how many tallies s keeps.
func KeptTallies(s *Session) (n int) {
	for key := range s.m.Attached.Range {
		if t, ok := key.(*tally.Tally); ok && t != nil {
			n++
		}
	}
	return n
}

// SetSkew sets how much the clock of c is ahead.
func SetSkew(c *Schedule, skew time.Duration) { c.skew.Store(int64(skew)) }

// Fresh reports whether a Flight of this keep shares a result with a caller.
func Fresh(keep time.Duration, came, stored *zk.Stat) bool {
	return (&Flight[int]{keep: keep}).fresh(came, stored)
}

// ThroughTheGate has the next Acquire of m not try to do without the gate.
func ThroughTheGate(m *Semaphore) { m.calm.Store(false) }
