package zsync

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// A LockOption changes a Mutex, RWMutex or Semaphore.
type LockOption func(*lockConfig)

type lockConfig struct {
	handoffs int
	layout   Layout
	err      error
}

// defaultHandoffs is a compromise: an eight of the local hand-overs' speed is
// lost to asking whether somebody else waits, and no other process waits for
// more than so many critical sections.
const defaultHandoffs = 16

func newLockConfig(opts []LockOption) lockConfig {
	c := lockConfig{handoffs: defaultHandoffs}
	for i, o := range opts {
		if o == nil {
			c.err = invalid("lock option %d is nil", i)
			continue
		}
		o(&c)
	}
	return c
}

// WithHandoffs lets a process pass the lock among its own goroutines up to n
// times in a row while another process waits. A hand-over within the process
// costs no round trip; after n of them one listing tells whether somebody else
// waits. With 0 every goroutine takes its own place in the line, and the order
// is the order of arrival across all processes. The default is 16.
func WithHandoffs(n int) LockOption {
	return func(c *lockConfig) {
		if n < 0 {
			c.err = invalid("WithHandoffs(%d): must not be negative", n)
		}
		c.handoffs = n
	}
}

// WithLayout chooses whose programs the path is shared with. The default is
// [LayoutCurator].
func WithLayout(l Layout) LockOption {
	return func(c *lockConfig) {
		if l != LayoutCurator && l != LayoutKazoo {
			c.err = invalid("WithLayout(%v): unknown layout", l)
		}
		c.layout = l
	}
}

// A Mutex is a mutual exclusion lock shared by every process that names the
// same path.
//
// At most one live session holds the Mutex. Waiters are served in the order in
// which the servers saw them arrive; see [WithHandoffs] for the goroutines of
// one process, which share one place in the line. In the terminology of the Go
// memory model, the n'th Unlock synchronizes before the m'th Lock for n < m,
// for callers in one process.
//
// If the session ends, the Mutex is no longer held and another process may
// hold it already: [Mutex.Lost] is closed, and Unlock returns [ErrLost]. A
// Lock that only waits carries on in the next session, at the back of the
// line. Code that writes elsewhere while holding m should pass [Mutex.Token]
// along, and code that writes to ZooKeeper should use [Mutex.Txn].
//
// Each Lock writes one ephemeral, sequential znode, path/_c_<uuid>-lock-<seq>,
// whose data is the owner in plain text ([WithOwner]). path and its parents are
// containers, created if missing, and removed by the servers once empty. With
// [LayoutKazoo] the name is <guid>__lock__<seq>. Children with other names are
// ignored.
//
// Lock costs 2 requests in 1 round trip when the Mutex is free; a wait adds one
// watch, which only the one ahead in the line can fire, and after it one
// request. Unlock costs 1. A hand-over between goroutines of one process costs
// none.
//
// The algorithm is "Locks" from the ZooKeeper recipes, with unique names
// against lost replies, as Curator's InterProcessMutex has them.
type Mutex struct {
	_        noCopy
	s        *Session
	path     string
	err      error // of the constructor's arguments
	line     line
	handoffs int

	mu      sync.Mutex
	hold    *hold         // what this process holds, until it is unlocked even if it is lost; guarded by mu
	freed   chan struct{} // if not nil, closed when hold becomes nil; guarded by mu
	locked  bool          // a goroutine has the lock; guarded by mu
	passing bool          // an Unlock decides who is next; guarded by mu
	passed  int           // hand-overs since the process got the lock; guarded by mu
	waiting []*lockWaiter // goroutines of this process, in order; guarded by mu
	seeking *seeker       // the goroutine that waits in the line for them; guarded by mu
}

// A lockWaiter is one goroutine in Lock.
type lockWaiter struct {
	granted chan struct{} // closed, under Mutex.mu, when err or the lock has been given
	err     error
}

// A seeker waits in the line on behalf of the waiting goroutines.
type seeker struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when nothing of it is left
}

// NewMutex returns the Mutex at path. It does no I/O; a bad argument is
// reported by every method.
func NewMutex(s *Session, path string, opts ...LockOption) *Mutex {
	c := newLockConfig(opts)
	m := &Mutex{s: s, path: path, handoffs: c.handoffs}
	if m.err = checkNew(s, path, c.err); m.err == nil {
		base := "lock-"
		if c.layout == LayoutKazoo {
			base = "__lock__"
		}
		m.line = newLine(s.manager, path, c.layout, base)
	}
	return m
}

// checkNew is what every constructor asks of its arguments.
func checkNew(s *Session, path string, err error) error {
	if s == nil {
		return invalid("the Session is nil")
	}
	if err != nil {
		return err
	}
	return checkPath(path)
}

// Path returns the path that m was made with.
func (m *Mutex) Path() string { return m.path }

// Lock locks m. It waits until m is free, ctx ends, or the Session is closed.
//
// When Lock returns an error m is not held by the caller and nothing of it is
// left in the line. A ctx that has ended already fails even if m is free. With
// a ctx that comes from [Mutex.Do] of the same path, Lock returns
// [ErrDeadlock].
func (m *Mutex) Lock(ctx context.Context) error {
	return opError("lock", m.path, m.lock(ctx))
}

func (m *Mutex) lock(ctx context.Context) error {
	if err := m.check(ctx); err != nil {
		return err
	}
	start := time.Now()
	if m.handoffs == 0 {
		err := m.lockAlone(ctx)
		m.report(err, start)
		return err
	}
	w := &lockWaiter{granted: make(chan struct{})}
	m.mu.Lock()
	m.waiting = append(m.waiting, w)
	m.seekLocked()
	m.mu.Unlock()

	var err error
	select {
	case <-w.granted:
		err = w.err
	case <-ctx.Done():
		err = m.abandon(ctx, w)
	}
	m.report(err, start)
	return err
}

// lockAlone is lock for a goroutine with a place of its own in the line.
func (m *Mutex) lockAlone(ctx context.Context) error {
	p, err := m.line.acquire(ctx, m.line.bases[0], []byte(m.s.cfg.owner), exclusive)
	if err != nil {
		return err
	}
	h := newHold(&m.line, p, "lock")
	if err := m.vacant(ctx); err != nil {
		h.release()
		return err
	}
	defer m.mu.Unlock()
	m.hold, m.locked = h, true
	return nil
}

// vacant waits until this process holds nothing, and returns with mu held, or
// with an error and mu not held.
//
// Its caller has just been granted the lock by the servers, so what is still
// held here has been lost with its session, and its goroutine has not noticed.
// Waiting for it keeps goroutines of one process apart even then.
func (m *Mutex) vacant(ctx context.Context) error {
	for {
		m.mu.Lock()
		if m.hold == nil {
			return nil
		}
		if m.freed == nil {
			m.freed = make(chan struct{})
		}
		freed := m.freed
		m.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return ctxErr(ctx)
		}
	}
}

// vacateLocked is the end of what this process holds.
func (m *Mutex) vacateLocked() {
	m.hold = nil
	if m.freed != nil {
		close(m.freed)
		m.freed = nil
	}
}

func (m *Mutex) report(err error, start time.Time) {
	e := Event{Kind: Acquired, Op: "lock", Path: m.path, Wait: time.Since(start)}
	if err != nil {
		e.Kind, e.Err = GaveUp, err
	}
	m.s.observe(e)
}

// check is what every acquisition asks first.
func (m *Mutex) check(ctx context.Context) error {
	switch {
	case m.err != nil:
		return m.err
	case ctx.Err() != nil:
		return ctxErr(ctx)
	case m.holderOf(ctx) != nil:
		return ErrDeadlock
	}
	return nil
}

// seekLocked sends somebody to the line if goroutines wait and nobody of this
// process holds the lock or seeks it.
func (m *Mutex) seekLocked() {
	if len(m.waiting) == 0 || m.seeking != nil || m.hold != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &seeker{cancel: cancel, done: make(chan struct{})}
	m.seeking = s
	m.s.spawn(func() {
		defer close(s.done)
		defer cancel()
		p, err := m.line.acquire(ctx, m.line.bases[0], []byte(m.s.cfg.owner), exclusive)
		var h *hold
		if err == nil {
			h = newHold(&m.line, p, "lock")
			if err = m.vacant(ctx); err != nil {
				h.release()
			}
		}
		if err != nil {
			m.mu.Lock()
		}
		m.seeking = nil
		if err != nil && ctx.Err() == nil {
			// What retrying cannot cure, it cannot cure for any of them.
			for _, w := range m.waiting {
				w.err = err
				close(w.granted)
			}
			m.waiting = nil
		}
		if err != nil {
			m.seekLocked() // for those who came after the cancellation
			m.mu.Unlock()
			return
		}
		if len(m.waiting) > 0 {
			m.hold, m.passed = h, 0
			m.grantLocked()
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		// All who waited have left in the meantime.
		h.release()
	})
}

// grantLocked gives the lock that this process holds to the next goroutine.
func (m *Mutex) grantLocked() {
	w := m.waiting[0]
	m.waiting = m.waiting[1:]
	m.locked = true
	close(w.granted)
}

// abandon takes w out of the queue because its ctx has ended.
func (m *Mutex) abandon(ctx context.Context, w *lockWaiter) error {
	m.mu.Lock()
	select {
	case <-w.granted:
		// The lock was given at the same instant. The caller is told that
		// its ctx has ended, so it must not keep the lock: pass it on.
		m.mu.Unlock()
		if w.err == nil {
			m.unlock()
		}
		return ctxErr(ctx)
	default:
	}
	for i, x := range m.waiting {
		if x == w {
			m.waiting = append(m.waiting[:i:i], m.waiting[i+1:]...)
			break
		}
	}
	s := m.seeking
	last := len(m.waiting) == 0
	if last && s != nil {
		// Under mu, so that nobody joins a seeker that is told to leave
		// without its noticing that somebody came: see seekLocked.
		s.cancel()
	}
	m.mu.Unlock()
	if last && s != nil {
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-s.done: // nothing is left in the line
		case <-t.C:
		}
	}
	return ctxErr(ctx)
}

// TryLock tries to lock m and reports whether it succeeded. It does not wait
// for a holder, but for the server's answers it does. It costs 1 request if
// somebody else holds or waits, and 3 if m is free.
func (m *Mutex) TryLock(ctx context.Context) (bool, error) {
	ok, err := m.tryLock(ctx)
	return ok, opError("trylock", m.path, err)
}

func (m *Mutex) tryLock(ctx context.Context) (bool, error) {
	if err := m.check(ctx); err != nil {
		return false, err
	}
	m.mu.Lock()
	busy := m.hold != nil || len(m.waiting) > 0
	m.mu.Unlock()
	if busy {
		return false, nil
	}
	p, err := m.line.try(ctx, m.line.bases[0], []byte(m.s.cfg.owner), exclusive)
	if p == nil {
		return false, err
	}
	h := newHold(&m.line, p, "lock")
	m.mu.Lock()
	if m.hold != nil {
		// Another goroutine has got, and lost, the lock in the meantime, and
		// does not know it yet. See vacant.
		m.mu.Unlock()
		h.release()
		return false, nil
	}
	defer m.mu.Unlock()
	// Another goroutine's seeker may be in the line, but behind us.
	m.hold, m.passed, m.locked = h, 0, true
	m.report(nil, h.since)
	return true, nil
}

// Unlock unlocks m. It returns [ErrNotLocked] if m is not locked, and
// [ErrLost] if the hold was lost, in which case there is nothing to unlock any
// more.
//
// Unlock cannot fail to give up: if the connection is down it returns at once,
// and the Session deletes the znode as soon as it can.
func (m *Mutex) Unlock() error {
	if m.err != nil {
		return opError("unlock", m.path, m.err)
	}
	return opError("unlock", m.path, m.unlock())
}

func (m *Mutex) unlock() error {
	m.mu.Lock()
	if !m.locked {
		m.mu.Unlock()
		return ErrNotLocked
	}
	m.locked = false
	h := m.hold
	if h.err() == nil && len(m.waiting) > 0 && m.handoffs > 0 {
		if m.passed < m.handoffs {
			m.passLocked()
			m.mu.Unlock()
			return nil
		}
		// Somebody of this process waits, and has waited long enough that
		// others must be asked after.
		m.passing = true
		m.mu.Unlock()
		others, err := m.line.anyone(h)
		m.mu.Lock()
		m.passing = false
		if err == nil && !others && h.err() == nil && len(m.waiting) > 0 {
			m.passed = 0
			m.passLocked()
			m.mu.Unlock()
			return nil
		}
	}
	m.vacateLocked()
	// Those of this process who still wait go to the back of the line.
	m.seekLocked()
	m.mu.Unlock()
	return h.release()
}

// passLocked hands the lock to the next goroutine of this process.
func (m *Mutex) passLocked() {
	m.passed++
	m.hold.renew()
	m.grantLocked()
}

// anyone reports whether anybody waits behind h.
func (l *line) anyone(h *hold) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), h.place.inc.silence())
	defer cancel()
	return h.place.others(ctx, l)
}

// current returns what this process holds, for the goroutine that has it.
func (m *Mutex) current() (*hold, error) {
	if m.err != nil {
		return nil, m.err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.locked {
		return nil, ErrNotLocked
	}
	return m.hold, nil
}

// Lost returns a channel that is closed when the present hold is lost: the
// session has ended, or may have, or the znode was found deleted. While m is
// not locked, the channel is closed already. It is not closed by Unlock.
func (m *Mutex) Lost() <-chan struct{} {
	h, err := m.current()
	if err != nil {
		return closedChan
	}
	return h.lost
}

var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Token returns the fencing token of the present hold: a number greater than
// that of every earlier hold of the same path, by whomever, and whatever
// happened to the path in between. It is the zxid of a write that is made
// while the hold stands. A storage service that remembers the greatest token
// it has seen can refuse a late write of a former holder.
//
// The first call of a hold costs one write, the others nothing. The errors are
// [ErrNotLocked] and [ErrLost].
func (m *Mutex) Token(ctx context.Context) (int64, error) {
	h, err := m.current()
	if err != nil {
		return 0, opError("token", m.path, err)
	}
	tok, err := h.token(ctx)
	return tok, opError("token", m.path, err)
}

// Txn applies writes to ZooKeeper, all or none, and only while the present hold
// stands: the servers themselves check it. If it is lost the error is
// [ErrLost]. See [Session.Txn] for ops and for lost replies. It costs one
// round trip.
func (m *Mutex) Txn(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	h, err := m.current()
	if err != nil {
		return nil, opError("txn", m.path, err)
	}
	rs, err := h.txn(ctx, ops)
	return rs, opError("txn", m.path, err)
}

// Contenders returns who holds m and who waits, in their order. It costs one
// listing and one read for each.
func (m *Mutex) Contenders(ctx context.Context) ([]Contender, error) {
	if m.err != nil {
		return nil, opError("contenders", m.path, m.err)
	}
	cs, err := m.line.contenders(ctx, func(all []child, i int) (Mode, bool) {
		return ModeExclusive, i == 0
	})
	return cs, opError("contenders", m.path, err)
}

// Do runs f while it holds m. f's context ends, with cause [ErrLost], when the
// hold is lost; f should then stop as soon as it can. Do returns f's error, or
// else that of the release: [ErrLost] if the hold was lost while f ran. If
// both fail the error matches both.
//
// Do is reentrant along its context: with a ctx that comes from Do of the same
// path it runs f at once, without a second znode. If f panics m is unlocked
// and the panic goes on.
func (m *Mutex) Do(ctx context.Context, f func(ctx context.Context) error) error {
	if m.err == nil && f == nil {
		return opError("do", m.path, invalid("the function is nil"))
	}
	if m.err == nil && m.holderOf(ctx) != nil {
		return f(ctx)
	}
	if err := m.Lock(ctx); err != nil {
		return err
	}
	return doHolding(ctx, m.doKey(), m.Lost(), f, m.Unlock)
}

func (m *Mutex) doKey() doKey { return doKey{m.s, m.path, ModeExclusive} }

// holderOf returns the Do of this path in which ctx was made, if that still
// runs.
func (m *Mutex) holderOf(ctx context.Context) *doing { return m.doKey().in(ctx) }

// A doKey is the key under which Do puts itself into a context.
type doKey struct {
	s    *Session
	path string
	mode Mode
}

// A doing is one run of Do.
type doing struct{ over atomic.Bool }

// in returns the run of Do that made ctx, unless it is over.
func (k doKey) in(ctx context.Context) *doing {
	d, _ := ctx.Value(k).(*doing)
	if d == nil || d.over.Load() {
		return nil
	}
	return d
}

// doHolding runs f with a context that says so and that ends with the hold, and
// releases.
func doHolding(ctx context.Context, key doKey, lost <-chan struct{}, f func(ctx context.Context) error, release func() error) (err error) {
	d := new(doing)
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, key, d))
	watching := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-lost:
			cancel(ErrLost)
		case <-stop:
		}
	}()
	defer func() {
		d.over.Store(true)
		close(stop)
		<-watching
		cancel(nil)
		if e := release(); e != nil {
			if err == nil {
				err = e
			} else {
				err = errors.Join(err, e)
			}
		}
	}()
	return f(ctx)
}
