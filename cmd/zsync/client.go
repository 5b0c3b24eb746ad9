package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/marks"
)

// This file has the global flags for the ensemble. It also connects to the ensemble, and turns
// errors and signals into exit statuses. security.go has the flags for security.

// The type `client` has the global flags for the ensemble.
type client struct {
	*host
	servers string
	session time.Duration
	connect time.Duration
	owner   string
	auth    []string
	authIn  string // the name of a file
	sasl    saslFlags
	acl     []string
	tls     tlsFlags
	verbose bool
	trace   string // the name of a file
	log     slog.Handler
}

// connectTimeout is the default of --connect-timeout.
const connectTimeout = 15 * time.Second

func newClient(h *host, root *cobra.Command) *client {
	c := &client{host: h, log: slog.DiscardHandler}
	flags := root.PersistentFlags()
	flags.StringVar(&c.servers, "servers", h.getenv("ZSYNC_SERVERS"), "connect string `HOST:PORT,...[/PATH]` (environment: ZSYNC_SERVERS)")
	flags.Lookup("servers").DefValue = "" // help does not show the variable's value
	c.session, c.connect = 10*time.Second, connectTimeout
	flags.Var((*seconds)(&c.session), "session", "session `TIMEOUT`: how long others wait for a lock whose holder died")
	flags.Var((*seconds)(&c.connect), "connect-timeout", "wait at most `TIME` for the first connection; 0: no limit")
	flags.StringVar(&c.owner, "owner", "", "`NAME` of this process in the znodes, for people (default host:pid)")
	flags.StringArrayVar(&c.auth, "auth", nil, "`SCHEME:CREDENTIALS`, such as digest:user:password; may be repeated; every user of the machine can see it (environment, which others cannot see: ZSYNC_AUTH)")
	flags.StringVar(&c.authIn, "auth-file", "", "`FILE` with SCHEME:CREDENTIALS, one a line")
	flags.StringArrayVar(&c.acl, "acl", nil, "ACL of created znodes: `SCHEME:ID:PERMS` (PERMS: some of the letters cdrwa); or the word open, or creator; may be repeated (default: creator with credentials, open without)")
	c.sasl.add(root)
	c.tls.add(root)
	flags.StringVar(&c.trace, "trace", h.getenv("ZSYNC_TRACE"), "append a trace of all holds to `FILE`, for zsync verify (environment: ZSYNC_TRACE)")
	flags.Lookup("trace").DefValue = ""
	flags.BoolVarP(&c.verbose, "verbose", "v", false, "print waits, and changes of the connection")
	return c
}

var errNoServers = fail(exitConfig, "no servers: give --servers or set ZSYNC_SERVERS (zsync server runs one, in memory)")

// The method `open` connects to the ensemble. It fails if no server answers before ctx ends or
// --connect-timeout has passed.
func (c *client) open(ctx context.Context) (*zsync.Session, error) {
	if c.servers == "" {
		return nil, errNoServers
	}
	opts := []zsync.Option{zsync.WithSessionTimeout(c.session)}
	if within := c.within(); c.owner != "" || len(within) > 0 {
		opts = append(opts, zsync.WithOwner(marks.Within(cmp.Or(c.owner, defaultOwner()), within)))
	}
	secured := make(chan error, 1)
	var secure []zsync.Option
	go func() { // its files may be pipes without a writer
		var err error
		secure, err = c.security()
		secured <- err
	}()
	select {
	case err := <-secured:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, verdict(context.Cause(ctx), exitConfig)
	}
	opts = append(opts, secure...)
	if c.verbose {
		c.log = slog.NewTextHandler(c.messages, nil)
	}
	opts = append(opts, zsync.WithLogger(slog.New(c.log)))
	if c.trace != "" {
		f, err := c.openTrace(ctx, c.trace) // it stays open until the end of the process
		switch {
		case ctx.Err() != nil:
			return nil, verdict(err, exitConfig)
		case err != nil:
			return nil, fail(exitConfig, "%w", err)
		}
		opts = append(opts, zsync.WithTrace(f))
	}
	if c.dial != nil {
		opts = append(opts, zsync.WithDialer(c.dial))
	}
	ctx, stop := within(ctx, c.connect, "no server answered within %v")
	defer stop()
	s, err := zsync.Connect(ctx, c.servers, opts...)
	if err != nil {
		return nil, verdict(err, exitServers)
	}
	return s, nil
}

// defaultOwner returns the library's default owner.
func defaultOwner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

// The function `verdict` adds an exit status to an error that has none. The argument `late` is the
// status for a wait that took too long.
func verdict(err error, late int) error {
	var has *statusError
	var sig *signalError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &has):
		return has
	case errors.As(err, &sig):
		return &statusError{128 + sig.number(), sig}
	case errors.Is(err, zsync.ErrInvalid), errors.Is(err, zsync.ErrTooLarge), errors.Is(err, zk.ErrInvalidACL):
		return &statusError{exitUsage, err}
	case errors.Is(err, zsync.ErrMixed), errors.As(err, new(*noNumberError)):
		return &statusError{exitConfig, err}
	case errors.Is(err, zk.ErrNoAuth), errors.Is(err, zk.ErrAuthFailed), errors.Is(err, zsync.ErrUnprotected):
		return &statusError{exitRefused, err}
	case errors.Is(err, context.DeadlineExceeded):
		return &statusError{late, err}
	case errors.Is(err, zsync.ErrLost):
		return &statusError{exitLost, err}
	}
	return &statusError{exitServers, err}
}

// A signalError is a signal that ended a wait or a command.
type signalError struct{ os.Signal }

func (e *signalError) Error() string { return "ended by signal: " + e.String() }

func (e *signalError) number() int {
	n, _ := e.Signal.(syscall.Signal)
	return int(n)
}

// hearAll returns a channel that receives the signals in passedOn.
func (h *host) hearAll() chan os.Signal {
	all := make(chan os.Signal, 16)
	h.hear(all, passedOn...)
	return all
}

// The method `hear` makes signals arrive at ch. It leaves out each signal that the parent process
// ignores, such as SIGHUP under nohup. zsync and its command ignore that signal, too.
func (h *host) hear(ch chan<- os.Signal, signals ...os.Signal) {
	for _, sig := range signals {
		if !h.signals.Ignored(sig) {
			h.signals.Notify(ch, sig)
		}
	}
}

// untilSignalOf returns a context that ends at the first signal that ends programs. After a call of
// `stop`, new signals stay in the channel `all`.
func untilSignalOf(ctx context.Context, all <-chan os.Signal) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stopped, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case sig := <-all:
				if ends(sig) {
					cancel(&signalError{sig})
					return
				}
			case <-stopped:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { close(stopped); <-gone }
}

// The function `ends` reports whether a signal ends a program. Other signals are only for the
// command.
func ends(sig os.Signal) bool {
	return sig == os.Interrupt || sig == syscall.SIGTERM || sig == syscall.SIGHUP || sig == syscall.SIGQUIT || sig == syscall.SIGALRM
}
