package dice

import (
	"slices"
	"testing"
	"time"
)

func TestASeedDrawsTheSameNumbersAgain(t *testing.T) {
	draws := func() (ns []int) {
		Seed(7)
		for range 50 {
			ns = append(ns, Rand().IntN(1000), int(Below(time.Second)), int(1e9*Rand().Float64()))
		}
		order := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
		Rand().Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		return append(ns, order...)
	}
	if one, two := draws(), draws(); !slices.Equal(one, two) {
		t.Errorf("the seed drew %v, and then %v", one, two)
	}
}
