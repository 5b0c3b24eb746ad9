// Package txn applies transactions exactly once, whatever happens to their replies. It does not
// interpret their operations.
//
// A client cannot simply repeat a transaction without a reply: the servers may have applied it, or
// may apply it later. So each transaction also writes a log: a znode with a unique name that only
// this client writes.
//
//  1. The client creates a log by a separate request, before the transaction. If that request has
//     no reply, the client creates another log with another name. So the request that creates a log
//     is never under way while the log is in use, and a deleted log never comes back.
//  2. A transaction writes its log as its first operation, at the version that the previous
//     transaction has left. So at most one attempt at the transaction is applied, at any time and
//     through any server.
//  3. An attempt without a reply is sent again unchanged. If the answer is that the log is
//     at another version, an attempt was applied.
//  4. If the answer is another refusal, an earlier attempt may still arrive, and may then succeed.
//     This can happen within one session: the connection can come back to a server that kept a
//     request. So the client writes the log at the same version without the transaction. Either
//     this write or an attempt is applied, and the log's data say which. If the client may no
//     longer write the log, it deletes the log at that version.
//  5. If the caller does not wait for that, the client deletes the log. No attempt is applied after
//     the deletion.
//
// Logs that no transaction uses are pooled for the next. The logs of transactions within one
// session are ephemeral, and end with the session. The logs of transactions across sessions are
// persistent. The client deletes them when no transaction has used them for a minute.
package txn

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// A transaction is applied exactly once.
type transaction struct {
	m    *session.Manager
	pool *pool
	dirs []string // of its log: the first of them that permits a log
	ops  []any    // with full paths, which include the chroot
	vet  bool     // a log is made only in a directory that no other client may change
	bare bool     // applied without a log, because the servers permit none

	log  *log
	made bool               // log was made for it
	open bool               // an attempt has no reply: it may have been applied, or may be applied later
	why  refusal            // the refusal to return, unless an open attempt was applied
	rs   []zk.MultiResponse // the answers to ops in the last attempt
}

// A refusal is the answer to an attempt that was not applied.
type refusal struct {
	err error
	rs  []zk.MultiResponse
	log bool // the operation on the log was refused, not the transaction
}

// Session applies ops in one transaction, exactly once, within one ZooKeeper session. The error is
// ErrLost if that session is lost while the outcome is open.
func Session(ctx context.Context, m *session.Manager, ops []any) ([]zk.MultiResponse, error) {
	ops, dir, err := m.CheckOps(ops)
	if err != nil {
		return nil, err
	}
	var rs []zk.MultiResponse
	err = m.During(ctx, func(inc *session.Incarnation) error {
		var err error
		rs, err = Within(ctx, inc, dir, ops)
		return err
	})
	return rs, err
}

// Within does what Session does, but only in the session inc. The log is made at the root or, if that
// is not permitted, in dir. ops have full paths, which include the chroot. The error is ErrEnded only
// if nothing was sent.
func Within(ctx context.Context, inc *session.Incarnation, dir string, ops []any) ([]zk.MultiResponse, error) {
	m := inc.Manager
	t := &transaction{m: m, pool: poolOf(m, &inc.Attached, zk.FlagEphemeral), dirs: []string{m.Full("/"), dir}, ops: ops}
	return t.within(ctx, incarnation{inc})
}

func (t *transaction) within(ctx context.Context, inc client) ([]zk.MultiResponse, error) {
	err := t.during(ctx, inc)
	return t.over(ctx, inc, err)
}

// Across applies ops in one transaction, exactly once, through as many sessions as it takes. Its
// log is a persistent child of the container dir. dir and the paths of ops are full paths, which
// include the chroot.
//
// If ctx ends first, the caller does not learn the outcome: all of ops or none. The error of an
// unknown outcome says so. After any other error, nothing was applied, and nothing will be.
func Across(ctx context.Context, m *session.Manager, dir string, ops []any) ([]zk.MultiResponse, error) {
	l := &log{path: session.ChildPath(dir, session.LogName)}
	if err := session.CheckSize(append([]any{l.write()}, ops...)); err != nil {
		return nil, err
	}
	t := &transaction{m: m, pool: poolOf(m, &m.Attached, 0), dirs: []string{dir}, ops: ops, vet: true}
	return t.across(ctx, func(f func(client) error) error {
		return m.During(ctx, func(inc *session.Incarnation) error { return f(incarnation{inc}) })
	})
}

// across applies t. It calls during with a function. during calls that function in one session
// after another, until the function returns an error other than ErrEnded, or nil.
func (t *transaction) across(ctx context.Context, during func(func(client) error) error) ([]zk.MultiResponse, error) {
	var last client
	err := during(func(inc client) error {
		last = inc
		return t.during(ctx, inc)
	})
	return t.over(ctx, last, err)
}

// over ends t with err, and returns the caller's result. It pools the log, or deletes it if an
// attempt is open.
func (t *transaction) over(ctx context.Context, inc client, err error) ([]zk.MultiResponse, error) {
	switch {
	case t.log == nil:
	case t.open:
		inc.drop(t.pool, t.log, false)
	default:
		t.pool.keep(inc, t.log)
	}
	switch {
	case !t.open || err == nil:
	case errors.Is(err, session.ErrEnded):
		err = inc.Loss()
	case ctx.Err() != nil:
		err = session.CtxErr(ctx)
	case session.IsNoNode(err), session.IsNodeExists(err), session.IsBadVersion(err), errors.Is(err, session.ErrUnprotected):
		err = fmt.Errorf("it may have been applied: %v", err) // otherwise, callers would mistake it for the answer to ops
	default:
		err = fmt.Errorf("it may have been applied: %w", err)
	}
	return t.m.BareResponses(t.rs), err
}

// during makes attempts within one session, until one is answered and none is open.
func (t *transaction) during(ctx context.Context, inc client) error {
	for try := 0; ; {
		if t.log == nil {
			if err := t.begin(ctx, inc); err != nil || t.bare {
				return err
			}
		}
		rs, err := inc.AttemptMulti(ctx, append([]any{t.log.write()}, t.ops...))
		t.open = t.open || session.OutcomeOf(err) == session.Unknown
		if t.rs = nil; len(rs) > 0 {
			t.rs = rs[1:]
		}
		switch {
		case err == nil:
			t.log.version++
			t.open = false
			return nil
		case session.OutcomeOf(err) != session.Answered:
			if err := again(ctx, inc, try, err); err != nil {
				return err
			}
			try++
			continue
		}
		why := refusal{err, t.rs, session.FailedOp(rs) == 0}
		if t.open {
			if applied, err := t.settle(ctx, inc, why); err != nil || applied {
				return err
			}
			why = t.why
		}
		// No attempt was applied, and none will be.
		if !why.log {
			t.rs = why.rs
			return why.err
		}
		if err := t.renew(inc, why.err); err != nil {
			return err
		}
	}
}

// settle is called when an attempt was refused and an earlier one is open. It reports whether
// an attempt was applied. If not, none will be, and t.why is the refusal. After an error, an
// attempt is still open.
func (t *transaction) settle(ctx context.Context, inc client, why refusal) (applied bool, err error) {
	err = why.err
	if !why.log || !session.IsBadVersion(err) { // otherwise, the log is known to be at another version
		t.why = why
		stat, e := inc.Set(ctx, t.log.path, t.log.holds(false), t.log.version)
		switch {
		case e == nil:
			t.log.version, t.open = stat.Version, false
			return false, nil
		case session.OutcomeOf(e) != session.Answered:
			return false, e
		}
		err = e
	}
	path := t.m.Bare(t.log.path)
	for deleted := false; ; {
		stat, e := inc.Exists(ctx, t.log.path)
		switch {
		case e != nil && session.OutcomeOf(e) == session.Answered:
			return false, fmt.Errorf("its log %s cannot be read: %w", path, e)
		case e != nil:
			return false, e
		case stat == nil:
			return false, fmt.Errorf("its log %s was deleted: %v", path, err)
		case t.log.wrote(true, stat):
			t.log.version, t.open = stat.Version, false
			t.rs = inc.Recall(ctx, t.ops, stat.Mzxid)
			return true, nil
		case t.log.wrote(false, stat) && t.why.err != nil:
			t.log.version, t.open = stat.Version, false
			return false, nil
		case stat.Version != t.log.version:
			return false, fmt.Errorf("its log %s was written by another: %v", path, err)
		case deleted:
			return false, fmt.Errorf("its log %s can be neither written nor deleted: %w", path, err)
		}
		// The log is unchanged, and its ACL does not let us write it. A deletion at this version
		// decides as well: if it succeeds, no attempt was applied before, and none will be. If an
		// attempt is applied first, the answer is BadVersion. If the reply to the deletion is lost,
		// the answer to its repetition is NoNode, as if another client had deleted the log.
		switch _, e := inc.Multi(ctx, &zk.DeleteRequest{Path: t.log.path, Version: t.log.version}); {
		case e == nil:
			t.log, t.open, t.why = nil, false, why
			return false, nil
		case session.OutcomeOf(e) != session.Answered:
			return false, e
		}
		deleted = true
	}
}

// begin takes a log from the pool, or makes one in the first directory in which the servers permit
// it. If they permit none, begin applies t without a log, but only within one session.
func (t *transaction) begin(ctx context.Context, inc client) (err error) {
	_, deletes := t.ops[0].(*zk.DeleteRequest)
	if t.vet && (!deletes || len(t.ops) > 1) { // a single delete makes no directory
		if err := inc.Vet(ctx, session.Dir{Path: t.dirs[0]}); err != nil {
			return err
		}
	}
	for _, dir := range t.dirs {
		if t.log, t.made = t.pool.take(dir), false; t.log != nil {
			return nil
		}
		if err, t.made = zk.ErrNoAuth, true; !t.pool.closed(dir) {
			if t.log, err = t.make(ctx, inc, dir); err == nil || t.vet || session.OutcomeOf(err) != session.Answered {
				return err
			}
			if session.IsAnswer(err, zk.ErrNoAuth) {
				t.pool.close(dir)
			}
		}
	}
	t.bare = !t.vet
	if t.bare {
		err = t.once(ctx, inc)
	}
	return err
}

// make makes a log in dir.
func (t *transaction) make(ctx context.Context, inc client, dir string) (*log, error) {
	for try := 0; ; {
		l := &log{path: session.ChildPath(dir, session.ProtectedName(session.NewGUID(), t.pool.suffix()))}
		_, err := inc.AttemptCreate(ctx, l.path, nil, t.pool.flags, logACL(t.m.Config))
		if session.OutcomeOf(err) == session.Unknown {
			inc.drop(t.pool, l, true) // the request that creates l may still arrive
		}
		switch {
		case err == nil:
			return l, nil
		case session.OutcomeOf(err) != session.Answered:
			if err := again(ctx, inc, try, err); err != nil {
				return nil, err
			}
			try++
		case !session.IsNoNode(err) || !t.vet && dir != t.m.Full("/"):
			return nil, err
		default:
			if first, ok := t.ops[0].(*zk.DeleteRequest); ok && t.vet {
				// If the znode to delete does not exist, make no container: the servers never
				// remove a container that has had no child.
				rs, err := inc.Multi(ctx, &zk.CheckVersionRequest{Path: first.Path, Version: -1})
				if err != nil && !session.IsAnswer(err, zk.ErrNoAuth) { // NoAuth: it exists
					t.rs = rs
					return nil, err
				}
			}
			if err := inc.MakeDir(ctx, session.Dir{Path: dir}); err != nil {
				return nil, err
			}
		}
	}
}

// once applies t without a log. It repeats only an attempt that it could not send.
func (t *transaction) once(ctx context.Context, inc client) error {
	for try := 0; ; try++ {
		rs, err := inc.AttemptMulti(ctx, t.ops)
		t.rs, t.open = rs, session.OutcomeOf(err) == session.Unknown
		if session.OutcomeOf(err) == session.Answered {
			return err
		}
		if e := again(ctx, inc, try, err); e != nil {
			return e
		}
		if t.open {
			return fmt.Errorf("without permission to create beside it that cannot be found out: %w", err)
		}
	}
}

// again is called after an attempt without an answer. It waits before the next attempt, or returns
// an error if there can be none.
func again(ctx context.Context, inc client, try int, err error) error {
	switch {
	case errors.Is(err, session.ErrEnded):
		return err
	case ctx.Err() != nil:
		return session.CtxErr(ctx)
	}
	return inc.Pause(ctx, try)
}

// renew drops the log, because the servers have refused the operation on it with err. Then t takes
// another log. If the dropped log was made for t, and we are not permitted to write it, the other
// must be in another directory.
func (t *transaction) renew(inc client, err error) error {
	if t.log == nil { // settle has deleted it
		t.why = refusal{}
		return nil
	}
	if !session.IsNoNode(err) {
		inc.drop(t.pool, t.log, false)
	}
	if session.IsAnswer(err, zk.ErrNoAuth) && t.made {
		if t.vet {
			return err
		}
		t.pool.close(session.ParentPath(t.log.path))
	}
	t.log, t.why = nil, refusal{}
	return nil
}
