package observe

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/trace"
	"github.com/zsync/zsync/internal/verify"
	"github.com/zsync/zsync/zktest"
)

func TestTraceTellsWhoseElementsAreAndWhatBecomesOfThem(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var w suite.TraceBuffer
		s := suite.Open(t, srv, zsync.WithTrace(&w))
		srv.SetLatency(time.Millisecond) // what one answer has led to is written before the next
		ctx := t.Context()
		q := zsync.NewQueue[string](s, "/q")
		harness.Must(t, q.Send(ctx, "acknowledged", "returned", "delayed", "rejected"))
		ds, err := q.ReceiveN(ctx, 4)
		harness.Must(t, err)
		if len(ds) != 4 {
			t.Fatalf("received %d", len(ds))
		}
		harness.Must(t, ds[0].Ack(ctx))
		harness.Must(t, ds[1].Nack())
		harness.Must(t, ds[2].NackAfter(time.Hour))
		harness.Must(t, ds[3].Reject(ctx, "no use"))
		if v, ok, err := q.TryRecv(ctx); v != "returned" || !ok || err != nil {
			t.Fatalf("TryRecv: %q, %v, %v", v, ok, err)
		}
		harness.Must(t, q.Send(ctx, "lost"))
		lost, err := q.Receive(ctx)
		harness.Must(t, err)
		srv.Expire(s.ID())
		<-lost.Context().Done()
		again, err := q.Receive(ctx)
		harness.Must(t, err)
		harness.Must(t, again.Ack(ctx))
		harness.Must(t, s.Close())

		f := w.File(t, "f")
		var got []string
		last := int64(0)
		for _, l := range f.Lines {
			if l.Path != "/q" {
				continue
			}
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %d %s%s", l.Event, len(l.Elements), l.Fate, l.Reason)))
			if l.Zxid != 0 && l.Zxid < last && l.Event != trace.Loss { // that of a deletion is not known
				t.Errorf("%s of transaction %d after one of %d", l.Event, l.Zxid, last)
			}
			last = max(last, l.Zxid)
		}
		want := "grant 4, release 1 removed, release 1 returned, release 1 delayed, release 1 buried, grant 1, release 1 removed, grant 1, loss 1 expired, grant 1, release 1 removed"
		if strings.Join(got, ", ") != want {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, ", "), want)
		}
		r := verify.Files([]*verify.File{f}, 0)
		if !r.Whole() || r.Claims != 7 || r.Removed != 3 {
			t.Errorf("%+v", r)
		}
	})
}

// Others of its batch are still in hand.
func TestTraceDoesNotTellALossOfWhatATxnHasRemoved(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var w suite.TraceBuffer
		s := suite.Open(t, srv, zsync.WithTrace(&w))
		srv.SetLatency(time.Millisecond)
		q := zsync.NewQueue[int](s, "/q")
		harness.Must(t, q.Send(t.Context(), 1, 2))
		ds, err := q.ReceiveN(t.Context(), 2)
		harness.Must(t, err)
		_, err = ds[0].Txn(t.Context(), &zk.CreateRequest{Path: "/done"})
		harness.Must(t, err)
		srv.Expire(s.ID())
		<-ds[1].Context().Done()
		harness.Must(t, s.Close())
		if r := verify.Files([]*verify.File{w.File(t, "f")}, 0); !r.Whole() || r.Claims != 2 || r.Removed != 1 || r.Losses != 1 {
			t.Errorf("%+v, want 2 claims, one removed and one lost", r)
		}
	})
}

func TestTracesOfQueuesInARunWithFaultsHaveNoViolationAndAPlantedOneIsFound(t *testing.T) {
	t.Parallel()
	for seed := range harness.Seeds(t, 4, 2, 300) {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 34))
			files := tracedRun(t, srv, rnd, time.Minute, 2, func(ctx context.Context, i int, s *zsync.Session, all *sync.WaitGroup) {
				q := zsync.NewQueue[int](s, "/q", zsync.WithPrefetch(3))
				d := rand.New(rand.NewPCG(uint64(seed), uint64(100+i)))
				all.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						_ = q.Send(ctx, n)
						select {
						case <-time.After(time.Duration(d.IntN(400)) * time.Millisecond):
						case <-ctx.Done():
						}
					}
				})
				e := rand.New(rand.NewPCG(uint64(seed), uint64(200+i)))
				all.Go(func() {
					if i == 0 {
						for ctx.Err() == nil {
							_, _, _ = q.TryRecv(ctx)
							select {
							case <-time.After(time.Duration(e.IntN(1000)) * time.Millisecond):
							case <-ctx.Done():
							}
						}
						return
					}
					for v := range q.Deliveries(ctx) {
						select {
						case <-time.After(time.Duration(e.IntN(500)) * time.Millisecond):
						case <-ctx.Done():
						}
						switch e.IntN(5) {
						case 0:
							_ = v.Nack()
						case 1:
							_ = v.NackAfter(time.Second)
						default:
							_ = v.Ack(ctx)
						}
					}
				})
			})
			r := verify.Files(files, 0) // one clock
			if !r.Whole() || r.Claims < 100 || r.Removed < 50 {
				var out strings.Builder
				_ = r.Print(&out)
				t.Errorf("seed %d:\n%s", seed, out.String())
			}
			if seed == 0 {
				t.Logf("seed 0: %d claims, %d removed, %d losses in %d lines", r.Claims, r.Removed, r.Losses, r.Lines)
			}
			// Another process says that it removed the same.
			for _, l := range files[1].Lines {
				if l.Fate == trace.Removed {
					twice := *files[2]
					twice.Lines = slices.Clone(twice.Lines)
					grant := twice.Lines[len(twice.Lines)-1] // in the place of the end
					grant.Event, grant.Kind, grant.Path, grant.Elements = trace.Grant, l.Kind, l.Path, l.Elements[:1]
					release := grant
					release.N, release.Event, release.Fate = grant.N+1, trace.Release, trace.Removed
					twice.Lines = append(twice.Lines[:len(twice.Lines)-1], grant, release)
					if r := verify.Files([]*verify.File{files[1], &twice}, 0); len(r.Violations) != 1 || !strings.Contains(r.Violations[0].Text, "removed twice") {
						t.Errorf("seed %d: of a planted removal it says %v", seed, r.Violations)
					}
					return
				}
			}
			t.Errorf("seed %d: nothing was removed by process 1", seed)
		})
	}
}
