package zsync_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// partake has a process take part in the Partition /p until the test ends.
func partake(t *testing.T, o *owners, s *zsync.Session, id string, shards []string) (done <-chan error) {
	ctx, stop := context.WithCancel(t.Context())
	done = async(func() error {
		return zsync.NewPartition(s, "/p", zsync.WithMember(id)).Run(ctx, shards, o.run(s, id))
	})
	t.Cleanup(stop)
	return done
}

// settled fails unless the shards are spread like that when all is quiet.
func (o *owners) settled(want map[string]int) {
	o.t.Helper()
	time.Sleep(time.Minute)
	synctest.Wait()
	if got := o.count(); !maps.Equal(got, want) {
		o.t.Errorf("the shards are spread as %v, want %v", got, want)
	}
}

// A process reads the members while one is there who is gone when it writes what it
// makes of them, and never hears of him: to its watch the group is what it was before.
func TestAPlanForAMemberWhoCameAndWentUnseenIsMadeAnew(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		o := newOwners(t, srv)
		shards := []string{"a", "b"}
		s := open(t, srv)
		partake(t, o, s, "m", shards)
		group := zsync.NewGroup[[]string](open(t, srv), "/p/members")
		x, err := group.Join(t.Context(), "x", nil) // has no shards, and only makes changes
		must(t, err)
		o.settled(map[string]int{"m": 2})

		var read, written atomic.Bool
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session != s.ID():
			case r.Op == zktest.OpSync && r.Path == "/p/members" && !read.Swap(true):
				return zktest.Delay(time.Second)
			case r.Op == zktest.OpMulti && !written.Swap(true):
				return zktest.Delay(5 * time.Second)
			}
			return zktest.Pass
		})
		must(t, x.Set(t.Context(), []string{"x's own"}))
		time.Sleep(500 * time.Millisecond)
		guest, err := group.Join(t.Context(), "guest", shards)
		must(t, err)
		time.Sleep(1500 * time.Millisecond)
		must(t, guest.Leave())
		o.settled(map[string]int{"m": 2})
		srv.Intercept(nil)
		must(t, x.Leave())
	})
}

func TestAPlanThatAStrangerHasWrittenIsMadeAnew(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		o := newOwners(t, srv)
		shards := []string{"a", "b", "c", "d"}
		partake(t, o, open(t, srv), "one", shards)
		partake(t, o, open(t, srv), "two", shards)
		even := map[string]int{"one": 2, "two": 2}
		o.settled(even)
		stranger := plain(t, srv)
		for _, plan := range []string{`{}`, ``, `x`, `{"owners":5}`, `{"owners":{"a":"nobody","e":"one"}}`, `{"owners":{"a":"one","b":"one","c":"one","d":"one"}}`} {
			_, err := stranger.Set("/p/plan", []byte(plan), -1)
			must(t, err)
			o.settled(even)
		}
		must(t, stranger.Delete("/p/plan", -1))
		partake(t, o, open(t, srv), "three", shards)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := o.count(); len(n) != 3 || n["one"]+n["two"]+n["three"] != 4 {
			t.Errorf("after the plan was deleted the shards are spread as %v", n)
		}
	})
}

// refuseMember has the servers refuse to make a member of the group after an expiry.
func refuseMember(srv *zktest.Server, path string) {
	srv.Intercept(func(r zktest.Request) zktest.Action {
		if r.Op == zktest.OpCreate && r.Path == path {
			return zktest.Fail(zktest.CodeNoAuth)
		}
		return zktest.Pass
	})
}

func TestRunEndsWhenItsMemberMayNotJoinAgain(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		o := newOwners(t, srv)
		shards := []string{"a", "b"}
		s := open(t, srv)
		done := partake(t, o, s, "one", shards)
		partake(t, o, open(t, srv), "two", shards)
		o.settled(map[string]int{"one": 1, "two": 1})
		refuseMember(srv, "/p/members/one")
		srv.Expire(s.ID())
		o.settled(map[string]int{"two": 2})
		select {
		case err := <-done:
			wantErr(t, err, zk.ErrNoAuth)
		default:
			t.Error("Run goes on as no member")
		}
	})
}

func TestSetOfAMemberWhoMayNotJoinAgainSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "one", "1")
		must(t, err)
		refuseMember(srv, "/g/one")
		srv.Expire(s.ID())
		time.Sleep(time.Minute)
		wantErr(t, m.Set(t.Context(), "2"), zk.ErrNoAuth)
		must(t, m.Leave())
		wantErr(t, m.Set(t.Context(), "3"), zsync.ErrNotLocked)
	})
}

func TestAMemberOfAnotherProgramDoesNotEndRun(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		o := newOwners(t, srv)
		s := open(t, srv)
		done := partake(t, o, s, "one", []string{"a"})
		o.settled(map[string]int{"one": 1})
		c := harness.Plain(t, srv)
		_, err := c.Create("/p/members/curator", []byte("10.0.0.1"), zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		must(t, err)
		// Its session ends, and it cannot come back for a while: then all who are
		// there are those whose info cannot be read.
		var away atomic.Bool
		away.Store(true)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if away.Load() && r.Op == zktest.OpCreate && r.Path == "/p/members/one" {
				return zktest.Fail(zktest.CodeSessionMoved)
			}
			return zktest.Pass
		})
		srv.Expire(s.ID())
		time.Sleep(5 * time.Second)
		_, err = c.Set("/p/members/curator", []byte("10.0.0.2"), -1)
		must(t, err)
		time.Sleep(5 * time.Second)
		away.Store(false)
		o.settled(map[string]int{"one": 1})
		pendingStill(t, done)
	})
}

// While it is cut off its znode is deleted, and another process that has waited for the
// id makes its own there. To a watch on the path the znode has only changed.
func TestAMemberWhoseZnodeIsAnothersWaitsForThat(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		first, err := zsync.NewGroup[string](a, "/g").Join(t.Context(), "id", "first")
		must(t, err)
		g := zsync.NewGroup[string](b, "/g")
		var second *zsync.Membership[string]
		joined := async(func() (err error) { second, err = g.Join(t.Context(), "id", "second"); return err })
		pendingStill(t, joined)
		stranger := plain(t, srv)
		id := a.ID()
		srv.Partition(id)
		must(t, stranger.Delete("/g/id", -1))
		must(t, <-joined)
		srv.Disconnect(id)
		srv.Heal(id)
		time.Sleep(time.Minute)
		if a.ID() != id {
			t.Fatal("the session has ended")
		}
		must(t, first.Set(t.Context(), "first again"))
		want := func(want string) {
			t.Helper()
			members, err := g.Members(t.Context())
			must(t, err)
			if got := rollCall(members); got != want {
				t.Errorf("the members are %q, want %q", got, want)
			}
		}
		want("id=second")
		must(t, second.Leave())
		time.Sleep(time.Second)
		want("id=first again")
		must(t, first.Leave())
		want("")
	})
}

// A member whose id no plan can name, and shards so named, are nobody's.
func TestAMemberWhoseIDIsNoTextHasThePlanStandStill(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		o := newOwners(t, srv)
		s := open(t, srv, zsync.WithOwner("caf\xe9"))
		partake(t, o, s, "one", []string{"a", "b"})
		alone := map[string]int{"one": 2}
		o.settled(alone)
		stranger := plain(t, srv)
		_, err := stranger.Create("/p/members/%FF", []byte(`["a","b"]`), zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		must(t, err)
		o.settled(alone)
		_, before, err := stranger.Get("/p/plan")
		must(t, err)
		time.Sleep(time.Minute)
		_, after, err := stranger.Get("/p/plan")
		if must(t, err); after.Version > before.Version {
			t.Errorf("the plan was written %d times in a minute", after.Version-before.Version)
		}
		run := func(p *zsync.Partition, shard string) error {
			return p.Run(within(t, time.Minute), []string{shard}, func(context.Context, string) error { return nil })
		}
		wantErr(t, run(zsync.NewPartition(s, "/p", zsync.WithMember("\xff")), "a"), zsync.ErrInvalid)
		wantErr(t, run(zsync.NewPartition(s, "/p"), "\xff"), zsync.ErrInvalid)
	})
}

// The list of each process fits into a plan, and both together do not. Then the one that has come later is
// refused, and the one that owns shards goes on.
func TestAProcessWhoseShardsDoNotFitBesideThoseOfOthersIsRefusedAndTheOthersGoOn(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		o := newOwners(t, srv)
		const long = 1500 // bytes of a name
		list := func(of string, n int) (shards []string) {
			for i := range n {
				shards = append(shards, fmt.Sprintf("%s%0*d", of, long, i))
			}
			return shards
		}
		first := partake(t, o, open(t, srv), "z", list("z", 400)) // 600 KB; its id is the last
		o.settled(map[string]int{"z": 400})
		err := <-partake(t, o, open(t, srv), "a", list("a", 400))
		wantErr(t, err, zsync.ErrTooLarge)
		if !strings.Contains(err.Error(), "400 shards") || !strings.Contains(err.Error(), "1 members before") {
			t.Errorf("%v; want how many shards and members", err)
		}
		partake(t, o, open(t, srv), "b", list("b", 100))
		o.settled(map[string]int{"z": 400, "b": 100})
		pendingStill(t, first)
	})
}
