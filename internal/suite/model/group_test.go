package model

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
)

// A rollModel knows who is in a Group.
type rollModel struct {
	mu    sync.Mutex
	in    map[string]*memberModel // by id, from the return of Join to the call of Leave
	infos map[string]bool         // id=info of all that was ever set, or may be
}

type memberModel struct {
	session int64 // its session when it had joined

	// One of which it has: that of the last Set that succeeded, and those of failures
	// since, whose time is zero. Those of before have the time until when they may
	// have been read.
	infos map[string]time.Time
}

// had reports whether m may have had the info at or after t.
func (m *memberModel) had(info string, t time.Time) bool {
	until, ok := m.infos[info]
	return ok && (until.IsZero() || !until.Before(t))
}

// has reports whether m may have the info.
func (m *memberModel) has(info string) bool {
	until, ok := m.infos[info]
	return ok && until.IsZero()
}

// snapshot is what a call of Members must find: those who were in when it began, and
// are when it has ended, as their sessions are.
func (m *rollModel) snapshot() map[string]*memberModel {
	m.mu.Lock()
	defer m.mu.Unlock()
	in := make(map[string]*memberModel)
	for id, member := range m.in {
		in[id] = member
	}
	return in
}

// known says what is wrong with members whoever they should be.
func (m *rollModel) known(t *testing.T, members []zsync.Member[string]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ids := make(map[string]bool)
	for _, one := range members {
		if ids[one.ID] {
			t.Errorf("two members have the id %q: %v", one.ID, members)
		}
		ids[one.ID] = true
		if !m.infos[one.ID+"="+one.Info] {
			t.Errorf("%q has the info %q, which nobody gave it", one.ID, one.Info)
		}
	}
}

// TestModelOfGroup: an id has one member at a time; who has joined is found by every
// Members, by whichever process, until it leaves or its session ends, and then again
// with its next session; with the info that was last set; and who has left is gone.
func TestModelOfGroup(t *testing.T) {
	modelsOf(t, 20, func(r *modelRun) {
		t := r.t
		expire := r.rnd.IntN(2) == 0
		r.refuses, r.freezes = r.rnd.IntN(4) == 0, r.rnd.IntN(2) == 0
		m := rollModel{in: make(map[string]*memberModel), infos: make(map[string]bool)}
		var memberships []*zsync.Membership[string] // that stay until the end
		staying := make(map[string][]*memberModel)  // by id; more than one if a session ended meanwhile
		ids := []string{"a", "b/%", "c"}
		watching, stop := context.WithCancel(t.Context())
		var watched sync.WaitGroup
		last := make([][]zsync.Member[string], len(r.ss))
		for i, s := range r.ss {
			watched.Go(func() {
				for members := range zsync.NewGroup[string](s, "/g").Watch(watching) {
					m.known(t, members)
					last[i] = members
				}
				if watching.Err() == nil && !r.refuses {
					t.Error("Watch has ended")
				}
			})
		}
		r.hurt(expire)
		var wg sync.WaitGroup
		for i, s := range r.ss {
			shared := zsync.NewGroup[string](s, "/g")
			for j := range 2 {
				d := r.dice()
				wg.Go(func() {
					for n := range 5 {
						g := shared
						if d.IntN(3) == 0 {
							g = zsync.NewGroup[string](s, "/g")
						}
						ctx, cancel := cut(t, d)
						if d.IntN(2) == 0 {
							r.roll(ctx, g, &m)
							cancel()
							harness.Nap(d, 20)
							continue
						}
						id, info := ids[d.IntN(len(ids))], fmt.Sprint(i, ".", j, ".", n)
						m.mu.Lock()
						m.infos[id+"="+info] = true
						m.mu.Unlock()
						ctx, cancel = context.WithTimeout(ctx, time.Duration(d.IntN(2000))*time.Millisecond) // others stay
						me, err := g.Join(ctx, id, info)
						if err != nil {
							r.mayFail("join", ctx, err)
							cancel()
							continue
						}
						member := &memberModel{s.ID(), map[string]time.Time{info: {}}}
						m.mu.Lock()
						if other := m.in[id]; other != nil && (!expire || other.session != 0 && r.lives(other.session)) && !r.refuses {
							t.Errorf("%q is joined while another of the session %#x has the id", id, other.session)
						}
						m.in[id] = member
						m.mu.Unlock()
						for k := range d.IntN(3) {
							harness.Nap(d, 30)
							r.set(ctx, me, &m, member, id, fmt.Sprint(info, ".", k))
						}
						harness.Nap(d, 60)
						cancel()
						m.mu.Lock()
						stays := d.IntN(4) == 0 && m.in[id] == member
						if stays {
							memberships = append(memberships, me)
							staying[id] = append(staying[id], member)
						} else if m.in[id] == member {
							delete(m.in, id)
						}
						m.mu.Unlock()
						if !stays {
							me.Leave()
						}
					}
				})
			}
		}
		wg.Wait()
		r.heal()
		time.Sleep(2 * time.Minute) // sessions end, and everyone joins again
		synctest.Wait()
		look := r.open()
		fresh := zsync.NewGroup[string](look, "/g")
		members, err := fresh.Members(t.Context())
		harness.Must(t, err)
		m.known(t, members)
		if !r.refuses { // who was refused may have left the group for good
			if len(members) != len(staying) {
				t.Errorf("the members are %q, want %d", suite.RollCall(members), len(staying))
			}
			for _, one := range members {
				if !slices.ContainsFunc(staying[one.ID], func(member *memberModel) bool { return member.has(one.Info) }) {
					t.Errorf("%q is a member with %q; want %v", one.ID, one.Info, staying[one.ID])
				}
			}
			for _, l := range last {
				if suite.RollCall(l) != suite.RollCall(members) {
					t.Errorf("Watch ended with %q; the members are %q", suite.RollCall(l), suite.RollCall(members))
				}
			}
		}
		for _, me := range memberships {
			harness.Must(t, me.Leave())
		}
		stop()
		watched.Wait()
		time.Sleep(time.Minute)
		if left := suite.ChildrenOf(t, look, "/g"); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
}

// roll calls Members, and holds it against the model.
func (r *modelRun) roll(ctx context.Context, g *zsync.Group[string], m *rollModel) {
	before, call := m.snapshot(), time.Now()
	members, err := g.Members(ctx)
	if err != nil {
		r.mayFail("members", ctx, err)
		return
	}
	m.known(r.t, members)
	if r.refuses {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, member := range before {
		if m.in[id] != member || !r.lives(member.session) {
			continue // left meanwhile, or joins again in the next session
		}
		i := slices.IndexFunc(members, func(one zsync.Member[string]) bool { return one.ID == id })
		switch {
		case i < 0:
			r.t.Errorf("%q has joined, and the members are %q", id, suite.RollCall(members))
		case !member.had(members[i].Info, call):
			r.t.Errorf("%q has the info %q; want one of %v", id, members[i].Info, member.infos)
		}
	}
}

// set calls Set, and tells the model.
func (r *modelRun) set(ctx context.Context, me *zsync.Membership[string], m *rollModel, member *memberModel, id, info string) {
	m.mu.Lock()
	m.infos[id+"="+info] = true
	member.infos[info] = time.Time{}
	m.mu.Unlock()
	err := me.Set(ctx, info)
	if err != nil {
		r.mayFail("set", ctx, err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for other, until := range member.infos {
		if other != info && until.IsZero() {
			member.infos[other] = time.Now()
		}
	}
}

// TestModelOfPartition: no shard has two owners at a time, whatever becomes of
// servers and sessions, with several Runs in a process that come and go and name
// other shards; and in the end each shard that somebody names is owned, evenly.
func TestModelOfPartition(t *testing.T) {
	modelsOf(t, 20, func(r *modelRun) {
		t := r.t
		r.freezes = r.rnd.IntN(2) == 0
		all := []string{"a", "b/%", "c", "d", "e"}
		var alone onlyOne
		var mu sync.Mutex
		owned := make(map[string]int) // by shard, how many functions run
		own := func(ctx context.Context, shard string) error {
			leave := alone.enter(t, shard, ctx)
			mu.Lock()
			owned[shard]++
			mu.Unlock()
			<-ctx.Done()
			leave()
			mu.Lock()
			owned[shard]--
			mu.Unlock()
			return nil
		}
		r.hurt(true)
		var wg sync.WaitGroup
		stay, stop := context.WithCancel(t.Context())
		var last sync.WaitGroup
		for i, s := range r.ss {
			for j := range 2 {
				d := r.dice()
				wg.Go(func() {
					for n := range 2 { // these come and go, with other lists
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(d.IntN(500))*time.Millisecond)
						shards := all[d.IntN(3):]
						short := d.IntN(4) == 0 // its functions return without being asked
						boom := errors.New("boom")
						fails := d.IntN(6) == 0
						err := zsync.NewPartition(s, "/p", zsync.WithMember(fmt.Sprint(i, j, n))).Run(ctx, shards, func(ctx context.Context, shard string) error {
							if short || fails {
								var cancel context.CancelFunc
								ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
								defer cancel()
							}
							own(ctx, shard)
							if fails {
								return boom
							}
							return nil
						})
						if err == nil || !(fails && errors.Is(err, boom)) {
							r.mayFail("run", ctx, err)
						}
						cancel()
						harness.Nap(d, 200)
					}
				})
			}
			last.Go(func() { // one of each process stays
				err := zsync.NewPartition(s, "/p", zsync.WithMember(fmt.Sprint("last", i))).Run(stay, all, own)
				if !errors.Is(err, context.Canceled) {
					t.Errorf("Run = %v", err)
				}
			})
		}
		wg.Wait()
		r.heal()
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		for _, shard := range all {
			if owned[shard] != 1 {
				t.Errorf("in the end %q has %d owners", shard, owned[shard])
			}
		}
		stop()
		last.Wait()
		time.Sleep(time.Minute)
		if left := suite.ChildrenOf(t, r.open(), "/p/members"); len(left) > 0 {
			t.Errorf("members left: %q", left)
		}
	})
}
