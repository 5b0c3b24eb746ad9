package session

// This file has the errors of a session, and derives the outcome of a request from its error. The
// root package makes the public errors.

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/wire"
)

// The root package makes these errors public, and says what they mean.
var (
	ErrLost        = errors.New("lost")
	ErrClosed      = errors.New("session closed")
	ErrTooLarge    = errors.New("larger than ZooKeeper's packet limit of 1 MiB")
	ErrUnprotected = errors.New("the ACL is wider than WithACL allows")
	ErrInvalid     = errors.New("invalid argument")
)

// ErrEnded means that the ZooKeeper session of a request is over. The library never returns it to
// the program: waiters continue in the next session, and the error for the loss of a hold is
// ErrLost.
var ErrEnded = errors.New("incarnation ended")

// errUnserved matches the error of a context that has ended while no server answered: see
// Manager.unserved.
var errUnserved = errors.New("no server answered")

// ErrVanished means that another client has deleted a znode of this client.
var ErrVanished = errors.New("own znode vanished")

// CtxErr returns the error of a context that has ended, so that both
// ctx.Err() and context.Cause(ctx) match it.
func CtxErr(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || cause == err {
		return err
	}
	return &ctxError{err: err, cause: cause}
}

type ctxError struct{ err, cause error }

func (e *ctxError) Error() string   { return e.cause.Error() }
func (e *ctxError) Unwrap() []error { return []error{e.cause, e.err} }

// A worded error matches another error, but has a text of its own.
type worded struct {
	text string
	err  error
}

func (e *worded) Error() string { return e.text }
func (e *worded) Unwrap() error { return e.err }

// Worded returns an error with this text that matches err.
func Worded(text string, err error) error { return &worded{text, err} }

func isCtxError(err error) bool {
	var e *ctxError
	return errors.As(err, &e)
}

// The type `outcome` is the client's present knowledge about a request. A later reply may add to it.
type outcome int

const (
	Answered outcome = iota // the server answered, with a result or an error
	Unsent                  // the request never left this client, or the server has ignored it
	Unknown                 // the client has perhaps sent it, and has no reply
)

// OutcomeOf returns the outcome of a request that failed with err: Unknown if the error proves neither
// Unsent nor Answered. A failed write can return any error of the network, so OutcomeOf lists the
// errors that a reply can have.
func OutcomeOf(err error) outcome {
	switch err {
	case nil,
		zk.ErrAPIError, zk.ErrNoNode, zk.ErrNoAuth, zk.ErrBadVersion,
		zk.ErrNoChildrenForEphemerals, zk.ErrNodeExists, zk.ErrNotEmpty,
		zk.ErrSessionExpired, // see conn.Conn.disowned
		zk.ErrInvalidACL, zk.ErrAuthFailed, zk.ErrNothing,
		zk.ErrReconfigDisabled, zk.ErrBadArguments:
		return Answered
	case conn.ErrUnsent, zk.ErrSessionMoved:
		// A server that knows that the session has moved ignores the request.
		return Unsent
	}
	if isCtxError(err) {
		return Unknown // whatever its cause is
	}
	if w, ok := err.(*worded); ok {
		return OutcomeOf(w.err)
	}
	var code wire.Code
	switch ok := errors.As(err, &code); {
	case !ok, code == wire.CodeConnectionLoss, code == wire.CodeOperationTimeout: // the server itself does not know
		return Unknown
	case code == wire.CodeThrottled, code == wire.CodeWantsAuth: // the server has not executed the request
		return Unsent
	}
	return Answered
}

// IsNoNode reports whether a server has answered that a znode does not exist.
func IsNoNode(err error) bool { return IsAnswer(err, zk.ErrNoNode) }

// IsNodeExists reports whether a server has answered that a znode exists already.
func IsNodeExists(err error) bool { return IsAnswer(err, zk.ErrNodeExists) }

// IsBadVersion reports whether a server has answered that a znode has another version.
func IsBadVersion(err error) bool { return IsAnswer(err, zk.ErrBadVersion) }

// IsAnswer reports whether a server has returned the error `answer`. It is false if err only says
// that a context has ended: its cause may be the answer to another request, as with errgroup.
func IsAnswer(err, answer error) bool { return errors.Is(err, answer) && !isCtxError(err) }

// IsUnimplemented reports whether the server is too old for the request.
func IsUnimplemented(err error) bool {
	return IsAnswer(err, wire.Code(wire.CodeUnimplemented))
}

// JoinErrors is errors.Join, but it returns a single error unchanged.
func JoinErrors(errs []error) error {
	if errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil }); len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// Invalid returns an error for a bad argument. The error names the argument and the rule.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
