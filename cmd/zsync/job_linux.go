package main

import (
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file stops zsync together with its commands. A stopped zsync cannot keep its
// session, and others are granted what it holds: no command may go on by itself.

// stopTogether begins to watch for the signals that stop a job. Before the first
// command starts, the signals have their usual effect.
var stopTogether = sync.OnceFunc(func() {
	asked, changed := make(chan os.Signal, 16), make(chan os.Signal, 1)
	for _, sig := range []syscall.Signal{syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGCONT} {
		if !startedIgnoring(sig) {
			signal.Notify(asked, sig)
		}
	}
	signal.Notify(changed, syscall.SIGCHLD)
	go controlJob(asked, changed)
})

// stopping is how long a command may take to stop after SIGTSTP. It may have a
// screen to restore; or it ignores the signal, and then zsync does not stop either.
const stopping = 5 * time.Second

// controlJob passes the signals on, and stops zsync after the commands have stopped.
func controlJob(asked, changed <-chan os.Signal) {
	runtime.LockOSThread() // suspend stops the thread that it runs on
	var sig syscall.Signal // stops zsync as soon as the commands have stopped; 0: none does
	var late, again <-chan time.Time
	for {
		select {
		case s := <-asked:
			if s == syscall.SIGCONT {
				sig = 0
				continue
			}
			sig, late = s.(syscall.Signal), time.After(stopping)
			ours.signal(sig)
		case <-changed:
		case <-again:
		case <-late:
			sig = 0
		}
		// The terminal repeats SIGTTIN and SIGTTOU until the process stops.
		if sig != 0 && (sig != syscall.SIGTSTP || ours.still()) {
			suspend(sig, asked)
			sig = 0
		}
		if again = nil; sig != 0 { // there is no SIGCHLD for a parent in vfork(2)
			again = time.After(20 * time.Millisecond)
		}
	}
}

// suspend stops all running descendants, and then this process, with sig. It returns after SIGCONT. If
// the kernel does not stop the process, because no shell could continue it, suspend returns at once.
func suspend(sig syscall.Signal, asked <-chan os.Signal) {
	frozen := freeze()
	handler := setAction(sig, action{})
	continued := false
	for len(asked) > 0 { // one stop is enough, and none if SIGCONT came after it
		continued = <-asked == syscall.SIGCONT
	}
	if !continued {
		unix.Tgkill(os.Getpid(), unix.Gettid(), sig)
	}
	setAction(sig, handler)
	for _, pid := range frozen {
		syscall.Kill(pid, syscall.SIGCONT)
	}
	ours.wake()
}

// freeze stops all descendants of this process, until none of them runs, and returns the ones that it
// has stopped.
func freeze() (frozen []int) {
	for began := time.Now(); time.Since(began) < time.Second; { // a process in a system call may need a while
		running := running()
		if len(running) == 0 {
			break
		}
		for _, pid := range running {
			syscall.Kill(pid, syscall.SIGSTOP)
		}
		frozen = append(frozen, running...)
		time.Sleep(time.Millisecond)
	}
	return frozen
}

// running returns the descendants of zsync that have neither ended nor stopped.
func running() (running []int) {
	children := processes()
	for next := []int{os.Getpid()}; len(next) > 0; next = next[1:] {
		for _, c := range children[next[0]] {
			next = append(next, c.pid)
			if !c.ended && !c.stopped(children) {
				running = append(running, c.pid)
			}
		}
	}
	return running
}

// stopped reports whether the process is stopped; or is in vfork(2), and its child is
// stopped before it has executed a program: until then the parent cannot run either.
func (c kernelProcess) stopped(children map[int][]kernelProcess) bool {
	return c.still || c.deep && slices.ContainsFunc(children[c.pid], func(c kernelProcess) bool { return c.still })
}

// signal sends sig to each command.
func (t *processTable) signal(sig syscall.Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for pid, leads := range t.pids {
		if leads {
			pid = -pid
		}
		syscall.Kill(pid, sig)
	}
}

// still reports whether no command runs.
func (t *processTable) still() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	children := processes()
	for _, c := range children[os.Getpid()] {
		if _, ours := t.pids[c.pid]; ours && !c.stopped(children) && !c.ended {
			return false
		}
	}
	return true
}

// wake continues the stopped commands. A shell continues zsync's whole process group, and so also a
// command that shares the group; but the shell may still be about to.
func (t *processTable) wake() {
	const about = 20 * time.Millisecond
	time.Sleep(about)
	t.mu.Lock()
	defer t.mu.Unlock()
	children := processes()
	for _, c := range children[os.Getpid()] {
		if leads, ours := t.pids[c.pid]; ours && c.stopped(children) {
			if leads {
				c.pid = -c.pid
			}
			syscall.Kill(c.pid, syscall.SIGCONT)
		}
	}
}

// An action is the kernel's struct sigaction. Its layout depends on the architecture;
// the zero action is the default everywhere.
type action [32]uint64

// setAction sets the action of this process at sig, past Go's runtime: os/signal has
// no way to give most signals their default effect.
func setAction(sig syscall.Signal, a action) (before action) {
	size := uintptr(8) // of a set of signals
	if strings.HasPrefix(runtime.GOARCH, "mips") {
		size = 16
	}
	syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&a)), uintptr(unsafe.Pointer(&before)), size, 0, 0)
	return before
}

// dieOf ends this process with sig. It returns if sig does not end it.
func dieOf(sig os.Signal) {
	if s, ok := sig.(syscall.Signal); ok {
		runtime.LockOSThread()
		setAction(s, action{})
		unix.Tgkill(os.Getpid(), unix.Gettid(), s)
	}
}
