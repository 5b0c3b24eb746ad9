package explore

import (
	"fmt"
	"strings"
	"testing"
)

func TestEachWayIsTakenOnce(t *testing.T) {
	got := make(map[string]int)
	found := All(100, func(r *Run) {
		way := fmt.Sprint(r.Pick(2))
		if way == "1" {
			way += fmt.Sprint(r.Pick(3), r.Pick(2))
		}
		got[way]++
	})
	if len(got) != 7 || found.Runs != 7 || found.Cut {
		t.Errorf("%v, %+v", got, found)
	}
	if found := All(6, func(r *Run) { r.Pick(7) }); !found.Cut || found.Runs != 6 {
		t.Errorf("limit of 6 among 7: %+v", found)
	}
}

func TestAStateIsLeftOnce(t *testing.T) {
	// Two counters to 10, in any order: 121 states, of which each has at most two ways on.
	found := All(1000, func(r *Run) {
		for n := [2]int{}; ; {
			r.At(func() string { return fmt.Sprint(n) })
			if n[0]+n[1] == 20 {
				return
			}
			i := r.Pick(2)
			if n[i] == 10 {
				i = 1 - i
			}
			n[i]++
		}
	})
	if found.States != 121 || found.Cut {
		t.Errorf("%+v", found)
	}
}

func TestAViolationTellsWhatLedToIt(t *testing.T) {
	found := All(1000, func(r *Run) {
		sum := 0
		for range 3 {
			n := r.Pick(5)
			r.Note("plus %d", n)
			if sum += n; sum == 11 {
				r.Fail("the sum is %d", sum)
			}
		}
	})
	if want := "the sum is 11\n  plus 3\n  plus 4\n  plus 4"; !strings.HasPrefix(found.Fault, want) {
		t.Errorf("%q", found.Fault)
	}
}

func TestARunThatDoesNotRepeatAnEarlierOneIsAFaultOrIsMadeAgain(t *testing.T) {
	strays := func(times int) func(r *Run) {
		runs := 0
		return func(r *Run) {
			r.Pick(2)
			if runs++; runs > 1 && runs <= 1+times {
				r.Pick(3) // here, the first run has picked among two
			}
			r.Pick(2)
		}
	}
	// After three runs, the first run is the one that differs, so the exploration begins anew.
	for times := range 4 {
		if found := Retrying(100, 2, strays(times)); found.Runs != 4 || found.Cut {
			t.Errorf("%d runs stray: %+v", times, found)
		}
	}
	other := 1
	neverTheSame := func(r *Run) {
		other++
		r.Pick(other)
	}
	for name, explore := range map[string]func(){
		"All":      func() { All(100, strays(1)) },
		"Retrying": func() { Retrying(100, 2, neverTheSame) },
	} {
		func() {
			defer func() {
				if p := recover(); p == nil {
					t.Errorf("%s accepts a run that does not repeat an earlier one", name)
				}
			}()
			explore()
		}()
	}
}
