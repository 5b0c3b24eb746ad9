package harness

import (
	"iter"
	"os"
	"strconv"
	"testing"
)

// This file repeats random tests with different seeds, and lets a user repeat a single run.

// Seeds yields the seeds of a random test: 0 to short-1; as many as race under the race detector, or
// as long in a long run. ZSYNC_TEST_SEED names a single seed to run. After a failure, Seeds reports
// the seed and stops.
func Seeds(t testing.TB, short, race, long int) iter.Seq[int] {
	n := short
	switch {
	case Long():
		n = long
	case UnderRace:
		n = race
	}
	first := 0
	if only := os.Getenv("ZSYNC_TEST_SEED"); only != "" {
		seed, err := strconv.Atoi(only)
		if err != nil {
			t.Fatalf("ZSYNC_TEST_SEED: %v", err)
		}
		first, n = seed, seed+1
	}
	return func(yield func(int) bool) {
		for seed := first; seed < n; seed++ {
			if !try(t, seed, yield) {
				return
			}
		}
	}
}

// try yields a seed. The test may end in it.
func try(t testing.TB, seed int, yield func(int) bool) (goOn bool) {
	defer func() {
		if t.Failed() {
			t.Logf("ZSYNC_TEST_SEED=%d runs this one alone", seed)
		}
	}()
	return yield(seed) && !t.Failed()
}
