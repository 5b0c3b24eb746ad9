package zsync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/tally"
)

// The errors of this package, for [errors.Is]. docs/errors.md explains each.
var (
	// ErrLost: a hold has ended without a release, or could have as far as this client can know:
	// its session ended, or its znode was deleted. It is a [*LostError] with the reason.
	ErrLost = session.ErrLost
	// ErrClosed: the Session was closed by [Session.Close].
	ErrClosed = session.ErrClosed
	// ErrNotLocked: this value does not hold what the call would release or use.
	ErrNotLocked = lock.ErrNotLocked
	// ErrDeadlock: the call would wait for its own caller, or for a hold of this process that was
	// lost and is not released.
	ErrDeadlock = lock.ErrDeadlock
	// ErrMixed: the path has another use: by a contender of another kind or layout, which would
	// not exclude this one, or by stored data. Or the servers could remove data stored there.
	ErrMixed = lock.ErrMixed
	// ErrNegativeCounter: more tasks of a WaitGroup were ended than added.
	ErrNegativeCounter = tally.ErrNegativeCounter
	// ErrPanicked: the function of a Once panicked.
	ErrPanicked = errors.New("function panicked")
	// ErrNoLeader: no candidate leads now.
	ErrNoLeader = errors.New("no leader")
	// ErrNoCandidate: a process is not, or no longer, a candidate of the election.
	ErrNoCandidate = errors.New("no such candidate")
	// ErrNoValue: nothing is stored.
	ErrNoValue = errors.New("no value")
	// ErrTooLarge: a request would exceed ZooKeeper's packet limit of 1 MiB (jute.maxbuffer). No
	// request was sent.
	ErrTooLarge = session.ErrTooLarge
	// ErrUnprotected: an existing znode has a wider ACL than [WithACL] allows.
	ErrUnprotected = session.ErrUnprotected
	// ErrInvalid: an argument breaks a rule, which the message names. No request was sent.
	ErrInvalid = session.ErrInvalid
)

// A WaitError describes a wait that ended without a grant, because its context ended or the
// Session was closed. Lock, RLock, Acquire, Campaign, Do, Run and [LockAll] return it; it
// wraps the context's error.
//
//	var w *zsync.WaitError
//	if errors.As(err, &w) {
//		log.Printf("gave up after %v, %d ahead, held by %s", w.Waited, w.Place, w.Behind.Owner)
//	}
//
// Owner, Session and Since of Behind are known if the holder is in this process, or after a
// second. Then the waiter reads the holder's znode, and again each time that the wait has
// doubled, at most once a minute.
type WaitError struct {
	// Behind is the first in the line: the holder. Its Node is set once the wait has a place in
	// the line. For a [Semaphore], Behind is the first waiting contender or, for that waiter
	// itself, a holder of permits.
	Behind Contender

	// Place is the number of contenders ahead, Behind included: 1 is the next. It is 0 without
	// a place in the line: no server was reached, or this process had not released a lost hold.
	Place int

	Waited time.Duration
	err    error
}

// Error returns the length of the wait, the holder, and the reason of the end.
func (e *WaitError) Error() string {
	waited := e.Waited.Round(time.Millisecond)
	switch {
	case e.Place == 0:
		return fmt.Sprintf("after %v without a place in the line: %v", waited, e.err)
	case e.Behind.Owner == "":
		return fmt.Sprintf("after %v behind %q (place %d): %v", waited, e.Behind.Node, e.Place, e.err)
	}
	return fmt.Sprintf("after %v behind %q of %q (place %d): %v", waited, e.Behind.Node, e.Behind.Owner, e.Place, e.err)
}

// Unwrap returns the error of the context, with its cause, or [ErrClosed].
func (e *WaitError) Unwrap() error { return e.err }

// waitEnded returns err as the error of a wait since start, if ctx or the Session ended the
// wait. Any other error is a failure, and stays as it is.
func waitEnded(ctx context.Context, s *Session, err error, start time.Time, behind Contender, place int) error {
	if err == nil || ctx.Err() == nil && s.m.Failure() == nil {
		return err
	}
	if _, said := err.(*WaitError); said { // a deeper one may be the cause of ctx
		return err
	}
	return &WaitError{Behind: behind, Place: place, Waited: time.Since(start), err: err}
}

// headContender returns the contender of h, a holder in mode, if there is one.
func headContender(h lock.Head, mode Mode) Contender {
	if h.Name == "" {
		return Contender{}
	}
	c := Contender{Node: h.Name, Mode: mode, Holding: true}
	if h.Node.Stat != nil {
		c.Owner, c.Session = string(h.Node.Data), h.Node.Stat.EphemeralOwner
		c.Since, c.HeldSince = time.UnixMilli(h.Node.Stat.Ctime), lock.HeldSince(true, h.Node)
	}
	return c
}

// ownContender returns the holder of c, in this process.
func ownContender(c *lock.Claim, owner string, mode Mode) Contender {
	return Contender{
		Owner: owner, Node: session.BaseName(c.Znode()), Session: c.Incarnation.ID.Load(),
		Mode: mode, Holding: true, Since: c.Since(),
	}
}

// opError adds operation and path to err. An error that has them is returned unchanged.
// opError(op, path, nil) is nil.
func opError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(*Error); ok {
		return err
	}
	if err == ErrNotLocked && slices.Contains(releases, op) {
		err = notHeld{}
	}
	return &Error{Op: op, Path: path, Err: err}
}

// releases are the operations on holds other than locks.
var releases = []string{"resign", "transfer", "release", "leave", "ack", "nack", "reject", "return"}

// notHeld is [ErrNotLocked] in words that fit permits, leaderships, memberships and claims.
type notHeld struct{}

func (notHeld) Error() string        { return "not held" }
func (notHeld) Is(target error) bool { return target == ErrNotLocked }

// An Error has the operation that failed, its path and the reason.
type Error struct {
	Op   string // the operation, such as "lock"
	Path string // the path of the primitive; empty for the session itself
	Err  error  // the reason
}

// Error returns all three: "zsync: lock /locks/backup: lost: …".
func (e *Error) Error() string {
	if e.Path == "" {
		return "zsync: " + e.Op + ": " + e.Err.Error()
	}
	return "zsync: " + e.Op + " " + e.Path + ": " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// A LostError describes the loss of a hold. It is [ErrLost] to [errors.Is]. [errors.As]
// finds it in the error of a release, the cause of a context, and an [Event].
type LostError struct {
	Reason  LossReason
	Session int64 // the ZooKeeper session through which it was held

	// Since is when the hold ceased to count: when the loss was found or, after a pause of the
	// process, would have been found.
	Since time.Time

	Err error // of a LossGivenUp: why, such as the error of the function of WithHealth
}

// Error returns the reason in words: "lost: the session has expired".
func (e *LostError) Error() string {
	if e.Err != nil {
		return "lost: " + e.Reason.String() + ": " + e.Err.Error()
	}
	return "lost: " + e.Reason.String()
}

// Is reports whether target is ErrLost, or ErrClosed after a LossClosed.
func (e *LostError) Is(target error) bool {
	return target == ErrLost || target == ErrClosed && e.Reason == LossClosed
}

// A LossReason is the reason of a loss.
type LossReason int

// The reasons of a loss.
const (
	LossExpired   LossReason = iota + 1 // the servers have ended the session
	LossCutOff                          // no server confirmed the session in time; it may have ended, or will soon
	LossPaused                          // the same after a pause of the process or machine; another process may have held since
	LossReplaced                        // a server has put another session in its place
	LossDeleted                         // another client has deleted the znode of the hold
	LossClosed                          // the Session was closed, or has failed for good
	LossSuspended                       // the connection dropped, and WithLossOnSuspend counts that as a loss
	LossGivenUp                         // WithMaxHold or WithHealth ended the hold, or a failed call could not be undone
)

var lossReasons = map[LossReason]string{
	LossExpired:   "the session has expired",
	LossCutOff:    "the session was not confirmed in time",
	LossPaused:    "the process or its machine was stopped for too long",
	LossReplaced:  "the session was replaced without notice",
	LossDeleted:   "the znode was deleted",
	LossClosed:    "the session was closed",
	LossSuspended: "the connection dropped",
	LossGivenUp:   "given up",
}

// String returns the reason in words.
func (r LossReason) String() string {
	if s := lossReasons[r]; s != "" {
		return s
	}
	if r == 0 {
		return "for a reason that is not known"
	}
	return fmt.Sprintf("LossReason(%d)", int(r))
}

var lossWords = map[LossReason]string{
	LossExpired: "expired", LossCutOff: "cut-off", LossPaused: "paused", LossReplaced: "replaced",
	LossDeleted: "deleted", LossClosed: "closed", LossSuspended: "suspended", LossGivenUp: "given-up",
}

// MarshalText returns the reason as one word that never changes, for metrics.
func (r LossReason) MarshalText() ([]byte, error) { return []byte(r.word()), nil }

func (r LossReason) word() string {
	if w := lossWords[r]; w != "" {
		return w
	}
	return "unknown"
}

// lossWord returns the reason of a loss as one word, and the time from which the hold did
// not count.
func lossWord(err error) (string, time.Time) {
	var lost *LostError
	if errors.As(err, &lost) {
		return lost.Reason.word(), lost.Since
	}
	if errors.Is(err, ErrClosed) {
		return LossClosed.word(), time.Time{}
	}
	return LossReason(0).word(), time.Time{}
}

// lostError makes the error of a loss, for the session.
func lostError(why session.LossReason, session int64, since time.Time) error {
	return &LostError{Reason: LossReason(why), Session: session, Since: since}
}

// givenUp makes the error of a hold that this process ends by itself.
func givenUp(session int64, why error, now time.Time) error {
	return &LostError{Reason: LossGivenUp, Session: session, Since: now, Err: why}
}
