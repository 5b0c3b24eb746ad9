package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file is shared by the commands that run a command: they wait, run it, and release their hold.

// A hold is the lock, permit or leadership under which a command runs.
type hold struct {
	acquire func(ctx context.Context) error
	try     func(ctx context.Context) (bool, error)
	release func() error
	lost    func() <-chan struct{}
	tokens  func(ctx context.Context) ([]int64, error) // nil: it has none
	lines   []line                                     // the lines of its other holders and waiters
}

// A line is a path with contenders.
type line interface {
	Path() string
	Contenders(ctx context.Context) ([]zsync.Contender, error)
}

// token is the tokens of a hold that has one.
func token(get func(ctx context.Context) (int64, error)) func(ctx context.Context) ([]int64, error) {
	return func(ctx context.Context) ([]int64, error) {
		t, err := get(ctx)
		return []int64{t}, err
	}
}

// A holding has the flags for waiting, running and stopping.
type holding struct {
	*client
	timeout   time.Duration
	canTry    bool // there is --try
	try       bool
	busy      int // the exit status when it is not acquired
	killAfter time.Duration
	onLost    string
	kazoo     bool
	shows     bool           // the command shows an outage itself
	signals   chan os.Signal // for all tasks in turn: a signal between two is for the second
}

// tryTimeout is how long --try waits for a server, unless --connect-timeout says more.
const tryTimeout = 5 * time.Second

func newHolding(c *client) *holding { return &holding{client: c, busy: exitBusy} }

func (h *holding) addTimeout(cmd *cobra.Command) {
	cmd.Flags().VarP((*waitLimit)(&h.timeout), "timeout", "w", "wait at most `TIME` (default: no limit)")
}

// A waitLimit is the flag for the longest wait. The zero value is no limit, and the
// flag's value 0 is noWait.
type waitLimit time.Duration

const noWait waitLimit = -1

func (w *waitLimit) Type() string { return "time" }

func (w *waitLimit) String() string {
	limit := seconds(max(*w, 0))
	return limit.String()
}

func (w *waitLimit) Set(text string) error {
	err := (*seconds)(w).Set(text)
	if err == nil && *w == 0 {
		*w = noWait
	}
	return err
}

func (h *holding) addFlags(cmd *cobra.Command) {
	h.addTimeout(cmd)
	h.addBusy(cmd)
	cmd.Flags().Var((*seconds)(&h.killAfter), "kill-after", "`TIME` from SIGTERM to SIGKILL after a loss (default: a twentieth of the session timeout, so that the command ends before another process holds)")
	cmd.Flags().StringVar(&h.onLost, "on-lost", "", "shell `COMMAND` to run when the hold is lost")
}

func (h *holding) addBusy(cmd *cobra.Command) {
	cmd.Flags().IntVarP(&h.busy, "conflict-exit-code", "E", exitBusy, "exit `STATUS` if the wait ends without success")
}

// addTry adds --try to a command that can try, with a short flag if that is free.
func (h *holding) addTry(cmd *cobra.Command, short string) {
	h.canTry = true
	cmd.Flags().BoolVarP(&h.try, "try", short, false, "try once, and do not wait; the same as --timeout 0")
	cmd.Flags().BoolVar(&h.try, "no-wait", false, "the same")
	cmd.Flags().MarkHidden("no-wait") // the old name of --try
}

// addKazoo adds --kazoo to a command that can use kazoo's znodes.
func (h *holding) addKazoo(cmd *cobra.Command, kazoos, curators string) {
	cmd.Flags().BoolVar(&h.kazoo, "kazoo", false, fmt.Sprintf("share the path with kazoo's %s, not Curator's %s", kazoos, curators))
}

// layout returns the layout that --kazoo selects.
func (h *holding) layout() zsync.LockOption {
	if h.kazoo {
		return zsync.WithLayout(zsync.LayoutKazoo)
	}
	return zsync.WithLayout(zsync.LayoutCurator)
}

// pathsAndCommand parses PATH... -- CMD ARG.... Only with several may there be more than one path.
func pathsAndCommand(cmd *cobra.Command, args []string, several bool) (paths, argv []string, err error) {
	n := cmd.ArgsLenAtDash()
	switch {
	case n < 0 && len(args) > 1:
		return nil, nil, fail(exitUsage, "there is no -- before the command; want: %s", cmd.UseLine())
	case n < 1, n > 1 && !several, len(args) == n:
		return nil, nil, fail(exitUsage, "want: %s", cmd.UseLine())
	}
	return args[:n], args[n:], nil
}

// A task is one command, from the beginning of the wait for its turn.
type task struct {
	*holding
	path    string // or several, with commas: what messages call it
	argv    []string
	session *zsync.Session
	waiting context.Context // ends with a signal, and when --timeout has passed
	signals <-chan os.Signal
	missed  os.Signal // came when the command had just ended
	told    bool      // a signal came, while the command ran, that is to end more than this run of it
	stop    func()    // ends the waiting, and sends signals to signals
}

// begin connects, on behalf of a command that waits for its turn at path.
func (h *holding) begin(ctx context.Context, path string, argv []string) (*task, error) {
	if h.busy < 0 || h.busy > 255 {
		return nil, fail(exitUsage, "-E %d: an exit status is from 0 to 255", h.busy)
	}
	switch {
	case waitLimit(h.timeout) != noWait:
	case h.canTry:
		h.try, h.timeout = true, 0
	default:
		return nil, fail(exitUsage, "--timeout 0: there is no --try here; leave --timeout out to wait without a limit")
	}
	t := &task{holding: h, path: path, argv: argv}
	if argv != nil {
		// If the reader of our messages has exited, continue: the command and its hold are worth more.
		h.host.hear(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
	if h.signals == nil {
		h.signals = h.hearAll()
	}
	t.signals = h.signals
	ctx, stopSignals := untilSignalOf(ctx, h.signals)
	var stopTimer func()
	t.waiting, stopTimer = within(ctx, h.timeout, "gave up after %v")
	t.stop = func() { stopSignals(); stopTimer() }
	if h.try && h.timeout == 0 {
		// A try must not wait for a server, nor for its answer.
		limit := h.connect
		if limit == connectTimeout {
			limit = tryTimeout
		}
		var stopTry func()
		t.waiting, stopTry = within(t.waiting, limit, "no server answered within %v")
		t.stop = func() { stopSignals(); stopTry() }
	}
	if !h.shows {
		h.log = outageLog{h.host}
	}
	var err error
	t.session, err = h.open(t.waiting)
	return t, err
}

// under acquires a hold, runs the command, and releases.
func (t *task) under(h hold) error {
	if err := t.acquire(h); err != nil {
		return err
	}
	err := t.run(h.lost(), h.tokens)
	released := h.release()
	var sig *signalError
	var why *zsync.LostError
	reason := ""
	if errors.As(released, &why) {
		reason = " (" + why.Reason.String() + ")"
	}
	switch {
	case lost(err):
		return fail(exitLost, "%s: the hold was lost%s, and %s was stopped", t.path, reason, t.argv[0])
	case errors.Is(released, zsync.ErrLost):
		return fail(exitLost, "%s: the hold was lost%s before %s ended", t.path, reason, t.argv[0])
	case err == nil && errors.As(released, &sig): // while it waited for others
		return verdict(released, exitBusy)
	}
	// After any other error, the release continues in the background, or ends with the session.
	return err
}

// acquire waits for the hold, or tries. If it fails, the error names the holders.
func (t *task) acquire(h hold) error {
	if t.try {
		ok, err := h.try(t.waiting)
		if err != nil {
			return verdict(err, exitServers)
		}
		if !ok {
			return fail(t.busy, "%s: not free%s", t.path, t.taken(h.lines, ": "))
		}
		return nil
	}
	stop := t.narrate(h.lines)
	err := h.acquire(t.waiting)
	stop(err == nil)
	var late *lateError
	if errors.As(err, &late) {
		return t.inVain(err, t.taken(h.lines, ": "))
	}
	return verdict(err, t.busy)
}

// run ends the waiting and runs the command.
func (t *task) run(lost <-chan struct{}, tokens func(context.Context) ([]int64, error)) error {
	t.stop()
	if t.waiting.Err() != nil { // at the same instant
		return verdict(context.Cause(t.waiting), t.busy)
	}
	c := &child{host: t.host, session: t.session.ID(), argv: t.argv, signals: t.signals, lost: lost, killAfter: t.grace(), onLost: t.onLost}
	c.env = append(c.env, fmt.Sprintf("ZSYNC_HELD=%s %d", t.path, os.Getpid()))
	if tokens != nil {
		toks, err := tokens(t.waiting)
		if err != nil {
			return verdict(err, t.busy)
		}
		c.env = append(c.env, tokenVariable(toks))
	}
	select {
	case <-lost:
		// The next holder may be running already. We look after grace: a session that follows the one of this
		// hold, perhaps with another timeout, begins only after the loss was reported.
		return fail(exitLost, "%s: the hold was lost before %s was run", t.path, t.argv[0])
	default:
	}
	status, err := c.run()
	t.missed, t.told = c.missed, c.told
	switch {
	case c.stopped:
		return fail(exitLost, "%s: the hold was lost, and %s was stopped", t.path, t.argv[0])
	case status != 0:
		return &statusError{status, err}
	}
	return nil
}

// tokenVariable returns the environment variable that gives the command its tokens.
func tokenVariable(tokens []int64) string {
	words := make([]string, len(tokens))
	for i, t := range tokens {
		words[i] = strconv.FormatInt(t, 10)
	}
	if len(tokens) == 1 {
		return "ZSYNC_TOKEN=" + words[0]
	}
	return "ZSYNC_TOKENS=" + strings.Join(words, " ")
}

// lost reports whether err says that a hold was lost.
func lost(err error) bool {
	var s *statusError
	return errors.As(err, &s) && s.status == exitLost
}

// grace is how long a command may take to end after it has lost its hold.
//
// A session that is cut off reports the loss before the servers let other sessions proceed, by at least a tenth
// of the timeout that they have granted: see [zsync.Session.Margin]. The command has half of that time. In the
// other half, zsync learns of the loss and killed processes disappear.
func (t *task) grace() time.Duration {
	tenth := t.session.Timeout() / 10
	if t.killAfter > tenth {
		t.say(fmt.Errorf("--kill-after %v: another process may hold %v after a loss, a tenth of the session timeout", t.killAfter, tenth))
	}
	if t.killAfter > 0 {
		return t.killAfter
	}
	return tenth / 2
}

// within returns a context that ends after d. It does not if d is 0, or after stop. format describes the wait
// that has failed.
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
