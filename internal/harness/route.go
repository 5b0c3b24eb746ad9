package harness

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/zsync/zsync/zktest"
)

// This file controls which member of an ensemble a session can reach. Faults at single requests are
// the business of zktest's Intercept.

// A Route lets a session reach one member of an ensemble at a time, or none.
type Route struct {
	E *zktest.Ensemble

	mu   sync.Mutex
	to   int // -1 for none
	deaf bool
	nc   net.Conn // the last connection
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

// At returns the member that the session can reach, or -1.
func (r *Route) At() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.to
}

// Move closes the connection. Then the session can reach only the member with the number `to`. If
// `to` is -1, it can reach no member.
func (r *Route) Move(to int) { r.move(to, false) }

// MoveDeaf is like Move, but the session receives nothing from the member.
func (r *Route) MoveDeaf(to int) { r.move(to, true) }

func (r *Route) move(to int, deaf bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to, r.deaf = to, deaf
	if r.nc != nil {
		r.nc.Close()
	}
}

// A deaf connection loses all bytes from the member.
type deaf struct{ net.Conn }

func (d deaf) Read([]byte) (int, error) {
	p := make([]byte, 1<<10)
	for {
		if _, err := d.Conn.Read(p); err != nil {
			return 0, err
		}
	}
}
