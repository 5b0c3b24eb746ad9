package session

// This file chooses the next server to try, and the time of the attempt. Incarnation.serve makes the
// attempt.

import (
	"math"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/conn"
)

// The type `pacer` chooses the next server and the pause before it is tried. It tries every server
// once without a pause. After that, each round waits longer, until a connection has lasted. The
// lifetime of the last connection counts as a part of the pause, so a connection that was of some
// use is replaced at once.
type pacer struct {
	hosts []string
	retry RetryPolicy

	Mu        sync.Mutex
	Next      int       // index of the next server
	tries     int       // attempts since the last connection that lasted
	connected time.Time // time of the last attempt if it succeeded; else zero
}

// The method `pick` returns the next server that may be used, and the pause before that server is
// tried. The pause is at most `limit`. If no server may be used, addr is empty, and the pause is
// the pause of a round.
func (p *pacer) pick(limit time.Duration, mayUse func(addr string) bool) (addr string, delay time.Duration) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	var lived time.Duration
	if !p.connected.IsZero() {
		if lived = time.Since(p.connected); lived >= conn.Lasting {
			p.tries = 0
		}
		p.connected = time.Time{}
	}
	for range p.hosts { // a server that must not be used counts as tried
		next := p.hosts[p.Next%len(p.hosts)]
		p.Next++
		if p.tries%len(p.hosts) == 0 {
			delay = max(0, min(p.retry.Delay(p.tries/len(p.hosts)), limit)-lived)
		}
		p.tries++
		if mayUse(next) {
			return next, delay
		}
	}
	return "", delay
}

// After `again`, the next call of `pick` returns the same server as the last call.
func (p *pacer) again() {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Next += len(p.hosts) - 1
}

func (p *pacer) success() {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.connected = time.Now()
}

// The method `untried` returns the number of servers that have not been tried in this round. The
// server that `pick` returned last counts as not tried.
func (p *pacer) untried() int {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return len(p.hosts) - (p.tries+len(p.hosts)-1)%len(p.hosts)
}

func (inc *Incarnation) longestDelay() time.Duration {
	if inc.ID.Load() == 0 {
		return math.MaxInt64
	}
	// The session must not expire because the client makes too few attempts. This delay allows about 30
	// attempts before the session expires, and twice as many if there are holds.
	inc.LeaseMu.Lock()
	defer inc.LeaseMu.Unlock()
	parts := time.Duration(8)
	if inc.stakes > 0 {
		parts = 16
	}
	return min(inc.lookEvery(), max(inc.Lease.Left(time.Now(), inc.stakes > 0)/parts, 10*time.Millisecond))
}

func (inc *Incarnation) mayUse(addr string) bool {
	return !inc.trail.bars(addr, time.Duration(inc.Timeout.Load()))
}
