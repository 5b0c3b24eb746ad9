//go:build cgo && unix

package main

/*
#include <fcntl.h>
#include <signal.h>

static unsigned long long ignored;
static int closed;

// look runs before Go's runtime: that handles most signals, and opens /dev/null in
// the place of a standard stream that is closed.
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

// startedIgnoring reports whether the parent process ignores sig.
func startedIgnoring(sig syscall.Signal) bool {
	return C.ignoredAtStart()>>(sig-1)&1 != 0 || signal.Ignored(sig)
}

// startedWithout reports whether the standard stream fd was closed.
func startedWithout(fd int) bool { return C.closedAtStart()>>fd&1 != 0 }
