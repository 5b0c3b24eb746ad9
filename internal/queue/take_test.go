package queue

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// The server of the taker lags, so the taker's first search does not find the element. The taker's
// session ends during the sync that follows, or during the second search. Take must not report an
// empty queue: it goes on in the next session.
func TestTakeFindsTheElementThoughTheSessionEndsDuringTheSearch(t *testing.T) {
	for _, op := range []zktest.Op{zktest.OpSync, zktest.OpGetChildren2} {
		t.Run(op.String(), func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				srv := zktest.Start(t, zktest.WithAddrs("10.0.0.1:2181", "10.0.0.2:2181"))
				producer, taker := open(t, srv, "10.0.0.1:2181"), open(t, srv, "10.0.0.2:2181")
				srv.SetLag("10.0.0.2:2181", time.Hour)
				send(t, queueAt(producer, "/q"), "x")
				id := taker.SessionID()
				ended := false
				srv.Intercept(harness.First(zktest.DropRequest, func(r zktest.Request) bool {
					if r.Session != id || r.Op != op || op != zktest.OpSync && !strings.HasPrefix(r.Path, "/q/b-") {
						return false
					}
					ended = true
					srv.Expire(id)
					return true
				}))
				wantTake(t, queueAt(taker, "/q"), "x", 0)
				if !ended {
					t.Error("the taker has found the element without such a request")
				}
			})
		})
	}
}

// The servers refuse the removal. Take must not return the element, which is still in the queue.
func TestTakeReturnsNoElementWhoseRemovalIsRefused(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		q, other := queueAt(open(t, srv), "/q"), queueAt(open(t, srv), "/q")
		send(t, other, "x")
		there, err := other.Peek(t.Context())
		harness.Must(t, err)
		harness.SetACL(t, srv, "/q/"+znodes.ParentPath(there.ID), zk.WorldACL(zk.PermAll&^zk.PermDelete))
		e, err := q.Take(t.Context())
		if harness.WantErr(t, err, zk.ErrNoAuth); e != nil {
			t.Errorf("Take has returned %q", e.Data)
		}
		harness.SetACL(t, srv, "/q/"+znodes.ParentPath(there.ID), zk.WorldACL(zk.PermAll))
		wantTake(t, other, "x", 0)
	})
}

// The session ends while Take makes an element a dead letter. In one case, the servers have applied the
// transaction, and only the reply is lost. Take must go on to the next element.
func TestTakeGoesOnIfItsClaimOfADeadLetterIsLost(t *testing.T) {
	for name, action := range map[string]zktest.Action{"applied": zktest.DropReply, "not applied": zktest.DropRequest} {
		t.Run(name, func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				srv := zktest.Start(t)
				taker := open(t, srv)
				q, id := queueAt(taker, "/q"), taker.SessionID()
				q.cfg.Decode = func(data []byte) (any, error) {
					if string(data) == "x" {
						return nil, errors.New("not for this type")
					}
					return data, nil
				}
				send(t, q, "x", "y")
				lost := false
				srv.Intercept(harness.First(action, func(r zktest.Request) bool {
					if r.Op != zktest.OpMulti || !slices.ContainsFunc(r.Ops, func(o zktest.Request) bool {
						return o.Op == zktest.OpDelete && strings.HasPrefix(o.Path, "/q/b-")
					}) {
						return false
					}
					lost = true
					time.AfterFunc(time.Millisecond, func() { srv.Expire(id) })
					return true
				}))
				wantTake(t, q, "y", 0)
				if letters, _, err := harness.Plain(t, srv).Children("/q-dead"); !lost || err != nil || len(letters) != 2 {
					t.Errorf("there are %q, %v; want one dead letter, which has two znodes", letters, err)
				}
			})
		})
	}
}

// Another client deletes the taker's mark after the claim. Take claims the element again.
func TestTakeClaimsAgainIfItsClaimIsLost(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		q := queueAt(open(t, srv), "/q")
		send(t, q, "x")
		plain, claims := harness.Plain(t, srv), 0
		q.cfg.Decode = func(data []byte) (any, error) {
			if claims++; claims == 1 {
				harness.Must(t, plain.Delete(znodes.ChildPath(q.live, q.mark()), -1))
			}
			return data, nil
		}
		if wantTake(t, q, "x", 0); claims != 2 {
			t.Errorf("Take has claimed the element %d times; want 2", claims)
		}
	})
}

// The first element of a key is in hand, and a client looks at the queue for the first time. Peek
// must not return the next element of that key, which Take would not return.
func TestTheFirstPeekOfAClientRespectsTheKeys(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		q, other := queueAt(open(t, srv), "/q"), queueAt(open(t, srv), "/q")
		harness.Must(t, q.Send(t.Context(), Batch{Data: [][]byte{[]byte("x"), []byte("y")}, Keys: []string{"k", "k"}}))
		receive(t, q)
		if e, err := other.Peek(t.Context()); e != nil || err != nil {
			t.Errorf("Peek has returned %v, %v; want no element", e, err)
		}
	})
}

// The name of a dead letter has no priority. Requeue stores no element.
func TestRequeueRefusesALetterWithoutAPriority(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		q := queueAt(open(t, zktest.Start(t)), "/q")
		harness.WantErr(t, q.Requeue(t.Context(), &Letter{ID: "dead", Priority: "high"}), session.ErrInvalid)
		if n, err := q.Len(t.Context()); n != 0 || err != nil {
			t.Errorf("the queue has %d elements, %v", n, err)
		}
	})
}
