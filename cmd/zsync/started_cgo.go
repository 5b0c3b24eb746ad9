//go:build cgo && unix

package main

/*
#include <fcntl.h>
#include <signal.h>

static unsigned long long ignored;
static int closed;

// The function `look` runs before Go's runtime, which handles most signals, and opens /dev/null
// in place of a closed standard stream.
__attribute__((constructor)) static void look(void) {
	struct sigaction action;
	for (int sig = 1; sig <= 64; sig++)
		if (sigaction(sig, 0, &action) == 0 && action.sa_handler == SIG_IGN)
			ignored |= 1ULL << (sig - 1);
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			closed |= 1 << fd;
}

static unsigned long long ignoredAtStart(void) { return ignored; }
static int closedAtStart(void) { return closed; }
*/
import "C"

import (
	"os/signal"
	"syscall"
)

// This file finds out, before Go's runtime starts, which signals the parent process ignores and
// which standard streams it has closed. host.go uses the results.

// startedIgnoring reports whether sig was ignored at the start of this process.
func startedIgnoring(sig syscall.Signal) bool {
	return C.ignoredAtStart()>>(sig-1)&1 != 0 || signal.Ignored(sig)
}

// startedWithout reports whether the standard stream fd was closed at the start of this process.
func startedWithout(fd int) bool { return C.closedAtStart()>>fd&1 != 0 }
