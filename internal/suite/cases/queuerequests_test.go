package cases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
)

// This file has the calls of a Queue for the trials of everyrequest_test.go, which cause the faults.

func queueOf(s *zsync.Session, opts ...zsync.QueueOption) *zsync.Queue[string] {
	return zsync.NewQueue[string](s, "/p", opts...)
}

// rest removes all elements, and returns them in order, and the dead letters.
func rest(t *testing.T, other *zsync.Session) (all []string, dead []string, err error) {
	p := queueOf(other)
	for {
		v, ok, err := p.TryRecv(t.Context())
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			break
		}
		all = append(all, v)
	}
	for l, err := range p.Dead(t.Context()) {
		if err != nil {
			return nil, nil, err
		}
		dead = append(dead, string(l.Data[1:len(l.Data)-1]))
	}
	if n, err := p.Len(t.Context()); n != 0 || err != nil {
		return all, dead, fmt.Errorf("Len = %d, %v", n, err)
	}
	return all, dead, nil
}

// left reports a rest that is none of want.
func left(want ...string) func(t *testing.T, other *zsync.Session) error {
	return func(t *testing.T, other *zsync.Session) error {
		all, dead, err := rest(t, other)
		if got := fmt.Sprintf("%q %q", all, dead); err == nil && !slices.Contains(want, got) {
			err = fmt.Errorf("left %s, want one of %q", got, want)
		}
		return err
	}
}

var eitherOrder = left(`["a" "b"] []`, `["b" "a"] []`)

func sent(vs ...string) func(t *testing.T, other *zsync.Session) {
	return func(t *testing.T, other *zsync.Session) { harness.Must(t, queueOf(other).Send(t.Context(), vs...)) }
}

func deadOnes(vs ...string) func(t *testing.T, other *zsync.Session) {
	return func(t *testing.T, other *zsync.Session) {
		p := queueOf(other)
		harness.Must(t, p.Send(t.Context(), vs...))
		for range vs {
			d, err := p.Receive(t.Context())
			harness.Must(t, err)
			harness.Must(t, d.Reject(t.Context(), "bad"))
		}
	}
}

// unlessLost returns err, or nil if the claim was lost: the element may be free again, or removed.
func unlessLost(err error) error {
	if errors.Is(err, zsync.ErrLost) || errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	return err
}

// received settles the first of two elements. Then the rest must be one of applied. If the claim was lost, the element may
// also be free again.
func received(name string, settle func(t *testing.T, q *zsync.Queue[string], d zsync.Delivery[string]) error, applied ...string) trial {
	var settled error
	return trial{"Receive and " + name, sent("a", "b"), func(t *testing.T, s *zsync.Session) error {
		q := queueOf(s)
		d, err := q.Receive(t.Context())
		if err != nil {
			return err
		}
		settled = settle(t, q, d)
		return unlessLost(is(name, d.Value, "a", settled))
	}, func(t *testing.T, other *zsync.Session) error {
		if settled == nil {
			return left(applied...)(t, other)
		}
		return left(append(applied, `["a" "b"] []`)...)(t, other)
	}}
}

var trialsOfQueues = []trial{
	{"Send", sent("a"), func(t *testing.T, s *zsync.Session) error { return queueOf(s).Send(t.Context(), "b", "c") }, left(`["a" "b" "c"] []`)},
	{"Send of the first", nothingThere, func(t *testing.T, s *zsync.Session) error { return queueOf(s).Send(t.Context(), "b", "c") }, left(`["b" "c"] []`)},
	{"SendID", sent("a"), func(t *testing.T, s *zsync.Session) error {
		p := queueOf(s)
		if _, err := p.SendID(t.Context(), "1", "b"); err != nil {
			return err
		}
		_, err := p.SendID(t.Context(), "1", "b")
		return err
	}, left(`["a" "b"] []`)},
	{"SendPriority", sent("a"), func(t *testing.T, s *zsync.Session) error {
		return queueOf(s, zsync.WithPriorities(3)).SendPriority(t.Context(), 0, "b")
	}, eitherOrder},
	{"SendAt", sent("a"), func(t *testing.T, s *zsync.Session) error {
		return queueOf(s).SendAt(t.Context(), time.Now().Add(time.Second), "b")
	}, eitherOrder},
	{"TryRecv", sent("a", "b"), func(t *testing.T, s *zsync.Session) error {
		v, ok, err := queueOf(s).TryRecv(t.Context())
		return is("TryRecv", fmt.Sprint(v, ok), "atrue", err)
	}, left(`["b"] []`, `["a" "b"] []`)},
	{"TryRecv of a misfit", sent("a", "b"), func(t *testing.T, s *zsync.Session) error {
		v, ok, err := zsync.NewQueue[int](s, "/p").TryRecv(t.Context())
		return is("TryRecv", fmt.Sprint(v, ok), "0 false", err)
	}, left(`[] ["a" "b"]`)},
	received("Ack", func(t *testing.T, _ *zsync.Queue[string], d zsync.Delivery[string]) error { return d.Ack(t.Context()) }, `["b"] []`),
	received("Nack", func(_ *testing.T, _ *zsync.Queue[string], d zsync.Delivery[string]) error { return d.Nack() }, `["a" "b"] []`),
	received("NackAfter", func(_ *testing.T, _ *zsync.Queue[string], d zsync.Delivery[string]) error {
		return d.NackAfter(time.Second)
	}, `["a" "b"] []`, `["b" "a"] []`),
	received("Return", func(_ *testing.T, _ *zsync.Queue[string], d zsync.Delivery[string]) error { return d.Return() }, `["a" "b"] []`),
	received("Reject", func(t *testing.T, _ *zsync.Queue[string], d zsync.Delivery[string]) error {
		return d.Reject(t.Context(), "x")
	}, `["b"] ["a"]`),
	received("Txn", func(t *testing.T, q *zsync.Queue[string], d zsync.Delivery[string]) error {
		_, err := d.Txn(t.Context(), q.SendOp("c"))
		return err
	}, `["b" "c"] []`),
	{"ReceiveN", sent("a", "b", "c"), func(t *testing.T, s *zsync.Session) error {
		ds, err := queueOf(s).ReceiveN(t.Context(), 2)
		for _, d := range ds {
			err = errors.Join(err, unlessLost(d.Ack(t.Context())))
		}
		return is("ReceiveN", len(ds) == 1 || len(ds) == 2, true, err) // it does not wait for the second
	}, left(`["c"] []`, `["a" "b" "c"] []`, `["b" "c"] []`, `["a" "c"] []`)},
	{"Recv", sent("a", "b", "c"), func(t *testing.T, s *zsync.Session) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := ""
		for v := range queueOf(s).Recv(ctx) {
			if n += v; len(n) == 2 {
				break
			}
		}
		return is("Recv begins with a", strings.HasPrefix(n, "a"), true, nil)
	}, left(`["c"] []`, `["a" "b" "c"] []`, `["b" "c"] []`, `["a" "c"] []`)},
	{"Work", sent("a", "b"), func(t *testing.T, s *zsync.Session) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seen := ""
		err := queueOf(s).Work(ctx, 1, func(ctx context.Context, v string) error {
			if v == "b" {
				cancel()
			}
			seen += v
			return nil
		})
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		return is("Work goes from a to b", strings.HasPrefix(seen, "a") && strings.HasSuffix(seen, "b"), true, err)
	}, left(`[] []`, `["b"] []`, `["a"] []`, `["a" "b"] []`)},
	{"Peek", sent("a", "b"), func(t *testing.T, s *zsync.Session) error {
		v, ok, err := queueOf(s).Peek(t.Context())
		return is("Peek", fmt.Sprint(v, ok), "atrue", err)
	}, left(`["a" "b"] []`)},
	{"Len", sent("a", "b"), func(t *testing.T, s *zsync.Session) error {
		n, err := queueOf(s).Len(t.Context())
		return is("Len", n, 2, err)
	}, left(`["a" "b"] []`)},
	{"Stats", sent("a", "b"), func(t *testing.T, s *zsync.Session) error {
		n, err := queueOf(s).Stats(t.Context())
		return is("Stats", n.Ready, 2, err)
	}, left(`["a" "b"] []`)},
	{"List", sent("a", "b"), func(t *testing.T, s *zsync.Session) error {
		n := ""
		for e, err := range queueOf(s).List(t.Context(), zsync.QueueReady) {
			if err != nil {
				return err
			}
			n += e.Value
		}
		return is("List", n, `ab`, nil)
	}, left(`["a" "b"] []`)},
	{"Clear", sent("a", "b"), func(t *testing.T, s *zsync.Session) error {
		n, err := queueOf(s).Clear(t.Context())
		return is("Clear", n, 2, err)
	}, left(`[] []`)},
	{"Cancel", func(t *testing.T, other *zsync.Session) {
		_, err := queueOf(other).SendID(t.Context(), "1", "a")
		harness.Must(t, err)
	}, func(t *testing.T, s *zsync.Session) error {
		ok, err := queueOf(s).Cancel(t.Context(), "1")
		return is("Cancel", ok, true, err)
	}, left(`[] []`)},
	{"RequeueDead", deadOnes("a", "b"), func(t *testing.T, s *zsync.Session) error {
		n, err := queueOf(s).RequeueDead(t.Context(), nil)
		return is("RequeueDead", n, 2, err)
	}, left(`["a" "b"] []`)},
	{"PurgeDead", deadOnes("a", "b"), func(t *testing.T, s *zsync.Session) error {
		n, err := queueOf(s).PurgeDead(t.Context(), nil)
		return is("PurgeDead", n, 2, err)
	}, left(`[] []`)},
	{"Dead", deadOnes("a", "b"), func(t *testing.T, s *zsync.Session) error {
		n := ""
		for e, err := range queueOf(s).Dead(t.Context()) {
			if err != nil {
				return err
			}
			n += string(e.Data)
		}
		return is("Dead", n, `"a""b"`, nil)
	}, left(`[] ["a" "b"]`)},
	{"Pause and Resume", sent("a"), func(t *testing.T, s *zsync.Session) error {
		p := queueOf(s)
		if err := p.Pause(t.Context()); err != nil {
			return err
		}
		return p.Resume(t.Context())
	}, left(`["a"] []`)},
}

// As above, for all that a Queue can do. In a short run, only a reply is lost, with or without its session.
func TestWhateverBefallsARequestAQueueLosesNothingAndReturnsTheTruth(t *testing.T) {
	t.Parallel()
	firsts := misfortunes
	if !harness.Long() {
		firsts = []misfortune{misfortunes[1], misfortunes[3]}
	}
	try(t, trialsOfQueues, firsts)
}
