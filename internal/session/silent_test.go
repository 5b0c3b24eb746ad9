package session

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/lease"
	"github.com/zsync/zsync/zktest"
)

// A session that is given up, and whose server does not answer that it has ended it,
// is ended over another: nobody waits until it expires for what it leaves.
func TestASessionThatIsGivenUpAndWhoseServerIsSilentIsEndedOverAnother(t *testing.T) {
	for name, fault := range map[string]zktest.Action{
		"silent":          zktest.Hang,
		"a lost request":  zktest.DropRequest,
		"a lost reply":    zktest.DropReply,
		"half a reply":    zktest.HangReply,
		"a refusal":       zktest.Fail(zktest.CodeThrottled),
		"one that is hit": zktest.Pass,
	} {
		t.Run(name, func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				srv := zktest.Start(t, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
				s, b := open(t, srv), open(t, srv)
				inc, id := live(t, s), s.ID()
				bad := inc.NewestConn().Addr
				_, err := startCreate(t.Context(), inc, "/mine", nil, 1)
				must(t, err)
				w := live(t, b).Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: "/mine"})
				defer live(t, b).Watches.Leave(w)
				synctest.Wait()
				if stat, err := live(t, b).Exists(t.Context(), "/mine"); stat == nil || stat.EphemeralOwner != id {
					t.Fatalf("%v, %v", stat, err)
				}
				var asked, continued atomic.Int32
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == zktest.OpConnect && r.Session == id {
						continued.Add(1)
					}
					switch {
					case r.Op == zktest.OpCloseSession && r.Session == id && asked.Add(1) == 1:
						return fault
					case r.Session == id && r.Addr == bad && r.Op == zktest.OpConnect && fault == zktest.Hang:
						return zktest.Hang // it stays silent
					}
					return zktest.Pass
				})
				start := time.Now()
				inc.Abandon()
				next := live(t, s)
				must(t, AwaitIn(t.Context(), live(t, b), w.Fired))
				// A tenth of the timeout for those who held something, and a second that go-zookeeper waits for the answer.
				if took, limit := time.Since(start), testTimeout/10+1100*time.Millisecond; took < testTimeout/10 || took > limit {
					t.Errorf("gone after %v, want between %v and %v", took, testTimeout/10, limit)
				}
				time.Sleep(testTimeout)
				// Once more over one other server, where there was no answer.
				want := int32(1)
				if fault == zktest.Pass {
					want = 0
				}
				if n := continued.Load(); n != want {
					t.Errorf("%d other servers were asked, want %d", n, want)
				}
				if next.Ctx.Err() != nil || srv.Counts().Sessions != 2 {
					t.Errorf("%d sessions, want the next one and the other", srv.Counts().Sessions)
				}
			})
		})
	}
}

// A slowConn is one whose end takes its time.
type slowConn struct {
	net.Conn
	before atomic.Pointer[func()] // called ahead of what is read next
}

func (c *slowConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if f := c.before.Load(); f != nil && err == nil {
		(*f)()
	}
	return n, err
}

func (c *slowConn) Close() error {
	time.AfterFunc(time.Millisecond, func() { c.Conn.Close() })
	return nil
}

// Whoever held something through a session that ends in the middle of a handshake
// has a tenth of its timeout like everybody else: the servers are not asked to end
// it at once.
func TestASessionThatEndsInAHandshakeIsNotClosedBeforeItsHoldersHadTheirTime(t *testing.T) {
	lose := func(inc *Incarnation) { inc.end(inc.Manager.Config.Lost(LossCutOff, inc.ID.Load(), time.Now(), nil)) }
	for name, end := range map[string]func(inc *Incarnation){
		"given up": (*Incarnation).Abandon,
		"lost":     lose,
		"lost, and shut runs before the handshake goes on": func(inc *Incarnation) {
			lose(inc)
			time.Sleep(500 * time.Microsecond)
		},
		"lost, and the whole Session fails": func(inc *Incarnation) {
			lose(inc)
			inc.Manager.fail(zk.ErrAuthFailed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				var inc *Incarnation
				var told time.Time
				dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
					conn, err := srv.Dial(network, addr, timeout)
					if err != nil || inc == nil || inc.Ctx.Err() != nil {
						return conn, err
					}
					c := &slowConn{Conn: conn}
					f := func() {
						c.before.Store(nil)
						told = time.Now()
						end(inc)
					}
					c.before.Store(&f)
					return c, nil
				}
				s := open(t, srv, WithDialer(dial))
				first := live(t, s)
				id := s.ID()
				_, err := first.Stake(t.Context())
				must(t, err)
				closed := closings(srv)
				inc = first
				srv.Disconnect(id)
				<-first.Ctx.Done()
				time.Sleep(testTimeout / 2)
				var after []int64 // the sessions that follow
				if s.m.Failure() == nil {
					live(t, s)
					after = []int64{s.ID()}
				}
				at, n := closed()
				if took := at.Sub(told); n != 1 || took < testTimeout/10 || took > testTimeout/5 {
					t.Errorf("closed %d times, the first %v after the end; want once, after %v", n, took, testTimeout/10)
				}
				if ids := srv.Sessions(); !slices.Equal(ids, after) {
					t.Errorf("sessions %x, want %x", ids, after)
				}
			})
		})
	}
}

// A hold that rests on little is lost when it must be, however lately the watchdog
// has looked and whatever is due next.
func TestAHoldThatRestsOnLittleIsLostInTime(t *testing.T) {
	for phase := range 10 {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			inc := live(t, open(t, srv))
			time.Sleep(time.Duration(phase) * testTimeout / 100)
			// What can be confirmed now was sent long ago, and what was heard since is
			// so new that nothing is due for a while.
			inc.LeaseMu.Lock()
			now := time.Now()
			carry := now.Add(-testTimeout * 17 / 20)
			carries := carry.Add(testTimeout * 3 / 10) // later than a gap
			v := lease.New(testTimeout)
			v.Connected(carry.Add(-time.Millisecond), true, testTimeout)
			v.Answered(v.Sending(carry), lease.Server, carry)
			v.Answered(v.Sending(carries), lease.Quorum, now)
			inc.Lease = v
			inc.LeaseMu.Unlock()
			stake, err := inc.Stake(t.Context())
			must(t, err)
			defer stake.Drop()
			srv.Intercept(func(zktest.Request) zktest.Action { return zktest.Hang })
			inc.LeaseMu.Lock()
			end := time.Now().Add(inc.Lease.Confirmed(time.Now()))
			inc.LeaseMu.Unlock()
			if !end.Equal(carry.Add(testTimeout * 9 / 10)) {
				t.Fatal("the hold does not rest on what it was to rest on")
			}
			time.Sleep(time.Until(end) - time.Millisecond)
			synctest.Wait()
			if inc.Ctx.Err() != nil {
				t.Fatal("lost too early") // and then this shows nothing
			}
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			if inc.Ctx.Err() == nil {
				t.Errorf("phase %d: still believed in a millisecond after the end", phase)
			}
		})
	}
}

// A deafConn is one whose server hears nothing more once it is told so.
type deafConn struct {
	net.Conn
	deaf atomic.Bool
}

func (c *deafConn) Write(p []byte) (int, error) {
	if c.deaf.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// A server that does not hear us any more may go on to tell events. They say nothing of
// whether it hears us: the session would expire there.
func TestAServerThatTellsEventsAndAnswersNothingIsLeftForAnotherInTime(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var first *deafConn
		s := open(t, srv, WithDialer(func(network, addr string, limit time.Duration) (net.Conn, error) {
			conn, err := srv.Dial(network, addr, limit)
			if err == nil && first == nil {
				first = &deafConn{Conn: conn}
				conn = first
			}
			return conn, err
		}))
		inc, other := live(t, s), live(t, open(t, srv))
		var paths []string
		for i := range 4 {
			paths = append(paths, fmt.Sprint("/x", i))
			must(t, second(startCreate(t.Context(), inc, paths[i], nil, 0)))
			w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: paths[i]})
			defer inc.Watches.Leave(w)
			_, _, err := inc.Get(t.Context(), paths[i])
			must(t, err)
		}
		first.deaf.Store(true)
		for _, path := range paths {
			time.Sleep(testTimeout / 4)
			must(t, second(other.Set(t.Context(), path, []byte("new"), -1)))
		}
		if n := inc.Manager.Reconnects.Load(); n != 1 || inc.Ctx.Err() != nil {
			t.Errorf("%d reconnects, %v; want 1, and that the session goes on", n, context.Cause(inc.Ctx))
		}
	})
}
