// Package sasl authenticates a client with a mechanism of SASL (RFC 4422). Package conn sends the
// tokens, and package session handles a failure.
package sasl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"
)

// A Mechanism is the client's side of a SASL mechanism. See SASLMechanism of the public package.
type Mechanism interface {
	Name() string
	Start(server string) ([]byte, error)
	Next(challenge []byte) ([]byte, error)
}

// A Client authenticates connections with one mechanism.
type Client struct {
	m     Mechanism
	begin func() Mechanism // returns the mechanism of one exchange
	turn  chan struct{}    // has an element while an exchange uses m; nil if `begin` returns a new mechanism each time
}

// NewClient returns a client that uses m. It returns nil if m is nil. If m can make several exchanges
// at the same time, its method Exchange returns a new Mechanism for each exchange.
func NewClient(m Mechanism) *Client {
	if m == nil {
		return nil
	}
	c := &Client{m: m, begin: func() Mechanism { return m }}
	if e, ok := m.(interface{ Exchange() Mechanism }); ok {
		c.begin = e.Exchange
	} else {
		c.turn = make(chan struct{}, 1)
	}
	return c
}

// A RefusedError means that the exchange has failed because of the server's answer.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

// Is reports whether `err` is zk.ErrAuthFailed: errors.Is finds that error in every RefusedError.
func (e *RefusedError) Is(err error) bool { return err == zk.ErrAuthFailed }

// mostRounds is the maximum number of tokens that the client sends in one exchange. If the exchange
// needs more, it fails. Usual mechanisms need up to four tokens.
const mostRounds = 20

// If a mechanism does not return, Close waits for it for the time `grace`.
const grace = time.Second

// Authenticate makes one exchange. The function `send` sends a token to the server and returns the
// token of the answer, or nil if the answer has no token. If ctx ends first, Authenticate returns.
// Then the caller must close the connection, so that `send` returns. In that case, `spawn` runs a
// function that waits up to a second until the mechanism has returned.
func (c *Client) Authenticate(ctx context.Context, spawn func(func()), server string, send func(token []byte) ([]byte, error)) error {
	if c.turn != nil {
		select {
		case c.turn <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("SASL %s: an earlier exchange has not ended: %w", c.m.Name(), context.Cause(ctx))
		}
	}
	done := make(chan error, 1)
	go func() {
		err := errors.New("the mechanism has ended its goroutine") // unless it returns
		defer func() { done <- err }()
		if c.turn != nil {
			defer func() { <-c.turn }()
		}
		err = c.exchange(server, send)
	}()
	// If both cases are ready, either is correct. Success comes only through the channel `done`.
	// If ctx has ended, the caller closes the connection, even if the exchange has just succeeded.
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("SASL %s: %w", c.m.Name(), err)
		}
		return nil
	case <-ctx.Done():
		spawn(func() {
			select {
			case <-done:
			case <-time.After(grace):
			}
		})
		return fmt.Errorf("SASL %s: the exchange was not finished in time: %w", c.m.Name(), context.Cause(ctx))
	}
}

func (c *Client) exchange(server string, send func(token []byte) ([]byte, error)) error {
	m := c.begin()
	token, err := m.Start(server)
	for range mostRounds {
		if err != nil {
			return err
		}
		answer, err := send(token)
		if err != nil {
			return err
		}
		if token, err = m.Next(answer); err != nil {
			return &RefusedError{err}
		}
		if token == nil {
			return nil
		}
	}
	return &RefusedError{errors.New("the server does not finish the exchange")}
}
