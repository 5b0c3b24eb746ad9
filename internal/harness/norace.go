//go:build !race

package harness

// UnderRace reports whether the race detector is on.
const UnderRace = false
