package session

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
		zk.ErrSessionExpired, // see link.disowned
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
	var code codeErr
	switch ok := errors.As(err, &code); {
	case !ok, code == wire.CodeConnectionLoss, code == wire.CodeOperationTimeout: // a server's own "I do not know"
		return Unknown
	case code == wire.CodeThrottled, code == wire.CodeWantsAuth: // the server has put the request aside
		return unsent
	}
	return Answered
}

// codeErrors are go-zookeeper's errors for a server's codes.
var codeErrors = map[int32]error{
	0: nil, -8: zk.ErrBadArguments, -100: zk.ErrAPIError, wire.CodeNoNode: zk.ErrNoNode, -102: zk.ErrNoAuth,
	wire.CodeBadVersion: zk.ErrBadVersion, wire.CodeNoChildren: zk.ErrNoChildrenForEphemerals,
	wire.CodeNodeExists: zk.ErrNodeExists, wire.CodeNotEmpty: zk.ErrNotEmpty, wire.CodeSessionExpired: zk.ErrSessionExpired,
	-114: zk.ErrInvalidACL, -115: zk.ErrAuthFailed, -116: zk.ErrClosing, -117: zk.ErrNothing,
	wire.CodeSessionMoved: zk.ErrSessionMoved, -123: zk.ErrReconfigDisabled,
}

// codeError returns the error for a server's code: go-zookeeper's, or a codeErr.
func codeError(code int32) error {
	if err, ok := codeErrors[code]; ok {
		return err
	}
	return codeErr(code)
}

// A codeErr is a server's code for which go-zookeeper has no error.
type codeErr int32

// codeTexts say what the codes mean.
var codeTexts = map[codeErr]string{
	-1:                        "the server failed",
	-2:                        "another operation of the transaction failed",
	-3:                        "the server's data are inconsistent",
	wire.CodeConnectionLoss:   "the server lost its connection to the others",
	-5:                        "the server could not read the request",
	wire.CodeUnimplemented:    "the server does not know this request: it is too old, or it is not ZooKeeper",
	wire.CodeOperationTimeout: "the server did not get an answer in time",
	-119:                      "the server is in read-only mode",
	-120:                      "the server keeps sessions to itself, and makes no ephemeral znode in one: set localSessionsUpgradingEnabled=true beside localSessionsEnabled",
	-122:                      "the request took the server too long",
	wire.CodeWantsAuth:        "the server demands that clients authenticate (zookeeper.enforce.auth.enabled, or zookeeper.sessionRequireClientSASLAuth): give credentials of a scheme that it enforces with WithAuth; SASL is not supported",
	-125:                      "the quota of a znode above the path is exceeded (setquota)",
	wire.CodeThrottled:        "the server has too much to do",
}

func (e codeErr) Error() string {
	text, ok := codeTexts[e]
	if !ok {
		text = "unknown error"
	}
	return fmt.Sprintf("%s (server's code %d)", text, int32(e))
}

// Is has whoever looks for refused credentials find a demand for some, too.
func (e codeErr) Is(err error) bool { return e == wire.CodeWantsAuth && err == zk.ErrAuthFailed }

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
	return IsAnswer(err, codeErr(wire.CodeUnimplemented))
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
