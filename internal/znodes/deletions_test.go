package znodes

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/zktest"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
)

func TestDeletionsThatWaitForAConnectionCostOneGoroutineAndGoInOnePieceWhenThereIsOne(t *testing.T) {
	const n = 500
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		paths := make([]string, n)
		for i := range paths {
			paths[i] = fmt.Sprintf("/d/%d", i)
			if err := CreateEphemeral(t.Context(), inc, ours(paths[i], nil)); err != nil {
				t.Fatal(err)
			}
		}
		srv.Stop()
		synctest.Wait()
		before := runtime.NumGoroutine()
		told := 0 // by one goroutine
		ds := make([]*Deletion, n)
		for i, path := range paths {
			ds[i] = Delete(inc, &Deletion{Paths: []string{path}, Then: func() { told++ }})
		}
		synctest.Wait()
		if more := runtime.NumGoroutine() - before; more > 1 {
			t.Errorf("%d deletions cost %d goroutines, want 1", n, more)
		}
		srv.Restart()
		for i, r := range ds {
			select {
			case <-r.Done:
			case <-time.After(time.Minute):
				t.Fatalf("%s was not deleted", paths[i])
			}
			if r.Err != nil {
				t.Errorf("%s: %v", paths[i], r.Err)
			}
		}
		if told != n {
			t.Errorf("%d were told, want %d", told, n)
		}
		for _, path := range paths {
			if stat, err := inc.Exists(t.Context(), path); stat != nil || err != nil {
				t.Errorf("%s is there still, %v", path, err)
			}
		}
		synctest.Wait()
		if backlogOf(inc).working {
			t.Error("the queue runs though nothing waits")
		}
	})
}

// One that is refused keeps nobody waiting, and none of those that are answered is
// sent again.
func TestADeletionThatIsRefusedHoldsUpNoOther(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		for _, path := range []string{"/a", "/b"} {
			if err := CreateEphemeral(t.Context(), inc, ours(path, nil)); err != nil {
				t.Fatal(err)
			}
		}
		var allowed atomic.Bool
		var sent atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op != zktest.OpDelete || r.Path != "/a" {
				return zktest.Pass
			}
			sent.Add(1)
			if allowed.Load() {
				return zktest.Pass
			}
			return zktest.Fail(zktest.CodeNoAuth)
		})
		a, b := Remove(inc, "/a"), Remove(inc, "/b")
		select {
		case <-b.Done:
		case <-time.After(session.Grace):
			t.Fatal("it waits for one that is refused")
		}
		select {
		case <-a.Refused.Done():
		case <-time.After(session.Grace):
			t.Fatal("nobody was told of the refusal")
		}
		if !session.IsAnswer(a.Refused.Cause(), zk.ErrNoAuth) || session.IsClosed(a.Done) {
			t.Errorf("refusal %v, done %v; want NoAuth and not yet", a.Refused.Cause(), session.IsClosed(a.Done))
		}
		time.Sleep(2 * inc.Manager.Config.Retry.Delay(1))
		allowed.Store(true)
		select {
		case <-a.Done:
		case <-time.After(time.Minute):
			t.Fatal("it was given up")
		}
		if a.Err != nil || sent.Load() < 2 {
			t.Errorf("%d attempts, %v; want several, and success", sent.Load(), a.Err)
		}
	})
}

// The reply is lost, and the repetition finds nothing: that was us.
func TestADeletionWhoseReplyIsLostIsOursWhenItIsGone(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		if err := CreateEphemeral(t.Context(), inc, ours("/a", nil)); err != nil {
			t.Fatal(err)
		}
		var sent atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op != zktest.OpDelete || r.Path != "/a" {
				return zktest.Pass
			}
			if sent.Add(1) == 1 {
				return zktest.DropReply
			}
			return zktest.Pass
		})
		r := Remove(inc, "/a")
		<-r.Done
		if r.Err != nil || sent.Load() != 2 {
			t.Errorf("%d attempts, %v; want 2, and success", sent.Load(), r.Err)
		}
		if err := r.Result(); err != nil {
			t.Errorf("it was ours: %v", err)
		}
		r = Remove(inc, "/a")
		<-r.Done
		if !session.IsNoNode(r.Err) {
			t.Errorf("what is not there: %v, want NoNode", r.Err)
		}
	})
}

// A deletion may have been applied though its reply is lost. What another has made
// there since is not deleted by the repetition.
func TestADeletionWhoseReplyIsLostSparesWhatAnotherMakesThereNext(t *testing.T) {
	ways := map[string]func(t *testing.T, inc *session.Incarnation) error{
		"own":     func(t *testing.T, inc *session.Incarnation) error { return RemoveOwn(inc, "/a", "") },
		"by data": func(t *testing.T, inc *session.Incarnation) error { return RemoveOwn(inc, "/a", "mine") },
	}
	for name, remove := range ways {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				inc, other := live(t, open(t, srv)), live(t, open(t, srv))
				if err := CreateEphemeral(t.Context(), inc, ours("/a", []byte("mine"))); err != nil {
					t.Fatal(err)
				}
				var sent atomic.Int32
				made := make(chan error, 1)
				srv.Intercept(func(r zktest.Request) zktest.Action {
					switch {
					case r.Op == zktest.OpDelete && r.Path == "/a" && sent.Add(1) == 1:
						go func() {
							time.Sleep(100 * time.Millisecond) // it is deleted by now
							err := CreateEphemeral(t.Context(), other, ours("/a", []byte("another's")))
							made <- err
						}()
						return zktest.DropReply
					case r.Op == zktest.OpConnect && sent.Load() == 1:
						return zktest.Delay(time.Second) // the other is quicker
					}
					return zktest.Pass
				})
				if err := remove(t, inc); err != nil && !session.IsNoNode(err) {
					t.Error(err)
				}
				if err := <-made; err != nil {
					t.Error(err)
				}
				if data, _, err := other.Get(t.Context(), "/a"); string(data) != "another's" || err != nil {
					t.Errorf("there is %q, %v", data, err)
				}
				if n := sent.Load(); n != 1 {
					t.Errorf("%d deletions, want 1", n)
				}
			})
		})
	}
}

// Deletions that are refused are tried again at times of their own. However many wait they
// are looked at together: a look is at all of them.
func TestManyDeletionsThatAreRefusedAreLookedAtTogether(t *testing.T) {
	const n = 5000
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		inc := live(t, open(t, srv))
		var last atomic.Pointer[time.Time]
		var sent, times atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op != zktest.OpDelete || !strings.HasPrefix(r.Path, "/d/") {
				return zktest.Pass
			}
			sent.Add(1)
			if now := time.Now(); last.Load() == nil || !last.Load().Equal(now) {
				last.Store(&now)
				times.Add(1)
			}
			return zktest.Fail(zktest.CodeNotEmpty)
		})
		var ds []*Deletion
		for i := range n {
			ds = append(ds, Remove(inc, fmt.Sprintf("/d/%d", i)))
		}
		time.Sleep(time.Second)
		if s, at := sent.Load(), times.Load(); s < 2*n || at > 300 {
			t.Errorf("%d attempts in a second at %d times; want at least %d, at 200 times or so", s, at, 2*n)
		}
		srv.Intercept(nil)
		for _, r := range ds {
			<-r.Done
		}
	})
}
