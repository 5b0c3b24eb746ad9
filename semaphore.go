package zsync

import (
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
)

// A Semaphore is a weighted semaphore shared by every process that names the
// same path: [golang.org/x/sync/semaphore] across processes. At most n permits
// are held at a time.
//
// Who asks is served in the order of arrival, however many permits it asks for,
// so many small requests do not starve a large one; see [WithHandoffs] for the
// goroutines of one process. All processes must name the same n: it is stored
// at the path, and who names another is refused.
//
// If the session ends, all permits that this process held are lost and others
// may hold them already: [Semaphore.Lost] is closed, and Release returns
// [ErrLost]. An Acquire that only waits carries on in the next session, at the
// back of the line. After a loss nobody of this process gets a permit before
// the lost ones have been released.
//
// These are the znodes of Curator's InterProcessSemaphoreV2: for each permit
// one that is ephemeral, path/leases/_c_<uuid>-lease-<number>, with the owner
// as data ([WithOwner]), and the line of those who ask, a [Mutex] at
// path/locks. The data of path is n in decimal, as in kazoo. Where n is above
// 1,000 the permits of one Acquire are one znode, path/leases/_c_<uuid>-weight-<n>,
// which Curator would count as one permit. With [LayoutKazoo] a permit is
// path/<guid> and the line is at path-__lock__. All parents are containers,
// removed by the servers when they are empty, but for path with LayoutKazoo.
//
// Acquire costs 6 requests in 4 round trips when there are enough permits, and
// 3 less if a goroutine of this process hands the turn on; the first Acquire
// of a Semaphore costs 1 more. A wait for its turn adds one watch, and after it
// one request. While there are not enough permits, each release wakes the first
// in the line, and nobody else; that adds 2 requests each time. Release costs 1.
//
// The algorithm is that of Curator and kazoo, for several permits at a time:
//
//  1. Lock the gate. Who has it is the first in the line, so nobody else takes
//     permits.
//  2. Read the limit, and list the permits that are out.
//  3. If there are not enough, list them with a watch, wait, and list again.
//  4. Create the znodes of the permits, in one transaction with the proof that
//     the gate is still ours, and unlock the gate.
type Semaphore struct {
	made
	limit  int64
	layout Layout
	root   string // the path, as the server knows it
	leases string // the parent of the permits' znodes, as the server knows it
	gate   *Mutex
	agreed atomic.Bool // the limit has been compared once

	mu    sync.Mutex
	held  *allotment    // what this process holds, until it is released even if it is lost; guarded by mu
	freed chan struct{} // if not nil, closed when held becomes nil; guarded by mu
}

// An allotment is the permits that a process holds through one ZooKeeper session.
type allotment struct {
	inc     *incarnation
	leases  []lease     // guarded by Semaphore.mu
	permits int64       // the sum of leases; guarded by Semaphore.mu
	since   time.Time   // of the first
	lost    bool        // with its session; guarded by Semaphore.mu
	stop    func() bool // undoes the registration with the incarnation
	last    *removal    // the last change of what has weight; guarded by Semaphore.mu
}

// A lease is the znode of one permit, or of several.
type lease struct {
	path   string // as the server knows it
	weight int64
}

// maxUnits is the greatest limit at which each permit has a znode of its own.
const maxUnits = 1000

// NewSemaphore returns the Semaphore of n permits at path. It does no I/O; a
// bad argument is reported by every method.
func NewSemaphore(s *Session, path string, n int64, opts ...LockOption) *Semaphore {
	c := newLockConfig(opts)
	m := &Semaphore{made: made{s: s, path: path}, limit: n, layout: c.layout}
	if m.err = checkNew(s, path, c.err); m.err == nil && n <= 0 {
		m.err = invalid("a semaphore of %d permits; want at least 1", n)
	}
	if m.bad() != nil {
		return m
	}
	m.root = s.full(path)
	gate := childPath(path, "locks")
	m.leases = childPath(m.root, "leases")
	if c.layout == LayoutKazoo {
		gate, m.leases = path+"-__lock__", m.root
	}
	m.gate = NewMutex(s, gate, opts...)
	m.gate.turn.entries[ModeExclusive] = lineEntry{base: m.gate.turn.line.bases[0], turn: exclusive} // no op: it is no hold of its own
	return m
}

// Path returns the path that m was made with.
func (m *Semaphore) Path() string { return m.path }

// Acquire acquires n permits, all at once. It waits until they are there, ctx
// ends, or the Session is closed.
//
// When Acquire returns an error it leaves the semaphore unchanged. A ctx that
// has ended already fails even if there are permits. An n that is not positive,
// or above the limit, is refused with [ErrInvalid], and so is everything where
// the path has another limit. So many that their znodes do not fit into one
// transaction, thousands with [LayoutKazoo] or hundreds with a very long
// [WithOwner], are refused with [ErrTooLarge].
func (m *Semaphore) Acquire(ctx context.Context, n int64) error {
	start := time.Now()
	if err := m.check(ctx, n); err != nil {
		return opError("acquire", m.path, err)
	}
	_, err := m.acquire(ctx, n, true)
	m.s.waited("acquire", m.path, start, err)
	return opError("acquire", m.path, err)
}

// TryAcquire tries to acquire n permits and reports whether it succeeded. It
// does not wait for others, but for the server's answers it does. It fails
// while somebody else is about to acquire, or waits to. It costs 3 requests if
// so, 6 if there are not enough permits, and 7 if it succeeds.
func (m *Semaphore) TryAcquire(ctx context.Context, n int64) (bool, error) {
	start := time.Now()
	if err := m.check(ctx, n); err != nil {
		return false, opError("tryacquire", m.path, err)
	}
	ok, err := m.acquire(ctx, n, false)
	if ok {
		m.s.waited("acquire", m.path, start, nil)
	}
	return ok, opError("tryacquire", m.path, err)
}

func (m *Semaphore) check(ctx context.Context, n int64) error {
	switch {
	case m.bad() != nil:
		return m.bad()
	case n <= 0:
		return invalid("%d permits; want at least 1", n)
	case n > m.limit:
		return invalid("%d permits of a semaphore that has %d: they will never be there", n, m.limit)
	case n > m.most():
		return fmt.Errorf("the znodes of %d permits in one transaction: %w", n, ErrTooLarge)
	case ctx.Err() != nil:
		return ctxErr(ctx)
	}
	return nil
}

// most returns how many permits can be taken in one transaction.
func (m *Semaphore) most() int64 {
	if m.heavy() {
		return m.limit
	}
	one := m.s.sizeOf(m.leases, []byte(m.s.cfg.owner)) + 64 // its name
	return int64((maxPacket - 1024 - len(m.root)) / one)
}

// acquire acquires n permits, in as many sessions as it takes.
func (m *Semaphore) acquire(ctx context.Context, n int64, wait bool) (bool, error) {
	// Who names another limit learns it before it stands in the line.
	if !m.agreed.Load() {
		if err := m.s.during(ctx, func(inc *incarnation) error { return m.agree(ctx, inc) }); err != nil {
			return false, err
		}
		m.agreed.Store(true)
	}
	for {
		if ok, err := m.settle(ctx, wait); !ok {
			return false, err
		}
		if ok, err := m.enter(ctx, wait); !ok {
			return false, err
		}
		gate, err := m.gate.current()
		if err != nil {
			return false, err // somebody else has unlocked our own gate: it cannot be
		}
		leases, err := m.take(ctx, gate, n, wait) // Steps 2 to 4.
		// If the gate is lost that says nothing of the permits: the proof was
		// in the transaction that made them.
		m.s.letGo(ctx, m.gate.unlock)
		switch {
		case err == nil && leases == nil:
			return false, nil
		case err == nil:
			err = m.keep(ctx, gate.place.inc, leases, n)
		}
		if err == nil {
			return true, nil
		}
		// What only waits goes on, in the next session or in another place,
		// unless ctx has ended too: Step 1 looks.
		if !errors.Is(err, errEnded) && !errors.Is(err, errVanished) {
			return false, err
		}
	}
}

// settle waits until this process holds nothing that is lost.
func (m *Semaphore) settle(ctx context.Context, wait bool) (bool, error) {
	for {
		m.mu.Lock()
		if m.held == nil || m.held.inc.alive() {
			m.mu.Unlock()
			return true, nil
		}
		freed := m.freedLocked()
		m.mu.Unlock()
		if !wait {
			return false, m.s.failure()
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return false, ctxErr(ctx)
		case <-m.s.closing:
			return false, m.s.failure()
		}
	}
}

func (m *Semaphore) freedLocked() <-chan struct{} {
	if m.freed == nil {
		m.freed = make(chan struct{})
	}
	return m.freed
}

// enter locks the gate: Step 1.
func (m *Semaphore) enter(ctx context.Context, wait bool) (bool, error) {
	if !wait {
		return m.gate.tryLock(ctx)
	}
	err := m.gate.lock(ctx)
	return err == nil, err
}

// agree compares the limit with the one that is stored, and stores it if there
// is none.
func (m *Semaphore) agree(ctx context.Context, inc *incarnation) error {
	mine := []byte(strconv.FormatInt(m.limit, 10))
	for {
		data, stat, err := inc.get(ctx, m.root)
		switch {
		case err == nil && len(data) == 0:
			// The version makes one of several the first. Whoever it was,
			// and if it was us and the reply is lost, is read again.
			if _, err = inc.set(ctx, m.root, mine, stat.Version); err == nil || !isBadVersion(err) && !isNoNode(err) {
				return err
			}
		case err == nil:
			theirs, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
			if err != nil {
				return invalid("the path's data are %.40q, not the limit of a semaphore; use another path, or empty them", data)
			}
			if theirs != m.limit {
				return invalid("this semaphore was made with a limit of %d, but others use the path with a limit of %d", m.limit, theirs)
			}
			return nil
		case !isNoNode(err):
			return err
		default:
			if err := m.makeRoot(ctx, inc, mine); err != nil {
				return err
			}
		}
	}
}

// makeRoot makes the znode at the path, which holds the limit. It goes when the
// semaphore has not been used for a while, and the next may choose another
// limit; kazoo does not expect that.
func (m *Semaphore) makeRoot(ctx context.Context, inc *incarnation, limit []byte) error {
	if m.layout == LayoutKazoo {
		_, err := inc.create(ctx, m.root, limit)
		return err
	}
	return inc.makeDir(ctx, m.root) // and agree writes the limit
}

// take waits until n permits are there, and takes them. It is nil if they are
// not there and wait is false.
func (m *Semaphore) take(ctx context.Context, gate *hold, n int64, wait bool) ([]lease, error) {
	// The gate is not what the caller wants to hold: he still waits.
	m.s.waiters.Add(1)
	m.s.holds.Add(-1)
	defer m.s.waiters.Add(-1)
	defer m.s.holds.Add(1)
	inc := gate.place.inc
	agreed := make(chan error, 1)
	inc.m.spawn(func() { agreed <- m.agree(ctx, inc) }) // on its way together with the listing
	free, err := m.free(ctx, inc)                       // Step 2.
	if e := <-agreed; e != nil {
		return nil, e
	}
	for err == nil && free < n {
		if !wait {
			return nil, nil
		}
		if err = m.awaitFree(ctx, inc, n); err == nil { // Step 3.
			free, err = m.free(ctx, inc)
		}
	}
	if err != nil {
		return nil, err
	}
	return m.make(ctx, gate, n) // Step 4.
}

// awaitFree waits for a change of the permits that are out, unless there are
// enough.
//
// The watch is set by a listing of its own: set by the one that finds enough,
// it would be fired, for nothing, by our own taking.
func (m *Semaphore) awaitFree(ctx context.Context, inc *incarnation, n int64) error {
	w := inc.hub.join(watchKey{watchChildren, m.leases})
	defer inc.hub.leave(w)
	free, err := m.free(ctx, inc)
	if err == nil && free < n {
		// Whoever gives permits back, only we are woken: everyone else waits
		// at the gate.
		err = inc.awaitFired(ctx, w)
	}
	return err
}

// free returns how many permits are not out.
func (m *Semaphore) free(ctx context.Context, inc *incarnation) (int64, error) {
	names, _, err := inc.children(ctx, m.leases)
	if isNoNode(err) {
		return m.limit, nil
	}
	free := m.limit
	for _, name := range names {
		// Others may count otherwise, and have more out than there are.
		free -= min(free, m.weightOf(name))
	}
	return free, err
}

// weightOf returns how many permits a znode stands for: one, whatever it is
// called, as Curator and kazoo count them, unless its name says more.
func (m *Semaphore) weightOf(name string) int64 {
	if i := strings.LastIndex(name, weightBase); i >= 0 && m.heavy() {
		if n, err := strconv.ParseInt(name[i+len(weightBase):], 10, 64); err == nil && n > 0 {
			return n
		}
	}
	return 1
}

const weightBase = "-weight-"

// heavy reports whether the permits of one Acquire are one znode.
func (m *Semaphore) heavy() bool { return m.limit > maxUnits && m.layout != LayoutKazoo }

// make makes the znodes of n permits while the gate is ours.
func (m *Semaphore) make(ctx context.Context, gate *hold, n int64) ([]lease, error) {
	inc := gate.place.inc
	leases := m.name(n)
	for {
		err := inc.createAll(ctx, gate.at(), pathsOf(leases), []byte(m.s.cfg.owner))
		if !isNoNode(err) {
			return leases, err
		}
		// The parent is not there yet, or has been removed because it was
		// empty. Where that is the path itself it holds the limit.
		if err = m.agree(ctx, inc); err == nil {
			err = inc.makeDir(ctx, m.leases)
		}
		if err != nil {
			return nil, err
		}
	}
}

// name chooses the names of n permits' znodes. They are unique, so whether a
// create was applied can be seen.
func (m *Semaphore) name(n int64) []lease {
	guid := newGUID()
	if m.heavy() {
		return []lease{{childPath(m.leases, "_c_"+guid+weightBase+strconv.FormatInt(n, 10)), n}}
	}
	leases := make([]lease, n)
	for i := range leases {
		name := fmt.Sprintf("%s%010d", protectedName(guid, "lease-"), i)
		if m.layout == LayoutKazoo {
			name = kazooName(newGUID(), "")
		}
		leases[i] = lease{childPath(m.leases, name), 1}
	}
	return leases
}

func pathsOf(leases []lease) []string {
	paths := make([]string, len(leases))
	for i, l := range leases {
		paths[i] = l.path
	}
	return paths
}

// keep enters what has been taken into the allotment.
func (m *Semaphore) keep(ctx context.Context, inc *incarnation, leases []lease, n int64) error {
	for {
		if !inc.alive() {
			return errEnded // they go with their session, and nobody has been told of them
		}
		m.mu.Lock()
		if m.held == nil {
			a := &allotment{inc: inc, since: time.Now()}
			a.stop = context.AfterFunc(inc.ctx, func() {
				m.mu.Lock()
				a.lost = true
				m.s.holds.Add(-a.permits)
				m.mu.Unlock()
				m.s.observe(event{kind: eventLost, op: "acquire", path: m.path, wait: time.Since(a.since), err: inc.loss()})
			})
			m.held = a
		}
		if a := m.held; a.inc == inc {
			if a.lost {
				m.mu.Unlock()
				return errEnded
			}
			a.leases = append(a.leases, leases...)
			a.permits += n
			m.s.holds.Add(n)
			m.mu.Unlock()
			return nil
		}
		// Others of this process have lost theirs since we asked, or we have
		// lost ours and they have got new ones.
		freed := m.freedLocked()
		m.mu.Unlock()
		select {
		case <-freed:
		case <-inc.ctx.Done():
			return errEnded
		case <-ctx.Done():
			inc.removeAll(pathsOf(leases)).await(grace)
			return ctxErr(ctx)
		}
	}
}

// Release releases n permits of those that this Semaphore value holds, by
// however many calls of Acquire they came. It returns [ErrNotLocked] if it
// holds fewer, and then releases none; and [ErrLost] if they were lost, in which
// case there is nothing to release any more.
//
// Release cannot fail to give up. It returns within half a second, and at once
// if the connection is down: what is not done by then the Session goes on with.
func (m *Semaphore) Release(n int64) error {
	return opError("release", m.path, m.release(n))
}

func (m *Semaphore) release(n int64) error {
	switch {
	case m.bad() != nil:
		return m.bad()
	case n <= 0:
		return invalid("%d permits; want at least 1", n)
	}
	m.mu.Lock()
	a := m.held
	if a == nil || a.permits < n {
		m.mu.Unlock()
		return ErrNotLocked
	}
	r := m.giveLocked(a, n)
	if !a.lost {
		m.s.holds.Add(-n)
	}
	if a.permits == 0 {
		m.held = nil
		a.stop()
		if m.freed != nil {
			close(m.freed)
			m.freed = nil
		}
	}
	m.mu.Unlock()
	if err := r.verdict(); err != nil {
		return err
	}
	m.s.observe(event{kind: eventReleased, op: "acquire", path: m.path, wait: time.Since(a.since)})
	return nil
}

// giveLocked takes n permits off the allotment and deletes their znodes in the
// background.
func (m *Semaphore) giveLocked(a *allotment, n int64) *removal {
	a.permits -= n
	var paths []string
	for n > 0 {
		last := len(a.leases) - 1
		l := a.leases[last]
		if l.weight > n {
			// Somebody gives back a part of what was taken at once.
			rest := m.name(l.weight - n)[0]
			a.leases[last] = rest
			return m.change(a, paths, l.path, rest.path)
		}
		a.leases = a.leases[:last]
		paths = append(paths, l.path)
		n -= l.weight
	}
	return m.change(a, paths, "", "")
}

// change deletes the znodes at paths in the background, and puts one at rest in
// the place of that at whole, if there is a rest. Where it may, this happens in
// the order of the calls: one may delete what the one before has not made yet.
func (m *Semaphore) change(a *allotment, paths []string, whole, rest string) *removal {
	if !m.heavy() {
		return a.inc.removeAll(paths)
	}
	before := a.last
	a.last = a.inc.inBackground(m.leases, func() (err error) {
		if before != nil {
			select {
			case <-before.done:
			case <-before.refused:
				if !isClosed(before.done) {
					return before.refusal
				}
			}
		}
		if whole != "" {
			err = a.inc.exchange(context.Background(), whole, rest, []byte(m.s.cfg.owner))
		}
		if len(paths) > 0 {
			err = worse(err, a.inc.removeAllNow(context.Background(), paths))
		}
		return err
	})
	return a.last
}

// exchange makes an ephemeral znode of a unique name in place of another, in
// one transaction, so that nobody sees too few permits out or is woken twice.
// It is NoNode if the other is gone.
func (inc *incarnation) exchange(ctx context.Context, old, name string, data []byte) error {
	rs, err := inc.multi(ctx,
		&zk.CreateRequest{Path: name, Data: data, Acl: inc.m.cfg.acl, Flags: zk.FlagEphemeral},
		&zk.DeleteRequest{Path: old, Version: -1})
	if len(rs) > 0 && isNodeExists(rs[0].Error) {
		return nil // an attempt without a reply has been applied: nobody else makes this name
	}
	return err
}

// Lost returns a channel that is closed when the permits that m holds are lost:
// the session has ended, or may have. While m holds none, the channel is closed
// already. It is not closed by Release.
func (m *Semaphore) Lost() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held == nil || !m.held.inc.alive() {
		return closedChan
	}
	return m.held.inc.ctx.Done()
}

// Contenders returns who holds permits, one for each znode, and who asks for
// some, in their order. It costs two listings and a read
// for every 128 of them.
func (m *Semaphore) Contenders(ctx context.Context) ([]Contender, error) {
	if m.bad() != nil {
		return nil, opError("contenders", m.path, m.bad())
	}
	var out []Contender
	err := m.s.during(ctx, func(inc *incarnation) error {
		names, _, err := inc.children(ctx, m.leases)
		if err != nil && !isNoNode(err) {
			return err
		}
		out, err = describe(ctx, inc, m.leases, names, func(int) (Mode, bool) { return ModePermits, true })
		return err
	})
	if err != nil {
		return nil, opError("contenders", m.path, err)
	}
	slices.SortStableFunc(out, func(a, b Contender) int { return a.Since.Compare(b.Since) })
	waiting, err := contenders(ctx, &m.gate.turn.line, func([]child, int) (Mode, bool) { return ModePermits, false })
	if err != nil {
		return nil, opError("contenders", m.path, err)
	}
	return append(out, waiting...), nil
}
