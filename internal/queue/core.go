package queue

import (
	"fmt"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
)

// The type `core` is the Engine of zsync's own layout, see layout.go.
type core struct {
	*Common
	finder
	producer
	trace *trace.Writer // trace of the claims, or nil

	mu       sync.Mutex
	push     *pump     // pump of the present consumers; guarded by mu
	pull     *pump     // pump of Receive, which claims nothing ahead; guarded by mu
	claimant *claimant // the newest claimant, or nil; guarded by mu
}

// New returns the Engine of zsync's own layout. It does no I/O.
func New(m *session.Manager, cfg Settings) Engine {
	at := NewCommon(m, cfg, nil)
	q := &core{Common: at, producer: producer{Common: at, turn: make(chan struct{}, 1), full: make(chan struct{})}, trace: m.Trace}
	q.finder.Common = at
	q.finder.mark = func() string {
		q.mu.Lock()
		defer q.mu.Unlock()
		if c := q.claimant; c != nil && c.held.Err() == nil {
			return c.mark
		}
		return ""
	}
	return q
}

// The method `check` decodes an item. Its `fault` is then the reason why it must become a dead letter.
func (q *core) check(it *item) {
	value, fault := q.cfg.Decode(it.data)
	if it.misfit = fault != nil; it.misfit {
		it.fault = fault
		return
	}
	q.Skips.Fits()
	if n := q.cfg.MaxAttempts; n > 0 && it.attempts >= n {
		it.fault = fmt.Errorf("delivered %d times without success", it.attempts)
	}
	it.value = value
}

// zxidOf returns the zxid of the transaction of `rs`, or 0 if no response contains the zxid.
func zxidOf(rs []zk.MultiResponse) int64 {
	for _, r := range rs {
		if r.Stat != nil && r.Stat.Mzxid != 0 {
			return r.Stat.Mzxid
		}
	}
	return 0
}
