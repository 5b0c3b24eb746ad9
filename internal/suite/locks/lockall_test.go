package locks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// lockAll is LockAll in the background.
// way is the time there and back in these tests.
const way = 10 * time.Millisecond

func lockAll(ctx context.Context, ls ...zsync.Locker) (got <-chan error, unlock func() error) {
	var release func() error
	return harness.Async(func() (err error) { release, err = zsync.LockAll(ctx, ls...); return err }),
		func() error { return release() }
}

// mutexes are those of s at paths, which exist from then on.
func mutexes(t *testing.T, s *zsync.Session, paths ...string) (ls []zsync.Locker) {
	t.Helper()
	for _, p := range paths {
		m := zsync.NewMutex(s, p)
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		ls = append(ls, m)
	}
	return ls
}

// wantLines checks how many stand in the line of each path.
func wantLines(t *testing.T, s *zsync.Session, when string, want map[string]int) {
	t.Helper()
	for path, n := range want {
		if names := suite.ChildrenOf(t, s, path); len(names) != n {
			t.Errorf("%s %d stand at %s, want %d: %q", when, len(names), path, n, names)
		}
	}
}

func TestLockAllOfFreeLocksTakesARoundTripForEachAndItsUnlockOneForAll(t *testing.T) {
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, other := suite.Open(t, srv), suite.Open(t, srv)
			l := zsync.WithLayout(layout)
			one, two := zsync.NewRWMutex(s, "/d", l), zsync.NewRWMutex(s, "/a", l)
			ls := []zsync.Locker{one, zsync.NewMutex(s, "/c", l), two.RLocker(), zsync.NewMutex(s, "/b", l), zsync.NewMutex(s, "/e", l)}
			unlock, err := zsync.LockAll(t.Context(), ls...) // makes the paths
			harness.Must(t, err)
			harness.Must(t, unlock())
			for _, latency := range []time.Duration{0, way} {
				srv.SetLatency(latency)
				before, start := s.Stats().Requests, time.Now()
				unlock, err = zsync.LockAll(t.Context(), ls...)
				harness.Must(t, err)
				n, took, most := s.Stats().Requests-before, time.Since(start), int64(10)
				if latency > 0 {
					most = 14 // and the watch of each that is held for 10 ms
				}
				if n < 10 || n > most || took != 5*latency {
					t.Errorf("layout %v: %d requests, %v; want 10 to %d, %v", layout, n, took, most, 5*latency)
				}
				for _, l := range ls {
					if h, ok := l.(interface{ Lost() <-chan struct{} }); ok && harness.ClosedFunc(h.Lost())() {
						t.Errorf("%v is not held", l)
					}
				}
				before, start = s.Stats().Requests, time.Now()
				harness.Must(t, unlock())
				if n, took := s.Stats().Requests-before, time.Since(start); n < 5 || n > most-5 || took != latency {
					t.Errorf("layout %v: unlock took %d requests, %v; want 5, %v", layout, n, took, latency)
				}
				srv.SetLatency(0)
			}
			wantLines(t, other, "afterwards", map[string]int{"/a": 0, "/b": 0, "/c": 0, "/d": 0, "/e": 0})
		})
	}
}

// Where one is held, what comes before it is held too, and nobody is kept from what
// comes behind it.
func TestLockAllThatHasToWaitHoldsWhatComesBeforeAndNothingBehind(t *testing.T) {
	paths := []string{"/a", "/b", "/c", "/d"}
	for i := range paths {
		for _, mode := range []string{"mutex", "write", "read"} {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other := suite.Open(t, srv), suite.Open(t, srv)
				var ls, theirs []zsync.Locker
				for _, p := range paths {
					if mode == "mutex" {
						ls, theirs = append(ls, zsync.NewMutex(s, p)), append(theirs, zsync.NewMutex(other, p))
						continue
					}
					rw := zsync.NewRWMutex(s, p)
					l := zsync.Locker(rw)
					if mode == "read" {
						l = rw.RLocker()
					}
					ls, theirs = append(ls, l), append(theirs, zsync.NewRWMutex(other, p))
				}
				for _, l := range theirs {
					harness.Must(t, l.Lock(t.Context()))
					harness.Must(t, l.Unlock())
				}
				harness.Must(t, theirs[i].Lock(t.Context()))
				srv.SetLatency(way)
				got, unlock := lockAll(t.Context(), ls...)
				time.Sleep(3 * way)
				harness.PendingStill(t, got)
				for j, l := range theirs {
					ctx, cancel := context.WithTimeout(t.Context(), 3*way)
					switch err := l.Lock(ctx); {
					case j < i:
						harness.WantErr(t, err, context.DeadlineExceeded)
					case j > i:
						harness.Must(t, err)
						harness.Must(t, l.Unlock())
					}
					cancel()
				}
				before := srv.Counts().Requests[zktest.OpCreate.String()]
				harness.Must(t, theirs[i].Unlock())
				harness.Must(t, <-got)
				// It has kept its place there.
				if n, want := srv.Counts().Requests[zktest.OpCreate.String()]-before, int64(len(paths)-1-i); n != want {
					t.Errorf("%s: %d znodes from the other's unlock on, want %d", mode, n, want)
				}
				harness.Must(t, unlock())
				srv.SetLatency(0)
				wantLines(t, other, "afterwards", map[string]int{"/a": 0, "/b": 0, "/c": 0, "/d": 0})
			})
		}
	}
}

// Whatever is lost of what LockAll sends, all are locked in the end, and nothing else is left.
func TestLockAllSurvivesTheLossOfWhatItSends(t *testing.T) {
	for name, lose := range map[string]struct {
		op     zktest.Op
		action zktest.Action
	}{
		"create":                 {zktest.OpCreate, zktest.DropRequest},
		"its reply":              {zktest.OpCreate, zktest.DropReply},
		"its fate":               {zktest.OpCreate, zktest.Fail(zktest.CodeOperationTimeout)},
		"put aside":              {zktest.OpCreate, zktest.Fail(zktest.CodeThrottled)},
		"first listing":          {zktest.OpGetChildren2, zktest.DropRequest},
		"reply to first listing": {zktest.OpGetChildren2, zktest.DropReply},
	} {
		for skip := range 3 {
			t.Run(fmt.Sprint(name, skip), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					s, other := suite.Open(t, srv), suite.Open(t, srv)
					ls := mutexes(t, s, "/a", "/b", "/c")
					var n atomic.Int32
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if r.Session == s.ID() && r.Op == lose.op && n.Add(1) == int32(skip)+1 {
							return lose.action
						}
						return zktest.Pass
					})
					unlock, err := zsync.LockAll(harness.Within(t, harness.Timeout), ls...)
					harness.Must(t, err)
					time.Sleep(time.Second)
					wantLines(t, other, "while they are held", map[string]int{"/a": 1, "/b": 1, "/c": 1})
					harness.Must(t, unlock())
					wantLines(t, other, "afterwards", map[string]int{"/a": 0, "/b": 0, "/c": 0})
				})
			})
		}
	}
}

// LockAll's session ends when all were found free, and nobody was told yet. In the next
// session another holds the first: so LockAll stands in no other line.
func TestLockAllWhoseSessionEndsBeforeItIsToldBeginsAtTheFirstAgain(t *testing.T) {
	for name, op := range map[string]zktest.Op{"at the create": zktest.OpCreate, "at the listings": zktest.OpGetChildren2, "at the proof that the session lives": zktest.OpDelete} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other := suite.Open(t, srv), suite.Open(t, srv)
				ls := mutexes(t, s, "/a", "/b", "/c")
				time.Sleep(3 * harness.Timeout) // whoever wants to hold something must ask the leader first
				id, a := s.ID(), zsync.NewMutex(other, "/a")
				var ended atomic.Bool
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Session == id && r.Op == op && ended.CompareAndSwap(false, true) {
						return zktest.Delay(time.Second)
					}
					return zktest.Pass
				})
				got, unlock := lockAll(t.Context(), ls...)
				time.Sleep(time.Second / 2)
				if !ended.Load() {
					t.Fatal("it was not asked")
				}
				theirs := harness.Async(func() error { return a.Lock(t.Context()) }) // behind it
				synctest.Wait()
				srv.Expire(id)
				harness.Must(t, <-theirs)
				time.Sleep(2 * harness.Timeout)
				harness.PendingStill(t, got)
				wantLines(t, other, "while it waits", map[string]int{"/a": 2, "/b": 0, "/c": 0})
				harness.Must(t, a.Unlock())
				harness.Must(t, <-got)
				harness.Must(t, unlock())
			})
		})
	}
}

// LockAll's context ends while the servers owe it an answer.
func TestLockAllThatIsCancelledLeavesNothing(t *testing.T) {
	for name, op := range map[string]zktest.Op{"create": zktest.OpCreate, "listings": zktest.OpGetChildren2, "proof that the session lives": zktest.OpDelete, "deletion": zktest.OpSync} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other := suite.Open(t, srv), suite.Open(t, srv)
				ls := mutexes(t, s, "/a", "/b", "/c")
				time.Sleep(3 * harness.Timeout)
				id := s.ID()
				var asked atomic.Bool
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Session == id && r.Op == op && asked.CompareAndSwap(false, true) {
						return zktest.Delay(time.Second)
					}
					return zktest.Pass
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
				defer cancel()
				start := time.Now()
				_, err := zsync.LockAll(ctx, ls...)
				if op == zktest.OpSync {
					harness.Must(t, err) // it needs none
					return
				}
				harness.WantErr(t, err, context.DeadlineExceeded)
				if took := time.Since(start); took > time.Second/2+100*time.Millisecond {
					t.Errorf("it took %v", took)
				}
				if !asked.Load() {
					t.Fatal("it was not asked")
				}
				time.Sleep(time.Second)
				wantLines(t, other, "afterwards", map[string]int{"/a": 0, "/b": 0, "/c": 0})
				if s.ID() != id {
					t.Error("the session was given up")
				}
				unlock, err := zsync.LockAll(t.Context(), ls...)
				harness.Must(t, err)
				harness.Must(t, unlock())
			})
		})
	}
}

// Of what one session may not create nothing is locked, and the error says which it is.
func TestLockAllWithOneThatIsForbiddenLocksNone(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		ls := mutexes(t, s, "/a", "/c")
		_, err := other.Txn(t.Context(), &zk.CreateRequest{Path: "/b", Acl: zk.WorldACL(zk.PermRead)})
		harness.Must(t, err)
		_, err = zsync.LockAll(t.Context(), append(ls, zsync.NewMutex(s, "/b"))...)
		harness.WantErr(t, err, zk.ErrNoAuth)
		if e := new(zsync.Error); !errors.As(err, &e) || e.Path != "/b" {
			t.Errorf("%v", err)
		}
		wantLines(t, other, "afterwards", map[string]int{"/a": 0, "/b": 0, "/c": 0})
	})
}

func TestLockAllAtThePathOfAnotherKindLocksNone(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		ls := mutexes(t, s, "/a", "/b", "/c")
		harness.Must(t, zsync.NewRWMutex(other, "/b").Lock(t.Context()))
		_, err := zsync.LockAll(t.Context(), ls...)
		harness.WantErr(t, err, zsync.ErrMixed)
		wantLines(t, other, "afterwards", map[string]int{"/a": 0, "/b": 1, "/c": 0})
	})
}

// Somebody deletes one of its znodes before it has seen it.
func TestLockAllMakesAgainWhatWasDeletedBeforeItWasListed(t *testing.T) {
	for n, deleted := range []string{"/a", "/b", "/c"} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, other := suite.Open(t, srv), suite.Open(t, srv)
			ls := mutexes(t, s, "/a", "/b", "/c")
			var asked atomic.Int32
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Session == s.ID() && r.Op == zktest.OpGetChildren2 && asked.Add(1) == int32(n)+1 {
					return zktest.Delay(time.Second)
				}
				return zktest.Pass
			})
			got, unlock := lockAll(t.Context(), ls...)
			synctest.Wait()
			for _, name := range suite.ChildrenOf(t, other, deleted) {
				_, err := other.Txn(t.Context(), &zk.DeleteRequest{Path: deleted + "/" + name, Version: -1})
				harness.Must(t, err)
			}
			harness.Must(t, <-got)
			wantLines(t, other, "while they are held", map[string]int{"/a": 1, "/b": 1, "/c": 1})
			harness.Must(t, unlock())
		})
	}
}

// LockAll waits for the first lock, while another goroutine tries the second.
func TestLockAllKeepsNothingOfTheLocksBehindTheFirstThatIsHeld(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		tried := 0
		for k := range 10 {
			a, b := fmt.Sprintf("/a%d", k), fmt.Sprintf("/b%d", k)
			ma, mb := zsync.NewMutex(s, a), zsync.NewMutex(s, b)
			first, theirs := zsync.NewMutex(other, a), zsync.NewMutex(other, b)
			for _, m := range []*zsync.Mutex{mb, first} {
				harness.Must(t, m.Lock(t.Context()))
			}
			harness.Must(t, mb.Unlock())
			srv.SetLatency(50 * time.Millisecond)
			try := harness.Async(func() error {
				ok, err := mb.TryLock(t.Context())
				if ok {
					tried++
					err = mb.Unlock()
				}
				return err
			})
			time.Sleep(time.Duration(25*k+1) * time.Millisecond)
			_, err := zsync.LockAll(harness.Within(t, 2*time.Second), ma, mb)
			harness.WantErr(t, err, context.DeadlineExceeded)
			harness.Must(t, <-try)
			harness.Must(t, theirs.Lock(harness.Within(t, time.Minute)))
			harness.Must(t, theirs.Unlock())
			srv.SetLatency(0)
			harness.Must(t, first.Unlock())
		}
		if tried == 0 {
			t.Error("nobody has got the second lock before")
		}
	})
}

// Several of these this process has, keeps or waits for; some are of another session, or lock
// in a way of their own.
func TestLockAllLocksWhateverTheProcessHasOfTheLocks(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, second := suite.Open(t, srv), suite.Open(t, srv)
		kept := zsync.NewMutex(s, "/b", zsync.WithRetention(time.Minute))
		rw := zsync.NewRWMutex(s, "/e")
		harness.Must(t, kept.Lock(t.Context()))
		harness.Must(t, kept.Unlock())
		harness.Must(t, rw.RLock(t.Context()))
		ls := append(mutexes(t, s, "/a", "/c", "/d", "/f", "/h", "/i"), mutexes(t, second, "/aa", "/ab", "/ia")...)
		ls = append(ls, kept, rw.RLocker(), zsync.NewMutex(s, "/g", zsync.WithHandoffs(0)), slowLocker{zsync.NewMutex(s, "/j")}, zsync.NewMutex(second, "/k"))
		for range 2 {
			unlock, err := zsync.LockAll(harness.Within(t, time.Minute), ls...)
			harness.Must(t, err)
			harness.Must(t, unlock())
		}
		held, locked := zsync.NewMutex(s, "/c"), make(chan error)
		harness.Must(t, held.Lock(t.Context()))
		busy := slices.IndexFunc(ls, func(l zsync.Locker) bool { return l.(interface{ Path() string }).Path() == "/c" })
		ls[busy] = held
		got, unlock := lockAll(t.Context(), ls...)
		harness.PendingStill(t, got)
		go func() { locked <- held.Lock(t.Context()) }()
		harness.PendingStill(t, got)
		harness.Must(t, held.Unlock())
		harness.Must(t, <-got)
		harness.Must(t, unlock())
		harness.Must(t, <-locked)
	})
}

// A retained lock is locked again without the servers, with others as alone.
func TestLockAllOfRetainedLocksCostsNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		keep := zsync.WithRetention(time.Minute)
		ls := []zsync.Locker{zsync.NewMutex(s, "/a", keep), zsync.NewRWMutex(s, "/b", keep), zsync.NewMutex(s, "/c", keep)}
		var before int64
		for i := range 4 {
			unlock, err := zsync.LockAll(t.Context(), ls...)
			harness.Must(t, err)
			harness.Must(t, unlock())
			if n := s.Stats().Requests - before; i > 0 && n != 0 {
				t.Errorf("%d requests", n)
			}
			before = s.Stats().Requests
		}
	})
}

// aloofLocker is a Locker that does not pass on its context.
type aloofLocker struct{ *zsync.Mutex }

func (a aloofLocker) Lock(ctx context.Context) error {
	return a.Mutex.Lock(context.WithoutCancel(context.Background()))
}

func TestLockAllLeavesTheLockOfAnotherTypeToThat(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		ls := mutexes(t, s, "/a", "/b", "/c")
		unlock, err := zsync.LockAll(harness.Within(t, time.Second), ls[0], aloofLocker{ls[1].(*zsync.Mutex)}, ls[2])
		harness.Must(t, err)
		harness.Must(t, unlock())
	})
}

// rudeLocker is a Locker that panics.
type rudeLocker struct{ onUnlock bool }

func (rudeLocker) Path() string { return "/b" }

func (r rudeLocker) Lock(context.Context) error {
	if !r.onUnlock {
		panic("rude")
	}
	return nil
}

func (rudeLocker) Unlock() error { panic("rude") }

func TestALockerThatPanicsLeavesNoneOfTheOthersLocked(t *testing.T) {
	for _, onUnlock := range []bool{false, true} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			ls := append(mutexes(t, suite.Open(t, srv), "/a", "/c"), rudeLocker{onUnlock})
			func() {
				defer func() {
					if v := recover(); v != "rude" {
						t.Errorf("recovered %v, want the panic to go on", v)
					}
				}()
				unlock, err := zsync.LockAll(t.Context(), ls...)
				harness.Must(t, err)
				unlock()
			}()
			wantLines(t, suite.Open(t, srv), "afterwards", map[string]int{"/a": 0, "/c": 0})
		})
	}
}

// A locker panics when LockAll unlocks it, because a later one cannot be locked. The caller gets the panic.
func TestALockerThatPanicsWhenLockAllFailsLeavesNoneOfTheOthersLocked(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		closed := suite.Open(t, srv)
		harness.Must(t, closed.Close())
		ls := append(mutexes(t, suite.Open(t, srv), "/a"), rudeLocker{true}, zsync.NewMutex(closed, "/c"))
		func() {
			defer func() {
				if v := recover(); v != "rude" {
					t.Errorf("recovered %v, want the panic of Unlock", v)
				}
			}()
			zsync.LockAll(t.Context(), ls...)
		}()
		wantLines(t, suite.Open(t, srv), "afterwards", map[string]int{"/a": 0})
	})
}

// Each lock is held through its own session.
func TestLockAllThroughTwoSessionsLosesWithEachWhatIsItsOwn(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, second := suite.Open(t, srv), suite.Open(t, srv)
		a, b, c := zsync.NewMutex(s, "/a"), zsync.NewMutex(s, "/b"), zsync.NewMutex(second, "/c")
		unlock, err := zsync.LockAll(t.Context(), a, b, c)
		harness.Must(t, err)
		srv.Expire(s.ID())
		time.Sleep(harness.Timeout)
		if !harness.ClosedFunc(a.Lost())() || !harness.ClosedFunc(b.Lost())() || harness.ClosedFunc(c.Lost())() {
			t.Error("want the first two lost, and the third not")
		}
		wantLines(t, second, "after the loss", map[string]int{"/a": 0, "/b": 0, "/c": 1})
		harness.WantErr(t, unlock(), zsync.ErrLost)
	})
}

// A lock that fails before it comes to the line gives up what was taken along for it.
func TestLockAllThatFailsOnTheWayKeepsNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		ls := mutexes(t, s, "/a", "/c")
		harness.Must(t, zsync.NewMutex(s, "/b").Do(t.Context(), func(ctx context.Context) error {
			_, err := zsync.LockAll(ctx, append(ls, zsync.NewMutex(s, "/b"))...) // another value of the path
			harness.WantErr(t, err, zsync.ErrDeadlock)
			return nil
		}))
		rw := zsync.NewRWMutex(s, "/r")
		harness.Must(t, rw.RDo(t.Context(), func(ctx context.Context) error {
			_, err := zsync.LockAll(ctx, append(ls, zsync.NewRWMutex(s, "/r").RLocker())...)
			harness.WantErr(t, err, zsync.ErrDeadlock)
			return nil
		}))
		time.Sleep(time.Second)
		wantLines(t, other, "afterwards", map[string]int{"/a": 0, "/b": 0, "/c": 0, "/r": 0})
	})
}

// Many lock random sets of locks, some of them one by one in their order, through
// sessions that are harmed. Nobody waits for ever, and none is held twice.
func TestHammerLockAll(t *testing.T) {
	t.Parallel()
	for seed := range harness.Seeds(t, 3, 3, 40) {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 1))
			paths := []string{"/a", "/b", "/c", "/d", "/e"}
			var writers, readers [5]atomic.Int32
			var wg sync.WaitGroup
			var rounds atomic.Int64
			srv.SetLatency(way)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for i := range 3 {
				s := suite.Open(t, srv)
				var rws []*zsync.RWMutex
				for j, p := range paths {
					opts := [][]zsync.LockOption{nil, {zsync.WithRetention(time.Second)}, {zsync.WithHandoffs(0)}}[(i+j)%3]
					rws = append(rws, zsync.NewRWMutex(s, p, opts...))
				}
				for range 3 {
					rnd := rand.New(rand.NewPCG(rnd.Uint64(), 2))
					wg.Go(func() {
						for ctx.Err() == nil {
							var ls []zsync.Locker
							var writes, reads []int
							for j, rw := range rws {
								switch rnd.IntN(4) {
								case 0:
									ls, writes = append(ls, rw), append(writes, j)
								case 1:
									ls, reads = append(ls, rw.RLocker()), append(reads, j)
								}
							}
							unlock, err := lockSome(ctx, rnd.IntN(3) == 0, ls)
							if err != nil {
								if ctx.Err() == nil {
									t.Error(err)
								}
								continue
							}
							harm := s.Stats().Expiries
							for _, j := range writes {
								if writers[j].Add(1) > 1 || readers[j].Load() > 0 {
									t.Errorf("seed %d: %s is held twice", seed, paths[j])
								}
							}
							for _, j := range reads {
								if readers[j].Add(1); writers[j].Load() > 0 {
									t.Errorf("seed %d: %s is read while it is written", seed, paths[j])
								}
							}
							time.Sleep(time.Duration(rnd.IntN(30)) * time.Millisecond)
							for _, j := range writes {
								writers[j].Add(-1)
							}
							for _, j := range reads {
								readers[j].Add(-1)
							}
							if err := unlock(); err != nil && s.Stats().Expiries == harm {
								t.Error(err)
							}
							rounds.Add(1)
						}
					})
				}
				if i == 0 {
					continue
				}
				wg.Go(func() { // a connection is harmed, not its session: so no hold is lost
					for ctx.Err() == nil {
						time.Sleep(time.Duration(500+i*300) * time.Millisecond)
						srv.Disconnect(s.ID())
					}
				})
			}
			wg.Wait()
			srv.SetLatency(0)
			if n := rounds.Load(); n < 300 {
				t.Errorf("seed %d: %d rounds in a minute", seed, n)
			}
		})
	}
}

// lockSome locks ls with LockAll, or, by hand, one by one in their order.
func lockSome(ctx context.Context, byHand bool, ls []zsync.Locker) (unlock func() error, err error) {
	if !byHand {
		return zsync.LockAll(ctx, ls...)
	}
	unlock = func() (err error) {
		for _, l := range slices.Backward(ls) {
			err = errors.Join(err, l.Unlock())
		}
		return err
	}
	for i, l := range ls {
		if err := l.Lock(ctx); err != nil {
			ls = ls[:i]
			return nil, errors.Join(err, unlock())
		}
	}
	return unlock, nil
}

// A goroutine waits for a lock that LockAll of another has lost. LockAll waits for a second lock, and
// the goroutine does not.
func TestALockThatIsLostWhileLockAllWaitsForAnotherIsUnlocked(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		a, b, theirs := zsync.NewMutex(s, "/a"), zsync.NewMutex(s, "/b"), zsync.NewMutex(other, "/b")
		harness.Must(t, theirs.Lock(t.Context()))
		both := harness.Async(func() error {
			unlock, err := zsync.LockAll(t.Context(), a, b)
			if err != nil {
				return err
			}
			return unlock()
		})
		harness.PendingStill(t, both)
		one := harness.Async(func() error { return a.Lock(t.Context()) })
		harness.PendingStill(t, one)
		srv.Expire(s.ID())
		time.Sleep(harness.Timeout / 2)
		harness.Must(t, <-one)
		harness.PendingStill(t, both)
		harness.Must(t, a.Unlock())
		harness.Must(t, theirs.Unlock())
		harness.Must(t, <-both)
	})
}

// A locker that was badly made is refused before the lockers ahead of it in the order are locked.
func TestLockAllRefusesABadLockerBeforeItLocksAny(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		good := zsync.NewMutex(s, "/a")
		for name, bad := range map[string]zsync.Locker{
			"path":   zsync.NewMutex(s, "b"),
			"option": zsync.NewRWMutex(s, "/b", zsync.WithHandoffs(-1)).RLocker(),
			"zero":   new(zsync.RWMutex),
			"nil":    nil,
			"no one": (*zsync.Mutex)(nil),
		} {
			before := s.Stats().Requests
			_, err := zsync.LockAll(t.Context(), good, bad)
			harness.WantErr(t, err, zsync.ErrInvalid)
			if !strings.Contains(err.Error(), "locker 1") {
				t.Errorf("%s: the error does not name the locker: %v", name, err)
			}
			if n := s.Stats().Requests - before; n != 0 {
				t.Errorf("%s: %d requests before the refusal, want none", name, n)
			}
		}
	})
}

// The loss of one lock ends the wait for the next. Before that wait has returned, the context of LockAll
// ends, too. The error is that of the context, because LockAll would begin again after a loss.
func TestLockAllFailsWithTheErrorOfItsContextThoughALossHasEndedItsWait(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		harness.Must(t, zsync.NewMutex(other, "/b").Lock(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		got := harness.Async(func() error {
			_, err := zsync.LockAll(ctx, zsync.NewMutex(s, "/a"), endingLocker{zsync.NewMutex(s, "/b"), cancel})
			return err
		})
		harness.PendingStill(t, got)
		for _, name := range suite.ChildrenOf(t, other, "/a") {
			harness.Must(t, harness.Plain(t, srv).Delete("/a/"+name, -1))
		}
		err := <-got
		harness.WantErr(t, err, context.Canceled)
		if errors.Is(err, zsync.ErrLost) {
			t.Errorf("LockAll: %v", err)
		}
	})
}

// An endingLocker calls end when its Lock returns.
type endingLocker struct {
	*zsync.Mutex
	end func()
}

func (l endingLocker) Lock(ctx context.Context) error {
	defer l.end()
	return l.Mutex.Lock(ctx)
}

// A cause that is a slice cannot be compared with another.
type causes []string

func (c causes) Error() string { return fmt.Sprint([]string(c)) }

func TestLockAllEndsWithAContextWhoseCauseCannotBeCompared(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx, cancel := context.WithCancelCause(t.Context())
		got := lockAllWaits(t, ctx, suite.Open(t, srv), suite.Open(t, srv))
		cancel(causes{"no longer needed"})
		harness.WantErr(t, <-got, context.Canceled)
	})
}
