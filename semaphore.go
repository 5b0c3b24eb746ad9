package zsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/txn"
	"github.com/zsync/zsync/internal/znodes"
)

// A Semaphore is a weighted semaphore that processes share by its path: golang.org/x/sync/semaphore
// across processes.
//
//	m := zsync.NewSemaphore(s, "/limits/geocoder", 10) // for all processes together
//	err := m.Do(ctx, 1, func(ctx context.Context) error { … })
//	err = m.Acquire(ctx, 2) // or this, and then
//	err = m.Release(2)
//
// All processes together hold at most n permits. Requests are served in the order of their arrival,
// so small requests do not starve a large one. For the goroutines of one process, see
// [WithHandoffs]. All processes must name the same n; [Semaphore.Resize] changes it for all.
//
// # Loss
//
// If the session ends, this process loses all its permits and other processes may hold them.
// Acquire of this *Semaphore then waits until the lost permits have been released. If another
// client deletes the znode of a permit, all permits of this *Semaphore are lost. Their other znodes
// are deleted at the release, but no later than a tenth of the session timeout after the loss.
//
// # Errors
//
// Acquire returns [ErrInvalid] for a number below 1 or above the limit, and if the path has another
// n. It returns [ErrTooLarge] for thousands of permits with LayoutKazoo, or hundreds with a very
// long [WithOwner].
//
// # Cost
//
// Acquire of free permits takes 1 round trip if no contender waits, as does Release. Behind
// others, it takes 4. The first takes 5; on a new path, 9.
//
// # Znodes
//
// A permit is path/leases/_c_<uuid>-lease-<number>, or path/<guid> with LayoutKazoo. With a limit
// above 1,000, each Acquire makes one znode.
type Semaphore struct {
	made
	named  int64        // the limit that NewSemaphore was given
	limit  atomic.Int64 // the limit that was last read
	layout Layout
	at     znodes.Dir // the znode at the path, which has the limit; both have full paths
	dir    znodes.Dir // the parent of the permits' znodes
	mark   string     // the full path of the mark that Resize creates
	gate   *Mutex
	limits *lock.Limits
	known  atomic.Pointer[quota] // the last read of the limit; nil before the first

	mu        sync.Mutex
	held      *lock.Permits // permits of this process, also lost permits until their release; guarded by mu
	freed     chan struct{} // closed when held becomes nil; guarded by mu
	functions atomic.Int64  // number of functions of Do that are running

	calm atomic.Bool // the last request behind the gate found its permits free at once, and no attempt without the gate has failed since
}

// A client acquires permits like Curator and kazoo, but several permits at a time:
//
//  1. Lock the semaphore's lock, the gate. While we hold the gate, no other process takes
//     permits behind it.
//  2. List the permits. The limit was read before, with a watch that has not fired.
//  3. If too few are free, list them with a watch, wait, and list again.
//  4. Create the znodes of the permits, in one transaction that also proves that we still hold
//     the gate. Then unlock the gate.
//
// If enough permits are free and no contender waits, the gate is not needed: see
// semaphorefree.go.

// NewSemaphore returns the Semaphore of n permits at path.
func NewSemaphore(s *Session, path string, n int64, opts ...LockOption) *Semaphore {
	c := newSetup(opts)
	m := &Semaphore{made: made{s: s, path: path}, named: n, layout: c.layout}
	m.limit.Store(n)
	switch m.err = checkNew(s, path, c.err); {
	case m.err == nil && n <= 0:
		m.err = session.Invalid("a semaphore of %d permits; want at least 1", n)
	case m.err == nil && c.retain > 0:
		m.err = session.Invalid("WithRetention: permits are not kept; it is for a Mutex or RWMutex")
	}
	if m.misuse() != nil {
		return m
	}
	m.at.Path = s.m.Full(path)
	gate := znodes.ChildPath(path, "locks")
	m.mark = znodes.ChildPath(m.at.Path, "resized")
	m.dir = znodes.Dir{Path: znodes.ChildPath(m.at.Path, "leases"), Part: true}
	if c.layout == LayoutKazoo {
		gate = path + "-__lock__"
		m.mark = m.at.Path + "-__resized__"   // no child of the path: kazoo would count it as a permit
		m.at.Data, m.at.Kept = []byte{}, true // kazoo expects that its path stays
		m.dir = m.at
	}
	m.limits, c.limits = c.limits, nil // the limits apply to the permits, and not to the gate
	m.gate = newMutex(s, gate, c)
	m.gate.local.Line.Part = c.layout != LayoutKazoo
	m.gate.local.Op = "" // the gate is a part of Acquire, and not reported as a hold
	return m
}

// Acquire acquires n permits, all at once. It waits until there are enough, ctx ends, or the
// Session is closed. After an error, the semaphore is unchanged. If [Semaphore.Resize] sets a limit
// below n, Acquire fails.
func (m *Semaphore) Acquire(ctx context.Context, n int64) error {
	_, _, err := m.acquired(ctx, n)
	return opError("acquire", m.path, err)
}

// The method `acquired` does the work of Acquire. The returned context is for the work with the
// permits.
func (m *Semaphore) acquired(ctx context.Context, n int64) (_ context.Context, a *lock.Permits, err error) {
	if err := m.check(ctx, n); err != nil {
		return ctx, nil, err
	}
	_, o := m.s.begin(ctx, m.op(n))
	var ahead lock.Ahead
	if a, err = m.obtain(ctx, n, true, &ahead); err != nil {
		b := ahead.Now()
		behind, place := firstAhead(b, ModePermits), min(b.Place, 1)
		if w, ok := err.(*WaitError); ok {
			err = w.err // the cause of the end; other contenders are ahead of us at the gate
			if w.Place > 0 {
				behind, place = w.Behind, w.Place+1
				behind.Mode, behind.Holding = ModePermits, false
			}
		}
		err = waitEnded(ctx, m.s.m, err, o.began, behind, place)
	}
	o.end(err)
	a.Within(m.s.m.FunctionOf(ctx), 0)
	return m.observe(ctx, a), a, err
}

// TryAcquire tries to acquire n permits, and reports whether it did. It waits for the servers only,
// and fails while another contender waits or acquires.
func (m *Semaphore) TryAcquire(ctx context.Context, n int64) (bool, error) {
	start := time.Now()
	if err := m.check(ctx, n); err != nil {
		return false, opError("tryacquire", m.path, err)
	}
	a, err := m.obtain(ctx, n, false, new(lock.Ahead))
	if a != nil {
		a.Within(m.s.m.FunctionOf(ctx), 0)
		_, o := m.s.begin(ctx, m.op(n))
		o.began = start
		o.end(nil)
		m.observe(ctx, a)
	}
	return a != nil, opError("tryacquire", m.path, err)
}

// The method `check` refuses bad arguments. The method `fits` refuses the other numbers of permits.
func (m *Semaphore) check(ctx context.Context, n int64) error {
	if m.misuse() == nil && n <= 0 {
		return session.Invalid("%d permits; want at least 1", n)
	}
	return m.made.check(ctx)
}

// The method `fits` refuses n permits that exceed the limit, or that one transaction cannot create.
func (m *Semaphore) fits(n, limit int64) error {
	one := znodes.SizeOf(m.s.m, m.dir.Path, m.s.m.Owner) + 64 // the size of one permit's create request
	switch {
	case n > limit:
		return session.Invalid("%d permits exceed the limit of %d", n, limit)
	case !m.heavy(limit) && n > int64((znodes.MaxPacket-1024-len(m.at.Path))/one):
		return fmt.Errorf("the znodes of %d permits in one transaction: %w", n, ErrTooLarge)
	}
	return nil
}

// The method `obtain` acquires n permits. If a session ends, it continues in the next one. If wait
// is false and the permits are not free, it returns nil and no error. If we have the gate, `ahead`
// has the holders of permits, for which we wait.
func (m *Semaphore) obtain(ctx context.Context, n int64, wait bool, ahead *lock.Ahead) (a *lock.Permits, err error) {
	for {
		err = m.s.m.During(ctx, func(inc *session.Incarnation) (err error) {
			if a, err = m.attempt(ctx, inc, n, wait, ahead); ctx.Err() == nil && m.s.m.Failure() == nil {
				ahead.Forget() // we are no longer first at the gate
			}
			return err
		})
		if !errors.Is(err, session.ErrVanished) && !errors.Is(err, errUnsettled) {
			return a, err
		}
	}
}

func (m *Semaphore) attempt(ctx context.Context, inc *session.Incarnation, n int64, wait bool, ahead *lock.Ahead) (*lock.Permits, error) {
	// Agree on the limit before joining the line: if it refuses the request, fail at once.
	q, err := m.agree(ctx, inc, n)
	if err != nil {
		return nil, err
	}
	if ok, err := m.settle(ctx, wait); !ok {
		return nil, err
	}
	if !wait {
		// A caller that does not wait may call again and again. So read first, and write only if the
		// permits seem to be free. Both listings are newer than the call.
		lists, err := inc.ListFresh(ctx, m.gate.local.Line.Dir, m.dir.Path)
		if err != nil || len(lists[0]) > 0 || m.weightOfAll(lists[1]) > q.limit-n {
			return nil, err
		}
	}
	var leases []lock.Permit
	if (!wait || m.calm.Load()) && !m.gate.local.Wanted() {
		if leases, err = m.takeAtOnce(ctx, q, n); err != nil {
			return nil, err
		}
	}
	lapse := inc.Lapse()
	if leases == nil {
		var gate *lock.Grant
		if wait { // Step 1.
			_, gate, err = m.gate.acquire(ctx, lock.Exclusive, false)
		} else {
			gate, err = m.gate.try(ctx, lock.Exclusive)
		}
		if gate == nil || err != nil {
			return nil, err
		}
		inc = gate.Claim.Incarnation
		leases, err = m.take(ctx, gate, n, wait, ahead) // Steps 2 to 4.
		lapse = inc.Lapse()
		m.s.m.GiveUp(ctx, func() error { return m.gate.release(lock.Exclusive) }) // a loss of the gate does not affect the permits: their transaction proved that we had it
		if leases == nil || err != nil {
			return nil, err
		}
	}
	return m.keep(ctx, inc, lapse, leases, n)
}

// errUnsettled means that this process has lost permits and has not released them.
var errUnsettled = errors.New("lost permits have not been released")

// The method `settle` waits until this process has released its lost permits. It fails if no running
// Do is going to release them, and no Release comes within a session timeout.
func (m *Semaphore) settle(ctx context.Context, wait bool) (bool, error) {
	for {
		m.mu.Lock()
		freed, held := m.freed, m.held // not held.Left(), which is closed even if the program never releases the permits
		m.mu.Unlock()
		switch {
		case held == nil || held.Err() == nil:
			return true, nil
		case !wait:
			return false, m.s.m.Failure()
		}
		select {
		case <-time.After(m.s.m.Timeout()): // a release at this moment may come too late
			if err := held.Forgotten(); err != nil && m.functions.Load() == 0 {
				return false, err
			}
		case <-freed:
		case <-ctx.Done():
			return false, session.CtxErr(ctx)
		case <-m.s.m.Closing:
			return false, m.s.m.Failure()
		}
	}
}

// The type `quota` is the stored limit, as it was read. Until its watch fires, the limit is the same.
type quota struct {
	limit   int64
	version int32 // of the znode at the path
	inc     *session.Incarnation
	watch   *conn.Watch
	leave   func() // leaves the watch
}

// The method `agree` returns the stored limit for a request of n permits, or refuses the request. If
// no limit is stored, it stores ours. It sends no request while the watch of an earlier read stands.
func (m *Semaphore) agree(ctx context.Context, inc *session.Incarnation, n int64) (*quota, error) {
	for {
		if q := m.known.Load(); q != nil && q.inc == inc && m.fits(n, q.limit) == nil && !session.IsClosed(q.watch.Fired) {
			return q, nil
		}
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: m.at.Path})
		limit, stat, err := m.read(ctx, inc, inc.Get, n)
		if errors.Is(err, ErrInvalid) || errors.Is(err, ErrTooLarge) { // perhaps another process has resized, and the server lags
			limit, stat, err = m.read(ctx, inc, inc.GetFresh, n)
		}
		if err == nil && limit > 0 {
			q := &quota{limit: limit, version: stat.Version, inc: inc, watch: w, leave: session.StayJoined(m, inc, w)}
			if old := m.known.Swap(q); old != nil {
				old.leave()
			}
			return q, nil
		}
		inc.Watches.Leave(w)
		switch {
		case err != nil:
		case stat == nil:
			made := m.at
			made.Data = m.stored(m.named)
			err = znodes.MakeDir(ctx, inc, made)
		default:
			// If several clients write, only the first write succeeds, because each expects the same
			// version. The next read shows the limit of the first, even if our reply was lost.
			if _, err = inc.Set(ctx, m.at.Path, m.stored(m.named), stat.Version); session.IsBadVersion(err) || session.IsNoNode(err) {
				err = nil
			}
		}
		if err != nil {
			return nil, err
		}
	}
}

// The method `read` reads the stored limit, and refuses n permits that do not fit. The limit is 0 if
// none is stored, and stat is nil if there is no znode. The error is ErrInvalid if the limit differs
// from ours, and no process has resized the semaphore.
func (m *Semaphore) read(ctx context.Context, inc *session.Incarnation, get func(ctx context.Context, path string) ([]byte, *zk.Stat, error), n int64) (limit int64, stat *zk.Stat, err error) {
	if err := znodes.VetHere(ctx, inc, m.at.Path); err != nil {
		return 0, nil, err
	}
	data, stat, err := get(ctx, m.at.Path)
	if session.IsNoNode(err) {
		stat, err = nil, nil
	}
	if err != nil || stat == nil || len(marks.Unmark(data)) == 0 {
		return 0, stat, cmp.Or(err, m.fits(n, m.named))
	}
	if limit, err = parseLimit(data); err != nil {
		return 0, nil, err
	}
	if limit != m.named {
		// Resize creates the mark in the transaction that writes the limit. This session has read the
		// limit, so it also sees the mark.
		mark, err := inc.Exists(ctx, m.mark)
		if err != nil {
			return 0, nil, err
		}
		if mark == nil {
			return 0, nil, session.Invalid("the path has the limit %d, and this Semaphore %d; use Resize to change it", limit, m.named)
		}
	}
	m.limit.Store(limit)
	return limit, stat, m.fits(n, limit)
}

// The method `stored` returns the data for a limit: the number and, except in the persistent znode of
// LayoutKazoo, a mark. Without it, another primitive could take the container for a lasting znode.
func (m *Semaphore) stored(limit int64) []byte {
	data := strconv.AppendInt(nil, limit, 10)
	if m.layout == LayoutKazoo {
		return data
	}
	return marks.Mark(data)
}

func parseLimit(data []byte) (int64, error) {
	limit, err := strconv.ParseInt(strings.TrimSpace(string(marks.Unmark(data))), 10, 64)
	if err != nil || limit <= 0 {
		return 0, session.Invalid("the path stores %.40q, which is no limit of a Semaphore; use another path, or delete the data", data)
	}
	return limit, nil
}

// Resize makes n the limit of the semaphore. The limit n applies to every process that uses the
// path now or later, whatever limit that process names, even after a time without users. No permit
// is taken away: if more than n are held, Acquire waits. If the limit grows, the first waiters get
// the new permits at once. After Resize, the old limit no longer applies. At its first use, kazoo
// refuses a limit other than its own; Curator ignores it.
func (m *Semaphore) Resize(ctx context.Context, n int64) (err error) {
	defer m.wrap("resize", &err)
	if err := m.check(ctx, n); err != nil {
		return err
	}
	// Resize must not lock the gate, because its holder may be waiting for this Resize. The servers
	// check the version of the limit in a transaction that creates permits.
	both := []any{
		&zk.SetDataRequest{Path: m.at.Path, Data: m.stored(n), Version: -1},
		&zk.CreateRequest{Path: m.mark, Acl: m.s.m.Config.ACL},
	}
	for ops := both; ; {
		// Resize must not overwrite data that are not a limit.
		err := m.s.m.During(ctx, func(inc *session.Incarnation) error {
			data, _, err := inc.Get(ctx, m.at.Path)
			if session.IsNoNode(err) {
				// Even if another process stores its own limit now, the transaction stores n and the mark.
				return znodes.MakeDir(ctx, inc, m.at)
			}
			if err == nil && len(marks.Unmark(data)) > 0 {
				if _, err = parseLimit(data); err == nil && m.layout != LayoutKazoo && !marks.IsDir(data) {
					err = znodes.Mixed(m.s.m, m.at.Path) // the data are the number of another primitive: a limit has a mark
				}
			}
			return err
		})
		if err != nil {
			return err
		}
		// Apply the transaction exactly once: a repetition could undo the Resize of another process.
		switch _, err = txn.Across(ctx, m.s.m, m.at.Path+"-receipts", ops); {
		case err == nil:
			m.limit.Store(n)
			return nil
		case session.IsNodeExists(err):
			ops = both[:1] // the mark exists already
		case session.IsNoNode(err):
			ops = both // the servers removed the path, because it had no children
		default:
			return err
		}
	}
}

// The method `take` waits until n permits are free, and creates their znodes. If wait is false
// and the permits are not free, it returns nil and no error.
func (m *Semaphore) take(ctx context.Context, gate *lock.Grant, n int64, wait bool, ahead *lock.Ahead) ([]lock.Permit, error) {
	// The caller has the gate, but still waits for permits.
	m.s.m.Waiters.Add(1)
	m.s.m.Holds.Add(-1)
	defer m.s.m.Waiters.Add(-1)
	defer m.s.m.Holds.Add(1)
	inc := gate.Claim.Incarnation
	for first := true; ; first = false {
		q, err := m.agree(ctx, inc, n)
		if err != nil {
			return nil, err
		}
		names, err := inc.Names(ctx, m.dir.Path) // Step 2.
		free := err == nil && m.weightOfAll(names) <= q.limit-n
		if first {
			m.calm.Store(free)
		}
		switch {
		case err != nil || !free && !wait:
			return nil, err
		case !free:
			if err := m.awaitChange(ctx, gate, q, n, ahead); err != nil { // Step 3.
				return nil, err
			}
			continue
		}
		leases := m.name(q.limit, n) // each attempt has new names, because the previous znodes may be deleted at this moment
		holds := []*zk.CheckVersionRequest{{Path: gate.Claim.Znode(), Version: -1}, {Path: m.at.Path, Version: q.version}}
		err = znodes.CreateEphemeral(ctx, inc, &znodes.Creation{Dir: m.dir, Paths: lock.PathsOf(leases), Data: m.s.m.Owner, Holds: holds}) // Step 4.
		if session.IsBadVersion(err) || session.IsNoNode(err) {
			continue // the limit has changed, or was removed with its znode
		}
		return leases, err
	}
}

// awaitChange waits for a change of the limit q, or in the set of permits that are out. If n permits
// are free, it returns at once. It returns errUnsettled if this process loses permits or the gate:
// other contenders must not wait for us then.
//
// A separate listing sets the watch. If the first listing set it, and enough permits were free,
// our own create request would fire the watch without need.
func (m *Semaphore) awaitChange(ctx context.Context, gate *lock.Grant, q *quota, n int64, ahead *lock.Ahead) error {
	inc := q.inc
	w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: m.dir.Path})
	defer inc.Watches.Leave(w)
	names, err := inc.Names(ctx, m.dir.Path)
	if err != nil || m.weightOfAll(names) <= q.limit-n {
		return err
	}
	ahead.Set(m.dir.Path, names[0], len(names))
	waiting, end, rest := session.EndingContext(ctx)
	defer rest()
	defer end(nil)
	defer gate.Loss().AfterFunc(end)()
	if held, err := m.standing(); err == nil {
		defer held.Ending().AfterFunc(end)()
	}
	// A release wakes only us, because all other waiters are at the gate.
	err = ahead.AwaitEither(waiting, inc, w, q.watch)
	switch {
	case ctx.Err() != nil && err != nil:
		return session.CtxErr(ctx) // `waiting` may have ended before ctx, which has the cause
	case waiting.Err() != nil:
		return errUnsettled
	}
	return err
}

// The method `weightOfAll` returns the number of permits that are out. It can exceed the limit:
// other programs may count in another way, or Resize may have lowered the limit.
func (m *Semaphore) weightOfAll(names []string) int64 {
	return lock.CountPermits(names, m.layout == LayoutKazoo)
}

// The method `heavy` reports whether, with this limit, all permits of one Acquire share one znode.
func (m *Semaphore) heavy(limit int64) bool { return limit > 1000 && m.layout != LayoutKazoo }

// The method `name` chooses unique names for the znodes of n permits.
func (m *Semaphore) name(limit, n int64) []lock.Permit {
	if m.heavy(limit) {
		return []lock.Permit{{Path: znodes.ChildPath(m.dir.Path, lock.PermitsName(n)), Weight: n}}
	}
	guid := znodes.NewGUID()
	leases := make([]lock.Permit, n)
	for i := range leases {
		name := fmt.Sprintf("%s%010d", znodes.ProtectedName(guid, "lease-"), i)
		if m.layout == LayoutKazoo {
			name = lock.KazooName(znodes.NewGUID(), "")
		}
		leases[i] = lock.Permit{Path: znodes.ChildPath(m.dir.Path, name), Weight: 1}
	}
	return leases
}

// The method `keep` adds new permits to the permits of this process. While this process has not
// released its lost permits, `keep` releases the new permits and returns errUnsettled. It does not
// wait: other contenders wait, and that release may come an hour later.
//
// The argument `lapse` began before the release of the gate and the confirmation of the session. If
// an outage came between, and another client has deleted a znode of ours, a third client may have
// its permits. Then the error is ErrVanished.
func (m *Semaphore) keep(ctx context.Context, inc *session.Incarnation, lapse session.Lapse, leases []lock.Permit, n int64) (*lock.Permits, error) {
	s, err := inc.Stake(ctx)
	if err == nil && lapse.Outage() {
		var names []string
		names, err = inc.Names(ctx, m.dir.Path)
		if _, whole := lock.Without(names, lock.PathsOf(leases)); err == nil && !whole {
			err = session.ErrVanished
		}
		if err != nil {
			s.Drop()
		}
	}
	if err != nil {
		// The caller does not have the permits yet, so there is no loss to report.
		znodes.Remove(inc, lock.PathsOf(leases)...).Await(session.Grace)
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.held
	if a == nil {
		a = lock.NewPermits(inc, s, m.at.Path, m.dir.Path, m.limits, &m.limit)
	}
	if a.Stake != s {
		s.Drop()
	}
	if a.Incarnation != inc || a.Add(leases, n) != nil {
		znodes.Remove(inc, lock.PathsOf(leases)...) // the earlier permits are lost, so release the new permits
		return nil, errUnsettled
	}
	if m.held == nil {
		m.held, m.freed = a, make(chan struct{})
	}
	a.Err() // if the session has ended, the holder must see the loss first
	return a, nil
}

// Do acquires n permits, calls f, and releases them. If the permits are lost, f's context ends with
// cause [ErrLost]. Then f must return soon, and Do returns ErrLost. Do joins the errors of f and of
// the release. If f panics, Do releases the permits and panics. Within f, Acquire and Do ask for
// more, and can wait for f's permits. If f releases some, Do returns [ErrNotLocked].
func (m *Semaphore) Do(ctx context.Context, n int64, f func(ctx context.Context) error) error {
	if m.misuse() == nil && f == nil {
		return opError("do", m.path, session.Invalid("the function is nil"))
	}
	ctx, a, err := m.acquired(ctx, n)
	if err != nil {
		return opError("do", m.path, err)
	}
	d := &doCall{function: m.s.m.Function(m.s.m.FunctionOf(ctx)), lost: a.Ending()}
	a.Within(&d.function, n)
	m.functions.Add(1)
	release := func() error {
		return opError("do", m.path, d.giveUp(ctx, m.s.m, func() error {
			defer m.functions.Add(-1)
			return m.releaseOf(a, n, &d.function)
		}))
	}
	if err := d.function.Begin(); err != nil {
		release()
		return opError("do", m.path, err)
	}
	return doHolding(ctx, m.s, d, f, release)
}

// Release releases n permits of this Semaphore value, from any number of Acquires. If there are
// fewer, it releases none and returns [ErrNotLocked].
func (m *Semaphore) Release(n int64) (err error) {
	defer m.wrap("release", &err)
	if err := m.check(context.Background(), n); err != nil {
		return err
	}
	return m.releaseOf(nil, n, nil)
}

// releaseOf releases n permits. Only Do passes its permits `a` and its function f. If `a` has fewer
// than n permits, releaseOf releases all of them and returns ErrNotLocked.
func (m *Semaphore) releaseOf(a *lock.Permits, n int64, f *session.Function) error {
	m.mu.Lock()
	held := int64(0)
	if m.held != nil {
		held = m.held.Held()
	}
	if m.held == nil || a != nil && a != m.held || a == nil && held < n {
		m.mu.Unlock()
		return session.Worded(fmt.Sprintf("%d permits, %d held", n, held), ErrNotLocked)
	}
	a = m.held
	left, r, lost := a.Release(min(n, held), f)
	if !left {
		m.held = nil
		close(m.freed)
	}
	m.mu.Unlock()
	if lost != nil {
		return lost
	}
	if err := a.Result(r); err != nil {
		return err
	}
	m.s.m.Observe(session.Report{Kind: session.EventReleased, Op: "acquire", Path: m.path, Wait: time.Since(a.Since())})
	if held < n {
		return ErrNotLocked
	}
	return nil
}

// Lost is [Mutex.Lost] for the permits of m.
func (m *Semaphore) Lost() <-chan struct{} {
	a, err := m.standing()
	if err != nil || a.Err() != nil {
		return session.ClosedChan
	}
	return a.Ending().Done()
}

// Txn is [Mutex.Txn]; it is applied only while m holds all its permits.
func (m *Semaphore) Txn(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	rs, err := m.s.sending(ctx, m.Lost(), ops, func(ops []any) ([]zk.MultiResponse, error) {
		for {
			a, err := m.standing()
			if err != nil {
				return nil, err
			}
			rs, err := a.Txn(ctx, ops)
			if err != ErrNotLocked { // after ErrNotLocked, a Release came first, and the transaction was not applied; another error may have it as its cause
				return rs, err
			}
		}
	})
	return rs, opError("txn", m.path, err)
}

// Token is [Mutex.Token] for the permits that m holds. It is greater than the token of any permits
// that were released or lost before m acquired its latest permits. The tokens of simultaneous
// holders have no order: a server that checks tokens must remember one for each permit.
func (m *Semaphore) Token(ctx context.Context) (token int64, err error) {
	defer m.wrap("token", &err)
	a, err := m.standing()
	if err != nil {
		return 0, err
	}
	return a.Token(ctx)
}

func (m *Semaphore) standing() (*lock.Permits, error) {
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

// Contenders returns the holders, one for each znode of permits, then waiters.
func (m *Semaphore) Contenders(ctx context.Context) (out []Contender, err error) {
	defer m.wrap("contenders", &err)
	err = m.during(ctx, func(inc *session.Incarnation) error {
		names, err := inc.Names(ctx, m.dir.Path)
		if err == nil {
			out, err = describe(ctx, inc, m.dir.Path, names, func(int) (Mode, bool) { return ModePermits, true })
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(out, func(a, b Contender) int { return a.Since.Compare(b.Since) })
	waiting, err := m.contenders(ctx, &m.gate.local.Line, func([]lock.Child, int) (Mode, bool) { return ModePermits, false })
	if err != nil {
		return nil, err
	}
	return append(out, waiting...), nil
}

func (m *Semaphore) op(n int64) Op {
	return Op{Kind: OpAcquire, Primitive: "semaphore", Name: "acquire", Path: m.path, Count: int(n)}
}

// The method `observe` reports the hold of m to the tracer, once, and returns the hold's context.
// All permits of m are one hold, because a Release does not show which permit ends.
func (m *Semaphore) observe(ctx context.Context, a *lock.Permits) context.Context {
	if a == nil || m.s.tracer == nil || a.Traced.Swap(true) {
		return ctx
	}
	op := m.op(a.Held())
	op.Kind = OpHold
	ctx, hold := m.s.begin(ctx, op)
	m.s.m.Spawn(func() {
		select {
		case <-a.Ending().Done():
		case <-a.Left():
		}
		hold.end(a.Loss()) // the loss, whichever channel has ended the wait
	})
	return ctx
}
