package zsync

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/double"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/shared"
	"github.com/zsync/zsync/internal/tally"
	"github.com/zsync/zsync/internal/turnstile"
)

// A Session is a program's connection to a ZooKeeper ensemble. All primitives
// made with it share it, and a program usually has one.
//
// Behind it stands one ZooKeeper session at a time. When the connection drops, the
// same session is continued over the next server that answers; holds and watches
// survive. When the session ends, or when it is no longer certain to live for
// another tenth of its timeout, everything held through it is lost and its holders
// are told, a new session is established, and calls that were only waiting carry on
// in it. A client that is cut off thus gives up its holds before the servers can
// give them to someone else, provided that the clocks of both run at about the same
// rate. Time in which the machine slept counts, by the wall clock; so setting that
// clock forward by as much causes a loss too.
//
// A Session may be used by many goroutines at once.
//
// # Cost
//
// A session through which nothing is held sends pings. One that holds something
// also sends two small requests every 11/40 of its timeout, unless the
// program's own have proved as much.
type Session struct {
	_ noCopy
	m *session.Manager

	tracers tracers

	tallies    tally.Tallies
	leftovers  double.Leftovers         // of Enter
	marks      shared.Map[string, mark] // by path of the mark
	ids        shared.Names             // of memberships in groups, by the path of the znode
	swept      shared.Pace              // by path of a Flight: when results of others were looked after
	retentions turnstile.Retentions
}

// Connect establishes a session with an ensemble.
//
// servers is a ZooKeeper connect string, "zk1:2181,zk2:2181/optional/chroot".
// A missing port is 2181. Every path is taken below the chroot, which is
// created when it is first needed.
//
// Connect returns once the first session is established. It keeps trying while
// no server answers, until ctx ends; then the error tells the last failure.
// ctx governs Connect alone: its end later on does not affect the Session.
//
// The errors are [ErrInvalid] for arguments, go-zookeeper's ErrAuthFailed where a
// server refuses the credentials of [WithAuth] or all servers demand others, and
// those of ctx. It costs one round trip besides the handshake of TCP or TLS.
func Connect(ctx context.Context, servers string, opts ...Option) (*Session, error) {
	hosts, chroot, err := parseServers(servers)
	if err != nil {
		return nil, opError("connect", "", err)
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, opError("connect", "", err)
	}
	if ctx.Err() != nil {
		return nil, opError("connect", "", session.CtxErr(ctx))
	}
	s := &Session{m: session.New(hosts, chroot, cfg.Config), tracers: cfg.tracers}
	s.tracers.owner, s.tracers.session = cfg.Owner, s.m.SessionID
	if err := s.m.Connect(ctx); err != nil {
		return nil, opError("connect", "", err)
	}
	return s, nil
}

// Close ends the ZooKeeper session, and with it every hold, and returns when all goroutines of s
// have ended. Closing a closed Session is no error. Calls in progress fail with [ErrClosed], and
// so do later ones.
//
// Close waits for running functions of Do, RDo, Run and [Queue.Work], and of [Once], [Schedule],
// [Partition] and [Flight]. It ends their contexts with cause ErrClosed. Until a function has
// returned, its hold stays held, and Token, Txn, Ack and Unlock work; the same is true of a lock
// that the function has acquired with its context. If the function succeeds, that counts: a Once
// or an instant of a Schedule is done, and an element is acknowledged. Any other lock is released
// at once. Nothing new is begun: other calls fail with ErrClosed.
//
// Close waits for the functions for [WithCloseTimeout], by default the session timeout. After
// that their holds are lost, and Lost and the errors say so, before another session can get
// them. Close does not wait for a function that calls it in its own goroutine.
//
// After the functions Close waits up to a second for work that only this process can finish: it
// returns elements of a Queue, makes changes of a [WaitGroup], deletes receipts, and waits until
// the candidate of [Election.Transfer] leads. If no server can be reached, the ephemeral znodes
// stay until the session timeout has passed.
//
// Close must not be called from an [Observer].
func (s *Session) Close() error {
	s.m.Close()
	return nil
}

// ID returns the id of the current ZooKeeper session, or 0 while there is none.
// It changes after an expiry.
func (s *Session) ID() int64 { return s.m.SessionID() }

// Timeout returns the session timeout that the servers have granted, which may
// differ from what [WithSessionTimeout] asked for. It is 0 while there is no
// session.
func (s *Session) Timeout() time.Duration { return s.m.Granted() }

// Margin returns for how much longer everything held through s is certain to be
// held if nothing more is heard from the servers. When it reaches 0 the loss is
// told. Others can be granted what was held no earlier than a tenth of
// [Session.Timeout] after that, so there is some time to stop. While nothing is
// held the servers are asked less, and Margin may be 0 in a session that is alive.
func (s *Session) Margin() time.Duration { return s.m.Certain() }

// State returns the present state.
func (s *Session) State() State { return State(s.m.State()) }

// A State is what a Session is doing.
type State int

// The states of a Session.
const (
	// StateConnecting: a new ZooKeeper session is being established.
	StateConnecting State = iota
	// StateConnected: a server answers.
	StateConnected
	// StateSuspended: the connection dropped. The session may survive, and
	// its holds with it, if a server is reached in time.
	StateSuspended
	// StateExpired: the session ended, and all that was held is lost.
	// StateConnecting follows.
	StateExpired
	// StateClosed: the end.
	StateClosed
)

// String returns the state in one word.
func (s State) String() string {
	switch s {
	case StateConnecting:
		return "connecting"
	case StateConnected:
		return "connected"
	case StateSuspended:
		return "suspended"
	case StateExpired:
		return "expired"
	case StateClosed:
		return "closed"
	}
	return fmt.Sprintf("State(%d)", int(s))
}

// States returns a channel of every change of state from now on, in order.
// None is dropped, however slowly the channel is read. The channel is closed
// when ctx ends, or after StateClosed.
//
// Close does not wait for a reader. The channel keeps 64 changes; if more are
// unread by then, a goroutine stays until they are read or ctx ends.
func (s *Session) States(ctx context.Context) <-chan State {
	return session.States[State](ctx, s.m)
}

// Stats are counters and gauges of a Session.
type Stats struct {
	Requests   int64 // requests sent since Connect, without pings and handshakes
	Watches    int64 // watches of the present ZooKeeper session
	Reconnects int64 // connections replaced within a session
	Expiries   int64 // sessions lost
	Holds      int64 // locks, permits, leaderships and claims held at present
	Waiters    int64 // waits for one at present; goroutines that share a place count once
}

// Stats returns the counters of s.
func (s *Session) Stats() Stats { return Stats(s.m.Stats()) }

// Txn applies several writes, all or none. ops are go-zookeeper's request
// types: *zk.CreateRequest, *zk.SetDataRequest, *zk.DeleteRequest and
// *zk.CheckVersionRequest. Paths are taken below the chroot. The responses
// stand in the order of ops.
//
// If one of them fails none is applied; the error is that operation's, and the
// responses tell which. If the connection drops before the reply, Txn finds
// out whether the writes were applied before it returns. The responses are then
// found out too, but for a Stat that others have changed since. The outcome
// remains unknown if the session is lost as well, with the error [ErrLost]; if
// ctx ends first; and if the connection drops where no receipt may be written.
//
// # Errors
//
// Other errors are [ErrInvalid] and [ErrTooLarge], before anything is sent, and
// [ErrClosed].
//
// # Znodes
//
// With each transaction a receipt is written: an ephemeral znode /_c_<guid>-txn
// at the root, or in the chroot, which later transactions of the session write
// again; there are as many as are under way at once. Where that is refused the
// receipt lies beside the first path that is created, or else the first that is
// named, and is deleted before Txn returns; but if the server is slow to do so,
// Txn does not wait long, and the receipt may still be there for a while.
//
// # Cost
//
// One round trip, one request.
func (s *Session) Txn(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	rs, err := s.m.Commit(ctx, ops)
	return rs, opError("txn", "", err)
}

// parseServers splits a connect string.
func parseServers(servers string) (hosts []string, chroot string, err error) {
	list := servers
	if i := strings.IndexByte(servers, '/'); i >= 0 {
		list, chroot = servers[:i], servers[i:]
		if chroot == "/" {
			chroot = ""
		} else if strings.Contains(chroot, ",") {
			return nil, "", session.Invalid("connect string %q: the chroot stands once, behind the last server, and has no comma", servers)
		} else if err := session.CheckPath(chroot); err != nil {
			return nil, "", fmt.Errorf("chroot of %q: %w", servers, err)
		}
	}
	for host := range strings.SplitSeq(list, ",") {
		h, err := hostPort(strings.TrimSpace(host))
		if err != nil {
			return nil, "", fmt.Errorf("connect string %q: %w", servers, err)
		}
		hosts = append(hosts, h)
	}
	return hosts, chroot, nil
}

// isIP reports whether name is an address, perhaps with a zone as in fe80::1%eth0.
func isIP(name string) bool {
	_, err := netip.ParseAddr(name)
	return err == nil
}

// hostPort gives host the default port if it has none.
func hostPort(host string) (string, error) {
	if host == "" {
		return "", session.Invalid("a server's name is empty; want host:port[,host:port...][/chroot]")
	}
	full := host
	if _, _, err := net.SplitHostPort(host); err != nil { // no port
		if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
			host = host[1 : len(host)-1]
		}
		full = net.JoinHostPort(host, "2181")
	}
	name, port, err := net.SplitHostPort(full)
	n, portErr := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil, strings.ContainsAny(name, "[]"), strings.ContainsFunc(full, unicode.IsSpace), strings.Contains(name, ":") && !isIP(name):
		return "", session.Invalid("server %q is not host:port", host)
	case name == "":
		return "", session.Invalid("server %q has no name; want host:port", host)
	case portErr != nil || n == 0:
		return "", session.Invalid("server %q has the port %q; want a number from 1 to 65535", host, port)
	}
	return full, nil
}
