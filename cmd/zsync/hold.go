package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file has what the commands that run a command have in common: they wait,
// run it, and give up what they hold.

// A hold is what a command is run under.
type hold struct {
	acquire func(ctx context.Context) error
	try     func(ctx context.Context) (bool, error)
	release func() error
	lost    func() <-chan struct{}
	token   func(ctx context.Context) (int64, error) // nil: it has none
}

// A holding is what the command line says about waiting, running and stopping.
type holding struct {
	*client
	timeout   time.Duration
	noWait    bool
	killAfter time.Duration
	kazoo     bool
}

func (h *holding) addTimeout(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&h.timeout, "timeout", 0, "how long to wait at most; 0: for ever")
}

func (h *holding) addFlags(cmd *cobra.Command) {
	h.addTimeout(cmd)
	cmd.Flags().DurationVar(&h.killAfter, "kill-after", 0, "how long after SIGTERM a command that has lost its hold is sent SIGKILL (default a fifth of --session, so that it is gone before others go on)")
}

// addNoWait adds the flag of those who can try.
func (h *holding) addNoWait(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&h.noWait, "no-wait", false, "try once, and do not wait")
}

// addKazoo adds the flag of those whose znodes can be kazoo's.
func (h *holding) addKazoo(cmd *cobra.Command, kazoos, curators string) {
	cmd.Flags().BoolVar(&h.kazoo, "kazoo", false, fmt.Sprintf("share the path with kazoo's %s instead of with Curator's %s", kazoos, curators))
}

// layout is what --kazoo says.
func (h *holding) layout() zsync.LockOption {
	if h.kazoo {
		return zsync.WithLayout(zsync.LayoutKazoo)
	}
	return zsync.WithLayout(zsync.LayoutCurator)
}

// pathAndCommand takes PATH -- CMD ARG... apart.
func pathAndCommand(cmd *cobra.Command, args []string) (path string, argv []string, err error) {
	if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
		return "", nil, fail(exitUsage, "want: %s", cmd.UseLine())
	}
	return args[0], args[1:], nil
}

// A task is one command, from the beginning of the wait for its turn.
type task struct {
	*holding
	path    string
	argv    []string
	session *zsync.Session
	waiting context.Context // ends with a signal, and when --timeout has passed
	signals <-chan os.Signal
	missed  os.Signal // came when the command had just ended
	stop    func()    // ends the waiting, and sends signals to signals
}

// begin connects, on behalf of a command that waits for its turn at path.
func (h *holding) begin(ctx context.Context, path string, argv []string) (*task, error) {
	t := &task{holding: h, path: path, argv: argv}
	var stopSignals, stopTimer func()
	ctx, t.signals, stopSignals = untilSignal(ctx)
	t.waiting, stopTimer = within(ctx, h.timeout, "gave up after %v")
	t.stop = func() { stopSignals(); stopTimer() }
	var err error
	t.session, err = h.open(t.waiting)
	return t, err
}

// under acquires a hold, runs the command, and releases.
func (t *task) under(h hold) error {
	if t.noWait {
		ok, err := h.try(t.waiting)
		if err != nil {
			return verdict(err, exitBusy)
		}
		if !ok {
			return fail(exitBusy, "%s: not free", t.path)
		}
	} else if err := h.acquire(t.waiting); err != nil {
		return verdict(err, exitBusy)
	}
	err := t.run(h.lost(), h.token)
	released := h.release()
	var sig *signalError
	switch {
	case lost(err):
	case errors.Is(released, zsync.ErrLost):
		return fail(exitLost, "%s: the hold was lost before %s ended", t.path, t.argv[0])
	case err == nil && errors.As(released, &sig): // while it waited for others
		return verdict(released, exitBusy)
	}
	// A release that fails otherwise goes on in the background, or ends with
	// the session.
	return err
}

// run ends the waiting and runs the command.
func (t *task) run(lost <-chan struct{}, token func(context.Context) (int64, error)) error {
	t.stop()
	if t.waiting.Err() != nil { // at the same instant
		return verdict(context.Cause(t.waiting), exitBusy)
	}
	c := &child{argv: t.argv, signals: t.signals, lost: lost, killAfter: t.grace()}
	if token != nil {
		tok, err := token(t.waiting)
		if err != nil {
			return verdict(err, exitBusy)
		}
		c.env = append(c.env, "ZSYNC_TOKEN="+strconv.FormatInt(tok, 10))
	}
	status, err := c.run()
	t.missed = c.missed
	switch {
	case c.stopped:
		return fail(exitLost, "%s: the hold was lost, and %s was stopped", t.path, t.argv[0])
	case status != 0:
		return &statusError{status, err}
	}
	return nil
}

// lost reports whether err says that a hold was lost.
func lost(err error) bool {
	var s *statusError
	return errors.As(err, &s) && s.status == exitLost
}

// grace is how long a command may take to end after it has lost its hold.
//
// A session that is cut off gives up when three quarters of its timeout have
// passed in silence, and others go on when all of it has.
func (h *holding) grace() time.Duration {
	if h.killAfter > 0 {
		return h.killAfter
	}
	return h.session / 5
}

// within returns a context that ends when d has passed, unless stop is called
// before that or d is 0. format says what has not happened by then.
func within(ctx context.Context, d time.Duration, format string) (_ context.Context, stop func()) {
	if d <= 0 {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(d, func() { cancel(&lateError{fmt.Sprintf(format, d)}) })
	return ctx, func() { timer.Stop() }
}

// A lateError is the end of a wait.
type lateError struct{ message string }

func (e *lateError) Error() string        { return e.message }
func (e *lateError) Is(target error) bool { return target == context.DeadlineExceeded }
