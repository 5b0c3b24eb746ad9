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

// This file starts, signals and stops a command on Unix. The search for its descendants is in
// child_linux.go.

// passedOn are the signals that zsync passes on to the command. The signals that stop a
// job are not among them: see stopTogether. The kernel sends SIGPIPE, SIGCHLD, SIGXCPU
// and the like about zsync itself. libc and Go keep the first real-time signals.
var passedOn = func() []os.Signal {
	all := []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGALRM, syscall.SIGCONT, syscall.SIGWINCH, syscall.SIGIO,
	}
	return append(all, systemSignals()...)
}()

// shell runs the command that is its last argument.
var shell = []string{"sh", "-c"}

// A systemProcess is a running command.
//
// With a terminal it shares zsync's process group, as with flock(1): the terminal and the shell stop, continue
// and end both, or let both read. Signals from zsync go to the command alone. Without a terminal it has a group
// of its own, so that the processes of a shell script get the signals of the script. When the hold is lost,
// zsync also stops the command's descendants, as far as the system reports them: see rest.
type systemProcess struct {
	cmd    *exec.Cmd
	shares bool // zsync's process group
	spared int  // a process of ours that is not to be stopped; 0: none
}

// newProcess prepares cmd.
func newProcess(cmd *exec.Cmd) process {
	stopTogether()
	p := &systemProcess{cmd: cmd, shares: hasTerminal()}
	adopt()
	cmd.SysProcAttr = attributes()
	cmd.SysProcAttr.Setpgid = !p.shares
	// A nil *os.File is a closed stream.
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

// notExecutable reports whether err says that a file has no format that the kernel
// can execute.
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

// passOn passes a signal that zsync got to the process, and reports whether the process was there to
// get it.
func (p *systemProcess) passOn(sig os.Signal) bool {
	switch sig {
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGWINCH:
		if p.shares && inForeground() {
			return true // the terminal has sent it to the whole group
		}
	case syscall.SIGCONT:
		if p.shares {
			return true // so has the shell; if it has not, stopTogether continues the process
		}
	}
	s, ok := sig.(syscall.Signal)
	return ok && p.signal(s) == nil
}

// terminate asks the process to end, and wakes it if it is stopped.
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

// kill kills the process and its descendants, even those that start during kill.
func (p *systemProcess) kill() {
	p.signal(syscall.SIGKILL)
	for range 1000 { // a process that sleeps in the kernel may take its time
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

// clear returns when an ended process has no descendants left, and kills them when kill fires. A descendant
// counts until its parent has reaped it. The parent is zsync if it can adopt orphans; on other systems it is
// init, which may be slow.
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

// orphaned sends when an adopted process may have ended.
func (p *systemProcess) orphaned() (_ <-chan os.Signal, stop func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGCHLD)
	return ch, func() { signal.Stop(ch) }
}

// exitStatus returns the status as a shell would show it.
func exitStatus(state *os.ProcessState) int {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return state.ExitCode()
}
