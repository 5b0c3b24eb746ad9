//go:build unix

// Package examples_test runs the examples as somebody does who tries them:
// processes of their own, one of which is killed.
package examples_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/need"
	"github.com/zsync/zsync/zktest"
)

// bin is where the examples are built.
var bin string

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "10"); err != nil { // they mostly wait
		panic(err)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if bin, err = os.MkdirTemp("", "zsync-examples-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(bin)
	if err := buildAll(bin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// buildAll builds the examples in dir as one program, which the linker links once. It has a name
// for each example, and runs the example of the name that it was started with. Each example is a
// package of this program, of the same source but for the name of the package and of `main`.
func buildAll(dir string) error {
	examples := []string{"batch", "config", "leader", "migration", "nightly", "pool", "worker"}
	const all = "internal/all" // a folder that exists only for this build
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp(dir, "source-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	overlay := make(map[string]string)
	put := func(pkg, source string) {
		file := filepath.Join(temp, fmt.Sprint(len(overlay), ".go"))
		overlay[filepath.Join(here, all, pkg, "main.go")] = file
		err = errors.Join(err, os.WriteFile(file, []byte(source), 0o600))
	}
	imports, cases := "", ""
	for _, name := range examples {
		source, readErr := os.ReadFile(filepath.Join(name, "main.go"))
		if files, _ := filepath.Glob(filepath.Join(name, "*.go")); readErr != nil || len(files) != 1 ||
			bytes.Count(source, []byte("\npackage main\n")) != 1 || bytes.Count(source, []byte("\nfunc main() {\n")) != 1 {
			return fmt.Errorf("%s is no program in one file: %v", name, readErr)
		}
		put(name, strings.NewReplacer("\npackage main\n", "\npackage "+name+"\n", "\nfunc main() {\n", "\nfunc Main() {\n").Replace(string(source)))
		imports += fmt.Sprintf("\t\"github.com/zsync/zsync/examples/%s/%s\"\n", all, name)
		cases += fmt.Sprintf("\tcase %q:\n\t\t%s.Main()\n", name, name)
	}
	put("", "package main\n\nimport (\n\t\"os\"\n\t\"path/filepath\"\n"+imports+")\n\nfunc main() {\n\tswitch filepath.Base(os.Args[0]) {\n"+cases+"\t}\n}\n")
	if err != nil {
		return err
	}
	replace, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return err
	}
	description, program := filepath.Join(temp, "overlay.json"), filepath.Join(dir, "all")
	if err := os.WriteFile(description, replace, 0o600); err != nil {
		return err
	}
	if out, err := exec.Command("go", "build", "-ldflags=-w", "-overlay", description, "-o", program, "./"+all).CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %v\n%s", err, out)
	}
	for _, name := range examples {
		err = errors.Join(err, os.Link(program, filepath.Join(dir, name))) // not a symbolic link: an example finds its name in os.Executable
	}
	return err
}

// fenced builds the example that uses SQLite, a module of its own. The test is skipped
// where that is not in the module cache: it is large.
var fenced = sync.OnceValues(func() (out []byte, err error) {
	out, err = exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "modernc.org/sqlite").Output()
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		return nil, errNoSQLite
	}
	return exec.Command("go", "build", "-ldflags=-w", "-o", bin, "./fenced").CombinedOutput()
})

var errNoSQLite = errors.New("it is not downloaded: go mod download modernc.org/sqlite")

func needFenced(t *testing.T) {
	t.Helper()
	switch out, err := fenced(); {
	case err == errNoSQLite:
		need.Missing(t, "sqlite", err.Error())
	case err != nil:
		t.Fatalf("go build: %v\n%s", err, out)
	}
}

// An example is one that runs.
type example struct {
	t       *testing.T
	cmd     *exec.Cmd
	lines   chan string
	seen    []string
	servers string // for one process more; what else it needs with it
	site    site
}

// start starts an example on a server of the test.
func start(t *testing.T, name string, args ...string) *example {
	t.Helper()
	t.Parallel()
	on := newSite(t)
	args = append(args, "--servers", on.servers)
	if !slices.Contains(args, "--processes") {
		args = append(args, "--processes", "3")
	}
	// A machine that is busy, or servers that are, may stand still for seconds.
	x := command(t, on.servers, name, append(args, "--session", "10s")...)
	x.site = on
	return x
}

// A site is the servers of a test: a server in memory, or the ensemble that ZSYNC_TEST_SERVERS names.
type site struct {
	servers string
	srv     *zktest.Server // nil for an ensemble
}

// newSite starts a server whose sessions outlast a busy machine.
func newSite(t *testing.T) site {
	t.Helper()
	if servers := os.Getenv("ZSYNC_TEST_SERVERS"); servers != "" {
		return site{servers: servers + "/zsync-test-" + uuid.NewString()}
	}
	srv := zktest.Start(t, zktest.WithSessionTimeouts(time.Minute, time.Hour))
	return site{srv.Addr(), srv}
}

// endDead ends the sessions that have no connection, because their processes were killed. On an
// ensemble, the test waits until the servers do it.
func (s site) endDead(t *testing.T) {
	t.Helper()
	if s.srv == nil {
		return
	}
	// real time: the kernel closes the connection a little after the process has ended
	for end, dead := time.Now().Add(time.Minute), 0; dead == 0; time.Sleep(time.Millisecond) {
		all := s.srv.Sessions() // before cons, so a session that begins later is not taken for dead
		c, err := net.Dial("tcp", s.servers)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "cons")
		connected, err := io.ReadAll(c)
		c.Close()
		if err != nil || time.Now().After(end) {
			t.Fatalf("no session is dead: %v\n%s", err, connected)
		}
		for _, id := range all {
			if !bytes.Contains(connected, fmt.Appendf(nil, "sid=%#x,", uint64(id))) {
				s.srv.Expire(id)
				dead++
			}
		}
	}
}

// endHolder ends the session of the process that holds a lock. On an ensemble, the test waits until
// the servers do it, because the process is stopped.
func (s site) endHolder(t *testing.T, path string) {
	t.Helper()
	if s.srv == nil {
		return
	}
	session, err := zsync.Connect(t.Context(), s.servers)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	cs, err := zsync.NewMutex(session, path).Contenders(t.Context())
	if err != nil || len(cs) == 0 {
		t.Fatalf("%s has no holder: %v", path, err)
	}
	s.srv.Expire(cs[0].Session)
}

func command(t *testing.T, servers, name string, args ...string) *example {
	t.Helper()
	env := append(os.Environ(), "ZSYNC_SERVERS=", "TMPDIR="+t.TempDir())
	if set, ok := strings.CutPrefix(args[0], "env:"); ok {
		env, args = append(env, set), args[1:]
	}
	x := &example{t: t, cmd: exec.Command(filepath.Join(bin, name), args...), lines: make(chan string, 1000), servers: servers}
	x.cmd.Env = env
	x.cmd.Stderr = os.Stderr
	out, err := x.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			x.lines <- s.Text()
		}
		close(x.lines) // when the last of the processes has gone
	}()
	t.Cleanup(func() {
		if x.cmd.ProcessState == nil {
			x.cmd.Process.Kill() // which its children notice
			x.rest()
			x.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("the output:\n%s", strings.Join(x.seen, "\n"))
		}
	})
	return x
}

var address = regexp.MustCompile(`a server in memory is at (\S+);`)

// next returns the next line, if there is one.
func (x *example) next() (string, bool) {
	x.t.Helper()
	select {
	case line, ok := <-x.lines:
		if ok {
			x.seen = append(x.seen, line)
			if m := address.FindStringSubmatch(line); m != nil {
				x.servers = m[1]
			}
		}
		return line, ok
	case <-time.After(3 * time.Minute):
		x.t.Fatal("nothing more is printed")
		return "", false
	}
}

// wants waits for a line that matches, and returns its process and what the
// parentheses match.
func (x *example) wants(pattern string) (pid int, parts []string) {
	x.t.Helper()
	re := regexp.MustCompile(`\[(\d+)\] ` + pattern)
	for {
		line, ok := x.next()
		if !ok {
			x.t.Fatalf("it has ended without %q", pattern)
		}
		if m := re.FindStringSubmatch(line); m != nil {
			pid, _ = strconv.Atoi(m[1])
			return pid, m[2:]
		}
	}
}

const now = `.*now kill this one: kill -9 (\d+)$`

// killsOne does what a line of that pattern says: it kills the process. Then the session ends.
func (x *example) killsOne(pattern string) (pid int, parts []string) {
	x.t.Helper()
	pid, parts = x.wants(pattern + now)
	if told := parts[len(parts)-1]; told != strconv.Itoa(pid) {
		x.t.Fatalf("process %d says to kill %s", pid, told)
	}
	x.signal(pid, syscall.SIGKILL)
	x.wants(fmt.Sprintf("process %d has ended", pid))
	x.site.endDead(x.t)
	return pid, parts
}

func (x *example) signal(pid int, s syscall.Signal) {
	x.t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		x.t.Fatalf("process %d: %v", pid, err)
	}
}

// rest reads what there is until all processes have ended.
func (x *example) rest() {
	for ok := true; ok; {
		_, ok = x.next()
	}
}

// ends waits until the example has ended by itself, as it must without an
// error, and returns all that it has printed.
func (x *example) ends() []string {
	x.t.Helper()
	x.rest()
	if err := x.cmd.Wait(); err != nil {
		x.t.Error(err)
	}
	return x.seen
}

// count counts the lines that match.
func count(lines []string, pattern string) (n int) {
	re := regexp.MustCompile(pattern)
	for _, line := range lines {
		if re.MatchString(line) {
			n++
		}
	}
	return n
}

// Who has exported ZSYNC_SERVERS, as the README says, sees what everybody sees.
func TestServersOfTheEnvironmentGetSeveralProcessesToo(t *testing.T) {
	t.Parallel()
	srv := zktest.Start(t)
	all := map[string]string{"batch": "waits until 3 are there"}
	if _, err := fenced(); err == nil {
		all["fenced"] = "now kill this one"
	}
	for name, shows := range all {
		x := command(t, srv.Addr(), name, "env:ZSYNC_SERVERS="+srv.Addr(), "--session", "10s")
		pids := map[int]bool{}
		for len(pids) < 2 {
			pid, _ := x.wants(".*" + shows)
			pids[pid] = true
		}
	}
}

func TestPoolNeverGivesMoreLicencesThanThereAre(t *testing.T) {
	takes := "100ms"
	if os.Getenv("ZSYNC_TEST_SERVERS") != "" {
		takes = "300ms" // so they still take turns when the licence of the dead is free again
	}
	x := start(t, "pool", "--processes", "5", "--turns", "10", "--takes", takes)
	x.killsOne("has a licence, turn 1 of 10;")
	users, most := make(map[string]bool), 0
	line := regexp.MustCompile(`\[(\d+)\] (has a|gives its) licence|process (\d+) has ended`)
	all := x.ends()
	for _, text := range all {
		switch m := line.FindStringSubmatch(text); {
		case m == nil:
		case m[2] == "has a":
			users[m[1]] = true
		default:
			delete(users, m[1]+m[3])
		}
		if most = max(most, len(users)); len(users) > 2 {
			t.Fatalf("%d use licences at once, behind %q", len(users), text)
		}
	}
	if full := count(all, "turn 10 of 10"); most != 2 || full != 5 {
		t.Errorf("at most %d used licences at once, and %d processes had all their turns", most, full)
	}
}

func TestBatchDoesThePhaseAgainInWhichOneWasKilled(t *testing.T) {
	x := start(t, "batch", "--phases", "3", "--takes", "600ms")
	x.killsOne("begins phase 2, try 1;")
	x.wants("2 of 3 have ended phase 2: it is done again")
	ended := make(map[string]int)
	line := regexp.MustCompile(`(begins|all have ended) phase (\d)`)
	for _, text := range x.ends() {
		m := line.FindStringSubmatch(text)
		switch {
		case m == nil:
		case m[1] != "begins":
			ended[m[2]]++
		case m[2] != "1" && ended[string(m[2][0]-1)] != 3:
			t.Errorf("%q, when %d have ended the one before", text, ended[string(m[2][0]-1)])
		}
	}
	if ended["1"] != 3 || ended["2"] != 3 || ended["3"] != 3 {
		t.Errorf("phases were ended by %v", ended)
	}
}

func TestMigrationIsDoneByAnotherWhenItsProcessIsKilled(t *testing.T) {
	x := start(t, "migration", "--steps", "3", "--takes", "200ms")
	killed, _ := x.killsOne("migrates, step 2 of 3;")
	if by, _ := x.wants("migrates, step 1 of 3"); by == killed {
		t.Error("it was done by the dead")
	}
	all := x.ends()
	if migrated, on := count(all, "has migrated"), count(all, "goes on"); migrated != 1 || on != 3 {
		t.Errorf("%d have migrated, %d went on; want 1 and 3", migrated, on)
	}
}

func TestConfigIsFollowedWhoeverChangesIt(t *testing.T) {
	x := start(t, "config", "--every", "300ms")
	killed, _ := x.killsOne("is the tuner;")
	if next, _ := x.wants("is the tuner;"); next == killed {
		t.Error("it tunes still")
	}
	other := command(t, "", "config", "--servers", x.servers, "--set", "rate=1000") // from another terminal
	other.ends()
	followers := make(map[int]bool)
	for len(followers) < 3 {
		pid, _ := x.wants(`the settings are map\[rate:10\d\d\]`)
		followers[pid] = true
	}
	if bad, err := exec.Command(filepath.Join(bin, "config"), "--servers", x.servers, "--set", "rate=x").CombinedOutput(); err == nil {
		t.Errorf("a bad setting was taken: %s", bad)
	}
}

func TestFencedRefusesOneThatWasPausedAndComesBack(t *testing.T) {
	needFenced(t)
	x := start(t, "fenced", "--takes", "300ms")
	x.wants("has written the balance, 1$")
	paused, parts := x.wants(`has read the balance, (\d+), under token (\d+);.*now kill this one`)
	x.signal(paused, syscall.SIGSTOP)
	x.site.endHolder(t, "/examples/account")
	for range 2 {
		if by, _ := x.wants("has written the balance"); by == paused {
			t.Error("it was written by one that is paused")
		}
	}
	x.signal(paused, syscall.SIGCONT)
	by, tokens := x.wants(`is refused: fence: account: token (\d+) is stale, (\d+) has been seen`)
	if by != paused || tokens[0] != parts[1] {
		t.Errorf("process %d is refused with token %s; process %d was paused with %s", by, tokens[0], paused, parts[1])
	}
	x.wants("has written the balance")
	balance := 0
	for _, text := range x.seen {
		if m := regexp.MustCompile(`written the balance, (\d+)`).FindStringSubmatch(text); m != nil {
			if balance++; m[1] != strconv.Itoa(balance) {
				t.Errorf("%q, want %d", text, balance)
			}
		}
	}
}

func TestNothingIsLeftWhenTheFirstProcessIsKilled(t *testing.T) {
	t.Parallel()
	x := command(t, "", "config", "--session", "10s") // on a server of its own
	tuner, _ := x.wants("is the tuner")
	if err := x.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	x.rest() // which ends when all have closed their output
	x.cmd.Wait()
	// Its output is closed a little before it is gone, or is a zombie until whoever has
	// taken it over reaps it.
	// real time: the kernel does not say when the child of a child ends
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", tuner))
		if len(state) == 0 || strings.Contains(string(state), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d is left: %s", tuner, state)
		}
	}
}

func TestAnExampleThatIsInterruptedEndsWithoutAnError(t *testing.T) {
	t.Parallel()
	x := command(t, "", "config", "--session", "10s") // on a server of its own
	x.wants("is the tuner")
	x.signal(x.cmd.Process.Pid, syscall.SIGINT)
	x.ends()
}

func TestBadFlagsAreRefused(t *testing.T) {
	names := []string{"pool", "batch", "migration", "config"}
	if _, err := fenced(); err == nil {
		names = append(names, "fenced")
	}
	for _, name := range names {
		out, err := exec.Command(filepath.Join(bin, name), "surplus").CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), "-servers") {
			t.Errorf("%s: %v, want status 2 and the flags\n%s", name, err, out)
		}
	}
}
