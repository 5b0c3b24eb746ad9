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
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// dial connects to addr within limit. Names are looked up anew each time.
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

func dialPlain(ctx context.Context, own zk.Dialer, spawn func(func()), addr string, limit time.Duration) (net.Conn, error) {
	if own == nil {
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
	return dialOwn(ctx, own, spawn, addr, limit)
}

// leastShare is how long an address is tried at least, or for a third of the whole time: a share
// that is shorter than a round trip reaches no server.
const leastShare = time.Second

// dialEach connects to the first of several addresses that can be reached. Each has
// an equal share of the time that is left, so one that is dead costs no more than
// that, and none is blamed for the time that others took. If there are so many that the
// shares are less than leastShare the time is over before all are tried. The next attempt
// has them in another order.
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

// dialOwn connects with the dialer of WithDialer, which knows no context. When
// ctx ends first it is left to itself, and what it still brings is closed. Close
// waits for it, but only as long as it has been given.
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

// A timedConn gives deadlines to a connection that has none, such as a channel of SSH: when the
// deadline has passed it closes the connection.
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

// pick returns the next server that may be used, and how long to wait before it is
// tried; at most limit. If none may be used addr is empty, and the wait is that of
// a round.
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
	for range p.hosts { // one that may not be used counts as one that was tried
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

// again has pick return the same server once more.
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

// confirmed is told that the connection has confirmed a session through which
// something is held.
func (p *pacer) confirmed() {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.useful = true
}

// lasting is how long a connection must live to be replaced as the first is. A
// server that accepts and drops is thus dialled no more than once a second.
const lasting = time.Second
