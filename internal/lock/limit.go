package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// Limits end a hold of a process that is connected but may be hung.
type Limits struct {
	Max    time.Duration                                       // longest duration of a hold; 0 means no limit
	Health func(ctx context.Context) error                     // called during a hold, if not nil
	Lost   func(session int64, why error, now time.Time) error // makes the ErrLost
}

// errUnhealthy means that a health function did not return in time.
var errUnhealthy = errors.New("WithHealth: the function did not return in time")

// Guard calls l.Health every third of the session timeout of inc, until end is closed. If a call
// fails, or has not returned when the next is due, Guard calls giveUp once.
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

// ask calls Health once. It does not wait for a call that hangs.
func (l *Limits) ask(period time.Duration, inc *session.Incarnation, end <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), period)
	defer cancel()
	healthy := make(chan error, 1)
	go func() { healthy <- l.Health(ctx) }()
	// A result at the last moment may count or not. If the hold has ended during the call, giveUp
	// does nothing.
	select {
	case err := <-healthy:
		if err != nil {
			err = fmt.Errorf("WithHealth: %w", err)
		}
		return err
	case <-ctx.Done():
		return errUnhealthy
	case <-end:
	case <-inc.Ctx.Done():
	}
	return nil
}
