package lock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/session/sessiontest"
	"github.com/zsync/zsync/internal/trace"
	"github.com/zsync/zsync/internal/verify"
	"github.com/zsync/zsync/zktest"
)

// through returns n claims of a session, and what ends that.
func through(t *testing.T, n int) (cs []*Claim, end func(why error)) {
	m := &session.Manager{Closing: make(chan struct{})}
	inc := &session.Incarnation{Manager: m}
	var cancel context.CancelCauseFunc
	inc.Ctx, cancel = context.WithCancelCause(context.Background())
	for range n {
		cs = append(cs, &Claim{Line: &Line{Manager: m}, Hold: Hold{Incarnation: inc}, Unwatched: true})
	}
	return cs, func(why error) {
		cancel(why)
		go inc.Ended.End(why)
	}
}

func TestWhoIsGrantedAClaimAsItsSessionEndsIsToldOfTheLossAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := fmt.Errorf("%w: gone", session.ErrLost)
		cs, end := through(t, 3)
		before := cs[0].Grant("")
		defer synctest.Wait()
		if before.Loss().Done() == nil || session.IsClosed(before.Loss().Done()) {
			t.Fatal("lost already")
		}
		end(gone)
		granted := cs[1].Grant("") // whether or not those who were here have been told
		synctest.Wait()
		for i, g := range []*Grant{before, granted, cs[2].Grant("")} {
			if why := g.Loss().Cause(); !errors.Is(why, gone) {
				t.Errorf("%d: lost: %v", i, why)
			}
			if !session.IsClosed(g.Loss().Done()) {
				t.Errorf("%d: Lost is not closed", i)
			}
		}
	})
}

// The session ends before a release, and perhaps its hooks have not run yet.
func TestAReleaseReturnsTheLossThoughNoHookHasRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := fmt.Errorf("%w: gone", session.ErrLost)
		cs, end := through(t, 1)
		g := cs[0].Grant("")
		defer synctest.Wait()
		end(gone)
		if err := g.Release(); !errors.Is(err, gone) || !session.IsClosed(g.Loss().Done()) {
			t.Errorf("released with the error %v; Lost is closed: %v", err, session.IsClosed(g.Loss().Done()))
		}
	})
}

// A goroutine gets a hold at the moment of the hold's loss. The trace has one grant and one loss.
func TestAUseThatBeginsAfterTheLossIsNotInTheTrace(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		var out bytes.Buffer
		m := sessiontest.Open(t, srv.Addrs(), srv.Dial, func(cfg *session.Config) {
			cfg.Trace, cfg.Reason = &out, func(error) (string, time.Time) { return "deleted", time.Time{} }
		})
		line := mutexOf(m, "/l")
		line.Kind = trace.Mutex
		c, err := line.Acquire(t.Context())
		harness.Must(t, err)
		c.Grant("lock")
		c.Lose(c.Incarnation.Deleted())
		if g := c.Grant("lock"); g.Loss().Cause() == nil {
			t.Error("the second use is not lost")
		}
		m.Close()
		file, err := verify.Parse(&out, "")
		harness.Must(t, err)
		var events []string
		for _, l := range file.Lines {
			if l.Hold != "" {
				events = append(events, l.Event)
			}
		}
		if want := []string{trace.Grant, trace.Loss}; !slices.Equal(events, want) {
			t.Errorf("the trace has %q, want %q", events, want)
		}
	})
}

// The time of a use is over as the use ends, and the claim goes on with another use. Or the claim was released.
func TestALimitThatComesTooLateEndsNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := open(t, srv)
		c, err := mutexOf(m, "/l").Acquire(t.Context())
		harness.Must(t, err)
		g := c.Grant("lock")
		c.giveUp(nil, func() bool { return false })
		time.Sleep(harness.Timeout)
		stat, err := incarnation(t, m).Exists(t.Context(), c.Znode())
		harness.Must(t, err)
		if stat == nil || g.Err() != nil {
			t.Errorf("the znode exists: %v; the hold: %v", stat != nil, g.Err())
		}
		harness.Must(t, g.Release())
	})
}
