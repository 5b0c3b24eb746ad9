package zsync

import (
	"errors"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/tally"
)

// The errors of this package. Match them with [errors.Is]. A method returns an [*Error],
// which wraps one of these errors, an error of go-zookeeper, or the cause of a context.
// docs/errors.md explains each.
var (
	// ErrLost means that a hold has ended without a release, or could have ended as far as
	// this client can know: its session ended, or another client deleted its znode. The error
	// is a [*LostError] with the reason.
	ErrLost = session.ErrLost

	// ErrClosed means the Session was closed by [Session.Close].
	ErrClosed = session.ErrClosed

	// ErrNotLocked means that this value does not hold what the call would release or use.
	ErrNotLocked = line.ErrNotLocked

	// ErrDeadlock means that the call would wait for its own caller, or for a hold of this process
	// that was lost and is not released.
	ErrDeadlock = line.ErrDeadlock

	// ErrMixed means that the path has another use: by a contender of another kind or layout,
	// which would not exclude this one, or by stored data. It also means that data cannot be
	// stored at a path because the servers could remove it there.
	ErrMixed = line.ErrMixed

	// ErrNegativeCounter means that more tasks of a WaitGroup were ended than added.
	ErrNegativeCounter = tally.ErrNegativeCounter

	// ErrPanicked means that the function of a Once panicked.
	ErrPanicked = errors.New("function panicked")

	// ErrNoLeader means that no candidate leads now.
	ErrNoLeader = errors.New("no leader")

	// ErrNoCandidate means that a process is not, or no longer, a candidate of the election.
	ErrNoCandidate = errors.New("no such candidate")

	// ErrNoValue means that nothing is stored.
	ErrNoValue = errors.New("no value")

	// ErrTooLarge means that a request would exceed ZooKeeper's packet limit of 1 MiB
	// (jute.maxbuffer). No request was sent.
	ErrTooLarge = session.ErrTooLarge

	// ErrUnprotected means that an existing znode has a wider ACL than [WithACL] allows.
	ErrUnprotected = session.ErrUnprotected

	// ErrInvalid means that an argument breaks a rule, which the message names. No request was
	// sent.
	ErrInvalid = session.ErrInvalid
)
