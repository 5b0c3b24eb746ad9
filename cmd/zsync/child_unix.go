//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// This file starts, signals and stops a command on Unix. child_linux.go finds its descendants.

// passedOn has the signals that zsync forwards to the command. It lacks the signals
// that stop a job; see stopTogether. It lacks signals such as SIGPIPE, SIGCHLD and
// SIGXCPU, because they are about zsync itself. It lacks the first real-time signals,
// because libc and Go use them.
var passedOn = func() []os.Signal {
	all := []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGALRM, syscall.SIGCONT, syscall.SIGWINCH, syscall.SIGIO,
	}
	return append(all, systemSignals()...)
}()

// shell is the beginning of a command line. Its last argument, a shell command, is appended.
var shell = []string{"sh", "-c"}

// A systemProcess is a running command.
//
// With a terminal, the command shares zsync's process group, as with flock(1). The terminal and the
// shell stop, continue and end zsync and the command together, and let both read. A signal that
// zsync itself sends reaches the command alone. Without a terminal, the command has its own process
// group, so that zsync's signals also reach the processes of a shell script. When the hold is lost,
// zsync also stops the descendants of the command, if the system reports them; see `rest`.
type systemProcess struct {
	cmd    *exec.Cmd
	shares bool // whether it shares zsync's process group
	spared int  // the process of --on-lost, which zsync does not stop; 0: none
}

// newProcess prepares cmd.
func newProcess(cmd *exec.Cmd) process {
	stopTogether()
	p := &systemProcess{cmd: cmd, shares: hasTerminal()}
	adopt()
	cmd.SysProcAttr = attributes()
	cmd.SysProcAttr.Setpgid = !p.shares
	// For exec, a nil *os.File is a closed stream.
	if startedWithout(0) && cmd.Stdin == os.Stdin {
		cmd.Stdin = (*os.File)(nil)
	}
	if startedWithout(1) && cmd.Stdout == os.Stdout {
		cmd.Stdout = (*os.File)(nil)
	}
	if startedWithout(2) && cmd.Stderr == os.Stderr {
		cmd.Stderr = (*os.File)(nil)
	}
	return p
}

// leadsGroup reports whether cmd leads a process group of its own.
func leadsGroup(cmd *exec.Cmd) bool { return cmd.SysProcAttr != nil && cmd.SysProcAttr.Setpgid }

// notExecutable reports whether err says that the kernel cannot execute the format of a file.
func notExecutable(err error) bool { return errors.Is(err, syscall.ENOEXEC) }

// hasTerminal reports whether this process has a controlling terminal.
func hasTerminal() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	tty.Close()
	return true
}

// inForeground reports whether this process is in the foreground of a terminal.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func (p *systemProcess) signal(sig syscall.Signal) error {
	if p.shares {
		return p.cmd.Process.Signal(sig)
	}
	return syscall.Kill(-p.cmd.Process.Pid, sig)
}

// passOn forwards a signal that zsync has received to the process. It returns false if the process
// has ended.
func (p *systemProcess) passOn(sig os.Signal) bool {
	switch sig {
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGWINCH:
		if p.shares && inForeground() {
			return true // the terminal has sent it to the whole group
		}
	case syscall.SIGCONT:
		if p.shares {
			return true // either the shell has sent the signal to the whole group, or stopTogether continues the process
		}
	}
	s, ok := sig.(syscall.Signal)
	return ok && p.signal(s) == nil
}

// The method `terminate` asks the process and its descendants to end, and continues those that are
// stopped.
func (p *systemProcess) terminate() {
	rest := p.rest()
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGCONT)
	for _, pid := range rest {
		group, err := syscall.Getpgid(pid)
		if told := pid == p.cmd.Process.Pid || !p.shares && group == p.cmd.Process.Pid; told || err != nil {
			continue
		}
		syscall.Kill(pid, syscall.SIGTERM)
		syscall.Kill(pid, syscall.SIGCONT)
	}
}

// The method `kill` kills the process and its descendants, even if they start during the call.
func (p *systemProcess) kill() {
	p.signal(syscall.SIGKILL)
	for range 1000 { // a process in the kernel may take a while to end
		rest := p.rest()
		if len(rest) == 0 {
			return
		}
		for _, pid := range rest {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(time.Millisecond)
	}
}

// The method `clear` waits until a process that has ended has no descendants left. When the channel
// `kill` receives, the method kills the descendants. A descendant counts until its parent has
// reaped it. The parent of an orphan is zsync, if the system lets zsync adopt orphans. If not, the
// parent is init, which may be slow.
func (p *systemProcess) clear(kill <-chan time.Time) {
	for {
		p.reap()
		if len(p.rest()) == 0 && (p.shares || p.signal(0) != nil) {
			return
		}
		select {
		case <-kill:
			p.kill()
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// The method `orphaned` returns a channel that receives when an adopted process may have ended.
func (p *systemProcess) orphaned() (_ <-chan os.Signal, stop func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGCHLD)
	return ch, func() { signal.Stop(ch) }
}

// exitStatus returns the exit status as a shell reports it.
func exitStatus(state *os.ProcessState) int {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return state.ExitCode()
}
