// Package testenv replaces Go's internal/testenv, which only Go's own packages can import. It has
// only the functions that the tests of package sync call.
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

// MustHaveExec does nothing, because the system can start processes: the test binary is one.
func MustHaveExec(testing.TB) {}

// SkipIfOptimizationOff does nothing, because the adapters do not count allocations.
func SkipIfOptimizationOff(testing.TB) {}
