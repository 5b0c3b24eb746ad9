// Package ensemble lets a test use a real ZooKeeper ensemble, and pause, kill and restart its
// servers. Packages netproxy and chaos cause faults of the network.
//
// The script scripts/ensemble starts the ensemble before the test. Two variables of the environment
// describe the ensemble:
//
//	ZSYNC_TEST_SERVERS   its connect string
//	ZSYNC_TEST_ENSEMBLE  the directory of scripts/ensemble start; if it is set, tests may cause faults
//
// All tests of a run share the ensemble. So a test that causes faults must not be parallel, and
// test binaries of different packages must not run at the same time (go test -p 1).
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

	"github.com/zsync/zsync/internal/need"
)

// An Ensemble is a group of real ZooKeeper servers that the tests share. The servers are numbered
// from 1, as in their configuration.
type Ensemble struct {
	tb      testing.TB
	servers string
	dir     string       // "" if a test must not cause faults
	paused  map[int]bool // servers that this test stopped and has not resumed
	killed  map[int]bool // servers that this test killed and has not restarted
}

// FromEnv returns the ensemble that the environment describes. If there is none, `ok` is false. At
// the end of the test, every server that the test has paused or killed is resumed or restarted.
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

// Faults returns the ensemble that the environment describes, for a test that causes faults. It
// skips the test if there is no ensemble, or if the environment does not allow faults.
func Faults(tb testing.TB) *Ensemble {
	tb.Helper()
	need.Variable(tb, "ZSYNC_TEST_SERVERS")
	need.Variable(tb, "ZSYNC_TEST_ENSEMBLE") // without it, a test must not cause faults
	e, _ := FromEnv(tb)
	return e
}

// Servers returns the connect string of the whole ensemble.
func (e *Ensemble) Servers() string { return e.servers }

// Addrs returns the address of each server; server i is at index i-1.
func (e *Ensemble) Addrs() []string { return strings.Split(e.servers, ",") }

// MayBeHurt reports whether the environment allows faults.
func (e *Ensemble) MayBeHurt() bool { return e.dir != "" }

// Pause stops servers i with SIGSTOP: their connections stay open, but the servers answer nothing.
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

// Kill ends servers i with SIGKILL.
func (e *Ensemble) Kill(i ...int) {
	e.tb.Helper()
	e.run("kill", i)
	mark(e.killed, i, true)
	mark(e.paused, i, false)
}

// Restart starts servers again with their old data. It returns when each of the servers serves
// clients. It first kills each of these servers that still runs. The restarted servers and the
// other running servers together must be a quorum, because a server without a quorum never serves.
func (e *Ensemble) Restart(i ...int) {
	e.tb.Helper()
	e.run("restart", i)
	mark(e.killed, i, false)
	mark(e.paused, i, false)
}

// Leader returns the current leader. A server without CPU time does not answer, so Leader retries
// for up to a minute.
func (e *Ensemble) Leader() int {
	e.tb.Helper()
	// real time: the real servers elect a leader
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

// The method `repair` ends the remaining faults of the test.
func (e *Ensemble) repair() {
	if len(e.paused) > 0 {
		e.Resume(keys(e.paused)...)
	}
	if len(e.killed) > 0 {
		e.Restart(keys(e.killed)...)
	}
}

// The method `run` runs a command of scripts/ensemble, from the copy in the ensemble's directory.
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
