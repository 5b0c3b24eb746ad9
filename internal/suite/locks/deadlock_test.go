package locks

import (
	"context"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// An excluder is a primitive whose holders and those of others of its line exclude each other.
type excluder struct {
	run  func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error
	wait func(ctx context.Context, s *zsync.Session) error
}

var (
	kazoo    = zsync.WithLayout(zsync.LayoutKazoo)
	selector = zsync.WithLayout(zsync.LayoutSelector)
)

// The primitives of one line have znodes with the same names.
var lines = map[string]map[string]excluder{
	"lock-": {
		"Mutex": {func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
			return zsync.NewMutex(s, "/p").Do(ctx, f)
		}, func(ctx context.Context, s *zsync.Session) error { return zsync.NewMutex(s, "/p").Lock(ctx) }},
		"Election": {func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
			return zsync.NewElection(s, "/p", selector).Run(ctx, f)
		}, func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewElection(s, "/p", selector).Campaign(ctx)
		}},
		"Once": {func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
			return zsync.NewOnce(s, "/p").Do(ctx, f)
		}, func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewOnce(s, "/p").Do(ctx, func(context.Context) error { return nil })
		}},
		"Schedule": {func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
			_, err := zsync.NewSchedule(s, "/p").Do(ctx, time.Now(), f)
			return err
		}, func(ctx context.Context, s *zsync.Session) error {
			_, err := zsync.NewSchedule(s, "/p").Do(ctx, time.Now(), func(context.Context) error { return nil })
			return err
		}},
	},
	"__lock__": {
		"Mutex": {func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
			return zsync.NewMutex(s, "/p", kazoo).Do(ctx, f)
		}, func(ctx context.Context, s *zsync.Session) error { return zsync.NewMutex(s, "/p", kazoo).Lock(ctx) }},
		"Election": {func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
			return zsync.NewElection(s, "/p", kazoo).Run(ctx, f)
		}, func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewElection(s, "/p", kazoo).Campaign(ctx)
		}},
		"RWMutex": {func(ctx context.Context, s *zsync.Session, f func(ctx context.Context) error) error {
			return zsync.NewRWMutex(s, "/p", kazoo).Do(ctx, f)
		}, func(ctx context.Context, s *zsync.Session) error { return zsync.NewRWMutex(s, "/p", kazoo).RLock(ctx) }},
	},
}

// A function that waits for its own caller learns so, whichever primitive of the path it waits for.
func TestAWaitForItsOwnCallerIsADeadlockWhicheverPrimitiveOfThePathItIs(t *testing.T) {
	for line, kinds := range lines {
		for outer, o := range kinds {
			for inner, i := range kinds {
				t.Run(line+": "+inner+" in "+outer, func(t *testing.T) {
					harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
						s := suite.Open(t, srv)
						ctx, cancel := context.WithCancel(t.Context())
						var err error
						o.run(ctx, s, func(ctx context.Context) error {
							defer cancel()
							ctx, stop := context.WithTimeout(ctx, time.Minute)
							defer stop()
							err = i.wait(ctx, s)
							return nil
						})
						harness.WantErr(t, err, zsync.ErrDeadlock)
					})
				})
			}
		}
	}
}
