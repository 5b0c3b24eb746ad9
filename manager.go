package zsync

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// A manager keeps one incarnation alive after another, until it is closed or
// fails for good. It is what is inside a [Session].
type manager struct {
	cfg    settings
	hosts  []string // the servers, as in the connect string, each with a port
	chroot string   // what every path begins with; "" or "/a/b"
	log    *slog.Logger
	zkLog  zk.Logger
	pace   pacer

	requests, reconnects, expiries, holds, waiters atomic.Int64

	noBundles atomic.Bool // the servers do not know multiRead
	lasting   sync.Map    // by path: the directories that must be persistent
	barred    sync.Map    // paths of parents whose children we once could not delete

	mu      sync.Mutex
	cur     *incarnation          // the newest; guarded by mu
	changed chan struct{}         // closed and replaced when cur or err changes; guarded by mu
	err     error                 // why there will be no other incarnation; guarded by mu
	state   state                 // guarded by mu
	feeds   map[listener]struct{} // those who follow the states; guarded by mu
	untold  []event               // what the observer has not heard of the session; guarded by mu
	telling bool                  // somebody is in tell; guarded by mu
	dialErr error                 // the last failure to reach a server; guarded by mu
	leaving farewell
	closing chan struct{}  // closed when err is set
	ended   chan struct{}  // closed when nothing is left
	wg      sync.WaitGroup // every goroutine of this session but run
	sealed  bool           // wg is being waited for; guarded by spawnMu
	spawnMu sync.RWMutex   // taken before wg is added to
}

func newManager(hosts []string, chroot string, cfg settings) *manager {
	hosts = slices.Clone(hosts)
	rand.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	m := &manager{
		cfg:     cfg,
		hosts:   hosts,
		chroot:  chroot,
		log:     cfg.log,
		zkLog:   zkLogger{cfg.log},
		changed: make(chan struct{}),
		feeds:   make(map[listener]struct{}),
		closing: make(chan struct{}),
		ended:   make(chan struct{}),
	}
	m.pace = pacer{hosts: hosts, retry: cfg.retry}
	go m.run()
	return m
}

// run makes each incarnation and waits for its end.
func (m *manager) run() {
	defer close(m.ended)
	for {
		inc := newIncarnation(m)
		m.mu.Lock()
		m.cur = inc
		m.broadcastLocked()
		m.mu.Unlock()
		inc.start()
		select {
		case <-inc.ctx.Done():
		case <-m.closing:
			inc.end(ErrClosed)
		}
		if m.failure() != nil {
			inc.shut()
			break
		}
		// The next session is sought while the old one's connection is
		// still being torn down: nothing of it can be used any more.
		m.expiries.Add(1)
		cause := context.Cause(inc.ctx)
		m.enter(nil, stateExpired, event{kind: eventExpired, err: cause})
		m.enter(nil, stateConnecting, event{})
		m.spawn(inc.shut)
		// It is told here, not where it was found out: whoever did that may
		// hold a lock.
		m.log.Warn("zsync: session lost", "session", sessionText(inc.id.Load()), "why", cause)
		m.tell()
	}
	m.enter(nil, stateClosed, event{})
	m.spawnMu.Lock()
	m.sealed = true
	m.spawnMu.Unlock()
	m.wg.Wait()
}

// fail ends the session for good. The first reason stays.
func (m *manager) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return
	}
	m.err = err
	close(m.closing)
	m.broadcastLocked()
}

// failure returns why the session is over, or nil.
func (m *manager) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

func (m *manager) broadcastLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// spawn runs f in a goroutine that is waited for when the session is closed.
func (m *manager) spawn(f func()) {
	m.spawnMu.RLock()
	defer m.spawnMu.RUnlock()
	if m.sealed {
		// Every connection is closed, so whatever f does ends at once.
		go f()
		return
	}
	m.wg.Go(f)
}

// live returns the incarnation that is established and has not ended, and
// waits for it. It fails with ctx, or when there will be none any more.
func (m *manager) live(ctx context.Context) (*incarnation, error) {
	if ctx.Err() != nil {
		return nil, ctxErr(ctx)
	}
	for {
		m.mu.Lock()
		inc, changed, err := m.cur, m.changed, m.err
		m.mu.Unlock()
		if err != nil {
			return nil, err
		}
		var first, ended <-chan struct{}
		if inc != nil && inc.ctx.Err() == nil {
			first, ended = inc.first, inc.ctx.Done()
		}
		select {
		case <-first:
			// It may end, or ctx may, at this same instant: both are found
			// by the first request that is made.
			return inc, nil
		case <-ended:
		case <-changed:
		case <-ctx.Done():
			return nil, ctxErr(ctx)
		}
	}
}

// during runs f with a live incarnation, and again with the next as long as f
// fails because its incarnation ended.
func (m *manager) during(ctx context.Context, f func(inc *incarnation) error) error {
	for {
		inc, err := m.live(ctx)
		if err != nil {
			return err
		}
		if err := f(inc); !errors.Is(err, errEnded) {
			return err
		}
	}
}

// full returns the path that the server knows p by; bare is its inverse.
func (m *manager) full(p string) string {
	if m.chroot == "" {
		return p
	}
	if p == "/" {
		return m.chroot
	}
	return m.chroot + p
}

func (m *manager) bare(p string) string {
	if p == m.chroot && m.chroot != "" {
		return "/"
	}
	return strings.TrimPrefix(p, m.chroot)
}

// enter records a change of state, and that the observer must hear e. It does
// not tell it yet: see tell. An incarnation that has ended changes nothing any
// more, and enter reports false: from its end on the manager alone, for which
// inc is nil, says what the state is. A change that inc makes as it ends comes
// before the manager's own, as both hold mu.
func (m *manager) enter(inc *incarnation, s state, e event) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == stateClosed || inc != nil && (inc != m.cur || inc.ctx.Err() != nil) {
		return false
	}
	if m.state != s {
		m.state = s
		for f := range m.feeds {
			f.push(s)
		}
	}
	if e.kind != 0 {
		m.untold = append(m.untold, e)
	}
	return true
}

// tell tells the observer what enter has recorded: one thing at a time, in
// order, and with no lock held. What is recorded while it runs, by others or by
// the observer's own doing, it tells too.
func (m *manager) tell() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.telling {
		return
	}
	m.telling = true
	for len(m.untold) > 0 {
		e := m.untold[0]
		m.untold = m.untold[1:]
		m.mu.Unlock()
		m.observe(e)
		m.mu.Lock()
	}
	m.telling = false
}

// observe tells the observer, and is called without locks; but nothing of a hold that has no operation: that
// is a part of another.
func (m *manager) observe(e event) {
	if m.cfg.observe != nil && (e.op != "" || e.path == "") {
		m.cfg.observe(e)
	}
}

// waited tells the observer how a wait for a hold ended.
func (m *manager) waited(op, path string, start time.Time, err error) {
	e := event{kind: eventAcquired, op: op, path: path, wait: time.Since(start)}
	if err != nil {
		e.kind, e.err = eventGaveUp, err
	}
	m.observe(e)
}

// dialed is told why a server could not be reached.
func (m *manager) dialed(addr string, err error) {
	m.log.Debug("zsync: cannot reach server", "addr", addr, "err", err)
	m.mu.Lock()
	m.dialErr = fmt.Errorf("%s: %w", addr, err)
	m.mu.Unlock()
}

// dial connects to addr within limit. Names are looked up anew each time.
func (m *manager) dial(ctx context.Context, addr string, limit time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := m.dialPlain(ctx, addr, limit)
	if err != nil || m.cfg.tls == nil {
		return c, err
	}
	cfg := m.cfg.tls.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName, _, _ = net.SplitHostPort(addr)
	}
	t := tls.Client(c, cfg)
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return t, nil
}

func (m *manager) dialPlain(ctx context.Context, addr string, limit time.Duration) (net.Conn, error) {
	if m.cfg.dialer == nil {
		var d net.Dialer
		host, port, err := net.SplitHostPort(addr)
		if err != nil || net.ParseIP(host) != nil {
			return d.DialContext(ctx, "tcp", addr)
		}
		// One name may stand for a whole ensemble: take its servers in
		// random order, not always the first that the resolver gives.
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			return nil, err
		}
		var c net.Conn
		for _, i := range rand.Perm(len(ips)) {
			if c, err = d.DialContext(ctx, "tcp", net.JoinHostPort(ips[i], port)); err == nil {
				return c, nil
			}
		}
		return nil, err
	}
	return m.dialOwn(ctx, addr, limit)
}

// dialOwn connects with the dialer of WithDialer, which knows no context. When
// ctx ends first it is left to itself, and what it still brings is closed. Close
// waits for it, but only as long as it has been given.
func (m *manager) dialOwn(ctx context.Context, addr string, limit time.Duration) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	done := make(chan result)
	back := make(chan struct{})
	go func() {
		defer close(back)
		c, err := m.cfg.dialer("tcp", addr, limit)
		if c == nil && err == nil {
			err = errors.New("zsync: the dialer returned neither a connection nor an error")
		}
		select {
		case done <- result{c, err}:
		case <-ctx.Done():
			if c != nil {
				c.Close()
			}
		}
	}()
	m.spawn(func() {
		select {
		case <-back:
		case <-time.After(limit):
		}
	})
	select {
	case r := <-done:
		return r.c, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A pacer chooses the next server to try, and how long to wait before.
// Everyone is tried once without delay; after that each round waits longer,
// until a connection has lasted. The time that the last one lived counts as
// waited, so one that was of some use is replaced at once.
type pacer struct {
	hosts []string
	retry backoff

	mu        sync.Mutex
	next      int       // index of the next server
	tries     int       // attempts since a connection has lasted
	connected time.Time // when the last attempt succeeded; zero if it failed
}

// lasting is how long a connection must live to be replaced as the first is. A
// server that accepts and drops is thus dialled no more than once a second.
const lasting = time.Second

// pick returns the next server, and how long to wait before it is tried; at
// most limit.
func (p *pacer) pick(limit time.Duration) (addr string, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	addr = p.hosts[p.next%len(p.hosts)]
	p.next++
	var lived time.Duration
	if !p.connected.IsZero() {
		if lived = time.Since(p.connected); lived >= lasting {
			p.tries = 0
		}
		p.connected = time.Time{}
	}
	if p.tries%len(p.hosts) == 0 {
		delay = max(0, min(p.retry.delay(p.tries/len(p.hosts)), limit)-lived)
	}
	p.tries++
	return addr, delay
}

// untried returns how many servers have not been tried in this round, that of
// the last pick included.
func (p *pacer) untried() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.hosts) - (p.tries+len(p.hosts)-1)%len(p.hosts)
}

func (p *pacer) success() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connected = time.Now()
}

// A hostProvider is the pacer as go-zookeeper wants to see it. It paces inside
// Next, which may block, because go-zookeeper's own pace is a whole second.
type hostProvider struct{ inc *incarnation }

func (h *hostProvider) Init([]string) error { return nil }
func (h *hostProvider) Len() int            { return len(h.inc.m.hosts) }
func (h *hostProvider) Connected()          { h.inc.m.pace.success() }

func (h *hostProvider) Next() (addr string, retryStart bool) {
	if h.inc.ctx.Err() == nil { // else the next incarnation picks
		addr = h.pick()
	}
	if h.inc.ctx.Err() == nil {
		return addr, false
	}
	// Keep go-zookeeper here until its Close has queued the last request. At
	// a retryStart it looks whether it was closed, and answers that request.
	h.inc.park.Do(func() { close(h.inc.parked) })
	<-h.inc.quit
	return addr, true
}

func (h *hostProvider) pick() string {
	limit := time.Duration(math.MaxInt64)
	if h.inc.id.Load() != 0 {
		// The session must not run out while a server is already back, nor for
		// want of attempts.
		limit = min(time.Duration(h.inc.timeout.Load()/10), max(h.inc.left()/16, 10*time.Millisecond))
	}
	addr, delay := h.inc.m.pace.pick(limit)
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-h.inc.ctx.Done():
		}
	}
	return addr
}

// zkLogger passes go-zookeeper's own log on.
type zkLogger struct{ log *slog.Logger }

func (z zkLogger) Printf(format string, args ...any) {
	z.log.Debug("go-zookeeper: " + fmt.Sprintf(format, args...))
}

// sessionText writes a session id as ZooKeeper's own tools do.
func sessionText(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) }
