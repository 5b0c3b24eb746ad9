package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// sample has mutants of each kind, and prints what its functions return.
const sample = `package main

import "errors"

var errSample = errors.New("sample")

func main() {
	print(between(3, 3), " ", after(), " ")
	if err := fails(1); err != nil {
		print("fails ")
	}
	print(len(list(3)))
	return
}

func between(n, high int) bool { return n > 0 && n <= high }

func after() (n int) {
	const two = 1 + 1 // a constant stays
	n++
	n = n + two
	return n - 1
}

func fails(n int) error {
	if n == 0 {
		return nil
	}
	return errSample
}

func list(n int) (l []int) {
	for i := range 9 {
		if i >= n {
			break
		}
		l = append(l, i)
	}
	return l
}
`

func TestEachMutantChangesOnePlaceAndOnlyIfItIsSwitchedOn(t *testing.T) {
	dir, folder := t.TempDir(), t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{"main/main.go": sample, "go.mod": "module m\n\ngo 1.25\n"} {
		harness.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		harness.Must(t, os.WriteFile(name, []byte(text), 0o644))
	}
	mutants, err := find([]string{"main"})
	harness.Must(t, err)
	compiling, overlay, err := compilable([]string{"main"}, choose(mutants, len(mutants), 1), len(mutants), folder)
	harness.Must(t, err)
	if len(compiling) != len(mutants) {
		t.Errorf("%d of %d compile", len(compiling), len(mutants))
	}
	out, err := exec.Command("go", "build", "-ldflags=-w", "-overlay", overlay, "-o", "sample", "./main").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	prints := func(on string) string {
		cmd := exec.Command("./sample")
		cmd.Env = append(os.Environ(), "ZSYNC_MUTANT="+on)
		out, err := cmd.CombinedOutput()
		harness.Must(t, err)
		return string(out)
	}
	const unchanged = "true 2 fails 3"
	if got := prints(""); got != unchanged {
		t.Errorf("without a mutant: %s", got)
	}
	var got []string
	for _, m := range mutants {
		got = append(got, strings.Join([]string{m.kind, m.text, prints(strings.Fields(m.String())[0])}, "; "))
	}
	want := []string{
		`omit; print(between(3, 3), " ", after(), " "); fails 3`,
		`omit; print(len(list(3))); true 2 fails `,
		`negate; err != nil; true 2 3`,
		`omit; print("fails "); true 2 3`,
		`return; n > 0 && n <= high; false 2 fails 3`,
		`negate; n > 0; false 2 fails 3`,
		`negate; n <= high; false 2 fails 3`,
		`bound; n > 0; true 2 fails 3`,
		`bound; n <= high; false 2 fails 3`,
		`omit; n++; true 1 fails 3`,
		`omit; n = n + two; true 0 fails 3`,
		`bound; n - 1; true 3 fails 3`,
		`negate; n == 0; true 2 3`,
		`omit; return nil; true 2 fails 3`,
		`return; nil; true 2 fails 3`,
		`return; errSample; true 2 3`,
		`omit; l = append(l, i); true 2 fails 0`,
		`negate; i >= n; true 2 fails 0`,
		`bound; i >= n; true 2 fails 4`,
		`omit; break; true 2 fails 9`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Without the return, the function lacks one. The call can be left out.
func TestAMutantThatDoesNotCompileIsLeftOut(t *testing.T) {
	dir, folder := t.TempDir(), t.TempDir()
	t.Chdir(dir)
	harness.Must(t, os.Mkdir("p", 0o755))
	harness.Must(t, os.WriteFile("go.mod", []byte("module m\n\ngo 1.25\n"), 0o644))
	harness.Must(t, os.WriteFile("p/p.go", []byte("package p\n\nfunc f(c chan int) int {\n\tprintln()\n\tselect {\n\tcase <-c:\n\t\treturn 1\n\t}\n}\n"), 0o644))
	mutants, err := find([]string{"p"})
	harness.Must(t, err)
	compiling, _, err := compilable([]string{"p"}, mutants, len(mutants), folder)
	harness.Must(t, err)
	if len(mutants) != 2 || len(compiling) != 1 || compiling[0].text != "println()" {
		t.Errorf("%v, of which %v compile", mutants, compiling)
	}
}

func TestTheTableHasTheLastVerdictOfEachMutant(t *testing.T) {
	name := filepath.Join(t.TempDir(), "results")
	harness.Must(t, os.WriteFile(name, []byte("# seed 1\n"+
		"1 internal/conn/conn.go:1:1 omit\tkilled\town tests\tinternal/conn TestX\t1.0 s\tf\tg()\n"+
		"2 internal/lock/line.go:1:1 omit\tsurvived first\t\t\t1.0 s\tf\tg()\n"+
		"2 internal/lock/line.go:1:1 omit\tkilled\tother tests\t. TestX\t1.0 s\tf\tg()\n"), 0o644))
	var out bytes.Buffer
	harness.Must(t, printTable(&out, name))
	for _, row := range []string{"| conn | 1 | 1 | 0 | 0 | 0 | 0 | 0 |", "| lock | 1 | 0 | 0 | 0 | 0 | 1 | 0 |", "| together | 2 | 1 | 0 | 0 | 0 | 1 | 0 |"} {
		if !strings.Contains(out.String(), row) {
			t.Errorf("no %q in\n%s", row, &out)
		}
	}
}

func TestShortTestsOfOneKindShareARun(t *testing.T) {
	var tests []*judge
	for i, took := range []time.Duration{100, 200, 150, 300, 100, 900} {
		reached := make([]byte, 6)
		reached[i] = 1
		tests = append(tests, &judge{args: []string{fmt.Sprintf("-test.run=^Test%d$", i)}, took: took * time.Millisecond, reached: reached})
	}
	tests[4].name = "models"
	var got []string
	for _, j := range together(tests) {
		got = append(got, fmt.Sprint(j.args[0], j.took, j.reached))
	}
	want := []string{
		"-test.run=^Test0$|^Test1$|^Test2$450ms [1 1 1 0 0 0]", "-test.run=^Test3$300ms [0 0 0 1 0 0]",
		"-test.run=^Test4$100ms [0 0 0 0 1 0]", "-test.run=^Test5$900ms [0 0 0 0 0 1]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
