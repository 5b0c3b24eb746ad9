package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/session"
	instants "github.com/zsync/zsync/internal/timetable"
)

// This file has zsync schedule: the flags of a timetable, and the run of a command at each
// scheduled time. child.go has the process of the command.

func scheduleCommand(c *client) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "run a command at each scheduled time, on one machine",
		Long: `A schedule runs a command once for each instant of a timetable, on one machine of
many. It is a zsync.Schedule.

The timetable is --every TIME: the multiples of TIME since the year 1 in UTC, the
same on every machine. Or it is --cron: the five fields of crontab(5), or @hourly
and the like, in this machine's zone or in the zone of a leading CRON_TZ=ZONE. A job
with a fixed hour and minute runs once on each of its days, even when the clocks change.

The command's environment has the instant as ZSYNC_INSTANT, in the form
2006-01-02T15:04:05Z.`,
		RunE: wantSubcommand,
	}
	cmd.AddCommand(scheduleRunCommand(c), scheduleDoCommand(c), scheduleLastCommand(c))
	return cmd
}

// The type `timetable` has the flags for a timetable.
type timetable struct {
	every time.Duration
	cron  string
}

func (t *timetable) add(cmd *cobra.Command) {
	cmd.Flags().Var((*seconds)(&t.every), "every", "run at each multiple of `TIME`")
	cmd.Flags().StringVar(&t.cron, "cron", "", "the five `FIELDS` of crontab(5), or @daily and the like")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if cmd.Flags().Changed("every") && t.every == 0 {
			return fail(exitUsage, "--every 0: must be more than 0")
		}
		return nil
	}
}

// The method `given` reports whether the command line has a timetable.
func (t *timetable) given() bool { return t.every > 0 || t.cron != "" }

// The method `parse` returns the timetable. Its errors name the flags.
func (t *timetable) parse() (zsync.Timetable, error) {
	switch {
	case t.every > 0 && t.cron != "":
		return nil, fail(exitUsage, "--every and --cron do not go together")
	case t.every > 0:
		return zsync.Every(t.every), nil
	case t.cron != "":
		table, err := parseCron(t.cron)
		if err != nil {
			return nil, fail(exitUsage, "--cron %s: %w", t.cron, err)
		}
		return table, nil
	}
	return nil, fail(exitUsage, "when? give --every or --cron")
}

// parseCron parses the five fields of crontab(5), or a word such as @daily. A zone such as
// CRON_TZ=Europe/Berlin may precede them. @every 1h is the same as --every 1h.
func parseCron(spec string) (zsync.Timetable, error) {
	words := strings.Fields(spec)
	loc := time.Local
	if len(words) > 0 {
		name, zone, ok := strings.Cut(words[0], "=")
		if ok && (name == "CRON_TZ" || name == "TZ") {
			var err error
			if loc, err = time.LoadLocation(zone); err != nil || zone == "" {
				return nil, fmt.Errorf("%s: want the name of a zone, such as Europe/Berlin", words[0])
			}
			words = words[1:]
		}
	}
	if len(words) == 2 && words[0] == "@every" {
		every, err := time.ParseDuration(words[1])
		if err != nil || every <= 0 {
			return nil, fmt.Errorf("@every %s: want a time above 0, such as 1h30m", words[1])
		}
		return zsync.Every(every), nil
	}
	return zsync.Cron(strings.Join(words, " "), loc)
}

// The function `latest` returns the last scheduled time that is not after `now`, or the zero time
// if there is none in the last thirty years.
func latest(table zsync.Timetable, now time.Time) (last time.Time) {
	// Search a window that ends at `now` and grows until it contains a scheduled time.
	for back := time.Minute; back < 40*366*24*time.Hour && last.IsZero(); back *= 4 {
		for at := table.Next(now.Add(-back)); !at.IsZero() && !at.After(now); at = table.Next(at) {
			last = at
		}
	}
	return last
}

func instant(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

// The method `doing` is the function of the Schedule: it runs the command for a scheduled time. If
// ctx ends because of a loss, it stops the command.
func (t *task) doing(ctx context.Context, at time.Time, signals <-chan os.Signal) error {
	c := &child{
		host: t.host, session: t.session.ID(), argv: t.argv, signals: signals, lost: ctx.Done(), killAfter: t.grace(), onLost: t.onLost,
		env: []string{"ZSYNC_INSTANT=" + instant(at)},
	}
	status, err := c.run()
	switch {
	case c.stopped:
		return fail(exitLost, "%s: the hold was lost, and %s was stopped", t.path, t.argv[0])
	case status != 0:
		if err == nil {
			err = fmt.Errorf("exit status %d", status)
		}
		return &commandError{status, err}
	}
	return nil
}

// A commandError is the failure of the command.
type commandError struct {
	status int
	err    error
}

func (e *commandError) Error() string { return e.err.Error() }
func (e *commandError) Unwrap() error { return e.err }

func scheduleDoCommand(c *client) *cobra.Command {
	h := newHolding(c)
	var table timetable
	at := ""
	cmd := &cobra.Command{
		Use:   "do PATH [flags] -- CMD [ARG...]",
		Short: "run a command for one scheduled time, unless it has run",
		Long: `zsync schedule do runs a command for one instant. If that or a later instant was done,
zsync runs nothing and succeeds. While another machine runs its command for the instant,
zsync waits. If the command fails, the instant is not done: zsync exits with the
command's status, and the next waiting machine runs its own command.

The instant is --at, or the latest instant of the timetable that is not in the future.
So if cron(8) starts zsync on every machine, the command runs on one machine. If it
fails there, it runs on another machine.`,
		Example: "  zsync schedule do /jobs/nightly --cron '0 3 * * *' -- ./nightly.sh\n  zsync schedule do /jobs/report --at 2026-01-31T00:00:00Z -- ./report.sh",
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, _, err := pathsAndCommand(cmd, args, false); err != nil {
				return err
			}
			when, err := table.instant(at)
			if err != nil {
				return err
			}
			t, _, err := beginTask(h, cmd, args, false)
			if err != nil {
				return err
			}
			defer t.session.Close()
			return t.doOnce(when)
		},
	}
	h.addFlags(cmd)
	table.add(cmd)
	cmd.Flags().StringVar(&at, "at", "", "the `INSTANT`, as 2006-01-02T15:04:05Z, or with a zone: +01:00")
	return cmd
}

// The method `instant` returns the scheduled time of the job, from --at or from the timetable.
func (t *timetable) instant(at string) (time.Time, error) {
	if at != "" && t.given() {
		return time.Time{}, fail(exitUsage, "--at does not go with --every and --cron")
	}
	if at != "" {
		when, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			return when, fail(exitUsage, "--at %s: want a time such as 2006-01-02T15:04:05Z", at)
		}
		if !instants.Recordable(when) {
			return when, fail(exitUsage, "--at %s: must be after the zero time and before the year 10000", at)
		}
		return when, nil
	}
	if !t.given() {
		return time.Time{}, fail(exitUsage, "of which instant? give --at, --every or --cron")
	}
	table, err := t.parse()
	if err != nil {
		return time.Time{}, err
	}
	if every, ok := table.(instants.Every); ok { // with a short interval, the function `latest` would be slow
		return time.Now().Truncate(time.Duration(every)), nil
	}
	when := latest(table, time.Now())
	if when.IsZero() {
		return when, fail(exitUsage, "--cron %s: has no instant in the last years", t.cron)
	}
	return when, nil
}

// doOnce runs the command for one scheduled time.
func (t *task) doOnce(at time.Time) error {
	// The process that runs the job is the first contender in a line, as with a Mutex.
	lines := []line{zsync.NewMutex(t.session, t.path)}
	stop := t.narrate(lines)
	var status *commandError
	ctx, record := t.untilRecorded()
	_, err := zsync.NewSchedule(t.session, t.path).Do(ctx, at, func(ctx context.Context) error {
		stop(true)
		defer record()
		t.stop()
		if t.waiting.Err() != nil { // the wait ended at the same moment
			return context.Cause(t.waiting)
		}
		return t.doing(ctx, at, t.signals)
	})
	stop(false) // the scheduled time is done, or Do has failed
	var late *lateError
	switch {
	case errors.As(err, &status):
		return passedOnStatus(status)
	case errors.As(err, &late):
		return t.inVain(err, t.taken(lines, ": "))
	}
	return verdict(err, t.busy)
}

// passedOnStatus returns an error that ends zsync with the status of its command. If the command
// has run, the error has no message, because the command itself has reported its failure.
func passedOnStatus(e *commandError) error {
	if e.status == exitNoExec || e.status == exitNotFound || errors.As(e.err, new(*signalError)) {
		return &statusError{e.status, e.err}
	}
	return &statusError{status: e.status}
}

func scheduleRunCommand(c *client) *cobra.Command {
	h := newHolding(c)
	var table timetable
	missed, r := "", retrying{backoff: zsync.Backoff{Min: time.Minute}}
	cmd := &cobra.Command{
		Use:   "run PATH [flags] -- CMD [ARG...]",
		Short: "run a command at each scheduled time",
		Long: `zsync schedule run runs a command at each instant of the timetable, on one machine of
many, until a signal comes. zsync forwards the signal to the command, and ends after it.

If the command fails, it runs again, here or on another machine, up to --attempts times
in all. The --pause before an attempt doubles each time, up to an hour. When the next
instant is due, the attempts end, except with --missed all. Standard error has the
reason, the number of the attempt, and the time of the next attempt.

--missed decides about instants at which no machine ran the command. With latest, the
command runs at once for the latest of these instants; with skip, for none; with all,
for each.`,
		Example: "  zsync schedule run /jobs/nightly --cron '0 3 * * *' -- ./nightly.sh\n  zsync schedule run /jobs/poll --every 1m --missed skip -- ./poll.sh",
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, _, err := pathsAndCommand(cmd, args, false); err != nil {
				return err
			}
			next, err := table.parse()
			if err != nil {
				return err
			}
			if next.Next(time.Now()).IsZero() { // Run would return at once without an error
				return fail(exitUsage, "--cron %s: has no instant in the next years", table.cron)
			}
			policy, ok := map[string]zsync.MissedPolicy{"latest": zsync.MissedLatest, "skip": zsync.MissedSkip, "all": zsync.MissedAll}[missed]
			if !ok {
				return fail(exitUsage, "--missed %s: want latest, skip or all", missed)
			}
			if r.attempts < 1 || r.backoff.Min <= 0 {
				return fail(exitUsage, "--attempts %d, --pause %v: want at least one attempt, and a pause above 0", r.attempts, r.backoff.Min)
			}
			r.missed, r.backoff.Max = policy, max(r.backoff.Min, time.Hour)
			t, _, err := beginTask(h, cmd, args, false)
			if err != nil {
				return err
			}
			defer t.session.Close()
			schedule := zsync.NewSchedule(t.session, t.path, zsync.WithMissed(r.missed), zsync.WithRetries(r.attempts, r.backoff))
			return t.runAll(schedule, next, r)
		},
	}
	cmd.Flags().Var((*seconds)(&h.killAfter), "kill-after", "`TIME` from SIGTERM to SIGKILL, as with zsync lock")
	cmd.Flags().StringVar(&h.onLost, "on-lost", "", "shell `COMMAND` to run when the hold is lost")
	table.add(cmd)
	cmd.Flags().IntVar(&r.attempts, "attempts", 5, "attempts for each scheduled time, on all machines together")
	cmd.Flags().Var((*seconds)(&r.backoff.Min), "pause", "`TIME` before the second attempt, doubled for each further one up to an hour")
	cmd.Flags().StringVar(&missed, "missed", "latest", "`POLICY` for missed times: latest, skip or all")
	return cmd
}

// The type `retrying` has the rules for retries: what happens if the command fails at a scheduled
// time.
type retrying struct {
	attempts int
	backoff  zsync.Backoff
	missed   zsync.MissedPolicy
}

// The method `outlook` returns a text with the number of the failed attempt and the time of the
// next.
func (r retrying) outlook(attempt int, next zsync.Timetable, at, now time.Time) string {
	wait := session.RetryPolicy(r.backoff).Delay(attempt)
	said := fmt.Sprintf("attempt %d of %d", attempt, r.attempts)
	later := next.Next(at.Local())
	switch {
	case attempt >= r.attempts:
		return said + ", no other follows"
	case r.missed != zsync.MissedAll && !later.IsZero() && !later.After(now.Add(wait)):
		return said + ", no other follows: " + instant(later) + " is due before"
	}
	return said + ", the next in " + wait.String()
}

// runAll runs the command at each scheduled time, until a signal comes.
func (t *task) runAll(schedule *zsync.Schedule, next zsync.Timetable, retries retrying) error {
	t.stop()
	if t.waiting.Err() != nil { // a signal came while zsync connected
		return verdict(context.Cause(t.waiting), t.busy)
	}
	r := newRelay(t.signals)
	defer r.stop()
	err := schedule.Run(r.ctx, next, func(ctx context.Context, at time.Time) error {
		if !r.begin() {
			return context.Cause(r.ctx)
		}
		defer r.end()
		if t.verbose {
			t.say(fmt.Errorf("%s: runs for %s", t.path, instant(at)))
		}
		err := t.doing(ctx, at, r.passed)
		if err != nil {
			said := ""
			if attempt, ok := attemptOf(ctx, schedule, at); ok {
				said = "; " + retries.outlook(attempt, next, at, time.Now())
			}
			t.say(fmt.Errorf("%s: %s is not done: %w%s", t.path, instant(at), err, said))
		}
		return err
	})
	return verdict(err, t.busy)
}

// attemptOf returns the number of the attempt that has just failed at the scheduled time `at`.
// Schedule records a failure only after its function has returned, so the number is one more than
// the number in the last record. This process still holds the schedule's lock, so no other process
// changes the record. ok is false if the servers do not answer soon. An attempt that ends with a
// loss does not count, so its number is meaningless.
func attemptOf(ctx context.Context, schedule *zsync.Schedule, at time.Time) (attempt int, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	failure, err := schedule.LastFailure(ctx)
	switch {
	case errors.Is(err, zsync.ErrNoValue):
		return 1, true
	case err != nil:
		return 0, false
	case failure.At.Equal(at):
		return failure.Attempts + 1, true
	}
	return 1, true
}

// The type `relay` sends signals to the command while the command runs. A signal that ends programs
// also ends ctx. If no command runs, ctx ends at once. If a command runs, ctx ends after the
// command.
type relay struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	passed  chan os.Signal // the signals for the command
	stopped chan struct{}
	gone    chan struct{}

	mu      sync.Mutex
	running bool      // guarded by mu
	ending  os.Signal // the signal that ends ctx after the command; guarded by mu
}

func newRelay(signals <-chan os.Signal) *relay {
	r := &relay{passed: make(chan os.Signal, cap(signals)), stopped: make(chan struct{}), gone: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	go func() {
		defer close(r.gone)
		for {
			select {
			case sig := <-signals:
				r.take(sig)
			case <-r.stopped:
				return
			}
		}
	}()
	return r
}

func (r *relay) stop() {
	close(r.stopped)
	<-r.gone
	r.cancel(nil)
}

func (r *relay) take(sig os.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.running:
		if ends(sig) {
			r.ending = sig
		}
		select {
		case r.passed <- sig:
		default: // drop it, as the kernel drops signals that a process does not take
		}
	case ends(sig):
		r.cancel(&signalError{sig})
	}
}

// The method `begin` reports whether a command may run. A signal before the call of `begin` has
// ended ctx, so the command must not run. A signal after the call is for the command.
func (r *relay) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.passed) > 0 { // they were for the previous command
		<-r.passed
	}
	r.running = r.ctx.Err() == nil
	return r.running
}

// The method `end` records that the command has ended, and ends ctx if a signal came during the
// run.
func (r *relay) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running = false; r.ending != nil {
		r.cancel(&signalError{r.ending})
	}
}

func scheduleLastCommand(c *client) *cobra.Command {
	h := newHolding(c)
	cmd := &cobra.Command{
		Use:   "last PATH [flags]",
		Short: "print the last scheduled time that was done",
		Long: `zsync schedule last prints the last instant that was done, in the form 2006-01-02T15:04:05Z. Exit
status 75 means that there is none. If a later instant has failed, standard error has that
instant, with the time, the place and the cause of the failure.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			return h.connected(cmd, args[0], func(ctx context.Context, s *zsync.Session) error {
				schedule := zsync.NewSchedule(s, args[0])
				last, err := schedule.Last(ctx)
				none := errors.Is(err, zsync.ErrNoValue)
				if err != nil && !none {
					return err
				}
				failure, err := schedule.LastFailure(ctx)
				if err != nil && !errors.Is(err, zsync.ErrNoValue) {
					return err
				}
				if err == nil && failure.At.After(last) {
					h.say(fmt.Errorf("%s: %s has failed (attempt %d, %s, at %s): %s", args[0], instant(failure.At), failure.Attempts, failure.Owner, instant(failure.Failed), failure.Err))
				}
				if none {
					return fail(exitBusy, "%s: none has been done", args[0])
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), instant(last))
				return outputError(err)
			})
		},
	}
	h.addTimeout(cmd)
	return cmd
}
