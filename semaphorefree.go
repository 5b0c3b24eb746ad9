package zsync

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
)

// This file acquires free permits without the gate, in one round trip. The client sends three
// requests together:
//
//  1. Create the znodes of the permits, in one transaction that checks the version of the limit.
//  2. List the gate.
//  3. List the permits that are out.
//
// The client has acquired the permits if the gate is empty, the permits that are out do not exceed
// the limit, and the limit has not changed. Otherwise, it deletes its znodes and locks the gate.
//
// # Why never too many permits are out
//
// Each grant has a last step, which completes it:
//
//   - the listing of the permits (step 3), without the gate;
//   - the transaction that creates the znodes, behind the gate in zsync;
//   - the request that creates the znode, in kazoo;
//   - a listing of the permits after the creation of the znode, in Curator.
//
// Consider all permits that are out at one time. Of their grants, consider the grant whose last
// step was the latest. Before this grant was complete, its client counted all other permits. There
// are two cases:
//
// Case 1: the last step is a listing. Every other permit has znodes that were created no later
// than the last step of its own grant. That step came before this listing, so the listing
// counts these znodes.
//
// Case 2: the last step is the creation of znodes by a client G behind the gate. G had listed
// the permits before the creation. Any other permit was granted in one of two ways:
//
//   - Behind the gate. The permit's client had the gate before G had it, so G's listing counts
//     the permit.
//   - Without the gate, to a client H. If H created its znodes before G's listing, the listing
//     counts them. Otherwise, all three steps of H came after G's listing and before G created
//     its znodes. During that time, G's znode was at the gate: the transaction of zsync proves
//     that, and clients of kazoo and Curator hold the lock of the gate. So H's listing of the
//     gate showed G's znode, and H did not acquire its permits.
//
// Case 2 needs the order of steps 2 and 3: otherwise, G could create its znodes and leave the gate
// between H's listings. So if H must repeat step 2, H repeats step 3 after it: see the field Also
// of session.Creation.
//
// The limit is constant during the three steps: the watch of its read has not fired when the last
// reply arrives, and a server sends the event of a watch before any reply that shows the change or
// a later state. The check in step 1 is not enough: a client could lower the limit after it, and
// then another client could release a permit before step 3.
//
// # Order
//
// The client overtakes no waiter, because a waiter has a znode at the gate. Within its process, a
// goroutine that is about to lock the gate is a waiter too (Wanted).
//
// Two clients that try at the same time may each count too many permits. Then both lock the
// gate, and acquire their permits one after the other. A client behind the gate may count the
// znodes of a failed attempt, which are about to be deleted. It waits for the deletion, or
// lists again.
//
// While contenders wait at the gate, each attempt fails and disturbs them. So after a failed
// attempt, the client locks the gate, until a request behind the gate has found its permits free at
// once.

// acquireAtOnce acquires n free permits without the gate. It returns nil if it did not try, or if
// the attempt failed. If `over` is true, a caller that does not wait must not try the gate either.
func (m *Semaphore) acquireAtOnce(ctx context.Context, q *quota, n int64, wait bool) (a *lock.Permits, over bool, err error) {
	inc := q.inc
	if session.IsClosed(q.watch.Fired) || !m.calm.Load() || n > q.limit || m.gate.local.Wanted() {
		return nil, false, nil
	}
	if !wait {
		// A caller that does not wait may call again and again. So read first, and write only if the
		// permits seem to be free. Both listings are newer than the call.
		lists, err := inc.ListFresh(ctx, m.gate.local.Line.Dir, m.leases)
		if err != nil || len(lists[0]) > 0 || m.weightOfAll(lists[1]) > q.limit-n {
			return nil, err == nil, err
		}
	}
	m.s.m.Waiters.Add(1)
	defer m.s.m.Waiters.Add(-1)
	leases := m.name(q.limit, n)
	made := session.Creation{Dir: m.leasesDir(), Paths: lock.PathsOf(leases), Data: m.s.m.Owner, Also: []string{m.gate.local.Line.Dir, m.leases}}
	made.Holds = []*zk.CheckVersionRequest{{Path: m.root, Version: q.version}}
	err = inc.CreateEphemeral(ctx, &made)
	lists, withdrawn := made.Lists, made.Undo
	if err == nil {
		// Between the creation and the listing, another client may have deleted a znode of ours.
		others, whole := lock.Without(lists[1], lock.PathsOf(leases))
		if len(lists[0]) > 0 || !whole || m.weightOfAll(others) > q.limit-n || session.IsClosed(q.watch.Fired) {
			withdrawn = inc.Remove(lock.PathsOf(leases)...)
		}
	}
	if err == nil && withdrawn == nil {
		a, err = m.keep(ctx, inc, inc.Lapse(), leases, n)
		return a, false, err
	}
	if ctx.Err() == nil {
		withdrawn.Outcome(ctx) // otherwise, the listing behind the gate could count our znodes as permits in use
		m.calm.Store(false)
		return nil, false, nil // if the server refused a request, the attempt behind the gate repairs the cause or returns the error
	}
	if withdrawn != nil {
		withdrawn.Await(session.Grace)
	}
	return nil, false, session.CtxErr(ctx)
}
