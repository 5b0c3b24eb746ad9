//go:build !unix

package main

import (
	"os"
	"os/exec"
	"time"
)

// passedOn are the signals that a command gets when zsync does: none, as there
// is no way to send one. The console itself sends Ctrl-C to both.
var passedOn = []os.Signal{os.Interrupt}

// shell runs what comes behind it.
var shell = []string{"cmd", "/c"}

// A process is a running command.
type process struct {
	cmd    *exec.Cmd
	spared int
}

func newProcess(cmd *exec.Cmd) *process { return &process{cmd: cmd} }

func (p *process) passOn(os.Signal) bool { return true }

// terminate kills: there is no gentler way.
func (p *process) terminate() { p.kill() }

func (p *process) kill() { p.cmd.Process.Kill() }

func (p *process) clear(<-chan time.Time) {}

func (p *process) reap() {}

// orphaned tells of nothing here.
func orphaned() (_ <-chan os.Signal, stop func()) { return nil, func() {} }

func exitStatus(state *os.ProcessState) int { return state.ExitCode() }
