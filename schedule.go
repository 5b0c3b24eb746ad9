package zsync

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/timetable"
)

// A Schedule runs a function once for each instant of a timetable, by whichever
// process that names the same path gets to it first: the nightly job of a
// fleet.
//
//	nightly := zsync.NewSchedule(s, "/jobs/nightly")
//	err := nightly.Run(ctx, zsync.Every(24*time.Hour), func(ctx context.Context, at time.Time) error {
//		return report(ctx, at) // ctx ends, with cause zsync.ErrLost, if another may run it
//	})
//
// Every process of the fleet calls Run, with a timetable of its own that names
// the same instants; robfig/cron's schedules fit. At each instant one of them
// runs the function and the others wait until it has succeeded. If it fails, or
// its process dies, the next one runs its own. An instant that has been done, or
// a later one, is never done again, however short the function and however the
// clocks of the processes differ: what is compared are instants, not clocks. A
// process whose clock is ahead runs it by its own clock, and so early.
//
// # Loss
//
// If the session is lost while the function runs, the function's context ends,
// nothing is recorded, and another process may run its own: a function that has
// effects elsewhere should bear being run again. A Do or Run that only waits
// carries on in the next session.
//
// # Errors
//
// Do returns the error of the function, and [ErrDeadlock] with a ctx that
// comes from Do of the same path. Last returns [ErrNoValue] if no instant has
// been done.
//
// # Znodes
//
// Who waits or runs is in the line of a [Mutex] at the same path. path/last is
// persistent; its first line is the last instant that was done, in the form of
// [time.RFC3339Nano], the second the owner who did it ([WithOwner]), and the third
// is unique. path and its parents are containers, kept by path/last. If a broken
// clock has recorded an instant far in the future, nothing runs until then; delete
// path/last to go on.
//
// # Cost
//
// Do of an instant that has been done costs 1 request, or none if this process
// knows of it. To run costs 6 requests in 5 round trips: two reads, a Lock and an
// Unlock of a Mutex, and a transaction; and up to 3 for a watch on path/last, beside
// the Lock. Who waits waits as for a Mutex, and the watch tells all who wait at once
// that it is done.
type Schedule struct {
	made
	missed MissedPolicy
	skew   time.Duration // by which this process's clock is taken to be ahead; not 0 in tests alone

	mu   sync.Mutex
	done time.Time // the last instant that was done, as last heard; guarded by mu
}

// A ScheduleOption changes a [Schedule].
type ScheduleOption func(*scheduleConfig)

type scheduleConfig struct {
	missed MissedPolicy
	err    error
}

// A MissedPolicy says what [Schedule.Run] does about instants at which no
// process ran the function.
type MissedPolicy int

// The policies about missed instants.
const (
	MissedLatest MissedPolicy = iota // run the latest of them, at once
	MissedSkip                       // run none of them
	MissedAll                        // run them all, one after the other, and none before the former has succeeded
)

// String returns "latest", "skip" or "all".
func (p MissedPolicy) String() string { return timetable.Policy(p).String() }

// WithMissed chooses what becomes of instants that nobody ran because every
// process was down, busy with an earlier one, or failed. The default is
// MissedLatest.
func WithMissed(p MissedPolicy) ScheduleOption {
	return func(c *scheduleConfig) {
		if c.missed = p; p < MissedLatest || p > MissedAll {
			c.err = session.Invalid("WithMissed(%d): unknown policy", p)
		}
	}
}

// Every returns the timetable of the instants that are multiples of d since the
// zero [time.Time], the same in every process: Every(time.Hour) is each full
// hour, in UTC.
func Every(d time.Duration) interface{ Next(time.Time) time.Time } { return timetable.Every(d) }

// NewSchedule returns the Schedule at path. It does no I/O; a bad argument is
// reported by every method.
func NewSchedule(s *Session, path string, opts ...ScheduleOption) *Schedule {
	var c scheduleConfig
	for i, o := range opts {
		if o == nil {
			c.err = session.Invalid("schedule option %d is nil", i)
			continue
		}
		o(&c)
	}
	return &Schedule{made: made{s: s, path: path, err: checkNew(s, path, c.err)}, missed: c.missed}
}

// Path returns the path that c was made with.
func (c *Schedule) Path() string { return c.path }

func (c *Schedule) last() string { return session.ChildPath(c.path, "last") }

// errPassed means that somebody has done the instant, or a later one.
var errPassed = errors.New("zsync: the instant has been done")

// Do runs f unless somebody has done so for the instant at, or for a later one.
// It reports whether it ran f. While another process runs its function for the
// instant, Do waits: when that succeeds Do returns false and nil, and when it
// fails the next one who waits runs its own.
//
// If f returns an error nothing is recorded and Do returns it. When the session
// is lost while f runs, or before it is known that the success was recorded, the
// error is [ErrLost]. A Do inside f for the same path is [ErrDeadlock], and an
// instant that is the zero time or earlier, or in the year 10000 or later,
// [ErrInvalid].
func (c *Schedule) Do(ctx context.Context, at time.Time, f func(ctx context.Context) error) (ran bool, err error) {
	err = c.misuse()
	switch {
	case err != nil:
	case f == nil:
		err = session.Invalid("the function is nil")
	case !timetable.Recordable(at):
		err = session.Invalid("the instant is %v; it must be after the zero time and before the year 10000", at)
	default:
		ran, err = c.do(ctx, at, f)
	}
	return ran, opError("do", c.path, err)
}

func (c *Schedule) do(ctx context.Context, at time.Time, f func(ctx context.Context) error) (ran bool, err error) {
	for {
		if passed, err := c.passed(ctx, at); passed || err != nil {
			return false, err
		}
		// Of a Mutex of its own: its transaction must be that of this very hold,
		// also if that is lost and another goroutine has got the next.
		lock := NewMutex(c.s, c.path)
		if lock.holderOf(ctx) != nil {
			return false, ErrDeadlock
		}
		wait := c.await(ctx, at)
		recorded, passed := false, false
		var record sync.WaitGroup // what f has done is recorded before the lock is given up, whatever becomes of ctx
		err := func() error {
			defer func() { passed = wait.end() }() // also if f panics
			return lock.doThen(wait.ctx, record.Wait, func(ctx context.Context) error {
				if !wait.take() {
					return errPassed
				}
				var err error
				ran, err = c.run(ctx, lock, at, &record, f)
				recorded = ran && err == nil
				return err
			})
		}()
		switch {
		case recorded:
			return true, nil // whatever became of the lock since
		case ran:
			return true, err
		case ctx.Err() != nil:
			return false, session.CtxErr(ctx)
		case passed, errors.Is(err, errPassed), errors.Is(err, ErrLost) && !errors.Is(err, ErrClosed):
			// Whether it has been done is asked again. A hold that was lost
			// before f ran was only a wait.
		default:
			return false, err
		}
	}
}

// run runs f while lock is held, unless the instant has been done, and records
// it.
func (c *Schedule) run(ctx context.Context, lock *Mutex, at time.Time, record *sync.WaitGroup, f func(ctx context.Context) error) (ran bool, err error) {
	// Whoever held the lock before recorded what it did before it released, in
	// its own order, and our hold shows that it has released. So what is read now
	// knows of it; and if it is read in another session than that of the hold,
	// then the hold is lost, which is looked at after.
	passed, err := c.passed(ctx, at)
	switch {
	case err != nil:
		return false, err
	case passed:
		return false, errPassed
	case session.IsClosed(lock.Lost()):
		return false, ErrLost
	}
	if err := f(ctx); err != nil {
		return true, err
	}
	// f has done its work, so it is recorded whatever has become of ctx; but a
	// caller whose ctx has ended does not wait for servers that do not answer.
	recorded := make(chan error, 1)
	record.Add(1)
	c.s.m.Spawn(func() {
		defer record.Done()
		recorded <- c.record(context.WithoutCancel(ctx), lock, at)
	})
	if err, ok := session.AwaitGrace(recorded, ctx.Done()); ok {
		return true, err
	}
	if session.IsClosed(lock.Lost()) {
		return true, errors.Join(session.CtxErr(ctx), ErrLost)
	}
	return true, session.CtxErr(ctx)
}

// record writes the instant, if the hold of lock stands.
func (c *Schedule) record(ctx context.Context, lock *Mutex, at time.Time) error {
	data := []byte(at.UTC().Format(time.RFC3339Nano) + "\n" + c.s.m.Config.Owner + "\n" + session.NewGUID())
	_, err := lock.Txn(ctx, &zk.SetDataRequest{Path: c.last(), Data: data, Version: -1})
	if session.IsNoNode(err) {
		_, err = lock.Txn(ctx, &zk.CreateRequest{Path: c.last(), Data: data})
	}
	if err == nil {
		c.learn(at)
	}
	return err
}

// ahead is how far in the future an instant may be that is remembered to have been
// done: as far as two clocks that are five minutes wrong. What is further, of a
// broken clock, somebody may take back by deleting path/last, so it is asked for
// each time.
const ahead = 10 * time.Minute

// learn remembers what was last heard of the last instant that was done. That two
// who heard it at the same time come in the other order costs a request: if what is
// remembered is too early, the servers are asked. Nor is it kept until its time
// comes if it is far ahead, as it may have been deleted by then.
func (c *Schedule) learn(at time.Time) {
	if at.After(c.now().Add(ahead)) {
		at = time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = at
}

// passed reports whether at, or a later instant, has been done. From a server
// that lags the answer may be no although it has: then the line is entered for
// nothing. It is never yes although it has not.
func (c *Schedule) passed(ctx context.Context, at time.Time) (bool, error) {
	c.mu.Lock()
	known := !c.done.Before(at) && !c.done.After(c.now().Add(ahead))
	c.mu.Unlock()
	if known {
		return true, session.CtxErr(ctx)
	}
	last, err := c.load(ctx, false)
	return !last.Before(at), err
}

// load reads the last instant that was done; if there is none it is zero. If it
// need not be fresh, it may be as old as what the server at hand has.
func (c *Schedule) load(ctx context.Context, fresh bool) (last time.Time, err error) {
	err = c.s.m.During(ctx, func(inc *session.Incarnation) error {
		// Before the lock vets it: what stands here keeps a function from running. Who only
		// asks, as Last does, is told it all the same; but it is not remembered for those.
		vet := inc.VetHere(ctx, c.s.m.Full(c.path))
		if vet != nil && !(fresh && errors.Is(vet, ErrUnprotected)) {
			return vet
		}
		read := inc.Get
		if fresh {
			read = inc.GetFresh
		}
		data, _, err := read(ctx, c.s.m.Full(c.last()))
		if session.IsNoNode(err) {
			last = time.Time{}
			c.learn(last)
			return nil
		}
		if err == nil {
			last, err = c.parse(data)
		}
		if err == nil && vet == nil {
			c.learn(last)
		}
		return err
	})
	return last, err
}

func (c *Schedule) parse(data []byte) (time.Time, error) {
	text, _, _ := strings.Cut(string(data), "\n")
	last, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s does not begin with a time: %w", c.last(), err)
	}
	return last, nil
}

// An instantWait is a wait for the lock that ends when the instant is done.
type instantWait struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed when nothing of the watching is left

	mu     sync.Mutex
	taken  bool // the function is about to run, and ctx is its; guarded by mu
	passed bool // guarded by mu
}

// await begins to watch for at being done.
func (c *Schedule) await(ctx context.Context, at time.Time) *instantWait {
	w := &instantWait{ended: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	watch, stop := context.WithCancel(w.ctx)
	cancel := w.cancel
	w.cancel = func(cause error) { stop(); cancel(cause) }
	c.s.m.Spawn(func() {
		defer close(w.ended)
		err := c.s.m.During(watch, func(inc *session.Incarnation) error { return c.watch(watch, inc, at) })
		if err != nil {
			return // the lock tells what is wrong
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.taken {
			w.passed = true
			cancel(errPassed)
		}
	})
	return w
}

// watch returns nil when at has been done.
func (c *Schedule) watch(ctx context.Context, inc *session.Incarnation, at time.Time) error {
	path := c.s.m.Full(c.last())
	for {
		w := inc.Watches.Join(session.WatchKey{Kind: session.WatchData, Path: path})
		data, _, err := inc.Get(ctx, path)
		if session.IsNoNode(err) {
			inc.Watches.Leave(w)
			if err := inc.AwaitMade(ctx, path); err != nil {
				return err
			}
			continue
		}
		var last time.Time
		if err == nil {
			if last, err = c.parse(data); err == nil {
				c.learn(last)
			}
		}
		if err == nil && last.Before(at) {
			err = inc.AwaitFired(ctx, w)
		}
		inc.Watches.Leave(w)
		if err != nil || !last.Before(at) {
			return err
		}
	}
}

// take makes w.ctx that of the function, if the instant has not been done.
func (w *instantWait) take() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.taken = !w.passed
	return w.taken
}

// end reports whether the wait was ended because the instant is done.
func (w *instantWait) end() bool {
	w.cancel(nil)
	<-w.ended
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.passed
}

// Last returns the last instant that was done, or [ErrNoValue]. It is at least
// as new as the moment of the call, and costs 2 requests.
func (c *Schedule) Last(ctx context.Context) (time.Time, error) {
	if c.misuse() != nil {
		return time.Time{}, opError("last", c.path, c.misuse())
	}
	last, err := c.load(ctx, true)
	if err == nil && last.IsZero() {
		err = ErrNoValue
	}
	return last, opError("last", c.path, err)
}

// Run calls f for each instant of the timetable that is not done by another
// process, until ctx ends. next returns the first instant after the one that it
// is given, as the schedules of robfig/cron do, and the zero time when there is
// none any more: then Run returns nil. It is given times of the local zone, as cron
// gives them: for processes in several zones a timetable must name its own.
//
// The first instant ever is the first after Run was called. [WithMissed] says what
// becomes of the instants that were missed since the last one that was done. When f
// fails it is called again, here or in another process, after a pause
// ([WithRetry]), until the next instant is due; with MissedAll for as long as it
// takes. What f returns is logged. Run itself returns an error when ctx ends, when
// the Session is closed, and when retrying cannot cure what is wrong: where the servers
// refuse to record what f has done it is not called again.
//
// # Cost
//
// An instant that another process runs costs what it costs with Do.
func (c *Schedule) Run(ctx context.Context, next interface{ Next(time.Time) time.Time }, f func(ctx context.Context, at time.Time) error) error {
	err := c.misuse()
	switch {
	case err != nil:
	case next == nil:
		err = session.Invalid("the timetable is nil")
	case f == nil:
		err = session.Invalid("the function is nil")
	default:
		err = c.runAll(ctx, next, f)
	}
	return opError("run", c.path, err)
}

func (c *Schedule) runAll(ctx context.Context, next interface{ Next(time.Time) time.Time }, f func(ctx context.Context, at time.Time) error) error {
	began := c.now()
	for {
		last, err := c.load(ctx, false)
		if err != nil {
			return err
		}
		now := c.now()
		at, err := timetable.Due(next, timetable.Policy(c.missed), last, began, now)
		if err != nil || at.IsZero() {
			return err
		}
		until := at
		if soon := now.Add(time.Minute); last.After(now.Add(ahead)) && soon.Before(at) {
			until = soon // then it is looked whether path/last has been deleted
		}
		if err := c.sleepUntil(ctx, until); err != nil {
			return err
		}
		// A machine that sleeps, or a clock that is set, has several due at once. The
		// latest of them does not lie ahead when it is looked for again, however soon
		// the next is due.
		if until != at || c.missed == MissedLatest && at.After(now) && timetable.Over(next, at, c.now()) {
			continue
		}
		if err := c.runAt(ctx, at, next, f); err != nil {
			return err
		}
		if began.Before(at) && c.missed != MissedSkip {
			began = at
		}
	}
}

// runAt does one instant, and tries again until the next is due.
func (c *Schedule) runAt(ctx context.Context, at time.Time, next interface{ Next(time.Time) time.Time }, f func(ctx context.Context, at time.Time) error) error {
	for try := 1; ; try++ {
		if c.missed != MissedAll && (try > 1 || c.missed == MissedSkip) && timetable.Over(next, at, c.now()) {
			return nil // its time is over
		}
		var failed error
		ran, err := c.do(ctx, at, func(ctx context.Context) error {
			failed = f(ctx, at)
			return failed
		})
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return session.CtxErr(ctx)
		case !ran, failed == nil && !errors.Is(err, ErrLost): // it may not be recorded, however often it is done
			return err
		}
		c.s.m.Log.Warn("zsync: scheduled function failed", "path", c.path, "at", at, "err", err)
		if err := c.sleep(ctx, c.s.m.Config.Retry.Delay(try)); err != nil {
			return err
		}
	}
}

// now is the time by the wall clock, which the other processes' are compared to.
func (c *Schedule) now() time.Time { return time.Now().Round(0).Add(c.skew) }

// sleepUntil waits until the wall clock shows at. It looks once a minute, as
// that clock may be set, and a timer does not go on while the machine sleeps.
func (c *Schedule) sleepUntil(ctx context.Context, at time.Time) error {
	for {
		left := at.Sub(c.now())
		if left <= 0 {
			return session.CtxErr(ctx)
		}
		if err := c.sleep(ctx, min(left, time.Minute)); err != nil {
			return err
		}
	}
}

// sleep waits for d, whatever becomes of the wall clock.
func (c *Schedule) sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return session.CtxErr(ctx)
	case <-c.s.m.Closing:
		return c.s.m.Failure()
	}
}
