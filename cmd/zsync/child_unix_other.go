//go:build unix && !linux

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// This file has the parts of child_unix.go for Unix systems other than Linux. There zsync cannot
// find the descendants of a process.

func systemSignals() []os.Signal { return nil }

func attributes() *syscall.SysProcAttr { return new(syscall.SysProcAttr) }

func adopt() {}

// The method `rest` returns nothing, because zsync cannot find descendants here. So zsync stops
// only the process group.
func (p *systemProcess) rest() []int { return nil }

// The method `reap` does nothing, because init reaps the command's orphans.
func (p *systemProcess) reap() {}

// stopTogether does nothing, because a terminal stops the whole process group.
func stopTogether() {}

// dieOf ends this process with sig. It returns if sig does not end it.
func dieOf(sig os.Signal) {
	s, ok := sig.(syscall.Signal)
	if !ok || s == syscall.SIGQUIT { // Go's default for SIGQUIT would print the goroutines
		return
	}
	signal.Reset(sig)
	syscall.Kill(os.Getpid(), s)
	time.Sleep(100 * time.Millisecond)
}
