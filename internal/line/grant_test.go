package line

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/zsync/zsync/internal/session"
)

// through returns n claims of a session, and what ends that.
func through(n int) (inc *session.Incarnation, cs []*Claim, end context.CancelCauseFunc) {
	m := &session.Manager{Closing: session.ClosedChan}
	inc = &session.Incarnation{Manager: m}
	inc.Ctx, end = context.WithCancelCause(context.Background())
	for range n {
		cs = append(cs, &Claim{Line: &Line{Manager: m}, Incarnation: inc, Unwatched: true})
	}
	return inc, cs, end
}

func TestWhatIsHeldThroughASessionIsListedOnceWhateverTheOrderInWhichItComesAndGoes(t *testing.T) {
	inc, cs, end := through(20)
	defer end(session.ErrLost)
	h, held := heldThrough(inc), make(map[*Claim]bool)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		c := cs[r.IntN(len(cs))]
		if held[c] || r.IntN(8) == 0 { // also what is not there is removed: a release may be told twice
			h.remove(c)
			delete(held, c)
		} else {
			h.add(c)
			held[c] = true
		}
		listed := make(map[*Claim]bool)
		for _, c := range h.all {
			listed[c] = true
			if !held[c] {
				t.Fatalf("after %d steps: what was released is listed", i)
			}
		}
		if len(listed) != len(held) || len(h.all) != len(held) {
			t.Fatalf("after %d steps: %d are listed, %d times, of %d", i, len(listed), len(h.all), len(held))
		}
	}
}

func TestWhoIsGrantedAClaimAsItsSessionEndsIsToldOfTheLossAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := fmt.Errorf("%w: gone", session.ErrLost)
		_, cs, end := through(3)
		before := cs[0].Grant("")
		defer synctest.Wait()
		if before.Lost() == nil || session.IsClosed(before.Lost()) {
			t.Fatal("lost already")
		}
		end(gone)
		granted := cs[1].Grant("") // whether or not those who were here have been told
		synctest.Wait()
		for i, g := range []*Grant{before, granted, cs[2].Grant("")} {
			if lost, why := g.IsLost(); !lost || !errors.Is(why, gone) {
				t.Errorf("%d: lost is %t: %v", i, lost, why)
			}
			if !session.IsClosed(g.Lost()) {
				t.Errorf("%d: Lost is not closed", i)
			}
		}
	})
}
