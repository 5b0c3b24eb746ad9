//go:build race

package harness

// UnderRace reports whether the race detector is on. It makes a test several
// times slower, and needs fewer runs of it to find what it looks for.
const UnderRace = true
