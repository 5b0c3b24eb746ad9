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

// This file runs a command under a hold, on every system: it forwards signals, and stops the
// command when the hold is lost. hold.go acquires the hold.

// The type `child` is a command that runs under a hold.
type child struct {
	host      *host
	argv      []string
	session   int64            // the session of the hold
	stdin     io.Reader        // nil: zsync's standard input
	env       []string         // variables in addition to zsync's environment
	signals   <-chan os.Signal // the signals to forward
	lost      <-chan struct{}  // closed when the hold is lost
	killAfter time.Duration    // the time from SIGTERM to SIGKILL after a loss
	onLost    string           // a shell command to run after a loss
	stopped   bool             // set by `run`: the hold was lost while the command ran
	missed    os.Signal        // set by `run`: a signal that came just after the end of the command. Signals that end programs come first
	got       []os.Signal      // set by `run`: the forwarded signals
	told      bool             // set by `run`: a signal came that ends zsync, not only this run of the command
}

// notRun returns the exit status and the error for a command that cannot be run.
func notRun(name string, err error) (status int, why error) {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return exitNotFound, fmt.Errorf("%s: no such command", name)
	}
	return exitNoExec, err
}

// The method `run` runs the command to its end and returns its exit status.
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
	told := func() {} // waits for the end of the command of --on-lost
	for lost := c.lost; ; {
		select {
		case <-ended:
			if kill != nil { // the command has got SIGTERM, but not SIGKILL
				p.clear(kill)
			}
			told()
			return c.status(status)
		case sig := <-c.signals:
			if !p.passOn(sig) && (c.missed == nil || !ends(c.missed)) {
				c.missed = sig
			}
			c.got = append(c.got, sig)
			// Many programs take SIGHUP as a request to read their settings again. So before a
			// loss, SIGHUP does not end zsync.
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

// underWay is the longest time that a signal may take to reach zsync.
const underWay = 100 * time.Millisecond

// The method `status` returns the exit status of a command that has ended. If a signal ended the
// command, and zsync received the same signal, the error is a [signalError]. zsync then dies of
// that signal. So its shell sees the same result as without zsync.
func (c *child) status(status int) (int, error) {
	if ends(syscall.Signal(status - 128)) { // the terminal may have sent the signal to both, and zsync may receive it later than the command
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

// The method `start` starts the command. If the kernel cannot execute a script because the first
// line names no interpreter, `start` runs the script with the shell, as execvp(3) does.
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
		cmd.Err = nil // allow it, because the user's PATH has the current directory
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.host.stdin, c.host.stdout, c.host.stderr
	if c.stdin != nil {
		cmd.Stdin = c.stdin
		cmd.WaitDelay = time.Second // do not wait longer for orphans that do not read their input
	}
	cmd.Env = c.environment()
	p = c.host.prepare(cmd)
	orphans, stop = p.orphaned()
	return p, orphans, stop, p.start()
}

// ours is the table of the processes that zsync has started and has not yet waited for. The method
// `reap` must not reap these processes: it is for adopted processes.
var ours processTable

type processTable struct {
	mu   sync.Mutex
	pids map[int]bool // for each process, whether it leads a process group
}

// The method `start` starts cmd and adds its process to the table. It holds the lock during both
// steps, so that `reap` cannot reap the process between them.
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

// The method `wait` waits for the end of a process that `start` has started.
func (t *processTable) wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pids, cmd.Process.Pid)
	return err
}

func (p *systemProcess) start() error { return ours.start(p.cmd) }

func (p *systemProcess) wait() int {
	ours.wait(p.cmd) // ProcessState has its status
	return exitStatus(p.cmd.ProcessState)
}

func (p *systemProcess) beside(cmd *exec.Cmd) (wait func() error, err error) {
	if err := ours.start(cmd); err != nil {
		return nil, err
	}
	p.spared = cmd.Process.Pid
	return func() error { return ours.wait(cmd) }, nil
}

// The constant `telling` is the time limit for the command of --on-lost.
const telling = 10 * time.Second

// The method `tell` starts the command of --on-lost. The returned function waits for the end of
// that command.
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

// The method `environment` returns the command's environment: zsync's own environment without the
// credentials, and the variables that zsync sets for the command.
func (c *child) environment() []string {
	env := slices.DeleteFunc(slices.Clone(c.host.env), func(s string) bool {
		return strings.HasPrefix(s, "ZSYNC_AUTH=") || strings.HasPrefix(s, "ZSYNC_SASL_PASSWORD=") || strings.HasPrefix(s, withinVariable+"=")
	})
	within := append(c.host.within(), look.SessionText(c.session))
	return append(append(env, withinVariable+"="+strings.Join(within, " ")), c.env...)
}
