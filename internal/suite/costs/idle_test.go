package costs

import (
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// The type `counted` counts the packets that a session writes, and the bytes in both directions.
type counted struct {
	net.Conn
	packets, sent, received *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	c.packets.Add(1)
	c.sent.Add(int64(len(p)))
	return c.Conn.Write(p)
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(int64(n))
	return n, err
}

// The function `traffic` opens a session with a timeout of 10 s, and returns a function that prints and
// returns what the session has sent and received since its last call.
func traffic(t *testing.T, srv *zktest.Server) (s *zsync.Session, since func(what string) (requests, packets, bytes int64)) {
	var packets, sent, received atomic.Int64
	s = suite.Open(t, srv, zsync.WithSessionTimeout(10*time.Second), zsync.WithDialer(func(network, addr string, timeout time.Duration) (net.Conn, error) {
		c, err := srv.Dial(network, addr, timeout)
		return counted{c, &packets, &sent, &received}, err
	}))
	before := int64(0)
	return s, func(what string) (int64, int64, int64) {
		synctest.Wait()
		requests := s.Stats().Requests - before
		before += requests
		n, out, in := packets.Swap(0), sent.Swap(0), received.Swap(0)
		t.Logf("%s: %d requests, %d packets of %d bytes sent, %d bytes received", what, requests, n, out, in)
		return requests, n, out + in
	}
}

func TestAnIdleDayCostsPingsAndADayWithAHoldItsConfirmations(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		const quarters = 24 * 60 * 60 * 2 / 5 // quarters of the timeout in a day
		s, since := traffic(t, srv)
		m := zsync.NewMutex(s, "/p/lock")
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		time.Sleep(time.Hour)
		since("before")
		time.Sleep(24 * time.Hour)
		if requests, packets, bytes := since("a day without a hold"); requests != 0 || packets > quarters+1 || bytes > 32*packets {
			t.Errorf("%d requests, %d packets, %d bytes; want only %d pings", requests, packets, bytes, quarters)
		}
		harness.Must(t, m.Lock(t.Context()))
		since("a Lock")
		time.Sleep(24 * time.Hour)
		if requests, packets, _ := since("a day with a hold"); requests < 2*quarters-2 || requests > 2*quarters+2 || packets > 3*quarters+3 {
			t.Errorf("%d requests and %d packets, want two requests and a ping in each of %d quarters of the timeout", requests, packets, quarters)
		}
		if harness.Closed(m.Lost()) {
			t.Error("the lock is lost")
		}
	})
}

func TestLongLeadershipCostsItsConfirmationsAndACandidateARequestAMinute(t *testing.T) {
	week := 7 * 24 * time.Hour
	if !harness.Long() {
		week /= 50
	}
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, led := traffic(t, srv)
		leader := zsync.NewElection(s, "/p/leader")
		harness.Must(t, leader.Campaign(t.Context()))
		other, waited := traffic(t, srv)
		candidate := zsync.NewElection(other, "/p/leader")
		elected := harness.Async(func() error { return candidate.Campaign(t.Context()) })
		observed := candidate.Observe(t.Context())
		<-observed
		time.Sleep(time.Hour)
		led("before")
		waited("before")
		time.Sleep(week)
		if requests, _, _ := led("a week of the leader"); requests > int64(2*week/(2500*time.Millisecond))+2 {
			t.Errorf("%d requests of the leader", requests)
		}
		if requests, _, _ := waited("a week of the candidate"); requests > int64(week/time.Minute)+2 {
			t.Errorf("%d requests of the candidate", requests)
		}
		if harness.Closed(leader.Lost()) || len(observed) != 0 {
			t.Error("the leader changed")
		}
		harness.Must(t, leader.Resign())
		harness.Must(t, <-elected)
		if c := <-observed; c.Session != other.ID() {
			t.Errorf("%+v is the next leader", c)
		}
	})
}
