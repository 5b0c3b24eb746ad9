//go:build !cgo || !unix

package main

import (
	"os/signal"
	"syscall"
)

// This file replaces started_cgo.go in a build without cgo.

// startedIgnoring reports whether sig was ignored at the start of this process. Without C, a
// program can find this out only for SIGHUP and SIGINT, because Go's runtime handles the other
// signals before any Go code runs.
func startedIgnoring(sig syscall.Signal) bool { return signal.Ignored(sig) }

// startedWithout returns false, because without C a program cannot find out whether a standard
// stream was closed: Go's runtime has already opened /dev/null.
func startedWithout(fd int) bool { return false }
