//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

var binary string // the command, built

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "zsync-command-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "zsync")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// A run is one run of the command.
type run struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout syncBuffer
	stderr syncBuffer
	ended  chan struct{}
}

// start starts the command; in is its standard input.
func start(t *testing.T, servers, in string, args ...string) *run {
	t.Helper()
	return startReading(t, servers, strings.NewReader(in), args...)
}

func startReading(t *testing.T, servers string, in io.Reader, args ...string) *run {
	t.Helper()
	r := &run{t: t, cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	r.cmd.Env = append(os.Environ(), "ZSYNC_SERVERS="+servers, "ZSYNC_AUTH=")
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = in, &r.stdout, &r.stderr
	r.cmd.WaitDelay = 5 * time.Second
	// As from a supervisor: signals of the terminal of go test, if there is
	// one, are none of its business.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		r.cmd.Wait()
	}()
	t.Cleanup(func() { r.cmd.Process.Kill(); <-r.ended })
	return r
}

// wait waits for the end and returns the exit status.
func (r *run) wait() int {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(30 * time.Second):
		r.t.Fatalf("%v has not ended\nstdout: %s\nstderr: %s", r.cmd.Args[1:], &r.stdout, &r.stderr)
	}
	return r.cmd.ProcessState.ExitCode()
}

// awaitOutput waits until the command has written s.
func (r *run) awaitOutput(s string) {
	r.t.Helper()
	await(r.t, func() bool { return strings.Contains(r.stdout.String(), s) }, "output %q of %v", s, r.cmd.Args[1:])
}

// want waits for the end and checks the exit status and all that was written
// to standard output.
func (r *run) want(status int, stdout string) {
	r.t.Helper()
	if got := r.wait(); got != status || r.stdout.String() != stdout {
		r.t.Errorf("%v: exit status %d and output %q; want %d and %q\nstderr: %s", r.cmd.Args[1:], got, r.stdout.String(), status, stdout, &r.stderr)
	}
}

func await(t *testing.T, cond func() bool, format string, args ...any) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for "+format, args...)
		}
	}
}

// A syncBuffer is a bytes.Buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// connect opens a session of the test's own.
func connect(t *testing.T, srv *zktest.Server) *zsync.Session {
	t.Helper()
	s, err := zsync.Connect(t.Context(), srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// contenders returns who is in line once there are n of them.
func contenders(t *testing.T, l line, n int) (cs []zsync.Contender) {
	t.Helper()
	await(t, func() bool {
		var err error
		if cs, err = l.Contenders(context.Background()); err != nil {
			t.Fatal(err)
		}
		return len(cs) == n
	}, "%d contenders at %s", n, l.Path())
	return cs
}

func TestCommandGetsInputAndGivesOutputAndStatus(t *testing.T) {
	srv := zktest.Start(t)
	for _, sub := range [][]string{{"lock", "/p"}, {"lock", "--rw", "/rw"}, {"rlock", "/rw"}, {"elect", "/e"}, {"once", "/o"}} {
		r := start(t, srv.Addr(), "in", append(sub, "--", "sh", "-c", `cat; echo err >&2; exit $1`, "sh", "7")...)
		r.want(7, "in")
		if got := r.stderr.String(); got != "err\n" {
			t.Errorf("%v: standard error is %q, want %q", sub, got, "err\n")
		}
		start(t, srv.Addr(), "", append(sub, "--", "sh", "-c", "kill -USR1 $$")...).want(128+int(syscall.SIGUSR1), "")
		start(t, srv.Addr(), "", append(sub, "--", "/no/such/command")...).want(exitNotFound, "")
		start(t, srv.Addr(), "", append(sub, "--", os.TempDir())...).want(exitNoExec, "")
		start(t, srv.Addr(), "", append(sub, "--", "echo", "--timeout", "-x")...).want(0, "--timeout -x\n")
	}
}

func TestTokensIncreaseFromHolderToHolder(t *testing.T) {
	srv := zktest.Start(t)
	last := int64(0)
	for _, sub := range [][]string{{"lock", "/p"}, {"lock", "/p"}, {"elect", "/p"}, {"lock", "/p"}} {
		r := start(t, srv.Addr(), "", append(sub, "--", "sh", "-c", "echo $ZSYNC_TOKEN")...)
		r.wait()
		token, err := strconv.ParseInt(strings.TrimSpace(r.stdout.String()), 10, 64)
		if err != nil || token <= last {
			t.Errorf("token %q after %d", r.stdout.String(), last)
		}
		last = token
	}
}

func TestLockIsHeldByOneAtATimeInOrder(t *testing.T) {
	srv := zktest.Start(t)
	m := zsync.NewMutex(connect(t, srv), "/p")
	file := filepath.Join(t.TempDir(), "log")
	var runs []*run
	for i := range 5 {
		runs = append(runs, start(t, srv.Addr(), "", "lock", "/p", "--", "sh", "-c",
			`echo "$0 begins" >>"$1"; while [ ! -e "$1.go" ]; do sleep 0.01; done; echo "$0 ends" >>"$1"`, strconv.Itoa(i), file))
		contenders(t, m, i+1)
	}
	if err := os.WriteFile(file+".go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want := ""
	for i, r := range runs {
		r.want(0, "")
		want += fmt.Sprintf("%d begins\n%d ends\n", i, i)
	}
	if got, _ := os.ReadFile(file); string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	contenders(t, m, 0)
}

func TestReadersRunTogetherAndKeepAWriterOut(t *testing.T) {
	srv := zktest.Start(t)
	rw := zsync.NewRWMutex(connect(t, srv), "/p")
	var readers []*run
	var ins []io.WriteCloser
	for range 2 {
		r, in := startCat(t, srv.Addr(), "rlock", "/p")
		readers, ins = append(readers, r), append(ins, in)
	}
	for _, r := range readers {
		r.awaitOutput("inside")
	}
	start(t, srv.Addr(), "", "lock", "--rw", "/p", "--no-wait", "--", "echo", "no").want(exitBusy, "")
	writer := start(t, srv.Addr(), "", "lock", "--rw", "/p", "--", "echo", "alone")
	contenders(t, rw, 3)
	start(t, srv.Addr(), "", "rlock", "/p", "--no-wait", "--", "echo", "no").want(exitBusy, "") // not past a writer
	if got := writer.stdout.String(); got != "" {
		t.Errorf("the writer ran beside readers: %q", got)
	}
	for i, in := range ins {
		in.Close()
		readers[i].want(0, "inside\n")
	}
	writer.want(0, "alone\n")
}

// startCat starts a command that says when it runs, and then runs until its
// standard input is closed.
func startCat(t *testing.T, servers string, args ...string) (*run, io.WriteCloser) {
	t.Helper()
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	defer in.Close() // a pipe, being a file, is given to the command as it is
	return startReading(t, servers, in, append(args, "--", "sh", "-c", "echo inside; exec cat")...), w
}

func TestTheTwoKindsOfLockAreNotMixed(t *testing.T) {
	srv := zktest.Start(t)
	plain, in := startCat(t, srv.Addr(), "lock", "/p")
	plain.awaitOutput("inside")
	start(t, srv.Addr(), "", "rlock", "/p", "--", "echo", "no").want(exitUsage, "")
	start(t, srv.Addr(), "", "lock", "--rw", "/p", "--no-wait", "--", "echo", "no").want(exitUsage, "")
	in.Close()
	plain.want(0, "inside\n")
	reader, in := startCat(t, srv.Addr(), "rlock", "/p")
	reader.awaitOutput("inside")
	start(t, srv.Addr(), "", "lock", "/p", "--", "echo", "no").want(exitUsage, "")
	in.Close()
	reader.want(0, "inside\n")
	start(t, srv.Addr(), "", "lock", "/p", "--", "echo", "yes").want(0, "yes\n")
}

func TestWaitingIsLimited(t *testing.T) {
	srv := zktest.Start(t)
	s := connect(t, srv)
	m, e := zsync.NewMutex(s, "/p"), zsync.NewElection(s, "/e")
	if err := errors.Join(m.Lock(t.Context()), e.Campaign(t.Context()), zsync.NewBarrier(s, "/b").Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	start(t, srv.Addr(), "", "lock", "/p", "--no-wait", "--", "echo", "no").want(exitBusy, "")
	for _, args := range [][]string{
		{"lock", "/p", "--timeout", "100ms", "--", "echo", "no"},
		{"elect", "/e", "--timeout", "100ms", "--", "echo", "no"},
		{"once", "/p", "--timeout", "100ms", "--", "echo", "no"}, // its line is that of the Mutex
		{"barrier", "wait", "/b", "--timeout", "100ms"},
	} {
		r := start(t, srv.Addr(), "", args...)
		r.want(exitBusy, "")
		if got := r.stderr.String(); !strings.Contains(got, "gave up after 100ms") {
			t.Errorf("%v: the message is %q", args, got)
		}
	}
	contenders(t, m, 1)
	contenders(t, e, 1)
}

func TestCommandIsStoppedWhenTheHoldIsLost(t *testing.T) {
	t.Parallel()
	for _, sub := range [][]string{{"lock", "/p"}, {"lock", "--rw", "/p"}, {"rlock", "/p"}, {"elect", "/p"}, {"once", "/p"}} {
		t.Run(strings.Join(sub, " "), func(t *testing.T) {
			t.Parallel()
			srv := zktest.Start(t)
			// The shell's own child would go on if only the shell were told.
			r := start(t, srv.Addr(), "", append(sub, "--", "sh", "-c",
				`trap 'echo terminated; exit 0' TERM; sleep 60 & echo $!; wait`)...)
			r.awaitOutput("\n")
			sleeper, _ := strconv.Atoi(strings.TrimSpace(r.stdout.String()))
			expireAll(srv)
			r.want(exitLost, fmt.Sprintf("%d\nterminated\n", sleeper))
			wantEnded(t, sleeper)
			if got := r.stderr.String(); !strings.Contains(got, "lost") {
				t.Errorf("the message is %q", got)
			}
		})
	}
}

func expireAll(srv *zktest.Server) {
	for _, id := range srv.Sessions() {
		srv.Expire(id)
	}
}

func TestCommandThatDoesNotStopIsKilled(t *testing.T) {
	t.Parallel()
	srv := zktest.Start(t)
	r := start(t, srv.Addr(), "", "lock", "/p", "--kill-after", "300ms", "--", "sh", "-c",
		`trap '' TERM; sleep 60 & echo $!; while :; do wait; done`)
	r.awaitOutput("\n")
	sleeper, _ := strconv.Atoi(strings.TrimSpace(r.stdout.String()))
	began := time.Now()
	expireAll(srv)
	r.want(exitLost, r.stdout.String())
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("it was killed after %v, before its time", took)
	}
	wantEnded(t, sleeper)
}

func TestWhatAShellLeavesBehindIsKilledToo(t *testing.T) {
	t.Parallel()
	srv := zktest.Start(t)
	r := start(t, srv.Addr(), "", "lock", "/p", "--kill-after", "300ms", "--", "sh", "-c",
		`(trap '' TERM; echo ready; exec sleep 60) & echo $!; trap 'exit 0' TERM; wait`)
	r.awaitOutput("ready\n")
	await(t, func() bool { return regexp.MustCompile(`(?m)^\d+$`).MatchString(r.stdout.String()) }, "a process id")
	sleeper, _ := strconv.Atoi(regexp.MustCompile(`(?m)^\d+$`).FindString(r.stdout.String()))
	expireAll(srv)
	r.want(exitLost, r.stdout.String())
	wantEnded(t, sleeper)
}

// wantEnded waits until a process has ended.
func wantEnded(t *testing.T, pid int) {
	t.Helper()
	if pid <= 0 {
		t.Fatalf("no process id: %d", pid)
	}
	await(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && strings.Contains(string(stat), ") Z ") {
			return true // ended, though nobody has asked how
		}
		return syscall.Kill(pid, 0) != nil
	}, "the end of process %d", pid)
}

func TestCommandIsGoneBeforeAnotherHoldsWhenCutOff(t *testing.T) {
	t.Parallel()
	srv := zktest.Start(t)
	// It does not stop when told, so it is gone only once it has been killed.
	r := start(t, srv.Addr(), "", "lock", "/p", "--session", "3s", "--", "sh", "-c", `trap '' TERM; echo $$; while :; do sleep 0.01; done`)
	r.awaitOutput("\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(r.stdout.String()))
	m := zsync.NewMutex(connect(t, srv), "/p")
	srv.Partition(contenders(t, m, 1)[0].Session)
	if err := m.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if syscall.Kill(pid, 0) == nil {
		t.Error("the command runs on while another holds the lock")
	}
	r.want(exitLost, r.stdout.String())
}

func TestALeaderThatLosesOfficeStandsAgain(t *testing.T) {
	srv := zktest.Start(t)
	r := start(t, srv.Addr(), "", "elect", "/p", "--again", "--", "sh", "-c", `echo leading; exec sleep 60`)
	r.awaitOutput("leading\n")
	expireAll(srv)
	r.awaitOutput("leading\nleading\n")
	r.cmd.Process.Signal(syscall.SIGTERM)
	r.want(128+int(syscall.SIGTERM), "leading\nleading\n")
}

func TestSignalsArePassedOn(t *testing.T) {
	srv := zktest.Start(t)
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2} {
		r := start(t, srv.Addr(), "", "lock", "/p", "--", "sh", "-c",
			fmt.Sprintf(`trap 'echo got it; exit 3' %d; echo ready; while :; do sleep 0.01; done`, int(sig)))
		r.awaitOutput("ready\n")
		r.cmd.Process.Signal(sig)
		r.want(3, "ready\ngot it\n")
	}
}

func TestSignalWhileWaitingEndsTheWaitAndLeavesNothing(t *testing.T) {
	srv := zktest.Start(t)
	m := zsync.NewMutex(connect(t, srv), "/p")
	if err := m.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := start(t, srv.Addr(), "", "lock", "/p", "--", "echo", "no")
	contenders(t, m, 2)
	r.cmd.Process.Signal(syscall.SIGUSR1) // not one that ends a wait
	r.cmd.Process.Signal(syscall.SIGTERM)
	r.want(128+int(syscall.SIGTERM), "")
	if cs, err := m.Contenders(t.Context()); err != nil || len(cs) != 1 {
		t.Errorf("left in the line: %v, %v", cs, err)
	}
}

func TestCommandDiesWithZsync(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has a signal for that")
	}
	srv := zktest.Start(t)
	r := start(t, srv.Addr(), "", "lock", "/p", "--", "sh", "-c", "echo $$; exec sleep 60")
	r.awaitOutput("\n")
	r.cmd.Process.Kill()
	pid, _ := strconv.Atoi(strings.TrimSpace(r.stdout.String()))
	wantEnded(t, pid)
}

func TestOnceRunsUntilItSucceeds(t *testing.T) {
	srv := zktest.Start(t)
	start(t, srv.Addr(), "", "once", "/p", "--", "sh", "-c", "echo failing; exit 4").want(4, "failing\n")
	start(t, srv.Addr(), "", "once", "/p", "--", "echo", "first").want(0, "first\n")
	start(t, srv.Addr(), "", "once", "/p", "--", "echo", "second").want(0, "")
	start(t, srv.Addr(), "", "once", "/p", "--reset").want(0, "")
	start(t, srv.Addr(), "", "once", "/p", "--", "echo", "third").want(0, "third\n")
}

func TestGate(t *testing.T) {
	srv := zktest.Start(t)
	start(t, srv.Addr(), "", "barrier", "wait", "/p").want(0, "")
	start(t, srv.Addr(), "", "barrier", "close", "/p").want(0, "")
	start(t, srv.Addr(), "", "barrier", "close", "/p").want(0, "")
	waiting := srv.Counts().Watches
	r := start(t, srv.Addr(), "", "barrier", "wait", "/p")
	await(t, func() bool { return srv.Counts().Watches > waiting }, "a watch")
	start(t, srv.Addr(), "", "barrier", "open", "/p").want(0, "")
	r.want(0, "")
	start(t, srv.Addr(), "", "barrier", "wait", "/p").want(0, "")
}

func TestStatusShowsHoldersAndWaiters(t *testing.T) {
	srv := zktest.Start(t)
	s, err := zsync.Connect(t.Context(), srv.Addr(), zsync.WithOwner("the holder"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m := zsync.NewMutex(s, "/p")
	if err := m.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	start(t, srv.Addr(), "", "lock", "/p", "--owner", "the waiter", "--", "true")
	contenders(t, m, 2)
	r := start(t, srv.Addr(), "", "status", "/p", "/q")
	r.wait()
	want := regexp.MustCompile(`^PATH .*\n/p +lock +exclusive +holds +the holder .*\n/p +lock +exclusive +waits +the waiter .*\n/q +- +- +free .*\n$`)
	if !want.MatchString(r.stdout.String()) {
		t.Errorf("got\n%s", &r.stdout)
	}
	r = start(t, srv.Addr(), "", "status", "--json", "/p")
	r.wait()
	for _, want := range []string{`"owner": "the holder"`, `"holding": false`, fmt.Sprintf(`"session": "%#x"`, uint64(s.ID()))} {
		if !strings.Contains(r.stdout.String(), want) {
			t.Errorf("no %s in\n%s", want, &r.stdout)
		}
	}
	start(t, srv.Addr(), "", "status", "--json", "/q").want(0, "[]\n")
}

func TestServerServes(t *testing.T) {
	r := start(t, "", "", "server", "--listen", "127.0.0.1:0")
	r.awaitOutput("\n")
	addr := strings.Fields(strings.ReplaceAll(r.stdout.String(), ",", ""))[2]
	start(t, addr, "", "lock", "/p", "--", "echo", "served").want(0, "served\n")
	start(t, "", "", "server", "--listen", addr).want(exitServers, "")
	r.cmd.Process.Signal(os.Interrupt)
	if got := r.wait(); got != 0 {
		t.Errorf("exit status %d, want 0\n%s", got, &r.stderr)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	srv := zktest.Start(t)
	for _, tt := range []struct {
		servers string
		args    string
		status  int
		message string
	}{
		{"", "lock /p -- true", exitUsage, "give --servers or set ZSYNC_SERVERS"},
		{"127.0.0.1:1", "lock /p --connect-timeout 100ms -- true", exitServers, "no server answered within 100ms (last attempt: 127.0.0.1:1: "},
		{"127.0.0.1:1", "lock /p --timeout 100ms -- true", exitServers, "gave up after 100ms (last attempt: 127.0.0.1:1: "},
		{"127.0.0.1:1/a/", "lock /p -- true", exitUsage, "chroot"},
		{srv.Addr(), "lock p -- true", exitUsage, `path "p" is relative; it must begin with a slash`},
		{srv.Addr(), "lock /p true", exitUsage, "want: zsync lock PATH [flags] -- CMD [ARG...]"},
		{srv.Addr(), "lock /p --", exitUsage, "want: zsync lock PATH [flags] -- CMD [ARG...]"},
		{srv.Addr(), "lock -- true", exitUsage, "want: zsync lock PATH [flags] -- CMD [ARG...]"},
		{srv.Addr(), "lock /p --bogus -- true", exitUsage, "unknown flag: --bogus"},
		{srv.Addr(), "lock /p --auth digest -- true", exitUsage, "SCHEME:CREDENTIALS"},
		{srv.Addr(), "lock /p --rw --kazoo -- true", exitUsage, "do not go together"},
		{srv.Addr(), "lock /p --session 0s -- true", exitUsage, "session timeout 0s is out of range"},
		{srv.Addr(), "status", exitUsage, "want: zsync status PATH... [flags]"},
		{srv.Addr(), "barrier", exitUsage, "zsync barrier --help"},
		{srv.Addr(), "barrier wait", exitUsage, "want: zsync barrier wait PATH [flags]"},
		{srv.Addr(), "once /p /q --reset", exitUsage, "want: zsync once PATH --reset"},
		{srv.Addr(), "bogus", exitUsage, `unknown command "bogus"`},
	} {
		r := start(t, tt.servers, "", strings.Fields(tt.args)...)
		r.want(tt.status, "")
		if got := r.stderr.String(); !strings.HasPrefix(got, "zsync: ") || !strings.Contains(got, tt.message) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: the message is %q; want one line with %q", tt.args, got, tt.message)
		}
	}
}
