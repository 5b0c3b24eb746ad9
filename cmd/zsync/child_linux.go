package main

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// systemSignals are those of passedOn that other systems do not have.
func systemSignals() []os.Signal {
	all := []os.Signal{syscall.SIGPWR}
	for n := syscall.Signal(35); n <= 64; n++ {
		all = append(all, n)
	}
	return all
}

// attributes has the kernel kill the command when zsync dies without a chance
// to do it: nobody would be left to stop it when the hold is lost. The kernel
// looks at the thread that started the command, so main stays on its own.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// adopt makes zsync the parent of what its descendants leave behind. Otherwise
// that is init: nobody would know any more that it is to be stopped, and in many
// a container nobody would ever ask how it has ended.
func adopt() { unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// rest returns the processes that have been started under zsync and have not
// ended, but for the one that is spared and what that has started.
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

// reap asks how those have ended that were adopted, which makes an end of them.
func (p *systemProcess) reap() {
	ours.mu.Lock()
	defer ours.mu.Unlock()
	for _, c := range processes()[os.Getpid()] {
		if _, started := ours.pids[c.pid]; c.ended && !started {
			syscall.Wait4(c.pid, nil, syscall.WNOHANG, nil)
		}
	}
}

// A kernelProcess is a process as the kernel lists it.
type kernelProcess struct {
	pid   int
	ended bool // and nobody has asked how
	still bool // it is stopped
	deep  bool // it sleeps, and not even SIGSTOP wakes it
}

// processes lists all processes, by their parents.
func processes() map[int][]kernelProcess {
	children := map[int][]kernelProcess{}
	names, _ := os.ReadDir("/proc")
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name.Name() + "/stat")
		// Of the name of the program, in parentheses, anything may be part.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if err != nil || len(fields) < 2 {
			continue // it is gone
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
