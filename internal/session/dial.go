package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// dial connects to addr within limit. Names are looked up anew each time.
func (m *Manager) dial(ctx context.Context, addr string, limit time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := m.dialPlain(ctx, addr, limit)
	if err != nil || m.Config.TLS == nil {
		return c, err
	}
	cfg := m.Config.TLS.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName, _, _ = net.SplitHostPort(addr)
	}
	t := tls.Client(c, cfg)
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, tlsError(err)
	}
	return t, nil
}

// tlsError says what the failure of a TLS handshake means. A server that waits for
// the ZooKeeper protocol takes what it is sent for the length of a packet, which is
// too large, and hangs up.
func tlsError(err error) error {
	var record tls.RecordHeaderError
	if errors.As(err, &record) || errors.Is(err, io.EOF) {
		return fmt.Errorf("the server does not speak TLS on this port: %w", err)
	}
	return err
}

// refusesTLS reports whether a server could not be reached because one side does
// not take the other's certificate, or the like. Another attempt will hardly cure
// that.
func refusesTLS(err error) bool {
	var certificate *tls.CertificateVerificationError
	var alert tls.AlertError
	return errors.As(err, &certificate) || errors.As(err, &alert)
}

func (m *Manager) dialPlain(ctx context.Context, addr string, limit time.Duration) (net.Conn, error) {
	if m.Config.Dialer == nil {
		var d net.Dialer
		host, port, err := net.SplitHostPort(addr)
		if _, e := netip.ParseAddr(host); err != nil || e == nil {
			return d.DialContext(ctx, "tcp", addr)
		}
		// One name may stand for a whole ensemble: take its servers in
		// random order, not always the first that the resolver gives.
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			return nil, err
		}
		rand.Shuffle(len(ips), func(i, j int) { ips[i], ips[j] = ips[j], ips[i] })
		return dialEach(ctx, ips, func(ctx context.Context, ip string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", net.JoinHostPort(ip, port))
		})
	}
	return m.dialOwn(ctx, addr, limit)
}

// dialEach connects to the first of several addresses that can be reached. Each has
// an equal share of the time that is left, so one that is dead costs no more than
// that, and none is blamed for the time that others took.
func dialEach(ctx context.Context, addrs []string, dial func(ctx context.Context, addr string) (net.Conn, error)) (net.Conn, error) {
	end, _ := ctx.Deadline()
	var failed error
	for i, addr := range addrs {
		share := time.Until(end) / time.Duration(len(addrs)-i)
		one, cancel := context.WithTimeout(ctx, share)
		c, err := dial(one, addr)
		cancel()
		switch {
		case err == nil:
			return c, nil
		case failed == nil:
			failed = err
		case ctx.Err() == nil || i == len(addrs)-1:
			failed = fmt.Errorf("%w; %w", failed, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, failed
}

// dialOwn connects with the dialer of WithDialer, which knows no context. When
// ctx ends first it is left to itself, and what it still brings is closed. Close
// waits for it, but only as long as it has been given.
func (m *Manager) dialOwn(ctx context.Context, addr string, limit time.Duration) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	done := make(chan result)
	back := make(chan struct{})
	go func() {
		defer close(back)
		c, err := m.Config.Dialer("tcp", addr, limit)
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
	m.Spawn(func() {
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
// waited, so one that was of some use is replaced at once. One that has confirmed
// a session through which something is held counts as one that has lasted, once
// a second: where connections break all the time, what is held hangs on how many
// are tried.
type pacer struct {
	hosts []string
	retry Backoff

	Mu        sync.Mutex
	Next      int       // index of the next server
	tries     int       // attempts since a connection has lasted
	connected time.Time // when the last attempt succeeded; zero if it failed
	useful    bool      // it has confirmed what is held
	spared    time.Time // when tries began anew for such a connection
}

// pick returns the next server, and how long to wait before it is tried; at
// most limit.
func (p *pacer) pick(limit time.Duration) (addr string, delay time.Duration) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	addr = p.hosts[p.Next%len(p.hosts)]
	p.Next++
	var lived time.Duration
	if !p.connected.IsZero() {
		if lived = time.Since(p.connected); lived >= lasting {
			p.tries = 0
		}
		if p.useful && time.Since(p.spared) >= lasting {
			p.tries, p.spared = 0, time.Now()
		}
		p.connected, p.useful = time.Time{}, false
	}
	if p.tries%len(p.hosts) == 0 {
		delay = max(0, min(p.retry.Delay(p.tries/len(p.hosts)), limit)-lived)
	}
	p.tries++
	return addr, delay
}

func (p *pacer) success() {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.connected, p.useful = time.Now(), false
}

// confirmed is told that the connection has confirmed a session through which
// something is held.
func (p *pacer) confirmed() {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.useful = true
}

// A hostProvider is the pacer as go-zookeeper wants to see it. It paces inside
// Next, which may block, because go-zookeeper's own pace is a whole second.
type hostProvider struct{ inc *Incarnation }

func (h *hostProvider) Init([]string) error { return nil }
func (h *hostProvider) Len() int            { return len(h.inc.Manager.Hosts) }
func (h *hostProvider) Connected()          { h.inc.Manager.Pace.success() }

func (h *hostProvider) Next() (addr string, retryStart bool) {
	if h.inc.Ctx.Err() == nil { // else the next incarnation picks
		addr = h.pick()
	}
	if h.inc.Ctx.Err() == nil {
		return addr, false
	}
	// Keep go-zookeeper here until its Close has queued the last request. At
	// a retryStart it looks whether it was closed, and answers that request.
	h.inc.park.Do(func() { close(h.inc.parked) })
	<-h.inc.quit
	return addr, true
}

// endOrphan ends an abandoned session that has no connection, or whose server has
// not answered that it is ended, when those who held something have had their time.
// The server of its last connection is asked after all others. Attempts are made
// until the session has expired by itself, or the Session is closed: its Close does
// not wait for it.
func (inc *Incarnation) endOrphan(left time.Time) {
	m := inc.Manager
	inc.LiveMu.Lock()
	w := will{inc.ID.Load(), inc.password, time.Duration(inc.Timeout.Load())}
	inc.LiveMu.Unlock()
	if w.id == 0 {
		return // there never was one
	}
	first := 0
	if l := inc.newestLink(); l != nil {
		first = 1 + slices.Index(m.Hosts, l.addr)
	}
	wait := max(time.Microsecond, time.Until(left.Add(inc.LossTime())))
	for try := 0; time.Since(left)+wait < w.timeout; try++ {
		select {
		case <-time.After(wait):
		case <-m.Closing:
			return
		}
		addr := m.Hosts[(first+try)%len(m.Hosts)]
		err := m.endOver(addr, w)
		if err == nil {
			return
		}
		m.Log.Debug("zsync: cannot end the session that was left", "session", Text(w.id), "addr", addr, "err", err)
		wait = max(m.Config.Retry.Delay(1+try/len(m.Hosts)), w.timeout/20)
	}
}

// endOver executes w at the server at addr.
func (m *Manager) endOver(addr string, w will) error {
	limit := min(w.timeout/5, 5*time.Second)
	ctx, cancel := m.untilClosing()
	defer cancel()
	c, err := m.dial(ctx, addr, limit)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	c.SetDeadline(time.Now().Add(limit))
	m.requests.Add(1)
	return w.execute(c)
}

// untilClosing returns a context that ends when the Session is closed.
func (m *Manager) untilClosing() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	m.Spawn(func() {
		select {
		case <-m.Closing:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, cancel
}
