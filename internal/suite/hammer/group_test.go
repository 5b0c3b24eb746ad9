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
