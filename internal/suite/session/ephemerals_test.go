package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

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
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := suite.Open(t, srv), suite.Open(t, srv)
		lock := func(s *zsync.Session) (held []*zsync.Mutex) {
			var mu sync.Mutex
			var all sync.WaitGroup
			for i := range 1500 {
				all.Go(func() {
					m := zsync.NewMutex(s, fmt.Sprintf("%s/%x-%d", long, s.ID(), i))
					err := m.Lock(t.Context())
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						held = append(held, m)
					} else if !errors.Is(err, zsync.ErrTooLarge) {
						t.Error(err)
					}
				})
			}
			all.Wait()
			size := 0
			for _, path := range suite.Ephemerals(srv, s.ID()) {
				size += 4 + len(path)
			}
			if size > 1<<20 || size < 1<<20-1000 {
				t.Errorf("%d locks, with paths of %d bytes", len(held), size)
			}
			return held
		}
		held := lock(s)
		harness.Must(t, held[0].Unlock())
		harness.Must(t, held[0].Lock(t.Context()))
		lock(other)
		for _, m := range held {
			harness.Must(t, m.Unlock())
		}
		lock(s)
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

// Each operation creates an ephemeral znode, which is deleted: in some cases in a transaction, in one by another client.
func TestASessionForgetsTheEphemeralZnodesThatItHasDeleted(t *testing.T) {
	for name, operation := range map[string]func(t *testing.T, s *zsync.Session, i int) error{
		"once": func(t *testing.T, s *zsync.Session, i int) error {
			return zsync.NewOnce(s, fmt.Sprintf("%s/%d", long, i)).Do(t.Context(), func(context.Context) error { return nil })
		},
		"downgrade": func(t *testing.T, s *zsync.Session, i int) error {
			rw := zsync.NewRWMutex(s, long)
			if err := rw.Lock(t.Context()); err != nil {
				return err
			}
			return errors.Join(rw.Downgrade(t.Context()), rw.RUnlock())
		},
		"semaphore": func(t *testing.T, s *zsync.Session, i int) error {
			p := zsync.NewSemaphore(s, long, 3)
			if err := p.Acquire(t.Context(), 3); err != nil {
				return err
			}
			return errors.Join(p.Release(1), p.Release(2))
		},
		"deleted by another client": func(t *testing.T, s *zsync.Session, i int) error {
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
		"group": func(t *testing.T, s *zsync.Session, i int) error {
			g := zsync.NewGroup[string](s, long)
			me, err := g.Join(t.Context(), "a", "")
			if err != nil {
				return err
			}
			return me.Leave()
		},
		"double barrier": func(t *testing.T, s *zsync.Session, i int) error {
			wg := zsync.NewWaitGroup(s, long)
			return errors.Join(wg.Enter(t.Context(), 1), wg.Leave(t.Context()))
		},
		"election": func(t *testing.T, s *zsync.Session, i int) error {
			e := zsync.NewElection(s, long)
			if err := e.Campaign(t.Context()); err != nil {
				return err
			}
			return e.Resign()
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv)
				for i := range 1500 {
					harness.Must(t, operation(t, s, i))
				}
			})
		})
	}
}
