//go:build !cgo || !unix

package main

import (
	"os/signal"
	"syscall"
)

// startedIgnoring reports whether the parent process has had sig ignored. Without C,
// a program can learn it of SIGHUP and SIGINT alone: Go's runtime handles the other
// signals before any Go code runs.
func startedIgnoring(sig syscall.Signal) bool { return signal.Ignored(sig) }

// startedWithout reports whether the standard stream fd was closed. Without C, a
// program cannot learn it: Go's runtime has opened /dev/null by now.
func startedWithout(fd int) bool { return false }
