package txn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// A fate is the result of a transaction for its caller.
type fate struct {
	err   error
	names []string // of its sequential child
}

func (f fate) refused() bool {
	return f.err != nil && !strings.Contains(f.err.Error(), "may have been") &&
		(session.IsNoNode(f.err) || session.IsBadVersion(f.err) || session.IsNodeExists(f.err) || session.IsAnswer(f.err, zk.ErrNoAuth))
}

type tally struct{ applied, refused, unknown, deadline, lost, unsure int }

// A client makes transactions. Its connection moves from member to member, members hold requests
// back, replies are lost and sessions end. The servers apply each transaction once if its caller
// gets no error, never if its caller gets a refusal, and at most once otherwise.
func TestPrograms(t *testing.T) {
	n, first := 200, 0
	if s, err := strconv.Atoi(os.Getenv("PROGRAMS")); err == nil {
		n = s
	}
	if s, err := strconv.Atoi(os.Getenv("SEED")); err == nil {
		first, n = s, 1
	}
	var sum tally
	var all []string
	for seed := first; seed < first+n; seed++ {
		var faults []string
		harness.VirtualTime(t, func(t *testing.T) { faults = program(t, uint64(seed), &sum) })
		for _, p := range faults {
			all = append(all, fmt.Sprintf("seed %d: %s", seed, p))
		}
	}
	for _, f := range all {
		t.Error(f)
	}
	t.Logf("%+v", sum)
}

func program(t *testing.T, seed uint64, sum *tally) (faults []string) {
	rng := rand.New(rand.NewPCG(seed, 7))
	across := seed%2 == 1
	e := zktest.StartEnsemble(t, 3, zktest.WithTick(2*time.Second))
	b := harness.NewRoute(e, rng.IntN(3))
	o := connect(t, e.Addrs(), e.Dial)
	for _, p := range []string{"/t", "/s", "/gate", "/keep-receipts/keep"} {
		_, err := znodes.Create(t.Context(), live(t, o), p, nil)
		must(t, err)
	}
	s := connect(t, e.Addrs(), b.Dial)
	o1 := o.ID()

	// Faults of single requests.
	var mu sync.Mutex
	frng := rand.New(rand.NewPCG(seed, 8))
	rate, noAuth := rng.IntN(20), rng.IntN(4) == 0 && os.Getenv("NOAUTH") != "no"
	on := true
	for i := range 3 {
		e.Server(i).Intercept(func(r zktest.Request) zktest.Action {
			mu.Lock()
			defer mu.Unlock()
			if !on || r.Session == o1 || r.Op == zktest.OpConnect || r.Op == zktest.OpPing || frng.IntN(100) >= rate {
				return zktest.Pass
			}
			switch frng.IntN(5) {
			case 0:
				return zktest.DropRequest
			case 1:
				return zktest.Fail(-127)
			case 2:
				if noAuth && (r.Op == zktest.OpMulti || r.Op == zktest.OpSetData || r.Op == zktest.OpCreate) {
					return zktest.Fail(zktest.CodeNoAuth)
				}
			}
			return zktest.DropReply
		})
	}

	// The transactions.
	var fates sync.Map
	var wg sync.WaitGroup
	workers, each := 1+rng.IntN(4), 2+rng.IntN(4)
	for w := range workers {
		r := rand.New(rand.NewPCG(seed, 100+uint64(w)))
		for i := range each {
			must(t, o.m.During(t.Context(), func(inc *session.Incarnation) error {
				_, err := znodes.Create(t.Context(), inc, fmt.Sprintf("/t/%d-%d", w, i), nil)
				return err
			}))
		}
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("%d-%d", w, i)
				ops := []any{&zk.SetDataRequest{Path: "/t/" + id, Version: -1}}
				switch r.IntN(4) {
				case 0:
					var gate *zk.Stat
					must(t, o.m.During(t.Context(), func(inc *session.Incarnation) (err error) {
						gate, err = inc.Exists(t.Context(), "/gate")
						return err
					}))
					ops = append(ops, &zk.CheckVersionRequest{Path: "/gate", Version: gate.Version + int32(r.IntN(2))})
				case 1:
					ops = append(ops, &zk.CheckVersionRequest{Path: "/flag", Version: -1})
				case 2:
					ops = append(ops, &zk.CreateRequest{Path: "/s/" + id + "-", Flags: zk.FlagSequence, Acl: zk.WorldACL(zk.PermAll)})
				}
				limit := 10 * time.Minute
				if r.IntN(5) == 0 {
					limit = time.Duration(r.IntN(2000)) * time.Millisecond
				}
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				before, _ := s.m.Incarnation(context.Background())
				var rs []zk.MultiResponse
				var err error
				if across {
					rs, err = Across(ctx, s.m, "/keep-receipts", ops)
				} else {
					rs, err = Session(ctx, s.m, ops)
				}
				after, _ := s.m.Incarnation(context.Background())
				cut := ctx.Err() != nil || after != before // the names that it created may be unknown
				cancel()
				f := fate{err: err}
				if c, ok := ops[len(ops)-1].(*zk.CreateRequest); ok && err == nil && !across && !cut {
					if f.names = []string{rs[1].String}; !strings.HasPrefix(rs[1].String, c.Path) {
						mu.Lock()
						faults = append(faults, fmt.Sprintf("%s: name %q", id, rs[1].String))
						mu.Unlock()
					}
				}
				fates.Store(id, f)
				time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()

	// The faults of the connection and of the ensemble.
	nap := func(ms int) { time.Sleep(time.Duration(rng.IntN(ms*1000)) * time.Microsecond) }
	flag := false
	world := func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		inc, err := o.m.Incarnation(ctx)
		if err != nil {
			return
		}
		if rng.IntN(2) == 0 {
			inc.Set(ctx, "/gate", nil, -1)
			return
		}
		if flag = !flag; flag {
			znodes.Create(ctx, inc, "/flag", nil)
		} else {
			znodes.RemoveNow(ctx, inc, "/flag")
		}
	}
	e.SetBacklog(time.Duration(rng.IntN(4)) * 5 * time.Millisecond)
	quick := rng.IntN(2) == 0 // if true, no member crashes
	for extra := 10; extra > 0; {
		select {
		case <-done:
			extra--
		default:
		}
		a, ld := b.At(), e.Leader()
		switch k := rng.IntN(100); {
		case k < 20:
			b.Move(rng.IntN(3))
		case k < 35:
			if ld >= 0 && a != ld {
				e.Cut(a, ld)
			}
		case k < 45:
			e.HealAll()
		case k < 75: // away, and back again
			if ld < 0 || a == ld {
				b.Move((a + 1) % 3)
				break
			}
			e.Cut(a, ld)
			nap(60)
			hops := 1 + rng.IntN(2)
			for range hops {
				b.Move((b.At() + 1 + rng.IntN(2)) % 3)
				nap(60)
				if rng.IntN(2) == 0 {
					world()
				}
				if c := b.At(); c != ld && rng.IntN(2) == 0 {
					e.Cut(c, ld)
				}
				nap(100)
			}
			b.Move(a)
			nap(100)
			e.Heal(a, ld)
		case k < 85:
			world()
		case k < 90:
			e.SetBacklog(time.Duration(rng.IntN(4)) * 5 * time.Millisecond)
		case k < 94:
			e.Expire(s.ID())
		case k < 95 && !quick && ld >= 0:
			e.Crash(ld)
			nap(4000)
			e.Restart(ld)
		}
		nap(80)
	}
	<-done
	mu.Lock()
	on = false
	mu.Unlock()
	b.Move(0)
	time.Sleep(100 * time.Millisecond)
	e.HealAll()
	e.SetBacklog(0)
	time.Sleep(time.Minute)
	for i := range 3 { // back to a member that holds requests
		b.Move(i)
		time.Sleep(20 * time.Second)
	}

	// The oracle.
	inc := live(t, o)
	kids, _, err := inc.ChildrenFresh(t.Context(), "/s")
	must(t, err)
	for w := range workers {
		for i := range each {
			id := fmt.Sprintf("%d-%d", w, i)
			stat, err := inc.ExistsFresh(t.Context(), "/t/"+id)
			must(t, err)
			v, _ := fates.Load(id)
			f, n := v.(fate), int(stat.Version)
			switch {
			case f.err == nil:
				sum.applied++
				if n != 1 {
					faults = append(faults, fmt.Sprintf("%s: said to be applied, and was %d times", id, n))
				}
			case f.refused():
				sum.refused++
				if n != 0 {
					faults = append(faults, fmt.Sprintf("%s: said to be refused (%v), and was applied %d times", id, f.err, n))
				}
			default:
				sum.unknown++
				if n > 1 {
					faults = append(faults, fmt.Sprintf("%s: %v: applied %d times", id, f.err, n))
				}
				switch {
				case errors.Is(f.err, context.DeadlineExceeded):
					sum.deadline++
				case errors.Is(f.err, session.ErrLost):
					sum.lost++
				}
				if !errors.Is(f.err, context.DeadlineExceeded) && !errors.Is(f.err, session.ErrLost) && !noAuth {
					sum.unsure++
					faults = append(faults, fmt.Sprintf("%s: %v: why is that not known?", id, f.err))
				}
			}
			for _, name := range f.names {
				if !strings.Contains(" "+strings.Join(kids, " ")+" ", " "+strings.TrimPrefix(name, "/s/")+" ") {
					faults = append(faults, fmt.Sprintf("%s: %s is not there: %v", id, name, kids))
				}
			}
		}
	}
	if across {
		if names, _, _ := inc.ChildrenFresh(t.Context(), "/keep-receipts"); len(names) != 1 {
			faults = append(faults, fmt.Sprintf("left: %v", names))
		}
	} else {
		left := 0
		names, _, _ := inc.ChildrenFresh(t.Context(), "/")
		for _, name := range names {
			if strings.HasPrefix(name, "_c_") {
				left++
			}
		}
		if left > 16 {
			faults = append(faults, fmt.Sprintf("%d logs are left", left))
		}
	}
	return faults
}
