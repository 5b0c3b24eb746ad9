package zsync

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
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
// The last step of a grant is the listing of the permits (step 3) without the gate, and the creation of
// the znodes behind it. In kazoo, it is the creation, and in Curator a listing after the creation. Of all
// permits that are out at one time, consider the grant whose last step was the latest.
//
// Case 1: this step is a listing. It counts all other permits, because their znodes were created no
// later than the last steps of their own grants.
//
// Case 2: this step is the creation of znodes by a client G behind the gate. G had listed the permits
// before. Any other permit was granted in one of two ways:
//
//   - Behind the gate. Its client had the gate before G had it, so G's listing counts the permit.
//   - Without the gate, to a client H. If H created its znodes before G's listing, the listing
//     counts them. Otherwise, all three steps of H came after G's listing and before G created
//     its znodes. During that time, G's znode was at the gate: the transaction of zsync proves
//     that, and clients of kazoo and Curator hold the lock of the gate. So H's listing of the
//     gate showed G's znode, and H did not acquire its permits.
//
// Case 2 needs the order of steps 2 and 3: otherwise, G could create its znodes and leave the gate
// between H's listings. So if H must repeat step 2, H repeats step 3 after it: see the field Also
// of znodes.Creation.
//
// The limit is constant during the three steps: the watch of its read has not fired when the last
// reply arrives, and a server sends the event of a watch before any reply that shows the change or
// a later state. The check in step 1 is not enough: a client could lower the limit after it, and
// then another client could release a permit before step 3.
//
// # Order
//
// The client overtakes no waiter: a waiter has a znode at the gate or, if it is a goroutine of this
// process, is about to lock the gate (Wanted).
//
// Two clients that try at the same time may each count too many permits. Then both lock the gate. A
// client behind the gate may count the znodes of a failed attempt. It waits for their deletion, or
// lists again.
//
// While contenders wait at the gate, each attempt fails and disturbs them. So after a failed
// attempt, Acquire locks the gate, until a request behind the gate has found its permits free at once.

// takeAtOnce creates the znodes of n free permits without the gate. It returns nil if the attempt failed.
func (m *Semaphore) takeAtOnce(ctx context.Context, q *quota, n int64) ([]lock.Permit, error) {
	inc := q.inc
	m.s.m.Waiters.Add(1)
	defer m.s.m.Waiters.Add(-1)
	leases := m.name(q.limit, n)
	made := znodes.Creation{
		Dir: m.dir, Paths: lock.PathsOf(leases), Data: m.s.m.Owner, Also: []string{m.gate.local.Line.Dir, m.dir.Path},
		Holds: []*zk.CheckVersionRequest{{Path: m.at.Path, Version: q.version}},
	}
	err := znodes.CreateEphemeral(ctx, inc, &made)
	withdrawn := made.Undo
	if err == nil {
		// Between the creation and the listing, another client may have deleted a znode of ours.
		others, whole := lock.Without(made.Lists[1], made.Paths)
		if whole && len(made.Lists[0]) == 0 && m.weightOfAll(others) <= q.limit-n && !session.IsClosed(q.watch.Fired) {
			return leases, nil
		}
		withdrawn = znodes.Remove(inc, made.Paths...)
	}
	m.calm.Store(false)
	if ctx.Err() == nil {
		withdrawn.Outcome(ctx) // otherwise, the listing behind the gate could count our znodes as permits in use
		return nil, nil        // if the server refused a request, the attempt behind the gate repairs the cause or returns the error
	}
	if withdrawn != nil {
		withdrawn.Await(session.Grace)
	}
	return nil, session.CtxErr(ctx)
}
