package zsync

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/zktest"
)

func increment(n int) (int, error) { return n + 1, nil }

func TestValueIsStoredLoadedSwappedAndUpdated(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...Option) *Session) {
		ctx := within(t, 30*time.Second)
		s := connect()
		a, b := NewValue[int](s, "/deep/v"), NewValue[int](connect(), "/deep/v")
		_, none, err := a.Load(ctx)
		wantErr(t, err, ErrNoValue)
		if none != (Version{}) {
			t.Errorf("Version %v of no value", none)
		}
		swap := func(v *Value[int], old Version, x int, want bool) {
			t.Helper()
			if ok, err := v.CompareAndSwap(ctx, old, x); ok != want || err != nil {
				t.Fatalf("CompareAndSwap = %v, %v; want %v", ok, err, want)
			}
		}
		load := func(v *Value[int], want int) Version {
			t.Helper()
			x, ver, err := v.Load(ctx)
			if x != want || err != nil {
				t.Fatalf("Load = %v, %v; want %v", x, err, want)
			}
			return ver
		}
		swap(a, none, 1, true)
		swap(b, none, 2, false)
		v1 := load(b, 1)
		must(t, a.Store(ctx, 1)) // the same value, another write
		v2 := load(b, 1)
		if v1 == v2 {
			t.Error("two writes have one Version")
		}
		swap(a, v1, 3, false)
		swap(b, v2, 3, true)
		load(a, 3)
		if x, err := b.Update(ctx, increment); x != 4 || err != nil {
			t.Fatalf("Update = %v, %v; want 4", x, err)
		}
		boom := errors.New("boom")
		_, err = a.Update(ctx, func(int) (int, error) { return 9, boom })
		wantErr(t, err, boom)
		load(b, 4)
		inc, err := s.live(ctx)
		must(t, err)
		data, _, err := inc.get(ctx, s.full("/deep/v"))
		if string(data) != "4" || err != nil {
			t.Errorf("the znode is %q, %v; want the JSON and nothing else", data, err)
		}
		// The znode made anew counts from 0 again, as the first did.
		must(t, inc.removeNow(ctx, s.full("/deep/v")))
		swap(a, v1, 5, false)
		must(t, b.Store(ctx, 6))
		swap(a, v1, 5, false)
		if x, err := NewValue[int](s, "/deep/w").Update(ctx, increment); x != 1 || err != nil {
			t.Errorf("Update of no value = %v, %v; want 1", x, err)
		}
	})
}

func TestValueRefusesBadInputBeforeAnythingIsSent(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for _, v := range []*Value[string]{
			NewValue[string](nil, "/v"), NewValue[string](s, "v"), NewValue[string](s, "/"),
			NewValue[string](s, "/v", nil), NewValue[string](s, "/v", WithCodec(nil)),
		} {
			_, _, err := v.Load(t.Context())
			wantErr(t, err, ErrInvalid)
			wantErr(t, v.Store(t.Context(), "x"), ErrInvalid)
			_, err = v.CompareAndSwap(t.Context(), Version{}, "x")
			wantErr(t, err, ErrInvalid)
			_, err = v.Update(t.Context(), func(string) (string, error) { return "", nil })
			wantErr(t, err, ErrInvalid)
			if _, ok := <-v.Watch(t.Context()); ok {
				t.Error("Watch of a bad Value is open")
			}
		}
		v := NewValue[string](s, "/v", WithCodec(Raw))
		_, err := v.Update(t.Context(), nil)
		wantErr(t, err, ErrInvalid)
		big := strings.Repeat("x", 1<<20)
		wantErr(t, v.Store(t.Context(), big), ErrTooLarge)
		_, err = v.CompareAndSwap(t.Context(), Version{}, big)
		wantErr(t, err, ErrTooLarge)
		_, err = v.Update(t.Context(), func(string) (string, error) { return big, nil })
		wantErr(t, err, ErrTooLarge)
		wantErr(t, NewValue[int](s, "/v", WithCodec(Raw)).Store(t.Context(), 1), ErrInvalid)
		if err := NewValue[func()](s, "/v").Store(t.Context(), nil); err == nil {
			t.Error("a function was stored")
		}
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		wantErr(t, v.Store(ctx, "x"), cause, context.Canceled)
		_, _, err = v.Load(ctx)
		wantErr(t, err, cause, context.Canceled)
		c := srv.Counts()
		if c.Requests["multi"]+c.Requests["create"]+c.Requests["createContainer"]+c.Requests["setData"] != 0 {
			t.Errorf("something was written: %v", c.Requests)
		}
		must(t, v.Store(t.Context(), big[:1<<20-2000])) // just below it fits
		if x, _, err := v.Load(t.Context()); len(x) != 1<<20-2000 || err != nil {
			t.Errorf("Load = %d bytes, %v", len(x), err)
		}
	})
}

func TestValueCosts(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		v := NewValue[int](s, "/v")
		must(t, v.Store(t.Context(), 1))
		_, ver, err := v.Load(t.Context())
		must(t, err)
		synctest.Wait()
		for _, c := range []struct {
			name string
			want int64 // with the deletion of the receipt
			f    func() error
		}{
			{"CompareAndSwap", 3, func() error { _, err := v.CompareAndSwap(t.Context(), ver, 2); return err }},
			{"Store", 2, func() error { return v.Store(t.Context(), 2) }},
			{"Load", 2, func() error { _, _, err := v.Load(t.Context()); return err }},
			{"Update", 3, func() error { _, err := v.Update(t.Context(), increment); return err }},
		} {
			before := s.Stats().Requests
			must(t, c.f())
			synctest.Wait()
			if got := s.Stats().Requests - before; got != c.want {
				t.Errorf("%s costs %d requests, want %d", c.name, got, c.want)
			}
		}
		must(t, v.Store(t.Context(), 3))
		must(t, s.Close()) // with the last deletion on its way
		s = open(t, srv)
		if names := childrenOf(t, s, "/v-receipts"); len(names) != 0 {
			t.Errorf("%q are left", names)
		}
	})
}

func TestUndecodableValueIsAnErrorAndCanBeReplaced(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		must(t, NewValue[string](s, "/v", WithCodec(Raw)).Store(t.Context(), "{"))
		v := NewValue[int](s, "/v")
		values := v.Watch(t.Context())
		_, ver, err := v.Load(t.Context())
		if err == nil || errors.Is(err, ErrNoValue) {
			t.Errorf("Load = %v", err)
		}
		if _, err := v.Update(t.Context(), increment); err == nil {
			t.Error("Update of an undecodable value succeeded")
		}
		if ok, err := v.CompareAndSwap(t.Context(), ver, 7); !ok || err != nil {
			t.Errorf("CompareAndSwap = %v, %v", ok, err)
		}
		if x := <-values; x != 7 {
			t.Errorf("Watch sends %d, want 7", x)
		}
	})
}

// Two processes may write equal bytes, so a lost reply cannot be told from the
// znode.
func TestEveryUpdateCountsOnceWhateverReplyIsLost(t *testing.T) {
	for _, fault := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
		for _, expire := range []bool{false, true} {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, o := open(t, srv), open(t, srv)
				v, other := NewValue[int](s, "/v"), NewValue[int](o, "/v")
				must(t, other.Store(t.Context(), 0))
				for i := range 10 {
					id := s.ID()
					multi := first(fault, op(zktest.OpMulti))
					srv.Intercept(func(r zktest.Request) zktest.Action {
						a := multi(r)
						if expire && a != zktest.Pass {
							// The connection goes after this, and the session
							// soon after that: the answer is found in the next.
							time.AfterFunc(time.Millisecond, func() { srv.Expire(id) })
						}
						return a
					})
					x, err := v.Update(t.Context(), increment)
					must(t, err)
					srv.Intercept(nil)
					if y, _, err := other.Load(t.Context()); x != i+1 || y != x || err != nil {
						t.Fatalf("%v: Update of %d = %d, then Load = %d, %v", fault, i, x, y, err)
					}
					time.Sleep(time.Minute)
				}
				if names := childrenOf(t, s, "/v-receipts"); len(names) != 0 {
					t.Errorf("%d receipts are left", len(names))
				}
			})
		}
	}
}

func TestUpdatesFromEverywhereAreAllCounted(t *testing.T) {
	seeds(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		var sessions []*Session
		for range 3 {
			sessions = append(sessions, open(t, srv))
		}
		var done, total atomic.Int64
		quiet := make(chan struct{})
		for i := range 6 {
			v := NewValue[int](sessions[i%3], "/v")
			go func() {
				for range 10 {
					if _, err := v.Update(t.Context(), increment); err != nil {
						t.Error(err)
					}
					total.Add(1)
					time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				}
				if done.Add(1) == 6 {
					close(quiet)
				}
			}()
		}
		chaos(t, srv, rnd, sessions, quiet)
		if x, _, err := NewValue[int](sessions[0], "/v").Load(t.Context()); int64(x) != total.Load() || err != nil {
			t.Errorf("%d after %d Updates that add one, %v", x, total.Load(), err)
		}
	})
}

// Case 34: the counter of the servers wraps, and -1 means any.
func TestSwapAtMinusOneIsStillACompareAndSwap(t *testing.T) {
	if ops := swapOps("/v", nil, -2); len(ops) != 1 || ops[0].(*zk.SetDataRequest).Version != -2 {
		t.Errorf("at -2: %+v", ops)
	}
	ops := swapOps("/v", nil, -1)
	if len(ops) != 2 || ops[0].(*zk.SetDataRequest).Version != -1 || ops[1].(*zk.CheckVersionRequest).Version != 0 {
		t.Fatalf("at -1: %+v; want a write, and the check that it took the counter to 0", ops)
	}
	// That servers let a check see the write before it, shown where the counter
	// can be brought to.
	anywhere(t, func(t *testing.T, connect func(...Option) *Session) {
		s := connect()
		ctx := within(t, 30*time.Second)
		v := NewValue[int](s, "/v")
		for i := range 4 {
			must(t, v.Store(ctx, i))
		}
		for version := range int32(8) {
			_, before, err := v.Load(ctx)
			must(t, err)
			err = v.commit(ctx, &zk.SetDataRequest{Path: s.full("/v"), Data: []byte("9"), Version: -1},
				&zk.CheckVersionRequest{Path: s.full("/v"), Version: version + 1})
			_, after, e := v.Load(ctx)
			must(t, e)
			if fits := version == before.version; fits != (err == nil) || fits == (before == after) || err != nil && !isBadVersion(err) {
				t.Errorf("at %v, taken for %d: %v, then %v", before, version, err, after)
			}
		}
	})
}

// sent reads what a Watch sends next, if anything, when all is quiet.
func sent[T any](t testing.TB, c <-chan T) (x T, ok bool) {
	t.Helper()
	synctest.Wait()
	select {
	case x, open := <-c:
		if !open {
			t.Fatal("the channel is closed")
		}
		return x, true
	default:
		return x, false
	}
}

func wantSent[T comparable](t testing.TB, c <-chan T, want T) {
	t.Helper()
	if x, ok := sent(t, c); x != want || !ok {
		t.Fatalf("Watch sends %v, %v; want %v", x, ok, want)
	}
	if x, ok := sent(t, c); ok {
		t.Fatalf("Watch sends %v, and there is nothing new", x)
	}
}

func TestWatchSendsTheLatestAndThenIsQuiet(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := open(t, srv), open(t, srv)
		v := NewValue[int](s, "/deep/v")
		ctx, cancel := context.WithCancel(t.Context())
		c := NewValue[int](o, "/deep/v").Watch(ctx)
		if x, ok := sent(t, c); ok {
			t.Fatalf("%d is sent, and there is no value", x)
		}
		must(t, v.Store(t.Context(), 1))
		wantSent(t, c, 1)
		for i := range 10 { // and nobody reads
			must(t, v.Store(t.Context(), i))
			synctest.Wait()
		}
		wantSent(t, c, 9)
		before := srv.Counts()
		time.Sleep(time.Hour)
		if d := srv.Counts().Sub(before); d.Total() != 0 || d.Notifications != 0 {
			t.Errorf("an hour of watching cost %v and %d notifications", d.Requests, d.Notifications)
		}
		inc, err := s.live(t.Context())
		must(t, err)
		must(t, inc.removeNow(t.Context(), "/deep/v"))
		if x, ok := sent(t, c); ok {
			t.Fatalf("%d is sent, and the value is gone", x)
		}
		must(t, v.Store(t.Context(), 9)) // made anew
		wantSent(t, c, 9)
		cancel()
		if _, ok := <-c; ok {
			t.Error("the channel is open after its context has ended")
		}
		c = NewValue[int](o, "/deep/v").Watch(t.Context())
		synctest.Wait()
		must(t, o.Close())
		if _, ok := <-c; ok {
			t.Error("the channel is open after Close")
		}
	})
}

// Case 34, with CURATOR-311 and -329.
func TestWatchIsNotStaleAfterReconnectsAndNewSessions(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := open(t, srv), open(t, srv)
		v := NewValue[int](s, "/v")
		must(t, v.Store(t.Context(), 0))
		c := NewValue[int](o, "/v").Watch(t.Context())
		wantSent(t, c, 0)
		for i, hurt := range []func(id int64){
			srv.Disconnect,
			srv.Expire,
			func(id int64) { srv.Partition(id); time.Sleep(testTimeout / 2); srv.Heal(id) },
			func(id int64) { srv.Partition(id); time.Sleep(3 * testTimeout); srv.Heal(id) },
			func(int64) { srv.Stop(); time.Sleep(time.Second); srv.Restart() },
		} {
			stored := async(func() error { return v.Store(t.Context(), 2*i+1) })
			hurt(o.ID())
			must(t, <-stored)
			time.Sleep(5 * time.Second)
			wantSent(t, c, 2*i+1)
			must(t, v.Store(t.Context(), 2*i+2))
			wantSent(t, c, 2*i+2)
		}
	})
}

func TestWatchNeverGoesBackWhicheverServerAnswers(t *testing.T) {
	for seed := range 30 {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 34))
			s, o := open(t, srv), open(t, srv)
			v, w := NewValue[int](s, "/v"), NewValue[int](o, "/v")
			must(t, v.Store(t.Context(), 0))
			c := w.Watch(t.Context())
			var last atomic.Int64
			go func() {
				for x := range c {
					if int64(x) < last.Swap(int64(x)) {
						t.Errorf("Watch sends %d after a later value", x)
					}
				}
			}()
			for i := range 40 {
				must(t, v.Store(t.Context(), i))
				if x, _, err := w.Load(t.Context()); x != i || err != nil {
					t.Fatalf("Load = %d, %v; want %d", x, err, i)
				}
				switch addr := srv.Addrs()[rnd.IntN(3)]; rnd.IntN(4) {
				case 0:
					srv.Freeze(addr)
				case 1:
					srv.Thaw(addr)
				case 2:
					srv.Disconnect(o.ID())
				case 3:
					srv.Expire(o.ID())
				}
				time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond)
			}
			for _, addr := range srv.Addrs() {
				srv.Thaw(addr)
			}
			time.Sleep(time.Minute)
			if n := last.Load(); n != 39 {
				t.Errorf("Watch sent %d last, want 39", n)
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}, zktest.WithAddrs("127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"))
	}
}

func TestWatchAndObserveBeginWithWhatIsNewOnServersThatLag(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var sessions []*Session
		for range 6 { // on all of the servers, very likely
			sessions = append(sessions, open(t, srv))
		}
		v := NewValue[int](sessions[0], "/v")
		must(t, v.Store(t.Context(), 0))
		for _, addr := range srv.Addrs() {
			srv.Freeze(addr)
		}
		for i, s := range sessions {
			must(t, v.Store(t.Context(), i))
			e := NewElection(sessions[0], "/e", WithID(fmt.Sprint(i)))
			must(t, e.Campaign(t.Context()))
			ctx, cancel := context.WithCancel(t.Context())
			if x := <-NewValue[int](s, "/v").Watch(ctx); x != i {
				t.Errorf("Watch begins with %d, want %d", x, i)
			}
			if c := <-NewElection(s, "/e").Observe(ctx); c.Owner != fmt.Sprint(i) {
				t.Errorf("Observe begins with %s, want %d", c.Owner, i)
			}
			cancel()
			must(t, e.Resign())
		}
	}, zktest.WithAddrs("127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"))
}

// A valueOp is what one operation was asked, and what it answered. Every write
// writes another number, so the number stands for the Version.
type valueOp struct {
	kind string
	old  int // of a swap: what it expects; of an update: what it was given; 0 is no value
	x    int // what is written
}

type valueAnswer struct {
	x  int  // of a load
	ok bool // of a swap
}

// valueModel is an atomic value.
var valueModel = porcupine.Model{
	Init: func() any { return 0 },
	Step: func(state, in, out any) (bool, any) {
		op, answer := in.(valueOp), out.(valueAnswer)
		switch op.kind {
		case "load":
			return answer.x == state, state
		case "store":
			return true, op.x
		case "update":
			return op.old == state, op.x
		}
		if answer.ok != (op.old == state) {
			return false, state
		}
		if answer.ok {
			return true, op.x
		}
		return true, state
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v %+v", in, out) },
}

func TestValueIsLinearizableUnderFaults(t *testing.T) {
	seeds(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		checkLinearizable(t, srv, rnd, func(sessions []*Session, quiet <-chan struct{}) {
			chaos(t, srv, rnd, sessions, quiet)
		})
	})
}

func TestValueIsLinearizableOnServersThatLag(t *testing.T) {
	for seed := range 30 {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 35))
			for i, addr := range srv.Addrs() {
				srv.SetLag(addr, time.Duration(i)*time.Second)
			}
			checkLinearizable(t, srv, rnd, func(sessions []*Session, quiet <-chan struct{}) {
				for {
					select {
					case <-quiet:
						return
					case <-time.After(time.Duration(rnd.IntN(2000)) * time.Millisecond):
						srv.Disconnect(sessions[rnd.IntN(len(sessions))].ID())
					}
				}
			})
		}, zktest.WithAddrs("127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"))
	}
}

func checkLinearizable(t *testing.T, srv *zktest.Server, rnd *rand.Rand, hurt func(sessions []*Session, quiet <-chan struct{})) {
	var sessions []*Session
	for range 4 {
		sessions = append(sessions, open(t, srv))
	}
	var clock, number atomic.Int64
	var mu sync.Mutex // guards history
	var history []porcupine.Operation
	var clients sync.WaitGroup
	for i, s := range sessions {
		v := NewValue[int](s, "/v")
		dice := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
		clients.Go(func() {
			var seen int
			var version Version
			for range 12 {
				call := clock.Add(1)
				op, answer, err := valueOp{x: int(number.Add(1))}, valueAnswer{}, error(nil)
				switch dice.IntN(4) {
				case 0:
					op.kind = "load"
					answer.x, version, err = v.Load(t.Context())
					if errors.Is(err, ErrNoValue) {
						err = nil
					}
					seen = answer.x
				case 1:
					op.kind = "store"
					err = v.Store(t.Context(), op.x)
				case 2:
					op.kind, op.old = "swap", seen
					answer.ok, err = v.CompareAndSwap(t.Context(), version, op.x)
				case 3:
					op.kind = "update"
					_, err = v.Update(t.Context(), func(old int) (int, error) { op.old = old; return op.x, nil })
				}
				if err != nil {
					t.Errorf("%s: %v", op.kind, err)
				}
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: i, Input: op, Call: call, Output: answer, Return: clock.Add(1)})
				mu.Unlock()
				time.Sleep(time.Duration(dice.IntN(500)) * time.Millisecond)
			}
		})
	}
	quiet := make(chan struct{})
	go func() { clients.Wait(); close(quiet) }()
	hurt(sessions, quiet)
	if !porcupine.CheckOperations(valueModel, history) {
		for _, o := range history {
			t.Logf("%d-%d: %+v %+v", o.Call, o.Return, o.Input, o.Output)
		}
		t.Error("the history is not linearizable")
	}
}
