//go:build !race

package zsync

const underRace = false
