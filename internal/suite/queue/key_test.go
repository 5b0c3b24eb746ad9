package queue

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// keyOfInt makes the tens of a number its key.
func keyOfInt(v int) string { return strconv.Itoa(v / 10) }

// keyed returns a Queue whose elements have keys.
func keyed(s *zsync.Session, opts ...zsync.QueueOption) *zsync.Queue[int] {
	return zsync.NewQueue[int](s, "/q", append(opts, zsync.WithKey(keyOfInt))...)
}

// nextOf returns what one of two channels offers first, or -1 if there is nothing
// for a minute.
func nextOf(a, b <-chan zsync.Delivery[int]) (d zsync.Delivery[int], v int) {
	select {
	case d = <-a:
		return d, d.Value
	case d = <-b:
		return d, d.Value
	case <-time.After(time.Minute):
		return d, -1
	}
}

func wantNextOf(t *testing.T, a, b <-chan zsync.Delivery[int], want int) zsync.Delivery[int] {
	t.Helper()
	d, v := nextOf(a, b)
	if v != want {
		t.Fatalf("received %d, want %d", v, want)
	}
	return d
}

func wantNext(t *testing.T, ch <-chan zsync.Delivery[int], want int) zsync.Delivery[int] {
	t.Helper()
	return wantNextOf(t, ch, nil, want)
}

func TestElementsOfOneKeyComeOneAtATimeAndOthersBesideThem(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		must(t, keyed(open(t, srv)).Send(t.Context(), 10, 11, 20, 12, 30, 21))
		// The consumers do not say that there are keys.
		a, b := zsync.NewQueue[int](open(t, srv), "/q").Deliveries(t.Context()), zsync.NewQueue[int](open(t, srv), "/q").Deliveries(t.Context())
		// The first of each key, in any order: each consumer claims what the other has not.
		held := map[int]zsync.Delivery[int]{}
		for range 3 {
			d, v := nextOf(a, b)
			held[v] = d
		}
		d10, d20, d30 := held[10], held[20], held[30]
		if d10.Value != 10 || d20.Value != 20 || d30.Value != 30 {
			t.Fatalf("received %v, want 10, 20 and 30", slices.Sorted(maps.Keys(held)))
		}
		wantNextOf(t, a, b, -1)
		must(t, d20.Ack(t.Context()))
		d21 := wantNextOf(t, a, b, 21)
		must(t, d10.Ack(t.Context()))
		d11 := wantNextOf(t, a, b, 11)
		must(t, d30.Ack(t.Context()))
		must(t, d21.Ack(t.Context()))
		wantNextOf(t, a, b, -1)
		must(t, d11.Ack(t.Context()))
		must(t, wantNextOf(t, a, b, 12).Ack(t.Context()))
	})
}

func TestElementThatComesBackKeepsItsPlaceBeforeOthersOfItsKey(t *testing.T) {
	back := map[string]struct {
		give  func(t *testing.T, d zsync.Delivery[int])
		dies  bool // the consumer, afterwards
		after time.Duration
	}{
		"Nack":      {give: func(t *testing.T, d zsync.Delivery[int]) { must(t, d.Nack()) }},
		"NackAfter": {give: func(t *testing.T, d zsync.Delivery[int]) { must(t, d.NackAfter(10*time.Second)) }, after: 10 * time.Second},
		"death":     {give: func(*testing.T, zsync.Delivery[int]) { time.Sleep(time.Second) }, dies: true},
		"NackAfter, and death of the next": {give: func(t *testing.T, d zsync.Delivery[int]) {
			must(t, d.NackAfter(time.Second))
			time.Sleep(3 * time.Second)
		}, dies: true, after: time.Second},
	}
	for name, how := range back {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				mine, kill := mortal(t, srv)
				must(t, keyed(open(t, srv)).Send(t.Context(), 10, 11, 20))
				ch := keyed(mine).Deliveries(t.Context())
				d := wantNext(t, ch, 10)
				begin := time.Now()
				how.give(t, d)
				if how.dies {
					// What it has claimed, and has not noticed yet that it lost, is not asked for.
					kill()
					ch = nil
				}
				others := keyed(open(t, srv)).Deliveries(t.Context())
				first := 0
				for range 3 {
					d, v := nextOf(ch, others)
					switch {
					case v == 10:
						if d.Attempt < 2 || time.Since(begin) < how.after {
							t.Errorf("10 came as attempt %d after %v", d.Attempt, time.Since(begin))
						}
						first = v
					case v == 11 && first != 10:
						t.Error("11 came before 10")
					case v == -1:
						t.Fatal("an element is missing")
					}
					must(t, d.Ack(t.Context()))
				}
			})
		})
	}
}

func TestKeysHoldAcrossPrioritiesAndDelays(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := keyed(open(t, srv), zsync.WithPriorities(3))
		must(t, q.SendPriority(t.Context(), 2, 10))
		a, b := keyed(open(t, srv)).Deliveries(t.Context()), keyed(open(t, srv)).Deliveries(t.Context())
		d := wantNextOf(t, a, b, 10)
		must(t, q.SendPriority(t.Context(), 2, 12))
		must(t, q.SendPriority(t.Context(), 0, 11)) // goes first, but not beside
		must(t, q.SendAt(t.Context(), time.Now().Add(5*time.Minute), 13))
		wantNextOf(t, a, b, -1)
		must(t, d.Ack(t.Context()))
		d = wantNextOf(t, a, b, 11)
		wantNextOf(t, a, b, -1)
		must(t, d.NackAfter(10*time.Minute)) // and keeps its key for so long
		must(t, q.SendPriority(t.Context(), 0, 14))
		time.Sleep(8 * time.Minute) // 13 is due
		wantNextOf(t, a, b, -1)
		for _, v := range []int{11, 14, 13, 12} {
			if v == 11 {
				time.Sleep(2 * time.Minute)
			}
			got := wantNextOf(t, a, b, v)
			wantNextOf(t, a, b, -1)
			must(t, got.Ack(t.Context()))
		}
	})
}

func TestKeyIsFreeWhenItsElementIsBuriedTakenOrCleared(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := keyed(s)
		must(t, q.Send(t.Context(), 10, 11, 12, 13))
		ch := q.Deliveries(t.Context())
		must(t, wantNext(t, ch, 10).Reject(t.Context(), "no"))
		d := wantNext(t, ch, 11)
		other := keyed(open(t, srv))
		if _, ok, err := other.TryRecv(t.Context()); ok || err != nil {
			t.Errorf("TryRecv = %v, %v beside one with its key", ok, err)
		}
		if _, ok, err := other.Peek(t.Context()); ok || err != nil {
			t.Errorf("Peek = %v, %v beside one with its key", ok, err)
		}
		must(t, d.NackAfter(time.Hour))
		if _, ok, err := other.TryRecv(t.Context()); ok || err != nil {
			t.Errorf("TryRecv = %v, %v behind one with its key that waits", ok, err)
		}
		if n, err := q.Clear(t.Context()); n != 3 || err != nil {
			t.Errorf("Clear = %d, %v; want 3", n, err)
		}
		must(t, q.Send(t.Context(), 14, 15))
		if n, err := q.RequeueDead(t.Context(), nil); n != 1 || err != nil {
			t.Errorf("RequeueDead = %d, %v", n, err)
		}
		d = wantNext(t, ch, 14)
		wantNext(t, ch, -1)
		must(t, d.Ack(t.Context()))
		d = wantNext(t, ch, 15)
		wantNext(t, ch, -1) // what was requeued has its key still
		must(t, d.Ack(t.Context()))
		must(t, wantNext(t, ch, 10).Ack(t.Context()))
	})
}

func TestClaimThatOthersOvertakeInAnotherBucketIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		late, quick := open(t, srv), keyed(open(t, srv), zsync.WithPriorities(3))
		must(t, quick.SendPriority(t.Context(), 2, 10))
		delayed := 0
		read := oneByOne(srv, func(r zktest.Request) zktest.Action {
			if r.Session == late.ID() && r.Op == zktest.OpMulti && delayed == 0 {
				delayed++
				return zktest.Delay(5 * time.Second)
			}
			return zktest.Pass
		})
		taken := make(chan bool, 1)
		go func() {
			_, ok, err := keyed(late).TryRecv(t.Context())
			taken <- ok || err != nil
		}()
		time.Sleep(time.Second) // it has found 10, and is about to claim it
		must(t, quick.SendPriority(t.Context(), 0, 11))
		ctx, cancel := context.WithCancel(t.Context())
		d := wantNext(t, quick.Deliveries(ctx), 11)
		cancel()
		if <-taken {
			t.Error("10 was taken while 11, with its key, was held")
		}
		read(func() {
			if delayed != 1 {
				t.Error("the case did not come about")
			}
		})
		must(t, d.Ack(t.Context()))
		must(t, wantNext(t, quick.Deliveries(t.Context()), 10).Ack(t.Context()))
	})
}

func TestFirstElementWithAKeyIsRespectedByConsumersThatRunAlready(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		plain := zsync.NewQueue[int](s, "/q")
		must(t, plain.Send(t.Context(), 1))
		// The first with a key comes when the consumer has looked for the mark, and
		// before it lists the bucket.
		stage := 0
		sent := make(chan error, 1)
		read := oneByOne(srv, func(r zktest.Request) zktest.Action {
			if r.Session == s.ID() && strings.HasPrefix(r.Path, "/q/b-") && (r.Op == zktest.OpGetChildren || r.Op == zktest.OpGetChildren2) && stage == 0 {
				stage++
				go func() { sent <- keyed(other).Send(t.Context(), 10, 11, 20) }()
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		ch := zsync.NewQueue[int](s, "/q").Deliveries(t.Context())
		d1 := wantNext(t, ch, 1)
		must(t, <-sent)
		d := wantNext(t, ch, 10)
		wantNext(t, ch, 20)
		wantNext(t, ch, -1)
		must(t, d.Ack(t.Context()))
		must(t, wantNext(t, ch, 11).Ack(t.Context()))
		must(t, d1.Ack(t.Context()))
		read(func() {
			if stage != 1 {
				t.Error("the case did not come about")
			}
		})
	})
}

func TestOneStuckKeyDoesNotHoldUpOthersHoweverMuchOfItWaits(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := keyed(open(t, srv))
		vs := make([]int, 3000)
		for i := range vs {
			vs[i] = i % 10 // all of one key
		}
		for from := 0; from < len(vs); from += 500 {
			must(t, q.Send(t.Context(), vs[from:from+500]...))
		}
		ch := keyed(open(t, srv)).Deliveries(t.Context())
		wantNext(t, ch, 0) // stuck
		must(t, q.Send(t.Context(), 70))
		must(t, wantNext(t, ch, 70).Ack(t.Context()))
		n := requests(srv, func() {
			must(t, q.Send(t.Context(), 80))
			must(t, wantNext(t, ch, 80).Ack(t.Context()))
		})
		if n > 25 {
			t.Errorf("an element behind 3,000 of a stuck key costs %d requests", n)
		}
		wantNext(t, ch, -1)
	})
}

func TestWithKeyOfAnotherTypeIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for _, q := range []*zsync.Queue[int]{
			zsync.NewQueue[int](s, "/q", zsync.WithKey(func(string) string { return "" })),
			zsync.NewQueue[int](s, "/q", zsync.WithKey[int](nil)),
			zsync.NewQueue[int](s, "/q", zsync.WithKey(keyOfInt), zsync.WithQueueLayout(zsync.LayoutKazooQueue)),
		} {
			wantErr(t, q.Send(t.Context(), 1), zsync.ErrInvalid)
		}
	})
}
