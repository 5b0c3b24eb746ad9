// Package ensemble lets a test run over a real ZooKeeper ensemble, and hurt it.
//
// The ensemble is started outside, by scripts/ensemble; the environment says where it is:
//
//	ZSYNC_TEST_SERVERS   its connect string
//	ZSYNC_TEST_ENSEMBLE  the directory given to scripts/ensemble start, which allows faults
//
// All tests of a run share the one ensemble, so a test that hurts it must not be
// parallel, and test binaries of several packages must not run at once (go test -p 1).
package ensemble

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// An Ensemble is a group of real ZooKeeper servers that the tests share.
// Servers count from 1, as in their configuration.
type Ensemble struct {
	tb      testing.TB
	servers string
	dir     string       // "" when the servers may be used but not hurt
	paused  map[int]bool // servers that this test stopped and has not resumed
	killed  map[int]bool // servers that this test killed and has not restarted
}

// FromEnv returns the ensemble named by the environment and reports whether there is one.
// At the end of the test every server that the test paused or killed serves again.
func FromEnv(tb testing.TB) (e *Ensemble, ok bool) {
	tb.Helper()
	servers := os.Getenv("ZSYNC_TEST_SERVERS")
	if servers == "" {
		return nil, false
	}
	e = &Ensemble{
		tb:      tb,
		servers: servers,
		dir:     os.Getenv("ZSYNC_TEST_ENSEMBLE"),
		paused:  make(map[int]bool),
		killed:  make(map[int]bool),
	}
	tb.Cleanup(e.repair)
	return e, true
}

// Faults returns the ensemble named by the environment for a test that is going to hurt it. It skips
// the test if there is none, or none that may be hurt.
func Faults(tb testing.TB) *Ensemble {
	tb.Helper()
	e, ok := FromEnv(tb)
	if !ok || !e.MayBeHurt() {
		tb.Skip("needs a real ensemble that may be hurt: ZSYNC_TEST_SERVERS and ZSYNC_TEST_ENSEMBLE")
	}
	return e
}

// Servers returns the connect string of the whole ensemble.
func (e *Ensemble) Servers() string { return e.servers }

// Addrs returns the address of each server; server i is at index i-1.
func (e *Ensemble) Addrs() []string { return strings.Split(e.servers, ",") }

// MayBeHurt reports whether the environment allows the faults below.
func (e *Ensemble) MayBeHurt() bool { return e.dir != "" }

// Pause stops servers i as SIGSTOP does: their connections stay open, and nothing is answered.
func (e *Ensemble) Pause(i ...int) {
	e.tb.Helper()
	e.run("pause", i)
	mark(e.paused, i, true)
}

// Resume continues paused servers.
func (e *Ensemble) Resume(i ...int) {
	e.tb.Helper()
	e.run("resume", i)
	mark(e.paused, i, false)
}

// Kill ends servers i as SIGKILL does.
func (e *Ensemble) Kill(i ...int) {
	e.tb.Helper()
	e.run("kill", i)
	mark(e.killed, i, true)
	mark(e.paused, i, false)
}

// Restart starts killed servers again, on their old data, and returns once each of them serves. It
// first kills a server that still runs. Name enough servers for a quorum: a single one never serves.
func (e *Ensemble) Restart(i ...int) {
	e.tb.Helper()
	e.run("restart", i)
	mark(e.killed, i, false)
	mark(e.paused, i, false)
}

// Leader returns the server that leads now. A starved server does not answer, so Leader asks for up to a minute.
func (e *Ensemble) Leader() int {
	e.tb.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		status := e.run("status", nil)
		for line := range strings.Lines(status) {
			if f := strings.Fields(line); len(f) == 4 && (f[3] == "leader" || f[3] == "standalone") {
				i, err := strconv.Atoi(f[0])
				if err != nil {
					e.tb.Fatalf("ensemble status: %q: %v", line, err)
				}
				return i
			}
		}
		if time.Now().After(deadline) {
			e.tb.Fatalf("ensemble: no server leads\n%s", status)
		}
	}
}

// repair ends the faults that the test has left.
func (e *Ensemble) repair() {
	if len(e.paused) > 0 {
		e.Resume(keys(e.paused)...)
	}
	if len(e.killed) > 0 {
		e.Restart(keys(e.killed)...)
	}
}

// run runs a command of the copy of scripts/ensemble that lies in the ensemble's directory.
func (e *Ensemble) run(command string, servers []int) string {
	e.tb.Helper()
	if e.dir == "" {
		e.tb.Fatalf("ensemble %s: ZSYNC_TEST_ENSEMBLE is not set", command)
	}
	args := []string{command, e.dir}
	for _, i := range servers {
		args = append(args, fmt.Sprint(i))
	}
	out, err := exec.Command(filepath.Join(e.dir, "ensemble"), args...).CombinedOutput()
	if err != nil {
		e.tb.Fatalf("ensemble %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func mark(set map[int]bool, servers []int, on bool) {
	for _, i := range servers {
		if on {
			set[i] = true
		} else {
			delete(set, i)
		}
	}
}

func keys(set map[int]bool) []int {
	var list []int
	for i := range set {
		list = append(list, i)
	}
	return list
}
