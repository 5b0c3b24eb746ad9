package crash

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/suite"
)

func newCrashQueue(s *zsync.Session, opts ...zsync.QueueOption) *zsync.Queue[int] {
	return zsync.NewQueue[int](s, crashPath, opts...)
}

// sendBeside has elements sent before the child begins.
func sendBeside(vs []int, opts ...zsync.QueueOption) helper {
	return func(ctx context.Context, s *zsync.Session, ready func(), _ *crashChild) error {
		err := newCrashQueue(s, opts...).Send(ctx, vs...)
		ready()
		return err
	}
}

// takes has the child take n elements of a channel.
func takes(n int, opts ...zsync.QueueOption) func(ctx context.Context, s *zsync.Session, begin func()) error {
	return func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		c := newCrashQueue(s, opts...).Recv(ctx)
		for range n {
			<-c
		}
		cancel()
		for range c {
		}
		return nil
	}
}

// delivered has the child get the first element, and do f with it.
func delivered(f func(ctx context.Context, d zsync.Delivery[int], q *zsync.Queue[int]) error) func(ctx context.Context, s *zsync.Session, begin func()) error {
	return func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		q := newCrashQueue(s)
		return f(ctx, <-q.Deliveries(ctx), q)
	}
}

// afterSent receives what is in the queue, which must be one of want, and then
// sends and receives as usual.
func afterSent(opts []zsync.QueueOption, want ...[]int) func(ctx context.Context, s *zsync.Session) error {
	return afterQueue(opts, func([]int) {}, want)
}

// afterReceived is afterSent where the dead have received too: what they had
// claimed comes back later than what follows it was received.
func afterReceived(opts []zsync.QueueOption, want ...[]int) func(ctx context.Context, s *zsync.Session) error {
	return afterQueue(opts, slices.Sort, want)
}

func afterQueue(opts []zsync.QueueOption, order func([]int), want [][]int) func(ctx context.Context, s *zsync.Session) error {
	return func(ctx context.Context, s *zsync.Session) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		q := newCrashQueue(s, opts...)
		received := q.Recv(ctx)
		got, err := emptied(ctx, q, received)
		if err == nil {
			err = q.Send(ctx, 10)
		}
		if err != nil {
			return err
		}
		// In the layouts of others an element can be on its way that is in
		// the queue no more.
		v := <-received
		for ; v != 10 && v != 0; v = <-received {
			got = append(got, v)
		}
		if v != 10 {
			return errors.New("sent 10, and did not receive it")
		}
		order(got)
		if !slices.ContainsFunc(want, func(want []int) bool { return slices.Equal(got, want) }) {
			return fmt.Errorf("received %v, want one of %v", got, want)
		}
		cancel()
		for v := range received {
			return fmt.Errorf("received %d more", v)
		}
		return nil
	}
}

// emptied receives until nothing is left. What the dead had claimed comes back
// when they are known to be dead.
func emptied(ctx context.Context, q *zsync.Queue[int], received <-chan int) (got []int, err error) {
	for {
		select {
		case v, ok := <-received:
			if !ok {
				return got, ctx.Err()
			}
			got = append(got, v)
		case <-time.After(5 * time.Millisecond):
			if n, err := q.Len(ctx); n == 0 || err != nil {
				return got, err
			}
		}
	}
}

// suffixes are vs without some of the first.
func suffixes(vs ...int) (all [][]int) {
	for i := range len(vs) + 1 {
		all = append(all, vs[i:])
	}
	return all
}

// badElement puts an element into the queue that is no int.
func badElement(ctx context.Context, s *zsync.Session, ready func(), _ *crashChild) error {
	err := zsync.NewQueue[string](s, crashPath).Send(ctx, "x")
	ready()
	return err
}

// afterBad finds the one element either in the queue or among the dead letters.
func afterBad(ctx context.Context, s *zsync.Session) error {
	q := newCrashQueue(s)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	got, err := emptied(ctx, q, q.Recv(ctx))
	if err != nil {
		return err
	}
	if len(got) > 0 {
		return fmt.Errorf("received %v", got)
	}
	n := 0
	for d, err := range q.Dead(ctx) {
		if err != nil {
			return err
		}
		if string(d.Data) != `"x"` {
			return fmt.Errorf("another dead letter: %q", d.Data)
		}
		if _, err := suite.Remove(ctx, q, d); err != nil {
			return err
		}
		n++
	}
	if n != 1 {
		return fmt.Errorf("%d dead letters, want 1", n)
	}
	return nil
}

// Buckets last. Receipts of processes that have died stay.
const queueLeaves = crashPath + `/([bt]-[0-9]+(-[0-9]+)?|d-[0-9]+-[0-9]+-[0-9a-f]+)|` + crashPath + `-(live|consumers|dead|ids(/.*)?|receipts(/[^/]*)?)|` + crashPath + `/keys`

var fewElements = []zsync.QueueOption{zsync.WithMaxLen(2)}

var oneKey = zsync.WithKey(func(int) string { return "k" })

var priorities = []zsync.QueueOption{zsync.WithPriorities(3)}

var kazooQueue = []zsync.QueueOption{zsync.WithQueueLayout(zsync.LayoutKazooQueue)}

var queueCrashes = []crash{{
	name: "Queue.Send",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return newCrashQueue(s).Send(ctx, 1, 2, 3)
	},
	after:    afterSent(nil, nil, []int{1, 2, 3}),
	leaves:   queueLeaves,
	requests: 2,
}, {
	name: "Queue.Send behind others",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return newCrashQueue(s).Send(ctx, 2, 3)
	},
	beside:   sendBeside([]int{1}),
	after:    afterSent(nil, []int{1}, []int{1, 2, 3}),
	leaves:   queueLeaves,
	requests: 1,
}, {
	name: "Queue.Send to a full queue",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return newCrashQueue(s, fewElements...).Send(ctx, 3)
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		q := newCrashQueue(s, fewElements...)
		if err := q.Send(ctx, 1, 2); err != nil {
			return err
		}
		offered, stop := context.WithCancel(ctx)
		d := <-q.Deliveries(offered)
		stop()
		ready()
		child.awaitRequests(ctx, 5) // it counts, and asks the leader
		return d.Ack(context.WithoutCancel(ctx))
	},
	// The dead may have been first among those who wait for room.
	after:    afterSent(fewElements, []int{2}, []int{2, 3}),
	leaves:   queueLeaves,
	requests: 4,
}, {
	name: "Queue.SendPriority",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return newCrashQueue(s, priorities...).SendPriority(ctx, 0, 2)
	},
	beside:   sendBeside([]int{1}, priorities...),
	after:    afterSent(priorities, []int{1}, []int{2, 1}),
	leaves:   queueLeaves,
	requests: 1,
}, {
	name: "Queue.SendAt",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return newCrashQueue(s).SendAt(ctx, time.Now().Add(50*time.Millisecond), 1)
	},
	after:    afterSent(nil, nil, []int{1}),
	leaves:   queueLeaves,
	requests: 2,
}, {
	name: "Queue.In",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		in, done := newCrashQueue(s).In(ctx)
		in <- 1
		in <- 2
		close(in)
		return <-done
	},
	after:    afterSent(nil, nil, []int{1}, []int{1, 2}),
	leaves:   queueLeaves,
	requests: 2,
}, {
	name:     "Queue.Recv",
	child:    takes(3),
	beside:   sendBeside([]int{1, 2, 3}),
	after:    afterReceived(nil, suffixes(1, 2, 3)...),
	leaves:   queueLeaves,
	requests: 4,
}, {
	name:  "Queue.Recv of what comes later",
	child: takes(2),
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		ready()
		child.awaitWait(ctx)
		return newCrashQueue(s).Send(context.WithoutCancel(ctx), 1, 2)
	},
	after: func(ctx context.Context, s *zsync.Session) error {
		// Wait until they are sent, or have been.
		var err error
		// real time: a process of its own sends
		for buckets := []string(nil); err == nil && len(buckets) == 0; time.Sleep(time.Millisecond) {
			buckets, err = childrenOf(ctx, crashPath)
		}
		return errors.Join(err, afterReceived(nil, suffixes(1, 2)...)(ctx, s))
	},
	leaves:   queueLeaves,
	requests: 5,
}, {
	name:   "Queue.TryRecv",
	beside: sendBeside([]int{1, 2, 3}),
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		_, _, err := newCrashQueue(s).TryRecv(ctx)
		return err
	},
	after:    afterReceived(nil, []int{1, 2, 3}, []int{2, 3}),
	leaves:   queueLeaves,
	requests: 4,
}, {
	name:     "Delivery.Ack",
	child:    delivered(func(ctx context.Context, d zsync.Delivery[int], _ *zsync.Queue[int]) error { return d.Ack(ctx) }),
	beside:   sendBeside([]int{1, 2, 3}),
	after:    afterReceived(nil, []int{1, 2, 3}, []int{2, 3}),
	leaves:   queueLeaves,
	requests: 4,
}, {
	name: "Delivery.Txn",
	child: delivered(func(ctx context.Context, d zsync.Delivery[int], q *zsync.Queue[int]) error {
		_, err := d.Txn(ctx, q.SendOp(1))
		return err
	}),
	beside:   sendBeside([]int{1, 2, 3}),
	after:    afterReceived(nil, []int{1, 2, 3}), // one of them once more, or not, and never none
	leaves:   queueLeaves,
	requests: 5,
}, {
	name: "Queue.SendID",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		_, err := newCrashQueue(s).SendID(ctx, "a", 1)
		return err
	},
	after: func(ctx context.Context, s *zsync.Session) error {
		if _, err := newCrashQueue(s).SendID(ctx, "a", 1); err != nil { // the next tries again
			return err
		}
		return afterReceived(nil, []int{1})(ctx, s)
	},
	leaves:   queueLeaves,
	requests: 3,
}, {
	name: "Queue.Cancel",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		q := newCrashQueue(s)
		if _, err := q.SendID(ctx, "a", 1); err != nil {
			return err
		}
		begin()
		_, err := q.Cancel(ctx, "a")
		return err
	},
	after:    afterSent(nil, nil, []int{1}),
	leaves:   queueLeaves,
	requests: 4,
}, {
	name: "Delivery.Ack of one with a key",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		q := newCrashQueue(s, oneKey)
		if err := q.Send(ctx, 1, 2, 3); err != nil {
			return err
		}
		begin()
		return (<-q.Deliveries(ctx)).Ack(ctx)
	},
	after:    afterSent(nil, []int{1, 2, 3}, []int{2, 3}), // in order
	leaves:   queueLeaves,
	requests: 5,
}, {
	name:     "Delivery.Nack",
	child:    delivered(func(_ context.Context, d zsync.Delivery[int], _ *zsync.Queue[int]) error { return d.Nack() }),
	beside:   sendBeside([]int{1, 2, 3}),
	after:    afterReceived(nil, []int{1, 2, 3}),
	leaves:   queueLeaves,
	requests: 4,
}, {
	name: "Queue.Clear",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		_, err := newCrashQueue(s).Clear(ctx)
		return err
	},
	beside:   sendBeside([]int{1, 2, 3}),
	after:    afterReceived(nil, suffixes(1, 2, 3)...),
	leaves:   queueLeaves,
	requests: 3,
}, {
	name: "Queue.TryRecv of what is no element",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		_, _, err := newCrashQueue(s).TryRecv(ctx)
		return err
	},
	beside:   badElement,
	after:    afterBad,
	leaves:   queueLeaves,
	requests: 4,
}, {
	name: "Queue.RequeueDead",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		if err := zsync.NewQueue[string](s, crashPath).Send(ctx, "x"); err != nil {
			return err
		}
		q := newCrashQueue(s)
		if _, _, err := q.TryRecv(ctx); err != nil {
			return err
		}
		for d, err := range q.Dead(ctx) {
			if err != nil {
				return err
			}
			begin()
			_, err := suite.Requeue(ctx, q, d)
			return err
		}
		return errors.New("no dead letter")
	},
	after:    afterBad,
	leaves:   queueLeaves,
	requests: 1,
}, {
	name: "Queue.Send as kazoo",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return newCrashQueue(s, kazooQueue...).Send(ctx, 1, 2)
	},
	after:    afterSent(kazooQueue, nil, []int{1, 2}),
	leaves:   queueLeaves,
	requests: 1,
}, {
	name:     "Queue.Recv as kazoo",
	child:    takes(2, kazooQueue...),
	beside:   sendBeside([]int{1, 2, 3}, kazooQueue...),
	after:    afterReceived(kazooQueue, suffixes(1, 2, 3)...),
	leaves:   queueLeaves,
	requests: 3,
}}
