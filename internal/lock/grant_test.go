package lock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/zsync/zsync/internal/session"
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
		if before.Lost() == nil || session.IsClosed(before.Lost()) {
			t.Fatal("lost already")
		}
		end(gone)
		granted := cs[1].Grant("") // whether or not those who were here have been told
		synctest.Wait()
		for i, g := range []*Grant{before, granted, cs[2].Grant("")} {
			if why := g.Loss().Cause(); !errors.Is(why, gone) {
				t.Errorf("%d: lost: %v", i, why)
			}
			if !session.IsClosed(g.Lost()) {
				t.Errorf("%d: Lost is not closed", i)
			}
		}
	})
}
