package znodes

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// crowdIn has n goroutines create a child of /d at once, and returns how many
// listings of /d the server was asked for. Everyone must find himself.
func crowdIn(t *testing.T, s *session.Manager, n int, listings *atomic.Int64) int64 {
	t.Helper()
	inc := live(t, s)
	before := listings.Load()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			guid := NewGUID()
			c := numbered("/d", guid)
			c.List = true
			err := CreateEphemeral(t.Context(), inc, c)
			path, roll := c.Path, c.Roll
			if err != nil || !roll.Has(BaseName(path)) {
				t.Errorf("created %q, %v; it is not in the listing", path, err)
			}
		})
	}
	wg.Wait()
	return listings.Load() - before
}

func TestWhoCreateAtOnceShareAListingThatWasSentBehindAllOfThem(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		_, err := Create(t.Context(), live(t, s), "/d", nil)
		harness.Must(t, err)
		var listings atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpGetChildren2 && r.Path == "/d" {
				listings.Add(1)
				return zktest.Delay(10 * time.Millisecond) // all others come while it is under way
			}
			return zktest.Pass
		})
		if n := crowdIn(t, s, 100, &listings); n != 2 {
			t.Errorf("100 who created at once cost %d listings, want 2: one ahead of the others, and one behind them all", n)
		}
	})
}

func TestASharedListingSurvivesTheConnectionThatItWasAskedForOn(t *testing.T) {
	for name, action := range map[string]zktest.Action{"lost request": zktest.DropRequest, "lost reply": zktest.DropReply} {
		for _, op := range []zktest.Op{zktest.OpCreate, zktest.OpGetChildren2} {
			t.Run(name+" of "+op.String(), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					s := open(t, srv)
					_, err := Create(t.Context(), live(t, s), "/d", nil)
					harness.Must(t, err)
					var listings, seen atomic.Int64
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if r.Op == zktest.OpGetChildren2 && r.Path == "/d" {
							listings.Add(1)
						}
						if r.Op == op && seen.Add(1)%7 == 3 && seen.Load() < 40 {
							return action
						}
						return zktest.Pass
					})
					crowdIn(t, s, 50, &listings)
					names := childrenOf(t, s, "/d")
					if len(names) != 50 {
						t.Errorf("%d children, want one for each of 50", len(names))
					}
					synctest.Wait()
					if n := len(of(live(t, s)).rolls); n > 0 {
						t.Errorf("%d directories are still taken to be listed", n)
					}
				})
			})
		}
	}
}
