package line

import (
	"math"
	"slices"
	"testing"
)

func TestSequenceOrderSurvivesWrap(t *testing.T) {
	for _, tt := range []struct {
		a, b   int32
		before bool
	}{
		{0, 1, true}, {1, 0, false}, {5, 5, false},
		{math.MaxInt32, math.MinInt32, true}, // the wrap itself
		{math.MinInt32, math.MaxInt32, false},
		{math.MaxInt32 - 10, math.MinInt32 + 10, true},
		{-1, 0, true},
	} {
		if got := (Child{Seq: tt.a}).before(Child{Seq: tt.b}); got != tt.before {
			t.Errorf("child %d before %d: got %v, want %v", tt.a, tt.b, got, tt.before)
		}
	}
	got := ParseChildren([]string{
		"_c_b-lock--2147483648", "_c_a-lock-2147483647", "_c_c-lock--2147483647",
	}, "lock-")
	var order []string
	for _, c := range got {
		order = append(order, c.Name)
	}
	want := []string{"_c_a-lock-2147483647", "_c_b-lock--2147483648", "_c_c-lock--2147483647"}
	if !slices.Equal(order, want) {
		t.Errorf("order across the wrap: got %v, want %v", order, want)
	}
}
