package hammer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// hammerMap puts ones into a Map, and takes out what has come together there, loops
// times. It returns how much it has put in and taken out.
func hammerMap(t *testing.T, m *zsync.Map[int], rnd *rand.Rand, loops int) (in, out int) {
	ctx := t.Context()
	check := func(op string, err error) {
		if err != nil {
			t.Errorf("%s: %v", op, err)
		}
	}
	for range loops {
		key := fmt.Sprint("key/", rnd.IntN(3))
		v, version, err := m.Load(ctx, key)
		if err != nil && !errors.Is(err, zsync.ErrNoValue) {
			check("Load", err)
			return in, out
		}
		switch rnd.IntN(6) {
		case 0, 1: // the zero Version if it is not there
			ok, err := m.CompareAndSwap(ctx, key, version, v+1)
			if check("CompareAndSwap", err); ok {
				in++
			}
		case 2:
			_, loaded, err := m.LoadOrStore(ctx, key, 1)
			if check("LoadOrStore", err); !loaded && err == nil {
				in++
			}
		case 3:
			former, _, err := m.Swap(ctx, key, 1)
			if check("Swap", err); err == nil {
				in, out = in+1, out+former
			}
		case 4:
			former, _, err := m.LoadAndDelete(ctx, key)
			check("LoadAndDelete", err)
			out += former
		case 5:
			if version == (zsync.Version{}) {
				continue
			}
			ok, err := m.CompareAndDelete(ctx, key, version)
			if check("CompareAndDelete", err); ok {
				out += v
			}
		}
	}
	return in, out
}

// hammerMaps has each session hammer the Map at /m for as long as more says. What was
// put in was taken out once or is there still, whatever replies are lost; and all who
// watch end up with that.
func hammerMaps(t *testing.T, rnd *rand.Rand, sessions []*zsync.Session, under func(f func()), loops int, more func() bool) {
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	sum := 0
	var working, watched sync.WaitGroup
	last := make([]map[string]int, len(sessions))
	for i, s := range sessions {
		watched.Go(func() {
			for all := range zsync.NewMap[int](s, "/m").Watch(watching) {
				mu.Lock()
				last[i] = all
				mu.Unlock()
			}
		})
		for range 2 {
			src := rand.New(rand.NewPCG(rnd.Uint64(), 3))
			working.Go(func() {
				for m := zsync.NewMap[int](s, "/m"); more() && !t.Failed(); {
					in, out := hammerMap(t, m, src, loops)
					mu.Lock()
					sum += in - out
					mu.Unlock()
				}
			})
		}
	}
	under(working.Wait)
	now := make(map[string]int)
	harness.Must(t, zsync.NewMap[int](sessions[0], "/m").Range(t.Context(), func(key string, v int) bool {
		now[key] = v
		sum -= v
		return true
	}))
	if sum != 0 {
		t.Errorf("%d more were put in than were taken out or are there: %v", sum, now)
	}
	for i := range last {
		// real time: watches bring the last changes, also on real servers
		for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
			mu.Lock()
			all := last[i]
			mu.Unlock()
			if maps.Equal(all, now) {
				break
			}
			if time.Since(start) > time.Minute {
				t.Errorf("Watch ends with %v; the map is %v", all, now)
				break
			}
		}
	}
	stop()
	watched.Wait()
}

func TestHammerMapLosesNothingAndDoublesNothing(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		sessions := suite.OpenEach(t, srv, 3)
		rounds := make(chan struct{}, 2*len(sessions)) // one for each who works
		for range cap(rounds) {
			rounds <- struct{}{}
		}
		srv.SetLatency(20 * time.Millisecond) // so that something happens meanwhile
		under := func(f func()) { harness.UnderChaos(t, srv, rnd, sessions, f) }
		hammerMaps(t, rnd, sessions, under, 15, func() bool {
			select {
			case <-rounds:
				return true
			default:
				return false
			}
		})
	})
}

func TestHammerMapOnServers(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		until := time.Now().Add(time.Minute)
		hammerMaps(t, rand.New(rand.NewPCG(1, 1)), []*zsync.Session{connect(), connect(), connect(), connect()}, func(f func()) { f() }, 20,
			func() bool { return time.Now().Before(until) })
	})
}
