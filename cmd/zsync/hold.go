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
	"github.com/zsync/zsync/internal/znodes"
)

// This file has the common part of zsync's subcommands that run a command: they wait for a hold,
// run the command, and release the hold. child.go has the process of the command.

// The type `hold` is the lock, permit or leadership under which a command runs.
type hold struct {
	acquire func(ctx context.Context) error
	try     func(ctx context.Context) (bool, error)
	release func() error
	lost    func() <-chan struct{}
	tokens  func(ctx context.Context) ([]int64, error) // nil: the hold has no tokens
	lines   []line                                     // the lines in which the other holders and waiters are
}

// The type `line` is a primitive that has a path and contenders.
type line interface {
	Path() string
	Contenders(ctx context.Context) ([]zsync.Contender, error)
}

// The function `token` returns a value for the field `tokens` of a hold that has one token.
func token(get func(ctx context.Context) (int64, error)) func(ctx context.Context) ([]int64, error) {
	return func(ctx context.Context) ([]int64, error) {
		t, err := get(ctx)
		return []int64{t}, err
	}
}

// The type `holding` has the flags for waiting, running and stopping.
type holding struct {
	*client
	timeout   time.Duration
	canTry    bool // the command has --try
	try       bool
	busy      int // the exit status if the hold is not acquired
	killAfter time.Duration
	onLost    string
	kazoo     bool
	root      bool           // the path can be the root
	shows     bool           // the command itself reports outages, once it is connected
	signals   chan os.Signal // shared by successive tasks, so that a signal between two tasks reaches the second
}

// tryTimeout is the time for which --try waits for a server, unless --connect-timeout is set.
const tryTimeout = 5 * time.Second

func newHolding(c *client) *holding { return &holding{client: c, busy: exitBusy} }

func (h *holding) addTimeout(cmd *cobra.Command) {
	cmd.Flags().VarP((*waitLimit)(&h.timeout), "timeout", "w", "wait at most `TIME` (default: no limit)")
}

// A waitLimit is the flag for the limit of a wait. Its zero value means no limit. The argument 0
// means no wait, and is stored as noWait.
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
	cmd.Flags().Var((*seconds)(&h.killAfter), "kill-after", "`TIME` from SIGTERM to SIGKILL after a loss (default: a twentieth of the session timeout, so that the command ends before another process gets the hold)")
	cmd.Flags().StringVar(&h.onLost, "on-lost", "", "shell `COMMAND` to run when the hold is lost")
}

func (h *holding) addBusy(cmd *cobra.Command) {
	cmd.Flags().IntVarP(&h.busy, "conflict-exit-code", "E", exitBusy, "exit `STATUS` if the wait ends without success")
}

// addTry adds --try to a command, with a short flag unless short is "".
func (h *holding) addTry(cmd *cobra.Command, short string) {
	h.canTry = true
	cmd.Flags().BoolVarP(&h.try, "try", short, false, "try once, and do not wait; the same as --timeout 0")
	cmd.Flags().BoolVar(&h.try, "no-wait", false, "the same")
	cmd.Flags().MarkHidden("no-wait") // the old name of --try
}

// addKazoo adds --kazoo to a command.
func (h *holding) addKazoo(cmd *cobra.Command, kazoos, curators string) {
	cmd.Flags().BoolVar(&h.kazoo, "kazoo", false, fmt.Sprintf("share the path with kazoo's %s, not Curator's %s", kazoos, curators))
}

// The method `layout` returns the layout, which depends on --kazoo.
func (h *holding) layout() zsync.LockOption {
	if h.kazoo {
		return zsync.WithLayout(zsync.LayoutKazoo)
	}
	return zsync.WithLayout(zsync.LayoutCurator)
}

// pathsAndCommand parses PATH... -- CMD ARG.... If `several` is false, only one path is allowed.
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

// The type `task` is one wait for a hold, and the run of the command under that hold.
type task struct {
	*holding
	path    string // the name in messages: the path, or several paths with commas
	argv    []string
	session *zsync.Session
	waiting context.Context // ends at a signal or after --timeout
	signals <-chan os.Signal
	missed  os.Signal // a signal that came just after the end of the command
	told    bool      // during the run of the command, a signal came that ends zsync, not only this run
	ran     bool      // the command was run
	stop    func()    // ends the wait; after the call, signals stay in the channel `signals`
}

// The method `begin` connects, and returns the task of a command that waits at `paths`.
func (h *holding) begin(ctx context.Context, argv []string, paths ...string) (*task, error) {
	if err := checkPaths(paths, h.root); err != nil {
		return nil, err
	}
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
	t := &task{holding: h, path: strings.Join(paths, ", "), argv: argv}
	if argv != nil {
		// Continue even if the reader of zsync's messages has exited, because the command and its
		// hold are more important.
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
		// A try must not wait long for a server or for its answer.
		limit := h.connect
		if limit == connectTimeout {
			limit = tryTimeout
		}
		var stopTry func()
		t.waiting, stopTry = within(t.waiting, limit, "no server answered within %v")
		t.stop = func() { stopSignals(); stopTry() }
	}
	outages := &outageLog{h: h.host}
	h.log = outages
	var err error
	t.session, err = h.open(t.waiting)
	outages.off.Store(h.shows)
	return t, err
}

// checkPaths checks paths before zsync connects, because the servers may be away.
func checkPaths(paths []string, root bool) error {
	for _, path := range paths {
		if err := znodes.CheckPath(path); err != nil && (path != "/" || !root) {
			return verdict(err, exitUsage)
		}
	}
	return nil
}

// The method `under` acquires a hold, runs the command, and releases the hold.
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
	case lost(err) && !t.ran:
		return fail(exitLost, "%s: the hold was lost%s before %s was run", t.path, reason, t.argv[0])
	case lost(err):
		return fail(exitLost, "%s: the hold was lost%s, and %s was stopped", t.path, reason, t.argv[0])
	case errors.Is(released, zsync.ErrLost):
		return fail(exitLost, "%s: the hold was lost%s before %s ended", t.path, reason, t.argv[0])
	case err == nil && errors.As(released, &sig): // a signal came while the release waited for other parties
		return verdict(released, exitBusy)
	}
	// Ignore any other error. Either the release continues in the background, or the end of the
	// session ends the hold.
	return err
}

// The method `acquire` waits for the hold, or tries once. If it fails, the error names the holders.
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

// The method `untilRecorded` returns a context that ends as t.waiting does. After the call of `record`,
// signals end it again: after the command, the record of its success may wait for the servers.
func (t *task) untilRecorded() (_ context.Context, record func()) {
	ctx, cancel := context.WithCancelCause(t.waiting)
	return ctx, func() {
		signalled, _ := untilSignalOf(ctx, t.signals)
		context.AfterFunc(signalled, func() { cancel(context.Cause(signalled)) })
	}
}

// The method `run` ends the wait and runs the command.
func (t *task) run(lost <-chan struct{}, tokens func(context.Context) ([]int64, error)) error {
	late := t.busy
	if t.try {
		late = exitServers
	}
	env := []string{fmt.Sprintf("ZSYNC_HELD=%s %d", t.path, os.Getpid())}
	var err error
	if tokens != nil { // the servers may not answer, so a signal and the time limit end this request, too
		var toks []int64
		toks, err = tokens(t.waiting)
		env = append(env, tokenVariable(toks))
	}
	t.stop()
	if err != nil {
		return verdict(err, late)
	}
	if t.waiting.Err() != nil { // the wait ended at the same instant
		return verdict(context.Cause(t.waiting), late)
	}
	c := &child{host: t.host, session: t.session.ID(), argv: t.argv, env: env, signals: t.signals, lost: lost, killAfter: t.grace(), onLost: t.onLost}
	select {
	case <-lost:
		// After a loss, the next holder may be running already, so do not start the command. This
		// check comes after the call of `grace` for a reason: a new session, perhaps with another
		// timeout, begins only after the loss is reported. So if the hold is not lost here, `grace`
		// has used the timeout of the hold's session.
		return fail(exitLost, "%s: the hold was lost before %s was run", t.path, t.argv[0])
	default:
	}
	t.ran = true
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

// tokenVariable returns the environment variable with the tokens for the command.
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

// The function `lost` reports whether err means that the hold was lost. A command can end with the
// same status by itself. That error has no message.
func lost(err error) bool {
	var s *statusError
	return errors.As(err, &s) && s.status == exitLost && s.err != nil
}

// The method `grace` returns the time from SIGTERM to SIGKILL after a loss. In this time, the
// command can end by itself.
//
// If a session is cut off, the client reports the loss at least a tenth of the session timeout
// before the servers can grant the hold to another session; see [zsync.Session.Margin]. The command
// gets half of this tenth. zsync needs the other half to learn of the loss and to wait for the end
// of killed processes.
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

// The function `within` returns a context that ends after d. If d is 0, or after the call of `stop`,
// no time limit applies. The caller calls `stop` once. The argument `format` is the message of the
// error for the end.
func within(ctx context.Context, d time.Duration, format string) (_ context.Context, stop func()) {
	if d <= 0 {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(d, func() { cancel(&lateError{fmt.Sprintf(format, d)}) })
	return ctx, func() {
		if !timer.Stop() {
			<-ctx.Done() // the timer's function has begun: a later end of ctx would look like a loss
		}
	}
}

// A lateError is the error of a wait that took too long.
type lateError struct{ message string }

func (e *lateError) Error() string        { return e.message }
func (e *lateError) Is(target error) bool { return target == context.DeadlineExceeded }
