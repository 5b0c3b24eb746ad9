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

	"github.com/zsync/zsync"
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
