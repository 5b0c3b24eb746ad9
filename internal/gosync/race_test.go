//go:build race

package gosync_test

// raceFlags has the borrowed tests built as this test is.
var raceFlags = []string{"-race"}
