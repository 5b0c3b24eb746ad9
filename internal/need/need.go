// Package need is for tests that use programs or devices of the machine, or servers that a variable
// names. If one of them is missing, the package skips or fails the test. It installs nothing.
package need

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// Env names the variable with a list of programs and devices, separated by blanks, that must exist.
// A test fails if a listed program is missing. .ci/run installs the programs and sets the variable.
const Env = "CI_INSTALLED"

// Command returns the path of a program. If the program does not exist, Command calls Missing.
func Command(tb testing.TB, name string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(tb, name, err.Error())
	}
	return path
}

// Variable returns the value of an environment variable. If the variable is not set, Variable skips
// the test. The message of a skipped test contains the test's name, written as a sentence.
func Variable(tb testing.TB, name string) string {
	tb.Helper()
	value := os.Getenv(name)
	if value == "" {
		tb.Skipf("%s is not set, so this is not shown: %s", name, sentence(tb.Name()))
	}
	return value
}

// Missing skips the test because a program is missing. If the variable Env lists the program,
// Missing fails the test instead. The message of a skipped test contains the test's name, written
// as a sentence.
func Missing(tb testing.TB, name, why string) {
	tb.Helper()
	if slices.Contains(strings.Fields(os.Getenv(Env)), name) {
		tb.Fatalf("%s is installed, says %s, and cannot be used: %s", name, Env, why)
	}
	tb.Skipf("%s cannot be used (%s), so this is not shown: %s", name, why, sentence(tb.Name()))
}

// The function `sentence` returns the name of a test, written as a sentence.
func sentence(name string) string {
	name, rest, _ := strings.Cut(strings.TrimPrefix(name, "Test"), "/")
	letters := []rune(name)
	begins := func(i int) bool { // reports whether a word begins at i
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
