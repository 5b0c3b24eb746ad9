package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zsync/zsync/internal/need"
)

// Where process 1 never asks how orphans have ended, as in many a container,
// they stay listed for ever. Here this very process is such a one.
func TestEndDoesNotWaitForOrphansThatNobodyAsksFor(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	for _, tt := range []struct{ name, killAfter, script string }{
		{"ended when told to", "10m", `sleep 600 & echo $!; wait`},
		{"killed", "300ms", `trap '' TERM; sleep 600 & echo $!; while :; do wait; done`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := serve(t)
			r := start(t, srv.Addr(), "", "lock", "/p", "--kill-after", tt.killAfter, "--", "sh", "-c", tt.script)
			r.awaitOutput("\n")
			sleeper, _ := strconv.Atoi(strings.TrimSpace(r.stdout.String()))
			began := time.Now()
			expireAll(srv)
			r.want(exitLost, r.stdout.String())
			if took := time.Since(began); took > time.Minute {
				t.Errorf("it took %v to end", took)
			}
			wantEnded(t, sleeper)
		})
	}
}

// In the foreground of a terminal the command shares zsync's process group.
func TestAllThatTheCommandHasStartedIsStoppedInATerminalToo(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"sh", "sleep", "setsid"} {
		need.Command(t, name)
	}
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		need.Missing(t, "pseudoterminals", err.Error())
	}
	defer terminal.Close()
	number, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	for _, tt := range []struct{ name, script string }{
		{"a child", `(trap '' TERM; exec sleep 600) & echo pid=$!; wait`},
		{"one that was left behind", `sh -c '(trap "" TERM; exec sleep 600) & echo pid=$!'; exec sleep 600`},
		{"one in a session of its own", `setsid sh -c 'trap "" TERM; echo pid=$$; exec sleep 600' & wait`},
	} {
		for _, foreground := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, in the foreground: %v", tt.name, foreground), func(t *testing.T) {
				srv := serve(t)
				out := filepath.Join(t.TempDir(), "out")
				cmd := exec.Command(binary(), "lock", "/p", "--kill-after", "300ms", "--on-lost", "sleep 0.1; echo told >>"+out, "--", "sh", "-c", "exec >"+out+"; "+tt.script)
				cmd.Env = append(os.Environ(), "ZSYNC_SERVERS="+srv.Addr())
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
				if foreground {
					cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
					cmd.SysProcAttr.Setctty = true
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				defer cmd.Process.Kill()
				pid := 0
				await(t, func() bool {
					text, _ := os.ReadFile(out)
					_, number, _ := strings.Cut(string(text), "pid=")
					pid, _ = strconv.Atoi(strings.TrimSpace(number))
					return pid > 0 && strings.HasSuffix(string(text), "\n")
				}, "a process id")
				expireAll(srv)
				cmd.Wait()
				if got := cmd.ProcessState.ExitCode(); got != exitLost {
					t.Errorf("exit status %d, want %d", got, exitLost)
				}
				if runs(pid) {
					t.Errorf("process %d runs on", pid)
				}
				if text, _ := os.ReadFile(out); !strings.HasSuffix(string(text), "told\n") {
					t.Errorf("what is run at a loss was stopped too: %q", text)
				}
			})
		}
	}
}
