//go:build !race

package gosync_test

var raceFlags []string
