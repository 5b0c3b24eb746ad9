package zsync

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// This file has what is written while permits are held, with the proof that they are.

// Txn applies writes to ZooKeeper, all or none, and only while the permits that m
// holds stand: the servers themselves check each of them. If they are lost the error
// is [ErrLost], and [ErrNotLocked] if m holds none. See [Session.Txn] for ops and for
// lost replies. It costs one round trip.
func (m *Semaphore) Txn(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	rs, err := m.txn(ctx, ops)
	return rs, opError("txn", m.path, err)
}

func (m *Semaphore) txn(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	for {
		a, paths, _, _, err := m.standing(ctx)
		if err != nil {
			return nil, err
		}
		full, dir, err := m.s.m.CheckOps(ops, paths...)
		if err != nil {
			return nil, err
		}
		var all []any
		for _, path := range paths {
			all = append(all, &zk.CheckVersionRequest{Path: path, Version: -1})
		}
		rs, err := a.inc.Commit(ctx, dir, append(all, full...))
		if i := session.FailedOp(rs); i >= 0 && i < len(paths) && session.IsNoNode(rs[i].Error) {
			if lost := m.missing(a, paths[i]); lost != nil {
				return nil, lost
			}
			continue // it was released meanwhile, and nothing was applied
		}
		switch {
		case errors.Is(err, session.ErrEnded): // nothing was sent
			err = cmp.Or(m.lossOf(a), error(ErrNotLocked)) // Lost is closed before anybody is told
		case errors.Is(err, ErrLost): // it may have been applied, also if they were released meanwhile
			err = cmp.Or(m.lossOf(a), err)
		}
		return rs[min(len(rs), len(paths)):], err
	}
}

// Token returns a fencing token of the permits that m holds: a number greater than
// that of all permits that were released, or lost, before the latest of m's were
// acquired, by whomever. See [Mutex.Token]. Where the limit is above 1 others may
// hold permits at the same time, with greater or smaller tokens: so whoever checks
// tokens must keep one for each permit's work, and not one for all.
//
// The first call after an Acquire costs one write, the others nothing. The errors are
// [ErrNotLocked] and [ErrLost].
func (m *Semaphore) Token(ctx context.Context) (int64, error) {
	token, err := m.token(ctx)
	return token, opError("token", m.path, err)
}

func (m *Semaphore) token(ctx context.Context) (int64, error) {
	for {
		a, paths, token, grants, err := m.standing(ctx)
		if err != nil || token != 0 {
			return token, err
		}
		// Written again where the reply was lost, it only becomes greater.
		stat, err := a.inc.Set(ctx, paths[0], m.s.m.Owner, -1)
		if session.IsNoNode(err) {
			if lost := m.missing(a, paths[0]); lost != nil {
				return 0, lost
			}
			continue // it was released meanwhile
		}
		if lost := m.lossOf(a); lost != nil {
			return 0, lost
		}
		if err != nil && !errors.Is(err, session.ErrEnded) {
			return 0, err
		}
		if token, err = m.tellToken(a, grants, stat, err); token != 0 || err != nil {
			return token, err
		}
	}
}

// tellToken says what the token of a is when a write has returned stat and err that was
// begun when a had grown so often; 0 if it must be made again. Of two callers the first
// answer stays, and what serves for what has come since serves for all. So no token is
// less than one that was told before.
func (m *Semaphore) tellToken(a *allotment, grants int, stat *zk.Stat, err error) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held != a || err != nil {
		return 0, ErrNotLocked
	}
	if a.token == 0 && stat.Mzxid >= a.told {
		if a.told = stat.Mzxid; a.grants != grants {
			return a.told, nil // it may be too small for what has come since
		}
		a.token = a.told
	}
	return a.token, nil
}

// standing returns what m holds, the paths of its znodes, all of which have been made,
// its token, if it is known, and how often it had grown by then.
func (m *Semaphore) standing(ctx context.Context) (a *allotment, paths []string, token int64, grants int, err error) {
	if m.misuse() != nil {
		return nil, nil, 0, 0, m.misuse()
	}
	for ctx.Err() == nil {
		m.mu.Lock()
		if a = m.held; a == nil {
			m.mu.Unlock()
			return nil, nil, 0, 0, ErrNotLocked
		}
		last := a.last
		paths, token, grants = pathsOf(a.leases), a.token, a.grants
		m.mu.Unlock()
		if lost := m.lossOf(a); lost != nil {
			return nil, nil, 0, 0, lost
		}
		if last == nil || session.IsClosed(last.Done) {
			return a, paths, token, grants, nil
		}
		// What is left of a znode of several permits is about to be made.
		select {
		case <-last.Done:
		case <-last.Refused:
			return nil, nil, 0, 0, last.Refusal
		case <-ctx.Done():
		case <-a.inc.Ctx.Done():
		}
	}
	return nil, nil, 0, 0, session.CtxErr(ctx)
}

// missing is told that a znode of a was not there. It returns the loss, or nil if a
// does not have it any more: then it was released.
func (m *Semaphore) missing(a *allotment, path string) error {
	m.deleted(a, path)
	return m.lossOf(a)
}

// lossOf returns why a is lost, or nil.
func (m *Semaphore) lossOf(a *allotment) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !a.inc.Alive() && !session.IsClosed(a.ended) {
		m.loseLocked(a, nil) // what was registered may not have run yet
	}
	if !a.lost {
		return nil
	}
	return cmp.Or(a.why, a.inc.Loss())
}

// ours reports whether a has a znode at path. Semaphore.mu must be held.
func (a *allotment) ours(path string) bool {
	return slices.ContainsFunc(a.leases, func(l lease) bool { return l.path == path })
}
