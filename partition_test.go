package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// owners keeps who runs a function for which shard.
type owners struct {
	t   *testing.T
	srv *zktest.Server
	mu  sync.Mutex
	of  map[string]owner // by shard
}

// An owner is a process, and the session by which it owns a shard.
type owner struct {
	id      string
	session int64
}

func newOwners(t *testing.T, srv *zktest.Server) *owners {
	return &owners{t: t, srv: srv, of: make(map[string]owner)}
}

// run is the function of a process, which ends at once with its ctx. Nobody may
// have begun before, unless a server has ended the session of its own accord.
func (o *owners) run(s *zsync.Session, id string) func(ctx context.Context, shard string) error {
	return func(ctx context.Context, shard string) error {
		me := owner{id, s.ID()}
		o.mu.Lock()
		if other, ok := o.of[shard]; ok && slices.Contains(o.srv.Sessions(), other.session) {
			o.t.Errorf("%v and %v own %q", other, me, shard)
		}
		o.of[shard] = me
		o.mu.Unlock()
		<-ctx.Done()
		o.mu.Lock()
		if o.of[shard] == me {
			delete(o.of, shard)
		}
		o.mu.Unlock()
		return nil
	}
}

func (o *owners) count() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := make(map[string]int)
	for _, owner := range o.of {
		n[owner.id]++
	}
	return n
}

func TestShardsAreSpreadAndMoveWhenProcessesComeAndGo(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		o := newOwners(t, srv)
		shards := []string{"a", "b", "c/d", "e", "f", ""}
		type process struct {
			s    *zsync.Session
			stop context.CancelFunc
			done <-chan error
		}
		start := func(id string) process {
			s := open(t, srv)
			ctx, stop := context.WithCancel(t.Context())
			return process{s, stop, async(func() error {
				return zsync.NewPartition(s, "/p", zsync.WithMember(id)).Run(ctx, shards, o.run(s, id))
			})}
		}
		want := func(want map[string]int) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := o.count(); !maps.Equal(got, want) {
				t.Fatalf("the shards are spread as %v, want %v", got, want)
			}
		}
		one := start("one")
		want(map[string]int{"one": 6})
		two := start("two")
		want(map[string]int{"one": 3, "two": 3})
		three := start("three")
		want(map[string]int{"one": 2, "two": 2, "three": 2})
		srv.Expire(two.s.ID())
		want(map[string]int{"one": 2, "two": 2, "three": 2})
		one.stop()
		wantErr(t, <-one.done, context.Canceled)
		want(map[string]int{"two": 3, "three": 3})
		two.s.Close()
		wantErr(t, <-two.done, zsync.ErrClosed)
		want(map[string]int{"three": 6})
		before := three.s.Stats().Requests
		time.Sleep(time.Hour)
		if n := three.s.Stats().Requests - before; n > 4*3600/2 { // what a held lock costs
			t.Errorf("an hour in which nothing changed cost %d requests", n)
		}
		three.stop()
		<-three.done
		two.stop()
	})
}

// Each function that begins is a shard that moves: those that stay where they are run
// on.
func TestFewShardsMoveWhenAProcessComesOrGoes(t *testing.T) {
	for _, n := range []int{1, 7, 23, 64} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			o := newOwners(t, srv)
			var shards []string
			for i := range n {
				shards = append(shards, fmt.Sprint("shard", i))
			}
			var begun atomic.Int64
			type process struct {
				id   string
				s    *zsync.Session
				stop context.CancelFunc
			}
			var there []process
			settle := func(what string, members int) {
				t.Helper()
				time.Sleep(time.Minute)
				synctest.Wait()
				if moved, most := begun.Swap(0), int64((n+members-1)/members+1); moved > most {
					t.Errorf("%d of %d shards moved when %s, of %d processes; want at most %d", moved, n, what, members, most)
				}
				owned, of := 0, o.count()
				for _, p := range there {
					if owned += of[p.id]; of[p.id] < n/len(there) || of[p.id] > (n+len(there)-1)/len(there) {
						t.Errorf("%d shards are spread as %v when %s", n, of, what)
					}
				}
				if owned != n && len(there) > 0 {
					t.Errorf("of %d shards are owned %v when %s", n, of, what)
				}
			}
			come := func(id string) {
				t.Helper()
				s := open(t, srv)
				ctx, stop := context.WithCancel(t.Context())
				f := o.run(s, id)
				done := async(func() error {
					return zsync.NewPartition(s, "/p", zsync.WithMember(id)).Run(ctx, shards, func(ctx context.Context, shard string) error {
						begun.Add(1)
						return f(ctx, shard)
					})
				})
				there = append(there, process{id, s, func() { stop(); <-done }})
				settle(id+" came", len(there))
			}
			for i := range 6 {
				come(fmt.Sprint("process", i))
			}
			for i := 0; len(there) > 0; i++ {
				p := there[i%len(there)]
				there = slices.DeleteFunc(there, func(q process) bool { return q.id == p.id })
				if i%2 == 1 { // it is cut off, and ends
					srv.Partition(p.s.ID())
				}
				p.stop()
				settle(p.id+" went", len(there)+1)
				if i == 1 {
					come("another")
				}
			}
		})
	}
}

func TestAFunctionThatFailsEndsRun(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		boom := errors.New("boom")
		running := 0
		var mu sync.Mutex
		err := zsync.NewPartition(s, "/p").Run(t.Context(), []string{"a", "b", "c"}, func(ctx context.Context, shard string) error {
			mu.Lock()
			running++
			mu.Unlock()
			defer func() {
				mu.Lock()
				running--
				mu.Unlock()
			}()
			if shard == "b" {
				time.Sleep(time.Minute)
				return boom
			}
			<-ctx.Done()
			return ctx.Err()
		})
		wantErr(t, err, boom)
		if running != 0 {
			t.Errorf("%d functions run still", running)
		}
		if left := childrenOf(t, s, "/p/members"); len(left) > 0 {
			t.Errorf("members %q are left", left)
		}
	})
}

func TestPartitionRefusesBadInput(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		f := func(context.Context, string) error { return nil }
		for _, p := range []*zsync.Partition{zsync.NewPartition(nil, "/p"), zsync.NewPartition(s, "p"), zsync.NewPartition(s, "/p", nil), zsync.NewPartition(s, "/p", zsync.WithMember("")), {}} {
			wantErr(t, p.Run(t.Context(), nil, f), zsync.ErrInvalid)
		}
		p := zsync.NewPartition(s, "/p")
		wantErr(t, p.Run(t.Context(), []string{"a"}, nil), zsync.ErrInvalid)
		wantErr(t, p.Run(t.Context(), []string{"a", "b", "a"}, f), zsync.ErrInvalid)
		wantErr(t, p.Run(t.Context(), []string{string(make([]byte, 3000))}, f), zsync.ErrInvalid)
	})
}

// A function is believed to be the owner until its context ends, and it ends at
// once then. Nobody else may have begun before.
func TestHammerNoShardHasTwoOwners(t *testing.T) {
	seeds(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		o := newOwners(t, srv)
		shards := []string{"a", "b", "c", "d", "e"}
		var wg sync.WaitGroup
		var sessions []*zsync.Session
		var stay []context.CancelFunc
		for process := range 3 {
			s := open(t, srv)
			sessions = append(sessions, s)
			r := rand.New(rand.NewPCG(rnd.Uint64(), 1))
			last, stop := context.WithCancel(t.Context())
			stay = append(stay, stop)
			wg.Go(func() {
				for n := range 3 {
					ctx := last
					if n < 2 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(last, time.Duration(1+r.IntN(40))*time.Second)
						defer cancel()
					}
					id := fmt.Sprint(process, ".", n)
					err := zsync.NewPartition(s, "/p", zsync.WithMember(id)).Run(ctx, shards, o.run(s, id))
					if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
						t.Errorf("Run = %v", err)
					}
				}
			})
		}
		until := make(chan struct{})
		ended := async(func() error { chaos(t, srv, rnd, sessions, until); return nil })
		time.Sleep(30 * time.Second)
		close(until)
		<-ended
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		for id, n := range o.count() {
			if n > 2 {
				t.Errorf("%s has %d of 5 shards, of 3 processes", id, n)
			}
		}
		if len(o.of) != len(shards) {
			t.Errorf("owned are %v", o.of)
		}
		for _, stop := range stay {
			stop()
		}
		wg.Wait()
	})
}

// A process that comes back under its name with fewer shards, as after a roll-out, finds
// in the plan what it named before.
func TestNoFunctionIsCalledForAShardThatRunDoesNotName(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		srv.SetLatency(10 * time.Millisecond)
		for _, shards := range [][]string{{"a", "b"}, {"b"}, {"a", "b", "c"}, {}} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			var mu sync.Mutex
			var ran []string
			err := zsync.NewPartition(s, "/p", zsync.WithMember("one")).Run(ctx, shards, func(ctx context.Context, shard string) error {
				mu.Lock()
				ran = append(ran, shard)
				mu.Unlock()
				if !slices.Contains(shards, shard) {
					return fmt.Errorf("%q is not known here", shard)
				}
				<-ctx.Done()
				return nil
			})
			cancel()
			wantErr(t, err, context.DeadlineExceeded)
			if slices.Sort(ran); !slices.Equal(ran, shards) {
				t.Errorf("of %q it ran %q", shards, ran)
			}
		}
	})
}

func TestPartitionTakesAnyOwner(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv, zsync.WithOwner(strings.Repeat("o", 2100)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := zsync.NewPartition(s, "/p").Run(ctx, []string{"a"}, func(ctx context.Context, shard string) error {
			cancel()
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %.200v", err)
		}
	})
}

func TestAPartitionsFunctionThatEndsItsGoroutineHasFailed(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var ended atomic.Bool
		err := zsync.NewPartition(s, "/p").Run(ctx, []string{"a", "b"}, func(ctx context.Context, shard string) error {
			if shard == "a" {
				time.Sleep(time.Minute)
				runtime.Goexit()
			}
			<-ctx.Done()
			ended.Store(true)
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), "Goexit") || !ended.Load() {
			t.Errorf("Run = %v; the other function has ended: %v", err, ended.Load())
		}
		if ok, err := zsync.NewMutex(s, "/p/shards/a").TryLock(t.Context()); !ok || err != nil {
			t.Errorf("the shard is still taken: %v, %v", ok, err)
		}
	})
}

// A function that is slow to end when its session is lost is not called beside itself: the
// plan gives its shard back to this process, and its lock is free, long before it returns.
func TestAShardsFunctionIsNotCalledBesideItselfInOneProcess(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		var mu sync.Mutex
		running, calls := make(map[string]int), 0
		f := func(ctx context.Context, shard string) error {
			mu.Lock()
			calls++
			if running[shard]++; running[shard] > 1 {
				t.Errorf("%d functions run for shard %s", running[shard], shard)
			}
			mu.Unlock()
			<-ctx.Done()
			time.Sleep(time.Minute) // it tidies up
			mu.Lock()
			running[shard]--
			mu.Unlock()
			return nil
		}
		ctx, stop := context.WithCancel(t.Context())
		done := async(func() error { return zsync.NewPartition(s, "/p").Run(ctx, []string{"a", "b"}, f) })
		time.Sleep(time.Second)
		for range 3 {
			srv.Expire(s.ID())
			time.Sleep(20 * time.Second)
		}
		// Another process comes and goes, so the plan changes meanwhile.
		others, leave := context.WithCancel(t.Context())
		there := async(func() error {
			return zsync.NewPartition(other, "/p").Run(others, []string{"a", "b"}, func(ctx context.Context, _ string) error { <-ctx.Done(); return nil })
		})
		time.Sleep(5 * time.Second)
		leave()
		wantErr(t, <-there, context.Canceled)
		time.Sleep(10 * time.Minute)
		mu.Lock()
		if calls < 4 || running["a"] != 1 || running["b"] != 1 {
			t.Errorf("%d calls; of each shard one function should run: %v", calls, running)
		}
		mu.Unlock()
		stop()
		wantErr(t, <-done, context.Canceled)
	})
}

func TestAProcessWithMoreShardsThanThereCanBeEndsNobodyElsesRun(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		hold := func(ctx context.Context, _ string) error { <-ctx.Done(); return context.Cause(ctx) }
		ctx, cancel := context.WithCancel(t.Context())
		ran := async(func() error { return zsync.NewPartition(s, "/p").Run(ctx, []string{"0", "1"}, hold) })
		time.Sleep(time.Second)
		var shards []string
		for i := range 20_000 {
			shards = append(shards, fmt.Sprint(i))
		}
		wantErr(t, zsync.NewPartition(other, "/p").Run(within(t, time.Minute), shards, hold), zsync.ErrTooLarge)
		time.Sleep(time.Second)
		pendingStill(t, ran)
		cancel()
		wantErr(t, <-ran, context.Canceled)
	})
}

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

func TestPartitionsRunEndsWithItsContextWhileTheServersAreSlow(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		ctx, cancel := context.WithCancel(t.Context())
		begun := make(chan struct{})
		done := async(func() error {
			return zsync.NewPartition(s, "/p").Run(ctx, []string{"a"}, func(ctx context.Context, _ string) error {
				close(begun)
				<-ctx.Done()
				return nil
			})
		})
		<-begun
		requestsOf(srv, s, func(int, zktest.Request) zktest.Action { return zktest.Delay(time.Second) })
		start := time.Now()
		cancel()
		wantErr(t, <-done, context.Canceled)
		if d := time.Since(start); d > 100*time.Millisecond {
			t.Errorf("Run took %v", d)
		}
	})
}
