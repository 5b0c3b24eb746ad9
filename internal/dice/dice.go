// Package dice returns the library's random numbers, for pauses and for choices among equals. A
// program that must be repeatable calls Seed. Do not use the package for unique names or secrets.
package dice

import (
	"math/rand/v2"
	"sync"
	"time"
)

// The type `source` is a source of random numbers that is safe for concurrent use.
type source struct {
	mu  sync.Mutex
	rnd *rand.Rand // nil without a seed; guarded by mu
}

var seeded source

// Seed makes all later numbers depend only on the argument `seed` and on the order of the calls.
func Seed(seed uint64) {
	seeded.mu.Lock()
	defer seeded.mu.Unlock()
	seeded.rnd = rand.New(rand.NewPCG(seed, 0))
}

// Uint64 implements [rand.Source].
func (s *source) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rnd == nil {
		return rand.Uint64()
	}
	return s.rnd.Uint64()
}

// Rand returns a Rand whose state is in `seeded`, so each call may use a new Rand.
func Rand() *rand.Rand { return rand.New(&seeded) }

// Below returns a duration in [0, d). d must be positive.
func Below(d time.Duration) time.Duration { return time.Duration(Rand().Int64N(int64(d))) }
