package znodes

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/zsync/zsync/zktest"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
)

func TestFollowersOfAQuietDirectoryAreForgotten(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		for _, p := range []string{"/d", "/d/a", "/d/b"} {
			_, err := Create(t.Context(), inc, p, nil)
			harness.Must(t, err)
		}
		for range 1000 {
			ctx, cancel := context.WithCancel(t.Context())
			FollowDir(ctx, s, "/d", false, func(map[string]session.Node, <-chan struct{}, <-chan struct{}) (bool, error) {
				cancel()
				return true, nil
			})
		}
		synctest.Wait()
		for _, w := range inc.Watches.All() {
			if state := inc.Watches.State(w); len(state.Told) > 1 {
				t.Errorf("%v: %d waiters, %d functions to call", w.Key, state.Waiters, len(state.Told))
			}
		}
	})
}
