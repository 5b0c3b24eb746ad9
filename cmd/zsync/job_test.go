//go:build linux

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/need"
	"github.com/zsync/zsync/zktest"
)

// These tests run the same scenario under flock(1), or xargs(1), and under zsync: a
// shell must see no difference.

// A terminal is a pseudoterminal with an interactive shell.
type terminal struct {
	t      *testing.T
	master *os.File
	mu     sync.Mutex
	out    []byte // all that was shown; guarded by mu
	seen   int    // what await has seen of it
}

// openTerminal has the shell find the variables in its environment.
func openTerminal(t *testing.T, env ...string) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		need.Missing(t, "pseudoterminals", err.Error())
	}
	t.Cleanup(func() { master.Close() })
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	cmd := exec.Command("sh", "-i")
	cmd.Env = append(append(os.Environ(), "PS1=", "PS2=", "ENV=", "TERM=dumb"), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	x := &terminal{t: t, master: master}
	go func() {
		for b := make([]byte, 4096); ; {
			n, err := master.Read(b)
			x.mu.Lock()
			x.out = append(x.out, b[:n]...)
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	x.enter("stty -echo; echo begin''s")
	x.await("begins")
	return x
}

func (x *terminal) press(keys string) {
	x.t.Helper()
	if _, err := x.master.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) enter(line string) { x.t.Helper(); x.press(line + "\n") }

// await waits until what has been shown since the last await matches, and returns what
// the pattern's group has matched.
func (x *terminal) await(pattern string) string {
	x.t.Helper()
	p, found := regexp.MustCompile(pattern), ""
	await(x.t, func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		m := p.FindSubmatchIndex(x.out[x.seen:])
		if m == nil {
			return false
		}
		if len(m) > 2 {
			found = string(x.out[x.seen+m[2] : x.seen+m[3]])
		}
		x.seen += m[1]
		return true
	}, "%q; shown: %q", pattern, shown{x})
	return found
}

type shown struct{ x *terminal }

func (s shown) String() string {
	s.x.mu.Lock()
	defer s.x.mu.Unlock()
	return string(bytes.Clone(s.x.out))
}

// stateOf is what the kernel says of a process: R, S, T, Z; empty if it is gone.
func stateOf(pid string) string {
	stat, _ := os.ReadFile("/proc/" + pid + "/stat")
	if i := bytes.LastIndexByte(stat, ')'); i >= 0 && len(stat) > i+2 {
		return string(stat[i+2 : i+3])
	}
	return ""
}

// ownsTerminal reports whether the process group of a process is in the foreground of its terminal.
func ownsTerminal(pid string) bool {
	stat, _ := os.ReadFile("/proc/" + pid + "/stat")
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // state, parent, group, session, terminal, foreground group
	return len(fields) > 5 && fields[2] == fields[5]
}

// isStopped reports whether a process is stopped; a shell may be in vfork(2) instead,
// with a child that is stopped.
func isStopped(pid string) bool { s := stateOf(pid); return s == "T" || s == "D" }

// wrappers are flock(1) and zsync, with a lock each.
func wrappers(t *testing.T, srv *zktest.Server) (names []string, env []string) {
	need.Command(t, "flock")
	return []string{"$FLOCK", "$ZSYNC"}, []string{
		"FLOCK=flock " + filepath.Join(t.TempDir(), "lock"),
		"ZSYNC=" + binary() + " lock /p --",
		"ZSYNC_SERVERS=" + srv.Addr(),
	}
}

func TestCtrlZStopsZsyncAndTheCommandAndFgContinuesBoth(t *testing.T) {
	names, env := wrappers(t, serve(t))
	for _, w := range names {
		for _, stop := range []string{"Ctrl-Z", "Ctrl-Z while it starts processes", "Ctrl-Z after & and fg", "kill -TSTP"} {
			t.Run(w+", "+stop, func(t *testing.T) {
				x := openTerminal(t, env...)
				line := w + ` sh -c 'echo "command $$, wrapper $PPID."; exec sleep 600'`
				switch stop {
				case "Ctrl-Z while it starts processes":
					line = w + ` sh -c 'echo "command $$, wrapper $PPID."; while :; do sleep 0.01; done'`
				case "Ctrl-Z after & and fg", "kill -TSTP":
					line += " &"
				}
				x.enter(line)
				command, wrapper := x.await(`command (\d+), `), x.await(`wrapper (\d+)\.`)
				switch stop {
				case "kill -TSTP":
					x.enter("kill -TSTP %1")
				case "Ctrl-Z after & and fg":
					x.enter("fg")
					x.await(`sh -c`) // what it continues; the shell shows it before it gives it the terminal
					await(t, func() bool { return ownsTerminal(wrapper) }, "the terminal for %s", wrapper)
					fallthrough
				default:
					x.press("\x1a")
					x.enter(`echo "status $?."`)
					if got, want := x.await(`status (\d+)\.`), "148"; got != want {
						t.Errorf("the status is %s, want %s", got, want)
					}
				}
				for _, pid := range []string{command, wrapper} {
					await(t, func() bool { return isStopped(pid) }, "the stop of %s; the command is %s", pid, command)
				}
				x.enter("fg")
				for _, pid := range []string{command, wrapper} {
					await(t, func() bool { return stateOf(pid) != "T" }, "process %s to go on; the command is %s", pid, command)
				}
				if stop == "Ctrl-Z while it starts processes" {
					return // dash may lose a SIGINT in vfork(2)
				}
				x.press("\x03")
				x.enter(`echo "status $?."`)
				if got, want := x.await(`status (\d+)\.`), "130"; got != want {
					t.Errorf("the status after Ctrl-C is %s, want %s", got, want)
				}
			})
		}
	}
}

// flock(1) stops, and holds its lock all the same. A stopped zsync would lose its own.
func TestCtrlZDoesNotStopZsyncWhileTheCommandGoesOn(t *testing.T) {
	_, env := wrappers(t, serve(t))
	x := openTerminal(t, env...)
	x.enter(`$ZSYNC sh -c 'trap "" TSTP; echo "wrapper $PPID."; read line; echo "read $line."'`)
	wrapper := x.await(`wrapper (\d+)\.`)
	x.press("\x1a")
	time.Sleep(100 * time.Millisecond) // real time: time in which a zsync that stops would stop
	if stateOf(wrapper) == "T" {
		t.Error("zsync has stopped, and its command runs on")
	}
	x.enter("on")
	x.await("read on")
	await(t, func() bool { return stateOf(wrapper) == "" }, "the end of zsync after the end of its command")
}

// What the command has started may ignore the signal that stops the command.
func TestNothingThatTheCommandHasStartedRunsWhileZsyncIsStopped(t *testing.T) {
	_, env := wrappers(t, serve(t))
	x := openTerminal(t, env...)
	x.enter(`$ZSYNC sh -c '(trap "" TSTP; exec sleep 600) & echo "command $$, child $!."; wait'`)
	command, child := x.await(`command (\d+), `), x.await(`child (\d+)\.`)
	x.press("\x1a")
	await(t, func() bool { return stateOf(command) == "T" && stateOf(child) == "T" }, "the stop of both")
	x.enter("fg")
	await(t, func() bool { return stateOf(command) == "S" && stateOf(child) == "S" }, "both to go on")
	x.press("\x03")
}

// Without a terminal the command has a process group of its own.
func TestSIGTSTPStopsZsyncAndTheCommandWithoutATerminalToo(t *testing.T) {
	srv := serve(t)
	need.Command(t, "bash")
	fifo := filepath.Join(t.TempDir(), "fifo")
	cmd := exec.Command("bash", "-c", `set -m; "$@" & echo $!; wait %1; echo "stopped $?"; read line; kill -CONT %1; wait %1; echo "ended $?"`, "sh",
		binary(), "lock", "/p", "--", "sh", "-c", `mkfifo "$0"; echo "command $$."; read line <"$0"; exit 7`, fifo)
	cmd.Env = append(os.Environ(), "ZSYNC_SERVERS="+srv.Addr())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var out syncBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	await(t, func() bool { return strings.Contains(out.String(), ".") }, "the command")
	m := regexp.MustCompile(`(\d+)\n(?:.*\n)*?command (\d+)\.`).FindStringSubmatch(out.String())
	if m == nil {
		t.Fatal(out.String())
	}
	wrapper, _ := strconv.Atoi(m[1])
	syscall.Kill(-wrapper, syscall.SIGTSTP)
	await(t, func() bool { return stateOf(m[1]) == "T" && stateOf(m[2]) == "T" }, "the stop of both")
	in.Write([]byte("\n"))
	if err := os.WriteFile(fifo, []byte("end\n"), 0o600); err != nil { // when the command reads
		t.Fatal(err)
	}
	cmd.Wait()
	if !strings.Contains(out.String(), "ended 7\n") {
		t.Errorf("output %q", out.String())
	}
}

func TestCommandInTheBackgroundReadsAfterFg(t *testing.T) {
	names, env := wrappers(t, serve(t))
	for _, w := range names {
		t.Run(w, func(t *testing.T) {
			x := openTerminal(t, env...)
			x.enter(w + ` sh -c 'echo "command $$, wrapper $PPID."; read line; echo "read $line."' &`)
			command, wrapper := x.await(`command (\d+)`), x.await(`wrapper (\d+)\.`)
			await(t, func() bool { return isStopped(command) && isStopped(wrapper) }, "the command to stop at its read")
			x.enter("fg")
			x.enter("something")
			x.await(`read something\.`)
		})
	}
}

func TestCtrlCEndsALoopOfTheShell(t *testing.T) {
	names, env := wrappers(t, serve(t))
	for _, w := range names {
		for _, script := range []bool{false, true} {
			t.Run(w+", in a script: "+strconv.FormatBool(script), func(t *testing.T) {
				loop := `for i in 1 2 3; do ` + w + ` sh -c 'echo "round $0."; exec sleep 600' $i; done`
				file := filepath.Join(t.TempDir(), "script")
				if err := os.WriteFile(file, []byte(loop), 0o600); err != nil {
					t.Fatal(err)
				}
				x := openTerminal(t, append(env, "SCRIPT="+file)...)
				if script {
					loop = `sh "$SCRIPT"`
				}
				x.enter(loop)
				x.await(`round 1\.`)
				x.press("\x03")
				x.enter(`echo "status $?."`)
				if got := x.await(`(status 130|round 2)`); got != "status 130" {
					t.Error("the loop goes on")
				}
			})
		}
	}
}

// Those that wait die of the signal, too.
func TestZsyncDiesOfTheSignalThatEndsItOrItsCommand(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	m := zsync.NewMutex(connect(t, srv), "/held")
	if err := m.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGALRM} {
		waiting := start(t, srv.Addr(), "", "lock", "/held", "--", "echo", "no")
		contenders(t, m, 2)
		running := start(t, srv.Addr(), "", "lock", "/p", "--", "sh", "-c", "echo ready; exec sleep 600")
		running.awaitOutput("ready")
		for _, r := range []*run{waiting, running} {
			r.signal(sig)
			if r.wait(); r.died != sig {
				t.Errorf("%v after %v: status %d, died of %v", r.args, sig, r.code, r.died)
			}
		}
	}
	start(t, srv.Addr(), "", "lock", "/p", "--", "sh", "-c", "kill -INT $$").want(130, "") // by exit: zsync got none
}

func TestAllSignalsArePassedOnWithoutATerminal(t *testing.T) {
	srv := serve(t)
	for _, sig := range []syscall.Signal{syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGIO, syscall.SIGPWR, syscall.SIGALRM, 35, 40, 64} {
		r := start(t, srv.Addr(), "", "lock", "/p", "--", "bash", "-c",
			`trap 'echo got it; exit 3' `+strconv.Itoa(int(sig))+`; echo ready; while :; do sleep 0.01; done`)
		r.awaitOutput("ready\n")
		r.signal(sig)
		r.want(3, "ready\ngot it\n")
	}
}

// TestZsyncAndFlockAndXargsDoTheSame runs what needs no terminal under each.
func TestZsyncAndFlockAndXargsDoTheSame(t *testing.T) {
	t.Parallel()
	names, env := wrappers(t, serve(t))
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("echo \"a script: $1\"; exit 5\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	env = append(append(os.Environ(), env...), "SCRIPT="+script, "DIR="+dir)
	for _, tt := range []struct {
		what, scenario string // $W is the wrapper
		as             string // xargs does the same as flock; or env does what is right, as flock opens its file there
	}{
		{"a script without #!", `$W $SCRIPT hello; echo $?`, ""},
		{"a script without #!, found by PATH", `PATH=$DIR:$PATH; $W script hello; echo $?`, ""},
		{"a command in the directory that PATH names as .", `cd $DIR; PATH=.:$PATH; $W script hello; echo $?`, ""},
		{"ignored SIGTERM", `trap '' TERM; $W sh -c 'kill -TERM $$; echo on'; echo $?`, "xargs"},
		{"ignored SIGPIPE", `trap '' PIPE; $W sh -c 'kill -PIPE $$; echo on'; echo $?`, "xargs"},
		{"ignored SIGQUIT, SIGHUP and SIGINT", `trap '' QUIT HUP INT; $W sh -c 'kill -QUIT $$; kill -HUP $$; kill -INT $$; echo on'; echo $?`, "xargs"},
		{"ignored SIGTERM, to the wrapper", `trap '' TERM; $W sh -c 'kill -TERM $PPID; sleep 0.1; echo on'; echo $?`, "xargs"},
		{"ignored SIGTSTP", `trap '' TSTP; $W sh -c 'kill -TSTP $$; echo on'; echo $?`, "xargs"},
		{"SIGPIPE", `$W sh -c 'kill -PIPE $$; echo on'; echo $?`, ""},
		{"closed standard output", `$W sh -c 'echo void 2>/dev/null' >&-; echo $?`, ""},
		{"closed standard input", `$W sh -c 'cat 2>/dev/null' <&-; echo $?`, "env"},
		{"closed standard error", `$W sh -c 'echo void >&2' 2>&-; echo $?`, "env"},
		{"/dev/null", `$W sh -c 'echo void; cat; echo void >&2' </dev/null >/dev/null 2>&1; echo $?`, ""},
		{"/dev/null to read and write", `$W sh -c 'echo void; cat; echo void >&2' <>/dev/null 1<>/dev/null 2>&1; echo $?`, ""},
	} {
		t.Run(tt.what, func(t *testing.T) {
			all := names
			switch tt.as {
			case "xargs":
				all = append(names[:2:2], "xargs")
			case "env":
				all = []string{"env", "$ZSYNC"}
			}
			var want []byte
			for _, w := range all {
				cmd := exec.Command("sh", "-c", strings.ReplaceAll(tt.scenario, "$W", w))
				cmd.Env = env
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
				out, err := cmd.Output()
				if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
					t.Fatal(err)
				}
				if want == nil {
					want = out
				} else if !bytes.Equal(out, want) {
					t.Errorf("%s: output %q, want %q as with %s", w, out, want, all[0])
				}
			}
		})
	}
}

// The forms of flock(1), side by side with those of zsync. -E gives both the same status if the lock is in use.
func TestTheFlagsOfFlockMeanTheSame(t *testing.T) {
	t.Parallel()
	need.Command(t, "flock")
	env := append(os.Environ(), "FILE="+filepath.Join(t.TempDir(), "lock"), "Z="+binary(), "ZSYNC_SERVERS="+serve(t).Addr())
	for _, tt := range []struct{ flock, zsync string }{
		{`flock $FILE echo held; echo $?`, `$Z lock /p -- echo held; echo $?`},
		{`flock $FILE sh -c 'exit 7'; echo $?`, `$Z lock /p -- sh -c 'exit 7'; echo $?`},
		{`flock $FILE sh -c 'kill -9 $$'; echo $?`, `$Z lock /p -- sh -c 'kill -9 $$'; echo $?`},
		{`flock $FILE flock -n -E 9 $FILE echo no; echo $?`, `$Z lock /p -- $Z lock -n -E 9 /p -- echo no; echo $?`},
		{`flock $FILE flock -w 0.2 -E 9 $FILE echo no; echo $?`, `$Z lock /p -- $Z lock -w 0.2 -E 9 /p -- echo no; echo $?`},
		{`flock $FILE flock --timeout 0.2 -E 0 $FILE echo no; echo $?`, `$Z lock /p -- $Z lock --timeout 0.2 -E 0 /p -- echo no; echo $?`},
		{`flock -n -E 9 $FILE echo held; echo $?`, `$Z lock -n -E 9 /p -- echo held; echo $?`},
		{`flock -s $FILE flock -s -n $FILE echo both; echo $?`, `$Z rlock /rw -- $Z rlock -n /rw -- echo both; echo $?`},
		{`flock -s $FILE flock -x -n -E 9 $FILE echo no; echo $?`, `$Z rlock /rw -- $Z lock --rw -n -E 9 /rw -- echo no; echo $?`},
		{`flock -x $FILE flock -s -n -E 9 $FILE echo no; echo $?`, `$Z lock --rw /rw -- $Z rlock -n -E 9 /rw -- echo no; echo $?`},
		{`echo input | flock $FILE cat; echo $?`, `echo input | $Z lock /p -- cat; echo $?`},
		{`for i in 1 2 3; do flock $FILE sh -c "cat count; echo x >>count" & done; wait; wc -l <count`, `for i in 1 2 3; do $Z lock /p -- sh -c "cat count; echo x >>count" & done; wait; wc -l <count`},
		// xargs strips blanks; the elements here have none at their beginning.
		{`printf 'one two\n$(three)\n"four"\n' | xargs -d '\n' -I{} echo '<{}>' 'and {}'; echo $?`, `printf 'one two\n$(three)\n"four"\n' | $Z queue send --raw /q; $Z queue recv --raw -I{} /q -- echo '<{}>' 'and {}'; echo $?`},
		{`printf 'a\0b\nc\0' | xargs -0 -I% echo '<%>'; echo $?`, `printf 'a\0b\nc\0' | $Z queue send -0 /q; $Z queue recv -I% /q -- echo '<%>'; echo $?`},
		{`seq 8 | xargs -P 8 -I{} echo done | sort | uniq -c`, `seq 8 | xargs -P 8 -I{} $Z semaphore -n 2 /s -- echo done | sort | uniq -c`},
	} {
		t.Run(tt.zsync, func(t *testing.T) {
			var want []byte
			for _, script := range []string{tt.flock, tt.zsync} {
				cmd := exec.Command("sh", "-c", script)
				cmd.Env, cmd.Dir = env, t.TempDir()
				if err := os.WriteFile(filepath.Join(cmd.Dir, "count"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
				out, err := cmd.Output()
				if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
					t.Fatal(err)
				}
				if want == nil {
					want = out
				} else if !bytes.Equal(out, want) || len(out) == 0 {
					t.Errorf("the output is %q, want %q as of %s", out, want, tt.flock)
				}
			}
		})
	}
}
