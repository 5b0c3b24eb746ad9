package session

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
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

// A connection without deadlines, as through SSH, which net.Conn permits.
type noDeadlines struct{ net.Conn }

func (noDeadlines) SetDeadline(time.Time) error     { return errors.ErrUnsupported }
func (noDeadlines) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

func withoutDeadlines(srv *zktest.Server) func(*Config) {
	return WithDialer(func(network, addr string, d time.Duration) (net.Conn, error) {
		c, err := srv.Dial(network, addr, d)
		return noDeadlines{c}, err
	})
}

func TestAServerThatHangsAtTheHandshakeIsLeftThoughConnectionsHaveNoDeadlines(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
		s := open(t, srv, withoutDeadlines(srv))
		inc := live(t, s)
		_, err := inc.Stake(t.Context())
		must(t, err)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpConnect && r.Addr != "127.0.0.1:3" {
				return zktest.Hang
			}
			return zktest.Pass
		})
		for range 4 {
			srv.Disconnect(s.ID())
			_, err := inc.Exists(within(t, testTimeout), "/x")
			must(t, err)
		}
	})
}

func TestSilenceIsNoticedThoughConnectionsHaveNoDeadlines(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv, withoutDeadlines(srv))
		inc := live(t, s)
		time.Sleep(3 * testTimeout) // a deadline that was moved does not end the connection
		if n := s.Stats().Reconnects; n > 0 {
			t.Errorf("%d reconnects from a server that answers", n)
		}
		srv.Partition(s.ID())
		_, err := inc.Exists(within(t, 2*testTimeout), "/x")
		wantErr(t, err, ErrEnded)
	})
}

func TestBundlesFitIntoTheirRequestsHoweverLongThePaths(t *testing.T) {
	var paths []string
	for i := range 300 {
		paths = append(paths, "/"+strings.Repeat("x", i*i*7))
	}
	bundles := bundlesOf(paths, 128)
	if !slices.Equal(slices.Concat(bundles...), paths) {
		t.Error("the paths are not those that were given, in their order")
	}
	for i, b := range bundles {
		size := 0
		for _, p := range b {
			size += len(p) + 16
		}
		if len(b) > 128 || len(b) == 0 || len(b) > 1 && size > MaxPacket/2 {
			t.Errorf("bundle %d: %d paths, %d bytes", i, len(b), size)
		}
	}
	if n := len(bundlesOf(paths[:100], 50)); n < 2 {
		t.Errorf("%d bundles of 50 for 100 paths", n)
	}
}
