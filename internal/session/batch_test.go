package session

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/zktest"
)

func TestTheRequestsOfABatchTakeOneRoundTripTogether(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		inc := live(t, open(t, srv))
		srv.SetLatency(10 * time.Millisecond)
		start := time.Now()
		b := new(Requests)
		synced := Add(b, SyncCall("/"))
		made := Add(b, createCall("/a", []byte("x"), zk.FlagPersistent))
		again := Add(b, createCall("/a", nil, zk.FlagContainer))
		txn := Add(b, txnCall([]any{
			&zk.SetDataRequest{Path: "/a", Data: []byte("y"), Version: 0},
			&zk.CreateRequest{Path: "/a/b-", Acl: zk.WorldACL(zk.PermAll), Flags: zk.FlagSequence},
		}))
		names, data, none := Add(b, ChildrenCall("/a")), Add(b, GetCall("/a")), Add(b, existsCall("/none"))
		must(t, b.Start(t.Context(), inc))
		must(t, b.Wait(t.Context(), inc))
		if d := time.Since(start); d != 10*time.Millisecond {
			t.Errorf("it took %v, want one round trip", d)
		}
		for _, err := range []error{synced.Err, made.Err, txn.Err, names.Err, data.Err} {
			must(t, err)
		}
		wantErr(t, again.Err, zk.ErrNodeExists)
		wantErr(t, none.Err, zk.ErrNoNode)
		// Each has seen what those before it did.
		if !slices.Equal(names.Val.Names, []string{"b-0000000000"}) || string(data.Val.Data) != "y" {
			t.Errorf("%v, %+v", names.Val.Names, data.Val)
		}
	})
}

// A connection that is replaced in the middle of a batch must not have the rest
// of it executed over the next one: it would be another server's answer, to a
// question that supposes what may not have happened.
func TestABatchIsNotContinuedOverTheNextConnection(t *testing.T) {
	for _, c := range []struct {
		name   string
		action zktest.Action
		second bool // the second create is executed
	}{
		{"the second request is lost", zktest.DropRequest, false},
		{"the second reply is lost", zktest.DropReply, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				inc := live(t, s)
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Path == "/b" && r.Op == zktest.OpCreate {
						return c.action
					}
					return zktest.Pass
				})
				b := new(Requests)
				first := Add(b, createCall("/a", nil, zk.FlagPersistent))
				Add(b, createCall("/b", nil, zk.FlagPersistent))
				third := Add(b, createCall("/c", nil, zk.FlagPersistent))
				must(t, b.Start(t.Context(), inc))
				if err := b.Wait(t.Context(), inc); OutcomeOf(err) != Unknown {
					t.Fatalf("error %v, want an unknown outcome", err)
				}
				srv.Intercept(nil)
				must(t, first.Err)
				if OutcomeOf(third.settle(t.Context(), inc)) != Unknown {
					t.Error(third.Err)
				}
				time.Sleep(time.Minute) // whatever is queued anywhere has been sent by now
				for path, want := range map[string]bool{"/a": true, "/b": c.second, "/c": false} {
					stat, err := inc.Exists(t.Context(), path)
					if must(t, err); (stat != nil) != want {
						t.Errorf("%s is there: %v, want %v", path, stat != nil, want)
					}
				}
			})
		})
	}
}

// What a server that has refused to catch up says of a znode may be long over.
func TestWhatWasReadBehindARefusedSyncIsNotBelieved(t *testing.T) {
	for code, again := range map[int32]bool{-127: true, -100: false} { // Throttled is tried again
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			inc := live(t, open(t, srv))
			syncs := 0
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpSync {
					if syncs++; syncs == 1 {
						return zktest.Fail(code)
					}
				}
				return zktest.Pass
			})
			_, _, err := inc.GetFresh(t.Context(), "/")
			if again {
				must(t, err)
			} else {
				wantErr(t, err, zk.ErrAPIError)
			}
			if again != (syncs == 2) {
				t.Errorf("code %d: %d syncs", code, syncs)
			}
		})
	}
}

func TestAReadInABatchSetsTheWatchThatSomebodyWaitsFor(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		inc := live(t, s)
		_, err := create(t.Context(), live(t, other), "/a", nil)
		must(t, err)
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: "/a"})
		defer inc.Watches.Leave(w)
		_, _, err = inc.GetFresh(t.Context(), "/a")
		must(t, err)
		if !inc.Watches.State(w).Armed {
			t.Fatal("not armed")
		}
		_, err = live(t, other).Set(t.Context(), "/a", nil, -1)
		must(t, err)
		must(t, AwaitIn(within(t, time.Second), inc, w.Fired))
	})
}

// Whatever becomes of the connection, whoever waits for a batch is told.
func TestABatchEndsWithItsConnectionWithItsContextAndWithItsSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpSync {
				return zktest.Hang
			}
			return zktest.Pass
		})
		begin := func(ctx context.Context) <-chan error {
			result := make(chan error, 1)
			go func() {
				b := new(Requests)
				Add(b, SyncCall("/"))
				Add(b, existsCall("/"))
				err := b.Start(ctx, inc)
				if err == nil {
					err = b.Wait(ctx, inc)
				}
				result <- err
			}()
			synctest.Wait()
			return result
		}
		ctx, cancel := context.WithCancel(t.Context())
		left := begin(ctx)
		cancel()
		wantErr(t, <-left, context.Canceled)
		// A connection that does not answer is given up.
		start := time.Now()
		if err := <-begin(t.Context()); OutcomeOf(err) != Unknown {
			t.Errorf("error %v, want an unknown outcome", err)
		}
		if d := time.Since(start); d > testTimeout/2 {
			t.Errorf("after %v", d)
		}
		last := begin(t.Context())
		inc.Lose(LossExpired)
		wantErr(t, <-last, ErrEnded)
		srv.Intercept(nil)
		wantErr(t, new(Requests).Start(t.Context(), inc), ErrEnded)
	})
}
