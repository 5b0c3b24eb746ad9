package hammer

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

func TestElementsMoveFromQueueToQueueOnceEachThroughChaos(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		sessions := suite.OpenEach(t, srv, 4)
		const n = 60
		s := newStock(t)
		ctx, cancel := context.WithCancel(t.Context())
		var movers sync.WaitGroup
		for _, ss := range sessions[:3] {
			from, to := zsync.NewQueue[int](ss, "/from", zsync.WithPrefetch(4)), zsync.NewQueue[int](ss, "/to")
			movers.Go(func() {
				for d := range from.Deliveries(ctx) {
					op := &zk.CreateRequest{Path: "/done/" + strconv.Itoa(d.Value)}
					if _, err := d.Txn(context.Background(), op, to.SendOp(d.Value)); err != nil && !errors.Is(err, zsync.ErrLost) && !errors.Is(err, zk.ErrNoNode) { // nobody can tell, see below
						t.Errorf("Txn: %v", err)
					}
				}
			})
		}
		_, err := sessions[3].Txn(t.Context(), &zk.CreateRequest{Path: "/done"})
		harness.Must(t, err)
		quiet := make(chan struct{})
		own := rand.New(rand.NewPCG(rnd.Uint64(), 1))
		go func() {
			defer close(quiet)
			s.produce(ctx, zsync.NewQueue[int](sessions[3], "/from"), 0, n, own, time.Second)
		}()
		harness.Chaos(t, srv, rnd, sessions, quiet)
		s.close()
		movers.Go(func() {
			for d := range zsync.NewQueue[int](sessions[3], "/to").Deliveries(ctx) {
				switch err := d.Ack(context.Background()); {
				case err == nil:
					s.take(d.Value, false)
				case errors.Is(err, zk.ErrNoNode):
					s.takeMaybe(d.Value) // the claim was lost, and the element is gone
				case !errors.Is(err, zsync.ErrLost):
					t.Errorf("Ack: %v", err)
				}
			}
		})
		s.finish(srv, cancel, &movers, "/from", "/to")
		if got := len(harness.Children(t, harness.Plain(t, srv), "/done")); got != n {
			t.Errorf("%d elements are noted as done, want %d", got, n)
		}
	})
}
