// Package need is for tests that use programs which may not be installed.
package need

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Env names the variable that lists, with blanks between them, the programs
// that are known to be installed. A test may not be skipped for want of one of
// these: .ci/run installs what it can, and names it here.
const Env = "CI_INSTALLED"

// Command returns where a program is. If it is not there the test is skipped,
// or fails where it is known to be installed.
func Command(tb testing.TB, name string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(tb, name, err.Error())
	}
	return path
}

// Missing skips the test for want of a program, or fails it where that is known
// to be installed.
func Missing(tb testing.TB, name, why string) {
	tb.Helper()
	if slices.Contains(strings.Fields(os.Getenv(Env)), name) {
		tb.Fatalf("%s is installed, says %s, and cannot be used: %s", name, Env, why)
	}
	tb.Skipf("%s cannot be used: %s", name, why)
}
