package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/zsync/zsync/internal/look"
)

// This file runs a command under a hold, on every system: it passes signals on, and stops the
// command when the hold is lost. It does not acquire the hold; see hold.go.

// A child is a command that runs under a hold.
type child struct {
	host      *host
	argv      []string
	session   int64            // under which it runs
	stdin     io.Reader        // zsync's own if nil
	env       []string         // added to zsync's own
	signals   <-chan os.Signal // to pass on
	lost      <-chan struct{}  // closed when the hold is lost
	killAfter time.Duration    // from SIGTERM to SIGKILL when it is
	onLost    string           // for the shell, to run as well when it is
	stopped   bool             // set by run: the hold was lost while the command ran
	missed    os.Signal        // set by run: came when the command had just ended
	got       []os.Signal      // set by run: the signals passed on
	told      bool             // set by run: a signal came that ends all runs, not only this one
}

// notRun returns the exit status for a command that cannot be run, and says why.
func notRun(name string, err error) (status int, why error) {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return exitNotFound, fmt.Errorf("%s: no such command", name)
	}
	return exitNoExec, err
}

// run runs the command to its end and returns its exit status.
func (c *child) run() (status int, why error) {
	p, orphans, stop, err := c.start()
	defer stop()
	if err != nil {
		return notRun(c.argv[0], err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		status = p.wait()
	}()
	var kill <-chan time.Time
	told := func() {} // waits for the end of --on-lost
	for lost := c.lost; ; {
		select {
		case <-ended:
			if kill != nil { // terminated, and not yet killed
				p.clear(kill)
			}
			told()
			return c.status(status)
		case sig := <-c.signals:
			if !p.passOn(sig) {
				c.missed = sig
			}
			c.got = append(c.got, sig)
			// A SIGHUP that comes while all is well often means: read your settings again.
			c.told = c.told || ends(sig) && (c.stopped || sig != syscall.SIGHUP)
		case <-lost:
			lost, c.stopped = nil, true
			kill = time.After(c.killAfter)
			p.terminate()
			told = c.tell(p)
		case <-orphans:
			p.reap()
		case <-kill:
			p.kill()
			kill = nil
		}
	}
}

// underWay is how long a signal to zsync may need to arrive.
const underWay = 100 * time.Millisecond

// status returns the exit status of a command that has ended. If a signal ended the command and zsync got it
// too, the error is a [signalError]: zsync dies of the signal, so its shell sees the same as it would see of the
// command.
func (c *child) status(status int) (int, error) {
	if ends(syscall.Signal(status - 128)) { // the terminal may have sent it to both, and ours be on its way
		select {
		case sig := <-c.signals:
			c.got = append(c.got, sig)
		case <-time.After(underWay):
		}
	}
	for _, sig := range c.got {
		if s := (&signalError{sig}); status == 128+s.number() {
			return status, s
		}
	}
	return status, nil
}

// start starts the command. If the kernel cannot execute the file, because its first line names no interpreter,
// the shell reads it, as with execvp(3).
func (c *child) start() (p process, orphans <-chan os.Signal, stop func(), err error) {
	p, orphans, stop, err = c.startAs(c.argv)
	if notExecutable(err) {
		stop()
		script := exec.Command(c.argv[0]).Path
		return c.startAs(append([]string{shell[0], script}, c.argv[1:]...))
	}
	return p, orphans, stop, err
}

func (c *child) startAs(argv []string) (p process, orphans <-chan os.Signal, stop func(), err error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	if errors.Is(cmd.Err, exec.ErrDot) {
		cmd.Err = nil // PATH says so
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.host.stdin, c.host.stdout, c.host.stderr
	if c.stdin != nil {
		cmd.Stdin = c.stdin
		cmd.WaitDelay = time.Second // for orphans that do not read
	}
	cmd.Env = c.environment()
	p = c.host.prepare(cmd)
	orphans, stop = p.orphaned()
	return p, orphans, stop, p.start()
}

// ours lists the processes that zsync has started and not yet waited for. reap must leave them alone; it is for
// adopted ones.
var ours processTable

type processTable struct {
	mu   sync.Mutex
	pids map[int]bool // whether it leads a process group of its own
}

// start starts cmd. It keeps reap out until cmd's process is in the table.
func (t *processTable) start(cmd *exec.Cmd) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	if t.pids == nil {
		t.pids = map[int]bool{}
	}
	t.pids[cmd.Process.Pid] = leadsGroup(cmd)
	return nil
}

// wait waits for a process from start.
func (t *processTable) wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pids, cmd.Process.Pid)
	return err
}

func (p *systemProcess) start() error { return ours.start(p.cmd) }

func (p *systemProcess) wait() int {
	ours.wait(p.cmd) // its status is in ProcessState
	return exitStatus(p.cmd.ProcessState)
}

func (p *systemProcess) beside(cmd *exec.Cmd) (wait func() error, err error) {
	if err := ours.start(cmd); err != nil {
		return nil, err
	}
	p.spared = cmd.Process.Pid
	return func() error { return ours.wait(cmd) }, nil
}

// telling is the time limit of --on-lost.
const telling = 10 * time.Second

// tell runs the command of --on-lost. wait waits for its end.
func (c *child) tell(p process) (wait func()) {
	if c.onLost == "" {
		return func() {}
	}
	ctx, cancel := context.WithTimeout(context.Background(), telling)
	cmd := exec.CommandContext(ctx, shell[0], append(shell[1:], c.onLost)...)
	cmd.Stdout, cmd.Stderr, cmd.Env, cmd.WaitDelay = c.host.stdout, c.host.stderr, c.environment(), time.Second
	ended, err := p.beside(cmd)
	return func() {
		defer cancel()
		if err == nil {
			err = ended()
		}
		if err != nil {
			c.host.say(fmt.Errorf("--on-lost: %w", err))
		}
	}
}

// environment returns the command's environment. It lacks the credentials, which are zsync's own.
func (c *child) environment() []string {
	env := slices.DeleteFunc(slices.Clone(c.host.env), func(s string) bool {
		return strings.HasPrefix(s, "ZSYNC_AUTH=") || strings.HasPrefix(s, "ZSYNC_SASL_PASSWORD=") || strings.HasPrefix(s, withinVariable+"=")
	})
	within := append(c.host.within(), look.SessionText(c.session))
	return append(append(env, withinVariable+"="+strings.Join(within, " ")), c.env...)
}
