//go:build race

package harness

// UnderRace reports whether the race detector is on. The detector makes a test several times
// slower, but needs fewer runs of the test to find a race.
const UnderRace = true
