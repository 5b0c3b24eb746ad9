//go:build !unix

package main

import (
	"os"
	"os/exec"
	"time"
)

// This file runs commands on systems without Unix signals. On these systems, zsync can only kill a
// command. child_unix.go is for the other systems.

// passedOn has the signals that zsync receives for its command. zsync cannot forward signals here,
// but the console also sends Ctrl-C to the command.
var passedOn = []os.Signal{os.Interrupt}

// shell is the beginning of a command line. Its last argument, a shell command, is appended.
var shell = []string{"cmd", "/c"}

// A systemProcess is a running command.
type systemProcess struct {
	cmd    *exec.Cmd
	spared int
}

// notExecutable returns false, because no shell here runs scripts that the system cannot execute.
func notExecutable(error) bool { return false }

// leadsGroup returns false, because this system has no process groups.
func leadsGroup(*exec.Cmd) bool { return false }

// inForeground returns true, because a console of this system has no jobs in the background.
func inForeground() bool { return true }

func newProcess(cmd *exec.Cmd) process { return &systemProcess{cmd: cmd} }

func (p *systemProcess) passOn(os.Signal) bool { return true }

// The method `terminate` kills the process, because this system has no other way to end it.
func (p *systemProcess) terminate() { p.kill() }

func (p *systemProcess) kill() { p.cmd.Process.Kill() }

func (p *systemProcess) clear(<-chan time.Time) {}

func (p *systemProcess) reap() {}

// The method `orphaned` returns a nil channel, because zsync adopts no processes here.
func (p *systemProcess) orphaned() (_ <-chan os.Signal, stop func()) { return nil, func() {} }

// dieOf does nothing, because no signal ends a process here.
func dieOf(os.Signal) {}

func exitStatus(state *os.ProcessState) int { return state.ExitCode() }
