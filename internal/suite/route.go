package suite

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// A Route lets a session reach one member of an ensemble at a time, or none.
type Route struct {
	E *zktest.Ensemble

	mu   sync.Mutex
	to   int // -1 for none
	deaf bool
	nc   net.Conn // the last
}

// NewRoute returns a route to member to.
func NewRoute(e *zktest.Ensemble, to int) *Route { return &Route{E: e, to: to} }

// Dial is a zk.Dialer.
func (r *Route) Dial(network, addr string, timeout time.Duration) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.to < 0 || r.E.Addrs()[r.to] != addr {
		return nil, errors.New("no route to this member")
	}
	nc, err := r.E.Dial(network, addr, timeout)
	if err != nil {
		return nil, err
	}
	if r.deaf {
		nc = deaf{nc}
	}
	r.nc = nc
	return nc, nil
}

// Move ends the connection, and lets the session reach member to alone, or none if to is -1.
func (r *Route) Move(to int) { r.move(to, false) }

// MoveDeaf is Move, but nothing that the member sends arrives.
func (r *Route) MoveDeaf(to int) { r.move(to, true) }

func (r *Route) move(to int, deaf bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to, r.deaf = to, deaf
	if r.nc != nil {
		r.nc.Close()
	}
}

// A deaf connection loses all that comes.
type deaf struct{ net.Conn }

func (d deaf) Read([]byte) (int, error) {
	p := make([]byte, 1<<10)
	for {
		if _, err := d.Conn.Read(p); err != nil {
			return 0, err
		}
	}
}

// AwaitConnected waits until a session has a connection, for at most d.
func AwaitConnected(t testing.TB, s *zsync.Session, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); s.State() != zsync.StateConnected; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the session is %v after %v", s.State(), d)
		}
	}
}
