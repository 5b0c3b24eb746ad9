//go:build !cgo || !unix

package main

import (
	"os/signal"
	"syscall"
)

// startedIgnoring reports whether the parent process ignores sig. Without C, a program can find that
// out only for SIGHUP and SIGINT: Go's runtime handles the other signals before any Go code runs.
func startedIgnoring(sig syscall.Signal) bool { return signal.Ignored(sig) }

// startedWithout reports whether the standard stream fd was closed. Without C, a program cannot find
// out: Go's runtime has opened /dev/null by now.
func startedWithout(fd int) bool { return false }
