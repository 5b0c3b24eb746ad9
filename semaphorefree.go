package zsync

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// Permits that are free need no gate. All of this is one round trip:
//
//  1. Create the znodes of the permits, in one transaction with a check that the
//     limit is the one we know.
//  2. List the gate.
//  3. List the permits that are out.
//
// They are ours if nobody was at the gate and ours are not too many. Otherwise
// they are deleted again, and we take the gate like everyone else.
//
// Never too many are out. Call the moment that settles a grant its last step: the
// listing of the permits here, and for Curator, which too lists what it has
// already made; the transaction that makes them for who has the gate in zsync,
// and the create in kazoo. Of all that are out at one time, take the grant that
// was settled last, and see that it has counted all others.
//
//   - It was settled by a listing: every other's znodes were made before its own
//     last step, so before this listing, which counts them.
//   - It was settled by a create behind the gate, G, after a listing by G. Others
//     that came through the gate did so before G had it, so that listing counts
//     them. One that came as here either made its znodes before G's listing, which
//     counts them; or it made them after. Then all its steps lie between G's listing
//     and G's create, where G's znode was at the gate (the transaction proves it;
//     kazoo and Curator hold it), and its own listing of the gate has shown that.
//     So it was not granted.
//
// The second case needs the gate to be listed before the permits: between a
// listing of the permits and a later one of the gate, G could make its permits and
// leave.
//
// The limit is the one that we know during all three steps: it was read with a
// watch, whose event would come before the answer of whatever saw the change or
// what is newer; and the watch has not fired when the last answer is here. (The
// check alone would not do. The limit could be lowered behind the transaction, and
// when a permit is given back after that, the sum would fit a limit that is gone.)
// The watch also tells of a path that was deleted and made again.
//
// Nobody who waits is overtaken: who waits is at the gate. Nor is a goroutine of
// this process that is on its way to it. Two who come here at once may both find
// too many; then both go to the gate, which decides. Those who have the gate may
// see permits that are given back at once. They wait, or look again.
//
// This is tried only if who asked last through this value found permits at once.
// Where others wait at the gate for the same permits it would fail each time, cost
// a round trip more, and disturb them: so after a failure that must have been so
// twice in a row, then four times, and so on up to 64.

// acquireAtOnce acquires permits that are free. It is nil if that was not tried, or
// if they are not there; over says that this is the answer to who does not wait.
func (m *Semaphore) acquireAtOnce(ctx context.Context, n int64, wait bool) (a *line.Permits, over bool, err error) {
	known := m.known.Load()
	if known == nil || !m.seemsFree() || n > known.limit || m.gate.local.Wanted() {
		return nil, false, nil
	}
	inc, err := m.s.m.Incarnation(ctx)
	if err != nil {
		return nil, false, err
	}
	// While the watch stands it is the same for all who join it.
	w := inc.Watches.Join(session.WatchKey{Kind: session.WatchData, Path: m.root})
	defer inc.Watches.Leave(w)
	if w != known.watch {
		return nil, false, nil
	}
	if !wait {
		// Who does not wait may ask for nothing every moment: so it looks first.
		if free, err := m.looksFree(ctx, inc, n, known.limit); !free || err != nil {
			return nil, err == nil, unlessEnded(err)
		}
	}
	m.s.m.Waiters.Add(1)
	defer m.s.m.Waiters.Add(-1)
	leases := m.name(known.limit, n)
	same := &zk.CheckVersionRequest{Path: m.root, Version: known.version}
	lists, withdrawn, err := inc.CreateThenList(ctx, m.leasesDir(), same, line.PathsOf(leases), m.s.m.Owner, m.gate.local.Line.Dir, m.leases)
	if err == nil && (len(lists[0]) > 0 || m.weightOfAll(line.Without(lists[1], line.PathsOf(leases))) > known.limit-n || session.IsClosed(w.Fired)) {
		withdrawn = inc.Remove(line.PathsOf(leases)...)
	}
	switch {
	case err == nil && withdrawn == nil:
		if a, err = m.keep(ctx, inc, leases, n); errors.Is(err, errUnsettled) {
			return nil, false, nil
		}
		m.mu.Lock()
		m.need = 0
		m.mu.Unlock()
		return a, false, unlessEnded(err)
	case withdrawn != nil:
		// What is still there would count as out when we look behind the gate.
		if ctx.Err() != nil {
			withdrawn.Await(session.Grace)
			return nil, false, session.CtxErr(ctx)
		}
		withdrawn.Settled(ctx)
	case ctx.Err() != nil:
		return nil, false, session.CtxErr(ctx)
	}
	// Whatever it was that the servers have refused, they say so again, or make
	// it good, behind the gate.
	m.wasTaken()
	return nil, false, nil
}

func (m *Semaphore) seemsFree() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calm > 0 && m.calm >= m.need
}

// foundFree is told whether permits were there at once for who had the gate.
func (m *Semaphore) foundFree(free bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calm++; !free {
		m.calm = 0
	}
}

// wasTaken is told that the gate was left out in vain.
func (m *Semaphore) wasTaken() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calm, m.need = 0, min(max(2, 2*m.need), 64)
}

// unlessEnded drops the error that the session has ended: we go on in the next.
func unlessEnded(err error) error {
	if errors.Is(err, session.ErrEnded) || errors.Is(err, session.ErrVanished) {
		return nil
	}
	return err
}

// looksFree reports whether nobody was at the gate, and n permits were there, one
// after the other, not before the call.
func (m *Semaphore) looksFree(ctx context.Context, inc *session.Incarnation, n, limit int64) (bool, error) {
	lists, err := inc.ListFresh(ctx, m.gate.local.Line.Dir, m.leases)
	if err != nil {
		return false, err
	}
	return len(lists[0]) == 0 && m.weightOfAll(lists[1]) <= limit-n, nil
}
