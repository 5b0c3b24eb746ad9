package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// A child is a command that runs under a hold.
type child struct {
	argv      []string
	stdin     io.Reader        // zsync's own if nil
	env       []string         // added to zsync's own
	signals   <-chan os.Signal // to pass on
	lost      <-chan struct{}  // closed when the hold is lost
	killAfter time.Duration    // from SIGTERM to SIGKILL when it is
	stopped   bool             // set by run: the hold was lost while the command ran
	missed    os.Signal        // set by run: came when the command had just ended
}

// run runs the command to its end and returns its exit status.
func (c *child) run() (status int, err error) {
	cmd := exec.Command(c.argv[0], c.argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if c.stdin != nil {
		cmd.Stdin = c.stdin
		cmd.WaitDelay = time.Second // for what is left behind and does not read
	}
	// The credentials are zsync's own.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "ZSYNC_AUTH=") })
	cmd.Env = append(cmd.Env, c.env...)
	p := newProcess(cmd)
	if err := cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			return exitNotFound, fmt.Errorf("%s: no such command", c.argv[0])
		}
		return exitNoExec, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd.Wait() // what it says is in cmd.ProcessState
	}()
	var kill <-chan time.Time
	for lost := c.lost; ; {
		select {
		case <-ended:
			if kill != nil { // told to end, and not yet killed
				p.clear(kill)
			}
			return exitStatus(cmd.ProcessState), nil
		case sig := <-c.signals:
			if !p.passOn(sig) {
				c.missed = sig
			}
		case <-lost:
			lost, c.stopped = nil, true
			kill = time.After(c.killAfter)
			p.terminate()
		case <-kill:
			p.kill()
			kill = nil
		}
	}
}
