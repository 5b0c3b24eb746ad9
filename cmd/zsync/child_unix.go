//go:build unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// passedOn are the signals that a command gets when zsync does.
var passedOn = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
}

// shell runs what comes behind it.
var shell = []string{"sh", "-c"}

// A systemProcess is a running command.
//
// In the foreground of a terminal it shares zsync's process group, as the
// terminal expects, and is signalled alone. Otherwise it has a group of its
// own, so that what a shell script has started is stopped with it. When the hold
// is lost all that it has started is stopped too, as far as the system tells
// what that is: see rest.
type systemProcess struct {
	cmd        *exec.Cmd
	foreground bool
	spared     int // a process of ours that is not to be stopped; 0: none
}

// newProcess prepares cmd.
func newProcess(cmd *exec.Cmd) process {
	p := &systemProcess{cmd: cmd, foreground: inForeground()}
	adopt()
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

func (p *systemProcess) signal(sig syscall.Signal) error {
	if p.foreground {
		return p.cmd.Process.Signal(sig)
	}
	return syscall.Kill(-p.cmd.Process.Pid, sig)
}

// passOn gives the process a signal that zsync got, and reports whether it was
// there to get it.
func (p *systemProcess) passOn(sig os.Signal) bool {
	if p.foreground && (sig == syscall.SIGINT || sig == syscall.SIGQUIT) {
		return true // the terminal has sent it to the whole group
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
		if told := pid == p.cmd.Process.Pid || !p.foreground && group == p.cmd.Process.Pid; told || err != nil {
			continue
		}
		syscall.Kill(pid, syscall.SIGTERM)
		syscall.Kill(pid, syscall.SIGCONT)
	}
}

// kill kills the process and what it has started, what that starts meanwhile
// included.
func (p *systemProcess) kill() {
	p.signal(syscall.SIGKILL)
	for range 1000 { // one that sleeps in the kernel may take its time
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

// clear returns when nothing is left of what a process that has ended has
// started, and kills what is left when kill fires. Those that have ended count until
// their parent has asked how. That is us, where a process can adopt others;
// elsewhere it is init, which may be slow.
func (p *systemProcess) clear(kill <-chan time.Time) {
	for {
		p.reap()
		if len(p.rest()) == 0 && (p.foreground || p.signal(0) != nil) {
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

// orphaned tells when something that was adopted may have ended.
func (p *systemProcess) orphaned() (_ <-chan os.Signal, stop func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGCHLD)
	return ch, func() { signal.Stop(ch) }
}

// exitStatus is what a shell would say.
func exitStatus(state *os.ProcessState) int {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return state.ExitCode()
}
