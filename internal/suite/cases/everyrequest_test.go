package cases

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A trial is one call of a method, before which something may be prepared, and of which
// each request may meet with a misfortune.
type trial struct {
	name    string
	prepare func(t *testing.T, other *zsync.Session)
	// call makes it, and says what is wrong with what it returned.
	call func(t *testing.T, s *zsync.Session) error
	// after looks at what came of it, by another session.
	after func(t *testing.T, other *zsync.Session) error
}

// A misfortune befalls one request.
type misfortune struct {
	name string
	f    func(srv *zktest.Server, r zktest.Request) zktest.Action
}

var misfortunes = []misfortune{
	{"the request is lost", func(*zktest.Server, zktest.Request) zktest.Action { return zktest.DropRequest }},
	{"the reply is lost", func(*zktest.Server, zktest.Request) zktest.Action { return zktest.DropReply }},
	{"the session expires before", func(srv *zktest.Server, r zktest.Request) zktest.Action {
		srv.Expire(r.Session)
		return zktest.DropRequest
	}},
	{"the session expires behind it", func(srv *zktest.Server, r zktest.Request) zktest.Action {
		time.AfterFunc(time.Nanosecond, func() { srv.Expire(r.Session) })
		return zktest.DropReply
	}},
	{"the servers put it aside", func(*zktest.Server, zktest.Request) zktest.Action { return zktest.Fail(zktest.CodeThrottled) }},
}

// is says what is wrong unless an operation has returned what it should.
func is[T comparable](what string, got, want T, err error) error {
	if err == nil && got != want {
		err = fmt.Errorf("%v, want %v", got, want)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return err
}

func numberIs(want int64) func(t *testing.T, other *zsync.Session) error {
	return func(t *testing.T, other *zsync.Session) error {
		n, err := zsync.NewInt64(other, "/p").Load(t.Context())
		return is("Load", n, want, err)
	}
}

func keyIs(want int) func(t *testing.T, other *zsync.Session) error {
	return func(t *testing.T, other *zsync.Session) error {
		v, _, err := zsync.NewMap[int](other, "/p").Load(t.Context(), "k")
		if want == 0 && errors.Is(err, zsync.ErrNoValue) {
			err = nil
		}
		return is("Load", v, want, err)
	}
}

func numberFive(t *testing.T, other *zsync.Session) {
	harness.Must(t, zsync.NewInt64(other, "/p").Store(t.Context(), 5))
}

func keyFive(t *testing.T, other *zsync.Session) {
	harness.Must(t, zsync.NewMap[int](other, "/p").Store(t.Context(), "k", 5))
}

func nothingThere(*testing.T, *zsync.Session) {}

var trials = []trial{
	{"Int64.Store", numberFive, func(t *testing.T, s *zsync.Session) error {
		return zsync.NewInt64(s, "/p").Store(t.Context(), 6)
	}, numberIs(6)},
	{"Int64.Add", numberFive, func(t *testing.T, s *zsync.Session) error {
		n, err := zsync.NewInt64(s, "/p").Add(t.Context(), 1)
		return is("Add", n, 6, err)
	}, numberIs(6)},
	{"Int64.Add of the first", nothingThere, func(t *testing.T, s *zsync.Session) error {
		n, err := zsync.NewInt64(s, "/p").Add(t.Context(), 1)
		return is("Add", n, 1, err)
	}, numberIs(1)},
	{"Int64.Swap", numberFive, func(t *testing.T, s *zsync.Session) error {
		n, err := zsync.NewInt64(s, "/p").Swap(t.Context(), 6)
		return is("Swap", n, 5, err)
	}, numberIs(6)},
	{"Int64.CompareAndSwap", numberFive, func(t *testing.T, s *zsync.Session) error {
		ok, err := zsync.NewInt64(s, "/p").CompareAndSwap(t.Context(), 5, 6)
		return is("CompareAndSwap", ok, true, err)
	}, numberIs(6)},
	{"Map.Store of the first", nothingThere, func(t *testing.T, s *zsync.Session) error {
		return zsync.NewMap[int](s, "/p").Store(t.Context(), "k", 6)
	}, keyIs(6)},
	{"Map.LoadOrStore", nothingThere, func(t *testing.T, s *zsync.Session) error {
		v, loaded, err := zsync.NewMap[int](s, "/p").LoadOrStore(t.Context(), "k", 6)
		return is("LoadOrStore", fmt.Sprint(v, loaded), "6 false", err)
	}, keyIs(6)},
	{"Map.LoadAndDelete", keyFive, func(t *testing.T, s *zsync.Session) error {
		v, loaded, err := zsync.NewMap[int](s, "/p").LoadAndDelete(t.Context(), "k")
		return is("LoadAndDelete", fmt.Sprint(v, loaded), "5 true", err)
	}, keyIs(0)},
	{"Map.Swap", keyFive, func(t *testing.T, s *zsync.Session) error {
		v, loaded, err := zsync.NewMap[int](s, "/p").Swap(t.Context(), "k", 6)
		return is("Swap", fmt.Sprint(v, loaded), "5 true", err)
	}, keyIs(6)},
	{"Map.CompareAndSwap", keyFive, func(t *testing.T, s *zsync.Session) error {
		m := zsync.NewMap[int](s, "/p")
		_, version, err := m.Load(t.Context(), "k")
		if err != nil {
			return err
		}
		ok, err := m.CompareAndSwap(t.Context(), "k", version, 6)
		return is("CompareAndSwap", ok, true, err)
	}, keyIs(6)},
	{"Map.CompareAndDelete", keyFive, func(t *testing.T, s *zsync.Session) error {
		m := zsync.NewMap[int](s, "/p")
		_, version, err := m.Load(t.Context(), "k")
		if err != nil {
			return err
		}
		ok, err := m.CompareAndDelete(t.Context(), "k", version)
		return is("CompareAndDelete", ok, true, err)
	}, keyIs(0)},
	{"Map.Clear", keyFive, func(t *testing.T, s *zsync.Session) error {
		return zsync.NewMap[int](s, "/p").Clear(t.Context())
	}, keyIs(0)},
	{"Flight.Do", nothingThere, func(t *testing.T, s *zsync.Session) error {
		ran := 0
		v, shared, err := zsync.NewFlight[int](s, "/p", time.Hour).Do(t.Context(), "k", func(context.Context) (int, error) { ran++; return 6, nil })
		if errors.Is(err, zsync.ErrLost) {
			err = nil // it was told
		}
		return is("Do", fmt.Sprint(v, shared, ran), "6 false 1", err)
	}, func(t *testing.T, other *zsync.Session) error {
		// Whether it was stored only its own caller knows; what is shared is whole.
		ran := false
		v, shared, err := zsync.NewFlight[int](other, "/p", time.Hour).Do(t.Context(), "k", func(context.Context) (int, error) { ran = true; return 7, nil })
		if want := map[bool]int{true: 6, false: 7}[shared]; err == nil && (v != want || shared == ran) {
			err = fmt.Errorf("the next Do = %d, %v, and its function ran %v", v, shared, ran)
		}
		return err
	}},
	{"Schedule.Do", nothingThere, func(t *testing.T, s *zsync.Session) error {
		calls := 0
		ran, err := zsync.NewSchedule(s, "/p").Do(t.Context(), suite.Noon, func(context.Context) error { calls++; return nil })
		if errors.Is(err, zsync.ErrLost) {
			err = nil
		}
		return is("Do", fmt.Sprint(ran, calls), "true 1", err)
	}, func(t *testing.T, other *zsync.Session) error {
		c := zsync.NewSchedule(other, "/p")
		if _, err := c.Do(t.Context(), suite.Noon, func(context.Context) error { return nil }); err != nil {
			return err
		}
		ran, err := zsync.NewSchedule(other, "/p").Do(t.Context(), suite.Noon, func(context.Context) error { return nil })
		return is("the third Do", ran, false, err)
	}},
	{"Group.Join", nothingThere, func(t *testing.T, s *zsync.Session) error {
		_, err := zsync.NewGroup[string](s, "/p").Join(t.Context(), "id", "info")
		return err
	}, func(t *testing.T, other *zsync.Session) error {
		members, err := zsync.NewGroup[string](other, "/p").Members(t.Context())
		return is("Members", suite.RollCall(members), "id=info", err)
	}},
	{"Membership.Set and Leave", nothingThere, func(t *testing.T, s *zsync.Session) error {
		g := zsync.NewGroup[string](s, "/p")
		stays, err := g.Join(t.Context(), "stays", "at first")
		if err != nil {
			return err
		}
		goes, err := g.Join(t.Context(), "goes", "at first")
		if err != nil {
			return err
		}
		return errors.Join(stays.Set(t.Context(), "info"), goes.Set(t.Context(), "info"), goes.Leave())
	}, func(t *testing.T, other *zsync.Session) error {
		members, err := zsync.NewGroup[string](other, "/p").Members(t.Context())
		return is("Members", suite.RollCall(members), "stays=info", err)
	}},
	{"Partition.Run", nothingThere, func(t *testing.T, s *zsync.Session) error {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var running, most atomic.Int64
		done := harness.Async(func() error {
			return zsync.NewPartition(s, "/p", zsync.WithMember("id")).Run(ctx, []string{"a", "b"}, func(ctx context.Context, _ string) error {
				harness.Raise(&most, running.Add(1))
				defer running.Add(-1)
				<-ctx.Done()
				return nil
			})
		})
		time.Sleep(3 * harness.Timeout)
		synctest.Wait()
		owned := running.Load()
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			return fmt.Errorf("Run = %w", err)
		}
		return is("functions that run", fmt.Sprint(owned, most.Load(), running.Load()), "2 2 0", nil)
	}, func(t *testing.T, other *zsync.Session) error {
		for _, dir := range []string{"/p/members", "/p/shards/a", "/p/shards/b"} {
			if left := suite.ChildrenOf(t, other, dir); len(left) > 0 {
				return fmt.Errorf("left in %s: %q", dir, left)
			}
		}
		return nil
	}},
	{"Mutex.Revoke", func(t *testing.T, other *zsync.Session) {
		harness.Must(t, zsync.NewMutex(other, "/p").Lock(t.Context()))
	}, func(t *testing.T, s *zsync.Session) error {
		return zsync.NewMutex(s, "/p").Revoke(t.Context())
	}, func(t *testing.T, other *zsync.Session) error {
		all, err := zsync.NewMutex(other, "/p").Contenders(t.Context())
		if err != nil || len(all) != 1 {
			return fmt.Errorf("Contenders = %v, %v", all, err)
		}
		return is("what the holder's znode says", all[0].Owner, lock.RevokeMessage, nil)
	}},
}

// Whichever request of a call is lost, or its reply, or ends with the session: the call
// is applied once, and what it returns is true. In a long run a second request meets
// with something too, and some of the servers lag.
func TestWhateverBefallsARequestACallIsAppliedOnceAndReturnsTheTruth(t *testing.T) {
	t.Parallel()
	try(t, trials, misfortunes)
}

func try(t *testing.T, trials []trial, firsts []misfortune) {
	gaps := 1
	if harness.Long() {
		gaps = 6
	}
	for _, c := range trials {
		for _, first := range firsts {
			for at := 1; at < 60; at++ {
				reached := false
				for gap := range gaps { // 0 is no second one
					second := misfortunes[(at+gap)%len(misfortunes)]
					harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
						other, s := suite.Open(t, srv), suite.Open(t, srv, zsync.WithRetry(zsync.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond}))
						c.prepare(t, other)
						if gap%2 == 1 {
							srv.SetLag(srv.Addrs()[1], 300*time.Millisecond)
							srv.SetLag(srv.Addrs()[2], 20*time.Millisecond)
						}
						time.Sleep(time.Minute) // receipts are gone
						var n atomic.Int64
						srv.Intercept(func(r zktest.Request) zktest.Action {
							switch {
							case r.Session == other.ID(), r.Op == zktest.OpPing, r.Op == zktest.OpConnect, r.Op == zktest.OpCloseSession:
								return zktest.Pass
							}
							switch k := n.Add(1); {
							case k == int64(at):
								reached = true
								return first.f(srv, r)
							case gap > 0 && k == int64(at+gap):
								return second.f(srv, r)
							}
							return zktest.Pass
						})
						err := c.call(t, s)
						reachedInCall := n.Load() >= int64(at)
						time.Sleep(2 * harness.Timeout) // what was left goes with its session
						srv.Intercept(nil)
						time.Sleep(2 * harness.Timeout)
						if err == nil {
							err = c.after(t, other)
						}
						if err != nil {
							t.Errorf("%s: %s at request %d, and %d later %s: %v", c.name, first.name, at, gap, second.name, err)
						}
						reached = reached && reachedInCall
					}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
					if t.Failed() {
						return
					}
				}
				if !reached {
					break
				}
			}
		}
	}
}
