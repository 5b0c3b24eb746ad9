//go:build unix

package main

import (
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// passedOn are the signals that a command gets when zsync does.
var passedOn = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
}

// A process is a running command.
//
// In the foreground of a terminal it shares zsync's process group, as the
// terminal expects, and is signalled alone. Otherwise it has a group of its
// own, so that what a shell script has started is stopped with it.
type process struct {
	cmd        *exec.Cmd
	foreground bool
}

// newProcess prepares cmd.
func newProcess(cmd *exec.Cmd) *process {
	p := &process{cmd, inForeground()}
	cmd.SysProcAttr = attributes()
	cmd.SysProcAttr.Setpgid = !p.foreground
	return p
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

func (p *process) signal(sig syscall.Signal) error {
	if p.foreground {
		return p.cmd.Process.Signal(sig)
	}
	return syscall.Kill(-p.cmd.Process.Pid, sig)
}

// passOn gives the process a signal that zsync got, and reports whether it was
// there to get it.
func (p *process) passOn(sig os.Signal) bool {
	if p.foreground && (sig == syscall.SIGINT || sig == syscall.SIGQUIT) {
		return true // the terminal has sent it to the whole group
	}
	s, ok := sig.(syscall.Signal)
	return ok && p.signal(s) == nil
}

// terminate asks the process to end, and wakes it if it is stopped.
func (p *process) terminate() {
	adopt()
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGCONT)
}

func (p *process) kill() { p.signal(syscall.SIGKILL) }

// clear returns when nothing is left of the group of a process that has ended,
// and kills what is left when kill fires. Those that have ended count until
// their parent has asked how. It has been told to end before, so that is us,
// where a process can adopt others; elsewhere it is init, which may be slow.
func (p *process) clear(kill <-chan time.Time) {
	if p.foreground {
		return
	}
	for {
		for gone := 1; gone > 0; {
			gone, _ = syscall.Wait4(-p.cmd.Process.Pid, nil, syscall.WNOHANG, nil)
		}
		if p.signal(0) != nil {
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

// exitStatus is what a shell would say.
func exitStatus(state *os.ProcessState) int {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return state.ExitCode()
}
