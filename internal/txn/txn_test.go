package txn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/session/sessiontest"
	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

func TestMain(m *testing.M) { harness.Main(m) }

const testTimeout = harness.Timeout

var (
	bubble  = harness.Bubble
	must    = harness.Must
	wantErr = harness.WantErr
)

// A testSession is a manager of the tests.
type testSession struct{ m *session.Manager }

func (c *testSession) ID() int64 { return c.m.SessionID() }

func connect(t testing.TB, addrs []string, dial zk.Dialer) *testSession {
	t.Helper()
	return connectWith(t, addrs, dial, zk.WorldACL(zk.PermAll))
}

func connectWith(t testing.TB, addrs []string, dial zk.Dialer, acl []zk.ACL, auths ...conn.Auth) *testSession {
	t.Helper()
	return &testSession{sessiontest.Open(t, addrs, dial, func(cfg *session.Config) {
		cfg.ACL, cfg.Auths = acl, auths
	})}
}

func open(t testing.TB, srv *zktest.Server) *testSession { return connect(t, srv.Addrs(), srv.Dial) }

func live(t testing.TB, c *testSession) *session.Incarnation {
	t.Helper()
	inc, err := c.m.Incarnation(t.Context())
	must(t, err)
	return inc
}

func childrenOf(t testing.TB, c *testSession, path string) []string {
	t.Helper()
	names, err := live(t, c).Names(t.Context(), c.m.Full(path))
	must(t, err)
	slices.Sort(names)
	return names
}

func TestALogThatMayNotBeDeletedCostsNobodyTheSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		stake, err := inc.Stake(t.Context())
		must(t, err)
		defer stake.Drop()
		var slow atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpDelete && strings.HasPrefix(r.Path, "/_c_"):
				return zktest.Fail(-102) // the root gives create, not delete
			case r.Op == zktest.OpMulti && slow.CompareAndSwap(false, true):
				return zktest.Delay(2 * time.Second)
			}
			return zktest.Pass
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = Session(ctx, s.m, []any{&zk.CreateRequest{Path: "/x"}})
		wantErr(t, err, context.DeadlineExceeded)
		time.Sleep(time.Minute)
		if inc.Ctx.Err() != nil {
			t.Errorf("the session was given up for a log: %v", context.Cause(inc.Ctx))
		}
	})
}

// The reply is lost, there is no connection for another attempt, and ctx ends.
func TestATransactionGivenUpBetweenTwoAttemptsLeavesNoLog(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		inc, me := live(t, s), s.ID()
		var lost atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session == me && r.Op == zktest.OpMulti && lost.CompareAndSwap(false, true):
				return zktest.DropReply
			case r.Session == me && r.Op == zktest.OpConnect && lost.Load():
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		_, err := Session(ctx, s.m, []any{&zk.CreateRequest{Path: "/x"}})
		wantErr(t, err, context.DeadlineExceeded)
		if names := childrenOf(t, other, "/"); len(names) != 3 { // zookeeper, x, the log
			t.Fatalf("%q", names)
		}
		time.Sleep(testTimeout)
		if names := childrenOf(t, other, "/"); len(names) != 2 || live(t, s) != inc {
			t.Errorf("%q are left", names)
		}
	})
}

// If another client deletes the log of a transaction whose reply was lost, the outcome is
// unknown. The error says so, whichever operation the repetition fails at.
func TestATransactionWhoseLogWasDeletedIsNotSaidToHaveChangedNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), live(t, open(t, srv))
		_, err := Session(t.Context(), s.m, []any{&zk.CreateRequest{Path: "/first"}})
		must(t, err)
		var sent atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpMulti && sent.Add(1) == 1:
				go func() {
					time.Sleep(100 * time.Millisecond)
					names, _, _ := other.Children(context.Background(), "/")
					for _, name := range names {
						if strings.HasPrefix(name, "_c_") {
							znodes.RemoveNow(context.Background(), other, "/"+name)
						}
					}
				}()
				return zktest.DropReply
			case r.Op == zktest.OpConnect && sent.Load() == 1:
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		_, err = Session(t.Context(), s.m, []any{&zk.CreateRequest{Path: "/second"}})
		if err == nil || !strings.Contains(err.Error(), "may have been applied") {
			t.Errorf("it was applied, and it is said: %v", err)
		}
	})
}

// A transaction or its reply is lost. Then the servers refuse the requests that ask for the outcome. The error must not
// look like a refusal of the transaction: the outcome is unknown.
func TestAnErrorThatLeavesTheOutcomeOpenIsNotTakenForAnAnswer(t *testing.T) {
	const quota = -125
	const noAuth = -102
	for name, c := range map[string]struct {
		lost  zktest.Action
		codes map[zktest.Op]int32
	}{
		"unreadable":                          {zktest.DropReply, map[zktest.Op]int32{zktest.OpExists: quota}},
		"unreadable, NoAuth":                  {zktest.DropReply, map[zktest.Op]int32{zktest.OpExists: noAuth}},
		"neither written nor deleted":         {zktest.DropRequest, map[zktest.Op]int32{zktest.OpMulti: quota, zktest.OpSetData: quota}},
		"neither written nor deleted, NoAuth": {zktest.DropRequest, map[zktest.Op]int32{zktest.OpMulti: noAuth, zktest.OpSetData: noAuth}},
	} {
		for kind, apply := range map[string]func(ctx context.Context, m *session.Manager, ops []any) ([]zk.MultiResponse, error){
			"within a session": Session,
			"across sessions": func(ctx context.Context, m *session.Manager, ops []any) ([]zk.MultiResponse, error) {
				return Across(ctx, m, "/logs", ops)
			},
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					s, o := open(t, srv), live(t, open(t, srv))
					_, err := znodes.Create(t.Context(), o, "/x", nil)
					must(t, err)
					lost := false
					srv.Intercept(func(r zktest.Request) zktest.Action {
						switch {
						case lost && c.codes[r.Op] != 0:
							return zktest.Fail(c.codes[r.Op])
						case !lost && r.Op == zktest.OpMulti:
							lost = true
							return c.lost
						}
						return zktest.Pass
					})
					_, err = apply(t.Context(), s.m, []any{&zk.SetDataRequest{Path: "/x", Version: -1}})
					srv.Intercept(nil)
					if err == nil || !strings.Contains(err.Error(), "may have been applied") || session.OutcomeOf(err) != session.Unknown || errors.Is(err, zk.ErrNoAuth) {
						t.Errorf("%v; its outcome is %v, want %v", err, session.OutcomeOf(err), session.Unknown)
					}
				})
			})
		}
	}
}

// A session may have an ACL that permits it to create, read and delete znodes, but not to write
// them.
func TestATransactionIsAppliedOnceThoughTheACLLeavesOutWriting(t *testing.T) {
	const perms = zk.PermRead | zk.PermCreate | zk.PermDelete
	user := conn.Auth{Scheme: "digest", Credentials: []byte("me:secret")}
	for name, f := range map[string]func(t *testing.T, srv *zktest.Server) *testSession{
		"world": func(t *testing.T, srv *zktest.Server) *testSession {
			return connectWith(t, srv.Addrs(), srv.Dial, zk.WorldACL(perms))
		},
		"digest": func(t *testing.T, srv *zktest.Server) *testSession {
			return connectWith(t, srv.Addrs(), srv.Dial, zk.DigestACL(perms, "me", "secret"), user)
		},
	} {
		for _, lost := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
			for kind, apply := range map[string]func(ctx context.Context, m *session.Manager, ops []any) ([]zk.MultiResponse, error){
				"within a session": Session,
				"across sessions": func(ctx context.Context, m *session.Manager, ops []any) ([]zk.MultiResponse, error) {
					return Across(ctx, m, "/logs", ops)
				},
			} {
				t.Run(fmt.Sprintf("%s, %s, %v", name, kind, lost), func(t *testing.T) {
					bubble(t, func(t *testing.T, srv *zktest.Server) {
						s, o := f(t, srv), live(t, open(t, srv))
						_, err := znodes.Create(t.Context(), o, "/x", nil)
						must(t, err)
						me, multis := s.ID(), 0
						srv.Intercept(func(r zktest.Request) zktest.Action {
							if r.Session == me && r.Op == zktest.OpMulti {
								if multis++; multis == 1 {
									return lost
								}
							}
							return zktest.Pass
						})
						_, err = apply(t.Context(), s.m, []any{&zk.SetDataRequest{Path: "/x", Version: 0}})
						must(t, err)
						if stat, err := o.Exists(t.Context(), "/x"); err != nil || stat.Version != 1 || multis != 2 {
							t.Errorf("written %d times, %v, in %d attempts", stat.Version, err, multis)
						}
					})
				})
			}
		}
	}
}

// The log has the session's ACL, unless that lets a client create the log but not write it.
func TestALogCanBeWrittenByAClientThatCanMakeIt(t *testing.T) {
	admin := zk.ACL{Scheme: "digest", ID: "admin:x", Perms: zk.PermAll}
	world := func(perms int32) zk.ACL { return zk.ACL{Scheme: "world", ID: "anyone", Perms: perms} }
	me := zk.ACL{Scheme: "auth", Perms: zk.PermWrite}
	for _, c := range []struct {
		given, want []zk.ACL
		auths       []conn.Auth
	}{
		{given: []zk.ACL{world(zk.PermAll)}, want: []zk.ACL{world(zk.PermAll)}},
		{given: []zk.ACL{admin, world(zk.PermRead)}, want: []zk.ACL{admin, world(zk.PermRead)}},
		{given: []zk.ACL{admin, world(zk.PermCreate)}, want: []zk.ACL{admin, world(zk.PermCreate | zk.PermWrite)}},
		{given: []zk.ACL{admin, world(zk.PermCreate)}, want: []zk.ACL{admin, world(zk.PermCreate), me}, auths: make([]conn.Auth, 1)},
	} {
		given := slices.Clone(c.given)
		if got := logACL(session.Config{ACL: c.given, Auths: c.auths}); !slices.Equal(got, c.want) || !slices.Equal(c.given, given) {
			t.Errorf("%v: %v, want %v", given, got, c.want)
		}
	}
}

// The create of a log has no reply, so another log is used. The first may be there, and is
// deleted when its create can no longer arrive, or when the session is closed.
func TestALogWhoseCreateHadNoReplyIsNotLeft(t *testing.T) {
	for _, soon := range []bool{true, false} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, o := open(t, srv), open(t, srv)
			me, lost := s.ID(), 0
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Session == me && r.Op == zktest.OpCreate && strings.HasPrefix(r.Path, "/logs/") {
					if lost++; lost == 1 {
						return zktest.DropReply
					}
				}
				return zktest.Pass
			})
			must(t, znodes.MakeDir(t.Context(), live(t, s), znodes.Dir{Path: "/logs"}))
			_, err := Across(t.Context(), s.m, "/logs", []any{&zk.CreateRequest{Path: "/x", Acl: zk.WorldACL(zk.PermAll)}})
			must(t, err)
			if n := len(childrenOf(t, o, "/logs")); n != 2 || lost != 2 {
				t.Fatalf("%d logs, %d creates", n, lost)
			}
			want := 1 // the used log is kept for the next transaction
			if soon {
				s.m.Close()
				want = 0
			} else {
				time.Sleep(3 * testTimeout)
			}
			if names := childrenOf(t, o, "/logs"); len(names) != want {
				t.Errorf("%q are left", names)
			}
		})
	}
}

// The servers refuse the deletion of idle logs for a while: it is tried again, whether one log is idle or several are.
func TestIdleLogsAreDeletedThoughTheServersRefuseThatForAWhile(t *testing.T) {
	for _, n := range []int{1, 3} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, o := open(t, srv), open(t, srv)
			var delayed, refuse atomic.Bool
			refuse.Store(true)
			srv.Intercept(func(r zktest.Request) zktest.Action {
				switch {
				case r.Op == zktest.OpMulti && r.Ops[0].Op == zktest.OpSetData:
					if !delayed.Swap(true) {
						return zktest.Delay(time.Second) // so all transactions are answered at the same time
					}
				case refuse.Load() && (r.Op == zktest.OpDelete || r.Op == zktest.OpMulti) && r.Session == s.ID():
					return zktest.Fail(zktest.CodeNoAuth)
				}
				return zktest.Pass
			})
			must(t, znodes.MakeDir(t.Context(), live(t, s), znodes.Dir{Path: "/logs"}))
			applied := make(chan error, n)
			for i := range n {
				go func() {
					_, err := Across(t.Context(), s.m, "/logs", []any{&zk.CreateRequest{Path: fmt.Sprint("/x", i), Acl: zk.WorldACL(zk.PermAll)}})
					applied <- err
				}()
			}
			for range n {
				must(t, <-applied)
			}
			time.Sleep(IdleTime + time.Second)
			if left := len(childrenOf(t, o, "/logs")); left != n {
				t.Fatalf("%d logs, want %d: the test shows nothing", left, n)
			}
			refuse.Store(false)
			time.Sleep(time.Minute)
			if names := childrenOf(t, o, "/logs"); len(names) > 0 {
				t.Errorf("%q are left of %d", names, n)
			}
		})
	}
}

// A transaction waits for a connection, and its session ends: nothing was sent, so it belongs to the next session, whether
// it has a log already or not.
func TestATransactionThatWaitsForAConnectionOutlivesItsSession(t *testing.T) {
	for _, before := range []int{0, 1} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			for i := range before {
				_, err := Session(t.Context(), s.m, []any{&zk.CreateRequest{Path: fmt.Sprint("/", i)}})
				must(t, err)
			}
			me := s.ID()
			srv.Stop()
			time.Sleep(time.Second)
			time.AfterFunc(2*testTimeout, srv.Restart)
			_, err := Session(t.Context(), s.m, []any{&zk.CreateRequest{Path: "/x"}})
			if names := childrenOf(t, s, "/"); err != nil || !slices.Contains(names, "x") || s.ID() == me {
				t.Errorf("%d before: %v; %q; the session is the same: %v", before, err, names, s.ID() == me)
			}
		})
	}
}

func TestATransactionThatWasNeverSentLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		srv.Stop()
		synctest.Wait()
		before := harness.Goroutines()
		for name, apply := range map[string]func(ctx context.Context) error{
			"within a session": func(ctx context.Context) error {
				_, err := Session(ctx, s.m, []any{&zk.CreateRequest{Path: "/x"}})
				return err
			},
			"across sessions": func(ctx context.Context) error {
				_, err := Across(ctx, s.m, "/logs", []any{&zk.CreateRequest{Path: "/x"}})
				return err
			},
		} {
			wantErr(t, apply(harness.Within(t, time.Millisecond)), context.DeadlineExceeded)
			if synctest.Wait(); harness.Goroutines() > before {
				t.Errorf("%s: it leaves %d goroutines", name, harness.Goroutines()-before)
			}
		}
		srv.Restart()
	})
}

// The servers refuse to write the log of a transaction, because a quota is exceeded: they would refuse each other log, too.
func TestATransactionWhoseLogExceedsAQuotaFails(t *testing.T) {
	for _, across := range []bool{true, false} {
		made, left, quota := 0, 0, wire.Code(zktest.CodeQuotaExceeded)
		p := &pool{m: new(session.Manager), across: across, client: client{
			attemptCreate: func(context.Context, *session.Incarnation, string, []byte, int32, []zk.ACL) (bool, error) {
				if made, left = made+1, left+1; made > 9 {
					return false, zk.ErrInvalidACL // ends the test
				}
				return false, nil
			},
			attemptMulti: func(_ context.Context, _ *session.Incarnation, ops []any) ([]zk.MultiResponse, bool, error) {
				return []zk.MultiResponse{{Error: quota}, {Error: wire.Code(-2)}}, false, quota
			},
			vet:  func(context.Context, *session.Incarnation, znodes.Dir) error { return nil },
			drop: func(*pool, *session.Incarnation, *log, bool) { left-- },
		}}
		x := &transaction{pool: p, dirs: []string{"/logs"}, ops: []any{&zk.CheckVersionRequest{Path: "/x", Version: -1}}}
		_, err := x.apply(t.Context(), func(f func(*session.Incarnation) error) error { return f(nil) })
		if err != quota || left != 0 {
			t.Errorf("across sessions: %v: %v after %d logs, of which %d are left", across, err, made, left)
		}
	}
}

// The largest transaction that is accepted fits into a request, however often its log was used.
func TestATransactionThatIsNotTooLargeIsApplied(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		must(t, znodes.MakeDir(t.Context(), live(t, s), znodes.Dir{Path: "/logs"}))
		store := func(n int) error {
			_, err := Across(harness.Within(t, time.Minute), s.m, "/logs", []any{&zk.SetDataRequest{Path: "/logs", Data: make([]byte, n), Version: -1}})
			return err
		}
		n := 1 << 20
		for errors.Is(store(n), session.ErrTooLarge) {
			n--
		}
		for range 10 {
			must(t, store(0))
		}
		must(t, store(n))
	})
}

// The servers permit no log, and are overloaded: they do not execute the transaction. Its session ends before the next
// attempt, so the transaction belongs to the next session.
func TestATransactionWithoutALogGoesOnInTheNextSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := &testSession{sessiontest.Open(t, srv.Addrs(), srv.Dial, func(cfg *session.Config) {
			cfg.Retry = session.RetryPolicy{Min: time.Second, Max: time.Second, Factor: 1}
		})}
		me := s.ID()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpCreate && strings.HasPrefix(r.Path, "/_c_"):
				return zktest.Fail(zktest.CodeNoAuth)
			case r.Op == zktest.OpMulti && r.Session == me:
				time.AfterFunc(time.Millisecond, func() { srv.Expire(me) })
				return zktest.Fail(zktest.CodeThrottled)
			}
			return zktest.Pass
		})
		_, err := Session(t.Context(), s.m, []any{&zk.CreateRequest{Path: "/x"}})
		must(t, err)
		if names := childrenOf(t, s, "/"); !slices.Contains(names, "x") || s.ID() == me {
			t.Errorf("%q; the session is the same: %v", names, s.ID() == me)
		}
	})
}
