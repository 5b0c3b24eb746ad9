package ensemble

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// This file starts servers for a single test. ensemble.go has the ensemble that all tests share.

// An Own is a set of real servers for a single test. The servers end with the test.
type Own struct {
	tb                 testing.TB
	script, dir, flags string
}

// Start starts n servers, whose JVMs get `flags`, and returns their connect string.
func Start(tb testing.TB, n int, flags string) (o *Own, servers string) {
	tb.Helper()
	o = &Own{tb, script(tb), filepath.Join(tb.TempDir(), "ensemble"), flags}
	tb.Cleanup(func() { o.run("stop", o.dir) })
	return o, o.run("start", fmt.Sprint(n), o.dir)
}

// The function `script` returns the path of scripts/ensemble of the checkout in which the test
// runs.
func script(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	for err == nil {
		name := filepath.Join(dir, "scripts", "ensemble")
		if _, err := os.Stat(name); err == nil {
			return name
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	tb.Fatalf("no directory above has scripts/ensemble: %v", err)
	return ""
}

// Restart kills and restarts server i.
func (o *Own) Restart(i int) {
	o.tb.Helper()
	o.run("restart", o.dir, fmt.Sprint(i))
}

func (o *Own) run(args ...string) string {
	o.tb.Helper()
	cmd := exec.Command(o.script, args...)
	var problem bytes.Buffer
	cmd.Stderr = &problem
	cmd.Env = append(os.Environ(), "ENSEMBLE_JVM="+o.flags)
	out, err := cmd.Output()
	if err != nil {
		o.tb.Fatalf("ensemble %v: %v\n%s", args, err, &problem)
	}
	return strings.TrimSpace(string(out))
}

// Process starts a shell command, and returns a function that ends the command. The command also
// ends when this process ends: the kernel then closes the pipe that is the shell's standard input,
// and the shell kills the command. After 15 minutes, timeout(1) kills the command.
func Process(tb testing.TB, command string, output *os.File, env ...string) (stop func()) {
	tb.Helper()
	cmd := exec.Command("timeout", "--kill-after=1", "900", "sh", "-c", command+` </dev/null & read -r _; kill $!; wait $!`)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.Env = append(os.Environ(), env...)
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return func() {
		in.Close()
		cmd.Wait() // its error is the signal that ended the command
	}
}
