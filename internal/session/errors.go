package session

// This file has the errors of a session, and the conclusion from an error about its request. The
// public errors are made of them elsewhere.

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
)

var (

	// ErrLost means that a hold is lost, or may be as far as this client can know: its ZooKeeper
	// session ended, or another client deleted its znode. The error says why.
	ErrLost = errors.New("lost")

	// ErrClosed means the Session was closed.
	ErrClosed = errors.New("session closed")

	// ErrTooLarge means a request would exceed ZooKeeper's packet limit of
	// 1 MiB (jute.maxbuffer). Nothing was sent.
	ErrTooLarge = errors.New("larger than ZooKeeper's packet limit of 1 MiB")

	// ErrUnprotected means that other clients may change a znode of another creator in more ways
	// than [WithACL] allows.
	ErrUnprotected = errors.New("others may change what is here")

	// ErrInvalid means an argument breaks a rule that the message names.
	// Nothing was sent.
	ErrInvalid = errors.New("invalid argument")
)

// ErrEnded means that the ZooKeeper session of a request is over. It never leaves the package:
// waiters continue in the next session, and a hold is reported as ErrLost.
var ErrEnded = errors.New("zsync: incarnation ended")

// errUnsent is the error of a request that certainly has not reached a server.
var errUnsent = zk.ErrNoServer

// ErrVanished means that another client deleted the znode of a claim.
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

// A ctxError is the end of a context as an error: it matches both the context's Err and its
// cause.
type ctxError struct{ err, cause error }

func (e *ctxError) Error() string   { return e.cause.Error() }
func (e *ctxError) Unwrap() []error { return []error{e.cause, e.err} }

func isCtxError(err error) bool {
	var e *ctxError
	return errors.As(err, &e)
}

// An outcome is the knowledge about a request after its reply, or after the lack of one.
type outcome int

const (
	Answered outcome = iota // the server answered, with a result or an error
	unsent                  // it never left this client
	Unknown                 // it was or may have been sent, and has no reply
)

// OutcomeOf returns the outcome of a request that failed with err.
//
// Every error that does not prove "unsent" or "answered" is unknown. A failed write returns the
// raw error of the network, so the function lists replies, not failures.
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
		// A server that knows that the session has moved ignores the request.
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
	case !ok, code == wire.CodeConnectionLoss, code == wire.CodeOperationTimeout: // the server itself does not know
		return Unknown
	case code == wire.CodeThrottled, code == wire.CodeWantsAuth: // the server has not executed the request
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

// codeTexts has the meanings of codes.
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
	wire.CodeWantsAuth:        "the server demands that clients authenticate (zookeeper.enforce.auth.enabled, or zookeeper.sessionRequireClientSASLAuth): give credentials of a scheme that it enforces with WithAuth or WithSASL",
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

// Is makes a demand for credentials match the error of refused credentials.
func (e codeErr) Is(err error) bool { return e == wire.CodeWantsAuth && err == zk.ErrAuthFailed }

// IsNoNode reports whether a server has answered that a znode does not exist.
func IsNoNode(err error) bool { return IsAnswer(err, zk.ErrNoNode) }

// IsNodeExists reports whether a server has answered that a znode exists already.
func IsNodeExists(err error) bool { return IsAnswer(err, zk.ErrNodeExists) }

// IsBadVersion reports whether a server has answered that a znode has another version.
func IsBadVersion(err error) bool { return IsAnswer(err, zk.ErrBadVersion) }

// IsAnswer reports whether a server has returned the error answer. It is false for the end of a
// context, even if its cause is the same error from another request: errgroup cancels all
// goroutines with the error of the first failure.
func IsAnswer(err, answer error) bool { return errors.Is(err, answer) && !isCtxError(err) }

// isUnimplemented reports whether the server is too old for the request.
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

// Invalid returns an error for a bad argument. It names the argument and the rule.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
