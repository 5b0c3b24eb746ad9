//go:build !race

package zsync_test

const underRace = false
