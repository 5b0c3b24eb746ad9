package queue

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// A stranger deletes znodes of a queue, or creates them.

// soon receives from ch within two session timeouts.
func soon[T any](t *testing.T, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(2 * harness.Timeout):
		t.Fatal("nothing came within two session timeouts")
	}
	return v
}

// deleteChildren deletes the children of a znode whose names begin with prefix.
func deleteChildren(t *testing.T, stranger *zk.Conn, dir, prefix string) (names []string) {
	t.Helper()
	for _, name := range harness.Children(t, stranger, dir) {
		if strings.HasPrefix(name, prefix) {
			must(t, stranger.Delete(dir+"/"+name, -1))
			names = append(names, name)
		}
	}
	if names == nil {
		t.Fatalf("%s has no child %s…", dir, prefix)
	}
	return names
}

func TestAnOnlyConsumerGetsItsElementAgainThoughItsMarkIsDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		must(t, zsync.NewQueue[int](open(t, srv), "/q").Send(t.Context(), 7))
		ch := zsync.NewQueue[int](open(t, srv), "/q").Deliveries(t.Context())
		lost := soon(t, ch)
		time.Sleep(time.Second)
		deleteChildren(t, plain(t, srv), "/q-live", "")
		must(t, soon(t, ch).Ack(t.Context()))
		wantErr(t, lost.Ack(t.Context()), zsync.ErrLost)
	})
}

func TestTheNextElementOfAKeyComesThoughTheOneInHandIsDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithKey(func(int) string { return "key" }))
		must(t, q.Send(t.Context(), 1, 2))
		ch := zsync.NewQueue[int](open(t, srv), "/q").Deliveries(t.Context())
		d := soon(t, ch)
		time.Sleep(time.Second)
		must(t, plain(t, srv).Delete("/q/"+d.ID, -1))
		wantErr(t, d.Ack(t.Context()), zsync.ErrLost)
		if d := soon(t, ch); d.Value != 2 {
			t.Errorf("received %d", d.Value)
		}
	})
}

func TestConsumersGoOnWhenTheZnodeOfAPauseIsDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		must(t, q.Pause(t.Context()))
		must(t, q.Send(t.Context(), 1))
		ch := zsync.NewQueue[int](open(t, srv), "/q").Recv(t.Context())
		time.Sleep(time.Second)
		if n := requests(srv, func() { time.Sleep(harness.Timeout / 10) }); n > 2 { // pings
			t.Errorf("%d requests during a pause", n)
		}
		deleteChildren(t, plain(t, srv), "/q", "paused")
		soon(t, ch)
	})
}

func TestConsumersGoOnInABucketThatIsDeletedAndMadeAgain(t *testing.T) {
	for name, settled := range map[string]bool{"settled": true, "in hand": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				q := zsync.NewQueue[int](open(t, srv), "/q")
				ch := zsync.NewQueue[int](open(t, srv), "/q").Deliveries(t.Context())
				wantSentID(t, q, "0", 0, true)
				wantSentID(t, q, "1", 1, true)
				for range 2 {
					if d := soon(t, ch); settled {
						must(t, d.Ack(t.Context()))
					}
				}
				time.Sleep(time.Second)
				stranger := plain(t, srv)
				for _, name := range harness.Children(t, stranger, "/q") {
					if strings.HasPrefix(name, "b-") {
						remake(t, stranger, "/q/"+name)
					}
				}
				wantSentID(t, q, "2", 2, true)
				wantSentID(t, q, "3", 3, true)
				before := srv.Counts()
				must(t, soon(t, ch).Nack())
				var got []int
				for range 2 {
					d := soon(t, ch)
					got = append(got, d.Value)
					must(t, d.Ack(t.Context()))
				}
				if slices.Sort(got); !slices.Equal(got, []int{2, 3}) {
					t.Errorf("received %v", got)
				}
				if n := srv.Counts().Sub(before).Total(); n > 100 {
					t.Errorf("%d requests", n)
				}
				eventuallyEmpty(t, q)
			})
		})
	}
}

// The function `remake` deletes a bucket with its elements, and creates it again.
func remake(t *testing.T, stranger *zk.Conn, bucket string) {
	for _, name := range harness.Children(t, stranger, bucket) {
		must(t, stranger.Delete(bucket+"/"+name, -1))
	}
	must(t, stranger.Delete(bucket, -1))
	_, err := stranger.Create(bucket, nil, 0, zk.WorldACL(zk.PermAll))
	must(t, err)
}

// A delivered element is returned. Meanwhile, another client has deleted the bucket and created it again, and a producer
// has sent an element, which has the number of the first.
func TestAReturnDoesNotCountAsADeliveryOfTheNextElementOfItsName(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		must(t, q.Send(t.Context(), 1))
		d, err := zsync.NewQueue[int](open(t, srv), "/q").Receive(t.Context())
		must(t, err)
		remake(t, plain(t, srv), "/q/"+d.ID[:strings.LastIndexByte(d.ID, '/')])
		must(t, q.Send(t.Context(), 2))
		wantErr(t, d.Nack(), zsync.ErrLost)
		next, err := q.Receive(within(t, time.Minute))
		must(t, err)
		if next.Value != 2 || next.Attempt != 1 || next.ID != d.ID {
			t.Errorf("received element %s with value %d, delivery %d", next.ID, next.Value, next.Attempt)
		}
	})
}

// A consumer has found an element. Before its claim arrives, another client removes the element, and deletes and creates
// the bucket. The claim has the version of the new bucket, so the servers apply it there. The number in the claim is the
// number of the next element.
func TestAClaimThatArrivesInTheBucketOfAnotherClientDoesNotHoldBackTheNextElement(t *testing.T) {
	for name, fate := range map[string]zktest.Action{"reply": zktest.Pass, "lost request": zktest.DropRequest, "lost reply": zktest.DropReply} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				q, s, stranger := zsync.NewQueue[int](open(t, srv), "/q"), open(t, srv), plain(t, srv)
				must(t, q.Send(t.Context(), 1))
				id, remade := s.ID(), atomic.Bool{}
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Session != id || r.Op != zktest.OpMulti || !strings.HasPrefix(r.Ops[1].Path, "/q/b-") || !remade.CompareAndSwap(false, true) {
						return zktest.Pass
					}
					remake(t, stranger, r.Ops[1].Path)
					return fate
				})
				ch := zsync.NewQueue[int](s, "/q").Deliveries(t.Context())
				time.Sleep(time.Second)
				if !remade.Load() {
					t.Fatal("the case did not come about")
				}
				must(t, q.Send(t.Context(), 2))
				d := soon(t, ch)
				if d.Value != 2 {
					t.Errorf("received %d", d.Value)
				}
				must(t, d.Ack(t.Context()))
				eventuallyEmpty(t, q)
			})
		})
	}
}

// The reply to a removal is lost. Before the consumer has another connection, another client deletes the bucket and
// creates it again, and a producer sends an element that gets the name of the removed one.
func TestARemovalWithoutAReplyDoesNotConcernTheNextElementOfItsName(t *testing.T) {
	for _, try := range []bool{false, true} {
		for _, unmarked := range []bool{false, true} {
			t.Run(fmt.Sprintf("TryRecv %v, mark deleted %v", try, unmarked), func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					q, s, stranger := zsync.NewQueue[int](open(t, srv), "/q"), open(t, srv), plain(t, srv)
					must(t, q.Send(t.Context(), 1))
					id, lost, remade := s.ID(), atomic.Pointer[string]{}, atomic.Bool{}
					srv.Intercept(func(r zktest.Request) zktest.Action {
						bucket := lost.Load()
						switch {
						case r.Session != id:
						case bucket == nil && r.Op == zktest.OpMulti && r.Ops[1].Op == zktest.OpDelete && strings.HasPrefix(r.Ops[1].Path, "/q/b-"):
							path := r.Ops[1].Path[:strings.LastIndexByte(r.Ops[1].Path, '/')]
							lost.Store(&path)
							return zktest.DropReply
						case bucket != nil && remade.CompareAndSwap(false, true):
							remake(t, stranger, *bucket)
							must(t, q.Send(t.Context(), 2))
							if unmarked {
								deleteChildren(t, stranger, "/q-live", "")
							}
						}
						return zktest.Pass
					})
					consumer := zsync.NewQueue[int](s, "/q")
					if try {
						if v, ok, err := consumer.TryRecv(t.Context()); v != 1 || !ok || err != nil {
							t.Errorf("TryRecv = %d, %v, %v", v, ok, err)
						}
					} else {
						d, err := consumer.Receive(t.Context())
						must(t, err)
						if err := d.Ack(t.Context()); unmarked {
							wantErr(t, err, zk.ErrNoNode) // the outcome is unknown
						} else {
							must(t, err)
						}
					}
					if !remade.Load() {
						t.Fatal("the case did not come about")
					}
					if v, ok, err := q.TryRecv(t.Context()); v != 2 || !ok || err != nil {
						t.Errorf("TryRecv of the next element = %d, %v, %v", v, ok, err)
					}
				})
			})
		}
	}
}

// The servers lose the request of a Txn, and another client deletes the element before the request is
// sent again.
func TestATxnThatWasNotAppliedIsNotToldToBeThoughItsElementIsDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, stranger := open(t, srv), plain(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1))
		d, err := q.Receive(t.Context())
		must(t, err)
		id, lost := s.ID(), atomic.Bool{}
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id && r.Op == zktest.OpMulti && lost.CompareAndSwap(false, true) {
				if err := stranger.Delete("/q/"+d.ID, -1); err != nil {
					t.Error(err)
				}
				return zktest.DropRequest
			}
			return zktest.Pass
		})
		_, err = d.Txn(t.Context(), &zk.CreateRequest{Path: "/result", Acl: zk.WorldACL(zk.PermAll)})
		there, _, e := stranger.Exists("/result")
		must(t, e)
		if there || !lost.Load() {
			t.Fatal("the case did not come about")
		}
		wantErr(t, err, zsync.ErrLost)
	})
}

func TestSendGoesOnBehindABucketThatAStrangerHasMade(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		must(t, q.Send(t.Context(), counted(1000)...))
		stranger := plain(t, srv)
		newest, err := strangersNumber(stranger)
		must(t, err)
		_, err = stranger.Create(newest, nil, 0, zk.WorldACL(zk.PermAll))
		must(t, err)
		for v := range 10 {
			must(t, q.Send(within(t, 2*harness.Timeout), 1000+v))
		}
		ch := zsync.NewQueue[int](open(t, srv), "/q").Recv(t.Context())
		if got := collect(t, ch, 1010); !slices.Equal(got, counted(1010)) {
			t.Error("the elements come out of order")
		}
		eventuallyEmpty(t, q)
	})
}

// strangersNumber returns the path of the bucket that follows the newest.
func strangersNumber(c *zk.Conn) (string, error) {
	names, _, err := c.Children("/q")
	slices.Sort(names)
	for _, name := range names {
		if base, ok := strings.CutPrefix(name, "b-"); ok && err == nil {
			n := []byte(base)
			for i := len(n) - 1; ; i-- {
				if n[i]++; n[i] <= '9' {
					return "/q/b-" + string(n), nil
				}
				n[i] = '0'
			}
		}
	}
	return "", err
}

func TestNackAfterOfAnElementOfADeletedQueueIsLostAndKeepsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := open(t, srv), open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1))
		d, err := q.Receive(t.Context())
		must(t, err)
		time.Sleep(time.Second)
		deleteTree(t, o, "/q")
		wantErr(t, d.NackAfter(time.Minute), zsync.ErrLost)
		start := time.Now()
		must(t, s.Close())
		if took := time.Since(start); took > time.Second {
			t.Errorf("Close took %v", took)
		}
	})
}
