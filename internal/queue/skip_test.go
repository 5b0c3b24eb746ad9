package queue

import (
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Some consumers find that several in a row do not decode, while another decodes one: in
// whatever order, the next that decodes lets go all that was left.
func TestElementThatIsLeftWhileAnotherDecodesIsSkippedOnlyUntilTheNextThatDecodes(t *testing.T) {
	for range 5000 {
		synctest.Test(t, func(t *testing.T) {
			s := &Skipper{Complain: func(error) {}}
			for range maxMisfits {
				if err := s.Misfit("9", errors.New("does not decode")); err != nil {
					t.Fatalf("one of the first that do not decode is left: %v", err)
				}
			}
			var wg sync.WaitGroup
			var left [4]bool
			for i := range left {
				wg.Go(func() { left[i] = s.Misfit(strconv.Itoa(i), errors.New("does not decode")) != nil })
			}
			wg.Go(s.Fits)
			wg.Wait()
			s.Fits()
			for i := range left {
				if s.Skipped(strconv.Itoa(i)) {
					t.Fatalf("element %d of those left, %v, is skipped though something decodes", i, left)
				}
			}
		})
	}
}

func TestElementsThatDoNotDecodeAreReportedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := 0
		s := &Skipper{Complain: func(error) { reports++ }}
		misfits := func() {
			for i := range 100 {
				s.Misfit(strconv.Itoa(i), errors.New("does not decode"))
			}
		}
		for minute := 1; minute < 4; minute++ {
			if misfits(); reports != minute {
				t.Errorf("%d reports after %d minutes", reports, minute-1)
			}
			time.Sleep(time.Minute)
		}
	})
}
