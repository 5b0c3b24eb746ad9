package conn

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
)

// Behind one name there may be several addresses.
func TestADeadAddressCostsItsShareOfTheTimeAndBlamesNoOther(t *testing.T) {
	refused := errors.New("refused")
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		switch addr {
		case "dead":
			<-ctx.Done()
			return nil, errors.New("dead: no answer")
		case "refuses":
			return nil, refused
		}
		a, b := net.Pipe()
		b.Close()
		return a, ctx.Err()
	}
	for _, c := range []struct {
		addrs []string
		took  time.Duration
		err   string
	}{
		{[]string{"well"}, 0, ""},
		{[]string{"dead", "well"}, 3 * time.Second, ""},
		{[]string{"dead", "dead", "well"}, 4 * time.Second, ""},
		{[]string{"dead", "refuses", "well"}, 2 * time.Second, ""},
		{[]string{"refuses", "dead"}, 6 * time.Second, "refused; dead: no answer"},
		{[]string{"dead", "refuses"}, 3 * time.Second, "dead: no answer; refused"},
	} {
		harness.VirtualTime(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
			defer cancel()
			began := time.Now()
			conn, err := dialEach(ctx, c.addrs, dial)
			if took := time.Since(began); took != c.took {
				t.Errorf("%q: %v, want %v", c.addrs, took, c.took)
			}
			switch {
			case c.err == "" && (err != nil || conn == nil):
				t.Errorf("%q: %v, %v", c.addrs, conn, err)
			case c.err != "" && (err == nil || err.Error() != c.err || !errors.Is(err, refused)):
				t.Errorf("%q: %v, want %q", c.addrs, err, c.err)
			}
			if conn != nil {
				conn.Close()
			}
		})
	}
}

func TestEachOfManyAddressesIsGivenLongerThanARoundTrip(t *testing.T) {
	const limit, trip = 2 * time.Second, 400 * time.Millisecond // its equal share is 200 ms
	harness.VirtualTime(t, func(t *testing.T) {
		addrs := strings.Fields("a b c d e f g h i j")
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		began := time.Now()
		conn, err := dialEach(ctx, addrs, func(ctx context.Context, addr string) (net.Conn, error) {
			if addr == "a" {
				<-ctx.Done()
				return nil, errors.New("dead: no answer")
			}
			select {
			case <-time.After(trip):
				a, b := net.Pipe()
				b.Close()
				return a, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		if err != nil {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		conn.Close()
	})
}

// A server that refuses the client's certificate, or its lack, says so with an alert: in the
// handshake of TLS 1.2, and to the first read of TLS 1.3.
func TestAnAlertOfTheServerIsARefusal(t *testing.T) {
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS() // for its certificate
	defer cert.Close()
	demanding := cert.TLS.Clone()
	demanding.ClientAuth = tls.RequireAnyClientCert
	ln, err := tls.Listen("tcp", "127.0.0.1:0", demanding)
	harness.Must(t, err)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer ln.Close()
	serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			io.Copy(io.Discard, c)
			c.Close()
		}
	})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		s := &Shared{TLS: &tls.Config{InsecureSkipVerify: true, MaxVersion: version}}
		c, err := Dial(t.Context(), s, ln.Addr().String(), 10*time.Second)
		if err == nil {
			_, err = c.Conn.Read(make([]byte, 1))
			c.Close()
		}
		if !RefusesTLS(err) {
			t.Errorf("%s: %v is no refusal", tls.VersionName(version), err)
		}
	}
	if err := (&net.OpError{Op: "dial", Err: errors.New("connection refused")}); RefusesTLS(err) {
		t.Errorf("%v is a refusal", err)
	}
}

// A server of ZooKeeper's protocol closes the connection when it has read the first bytes of the handshake. The others are
// perhaps still unread. Then its kernel resets the connection.
func TestAServerThatResetsTheHandshakeOfTLSDoesNotSpeakTLS(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	harness.Must(t, err)
	defer ln.Close()
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() {
		if c, err := ln.Accept(); err == nil {
			io.ReadFull(c, make([]byte, 4))
			c.Close()
		}
	})
	s := &Shared{TLS: &tls.Config{InsecureSkipVerify: true}}
	_, err = Dial(t.Context(), s, ln.Addr().String(), 10*time.Second)
	if !errors.Is(err, syscall.ECONNRESET) || !strings.Contains(err.Error(), "does not speak TLS") {
		t.Errorf("%v, want a reset connection, and the reason", err)
	}
}

// A dialer that returns what tls.Dial has returned gives a nil pointer beside its error, and a test may leave its dialer by
// t.FailNow.
func TestADialerThatReturnsNoConnectionCostsAnAttempt(t *testing.T) {
	for name, ends := range map[string]func() (net.Conn, error){
		"a nil pointer": func() (net.Conn, error) { var c *tls.Conn; return c, io.EOF },
		"nothing":       func() (net.Conn, error) { return nil, nil },
		"Goexit":        func() (net.Conn, error) { runtime.Goexit(); return nil, nil },
	} {
		for _, late := range []time.Duration{0, 2 * time.Second} {
			harness.VirtualTime(t, func(t *testing.T) {
				var spawned sync.WaitGroup
				s := &Shared{Spawn: spawned.Go, Dialer: func(string, string, time.Duration) (net.Conn, error) {
					time.Sleep(late)
					return ends()
				}}
				if _, err := Dial(t.Context(), s, "x:1", time.Second); err == nil {
					t.Errorf("%s after %v: no error", name, late)
				}
				spawned.Wait()
				time.Sleep(late)
			})
		}
	}
}

// A handshake of TLS calls functions of the program, such as VerifyConnection. One of them hangs, or leaves its test by
// t.FailNow.
func TestAHandshakeWhoseFunctionDoesNotReturnCostsAnAttempt(t *testing.T) {
	web := httptest.NewUnstartedServer(nil)
	web.StartTLS() // for its certificate
	defer web.Close()
	for name, verify := range map[string]func(hang <-chan struct{}){
		"it hangs": func(hang <-chan struct{}) { <-hang },
		"Goexit":   func(<-chan struct{}) { runtime.Goexit() },
	} {
		harness.VirtualTime(t, func(t *testing.T) {
			hang := make(chan struct{})
			var spawned sync.WaitGroup
			client, server := net.Pipe()
			go tls.Server(server, &tls.Config{Certificates: web.TLS.Certificates}).Handshake()
			s := &Shared{
				Spawn:  spawned.Go,
				Dialer: func(string, string, time.Duration) (net.Conn, error) { return client, nil },
				TLS:    &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(tls.ConnectionState) error { verify(hang); return nil }},
			}
			began := time.Now()
			if _, err := Dial(t.Context(), s, "x:1", time.Second); err == nil {
				t.Errorf("%s: no error", name)
			}
			spawned.Wait() // as Close does
			if d := time.Since(began); d > 2*time.Second {
				t.Errorf("%s: it took %v", name, d)
			}
			close(hang)
			client.Close()
		})
	}
}
