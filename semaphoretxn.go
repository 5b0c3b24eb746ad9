package zsync

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
)

// This file has what is written while permits are held, with the proof that they are.

// Txn applies writes to ZooKeeper, all or none, and only while the permits that m
// holds stand: the servers themselves check each of them. If they are lost the error
// is [ErrLost], and [ErrNotLocked] if m holds none. See [Session.Txn] for ops,
// lost replies and costs.
func (m *Semaphore) Txn(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	rs, err := m.txn(ctx, ops)
	return rs, opError("txn", m.path, err)
}

func (m *Semaphore) txn(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	for {
		a, err := m.standing()
		if err != nil {
			return nil, err
		}
		rs, err := a.Txn(ctx, ops)
		if !errors.Is(err, ErrNotLocked) { // else some were released meanwhile, and nothing was applied
			return rs, err
		}
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
	a, err := m.standing()
	if err != nil {
		return 0, err
	}
	return a.Token(ctx)
}

// standing returns what m holds.
func (m *Semaphore) standing() (*line.Permits, error) {
	if m.misuse() != nil {
		return nil, m.misuse()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held == nil {
		return nil, ErrNotLocked
	}
	return m.held, nil
}
