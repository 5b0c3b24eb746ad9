package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

func wantSentID(t *testing.T, q *zsync.Queue[int], id string, v int, want bool) {
	t.Helper()
	if sent, err := q.SendID(t.Context(), id, v); sent != want || err != nil {
		t.Fatalf("SendID(%q) = %v, %v; want %v", id, sent, err, want)
	}
}

// notes counts the IDs that are noted for /q.
func notes(t *testing.T, s *zsync.Session) (n int) {
	t.Helper()
	for _, dir := range childrenOf(t, s, "/q-ids") {
		n += len(childrenOf(t, s, "/q-ids/"+dir))
	}
	return n
}

func TestSendIDStoresOnceAndCancelRemovesOnceWhateverIsLost(t *testing.T) {
	t.Parallel()
	loseEach(t, func(t *testing.T, srv *zktest.Server, s *zsync.Session, begin, end func()) {
		q, other := zsync.NewQueue[int](s, "/q"), zsync.NewQueue[int](open(t, srv), "/q")
		begin()
		wantSentID(t, q, "a", 1, true)
		wantSentID(t, q, "b", 2, true)
		wantSentID(t, q, "a", 3, false)
		done, err := q.Cancel(t.Context(), "b")
		end()
		must(t, err)
		if !done {
			t.Error("Cancel has removed nothing")
		}
		wantSentID(t, other, "b", 4, false)
		if got := collect(t, other.Recv(t.Context()), 1); got[0] != 1 {
			t.Errorf("received %v", got)
		}
		noneLeft(t, other)
	})
}

func TestASendOfAKnownIDCostsFourRequestsAndOfAForgottenIDFive(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q", zsync.WithIDMemory(10*time.Second))
		wantSentID(t, q, "a", 1, true)
		costs := func(sent bool, want int64) {
			t.Helper()
			synctest.Wait() // the Send before may sweep in the background
			before := s.Stats().Requests
			wantSentID(t, q, "a", 1, sent)
			if got := s.Stats().Requests - before; got != want {
				t.Errorf("%d requests, want %d", got, want)
			}
		}
		costs(false, 4)
		time.Sleep(20 * time.Second)
		costs(true, 5)
	})
}

func TestIDIsForgottenWhenItsTimeIsOverWhateverIsLost(t *testing.T) {
	t.Parallel()
	loseEach(t, func(t *testing.T, srv *zktest.Server, s *zsync.Session, begin, end func()) {
		short := zsync.WithIDMemory(time.Hour)
		q, other := zsync.NewQueue[int](s, "/q", short), zsync.NewQueue[int](open(t, srv), "/q", zsync.WithIDMemory(time.Minute))
		wantSentID(t, other, "a", 1, true)
		time.Sleep(59 * time.Second)
		wantSentID(t, q, "a", 2, false)
		time.Sleep(time.Second)
		begin()
		wantSentID(t, q, "a", 3, true)
		end()
		time.Sleep(59 * time.Minute)
		wantSentID(t, other, "a", 4, false)
		if got := collect(t, other.Recv(t.Context()), 2); !slices.Equal(got, []int{1, 3}) {
			t.Errorf("received %v", got)
		}
		noneLeft(t, other)
	})
}

func TestCancelRemovesTheElementThatWasSentLastWithItsID(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithIDMemory(time.Minute))
		wantSentID(t, q, "a", 1, true)
		time.Sleep(2 * time.Minute) // forgotten
		wantSentID(t, q, "a", 2, true)
		if done, err := q.Cancel(t.Context(), "a"); !done || err != nil {
			t.Errorf("Cancel = %v, %v", done, err)
		}
		wantLen(t, q, 1)
		if got := collect(t, q.Recv(t.Context()), 1); got[0] != 1 {
			t.Errorf("received %v", got)
		}
	})
}

// The earlier element waits for its next attempt, and a consumer has claimed the last one.
func TestCancelRemovesNoEarlierElementWithTheID(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithIDMemory(time.Minute))
		for _, wanted := range []bool{true, false} {
			wantSentID(t, q, "a", 1, true)
			d, err := q.Receive(t.Context())
			must(t, err)
			if wanted {
				time.Sleep(2 * time.Second)
			}
			must(t, d.NackAfter(time.Hour))
			if !wanted {
				time.Sleep(2 * time.Minute) // forgotten
				wantSentID(t, q, "a", 2, true)
				_, err := q.Receive(t.Context())
				must(t, err)
			}
			if done, err := q.Cancel(t.Context(), "a"); done != wanted || err != nil {
				t.Errorf("Cancel = %v, %v, want %v", done, err, wanted)
			}
			time.Sleep(2 * time.Minute)
		}
		wantLen(t, q, 2)
	})
}

func TestAForgottenIDNeedsRoom(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithMaxLen(2), zsync.WithIDMemory(time.Minute))
		wantSentID(t, q, "a", 1, true)
		time.Sleep(30 * time.Second)
		wantSentID(t, q, "b", 2, true)
		time.Sleep(30 * time.Second)
		wantSentID(t, q, "b", 3, false)
		if sent, err := q.SendID(within(t, time.Second), "a", 4); sent || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("SendID of a forgotten ID to a full queue = %v, %v", sent, err)
		}
		wantLen(t, q, 2)
		// While one waits, another client sends the ID.
		type result struct {
			sent bool
			err  error
		}
		waits := make(chan result, 1)
		go func() {
			sent, err := q.SendID(t.Context(), "a", 5)
			waits <- result{sent, err}
		}()
		time.Sleep(10 * time.Second)
		wantSentID(t, zsync.NewQueue[int](open(t, srv), "/q", zsync.WithIDMemory(time.Minute)), "a", 6, true)
		if got := <-waits; got != (result{false, nil}) {
			t.Errorf("SendID of a known ID = %v", got)
		}
		if got := collect(t, q.Recv(t.Context()), 3); !slices.Equal(got, []int{1, 2, 6}) {
			t.Errorf("received %v", got)
		}
	})
}

func TestCancelTakesNothingFromAConsumer(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		for i, id := range []string{"a", "b", "c"} {
			wantSentID(t, q, id, i, true)
		}
		cancel := func(id string, want bool) {
			t.Helper()
			if done, err := q.Cancel(t.Context(), id); done != want || err != nil {
				t.Errorf("Cancel(%q) = %v, %v; want %v", id, done, err, want)
			}
		}
		ds, err := zsync.NewQueue[int](open(t, srv), "/q").ReceiveN(t.Context(), 2)
		must(t, err)
		cancel("a", false)
		cancel("c", true)
		cancel("c", false)
		cancel("none", false)
		must(t, ds[0].NackAfter(time.Hour)) // is somewhere else now
		cancel("a", true)
		must(t, ds[1].Nack())
		cancel("b", true)
		wantLen(t, q, 0)
		wantSentID(t, q, "b", 1, false)
	})
}

func TestSendsWithIDsShareTransactionsAndFillBuckets(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		const n = 2500
		var sent, known sync.WaitGroup
		for i := range n {
			sent.Go(func() { wantSentID(t, q, fmt.Sprint(i), i, true) })
		}
		sent.Wait()
		srv.SetLatency(time.Millisecond)
		cost := requests(srv, func() {
			for i := range 100 {
				known.Go(func() { wantSentID(t, q, fmt.Sprint(n+i), n+i, true) })
			}
			known.Wait()
		})
		if cost > 20 {
			t.Errorf("100 SendIDs at once cost %d requests", cost)
		}
		if buckets := slices.DeleteFunc(childrenOf(t, open(t, srv), "/q"), func(name string) bool { return name[:2] != "b-" }); len(buckets) < 2 {
			t.Errorf("%d elements stand in %d buckets", n, len(buckets))
		}
		wantSentID(t, q, "17", 1, false)
		var first, both sync.WaitGroup
		won := make(chan int, 10)
		for i := range 10 { // at once, so in one transaction
			both.Go(func() {
				first.Wait()
				if sent, err := q.SendID(t.Context(), "twice", i); err != nil {
					t.Error(err)
				} else if sent {
					won <- i
				}
			})
		}
		both.Wait()
		if len(won) != 1 {
			t.Errorf("one ID was sent %d times", len(won))
		}
	})
}

func TestIDsAreCheckedBeforeAnythingIsSent(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for _, q := range []*zsync.Queue[int]{zsync.NewQueue[int](s, "/q", zsync.WithIDMemory(0)), zsync.NewQueue[int](s, "/q", zsync.WithQueueLayout(zsync.LayoutKazooQueue)), zsync.NewQueue[int](s, "q")} {
			_, err := q.SendID(t.Context(), "a", 1)
			wantErr(t, err, zsync.ErrInvalid)
			_, err = q.Cancel(t.Context(), "a")
			wantErr(t, err, zsync.ErrInvalid)
		}
		_, err := zsync.NewQueue[int](s, "/q").SendID(t.Context(), "", 1)
		wantErr(t, err, zsync.ErrInvalid)
	})
}

func TestWhatIsForgottenAndNotToBeKeptIsDeleted(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv, longSession)
		q := zsync.NewQueue[int](s, "/q", zsync.WithDeadRetention(48*time.Hour))
		for i := range 20 {
			wantSentID(t, q, fmt.Sprint("short", i), i, true)
		}
		wantSentID(t, zsync.NewQueue[int](s, "/q", zsync.WithIDMemory(100*time.Hour)), "long", 20, true)
		ch := q.Deliveries(t.Context())
		ds := collect(t, ch, 21)
		must(t, ds[0].Reject(t.Context(), "early"))
		for _, d := range ds[2:] {
			must(t, d.Ack(t.Context()))
		}
		letters := func() (n int) {
			for _, err := range q.Dead(t.Context()) {
				must(t, err)
				n++
			}
			return n
		}
		time.Sleep(23 * time.Hour)
		must(t, ds[1].Reject(t.Context(), "late"))
		if n, m := notes(t, s), letters(); n != 21 || m != 2 {
			t.Errorf("after 23 hours %d IDs are noted, and there are %d dead letters; want 21 and 2", n, m)
		}
		time.Sleep(8 * time.Hour)
		if n := notes(t, s); n != 1 {
			t.Errorf("after 31 hours %d IDs are noted, want 1", n)
		}
		wantSentID(t, q, "long", 1, false)
		time.Sleep(24 * time.Hour)
		if m := letters(); m != 1 {
			t.Errorf("after 55 hours there are %d dead letters, want 1", m)
		}
		time.Sleep(50 * time.Hour)
		if n, m := notes(t, s), letters(); n != 0 || m != 0 {
			t.Errorf("in the end %d IDs are noted, and there are %d dead letters", n, m)
		}
		if names := childrenOf(t, s, "/q-dead"); len(names) > 0 {
			t.Errorf("left: %v", names)
		}
	}, longSessions)
}

// Those of one request whose IDs were over share directories now and then: none waits for
// another for ever.
func TestIDsThatAreOverAreSentAgainTogether(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv, longSession), "/q", zsync.WithIDMemory(time.Hour))
		const n = 120 // of 256 directories
		all := func() (sent int64) {
			var wg sync.WaitGroup
			var count atomic.Int64
			for i := range n {
				wg.Go(func() {
					ok, err := q.SendID(within(t, 10*time.Minute), fmt.Sprint(i), i)
					must(t, err)
					if ok {
						count.Add(1)
					}
				})
			}
			wg.Wait()
			return count.Load()
		}
		srv.SetLatency(time.Millisecond)
		for range 2 {
			if sent := all(); sent != n {
				t.Errorf("%d of %d were sent", sent, n)
			}
			time.Sleep(2 * time.Hour)
		}
		wantLen(t, q, 2*n)
	}, longSessions)
}

func TestProducersWithIDsThatAreOverDoNotKeepEachOtherFromSending(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		const n = 300
		qs := []*zsync.Queue[int]{}
		for range 2 {
			qs = append(qs, zsync.NewQueue[int](open(t, srv, longSession), "/q", zsync.WithIDMemory(time.Hour)))
		}
		srv.SetLatency(time.Millisecond)
		for range 2 {
			var wg sync.WaitGroup
			var sent, late atomic.Int64
			for k, q := range qs {
				for i := range n {
					wg.Go(func() {
						ok, err := q.SendID(within(t, 15*time.Second), fmt.Sprint(k, "-", i), i)
						if err != nil {
							late.Add(1)
						}
						if ok {
							sent.Add(1)
						}
					})
				}
			}
			wg.Wait()
			if late.Load() > 0 || sent.Load() != 2*n {
				t.Errorf("%d were sent, and %d not in time; want %d", sent.Load(), late.Load(), 2*n)
			}
			time.Sleep(2 * time.Hour)
		}
	}, longSessions)
}

// A producer that was cut off after it found its ID's time over must not take a note that
// was made since for the one that it has read.
func TestProducerThatWasCutOffTakesNoLaterNoteForTheOneItRead(t *testing.T) {
	ofIDs := func(o zktest.Request) bool { return o.Op == zktest.OpSetData && strings.Contains(o.Path, "-ids/") }
	write := func(r zktest.Request) bool { return r.Op == zktest.OpMulti && slices.ContainsFunc(r.Ops, ofIDs) }
	for name, c := range map[string]struct {
		last   func(r zktest.Request) bool // its request with which it is cut off
		swept  time.Duration               // for how long another may sweep then
		barred bool                        // it cannot connect meanwhile
	}{
		"before it asked the time": {ofIDs, time.Second, false},
		"before it wrote":          {write, time.Second, false},
		"for minutes":              {write, 5 * time.Minute, true}, // so its session ends, and the directories of notes, left empty, may go too
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				mem := zsync.WithIDMemory(time.Hour)
				a, b, sweeper := open(t, srv), open(t, srv), open(t, srv)
				qa, qb := zsync.NewQueue[int](a, "/q", mem), zsync.NewQueue[int](b, "/q", mem)
				wantSentID(t, qb, "x", 1, true)
				time.Sleep(5 * time.Hour) // over, and not swept yet
				var cut, healed atomic.Bool
				aid := a.ID()
				srv.Intercept(func(r zktest.Request) zktest.Action {
					switch {
					case c.barred && r.Op == zktest.OpConnect && cut.Load() && !healed.Load():
						return zktest.Hang // nobody but a connects
					case r.Session == aid && !healed.Load() && (cut.Load() || c.last(r)):
						if !cut.Swap(true) {
							go srv.Partition(aid) // what it sends before that has begun is dropped too
						}
						return zktest.DropRequest
					}
					return zktest.Pass
				})
				var second bool
				done := async(func() (err error) {
					second, err = qa.SendID(t.Context(), "x", 2)
					return err
				})
				time.Sleep(2 * time.Second)
				if !cut.Load() {
					t.Fatal("the case did not come about")
				}
				// Whoever becomes idle sweeps: a new process.
				must(t, zsync.NewQueue[int](sweeper, "/q", mem).Send(t.Context(), 100))
				time.Sleep(c.swept)
				if left := notes(t, b); left > 0 {
					t.Fatalf("%d notes are left after the sweep", left)
				}
				wantSentID(t, qb, "x", 3, true)
				healed.Store(true)
				srv.Heal(aid)
				must(t, <-done)
				if second {
					t.Error("two were sent with one ID within its memory")
				}
				wantLen(t, qb, 3) // 1, 100, 3
			})
		})
	}
}
