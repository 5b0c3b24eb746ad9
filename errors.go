package zsync

import (
	"errors"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/tally"
)

// The errors of this package. Match them with [errors.Is]; what a method
// returns is an [*Error] around one of them, around an error of go-zookeeper,
// or around the cause of a context.
var (
	// ErrLost means that what was held is gone, or may be as far as this
	// client can know: its ZooKeeper session ended, or somebody deleted its
	// znode. The error is a [*LostError], which says why.
	ErrLost = session.ErrLost

	// ErrClosed means the Session was closed by [Session.Close].
	ErrClosed = session.ErrClosed

	// ErrNotLocked means a release of something that this value does not hold.
	ErrNotLocked = line.ErrNotLocked

	// ErrDeadlock means the call would have waited for its own caller for ever.
	ErrDeadlock = errors.New("deadlock: the caller already holds it")

	// ErrMixed means that a contender of another kind, or of another layout,
	// stands in the line: a Mutex and an Election at one path, for example. They
	// would not keep each other out. Or it means that something cannot be stored at a
	// path, because the servers would remove it there with the directory of something
	// else.
	ErrMixed = line.ErrMixed

	// ErrNegativeCounter means a WaitGroup's counter would have become negative.
	ErrNegativeCounter = tally.ErrNegativeCounter

	// ErrPanicked means the function given to a Once panicked when it was called.
	ErrPanicked = errors.New("function panicked")

	// ErrNoLeader means nobody leads at present.
	ErrNoLeader = errors.New("no leader")

	// ErrNoCandidate means that somebody does not stand for election, or no more.
	ErrNoCandidate = errors.New("no such candidate")

	// ErrNoValue means nothing has been stored yet.
	ErrNoValue = errors.New("no value")

	// ErrTooLarge means a request would exceed ZooKeeper's packet limit of
	// 1 MiB (jute.maxbuffer). Nothing was sent.
	ErrTooLarge = session.ErrTooLarge

	// ErrUnprotected means that a znode which somebody else has made may be
	// changed by others than [WithACL] allows.
	ErrUnprotected = session.ErrUnprotected

	// ErrInvalid means an argument breaks a rule that the message names.
	// Nothing was sent.
	ErrInvalid = session.ErrInvalid
)
