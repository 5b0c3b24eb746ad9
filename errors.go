package zsync

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-zookeeper/zk"
)

// The errors of this package. Match them with [errors.Is]; what a method
// returns is an [*Error] around one of them, around an error of go-zookeeper,
// or around the cause of a context.
var (
	// ErrLost means that what was held is gone, or may be as far as this
	// client can know: its ZooKeeper session ended, or somebody deleted its
	// znode. The error is a [*LostError], which says why.
	ErrLost = errors.New("lost")

	// ErrClosed means the Session was closed by [Session.Close].
	ErrClosed = errors.New("session closed")

	// ErrNotLocked means a release of something that this value does not hold.
	ErrNotLocked = errors.New("not locked")

	// ErrDeadlock means the call would have waited for its own caller for ever.
	ErrDeadlock = errors.New("deadlock: the caller already holds it")

	// ErrMixed means that a contender of another kind, or of another layout,
	// stands in the line: a Mutex and an Election at one path, for example. They
	// would not keep each other out.
	ErrMixed = errors.New("another kind of lock, or one of another layout, is used at this path")

	// ErrNegativeCounter means a WaitGroup's counter would have become negative.
	ErrNegativeCounter = errors.New("negative counter")

	// ErrPanicked means the function given to a Once panicked when it was called.
	ErrPanicked = errors.New("function panicked")

	// ErrNoLeader means nobody leads at present.
	ErrNoLeader = errors.New("no leader")

	// ErrNoValue means nothing has been stored yet.
	ErrNoValue = errors.New("no value")

	// ErrTooLarge means a request would exceed ZooKeeper's packet limit of
	// 1 MiB (jute.maxbuffer). Nothing was sent.
	ErrTooLarge = errors.New("larger than ZooKeeper's packet limit of 1 MiB")

	// ErrUnprotected means that a znode which somebody else has made may be
	// changed by others than [WithACL] allows.
	ErrUnprotected = errors.New("others may change what is here")

	// ErrInvalid means an argument breaks a rule that the message names.
	// Nothing was sent.
	ErrInvalid = errors.New("invalid argument")
)

// An Error tells which operation failed, on which path, and why. It is to this
// package what [os.PathError] is to os.
type Error struct {
	Op   string // the operation, such as "lock"
	Path string // the path of the primitive; empty for the session itself
	Err  error  // the reason
}

func (e *Error) Error() string {
	if e.Path == "" {
		return "zsync: " + e.Op + ": " + e.Err.Error()
	}
	return "zsync: " + e.Op + " " + e.Path + ": " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// opError gives err its operation and path, once: an error that already
// carries them is passed on as it is. opError(op, path, nil) is nil.
func opError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(*Error); ok {
		return err
	}
	return &Error{Op: op, Path: path, Err: err}
}

// invalid reports a bad argument: which one, and the rule it breaks.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// A ctxError is the end of a context as an error: it is both the context's Err
// and its cause.
type ctxError struct{ err, cause error }

func (e *ctxError) Error() string   { return e.cause.Error() }
func (e *ctxError) Unwrap() []error { return []error{e.cause, e.err} }

func isCtxError(err error) bool {
	var e *ctxError
	return errors.As(err, &e)
}

// ctxErr returns the error of a context that has ended, so that both
// ctx.Err() and context.Cause(ctx) match it.
func ctxErr(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || cause == err {
		return err
	}
	return &ctxError{err: err, cause: cause}
}

// errEnded means the ZooKeeper session in which a request was to run is over.
// It never leaves the package: what only waits goes on in the next session,
// what was held is reported as ErrLost.
var errEnded = errors.New("zsync: incarnation ended")

// errUnsent is what the transport reports when a request certainly did not
// reach a server.
var errUnsent = zk.ErrNoServer

// An outcome says what is known of a request after its reply, or the lack of
// one.
type outcome int

const (
	answered outcome = iota // the server answered: with a result or with an error of its own
	unsent                  // it never left this client
	unknown                 // it was or may have been sent, and no answer came
)

// outcomeOf tells what err, as returned by a [zk.Conn], says about the request.
//
// Whatever is not provably unsent or answered is unknown: a failed write comes
// back as the raw error of the network, so the list is of answers, not of
// failures.
func outcomeOf(err error) outcome {
	switch err {
	case nil,
		zk.ErrAPIError, zk.ErrNoNode, zk.ErrNoAuth, zk.ErrBadVersion,
		zk.ErrNoChildrenForEphemerals, zk.ErrNodeExists, zk.ErrNotEmpty,
		zk.ErrInvalidACL, zk.ErrAuthFailed, zk.ErrNothing,
		zk.ErrReconfigDisabled, zk.ErrBadArguments,
		zk.ErrInvalidPath, zk.ErrInvalidFlags, zk.ErrShortBuffer:
		return answered
	case errUnsent, zk.ErrSessionMoved:
		// A server that has seen the session move ignores the request.
		return unsent
	}
	if isCtxError(err) {
		return unknown // whatever its cause is
	}
	if errors.Is(err, zk.ErrInvalidFlags) {
		return answered
	}
	// Codes that go-zookeeper has no name for. ConnectionLoss (-4) and
	// OperationTimeout (-7) are a server's own "I do not know".
	switch code, ok := strings.CutPrefix(err.Error(), "unknown error: "); {
	case !ok, code == "-4", code == "-7":
		return unknown
	case code == "-127":
		return unsent // Throttled: the server has put the request aside
	}
	return answered
}

// isNoNode and its like say that a server answered so.
func isNoNode(err error) bool     { return isAnswer(err, zk.ErrNoNode) }
func isNodeExists(err error) bool { return isAnswer(err, zk.ErrNodeExists) }
func isBadVersion(err error) bool { return isAnswer(err, zk.ErrBadVersion) }

// isAnswer keeps apart what a server has answered and what a context has ended
// with. The cause of a context may be the answer to another request: errgroup
// cancels all goroutines with the error of the first that failed.
func isAnswer(err, answer error) bool { return errors.Is(err, answer) && !isCtxError(err) }

// isUnimplemented reports that the server is too old for the request.
func isUnimplemented(err error) bool { return err != nil && err.Error() == "unknown error: -6" }

// joinErrors is errors.Join, but a single error stays itself.
func joinErrors(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}
