package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/go-zookeeper/zk"
)

func TestCase10WhatIsNotProvablyAnsweredOrUnsentIsUnknown(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want outcome
	}{
		{nil, Answered},
		{zk.ErrNoNode, Answered},
		{zk.ErrNodeExists, Answered},
		{zk.ErrBadVersion, Answered},
		{zk.ErrNoAuth, Answered},
		{codeErr(-6), Answered},
		{codeErr(-125), Answered},
		{codeErr(-99999), Answered},
		{fmt.Errorf("x: %w", zk.ErrInvalidFlags), Answered},
		{zk.ErrNoServer, unsent},
		{codeErr(-124), unsent},
		{codeErr(-127), unsent},
		{zk.ErrConnectionClosed, Unknown},
		{zk.ErrClosing, Unknown},
		{zk.ErrSessionExpired, Answered}, // over several connections
		{zk.ErrSessionMoved, unsent},
		{codeErr(-4), Unknown},
		{codeErr(-7), Unknown},
		{io.EOF, Unknown},
		{os.ErrDeadlineExceeded, Unknown},
		{&net.OpError{Op: "write", Err: errors.New("broken pipe")}, Unknown},
	} {
		if got := OutcomeOf(tt.err); got != tt.want {
			t.Errorf("outcomeOf(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

// A context may have ended with what a server has answered to another.
func TestAContextThatHasEndedSaysNothingOfAServer(t *testing.T) {
	for _, cause := range []error{zk.ErrNoNode, zk.ErrNoAuth, codeErr(-6), codeErr(-127), codeErr(-124)} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		err := CtxErr(ctx)
		if IsNoNode(err) || IsAnswer(err, zk.ErrNoAuth) || isUnimplemented(err) || OutcomeOf(err) != Unknown {
			t.Errorf("%v: %v, %v, %v, %v", cause, IsNoNode(err), IsAnswer(err, zk.ErrNoAuth), isUnimplemented(err), OutcomeOf(err))
		}
	}
}
