package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes has the kernel kill the command when zsync dies without a chance
// to do it: nobody would be left to stop it when the hold is lost. The kernel
// looks at the thread that started the command, so main stays on its own.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// adopt makes zsync the parent of what its descendants leave behind. Otherwise
// that is init, which in many a container never asks how a process has ended.
func adopt() { unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
