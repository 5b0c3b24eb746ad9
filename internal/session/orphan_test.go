package session

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/sasl"
	"github.com/zsync/zsync/zktest"
)

// What a session has left that was abandoned, because its connection dropped, holds
// nobody up until it expires; but those who held something have their time.
func TestASessionAbandonedWithItsConnectionIsEndedOverAnother(t *testing.T) {
	for _, how := range []string{"suspended", "given up"} {
		harness.VirtualTime(t, func(t *testing.T) {
			srv := zktest.Start(t, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2"))
			s, b := open(t, srv, func(c *Config) { c.LossOnSuspend = how == "suspended" }), open(t, srv)
			inc, id := live(t, s), s.ID()
			_, err := inc.Stake(t.Context())
			must(t, err)
			_, err = startCreate(t.Context(), inc, "/mine", nil, 1)
			must(t, err)
			w := live(t, b).Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: "/mine"})
			defer live(t, b).Watches.Leave(w)
			synctest.Wait()
			if stat, err := live(t, b).Exists(t.Context(), "/mine"); stat == nil || stat.EphemeralOwner != id {
				t.Fatalf("%v, %v", stat, err)
			}
			start := time.Now()
			if how == "given up" {
				inc.Abandon()
			}
			srv.Disconnect(id)
			synctest.Wait()
			if inc.Ctx.Err() == nil {
				t.Fatal("nobody was told")
			}
			next := live(t, s)
			must(t, AwaitIn(t.Context(), live(t, b), w.Fired))
			if took := time.Since(start); took < testTimeout/10 || took > testTimeout/5 {
				t.Errorf("%s: gone after %v, want a tenth of the session timeout of %v", how, took, testTimeout)
			}
			if next.Ctx.Err() != nil || next == inc || srv.Counts().Sessions != 2 {
				t.Errorf("%s: %d sessions, want the next one and the other", how, srv.Counts().Sessions)
			}
		})
	}
}

// A will that is lost on its way is sent again, and one that a server gives another
// session for ends that too.
func TestAnAbandonedSessionIsEndedThoughServersFail(t *testing.T) {
	var first string // the server that is asked first
	for name, fault := range map[string]func(srv *zktest.Server, id int64) func(r zktest.Request) zktest.Action{
		"a server that is down": func(srv *zktest.Server, id int64) func(r zktest.Request) zktest.Action {
			srv.StopAddr(first)
			return nil
		},
		"a lost request": func(srv *zktest.Server, id int64) func(r zktest.Request) zktest.Action {
			n := 0
			return func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpCloseSession && n == 0 {
					n++
					return zktest.DropRequest
				}
				return zktest.Pass
			}
		},
		"a server that hangs": func(srv *zktest.Server, id int64) func(r zktest.Request) zktest.Action {
			n := 0
			return func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpConnect && r.Session == id && n == 0 {
					n++
					return zktest.Hang
				}
				return zktest.Pass
			}
		},
		"a server that refuses": func(srv *zktest.Server, id int64) func(r zktest.Request) zktest.Action {
			n := 0
			return func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpCloseSession && n == 0 {
					n++
					return zktest.Refuse(zktest.CodeAuthRequired)
				}
				return zktest.Pass
			}
		},
		"another session": func(srv *zktest.Server, id int64) func(r zktest.Request) zktest.Action {
			srv.ChangeSession(id)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				srv := zktest.Start(t, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
				s := open(t, srv, func(c *Config) { c.LossOnSuspend = true })
				inc, id := live(t, s), s.ID()
				first = s.m.Hosts[(slices.Index(s.m.Hosts, inc.NewestConn().Addr)+1)%3]
				srv.Intercept(fault(srv, id))
				srv.Disconnect(id)
				time.Sleep(testTimeout / 20) // the next is there; the will is not sent yet
				if live(t, s) == inc {
					t.Fatal("the same session")
				}
				time.Sleep(testTimeout / 2)
				if ids := srv.Sessions(); len(ids) != 1 || ids[0] != s.ID() {
					t.Errorf("sessions %x, want %x alone", ids, s.ID())
				}
			})
		})
	}
}

// A server that demands credentials demands them of who ends a session, too.
func TestAnAbandonedSessionIsEndedWhereServersDemandCredentials(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t, zktest.WithRequiredAuth())
		s := open(t, srv, func(c *Config) {
			c.LossOnSuspend = true
			c.Auths = []conn.Auth{{Scheme: "digest", Credentials: []byte("a:b")}, {Scheme: "digest", Credentials: []byte("c:d")}}
		})
		before := s.ID()
		srv.Disconnect(before)
		time.Sleep(testTimeout / 5)
		if ids := srv.Sessions(); len(ids) != 1 || ids[0] == before || ids[0] != s.ID() {
			t.Errorf("sessions %x, want %x alone", ids, s.ID())
		}
	})
}

// The end of the session follows an exchange of its own.
func TestAnAbandonedSessionIsEndedWhereServersDemandSASL(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t, zktest.WithSASL(map[string]string{"bob": "secret"}), zktest.WithRequiredAuth("sasl"))
		s := open(t, srv, func(c *Config) {
			c.LossOnSuspend = true
			c.SASL = sasl.NewClient(sasl.DigestMD5("bob", "secret"))
			c.Auths = []conn.Auth{{Scheme: "digest", Credentials: []byte("a:b")}}
		})
		before := s.ID()
		srv.Disconnect(before)
		time.Sleep(testTimeout / 5)
		if ids := srv.Sessions(); len(ids) != 1 || ids[0] == before || ids[0] != s.ID() {
			t.Errorf("sessions %x, want %x alone", ids, s.ID())
		}
	})
}

// Close does not wait for what was left, nor does anything of it stay behind.
func TestCloseDoesNotWaitForTheEndOfAnAbandonedSession(t *testing.T) {
	for _, after := range []time.Duration{0, testTimeout / 20, testTimeout/10 + testTimeout/100} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv, func(c *Config) { c.LossOnSuspend = true })
			id := s.ID()
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpConnect && r.Session == id {
					return zktest.Hang
				}
				return zktest.Pass
			})
			srv.Disconnect(id)
			synctest.Wait()
			live(t, s)
			time.Sleep(after)
			start := time.Now()
			s.m.Close()
			if took := time.Since(start); took > testTimeout/100 {
				t.Errorf("after %v: Close took %v", after, took)
			}
		})
	}
}

// Credentials go with the handshake: a connection with them takes no longer.
func TestCredentialsTakeNoRoundTripOfTheirOwn(t *testing.T) {
	const way = 100 * time.Millisecond
	for n := range 3 {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv, func(c *Config) {
				for i := range n {
					c.Auths = append(c.Auths, conn.Auth{Scheme: "digest", Credentials: []byte(fmt.Sprintf("u%d:p", i))})
				}
			})
			inc := live(t, s)
			srv.SetLatency(way)
			for range 2 {
				start := time.Now()
				srv.Disconnect(s.ID())
				synctest.Wait()
				_, err := inc.Exists(t.Context(), "/x")
				must(t, err)
				if took := time.Since(start); took >= 3*way {
					t.Errorf("%d credentials: the next request was answered after %v, want two round trips of %v", n, took, way)
				}
			}
		})
	}
}
