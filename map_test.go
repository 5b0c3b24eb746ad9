package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

func TestMapDoesWhatSyncMapDoes(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		ctx := within(t, 2*time.Minute)
		a, b := zsync.NewMap[int](connect(), "/deep/map"), zsync.NewMap[int](connect(), "/deep/map")
		_, none, err := a.Load(ctx, "k")
		wantErr(t, err, zsync.ErrNoValue)
		must(t, a.Delete(ctx, "k")) // of nothing
		if n, err := b.Len(ctx); n != 0 || err != nil {
			t.Fatalf("Len = %d, %v", n, err)
		}
		loadOrStore := func(m *zsync.Map[int], key string, v, want int, loaded bool) {
			t.Helper()
			if got, l, err := m.LoadOrStore(ctx, key, v); got != want || l != loaded || err != nil {
				t.Fatalf("LoadOrStore(%q, %d) = %d, %v, %v; want %d, %v", key, v, got, l, err, want, loaded)
			}
		}
		load := func(m *zsync.Map[int], key string, want int) zsync.Version {
			t.Helper()
			v, version, err := m.Load(ctx, key)
			if v != want || err != nil {
				t.Fatalf("Load(%q) = %d, %v; want %d", key, v, err, want)
			}
			return version
		}
		is := func(name string, ok bool, err error, want bool) {
			t.Helper()
			if ok != want || err != nil {
				t.Fatalf("%s = %v, %v; want %v", name, ok, err, want)
			}
		}
		loadOrStore(a, "k", 1, 1, false)
		loadOrStore(b, "k", 2, 1, true)
		must(t, b.Store(ctx, "k", 3))
		v3 := load(a, "k", 3)
		ok, err := b.CompareAndSwap(ctx, "k", none, 9)
		is("CompareAndSwap with the zero Version", ok, err, false)
		ok, err = b.CompareAndSwap(ctx, "k", v3, 4)
		is("CompareAndSwap", ok, err, true)
		ok, err = a.CompareAndSwap(ctx, "k", v3, 5)
		is("CompareAndSwap of an old Version", ok, err, false)
		v, loaded, err := a.Swap(ctx, "k", 6)
		is("Swap", loaded && v == 4, err, true)
		v, loaded, err = a.Swap(ctx, "new", 7)
		is("Swap of no value", !loaded && v == 0, err, true)
		v6 := load(b, "k", 6)
		ok, err = a.CompareAndDelete(ctx, "k", v3)
		is("CompareAndDelete of an old Version", ok, err, false)
		ok, err = a.CompareAndDelete(ctx, "k", v6)
		is("CompareAndDelete", ok, err, true)
		ok, err = a.CompareAndDelete(ctx, "k", v6)
		is("CompareAndDelete of nothing", ok, err, false)
		// Stored again, the znode's counter is what it was.
		must(t, b.Store(ctx, "k", 8))
		must(t, b.Store(ctx, "k", 8))
		must(t, b.Store(ctx, "k", 8))
		ok, err = a.CompareAndSwap(ctx, "k", v6, 9)
		is("CompareAndSwap across a deletion", ok, err, false)
		ok, err = a.CompareAndSwap(ctx, "other", none, 10)
		is("CompareAndSwap that creates", ok, err, true)
		var keys []string
		must(t, a.Range(ctx, func(key string, v int) bool { keys = append(keys, fmt.Sprint(key, v)); return true }))
		if got := strings.Join(keys, " "); got != "k8 new7 other10" {
			t.Errorf("Range went through %q", got)
		}
		keys = nil
		must(t, a.Range(ctx, func(key string, v int) bool { keys = append(keys, key); return false }))
		if len(keys) != 1 {
			t.Errorf("Range went on after false: %q", keys)
		}
		for e, err := range b.All(ctx) {
			must(t, err)
			ok, err := b.CompareAndDelete(ctx, e.Key, e.Version)
			is("CompareAndDelete of an entry", ok, err, true)
			break
		}
		v, loaded, err = b.LoadAndDelete(ctx, "new")
		is("LoadAndDelete", loaded && v == 7, err, true)
		v, loaded, err = b.LoadAndDelete(ctx, "new")
		is("LoadAndDelete of nothing", !loaded && v == 0, err, true)
		must(t, b.Store(ctx, "x", 1))
		must(t, a.Clear(ctx))
		if n, err := b.Len(ctx); n != 0 || err != nil {
			t.Errorf("Len after Clear = %d, %v", n, err)
		}
	})
}

func TestAnyStringIsAKeyOfAMap(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := zsync.NewMap[string](open(t, srv), "/m")
		keys := []string{"", ".", "..", "/", "a/b", "%", "%2E", "ä", "\x00\x1f\x7f", "\xff\xfe", "\uFFFD", "a b", "日本", "..."}
		for _, key := range keys {
			must(t, m.Store(t.Context(), key, fmt.Sprintf("value of %q", key)))
		}
		seen := make(map[string]bool)
		must(t, m.Range(t.Context(), func(key, _ string) bool { seen[key] = true; return true }))
		for _, key := range keys {
			if !seen[key] {
				t.Errorf("%q is not among the keys", key)
			}
			must(t, m.Delete(t.Context(), key))
		}
		if len(seen) != len(keys) {
			t.Errorf("%d keys, want %d", len(seen), len(keys))
		}
		wantErr(t, m.Store(t.Context(), strings.Repeat("k", 2048), ""), zsync.ErrInvalid)
		wantErr(t, m.Store(t.Context(), "big", strings.Repeat("x", 1<<20)), zsync.ErrTooLarge)
		if n, err := m.Len(t.Context()); n != 0 || err != nil {
			t.Errorf("Len = %d, %v", n, err)
		}
	})
}

func TestMapRefusesBadInput(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for _, m := range []*zsync.Map[int]{zsync.NewMap[int](nil, "/m"), zsync.NewMap[int](s, "m"), zsync.NewMap[int](s, "/m", nil), {}} {
			_, _, err := m.Load(t.Context(), "k")
			wantErr(t, err, zsync.ErrInvalid)
			wantErr(t, m.Store(t.Context(), "k", 1), zsync.ErrInvalid)
			wantErr(t, m.Clear(t.Context()), zsync.ErrInvalid)
			wantErr(t, m.Range(t.Context(), func(string, int) bool { return true }), zsync.ErrInvalid)
			if _, ok := <-m.Watch(t.Context()); ok {
				t.Error("Watch of a bad Map is open")
			}
		}
		wantErr(t, zsync.NewMap[int](s, "/m").Range(t.Context(), nil), zsync.ErrInvalid)
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		wantErr(t, zsync.NewMap[int](s, "/m").Store(ctx, "k", 1), cause, context.Canceled)
	})
}

func TestMapWithKeysThatCannotBeDecodedGivesTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		must(t, zsync.NewMap[string](s, "/m").Store(t.Context(), "bad", "text"))
		m := zsync.NewMap[int](s, "/m")
		must(t, m.Store(t.Context(), "good", 1))
		var got []string
		err := m.Range(t.Context(), func(key string, v int) bool { got = append(got, fmt.Sprint(key, v)); return true })
		if err == nil || len(got) != 1 || got[0] != "good1" {
			t.Errorf("Range went through %v, %v", got, err)
		}
		_, version, err := m.Load(t.Context(), "bad")
		if err == nil || version == (zsync.Version{}) {
			t.Errorf("Load = %v, %v; want an error and the Version", version, err)
		}
		if ok, err := m.CompareAndSwap(t.Context(), "bad", version, 2); !ok || err != nil {
			t.Errorf("CompareAndSwap = %v, %v", ok, err)
		}
		if all := <-m.Watch(within(t, time.Minute)); !maps.Equal(all, map[string]int{"good": 1, "bad": 2}) {
			t.Errorf("Watch gives %v", all)
		}
	})
}

func TestRangeAndWatchOfAMapAreOneMoment(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		srv.SetLatency(time.Millisecond)
		s := open(t, srv)
		const keys = 300
		writer := zsync.NewMap[int](open(t, srv), "/m")
		for i := range keys {
			must(t, writer.Store(t.Context(), fmt.Sprint(i), 0))
		}
		// The keys are raised one after the other: at any moment key i is not
		// behind key i+1, and the first is ahead of the last by one at most.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := async(func() error {
			for round := 1; ; round++ {
				for i := range keys {
					if err := writer.Store(ctx, fmt.Sprint(i), round); err != nil {
						return err
					}
					if i%50 == 0 {
						time.Sleep(40 * time.Millisecond) // so that a quiet moment comes
					}
				}
			}
		})
		check := func(all map[string]int) {
			t.Helper()
			for i := range keys - 1 {
				if a, b := all[fmt.Sprint(i)], all[fmt.Sprint(i+1)]; a < b || a > all["0"] {
					t.Fatalf("key %d is %d and key %d is %d", i, a, i+1, b)
				}
			}
			if all["0"]-all[fmt.Sprint(keys-1)] > 1 {
				t.Fatalf("the first key is %d, the last %d", all["0"], all[fmt.Sprint(keys-1)])
			}
		}
		m := zsync.NewMap[int](s, "/m")
		for range 5 {
			all := make(map[string]int)
			must(t, m.Range(t.Context(), func(key string, v int) bool { all[key] = v; return true }))
			check(all)
		}
		seen := 0
		for all := range m.Watch(ctx) {
			check(all)
			if seen++; seen == 10 {
				cancel()
			}
		}
		<-done
	})
}

// While every round trip finds some of 128 keys changed, it is not enough to read those
// again: meanwhile others change. A real server takes a moment for each read.
func TestRangeOfAMapInWhichMuchChangesAllTheTimeIsOneMoment(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		const pairs, writers = 64, 8
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		for writer := range writers {
			w := zsync.NewMap[int](open(t, srv), "/m")
			for i := range pairs / writers {
				// The first key of a pair is ahead of the second by one at most.
				first, second := fmt.Sprint(writer, i, "a"), fmt.Sprint(writer, i, "b")
				must(t, w.Store(ctx, first, 0))
				must(t, w.Store(ctx, second, 0))
				wg.Go(func() {
					for n := 1; ctx.Err() == nil; n++ {
						w.Store(ctx, first, n)
						w.Store(ctx, second, n)
						time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
					}
				})
			}
		}
		srv.SetLatency(10 * time.Millisecond)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == s.ID() && r.Op == zktest.OpGetData {
				return zktest.Delay(10 * time.Microsecond)
			}
			return zktest.Pass
		})
		m := zsync.NewMap[int](s, "/m")
		torn := 0
		for range 20 {
			all := make(map[string]int)
			must(t, m.Range(ctx, func(key string, v int) bool { all[key] = v; return true }))
			for key, a := range all {
				name, ok := strings.CutSuffix(key, "a")
				if b := all[name+"b"]; ok && (a < b || a > b+1) {
					torn++
					break
				}
			}
		}
		if torn > 0 {
			t.Errorf("%d of 20 are of no one moment", torn)
		}
	})
}

func TestWatchOfAMapSeesAKeyThatWasDeletedAndMadeAgain(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		m := zsync.NewMap[string](other, "/m")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch := zsync.NewMap[string](s, "/m").Watch(ctx)
		next := func(want map[string]string) {
			t.Helper()
			synctest.Wait()
			if got := <-watch; !maps.Equal(got, want) {
				t.Fatalf("Watch gives %v, want %v", got, want)
			}
		}
		next(map[string]string{}) // there is no znode yet
		must(t, m.Store(ctx, "k", "1"))
		next(map[string]string{"k": "1"})
		srv.Disconnect(s.ID())
		must(t, m.Delete(ctx, "k"))
		must(t, m.Store(ctx, "k", "2")) // its counter is 0 again
		next(map[string]string{"k": "2"})
		srv.Expire(s.ID())
		must(t, m.Store(ctx, "l", "3"))
		next(map[string]string{"k": "2", "l": "3"})
		must(t, m.Clear(ctx))
		for all := range watch { // a snapshot may fall between the deletions
			if len(all) == 0 {
				break
			}
		}
		select {
		case all := <-watch:
			t.Errorf("Watch tells %v though nothing has changed", all)
		case <-time.After(time.Hour):
		}
	})
}

func TestWatchOfAMapSaysWhenItHasCaughtUpWithWhatItMissed(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := zsync.NewMap[int](open(t, srv), "/m")
		must(t, m.Store(t.Context(), "k", 1))
		watch := zsync.NewMap[int](s, "/m").Watch(t.Context())
		next := func(want map[string]int) {
			t.Helper()
			select {
			case got := <-watch:
				if !maps.Equal(got, want) {
					t.Fatalf("Watch gives %v, want %v", got, want)
				}
			case <-time.After(time.Minute):
				t.Fatalf("Watch gives nothing, want %v", want)
			}
		}
		quiet := func() {
			t.Helper()
			select {
			case all := <-watch:
				t.Fatalf("Watch gives %v", all)
			case <-time.After(testTimeout / 2):
			}
		}
		next(map[string]int{"k": 1})
		quiet()
		for range 2 { // whether anything has changed or not
			srv.Disconnect(s.ID())
			next(map[string]int{"k": 1})
			quiet()
		}
		srv.Expire(s.ID())
		next(map[string]int{"k": 1})
		quiet()

		// What the reader has not taken when the connection is lost it does not get
		// any more, though nothing has told that it has changed.
		must(t, m.Store(t.Context(), "k", 2))
		synctest.Wait()
		away := s.ID()
		srv.Partition(away)
		srv.Disconnect(away)
		synctest.Wait() // it has heard of that
		must(t, m.Store(t.Context(), "k", 3))
		quiet()
		srv.Heal(away)
		// A handshake of the partition may arrive now, after that of the next connection. The server then
		// gives the session to the older one, and the client connects once more: a second outage.
		time.Sleep(testTimeout)
		next(map[string]int{"k": 3})
		time.Sleep(time.Hour)
		quiet()
		if away != s.ID() {
			t.Error("the session has ended")
		}

		// Nor while the map is away with its path.
		must(t, m.Clear(t.Context()))
		next(map[string]int{})
		srv.Disconnect(s.ID())
		next(map[string]int{})
		quiet()
	})
}

func TestMapOfTenThousandKeysIsReadAndFollowed(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := zsync.NewMap[int](s, "/m")
		const keys = 10_000
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				for k := i; k < keys; k += 50 {
					if err := m.Store(t.Context(), fmt.Sprint("key", k), k); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Minute)
		// Bundles grow as it is seen how small the values are.
		must(t, m.Range(t.Context(), func(string, int) bool { return true }))
		before := s.Stats().Requests
		n := 0
		must(t, m.Range(t.Context(), func(string, int) bool { n++; return true }))
		if n != keys {
			t.Errorf("Range went through %d keys", n)
		}
		if got := s.Stats().Requests - before; got > 3+2*(keys/128+2) { // bundles of 16 and 64 first
			t.Errorf("Range cost %d requests", got)
		}
		reader := open(t, srv)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch := zsync.NewMap[int](reader, "/m").Watch(ctx)
		if all := <-watch; len(all) != keys {
			t.Errorf("Watch gives %d keys", len(all))
		}
		time.Sleep(time.Minute)
		before = reader.Stats().Requests
		must(t, m.Store(t.Context(), "key77", -1))
		if all := <-watch; all["key77"] != -1 {
			t.Error("Watch missed a change")
		}
		time.Sleep(time.Minute)
		if got := reader.Stats().Requests - before; got != 1 {
			t.Errorf("a change cost %d requests, want 1", got)
		}
		must(t, m.Clear(t.Context()))
	})
}

// A Mutex below the path of a Map has made that as a container, which the servers remove
// when it is empty. A swap that was cut off meanwhile is not applied to the key that has
// been stored anew since.
func TestASwapIsNotAppliedToAKeyStoredAnewThoughTheServersHaveRemovedThePath(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, m *zsync.Map[string]){
		"nothing was deleted": func(*testing.T, *zsync.Map[string]) {},
		"a key was deleted": func(t *testing.T, m *zsync.Map[string]) {
			must(t, m.Store(t.Context(), "other", "1"))
			must(t, m.Delete(t.Context(), "other"))
		},
		"all were deleted": func(t *testing.T, m *zsync.Map[string]) {
			must(t, m.Store(t.Context(), "other", "1"))
			must(t, m.Clear(t.Context()))
		},
		"a key was taken": func(t *testing.T, m *zsync.Map[string]) {
			must(t, m.Store(t.Context(), "other", "1"))
			_, _, err := m.LoadAndDelete(t.Context(), "other")
			must(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				var away atomic.Bool
				a := open(t, srv, zsync.WithDialer(harness.DialUnless(&away, srv)))
				b := open(t, srv)
				lock := zsync.NewMutex(b, "/m/lock")
				must(t, lock.Lock(t.Context()))
				must(t, lock.Unlock())
				ma, mb := zsync.NewMap[string](a, "/m"), zsync.NewMap[string](b, "/m")
				before(t, mb)
				must(t, mb.Store(t.Context(), "k", "old"))
				_, version, err := ma.Load(t.Context(), "k")
				must(t, err)
				id := a.ID()
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == zktest.OpMulti && r.Session == id {
						away.Store(true)
						return zktest.DropRequest
					}
					return zktest.Pass
				})
				type result struct {
					done bool
					err  error
				}
				swapped := make(chan result, 1)
				go func() {
					done, err := ma.CompareAndSwap(t.Context(), "k", version, "swapped")
					swapped <- result{done, err}
				}()
				time.Sleep(time.Second)
				if !away.Load() {
					t.Fatal("nothing was sent")
				}
				must(t, mb.Delete(t.Context(), "k"))
				time.Sleep(5 * time.Minute) // the servers remove what is empty
				before(t, mb)
				must(t, mb.Store(t.Context(), "k", "new"))
				away.Store(false)
				if r := <-swapped; r.done || r.err != nil {
					t.Errorf("swapped: %v, %v", r.done, r.err)
				}
				if v, _, err := mb.Load(t.Context(), "k"); v != "new" || err != nil {
					t.Errorf("the value is %q, %v", v, err)
				}
			})
		})
	}
}

// Case 34: the counter of the servers wraps, and -1 means any.
func TestCase34AKeyAtMinusOneIsDeletedOnlyAsItWasSeen(t *testing.T) {
	const by = -6 // so the sixth write is at -1
	type deletion func(ctx context.Context, m *zsync.Map[int], seen zsync.Version) (int, bool, error)
	for name, c := range map[string]struct {
		delete deletion
		want   int
		loaded bool
	}{
		"LoadAndDelete": {func(ctx context.Context, m *zsync.Map[int], _ zsync.Version) (int, bool, error) {
			return m.LoadAndDelete(ctx, "k")
		}, 6, true},
		"CompareAndDelete": {func(ctx context.Context, m *zsync.Map[int], seen zsync.Version) (int, bool, error) {
			ok, err := m.CompareAndDelete(ctx, "k", seen)
			return 0, ok, err
		}, 0, false},
	} {
		for _, beaten := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, beaten: %v", name, beaten), func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					ctx := t.Context()
					s := open(t, srv, zsync.WithDialer(func(network, addr string, limit time.Duration) (net.Conn, error) {
						c, err := srv.Dial(network, addr, limit)
						return &countedConn{Conn: c, path: "/m/k", by: by, reads: make(map[int32]int32)}, err
					}))
					m, other := zsync.NewMap[int](s, "/m"), zsync.NewMap[int](open(t, srv), "/m")
					for n := range 6 {
						must(t, other.Store(ctx, "k", n))
					}
					_, seen, err := m.Load(ctx, "k")
					if !strings.HasPrefix(seen.String(), "-1@") || err != nil {
						t.Fatalf("Load is at %v, %v", seen, err)
					}
					want, loaded := 5, true
					if name == "CompareAndDelete" {
						want = 0
					}
					if beaten {
						want, loaded = c.want, c.loaded
						first := true
						requestsOf(srv, s, func(_ int, r zktest.Request) zktest.Action {
							if r.Op == zktest.OpMulti && first {
								first = false
								must(t, other.Store(ctx, "k", 6))
							}
							return zktest.Pass
						})
					}
					if v, ok, err := c.delete(ctx, m, seen); v != want || ok != loaded || err != nil {
						t.Errorf("%d, %v, %v; want %d, %v", v, ok, err, want, loaded)
					}
					left := 0
					if !loaded {
						left = 1
					}
					if n, err := other.Len(ctx); n != left || err != nil {
						t.Errorf("%d keys are left, %v; want %d", n, err, left)
					}
				})
			})
		}
	}
}
