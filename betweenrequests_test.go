package zsync_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// What can happen between two requests of one method, and was overlooked once.

// requestsOf has f decide about the requests of a session, one by one, which are counted
// from 1. f may wait for what another session does.
func requestsOf(srv *zktest.Server, s *zsync.Session, f func(n int, r zktest.Request) zktest.Action) {
	var mu sync.Mutex // a session has one connection after another
	id, n := s.ID(), 0
	srv.Intercept(func(r zktest.Request) zktest.Action {
		switch {
		case r.Session != id, r.Op == zktest.OpPing, r.Op == zktest.OpConnect, r.Op == zktest.OpCloseSession:
			return zktest.Pass
		}
		mu.Lock()
		defer mu.Unlock()
		n++
		return f(n, r)
	})
}

func TestRangeOfAMapIsOneMomentThoughKeysComeAndGoBetweenItsRequests(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		writer := zsync.NewMap[int](other, "/m")
		must(t, writer.Store(t.Context(), "x", 0))
		// The map is {x:0}, {x:0 k}, {x:1 k}, {x:1 k l}, {x:1 l}, and at no moment {x:1}.
		did := 0
		step := func(steps ...func() error) {
			for _, f := range steps {
				must(t, f())
			}
			did++
		}
		lists, reads := 0, 0
		requestsOf(srv, s, func(_ int, r zktest.Request) zktest.Action {
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
		must(t, zsync.NewMap[int](s, "/m").Range(t.Context(), func(key string, v int) bool { got[key] = v; return true }))
		if did != 2 || !maps.Equal(got, map[string]int{"x": 1, "l": 1}) {
			t.Errorf("Range gives %v, after %d steps", got, did)
		}
	})
}

func TestADeletionWhoseReplyIsLostDoesNotTakeTheNextMemberOfTheID(t *testing.T) {
	for _, same := range []bool{false, true} { // the next is of the same Session
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			a, b, reader := open(t, srv), open(t, srv), open(t, srv)
			next := b
			if same {
				next = a
			}
			first, err := zsync.NewGroup[string](a, "/g").Join(t.Context(), "id", "first")
			must(t, err)
			joined := make(chan *zsync.Membership[string])
			done := async(func() error {
				m, err := zsync.NewGroup[string](next, "/g").Join(t.Context(), "id", "second")
				joined <- m
				return err
			})
			synctest.Wait()
			deletions := 0
			requestsOf(srv, a, func(_ int, r zktest.Request) zktest.Action {
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
			must(t, first.Leave())
			second := <-joined
			must(t, <-done)
			members, err := zsync.NewGroup[string](reader, "/g").Members(t.Context())
			must(t, err)
			stat := statOf(t, reader, "/g/id")
			time.Sleep(time.Minute)
			if now := statOf(t, reader, "/g/id"); rollCall(members) != "id=second" || now.Czxid != stat.Czxid {
				t.Errorf("the members were %q; the znode of transaction %#x is now of %#x", rollCall(members), stat.Czxid, now.Czxid)
			}
			srv.Intercept(nil)
			must(t, second.Leave())
		})
	}
}

func TestAJoinThatIsRefusedAfterALostReplyLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, reader := open(t, srv), open(t, srv)
		must(t, zsync.NewMap[int](s, "/g").Store(t.Context(), "other", 1)) // the path is there
		creations := 0
		requestsOf(srv, s, func(_ int, r zktest.Request) zktest.Action {
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
		if left := childrenOf(t, reader, "/g"); len(left) != 1 {
			t.Errorf("left are %q", left)
		}
	})
}

func TestAMemberThatLeavesWhileItsInfoIsWrittenLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, reader := open(t, srv), open(t, srv)
		g := zsync.NewGroup[string](s, "/g")
		m, err := g.Join(t.Context(), "id", "1")
		must(t, err)
		// Its znode is deleted by hand and made again; Set comes while that is on its
		// way, so that the info is written after; and Leave while that is.
		requestsOf(srv, s, func(_ int, r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpSetData && r.Path == "/g/id":
				return zktest.Delay(time.Second)
			case (r.Op == zktest.OpCreate || r.Op == zktest.OpCreate2) && r.Path == "/g/id":
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		inc, err := zsync.ManagerOf(reader).Incarnation(t.Context())
		must(t, err)
		must(t, inc.RemoveNow(t.Context(), "/g/id"))
		time.Sleep(500 * time.Millisecond)
		must(t, m.Set(t.Context(), "2"))
		time.Sleep(time.Second)
		must(t, m.Leave())
		time.Sleep(5 * time.Second)
		if left := childrenOf(t, reader, "/g"); len(left) > 0 {
			t.Errorf("left are %q", left)
		}
		again, err := g.Join(within(t, 5*time.Second), "id", "3")
		must(t, err)
		must(t, again.Leave())
	})
}

func TestAnInfoThatWasRefusedIsNotThatOfTheNextSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, reader := open(t, srv), open(t, srv)
		m, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "id", "1")
		must(t, err)
		requestsOf(srv, s, func(_ int, r zktest.Request) zktest.Action {
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
		must(t, err)
		if got := rollCall(members); got != "id=1" {
			t.Errorf("the members are %q", got)
		}
		must(t, m.Leave())
	})
}

func TestAFlightWhoseSessionEndsBeforeItsFunctionBeginsCarriesOn(t *testing.T) {
	ended := 0
	for at := 1; at <= 12; at++ {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			f := zsync.NewFlight[int](s, "/f", time.Minute)
			var ran atomic.Int32
			id := s.ID()
			requestsOf(srv, s, func(n int, r zktest.Request) zktest.Action {
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
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		c := zsync.NewSchedule(s, "/jobs")
		nothing := func(context.Context) error { return nil }
		_, err := c.Do(t.Context(), time.Now().Add(365*24*time.Hour), nothing)
		must(t, err)
		if ran, err := c.Do(t.Context(), time.Now(), nothing); ran || err != nil {
			t.Errorf("after an instant in a year: %v, %v", ran, err)
		}
		inc, err := zsync.ManagerOf(s).Incarnation(t.Context())
		must(t, err)
		must(t, inc.RemoveNow(t.Context(), "/jobs/last"))
		if ran, err := c.Do(t.Context(), time.Now(), nothing); !ran || err != nil {
			t.Errorf("after its deletion: %v, %v", ran, err)
		}
	})
}

func TestAnInstantThatWasRecordedIsDoneThoughTheSessionEndsBeforeTheLineIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		id, expired := s.ID(), false
		requestsOf(srv, s, func(_ int, r zktest.Request) zktest.Action {
			if r.Op == zktest.OpDelete && !expired {
				expired = true
				srv.Expire(id)
				return zktest.DropRequest
			}
			return zktest.Pass
		})
		ran, err := zsync.NewSchedule(s, "/jobs").Do(t.Context(), noon, func(context.Context) error { return nil })
		if !ran || err != nil || !expired {
			t.Errorf("Do = %v, %v, session ended %v", ran, err, expired)
		}
		if last, err := zsync.NewSchedule(s, "/jobs").Last(t.Context()); !last.Equal(noon) || err != nil {
			t.Errorf("Last = %v, %v", last, err)
		}
	})
}

// statOf returns the Stat of a znode.
func statOf(t *testing.T, s *zsync.Session, path string) zk.Stat {
	t.Helper()
	inc, err := zsync.ManagerOf(s).Incarnation(t.Context())
	must(t, err)
	stat, err := inc.ExistsFresh(t.Context(), path)
	must(t, err)
	if stat == nil {
		t.Fatalf("there is no %s", path)
	}
	return *stat
}
