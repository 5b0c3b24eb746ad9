//go:build unix && !linux

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// This file has the parts of child_unix.go for systems that do not report a process's descendants.

func systemSignals() []os.Signal { return nil }

func attributes() *syscall.SysProcAttr { return new(syscall.SysProcAttr) }

func adopt() {}

// rest returns nothing: this system does not report the descendants of a process, so zsync stops only its
// process group.
func (p *systemProcess) rest() []int { return nil }

// reap has nothing to do: init reaps the command's orphans.
func (p *systemProcess) reap() {}

// stopTogether has nothing to do: a terminal stops the whole process group.
func stopTogether() {}

// dieOf ends this process with sig. It returns if sig does not end it.
func dieOf(sig os.Signal) {
	s, ok := sig.(syscall.Signal)
	if !ok || s == syscall.SIGQUIT { // at which Go prints its goroutines
		return
	}
	signal.Reset(sig)
	syscall.Kill(os.Getpid(), s)
	time.Sleep(100 * time.Millisecond)
}
