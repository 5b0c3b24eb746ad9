package session

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
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
		{wire.Code(-6), Answered},
		{wire.Code(-125), Answered},
		{wire.Code(-99999), Answered},
		{zk.ErrNoServer, Unsent},
		{wire.Code(-124), Unsent},
		{wire.Code(-127), Unsent},
		{zk.ErrConnectionClosed, Unknown},
		{zk.ErrClosing, Unknown},
		{zk.ErrSessionExpired, Answered}, // over several connections
		{zk.ErrSessionMoved, Unsent},
		{wire.Code(-4), Unknown},
		{wire.Code(-7), Unknown},
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
	for _, cause := range []error{zk.ErrNoNode, zk.ErrNoAuth, wire.Code(-6), wire.Code(-127), wire.Code(-124)} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		err := CtxErr(ctx)
		if IsNoNode(err) || IsAnswer(err, zk.ErrNoAuth) || IsUnimplemented(err) || OutcomeOf(err) != Unknown {
			t.Errorf("%v: %v, %v, %v, %v", cause, IsNoNode(err), IsAnswer(err, zk.ErrNoAuth), IsUnimplemented(err), OutcomeOf(err))
		}
	}
}

// A caller may compare the only error with ==.
func TestASingleErrorIsJoinedUnchanged(t *testing.T) {
	if err := JoinErrors([]error{nil, io.EOF, nil}); err != io.EOF {
		t.Errorf("%#v", err)
	}
	if err := JoinErrors([]error{nil, nil}); err != nil {
		t.Errorf("%v of no error", err)
	}
	wantErr(t, JoinErrors([]error{io.EOF, nil, ErrLost}), io.EOF, ErrLost)
}
