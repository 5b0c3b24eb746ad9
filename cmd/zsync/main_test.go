//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/need"
	"github.com/zsync/zsync/zktest"
)

// binary returns where the command is. It is a link to this test binary, which has all of
// the command, so that no test builds it again: see TestMain.
var binary = sync.OnceValue(func() string {
	file := filepath.Join(scratch, commandName)
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, file)
	}
	if err != nil {
		panic(err)
	}
	return file
})

const commandName = "zsync"

var scratch string // a folder that is removed after all tests

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == commandName {
		main() // this process is the command
		return
	}
	harness.WaitTogether(10)
	harness.CollectLess()
	// What we were started to ignore, as in the background of a script, the command
	// would ignore too.
	for _, sig := range passedOn {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	dir, err := os.MkdirTemp("", "zsync-command-")
	if err != nil {
		panic(err)
	}
	scratch = dir
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// patience is how long what takes milliseconds may take on a busy machine, which may
// stand still for seconds. What runs in vain sleeps for longer.
const patience = 2 * time.Minute

// patienceOf is a day in virtual time, which costs nothing.
func patienceOf(t *testing.T) time.Duration {
	if machineOf(t) != nil {
		return 24 * time.Hour
	}
	return patience
}

// serve starts a server whose sessions outlast such a machine, whatever is asked for.
func serve(t *testing.T) *zktest.Server {
	t.Helper()
	return zktest.Start(t, harness.Patient)
}

// steadily has try say what is wrong, and fails if something is. What limits a time of
// its own says nothing if the machine stood still meanwhile; then it is tried again, a
// few times.
func steadily(t *testing.T, try func() (wrong string)) {
	t.Helper()
	if machineOf(t) != nil {
		if wrong := try(); wrong != "" {
			t.Error(wrong)
		}
		return
	}
	const still, times = 100 * time.Millisecond, 6
	stood := harness.StoodStill(t)
	for i := 1; ; i++ {
		stood()
		wrong := try()
		switch longest := stood(); {
		case wrong == "":
			return
		case longest < still || i == times:
			t.Errorf("%s\nthe machine stood still for %v at most", wrong, longest)
			return
		default:
			t.Logf("tried again, as the machine stood still for %v: %s", longest, wrong)
		}
	}
}

// outcome waits for the end and says what is wrong with it: the exit status, the
// output, or the messages, which must match a regular expression.
func (r *run) outcome(status int, stdout, messages string) (wrong string) {
	r.t.Helper()
	if got := r.wait(); got != status || r.stdout.String() != stdout || !regexp.MustCompile(messages).MatchString(r.stderr.String()) {
		return fmt.Sprintf("%v: exit status %d, output %q and messages %q; want %d, %q and %q", r.args, got, r.stdout.String(), r.stderr.String(), status, stdout, messages)
	}
	return ""
}

// A run is one run of the command.
type run struct {
	t       *testing.T
	args    []string
	pid     int       // of a process
	code    int       // the exit status, when it has ended
	died    os.Signal // which ended the process; nil: none
	deliver func(sig os.Signal)
	stdout  syncBuffer
	stderr  syncBuffer
	ended   chan struct{}
}

// signal sends it a signal.
func (r *run) signal(sig os.Signal) { r.deliver(sig) }

// start starts the command; in is its standard input. In memory it runs in this
// process: see inMemory.
func start(t *testing.T, servers, in string, args ...string) *run {
	t.Helper()
	return startReading(t, servers, strings.NewReader(in), args...)
}

func startReading(t *testing.T, servers string, in io.Reader, args ...string) *run {
	t.Helper()
	env := append(os.Environ(), "ZSYNC_SERVERS="+servers, "ZSYNC_AUTH=")
	for ; len(args) > 0 && strings.HasPrefix(args[0], "env:"); args = args[1:] {
		env = append(env, args[0][len("env:"):])
	}
	r := &run{t: t, args: args, ended: make(chan struct{})}
	if m := machineOf(t); m != nil {
		m.start(t, r, in, env, args)
	} else {
		r.exec(in, env)
	}
	return r
}

// exec starts the built binary.
func (r *run) exec(in io.Reader, env []string) {
	r.t.Helper()
	if i := slices.Index(r.args, "--"); i >= 0 && i+1 < len(r.args) && !strings.Contains(r.args[i+1], "/") {
		need.Command(r.t, r.args[i+1])
	}
	cmd := exec.Command(binary(), r.args...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &r.stdout, &r.stderr
	cmd.WaitDelay = 5 * time.Second
	// As from a supervisor: signals of the terminal of go test, if there is
	// one, are none of its business.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.pid, r.deliver = cmd.Process.Pid, func(sig os.Signal) { cmd.Process.Signal(sig) }
	go func() {
		defer close(r.ended)
		cmd.Wait()
		r.code = exitStatus(cmd.ProcessState)
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			r.died = ws.Signal()
		}
	}()
	r.t.Cleanup(func() { cmd.Process.Kill(); <-r.ended })
}

// wait waits for the end and returns the exit status.
func (r *run) wait() int {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(patienceOf(r.t)):
		r.t.Fatalf("%v has not ended\nstdout: %s\nstderr: %s", r.args, &r.stdout, &r.stderr)
	}
	return r.code
}

// awaitOutput waits until the command has written s.
func (r *run) awaitOutput(s string) {
	r.t.Helper()
	await(r.t, func() bool { return strings.Contains(r.stdout.String(), s) }, "output %q of %v", s, r.args)
}

// want waits for the end and checks the exit status and all that was written
// to standard output.
func (r *run) want(status int, stdout string) {
	r.t.Helper()
	if got := r.wait(); got != status || r.stdout.String() != stdout {
		r.t.Errorf("%v: exit status %d and output %q; want %d and %q\nstderr: %s", r.args, got, r.stdout.String(), status, stdout, &r.stderr)
	}
}

func await(t *testing.T, cond func() bool, format string, args ...any) {
	t.Helper()
	// real time: a process of its own does what the test awaits; virtual time in memory
	for deadline := time.Now().Add(patienceOf(t)); !cond(); time.Sleep(5 * time.Millisecond) {
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
func connect(t *testing.T, srv *zktest.Server, opts ...zsync.Option) *zsync.Session {
	t.Helper()
	opts = append(opts, zsync.WithSessionTimeout(time.Minute), zsync.WithDialer(srv.Dial))
	s, err := zsync.Connect(t.Context(), srv.Addr(), opts...)
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
	t.Parallel()
	srv := serve(t)
	for _, sub := range [][]string{
		{"lock", "/p"}, {"lock", "--rw", "/rw"}, {"rlock", "/rw"}, {"semaphore", "-n", "2", "/s"}, {"elect", "/e"}, {"once", "/o"},
		{"barrier", "enter", "-n", "1", "/b"}, {"lock", "--kazoo", "/kazoo"}, {"elect", "--selector", "/selector"},
	} {
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
	srv := serve(t)
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
	srv := serve(t)
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
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
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
		start(t, srv.Addr(), "", "lock", "--rw", "/p", "--try", "--", "echo", "no").want(exitBusy, "")
		writer := start(t, srv.Addr(), "", "lock", "--rw", "/p", "--", "echo", "alone")
		contenders(t, rw, 3)
		start(t, srv.Addr(), "", "rlock", "/p", "--try", "--", "echo", "no").want(exitBusy, "") // not past a writer
		if got := writer.stdout.String(); got != "" {
			t.Errorf("the writer ran beside readers: %q", got)
		}
		for i, in := range ins {
			in.Close()
			readers[i].want(0, "inside\n")
		}
		writer.want(0, "alone\n")
	})
}

// startCat starts a command that says when it runs, and then runs until its
// standard input is closed.
func startCat(t *testing.T, servers string, args ...string) (*run, io.WriteCloser) {
	t.Helper()
	if machineOf(t) != nil {
		in, w := io.Pipe()
		t.Cleanup(func() { w.Close() })
		return startReading(t, servers, in, append(args, "--", does(t, func(p *memoryProcess) int {
			p.say("inside")
			io.Copy(p.out, p.in)
			return 0
		}))...), w
	}
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	defer in.Close() // a pipe, being a file, is given to the command as it is
	return startReading(t, servers, in, append(args, "--", "sh", "-c", "echo inside; exec cat")...), w
}

func TestTheTwoKindsOfLockAreNotMixed(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		plain, in := startCat(t, srv.Addr(), "lock", "/p")
		plain.awaitOutput("inside")
		start(t, srv.Addr(), "", "rlock", "/p", "--", "echo", "no").want(exitConfig, "")
		start(t, srv.Addr(), "", "lock", "--rw", "/p", "--try", "--", "echo", "no").want(exitConfig, "")
		in.Close()
		plain.want(0, "inside\n")
		reader, in := startCat(t, srv.Addr(), "rlock", "/p")
		reader.awaitOutput("inside")
		start(t, srv.Addr(), "", "lock", "/p", "--", "echo", "no").want(exitConfig, "")
		in.Close()
		reader.want(0, "inside\n")
		start(t, srv.Addr(), "", "lock", "/p", "--", "echo", "yes").want(0, "yes\n")
	})
}

func TestWaitingIsLimited(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		s := connect(t, srv)
		m, e := zsync.NewMutex(s, "/p"), zsync.NewElection(s, "/e")
		if err := errors.Join(m.Lock(t.Context()), zsync.NewSemaphore(s, "/s", 1).Acquire(t.Context(), 1), e.Campaign(t.Context()), zsync.NewBarrier(s, "/b").Close(t.Context())); err != nil {
			t.Fatal(err)
		}
		start(t, srv.Addr(), "", "lock", "/p", "--try", "--", "echo", "no").want(exitBusy, "")
		start(t, srv.Addr(), "", "semaphore", "-n", "1", "/s", "--try", "--", "echo", "no").want(exitBusy, "")
		var all sync.WaitGroup
		for _, args := range [][]string{
			{"lock", "/p", "--timeout", "2s", "--", "echo", "no"},
			{"elect", "/e", "--timeout", "2s", "--", "echo", "no"},
			{"semaphore", "-n", "1", "/s", "--timeout", "2s", "--", "echo", "no"},
			{"barrier", "enter", "-n", "2", "/d", "--timeout", "2s", "--", "echo", "no"},
			{"barrier", "leave", "-n", "2", "/d", "--timeout", "2s"},
			{"once", "/p", "--timeout", "2s", "--", "echo", "no"}, // its line is that of the Mutex
			{"barrier", "wait", "/b", "--timeout", "2s"},
			{"queue", "recv", "-f", "/q", "--timeout", "2s", "--", "cat"},
		} {
			all.Go(func() {
				steadily(t, func() string { return start(t, srv.Addr(), "", args...).outcome(exitBusy, "", "gave up after 2s") })
			})
		}
		all.Wait()
		if _, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "a", "info"); err != nil {
			t.Fatal(err)
		}
		second := start(t, srv.Addr(), "", "group", "join", "/g", "a", "--timeout", "2", "-E", "9", "--", "echo", "no")
		if wrong := second.outcome(9, "", "gave up after 2s: a is a member since 20"); wrong != "" { // an id is one member's, and the next waits for it
			t.Error(wrong)
		}
		contenders(t, m, 1)
		contenders(t, e, 1)
	})
}

func TestCommandIsStoppedWhenTheHoldIsLost(t *testing.T) {
	t.Parallel()
	for _, sub := range [][]string{
		{"lock", "/p"}, {"lock", "--rw", "/p"}, {"rlock", "/p"}, {"semaphore", "-n", "2", "/p"}, {"elect", "/p"}, {"once", "/p"},
		{"barrier", "enter", "-n", "1", "/p"},
	} {
		t.Run(strings.Join(sub, " "), func(t *testing.T) {
			t.Parallel()
			srv := serve(t)
			// The shell's own child would go on if only the shell were told.
			r := start(t, srv.Addr(), "", append(sub, "--kill-after", "20s", "--", "sh", "-c",
				`trap 'echo terminated; exit 0' TERM; sleep 600 & echo $!; wait`)...)
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
	srv := serve(t)
	r := start(t, srv.Addr(), "", "lock", "/p", "--kill-after", "300ms", "--", "sh", "-c",
		`trap '' TERM; sleep 600 & echo $!; while :; do wait; done`)
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
	srv := serve(t)
	r := start(t, srv.Addr(), "", "lock", "/p", "--kill-after", "300ms", "--", "sh", "-c",
		`(trap '' TERM; echo ready; exec sleep 600) & echo $!; trap 'exit 0' TERM; wait`)
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
	await(t, func() bool { return !runs(pid) }, "the end of process %d", pid)
}

// runs reports whether a process runs. One that has ended, though nobody has asked
// how, does not; and it may go between two looks.
func runs(pid int) bool {
	if runtime.GOOS != "linux" {
		return syscall.Kill(pid, 0) == nil
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ") && !strings.Contains(string(stat), ") X ")
}

func TestCommandIsGoneBeforeAnotherHoldsWhateverTimeoutTheServersGrant(t *testing.T) {
	for name, granted := range map[string]struct {
		asked             string
		shortest, longest time.Duration
	}{
		"what was asked for": {"20s", time.Millisecond, time.Hour},
		"less":               {"60s", time.Millisecond, 20 * time.Second},
		"more":               {"1s", 20 * time.Second, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, srv *zktest.Server) {
				// It does not stop when told, so it is gone only once it has been killed.
				var gone <-chan struct{}
				first := does(t, func(p *memoryProcess) int {
					p.trap(syscall.SIGTERM)
					gone = p.ended
					p.say("begun")
					p.signal()
					p.say("told")
					p.forever()
					return 0
				})
				r := start(t, srv.Addr(), "", "lock", "/p", "--session", granted.asked, "--", first)
				r.awaitOutput("begun\n")
				m := zsync.NewMutex(connect(t, srv), "/p")
				cs := contenders(t, m, 1)
				next := start(t, srv.Addr(), "", "lock", "/p", "--session", granted.asked, "--", does(t, func(p *memoryProcess) int {
					p.say("the first is gone:", harness.Closed(gone))
					return 0
				}))
				contenders(t, m, 2)
				srv.Partition(cs[0].Session)
				next.want(0, "the first is gone: true\n")
				r.want(exitLost, "begun\ntold\n")
			}, zktest.WithSessionTimeouts(granted.shortest, granted.longest))
		})
	}
}

func TestKillAfterThatOutlivesTheHoldIsToldToTheUser(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		r := start(t, srv.Addr(), "", "lock", "/p", "--session", "60s", "--kill-after", "10", "--", "true")
		r.want(0, "")
		if got := r.stderr.String(); !strings.Contains(got, "--kill-after 10s: another process may hold 4s after a loss") {
			t.Errorf("the message is %q", got)
		}
		r = start(t, srv.Addr(), "", "lock", "/p", "--session", "60s", "--kill-after", "4s", "--", "true")
		r.want(0, "")
		if got := r.stderr.String(); got != "" {
			t.Errorf("the message is %q", got)
		}
	}, zktest.WithSessionTimeouts(time.Millisecond, 40*time.Second))
}

func TestSeveralLocksAreHeldTogether(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	s := connect(t, srv)
	a, b := zsync.NewMutex(s, "/a"), zsync.NewMutex(s, "/b")
	r, in := startCat(t, srv.Addr(), "lock", "/b", "/a")
	r.awaitOutput("inside")
	contenders(t, a, 1)
	contenders(t, b, 1)
	steadily(t, func() string {
		try := start(t, srv.Addr(), "", "lock", "/c", "/b", "/a", "--try", "-E", "3", "--", "true")
		return try.outcome(3, "", "/c, /b, /a: not free: /b held by .*; /a held by ")
	})
	in.Close()
	r.want(0, "inside\n")
	// In whatever order they are named, nobody waits for ever.
	var runs []*run
	for i := range 6 {
		paths := [][]string{{"/a", "/b", "/c"}, {"/c", "/b", "/a"}, {"/b", "/c"}}[i%3]
		runs = append(runs, start(t, srv.Addr(), "", append(append([]string{"lock"}, paths...), "--", "sh", "-c", "echo $ZSYNC_TOKENS | wc -w")...))
	}
	for i, r := range runs {
		r.want(0, []string{"3\n", "3\n", "2\n"}[i%3])
	}
	// One that is lost is the loss of all.
	r = start(t, srv.Addr(), "", "lock", "/a", "/b", "--", "sh", "-c", "echo inside; exec sleep 600")
	r.awaitOutput("inside")
	expireAll(srv)
	r.want(exitLost, "inside\n")
	contenders(t, a, 0)
	contenders(t, b, 0)
}

func TestWhoIsInTheWayIsNamed(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		s := connect(t, srv, zsync.WithOwner("the\x1b holder"))
		rw := zsync.NewRWMutex(s, "/rw")
		if err := errors.Join(
			zsync.NewMutex(s, "/p").Lock(t.Context()), zsync.NewElection(s, "/e", zsync.WithID("the\x1b holder")).Campaign(t.Context()),
			zsync.NewSemaphore(s, "/s", 1).Acquire(t.Context(), 1), rw.RLock(t.Context()),
		); err != nil {
			t.Fatal(err)
		}
		waiter := start(t, srv.Addr(), "", "lock", "--rw", "/rw", "--owner", "a writer", "--", "true")
		contenders(t, rw, 2)
		const holder, since = `held by "the\\x1b holder", here since 20`, "[-0-9]+ [0-9:]+"
		for _, tt := range []struct{ args, message string }{
			{"lock /p --try", "zsync: /p: not free: " + holder + since},
			{"lock -n /p", "zsync: /p: not free: " + holder + since},
			{"lock /p -w 1.5", "zsync: lock /p: gave up after 1.5s: " + holder + since},
			{"lock /p --timeout 1500ms", "zsync: lock /p: gave up after 1.5s: " + holder + since},
			{"elect /e --timeout 1.5s", "zsync: campaign /e: gave up after 1.5s: " + holder + since},
			{"semaphore -n 1 /s --try", "zsync: /s: not free: " + holder + since},
			{"semaphore -n 1 /s -w 1.5", "zsync: acquire /s: gave up after 1.5s: " + holder + since},
			{"once /p -w 1.5", "zsync: do /p: gave up after 1.5s: " + holder + since},
			{"rlock /rw --try", "zsync: /rw: not free: " + holder + since + "; waiting ahead: 1"},
			{"rlock /rw --timeout 1.5", "zsync: rlock /rw: gave up after 1.5s: " + holder + since + "; waiting ahead: 1"},
		} {
			steadily(t, func() string {
				return start(t, srv.Addr(), "", append(strings.Fields(tt.args), "--", "true")...).outcome(exitBusy, "", "^"+tt.message+"\n$")
			})
		}
		loud := start(t, srv.Addr(), "", "lock", "-v", "/p", "--", "echo", "mine")
		await(t, func() bool {
			return regexp.MustCompile(`(?m)^zsync: /p: waiting: ` + holder + since + `$`).MatchString(loud.stderr.String())
		}, "the word of whom it waits for")
		s.Close()
		loud.want(0, "mine\n")
		if got := loud.stderr.String(); !regexp.MustCompile(`(?m)^zsync: /p: granted after [0-9.]+m?s$`).MatchString(got) {
			t.Errorf("the messages are %q", got)
		}
		waiter.want(0, "")
	})
}

func TestWhatShallBeRunAtALossIsRun(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	r := start(t, srv.Addr(), "", "env:ZSYNC_AUTH=digest:me:secret", "lock", "/p", "--on-lost", "echo lost $ZSYNC_TOKEN $ZSYNC_AUTH", "--", "sh", "-c", `echo $ZSYNC_TOKEN; exec sleep 600`)
	r.awaitOutput("\n")
	token := strings.TrimSpace(r.stdout.String())
	expireAll(srv)
	r.want(exitLost, fmt.Sprintf("%s\nlost %s\n", token, token))
	if got := r.stderr.String(); !strings.Contains(got, "zsync: /p: the hold was lost (the session has expired), and sh was stopped") {
		t.Errorf("the message is %q", got)
	}
	start(t, srv.Addr(), "", "lock", "/q", "--on-lost", "echo lost", "--", "echo", "done").want(0, "done\n")
}

func TestALeaderThatLosesOfficeStandsAgain(t *testing.T) {
	srv := serve(t)
	r := start(t, srv.Addr(), "", "elect", "/p", "--again", "--", "sh", "-c", `echo leading; exec sleep 600`)
	r.awaitOutput("leading\n")
	expireAll(srv)
	r.awaitOutput("leading\nleading\n")
	r.signal(syscall.SIGTERM)
	r.want(128+int(syscall.SIGTERM), "leading\nleading\n")
	if got := r.stderr.String(); !strings.HasPrefix(got, "zsync: /p: the hold was lost") {
		t.Errorf("the message is %q", got)
	}
}

func TestLeaderThatIsToldToEndDoesNotStandAgain(t *testing.T) {
	for _, order := range []string{"loss, signal", "signal, loss"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			srv, file := serve(t), filepath.Join(t.TempDir(), "go")
			r := start(t, srv.Addr(), "", "elect", "/p", "--again", "--kill-after", "10m", "--", "sh", "-c",
				`trap 'echo told' TERM; echo leading; while [ ! -e "$1" ]; do sleep 0.01; done`, "sh", file)
			r.awaitOutput("leading\n")
			both := []func(){func() { expireAll(srv) }, func() { r.signal(syscall.SIGTERM) }}
			if order == "signal, loss" {
				slices.Reverse(both)
			}
			both[0]()
			r.awaitOutput("told\n")
			both[1]()
			r.awaitOutput("told\ntold\n")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			r.want(exitLost, "leading\ntold\ntold\n")
		})
	}
}

func TestALeaderThatLosesOfficeStandsAgainWheneverAServerAnswers(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		r := start(t, srv.Addr(), "", "elect", "/p", "--again", "--connect-timeout", "10", "--", does(t, leads))
		r.awaitOutput("leading\n")
		var refused atomic.Int64 // how often it was refused a new session
		srv.Intercept(func(q zktest.Request) zktest.Action {
			if q.Op != zktest.OpConnect || q.Session != 0 {
				return zktest.Pass
			}
			refused.Add(1)
			return zktest.DropRequest
		})
		expireAll(srv)
		time.Sleep(time.Hour)
		if refused.Load() == 0 {
			t.Error("it has asked for no other session")
		}
		srv.Intercept(nil)
		select {
		case <-r.ended:
			t.Fatalf("it has ended with status %d\nstderr: %s", r.wait(), &r.stderr)
		default:
		}
		r.awaitOutput("leading\nleading\n")
	})
}

// A command can end with 76 by itself, for example a zsync inside a zsync.
func TestACommandsOwnStatusIsNoLoss(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		ends := does(t, func(p *memoryProcess) int {
			p.say("inside")
			time.Sleep(time.Second)
			return exitLost
		})
		for _, sub := range [][]string{{"lock", "/p"}, {"elect", "/e", "--again"}, {"once", "/o"}, {"barrier", "enter", "-n", "1", "/b"}} {
			r := start(t, srv.Addr(), "", append(sub, "--", ends)...)
			if time.Sleep(time.Minute); !harness.Closed(r.ended) {
				t.Fatalf("%v: it has not ended, after the output %q", sub, &r.stdout)
			}
			if r.want(exitLost, "inside\n"); r.stderr.String() != "" {
				t.Errorf("%v: the message is %q", sub, &r.stderr)
			}
		}
	})
}

// An endedProcess has ended, but zsync has not yet waited for it.
type endedProcess struct {
	*memoryProcess
	waited chan struct{}
}

func (p endedProcess) passOn(os.Signal) bool { return false }
func (p endedProcess) wait() int             { <-p.waited; return 0 }

// systemd sends SIGCONT behind SIGTERM.
func TestTheSignalThatEndsZsyncIsMissedWhateverComesBehindIt(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *zktest.Server) {
		m, signals, waited := machineOf(t), make(chan os.Signal, 2), make(chan struct{})
		h := &host{prepare: func(cmd *exec.Cmd) process { return endedProcess{m.process(cmd), waited} }}
		c := &child{host: h, argv: []string{"true"}, signals: signals}
		signals <- syscall.SIGTERM
		signals <- syscall.SIGCONT
		time.AfterFunc(time.Second, func() { close(waited) })
		if status, err := c.run(); status != 0 || err != nil || c.missed != syscall.SIGTERM {
			t.Errorf("status %d, error %v, and the missed signal is %v", status, err, c.missed)
		}
	})
}

// leads is a program that says so and runs on.
func leads(p *memoryProcess) int {
	p.say("leading")
	p.forever()
	return 0
}

func TestSignalsArePassedOn(t *testing.T) {
	srv := serve(t)
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2} {
		r := start(t, srv.Addr(), "", "lock", "/p", "--", "sh", "-c",
			fmt.Sprintf(`trap 'echo got it; exit 3' %d; echo ready; while :; do sleep 0.01; done`, int(sig)))
		r.awaitOutput("ready\n")
		r.signal(sig)
		r.want(3, "ready\ngot it\n")
	}
}

// SIGHUP and SIGINT, as nohup does, and a shell with what a script runs in the background.
func TestSignalThatZsyncWasStartedToIgnoreEndsNeitherItNorItsCommand(t *testing.T) {
	need.Command(t, "sh")
	srv := serve(t)
	for _, args := range [][]string{
		{"lock", "/p", "--"},
		{"queue", "recv", "/q", "-n", "1", "--"},
	} {
		start(t, srv.Addr(), "", "queue", "send", "/q", "one").want(0, "")
		dir := t.TempDir()
		cmd := exec.Command("sh", append([]string{"-c", `trap '' HUP INT; exec "$@"`, "sh", binary()}, append(args,
			"sh", "-c", `kill -HUP $PPID $$; kill -INT $PPID $$; sleep 0.1; touch "$0/on"`, dir)...)...)
		cmd.Env = append(os.Environ(), "ZSYNC_SERVERS="+srv.Addr())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		if _, err := os.Stat(filepath.Join(dir, "on")); err != nil {
			t.Errorf("%v: the command did not go on: %v", args, err)
		}
	}
}

// With -v there is something to say: whose reader has gone must not end the hold,
// nor have the command killed with zsync.
func TestMessagesThatNobodyReadsEndNoHold(t *testing.T) {
	t.Parallel()
	need.Command(t, "sh")
	srv := serve(t)
	nobody, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	defer in.Close()
	for _, args := range [][]string{
		{"lock", "/p"},
		{"semaphore", "-n", "1", "/s"},
		{"elect", "/e"},
		{"once", "/o"},
		{"barrier", "enter", "-n", "1", "/b"},
		{"schedule", "do", "/j", "--every", "1h"},
		{"group", "join", "/g", "me"},
	} {
		cmd := exec.Command(binary(), append(append([]string{"-v"}, args...), "--", "sh", "-c", "sleep 0.2; echo done")...)
		cmd.Env = append(os.Environ(), "ZSYNC_SERVERS="+srv.Addr())
		cmd.Stderr = in
		if out, err := cmd.Output(); err != nil || string(out) != "done\n" {
			t.Errorf("%v: %v, output %q", args, err, out)
		}
	}
}

func TestSignalWhileWaitingEndsTheWaitAndLeavesNothing(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		m := zsync.NewMutex(connect(t, srv), "/p")
		if err := m.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := start(t, srv.Addr(), "", "lock", "/p", "--", "echo", "no")
		contenders(t, m, 2)
		r.signal(syscall.SIGUSR1) // not one that ends a wait
		r.signal(syscall.SIGTERM)
		r.want(128+int(syscall.SIGTERM), "")
		if cs, err := m.Contenders(t.Context()); err != nil || len(cs) != 1 {
			t.Errorf("left in the line: %v, %v", cs, err)
		}
	})
}

func TestCommandDiesWithZsync(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip(runtime.GOOS + " sends no signal when a parent dies, so this is not shown: the command dies with zsync")
	}
	srv := serve(t)
	r := start(t, srv.Addr(), "", "lock", "/p", "--", "sh", "-c", "echo $$; exec sleep 600")
	r.awaitOutput("\n")
	r.signal(syscall.SIGKILL)
	pid, _ := strconv.Atoi(strings.TrimSpace(r.stdout.String()))
	wantEnded(t, pid)
}

func TestOnceRunsUntilItSucceeds(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		start(t, srv.Addr(), "", "once", "/p", "--", does(t, func(p *memoryProcess) int { p.say("failing"); return 4 })).want(4, "failing\n")
		start(t, srv.Addr(), "", "once", "/p", "--", "echo", "first").want(0, "first\n")
		start(t, srv.Addr(), "", "once", "/p", "--", "echo", "second").want(0, "")
		start(t, srv.Addr(), "", "once", "/p", "--reset").want(0, "")
		start(t, srv.Addr(), "", "once", "/p", "--", "echo", "third").want(0, "third\n")
	})
}

func TestGate(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		start(t, srv.Addr(), "", "barrier", "wait", "/p").want(0, "")
		start(t, srv.Addr(), "", "barrier", "close", "/p").want(0, "")
		start(t, srv.Addr(), "", "barrier", "close", "/p").want(0, "")
		waiting := srv.Counts().Watches
		r := start(t, srv.Addr(), "", "barrier", "wait", "/p")
		await(t, func() bool { return srv.Counts().Watches > waiting }, "a watch")
		start(t, srv.Addr(), "", "barrier", "open", "/p").want(0, "")
		r.want(0, "")
		start(t, srv.Addr(), "", "barrier", "wait", "/p").want(0, "")
	})
}

func TestSemaphoreLetsSoManyRun(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		m := zsync.NewSemaphore(connect(t, srv), "/p", 3)
		one, in1 := startCat(t, srv.Addr(), "semaphore", "-n", "3", "/p")
		two, in2 := startCat(t, srv.Addr(), "semaphore", "-n", "3", "--permits", "2", "/p")
		one.awaitOutput("inside")
		two.awaitOutput("inside")
		start(t, srv.Addr(), "", "semaphore", "-n", "3", "/p", "--try", "--", "echo", "no").want(exitBusy, "")
		big := start(t, srv.Addr(), "", "semaphore", "-n", "3", "--permits", "3", "/p", "--", "echo", "all")
		contenders(t, m, 4)
		in1.Close()
		one.want(0, "inside\n")
		start(t, srv.Addr(), "", "semaphore", "-n", "3", "/p", "--try", "--", "echo", "no").want(exitBusy, "") // not past the big one
		start(t, srv.Addr(), "", "semaphore", "-n", "4", "/p", "--", "echo", "no").want(exitUsage, "")
		in2.Close()
		two.want(0, "inside\n")
		big.want(0, "all\n")
	})
}

func TestDoubleBarrierHoldsTheCommandsTogether(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		for round := range 2 {
			failing := start(t, srv.Addr(), "", "barrier", "enter", "-n", "2", "/p", "--", does(t, func(p *memoryProcess) int { p.say("begun"); return 3 }))
			select {
			case <-failing.ended:
				t.Fatalf("round %d: entered alone\n%s", round, &failing.stderr)
			case <-time.After(100 * time.Millisecond):
			}
			if got := failing.stdout.String(); got != "" {
				t.Fatalf("round %d: the command runs alone: %q", round, got)
			}
			other, in := startCat(t, srv.Addr(), "barrier", "enter", "-n", "2", "/p")
			other.awaitOutput("inside")
			failing.awaitOutput("begun")
			select {
			case <-failing.ended:
				t.Fatalf("round %d: left alone\n%s", round, &failing.stderr)
			case <-time.After(100 * time.Millisecond):
			}
			in.Close()
			other.want(0, "inside\n")
			failing.want(3, "begun\n")
		}
	})
}

func TestPartyThatIsKilledHasLeftTheDoubleBarrier(t *testing.T) {
	t.Parallel()
	srv := zktest.Start(t)
	dying, _ := startCat(t, srv.Addr(), "barrier", "enter", "-n", "2", "/p", "--session", "1s")
	living := start(t, srv.Addr(), "", "barrier", "enter", "-n", "2", "/p", "--", "echo", "done")
	dying.awaitOutput("inside")
	dying.signal(syscall.SIGKILL)
	living.want(0, "done\n")
}

func TestSignalEndsTheWaitOfOneWhoLeaves(t *testing.T) {
	srv := serve(t)
	staying, in := startCat(t, srv.Addr(), "barrier", "enter", "-n", "2", "/p")
	leaving := start(t, srv.Addr(), "", "barrier", "enter", "-n", "2", "/p", "--", "echo", "left")
	staying.awaitOutput("inside")
	leaving.awaitOutput("left")
	// It may still run the command, to which the signal would go.
	await(t, func() bool { return !hasChild(t, leaving.pid) }, "the end of the command")
	leaving.signal(syscall.SIGTERM)
	leaving.want(128+int(syscall.SIGTERM), "left\n")
	in.Close()
	staying.want(0, "inside\n")
}

// hasChild reports whether a process has a child.
func hasChild(t *testing.T, pid int) bool {
	out, _ := exec.Command(need.Command(t, "ps"), "-o", "pid=", "--ppid", strconv.Itoa(pid)).Output()
	return len(bytes.TrimSpace(out)) > 0
}

func TestRendezvous(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		for range 2 {
			for _, sub := range []string{"enter", "leave"} {
				var runs []*run
				for range 3 {
					runs = append(runs, start(t, srv.Addr(), "", "barrier", sub, "-n", "3", "/p"))
				}
				for _, r := range runs {
					r.want(0, "")
				}
			}
		}
		steadily(t, func() string {
			return start(t, srv.Addr(), "", "barrier", "enter", "-n", "3", "/p", "--timeout", "2s").outcome(exitBusy, "", "")
		})
		steadily(t, func() string {
			return start(t, srv.Addr(), "", "barrier", "enter", "-n", "3", "/p", "--timeout", "2s", "-E", "3").outcome(3, "", "gave up after 2s")
		})
	})
}

func TestQueueCarriesLines(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		send := func(in string, args ...string) {
			t.Helper()
			start(t, srv.Addr(), in, append([]string{"queue", "send"}, args...)...).want(0, "")
		}
		for _, layout := range []string{"zsync", "simple", "distributed", "kazoo"} {
			q, l := "/"+layout, "--layout="+layout
			send("", q, l, "one", "two and more")
			send("a\n\n\xff\x00\r\nlast", q, l, "--raw")
			start(t, srv.Addr(), "", "queue", "len", q, l).want(0, "6\n")
			start(t, srv.Addr(), "", "queue", "recv", q, l, "-n", "2").want(0, "one\ntwo and more\n")
			start(t, srv.Addr(), "", "queue", "recv", q, l, "--raw").want(0, "a\n\n\xff\x00\r\nlast\n")
			start(t, srv.Addr(), "", "queue", "recv", q, l).want(0, "")
			send("x\ny\x00z", q, l, "-0")
			start(t, srv.Addr(), "", "queue", "recv", q, l, "--null").want(0, "x\ny\x00z\x00")
			send("last", q, l)
			start(t, srv.Addr(), "", "queue", "recv", q, l, "-n", "2").want(exitBusy, "last\n")
			start(t, srv.Addr(), "", "queue", "len", q, l).want(0, "0\n")
		}
	})
}

func TestQueueSendOfManyLines(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		var in strings.Builder
		for i := range 3000 {
			fmt.Fprintf(&in, "%d %s\n", i, strings.Repeat("x", 400))
		}
		start(t, srv.Addr(), in.String(), "queue", "send", "/q").want(0, "")
		start(t, srv.Addr(), "", "queue", "recv", "/q").want(0, in.String())
	})
}

func TestQueueSendTellsHowManyItHasSent(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		r := start(t, srv.Addr(), "one\ntwo\n"+strings.Repeat("x", 1<<20)+"\nnever", "queue", "send", "/q")
		r.want(exitUsage, "")
		if got := r.stderr.String(); !strings.Contains(got, "elements certainly sent: 2: ") {
			t.Errorf("the message is %q", got)
		}
		start(t, srv.Addr(), "", "queue", "recv", "/q").want(0, "one\ntwo\n")
		r = start(t, srv.Addr(), strings.Repeat("x", 1<<20-10), "queue", "send", "/q") // it can be read, and not be sent
		r.want(exitUsage, "")
		if got := r.stderr.String(); !strings.HasPrefix(got, "zsync: elements certainly sent: 0: send /q: ") {
			t.Errorf("the message is %q", got)
		}

		in, w := io.Pipe()
		r = startReading(t, srv.Addr(), in, "queue", "send", "/q")
		t.Cleanup(func() { w.Close() }) // what reads it is waited for
		fmt.Fprintln(w, "three")
		s := connect(t, srv)
		q := zsync.NewQueue[string](s, "/q")
		await(t, func() bool { n, _ := q.Len(t.Context()); return n == 1 }, "the line")
		// The next is sent when the first is known to be stored, and has no answer.
		var asked atomic.Bool
		srv.Intercept(func(req zktest.Request) zktest.Action {
			if req.Session == s.ID() || req.Op != zktest.OpMulti {
				return zktest.Pass
			}
			asked.Store(true)
			return zktest.Hang
		})
		fmt.Fprintln(w, "four")
		await(t, asked.Load, "the next request")
		r.signal(syscall.SIGINT)
		await(t, func() bool { return strings.Contains(r.stderr.String(), "elements certainly sent: 1: ") }, "the message")
		w.Close()
		r.want(128+int(syscall.SIGINT), "")
	})
}

// What is read may never end.
func TestInputThatIsTooLargeIsRefusedBeforeItEnds(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		for _, tt := range []struct{ args, message string }{
			{"value set /v", "zsync: standard input: larger than ZooKeeper's packet limit of 1 MiB\n"},
			{"map set /m k", "zsync: standard input: larger than ZooKeeper's packet limit of 1 MiB\n"},
			{"queue send /q", "zsync: elements certainly sent: 2: standard input: larger than ZooKeeper's packet limit of 1 MiB\n"},
			{"queue send /q --id 7", "zsync: standard input: larger than ZooKeeper's packet limit of 1 MiB\n"},
		} {
			in, w := io.Pipe()
			t.Cleanup(func() { w.Close(); in.Close() })
			go func() {
				if tt.args == "queue send /q" {
					io.WriteString(w, "one\ntwo\n")
				}
				w.Write(make([]byte, 4<<20))
			}()
			r := startReading(t, srv.Addr(), in, strings.Fields(tt.args)...)
			if got := r.wait(); got != exitUsage || r.stderr.String() != tt.message {
				t.Errorf("%s: exit status %d and %q, want %d and %q", tt.args, got, &r.stderr, exitUsage, tt.message)
			}
		}
	})
}

func TestQueueRecvFollowsUntilItIsTold(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		r := start(t, srv.Addr(), "", "queue", "recv", "--follow", "/q")
		q := zsync.NewQueue[string](connect(t, srv), "/q", zsync.WithCodec(zsync.Raw))
		for _, v := range []string{"one", "two"} {
			if err := q.Send(t.Context(), v); err != nil {
				t.Fatal(err)
			}
			r.awaitOutput(v + "\n")
		}
		await(t, func() bool { n, err := q.Len(t.Context()); return err == nil && n == 0 }, "the removal of what is written")
		expireAll(srv)
		if err := q.Send(t.Context(), "three"); err != nil {
			t.Fatal(err)
		}
		r.awaitOutput("three\n")
		r.signal(syscall.SIGTERM)
		r.want(128+int(syscall.SIGTERM), "one\ntwo\nthree\n")
		r = start(t, srv.Addr(), "", "queue", "recv", "-f", "-n", "2", "/q")
		if err := q.Send(t.Context(), "four", "five", "six"); err != nil {
			t.Fatal(err)
		}
		r.want(0, "four\nfive\n")
		start(t, srv.Addr(), "", "queue", "recv", "/q").want(0, "six\n")
	})
}

func TestQueueElementStaysUntilItIsWritten(t *testing.T) {
	srv := serve(t)
	start(t, srv.Addr(), "", "queue", "send", "/q", "one", "two", "three").want(0, "")
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out.Close() // nobody reads
	cmd := exec.Command(binary(), "queue", "recv", "/q")
	cmd.Env = append(os.Environ(), "ZSYNC_SERVERS="+srv.Addr())
	cmd.Stdout = in
	err = cmd.Run()
	in.Close()
	if got := cmd.ProcessState.ExitCode(); got != 128+int(syscall.SIGPIPE) {
		t.Errorf("exit status %d (%v), want that of SIGPIPE", got, err)
	}
	// Sent back, and not only when a session would have expired; nor was it tried.
	if st := start(t, srv.Addr(), "", "queue", "stats", "/q", "--json"); st.wait() != 0 || !strings.Contains(st.stdout.String(), `"attempts": 0`) {
		t.Errorf("after what could not be written:\n%s%s", &st.stdout, &st.stderr)
	}
	start(t, srv.Addr(), "", "queue", "recv", "/q", "--timeout", "40s").want(0, "one\ntwo\nthree\n")
}

func TestQueueRecvRunsACommandForEachElement(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	recv := func(script string, args ...string) *run {
		t.Helper()
		return start(t, srv.Addr(), "not this", append(append([]string{"queue", "recv", "/q"}, args...), "--", "sh", "-c", script)...)
	}
	start(t, srv.Addr(), "", "queue", "send", "/q", "one", "two", "", "three").want(0, "")
	recv(`cat; echo " $ZSYNC_ATTEMPT"`, "-n", "1").want(0, "one 1\n")
	recv(`cat; exit 3`, "--backoff", "0").want(3, "two")
	recv(`cat; echo " $ZSYNC_ATTEMPT ${ZSYNC_ID##*/}"; false`, "--backoff", "0").want(1, "two 2 e-0000000001\n")
	start(t, srv.Addr(), "", "queue", "recv", "/q", "--", "/no/such/command").want(exitNotFound, "")
	recv(`cat; echo " $ZSYNC_ATTEMPT"`).want(0, "two 3\n 1\nthree 1\n")
	recv(`cat`, "-n", "1").want(exitBusy, "")
	start(t, srv.Addr(), strings.Repeat("x", 200<<10), "queue", "send", "/q").want(0, "")
	recv(`exec 3<&0; sleep 10 <&3 >/dev/null 2>&1 & exit 0`).want(0, "") // neither reads it
	start(t, srv.Addr(), "", "queue", "len", "/q").want(0, "0\n")
}

func TestQueueRecvReceivesEachElementOnceThoughTheServersAreFarAway(t *testing.T) {
	t.Parallel()
	for _, latency := range []time.Duration{0, 20 * time.Millisecond, 80 * time.Millisecond, 200 * time.Millisecond, 600 * time.Millisecond} {
		t.Run(latency.String(), func(t *testing.T) {
			inMemory(t, func(t *testing.T, srv *zktest.Server) {
				start(t, srv.Addr(), "", "queue", "send", "/q", "one").want(0, "")
				srv.SetLatency(latency)
				for range 3 {
					start(t, srv.Addr(), "", "queue", "recv", "/q", "--backoff", "0", "--", does(t, func(*memoryProcess) int { return 3 })).want(3, "")
				}
				srv.SetLatency(0)
				d, err := zsync.NewQueue[string](connect(t, srv), "/q").Receive(t.Context())
				if err != nil || d.Attempt != 4 {
					t.Errorf("after 3 attempts, the next is attempt %d (error %v)", d.Attempt, err)
				}
			})
		})
	}
}

// The command fails while the servers are slow with a claim. That ends recv. If recv had claimed the next element for
// the next command, that element would now count as tried.
func TestQueueRecvTriesNoElementThatItsCommandHasNotGot(t *testing.T) {
	t.Parallel()
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		start(t, srv.Addr(), "", "queue", "send", "/q", "one", "two").want(0, "")
		var first atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			claim := slices.ContainsFunc(r.Ops, func(o zktest.Request) bool { return o.Op == zktest.OpSetData && strings.HasPrefix(o.Path, "/q/b-") })
			if claim && first.Swap(true) {
				return zktest.Delay(3 * time.Second)
			}
			return zktest.Pass
		})
		start(t, srv.Addr(), "", "queue", "recv", "/q", "--backoff", "0", "--", does(t, func(*memoryProcess) int { return 3 })).want(3, "")
		srv.Intercept(nil)
		time.Sleep(time.Minute)
		ds, err := zsync.NewQueue[string](connect(t, srv), "/q").ReceiveN(t.Context(), 2)
		if err != nil || len(ds) != 2 || ds[0].Attempt != 2 || ds[1].Attempt != 1 {
			t.Errorf("received %+v, %v; want the second attempt of one and the first of two", ds, err)
		}
	})
}

func TestSignalToQueueRecvGoesToItsCommand(t *testing.T) {
	srv := serve(t)
	start(t, srv.Addr(), "", "queue", "send", "/q", "one", "two", "three").want(0, "")
	r := start(t, srv.Addr(), "", "queue", "recv", "-f", "/q", "--", "sh", "-c", `trap 'echo finished; exit 0' TERM; cat; while :; do sleep 0.01; done`)
	r.awaitOutput("one")
	r.signal(syscall.SIGTERM)
	r.want(128+int(syscall.SIGTERM), "onefinished\n")
	r = start(t, srv.Addr(), "", "queue", "recv", "-f", "/q", "--", "sh", "-c", `cat; while :; do sleep 0.01; done`)
	r.awaitOutput("two")
	r.signal(syscall.SIGINT)
	r.want(128+int(syscall.SIGINT), "two")
	r = start(t, srv.Addr(), "", "queue", "recv", "-f", "/q", "--", "cat")
	r.awaitOutput("twothree")
	// An element is removed when its command has ended.
	q := zsync.NewQueue[string](connect(t, srv), "/q")
	await(t, func() bool { n, err := q.Len(t.Context()); return err == nil && n == 0 }, "the end of the last command")
	r.signal(syscall.SIGUSR1) // while no command runs
	r.signal(syscall.SIGTERM)
	r.want(128+int(syscall.SIGTERM), "twothree")
}

func TestQueueRecvSaysThatWhatItsCommandDidMayBeReceivedAgain(t *testing.T) {
	t.Parallel()
	// The command may end before zsync knows of the loss, while it connects anew, and
	// after that. Where another consumer waits it receives the element; otherwise the
	// element may be there to be removed, which is as good as if nothing had been lost.
	for _, after := range []time.Duration{0, time.Millisecond, time.Second, 10 * time.Second, time.Hour} {
		for _, away := range []time.Duration{0, 500 * time.Millisecond, 50 * time.Second, 5 * time.Minute} {
			for _, others := range []bool{false, true} {
				t.Run(fmt.Sprintf("ends after %v, servers away for %v, others: %v", after, away, others), func(t *testing.T) {
					inMemory(t, func(t *testing.T, srv *zktest.Server) {
						start(t, srv.Addr(), "", "queue", "send", "/q", "one").want(0, "")
						over := make(chan struct{})
						r := start(t, srv.Addr(), "", "queue", "recv", "/q", "--", does(t, func(p *memoryProcess) int {
							p.say("begun")
							p.until(over)
							return 0
						}))
						r.awaitOutput("begun")
						other := new(run)
						if others {
							other = start(t, srv.Addr(), "", "queue", "recv", "--follow", "/q")
							time.Sleep(time.Second)
						}
						expireAll(srv)
						if away > 0 {
							srv.Stop()
							time.AfterFunc(away, srv.Restart)
						}
						time.Sleep(after)
						close(over)
						status := r.wait()
						time.Sleep(time.Hour)
						again := other.stdout.String() != "" || strings.Count(r.stdout.String(), "begun") > 1
						n, err := zsync.NewQueue[string](connect(t, srv), "/q").Len(t.Context())
						told := strings.Contains(r.stderr.String(), "may be received again")
						switch {
						case after == time.Hour && status != exitLost:
							t.Errorf("exit status %d after a loss that is known, want %d\n%s", status, exitLost, &r.stderr)
						case err != nil:
							t.Error(err)
						case status == 0 && (again || n > 0):
							t.Errorf("it succeeds, and the element is received again, or there: %v, %d", again, n)
						case status != 0 && (status != exitLost && away < removal || !told):
							t.Errorf("exit status %d, want %d\n%s", status, exitLost, &r.stderr)
						}
					})
				})
			}
		}
	}
}

func TestStatusShowsHoldersAndWaiters(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		s := connect(t, srv, zsync.WithOwner("the holder"))
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
	})
}

func TestStatusInJSONIsCompleteAndTyped(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		s := connect(t, srv, zsync.WithOwner("<an owner\x1b>"))
		ctx := t.Context()
		if err := errors.Join(
			zsync.NewQueue[int](s, "/queue").Send(ctx, 1, 2),
			zsync.NewQueue[int](s, "/simple", zsync.WithQueueLayout(zsync.LayoutSimpleQueue)).Send(ctx, 1),
			zsync.NewWaitGroup(s, "/waitgroup").Add(ctx, 3),
			zsync.NewValue[map[string]int](s, "/value").Store(ctx, map[string]int{"a": 1}),
			zsync.NewValue[string](s, "/text", zsync.WithCodec(zsync.Raw)).Store(ctx, "once"),
			zsync.NewValue[string](s, "/text", zsync.WithCodec(zsync.Raw)).Store(ctx, "twice"),
			zsync.NewBarrier(s, "/gate").Close(ctx),
		); err != nil {
			t.Fatal(err)
		}
		r := start(t, srv.Addr(), "", "status", "--json", "/queue", "/simple", "/waitgroup", "/value", "/text", "/gate", "/free")
		r.wait()
		var got []map[string]any
		if err := json.Unmarshal([]byte(r.stdout.String()), &got); err != nil {
			t.Fatalf("%v\n%s", err, &r.stdout)
		}
		want := []map[string]any{
			{"path": "/queue", "kind": "queue", "state": "2 elements", "count": 2.0, "layout": "zsync"},
			{"path": "/simple", "kind": "queue", "state": "1 element, as of SimpleDistributedQueue", "count": 1.0, "layout": "simple"},
			{"path": "/waitgroup", "kind": "wait group", "state": "3 open tasks", "count": 3.0},
			{"path": "/value", "kind": "data", "state": `{"a":1}`, "value": map[string]any{"a": 1.0}},
			{"path": "/text", "kind": "data", "state": "twice", "value": "twice"},
			{"path": "/gate", "kind": "gate", "state": "closed", "owner": "<an owner\x1b>", "value": "zsync: closed by <an owner\x1b>"},
			{"path": "/free", "kind": "", "state": "free"},
		}
		for _, w := range want {
			w["holding"] = false
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %v\nwant %v", got, want)
		}
	})
}

func TestStatusShowsAnEmptyQueueAndWhoWaitsForElements(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		start(t, srv.Addr(), "", "queue", "send", "/sent", "one").want(0, "")
		start(t, srv.Addr(), "", "queue", "recv", "/sent").want(0, "one\n")
		start(t, srv.Addr(), "", "queue", "recv", "-f", "/awaited", "--owner", "a consumer")
		s := connect(t, srv)
		c := zsync.NewCond(s, "/cond", zsync.NewMutex(s, "/condlock"))
		waited := make(chan error, 1)
		go func() {
			if err := c.L.Lock(t.Context()); err != nil {
				waited <- err
				return
			}
			waited <- errors.Join(c.Wait(t.Context()), c.L.Unlock())
		}()
		want := regexp.MustCompile(`^PATH .*\n/sent +queue +- +0 elements +- +- +-\n` +
			`/awaited +queue +consumer +idle +a consumer +20\S+ \S+ +0x\S+\n/awaited +queue +- +0 elements .*\n` +
			`/cond +cond +- +waits +\S+:\d+ +20\S+ \S+ +0x\S+\n$`)
		await(t, func() bool {
			r := start(t, srv.Addr(), "", "status", "/sent", "/awaited", "/cond")
			r.wait()
			return want.MatchString(r.stdout.String())
		}, "the right status")
		if err := c.Signal(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-waited; err != nil {
			t.Error(err)
		}
	})
}

func TestStatusShowsWhatThereIs(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		s, ctx := connect(t, srv), t.Context()
		kazoo := zsync.WithLayout(zsync.LayoutKazoo)
		if err := errors.Join(
			zsync.NewRWMutex(s, "/rw").RLock(ctx),
			zsync.NewMutex(s, "/kazoo", kazoo).Lock(ctx),
			zsync.NewElection(s, "/election").Campaign(ctx),
			zsync.NewSemaphore(s, "/semaphore", 3).Acquire(ctx, 1),
			zsync.NewSemaphore(s, "/kazoosemaphore", 3, kazoo).Acquire(ctx, 1),
			zsync.NewWaitGroup(s, "/waitgroup").Add(ctx, 3),
			zsync.NewWaitGroup(s, "/doublebarrier").Enter(ctx, 1),
			zsync.NewOnce(s, "/once").Do(ctx, func(context.Context) error { return nil }),
			zsync.NewQueue[int](s, "/queue").Send(ctx, 1, 2),
			zsync.NewQueue[int](s, "/simple", zsync.WithQueueLayout(zsync.LayoutSimpleQueue)).Send(ctx, 1),
			zsync.NewValue[string](s, "/value").Store(ctx, "x\x1b"),
			zsync.NewBarrier(s, "/gate").Close(ctx),
		); err != nil {
			t.Fatal(err)
		}
		want := []struct{ path, row string }{
			{"/rw", `read-write lock +shared +holds +\S+ +here since 20\S+ \S+ +0x.*`},
			{"/kazoo", `kazoo lock +exclusive +holds .*`},
			{"/election", `election +exclusive +leads .*`},
			{"/semaphore", `semaphore +permits +holds .*`},
			{"/kazoosemaphore", `kazoo semaphore +permits +holds .*`},
			{"/waitgroup", `wait group +- +3 open tasks +- +- +-`},
			{"/doublebarrier", `double barrier +party +holds .*`},
			{"/once", `once +- +done .*`},
			{"/queue", `queue +- +2 elements .*`},
			{"/simple", `queue +- +1 element, as of SimpleDistributedQueue .*`},
			{"/value", `data +- +"x\\u001b" .*`},
			{"/gate", `gate +- +closed +\S+:\d+ .*`},
		}
		args, pattern := []string{"status"}, "^PATH .*\n"
		for _, w := range want {
			args, pattern = append(args, w.path), pattern+w.path+" +"+w.row+"\n"
		}
		r := start(t, srv.Addr(), "", args...)
		r.wait()
		if !regexp.MustCompile(pattern + "$").MatchString(r.stdout.String()) {
			t.Errorf("got\n%s\nwant a match of\n%s\n%s", &r.stdout, pattern, &r.stderr)
		}
	})
}

func TestStatusOfWhatIsNotOursToReadCostsItsOwnPath(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		owner := []zsync.Option{zsync.WithAuth("digest", []byte("me:secret")), zsync.WithACL(zk.AuthACL(zk.PermAll)), zsync.WithOwner("in secret")}
		secret := connect(t, srv, owner...)
		s := connect(t, srv)
		m := zsync.NewMutex(s, "/shared")
		if err := errors.Join(zsync.NewMutex(secret, "/secret").Lock(t.Context()), m.Lock(t.Context())); err != nil {
			t.Fatal(err)
		}
		conn, _, err := zk.Connect([]string{srv.Addr()}, 10*time.Second, zk.WithDialer(srv.Dial), zk.WithLogInfo(false))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		const name = "/shared/_c_48e50edc-09ec-4785-b44e-13769185aea0-lock-"
		if err := conn.AddAuth("digest", []byte("me:secret")); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Create(name, []byte("in secret"), zk.FlagEphemeral|zk.FlagSequence, zk.AuthACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
		contenders(t, m, 2)
		r := start(t, srv.Addr(), "", "status", "/secret", "/shared", "/free")
		if status := r.wait(); status != exitRefused {
			t.Errorf("exit status %d, want %d", status, exitRefused)
		}
		want := regexp.MustCompile(`^PATH .*\n/secret +- +- +not ours to read .*\n/shared +lock +exclusive +holds +\S+:\d+ .*\n/shared +lock +exclusive +waits +- +20.*\n/free +- +- +free .*\n$`)
		if !want.MatchString(r.stdout.String()) {
			t.Errorf("got\n%s", &r.stdout)
		}
		if got := r.stderr.String(); !strings.Contains(got, "children /secret: no permission (see WithAuth, and the ACLs of the path): zk: not authenticated") || strings.Count(got, "\n") != 1 {
			t.Errorf("the message is %q", got)
		}
	})
}

func TestStatusShowsDeadLetters(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		s := connect(t, srv)
		start(t, srv.Addr(), "", "queue", "send", "/q", "no number", "nor this").want(0, "")
		for range 2 {
			zsync.NewQueue[int](s, "/q").TryRecv(t.Context()) // neither can be decoded
		}
		r := start(t, srv.Addr(), "", "status", "/q")
		r.wait()
		if want := regexp.MustCompile(`\n/q +queue +- +2 dead letters .*\n$`); !want.MatchString(r.stdout.String()) {
			t.Errorf("got\n%s", &r.stdout)
		}
		r = start(t, srv.Addr(), "", "status", "/q", "--json")
		r.wait()
		if !strings.Contains(r.stdout.String(), `"dead": 2`) {
			t.Errorf("got\n%s", &r.stdout)
		}
	})
}

func TestCredentialsAreKeptFromTheCommandAndFromStrangers(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		file := filepath.Join(t.TempDir(), "auth")
		if err := os.WriteFile(file, []byte("digest:me:secret\n\ndigest:us:other\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("ZSYNC_TEST_OTHER", "stays")
		run := func(status int, env string, args ...string) *run {
			t.Helper()
			r := start(t, srv.Addr(), "", append([]string{"env:ZSYNC_AUTH=" + env}, args...)...)
			if got := r.wait(); got != status {
				t.Errorf("%v: exit status %d, want %d\n%s", args, got, status, &r.stderr)
			}
			return r
		}
		r := run(0, "digest:me:secret", "lock", "/env", "--", "env")
		if got := r.stdout.String(); strings.Contains(got, "secret") || !strings.Contains(got, "ZSYNC_TEST_OTHER=stays") || !strings.Contains(got, "ZSYNC_TOKEN=") {
			t.Errorf("the command's environment is\n%s", got)
		}
		run(0, "", "lock", "/file", "--auth-file", file, "--", "true")
		run(0, "", "lock", "/flag", "--auth", "digest:me:secret", "--", "true")
		run(0, "", "lock", "/asked", "--auth-file", file, "--acl", "open", "--", "true")
		run(0, "", "lock", "/some", "--auth-file", file, "--acl", "creator", "--acl", "world:anyone:r", "--", "true")
		for path, status := range map[string]int{"/env": exitRefused, "/file": exitRefused, "/flag": exitRefused, "/asked": 0, "/some": exitRefused} {
			run(status, "", "lock", path, "--", "true")
		}
		run(0, "", "status", "/some")
		run(exitRefused, "", "status", "/file")
	})
}

func TestTheSASLPasswordComesFromAFileOrTheEnvironmentAlone(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		dir := t.TempDir()
		file := func(text string) string {
			name := filepath.Join(dir, fmt.Sprint(len(text)))
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return name
		}
		run := func(status int, want, password string, args ...string) {
			t.Helper()
			r := start(t, srv.Addr(), "", append([]string{"env:ZSYNC_SASL_PASSWORD=" + password, "lock", "/p"}, append(args, "--", "env")...)...)
			if got := r.wait(); got != status || !strings.Contains(r.stderr.String(), want) || strings.Contains(r.stderr.String()+r.stdout.String(), "secret") {
				t.Errorf("%v: exit status %d, want %d\n%s%s", args, got, status, &r.stdout, &r.stderr)
			}
		}
		run(0, "", "secret", "--sasl-user", "bob")
		run(0, "", "", "--sasl-user", "bob", "--sasl-password-file", file("secret\r\nmore\n"))
		run(exitRefused, "SASL DIGEST-MD5", "wrong", "--sasl-user", "bob")
		run(exitRefused, "WithSASL", "")
		run(exitUsage, "ZSYNC_SASL_PASSWORD", "", "--sasl-user", "bob")
		run(exitUsage, "--sasl-user", "", "--sasl-password-file", file("x"))
		run(exitConfig, "first line is empty", "", "--sasl-user", "bob", "--sasl-password-file", file("\nsecret"))
		run(exitConfig, "no such file", "", "--sasl-user", "bob", "--sasl-password-file", filepath.Join(dir, "none"))
	}, zktest.WithSASL(map[string]string{"bob": "secret"}), zktest.WithRequiredAuth("sasl"))
}

func TestTheFlagsOfKerberosAreCheckedBeforeAServerIsAsked(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "krb5.conf")
	if err := os.WriteFile(config, []byte("[realms]\n  EXAMPLE.ORG = {\n    kdc = 127.0.0.1:1\n  }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KRB5_CONFIG", config)
	for _, c := range []struct {
		args, want string
		status     int
	}{
		{"--keytab f", "--keytab and --principal go together", exitUsage},
		{"--principal bob", "--keytab and --principal go together", exitUsage},
		{"--sasl-user bob --kerberos", "--sasl-user and Kerberos are two ways to authenticate", exitUsage},
		{"--sasl-user bob --server-principal zookeeper/_HOST", "--sasl-user and Kerberos are two ways to authenticate", exitUsage},
		{"--keytab " + dir + "/none --principal bob@EXAMPLE.ORG", "no such file or directory", exitConfig},
	} {
		r := start(t, "127.0.0.1:1", "", append([]string{"lock", "/p"}, append(strings.Fields(c.args), "--", "true")...)...)
		if status := r.wait(); status != c.status || !strings.Contains(r.stderr.String(), c.want) {
			t.Errorf("%s: exit status %d, want %d, with %q:\n%s", c.args, status, c.status, c.want, &r.stderr)
		}
	}
}

func TestTLSIsUsedAndChecked(t *testing.T) {
	t.Parallel() // each refusal takes a second
	srv := serve(t)
	certificate, dir := httptest.NewUnstartedServer(nil), t.TempDir()
	certificate.StartTLS() // for its certificate, which is for example.com and 127.0.0.1
	pair := certificate.TLS.Certificates[0]
	certificate.Close()
	pemOf := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	ca, keyFile := pemOf("ca.pem", "CERTIFICATE", pair.Certificate[0]), pemOf("key.pem", "PRIVATE KEY", key)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // before the server stands a proxy that speaks TLS
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("tcp", srv.Addr())
				if err != nil {
					return
				}
				defer out.Close()
				go func() { io.Copy(out, in); out.Close() }()
				io.Copy(in, out)
			}()
		}
	}()
	lock := func(status int, message string, args ...string) {
		t.Helper()
		patience := "1s"
		if status == 0 {
			patience = "30s"
		}
		steadily(t, func() string {
			r := start(t, l.Addr().String(), "", append(append([]string{"lock", "/p", "--connect-timeout", patience}, args...), "--", "true")...)
			return r.outcome(status, "", regexp.QuoteMeta(message))
		})
	}
	lock(0, "", "--tls-ca", ca, "--tls-cert", ca, "--tls-key", keyFile)
	lock(0, "", "--tls-ca", ca, "--tls-cert", ca, "--tls-key", keyFile, "--tls-name", "example.com")
	lock(exitServers, "elsewhere.org", "--tls-ca", ca, "--tls-cert", ca, "--tls-key", keyFile, "--tls-name", "elsewhere.org")
	lock(exitServers, "certificate", "--tls")
	lock(exitServers, "no server answered")
	lock(exitUsage, "--tls-cert and --tls-key go together", "--tls-cert", ca)
	lock(exitConfig, "there is no certificate in it", "--tls-ca", keyFile)
	lock(exitConfig, "no such file", "--tls-ca", filepath.Join(dir, "missing"))
}

func TestOutputThatCannotBeWrittenIsAnError(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		need.Missing(t, "/dev/full", err.Error())
	}
	defer full.Close()
	srv := serve(t)
	start(t, srv.Addr(), "", "queue", "send", "/q", "one").want(0, "")
	for _, args := range [][]string{{"queue", "recv", "/q"}, {"queue", "len", "/q"}, {"status", "/q"}, {"status", "--json", "/q"},
		{"--version"}, {"completion", "bash"}, {"help"}, {"help", "lock"}, {"lock", "--help"}, {"server", "--listen", "127.0.0.1:0"}} {
		cmd := exec.Command(binary(), args...)
		cmd.Env = append(os.Environ(), "ZSYNC_SERVERS="+srv.Addr())
		cmd.Stdout = full
		if cmd.Run(); cmd.ProcessState.ExitCode() != exitOutput {
			t.Errorf("%v: exit status %d, want %d", args, cmd.ProcessState.ExitCode(), exitOutput)
		}
	}
	start(t, srv.Addr(), "", "queue", "recv", "/q").want(0, "one\n")
}

func TestServerServes(t *testing.T) {
	r := start(t, "", "", "server", "--listen", "127.0.0.1:0")
	r.awaitOutput("\n")
	addr := strings.Fields(strings.ReplaceAll(r.stdout.String(), ",", ""))[2]
	start(t, addr, "", "lock", "/p", "--", "echo", "served").want(0, "served\n")
	start(t, "", "", "server", "--listen", addr).want(exitServers, "")
	r.signal(os.Interrupt)
	if got := r.wait(); got != 0 {
		t.Errorf("exit status %d, want 0\n%s", got, &r.stderr)
	}
}

// The address is taken and given back again and again.
func TestServerThatCannotListenSaysSoWheneverTheAddressIsTaken(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	free.Close()
	done, gone := make(chan struct{}), make(chan struct{})
	defer func() { close(done); <-gone }()
	go func() {
		defer close(gone)
		for {
			select {
			case <-done:
				return
			default:
			}
			if l, err := net.Listen("tcp", addr); err == nil {
				l.Close()
			}
		}
	}()
	newMachine(t, nil) // many starts in this process find the instant that few starts of a process would find
	for range 400 {
		r := start(t, "", "", "server", "--listen", addr)
		for deadline := time.Now().Add(patience); r.stdout.String() == "" && r.stderr.String() == ""; time.Sleep(50 * time.Microsecond) { // real time: the server listens at a real address
			if time.Now().After(deadline) {
				t.Fatal("waited in vain for a word of the server")
			}
		}
		r.signal(syscall.SIGTERM)
		if got := r.wait(); got != 0 && got != exitServers {
			t.Fatalf("exit status %d, want 0 or %d\n%s", got, exitServers, &r.stderr)
		}
	}
}

func TestNothingThatIsPrintedActsOnTheTerminal(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		const evil = "\x1b[2J\u202e\x9b\u009b\r\nzsync: forged\x7f"
		s := connect(t, srv, zsync.WithOwner(evil))
		if err := errors.Join(
			zsync.NewMutex(s, "/p").Lock(t.Context()),
			zsync.NewValue[string](s, "/json").Store(t.Context(), strings.ToValidUTF8(evil, "")), // as JSON: not all of it is escaped
			zsync.NewValue[string](s, "/data", zsync.WithCodec(zsync.Raw)).Store(t.Context(), evil),
			zsync.NewBarrier(s, "/gate").Close(t.Context()),
		); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{
			{"status", "/p", "/json", "/data", "/gate", "/\u202e"},
			{"status", "--json", "/p", "/json", "/data", "/gate", "/\u202e"},
			{"status", evil}, {"status", "/p/" + evil}, {"lock", evil, "--", "true"},
			{"lock", "/q", "--", evil}, {evil}, {"barrier", evil}, {"--" + evil}, {"lock", "/p", "--timeout", evil, "--", "true"},
			{"status", "/p", "--servers", evil}, {"queue", "len", "/q", "--layout", evil}, {"server", "--listen", evil},
			{"lokc"}, {"status", "/p", "--auth", evil},
		} {
			for i, arg := range args {
				args[i] = strings.ReplaceAll(arg, "\x00", "")
			}
			r := start(t, srv.Addr(), "", args...)
			r.wait()
			for _, out := range []string{r.stdout.String(), r.stderr.String()} {
				if strings.ContainsFunc(strings.ReplaceAll(out, "\n", ""), special) || !utf8.ValidString(out) || strings.Contains(out, "\nzsync: forged") {
					t.Errorf("%q: printed %q", args, out)
				}
			}
			if r.stdout.String() == "" && r.stderr.String() == "" {
				t.Errorf("%q: nothing was printed", args)
			}
		}
	})
}

func TestServerBringsTheFaultsThatItIsToldTo(t *testing.T) {
	t.Parallel() // it waits for faults at intervals
	serve := func(flags ...string) (*run, string) {
		r := start(t, "", "", append([]string{"server", "--listen", "127.0.0.1:0"}, flags...)...)
		r.awaitOutput("\n")
		return r, strings.Fields(strings.ReplaceAll(r.stdout.String(), ",", ""))[2]
	}
	r, addr := serve("--disconnect-every", "0.2", "--lose-replies", "10", "--latency", "1ms")
	start(t, addr, "", "lock", "/p", "--", "echo", "served").want(0, "served\n")
	s, err := zsync.Connect(t.Context(), addr)
	harness.Must(t, err)
	defer s.Close()
	await(t, func() bool { // which ones are lost is left to chance
		m := zsync.NewMutex(s, "/p")
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		return regexp.MustCompile(`session 0x\S+: the reply to create\S* /`).MatchString(r.stderr.String())
	}, "a lost reply")
	await(t, func() bool { return strings.Contains(r.stderr.String(), ": disconnected\n") }, "a disconnection")
	_, addr = serve("--max-session", "3s", "--expire-every", "2")
	lost := start(t, addr, "", "lock", "/p", "--kill-after", "10s", "--", "sleep", "60")
	lost.want(exitLost, "")
	if got := lost.stderr.String(); !strings.Contains(got, "another process may hold 300ms after a loss") {
		t.Errorf("the message is %q: not by the timeout granted", got)
	}
}

func TestValueIsReadWrittenAndWatched(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		value := func(status int, out, in string, args ...string) {
			t.Helper()
			start(t, srv.Addr(), in, append([]string{"value"}, args...)...).want(status, out)
		}
		value(exitBusy, "", "", "get", "/v")
		value(exitBusy, "", "", "set", "/v", "x", "--if", "")
		value(0, "", "", "set", "/v", "one", "--if-absent")
		value(exitBusy, "", "", "set", "/v", "x", "--if-absent")
		value(0, "one\n", "", "get", "/v")
		watch := start(t, srv.Addr(), "", "value", "watch", "/v", "-n", "3")
		watch.awaitOutput("one\n")
		value(0, "", "", "set", "/v", "two", "--if", "one")
		watch.awaitOutput("two\n")
		value(exitBusy, "", "", "set", "/v", "x", "--if", "one")
		value(0, "", "three\nlines\n", "set", "/v")
		watch.want(0, "one\ntwo\nthree\nlines\n\n")
		value(0, "three\nlines\n\n", "", "get", "/v")
		value(0, `"three\nlines\n"`+"\n", "", "get", "/v", "--raw")
		steadily(t, func() string {
			return start(t, srv.Addr(), "", "value", "watch", "/v", "--timeout", "2").outcome(exitBusy, "three\nlines\n\n", "")
		})
		value(exitUsage, "", "", "watch", "v")
	})
}

func TestDeadLettersArePutBackOrPurged(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	queue := func(status int, out string, args ...string) string {
		t.Helper()
		r := start(t, srv.Addr(), "", append([]string{"queue"}, args...)...)
		if out == "?" {
			r.wait()
			return r.stdout.String()
		}
		r.want(status, out)
		return ""
	}
	queue(exitBusy, "", "peek", "/q")
	queue(0, "", "send", "/q", "good", "bad", "good too", "bad\x1b as well")
	queue(0, "good\n", "peek", "/q")
	script := `read -r job; echo "$job" $ZSYNC_ATTEMPT; case $job in bad*) false; esac`
	out := queue(0, "?", "recv", "/q", "--max-attempts", "2", "--backoff", "0", "--", "sh", "-c", script)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	want := []string{"bad 1", "bad 2", "bad\x1b as well 1", "bad\x1b as well 2", "good 1", "good too 1"}
	slices.Sort(lines)
	slices.Sort(want)
	if !slices.Equal(lines, want) {
		t.Errorf("the command was run for %q, want %q", lines, want)
	}
	out = queue(0, "?", "dead", "/q")
	rows := regexp.MustCompile(`(?m)^(dead-\S+) +20\S+ \S+ +(\d+) +exit status 1 +(.*)$`).FindAllStringSubmatch(out, -1)
	if len(rows) != 2 || rows[0][3] != "bad" || rows[1][3] != `"bad\x1b as well"` || rows[0][2] != "2" {
		t.Fatalf("got\n%s", out)
	}
	if out := queue(0, "?", "dead", "/q", "--json"); !strings.Contains(out, `"data": "ImJhZCI="`) {
		t.Errorf("got\n%s", out)
	}
	queue(exitBusy, "1\n", "requeue", "/q", rows[0][1], "dead-nonsense")
	queue(0, "bad\n", "recv", "/q")
	queue(0, "1\n", "purge", "/q", "--all")
	queue(0, "0\n", "purge", "/q", "--all")
	queue(0, "ID   SINCE   ATTEMPTS   REASON   DATA\n", "dead", "/q")

	queue(0, "", "send", "/q", "later", "--delay", "1h")
	queue(0, "", "send", "/q", "middle", "--priorities", "10")
	queue(0, "", "send", "/q", "last", "--priorities", "10", "--priority", "9")
	queue(0, "", "send", "/q", "first", "--priorities", "10", "--priority", "0")
	queue(0, "", "send", "/q", "now", "--priorities", "10", "--delay", "0")
	queue(0, "first\nmiddle\nnow\nlast\n", "recv", "/q")
	queue(0, "1\n", "clear", "/q")
	queue(0, "0\n", "len", "/q")
}

func TestListThatIsShownAgainAndAgainDoesNotWearTheServersOut(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		r := start(t, srv.Addr(), "", "ls", "--watch", "--interval", "0", "--timeout", "1.05")
		r.wait()
		if got := strings.Count(r.stdout.String(), "PATH"); got != 11 {
			t.Errorf("shown %d times in 1.05 s, want every 100 ms", got)
		}
	})
}

func TestAnAddressThatIsInUseIsRefused(t *testing.T) {
	srv := serve(t)
	for _, command := range []string{"server", "ui"} {
		if wrong := start(t, srv.Addr(), "", command, "--listen", srv.Addr()).outcome(exitServers, "", "^zsync: .*address already in use\n$"); wrong != "" {
			t.Error(wrong)
		}
	}
}

func TestBadArgumentsAreRefusedBeforeTheConnection(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		endless, w := io.Pipe()
		t.Cleanup(func() { w.Close(); endless.Close() })
		for _, tt := range []struct{ args, message string }{ // '' is an empty argument
			{"once / --reset", `path "/" is the root`},
			{"barrier close /", `path "/" is the root`},
			{"group members /", `path "/" is the root`},
			{"int get /", `path "/" is the root`},
			{"map get / k", `path "/" is the root`},
			{"value get /", `path "/" is the root`},
			{"value set v", `path "v" is relative`}, // not after the input
			{"map set m k", `path "m" is relative`},
			{"schedule last /", `path "/" is the root`},
			{"queue send / x", `path "/" is the root`},
			{"queue send /q x --priorities 0", "--priorities 0: must be from 1 to 1000"},
			{"queue send /q x --priorities 1001", "--priorities 1001: must be from 1 to 1000"},
			{"queue send /q x --priorities 3 --priority 3", "--priority 3: must be from 0 to 2, with --priorities 3"},
			{"queue send /q x --priorities 3 --priority -1", "--priority -1: must be from 0 to 2, with --priorities 3"},
			{"queue send /q x --priorities 3 --layout simple", "--priorities: there are none in the layout simple"},
			{"queue send /q x --id ''", "--id: the ID is empty"},
			{"queue send /q x --key ''", "--key: the key is empty"},
			{"int set /n ''", `NUMBER "": want a whole number`},
			{"semaphore -n x /s -- true", `invalid argument "x" for "-n, --limit" flag: want a whole number`},
			{"semaphore -n 99999999999999999999 /s -- true", `"-n, --limit" flag: out of range`},
			{"lock --try=maybe /m -- true", `"-n, --try" flag: want true or false`},
			{"queue send /q x --id 7 --id-memory 0", "--id-memory 0: must be at least a millisecond"},
			{"queue send /q x --layout kazoo --id 7", "--id needs zsync's own layout, not kazoo"},
			{"queue send /q x --layout kazoo --key k", "--key needs zsync's own layout, not kazoo"},
			{"queue send /q x --layout simple --delay 5", "--delay needs zsync's own layout, not simple"},
			{"queue send /q x \xff", "neither JSON nor UTF-8"},
			{"queue send /q \xff --id 7", "neither JSON nor UTF-8"},
			{"queue recv /q --layout kazoo --max-attempts 2 -- true", "--max-attempts needs zsync's own layout, not kazoo"},
			{"queue recv /q --layout foo --backoff 1 -- true", `unknown layout "foo"`},
			{"queue cancel /q ''", "the ID is empty"},
			{"queue cancel /q 7 --layout kazoo", "zsync queue cancel needs zsync's own layout, not kazoo"},
			{"queue pause /q --layout kazoo", "zsync queue pause needs zsync's own layout, not kazoo"},
			{"queue resume /q --layout kazoo", "zsync queue resume needs zsync's own layout, not kazoo"},
			{"queue ls /q --layout kazoo", "zsync queue ls needs zsync's own layout, not kazoo"},
			{"semaphore -n 2 --permits 3 /p -- true", "--permits: 3 permits exceed the limit of 2 (-n)"},
			{"group join /g ''", "the ID is empty"},
			{"schedule run /s --every 0 --cron @daily -- true", "--every 0: must be more than 0"},
			{"schedule do /s --every 0 --at 2026-01-31T00:00:00Z -- true", "--every 0: must be more than 0"},
			{"schedule do /s --at 0001-01-01T00:00:00Z -- true", "--at 0001-01-01T00:00:00Z: must be after the zero time"},
			{"ui --timetable jobs=@daily --listen 127.0.0.1:0", `path "jobs" is relative`},
			{"lock /p --auth-file '' -- true", "--auth-file: is empty"},
			{"lock /p --sasl-user '' -- true", "--sasl-user: is empty"},
			{"lock /p --tls-ca '' -- true", "--tls-ca: is empty"},
			{"lock /p --tls-cert '' --tls-key '' -- true", "--tls-cert: is empty"},
		} {
			args := strings.Fields(tt.args)
			for i, arg := range args {
				args[i] = strings.Trim(arg, "'")
			}
			if wrong := startReading(t, "127.0.0.1:1", endless, args...).outcome(exitUsage, "", "^zsync: .*"+regexp.QuoteMeta(tt.message)); wrong != "" {
				t.Error(wrong)
			}
		}
	})
}

func TestErrorsSayWhatToDo(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		bad := filepath.Join(t.TempDir(), "bad")
		if err := os.WriteFile(bad, []byte("digest:me:secret\nsecret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		start(t, srv.Addr(), "", "value", "set", "/text", "--raw", "abc").want(0, "")
		for _, tt := range []struct {
			servers string
			args    string
			status  int
			message string
		}{
			{"", "lock /p -- true", exitConfig, "give --servers or set ZSYNC_SERVERS"},
			{"127.0.0.1:1", "lock /p --connect-timeout 100ms -- true", exitServers, "no server answered within 100ms (last attempt: 127.0.0.1:1: "},
			{"127.0.0.1:1", "lock /p --timeout 100ms -- true", exitServers, "gave up after 100ms (last attempt: 127.0.0.1:1: "},
			{"127.0.0.1:1/a/", "lock /p -- true", exitUsage, "chroot"},
			{srv.Addr(), "lock p -- true", exitUsage, `path "p" is relative; it must begin with a slash`},
			{"127.0.0.1:1", "lock /p q -- true", exitUsage, `path "q" is relative; it must begin with a slash`},
			{"127.0.0.1:1", "lock / -- true", exitUsage, `path "/" is the root`},
			{"127.0.0.1:1", "value get v", exitUsage, `path "v" is relative`},
			{"127.0.0.1:1", "status / p", exitUsage, `path "p" is relative`},
			{"127.0.0.1:1", "int watch /n --count 0", exitUsage, "--count 0: must be at least 1"},
			{srv.Addr(), "lock /p true", exitUsage, "there is no -- before the command; want: zsync lock PATH... [flags] -- CMD [ARG...]"},
			{srv.Addr(), "lock /p --", exitUsage, "want: zsync lock PATH... [flags] -- CMD [ARG...]"},
			{srv.Addr(), "lock -- true", exitUsage, "want: zsync lock PATH... [flags] -- CMD [ARG...]"},
			{srv.Addr(), "lock /p --bogus -- true", exitUsage, "unknown flag: --bogus"},
			{srv.Addr(), "lock /p --auth digest -- true", exitUsage, "--auth: credentials must be SCHEME:CREDENTIALS"},
			{srv.Addr(), "lock /p --auth :secret -- true", exitUsage, "--auth: credentials must be SCHEME:CREDENTIALS"},
			{srv.Addr(), "lock /p --auth-file " + bad + " -- true", exitConfig, "--auth-file " + bad + ": credentials must be SCHEME:CREDENTIALS"},
			{srv.Addr(), "doctor --admin-port -1", exitUsage, "--admin-port -1: must be from 0 to 65535"},
			{srv.Addr(), "lock /p --auth-file /nonexistent -- true", exitConfig, "--auth-file: open /nonexistent: no such file"},
			{srv.Addr(), "lock /p --auth-file /dev/null -- true", exitConfig, "there is nothing in it"},
			{srv.Addr(), "lock /p --acl creator -- true", exitUsage, "--acl creator: there are no credentials"},
			{srv.Addr(), "lock /p --acl world:cdrwa -- true", exitUsage, "want SCHEME:ID:PERMS, open or creator"},
			{srv.Addr(), "lock /p --acl world:anyone:rx -- true", exitUsage, "letters of cdrwa"},
			{srv.Addr(), "lock /p --acl world:anyone: -- true", exitUsage, "no permissions"},
			{srv.Addr(), "lock /p --acl nosuch:me:cdrwa -- true", exitUsage, "invalid ACL"},
			{srv.Addr(), "lock /text --auth digest:me:secret -- true", exitRefused, "the ACL is wider than WithACL allows: /text"},
			{srv.Addr(), "elect /p --selector --kazoo -- true", exitUsage, "do not go together"},
			{srv.Addr(), "semaphore /p -- true", exitUsage, "give -n"},
			{"127.0.0.1:1", "semaphore -n 0 /p -- true", exitUsage, "-n 0: must be at least 1"},
			{"127.0.0.1:1", "semaphore -n 1 --permits 0 /p -- true", exitUsage, "--permits 0: must be at least 1"},
			{srv.Addr(), "semaphore -n 2 --permits 3 /p -- true", exitUsage, "3 permits exceed the limit of 2"},
			{srv.Addr(), "semaphore -n 2 /p true", exitUsage, "there is no -- before the command; want: zsync semaphore -n LIMIT PATH [flags] -- CMD [ARG...]"},
			{srv.Addr(), "lock /p --session 0s -- true", exitUsage, "session timeout 0s is out of range"},
			{srv.Addr(), "lock /p --timeout -1s -- true", exitUsage, `invalid argument "-1s" for "-w, --timeout" flag: must not be negative`},
			{srv.Addr(), "lock /p --kill-after -1s -- true", exitUsage, `invalid argument "-1s" for "--kill-after" flag: must not be negative`},
			{srv.Addr(), "status /p --connect-timeout -1s", exitUsage, `invalid argument "-1s" for "--connect-timeout" flag: must not be negative`},
			{srv.Addr(), "lock /p --timeout 5x -- true", exitUsage, "want seconds, or a number with a unit"},
			{srv.Addr(), "lock /p --timeout NaN -- true", exitUsage, "out of range"},
			{srv.Addr(), "lock /p --timeout 1e30 -- true", exitUsage, "out of range"},
			{srv.Addr(), "lock /p --timeout 1e-10 -- true", exitUsage, "out of range"}, // not 0, which is for ever
			{srv.Addr(), "lock /p --timeout 0.1ns -- true", exitUsage, "out of range"},
			{srv.Addr(), "ls /a /b", exitUsage, "want: zsync ls [PATH] [flags]"},
			{srv.Addr(), "ls --watch --json", exitUsage, "--watch and --json do not go together"},
			{srv.Addr(), "ls p", exitUsage, `path "p" is relative`},
			{srv.Addr(), "doctor p/q", exitUsage, `path "p/q" is relative`},
			{srv.Addr(), "int get /text", exitConfig, "load /text: cannot decode 3 bytes"},
			{srv.Addr(), "int add /text --curator", exitConfig, "add /text: cannot decode 3 bytes"},
			{srv.Addr(), "int watch /text", exitConfig, "load /text: cannot decode 3 bytes"},
			{"", "help foo", exitUsage, `unknown command "foo"`},
			{"", "completion foo", exitUsage, `unknown command "foo" for "zsync completion"`},
			{srv.Addr(), "lock /p /q /p -- true", exitUsage, "/p is given twice"},
			{srv.Addr(), "elect /p /q -- true", exitUsage, "want: zsync elect PATH [flags] -- CMD [ARG...]"},
			{srv.Addr(), "lock /p -E 256 -- true", exitUsage, "an exit status is from 0 to 255"},
			{srv.Addr(), "barrier leave -n 2 /p --timeout 2s", exitBusy, "leave /p: gave up after 2s"},
			{"", "server --listen localhost", exitUsage, "--listen: address localhost: missing port"},
			{"", "server --listen :99999", exitUsage, "--listen: address 99999: invalid port"},
			{"", "ui --listen localhost", exitUsage, "--listen: address localhost: missing port"},
			{"", "ui --listen :99999", exitUsage, "--listen: address 99999: invalid port"},
			{srv.Addr(), "status", exitUsage, "want: zsync status PATH... [flags]"},
			{srv.Addr(), "barrier", exitUsage, "zsync barrier --help"},
			{srv.Addr(), "barrier foo /p", exitUsage, `unknown subcommand "foo"; see zsync barrier --help`},
			{srv.Addr(), "barrier wait", exitUsage, "want: zsync barrier wait PATH [flags]"},
			{srv.Addr(), "barrier enter /p", exitUsage, "give -n"},
			{"127.0.0.1:1", "barrier enter -n 0 /p", exitUsage, "-n 0: must be at least 1"},
			{srv.Addr(), "barrier enter -n 2 /p --", exitUsage, "want: zsync barrier enter -n N PATH [flags] [-- CMD [ARG...]]"},
			{srv.Addr(), "barrier leave /p", exitUsage, "give -n"},
			{srv.Addr(), "barrier leave -n 2", exitUsage, "want: zsync barrier leave -n N PATH [flags]"},
			{srv.Addr(), "queue", exitUsage, "zsync queue --help"},
			{srv.Addr(), "queue foo /q", exitUsage, `unknown subcommand "foo"; see zsync queue --help`},
			{srv.Addr(), "queue send", exitUsage, "want: zsync queue send PATH [ELEMENT...] [flags]"},
			{srv.Addr(), "queue send q x", exitUsage, `path "q" is relative`},
			{srv.Addr(), "queue send /q x --layout curator", exitUsage, `unknown layout "curator"`},
			{srv.Addr(), "queue recv /q x", exitUsage, "there is no -- before the command; want: zsync queue recv PATH [flags] [-- CMD [ARG...]]"},
			{srv.Addr(), "queue recv /q --", exitUsage, "want: zsync queue recv PATH [flags] [-- CMD [ARG...]]"},
			{srv.Addr(), "queue recv /q -n 0", exitUsage, "--count 0: must be at least 1"},
			{srv.Addr(), "queue recv /q -n 1", exitBusy, "/q: received 0 of 1 element: "},
			{srv.Addr(), "queue recv /q -f --timeout 2", exitBusy, "gave up after 2s"},
			{srv.Addr(), "queue len", exitUsage, "want: zsync queue len PATH [flags]"},
			{srv.Addr(), "once /p /q --reset", exitUsage, "want: zsync once PATH --reset"},
			{srv.Addr(), "queue send /q x --priority 1", exitUsage, "of how many? give --priorities"},
			{srv.Addr(), "queue send /q x --priorities 2 --priority 1 --delay 1", exitUsage, "do not go together"},
			{srv.Addr(), "queue recv /q --max-attempts 2", exitUsage, "goes with a command"},
			{srv.Addr(), "queue recv /q -j 2", exitUsage, "--jobs goes with a command"},
			{srv.Addr(), "queue recv /q --backoff 1", exitUsage, "--backoff goes with a command"},
			{srv.Addr(), "queue recv /q --jobs 0 -- true", exitUsage, "--jobs 0: must be at least 1"},
			{srv.Addr(), "queue recv /q --max-attempts 0 -- true", exitUsage, "--max-attempts 0: must be at least 1"},
			{srv.Addr(), "queue recv /q --layout kazoo --backoff 1 -- true", exitUsage, "--backoff needs zsync's own layout, not kazoo"},
			{srv.Addr(), "queue recv /q --layout kazoo --max-attempts 2 -- true", exitUsage, "--max-attempts needs zsync's own layout, not kazoo"},
			{srv.Addr(), "queue send /q x y --id 7", exitUsage, "--id is of one element, and here are 2"},
			{srv.Addr(), "queue send /q x --id 7 --delay 1", exitUsage, "--id does not go with --priority and --delay"},
			{srv.Addr(), "queue send /q x --id 7 --layout kazoo", exitUsage, "--id needs zsync's own layout, not kazoo"},
			{srv.Addr(), "queue cancel /q", exitUsage, "want: zsync queue cancel PATH ID [flags]"},
			{srv.Addr(), "queue cancel /q 7", exitBusy, "there is no element with the ID 7"},
			{srv.Addr(), "queue stats", exitUsage, "want: zsync queue stats PATH [flags]"},
			{srv.Addr(), "queue requeue /q", exitUsage, "want: zsync queue requeue PATH ID..."},
			{srv.Addr(), "queue purge /q x --all", exitUsage, "want: zsync queue purge PATH ID..."},
			{srv.Addr(), "value set", exitUsage, "want: zsync value set PATH [VALUE] [flags]"},
			{srv.Addr(), "map get /m", exitUsage, "want: zsync map get PATH KEY [flags]"},
			{srv.Addr(), "map get /m k", exitBusy, `/m: there is no key "k"`},
			{srv.Addr(), "map set /m k v --if a --if-absent", exitUsage, "do not go together"},
			{srv.Addr(), "map list /m --keys --json", exitUsage, "json"},
			{srv.Addr(), "map foo", exitUsage, `unknown subcommand "foo"; see zsync map --help`},
			{srv.Addr(), "int set /n", exitUsage, "want: zsync int set PATH NUMBER [flags]"},
			{srv.Addr(), "int add /n 1.5", exitUsage, `NUMBER "1.5": want a whole number`},
			{srv.Addr(), "int watch /n --count 0", exitUsage, "--count 0: must be at least 1"},
			{srv.Addr(), "group join /g", exitUsage, "want: zsync group join PATH ID [INFO] [flags] [-- CMD [ARG...]]"},
			{srv.Addr(), "group join /g a info sleep 1", exitUsage, "there is no -- before the command"},
			{srv.Addr(), "group join /g a info --kazoo -- true", exitUsage, "kazoo's members have no INFO"},
			{srv.Addr(), "group members g", exitUsage, `path "g" is relative`},
			{srv.Addr(), "schedule run /s -- true", exitUsage, "when? give --every or --cron"},
			{srv.Addr(), "schedule run /s --every 1h true", exitUsage, "there is no -- before the command"},
			{srv.Addr(), "schedule run /s --every 1h --missed some -- true", exitUsage, "want latest, skip or all"},
			{srv.Addr(), "schedule do /s -- true", exitUsage, "of which instant? give --at, --every or --cron"},
			{srv.Addr(), "schedule do /s --at today -- true", exitUsage, "want a time such as 2006-01-02T15:04:05Z"},
			{srv.Addr(), "schedule do /s --cron 0_3 -- true", exitUsage, "--cron 0_3: "},
			{srv.Addr(), "schedule last /s", exitBusy, "/s: none has been done"},
			{"", "server --lose-replies 101", exitUsage, "want from 0 to 100"},
			{"", "server --min-session 5 --max-session 4", exitUsage, "--min-session 5s is longer than --max-session 4s"},
			{srv.Addr(), "bogus", exitUsage, `unknown command "bogus"`},
			{srv.Addr(), "lokc", exitUsage, `unknown command "lokc" for "zsync"; did you mean lock?`},
			{srv.Addr(), "lok", exitUsage, `unknown command "lok" for "zsync"; did you mean lock?`},
			{srv.Addr(), "help lok", exitUsage, `unknown command "lok" for "zsync"; did you mean lock?`},
			{srv.Addr(), "queue snd /p", exitUsage, `unknown subcommand "snd"; see zsync queue --help; did you mean send?`},
			{"", "server --addr 127.0.0.1:0", exitUsage, "unknown flag: --addr; did you mean --listen?"},
			{srv.Addr(), "ls --addr 127.0.0.1:0", exitUsage, "unknown flag: --addr; did you mean --servers?"},
			{srv.Addr(), "lock --nonblock /p -- true", exitUsage, "unknown flag: --nonblock; did you mean --try?"},
			{srv.Addr(), "lock --timout 3 /p -- true", exitUsage, "unknown flag: --timout; did you mean --timeout?"},
		} {
			steadily(t, func() string { // some have little time
				return start(t, tt.servers, "", strings.Fields(tt.args)...).outcome(tt.status, "", `^zsync: .*`+regexp.QuoteMeta(tt.message)+`.*\n$`)
			})
		}
	})
}

func TestASuggestionSharesHalfOfTheWord(t *testing.T) {
	for word, want := range map[string]string{"foo": "", "lok": "lock", "tpo": "top", "stat": "status", "queeu": "queue"} {
		if got := strings.Join(nearest(word, []string{"lock", "top", "status", "queue"}), " "); got != want {
			t.Errorf("for %s: %q, want %q", word, got, want)
		}
	}
}

func TestHelpDoesNotShowTheEnvironment(t *testing.T) {
	r := start(t, "the:1,servers:2", "", "lock", "--help")
	if status := r.wait(); status != 0 || strings.Contains(r.stdout.String(), "the:1") {
		t.Errorf("exit status %d and\n%s", status, &r.stdout)
	}
}

// A build outside a checkout knows no commit.
func TestVersion(t *testing.T) {
	for _, arg := range []string{"--version", "version"} {
		r := start(t, "", "", arg)
		if status := r.wait(); status != 0 || !regexp.MustCompile(`^zsync version \S+( commit [0-9a-f]{12})?( modified)? go\S+\n$`).MatchString(r.stdout.String()) {
			t.Errorf("%s: exit status %d and %q", arg, status, &r.stdout)
		}
	}
	for want, info := range map[string]debug.BuildInfo{
		"v1.2.3 commit 0123456789ab":               {Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "false"}}},
		"(devel) commit 0123456789ab modified":     {Main: debug.Module{Version: "(devel)"}, Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}}},
		"v0.0.0-20260101000000-0123456789ab+dirty": {Main: debug.Module{Version: "v0.0.0-20260101000000-0123456789ab+dirty"}, Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}}},
		"v1.2.3": {Main: debug.Module{Version: "v1.2.3"}},
	} {
		if got := strings.Join(commit(&info), " "); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestHelpNamesEveryCommandAndOnlyTheFlagsThatItUses(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		help := func(args ...string) string {
			r := start(t, srv.Addr(), "", args...)
			r.wait()
			return r.stdout.String()
		}
		for _, cmd := range newRoot(thisHost()).Commands() {
			if !strings.Contains(help("help"), "\n  "+cmd.Name()+" ") {
				t.Errorf("help does not name %s", cmd.Name())
			}
			text := help("help", cmd.Name())
			if used := !slices.Contains(offline, cmd.Name()); strings.Contains(text, "--servers") != used || strings.Contains(text, "--tls-ca") != used {
				t.Errorf("help %s shows the flags of servers, or does not:\n%s", cmd.Name(), text)
			}
			if strings.Contains(text, "append a trace of all holds to FILE") && (slices.Contains(offline, cmd.Name()) || slices.Contains(looking, cmd.Name())) {
				t.Errorf("help %s shows --trace", cmd.Name())
			}
		}
		if text := help("lock", "--help"); !strings.Contains(text, "use zsync schedule") || !strings.Contains(text, "Examples:\n  zsync lock /locks/backup -- ./backup.sh\n") || !strings.Contains(text, "--trace") {
			t.Errorf("help lock:\n%s", text)
		}
	})
}

// --count counts elements. The attempts of a failing element are attempts of one element.
func TestARetryIsNoFurtherElement(t *testing.T) {
	srv := serve(t)
	start(t, srv.Addr(), "", "queue", "send", "/q", "bad", "one", "two", "three").want(0, "")
	r := start(t, srv.Addr(), "", "queue", "recv", "/q", "-n", "4", "--max-attempts", "2", "--backoff", "0", "--",
		"sh", "-c", `read -r job; echo "$job" $ZSYNC_ATTEMPT; test "$job" != bad`)
	r.wait()
	lines := strings.Split(strings.TrimSpace(r.stdout.String()), "\n")
	slices.Sort(lines)
	if want := []string{"bad 1", "bad 2", "one 1", "three 1", "two 1"}; !slices.Equal(lines, want) {
		t.Errorf("the command was run for %q, want %q", lines, want)
	}
}
