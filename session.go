package zsync

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/shared"
	"github.com/zsync/zsync/internal/tally"
	"github.com/zsync/zsync/internal/txn"
	"github.com/zsync/zsync/internal/znodes"
)

// A Session is a connection to a ZooKeeper ensemble. Create one per process and share it among all
// primitives and goroutines. It reconnects, and holds survive a change of server. If its ZooKeeper
// session ends, the Session opens a new one. A client that is cut off learns of a loss before the
// servers can grant its locks to another client (assumptions: docs/guarantees.md).
//
// # Cost
//
// A Session sends pings and, while it holds something, two small requests every quarter of its
// timeout, unless other requests confirm it.
type Session struct {
	_ [0]sync.Mutex // makes go vet report a copy
	m *session.Manager

	tracer Tracer // or nil

	tallies   shared.WeakMap[string, tally.Tally]
	leftovers sync.Map                                      // of double barriers, for WaitGroup.Enter: see double.New
	marks     shared.WeakMap[string, atomic.Pointer[sight]] // of Onces, by the path of the mark
	ids       shared.WeakMap[string, chan struct{}]         // the turns of memberships, by the path of the znode
	swept     shared.Pace                                   // time of the last sweep, by the path of the Flight
	kept      atomic.Int64                                  // number of places that WithRetention retains
}

// Connect opens a session with an ensemble. servers is a ZooKeeper connect string:
// "zk1:2181,zk2:2181", or "zk1:2181,zk2:2181/app" for paths below the chroot /app, which is created
// when needed. The default port is 2181. Connect tries until a server answers or ctx ends. If ctx
// ends, the error has the last failure. A later end of ctx does not affect the Session. If the
// servers refuse the credentials, the error is go-zookeeper's ErrAuthFailed.
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
	s := &Session{m: session.New(hosts, chroot, *cfg.conf), tracer: cfg.tracer}
	if err := s.m.Connect(ctx); err != nil {
		return nil, opError("connect", "", err)
	}
	return s, nil
}

// Close ends the ZooKeeper session, and with it every hold, and returns when all goroutines of s
// have ended. Calls in progress, and later ones, fail with [ErrClosed]; closing twice is no error.
// An [Observer], a [Codec] and the function of [WithKey] must not call Close, which waits for them.
//
// Close ends the contexts of running functions of Do, RDo, Run and [Queue.Work] with cause
// ErrClosed, and waits for them, for at most [WithCloseTimeout]. Until then, the functions keep
// their holds and the locks that they acquired with their contexts. Token, Txn, Ack and Unlock
// work, and a function's success counts. After that, these holds are lost, and Lost is closed
// before another session can get them. Close releases other locks at once.
//
// Then Close waits up to a second for work that only this process can finish: the return of Queue
// elements, changes of a [WaitGroup], records of a [Once] or [Schedule], receipts, a Transfer.
func (s *Session) Close() error {
	err := s.misuse()
	if err == nil {
		s.m.Close()
	}
	return opError("close", "", err)
}

// The method `misuse` returns the reason why s cannot be used, or nil.
func (s *Session) misuse() error {
	switch {
	case s == nil:
		return session.Invalid("the Session is nil")
	case s.m == nil:
		return session.Invalid("a zero value; create the Session with Connect")
	}
	return nil
}

// The method `manager` returns a Manager also if s cannot be used. Then s looks like a closed Session.
func (s *Session) manager() *session.Manager {
	if s.misuse() != nil {
		return session.Never
	}
	return s.m
}

// ID returns the id of the present ZooKeeper session, or 0 if there is none.
func (s *Session) ID() int64 { return s.manager().SessionID() }

// Timeout returns the session timeout that the servers have granted, or 0.
func (s *Session) Timeout() time.Duration { return s.manager().Granted() }

// Margin returns how long the holds of s stay confirmed if no server answers from now on. At 0,
// they are lost. The servers grant them to no other client before a further tenth of
// [Session.Timeout] has passed.
func (s *Session) Margin() time.Duration { return s.manager().Certain() }

// State returns the present state.
func (s *Session) State() State { return State(s.manager().State()) }

// A State is the state of a Session.
type State int

const (
	StateConnecting State = iota // a new ZooKeeper session is being established
	StateConnected               // a server answers
	StateSuspended               // the connection dropped; session and holds survive if a server is reached in time
	StateExpired                 // the session ended, and every hold is lost; StateConnecting follows
	StateClosed                  // the Session is closed; no state follows
)

// String returns the state in one word.
func (s State) String() string {
	return nameOf(s, "State", "connecting", "connected", "suspended", "expired", "closed")
}

// States returns a channel of every change of state from now on, in order. It is closed when ctx
// ends, or after StateClosed. If over 64 states are unread, a goroutine stays until they are read
// or ctx ends.
func (s *Session) States(ctx context.Context) <-chan State {
	return session.States[State](ctx, s.manager())
}

// Stats are counters and gauges of a Session.
type Stats struct {
	Requests   int64 // requests sent since Connect, without pings and handshakes; with the sync that follows a handshake
	Watches    int64 // watches of the present ZooKeeper session
	Reconnects int64 // connections replaced within a session
	Expiries   int64 // sessions lost
	Holds      int64 // locks, permits, leaderships and claims held at present
	Waiters    int64 // waits at present, for a hold or anything else; goroutines that share a place count once
}

// Stats returns the counters of s.
func (s *Session) Stats() Stats {
	m := s.manager()
	st := Stats{Requests: m.Requests.Load(), Reconnects: m.Reconnects.Load(), Expiries: m.Expiries.Load(), Holds: m.Holds.Load(), Waiters: m.Waiters.Load()}
	if inc := m.Present(); inc != nil {
		st.Watches = int64(len(inc.Watches.All()))
	}
	return st
}

// Txn applies several writes, all or none. ops are [*zk.CreateRequest], [*zk.SetDataRequest],
// [*zk.DeleteRequest] and [*zk.CheckVersionRequest] of go-zookeeper, with paths below the chroot,
// and the results of [Queue.SendOp]. The responses are in the order of ops, without one for a
// SendOp. If the servers refuse an operation, the error names it.
//
// If the connection drops before the reply, Txn finds out whether the writes were applied, and
// recovers the responses. A response is empty if another client has changed the znode since, or the
// session ends meanwhile. The outcome remains unknown if the session is lost too ([ErrLost]), if ctx
// ends first, or if the connection drops and Txn was not permitted to write its log, an ephemeral
// znode /_c_<guid>-txn (docs/interop.md). Txn takes one round trip, a Session's first Txn two.
func (s *Session) Txn(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	if err := s.misuse(); err != nil {
		return nil, opError("txn", "", err)
	}
	rs, err := s.sending(ctx, nil, ops, func(ops []any) ([]zk.MultiResponse, error) { return txn.Session(ctx, s.m, ops) })
	return rs, opError("txn", "", err)
}

// A QueueOp is a send as an operation of a transaction, see [Queue.SendOp].
type QueueOp struct {
	out *queue.Batch
	err error
}

// The function `outgoing` returns ops with the operation of the queue's engine for each QueueOp, and
// without any QueueOp.
func outgoing(ops []any) (all, bare []any, err error) {
	for i, op := range ops {
		s, ok := op.(QueueOp)
		switch {
		case !ok:
			all, bare = append(all, op), append(bare, op)
		case s.err != nil:
			return nil, nil, s.err
		case s.out == nil:
			return nil, nil, session.Invalid("operation %d is a QueueOp that did not come from SendOp", i)
		default:
			all = append(all, s.out)
		}
	}
	return all, bare, nil
}

// The method `sending` applies ops with the function commit, which is the transaction of a session
// or of a hold. Each QueueOp is replaced by its writes. The channel lost is closed when the hold is
// lost; it is nil for a session.
func (s *Session) sending(ctx context.Context, lost <-chan struct{}, ops []any, commit func(ops []any) ([]zk.MultiResponse, error)) (rs []zk.MultiResponse, err error) {
	all, bare, err := outgoing(ops)
	switch {
	case err != nil:
		return nil, err
	case len(bare) == len(ops):
		rs, err = commit(ops)
	default:
		rs, err = queue.Through(ctx, s.m, lost, all, commit)
	}
	return rs, znodes.Refused(bare, rs, err) // a QueueOp has no response
}

func parseServers(servers string) (hosts []string, chroot string, err error) {
	if strings.Contains(servers, "://") {
		return nil, "", session.Invalid("connect string %q has a scheme; want host:port[,host:port...][/chroot]", servers)
	}
	list, root, _ := strings.Cut(servers, "/")
	if root != "" {
		chroot = "/" + root
		if strings.Contains(chroot, ",") {
			return nil, "", session.Invalid("connect string %q: the chroot comes once, after the last server, and has no comma", servers)
		}
		if err := znodes.CheckPath(chroot); err != nil {
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

// hostPort adds the default port to host if host has no port.
func hostPort(host string) (string, error) {
	name, port, err := net.SplitHostPort(host)
	if err != nil { // host has no port
		name, port = host, "2181"
		if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
			name = host[1 : len(host)-1]
		}
	}
	n, portErr := strconv.ParseUint(port, 10, 16)
	_, notIP := netip.ParseAddr(name) // an IP address may have a zone, as in fe80::1%eth0
	switch {
	case name == "":
		return "", session.Invalid("server %q has no name; want host:port[,host:port...][/chroot]", host)
	case strings.ContainsAny(name, "[]"), strings.ContainsFunc(host, unicode.IsSpace), strings.Contains(name, ":") && notIP != nil:
		return "", session.Invalid("server %q is not host:port", host)
	case portErr != nil || n == 0:
		return "", session.Invalid("server %q has the port %q; want a number from 1 to 65535", host, port)
	}
	return net.JoinHostPort(name, port), nil
}

// Get reads the data and the Stat of any znode, for the versions that [Session.Txn] needs, and
// for tools. The server may lag behind the others. Errors are go-zookeeper's, such as ErrNoNode.
func (s *Session) Get(ctx context.Context, path string) (data []byte, stat *zk.Stat, err error) {
	err = s.read(ctx, path, func(inc *session.Incarnation) error {
		data, stat, err = inc.Get(ctx, s.m.Full(path))
		return err
	})
	return data, stat, opError("get", path, err)
}

// Children is [Session.Get] for the names of the children.
func (s *Session) Children(ctx context.Context, path string) (names []string, stat *zk.Stat, err error) {
	err = s.read(ctx, path, func(inc *session.Incarnation) error {
		names, stat, err = inc.Children(ctx, s.m.Full(path))
		return err
	})
	slices.Sort(names)
	return names, stat, opError("children", path, err)
}

// The method `read` calls f in a session. In contrast to other operations, path may be the root.
func (s *Session) read(ctx context.Context, path string, f func(inc *session.Incarnation) error) error {
	if err := checkNew(s, path, nil); err != nil && (path != "/" || s.misuse() != nil) {
		return err
	}
	return s.m.During(ctx, f)
}

// An operation is an Op that has begun. The Tracer of its Session sees its beginning and its end,
// and the Observer sees how a wait for a hold ended.
type operation struct {
	s     *Session
	op    Op
	began time.Time
	ctx   context.Context // the result of the tracer's Start; nil without a tracer
}

// The method `begin` reports the start of op to the tracer. The caller calls `end` once. The returned
// context is the tracer's, or ctx. An op without a name is a part of another, and not reported.
func (s *Session) begin(ctx context.Context, op Op) (context.Context, operation) {
	o := operation{s: s, op: op, began: time.Now()}
	if s != nil && s.tracer != nil && op.Name != "" {
		o.op.Owner, o.op.Session = s.m.Config.Owner, s.ID()
		ctx = s.tracer.Start(ctx, o.op)
		o.ctx = ctx
	}
	return ctx, o
}

func (o *operation) end(err error) {
	if o.op.Kind == OpAcquire {
		o.s.m.Waited(o.op.Name, o.op.Path, o.began, err)
	}
	o.endSpan(err)
}

// The method `endSpan` reports the end of o to the tracer alone.
func (o *operation) endSpan(err error) {
	if o.ctx == nil {
		return
	}
	if o.op.Kind != OpHold { // after a loss, the Session may have another ZooKeeper session
		o.op.Session = o.s.ID()
	}
	o.s.tracer.End(o.ctx, o.op, err)
}

// The method `got` reports that the wait o has ended with the grant g, and that a hold begins, until g
// ends. The returned context is for the work with the hold.
func (o *operation) got(ctx context.Context, g *lock.Grant) context.Context {
	if o.ctx != nil {
		o.op.Hold = g.Name()
	}
	if o.end(nil); o.ctx == nil {
		return ctx
	}
	held := o.op
	held.Kind = OpHold
	ctx, hold := o.s.begin(ctx, held)
	g.Follow(hold.end)
	return ctx
}

// The method `waiting` calls f, the wait of a Barrier, WaitGroup or Cond, and reports it to the
// tracer. If ctx has ended the wait, the error says how long the wait was.
func (m *made) waiting(ctx context.Context, primitive string, f func(ctx context.Context) error) error {
	if m.misuse() != nil {
		return opError("wait", m.path, m.misuse())
	}
	traced, o := m.s.begin(ctx, Op{Kind: OpWait, Primitive: primitive, Name: "wait", Path: m.path})
	err := waited(ctx, m.s.m, o.began, m.s.m.WhileOpen(traced, f))
	o.end(err)
	return opError("wait", m.path, err)
}

// The method `queueing` reports the start of an operation with n elements of a queue to the tracer.
// The caller calls `end` with the number of elements that it has sent, received or settled.
func (m *made) queueing(ctx context.Context, name string, n int) (_ context.Context, end func(n int, err error)) {
	ctx, o := m.s.begin(ctx, Op{Kind: OpQueue, Primitive: "queue", Name: name, Path: m.path, Count: n})
	return ctx, func(n int, err error) { o.op.Count = n; o.end(err) }
}
