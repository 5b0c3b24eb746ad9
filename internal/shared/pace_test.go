package shared

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

func TestWhatAPaceKeepsIsDueOnceInTheStatedTimeAndForgottenAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Pace
		for range 3 {
			for range 2 {
				if !p.Due("a", time.Minute) || p.Due("a", time.Minute) {
					t.Fatal("not due, or due twice")
				}
				time.Sleep(time.Minute)
			}
			for i := range 1000 {
				p.Due(fmt.Sprint(i), time.Second)
			}
			time.Sleep(time.Second)
		}
		if !p.Due("never again", math.MaxInt64) || len(p.next) > 2 {
			t.Errorf("%d keys are remembered", len(p.next))
		}
		time.Sleep(100 * 365 * 24 * time.Hour)
		if p.Due("never again", math.MaxInt64) {
			t.Error("due again")
		}
	})
}

func TestWhatIsSaidToBeDueAgainIsDueThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Pace
		if !p.Due("a", math.MaxInt64) {
			t.Error("not due at first")
		}
		p.Again("a", time.Minute)
		if p.Due("a", time.Minute) {
			t.Error("due at once")
		}
		time.Sleep(time.Minute)
		if !p.Due("a", time.Minute) {
			t.Error("not due when its time had come")
		}
	})
}
