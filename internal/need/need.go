// Package need is for tests that use programs and devices which may not be there.
package need

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// Env names the variable that lists, with blanks between them, the programs
// and devices that are known to be there. A test that lacks a listed program
// fails: .ci/run installs the programs, and names all here.
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
// to be installed. A test that is skipped says what it would have shown.
func Missing(tb testing.TB, name, why string) {
	tb.Helper()
	if slices.Contains(strings.Fields(os.Getenv(Env)), name) {
		tb.Fatalf("%s is installed, says %s, and cannot be used: %s", name, Env, why)
	}
	tb.Skipf("%s cannot be used (%s), so this is not shown: %s", name, why, sentence(tb.Name()))
}

// sentence makes a sentence of the name of a test.
func sentence(name string) string {
	name, rest, _ := strings.Cut(strings.TrimPrefix(name, "Test"), "/")
	letters := []rune(name)
	begins := func(i int) bool { // reports whether a word begins there
		return unicode.IsUpper(letters[i]) && i > 0 && (!unicode.IsUpper(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1]))
	}
	var words []string
	for from, i := 0, 1; i <= len(letters); i++ {
		if i < len(letters) && !begins(i) {
			continue
		}
		word := string(letters[from:i])
		if from > 0 && (i-from == 1 || word != strings.ToUpper(word)) {
			word = strings.ToLower(word)
		}
		words, from = append(words, word), i
	}
	if rest != "" {
		words = append(words, "("+strings.ReplaceAll(rest, "_", " ")+")")
	}
	return strings.Join(words, " ")
}
