package closing

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// Close comes while a write waits for its reply. The server answers all the time, and the reply
// would come well before the second that Close waits for the deletion of receipts.
func TestCloseDuringAWriteLeavesNoReceipt(t *testing.T) {
	for name, write := range map[string]func(ctx context.Context, s *zsync.Session) error{
		"Int64.Add": func(ctx context.Context, s *zsync.Session) error {
			_, err := zsync.NewInt64(s, "/n").Add(ctx, 1)
			return err
		},
		"Value.Store": func(ctx context.Context, s *zsync.Session) error { return zsync.NewValue[int](s, "/n").Store(ctx, 1) },
		"Map.Store": func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewMap[int](s, "/n").Store(ctx, "k", 1)
		},
		"Barrier.Close": func(ctx context.Context, s *zsync.Session) error { return zsync.NewBarrier(s, "/n").Close(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				connect := func() *zsync.Session {
					s, err := zsync.Connect(t.Context(), srv.Addr(), zsync.WithDialer(srv.Dial), zsync.WithSessionTimeout(harness.Timeout))
					harness.Must(t, err)
					t.Cleanup(func() { s.Close() })
					return s
				}
				s, other := connect(), connect()
				id := s.ID()
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Session == id && r.Op == zktest.OpMulti {
						return zktest.Delay(100 * time.Millisecond)
					}
					return zktest.Pass
				})
				done := make(chan error, 1)
				go func() { done <- write(t.Context(), s) }()
				time.Sleep(50 * time.Millisecond)
				s.Close()
				err := <-done
				srv.Intercept(nil)
				time.Sleep(24 * time.Hour)
				if names, _, err := other.Children(t.Context(), "/n-receipts"); len(names) > 0 {
					t.Errorf("%q is left for ever; %v", names, err)
				}
				if err != nil && !errors.Is(err, zsync.ErrClosed) {
					t.Error(err)
				}
			})
		})
	}
}
