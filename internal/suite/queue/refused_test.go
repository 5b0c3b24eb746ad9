package queue

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// What a Send needs and has not is made on the way. The servers may refuse that too.
func TestSendReturnsThatTheServersRefuseWhatItNeeds(t *testing.T) {
	now := func(q *zsync.Queue[int], ctx context.Context) error { return q.Send(ctx, 1) }
	later := func(q *zsync.Queue[int], ctx context.Context) error {
		return q.SendAt(ctx, time.Now().Add(time.Hour), 1)
	}
	for _, c := range []struct {
		name, made, readOnly string
		send                 func(q *zsync.Queue[int], ctx context.Context) error
		opts                 []zsync.QueueOption
	}{
		{"the directory of journals", "/jobs/q", "/jobs", now, nil},
		{"where elements wait for their time", "/jobs/q-receipts", "/jobs/q", later, nil},
		{"another library's queue", "/jobs/q-receipts", "/jobs", now, []zsync.QueueOption{zsync.WithQueueLayout(zsync.LayoutKazooQueue)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				for _, path := range []string{"/jobs", c.made, c.readOnly} {
					s.Txn(t.Context(), &zk.CreateRequest{Path: path, Acl: zk.WorldACL(zk.PermAll)})
				}
				setACL(t, srv, c.readOnly, zk.WorldACL(zk.PermAll&^zk.PermCreate))
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				wantErr(t, c.send(zsync.NewQueue[int](s, "/jobs/q", c.opts...), ctx), zk.ErrNoAuth)
			})
		})
	}
}

// Calls of Send share a transaction. The servers refuse what one of them needs.
func TestASendThatIsRefusedFailsAlone(t *testing.T) {
	for name, c := range map[string]struct {
		readOnly string
		send     func(q *zsync.Queue[int], ctx context.Context) error
	}{
		"a delay": {"/q", func(q *zsync.Queue[int], ctx context.Context) error {
			return q.SendAt(ctx, time.Now().Add(time.Hour), -1)
		}},
		"a priority": {"/q", func(q *zsync.Queue[int], ctx context.Context) error { return q.SendPriority(ctx, 0, -1) }},
		"an ID": {"/q-ids", func(q *zsync.Queue[int], ctx context.Context) error {
			_, err := q.SendID(ctx, "id", -1)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				q := zsync.NewQueue[int](s, "/q", zsync.WithPriorities(3))
				must(t, q.Send(t.Context(), 0))
				s.Txn(t.Context(), &zk.CreateRequest{Path: c.readOnly, Acl: zk.WorldACL(zk.PermAll)})
				setACL(t, srv, c.readOnly, zk.WorldACL(zk.PermAll&^zk.PermCreate))
				srv.SetLatency(10 * time.Millisecond)
				var results []<-chan error
				for i := 1; i < 5; i++ {
					if i == 3 {
						refused := async(func() error { return c.send(q, t.Context()) })
						defer func() { wantErr(t, <-refused, zk.ErrNoAuth) }()
						time.Sleep(time.Millisecond)
					}
					results = append(results, async(func() error { return q.Send(t.Context(), i) }))
					time.Sleep(time.Millisecond)
				}
				for _, r := range results {
					must(t, <-r)
				}
				if got := collect(t, q.Recv(t.Context()), 5); !slices.Equal(got, counted(5)) {
					t.Errorf("received %v", got)
				}
				noneLeft(t, q)
			})
		})
	}
}

func TestConsumerReportsThatTheServersRefuseWhatItNeeds(t *testing.T) {
	for name, refuse := range map[string]string{"the directory of journals": "/jobs", "the order of claims where elements have keys": "/jobs/q/keys"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				must(t, zsync.NewQueue[int](s, "/jobs/q", zsync.WithKey(func(int) string { return "k" })).Send(t.Context(), 1))
				_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/jobs/q-consumers"})
				must(t, err)
				setACL(t, srv, refuse, zk.WorldACL(zk.PermRead|zk.PermAdmin))
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				for _, err := range zsync.NewQueue[int](s, "/jobs/q").All(ctx) {
					wantErr(t, err, zk.ErrNoAuth)
					return
				}
				t.Error("it ended")
			})
		})
	}
}

// What is claimed in the transaction that settles others is claimed without what is refused.
func TestAnElementThatCannotBeRemovedDoesNotKeepItsConsumerFromClaiming(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithPrefetch(4))
		srv.SetLatency(5 * time.Millisecond)
		must(t, q.Send(t.Context(), counted(200)...))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := 0
		began := time.Now()
		for d, err := range q.All(ctx) {
			must(t, err)
			if n++; n%10 == 0 {
				_, err := s.Txn(ctx, &zk.CreateRequest{Path: "/q/" + d.ID + "/child"})
				must(t, err)
			}
			go d.Ack(ctx)
			if n == 200 {
				break
			}
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		cancel()
		time.Sleep(time.Second)
		wantLen(t, q, 20)
	})
}

// A consumer cannot read the bucket in which another consumer has claimed an element. It reports that, receives the
// elements of other buckets, and looks again after a minute.
func TestABucketThatCannotBeReadIsReportedAndPassedOverForAMinute(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		opt := zsync.WithPriorities(2)
		q, o := zsync.NewQueue[int](open(t, srv), "/q", opt), zsync.NewQueue[int](open(t, srv), "/q", opt)
		must(t, q.SendPriority(t.Context(), 0, 1, 2))
		_, err := q.Receive(t.Context())
		must(t, err)
		bucket := "/q/" + childrenOf(t, open(t, srv), "/q")[0]
		must(t, q.SendPriority(t.Context(), 1, 3))
		setACL(t, srv, bucket, zk.WorldACL(zk.PermAll&^zk.PermRead))
		time.AfterFunc(time.Second, func() { setACL(t, srv, bucket, zk.WorldACL(zk.PermAll)) })
		began := time.Now()
		var got []int
		var refusals []error
		for d, err := range o.All(within(t, 2*time.Minute)) {
			if err != nil {
				refusals = append(refusals, err)
				continue
			}
			got = append(got, d.Value)
			must(t, d.Ack(t.Context()))
			if len(got) == 2 {
				break
			}
		}
		if took := time.Since(began); !slices.Equal(got, []int{3, 2}) || took < time.Minute || took > 61*time.Second {
			t.Errorf("received %v in %v", got, took)
		}
		if len(refusals) != 1 || !errors.Is(refusals[0], zk.ErrNoAuth) || !strings.Contains(refusals[0].Error(), "skip it for a minute") {
			t.Errorf("the errors are %v", refusals)
		}
	})
}

// The servers do not show whether they have applied an Ack, and refuse to delete the consumer's mark for a
// while. Then Ack says that its outcome is unknown, and the element is free for others when the permission
// is back: the client repeats the deletion, or ends its session.
func TestElementsOfALostClaimAreFreeThoughTheServersHaveRefusedToDeleteItsMark(t *testing.T) {
	for _, refused := range []time.Duration{5 * time.Second, time.Minute} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, other := open(t, srv), zsync.NewQueue[int](open(t, srv), "/q")
			q := zsync.NewQueue[int](s, "/q")
			must(t, q.Send(t.Context(), 1))
			d, err := q.Receive(t.Context())
			must(t, err)
			id := s.ID()
			var refusing atomic.Bool
			srv.Intercept(func(r zktest.Request) zktest.Action {
				switch {
				case r.Session != id, !strings.HasPrefix(r.Path, "/q") && r.Op != zktest.OpMulti, r.Op == zktest.OpSync:
				case r.Op == zktest.OpMulti && refusing.CompareAndSwap(false, true):
					return zktest.DropRequest
				case refusing.Load():
					return zktest.Fail(zktest.CodeNoAuth)
				}
				return zktest.Pass
			})
			time.AfterFunc(refused, func() { srv.Intercept(nil) })
			if err := d.Ack(harness.Within(t, time.Minute)); err == nil || errors.Is(err, zsync.ErrClosed) || !strings.Contains(err.Error(), "whether it was applied is unknown") {
				t.Errorf("refused for %v: Ack = %v", refused, err)
			}
			if again, err := other.Receive(harness.Within(t, time.Minute)); err != nil || again.Value != 1 {
				t.Errorf("refused for %v: Receive = %v, %v; want 1", refused, again.Value, err)
			}
		})
	}
}

// The mark of a consumer that has ended goes, too, when the servers permit its deletion again.
func TestAnIdleConsumerLeavesNoMarkThoughTheServersHaveRefusedToDeleteIt(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1))
		_, _, err := q.TryRecv(t.Context())
		must(t, err)
		id, refusals := s.ID(), 0
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpDelete && strings.HasPrefix(r.Path, "/q-live/") {
				refusals++
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		time.Sleep(time.Minute)
		srv.Intercept(nil)
		time.Sleep(time.Minute)
		if left := suite.ChildrenOf(t, s, "/q-live"); len(left) > 0 || refusals == 0 || s.ID() != id {
			t.Errorf("left %v after %d refusals, session %x, want %x", left, refusals, s.ID(), id)
		}
	})
}
