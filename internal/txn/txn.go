// Package txn applies transactions exactly once, whatever happens to their replies. It does not
// interpret their operations.
//
// If a transaction gets no reply, the servers may have applied it, or may still apply it. So each
// transaction also writes a log, which is a znode with a unique name that no other client writes.
//
//  1. The client creates a log by a separate request. If that request gets no reply, the client
//     creates another log with another name. So a deleted log never comes back.
//  2. The first operation of a transaction writes the log. It requires the version that the
//     previous transaction left there. So at most one attempt at the transaction is applied, at any
//     time and through any server.
//  3. If an attempt gets no reply, the client sends the transaction again, unchanged. If the
//     servers then answer that the log has another version, an attempt was applied.
//  4. If the servers refuse an attempt for another reason, an earlier attempt may still arrive and
//     succeed. So the client writes the log at the same version, without the transaction. The servers
//     apply either this write or an attempt, and the data of the log show which. If the client has no
//     permission to write the log any longer, it deletes the log at that version.
//  5. If the caller stops waiting before that, the client deletes the log. After the deletion, no
//     attempt can be applied.
//
// A transaction within one session uses an ephemeral log, which ends with the session. A transaction
// across sessions uses a persistent log.
package txn

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// ErrUnknown means that a transaction may have been applied. Its log cannot show that, for example
// because another client has deleted the log.
var ErrUnknown = errors.New("it may have been applied")

// The type `transaction` is a list of operations that are applied together, exactly once.
type transaction struct {
	pool *pool
	dirs []string // the directories for the log: the first directory in which the servers permit a log is used
	ops  []any    // with full paths, which include the chroot

	log   *log               // nil in an attempt if the servers permit no log
	open  bool               // an attempt got no reply, so it may have been applied, or may be applied later
	why   error              // the error that t returns, unless an open attempt was applied
	whyRs []zk.MultiResponse // the answers with this error, with that to the operation on the log
	rs    []zk.MultiResponse // the answers to `ops`
}

// Session applies `ops` in one transaction, exactly once, within one ZooKeeper session. If that
// session is lost while the outcome is unknown, the error is ErrLost.
func Session(ctx context.Context, m *session.Manager, ops []any) ([]zk.MultiResponse, error) {
	ops, dir, err := znodes.CheckOps(m, ops)
	if err != nil {
		return nil, err
	}
	var rs []zk.MultiResponse
	err = m.During(ctx, func(inc *session.Incarnation) error {
		done, err := znodes.RoomFor(ctx, inc, ops...)
		defer done()
		if err == nil {
			rs, err = Within(ctx, inc, dir, ops)
		}
		return err
	})
	return rs, err
}

// Within does the same as [Session], in the given session `inc`. It creates the log at the root, or
// in `dir` if it has no permission at the root. The paths of `ops` are full paths, which include
// the chroot. If the error is ErrEnded, nothing was applied, and nothing will be.
func Within(ctx context.Context, inc *session.Incarnation, dir string, ops []any) ([]zk.MultiResponse, error) {
	m := inc.Manager
	t := &transaction{pool: poolOf(m, &inc.Attached, false), dirs: []string{m.Full("/"), dir}, ops: ops}
	return t.apply(ctx, func(f func(*session.Incarnation) error) error { return f(inc) })
}

// Across is a variant of [Session]: if a session ends, Across continues in the next session. The
// log is a persistent child of the container `dir`. All paths are full paths, which include the
// chroot.
//
// If ctx ends first, the outcome is unknown: either all operations are applied, or none. An error
// that says "may have been applied" has the same meaning. After any other error, nothing was
// applied, and nothing will be.
func Across(ctx context.Context, m *session.Manager, dir string, ops []any) ([]zk.MultiResponse, error) {
	l := &log{path: znodes.ChildPath(dir, znodes.LogName), version: lastVersion} // the longest write
	if err := znodes.CheckSize(m, append([]any{l.write()}, ops...)); err != nil {
		return nil, err
	}
	// A Close at this moment waits until the log is in the pool, or its deletion has begun: both call
	// BeforeClose themselves.
	_, stay := m.BeforeClose()
	defer stay()
	t := &transaction{pool: poolOf(m, &m.Attached, true), dirs: []string{dir}, ops: ops}
	return t.apply(ctx, func(f func(*session.Incarnation) error) error { return m.During(ctx, f) })
}

// The method `apply` applies t. The argument `during` calls a function in one session, or in one
// session after another, until that function returns nil or an error other than ErrEnded.
func (t *transaction) apply(ctx context.Context, during func(func(*session.Incarnation) error) error) ([]zk.MultiResponse, error) {
	var inc *session.Incarnation
	err := during(func(in *session.Incarnation) error {
		inc = in
		return t.during(ctx, inc)
	})
	if t.log != nil {
		t.pool.put(inc, t.log, !t.open)
	}
	switch {
	case !t.open:
	case errors.Is(err, session.ErrEnded):
		err = t.pool.loss(inc)
	case ctx.Err() != nil:
		err = session.CtxErr(ctx)
	case session.OutcomeOf(err) != session.Unknown: // for example, the servers now refuse the credentials
		err = fmt.Errorf("%w: %v", ErrUnknown, err) // %v: the caller must not take this error for the answer to its operations
	default:
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return znodes.BareResponses(t.pool.m, t.rs), err
}

// The method `during` makes attempts in one session, until it knows whether an attempt was applied.
func (t *transaction) during(ctx context.Context, inc *session.Incarnation) error {
	for try := 0; ; {
		if t.log == nil {
			if err := t.begin(ctx, inc); err != nil {
				return err
			}
		}
		ops, l := t.ops, t.log
		if l != nil {
			ops = append([]any{l.write()}, ops...)
		}
		rs, open, err := t.pool.attemptMulti(ctx, inc, ops)
		t.open = t.open || open
		switch {
		case l == nil && t.open:
			return fmt.Errorf("without permission to create beside it that cannot be found out: %w", err)
		case session.OutcomeOf(err) != session.Answered:
			if err := t.again(ctx, inc, try, err); err != nil {
				return err
			}
			try++
			continue
		case l == nil:
			t.rs = rs
			return err
		case err == nil:
			t.rs = rs[1:]
			l.version++
			t.open = false
			return nil
		}
		if t.open {
			if applied, e := t.settle(ctx, inc, err, rs); e != nil || applied {
				return e
			}
			err, rs = t.why, t.whyRs
		}
		// No attempt was applied, and none will be.
		if znodes.FailedOp(rs) != 0 { // the servers refused an operation of the caller
			t.rs = rs[min(1, len(rs)):]
			return err
		}
		// They refused the operation on the log, so t takes another log. If t has just created this log, and
		// no other client has changed it, its ACL or a quota forbids the write. Then the next log must be in
		// another directory.
		if t.log != nil && !session.IsNoNode(err) { // nil: settle has deleted it
			t.pool.drop(t.pool, inc, l, false)
		}
		t.log, t.why, t.whyRs = nil, nil, nil
		if l.used.IsZero() && !session.IsNoNode(err) && !session.IsBadVersion(err) {
			if t.pool.across {
				return err
			}
			t.pool.shut.Store(l.dir, true)
		}
	}
}

// The method `settle` is called when the servers have refused an attempt with `why` and `rs`, and an
// earlier attempt is open. It reports whether an attempt was applied. If it returns false without an
// error, no attempt will be applied later, and t.why is the refusal. After an error, an attempt is
// still open. Such an error does not wrap the servers' answer about the log: a caller would take it
// for a refusal of t.
func (t *transaction) settle(ctx context.Context, inc *session.Incarnation, why error, rs []zk.MultiResponse) (applied bool, err error) {
	err = why
	if znodes.FailedOp(rs) != 0 || !session.IsBadVersion(err) { // else the log is known to have another version
		t.why, t.whyRs = why, rs
		stat, e := t.pool.set(inc, ctx, t.log.path, t.log.holds(false), t.log.version)
		switch {
		case e == nil:
			t.log.version, t.open = stat.Version, false
			return false, nil
		case session.OutcomeOf(e) != session.Answered:
			return false, e
		}
		err = e
	}
	path := t.pool.m.Bare(t.log.path)
	for deleted := false; ; {
		stat, e := t.pool.exists(inc, ctx, t.log.path)
		switch {
		case e != nil && session.OutcomeOf(e) == session.Answered:
			return false, fmt.Errorf("its log %s cannot be read: %v", path, e)
		case e != nil:
			return false, e
		case stat == nil:
			return false, fmt.Errorf("its log %s was deleted: %v", path, err)
		case t.log.wrote(true, stat), t.log.wrote(false, stat) && t.why != nil:
			if applied = t.log.wrote(true, stat); applied {
				t.rs = t.pool.recall(ctx, inc, t.ops, stat.Mzxid)
			}
			t.log.version, t.open = stat.Version, false
			return applied, nil
		case stat.Version != t.log.version:
			return false, fmt.Errorf("its log %s was written by another: %v", path, err)
		case deleted:
			return false, fmt.Errorf("its log %s can be neither written nor deleted: %v", path, err)
		}
		// The log is unchanged, and its ACL does not let us write it. So we delete the log at this
		// version. If an attempt is applied first, the servers answer BadVersion. If the reply to the
		// deletion is lost, the servers answer NoNode, as if another client had deleted the log.
		switch _, e := t.pool.multi(ctx, inc, &zk.DeleteRequest{Path: t.log.path, Version: t.log.version}); {
		case e == nil:
			t.log, t.open, t.why, t.whyRs = nil, false, why, rs
			return false, nil
		case session.OutcomeOf(e) != session.Answered:
			return false, e
		}
		deleted = true
	}
}

// The method `begin` gives t a log: a log of the pool, or a new log in the first directory where
// the servers permit a log. If they permit none, a transaction within one session is applied without
// a log.
func (t *transaction) begin(ctx context.Context, inc *session.Incarnation) error {
	across, suffix, flags := t.pool.across, "txn", int32(zk.FlagEphemeral) // tools recognize a log by its suffix
	if across {
		suffix, flags = "receipt", 0
	}
	first, deletes := t.ops[0].(*zk.DeleteRequest)
	if across && (!deletes || len(t.ops) > 1) { // a transaction with a single delete creates no directory
		if err := t.pool.vet(ctx, inc, znodes.Dir{Path: t.dirs[0]}); err != nil {
			return err
		}
	}
	for try, i := 0, 0; i < len(t.dirs); {
		dir, open, err := t.dirs[i], false, zk.ErrNoAuth
		if t.log = t.pool.take(dir); t.log != nil {
			return nil
		}
		l := &log{dir: dir, path: znodes.ChildPath(dir, znodes.ProtectedName(znodes.NewGUID(), suffix))}
		if shut, _ := t.pool.shut.Load(dir); !shut {
			open, err = t.pool.attemptCreate(ctx, inc, l.path, nil, flags, logACL(t.pool.m.Config))
		}
		if open {
			t.pool.drop(t.pool, inc, l, true) // the request that creates l may still arrive
		}
		switch {
		case err == nil:
			t.log = l
			return nil
		case session.OutcomeOf(err) != session.Answered:
			if err := t.again(ctx, inc, try, err); err != nil {
				return err
			}
			try++
		case session.IsNoNode(err) && (across || dir == t.pool.m.Full("/")):
			if across && deletes {
				// If the znode that t deletes does not exist, create no container: the servers
				// never remove a container that has had no child.
				rs, err := t.pool.multi(ctx, inc, &zk.CheckVersionRequest{Path: first.Path, Version: -1})
				if err != nil && !session.IsAnswer(err, zk.ErrNoAuth) { // NoAuth: the znode exists
					t.rs = rs
					return err
				}
			}
			if err := t.pool.makeDir(ctx, inc, znodes.Dir{Path: dir}); err != nil {
				return err
			}
		case across:
			return err
		default:
			if session.IsAnswer(err, zk.ErrNoAuth) {
				t.pool.shut.Store(dir, true)
			}
			i++
		}
	}
	return nil
}

// The method `again` is called when an attempt has got no answer. It waits until the next attempt
// is due. If no other attempt may follow, it returns an error.
func (t *transaction) again(ctx context.Context, inc *session.Incarnation, try int, err error) error {
	switch {
	case errors.Is(err, session.ErrEnded):
		return err
	case ctx.Err() != nil:
		return session.CtxErr(ctx)
	}
	return t.pool.pause(inc, ctx, try)
}
