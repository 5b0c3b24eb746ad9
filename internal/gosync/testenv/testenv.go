// Package testenv stands in for Go's internal/testenv, which only Go itself can
// import.
package testenv

import (
	"os"
	"testing"
)

// Executable returns the path of the test binary.
func Executable(t testing.TB) string {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// MustHaveExec does nothing: the test binary is a child process itself.
func MustHaveExec(testing.TB) {}

// SkipIfOptimizationOff does nothing: it goes before a count of allocations,
// which is not made here.
func SkipIfOptimizationOff(testing.TB) {}
