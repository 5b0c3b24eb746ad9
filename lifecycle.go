package zsync

import (
	"context"
	"fmt"
	"time"
)

// connect waits for the first session. If there is none the manager is closed,
// and the error tells the last attempt.
func (m *manager) connect(ctx context.Context) error {
	_, err := m.live(ctx)
	if err == nil {
		return nil
	}
	m.fail(ErrClosed)
	select {
	case <-m.ended:
	case <-time.After(grace): // a dialer that hangs ends by itself
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dialErr != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w (last attempt: %v)", err, m.dialErr)
	}
	return err
}

// shutdown ends the session for good, and returns when all goroutines of m have
// ended.
func (m *manager) shutdown() {
	m.sayFarewell()
	m.fail(ErrClosed)
	<-m.ended
}

// present returns the incarnation that has not ended, or nil.
func (m *manager) present() *incarnation {
	m.mu.Lock()
	inc := m.cur
	m.mu.Unlock()
	if inc == nil || inc.ctx.Err() != nil {
		return nil
	}
	return inc
}

// granted returns the timeout of the present session, or 0 while there is none.
func (m *manager) granted() time.Duration {
	if inc := m.present(); inc != nil && inc.id.Load() != 0 {
		return time.Duration(inc.timeout.Load())
	}
	return 0
}

// certain returns how much longer the present session is certain to live.
func (m *manager) certain() time.Duration {
	if inc := m.present(); inc != nil {
		return inc.certain()
	}
	return 0
}

// sessionID returns the id of the present session, or 0 while there is none.
func (m *manager) sessionID() int64 {
	if inc := m.present(); inc != nil {
		return inc.id.Load()
	}
	return 0
}

// presentState returns what the session is doing.
func (m *manager) presentState() state {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// counters are what a manager counts.
type counters struct {
	Requests   int64 // sent, without pings and handshakes
	Watches    int64 // of the present session
	Reconnects int64 // connections replaced within a session
	Expiries   int64 // sessions lost
	Holds      int64 // at present
	Waiters    int64 // for a hold, at present
}

func (m *manager) counters() counters {
	c := counters{
		Requests:   m.requests.Load(),
		Reconnects: m.reconnects.Load(),
		Expiries:   m.expiries.Load(),
		Holds:      m.holds.Load(),
		Waiters:    m.waiters.Load(),
	}
	if inc := m.present(); inc != nil {
		c.Watches = int64(inc.hub.len())
	}
	return c
}
