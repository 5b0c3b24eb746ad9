package hammer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// The invariants of the hammer: who is elected finds that everyone before has
// given up or knows of the loss (unless the servers end sessions early), what
// leaders write comes in the order of their tokens, and in the end, when all is
// quiet, observers know who leads.
func TestElectionHammer(t *testing.T) {
	runs, terms := 0, 0
	defer func() {
		// What is usual: of 1,000 runs the least had 12 terms, the mean was 32, the
		// deviation 7. So fewer than 20 on average of the 8 of the shortest run are not
		// chance.
		if runs >= 8 && terms < 20*runs {
			t.Errorf("%d terms in %d runs", terms, runs)
		}
	}()
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		strict := rnd.IntN(3) == 0
		sessions := suite.OpenEach(t, srv, 4)
		_, err := sessions[0].Txn(t.Context(), &zk.CreateRequest{Path: "/log"})
		harness.Must(t, err)
		h := electionHammer{t: t, stands: harness.Standing(srv)}
		ctx, cancel := context.WithCancel(t.Context())
		quiet := make(chan struct{})
		var candidates, watchers sync.WaitGroup
		var last [2]string
		for i := range last {
			c := zsync.NewElection(sessions[i], "/e").Observe(t.Context())
			watchers.Go(func() { last[i] = h.watch(c) })
		}
		for i := range 6 {
			e := zsync.NewElection(sessions[i%len(sessions)], "/e", zsync.WithID(fmt.Sprint(i)))
			dice := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
			candidates.Go(func() { h.candidate(ctx, sessions[i%len(sessions)], e, dice) })
		}
		time.AfterFunc(time.Minute, func() { close(quiet) })
		if strict {
			cutOff(srv, rnd, sessions, quiet)
		} else {
			harness.Chaos(t, srv, rnd, sessions, quiet)
		}
		cancel()
		candidates.Wait()
		time.Sleep(2 * harness.Timeout)
		e := zsync.NewElection(sessions[3], "/e", zsync.WithID("the last"))
		harness.Must(t, e.Campaign(t.Context()))
		time.Sleep(2 * harness.Timeout)
		for _, s := range sessions {
			s.Close()
		}
		watchers.Wait()
		h.check()
		runs++
		terms += h.terms
		for _, who := range last {
			if who != "the last" {
				t.Errorf("an observer names %q last", who)
			}
		}
	})
}

// cutOff is chaos of the kind in which sessions end only when they have not
// been heard of for their timeout.
func cutOff(srv *zktest.Server, rnd *rand.Rand, sessions []*zsync.Session, until <-chan struct{}) {
	for {
		id := sessions[rnd.IntN(len(sessions))].ID()
		srv.Partition(id)
		select {
		case <-until:
			srv.Heal(id)
			return
		case <-time.After(time.Duration(rnd.Int64N(int64(2 * harness.Timeout)))):
		}
		srv.Heal(id)
	}
}

type electionHammer struct {
	t      testing.TB
	stands func(session int64) bool

	mu     sync.Mutex
	leads  *visit     // who was elected last; guarded by mu
	writes [][2]int64 // zxid and token of what leaders wrote; guarded by mu
	terms  int        // guarded by mu
}

func (h *electionHammer) valid(v *visit) bool {
	return !harness.Closed(v.lost) && h.stands(v.session)
}

func (h *electionHammer) candidate(ctx context.Context, s *zsync.Session, e *zsync.Election, dice *rand.Rand) {
	for ctx.Err() == nil {
		wait, cancel := context.WithTimeout(ctx, time.Duration(dice.IntN(60_000))*time.Millisecond)
		err := e.Campaign(wait)
		cancel()
		if err != nil {
			if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
				h.t.Errorf("Campaign: %v", err)
			}
			continue
		}
		v := &visit{session: s.ID(), lost: e.Lost()}
		h.mu.Lock()
		// Whose session others have ended was elected before, and is not told yet.
		if last := h.leads; last != nil && h.valid(last) && h.valid(v) {
			h.t.Error("two lead")
		}
		h.leads = v
		h.terms++
		h.mu.Unlock()
		time.Sleep(time.Duration(dice.IntN(1000)) * time.Millisecond) // real time: the first part of a term, also on real servers
		if tok, err := e.Token(ctx); err == nil {
			rs, err := e.Txn(ctx, &zk.SetDataRequest{Path: "/log", Version: -1})
			h.mu.Lock()
			if err == nil && rs[0].Stat != nil {
				h.writes = append(h.writes, [2]int64{rs[0].Stat.Mzxid, tok})
			}
			h.mu.Unlock()
		}
		time.Sleep(time.Duration(dice.IntN(1000)) * time.Millisecond) // real time: the rest of a term, also on real servers
		h.mu.Lock()
		if h.leads == v {
			h.leads = nil
		}
		h.mu.Unlock()
		if err := e.Resign(); err != nil && !errors.Is(err, zsync.ErrLost) {
			h.t.Errorf("Resign: %v", err)
		}
	}
}

// watch reads c to its end and returns whom it names last.
func (h *electionHammer) watch(c <-chan zsync.Contender) (last string) {
	seen := make(map[string]bool)
	for c := range c {
		if seen[c.Node] {
			h.t.Errorf("%s is named again", c.Node)
		}
		seen[c.Node], last = true, c.Owner
	}
	return last
}

func (h *electionHammer) check() {
	slices.SortFunc(h.writes, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
	for i, w := range h.writes {
		if i > 0 && w[1] <= h.writes[i-1][1] {
			h.t.Errorf("token %d wrote after token %d", w[1], h.writes[i-1][1])
		}
	}
	// The worst that a minute can bring: each leader is cut off as it is elected,
	// and holds up the others until the servers end its session, 10 s later and up
	// to a tick of 2 s. So at least one in 12 s is elected. More is not certain in any
	// one run; what is usual is asked of all of them together.
	if h.terms < 60/12 {
		h.t.Errorf("only %d terms", h.terms)
	}
}

func TestElectionHammerOnServers(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		h := electionHammer{t: t, stands: stands}
		s := connect()
		ctx := harness.Within(t, time.Minute)
		harness.Must(t, zsync.NewValue[int](s, "/log").Store(ctx, 0))
		var wg sync.WaitGroup
		for i := range 8 {
			s := connect()
			e := zsync.NewElection(s, "/e", zsync.WithID(fmt.Sprint(i)))
			dice := rand.New(rand.NewPCG(uint64(i), 31))
			wg.Go(func() { h.candidate(ctx, s, e, dice) })
		}
		wg.Wait()
		h.check()
	})
}
