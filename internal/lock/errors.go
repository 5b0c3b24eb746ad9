package lock

import (
	"errors"
	"fmt"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// This file has the errors of a line. The loss of a hold is in package session.

var (
	// ErrDeadlock means that the call would wait for its own caller, or for a release that never
	// comes.
	ErrDeadlock = errors.New("deadlock: the caller already holds it")

	// ErrNotLocked means a release by a value that holds nothing.
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
