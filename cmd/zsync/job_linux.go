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

// This file stops zsync together with its commands, as a shell's job control demands. A stopped
// zsync cannot keep its session, and another process then gets the hold. So no command may run
// while zsync is stopped. child.go stops a command after a loss.

// stopTogether begins to handle the signals that stop a job. Until zsync starts its first command,
// these signals have their default effect.
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

// The constant `stopping` is the time limit for a command to stop after SIGTSTP. The command may
// first restore the screen. If the command does not stop in this time, zsync does not stop either.
const stopping = 5 * time.Second

// controlJob forwards the signals to the commands, and stops zsync after the commands have stopped.
func controlJob(asked, changed <-chan os.Signal) {
	runtime.LockOSThread() // because `suspend` sends the signal to its own thread
	var sig syscall.Signal // the signal with which to stop zsync after the commands; 0: none
	var idle bool          // there was no command when the signal arrived
	var late, again <-chan time.Time
	for {
		select {
		case s := <-asked:
			if s == syscall.SIGCONT {
				sig = 0
				continue
			}
			sig, late = s.(syscall.Signal), time.After(stopping)
			alive, _ := ours.look()
			idle = !alive
			ours.signal(sig)
		case <-changed:
		case <-again:
		case <-late:
			sig = 0
		}
		var alive, running bool
		if sig != 0 {
			alive, running = ours.look()
		}
		if sig == syscall.SIGTSTP && !alive && !idle {
			sig = 0 // the commands have ended instead of stopping: zsync may be about to release the hold
		}
		// Do not wait after SIGTTIN and SIGTTOU, because the terminal repeats them until the
		// process stops.
		if sig != 0 && (sig != syscall.SIGTSTP || !running) {
			suspend(sig, asked)
			sig = 0
		}
		if again = nil; sig != 0 { // no SIGCHLD comes for a parent in vfork(2), so look again
			again = time.After(20 * time.Millisecond)
		}
	}
}

// The function `suspend` stops all running descendants, and then this process with sig. It returns
// after SIGCONT. The kernel does not stop a process that no shell could continue; then `suspend`
// returns at once.
func suspend(sig syscall.Signal, asked <-chan os.Signal) {
	frozen := freeze()
	handler := setAction(sig, action{})
	continued := false
	for len(asked) > 0 { // stop once for several signals, and do not stop if the last signal is SIGCONT
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

// The function `freeze` stops all descendants of this process. It repeats this until none of them
// runs, and returns the stopped processes.
func freeze() (frozen []int) {
	for began := time.Now(); time.Since(began) < time.Second; { // a process in a system call may take a while to stop
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

// The function `running` returns the descendants of zsync that have neither ended nor stopped.
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

// The method `stopped` reports whether the process cannot run: either it is stopped, or it is in
// vfork(2) and its child is stopped. In vfork(2), a parent waits until its child has executed a
// program.
func (c kernelProcess) stopped(children map[int][]kernelProcess) bool {
	return c.still || c.deep && slices.ContainsFunc(children[c.pid], func(c kernelProcess) bool { return c.still })
}

// The method `signal` sends sig to each command.
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

// The method `look` returns two facts: `alive` means that at least one command has not ended;
// `running` means that at least one command is running.
func (t *processTable) look() (alive, running bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	children := processes()
	for _, c := range children[os.Getpid()] {
		if _, ours := t.pids[c.pid]; ours && !c.ended {
			alive, running = true, running || !c.stopped(children)
		}
	}
	return alive, running
}

// The method `wake` continues the stopped commands. First it waits a moment, because a shell that
// continues zsync also continues the commands in zsync's process group.
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

// The type `action` is the kernel's struct sigaction. Its layout depends on the architecture, but
// the zero action is the default everywhere.
type action [32]uint64

// setAction sets this process's action for sig without Go's runtime, because os/signal cannot set
// the default effect of most signals.
func setAction(sig syscall.Signal, a action) (before action) {
	size := uintptr(8) // the size of a set of signals
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
