package session

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// Servers write each identity of the client into their logs in place of the scheme auth. They stop for good if a
// transaction there has more than 2 MiB.
func TestNoTransactionIsTooLargeForTheLogsOfServersThatWriteEachIdentityIntoIt(t *testing.T) {
	user := strings.Repeat("u", 200)
	opts := []zsync.Option{zsync.WithACL(zk.AuthACL(zk.PermAll))}
	acl := 4
	for i := range 3 {
		opts = append(opts, zsync.WithAuth("digest", fmt.Appendf(nil, "%s-%d:password", user, i)))
		acl += len(user) + len("-0:") + 28 + len("digest") + 12 // 28 is the length of a hash
	}
	for name, create := range map[string]func(t *testing.T, s *zsync.Session, n int) error{
		"txn": func(t *testing.T, s *zsync.Session, n int) error {
			var ops []any
			for i := range n {
				ops = append(ops, &zk.CreateRequest{Path: fmt.Sprintf("/%05d", i)})
			}
			_, err := s.Txn(t.Context(), ops...)
			return err
		},
		"send": func(t *testing.T, s *zsync.Session, n int) error {
			return zsync.NewQueue[int](s, "/q").Send(t.Context(), make([]int, n)...)
		},
		"sends in a txn": func(t *testing.T, s *zsync.Session, n int) error {
			q, ops := zsync.NewQueue[int](s, "/q"), []any{}
			for i := range n / 2 {
				ops = append(ops, &zk.CreateRequest{Path: fmt.Sprintf("/%05d", i)})
			}
			_, err := s.Txn(t.Context(), append(ops, q.SendOp(make([]int, n/2)...))...)
			return err
		},
		"semaphore": func(t *testing.T, s *zsync.Session, n int) error {
			return zsync.NewSemaphore(s, "/s", 20_000, zsync.WithLayout(zsync.LayoutKazoo)).Acquire(t.Context(), int64(n))
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv, opts...)
				for n := 10_000; ; n -= 100 {
					err := create(t, s, n)
					if errors.Is(err, zsync.ErrTooLarge) && n > 100 {
						continue
					}
					harness.Must(t, err)
					const other = 4 + 4 + 4 + len("/00000") + 4 + 1 + 4
					if size := n * (other + acl); size > 2<<20-1000 || size < 1<<20 {
						t.Errorf("%d znodes in a transaction of at least %d bytes", n, size)
					}
					break
				}
			})
		})
	}
}
