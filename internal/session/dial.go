package session

// This file connects to servers: which server is tried next, when, and how (TCP, TLS, the dialer
// of WithDialer). The handshake of ZooKeeper is not its business: see link.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// dial connects to addr within limit. It resolves the name each time.
func dial(ctx context.Context, cfg *Config, spawn func(func()), addr string, limit time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := dialPlain(ctx, cfg.Dialer, spawn, addr, limit)
	if err != nil || cfg.TLS == nil {
		return c, err
	}
	tlsConfig := cfg.TLS.Clone()
	if tlsConfig.ServerName == "" {
		tlsConfig.ServerName, _, _ = net.SplitHostPort(addr)
	}
	t := tls.Client(c, tlsConfig)
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, tlsError(err)
	}
	return t, nil
}

// tlsError explains the failure of a TLS handshake. A server that expects the ZooKeeper protocol
// reads TLS's first bytes as the length of a packet. It is too large, so the server closes the
// connection.
func tlsError(err error) error {
	var record tls.RecordHeaderError
	if errors.As(err, &record) || errors.Is(err, io.EOF) {
		return fmt.Errorf("the server does not speak TLS on this port: %w", err)
	}
	return err
}

// refusesTLS reports whether the connection failed because one side rejects the other's
// certificate, or for a similar reason. Another attempt will hardly help.
func refusesTLS(err error) bool {
	var certificate *tls.CertificateVerificationError
	var alert tls.AlertError
	return errors.As(err, &certificate) || errors.As(err, &alert)
}

func dialPlain(ctx context.Context, own zk.Dialer, spawn func(func()), addr string, limit time.Duration) (net.Conn, error) {
	if own == nil {
		var d net.Dialer
		host, port, err := net.SplitHostPort(addr)
		if _, e := netip.ParseAddr(host); err != nil || e == nil {
			return d.DialContext(ctx, "tcp", addr)
		}
		// One name may resolve to a whole ensemble: try its servers in random order, not always
		// the resolver's first.
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			return nil, err
		}
		rand.Shuffle(len(ips), func(i, j int) { ips[i], ips[j] = ips[j], ips[i] })
		return dialEach(ctx, ips, func(ctx context.Context, ip string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", net.JoinHostPort(ip, port))
		})
	}
	return dialOwn(ctx, own, spawn, addr, limit)
}

// leastShare is the least time for one address, or a third of the total if that is less: in less
// than a round trip, no server can be reached.
const leastShare = time.Second

// dialEach connects to the first of several addresses that can be reached. The remaining
// addresses share the remaining time equally. So a dead address costs only its share, and no
// address is blamed for the time that others took. If there are so many that a share is less than
// leastShare, the time ends before all are tried. The next attempt has them in another order.
func dialEach(ctx context.Context, addrs []string, dial func(ctx context.Context, addr string) (net.Conn, error)) (net.Conn, error) {
	end, _ := ctx.Deadline()
	least := min(leastShare, time.Until(end)/3)
	var failed error
	for i, addr := range addrs {
		share := max(least, time.Until(end)/time.Duration(len(addrs)-i))
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

// dialOwn connects with the dialer of WithDialer, which takes no context. If ctx ends first,
// dialOwn returns, and closes a connection that still comes. Close waits for the dialer, but only
// for limit.
func dialOwn(ctx context.Context, own zk.Dialer, spawn func(func()), addr string, limit time.Duration) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	done := make(chan result)
	back := make(chan struct{})
	go func() {
		defer close(back)
		c, err := own("tcp", addr, limit)
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
	spawn(func() {
		select {
		case <-back:
		case <-time.After(limit):
		}
	})
	select {
	case r := <-done:
		if r.err == nil && r.c.SetReadDeadline(time.Time{}) != nil {
			r.c = &timedConn{Conn: r.c}
		}
		return r.c, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A timedConn gives deadlines to a connection that has none, such as an SSH channel: it closes
// the connection at the deadline.
type timedConn struct {
	net.Conn
	mu    sync.Mutex
	timer *time.Timer // guarded by mu
}

func (c *timedConn) SetDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if !at.IsZero() {
		c.timer = time.AfterFunc(time.Until(at), func() { c.Conn.Close() })
	}
	return nil
}

func (c *timedConn) SetReadDeadline(at time.Time) error { return c.SetDeadline(at) }

func (c *timedConn) Close() error {
	c.SetDeadline(time.Time{})
	return c.Conn.Close()
}

// A pacer chooses the next server and the pause before it is tried. It tries every server once
// without a pause. After that, each round waits longer, until a connection has lasted. The
// lifetime of the last connection counts as waited, so a connection that was of some use is
// replaced at once. A connection that has confirmed a session with holds counts as lasting, at
// most once a second: if connections break all the time, the holds depend on many attempts.
type pacer struct {
	hosts []string
	retry Backoff

	Mu        sync.Mutex
	Next      int       // index of the next server
	tries     int       // attempts since a connection last lasted
	connected time.Time // time of the last attempt if it succeeded; else zero
	useful    bool      // it has confirmed a session with holds
	spared    time.Time // time of the last reset of tries for such a connection
}

// pick returns the next server that may be used, and the pause before it is tried, at most limit.
// If no server may be used, addr is empty, and the pause is the pause of a round.
func (p *pacer) pick(limit time.Duration, mayUse func(addr string) bool) (addr string, delay time.Duration) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
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
	for range p.hosts { // a server that may not be used counts as tried
		next := p.hosts[p.Next%len(p.hosts)]
		p.Next++
		if p.tries%len(p.hosts) == 0 {
			delay = max(0, min(p.retry.Delay(p.tries/len(p.hosts)), limit)-lived)
		}
		p.tries++
		if mayUse(next) {
			return next, delay
		}
	}
	return "", delay
}

// again makes pick return the same server once more.
func (p *pacer) again() {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Next += len(p.hosts) - 1
}

func (p *pacer) success() {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.connected, p.useful = time.Now(), false
}

// confirmed records that the connection has confirmed a session with holds.
func (p *pacer) confirmed() {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.useful = true
}

// lasting is how long a connection must live to be replaced without a pause. So a server that
// accepts and closes connections is dialled at most once a second.
const lasting = time.Second
