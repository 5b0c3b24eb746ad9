package lock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// A contender waits behind three, and lists the line. When that is under way all three leave, and
// the contender's own znode is deleted, or its directory, which another contender makes anew, with
// numbers that begin again. Neither the listing, which is answered then, nor the deletion of the
// nearest of the three gives it a turn.
func TestAContenderThatIsDeletedWhileItListsTheLineHasNoTurn(t *testing.T) {
	t.Parallel()
	for _, anew := range []bool{false, true} {
		for _, reconnects := range []bool{false, true} {
			for _, first := range []string{"listing", "deletions"} {
				deletedWhileItLists(t, anew, reconnects, first)
			}
		}
	}
}

// deletedWhileItLists is one such program; first says what the contender's server executes first.
func deletedWhileItLists(t *testing.T, anew, reconnects bool, first string) {
	harness.VirtualTime(t, func(t *testing.T) {
		what := fmt.Sprintf("made anew: %v, reconnects: %v, first: %s", anew, reconnects, first)
		srv := zktest.Start(t)
		ahead := stand(t, srv, 3)
		m, inc := live(t, srv)
		admin := harness.Plain(t, srv)
		other, _ := live(t, srv)
		srv.SetLatency(10 * time.Millisecond)
		granted := harness.Async(func() error {
			_, err := mutexOf(m, "/m").Acquire(t.Context())
			return err
		})
		time.Sleep(15 * time.Millisecond)
		names, _, err := admin.Children("/m")
		harness.Must(t, err)
		own := "/m/" + ParseChildren(names, "lock-")[3].Name
		listing := make(chan struct{}, 100)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session != inc.ID.Load() || r.Path != "/m" || r.Op != zktest.OpGetChildren2 {
				return zktest.Pass
			}
			listing <- struct{}{}
			if first == "listing" {
				return zktest.Pass
			}
			return zktest.Delay(100 * time.Millisecond)
		})
		<-listing
		srv.SetLatency(0)
		for _, c := range ahead {
			harness.Must(t, admin.Delete(c.Path, -1))
		}
		harness.Must(t, admin.Delete(own, -1))
		if anew {
			harness.Must(t, admin.Delete("/m", -1))
		}
		holder, err := mutexOf(other, "/m").Acquire(t.Context())
		harness.Must(t, err)
		if anew && holder.Child.Seq != 0 {
			t.Errorf("%s: the directory was not made anew", what)
		}
		if reconnects {
			srv.Disconnect(inc.ID.Load())
		}
		time.Sleep(5 * time.Second)
		harness.PendingStill(t, granted)
		harness.Must(t, holder.GiveBack())
		harness.Must(t, <-granted)
		srv.Intercept(nil)
		synctest.Wait()
	})
}

// live returns a session that is there.
func live(t *testing.T, srv *zktest.Server) (*session.Manager, *session.Incarnation) {
	t.Helper()
	m := open(t, srv)
	inc, err := m.Incarnation(t.Context())
	harness.Must(t, err)
	return m, inc
}

// stand has n enter the line at /m, each in a session of its own.
func stand(t *testing.T, srv *zktest.Server, n int) (claims []*Claim) {
	t.Helper()
	for range n {
		m, inc := live(t, srv)
		c, _, err := mutexOf(m, "/m").Enter(t.Context(), inc, Exclusive)
		harness.Must(t, err)
		claims = append(claims, c)
	}
	return claims
}

// Three stand ahead of one who lists the line meanwhile, and leave in every order, one
// after the other, or all so soon that the listings, their answers and the events cross.
// One of his requests is lost, or its answer, with the connection. He has his turn when
// the last of them has gone, and not before.
func TestNoOrderOfLeavingAndNoLostListingGrantsTooEarlyOrNever(t *testing.T) {
	const way = 10 * time.Millisecond
	faults := map[string]zktest.Action{"request": zktest.DropRequest, "reply": zktest.DropReply}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		for _, apart := range []time.Duration{0, way / 2, 3 * way / 2, 50 * way} {
			leaveInOrder(t, order, apart, 0, "", zktest.Pass)
			for name, fault := range faults {
				for nth := int64(1); nth <= 3; nth++ {
					leaveInOrder(t, order, apart, nth, name, fault)
				}
			}
		}
	}
}

// leaveInOrder is one such program; fault befalls the nth request that is made once he waits.
func leaveInOrder(t *testing.T, order []int, apart time.Duration, nth int64, name string, fault zktest.Action) {
	harness.VirtualTime(t, func(t *testing.T) {
		what := fmt.Sprintf("they leave in the order %v, %v apart, %s %d is lost", order, apart, name, nth)
		srv := zktest.Start(t)
		ahead := stand(t, srv, len(order))
		m, inc := live(t, srv)
		srv.SetLatency(10 * time.Millisecond)
		var n, listed atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session != inc.ID.Load() || r.Op == zktest.OpPing {
				return zktest.Pass
			}
			if r.Path == "/m" {
				listed.Add(1) // its first listing is the one behind the create
			}
			if i := n.Add(1); nth > 0 && i == nth+2 { // the first two are the create and the listing
				return fault
			}
			return zktest.Pass
		})
		var claim *Claim
		granted := harness.Async(func() (err error) {
			claim, err = mutexOf(m, "/m").Acquire(t.Context())
			return err
		})
		time.Sleep(15 * time.Millisecond)
		for i, who := range order {
			if i > 0 {
				time.Sleep(apart)
				if apart > time.Second/4 {
					harness.PendingStill(t, granted)
				}
			}
			ahead[who].Leave()
		}
		select {
		case err := <-granted:
			harness.Must(t, err)
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: not granted", what)
		}
		names, _, err := inc.ChildrenFresh(t.Context(), "/m")
		harness.Must(t, err)
		if len(names) != 1 || names[0] != znodes.BaseName(claim.Znode()) {
			t.Fatalf("%s: granted beside %q", what, names)
		}
		if listed.Load() < 2 {
			t.Errorf("%s: it has not listed the line meanwhile", what)
		}
		srv.Intercept(nil)
		srv.SetLatency(0)
		harness.Must(t, claim.GiveBack())
		synctest.Wait()
	})
}

// Those ahead do not move. Who waits does not ask for ever whether they have.
func TestWhoeverWaitsForLongStopsListingTheLine(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		ahead := stand(t, srv, 2)
		m, inc := live(t, srv)
		var listed atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == inc.ID.Load() && r.Path == "/m" {
				listed.Add(1)
			}
			return zktest.Pass
		})
		srv.SetLatency(10 * time.Millisecond)
		granted := harness.Async(func() error {
			_, err := mutexOf(m, "/m").Acquire(t.Context())
			return err
		})
		time.Sleep(time.Hour)
		harness.PendingStill(t, granted)
		if n := listed.Load(); n < 1+maxRelists || n > 2+maxRelists {
			t.Errorf("the line was listed %d times in an hour in which nobody left it, want %d", n, 1+maxRelists)
		}
		srv.SetLatency(0)
		ahead[0].Leave()
		ahead[1].Leave()
		harness.Must(t, <-granted)
	})
}

// However long the first keeps the lock: each of those ahead takes a round trip at
// least, and until then no listing helps.
func TestWhoeverStandsFarBackListsNoSoonerThanItsTurnCanCome(t *testing.T) {
	const trip = 10 * time.Millisecond
	harness.VirtualTime(t, func(t *testing.T) {
		for _, each := range []time.Duration{trip, 2 * trip, 100 * trip} {
			line := New(&session.Manager{}, "/m", nil)
			line.each.Store(int64(each))
			r := Place{Line: &line, lists: maxRelists, trip: trip, start: time.Now()}
			for i := range maxRelists {
				r.plan(999)
				planned := time.Now()
				for early := r.early(); early > 0; early = r.early() {
					time.Sleep(early)
				}
				if wait := time.Since(planned); wait < 990*each {
					t.Errorf("listing %d comes %v after the last, behind 999; a handoff takes %v", i+1, wait, each)
				}
			}
		}
	})
}

// Several of each session wait in one line, and share its listings. So some listings are sent later
// than they are wanted, and a hand-over takes up to one and a half round trips, and few listings,
// whether the line is short or long.
func TestALinePassesBetweenSessionsInOneAndAHalfRoundTripsThoughSeveralOfEachWait(t *testing.T) {
	t.Parallel()
	const trip = 10 * time.Millisecond
	for _, c := range []struct{ sessions, each int }{{1, 30}, {2, 20}, {5, 20}, {20, 40}} {
		harness.VirtualTime(t, func(t *testing.T) {
			srv := zktest.Start(t)
			var lines []*Line
			for range c.sessions {
				m, _ := live(t, srv)
				lines = append(lines, mutexOf(m, "/m"))
			}
			srv.SetLatency(trip)
			var looks atomic.Int64
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpMultiRead || r.Op == zktest.OpGetChildren2 && r.Path == "/m" {
					looks.Add(1)
				}
				return zktest.Pass
			})
			all := c.sessions * c.each
			warm := 2 * c.sessions // the first ones do not know how fast the line goes
			start := make(chan struct{})
			var at []time.Time
			var looked int64
			var over sync.WaitGroup
			for i := range all {
				over.Go(func() {
					claim, err := lines[i%c.sessions].Acquire(t.Context())
					harness.Must(t, err)
					if claim.Child.Seq != int32(len(at)) {
						t.Errorf("number %d had its turn as the %dth", claim.Child.Seq, len(at)+1)
					}
					if at = append(at, time.Now()); i == 0 {
						<-start
					}
					if i == warm {
						looked = looks.Load()
					}
					harness.Must(t, claim.Grant("lock").Release())
				})
				time.Sleep(time.Microsecond)
			}
			time.Sleep(5 * trip)
			close(start)
			over.Wait()
			n := all - 1 - warm
			took := at[all-1].Sub(at[warm]) / time.Duration(n)
			looked = looks.Load() - looked
			t.Logf("%d sessions, %d each: a hand-over takes %v and %.1f looks at the line", c.sessions, c.each, took, float64(looked)/float64(n))
			if took > trip*8/5 {
				t.Errorf("%d sessions, %d each: a hand-over takes %v where a round trip takes %v", c.sessions, c.each, took, trip)
			}
			if looked > 4*int64(n) {
				t.Errorf("%d sessions, %d each: %d hand-overs took %d looks at the line", c.sessions, c.each, n, looked)
			}
		})
	}
}

// Of three sessions several wait, some give up, some are deleted, connections are lost, and
// the line is long or short: no two have their turn at once, and whoever does not give up has his.
func TestContendersThatRelistAreGrantedNeitherTooEarlyNorNever(t *testing.T) {
	t.Parallel()
	for seed := range harness.Seeds(t, 30, 10, 2000) {
		rnd := rand.New(rand.NewPCG(uint64(seed), 20))
		harness.VirtualTime(t, func(t *testing.T) {
			srv := zktest.Start(t)
			var lines []*Line
			var sessions []int64
			for range 3 {
				m, inc := live(t, srv)
				lines, sessions = append(lines, mutexOf(m, "/m")), append(sessions, inc.ID.Load())
			}
			admin := harness.Plain(t, srv)
			fillers := 0 // between them, whose znodes go in nearly the order in which they came
			if seed%3 == 0 {
				fillers = 1024
			}
			srv.SetLatency(time.Duration(1+rnd.IntN(20)) * time.Millisecond)
			var mu sync.Mutex
			inside, granted := 0, 0
			pause := func(ms int) time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(rnd.IntN(1000*ms)) * time.Microsecond
			}
			var wg sync.WaitGroup
			const waiters = 24
			for i := range waiters {
				ctx, cancel := context.WithCancel(t.Context())
				patience := time.Hour
				if rnd.IntN(4) == 0 {
					patience = pause(3000)
				}
				time.AfterFunc(patience, cancel)
				enters := pause(40)
				wg.Go(func() {
					defer cancel()
					time.Sleep(enters)
					claim, err := lines[i%3].Acquire(ctx)
					if err != nil {
						if ctx.Err() == nil {
							t.Errorf("seed %d: %v", seed, err)
						}
						return
					}
					grant := claim.Grant("lock")
					mu.Lock()
					granted++
					if inside++; inside != 1 {
						t.Errorf("seed %d: %d have their turn at once", seed, inside)
					}
					mu.Unlock()
					time.Sleep(pause(30))
					mu.Lock()
					inside--
					mu.Unlock()
					_ = grant.Release() // somebody may have deleted it
				})
			}
			over := make(chan struct{})
			var harm sync.WaitGroup
			harm.Go(func() {
				_, inc := live(t, srv)
				var theirs []string
				for len(theirs) < fillers {
					guid := znodes.NewGUID()
					c := znodes.Creation{Dir: znodes.Dir{Path: "/m"}, Paths: []string{znodes.ChildPath("/m", znodes.ProtectedName(guid, "lock-"))}, GUID: guid}
					err := znodes.CreateEphemeral(t.Context(), inc, &c)
					path := c.Path
					harness.Must(t, err)
					theirs = append(theirs, path)
				}
				for len(theirs) > 0 {
					i := min(int(pause(8)/time.Millisecond), len(theirs)-1)
					time.Sleep(pause(2))
					_ = admin.Delete(theirs[i], -1)
					theirs = slices.Delete(theirs, i, i+1)
				}
			})
			harm.Go(func() {
				for !harness.Closed(over) {
					time.Sleep(pause(200))
					if pause(8) < time.Millisecond {
						srv.Disconnect(sessions[int(pause(3)/time.Millisecond)])
					}
					names, _, err := admin.Children("/m")
					if line := ParseChildren(names, "lock-"); err == nil && len(line) > 6 && pause(4) < time.Millisecond {
						// Of one that has its turn by then it would let two in.
						i := 6 + int(pause(len(line)-6)/time.Millisecond)
						_ = admin.Delete("/m/"+line[i].Name, -1)
					}
				}
			})
			done := make(chan struct{})
			go func() { wg.Wait(); close(done) }()
			select {
			case <-done:
			case <-time.After(2 * time.Hour):
				t.Errorf("seed %d: somebody waits for ever; %d had their turn", seed, granted)
			}
			close(over)
			harm.Wait()
			synctest.Wait()
		})
	}
}
