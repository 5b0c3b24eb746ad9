package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

func TestElectionHasOneLeaderAndPassesOnInOrder(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		ctx := within(t, 2*time.Minute)
		s := connect()
		a, b := zsync.NewElection(s, "/e", zsync.WithID("a")), zsync.NewElection(connect(), "/e", zsync.WithID("b"))
		_, err := a.Leader(ctx)
		wantErr(t, err, zsync.ErrNoLeader)
		wantErr(t, a.Resign(), zsync.ErrNotLocked)
		if !session.IsClosed(a.Lost()) {
			t.Error("Lost is open while a does not lead")
		}
		must(t, a.Campaign(ctx))
		got := async(func() error { return b.Campaign(ctx) })
		contend := func(want int) {
			t.Helper()
			eventually(t, func() error {
				if names := childrenOf(t, s, "/e"); len(names) != want {
					return fmt.Errorf("znodes %q, want %d", names, want)
				}
				return nil
			})
		}
		contend(2)
		cs, err := b.Contenders(ctx)
		must(t, err)
		if len(cs) != 2 || cs[0].Owner != "a" || !cs[0].Holding || cs[1].Owner != "b" || cs[1].Holding {
			t.Fatalf("Contenders = %+v, want a leading and b waiting", cs)
		}
		first, err := a.Token(ctx)
		must(t, err)
		if c, err := b.Leader(ctx); err != nil || c.Owner != "a" || c.Session != s.ID() || !c.Holding {
			t.Fatalf("Leader = %+v, %v; want a", c, err)
		}
		if session.IsClosed(a.Lost()) {
			t.Error("Lost is closed while a leads")
		}
		must(t, a.Resign())
		must(t, <-got)
		if c, err := a.Leader(ctx); err != nil || c.Owner != "b" {
			t.Fatalf("Leader = %+v, %v; want b", c, err)
		}
		second, err := b.Token(ctx)
		must(t, err)
		if second <= first {
			t.Errorf("token %d after %d", second, first)
		}
		_, err = b.Txn(ctx, &zk.CreateRequest{Path: "/done", Acl: zk.WorldACL(zk.PermAll)})
		must(t, err)
		must(t, b.Resign())
		contend(0) // the session may delete the log of the Txn in the background
	})
}

func TestElectionLayoutsAreThoseOfCuratorAndKazoo(t *testing.T) {
	for layout, base := range map[zsync.Layout]string{zsync.LayoutCurator: "-latch-", zsync.LayoutSelector: "-lock-", zsync.LayoutKazoo: "__lock__"} {
		t.Run(layout.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				e := zsync.NewElection(s, "/e", zsync.WithLayout(layout), zsync.WithID("me"))
				must(t, e.Campaign(t.Context()))
				names := childrenOf(t, s, "/e")
				if len(names) != 1 || !strings.HasSuffix(names[0], base+"0000000000") || strings.HasPrefix(names[0], "_c_") == (layout == zsync.LayoutKazoo) {
					t.Errorf("children %q, want one with %q", names, base)
				}
				_, err := e.Token(t.Context()) // writes the znode
				must(t, err)
				if c, err := e.Leader(t.Context()); err != nil || c.Owner != "me" || c.Node != names[0] {
					t.Errorf("Leader = %+v, %v; want me", c, err)
				}
			})
		})
	}
}

func TestElectionRefusesBadArguments(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		f := func(context.Context) error { return nil }
		for _, e := range []*zsync.Election{
			zsync.NewElection(nil, "/e"), zsync.NewElection(s, "e"), zsync.NewElection(s, "/"),
			zsync.NewElection(s, "/e", nil), zsync.NewElection(s, "/e", zsync.WithLayout(7)),
			zsync.NewElection(s, "/e", zsync.WithHandoffs(1)), zsync.NewElection(s, "/e", zsync.WithRetention(time.Second)),
		} {
			wantErr(t, e.Campaign(t.Context()), zsync.ErrInvalid)
			wantErr(t, e.Resign(), zsync.ErrInvalid)
			wantErr(t, e.Run(t.Context(), f), zsync.ErrInvalid)
			_, err := e.Leader(t.Context())
			wantErr(t, err, zsync.ErrInvalid)
			_, err = e.Contenders(t.Context())
			wantErr(t, err, zsync.ErrInvalid)
			_, err = e.Token(t.Context())
			wantErr(t, err, zsync.ErrInvalid)
			_, err = e.Txn(t.Context())
			wantErr(t, err, zsync.ErrInvalid)
			if _, ok := <-e.Observe(t.Context()); ok || !session.IsClosed(e.Lost()) {
				t.Error("Observe or Lost of a bad Election is open")
			}
		}
		wantErr(t, zsync.NewElection(s, "/e").Run(t.Context(), nil), zsync.ErrInvalid)
		wantErr(t, zsync.NewElection(s, "/e", zsync.WithID(strings.Repeat("x", 1<<20))).Campaign(t.Context()), zsync.ErrTooLarge)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("enough")
		cancel(cause)
		wantErr(t, zsync.NewElection(s, "/e").Campaign(ctx), cause, context.Canceled)
		wantErr(t, zsync.NewElection(s, "/e").Run(ctx, f), cause, context.Canceled)
		if srv.Counts().Requests["create"] != 0 {
			t.Error("a znode was written")
		}
	})
}

func TestCampaignCostsTwoRequestsAndResignOne(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		e := zsync.NewElection(s, "/e")
		must(t, e.Campaign(t.Context())) // makes the parent
		must(t, e.Resign())
		before := s.Stats().Requests
		must(t, e.Campaign(t.Context()))
		must(t, e.Resign())
		if got := s.Stats().Requests - before; got != 3 {
			t.Errorf("Campaign and Resign cost %d requests, want 3", got)
		}
	})
}

// Case 31, with etcd 21128: a Campaign that fails leaves nothing to win later.
func TestCancelledCampaignLeavesNoZnode(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		ea, eb := zsync.NewElection(a, "/e"), zsync.NewElection(b, "/e")
		must(t, ea.Campaign(t.Context()))
		cause := errors.New("enough")
		for i := range 50 {
			if i%5 == 1 {
				srv.Intercept(first([]zktest.Action{zktest.DropReply, zktest.DropRequest}[i/5%2], op(zktest.OpCreate)))
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Duration(i)*time.Millisecond, func() { cancel(cause) })
			wantErr(t, eb.Campaign(ctx), cause, context.Canceled)
			time.Sleep(time.Second) // for what was in flight
			if n := len(childrenOf(t, a, "/e")); n != 1 {
				t.Fatalf("%d znodes after a cancelled Campaign, want the leader's", n)
			}
		}
		must(t, ea.Resign())
		_, err := eb.Leader(t.Context())
		wantErr(t, err, zsync.ErrNoLeader)
		must(t, eb.Campaign(t.Context())) // and the next one is not hindered
		if st := b.Stats(); st.Waiters != 0 || st.Holds != 1 {
			t.Errorf("%+v, want one hold and no waiters", st)
		}
	})
}

func TestLostRepliesDoNotStandTwice(t *testing.T) {
	for _, fault := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
		for _, o := range []zktest.Op{zktest.OpCreate, zktest.OpGetChildren2, zktest.OpSetData, zktest.OpDelete} {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				e := zsync.NewElection(s, "/e")
				srv.Intercept(first(fault, op(o)))
				must(t, e.Campaign(t.Context()))
				if n := len(childrenOf(t, s, "/e")); n != 1 {
					t.Errorf("%v of %v: %d znodes for one candidate", fault, o, n)
				}
				_, err := e.Token(t.Context())
				must(t, err)
				must(t, e.Resign())
				time.Sleep(time.Second)
				if n := len(childrenOf(t, s, "/e")); n != 0 {
					t.Errorf("%v of %v: %d znodes are left", fault, o, n)
				}
			})
		}
	}
}

// Case 31, with CURATOR-696: the leader's session ends, its connection comes
// back in a new one, and its old znode is still there for a while.
func TestOldLeaderDoesNotBelieveInItsOldZnode(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		ea, eb := zsync.NewElection(a, "/e", zsync.WithID("a")), zsync.NewElection(b, "/e", zsync.WithID("b"))
		must(t, ea.Campaign(t.Context()))
		lost, old := ea.Lost(), a.ID()
		got := async(func() error { return eb.Campaign(t.Context()) })
		srv.ChangeSession(old) // the server forgets whose connection it was, and keeps the session
		srv.Disconnect(old)
		synctest.Wait()
		time.Sleep(time.Second)
		if a.ID() == old || !session.IsClosed(lost) {
			t.Fatal("the old leader does not know that its session is over")
		}
		if c, err := eb.Leader(t.Context()); err != nil || c.Session != old {
			t.Fatalf("Leader = %+v, %v; want the old znode still there", c, err)
		}
		again := async(func() error { return ea.Campaign(t.Context()) }) // with no Resign
		pendingStill(t, again)
		must(t, <-got)
		pendingStill(t, again)
		wantErr(t, ea.Resign(), zsync.ErrNotLocked)
		must(t, eb.Resign())
		must(t, <-again)
		if c, err := eb.Leader(t.Context()); err != nil || c.Session != a.ID() {
			t.Fatalf("Leader = %+v, %v; want a in its new session", c, err)
		}
	})
}

func TestLostLeadershipIsToldByEverything(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		e := zsync.NewElection(s, "/e")
		must(t, e.Campaign(t.Context()))
		lost := e.Lost()
		srv.Expire(s.ID())
		time.Sleep(time.Second)
		if !session.IsClosed(lost) {
			t.Error("Lost is open")
		}
		_, err := e.Token(t.Context())
		wantErr(t, err, zsync.ErrLost)
		_, err = e.Txn(t.Context(), &zk.CreateRequest{Path: "/x", Acl: zk.WorldACL(zk.PermAll)})
		wantErr(t, err, zsync.ErrLost)
		wantErr(t, e.Resign(), zsync.ErrLost)
		wantErr(t, e.Resign(), zsync.ErrNotLocked)
		must(t, e.Campaign(t.Context()))
		must(t, e.Resign())
		if n := s.Stats().Holds; n != 0 {
			t.Errorf("%d holds are counted, want none", n)
		}
	})
}

func TestCampaignWaitsForAnotherGoroutineOfTheSameCandidate(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		e := zsync.NewElection(s, "/e")
		must(t, e.Campaign(t.Context()))
		var got []<-chan error
		for range 3 {
			got = append(got, async(func() error { return e.Campaign(t.Context()) }))
		}
		wantErr(t, e.Campaign(within(t, time.Second)), context.DeadlineExceeded)
		if n := len(childrenOf(t, s, "/e")); n != 1 {
			t.Fatalf("one candidate has %d znodes", n)
		}
		for range got {
			must(t, e.Resign())
			synctest.Wait()
			won := 0
			for i, c := range got {
				select {
				case err := <-c:
					must(t, err)
					won++
					got[i] = nil
				default:
				}
			}
			if won != 1 {
				t.Fatalf("%d goroutines lead after one Resign, want 1", won)
			}
		}
		last := async(func() error { return e.Campaign(t.Context()) })
		pendingStill(t, last)
		s.Close()
		wantErr(t, <-last, zsync.ErrClosed)
		wantErr(t, e.Resign(), zsync.ErrLost, zsync.ErrClosed)
	})
}

func TestRunLeadsAgainAfterALossAndEndsTheContextOfEach(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		e := zsync.NewElection(s, "/e")
		boom := errors.New("boom")
		calls := 0
		err := e.Run(t.Context(), func(ctx context.Context) error {
			calls++
			wantErr(t, e.Campaign(ctx), zsync.ErrDeadlock)
			if calls > 3 {
				return boom
			}
			if calls == 3 {
				go func() { must(t, e.Resign()) }()
				<-ctx.Done()
				wantErr(t, context.Cause(ctx), zsync.ErrNotLocked)
				return ctx.Err()
			}
			srv.Expire(s.ID())
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), zsync.ErrLost)
			return fmt.Errorf("some consequence of the loss")
		})
		wantErr(t, err, boom)
		if calls != 4 {
			t.Errorf("f was called %d times, want 4", calls)
		}
		wantErr(t, e.Resign(), zsync.ErrNotLocked)
		if n := len(childrenOf(t, s, "/e")); n != 0 {
			t.Errorf("%d znodes are left", n)
		}
	})
}

func TestRunTakesTurnsWhenItsFunctionReturnsNil(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("enough")
		var leading, led [3]atomic.Int32
		var runs []<-chan error
		for i := range 3 {
			e := zsync.NewElection(open(t, srv), "/e")
			runs = append(runs, async(func() error {
				return e.Run(ctx, func(ctx context.Context) error {
					if leading[0].Add(1) != 1 {
						t.Error("two lead")
					}
					led[i].Add(1)
					time.Sleep(time.Second)
					leading[0].Add(-1)
					return nil
				})
			}))
		}
		time.Sleep(time.Minute)
		cancel(cause)
		for i, r := range runs {
			wantErr(t, <-r, cause, context.Canceled)
			if n := led[i].Load(); n < 15 {
				t.Errorf("candidate %d led %d times in 60 turns of 3", i, n)
			}
		}
	})
}

func TestRunResignsWhenItsFunctionPanics(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		e := zsync.NewElection(s, "/e")
		func() {
			defer func() {
				if recover() != "boom" {
					t.Error("the panic was swallowed")
				}
			}()
			e.Run(t.Context(), func(context.Context) error { panic("boom") })
		}()
		wantErr(t, e.Resign(), zsync.ErrNotLocked)
		if n := len(childrenOf(t, s, "/e")); n != 0 {
			t.Errorf("%d znodes are left", n)
		}
	})
}

// named reads who is observed next, and fails if nobody is when all is quiet.
func named(t testing.TB, c <-chan zsync.Contender) string {
	t.Helper()
	synctest.Wait()
	select {
	case c, ok := <-c:
		if !ok {
			t.Fatal("the channel is closed")
		}
		return c.Owner
	default:
		return ""
	}
}

func TestObserveNamesTheLeaderAndEveryChangeAndThenIsQuiet(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		o := open(t, srv)
		ctx, cancel := context.WithCancel(t.Context())
		seen := zsync.NewElection(o, "/deep/e").Observe(ctx)
		if who := named(t, seen); who != "" {
			t.Fatalf("%q is named, and nobody stood", who)
		}
		s := open(t, srv)
		es := make(map[string]*zsync.Election)
		var waiting []<-chan error
		for _, id := range []string{"a", "b", "c"} {
			es[id] = zsync.NewElection(s, "/deep/e", zsync.WithID(id))
			waiting = append(waiting, async(func() error { return es[id].Campaign(t.Context()) }))
			synctest.Wait()
		}
		for i, id := range []string{"a", "b", "c"} {
			must(t, <-waiting[i])
			if who := named(t, seen); who != id {
				t.Fatalf("%q is named, want %q", who, id)
			}
			_, err := es[id].Token(t.Context()) // changes the znode, not the leader
			must(t, err)
			before, notes := o.Stats().Requests, srv.Counts().Notifications
			time.Sleep(time.Hour)
			if who := named(t, seen); who != "" {
				t.Fatalf("%q is named again", who)
			}
			if d, n := o.Stats().Requests-before, srv.Counts().Notifications-notes; d != 0 || n != 0 {
				t.Errorf("an hour of watching cost %d requests and %d notifications", d, n)
			}
			must(t, es[id].Resign())
		}
		if who := named(t, seen); who != "" {
			t.Fatalf("%q is named, and nobody leads", who)
		}
		time.Sleep(5 * time.Minute) // the container goes
		must(t, es["b"].Campaign(t.Context()))
		if who := named(t, seen); who != "b" {
			t.Fatalf("%q is named, want b", who)
		}
		cancel()
		if _, ok := <-seen; ok {
			t.Error("the channel is open after its context has ended")
		}
		seen = zsync.NewElection(o, "/deep/e").Observe(t.Context())
		if who := named(t, seen); who != "b" {
			t.Fatalf("%q is named, want b", who)
		}
		o.Close()
		if _, ok := <-seen; ok {
			t.Error("the channel is open after Close")
		}
	})
}

func TestObserveSkipsToTheLatestForASlowReaderAndOutlivesSessions(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		o, s := open(t, srv), open(t, srv)
		seen := zsync.NewElection(o, "/e").Observe(t.Context())
		for _, id := range []string{"a", "b", "c"} {
			e := zsync.NewElection(s, "/e", zsync.WithID(id))
			must(t, e.Campaign(t.Context()))
			synctest.Wait()
			if id != "c" {
				must(t, e.Resign())
			}
		}
		if who := named(t, seen); who != "c" {
			t.Fatalf("%q is named, want c, who leads", who)
		}
		for range 3 {
			srv.Expire(o.ID())
			time.Sleep(time.Second)
			if who := named(t, seen); who != "" {
				t.Fatalf("%q is named again after a new session", who)
			}
		}
		id := o.ID()
		srv.Partition(id)
		srv.Expire(s.ID())
		time.Sleep(time.Second)
		must(t, zsync.NewElection(s, "/e", zsync.WithID("d")).Campaign(t.Context()))
		time.Sleep(2 * testTimeout)
		srv.Heal(id)
		time.Sleep(time.Second)
		if who := named(t, seen); who != "d" {
			t.Fatalf("%q is named, want d", who)
		}
	})
}

func TestObserveDoesNotGoBackOnAServerThatLags(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		o, s := open(t, srv), open(t, srv)
		ea, eb := zsync.NewElection(s, "/e", zsync.WithID("a")), zsync.NewElection(s, "/e", zsync.WithID("b"))
		must(t, ea.Campaign(t.Context()))
		srv.Freeze(srv.Addrs()[1])
		seen := zsync.NewElection(o, "/e").Observe(t.Context())
		if who := named(t, seen); who != "a" {
			t.Fatalf("%q is named, want a", who)
		}
		must(t, ea.Resign())
		must(t, eb.Campaign(t.Context()))
		for range 20 {
			srv.Expire(o.ID()) // and on with any of the servers
			time.Sleep(time.Second)
			who := named(t, seen)
			if who != "" && who != "b" {
				t.Fatalf("%q is named, want b", who)
			}
			if c, err := zsync.NewElection(o, "/e").Leader(t.Context()); err != nil || c.Owner != "b" {
				t.Fatalf("Leader = %+v, %v; want b", c, err)
			}
		}
	}, zktest.WithAddrs("127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"))
}

func TestThousandObserversAndCandidatesCostOneNotificationEach(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const candidates = 200
		s := open(t, srv)
		leader := zsync.NewElection(s, "/e")
		must(t, leader.Campaign(t.Context()))
		var sessions []*zsync.Session
		for range 10 {
			sessions = append(sessions, open(t, srv))
		}
		turn := make(chan *zsync.Election, candidates)
		for i := range candidates {
			e := zsync.NewElection(sessions[i%len(sessions)], "/e")
			go func() {
				if err := e.Campaign(t.Context()); err != nil {
					t.Error(err)
				}
				turn <- e
			}()
		}
		synctest.Wait()
		watchers := open(t, srv)
		for range 100 { // of one process: they share a watch
			c := zsync.NewElection(watchers, "/e").Observe(t.Context())
			go func() {
				for range c {
				}
			}()
		}
		synctest.Wait()
		before := srv.Counts()
		must(t, leader.Resign())
		synctest.Wait()
		for range candidates - 1 {
			must(t, (<-turn).Resign())
			synctest.Wait()
		}
		if d := srv.Counts().Sub(before); d.Notifications < 2*candidates || d.Notifications > 3*candidates {
			t.Errorf("%d notifications for %d changes, one observing process, the next in line and the one who has left", d.Notifications, candidates)
		}
	})
}

func TestLeaderThatIsAskedAgainNamesNobodyWhoHasGoneMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		first, next := zsync.NewElection(open(t, srv, zsync.WithOwner("first")), "/e"), zsync.NewElection(open(t, srv, zsync.WithOwner("next")), "/e")
		must(t, first.Campaign(t.Context()))
		asks := zsync.NewElection(open(t, srv), "/e")
		wantLeader := func(want string) zsync.Contender {
			t.Helper()
			c, err := asks.Leader(t.Context())
			must(t, err)
			if c.Owner != want {
				t.Errorf("%s leads, want %s", c.Owner, want)
			}
			return c
		}
		c := wantLeader("first")
		led := async(func() error { return next.Campaign(t.Context()) })
		synctest.Wait()
		left := false
		read := oneByOne(srv, func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpGetData && r.Path == "/e/"+c.Node && !left {
				left = true
				go first.Resign()
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		wantLeader("next") // first was listed, and has left before it was read
		read(func() {
			if !left {
				t.Fatal("nobody read who had led: the case did not come about")
			}
		})
		must(t, <-led)
		wantLeader("next")
		must(t, next.Resign())
		_, err := asks.Leader(t.Context())
		wantErr(t, err, zsync.ErrNoLeader)
		must(t, first.Campaign(t.Context()))
		wantLeader("first")
	})
}

// In real time, as a goroutine that waits for a mutex keeps virtual time from passing.
func TestNothingOfACallersContextIsCalledUnderTheLockOfAnElection(t *testing.T) {
	harness.InMemory(t)
	t.Parallel()
	srv := zktest.Start(t, harness.Patient)
	s, err := zsync.Connect(t.Context(), srv.Addr())
	must(t, err)
	defer s.Close()
	e := zsync.NewElection(s, "/e")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	curious := harness.Asking(ctx, func() {
		asked := make(chan struct{})
		go func() { e.Lost(); close(asked) }()
		select {
		case <-asked:
		case <-time.After(time.Minute):
			t.Error("Lost waits for who calls the context")
		}
	})
	leads := make(chan struct{})
	ran := async(func() error {
		return e.Run(curious, func(ctx context.Context) error {
			leads <- struct{}{}
			<-ctx.Done()
			return nil
		})
	})
	<-leads
	must(t, e.Resign())
	<-leads // again
	cancel()
	wantErr(t, <-ran, context.Canceled)
}

// lateRelease makes e owe a release: e has lost a leadership, and has campaigned again without a Resign.
func lateRelease(t *testing.T, srv *zktest.Server, s *zsync.Session, e *zsync.Election) {
	t.Helper()
	must(t, e.Campaign(t.Context()))
	srv.Expire(s.ID())
	time.Sleep(time.Second)
	must(t, e.Campaign(t.Context()))
	must(t, e.Resign())
}

func TestCloseAfterAResignWaitsForTheFunctionOfRunAlsoAfterAnEarlierLoss(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		ea, eb := zsync.NewElection(a, "/e"), zsync.NewElection(b, "/e")
		lateRelease(t, srv, a, ea)
		runs := make(chan struct{})
		end := sync.OnceFunc(func() { close(runs) })
		defer end()
		ran := async(func() error {
			return ea.Run(t.Context(), func(context.Context) error {
				<-runs
				return nil
			})
		})
		synctest.Wait()
		next := async(func() error { return eb.Campaign(t.Context()) })
		must(t, ea.Resign())
		closed := async(func() error { a.Close(); return nil })
		time.Sleep(time.Second)
		pendingStill(t, next) // the function of Run has not returned
		end()
		must(t, <-next)
		must(t, <-closed)
		wantErr(t, <-ran, zsync.ErrClosed)
	})
}

func TestWithMaxHoldEndsAFunctionThatHangsAfterAResignAlsoAfterAnEarlierLoss(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		ea, eb := zsync.NewElection(a, "/e", zsync.WithMaxHold(5*time.Second)), zsync.NewElection(b, "/e")
		lateRelease(t, srv, a, ea)
		runs := make(chan struct{})
		defer close(runs)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		async(func() error {
			return ea.Run(ctx, func(context.Context) error {
				<-runs
				return nil
			})
		})
		synctest.Wait()
		must(t, ea.Resign())
		must(t, eb.Campaign(within(t, time.Minute)))
	})
}

func TestRunCallsNoFunctionForALeadershipThatWasResignedBeforeIt(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var ea *zsync.Election
		resigned := make(chan struct{})
		a := open(t, srv, zsync.WithObserver(zsync.ObserverFunc(func(e zsync.Event) {
			if e.Kind == zsync.EventAcquired && !session.IsClosed(resigned) { // Run is about to call its function
				must(t, ea.Resign())
				close(resigned)
				time.Sleep(time.Second) // the next candidate leads
			}
		})))
		b := open(t, srv)
		ea = zsync.NewElection(a, "/e")
		eb := zsync.NewElection(b, "/e")
		ctx, cancel := context.WithCancel(t.Context())
		next := async(func() error {
			<-resigned
			return eb.Campaign(ctx)
		})
		ran := async(func() error {
			return ea.Run(ctx, func(context.Context) error {
				t.Error("Run has called its function, and another candidate leads")
				return nil
			})
		})
		must(t, <-next)
		time.Sleep(5 * time.Second)
		cancel()
		wantErr(t, <-ran, context.Canceled)
	})
}

func TestResignTellsALossThatComesWhileTheFunctionOfRunReturns(t *testing.T) {
	for _, lost := range []bool{false, true} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			e := zsync.NewElection(s, "/e")
			boom := errors.New("boom")
			leads := make(chan struct{})
			ran := async(func() error {
				return e.Run(t.Context(), func(ctx context.Context) error {
					if session.IsClosed(leads) {
						return boom
					}
					close(leads)
					<-ctx.Done()
					time.Sleep(200 * time.Millisecond)
					return nil
				})
			})
			<-leads
			resigned := async(e.Resign)
			time.Sleep(100 * time.Millisecond)
			if lost {
				srv.Expire(s.ID())
				wantErr(t, <-resigned, zsync.ErrLost)
			} else {
				must(t, <-resigned)
			}
			wantErr(t, <-ran, boom)
		})
	}
}
