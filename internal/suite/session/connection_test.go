package session

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// go-zookeeper takes an event of type -1 for its own: the session has begun, or
// its connection has dropped.
func TestAnEventThatNoServerSendsCostsItsConnectionAndNoMore(t *testing.T) {
	for _, typ := range []int64{-2, -1, 0, 5, 6, 7, 1 << 20} {
		for _, state := range []int64{-112, 0, 1, 3, 100, 101} {
			t.Run(fmt.Sprintf("type %d in state %d", typ, state), func(t *testing.T) {
				harness.VirtualTime(t, func(t *testing.T) {
					var n atomic.Int32
					i := &impostor{hello: welcome(10_000, 16)}
					i.reply = func(xid, op int32) []byte {
						if op == wire.OpSync { // the next connection catches up
							return frame(replyTo(xid, 0))
						}
						reply := frame(replyTo(xid, wire.CodeNoNode))
						if n.Add(1) == 1 {
							return append(frame(replyTo(wire.XidEvent, 0, append(words(typ, state, 2), "/m"...)...)), reply...)
						}
						return reply
					}
					s, err := zsync.Connect(t.Context(), "x:1", zsync.WithDialer(i.dial))
					harness.Must(t, err)
					defer s.Close()
					id := s.ID()
					stat, err := inside.Live(t, s).Exists(harness.Within(t, time.Second), "/m")
					if err != nil || stat != nil {
						t.Errorf("after the event: %v, %v", stat, err)
					}
					if st := s.Stats(); s.ID() != id || st.Reconnects != 1 || s.State() != zsync.StateConnected {
						t.Errorf("session %x became %x, %v, %d reconnects; want 1", id, s.ID(), s.State(), st.Reconnects)
					}
				})
			})
		}
	}
}

func TestWatchesThatTheServerRefusesToSetAgainAreSetOnTheNextConnection(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		harness.Must(t, ma.Lock(t.Context()))
		got := harness.Async(func() error { return mb.Lock(harness.Within(t, time.Hour)) })
		synctest.Wait()
		var refused atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpSetWatches && refused.Add(1) <= 3 {
				return zktest.Fail(-127) // Throttled
			}
			return zktest.Pass
		})
		srv.Disconnect(b.ID())
		time.Sleep(time.Second)
		if n := refused.Load(); n != 4 {
			t.Errorf("tried %d times, want 4", n)
		}
		start := time.Now()
		harness.Must(t, ma.Unlock())
		harness.Must(t, <-got)
		if d := time.Since(start); d > time.Second {
			t.Errorf("granted %v after the release", d)
		}
	})
}

func TestAServerThatAcceptsAndDropsIsDialledAtThePaceOfRetries(t *testing.T) {
	for _, life := range []time.Duration{0, 11 * time.Millisecond, 500 * time.Millisecond} {
		t.Run(life.String(), func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				var dials atomic.Int64
				dial := func(string, string, time.Duration) (net.Conn, error) {
					dials.Add(1)
					client, server := net.Pipe()
					go func() {
						defer server.Close()
						if _, err := readFrame(server); err != nil {
							return
						}
						server.Write(welcome(10_000, 16))
						time.Sleep(life)
					}()
					return client, nil
				}
				s, err := zsync.Connect(t.Context(), "x:1", zsync.WithDialer(dial))
				harness.Must(t, err)
				time.Sleep(time.Minute)
				s.Close()
				defer time.Sleep(time.Second) // for the goroutines of the server
				// Nothing is held. Each handshake gives the session three quarters of its
				// 10 s again, and the next dial waits an eighth of that: 64 in a minute. The
				// nine before are those whose delay, 10 ms doubled and halved, is less.
				if n := dials.Load(); n > 64+9 {
					t.Errorf("%d dials in a minute", n)
				}
			})
		})
	}
}

func TestDroppedConnectionsMakeNoCrowdOfSessionsWithLossOnSuspend(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv, zsync.WithLossOnSuspend())
		for range 10_000 {
			if id := s.ID(); id != 0 {
				srv.Disconnect(id)
			}
			time.Sleep(time.Millisecond)
		}
		if n := len(srv.Sessions()); n > 20 {
			t.Errorf("%d sessions on the server after 10 s", n)
		}
		time.Sleep(10 * time.Second)
		_, err := inside.Live(t, s).Exists(harness.Within(t, time.Second), "/x")
		harness.Must(t, err)
	})
}

func TestASessionTimeoutOfAMillisecondMakesNoStorm(t *testing.T) {
	t.Parallel()
	harness.VirtualTime(t, func(t *testing.T) {
		i := &impostor{hello: welcome(1, 16), reply: func(xid, op int32) []byte { return frame(replyTo(xid, wire.CodeNoNode)) }}
		s, err := zsync.Connect(t.Context(), "x:1", zsync.WithDialer(i.dial))
		harness.Must(t, err)
		defer s.Close()
		time.Sleep(10 * time.Second)
		if n := i.dials.Load(); n > 30 {
			t.Errorf("%d dials in 10 s", n)
		}
	})
}

func TestAnExpiryCostsOneHandshakeAndTheNextSessionAnother(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		time.Sleep(time.Minute)
		picked := func() int {
			inside.Manager(s).Pace.Mu.Lock()
			defer inside.Manager(s).Pace.Mu.Unlock()
			return inside.Manager(s).Pace.Next
		}
		before := picked()
		srv.Expire(s.ID())
		time.Sleep(5 * time.Second)
		if n := picked() - before; n != 2 {
			t.Errorf("%d servers were picked, want 2", n)
		}
	})
}

// A nowhere is a connection that does not know its address.
type nowhere struct{ net.Conn }

func (nowhere) RemoteAddr() net.Addr { return nil }

func TestADialersConnectionNeedsNoAddress(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		i := &impostor{hello: []byte("HTTP/1.1 400 Bad Request\r\n\r\n")}
		_, err := zsync.Connect(harness.Within(t, time.Second), "x:1", zsync.WithDialer(func(network, addr string, d time.Duration) (net.Conn, error) {
			c, err := i.dial(network, addr, d)
			return nowhere{c}, err
		}))
		harness.WantErr(t, err, context.DeadlineExceeded)
		if !strings.Contains(err.Error(), "x:1") {
			t.Errorf("%v does not name the server", err)
		}
	})
}

func TestBackoffPacesWhateverItsLimits(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, b := range []zsync.Backoff{
		{Min: math.MaxInt64, Max: math.MaxInt64},
		{Min: math.MaxInt64, Max: math.MaxInt64, Jitter: 1},
		{Min: time.Hour, Max: math.MaxInt64, Factor: math.MaxFloat64},
		{Min: time.Hour, Max: math.MaxInt64, Factor: math.Inf(1)},
		{Min: time.Nanosecond, Max: math.MaxInt64, Jitter: 1},
		{Min: 10 * time.Millisecond, Max: time.Second, Jitter: 0.5},
	} {
		_, err := zsync.Connect(over, "127.0.0.1:1", zsync.WithRetry(b))
		harness.WantErr(t, err, context.Canceled) // and not for b
		if d := session.RetryPolicy(b).Delay(0); d != 0 {
			t.Errorf("%+v: the first repetition waits %v", b, d)
		}
		for try := 1; try < 200; try++ {
			least := time.Duration(float64(b.Min/2) * (1 - b.Jitter))
			if d := session.RetryPolicy(b).Delay(try); d < least || d > b.Max {
				t.Errorf("%+v: repetition %d waits %v", b, try, d)
			}
		}
	}
}

// A deaf server answers pings, but nothing that deletes.
func deafDial(t *testing.T, srv *zktest.Server, deaf *atomic.Bool) zk.Dialer {
	return func(network, addr string, d time.Duration) (net.Conn, error) {
		c, err := srv.Dial(network, addr, d)
		return deafConn{c, deaf}, err
	}
}

type deafConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (c deafConn) Write(p []byte) (int, error) {
	if len(p) >= 12 && c.deaf.Load() {
		switch int32(binary.BigEndian.Uint32(p[8:])) {
		case wire.OpDelete, wire.OpMulti, wire.OpSetData:
			return len(p), nil // and never answered
		}
	}
	return c.Conn.Write(p)
}

func TestARequestThatIsNeverAnsweredEndsTheConnectionThoughPingsAre(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var deaf atomic.Bool
		s := suite.Open(t, srv, zsync.WithDialer(deafDial(t, srv, &deaf)))
		inc := inside.Live(t, s)
		_, err := znodes.Create(t.Context(), inc, "/x", nil)
		harness.Must(t, err)
		time.Sleep(time.Minute + time.Second)
		deaf.Store(true)
		start := time.Now()
		got := harness.Async(func() error { return znodes.RemoveNow(t.Context(), inc, "/x") })
		time.Sleep(harness.Timeout/2 - time.Millisecond)
		if n := s.Stats().Reconnects; n != 0 {
			t.Errorf("%d reconnects %v after the request", n, time.Since(start))
		}
		deaf.Store(false)
		time.Sleep(time.Millisecond)
		harness.Must(t, <-got)
		if d := time.Since(start); d > harness.Timeout/2+100*time.Millisecond {
			t.Errorf("made up for after %v", d)
		}
		if n := s.Stats().Reconnects; n != 1 {
			t.Errorf("%d reconnects, want 1", n)
		}
	})
}

// Followers of ZooKeeper 3.6.0 to 3.8.0 sometimes answer a request only when they receive the next
// one: see docs/operations.md.
func TestACallWaitsATenthOfASecondForAServerThatDozes(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		for range 20 {
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpPing {
					return zktest.Pass
				}
				return zktest.Doze
			})
			start := time.Now()
			harness.Must(t, m.Lock(t.Context()))
			if d := time.Since(start); d > 110*time.Millisecond {
				t.Errorf("Lock took %v", d)
			}
			srv.Intercept(nil)
			harness.Must(t, m.Unlock())
			time.Sleep(333 * time.Millisecond) // so that Lock is called at various times between two pings
		}
	})
}

func TestReleasesReturnWithinHalfASecondWhateverTheServersDo(t *testing.T) {
	ways := map[string]func(srv *zktest.Server, id int64, deaf *atomic.Bool){
		"pings alone are answered": func(srv *zktest.Server, id int64, deaf *atomic.Bool) { deaf.Store(true) },
		"nothing is answered":      func(srv *zktest.Server, id int64, deaf *atomic.Bool) { srv.Partition(id) },
		"stopped":                  func(srv *zktest.Server, id int64, deaf *atomic.Bool) { srv.Stop() },
	}
	kinds := map[string]func(t *testing.T, s *zsync.Session) (release func() error){
		"Mutex.Unlock": func(t *testing.T, s *zsync.Session) func() error {
			m := zsync.NewMutex(s, "/p")
			harness.Must(t, m.Lock(t.Context()))
			return m.Unlock
		},
		"Mutex.Unlock, while another waits in the process": func(t *testing.T, s *zsync.Session) func() error {
			m := zsync.NewMutex(s, "/p", zsync.WithHandoffs(1))
			harness.Must(t, m.Lock(t.Context()))
			for range 3 {
				go m.Lock(harness.Within(t, time.Hour))
			}
			synctest.Wait()
			harness.Must(t, m.Unlock()) // the one that is handed over without asking
			synctest.Wait()
			return m.Unlock
		},
		"RWMutex.Unlock": func(t *testing.T, s *zsync.Session) func() error {
			m := zsync.NewRWMutex(s, "/p")
			harness.Must(t, m.Lock(t.Context()))
			return m.Unlock
		},
		"RWMutex.RUnlock": func(t *testing.T, s *zsync.Session) func() error {
			m := zsync.NewRWMutex(s, "/p")
			harness.Must(t, m.RLock(t.Context()))
			return m.RUnlock
		},
		"Election.Resign": func(t *testing.T, s *zsync.Session) func() error {
			e := zsync.NewElection(s, "/p")
			harness.Must(t, e.Campaign(t.Context()))
			return e.Resign
		},
		"Semaphore.Release": func(t *testing.T, s *zsync.Session) func() error {
			m := zsync.NewSemaphore(s, "/p", 2)
			harness.Must(t, m.Acquire(t.Context(), 1))
			return func() error { return m.Release(1) }
		},
		"Semaphore.Release, of a part of a weight": func(t *testing.T, s *zsync.Session) func() error {
			m := zsync.NewSemaphore(s, "/p", 5000)
			harness.Must(t, m.Acquire(t.Context(), 3000))
			return func() error { return m.Release(1000) }
		},
		"WaitGroup.Done": func(t *testing.T, s *zsync.Session) func() error {
			wg := zsync.NewWaitGroup(s, "/p")
			harness.Must(t, wg.Add(t.Context(), 1))
			return wg.Done
		},
	}
	for way, break_ := range ways {
		for kind, hold := range kinds {
			t.Run(kind+", "+way, func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					var deaf atomic.Bool
					s := suite.Open(t, srv, zsync.WithDialer(deafDial(t, srv, &deaf)))
					id := s.ID()
					release := hold(t, s)
					synctest.Wait()
					break_(srv, id, &deaf)
					start := time.Now()
					err := release()
					if d := time.Since(start); err != nil || d >= 500*time.Millisecond {
						t.Errorf("returned %v after %v", err, d)
					}
					// It goes on in the background.
					time.Sleep(time.Second)
					deaf.Store(false)
					srv.Heal(id)
					srv.Restart()
					time.Sleep(2 * harness.Timeout)
					if n := s.Stats().Expiries; n != 0 && way == "pings alone are answered" {
						t.Errorf("%d sessions were lost", n)
					}
					if kind != "Mutex.Unlock, while another waits in the process" && kind != "Semaphore.Release, of a part of a weight" {
						for _, x := range suite.Ephemerals(srv, id) {
							if !strings.HasSuffix(x, "-txn") { // a page for receipts, kept for the next transaction
								t.Errorf("%s is left", x)
							}
						}
					}
				})
			})
		}
	}
}

// A stuck connection passes nothing on until it is let go.
type stuckConn struct {
	net.Conn
	stuck *atomic.Bool
	gate  chan struct{}
}

func (c stuckConn) Write(p []byte) (int, error) {
	if c.stuck.Load() {
		<-c.gate
	}
	return c.Conn.Write(p)
}

func TestTxnStoresWhatWasInTheBuffersWhenItWasCalled(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var stuck atomic.Bool
		gate := make(chan struct{})
		s := suite.Open(t, srv, zsync.WithDialer(func(network, addr string, d time.Duration) (net.Conn, error) {
			c, err := srv.Dial(network, addr, d)
			return stuckConn{c, &stuck, gate}, err
		}))
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		srv.SetLatency(time.Millisecond) // so that two transactions at once need two logs
		other := harness.Async(func() error { _, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/d"}); return err })
		_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/e"})
		harness.Must(t, err)
		harness.Must(t, <-other)
		srv.SetLatency(0)
		synctest.Wait()
		stuck.Store(true)
		inc := inside.Live(t, s)
		first := harness.Async(func() error { _, err := inc.Exists(t.Context(), "/q"); return err }) // fills the socket
		synctest.Wait()
		buf := []byte("AAAA")
		acl := zk.WorldACL(zk.PermAll)
		_, err = s.Txn(harness.Within(t, 10*time.Millisecond),
			&zk.SetDataRequest{Path: "/d", Data: buf, Version: -1},
			&zk.CreateRequest{Path: "/c", Data: buf, Acl: acl})
		harness.WantErr(t, err, context.DeadlineExceeded)
		_, err = m.Txn(harness.Within(t, 10*time.Millisecond), &zk.SetDataRequest{Path: "/e", Data: buf, Version: -1})
		harness.WantErr(t, err, context.DeadlineExceeded)
		copy(buf, "BBBB") // the caller uses them for something else
		acl[0] = zk.ACL{Perms: zk.PermRead, Scheme: "world", ID: "anyone"}
		stuck.Store(false)
		close(gate)
		harness.Must(t, <-first)
		time.Sleep(time.Second)
		for _, path := range []string{"/c", "/d", "/e"} {
			if data, _, err := inc.Get(t.Context(), path); err != nil || string(data) != "AAAA" {
				t.Errorf("%s: stored %q, %v", path, data, err)
			}
		}
		_, err = inc.Set(t.Context(), "/c", nil, -1)
		harness.Must(t, err)
		harness.Must(t, m.Unlock())
	})
}
