package znodes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

// What abandoned creates have made, or have not, whose connection was lost, is looked
// for in one round trip; and one directory that may not be listed holds up no other.
func TestWhatAbandonedCreatesHaveMadeIsLookedForTogether(t *testing.T) {
	const dirs, each = 5, 40
	for _, name := range []string{"made", "not made"} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				ours, theirs := open(t, srv), open(t, srv)
				inc, other := live(t, ours), live(t, theirs)
				dir := func(i int) string { return fmt.Sprintf("/d/%d", i%dirs) }
				for i := range dirs {
					harness.Must(t, MakeDir(t.Context(), inc, Dir{Path: dir(i)}))
				}
				var quiet, refuse atomic.Bool
				if name == "made" {
					srv.SetLatency(time.Second) // what is made is answered later than the connection lasts
				} else {
					quiet.Store(true)
				}
				refuse.Store(true)
				var syncs, listings, deletions atomic.Int32
				me := ours.SessionID()
				srv.Intercept(func(r zktest.Request) zktest.Action {
					switch {
					case r.Session != me || r.Op == zktest.OpConnect:
					case quiet.Load():
						return zktest.Hang
					case r.Op == zktest.OpSync && r.Path != "/": // and not that with which a connection begins
						syncs.Add(1)
						return zktest.Delay(time.Millisecond) // so that all have failed with the connection before it is over
					case r.Op == zktest.OpDelete && !strings.HasSuffix(r.Path, "/none"): // and not the write ahead of a search
						deletions.Add(1)
					case r.Op == zktest.OpGetChildren2:
						listings.Add(1)
						if refuse.Load() && r.Path == dir(0) {
							return zktest.Fail(zktest.CodeNoAuth)
						}
					}
					return zktest.Pass
				})
				left := make(chan error, dirs*each)
				for i := range dirs * each {
					go func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
						defer cancel()
						guid := NewGUID()
						err := CreateEphemeral(ctx, inc, numbered(dir(i), guid))
						left <- err
					}()
				}
				for range dirs * each {
					harness.WantErr(t, <-left, context.DeadlineExceeded)
				}
				if name == "made" {
					srv.SetLatency(0)
					for i := range dirs {
						names, _, err := other.Children(t.Context(), dir(i))
						harness.Must(t, err)
						if len(names) != each {
							t.Errorf("%d of %d were made in %s", len(names), each, dir(i))
						}
					}
				}
				quiet.Store(false)
				srv.Disconnect(me)
				time.Sleep(4 * time.Millisecond) // what was refused is tried again later than that
				// The first search may begin before the last have failed, and the second has all those.
				if n := syncs.Load(); n < 1 || n > 2 || listings.Load() > dirs*n {
					t.Errorf("%d syncs, %d listings of %d directories; want one or two syncs, each with a listing of a directory", n, listings.Load(), dirs)
				}
				for i := 1; i < dirs; i++ {
					if names, _, err := other.Children(t.Context(), dir(i)); len(names) != 0 || err != nil && !session.IsNoNode(err) {
						t.Errorf("%s: %d are left, %v", dir(i), len(names), err)
					}
				}
				time.Sleep(time.Second)
				if n := syncs.Load(); n > 20 {
					t.Errorf("%d syncs while one directory may not be listed", n)
				}
				refuse.Store(false)
				time.Sleep(harness.Timeout / 2)
				if names, _, err := other.Children(t.Context(), dir(0)); len(names) != 0 || err != nil && !session.IsNoNode(err) {
					t.Errorf("%s: %d are left, %v", dir(0), len(names), err)
				}
				want := int32(dirs * each)
				if name == "not made" {
					want = 0
				}
				if deletions.Load() != want {
					t.Errorf("%d deletions, want %d", deletions.Load(), want)
				}
				if inc.Ctx.Err() != nil {
					t.Errorf("the session ended: %v", context.Cause(inc.Ctx))
				}
			})
		})
	}
}

// A leader answers a sync of its own client at once, before what it has taken from the session
// through another server is committed. So what an unanswered create has made is looked for
// behind a write, which it answers in its turn.
func TestWhatAnUnansweredCreateHasMadeIsLookedForBehindAWrite(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		inc := live(t, open(t, srv))
		var mu sync.Mutex
		var after []zktest.Op // the create whose reply is lost
		lost := false
		srv.Intercept(func(r zktest.Request) zktest.Action {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case r.Op == zktest.OpPing, r.Op == zktest.OpConnect:
			case !lost && strings.Contains(r.Path, "x-"):
				lost = true
				return zktest.DropReply
			case lost:
				after = append(after, r.Op)
			}
			return zktest.Pass
		})
		guid := NewGUID()
		err := CreateEphemeral(t.Context(), inc, numbered("/d", guid))
		harness.Must(t, err)
		mu.Lock()
		defer mu.Unlock()
		write, list := slices.Index(after, zktest.OpDelete), slices.Index(after, zktest.OpGetChildren2)
		if write < 0 || list < write {
			t.Errorf("behind the lost reply: %v; want a write, and then a listing", after)
		}
	})
}

// A server that is overloaded refuses one request and answers the next. A listing proves nothing
// if the write or the sync ahead of it was not carried out.
func TestASearchForAnAbandonedCreateIsRepeatedIfTheServerRefusesWhatComesAheadOfTheListing(t *testing.T) {
	for _, refused := range []zktest.Op{zktest.OpDelete, zktest.OpSync} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			inc := live(t, s)
			harness.Must(t, MakeDir(t.Context(), inc, Dir{Path: "/d"}))
			var lists atomic.Int32
			var quiet, once atomic.Bool
			quiet.Store(true)
			me := s.SessionID()
			srv.Intercept(func(r zktest.Request) zktest.Action {
				switch {
				case quiet.Load():
					return zktest.Hang
				case r.Op == refused && r.Path != "/" && !once.Swap(true):
					return zktest.Fail(wire.CodeThrottled)
				case r.Op == zktest.OpGetChildren2 && r.Path == "/d":
					lists.Add(1)
				}
				return zktest.Pass
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			c := numbered("/d", NewGUID())
			harness.WantErr(t, CreateEphemeral(ctx, inc, c), context.DeadlineExceeded)
			quiet.Store(false)
			srv.Disconnect(me)
			<-c.Undo.Done
			if c.Undo.Err != nil || lists.Load() != 2 {
				t.Errorf("%v refused: %d listings, %v; want 2, and success", refused, lists.Load(), c.Undo.Err)
			}
		})
	}
}

// Creates whose replies are lost together are looked for together, and each caller finds its own. A
// caller that leaves during the search leaves no znode behind.
func TestCreatesWhoseRepliesAreLostTogetherAreLookedForTogether(t *testing.T) {
	const n = 50
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc, other := live(t, s), live(t, open(t, srv))
		harness.Must(t, MakeDir(t.Context(), inc, Dir{Path: "/d"}))
		var creates, searches, listings atomic.Int32
		me := s.SessionID()
		srv.SetLatency(time.Second) // what is made is answered later than the connection lasts
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session != me:
			case r.Op == zktest.OpCreate:
				creates.Add(1)
			case r.Op == zktest.OpSync && r.Path != "/":
				searches.Add(1)
				return zktest.Delay(10 * time.Millisecond)
			case r.Op == zktest.OpGetChildren2:
				listings.Add(1)
			}
			return zktest.Pass
		})
		made := make(chan string, n)
		leaving, leave := context.WithCancel(t.Context())
		for i := range n {
			go func() {
				ctx := t.Context()
				if i == 0 {
					ctx = leaving
				}
				c := numbered("/d", NewGUID())
				err := CreateEphemeral(ctx, inc, c)
				if i == 0 && errors.Is(err, context.Canceled) {
					<-c.Undo.Done
				} else if i == 0 || err != nil {
					t.Errorf("creation %d: %v", i, err)
				}
				if i == 0 {
					c.Path = ""
				}
				made <- c.Path
			}()
		}
		time.Sleep(500 * time.Millisecond) // all are made, and none is answered
		srv.SetLatency(0)
		srv.Disconnect(me)
		time.Sleep(5 * time.Millisecond) // the search is under way
		leave()
		found := make(map[string]bool)
		for range n {
			if path := <-made; path != "" {
				found[path] = true
			}
		}
		names, _, err := other.Children(t.Context(), "/d")
		if err != nil || len(found) != n-1 || len(names) != n-1 || creates.Load() != n {
			t.Errorf("%d were found of %d, %d creates, %v; want %d, each created once", len(found), len(names), creates.Load(), err, n-1)
		}
		if n := searches.Load(); n < 1 || n > 4 || listings.Load() > 4 {
			t.Errorf("%d searches, %d listings; want one or two for all, and the same for the one that has left", searches.Load(), listings.Load())
		}
	})
}

// A broken server answers the listing of a search, and then the connection ends: the write and the
// sync have no reply. The listing proves nothing, so the batch counts as unanswered, and the whole search is repeated.
func TestASearchWhoseListingIsAnsweredAheadOfItsWriteIsRepeated(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		inc := live(t, open(t, srv))
		b := new(session.Requests)
		write, sync, listed := session.Add(b, inc.Flush()), session.Add(b, session.SyncCall("/none")), session.Add(b, session.ChildrenCall("/d"))
		listed.Reply(0, make([]byte, 4+wire.StatSize)) // no children
		listed.Finish()
		over := harness.Async(func() error { return b.Wait(t.Context(), inc) })
		synctest.Wait()
		if len(over) > 0 {
			t.Error("the listing alone has ended the search")
		}
		write.Fail(zk.ErrConnectionClosed)
		sync.Fail(zk.ErrConnectionClosed)
		if err := <-over; session.OutcomeOf(err) != session.Unknown {
			t.Errorf("%v, so the search is not repeated", err)
		}

		harness.Must(t, MakeDir(t.Context(), inc, Dir{Path: "/d"}))
		guid := NewGUID()
		c := numbered("/d", guid)
		harness.Must(t, CreateEphemeral(t.Context(), inc, c))
		writes := 0
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpDelete && r.Path == inc.Flush().Path {
				if writes++; writes == 1 {
					return zktest.DropReply
				}
			}
			return zktest.Pass
		})
		d := prepare(inc, &Deletion{Paths: []string{ChildPath("/d", guid)}, guid: guid})
		d.again(0)
		<-d.Done
		if stat, err := inc.Exists(t.Context(), c.Path); stat != nil || err != nil || d.Err != nil || writes != 2 {
			t.Errorf("after %d searches, the znode is there: %v; %v, %v", writes, stat != nil, err, d.Err)
		}
	})
}
