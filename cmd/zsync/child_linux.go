package main

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// This file finds the descendants of a command on Linux. child_unix.go starts and stops commands.

// systemSignals returns the signals in passedOn that only Linux has.
func systemSignals() []os.Signal {
	all := []os.Signal{syscall.SIGPWR}
	for n := syscall.Signal(35); n <= 64; n++ {
		all = append(all, n)
	}
	return all
}

// The function `attributes` returns settings that make the kernel kill the command when zsync is
// killed. Without them, the command would continue after the hold has ended. The kernel watches the
// thread that started the command, not the whole process. So the function `main` keeps this thread.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// The function `adopt` makes zsync the new parent of any descendant whose parent has ended. By
// default, the new parent would be init. Then zsync could not find the orphan to stop it, and in
// many containers init does not reap orphans.
func adopt() { unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// The method `rest` returns the descendants of zsync that have not ended, except the spared process
// and its descendants.
func (p *systemProcess) rest() []int {
	var rest []int
	children := processes()
	for next := []int{os.Getpid()}; len(next) > 0; {
		var below []int
		for _, parent := range next {
			for _, c := range children[parent] {
				if c.pid == p.spared {
					continue
				}
				below = append(below, c.pid)
				if !c.ended {
					rest = append(rest, c.pid)
				}
			}
		}
		next = below
	}
	return rest
}

// The method `reap` reaps the adopted processes that have ended.
func (p *systemProcess) reap() {
	ours.mu.Lock()
	defer ours.mu.Unlock()
	for _, c := range processes()[os.Getpid()] {
		if _, started := ours.pids[c.pid]; c.ended && !started {
			syscall.Wait4(c.pid, nil, syscall.WNOHANG, nil)
		}
	}
}

// A kernelProcess is a process in /proc.
type kernelProcess struct {
	pid   int
	ended bool // it has ended, but its parent has not reaped it
	still bool // it is stopped
	deep  bool // it is in a sleep that SIGSTOP does not interrupt
}

// The function `processes` returns all processes of the machine. The key is the process ID of the
// parent.
func processes() map[int][]kernelProcess {
	children := map[int][]kernelProcess{}
	names, _ := os.ReadDir("/proc")
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name.Name() + "/stat")
		// The second field is the program's name, in parentheses. The name may contain any
		// character. So parse the text after the last parenthesis.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if err != nil || len(fields) < 2 {
			continue // it has ended
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			children[parent] = append(children[parent], kernelProcess{
				pid:   pid,
				ended: fields[0] == "Z" || fields[0] == "X",
				still: fields[0] == "T" || fields[0] == "t",
				deep:  fields[0] == "D",
			})
		}
	}
	return children
}
