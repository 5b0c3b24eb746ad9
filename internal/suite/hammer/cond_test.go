package hammer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// The invariant of the hammer: with as many signals as waiters, none of which
// gives up, all wake, whatever happens to sessions; one that gives up does not
// take a signal with it. A signal that were lost would leave one asleep.
func TestHammerCond(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		sessions := suite.OpenEach(t, srv, 4)
		harness.UnderChaos(t, srv, rnd, sessions, func() { hammerCond(t, rnd, sessions) })
		time.Sleep(3 * harness.Timeout)
		// A signal is left only if all who could take it have gone; the next
		// who lists the line deletes it.
		harness.Must(t, newCond(sessions[0]).Signal(t.Context()))
		time.Sleep(2 * time.Minute) // the logs of Signals are kept for a minute
		tree := harness.Plain(t, srv)
		if got := append(harness.Children(t, tree, "/c"), harness.Children(t, tree, "/l")...); len(got) != 0 {
			t.Errorf("%q are left", got)
		}
	})
}

func newCond(s *zsync.Session) *zsync.Cond { return zsync.NewCond(s, "/c", zsync.NewMutex(s, "/l")) }

func hammerCond(t *testing.T, rnd *rand.Rand, sessions []*zsync.Session) {
	const waiters = 8
	ctx := t.Context()
	var wg, lasting sync.WaitGroup
	var entered atomic.Int32
	for i := range waiters {
		c := newCond(sessions[i%len(sessions)])
		patience := time.Hour
		if rnd.IntN(3) == 0 {
			patience = time.Duration(rnd.IntN(40_000)) * time.Millisecond
		} else {
			lasting.Add(1)
		}
		wg.Go(func() {
			if patience == time.Hour {
				defer lasting.Done()
			}
			limit, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			err := c.L.Lock(limit)
			entered.Add(1)
			if err == nil {
				err = c.Wait(limit)
			}
			if err == nil {
				err = c.L.Unlock()
			}
			if err != nil && limit.Err() == nil && !errors.Is(err, zsync.ErrLost) {
				t.Error(err)
			}
		})
	}
	for entered.Load() < waiters {
		time.Sleep(100 * time.Millisecond) // real time: a poll, also on real servers
	}
	// All are in Wait once the lock can be had.
	m := zsync.NewMutex(sessions[0], "/l")
	for m.Lock(ctx) != nil || m.Unlock() != nil {
	}
	for i := range waiters {
		if err := newCond(sessions[i%len(sessions)]).Signal(ctx); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond) // real time: the pause between signals, also on real servers
	}
	lasting.Wait()
	wg.Wait()
}

func TestHammerCondOnServers(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		sessions := []*zsync.Session{connect(), connect(), connect()}
		start := time.Now()
		for round := 0; time.Since(start) < time.Minute; round++ {
			hammerCond(t, rand.New(rand.NewPCG(uint64(round), 1)), sessions)
		}
		fmt.Fprintln(t.Output(), "done")
	})
}
