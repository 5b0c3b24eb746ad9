// Package dice draws the random numbers of the library: pauses, and choices among equals. A program
// that must be repeatable seeds it. Do not use it for unique names or secrets.
package dice

import (
	"math/rand/v2"
	"sync"
	"time"
)

// A source may be used by several goroutines at once.
type source struct {
	mu  sync.Mutex
	rnd *rand.Rand // nil without a seed; guarded by mu
}

var seeded source

// Seed makes all later numbers depend only on seed and on the order of the calls.
func Seed(seed uint64) {
	seeded.mu.Lock()
	defer seeded.mu.Unlock()
	seeded.rnd = rand.New(rand.NewPCG(seed, 0))
}

// Uint64 lets source be the source of a [rand.Rand].
func (s *source) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rnd == nil {
		return rand.Uint64()
	}
	return s.rnd.Uint64()
}

// draw returns a Rand that draws from seeded. It has no state of its own, so each number may have
// another Rand.
func draw() *rand.Rand { return rand.New(&seeded) }

// Below returns a duration in [0, d). d must be positive.
func Below(d time.Duration) time.Duration { return time.Duration(draw().Int64N(int64(d))) }

// IntN returns a number in [0, n). n must be positive.
func IntN(n int) int { return draw().IntN(n) }

// Float64 returns a number in [0, 1).
func Float64() float64 { return draw().Float64() }

// Shuffle puts n things in a random order.
func Shuffle(n int, swap func(i, j int)) { draw().Shuffle(n, swap) }
