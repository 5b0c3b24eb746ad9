package line

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// Limits are what ends a hold of a process that is connected, and may be hung.
type Limits struct {
	Max    time.Duration                                       // how long a hold may last; 0 is for ever
	Health func(ctx context.Context) error                     // asked while something is held, if not nil
	Lost   func(session int64, why error, now time.Time) error // makes the ErrLost
}

// errUnhealthy means that a health function did not return in time.
var errUnhealthy = errors.New("the health function did not return in time")

// Guard asks l.Health every third of the session timeout of inc, until end is
// closed, and calls giveUp, once, when that fails, or has not returned by the time
// of the next.
func (l *Limits) Guard(inc *session.Incarnation, end <-chan struct{}, giveUp func(why error)) {
	if l == nil || l.Health == nil {
		return
	}
	inc.Manager.Spawn(func() {
		period := time.Duration(inc.Timeout.Load() / 3)
		for {
			select {
			case <-time.After(period):
			case <-end:
				return
			case <-inc.Ctx.Done():
				return
			}
			if err := l.ask(period, inc, end); err != nil {
				giveUp(err)
				return
			}
		}
	})
}

// ask is one call of Health. It does not wait for one that hangs: nothing could
// be done about it.
func (l *Limits) ask(period time.Duration, inc *session.Incarnation, end <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), period)
	defer cancel()
	healthy := make(chan error, 1)
	go func() { healthy <- l.Health(ctx) }()
	// An answer that comes at the last moment may count or not. Where the hold
	// has ended meanwhile, giveUp finds nothing to give up.
	select {
	case err := <-healthy:
		if err != nil {
			err = fmt.Errorf("the health function failed: %w", err)
		}
		return err
	case <-ctx.Done():
		return errUnhealthy
	case <-end:
	case <-inc.Ctx.Done():
	}
	return nil
}
