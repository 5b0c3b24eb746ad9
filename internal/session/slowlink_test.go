package session

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/zktest"
)

// A narrow connection takes its time for each byte, both ways.
type narrow struct {
	net.Conn
	up, down int // bytes a second; 0 is without a limit
}

// pass takes the time of n bytes.
func pass(n, rate int) {
	if rate > 0 {
		time.Sleep(time.Duration(n) * time.Second / time.Duration(rate))
	}
}

func (c *narrow) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p[:min(len(p), 1<<10)])
	pass(n, c.down)
	return n, err
}

func (c *narrow) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		part := p[:min(len(p), 1<<10)]
		pass(len(part), c.up)
		_, err = c.Conn.Write(part)
		n, p = n+len(part), p[len(part):]
	}
	return n, err
}

// through connects over narrow connections.
func through(srv *zktest.Server, up, down int) func(*Config) {
	return WithDialer(func(network, addr string, limit time.Duration) (net.Conn, error) {
		c, err := srv.Dial(network, addr, limit)
		return &narrow{Conn: c, up: up, down: down}, err
	})
}

// slow is what takes 60 KiB three seconds.
const slow = 20 << 10

func TestALongAnswerComesOverASlowLinkThoughItTakesLongerThanTheTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		must(t, second(startCreate(t.Context(), live(t, open(t, srv)), "/x", make([]byte, 900<<10), 0)))
		s := open(t, srv, through(srv, 0, slow))
		inc := live(t, s)
		type answer struct {
			n   int
			err error
		}
		long, short := make(chan answer, 1), make(chan answer, 1)
		began := time.Now()
		go func() {
			data, _, err := inc.Get(t.Context(), "/x")
			long <- answer{len(data), err}
		}()
		time.Sleep(time.Second)
		go func() {
			_, err := inc.Exists(t.Context(), "/y")
			short <- answer{0, err}
		}()
		if a := <-long; a.err != nil || a.n != 900<<10 {
			t.Errorf("%d bytes, %v", a.n, a.err)
		}
		if a := <-short; a.err != nil {
			t.Errorf("what was asked behind it: %v", a.err)
		}
		if took := time.Since(began); took < 2*testTimeout {
			t.Errorf("it took %v: the test shows nothing", took)
		}
		if n := s.Stats().Reconnects; n != 0 || inc.Ctx.Err() != nil {
			t.Errorf("%d reconnects, %v", n, inc.Ctx.Err())
		}
	})
}

func TestALongRequestGoesOverASlowLinkThoughItTakesLongerThanAnAnswerMay(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv, through(srv, slow, 0))
		inc := live(t, s)
		began := time.Now()
		_, err := create(t.Context(), inc, "/x", make([]byte, 170<<10)) // within the timeout: else the server hears nothing of the session
		must(t, err)
		if took := time.Since(began); took < testTimeout/2 {
			t.Errorf("it took %v: the test shows nothing", took)
		}
		if n := s.Stats().Reconnects; n != 0 || inc.Ctx.Err() != nil {
			t.Errorf("%d reconnects, %v", n, inc.Ctx.Err())
		}
	})
}

// A portion of watches is sent when the one before is answered. What is held meanwhile stays certain.
func TestWatchesAreSetAgainOverASlowLinkThoughItTakesLongerThanTheTimeout(t *testing.T) {
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprintf("held %v", held), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				watches, length, rate := 500, 1000, slow
				if held { // or no confirmation comes in time
					watches, rate = 1500, 3*slow
				}
				up := 0
				s := open(t, srv, WithDialer(func(network, addr string, limit time.Duration) (net.Conn, error) {
					c, err := srv.Dial(network, addr, limit)
					return &narrow{Conn: c, up: up}, err
				}))
				inc := live(t, s)
				fired := make(chan struct{}, watches)
				for i := range watches {
					w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: fmt.Sprintf("/%d%s", i, strings.Repeat("x", length))})
					inc.Watches.Tell(w, w, func() { fired <- struct{}{} })
					must(t, second(inc.Exists(t.Context(), w.Key.Path)))
				}
				if held {
					stake, err := inc.Stake(t.Context())
					must(t, err)
					defer stake.Drop()
				}
				up = rate
				srv.Disconnect(s.ID())
				began := time.Now()
				if _, err := inc.Exists(t.Context(), "/y"); err != nil {
					t.Fatalf("after %v: %v", time.Since(began), context.Cause(inc.Ctx))
				}
				if took := time.Since(began); took < 2*testTimeout || took > 4*testTimeout {
					t.Errorf("it took %v; want the time of the watches, once", took)
				}
				if n := s.Stats().Reconnects; n != 1 || inc.Ctx.Err() != nil {
					t.Fatalf("%d reconnects, %v", n, inc.Ctx.Err())
				}
				other := live(t, open(t, srv))
				for i := range watches {
					must(t, second(create(t.Context(), other, fmt.Sprintf("/%d%s", i, strings.Repeat("x", length)), nil)))
				}
				for range watches {
					<-fired
				}
			})
		})
	}
}

// A waiter that hears of the deletion ahead of it compares the connection of the event with that of its own
// watch. So an event that comes while watches are still set again must not count for the connection before.
func TestAnEventThatComesWhileWatchesAreSetAgainIsOneOfTheNewConnection(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		cut := make(chan struct{})
		close(cut)
		s := open(t, srv, WithDialer(func(network, addr string, limit time.Duration) (net.Conn, error) {
			<-cut
			return srv.Dial(network, addr, limit)
		}))
		inc, other := live(t, s), live(t, open(t, srv))
		var watches []*conn.Watch
		for i := range 200 {
			w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: fmt.Sprintf("/%d%s", i, strings.Repeat("x", 1000))})
			must(t, second(create(t.Context(), other, w.Key.Path, nil)))
			must(t, second(inc.Exists(t.Context(), w.Key.Path)))
			watches = append(watches, w)
		}
		before := inc.Watches.Connection()
		again := make(chan struct{})
		cut = again
		srv.Disconnect(s.ID())
		for _, w := range watches {
			must(t, remove(t.Context(), other, w.Key.Path))
		}
		close(again)
		must(t, second(inc.Exists(t.Context(), "/y")))
		for _, w := range watches {
			<-w.Fired
			if told := inc.Watches.State(w).ToldOn; told <= before {
				t.Fatalf("an event counts for connection %d; the one before was %d", told, before)
			}
		}
	})
}

// A server that trickles is left: each stride must come in time.
func TestAServerThatTricklesIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		must(t, second(startCreate(t.Context(), live(t, open(t, srv)), "/x", make([]byte, 900<<10), 0)))
		rate := 1 << 10
		s := open(t, srv, WithDialer(func(network, addr string, limit time.Duration) (net.Conn, error) {
			c, err := srv.Dial(network, addr, limit)
			defer func() { rate = 0 }()
			return &narrow{Conn: c, down: rate}, err
		}))
		began := time.Now()
		data, _, err := live(t, s).Get(t.Context(), "/x")
		must(t, err)
		if took := time.Since(began); len(data) != 900<<10 || took > testTimeout {
			t.Errorf("%d bytes after %v", len(data), took)
		}
	})
}
