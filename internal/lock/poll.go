package lock

import (
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// A poll calls a function repeatedly while a contender waits. Each call has a goroutine of its
// own. Between two calls, a poll needs only a timer.
type poll struct {
	manager *session.Manager
	f       func(p *poll) (next time.Duration)

	mu    sync.Mutex
	timer *time.Timer   // guarded by mu
	runs  bool          // a call has begun, or a goroutine will begin it; guarded by mu
	ended bool          // guarded by mu
	over  chan struct{} // if not nil, closed when no call runs after end; guarded by mu
}

// never is returned by the function to end its poll.
const never time.Duration = -1

// newPoll calls f after first, and then again after each duration that f returns.
func newPoll(m *session.Manager, first time.Duration, f func(p *poll) (next time.Duration)) *poll {
	p := &poll{manager: m, f: f}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(first, p.fire)
	return p
}

func (p *poll) fire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.runs = true
		p.manager.Spawn(p.call)
	}
}

func (p *poll) call() {
	next := p.f(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs = false
	switch {
	case p.over != nil:
		close(p.over)
	case !p.ended && next >= 0:
		p.timer.Reset(next)
	}
}

// end ends p. It does not wait for a call that runs: over is closed after that call.
func (p *poll) end() (over <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.timer.Stop() // if the timer has fired, fire has begun a call before, or finds p ended
	switch {
	case p.over != nil:
	case p.runs:
		p.over = make(chan struct{})
	default:
		return session.ClosedChan
	}
	return p.over
}

// Stop is end for a caller that does not wait.
func (p *poll) Stop() { p.end() }

func (p *poll) hasEnded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}
