package zsync

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/sasl"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// An Option configures the Session of [Connect].
type Option func(*setup)

func newConfig(opts []Option) (setup, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	c := setup{conf: &session.Config{
		Timeout:      10 * time.Second,
		ACL:          zk.WorldACL(zk.PermAll),
		Log:          slog.New(warnings{slog.Default().Handler()}),
		Owner:        fmt.Sprintf("%s:%d", host, os.Getpid()),
		Lost:         lostError,
		Reason:       lossWord,
		CloseTimeout: -1, // the session timeout
		Retry:        session.RetryPolicy{Min: 10 * time.Millisecond, Max: 2 * time.Second, Factor: 2, Jitter: 0.5},
	}}
	session.ApplyEach("Session", opts, &c.err, func(o Option) { o(&c) })
	c.err = cmp.Or(c.err, Backoff(c.conf.Retry).check("WithRetry"))
	switch {
	case c.err != nil:
		return c, c.err
	case c.conf.Timeout < time.Millisecond || c.conf.Timeout > math.MaxInt32*time.Millisecond:
		return c, session.Invalid("session timeout %v is out of range; want from 1ms to %v (WithSessionTimeout)", c.conf.Timeout, math.MaxInt32*time.Millisecond)
	case len(c.conf.ACL) == 0:
		return c, session.Invalid("WithACL: the ACL is empty: no client could read or delete the znodes")
	case len(c.conf.Owner) > maxOwner:
		return c, session.Invalid("owner of %d bytes (WithOwner); the limit is %d", len(c.conf.Owner), maxOwner)
	}
	for _, a := range c.conf.Auths {
		switch {
		case a.Scheme == "":
			return c, session.Invalid("WithAuth: the scheme is empty; want one such as digest")
		case len(a.Scheme)+len(a.Credentials) > maxAuth:
			return c, session.Invalid("credentials of %d bytes (WithAuth); the limit is %d", len(a.Credentials), maxAuth)
		}
	}
	return c, nil
}

const (
	maxOwner = 4096     // largest number of bytes of the owner, which is the data of every znode of a line
	maxAuth  = 64 << 10 // largest number of bytes of credentials, which are sent on every connection
)

// WithSessionTimeout asks for a session timeout of d, 10 s by default; the servers may grant
// another ([Session.Timeout]). Waiters wait that long after a holder dies, and a disconnected
// holder keeps its lock that long.
func WithSessionTimeout(d time.Duration) Option { return func(c *setup) { c.conf.Timeout = d } }

// WithACL sets the ACL of every znode that the Session creates; the default is open to the world.
// With another ACL, the parent znodes of primitives are persistent, and calls that write return
// [ErrUnprotected] if the ACL of an existing znode permits other clients more than acl does. A
// client with the delete permission above a path can still delete an empty parent.
func WithACL(acl []zk.ACL) Option {
	return func(c *setup) { c.conf.ACL = append([]zk.ACL(nil), acl...) }
}

// WithAuth adds credentials, such as "digest" and "user:password", which the Session sends first
// on every connection. If the servers refuse them, the Session ends with go-zookeeper's
// ErrAuthFailed. The default is none.
func WithAuth(scheme string, credentials []byte) Option {
	return func(c *setup) {
		c.conf.Auths = append(c.conf.Auths, conn.Auth{Scheme: scheme, Credentials: append([]byte(nil), credentials...)})
	}
}

// WithSASL authenticates with m on every connection, before any other request. A token takes 1
// round trip ([SASLDigestMD5] needs 2). If every server refuses the client, or the credentials are
// unusable, the Session ends; the error names the mechanism and matches go-zookeeper's
// ErrAuthFailed. Give a mechanism with state to one call of WithSASL only. The default is none.
func WithSASL(m SASLMechanism) Option {
	client := sasl.NewClient(m)
	return Option(checked(func(c *setup) { c.conf.SASL = client }, m != nil, "WithSASL(nil): the mechanism is nil; leave the option out to connect without SASL"))
}

// A SASLMechanism is the client's side of a mechanism of SASL (RFC 4422), for [WithSASL]. The
// exchanges of one mechanism never overlap.
type SASLMechanism interface {
	Name() string // such as DIGEST-MD5, for errors
	// Start begins an exchange with server (host:port) and returns the first token, which may be
	// empty. After go-zookeeper's ErrAuthFailed, the Session ends; after others, it tries again.
	Start(server string) ([]byte, error)
	// Next returns the token that answers challenge, or nil if the exchange has succeeded. The
	// challenge may be nil. After an error, the Session tries each other server once.
	Next(challenge []byte) ([]byte, error)
}

// SASLDigestMD5 is DIGEST-MD5 (RFC 2831) with ZooKeeper's choices: the service is
// zookeeper/zk-sasl-md5, and the qop is auth. The client checks that the server knows the password.
// Use it with [WithTLS]: a listener can guess the password from the tokens, and later packets are
// not protected. Servers before ZooKeeper 3.9.3 have a fault, see docs/operations.md.
func SASLDigestMD5(user, password string) SASLMechanism { return sasl.DigestMD5(user, password) }

// WithTLS sets TLS (default: none). An empty ServerName is the server's host.
func WithTLS(cfg *tls.Config) Option {
	return Option(checked(func(c *setup) { c.conf.TLS = cfg }, cfg != nil, "WithTLS(nil): the configuration is nil; leave the option out to connect without TLS"))
}

// WithDialer connects through d, for instance to a test server in memory. d receives an address
// as the connect string has it. The default is TCP.
func WithDialer(d zk.Dialer) Option { return func(c *setup) { c.conf.Dialer = d } }

// WithCloseTimeout sets how long [Session.Close] waits for functions; then their holds are lost.
// The default is the session timeout; 0 is no wait.
func WithCloseTimeout(d time.Duration) Option {
	return Option(checked(func(c *setup) { c.conf.CloseTimeout = d }, d >= 0, "WithCloseTimeout(%v): must not be negative", d))
}

// WithLogger sends diagnostics to l. The handler of l must not block, and may call only methods
// that send no request. The default is warnings and errors to [slog.Default]; for none, use
// [slog.DiscardHandler].
func WithLogger(l *slog.Logger) Option {
	return func(c *setup) { c.conf.Log = cmp.Or(l, c.conf.Log) }
}

// WithOwner sets the text in the znodes of a line, which shows people the holder and the waiters.
// The default is "host:pid".
func WithOwner(name string) Option { return func(c *setup) { c.conf.Owner = name } }

// WithRetry paces reconnects and repeated requests. The default is from 10 ms to 2 s, doubled
// each time, with a Jitter of one half.
func WithRetry(b Backoff) Option { return func(c *setup) { c.conf.Retry = session.RetryPolicy(b) } }

// WithObserver reports events to o. The default is none.
func WithObserver(o Observer) Option { return func(c *setup) { c.conf.Observe = observed(o) } }

// WithTracer calls t around each operation. The default is none.
func WithTracer(t Tracer) Option { return func(c *setup) { c.tracer = t } }

// WithTrace records holds in w, as one JSON object a line: every grant, loss and release of a lock,
// permit, leadership, Once, double barrier or element of a Queue. "zsync verify" checks the traces
// of all processes together; docs/trace.md has the format. The default is none. Sessions may share
// an [*os.File] that was opened with O_APPEND: each Write has whole lines. No call waits for w: if
// w is too slow, a record says how many are missing. The first error is logged. Close waits half a
// second for w.
func WithTrace(w io.Writer) Option {
	return Option(checked(func(c *setup) { c.conf.Trace = w }, w != nil, "WithTrace(nil): the writer is nil; leave the option out to trace nothing"))
}

// WithLossOnSuspend treats a dropped connection as the loss of the session. The Session ends the
// lost session a tenth of the session timeout later. By default, a hold survives a reconnect within
// the session timeout.
func WithLossOnSuspend() Option { return func(c *setup) { c.conf.LossOnSuspend = true } }

// A warnings value is a handler that drops records below slog.LevelWarn. zsync derives no Logger.
type warnings struct{ slog.Handler }

func (w warnings) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && w.Handler.Enabled(ctx, l)
}

// A made value has the arguments that the constructor of every primitive takes.
type made struct {
	_    [0]sync.Mutex // makes go vet report a copy
	s    *Session
	path string
	err  error // the error in the constructor's arguments, or nil
}

// Path returns the path that the primitive was made with.
func (m *made) Path() string { return m.path }

// The method `misuse` returns the reason why a primitive cannot be used, or nil.
func (m *made) misuse() error {
	if m.s == nil && m.err == nil {
		return session.Invalid("a zero value; create the primitive with its New function, such as NewMutex(s, path)")
	}
	return m.err
}

// The method `wrap` adds the operation `op` to *err, as opError does. It is for defer statements.
func (m *made) wrap(op string, err *error) { *err = opError(op, m.path, *err) }

// The method `check` returns the reason why an operation cannot begin, or nil.
func (m *made) check(ctx context.Context) error {
	return cmp.Or(m.misuse(), session.CtxErr(ctx))
}

// The method `during` is Manager.During for an operation of m that needs no other check.
func (m *made) during(ctx context.Context, f func(inc *session.Incarnation) error) error {
	if err := m.misuse(); err != nil {
		return err
	}
	return m.s.m.During(ctx, f)
}

func checkNew(s *Session, path string, err error) error {
	return cmp.Or(s.misuse(), err, znodes.CheckPath(path))
}

// The function `watching` returns the channel of a method Watch or Observe of m. The function f
// sends on the channel, until ctx ends or the Session is closed.
func watching[T any](ctx context.Context, m *made, f func(ctx context.Context, out chan<- T) error) <-chan T {
	out := make(chan T)
	if m.misuse() != nil {
		close(out)
		return out
	}
	m.s.m.Spawn(func() {
		defer close(out)
		err := m.s.m.WhileOpen(ctx, func(ctx context.Context) error { return f(ctx, out) })
		if ctx.Err() == nil && m.s.m.Failure() == nil {
			m.s.m.Log.Error("zsync: cannot watch", "path", m.path, "err", err)
		}
	})
	return out
}
