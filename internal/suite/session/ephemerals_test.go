package session

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
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// long is a path with which a session has room for about a thousand ephemeral znodes.
var long = "/" + strings.Repeat("x", 900)

// The end of a session is one transaction with the paths of all ephemeral znodes. Servers stop for good if it has more
// than 2 MiB.
func TestASessionCreatesNoMoreEphemeralZnodesThanServersCanDeleteAtItsEnd(t *testing.T) {
	t.Run("locks", func(t *testing.T) {
		fillWith(t, 1<<20-1000, func(t *testing.T, s *zsync.Session, path string) (create, drop func() error) {
			m := zsync.NewMutex(s, path)
			return func() error { return m.Lock(t.Context()) }, m.Unlock
		})
	})
	t.Run("tasks", func(t *testing.T) {
		// Add counts a task twice for a moment: when it has the reply, and until it returns. So other calls at that
		// moment may be refused although there is room.
		fillWith(t, 1<<19, func(t *testing.T, s *zsync.Session, path string) (create, drop func() error) {
			wg := zsync.NewWaitGroup(s, path)
			return func() error { return wg.Add(t.Context(), 1) }, wg.Done
		})
	})
}

// The function fillWith creates ephemeral znodes until the session has no room: first many at a time, then one after the
// other. The argument make returns a function that creates a znode, and one that deletes it. The paths of the znodes that
// are created at a time must have at least `least` bytes.
func fillWith(t *testing.T, least int, make func(t *testing.T, s *zsync.Session, path string) (create, drop func() error)) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		type znode struct{ create, drop func() error }
		fill := func(s *zsync.Session) (held []znode) {
			var mu sync.Mutex
			var all sync.WaitGroup
			for i := range 1500 {
				all.Go(func() {
					create, drop := make(t, s, fmt.Sprintf("%s/%x-%d", long[:851], s.ID(), i))
					err := create()
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						held = append(held, znode{create, drop})
					} else if !errors.Is(err, zsync.ErrTooLarge) {
						t.Error(err)
					}
				})
			}
			all.Wait()
			wantSize(t, srv, s, least)
			for !t.Failed() {
				create, drop := make(t, s, fmt.Sprintf("%s/%x-%d", long[:851], s.ID(), len(held)+1500))
				if err := create(); err != nil {
					harness.WantErr(t, err, zsync.ErrTooLarge)
					break
				}
				held = append(held, znode{create, drop})
			}
			wantSize(t, srv, s, 1<<20-1000)
			return held
		}
		held := fill(s)
		harness.Must(t, held[0].drop())
		harness.Must(t, held[0].create())
		fill(other)
		for _, z := range held {
			harness.Must(t, z.drop())
		}
		fill(s)
	})
}

// The function wantSize checks the size of the paths of a session's ephemeral znodes.
func wantSize(t *testing.T, srv *zktest.Server, s *zsync.Session, least int) {
	t.Helper()
	size := 0
	for _, path := range suite.Ephemerals(srv, s.ID()) {
		size += 4 + len(path)
	}
	if size > 1<<20 || size < least {
		t.Errorf("ephemeral znodes with paths of %d bytes, want at least %d and at most 1 MiB", size, least)
	}
}

func TestAClaimOfAQueueNeedsRoomForItsEphemeralZnode(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		q := zsync.NewQueue[int](s, long)
		harness.Must(t, q.Send(t.Context(), 1))
		var held []*zsync.Mutex
		for {
			m := zsync.NewMutex(s, fmt.Sprintf("/%s%d", long[1:801], len(held)))
			if err := m.Lock(t.Context()); err != nil {
				harness.WantErr(t, err, zsync.ErrTooLarge)
				break
			}
			held = append(held, m)
		}
		_, _, err := q.TryRecv(harness.Within(t, time.Minute))
		harness.WantErr(t, err, zsync.ErrTooLarge)
		got := harness.Async(func() error { // Receive repeats the refused claim until there is room
			d, err := q.Receive(harness.Within(t, 2*time.Minute))
			if err != nil {
				return err
			}
			return d.Ack(t.Context())
		})
		time.Sleep(time.Minute)
		harness.PendingStill(t, got)
		for _, m := range held[:2] {
			harness.Must(t, m.Unlock())
		}
		harness.Must(t, <-got)
	})
}

func TestATxnCreatesNoMoreEphemeralZnodesThanServersCanDeleteAtTheEnd(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		suite.Create(t, s, long, "")
		for i := range 12 {
			var ops []any
			for k := range 100 {
				ops = append(ops, &zk.CreateRequest{Path: fmt.Sprintf("%s/%d-%d", long, i, k), Acl: zk.WorldACL(zk.PermAll), Flags: zk.FlagEphemeral})
			}
			if _, err := s.Txn(t.Context(), ops...); i < 11 {
				harness.Must(t, err)
			} else {
				harness.WantErr(t, err, zsync.ErrTooLarge)
			}
		}
		locks := 0
		for ; locks < 100 && !t.Failed(); locks++ {
			if err := zsync.NewMutex(s, fmt.Sprintf("%s/m-%d", long, locks)).Lock(t.Context()); err != nil {
				harness.WantErr(t, err, zsync.ErrTooLarge)
				break
			}
		}
		if locks == 0 || locks == 100 {
			t.Errorf("%d locks beside 1,100 znodes of transactions", locks)
		}
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		create := func(path string) error {
			_, err := m.Txn(t.Context(), &zk.CreateRequest{Path: path, Acl: zk.WorldACL(zk.PermAll), Flags: zk.FlagEphemeral})
			return err
		}
		harness.WantErr(t, create(long+"/refused"), zsync.ErrTooLarge)
		harness.Must(t, create("/e")) // the refusal has changed nothing
		got := harness.Async(func() error { return m.Lock(t.Context()) })
		harness.Must(t, m.Unlock())
		harness.Must(t, <-got)
	})
}

// The logs of transactions need no room. So with its logs, a session that has no room may have more than 1 MiB.
func TestASessionWithoutRoomWritesAndClaims(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		suite.Create(t, s, "/x", "")
		m, q := zsync.NewMutex(s, "/m"), zsync.NewQueue[int](s, "/q")
		harness.Must(t, m.Lock(t.Context()))
		for i := range 2 {
			harness.Must(t, q.Send(t.Context(), i))
		}
		_, _, err := q.TryRecv(t.Context()) // creates the znode of the queue's consumer
		harness.Must(t, err)
		for n, size := 0, len(long); size > 0; size /= 2 {
			var err error
			for err == nil {
				_, err = s.Txn(t.Context(), &zk.CreateRequest{Path: fmt.Sprintf("/%s%d", long[1:size], n), Acl: zk.WorldACL(zk.PermAll), Flags: zk.FlagEphemeral})
				n++
			}
			harness.WantErr(t, err, zsync.ErrTooLarge)
		}
		write := &zk.SetDataRequest{Path: "/x", Version: -1}
		srv.SetLatency(time.Millisecond)
		var all sync.WaitGroup
		for range 20 { // at once, so each needs a log of its own
			all.Go(func() {
				_, err := s.Txn(t.Context(), write)
				harness.Must(t, err)
			})
		}
		all.Wait()
		_, err = s.Txn(t.Context(), write)
		harness.Must(t, err)
		_, err = m.Txn(t.Context(), write)
		harness.Must(t, err)
		if _, ok, err := q.TryRecv(t.Context()); !ok || err != nil {
			t.Errorf("TryRecv: %v, %v", ok, err)
		}
	})
}

// Each operation creates an ephemeral znode, which is deleted: in some cases in a transaction, in some by another client.
func TestASessionForgetsTheEphemeralZnodesThatItHasDeleted(t *testing.T) {
	for name, operation := range map[string]func(t *testing.T, s, other *zsync.Session, i int) error{
		"once": func(t *testing.T, s, other *zsync.Session, i int) error {
			return zsync.NewOnce(s, fmt.Sprintf("%s/%d", long, i)).Do(t.Context(), func(context.Context) error { return nil })
		},
		"downgrade": func(t *testing.T, s, other *zsync.Session, i int) error {
			rw := zsync.NewRWMutex(s, long)
			if err := rw.Lock(t.Context()); err != nil {
				return err
			}
			return errors.Join(rw.Downgrade(t.Context()), rw.RUnlock())
		},
		"semaphore": func(t *testing.T, s, other *zsync.Session, i int) error {
			p := zsync.NewSemaphore(s, long, 3)
			if err := p.Acquire(t.Context(), 3); err != nil {
				return err
			}
			return errors.Join(p.Release(1), p.Release(2))
		},
		"deleted by another client": func(t *testing.T, s, other *zsync.Session, i int) error {
			m := zsync.NewMutex(s, long)
			if err := m.Lock(t.Context()); err != nil {
				return err
			}
			suite.DeleteContender(t, s, long, 0)
			<-m.Lost()
			if err := m.Unlock(); !errors.Is(err, zsync.ErrLost) {
				return fmt.Errorf("Unlock: %w", err)
			}
			return nil
		},
		"waiter deleted by another client": func(t *testing.T, s, other *zsync.Session, i int) error {
			first, m := zsync.NewMutex(other, long), zsync.NewMutex(s, long)
			if err := first.Lock(t.Context()); err != nil {
				return err
			}
			got := harness.Async(func() error { return m.Lock(t.Context()) })
			synctest.Wait()
			suite.DeleteContender(t, other, long, 1)
			synctest.Wait()
			return errors.Join(first.Unlock(), <-got, m.Unlock())
		},
		"task that another process ends": func(t *testing.T, s, other *zsync.Session, i int) error {
			return errors.Join(zsync.NewWaitGroup(s, long).Add(t.Context(), 1), zsync.NewWaitGroup(other, long).Done())
		},
		"txn": func(t *testing.T, s, other *zsync.Session, i int) error {
			path := fmt.Sprintf("%s/%d", long, i)
			_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: path, Flags: zk.FlagEphemeral})
			if err != nil {
				return err
			}
			_, err = other.Txn(t.Context(), &zk.DeleteRequest{Path: path, Version: -1})
			return err
		},
		"group": func(t *testing.T, s, other *zsync.Session, i int) error {
			g := zsync.NewGroup[string](s, long)
			me, err := g.Join(t.Context(), "a", "")
			if err != nil {
				return err
			}
			return me.Leave()
		},
		"double barrier": func(t *testing.T, s, other *zsync.Session, i int) error {
			wg := zsync.NewWaitGroup(s, long)
			return errors.Join(wg.Enter(t.Context(), 1), wg.Leave(t.Context()))
		},
		"election": func(t *testing.T, s, other *zsync.Session, i int) error {
			e := zsync.NewElection(s, long)
			if err := e.Campaign(t.Context()); err != nil {
				return err
			}
			return e.Resign()
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other := suite.Open(t, srv), suite.Open(t, srv)
				suite.Create(t, other, long, "")
				const room = 8 // the session has room for so many more znodes, at most
				fillUpTo(t, s, room)
				for i := range 20 * room {
					harness.Must(t, operation(t, s, other, i))
				}
			})
		})
	}
}

// The function fillUpTo creates ephemeral znodes until the session has room for n more of the length of `long`.
func fillUpTo(t *testing.T, s *zsync.Session, n int) {
	t.Helper()
	path := func(i int) string { return fmt.Sprintf("/%s%d", long[1:len(long)-4], i) }
	made := 0
	for some := 100; some > 0; {
		var creates []any
		for i := range some {
			creates = append(creates, &zk.CreateRequest{Path: path(made + i), Acl: zk.WorldACL(zk.PermAll), Flags: zk.FlagEphemeral})
		}
		_, err := s.Txn(t.Context(), creates...)
		if err == nil {
			made += some
			continue
		}
		harness.WantErr(t, err, zsync.ErrTooLarge)
		some /= 10
	}
	var deletes []any
	for i := range n {
		deletes = append(deletes, &zk.DeleteRequest{Path: path(made - 1 - i), Version: -1})
	}
	_, err := s.Txn(t.Context(), deletes...)
	harness.Must(t, err)
}

// A transaction without a reply is found to be applied, or its caller leaves before that. In both
// cases its ephemeral znodes count.
func TestTheEphemeralZnodesOfATxnWithoutAReplyCount(t *testing.T) {
	for name, flags := range map[string]int32{"named": zk.FlagEphemeral, "numbered": zk.FlagEphemeralSequential, "abandoned": zk.FlagEphemeral} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv)
				suite.Create(t, s, long, "")
				var lose atomic.Bool
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == zktest.OpMulti && lose.Swap(false) {
						return zktest.DropReply
					}
					return zktest.Pass
				})
				refused := false
				for i := 0; i < 6 && !refused; i++ {
					var ops []any
					for k := range 500 {
						ops = append(ops, &zk.CreateRequest{Path: fmt.Sprintf("%s/%d-%d-", long, i, k), Flags: flags})
					}
					lose.Store(true)
					ctx, cancel := context.WithCancel(t.Context())
					if name == "abandoned" {
						ctx, cancel = context.WithTimeout(ctx, time.Nanosecond)
					}
					_, err := s.Txn(ctx, ops...)
					cancel()
					refused = err != nil && name != "abandoned"
					time.Sleep(time.Second)
				}
				wantSize(t, srv, s, 1<<19-1<<16)
			})
		})
	}
}

// A create whose caller has left counts until its znode is deleted.
func TestTheEphemeralZnodesOfAbandonedCreatesCount(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		lock := func(limit time.Duration) error { return zsync.NewMutex(s, long).Lock(harness.Within(t, limit)) }
		harness.Must(t, lock(time.Minute))
		srv.SetLatency(time.Second)
		var all sync.WaitGroup
		for i := range 3000 {
			all.Go(func() { lock(time.Millisecond) })
			if i%500 == 499 {
				all.Wait()
			}
		}
		for i := 0; i < 300 && !t.Failed(); i++ {
			wantSize(t, srv, s, 0)
			time.Sleep(10 * time.Millisecond)
		}
		srv.SetLatency(0)
		time.Sleep(10 * time.Second)
		wantSize(t, srv, s, 0)
		harness.Must(t, zsync.NewMutex(s, long+"2").Lock(harness.Within(t, time.Minute))) // there is room again
	})
}
