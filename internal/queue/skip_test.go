package queue

import (
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
)

// Some consumers find that several in a row do not decode, while another decodes one: in
// whatever order, the next that decodes lets go all that was left.
func TestElementThatIsLeftWhileAnotherDecodesIsSkippedOnlyUntilTheNextThatDecodes(t *testing.T) {
	for range 5000 {
		synctest.Test(t, func(t *testing.T) {
			s := &skipper{complain: func(error) {}}
			for range maxMisfits {
				if err := s.misfit("", errors.New("does not decode")); err != nil {
					t.Fatalf("one of the first that do not decode is left: %v", err)
				}
			}
			var wg sync.WaitGroup
			var left [4]bool
			for i := range left {
				wg.Go(func() { left[i] = s.misfit(strconv.Itoa(i), errors.New("does not decode")) != nil })
			}
			wg.Go(s.fits)
			wg.Wait()
			s.fits()
			for i := range left {
				if s.skipped(strconv.Itoa(i)) {
					t.Fatalf("element %d of those left, %v, is skipped though something decodes", i, left)
				}
			}
		})
	}
}
