package wire

// This file converts the error codes of a server to errors.

import (
	"fmt"

	"github.com/go-zookeeper/zk"
)

// zkErrors maps a server's code to go-zookeeper's error.
var zkErrors = map[int32]error{
	0: nil, -8: zk.ErrBadArguments, -100: zk.ErrAPIError, CodeNoNode: zk.ErrNoNode, -102: zk.ErrNoAuth,
	CodeBadVersion: zk.ErrBadVersion, CodeNoChildren: zk.ErrNoChildrenForEphemerals,
	CodeNodeExists: zk.ErrNodeExists, CodeNotEmpty: zk.ErrNotEmpty, CodeSessionExpired: zk.ErrSessionExpired,
	-114: zk.ErrInvalidACL, -115: zk.ErrAuthFailed, -116: zk.ErrClosing, -117: zk.ErrNothing,
	CodeSessionMoved: zk.ErrSessionMoved, -123: zk.ErrReconfigDisabled,
}

// Error returns the error for a server's code. If go-zookeeper has no error for the code, the
// result is a Code.
func Error(code int32) error {
	if err, ok := zkErrors[code]; ok {
		return err
	}
	return Code(code)
}

// A Code is a server's code for which go-zookeeper has no error.
type Code int32

// codeTexts maps a Code to its meaning.
var codeTexts = map[Code]string{
	-1:                   "the server failed",
	-2:                   "another operation of the transaction failed",
	-3:                   "the server's data are inconsistent",
	CodeConnectionLoss:   "the server lost its connection to the others",
	-5:                   "the server could not read the request",
	CodeUnimplemented:    "the server does not know this request: it is too old, or it is not ZooKeeper",
	CodeOperationTimeout: "the server did not get an answer in time",
	-119:                 "the server is in read-only mode",
	-120:                 "the server keeps sessions to itself, and makes no ephemeral znode in one: set localSessionsUpgradingEnabled=true beside localSessionsEnabled",
	-122:                 "the request took the server too long",
	CodeWantsAuth:        "the server demands that clients authenticate (zookeeper.enforce.auth.enabled, or zookeeper.sessionRequireClientSASLAuth): give credentials of a scheme that it enforces with WithAuth or WithSASL",
	-125:                 "the quota of a znode above the path is exceeded (setquota)",
	CodeThrottled:        "the server has too much to do",
}

func (e Code) Error() string {
	text, ok := codeTexts[e]
	if !ok {
		text = "unknown error"
	}
	return fmt.Sprintf("%s (server's code %d)", text, int32(e))
}

// Is makes errors.Is return true for CodeWantsAuth and zk.ErrAuthFailed, the error of refused
// credentials.
func (e Code) Is(err error) bool { return e == CodeWantsAuth && err == zk.ErrAuthFailed }
