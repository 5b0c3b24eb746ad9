package lock

// This file has a hold: its release, loss, limits, fencing tokens and transactions. The wait before
// the hold is in acquire.go.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
	"github.com/zsync/zsync/internal/txn"
	"github.com/zsync/zsync/internal/znodes"
)

// The errors of a line. The error for the loss of a hold is ErrLost, in package session.
var (
	// ErrDeadlock means that the call would wait for a release by its own caller, or for a release
	// that never comes.
	ErrDeadlock = errors.New("deadlock: the caller already holds it")

	// ErrNotLocked means that the value has no hold to release.
	ErrNotLocked = errors.New("not locked")
)

// A Hold is a lock, a leadership or some permits that this process holds through one session. The
// process has ephemeral znodes for the hold: one for a lock or a leadership, one or more for
// permits. A Hold begins once and ends once.
//
// All effects of a loss are hooks on the field `lost`: they close the channels of Lost, end the
// contexts of functions, and end the waits of other goroutines. The goroutine that finds the loss
// runs them, under mu. Only then does the client ask the servers to end the session
// (session.Incarnation.end).
type Hold struct {
	Incarnation *session.Incarnation
	Stake       *session.Stake // nil until the grant
	of          holding        // the Claim or the Permits; set at the first grant

	// A primitive may lock mu while it holds its own mutex, but never the reverse. Under mu, code
	// locks only mutexes that never wait for a primitive. Such mutexes are in `lost` (whose hooks
	// run under mu), in the session's watches, and in the trace.
	mu    sync.Mutex
	state state
	lost  session.Ending // ends at the loss
	left  session.Ending // ends at the release, even of a lost hold
	hook  session.Hook   // calls OnEnd at the end of the session
	n     int64          // number that the hold adds to the gauge of holds; for permits, their number, even after a loss
	op    string         // for the observer
	since time.Time      // of the last grant
	ended time.Time      // of the loss
	token int64          // the fencing token; 0 until a caller has asked for one
	told  int64          // the greatest token that `fence` has returned
	epoch int            // number of calls of `renew`
}

// The type `state` is the state of a Hold.
type state int8

const (
	waiting  state = iota // not granted yet
	held                  // by a goroutine of this process
	kept                  // released by its goroutine, but the znode still exists, for another grant in this process
	lost                  // the hooks have run; the znode may exist until the holder's release
	released              // by its holder, even after a loss
)

// The type `holding` is the part of a Hold that differs between a lock and permits. All methods
// except `deleted` and `discard` are called under Hold.mu.
type holding interface {
	path() string        // of the primitive
	trace(event string)  // writes a record for each znode
	deleted(path string) // called when the znode at `path` is deleted; the hold is lost if that is one of its znodes; "" means any of them
	unwatch(gone bool)   // stops watching the znodes; `gone` means that they are already deleted
	discard()            // deletes the znodes, in the background
	inFunction() bool    // true if Close must not release the hold, because the primitive or a function of the program releases it
}

// The method `begin` registers the hook of h with the end of the session. It is called without mu,
// at the first grant of h. If the session has already ended, h is lost when `begin` returns.
func (h *Hold) begin() {
	h.hook.Owner = h
	h.Incarnation.Ended.Add(&h.hook)
}

func (h *Hold) OnEnd(why error) { h.Lose(why) }

// Vanished is called when another client has deleted the znode that o watches.
func (h *Hold) Vanished(o *znodes.OwnWatch) { h.of.deleted(o.Path) }

func (h *Hold) Ending() *session.Ending { return &h.lost }

func (h *Hold) standing() bool { return h.state == held || h.state == kept }

// Lose ends h by a loss, if h is held or kept.
func (h *Hold) Lose(why error) bool { return h.lose(why, h.standing) }

// The method `lose` ends h by a loss if `so()` is true. It calls `so` under mu. It reports whether
// it has ended h.
func (h *Hold) lose(why error, so func() bool) bool {
	h.mu.Lock()
	if h.lost.Cause() != nil || !so() {
		h.mu.Unlock()
		return false
	}
	nobodys := h.state == kept
	h.enter(lost)
	h.ended = time.Now()
	h.lost.End(why) // runs the hooks under mu; every call locks mu before it returns the loss, so the hooks have run by then
	h.of.trace(trace.Loss)
	h.of.unwatch(true)
	e := h.event(session.EventLost, why)
	m := h.Incarnation.Manager
	h.mu.Unlock()
	h.Incarnation.Ended.Remove(&h.hook)
	h.Stake.Drop()
	if e.Op != "" && !nobodys { // otherwise, h is a semaphore's internal lock, or a kept place without a goroutine
		m.Spawn(func() { // the caller may hold a mutex, and the calls that the observer makes may need this mutex
			m.Log.Warn("zsync: lost", "op", e.Op, "path", e.Path, "session", session.Text(h.Incarnation.ID.Load()), "reason", why)
			m.Observe(e)
		})
	}
	return true
}

func (h *Hold) record(path string, l trace.Record) {
	m := h.Incarnation.Manager
	if l.Event == trace.Loss {
		l = m.TraceLoss(l, h.lost.Cause())
	}
	m.Trace.Hold(path, l)
}

// The method `enter` changes the state of h, and the gauge of holds.
func (h *Hold) enter(s state) {
	if h.state == held {
		h.Incarnation.Manager.Holds.Add(-h.n)
	}
	h.state = s
	if s == held {
		h.Incarnation.Manager.Holds.Add(h.n)
	}
}

// The method `event` returns the report of h's end. The observer must be called without mu.
func (h *Hold) event(kind session.ReportKind, why error) session.Report {
	return session.Report{Kind: kind, Op: h.op, Path: h.of.path(), Err: why, Wait: time.Since(h.since)}
}

// Err returns nil while h is certainly held. After a loss, it returns an ErrLost, which is also an
// ErrClosed if Session.Close was called.
func (h *Hold) Err() error {
	if !h.Incarnation.Alive() {
		why := h.Incarnation.Loss()
		h.Lose(why) // perhaps the goroutine that ended the session has not run the hook of h yet
		return why
	}
	return h.Loss()
}

// Loss returns the loss of h, or nil if no loss is known.
func (h *Hold) Loss() error {
	h.mu.Lock() // so that all hooks have run
	defer h.mu.Unlock()
	return h.lost.Cause()
}

// Forgotten returns an ErrDeadlock for a goroutine that waits for the release of h, if at least one
// session timeout has passed since the loss of h. In all other cases, it returns nil.
func (h *Hold) Forgotten() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if why := h.lost.Cause(); why != nil && time.Since(h.ended) >= h.Incarnation.Manager.Timeout() {
		return session.Worded(fmt.Sprintf("deadlock: this process lost its hold at %s (%v) and has not released it since; unlock or release it after a loss, too", h.ended.Format(time.RFC3339), why), ErrDeadlock)
	}
	return nil
}

func (h *Hold) Since() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.since
}

// Explain returns the error to report for a failed request about h's own znode. The argument err is
// the error of this request, or nil. If the znode is deleted or the session has ended, the result is
// the loss of h.
func (h *Hold) Explain(err error) error {
	if session.IsNoNode(err) || errors.Is(err, session.ErrVanished) {
		h.of.deleted("")
		err = ErrNotLocked // the result if h is not lost; in that case, another goroutine is releasing h
	}
	if lost := h.Err(); lost != nil {
		return lost
	}
	return err
}

// The method `finish` begins the release of h. If it returns the loss of h, the release is
// complete.
func (h *Hold) finish() error {
	h.Err() // if the session has ended, Err ends h by the loss
	h.mu.Lock()
	gone := h.lost.Cause()
	stood := h.standing()
	h.left.End(ErrNotLocked)
	h.enter(released)
	h.of.unwatch(gone != nil)
	if gone == nil && stood {
		h.of.trace(trace.Release)
	}
	h.mu.Unlock()
	h.Incarnation.Ended.Remove(&h.hook)
	h.Stake.Drop()
	return gone
}

// Left returns a channel that is closed when h is released, even if h was lost before.
func (h *Hold) Left() <-chan struct{} { return h.left.Done() }

// giveUp ends h by a loss if `so()` is true, and then deletes the znodes of h, if the session still
// lives. It first waits until the holder, which may hang, has released h, but no longer than LossTime.
// Until then, the holder can notice the loss, and the lock is granted to no other session.
func (h *Hold) giveUp(why error, so func() bool) {
	if !h.lose(why, so) {
		return
	}
	left := h.Left()
	h.Incarnation.Manager.Spawn(func() {
		ctx, stop := context.WithTimeout(context.Background(), h.Incarnation.LossTime())
		defer stop()
		err := session.AwaitIn(ctx, h.Incarnation, left)
		h.finish()                   // the holder may never release h
		if err != session.ErrEnded { // otherwise, the servers delete the znodes
			h.of.discard()
		}
	})
}

// ReleaseBare releases h for Close, as a loss. If a function of the program holds h, ReleaseBare
// does nothing, because Close waits for functions.
func (h *Hold) ReleaseBare() {
	bare := func() bool { return h.standing() && !h.of.inFunction() }
	if h.lose(h.Incarnation.EndError(session.ErrClosed), bare) {
		h.of.discard()
	}
}

// The method `fence` returns the fencing token of h: the zxid of a write to a znode of h, which is
// greater than the zxid of every write of earlier holders. Goroutines that share h share the token.
// The function `has` reports whether the caller still holds h, `node` returns the path of a znode of
// h, and `write` writes this znode. The first two are called under mu.
func (h *Hold) fence(ctx context.Context, has func() bool, node func() string, write func(ctx context.Context, path string) (*zk.Stat, error)) (int64, error) {
	for {
		if err := h.Err(); err != nil {
			return 0, err
		}
		h.mu.Lock()
		tok, path, epoch := h.token, node(), h.epoch
		h.mu.Unlock()
		if tok != 0 {
			return tok, nil
		}
		stat, err := write(ctx, path)
		h.mu.Lock()
		lost, moved := h.lost.Cause(), path != node()
		switch {
		case lost != nil || !has():
			// h was lost or unlocked during our write. Another goroutine may hold h now, with a token from
			// a write before ours. Our token would be greater, so our caller must not get it.
			h.mu.Unlock()
			return 0, cmp.Or(lost, ErrNotLocked)
		case err != nil && !moved:
			h.mu.Unlock()
			return 0, h.Explain(err)
		case moved || h.token != 0 || stat.Mzxid < h.told:
			h.mu.Unlock()
			continue // h has another znode now, or another caller was first
		}
		// If another goroutine has joined during the write, the token may be too small for that
		// goroutine. For this caller, the token is right. Because of h.told, `fence` returns no smaller
		// token after this one.
		if h.told = stat.Mzxid; h.epoch == epoch {
			h.token = h.told
			h.of.trace(trace.Token)
		}
		tok = h.told
		h.mu.Unlock()
		if err := h.Err(); err != nil {
			return 0, err
		}
		return tok, nil
	}
}

// The method `renew` drops the token. The next holder must not get the old token: the previous
// goroutine may still use it, and a reader in another process may have got a greater token since.
func (h *Hold) renew() {
	h.token = 0
	h.epoch++
}

// The method `txn` applies ops in one transaction, which also checks that the znodes at `paths`
// exist. If a znode does not exist, nothing is applied, and the error is the loss of h or, if the znode
// is not a znode of h any more, ErrNotLocked. If the outcome is unknown, `open` is true. Then the
// servers may still apply ops later, but not after the znodes at `paths` are deleted or the session has
// ended.
func (h *Hold) txn(ctx context.Context, dir string, ops []any, paths ...string) (rs []zk.MultiResponse, open bool, err error) {
	inc := h.Incarnation
	done, err := znodes.RoomFor(ctx, inc, ops...)
	defer done()
	if err := cmp.Or(h.Err(), err); err != nil {
		return nil, false, err
	}
	all := make([]any, len(paths), len(paths)+len(ops))
	for i, path := range paths {
		all[i] = &zk.CheckVersionRequest{Path: path, Version: -1}
	}
	rs, err = txn.Within(ctx, inc, dir, append(all, ops...))
	open = session.OutcomeOf(err) != session.Answered
	if i := znodes.FailedOp(rs); i >= 0 && i < len(paths) && session.IsNoNode(rs[i].Error) {
		h.of.deleted(paths[i])
		return nil, false, cmp.Or(h.Err(), ErrNotLocked)
	}
	if err == session.ErrEnded || errors.Is(err, session.ErrLost) {
		err = cmp.Or(h.Err(), err) // perhaps the goroutine that ended the session has not run the hooks of h yet; Err runs them
	}
	return rs[min(len(rs), len(paths)):], open, err
}

// Limits are for a process that is connected but may hang. When a hold of this process reaches a
// limit, the hold ends.
type Limits struct {
	Max    time.Duration                   // longest duration of a hold; 0 means no limit
	Health func(ctx context.Context) error // called during a hold, if not nil
}

// The method `limited` starts the limits of h, until `stop` is called. At a limit, giveUp ends h by a
// loss. The function `began` returns the time at which the duration Max begins, or false if h has no
// limit now. Health is called in each third of the session timeout. Both `limited` and `began` are
// called under mu.
func (h *Hold) limited(l *Limits, began func() (at time.Time, ok bool)) (stop func()) {
	inc := h.Incarnation
	ctx, stop := context.WithCancel(inc.Ctx)
	if l.Max > 0 {
		var timer *time.Timer
		timer = time.AfterFunc(l.Max, func() {
			h.giveUp(inc.GivenUp(fmt.Errorf("held longer than WithMaxHold (%v)", l.Max)), func() bool {
				at, ok := began()
				left := l.Max - time.Since(at)
				if ok && left > 0 { // `at` has changed: the permits that were the oldest are released
					timer.Reset(left)
				}
				return ok && left <= 0
			})
		})
		context.AfterFunc(ctx, func() { timer.Stop() })
	}
	if l.Health != nil {
		inc.Manager.Spawn(func() {
			period := time.Duration(inc.Timeout.Load() / 3)
			for session.Sleep(ctx, period) == nil {
				if err := l.ask(ctx, period); err != nil {
					h.giveUp(inc.GivenUp(err), func() bool { _, ok := began(); return ok })
					return
				}
			}
		})
	}
	return stop
}

// The method `ask` calls Health once, and returns an error if the hold must end. It does not wait
// after the end of the context `held`.
func (l *Limits) ask(held context.Context, period time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), period)
	defer cancel()
	healthy := make(chan error, 1)
	go func() { healthy <- l.Health(ctx) }()
	// If several cases are ready, any choice is right. If the hold has ended during the call,
	// giveUp does nothing.
	select {
	case err := <-healthy:
		if err != nil {
			err = fmt.Errorf("WithHealth: %w", err)
		}
		return err
	case <-ctx.Done():
		return errors.New("WithHealth: the function did not return in time")
	case <-held.Done():
		return nil
	}
}
