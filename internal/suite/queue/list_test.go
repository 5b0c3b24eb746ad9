package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// listed returns the elements of a state.
func listed[T any](t *testing.T, q *zsync.Queue[T], state zsync.QueueState) (items []zsync.QueueItem[T]) {
	t.Helper()
	for item, err := range q.List(t.Context(), state) {
		must(t, err)
		if item.State != state {
			t.Errorf("%v in the list of %v", item.State, state)
		}
		items = append(items, item)
	}
	return items
}

func TestListHasEachElementOnceWithItsState(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, err := zsync.Connect(t.Context(), srv.Addr(), zsync.WithDialer(srv.Dial), zsync.WithOwner("worker"))
		must(t, err)
		defer s.Close()
		q, other := zsync.NewQueue[int](s, "/q", zsync.WithMaxAttempts(9)), zsync.NewQueue[int](open(t, srv), "/q")
		for _, state := range []zsync.QueueState{zsync.QueueReady, zsync.QueueClaimed, zsync.QueueDelayed, zsync.QueueDead} {
			if items := listed(t, other, state); len(items) != 0 {
				t.Errorf("%v of a missing queue: %v", state, items)
			}
		}
		must(t, other.Send(t.Context(), counted(3)...))
		sent, due := time.Now(), time.Now().Add(time.Hour).Truncate(time.Millisecond)
		must(t, other.SendAt(t.Context(), due, 100))
		ds, err := q.ReceiveN(t.Context(), 3)
		must(t, err)
		must(t, ds[0].Nack())
		must(t, ds[1].Reject(t.Context(), "bad"))
		sendAll(t, other, counted(2500)[3:])
		time.Sleep(time.Second)

		ready := listed(t, other, zsync.QueueReady)
		if len(ready) != 2498 {
			t.Fatalf("%d are ready", len(ready))
		}
		for i, item := range ready {
			want, attempts := i+2, 0
			if i == 0 {
				want, attempts = 0, 1
			}
			if item.Value != want || item.Attempts != attempts || item.Owner != "" || !item.Due.IsZero() || string(item.Data) != fmt.Sprint(want) {
				t.Fatalf("ready %d: %+v", i, item)
			}
		}
		if ready[0].ID != ds[0].ID || ready[0].Sent.Sub(sent).Abs() > time.Second {
			t.Errorf("the first: %+v, sent as %s at %v", ready[0], ds[0].ID, sent)
		}
		if items := listed(t, other, zsync.QueueClaimed); len(items) != 1 || items[0].ID != ds[2].ID || items[0].Value != 2 || items[0].Owner != "worker" {
			t.Errorf("claimed: %+v", items)
		}
		if items := listed(t, other, zsync.QueueDelayed); len(items) != 1 || items[0].Value != 100 || !items[0].Due.Equal(due) {
			t.Errorf("delayed: %+v, due at %v", items, due)
		}
		if items := listed(t, other, zsync.QueueDead); len(items) != 1 || items[0].Value != 1 || items[0].Reason != "bad" || items[0].Attempts != 1 {
			t.Errorf("dead: %+v", items)
		}

		srv.Expire(s.ID()) // the claim ends, and its attempt counts
		time.Sleep(time.Second)
		if items := listed(t, other, zsync.QueueReady); len(items) != 2499 || items[1].ID != ds[2].ID || items[1].Attempts != 1 {
			t.Errorf("%d are ready after the end of the session; the second is %+v", len(items), items[1])
		}
	})
}

// The delays of the second half are shorter, so its elements are in other buckets. The times of these buckets overlap
// with those of the first.
func TestListHasDelayedElementsInTheOrderOfTheirTimes(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		due := time.Now().Add(time.Hour)
		for half := range 2 {
			time.Sleep(time.Duration(half) * 59 * time.Minute)
			for i := range 60 {
				must(t, q.SendAt(t.Context(), due.Add(time.Duration(2*i+half)*time.Second), 2*i+half))
			}
		}
		var got []int
		for _, item := range listed(t, q, zsync.QueueDelayed) {
			got = append(got, item.Value)
		}
		time.Sleep(time.Until(due.Add(90 * time.Second)))
		for _, item := range slices.Concat(listed(t, q, zsync.QueueReady), listed(t, q, zsync.QueueDelayed)) {
			got = append(got, item.Value)
		}
		if want := slices.Concat(counted(120), counted(120)); !slices.Equal(got, want) {
			t.Errorf("the lists have %v", got)
		}
	})
}

func TestListWritesNothingAndReadsOnlyWhatIsAskedFor(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		q := zsync.NewQueue[int](open(t, srv), "/q")
		sendAll(t, q, counted(3000))
		time.Sleep(2 * time.Minute) // the producer's log is deleted when it has been idle for a minute
		q = zsync.NewQueue[int](open(t, srv), "/q")
		before := srv.Counts()
		n := requests(srv, func() {
			for item, err := range q.List(t.Context(), zsync.QueueReady) {
				if must(t, err); item.Value == 10 {
					break
				}
			}
		})
		if n > 10 {
			t.Errorf("%d requests for the first page", n)
		}
		if n := len(listed(t, q, zsync.QueueReady)); n != 3000 {
			t.Errorf("%d elements", n)
		}
		all := srv.Counts().Sub(before).Requests
		for _, op := range []zktest.Op{zktest.OpCreate, zktest.OpSetData, zktest.OpDelete, zktest.OpMulti} {
			if n := all[op.String()]; n > 0 {
				t.Errorf("%d requests %v", n, op)
			}
		}
	})
}

func TestListGoesOnAfterWhatDoesNotDecode(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		text, q := zsync.NewQueue[string](s, "/q"), zsync.NewQueue[int](s, "/q")
		must(t, text.Send(t.Context(), "a"))
		must(t, q.Send(t.Context(), 7))
		d, err := text.Receive(t.Context())
		must(t, err)
		must(t, d.Reject(t.Context(), "bad"))
		must(t, text.Send(t.Context(), "b"))
		for state, want := range map[zsync.QueueState]string{zsync.QueueReady: `7 <nil>; "b" true; `, zsync.QueueDead: `"a" true; `} {
			got := ""
			for item, err := range q.List(t.Context(), state) {
				if got += string(item.Data); err == nil {
					got += " <nil>; "
				} else {
					got += fmt.Sprintf(" %v; ", item.ID != "")
				}
			}
			if got != want {
				t.Errorf("%v: %s, want %s", state, got, want)
			}
		}
		for name, list := range map[string]func(func(zsync.QueueItem[int], error) bool){
			"no state":  q.List(t.Context(), 4),
			"layout":    zsync.NewQueue[int](s, "/k", zsync.WithQueueLayout(zsync.LayoutKazooQueue)).List(t.Context(), zsync.QueueReady),
			"bad queue": zsync.NewQueue[int](nil, "/q").List(t.Context(), zsync.QueueReady),
		} {
			n := 0
			for _, err := range list {
				n++
				wantErr(t, err, zsync.ErrInvalid)
			}
			if n != 1 {
				t.Errorf("%s: %d errors", name, n)
			}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, err := range q.List(ended, zsync.QueueReady) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("after the end of ctx: %v", err)
			}
		}
	})
}

func TestIDOfAnElementIsTheSameAtEachAttemptForGood(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](open(t, srv), "/q", zsync.WithKey(func(int) string { return "k" }))
		must(t, q.Send(t.Context(), 1))
		id := listed(t, q, zsync.QueueReady)[0].ID
		next := func(q *zsync.Queue[int], attempt int) zsync.Delivery[int] {
			t.Helper()
			d, err := q.Receive(t.Context())
			if must(t, err); d.ID != id || d.Attempt != attempt {
				t.Errorf("attempt %d of %s, want %d of %s", d.Attempt, d.ID, attempt, id)
			}
			return d
		}
		must(t, next(q, 1).Nack())
		must(t, next(q, 2).NackAfter(time.Hour))
		if d := listed(t, q, zsync.QueueDelayed); len(d) != 1 || d[0].ID != id || d[0].Attempts != 2 {
			t.Errorf("delayed: %+v", d)
		}
		must(t, next(q, 3).NackAfter(time.Minute)) // moved twice
		lost := zsync.NewQueue[int](s, "/q", zsync.WithMaxAttempts(10))
		next(lost, 4)
		srv.Expire(s.ID())
		must(t, next(q, 5).Ack(t.Context()))
	})
}
