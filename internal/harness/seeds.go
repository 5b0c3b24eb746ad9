package harness

import (
	"iter"
	"os"
	"strconv"
	"testing"
)

// This file runs a random test with one seed after another, or with a single seed that a user has
// chosen. The random choices are the business of the test.

// Seeds yields the seeds of a random test, from 0. The arguments are the numbers of seeds for a
// short run, for a run under the race detector, and for a long run. If ZSYNC_TEST_SEED is set,
// Seeds yields only this seed. After a failure, Seeds logs the seed and stops.
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

// The function `try` yields a seed, and logs it if the test fails. The test can end during `yield`.
// In that case, `yield` does not return.
func try(t testing.TB, seed int, yield func(int) bool) (goOn bool) {
	defer func() {
		if t.Failed() {
			t.Logf("ZSYNC_TEST_SEED=%d runs this one alone", seed)
		}
	}()
	return yield(seed) && !t.Failed()
}
