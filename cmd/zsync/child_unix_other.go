//go:build unix && !linux

package main

import "syscall"

func attributes() *syscall.SysProcAttr { return new(syscall.SysProcAttr) }

func adopt() {}

// rest returns nothing: here nobody tells what a process has started, and only
// its group is stopped.
func (p *systemProcess) rest() []int { return nil }

// reap has nothing to do: what the command leaves behind is init's.
func (p *systemProcess) reap() {}
