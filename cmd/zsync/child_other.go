//go:build !unix

package main

import (
	"os"
	"os/exec"
	"time"
)

// This file runs commands on systems without Unix signals: zsync can only kill them.

// passedOn are the signals that a command gets when zsync does: none, as there
// is no way to send one. The console itself sends Ctrl-C to both.
var passedOn = []os.Signal{os.Interrupt}

// shell runs the command that is its last argument.
var shell = []string{"cmd", "/c"}

// A systemProcess is a running command.
type systemProcess struct {
	cmd    *exec.Cmd
	spared int
}

// notExecutable always reports false: here no shell can help.
func notExecutable(error) bool { return false }

// leadsGroup reports whether cmd leads a process group of its own.
func leadsGroup(*exec.Cmd) bool { return false }

// inForeground always reports true: here no job runs in the background of a console.
func inForeground() bool { return true }

func newProcess(cmd *exec.Cmd) process { return &systemProcess{cmd: cmd} }

func (p *systemProcess) passOn(os.Signal) bool { return true }

// terminate kills: there is no gentler way.
func (p *systemProcess) terminate() { p.kill() }

func (p *systemProcess) kill() { p.cmd.Process.Kill() }

func (p *systemProcess) clear(<-chan time.Time) {}

func (p *systemProcess) reap() {}

// orphaned never sends on this system.
func (p *systemProcess) orphaned() (_ <-chan os.Signal, stop func()) { return nil, func() {} }

// dieOf does nothing: no signal ends a process here.
func dieOf(os.Signal) {}

func exitStatus(state *os.ProcessState) int { return state.ExitCode() }
