//go:build race

package zsync_test

// The race detector makes a test several times slower, and needs fewer runs of
// it to find what it looks for.
const underRace = true
