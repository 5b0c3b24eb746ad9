package lock

// This file has a hold and its end: release, loss, limits, fencing tokens and transactions. Before
// the hold, acquire.go waits for the turn.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
	"github.com/zsync/zsync/internal/txn"
)

// The errors of a line. The loss of a hold is ErrLost in package session.
var (
	// ErrDeadlock means that the call would wait for its own caller, or for a release that never
	// comes.
	ErrDeadlock = errors.New("deadlock: the caller already holds it")

	// ErrNotLocked means that the value holds nothing that it could release.
	ErrNotLocked = errors.New("not locked")

	// ErrMixed means that a contender of another kind, or of another layout, is in the line: a
	// Mutex and an Election at one path, for example. They would not exclude each other.
	ErrMixed = session.ErrMixed
)

// A forgottenError is an [ErrDeadlock]: a hold of this process was lost and not released.
type forgottenError struct {
	at  time.Time
	why error
}

func (e *forgottenError) Error() string {
	return fmt.Sprintf("deadlock: this process lost its hold at %s (%v) and has not released it since; unlock or release it after a loss, too", e.at.Format(time.RFC3339), e.why)
}

func (e *forgottenError) Is(target error) bool { return target == ErrDeadlock }

// A Hold is a lock, a leadership or some permits that a process holds through one session, by
// ephemeral znodes of its own: one znode for a lock or a leadership, one or more for permits. It
// begins and ends once.
//
// Everything that a loss must do is a hook on lost: to close the channels of Lost, and to end the
// contexts of functions and the waits of other goroutines. The goroutine that finds the loss runs
// the hooks, under mu. If the session ends, this is the goroutine that ends it in this process.
// Only after the hooks does the client ask the servers to end the session
// (session.Incarnation.end).
type Hold struct {
	Incarnation *session.Incarnation
	Stake       *session.Stake // nil until the grant
	of          holding        // the Claim or the Permits; set at the first grant

	// A primitive may take mu while it holds its own lock, and never the reverse. Under mu, code
	// takes only locks that never wait for a primitive: the locks of lost (whose hooks run under
	// mu), of the session's watches, and of the trace.
	mu    sync.Mutex
	state state
	lost  session.Ending // ended by a loss
	left  chan struct{}  // made on demand; closed by the release, even of a lost hold
	hook  session.Hook   // on the end of the session: OnEnd
	op    string         // for the observer
	since time.Time      // of the last grant
	ended time.Time      // of the loss
	token int64          // the fencing token; 0 until a caller asks for it
	told  int64          // the greatest token that fence has returned
	epoch int            // counts the calls of renew
}

// A state is the state of a Hold.
type state int8

const (
	waiting  state = iota // a contender, not granted yet
	held                  // by a goroutine of this process
	kept                  // released by its goroutine; the znode exists, and can be granted again in this process
	lost                  // its hooks have run; the znode may exist until the holder releases it
	released              // by its holder, even after a loss
)

// A holding is the part of a Hold that differs between a lock and permits. Its methods are
// called under Hold.mu, except deleted and discard.
type holding interface {
	weight() int64       // how much it adds to the gauge of holds
	path() string        // of the primitive
	trace(event string)  // writes a record for each znode
	deleted(path string) // the znode at path is deleted; "" means any of them
	unwatch(gone bool)   // stops watching the znodes; gone says that they are deleted already
	discard()            // deletes the znodes, in the background
	inFunction() bool    // Close must not release it: a function of the program does, or the primitive
}

// begin registers the hook of h on the end of the session. It is called without mu, at the first
// grant of h. If the session has ended already, h is lost when begin returns.
func (h *Hold) begin() {
	h.hook.Owner = h
	h.Incarnation.Ended.Add(&h.hook)
}

// OnEnd is the hook on the end of the session.
func (h *Hold) OnEnd(why error) { h.Lose(why) }

// Ending returns h's Ending, which ends if h is lost. Its hooks run before any call or channel
// shows the loss.
func (h *Hold) Ending() *session.Ending { return &h.lost }

// standing reports whether h is held or kept.
func (h *Hold) standing() bool { return h.state == held || h.state == kept }

func (h *Hold) always() bool { return true }

// Lose ends h by a loss, if h is held or kept.
func (h *Hold) Lose(why error) bool { return h.lose(why, h.standing) }

// lose calls so, under mu, and ends h by a loss if so returns true. It reports whether it has ended
// h.
func (h *Hold) lose(why error, so func() bool) bool {
	h.mu.Lock()
	if h.lost.Cause() != nil || !so() {
		h.mu.Unlock()
		return false
	}
	h.count(-1)
	nobodys := h.state == kept
	h.state, h.ended = lost, time.Now()
	h.lost.End(why) // under mu: a call that returns the loss takes mu first, so the hooks have run by then
	h.of.trace(trace.Loss)
	h.of.unwatch(true)
	e := h.event(session.EventLost, why)
	m := h.Incarnation.Manager
	h.mu.Unlock()
	h.Incarnation.Ended.Remove(&h.hook)
	h.Stake.Drop()
	if e.Op == "" || nobodys { // the semaphore's lock, or a place without a goroutine
		return true
	}
	m.Spawn(func() { // the caller may hold a lock that the observer's calls need
		m.Log.Warn("zsync: lost", "op", e.Op, "path", e.Path, "session", session.Text(h.Incarnation.ID.Load()), "reason", why)
		m.Observe(e)
	})
	return true
}

// count adds h to the gauge of holds, or subtracts it.
func (h *Hold) count(sign int64) {
	if h.state == held {
		h.Incarnation.Manager.Holds.Add(sign * h.of.weight())
	}
}

// enter changes the state of h.
func (h *Hold) enter(s state) {
	h.count(-1)
	h.state = s
	h.count(1)
}

// event returns the event of the end of h, for the observer, which is called without mu.
func (h *Hold) event(kind session.ReportKind, why error) session.Report {
	return session.Report{Kind: kind, Op: h.op, Path: h.of.path(), Err: why, Wait: time.Since(h.since)}
}

// Err returns nil while h is certainly held, and otherwise the loss: an ErrLost, which is also
// ErrClosed after Session.Close.
func (h *Hold) Err() error {
	if !h.Incarnation.Alive() {
		why := h.Incarnation.Loss()
		h.Lose(why) // the goroutine that ended the session might not have come to h yet
		return why
	}
	return h.Loss()
}

// Loss returns why h is lost, or nil if no loss is known.
func (h *Hold) Loss() error {
	h.mu.Lock() // so that every hook has run
	defer h.mu.Unlock()
	return h.lost.Cause()
}

// Forgotten returns the ErrDeadlock of a wait for the release of h, if h was lost a session
// timeout ago or earlier, and nil otherwise.
func (h *Hold) Forgotten() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if why := h.lost.Cause(); why != nil && time.Since(h.ended) >= h.Incarnation.Manager.Timeout() {
		return &forgottenError{h.ended, why}
	}
	return nil
}

// Since returns when h was last granted.
func (h *Hold) Since() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.since
}

// Explain interprets err, the error of a request about h's own znode. If the znode is deleted, or
// the session has ended, it returns the loss of h.
func (h *Hold) Explain(err error) error {
	if session.IsNoNode(err) {
		h.of.deleted("")
		err = ErrNotLocked // unless h is lost, another goroutine is releasing it
	}
	if lost := h.Err(); lost != nil {
		return lost
	}
	return err
}

// finish begins the release of h. If it returns the loss of h, there is nothing to release.
func (h *Hold) finish() error {
	gone := h.Err()
	h.mu.Lock()
	if gone == nil {
		gone = h.lost.Cause() // lost between Err and Lock
	}
	stood := h.standing()
	if h.state != released && h.left != nil {
		close(h.left)
	}
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

// leftLocked returns a channel that is closed by the release of h, even after a loss.
func (h *Hold) leftLocked() <-chan struct{} {
	switch {
	case h.left != nil:
	case h.state == released:
		h.left = session.ClosedChan
	default:
		h.left = make(chan struct{})
	}
	return h.left
}

// observeRelease calls the observer at the end of a release.
func (h *Hold) observeRelease() {
	h.mu.Lock()
	e := h.event(session.EventReleased, nil)
	h.mu.Unlock()
	h.Incarnation.Manager.Observe(e)
}

// giveUp ends h by a loss if so() is true. It does not need the holder, which may hang.
//
// As with every loss, the hooks run first. The znodes are deleted when the holder has released h,
// or after LossTime. A holder that is cut off from the servers has the same time to notice its
// loss. Until then, the servers do not grant the lock to another session.
func (h *Hold) giveUp(l *Limits, why error, so func() bool) {
	inc := h.Incarnation
	if !h.lose(l.Lost(inc.ID.Load(), why, time.Now()), so) {
		return
	}
	h.withdraw()
}

// withdraw deletes the znodes of h after a loss, if the session still lives. It waits until the
// holder has released h, or for LossTime.
func (h *Hold) withdraw() {
	h.mu.Lock()
	left := h.leftLocked()
	h.mu.Unlock()
	h.Incarnation.Manager.Spawn(func() {
		stands := h.Incarnation.AwaitLossTime(left)
		h.finish() // the holder may never release it
		if stands {
			h.of.discard()
		}
	})
}

// ReleaseBare releases h for Close, unless a function holds it: Close waits for functions. The
// hooks run first, as with every loss.
func (h *Hold) ReleaseBare() {
	bare := func() bool { return h.standing() && !h.of.inFunction() }
	if h.lose(h.Incarnation.EndError(session.ErrClosed), bare) {
		h.of.discard()
	}
}

// fence returns the fencing token of h: the zxid of a write to a znode of h. It is greater than the
// zxid of every write of earlier holders. Goroutines that share h share its token. If another
// goroutine gets h during such a write, only the caller of fence gets the token of that write. has
// reports whether the caller still holds h, and node returns the path of a znode of h; both are
// called under mu. write writes that znode.
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
		moved := path != node()
		switch {
		case !has():
			// h was unlocked during our write. Another goroutine may hold it now, with a token from
			// a write before ours. So our caller must not get our token, which is greater.
			h.mu.Unlock()
			return 0, ErrNotLocked
		case err != nil && !moved:
			h.mu.Unlock()
			return 0, h.Explain(err)
		case moved || h.token == 0 && stat.Mzxid < h.told:
			h.mu.Unlock()
			continue // h has another znode since, or another caller has a greater token already
		case h.token != 0: // another caller was first
			tok = h.token
		default:
			// If another goroutine has joined during the write, the token may be too small for that
			// goroutine. It is right for this caller, and h.told keeps fence from returning a
			// smaller token later.
			tok = stat.Mzxid
			if h.told = tok; h.epoch == epoch {
				h.token = tok
				h.of.trace(trace.Token)
			}
		}
		h.mu.Unlock()
		if err := h.Err(); err != nil {
			return 0, err
		}
		return tok, nil
	}
}

// renew drops the token, so that the next goroutine that holds h gets a new token. The previous
// goroutine may still use the old token, and a reader in another process may have received a
// greater token since.
func (h *Hold) renew() {
	h.token = 0
	h.epoch++
}

// txn applies ops in one transaction with a check that the znodes at paths exist. If a znode does
// not exist, missing is its path, and nothing was applied. If the outcome is unknown, open is true:
// ops may be applied until these znodes are deleted or the session has ended.
func (h *Hold) txn(ctx context.Context, dir string, ops []any, paths ...string) (rs []zk.MultiResponse, missing string, open bool, err error) {
	inc := h.Incarnation
	if err := h.Err(); err != nil {
		return nil, "", false, err
	}
	all := make([]any, len(paths), len(paths)+len(ops))
	for i, path := range paths {
		all[i] = &zk.CheckVersionRequest{Path: path, Version: -1}
	}
	rs, err = txn.Within(ctx, inc, dir, append(all, ops...))
	open = session.OutcomeOf(err) != session.Answered
	if i := session.FailedOp(rs); i >= 0 && i < len(paths) && session.IsNoNode(rs[i].Error) {
		return nil, paths[i], false, rs[i].Error
	}
	if err == session.ErrEnded || errors.Is(err, session.ErrLost) {
		// The goroutine that ended the session might not have come to h yet. Err runs the hooks of
		// h first.
		if lost := h.Err(); lost != nil {
			err = lost
		}
	}
	return rs[min(len(rs), len(paths)):], "", open, err
}

// Limits end a hold of a process that is connected but may be hung.
type Limits struct {
	Max    time.Duration                                       // longest duration of a hold; 0 means no limit
	Health func(ctx context.Context) error                     // called during a hold, if not nil
	Lost   func(session int64, why error, now time.Time) error // makes the ErrLost
}

// limited ends h by a loss (giveUp) when a limit is reached, unless so() is false at that moment.
// One limit is the duration most. The other is the function Health: limited calls Health every
// third of the session timeout, and Health must return nil before the next call is due. The caller
// cancels the limits by stop.
func (h *Hold) limited(l *Limits, most time.Duration, so func() bool) (stop func()) {
	inc := h.Incarnation
	ctx, stop := context.WithCancel(inc.Ctx)
	if l.Max > 0 {
		timer := time.AfterFunc(most, func() { h.giveUp(l, fmt.Errorf("held longer than WithMaxHold (%v)", l.Max), so) })
		context.AfterFunc(ctx, func() { timer.Stop() })
	}
	if l.Health != nil {
		inc.Manager.Spawn(func() {
			period := time.Duration(inc.Timeout.Load() / 3)
			for {
				select {
				case <-time.After(period):
				case <-ctx.Done():
					return
				}
				if err := l.ask(ctx, period); err != nil {
					h.giveUp(l, err, so)
					return
				}
			}
		})
	}
	return stop
}

// ask calls Health once, unless held ends. It does not wait for a call that hangs.
func (l *Limits) ask(held context.Context, period time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), period)
	defer cancel()
	healthy := make(chan error, 1)
	go func() { healthy <- l.Health(ctx) }()
	// A result at the last moment may count or not. If the hold has ended during the call, giveUp
	// does nothing.
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
