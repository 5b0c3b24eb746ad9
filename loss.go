package zsync

import (
	"errors"
	"fmt"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// A LostError says why something that was held is lost, or may be. It is
// [ErrLost] to [errors.Is], and is found with [errors.As] in whatever tells a
// loss: the error of a release, the cause of the context of Do, an [Event].
type LostError struct {
	Reason  LossReason
	Session int64 // the ZooKeeper session through which it was held

	// Since is the time from which it must not be counted on: when the loss was
	// found, or, after a pause of the process, when it would have been.
	Since time.Time

	// Err says why it was given up, after a LossGivenUp that [WithMaxHold] or
	// [WithHealth] brought: what the function returned, for one.
	Err error
}

// Error says why it was lost: "lost: the session has expired".
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

// A LossReason says why something that was held is lost.
type LossReason int

// The reasons of a loss.
const (
	// LossExpired: the servers have ended the session.
	LossExpired LossReason = iota + 1
	// LossCutOff: no server has confirmed the session for so long that the
	// servers may have ended it, or soon will.
	LossCutOff
	// LossPaused: as LossCutOff, because this process was stopped, or its
	// machine slept. Others may have been granted what was held since then.
	LossPaused
	// LossReplaced: a server has put another session in its place.
	LossReplaced
	// LossDeleted: somebody has deleted the znode of what was held.
	LossDeleted
	// LossClosed: the Session was closed, or has failed for good.
	LossClosed
	// LossSuspended: the connection dropped, and [WithLossOnSuspend] counts
	// that as a loss.
	LossSuspended
	// LossGivenUp: this process has given it up by itself, as [WithMaxHold] and
	// [WithHealth] ask, or because it could not take back what a call that
	// failed had made.
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

// lossWord returns the reason of a loss as one word, and from when what was held
// must not be counted on.
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

// lostError is what the session makes of its losses.
func lostError(why session.LossReason, session int64, since time.Time) error {
	return &LostError{Reason: LossReason(why), Session: session, Since: since}
}

// givenUp is the loss of what this process gives up by itself.
func givenUp(session int64, why error, now time.Time) error {
	return &LostError{Reason: LossGivenUp, Session: session, Since: now, Err: why}
}
