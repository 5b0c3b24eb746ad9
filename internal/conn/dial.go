package conn

// This file connects to a server, by TCP or with the dialer of WithDialer, and with TLS if
// configured. Package session chooses the server, and handshake.go has the handshake of ZooKeeper.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/zsync/zsync/internal/dice"
)

// Dial returns a connection to `addr`, which exists within the time `limit`. Each call resolves the
// name again.
func Dial(ctx context.Context, s *Shared, addr string, limit time.Duration) (*Conn, error) {
	deadline := time.Now().Add(limit)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	var c net.Conn
	var err error
	if s.Dialer == nil {
		c, err = dialTCP(ctx, addr)
	} else {
		c, err = s.inTime(ctx, limit, func() (net.Conn, error) { return s.Dialer("tcp", addr, limit) })
	}
	if raw := c; err == nil && s.TLS != nil {
		if c, err = s.inTime(ctx, limit, func() (net.Conn, error) { return secure(ctx, s.TLS, raw, addr) }); err != nil {
			raw.Close()
		}
	}
	if err != nil {
		return nil, err
	}
	return New(s, c, addr, deadline), nil
}

// The function `secure` makes the handshake of TLS over c.
func secure(ctx context.Context, cfg *tls.Config, c net.Conn, addr string) (net.Conn, error) {
	if cfg = cfg.Clone(); cfg.ServerName == "" {
		cfg.ServerName, _, _ = net.SplitHostPort(addr)
	}
	t := tls.Client(c, cfg)
	err := t.HandshakeContext(ctx)
	// A server that expects the ZooKeeper protocol reads TLS's first bytes as the length of a packet, and
	// closes the connection. If it has not read all of these bytes, its kernel resets the connection.
	if errors.As(err, new(tls.RecordHeaderError)) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		err = fmt.Errorf("the server does not speak TLS on this port: %w", err)
	}
	return t, err
}

// RefusesTLS reports whether err is a rejected certificate, of either side, or a similar failure of
// TLS. Another attempt will probably fail, too.
func RefusesTLS(err error) bool {
	var certificate *tls.CertificateVerificationError
	var alert *net.OpError // crypto/tls returns the server's alert in this form
	return errors.As(err, &certificate) || errors.As(err, &alert) && alert.Op == "remote error"
}

func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	// One name may resolve to a whole ensemble, so the order is random.
	ips, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return nil, err
	}
	dice.Rand().Shuffle(len(ips), func(i, j int) { ips[i], ips[j] = ips[j], ips[i] })
	return dialEach(ctx, ips, func(ctx context.Context, ip string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(ip, port))
	})
}

// leastShare is the least time for one address, or a third of the total time if that is less.
const leastShare = time.Second

// dialEach tries the addresses in order and returns the first connection. The remaining addresses
// share the remaining time equally. If there are too many addresses for the least share, the time
// ends before all are tried, and the next attempt uses another order.
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

// inTime calls `dial`: the dialer of WithDialer, which takes no context, or a handshake, in which TLS may
// call functions of the program. If ctx ends first, inTime returns and later closes the connection that
// `dial` returns. Close of the Session waits for `dial`, but at most for the time `limit`.
func (s *Shared) inTime(ctx context.Context, limit time.Duration, dial func() (net.Conn, error)) (net.Conn, error) {
	var c net.Conn
	var err error
	back := make(chan struct{})
	go func() {
		defer close(back)
		c, err = dial()
	}()
	select {
	case <-back:
		if c == nil && err == nil { // also if the program's function has called runtime.Goexit
			err = errors.New("the dialer returned neither a connection nor an error")
		}
		return c, err
	case <-ctx.Done():
	}
	go func() {
		if <-back; c != nil && err == nil { // beside an error, the dialer may return a nil pointer in c
			c.Close()
		}
	}()
	s.Spawn(func() {
		select {
		case <-back:
		case <-time.After(limit):
		}
	})
	return nil, ctx.Err()
}
