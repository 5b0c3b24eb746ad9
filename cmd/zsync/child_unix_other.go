//go:build unix && !linux

package main

import "syscall"

func attributes() *syscall.SysProcAttr { return new(syscall.SysProcAttr) }

func adopt() {}

// rest returns nothing: here nobody tells what a process has started, and only
// its group is stopped.
func (p *process) rest() []int { return nil }

func (p *process) reap() {
	for gone := 1; gone > 0 && !p.foreground; {
		gone, _ = syscall.Wait4(-p.cmd.Process.Pid, nil, syscall.WNOHANG, nil)
	}
}
