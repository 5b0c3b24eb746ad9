package session

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

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
