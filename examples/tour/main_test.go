package main

import (
	"bytes"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// bin is the tour: this test binary, which has all of it, so that no test builds it again.
var bin string

// asTour is an environment variable. A process that has it is the tour, or a worker of it.
const asTour = "ZSYNC_TEST_AS_TOUR"

func TestMain(m *testing.M) {
	if os.Getenv(asTour) != "" {
		flag.CommandLine = flag.NewFlagSet("tour", flag.ExitOnError) // without the flags of go test
		main()
		return
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil { // they mostly wait
		panic(err)
	}
	var err error
	if bin, err = os.Executable(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// build returns a command that runs the tour, with a directory of its own for
// temporary files and without ZSYNC_SERVERS.
func build(t *testing.T) func(args ...string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	t.Parallel()
	return func(args ...string) (*exec.Cmd, string) {
		tmp := t.TempDir()
		cmd := exec.Command(bin, args...)
		cmd.Env = append(os.Environ(), "ZSYNC_SERVERS=", "TMPDIR="+tmp, asTour+"=1")
		return cmd, tmp
	}
}

func TestTourHoldsWhatItPromises(t *testing.T) {
	tour := build(t)
	servers := map[string][]string{"in memory": nil}
	if real := os.Getenv("ZSYNC_TEST_SERVERS"); real != "" {
		servers["ensemble"] = []string{"-servers", real}
	}
	for name, args := range servers {
		t.Run(name, func(t *testing.T) {
			cmd, tmp := tour(args...)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, want := range []string{
				`(?m)^ 200 of 400 rounds   (worker \d|nobody) holds the lock`,
				`worker \d is killed with SIGKILL`,
				`(?m)^worker \d has done the next round, [0-9.]+m?s after the kill$`,
				`(?m)^ +worker \d +\d+ +\S+s   killed inside$`,
				`(?m)^ +total +400 +\S+s   the file says 400 of 400$`,
				`(?m)^  held    no addition is lost$`,
				`(?m)^  held    tokens strictly increase$`,
			} {
				if !regexp.MustCompile(want).Match(out) {
					t.Errorf("the output does not match %s", want)
				}
			}
			if t.Failed() || bytes.Contains(out, []byte("BROKEN")) || bytes.ContainsRune(out, '\x1b') {
				t.Errorf("output:\n%s", out)
			}
			wantGone(t, pids(out), tmp)
		})
	}
}

func TestTourFailsWithoutTheLock(t *testing.T) {
	cmd, tmp := build(t)("-unsafe")
	out, err := cmd.Output()
	if cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("got %v; want exit status 1", err)
	}
	for _, want := range []string{"BROKEN  no addition is lost", "BROKEN  nobody is inside with another"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("the output does not contain %q:\n%s", want, out)
		}
	}
	wantGone(t, pids(out), tmp)
}

func TestTourLeavesNothingBehindWhenInterrupted(t *testing.T) {
	cmd, tmp := build(t)()
	out := startAndAwait(t, cmd, "  50 of 400 rounds")
	began := time.Now()
	cmd.Process.Signal(os.Interrupt)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v to end", took)
	}
	wantGone(t, pids(out), tmp)
}

func TestTourLeavesNothingBehindWhenItsOutputIsClosed(t *testing.T) {
	cmd, tmp := build(t)()
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	seen := readUntil(t, out, "  50 of 400 rounds")
	out.Close()
	began := time.Now()
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(stderr.String(), "standard output: ") {
		t.Errorf("exit status %d and %q, want 1 and a message", code, &stderr)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v to end", took)
	}
	wantGone(t, pids(seen), tmp)
}

// In virtual time, because the tour tries for long. If run returns an error, main prints it and exits
// with status 1.
func TestTourSaysThatNoServerAnswers(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	defer func(before *os.File) { os.Stderr = before }(os.Stderr)
	os.Stderr = stderr
	synctest.Test(t, func(t *testing.T) {
		tour := tour{servers: "127.0.0.1:1"}
		ok, err := tour.run(t.Context())
		want := `^zsync: connect: no server answered within 15s \(last attempt: .*\)$`
		if ok || err == nil || !regexp.MustCompile(want).MatchString(err.Error()) {
			t.Errorf("got %v, %v; want an error that matches %s", ok, err, want)
		}
	})
	out, err := os.ReadFile(stderr.Name())
	if want := `^tour: no server answers yet at 127\.0\.0\.1:1; .*\n$`; err != nil || !regexp.MustCompile(want).Match(out) {
		t.Errorf("the output does not match %s:\n%s%v", want, out, err)
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "*")); len(left) > 0 {
		t.Errorf("left in the directory for temporary files: %v", left)
	}
}

func TestWorkersEndWithTheTourHoweverItEnds(t *testing.T) {
	cmd, _ := build(t)()
	out := startAndAwait(t, cmd, "  50 of 400 rounds")
	cmd.Process.Kill()
	cmd.Wait()
	wantGone(t, pids(out), "")
}

// startAndAwait starts cmd and returns what it has printed once that contains
// want.
func startAndAwait(t *testing.T, cmd *exec.Cmd, want string) []byte {
	t.Helper()
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	return readUntil(t, stdout, want)
}

// readUntil returns what there is to read once that contains want.
func readUntil(t *testing.T, r io.Reader, want string) (out []byte) {
	t.Helper()
	for part := make([]byte, 1024); !bytes.Contains(out, []byte(want)); {
		n, err := r.Read(part)
		if err != nil {
			t.Fatalf("%v before %q:\n%s", err, want, out)
		}
		out = append(out, part[:n]...)
	}
	return out
}

// pids returns the process ids of the workers, which the tour prints.
func pids(out []byte) (ids []int) {
	for _, m := range regexp.MustCompile(`(?m)^worker \d is process (\d+)$`).FindAllSubmatch(out, -1) {
		id, _ := strconv.Atoi(string(m[1]))
		ids = append(ids, id)
	}
	return ids
}

// wantGone checks that no worker is left, nor a file in tmp if that is not
// empty.
func wantGone(t *testing.T, ids []int, tmp string) {
	t.Helper()
	if len(ids) != 4 {
		t.Errorf("%d workers in the output, want 4", len(ids))
	}
	deadline := time.Now().Add(time.Minute)
	for _, id := range ids {
		for alive(id) {
			if time.Now().After(deadline) {
				t.Errorf("worker process %d is still there", id)
				break
			}
			time.Sleep(10 * time.Millisecond) // real time: the kernel does not say when the child of a child ends
		}
	}
	if tmp == "" {
		return
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "*")); len(left) > 0 {
		t.Errorf("left in the directory for temporary files: %v", left)
	}
}

// alive reports whether there is a process with that id that has not ended.
func alive(id int) bool {
	p, err := os.FindProcess(id)
	if err != nil || p.Signal(syscall.Signal(0)) != nil {
		return false
	}
	// One that has lost its parent may stay listed, as ended, for as long as
	// nobody waits for it.
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(id) + "/stat")
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

// sound returns a journal in which everything held.
func sound() *journal {
	return &journal{
		goal: 4, counter: 4, names: []string{"a", "b"}, killed: "b", holding: true, heir: "a",
		reports: map[string][]report{
			"a": {
				{Kind: done, Count: 1, Token: 5},
				{Kind: done, Count: 3, Token: 9, Found: "b #2"},
				{Kind: dropped, Mark: "a #3"},
				{Kind: done, Count: 4, Token: 12, Found: "a #3"},
			},
			"b": {
				{Kind: done, Count: 2, Token: 7},
				{Kind: inside, Mark: "b #2"},
			},
		},
	}
}

func TestFindings(t *testing.T) {
	tests := []struct {
		name   string
		spoil  func(*journal)
		broken string // the findings that must fail
	}{
		{"nothing", func(*journal) {}, ""},
		{"a number written twice", func(j *journal) {
			j.reports["b"] = append(j.reports["b"], report{Kind: done, Count: 4, Token: 13})
		}, "no addition is lost"},
		{"a number left out", func(j *journal) { j.reports["b"][0].Kind = dropped }, "no addition is lost"},
		{"the file says less", func(j *journal) { j.counter = 3 }, "no addition is lost"},
		{"the goal is missed", func(j *journal) { j.goal = 5 }, "no addition is lost"},
		{"a live worker's mark found", func(j *journal) { j.reports["a"][0].Found = "b #1" }, "nobody is inside with another"},
		{"the mark replaced", func(j *journal) { j.reports["a"][0].After = "b #1" }, "nobody is inside with another"},
		{"the mark removed", func(j *journal) { j.reports["a"][0].After = "nobody" }, "nobody is inside with another"},
		{"a token twice", func(j *journal) { j.reports["b"][0].Token = 5 }, "tokens strictly increase"},
		{"a smaller token", func(j *journal) { j.reports["a"][1].Token = 6 }, "tokens strictly increase"},
		{"no token", func(j *journal) { j.reports["a"][0].Token = 0 }, "tokens strictly increase"},
		{"nobody killed", func(j *journal) { j.killed = "" }, "the lock passes on from a dead holder"},
		{"a waiter killed", func(j *journal) { j.holding = false }, "the lock passes on from a dead holder"},
		{"no heir", func(j *journal) { j.heir = "" }, "the lock passes on from a dead holder"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := sound()
			tt.spoil(j)
			var broken []string
			for _, f := range j.findings() {
				if f.failure != "" {
					broken = append(broken, f.promise)
				}
			}
			if got := strings.Join(broken, ", "); got != tt.broken {
				t.Errorf("broken: %q, want %q", got, tt.broken)
			}
			if ok := j.print(new(bytes.Buffer), 0); ok != (tt.broken == "") {
				t.Errorf("print returned %v", ok)
			}
		})
	}
}
