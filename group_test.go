package zsync_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

func TestMembersAreThoseWhoHaveJoinedAndNotLeft(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		ctx := within(t, 2*time.Minute)
		a, b := zsync.NewGroup[string](connect(), "/deep/group"), zsync.NewGroup[string](connect(), "/deep/group")
		want := func(want string) {
			t.Helper()
			for _, g := range []*zsync.Group[string]{a, b} {
				members, err := g.Members(ctx)
				must(t, err)
				if got := rollCall(members); got != want {
					t.Fatalf("the members are %q, want %q", got, want)
				}
			}
		}
		want("")
		one, err := a.Join(ctx, "one", "1")
		must(t, err)
		two, err := b.Join(ctx, "two/2", "2")
		must(t, err)
		want("one=1 two/2=2")
		must(t, one.Set(ctx, "eins"))
		want("one=eins two/2=2")
		must(t, one.Leave())
		must(t, one.Leave())
		want("two/2=2")
		wantErr(t, one.Set(ctx, "x"), zsync.ErrNotLocked)
		one, err = b.Join(ctx, "one", "3")
		must(t, err)
		want("one=3 two/2=2")
		members, err := a.Members(ctx)
		must(t, err)
		for _, m := range members {
			if m.Session != inside.Session(b).ID() || time.Since(m.Since).Abs() > time.Minute {
				t.Errorf("member %+v is not of session %#x, or of another time", m, inside.Session(b).ID())
			}
		}
		must(t, one.Leave())
		must(t, two.Leave())
		want("")
	})
}

func TestAnIDHasOneMemberAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		for _, next := range []*zsync.Session{s, other} {
			first, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "id", "first")
			must(t, err)
			g := zsync.NewGroup[string](next, "/g")
			joined := make(chan *zsync.Membership[string])
			done := async(func() error {
				m, err := g.Join(t.Context(), "id", "second")
				joined <- m
				return err
			})
			pendingStill(t, done)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err = g.Join(ctx, "id", "third")
			wantErr(t, err, context.DeadlineExceeded)
			cancel()
			must(t, first.Leave())
			second := <-joined
			must(t, <-done)
			members, err := g.Members(t.Context())
			must(t, err)
			if got := rollCall(members); got != "id=second" {
				t.Errorf("the members are %q", got)
			}
			must(t, second.Leave())
		}
		if left := childrenOf(t, s, "/g"); len(left) > 0 {
			t.Errorf("znodes %q are left", left)
		}
	})
}

func TestAMemberJoinsAgainAfterAnExpiryAndADeletion(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		m, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "id", "1")
		must(t, err)
		g := zsync.NewGroup[string](other, "/g")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch := g.Watch(ctx)
		// next waits for members of other sessions than those before, or of other
		// infos; a moment without anybody may be seen, or not.
		next := func(want string, not int64) int64 {
			t.Helper()
			for members := range watch {
				if rollCall(members) == want && (want == "" || members[0].Session != not) {
					return s.ID()
				}
			}
			t.Fatal("Watch has ended")
			return 0
		}
		before := next("id=1", 0)
		srv.Expire(before)
		if after := next("id=1", before); after == before {
			t.Error("the session has not been replaced")
		}
		inc, err := inside.Manager(other).Incarnation(ctx)
		must(t, err)
		must(t, znodes.RemoveNow(ctx, inc, inside.Manager(other).Full("/g/id")))
		must(t, m.Set(ctx, "2"))
		before = next("id=2", 0)
		srv.Partition(before)
		set := async(func() error { return m.Set(ctx, "3") })
		next("id=3", before) // when the old session has ended
		must(t, <-set)
		must(t, m.Leave())
		next("", 0)
	})
}

func TestGroupRefusesBadInput(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for _, g := range []*zsync.Group[string]{
			zsync.NewGroup[string](nil, "/g"), zsync.NewGroup[string](s, "g"), zsync.NewGroup[string](s, "/g", nil),
			zsync.NewGroup[string](s, "/g", zsync.WithCodec(nil)), zsync.NewGroup[string](s, "/g", zsync.WithLayout(zsync.LayoutSelector)), zsync.NewGroup[string](s, "/g", zsync.WithMaxHold(time.Second)), {},
		} {
			_, err := g.Join(t.Context(), "id", "")
			wantErr(t, err, zsync.ErrInvalid)
			_, err = g.Members(t.Context())
			wantErr(t, err, zsync.ErrInvalid)
			if _, ok := <-g.Watch(t.Context()); ok {
				t.Error("Watch of a bad Group is open")
			}
		}
		g := zsync.NewGroup[string](s, "/g")
		_, err := g.Join(t.Context(), "", "")
		wantErr(t, err, zsync.ErrInvalid)
		_, err = g.Join(t.Context(), strings.Repeat("x", 3000), "")
		wantErr(t, err, zsync.ErrInvalid)
		_, err = g.Join(t.Context(), "id", strings.Repeat("x", 1<<20))
		wantErr(t, err, zsync.ErrTooLarge)
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		_, err = g.Join(ctx, "id", "")
		wantErr(t, err, cause, context.Canceled)
	})
}

func TestAMemberWhoseInfoCannotBeDecodedKeepsTheOthersFromNobody(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		bad, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "bad", "text")
		must(t, err)
		g := zsync.NewGroup[int](s, "/g")
		good, err := g.Join(t.Context(), "good", 7)
		must(t, err)
		members, err := g.Members(t.Context())
		if err == nil || len(members) != 1 || members[0].Info != 7 {
			t.Errorf("Members = %v, %v", members, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if members := <-g.Watch(ctx); len(members) != 1 {
			t.Errorf("Watch gives %v", members)
		}
		must(t, bad.Leave())
		must(t, good.Leave())
	})
}

func TestJoinAndLeaveWithServersThatAreAwayKeepTheirTime(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		g := zsync.NewGroup[string](s, "/g")
		m, err := g.Join(t.Context(), "in", "")
		must(t, err)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == s.ID() && r.Op != zktest.OpPing && r.Op != zktest.OpConnect {
				return zktest.Delay(20 * time.Second)
			}
			return zktest.Pass
		})
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = g.Join(ctx, "late", "")
		wantErr(t, err, context.DeadlineExceeded)
		if d := time.Since(start); d > time.Second+50*time.Millisecond {
			t.Errorf("Join took %v", d)
		}
		start = time.Now()
		must(t, m.Leave())
		if d := time.Since(start); d > 500*time.Millisecond {
			t.Errorf("Leave took %v", d)
		}
		srv.Intercept(nil)
		time.Sleep(time.Minute)
		if left := childrenOf(t, other, "/g"); len(left) > 0 {
			t.Errorf("znodes %q are left", left)
		}
	})
}

func TestGroupWatchDoesNotTellASlowReaderWhatWasInAnEndedSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		g := zsync.NewGroup[string](other, "/g")
		one, err := g.Join(t.Context(), "one", "1")
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch := zsync.NewGroup[string](s, "/g").Watch(ctx)
		time.Sleep(time.Second) // the reader is slow
		srv.Expire(s.ID())
		time.Sleep(time.Minute) // the session has been replaced
		must(t, one.Leave())
		_, err = g.Join(t.Context(), "two", "2")
		must(t, err)
		time.Sleep(time.Hour)
		if got := rollCall(<-watch); got != "two=2" {
			t.Errorf("an hour after the change the reader gets %q", got)
		}
	})
}

func TestALongIDInKazoosLayoutIsRefusedBeforeItIsSent(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		g := zsync.NewGroup[string](s, "/g", zsync.WithLayout(zsync.LayoutKazoo))
		before := s.Stats().Reconnects
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := g.Join(ctx, strings.Repeat("x", 2<<20), "")
		t.Log(err, s.Stats().Reconnects-before, s.Stats().Expiries)
		if !errors.Is(err, zsync.ErrTooLarge) && !errors.Is(err, zsync.ErrInvalid) {
			t.Errorf("Join = %v", err)
		}
		if n := s.Stats().Reconnects - before; n > 0 {
			t.Errorf("%d connections were lost", n)
		}
	})
}

func TestSetOfAnEarlierCallDoesNotOverwriteALaterOne(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv, zsync.WithRetry(zsync.Backoff{Min: time.Second, Max: time.Second})), open(t, srv)
		m, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "id", "0")
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op != zktest.OpSetData || !strings.Contains(string(r.Data), "A") {
				return zktest.Pass
			}
			if n++; n == 1 {
				return zktest.DropRequest
			}
			cancel()
			return zktest.Delay(10 * time.Millisecond)
		})
		a := async(func() error { return m.Set(ctx, "A") })
		time.Sleep(time.Millisecond)
		must(t, m.Set(t.Context(), "B"))
		t.Log(<-a, n)
		time.Sleep(time.Minute)
		members, err := zsync.NewGroup[string](other, "/g").Members(t.Context())
		must(t, err)
		if got := rollCall(members); got != "id=B" {
			t.Errorf("a minute after Set B: %q", got)
		}
	})
}

func TestRefusedSetsLeaveTheInfo(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		m, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "id", "0")
		must(t, err)
		srv.SetLatency(100 * time.Millisecond)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpSetData {
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		a := async(func() error { return m.Set(t.Context(), "A") })
		time.Sleep(10 * time.Millisecond)
		b := async(func() error { return m.Set(t.Context(), "B") })
		t.Log(<-a, <-b)
		srv.SetLatency(0)
		srv.Intercept(nil)
		srv.Expire(s.ID())
		time.Sleep(time.Minute)
		members, err := zsync.NewGroup[string](other, "/g").Members(t.Context())
		must(t, err)
		if got := rollCall(members); got != "id=0" {
			t.Errorf("after both were refused: %q", got)
		}
	})
}

// A Set that is tried again does not write over who has the id after Leave.
func TestSetBesideLeaveDoesNotWriteOverTheNextMember(t *testing.T) {
	for _, same := range []bool{true, false} {
		t.Run(map[bool]string{true: "same session", false: "another session"}[same], func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other := open(t, srv, zsync.WithRetry(zsync.Backoff{Min: time.Second, Max: time.Second})), open(t, srv)
				next := other
				if same {
					next = s
				}
				m, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "id", "0")
				must(t, err)
				join := async(func() error {
					_, err := zsync.NewGroup[string](next, "/g").Join(t.Context(), "id", "next")
					return err
				})
				pendingStill(t, join)
				n := 0
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == zktest.OpSetData && strings.Contains(string(r.Data), "A") {
						if n++; n == 1 {
							return zktest.DropRequest
						}
					}
					return zktest.Pass
				})
				a := async(func() error { return m.Set(t.Context(), "A") })
				time.Sleep(time.Millisecond)
				must(t, m.Leave())
				must(t, <-join)
				t.Log(<-a, n)
				time.Sleep(time.Minute)
				members, err := zsync.NewGroup[string](other, "/g").Members(t.Context())
				must(t, err)
				if got := rollCall(members); got != "id=next" {
					t.Errorf("the next member is shown as %q", got)
				}
			})
		})
	}
}

// While a member's connection was gone a stranger has deleted its znode, and another has
// joined with the id. Neither Set nor Leave does anything to that one's znode, whether the
// member has found out yet or not.
func TestSetAndLeaveSpareWhoHasJoinedWithTheIDDuringAnOutage(t *testing.T) {
	const away, answers = time.Second, 100 * time.Millisecond
	acts := map[string]func(ctx context.Context, m *zsync.Membership[string]) error{
		"Set":   func(ctx context.Context, m *zsync.Membership[string]) error { return m.Set(ctx, "mine again") },
		"Leave": func(_ context.Context, m *zsync.Membership[string]) error { return m.Leave() },
	}
	for name, act := range acts {
		for when, at := range map[string]time.Duration{
			"whose reply is lost": 0,
			"while away":          away / 2,
			"just back":           away + answers/2,
			"later":               time.Minute,
		} {
			t.Run(name+" "+when, func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					s, other := open(t, srv), open(t, srv)
					m, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "id", "mine")
					must(t, err)
					time.Sleep(time.Second)
					lost := at > 0
					read := harness.OneByOne(srv, func(r zktest.Request) zktest.Action {
						switch {
						case r.Session != s.ID():
						case r.Op == zktest.OpConnect:
							return zktest.Delay(away)
						case r.Op == zktest.OpGetChildren2:
							return zktest.Delay(answers)
						case !lost && (r.Op == zktest.OpSetData || r.Op == zktest.OpDelete):
							lost = true
							return zktest.DropReply
						}
						return zktest.Pass
					})
					var done <-chan error
					start := time.Now()
					if at == 0 {
						done = async(func() error { return act(t.Context(), m) })
						time.Sleep(time.Millisecond)
						read(func() {
							if !lost {
								t.Error("nothing was sent")
							}
						})
					} else {
						srv.Disconnect(s.ID())
					}
					time.Sleep(time.Millisecond)
					next, spared := takeID(t, other)
					time.Sleep(time.Until(start.Add(at)))
					if at > 0 {
						done = async(func() error { return act(t.Context(), m) })
					}
					must(t, <-done)
					time.Sleep(time.Minute)
					spared()
					must(t, next.Leave())
					time.Sleep(time.Minute)
					members, err := zsync.NewGroup[string](other, "/g").Members(t.Context())
					must(t, err)
					if got, want := rollCall(members), map[string]string{"Set": "id=mine again"}[name]; got != want {
						t.Errorf("when the other has left the members are %q, want %q", got, want)
					}
				})
			})
		}
	}
}

// takeID deletes the znode of the member "id", and joins in its place. spared fails if anything has
// been done to the znode of who has joined since.
func takeID(t *testing.T, other *zsync.Session) (next *zsync.Membership[string], spared func()) {
	t.Helper()
	inc := live(t, other)
	if err := znodes.RemoveNow(t.Context(), inc, "/g/id"); !session.IsNoNode(err) {
		must(t, err)
	}
	next, err := zsync.NewGroup[string](other, "/g").Join(t.Context(), "id", "another's")
	must(t, err)
	before, err := inc.Exists(t.Context(), "/g/id")
	must(t, err)
	return next, func() {
		t.Helper()
		data, after, err := inc.Get(t.Context(), "/g/id")
		must(t, err)
		if string(data) != `"another's"` || *after != *before {
			t.Errorf("the other's znode is %s, %+v; it was %+v", data, after, before)
		}
	}
}

// A Set or a Leave is on its way when a stranger deletes the member's znode and another
// joins with the id. It does nothing to that one's znode, which has not been written as
// often as the member's.
func TestSetAndLeaveOnTheirWaySpareWhoHasJoinedWithTheIDMeanwhile(t *testing.T) {
	for name, act := range map[string]func(ctx context.Context, m *zsync.Membership[string]) error{
		"Set":   func(ctx context.Context, m *zsync.Membership[string]) error { return m.Set(ctx, "mine again") },
		"Leave": func(_ context.Context, m *zsync.Membership[string]) error { return m.Leave() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other := open(t, srv), open(t, srv)
				m, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "id", "mine")
				must(t, err)
				must(t, m.Set(t.Context(), "mine"))
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Session == s.ID() && (r.Op == zktest.OpSetData || r.Op == zktest.OpDelete) {
						return zktest.Delay(100 * time.Millisecond)
					}
					return zktest.Pass
				})
				done := async(func() error { return act(t.Context(), m) })
				time.Sleep(10 * time.Millisecond)
				_, spared := takeID(t, other)
				must(t, <-done)
				time.Sleep(time.Minute)
				spared()
			})
		})
	}
}

// Somebody else has written a member's znode. Set and Leave go on all the same.
func TestSetAndLeaveOfAMemberWhoseZnodeAnotherHasWritten(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		g := zsync.NewGroup[string](s, "/g")
		m, err := g.Join(t.Context(), "id", "1")
		must(t, err)
		write := func() {
			t.Helper()
			_, err := live(t, other).Set(t.Context(), "/g/id", []byte(`"by another"`), -1)
			must(t, err)
		}
		write()
		must(t, m.Set(t.Context(), "2"))
		members, err := g.Members(t.Context())
		must(t, err)
		if got := rollCall(members); got != "id=2" {
			t.Errorf("the members are %q", got)
		}
		write()
		must(t, m.Leave())
		if left := childrenOf(t, other, "/g"); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
}

func TestASetWhileItsMemberJoinsAgainIsStored(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		m, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "id", "1")
		must(t, err)
		creating := make(chan struct{})
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpCreate && r.Path == "/g/id" {
				close(creating)
				return zktest.Delay(100 * time.Millisecond)
			}
			return zktest.Pass
		})
		srv.Expire(s.ID())
		<-creating
		for _, info := range []string{"2", "3"} {
			begun := time.Now()
			must(t, m.Set(t.Context(), info))
			if d := time.Since(begun); d > 0 {
				t.Errorf("Set took %v between two sessions", d)
			}
		}
		time.Sleep(time.Second)
		members, err := zsync.NewGroup[string](other, "/g").Members(t.Context())
		must(t, err)
		if got := rollCall(members); got != "id=3" {
			t.Errorf("the members are %q, want id=3", got)
		}
	})
}

func TestASetIsNotRefusedBecauseTheServersRefuseALaterOne(t *testing.T) {
	for _, gap := range []time.Duration{time.Millisecond, 150 * time.Millisecond} { // B comes while A waits for its turn, and while A is on its way
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, other := open(t, srv), open(t, srv)
			m, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "id", "0")
			must(t, err)
			srv.Intercept(func(r zktest.Request) zktest.Action {
				switch {
				case r.Op != zktest.OpSetData:
					return zktest.Pass
				case strings.Contains(string(r.Data), "B"):
					return zktest.Fail(zktest.CodeNoAuth)
				}
				return zktest.Delay(100 * time.Millisecond)
			})
			first := async(func() error { return m.Set(t.Context(), "1") })
			time.Sleep(time.Millisecond)
			a := async(func() error { return m.Set(t.Context(), "A") })
			time.Sleep(gap)
			b := async(func() error { return m.Set(t.Context(), "B") })
			must(t, <-first)
			must(t, <-a)
			wantErr(t, <-b, zk.ErrNoAuth)
			for range 2 { // also in the next session
				members, err := zsync.NewGroup[string](other, "/g").Members(t.Context())
				must(t, err)
				if got := rollCall(members); got != "id=A" {
					t.Errorf("B was refused: %q, want A", got)
				}
				srv.Intercept(nil)
				srv.Expire(s.ID())
				time.Sleep(time.Minute)
			}
		})
	}
}

// The reply to a Set is lost, and then the servers refuse the request. The first attempt was applied, so
// the Set was not refused, and the next session has its info, too.
func TestASetThatWasAppliedIsNotSaidToBeRefused(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		m, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "id", "old")
		must(t, err)
		applied := false
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session != s.ID() || r.Op != zktest.OpSetData:
				return zktest.Pass
			case applied:
				return zktest.Fail(zktest.CodeNoAuth)
			}
			applied = true
			return zktest.DropReply
		})
		if err := m.Set(t.Context(), "new"); errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("Set is said to be refused: %v", err)
		}
		for range 2 { // also in the next session
			members, err := zsync.NewGroup[string](other, "/g").Members(t.Context())
			must(t, err)
			if got := rollCall(members); got != "id=new" {
				t.Errorf("the members are %q, want id=new", got)
			}
			srv.Intercept(nil)
			srv.Expire(s.ID())
			time.Sleep(time.Minute)
		}
	})
}

func TestLeaveReturnsWhenOthersSeeItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		m, err := zsync.NewGroup[string](s, "/g").Join(t.Context(), "id", "")
		must(t, err)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == s.ID() && r.Op == zktest.OpDelete {
				return zktest.Delay(200 * time.Millisecond)
			}
			return zktest.Pass
		})
		must(t, m.Leave())
		members, err := zsync.NewGroup[string](other, "/g").Members(t.Context())
		must(t, err)
		if len(members) > 0 {
			t.Errorf("%q is a member after Leave", rollCall(members))
		}
	})
}
