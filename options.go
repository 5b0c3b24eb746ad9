package zsync

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// An Option changes how [Connect] sets a Session up.
type Option func(*config)

type config struct {
	session.Config
	err     error // of an option
	tracers tracers
}

func newConfig(opts []Option) (config, error) {
	c := config{Config: session.Config{
		Timeout:      10 * time.Second,
		ACL:          zk.WorldACL(zk.PermAll),
		Log:          slog.New(warnings{slog.Default().Handler()}),
		Owner:        defaultOwner(),
		Lost:         lostError,
		Reason:       lossWord,
		CloseTimeout: -1, // the session timeout
		Retry:        session.Backoff{Min: 10 * time.Millisecond, Max: 2 * time.Second, Factor: 2, Jitter: 0.5},
	}}
	for i, o := range opts {
		if o == nil {
			return c, session.Invalid("option %d is nil", i)
		}
		o(&c)
	}
	switch {
	case c.err != nil:
		return c, c.err
	case c.Timeout < time.Millisecond || c.Timeout > math.MaxInt32*time.Millisecond:
		return c, session.Invalid("session timeout %v is out of range; want from 1ms to %v", c.Timeout, math.MaxInt32*time.Millisecond)
	case len(c.ACL) == 0:
		return c, session.Invalid("ACL is empty: nobody could read or delete what is created")
	case len(c.Owner) > maxOwner:
		return c, session.Invalid("owner of %d bytes is too long; the limit is %d", len(c.Owner), maxOwner)
	}
	if err := Backoff(c.Retry).check(); err != nil {
		return c, err
	}
	for _, a := range c.Auths {
		switch {
		case a.Scheme == "":
			return c, session.Invalid("auth scheme is empty; want one such as digest")
		case len(a.Scheme)+len(a.Credentials) > maxAuth:
			return c, session.Invalid("credentials of %d bytes are too long; the limit is %d", len(a.Credentials), maxAuth)
		}
	}
	return c, nil
}

// maxOwner bounds the name that is written into every znode of a line.
const maxOwner = 4096

// maxAuth bounds what is sent on every connection.
const maxAuth = 64 << 10

func defaultOwner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

// WithSessionTimeout asks for a session timeout of d; the server may negotiate
// another. A holder that is cut off gives up a tenth of it early, and
// others can go on when it has passed. The default is 10 s.
func WithSessionTimeout(d time.Duration) Option { return func(c *config) { c.Timeout = d } }

// WithACL sets the ACL of every znode that the Session creates. The default is
// open to the world.
//
// With another ACL the directories of primitives are persistent, and one that
// somebody else has made is used only if nobody may change it who could not by
// acl; else calls that write fail with [ErrUnprotected]. Whoever may delete in
// the parent of a primitive's path can still delete an empty directory.
func WithACL(acl []zk.ACL) Option {
	return func(c *config) { c.ACL = append([]zk.ACL(nil), acl...) }
}

// WithAuth adds credentials, for instance "digest" and "user:password". They
// are sent on every connection ahead of any other request. Credentials that
// the server refuses end the Session with go-zookeeper's ErrAuthFailed.
func WithAuth(scheme string, credentials []byte) Option {
	return func(c *config) {
		c.Auths = append(c.Auths, session.Auth{Scheme: scheme, Credentials: append([]byte(nil), credentials...)})
	}
}

// WithTLS encrypts the connections. An empty ServerName is taken from the
// address of the server.
func WithTLS(cfg *tls.Config) Option {
	return func(c *config) {
		if c.TLS = cfg; cfg == nil {
			c.err = session.Invalid("WithTLS(nil): the configuration is nil; leave the option out to connect without TLS")
		}
	}
}

// WithDialer connects through d instead of TCP, for instance through the
// in-memory transport of a test server. d is given the address as it stands in
// the connect string.
func WithDialer(d zk.Dialer) Option { return func(c *config) { c.Dialer = d } }

// WithCloseTimeout sets how long [Session.Close] waits for running functions of Do, Run and Work
// to return. After d, what they hold is lost, and another session can get it. The default is the
// session timeout. With 0, Close does not wait.
func WithCloseTimeout(d time.Duration) Option {
	return func(c *config) {
		if c.CloseTimeout = d; d < 0 {
			c.err = session.Invalid("WithCloseTimeout(%v): must not be negative", d)
		}
	}
}

// WithLogger sends diagnostics to l. By default warnings and errors go to
// [slog.Default], and nothing else; a logger with [slog.DiscardHandler] gets none. What is true of
// an [Observer] is true of l's handler: it must not block, and may ask for what
// is known without a request.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) {
		if l != nil {
			c.Log = l
		}
	}
}

// WithOwner sets the text that is written into the znodes of a line, so that
// people see who holds and who waits. The default is "host:pid".
func WithOwner(name string) Option { return func(c *config) { c.Owner = name } }

// WithRetry paces reconnects and repeated requests. The default begins at
// 10 ms and doubles up to 2 s, each delay shortened at random by up to half.
func WithRetry(b Backoff) Option { return func(c *config) { c.Retry = session.Backoff(b) } }

// WithObserver reports events to o: acquisitions, losses, reconnects. For spans there is
// [WithTracer].
func WithObserver(o Observer) Option {
	return func(c *config) {
		c.Observe = observed(o)
	}
}

// WithTracer calls t at the start and at the end of each operation.
func WithTracer(t Tracer) Option { return func(c *config) { c.tracers.tracer = t } }

// WithTrace writes to w who was granted what, and when it was lost or given up:
// every grant, loss and release of a lock, permit, leadership, Once, part in a
// double barrier or element of a Queue, with the transactions of ZooKeeper that
// prove their order. The format is that of docs/trace.md, one JSON object a line.
// "zsync verify" judges the traces of all processes together: never two holders,
// tokens in order, losses told in time, no element removed twice.
//
// Each Write is of whole lines, and no two are at the same time. Sessions may
// write to one *os.File that was opened with O_APPEND. Nothing waits for w: a
// trace that cannot be written in time has a line that says how many are missing,
// and the first error is logged. Close waits for w for half a second.
//
// # Cost
//
// No request. Between 200 and 400 bytes a line; a grant and its release are three.
// Elements that are claimed, or settled, together have one line, with some 40 bytes
// for each.
func WithTrace(w io.Writer) Option {
	return func(c *config) {
		if c.Trace = w; w == nil {
			c.err = session.Invalid("WithTrace(nil): the writer is nil; leave the option out to trace nothing")
		}
	}
}

// WithLossOnSuspend counts a dropped connection as the loss of the session, which
// is then ended over another connection, a tenth of its timeout later. Without it a hold survives a reconnect within the session's timeout.
func WithLossOnSuspend() Option { return func(c *config) { c.LossOnSuspend = true } }

// A Backoff paces attempts. The first repetition of anything is immediate, as
// a dropped connection is usually replaced at once. The delay before the n'th
// after it is Min × Factorⁿ⁻¹, at most Max, shortened at random by up to the
// part Jitter of it.
type Backoff struct {
	Min, Max time.Duration
	Factor   float64 // at least 1; 0 means 2
	Jitter   float64 // from 0 to 1
}

func (b Backoff) check() error {
	switch {
	case b.Min <= 0 || b.Max < b.Min:
		return session.Invalid("backoff from %v to %v; want 0 < Min <= Max", b.Min, b.Max)
	case b.Factor != 0 && b.Factor < 1 || math.IsNaN(b.Factor):
		return session.Invalid("backoff factor %v is below 1", b.Factor)
	case b.Jitter < 0 || b.Jitter > 1 || math.IsNaN(b.Jitter):
		return session.Invalid("backoff jitter %v is not within 0 and 1", b.Jitter)
	}
	return nil
}

// warnings is a handler without what is below a warning.
type warnings struct{ slog.Handler }

func (w warnings) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && w.Handler.Enabled(ctx, l)
}

func (w warnings) WithAttrs(as []slog.Attr) slog.Handler { return warnings{w.Handler.WithAttrs(as)} }
func (w warnings) WithGroup(name string) slog.Handler    { return warnings{w.Handler.WithGroup(name)} }
