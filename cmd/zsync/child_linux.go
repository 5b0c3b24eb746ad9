package main

import "syscall"

// attributes has the kernel kill the command when zsync dies without a chance
// to do it: nobody would be left to stop it when the hold is lost. The kernel
// looks at the thread that started the command, so main stays on its own.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
