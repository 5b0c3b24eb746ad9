package gosync_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	model "golang.org/x/sync/semaphore"

	"github.com/zsync/zsync/internal/gosync"
	_ "github.com/zsync/zsync/internal/gosync/isync"
	"github.com/zsync/zsync/internal/gosync/semaphore"
	_ "github.com/zsync/zsync/internal/gosync/singleflight"
	_ "github.com/zsync/zsync/internal/gosync/sync" // so that a cached result goes with it
	"github.com/zsync/zsync/internal/need"
)

const here = "github.com/zsync/zsync/internal/gosync"

// A suite is the tests of one package. Every test of every file is run and must
// pass, also one that a later version adds, but for those that are named here.
type suite struct {
	dir     string            // of the package
	adapter string            // the directory of the package that is tested in its place
	imports map[string]string // what to import instead
	diverts map[string]string // what to call instead

	filesOut map[string]string // files that are left out, and why
	leftOut  map[string]string // tests that are left out, and why
	alone    map[string]string // tests that are run with one session only, and why
	change   []change          // always made
	lower    []change          // made to save time, unless ZSYNC_TEST_LONG is set
}

// A change is of a number in a test.
type change struct{ test, from, to string }

const (
	notOurs = "is of what zsync has no counterpart of"
	panics  = "a function that panicked counts as called in its own process; others may run theirs"
)

func goSync(t *testing.T) suite {
	return suite{
		dir:     filepath.Join(command(t, "go", "env", "GOROOT"), "src", "sync"),
		adapter: "sync",
		imports: map[string]string{
			"sync":             here + "/sync",
			"internal/sync":    here + "/isync",
			"internal/testenv": here + "/testenv",
		},
		// A call of zsync may allocate.
		diverts: map[string]string{"testing.AllocsPerRun": "AllocsPerRun"},
		filesOut: map[string]string{
			"example_pool_test.go": notOurs,
			"export_test.go":       "has what is internal to Go",
			"map_bench_test.go":    "has benchmarks of the inside of Go's Map",
			"pool_test.go":         notOurs,
			"runtime_sema_test.go": "has benchmarks of the runtime's semaphore",
		},
		leftOut: map[string]string{
			"TestIssue40999": "asks the runtime what the garbage collector keeps",
			"TestSemaphore":  "is of the runtime's own semaphore",
			"TestOnceXGC":    "asks the runtime what the garbage collector keeps",
			"TestCondCopy":   "wants a copy noticed at run time, as vet notices one of zsync's",
		},
		alone: map[string]string{
			"TestOncePanic":              panics,
			"TestOnceFuncPanic":          panics,
			"TestOnceValuePanic":         panics,
			"TestOnceValuesPanic":        panics,
			"TestOnceFuncPanicNil":       panics,
			"TestOnceFuncGoexit":         panics,
			"TestOnceFuncPanicTraceback": panics,
		},
		lower: []change{
			{"TestMutex", "1000", "300"},
			{"TestConcurrentRange", "mapSize = 1 << 10", "mapSize = 1 << 6"},
			{"TestConcurrentRange", "iters := 1 << 10", "iters := 1 << 4"}, // as if testing.Short
			{"TestRWMutex", "1000", "20"},                                  // it is 5 if testing.Short
			{"TestWaitGroupRace", "1000", "100"},
			{"TestCondSignalGenerations", "100", "50"},
			{"TestCondBroadcast", "200", "20"},
			{"TestCondSignalStealing", "1000", "50"},
		},
	}
}

func xSemaphore(t *testing.T) suite {
	return suite{
		dir:     filepath.Join(command(t, "go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sync"), "semaphore"),
		adapter: "semaphore",
		imports: map[string]string{"golang.org/x/sync/semaphore": here + "/semaphore"},
		change: []change{
			// The time in which a permit that is there must be got; servers that
			// agree on it before they answer need longer, and so does a busy machine.
			{"TestWeightedAcquire", "10*time.Millisecond", "3*time.Second"},
		},
		lower: []change{{"TestWeighted", "10000", "1000"}},
	}
}

func xSingleflight(t *testing.T) suite {
	return suite{
		dir:     filepath.Join(command(t, "go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sync"), "singleflight"),
		adapter: "singleflight",
		change: []change{
			// The time in which five callers, one after another as nobody shares a
			// panic, must be through.
			{"TestPanicDo", "time.Second", "2*time.Minute"},
			{"TestGoexitDo", "time.Second", "2*time.Minute"},
		},
		leftOut: map[string]string{
			"TestForget":                "is of Forget, which a Flight does not have: a result is kept for the time that was stated, and no longer",
			"TestPanicDoSharedByDoChan": "wants a panic to end whoever waits; a Flight shares no panic, which may be in another process, and who has waited runs its own",
			"ExampleGroup":              "wants the caller whose function ran to be told that others shared it, who may be in other processes and come later",
		},
	}
}

// TestGoSync runs Go's tests of package sync against zsync.
func TestGoSync(t *testing.T) {
	needGo(t)
	t.Parallel()
	goSync(t).test(t)
}

// TestXSemaphore runs the tests of golang.org/x/sync/semaphore against zsync.
func TestXSemaphore(t *testing.T) {
	needGo(t)
	t.Parallel()
	xSemaphore(t).test(t)
}

// TestXSingleflight runs the tests of golang.org/x/sync/singleflight against
// zsync.
func TestXSingleflight(t *testing.T) {
	needGo(t)
	t.Parallel()
	xSingleflight(t).test(t)
}

// The module that is borrowed from is in the module cache wherever this
// compiles.
var _ = []interface {
	Acquire(ctx context.Context, n int64) error
	TryAcquire(n int64) bool
	Release(n int64)
}{(*model.Weighted)(nil), (*semaphore.Weighted)(nil)}

func needGo(t *testing.T) {
	t.Helper()
	need.Command(t, "go")
	if _, err := os.Stat(filepath.Join(command(t, "go", "env", "GOROOT"), "src", "sync", "mutex_test.go")); err != nil {
		need.Missing(t, "Go's own tests", err.Error())
	}
}

// test runs the tests twice: as goroutines of one process, and as if they were
// in three.
func (s suite) test(t *testing.T) {
	t.Logf("on %s", cmp.Or(os.Getenv(gosync.EnvServers), "zktest")) // a cached result goes with it too
	binary := build(t, s.borrow(t), s.adapter, raceFlags...)
	all := strings.Fields(command(t, binary, "-test.list=^(Test|Example)"))
	if len(all) == 0 {
		t.Fatal("there are no tests")
	}
	for _, test := range sorted(s.alone) {
		if !slices.Contains(all, test) {
			t.Errorf("%s, which is to run with one session, is not there", test)
		}
	}
	for _, sessions := range []int{1, 3} {
		t.Run(fmt.Sprintf("%dsessions", sessions), func(t *testing.T) {
			t.Parallel() // they wait in real time
			want := slices.DeleteFunc(slices.Clone(all), func(test string) bool {
				return sessions > 1 && s.alone[test] != ""
			})
			got, out, err := run(binary, s.dir, want, fmt.Sprintf("%s=%d", gosync.EnvSessions, sessions))
			for _, test := range want {
				if got[test] != "PASS" {
					t.Errorf("%s: got %q, want PASS", test, got[test])
				}
			}
			if err != nil || t.Failed() {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%d passed: %s\n%s", len(want), strings.Join(want, " "), out)
		})
	}
}

// borrow reads the test files of the package. What is left out, and what is
// changed, must be there: else the tables above no longer say what is done.
func (s suite) borrow(t *testing.T) []*borrowed {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(s.dir, "*_test.go"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no tests in %s: %v", s.dir, err)
	}
	var files []*borrowed
	changes := s.change
	if !long() {
		changes = append(changes, s.lower...)
	}
	left, out, changed := make(map[string]bool), make(map[string]bool), make(map[change]bool)
	for _, name := range names {
		if s.filesOut[filepath.Base(name)] != "" {
			out[filepath.Base(name)] = true
			continue
		}
		b := borrow(t, name)
		b.drop(func(name string) bool {
			left[name] = s.leftOut[name] != ""
			return left[name] || strings.HasPrefix(name, "Benchmark")
		})
		for from, to := range s.diverts {
			b.divert(from, to)
		}
		b.redirect(s.imports)
		for _, c := range changes {
			changed[c] = b.change(c) || changed[c]
		}
		files = append(files, b)
	}
	for _, file := range sorted(s.filesOut) {
		if !out[file] {
			t.Errorf("%s, which is to be left out, is not there", file)
		}
	}
	for _, test := range sorted(s.leftOut) {
		if !left[test] {
			t.Errorf("%s, which is to be left out, is not there", test)
		}
	}
	for _, c := range changes {
		if !changed[c] {
			t.Errorf("%s has no %s to change to %s", c.test, c.from, c.to)
		}
	}
	return files
}

// TestBorrowedIsWholeButForWhatIsLeftOut compares what would run with what the
// packages have.
func TestBorrowedIsWholeButForWhatIsLeftOut(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "x_test.go")
	const src = `package x_test

import (
	"math"
	"sync"
	"testing"
)

func TestNew(t *testing.T) { helper(sync.Mutex{}) }

func TestOld(t *testing.T) {
	only(math.Pi)
}

func only(x float64) { deeper(x) }
func deeper(float64) {}
func helper(sync.Mutex) { testing.AllocsPerRun(1000, nil) }

func BenchmarkX(b *testing.B) {}
`
	const want = `package x_test

import (
	_ "math"
	"other/sync"
	"testing"
)

func TestNew(t *testing.T) { helper(sync.Mutex{}) }







func helper(sync.Mutex) { Allocs(10, nil) }


`
	if err := os.WriteFile(name, []byte(src), 0o644); err != nil {
		t.Fatal(err)
	}
	b := borrow(t, name)
	b.drop(func(name string) bool { return name == "TestOld" || strings.HasPrefix(name, "Benchmark") })
	b.divert("testing.AllocsPerRun", "Allocs")
	b.redirect(map[string]string{"sync": "other/sync"})
	for c, want := range map[change]bool{{"helper", "1000", "10"}: true, {"helper", "7", "8"}: false, {"TestOld", "math", ""}: false} {
		if got := b.change(c); got != want {
			t.Errorf("change %v: got %t, want %t", c, got, want)
		}
	}
	if got := string(b.result()); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func long() bool { return os.Getenv("ZSYNC_TEST_LONG") != "" }
