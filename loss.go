package zsync

import (
	"errors"
	"fmt"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// A LostError describes the loss of a hold. It is [ErrLost] to [errors.Is]. [errors.As]
// finds it in the error of a release, in the cause of the context of Do, and in an [Event].
type LostError struct {
	Reason  LossReason
	Session int64 // the ZooKeeper session through which it was held

	// Since is the time from which the hold did not count: the time at which the loss was
	// found or, after a pause of the process, would have been found.
	Since time.Time

	// Err is the reason of a LossGivenUp by [WithMaxHold] or [WithHealth], such as the error
	// of the function.
	Err error
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
	// LossExpired: the servers have ended the session.
	LossExpired LossReason = iota + 1
	// LossCutOff: no server confirmed the session in time. The servers may have ended it, or
	// soon will.
	LossCutOff
	// LossPaused: as LossCutOff, because this process or its machine stopped for too long.
	// Another process may have held since then: use fencing tokens.
	LossPaused
	// LossReplaced: a server has put another session in its place.
	LossReplaced
	// LossDeleted: another client has deleted the znode of the hold.
	LossDeleted
	// LossClosed: the Session was closed, or has failed for good.
	LossClosed
	// LossSuspended: the connection dropped, and [WithLossOnSuspend] counts
	// that as a loss.
	LossSuspended
	// LossGivenUp: [WithMaxHold] or [WithHealth] ended the hold, or a failed call could not be
	// undone.
	LossGivenUp
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

// MarshalText returns the reason as one word, which does not change: for metrics,
// logs and traces.
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
