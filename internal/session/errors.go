package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
)

var (

	// ErrLost means that what was held is gone, or may be as far as this
	// client can know: its ZooKeeper session ended, or somebody deleted its
	// znode. The error says why.
	ErrLost = errors.New("lost")

	// ErrClosed means the Session was closed.
	ErrClosed = errors.New("session closed")

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

// ErrEnded means the ZooKeeper session in which a request was to run is over.
// It never leaves the package: what only waits goes on in the next session,
// what was held is reported as ErrLost.
var ErrEnded = errors.New("zsync: incarnation ended")

// errUnsent is what the transport reports when a request certainly did not
// reach a server.
var errUnsent = zk.ErrNoServer

// ErrVanished means that somebody deleted the znode of a claim.
var ErrVanished = errors.New("zsync: own znode vanished")

// CtxErr returns the error of a context that has ended, so that both
// ctx.Err() and context.Cause(ctx) match it.
func CtxErr(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || cause == err {
		return err
	}
	return &ctxError{err: err, cause: cause}
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

// An outcome says what is known of a request after its reply, or the lack of
// one.
type outcome int

const (
	Answered outcome = iota // the server answered: with a result or with an error of its own
	unsent                  // it never left this client
	Unknown                 // it was or may have been sent, and no answer came
)

// OutcomeOf tells what err, as returned by a [zk.Conn], says about the request.
//
// Whatever is not provably unsent or answered is unknown: a failed write comes
// back as the raw error of the network, so the list is of answers, not of
// failures.
func OutcomeOf(err error) outcome {
	switch err {
	case nil,
		zk.ErrAPIError, zk.ErrNoNode, zk.ErrNoAuth, zk.ErrBadVersion,
		zk.ErrNoChildrenForEphemerals, zk.ErrNodeExists, zk.ErrNotEmpty,
		zk.ErrInvalidACL, zk.ErrAuthFailed, zk.ErrNothing,
		zk.ErrReconfigDisabled, zk.ErrBadArguments,
		zk.ErrInvalidPath, zk.ErrInvalidFlags, zk.ErrShortBuffer:
		return Answered
	case errUnsent, zk.ErrSessionMoved:
		// A server that has seen the session move ignores the request.
		return unsent
	}
	if isCtxError(err) {
		return Unknown // whatever its cause is
	}
	if errors.Is(err, zk.ErrInvalidFlags) {
		return Answered
	}
	// Codes that go-zookeeper has no name for. ConnectionLoss (-4) and
	// OperationTimeout (-7) are a server's own "I do not know".
	switch code, ok := strings.CutPrefix(err.Error(), "unknown error: "); {
	case !ok, code == "-4", code == "-7":
		return Unknown
	case code == "-127":
		return unsent // Throttled: the server has put the request aside
	}
	return Answered
}

// codeErrors are go-zookeeper's errors for a server's codes.
var codeErrors = map[int32]error{
	0: nil, -8: zk.ErrBadArguments, -100: zk.ErrAPIError, wire.CodeNoNode: zk.ErrNoNode, -102: zk.ErrNoAuth,
	wire.CodeBadVersion: zk.ErrBadVersion, wire.CodeNoChildren: zk.ErrNoChildrenForEphemerals,
	wire.CodeNodeExists: zk.ErrNodeExists, wire.CodeNotEmpty: zk.ErrNotEmpty, -112: zk.ErrSessionExpired,
	-114: zk.ErrInvalidACL, -115: zk.ErrAuthFailed, -116: zk.ErrClosing, -117: zk.ErrNothing,
	-118: zk.ErrSessionMoved, -123: zk.ErrReconfigDisabled,
}

// codeError returns the error that go-zookeeper has for a server's code, worded
// as its own where it has none.
func codeError(code int32) error {
	if err, ok := codeErrors[code]; ok {
		return err
	}
	return fmt.Errorf("unknown error: %d", code)
}

// IsNoNode and its like say that a server answered so.
func IsNoNode(err error) bool     { return IsAnswer(err, zk.ErrNoNode) }
func IsNodeExists(err error) bool { return IsAnswer(err, zk.ErrNodeExists) }
func IsBadVersion(err error) bool { return IsAnswer(err, zk.ErrBadVersion) }

// IsAnswer keeps apart what a server has answered and what a context has ended
// with. The cause of a context may be the answer to another request: errgroup
// cancels all goroutines with the error of the first that failed.
func IsAnswer(err, answer error) bool { return errors.Is(err, answer) && !isCtxError(err) }

// isUnimplemented reports that the server is too old for the request.
func isUnimplemented(err error) bool {
	return err != nil && !isCtxError(err) && err.Error() == "unknown error: -6"
}

// JoinErrors is errors.Join, but a single error stays itself.
func JoinErrors(errs []error) error {
	if errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil }); len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

var (
	errHandshake = errors.New("zsync: handshake refused")
	ErrProtocol  = errors.New("zsync: not the ZooKeeper protocol")
)

// Invalid reports a bad argument: which one, and the rule it breaks.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
