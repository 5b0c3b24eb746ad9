package zsync

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/timetable"
	"github.com/zsync/zsync/internal/trace"
	"github.com/zsync/zsync/internal/znodes"
)

// A Schedule runs a function once, in one process, at each instant:
//
//	at3, err := zsync.Daily("03:00", time.Local)
//	err = zsync.NewSchedule(s, "/jobs/nightly").Run(ctx, at3, func(ctx context.Context, at time.Time) error {
//		return report(ctx, at) // ctx ends, with cause zsync.ErrLost, if another process may run it
//	})
//
// Every process calls Run with the same timetable. At each instant one process runs the function,
// and the others wait until it succeeds. After that, no process runs that instant or an earlier
// one, however clocks differ. A process whose clock is ahead runs it early. If the function fails
// or its process dies, any process tries again, up to 5 times ([WithRetries]).
//
// # Loss
//
// If the session is lost while the function runs, its context ends, and another process may run its
// function: functions must tolerate that.
//
// # Errors
//
// Last returns [ErrNoValue] without a success, LastFailure without a failure.
//
// # Cost
//
// Do takes 1 round trip if the instant was done, and none if this process knows that. A run takes 4
// besides the function. Its end wakes all waiters.
//
// # Znodes
//
// A waiter is in a Mutex's line at path. The persistent path/last has the last instant. If a
// broken clock recorded a future instant, delete path/last.
type Schedule struct {
	made
	line    lock.Line
	missed  MissedPolicy
	retries int
	backoff session.RetryPolicy
	refused error        // means that the servers refuse to record the result of a run of this Schedule
	skew    atomic.Int64 // nanoseconds that are added to the clock of this process; 0 except in tests

	mu      sync.Mutex
	done    time.Time       // the last instant that was done, as far as this process has read; guarded by mu
	failure ScheduleFailure // the last failure for which pauseLeft has set the next two fields; guarded by mu
	pause   time.Duration   // from this failure to the next attempt; guarded by mu
	seen    time.Time       // when this process learned of this failure, by the monotonic clock; guarded by mu
}

// A Timetable is a list of instants: Next returns the first one after t, or the zero time if there
// is none. The schedules of robfig/cron fit, except @every, which counts from t.
type Timetable = interface{ Next(t time.Time) time.Time }

// A ScheduleFailure is a run of a [Schedule]'s function that failed.
type ScheduleFailure struct {
	At       time.Time // the instant
	Failed   time.Time // when the function failed, by the clock of its process
	Owner    string    // the owner text of the process, see [WithOwner]
	Err      string    // the text of the error, at most 4 KiB of it
	Attempts int       // how many attempts of the instant had failed by then
}

// A ScheduleOption changes a [Schedule].
type ScheduleOption func(*Schedule)

// A MissedPolicy says what [Schedule.Run] does about missed instants.
type MissedPolicy int

const (
	MissedLatest MissedPolicy = iota // run the latest of them, at once
	MissedSkip                       // run none of them, and none that came due while this process ran an earlier one or waited for its run
	MissedAll                        // run them all, one after the other, each until it succeeds or its attempts are used up
)

// String returns "latest", "skip" or "all".
func (p MissedPolicy) String() string {
	return nameOf(p, "MissedPolicy", "latest", "skip", "all")
}

// WithMissed chooses what happens to an instant that no process ran, because all were down or busy,
// or failed. The default is [MissedLatest].
func WithMissed(p MissedPolicy) ScheduleOption {
	return func(c *Schedule) {
		if c.missed = p; p < MissedLatest || p > MissedAll {
			c.err = session.Invalid("WithMissed(%d): unknown policy", p)
		}
	}
}

// WithRetries sets how often [Schedule.Run] calls a function that fails: n attempts of an instant,
// in all processes together, with the pauses of b between them. Each process applies its own n and
// b. The default is 5 attempts, with pauses of a minute, doubled up to an hour.
func WithRetries(n int, b Backoff) ScheduleOption {
	return func(c *Schedule) {
		if c.err = cmp.Or(b.check("WithRetries"), c.err); n < 1 {
			c.err = session.Invalid("WithRetries(%d, …): want at least 1 attempt", n)
		}
		c.retries, c.backoff = min(n, math.MaxInt-1), session.RetryPolicy(b) // MaxInt: see Do
	}
}

// Every returns the timetable of the multiples of d since the zero [time.Time], the same in every
// process: Every(time.Hour) is each full hour, in UTC.
func Every(d time.Duration) Timetable { return timetable.Every(d) }

// Daily returns the timetable of a time of day in a zone, such as "03:00": one instant on each
// day, also when the clocks change.
func Daily(at string, loc *time.Location) (Timetable, error) { return timetable.Daily(at, loc) }

// Cron parses spec: five fields as in crontab(5), or a word like @daily:
//
//	weekdays, err := zsync.Cron("30 7 * * mon-fri", time.Local)
//
// The fields are minute, hour, day of month, month and day of week (Sunday is 0 and 7): lists of
// numbers, names, ranges and steps. If neither day field begins with a star, a day needs to match
// only one. All processes must name the same zone; time.Local is the zone of each machine. When the
// clocks change, a job whose minute or hour begins with a star follows real time. Any other job
// runs once: if its local time is skipped (by up to 3 hours), it runs at the change; if that
// time comes twice, it runs the first time.
func Cron(spec string, loc *time.Location) (Timetable, error) { return timetable.ParseCron(spec, loc) }

// NewSchedule returns the Schedule at path.
func NewSchedule(s *Session, path string, opts ...ScheduleOption) *Schedule {
	c := &Schedule{
		made: made{s: s, path: path}, retries: 5, backoff: session.RetryPolicy{Min: time.Minute, Max: time.Hour},
		refused: errors.New("the result of the function cannot be recorded"), // not a variable: the function may return this error of another Schedule
	}
	session.ApplyEach("schedule", opts, &c.err, func(o ScheduleOption) { o(c) })
	if c.err = checkNew(s, path, c.err); c.err == nil {
		c.line = lock.New(s.m, path, znodes.ProtectedName, "lock-")
		c.line.Kind, c.line.Strict, c.line.Settled = trace.Mutex, true, true
	}
	return c
}

func (c *Schedule) last() string { return znodes.ChildPath(c.path, "last") }

// A scheduleRecord is the content of path/last. Its exported fields are the fourth line.
type scheduleRecord struct {
	done            time.Time       // the last instant that was done, or the zero time
	ScheduleFailure                 // the last failed run; Attempts is 0 if there was none
	GivenUp         time.Time       // the last instant that was given up, or the zero time
	Retried         ScheduleFailure // the last failed attempt of a Run, without Owner and Err: a Do of another instant may have failed since
}

// The method `reached` returns the last instant that was done or given up.
func (r scheduleRecord) reached() time.Time {
	if r.GivenUp.After(r.done) {
		return r.GivenUp
	}
	return r.done
}

// The method `failureOf` returns the last failure of the instant `at`, or the zero value.
func (r scheduleRecord) failureOf(at time.Time) ScheduleFailure {
	switch {
	case r.At.Equal(at):
		return r.ScheduleFailure
	case r.Retried.At.Equal(at):
		return r.Retried
	}
	return ScheduleFailure{}
}

// Do runs f, unless a process has done the instant `at` or a later one, and reports whether it ran
// f. While another process runs its function for the instant, Do waits. If that function fails, the
// next process in line runs its function. If f returns an error, Do records and returns it. If the
// session is lost before the servers confirm the record of a success, the error is [ErrLost].
// Instants are between the zero time and the year 10000.
func (c *Schedule) Do(ctx context.Context, at time.Time, f func(ctx context.Context) error) (ran bool, err error) {
	defer c.wrap("do", &err)
	switch {
	case c.misuse() != nil:
		return false, c.misuse()
	case f == nil:
		return false, session.Invalid("the function is nil")
	case !timetable.Recordable(at):
		return false, session.Invalid("the instant is %v; it must be after the zero time and before the year 10000", at)
	}
	passed := false
	choose := func(r scheduleRecord) (time.Time, error) {
		if passed = !r.done.Before(at); passed {
			return at, errMarked
		}
		return at, nil
	}
	for {
		c.mu.Lock()
		known := !c.done.Before(at) && !c.done.After(c.now().Add(ahead))
		c.mu.Unlock()
		if known {
			return false, session.CtxErr(ctx)
		}
		ran, err := c.attempt(ctx, choose, math.MaxInt, func(ctx context.Context, _ time.Time) error { return f(ctx) })
		switch {
		case passed:
			return false, nil
		case !errors.Is(err, errMarked):
			return ran, err
		}
	}
}

// The method `attempt` waits for its turn, runs f for an instant, and records the result. It reports
// whether it ran f. The function `choose` chooses the instant, given the content of path/last. It
// returns errMarked if none must run: then the wait ends with errMarked, and the caller reads path/last
// again.
func (c *Schedule) attempt(ctx context.Context, choose func(r scheduleRecord) (time.Time, error), retries int, f func(ctx context.Context, at time.Time) error) (ran bool, err error) {
	var r scheduleRecord
	var at, began time.Time
	ended := func(err error) {
		c.s.m.Observe(session.Report{Kind: session.EventEnded, Op: "run", Path: c.path, Wait: time.Since(began), Err: err})
	}
	return c.inTurn(ctx, &c.line, "lock", func(ctx context.Context, stands bool) (g sight, err error) {
		defer func() {
			if err != nil {
				g.leave()
				g = sight{}
			}
		}()
		if !stands {
			g, r, err = c.load(ctx, false)
		}
		if err == nil {
			err = ErrPanicked // stays the error if a Timetable panics
			at, err = choose(r)
		}
		if err == nil {
			err = c.entering(ctx, c.line.Bases)
		}
		return g, err
	}, func(ctx context.Context, h *lock.Grant) error {
		began = time.Now()
		c.s.m.Observe(session.Report{Kind: session.EventStarted, Op: "run", Path: c.path})
		err := ErrPanicked // stays the result if f does not return
		defer func() {
			if err != nil {
				ended(cmp.Or(session.CtxErr(ctx), err))
			}
		}()
		if err = f(ctx, at); err != nil && ctx.Err() == nil { // otherwise, the caller or a loss has ended the attempt, so it does not count as failed
			err = session.JoinErrors([]error{err, c.recordFailure(ctx, h, r, at, retries, err)})
		}
		return err
	}, func(h *lock.Grant) error {
		r.done = at
		err := c.record(context.Background(), h, r)
		ended(err)
		h.Release() // its error does not matter: f was successful, even if h was lost after the record
		return err
	})
}

// recordFailure records that f failed with the error `cause`. After the last attempt, it records
// the instant as failed for good.
func (c *Schedule) recordFailure(ctx context.Context, h *lock.Grant, r scheduleRecord, at time.Time, retries int, cause error) error {
	text := cause.Error()
	r.ScheduleFailure = ScheduleFailure{
		At: at.UTC(), Failed: c.now().UTC(), Owner: c.s.m.Config.Owner, Err: strings.ToValidUTF8(text[:min(len(text), 4<<10)], "\uFFFD"), Attempts: r.failureOf(at).Attempts + 1,
	}
	if retries < math.MaxInt || r.Retried.At.Equal(at) {
		r.Retried = ScheduleFailure{At: r.At, Failed: r.Failed, Attempts: r.Attempts}
	}
	if r.Attempts >= retries {
		r.GivenUp = at
	}
	err := c.record(ctx, h, r)
	if retries < math.MaxInt {
		c.s.m.Log.Warn("zsync: scheduled function failed", "path", c.path, "at", at, "attempt", r.Attempts, "err", cause)
	}
	if ctx.Err() != nil || errors.Is(err, ErrLost) {
		return nil // f failed, and its failure is not recorded; another process may make the next attempt
	}
	return err
}

// The method `record` writes r to path/last, unless h is lost.
func (c *Schedule) record(ctx context.Context, h *lock.Grant, r scheduleRecord) error {
	owner := strings.ReplaceAll(c.s.m.Config.Owner, "\n", " ") // the owner is one line
	data := []byte(r.done.UTC().Format(time.RFC3339Nano) + "\n" + owner + "\n" + znodes.NewGUID())
	if r.Attempts != 0 {
		failure, err := json.Marshal(r)
		if err != nil {
			return err
		}
		data = append(append(data, '\n'), failure...)
	}
	write := func(op any) error {
		rs, err := h.Txn(ctx, []any{op})
		return znodes.Refused([]any{op}, rs, err)
	}
	err := write(&zk.SetDataRequest{Path: c.last(), Data: data, Version: -1})
	if session.IsNoNode(err) {
		err = write(&zk.CreateRequest{Path: c.last(), Data: data})
	}
	switch {
	case err == nil:
		c.learn(r)
	case ctx.Err() == nil && !errors.Is(err, ErrLost):
		err = fmt.Errorf("%w: %w", c.refused, err)
	}
	return err
}

// A Schedule remembers a done instant only if that is at most `ahead` in the future. An instant
// further ahead comes from a broken clock, and an operator may delete path/last because of it.
const ahead = 10 * time.Minute

// The method `learn` remembers the last instant that was done, from the record r that the caller
// has just read. If two goroutines call it in the wrong order, that costs one more read.
func (c *Schedule) learn(r scheduleRecord) {
	at := r.done
	if at.After(c.now().Add(ahead)) {
		at = time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = at
}

// The method `load` reads path/last. If that znode does not exist, the record is empty. The caller must
// leave the sight, also after an error.
func (c *Schedule) load(ctx context.Context, fresh bool) (g sight, r scheduleRecord, err error) {
	// Check the ACL of the path before the lock does, because a forged record can prevent a run. Last
	// and LastFailure run no function, so they return the record in spite of a wide ACL. But the
	// Schedule does not remember that record.
	vet := c.during(ctx, func(inc *session.Incarnation) error { return znodes.VetHere(ctx, inc, c.s.m.Full(c.path)) })
	if vet != nil && !(fresh && errors.Is(vet, ErrUnprotected)) {
		return g, r, vet
	}
	if g, err = c.see(ctx, c.s.m.Full(c.last()), true, fresh); err == nil && g.there {
		lines := strings.SplitN(string(g.data), "\n", 4)
		if r.done, err = time.Parse(time.RFC3339Nano, lines[0]); err != nil {
			err = fmt.Errorf("%s does not begin with a time: %w", c.last(), err)
		} else if len(lines) == 4 {
			if err = json.Unmarshal([]byte(lines[3]), &r); err != nil {
				err = fmt.Errorf("%s: its fourth line is not a failure: %w", c.last(), err)
			}
		}
	}
	if err == nil && vet == nil {
		c.learn(r)
	}
	return g, r, err
}

// Last returns the last done instant, as of the call or later.
func (c *Schedule) Last(ctx context.Context) (time.Time, error) {
	_, r, err := c.load(ctx, true)
	if err == nil && r.done.IsZero() {
		err = ErrNoValue
	}
	return r.done, opError("last", c.path, err)
}

// LastFailure returns the last failed run that was recorded before or during the call. A success
// keeps it: compare the failure's At with [Schedule.Last].
func (c *Schedule) LastFailure(ctx context.Context) (ScheduleFailure, error) {
	_, r, err := c.load(ctx, true)
	if err == nil && r.Attempts == 0 {
		err = ErrNoValue
	}
	if err != nil {
		return ScheduleFailure{}, opError("last failure", c.path, err)
	}
	return r.ScheduleFailure, nil
}

// Run calls f for each instant of the timetable, unless another process has done it. If no instant
// is recorded, Run begins with the next one. Run passes local times to Next; [Daily] and [Cron] use
// their own zone. An instant is missed if it has not run when the next is due, see [WithMissed]. A
// failure is logged. f is called again as [WithRetries] says, if the failure could be recorded.
//
// Run returns nil when the timetable has no further instant. It returns an error if ctx ends, if
// the Session is closed, or if a retry cannot help. A timetable that counts from t, like
// robfig/cron's @every, is [ErrInvalid].
func (c *Schedule) Run(ctx context.Context, next Timetable, f func(ctx context.Context, at time.Time) error) (err error) {
	defer c.wrap("run", &err)
	switch {
	case c.misuse() != nil:
		return c.misuse()
	case next == nil:
		return session.Invalid("the timetable is nil")
	case f == nil:
		return session.Invalid("the function is nil")
	}
	since := c.now()
	if err := timetable.Check(next, since); err != nil {
		return err
	}
	var begun time.Time // the last instant for which this call has begun an attempt
	for {
		var at time.Time
		var wait time.Duration
		waits := false // in the line, for `begun`
		lost := false  // whether a loss of the session has ended the attempt, if ctx has not
		ran, err := c.attempt(ctx, func(r scheduleRecord) (_ time.Time, err error) {
			if !begun.IsZero() && !begun.After(r.reached()) { // it must not run again, even if path/last is deleted
				if since.Before(begun) {
					since = begun
				}
				begun = time.Time{}
			}
			if now := c.now(); since.After(now) {
				since = now // the clock has been set back
			}
			at, wait, err = c.pick(next, r, since, begun)
			switch {
			case err != nil:
			case at.IsZero(), wait > 0, at.After(c.now()) && !at.Equal(begun), // a later attempt begins whatever the wall clock shows
				c.missed == MissedSkip && waits && !at.Equal(begun): // it came due during the wait
				err = errMarked
			default:
				begun, waits = at, true // if the attempt ends in the line, before f runs, this instant is not missed yet
			}
			return at, err
		}, c.retries, func(ctx context.Context, at time.Time) error {
			err := f(ctx, at)
			lost = err == nil || ctx.Err() != nil
			return err
		})
		if c.missed == MissedSkip {
			since = c.now()
		}
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return session.CtxErr(ctx)
		case errors.Is(err, errMarked) && at.IsZero():
			return nil
		case errors.Is(err, errMarked):
			err = c.s.m.Sleep(ctx, min(max(wait, 0), time.Minute))
			// Read the clock once a minute: the clock may be set, and a timer stops while the machine sleeps.
			for back := false; err == nil && wait <= 0 && at.After(c.now()) && !at.Equal(begun) && !back; {
				now := c.now()
				err = c.s.m.Sleep(ctx, min(at.Sub(now), time.Minute))
				back = c.now().Before(now) // then another instant may be the next
			}
			if err != nil {
				return err
			}
		case !ran, errors.Is(err, c.refused): // return, because the result of another call of f could not be recorded either
			return err
		case lost:
			c.s.m.Log.Warn("zsync: a scheduled function lost its hold, and runs again", "path", c.path, "at", begun, "err", err)
		}
	}
}

// The method `pick` returns the instant to run, given the content of path/last, and how long to wait
// before path/last is read again. If there is no further instant, it returns the zero time. If no
// instant is recorded, the instants up to `since` do not run; with MissedSkip, they never do. This process
// has begun an attempt of the instant `begun`.
func (c *Schedule) pick(next Timetable, r scheduleRecord, since, begun time.Time) (at time.Time, wait time.Duration, err error) {
	now, reached := c.now(), r.reached()
	from := reached
	if from.IsZero() || c.missed == MissedSkip && from.Before(since) {
		from = since
	}
	at, err = timetable.Due(next, from, now, c.missed != MissedAll)
	if c.missed == MissedSkip && err == nil && !at.After(now) {
		if first, _ := timetable.Due(next, from, now, false); !first.Equal(at) { // it was missed, and none that has passed since runs
			at, err = timetable.Due(next, now, now, false)
		}
	}
	if err != nil {
		return at, 0, err
	}
	// Attempts of an instant continue until the next instant. With MissedAll, they continue after that,
	// but an earlier instant comes first. If the clock of another process is ahead, we wait for ours.
	for _, t := range []time.Time{begun, r.At, r.Retried.At} {
		if !t.After(reached) || !t.Equal(begun) && t.After(now) || c.missed == MissedAll && !at.IsZero() && !t.Before(at) {
			continue
		}
		again, err := timetable.Due(next, t.Add(-1), now, c.missed != MissedAll)
		if err == nil && again.Equal(t) { // not for an instant that is in no timetable, whose failure a Do has recorded
			at = again
		}
	}
	if at.IsZero() {
		return at, 0, nil
	}
	wait = c.pauseLeft(r, at)
	switch later := next.Next(at.Local()); {
	case wait > 0 && later.After(now):
		wait = min(wait, later.Sub(now)) // the next instant may end the attempts of the instant `at`
	case wait <= 0 && reached.After(now.Add(ahead)) && at.After(now.Add(time.Minute)):
		wait = time.Minute // then, look whether path/last has been deleted
	}
	return at, wait, nil
}

// pauseLeft returns the time until the next attempt of the instant `at`. The pause begins with the
// failure, by the clock of the process that failed, or with the first read of the failure by this
// process, whichever ends it sooner: clocks differ.
func (c *Schedule) pauseLeft(r scheduleRecord, at time.Time) time.Duration {
	last := r.failureOf(at)
	if last.Attempts == 0 {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.failure.At.Equal(at) || c.failure.Attempts != last.Attempts {
		c.failure, c.pause, c.seen = last, c.backoff.Delay(last.Attempts), time.Now()
	}
	return min(c.pause-time.Since(c.seen), last.Failed.Add(c.pause).Sub(c.now()))
}

// The method `now` returns the time of the wall clock.
func (c *Schedule) now() time.Time { return time.Now().Round(0).Add(time.Duration(c.skew.Load())) }
