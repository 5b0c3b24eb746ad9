package cases

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// What can happen between two requests of one method, and was overlooked once.

func TestRangeOfAMapIsOneMomentThoughKeysComeAndGoBetweenItsRequests(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		writer := zsync.NewMap[int](other, "/m")
		harness.Must(t, writer.Store(t.Context(), "x", 0))
		// The map is {x:0}, {x:0 k}, {x:1 k}, {x:1 k l}, {x:1 l}, and at no moment {x:1}.
		did := 0
		step := func(steps ...func() error) {
			for _, f := range steps {
				harness.Must(t, f())
			}
			did++
		}
		lists, reads := 0, 0
		suite.RequestsOf(srv, s, func(_ int, r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpMultiRead || r.Op == zktest.OpGetData:
				switch reads++; reads {
				case 1:
					step(func() error { return writer.Store(t.Context(), "k", 1) }, func() error { return writer.Store(t.Context(), "x", 1) })
				case 2:
					step(func() error { return writer.Store(t.Context(), "l", 1) }, func() error { return writer.Delete(t.Context(), "k") })
				}
			case r.Path == "/m":
				lists++
			}
			return zktest.Pass
		})
		got := make(map[string]int)
		harness.Must(t, zsync.NewMap[int](s, "/m").Range(t.Context(), func(key string, v int) bool { got[key] = v; return true }))
		if did != 2 || !maps.Equal(got, map[string]int{"x": 1, "l": 1}) {
			t.Errorf("Range gives %v, after %d steps", got, did)
		}
	})
}

func TestADeletionWhoseReplyIsLostDoesNotTakeTheNextMemberOfTheID(t *testing.T) {
	for _, same := range []bool{false, true} { // the next is of the same Session
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b, reader := suite.Open(t, srv), suite.Open(t, srv), suite.Open(t, srv)
			next := b
			if same {
				next = a
			}
			first, err := zsync.NewGroup[string](a, "/g").Join(t.Context(), "id", "first")
			harness.Must(t, err)
			joined := make(chan *zsync.Membership[string])
			done := harness.Async(func() error {
				m, err := zsync.NewGroup[string](next, "/g").Join(t.Context(), "id", "second")
				joined <- m
				return err
			})
			synctest.Wait()
			deletions := 0
			suite.RequestsOf(srv, a, func(_ int, r zktest.Request) zktest.Action {
				if r.Op == zktest.OpDelete && r.Path == "/g/id" {
					if deletions++; deletions == 1 {
						return zktest.DropReply
					}
				}
				if deletions > 0 && !same {
					return zktest.Delay(2 * time.Second) // the next joins meanwhile
				}
				return zktest.Pass
			})
			harness.Must(t, first.Leave())
			second := <-joined
			harness.Must(t, <-done)
			members, err := zsync.NewGroup[string](reader, "/g").Members(t.Context())
			harness.Must(t, err)
			stat := statOf(t, reader, "/g/id")
			time.Sleep(time.Minute)
			if now := statOf(t, reader, "/g/id"); suite.RollCall(members) != "id=second" || now.Czxid != stat.Czxid {
				t.Errorf("the members were %q; the znode of transaction %#x is now of %#x", suite.RollCall(members), stat.Czxid, now.Czxid)
			}
			srv.Intercept(nil)
			harness.Must(t, second.Leave())
		})
	}
}

func TestAJoinThatIsRefusedAfterALostReplyLeavesNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, reader := suite.Open(t, srv), suite.Open(t, srv)
		harness.Must(t, zsync.NewMap[int](s, "/g").Store(t.Context(), "other", 1)) // the path is there
		creations := 0
		suite.RequestsOf(srv, s, func(_ int, r zktest.Request) zktest.Action {
			if r.Op == zktest.OpCreate && r.Path == "/g/id" || r.Op == zktest.OpCreate2 && r.Path == "/g/id" {
				switch creations++; creations {
				case 1:
					return zktest.DropReply
				case 2:
					return zktest.Fail(zktest.CodeNoAuth)
				}
			}
			return zktest.Pass
		})
		_, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "id", "")
		if err == nil || creations != 2 {
			t.Fatalf("Join = %v, after %d requests to create", err, creations)
		}
		time.Sleep(time.Second)
		if left := suite.ChildrenOf(t, reader, "/g"); len(left) != 1 {
			t.Errorf("left are %q", left)
		}
	})
}

func TestAMemberThatLeavesWhileItsInfoIsWrittenLeavesNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, reader := suite.Open(t, srv), suite.Open(t, srv)
		g := zsync.NewGroup[string](s, "/g")
		m, err := g.Join(t.Context(), "id", "1")
		harness.Must(t, err)
		// Its znode is deleted by hand and made again; Set comes while that is on its
		// way, so that the info is written after; and Leave while that is.
		suite.RequestsOf(srv, s, func(_ int, r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpSetData && r.Path == "/g/id":
				return zktest.Delay(time.Second)
			case (r.Op == zktest.OpCreate || r.Op == zktest.OpCreate2) && r.Path == "/g/id":
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		inc, err := inside.Manager(reader).Incarnation(t.Context())
		harness.Must(t, err)
		harness.Must(t, znodes.RemoveNow(t.Context(), inc, "/g/id"))
		time.Sleep(500 * time.Millisecond)
		harness.Must(t, m.Set(t.Context(), "2"))
		time.Sleep(time.Second)
		harness.Must(t, m.Leave())
		time.Sleep(5 * time.Second)
		if left := suite.ChildrenOf(t, reader, "/g"); len(left) > 0 {
			t.Errorf("left are %q", left)
		}
		again, err := g.Join(harness.Within(t, 5*time.Second), "id", "3")
		harness.Must(t, err)
		harness.Must(t, again.Leave())
	})
}

func TestAnInfoThatWasRefusedIsNotThatOfTheNextSession(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, reader := suite.Open(t, srv), suite.Open(t, srv)
		m, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "id", "1")
		harness.Must(t, err)
		suite.RequestsOf(srv, s, func(_ int, r zktest.Request) zktest.Action {
			if r.Op == zktest.OpSetData {
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		if err := m.Set(t.Context(), "2"); err == nil {
			t.Error("Set was refused, and said nothing")
		}
		srv.Intercept(nil)
		srv.Expire(s.ID())
		time.Sleep(time.Minute)
		members, err := zsync.NewGroup[string](reader, "/g").Members(t.Context())
		harness.Must(t, err)
		if got := suite.RollCall(members); got != "id=1" {
			t.Errorf("the members are %q", got)
		}
		harness.Must(t, m.Leave())
	})
}

func TestAFlightWhoseSessionEndsBeforeItsFunctionBeginsCarriesOn(t *testing.T) {
	ended := 0
	for at := 1; at <= 12; at++ {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := suite.Open(t, srv)
			f := zsync.NewFlight[int](s, "/f", time.Minute)
			var ran atomic.Int32
			id := s.ID()
			suite.RequestsOf(srv, s, func(n int, r zktest.Request) zktest.Action {
				if n == at && ran.Load() == 0 {
					ended++
					srv.Expire(id)
					return zktest.DropRequest
				}
				return zktest.Pass
			})
			v, shared, err := f.Do(t.Context(), "k", func(ctx context.Context) (int, error) { ran.Add(1); return 7, nil })
			// ErrLost is for a function that has run.
			if v != 7 || shared || err != nil && !errors.Is(err, zsync.ErrLost) || ran.Load() != 1 {
				t.Errorf("ended at request %d: %d, %v, %v; the function ran %d times", at, v, shared, err, ran.Load())
			}
		})
	}
	if ended < 5 {
		t.Errorf("the session was ended %d times", ended)
	}
}

func TestAScheduleGoesOnWhenTheInstantOfABrokenClockIsDeleted(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		c := zsync.NewSchedule(s, "/jobs")
		nothing := func(context.Context) error { return nil }
		_, err := c.Do(t.Context(), time.Now().Add(365*24*time.Hour), nothing)
		harness.Must(t, err)
		if ran, err := c.Do(t.Context(), time.Now(), nothing); ran || err != nil {
			t.Errorf("after an instant in a year: %v, %v", ran, err)
		}
		inc, err := inside.Manager(s).Incarnation(t.Context())
		harness.Must(t, err)
		harness.Must(t, znodes.RemoveNow(t.Context(), inc, "/jobs/last"))
		if ran, err := c.Do(t.Context(), time.Now(), nothing); !ran || err != nil {
			t.Errorf("after its deletion: %v, %v", ran, err)
		}
	})
}

func TestAnInstantThatWasRecordedIsDoneThoughTheSessionEndsBeforeTheLineIsLeft(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		id, expired := s.ID(), false
		suite.RequestsOf(srv, s, func(_ int, r zktest.Request) zktest.Action {
			if r.Op == zktest.OpDelete && !expired {
				expired = true
				srv.Expire(id)
				return zktest.DropRequest
			}
			return zktest.Pass
		})
		ran, err := zsync.NewSchedule(s, "/jobs").Do(t.Context(), suite.Noon, func(context.Context) error { return nil })
		if !ran || err != nil || !expired {
			t.Errorf("Do = %v, %v, session ended %v", ran, err, expired)
		}
		if last, err := zsync.NewSchedule(s, "/jobs").Last(t.Context()); !last.Equal(suite.Noon) || err != nil {
			t.Errorf("Last = %v, %v", last, err)
		}
	})
}

// statOf returns the Stat of a znode.
func statOf(t *testing.T, s *zsync.Session, path string) zk.Stat {
	t.Helper()
	inc, err := inside.Manager(s).Incarnation(t.Context())
	harness.Must(t, err)
	stat, err := inc.ExistsFresh(t.Context(), path)
	harness.Must(t, err)
	if stat == nil {
		t.Fatalf("there is no %s", path)
	}
	return *stat
}
