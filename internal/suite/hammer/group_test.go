package hammer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

func TestHammerAGroupEndsUpWithThoseWhoAreIn(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		ctx := t.Context()
		var wg sync.WaitGroup
		var sessions []*zsync.Session
		var mu sync.Mutex
		in := make(map[string]string)
		for process := range 3 {
			s := suite.Open(t, srv)
			sessions = append(sessions, s)
			r := rand.New(rand.NewPCG(rnd.Uint64(), 1))
			g := zsync.NewGroup[string](s, "/g")
			wg.Go(func() {
				for n := range 6 {
					id := fmt.Sprint("id", r.IntN(4))
					mu.Lock()
					if _, ok := in[id]; ok { // somebody may be in for long
						mu.Unlock()
						continue
					}
					in[id] = ""
					mu.Unlock()
					info := fmt.Sprint(process, "-", n)
					join, cancel := context.WithTimeout(ctx, time.Duration(1+r.IntN(60))*time.Second)
					m, err := g.Join(join, id, "at first")
					cancel()
					stays := err == nil && r.IntN(3) == 0
					if err == nil {
						if err := m.Set(ctx, info); err != nil {
							t.Error(err)
						}
						time.Sleep(time.Duration(r.IntN(20)) * time.Second)
						if !stays {
							m.Leave()
						}
					} else if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					mu.Lock()
					if in[id] = id + "=" + info; !stays {
						delete(in, id)
					}
					mu.Unlock()
				}
			})
		}
		reader := suite.Open(t, srv)
		watching, stop := context.WithCancel(ctx)
		var last []zsync.Member[string]
		var watched sync.WaitGroup
		watched.Go(func() {
			for last = range zsync.NewGroup[string](reader, "/g").Watch(watching) {
				ids := make(map[string]bool)
				for _, m := range last {
					if ids[m.ID] {
						t.Errorf("two members have the id %q: %v", m.ID, last)
					}
					ids[m.ID] = true
				}
			}
		})
		harness.UnderChaos(t, srv, rnd, append(sessions, reader), wg.Wait)
		time.Sleep(2 * time.Minute) // sessions end, and everyone joins again
		synctest.Wait()
		var want []string
		for _, id := range []string{"id0", "id1", "id2", "id3"} {
			if m := in[id]; m != "" {
				want = append(want, m)
			}
		}
		members, err := zsync.NewGroup[string](sessions[0], "/g").Members(ctx)
		harness.Must(t, err)
		if got := suite.RollCall(members); got != strings.Join(want, " ") {
			t.Errorf("the members are %q, want %q", got, want)
		}
		stop()
		watched.Wait()
		if got := suite.RollCall(last); got != strings.Join(want, " ") {
			t.Errorf("Watch ended with %q, want %q", got, want)
		}
	})
}

// Processes come and go under a few ids. An id has one member at a time, of those
// whose sessions stand; who has joined is found; and who has left is gone.
func TestHammerGroupOnServers(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		until := time.Now().Add(time.Minute)
		type member struct {
			s       *zsync.Session
			session int64 // its session when it had joined
		}
		valid := func(m *member) bool { return m != nil && m.s.ID() == m.session && stands(m.session) }
		var mu sync.Mutex
		in := make(map[string]*member) // from the return of Join to the call of Leave; guarded by mu
		var wg sync.WaitGroup
		for i := range 4 {
			s := connect()
			g := zsync.NewGroup[string](s, "/g")
			for j := range 2 {
				r := rand.New(rand.NewPCG(uint64(i), uint64(j)))
				wg.Go(func() {
					for n := 0; time.Now().Before(until) && !t.Failed(); n++ {
						id, info := fmt.Sprint("id", r.IntN(4)), fmt.Sprint(i, ".", j, ".", n)
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(3000))*time.Millisecond)
						me, err := g.Join(ctx, id, "at first")
						cancel()
						if errors.Is(err, context.DeadlineExceeded) {
							continue
						}
						if err != nil {
							t.Error(err)
							return
						}
						now := &member{s, s.ID()}
						mu.Lock()
						if valid(in[id]) && valid(now) {
							t.Errorf("%q is joined by %#x while the member of %#x has not left", id, now.session, in[id].session)
						}
						in[id] = now
						mu.Unlock()
						err = me.Set(t.Context(), info)
						members, e := g.Members(t.Context())
						if err != nil || e != nil {
							t.Error(err, e)
						}
						if got := " " + suite.RollCall(members) + " "; !strings.Contains(got, " "+id+"="+info+" ") && valid(now) {
							t.Errorf("%s=%s has joined, and the members are%s", id, info, got)
						}
						time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond) // real time: a membership on real servers lasts for a while
						mu.Lock()
						if in[id] == now {
							delete(in, id)
						}
						mu.Unlock()
						me.Leave()
					}
				})
			}
		}
		wg.Wait()
		fresh := zsync.NewGroup[string](connect(), "/g")
		// real time: real servers end sessions meanwhile
		for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
			members, err := fresh.Members(t.Context())
			if harness.Must(t, err); len(members) == 0 {
				break
			}
			if time.Since(start) > time.Minute {
				t.Fatalf("%q have left, and are members", suite.RollCall(members))
			}
		}
	})
}
