package znodes

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

// A server that has put the sync aside may show what was before the create.
func TestAListingWhoseSyncWasNotCarriedOutIsNotBelieved(t *testing.T) {
	for _, code := range []int32{zktest.CodeThrottled, -7, -4} { // as do those that do not know: OperationTimeout, ConnectionLoss
		harness.VirtualTime(t, func(t *testing.T) {
			srv := zktest.Start(t, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2"))
			dialTo := func(addr string) func(*session.Config) {
				return func(c *session.Config) {
					c.Dialer = func(network, _ string, limit time.Duration) (net.Conn, error) { return srv.Dial(network, addr, limit) }
				}
			}
			ours, theirs := open(t, srv, dialTo(srv.Addrs()[1])), open(t, srv, dialTo(srv.Addrs()[0]))
			inc, admin := live(t, ours), live(t, theirs)
			harness.Must(t, MakeDir(t.Context(), admin, Dir{Path: "/d"}))
			harness.Must(t, inc.Sync(t.Context(), "/d"))
			srv.Freeze(srv.Addrs()[1])
			guid := NewGUID()
			err := CreateEphemeral(t.Context(), admin, numbered("/d", guid))
			harness.Must(t, err)
			var refused atomic.Int32
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpSync && r.Session == ours.SessionID() && refused.Add(1) <= 3 {
					return zktest.Fail(code)
				}
				return zktest.Pass
			})
			path, err := Find(t.Context(), inc, "/d", guid)
			if err != nil || path == "" {
				t.Errorf("code %d: found %q, %v, of what is there", code, path, err)
			}
		})
	}
}

// What may have been made, and may neither be read nor be found, goes with the
// session as what may not be deleted does.
func TestWhatMayNotBeFoundGoesWithItsSession(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		ours, theirs := open(t, srv), open(t, srv)
		inc, me := live(t, ours), ours.SessionID()
		harness.Must(t, MakeDir(t.Context(), inc, Dir{Path: "/d"}))
		var lost atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session != me:
			case r.Op == zktest.OpCreate && lost.CompareAndSwap(false, true):
				return zktest.DropReply
			case r.Op == zktest.OpGetChildren2:
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		guid := NewGUID()
		c := numbered("/d", guid)
		c.List = true
		err := CreateEphemeral(t.Context(), inc, c)
		if !errors.Is(err, zk.ErrNoAuth) {
			t.Fatalf("%v", err)
		}
		if n := len(childrenOf(t, theirs, "/d")); n != 1 {
			t.Fatalf("%d were made", n)
		}
		time.Sleep(harness.Timeout + harness.Timeout/10 + time.Second)
		if n := len(childrenOf(t, theirs, "/d")); n != 0 {
			t.Errorf("it is there, and would be for as long as the session lives")
		}
		if !errors.Is(context.Cause(inc.Ctx), session.ErrLost) {
			t.Errorf("%v", context.Cause(inc.Ctx))
		}
	})
}

// The pace of attempts, which users choose, does not say how long others wait.
func TestWhatMayNotBeDeletedGoesWithItsSessionInTimeWhateverThePace(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv, func(c *session.Config) { c.Retry = session.RetryPolicy{Min: time.Hour, Max: time.Hour, Factor: 1} })
		inc, me := live(t, s), s.SessionID()
		c := numbered("/d", NewGUID())
		harness.Must(t, CreateEphemeral(t.Context(), inc, c))
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpDelete && r.Session == me {
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		start := time.Now()
		r := Remove(inc, c.Path)
		<-r.Done
		if took := time.Since(start); took != harness.Timeout || !errors.Is(r.Err, session.ErrEnded) {
			t.Errorf("%v after %v, want the session to be given up after %v", r.Err, took, harness.Timeout)
		}
	})
}

// The name of somebody's wish for a candidate holds that of the candidate. It is not
// taken for what a create without an answer has made, nor deleted in its place.
func TestFindIsNotMisledByANameThatHoldsAnother(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		inc := live(t, open(t, srv))
		guid := NewGUID()
		harness.Must(t, MakeDir(t.Context(), inc, Dir{Path: "/e"}))
		_, err := Create(t.Context(), inc, "/e/transfer-"+NewGUID()+"-"+ProtectedName(guid, ""), nil)
		harness.Must(t, err)
		for _, of := range []string{guid, ProtectedName(guid, "")} {
			if path, err := Find(t.Context(), inc, "/e", of); path != "" || err != nil {
				t.Errorf("found %q, %v, and nothing was made", path, err)
			}
		}
		mine := "/e/" + ProtectedName(guid, "lock-0000000001")
		_, err = Create(t.Context(), inc, mine, nil)
		harness.Must(t, err)
		for _, of := range []string{guid, ProtectedName(guid, "")} {
			if path, err := Find(t.Context(), inc, "/e", of); path != mine || err != nil {
				t.Errorf("found %q, %v; want %q", path, err, mine)
			}
		}
	})
}

// Whichever packet of a creation is lost, with its connection: the znodes are created once, and the
// reads behind them show them. If the caller leaves instead, none stays.
func TestACreationIsFoundOrUndoneWhicheverPacketIsLost(t *testing.T) {
	for name, creation := range map[string]func() *Creation{
		"numbered, listed": func() *Creation {
			c := numbered("/d/e", NewGUID())
			c.List = true
			return c
		},
		"numbered, read": func() *Creation {
			c := numbered("/d/e", NewGUID())
			c.Read = true
			return c
		},
		"two, listed": func() *Creation {
			return &Creation{Dir: Dir{Path: "/d/e"}, Paths: []string{"/d/e/" + NewGUID(), "/d/e/" + NewGUID()}, Holds: []*zk.CheckVersionRequest{{Path: "/d", Version: 0}}, Also: []string{"/none", "/d/e"}}
		},
		"shared": func() *Creation { return ours("/d/e/x", nil) },
	} {
		for way, action := range map[string]zktest.Action{"request": zktest.DropRequest, "reply": zktest.DropReply, "request, and the caller leaves": zktest.Hang, "reply, and the caller leaves": zktest.HangReply} {
			t.Run(name+"/"+way, func(t *testing.T) {
				for k, hit := 0, true; hit; k++ {
					hit = false
					harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
						s := open(t, srv)
						inc, me := live(t, s), s.SessionID()
						harness.Must(t, MakeDir(t.Context(), inc, Dir{Path: "/d/e"}))
						var mu sync.Mutex
						seen := 0
						srv.Intercept(func(r zktest.Request) zktest.Action {
							mu.Lock()
							defer mu.Unlock()
							if r.Session != me || r.Op == zktest.OpConnect || r.Op == zktest.OpPing || hit {
								return zktest.Pass
							}
							if seen++; seen <= k {
								return zktest.Pass
							}
							hit = true
							return action
						})
						ctx, cancel := context.WithTimeout(t.Context(), harness.Timeout/10)
						defer cancel()
						c := creation()
						err := CreateEphemeral(ctx, inc, c)
						want := len(c.Paths)
						switch {
						case err == nil:
							missing := len(c.Paths[1:]) > 0 && (len(c.Lists) != 2 || len(c.Lists[0]) != 0 || len(c.Lists[1]) != want)
							if c.Path == "" || c.List && !c.Roll.Has(BaseName(c.Path)) || c.Read && c.ReadErr == nil && c.Node.Stat.NumChildren != 1 || missing {
								t.Errorf("packet %d: path %q, listings %q, read %v, %v", k, c.Path, c.Lists, c.Node.Stat, c.ReadErr)
							}
						case errors.Is(err, context.DeadlineExceeded) && (action == zktest.Hang || action == zktest.HangReply):
							want = 0
						default:
							t.Errorf("packet %d: %v", k, err)
						}
						time.Sleep(2 * harness.Timeout)
						if names := childrenOf(t, s, "/d/e"); len(names) != want {
							t.Errorf("packet %d: %q, %v: want %d znodes", k, names, err, want)
						}
						if inc.Ctx.Err() != nil {
							t.Errorf("packet %d: the session ended: %v", k, context.Cause(inc.Ctx))
						}
					})
				}
			})
		}
	}
}

// The reply to a creation is lost. Before the client looks whose znode that is, another client deletes it, and may
// create its own.
func TestACreationIsMadeAgainIfItsZnodeIsDeletedBeforeItIsFound(t *testing.T) {
	for name, other := range map[string]bool{"deleted": false, "deleted, and created by another": true} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, rival := open(t, srv), open(t, srv)
				inc, me := live(t, s), s.SessionID()
				harness.Must(t, MakeDir(t.Context(), inc, Dir{Path: "/d"}))
				creator := live(t, rival)
				var creates, looks atomic.Int64
				srv.Intercept(func(r zktest.Request) zktest.Action {
					switch {
					case r.Session != me || r.Op == zktest.OpConnect || r.Op == zktest.OpPing:
					case creates.Add(1) == 1:
						return zktest.DropReply
					case r.Op == zktest.OpExists && looks.Add(1) == 1:
						harness.Must(t, RemoveNow(t.Context(), creator, "/d/x"))
						if other {
							harness.Must(t, CreateEphemeral(t.Context(), creator, ours("/d/x", nil)))
						}
					}
					return zktest.Pass
				})
				err := CreateEphemeral(t.Context(), inc, ours("/d/x", nil))
				srv.Intercept(nil)
				stat, e := inc.Exists(t.Context(), "/d/x")
				harness.Must(t, e)
				switch {
				case looks.Load() == 0:
					t.Error("the client did not look")
				case other && (!session.IsNodeExists(err) || stat == nil || stat.EphemeralOwner != rival.SessionID()):
					t.Errorf("another has created it, %+v: %v", stat, err)
				case !other && (err != nil || stat == nil || stat.EphemeralOwner != me):
					t.Errorf("none has created it, %+v: %v", stat, err)
				}
			})
		})
	}
}

// Another client deletes the znode and its parent before the listing. The znode is created again, and that reply is
// lost with the caller. The second znode must not stay.
func TestACreationThatIsMadeAgainIsUndoneThoughItsReplyIsLost(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, rival := open(t, srv), open(t, srv)
		inc, other, me := live(t, s), live(t, rival), s.SessionID()
		harness.Must(t, MakeDir(t.Context(), inc, Dir{Path: "/d"}))
		c := numbered("/d", NewGUID())
		c.List = true
		creates, listed := 0, false
		srv.Intercept(func(r zktest.Request) zktest.Action { // of one connection
			switch {
			case r.Session != me:
			case r.Op == zktest.OpCreate && r.Path == c.Paths[0]:
				if creates++; creates == 3 { // the second finds no parent
					return zktest.HangReply
				}
			case r.Op == zktest.OpGetChildren2 && !listed:
				listed = true
				for _, name := range childrenOf(t, rival, "/d") {
					harness.Must(t, RemoveNow(t.Context(), other, "/d/"+name))
				}
				harness.Must(t, RemoveNow(t.Context(), other, "/d"))
			}
			return zktest.Pass
		})
		harness.WantErr(t, CreateEphemeral(harness.Within(t, harness.Timeout/10), inc, c), context.DeadlineExceeded)
		time.Sleep(2 * harness.Timeout)
		if names := childrenOf(t, rival, "/d"); len(names) > 0 || inc.Ctx.Err() != nil {
			t.Errorf("%q stay; the session: %v", names, context.Cause(inc.Ctx))
		}
	})
}

// The caller leaves before the reply. The reply has the name of the znode, so no search is needed.
func TestACreationThatIsAnsweredLateIsUndoneByOneRequest(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		harness.Must(t, MakeDir(t.Context(), inc, Dir{Path: "/d"}))
		srv.SetLatency(10 * time.Millisecond)
		before := s.Requests.Load()
		harness.WantErr(t, CreateEphemeral(harness.Within(t, time.Millisecond), inc, numbered("/d", NewGUID())), context.DeadlineExceeded)
		time.Sleep(time.Second)
		if n := s.Requests.Load() - before; n != 2 {
			t.Errorf("%d requests, want a create and a delete", n)
		}
		if names := childrenOf(t, s, "/d"); len(names) > 0 {
			t.Errorf("%q stay", names)
		}
	})
}

// Everybody behind takes the name in the answer to a create for what was asked for.
func TestTheAnswerToACreateNamesWhatWasAskedFor(t *testing.T) {
	for _, c := range []struct {
		path  string
		flags int32
		made  string
		ok    bool
	}{
		{"/a/b", zk.FlagPersistent, "/a/b", true},
		{"/a/b", zk.FlagContainer, "/a/b", true},
		{"/a/b", zk.FlagEphemeral, "", false},
		{"/a/b", zk.FlagEphemeral, "/a/b0000000000", false},
		{"/a/b", zk.FlagEphemeral, "/a/c", false},
		{"/a/b-", zk.FlagEphemeralSequential, "/a/b-0000000007", true},
		{"/a/b-", zk.FlagEphemeralSequential, "/a/b--2147483648", true},
		{"/a/b-", zk.FlagSequence, "/a/b-", false},
		{"/a/b-", zk.FlagSequence, "", false},
		{"/a/b-", zk.FlagSequence, "/a/b-x", false},
		{"/a/b-", zk.FlagSequence, "/z/b-0000000007", false},
	} {
		inc := &session.Incarnation{Manager: &session.Manager{}}
		reply := wire.AppendString(nil, c.made)
		single := session.NewPending(createCall(inc, c.path, nil, c.flags))
		if _, ok := single.Reply(0, reply); ok != c.ok {
			t.Errorf("create of %s with flags %d, answered with %q: %v", c.path, c.flags, c.made, ok)
		}
		multi := session.NewPending(multiCall(inc, []any{&zk.CreateRequest{Path: c.path, Flags: c.flags}}, false))
		reply = append(append(append(words(wire.OpCreate), 0), words(0)...), reply...)
		reply = append(append(append(reply, words(-1)...), 1), words(-1)...)
		if _, ok := multi.Reply(0, reply); ok != c.ok {
			t.Errorf("transaction with a create of %s with flags %d, answered with %q: %v", c.path, c.flags, c.made, ok)
		}
	}
}

// numbered creates a child of dir that the servers give a number.
func numbered(dir, guid string) *Creation {
	return &Creation{Dir: Dir{Path: dir}, Paths: []string{ChildPath(dir, ProtectedName(guid, "x-"))}, GUID: guid}
}

// ours creates a znode whose name other sessions use, too.
func ours(path string, data []byte) *Creation {
	return &Creation{Dir: Dir{Path: ParentPath(path)}, Paths: []string{path}, Data: data, Shared: true}
}
