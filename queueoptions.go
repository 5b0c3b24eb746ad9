package zsync

import (
	"fmt"
	"strconv"
	"time"

	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
)

// A QueueOption changes a Queue.
type QueueOption interface{ applyQueue(*queueConfig) }

type queueOption func(*queueConfig)

func (o queueOption) applyQueue(c *queueConfig) { o(c) }

type queueConfig struct {
	queue.Config // but for its path, and how it decodes

	codec  Codec
	layout QueueLayout
	retry  *Backoff
	key    any // a func(T) string, or nil
	err    error
}

// defaultPrefetch makes a claim, which costs a write on every server, rare
// beside the reading of the elements.
const defaultPrefetch = 128

// defaultPrefetchBytes bounds what a consumer keeps in memory.
const defaultPrefetchBytes = 4 << 20

// maxPriorities bounds what consumers must look at when the queue is empty.
const maxPriorities = 1000

func (o CodecOption) applyQueue(c *queueConfig) {
	if c.codec = o.codec; o.codec == nil {
		c.err = session.Invalid("WithCodec(nil): the codec is nil")
	}
}

// checked is an option that is refused, for a reason in words, unless it is ok.
func checked(set func(*queueConfig), ok bool, reason string, args ...any) QueueOption {
	return queueOption(func(c *queueConfig) {
		if !ok {
			c.err = session.Invalid(reason, args...)
		}
		set(c)
	})
}

// positive is an option that sets a number which must be at least 1.
func positive(name string, n int, set func(*queueConfig)) QueueOption {
	return checked(set, n >= 1, "%s(%d): must be at least 1", name, n)
}

// WithPrefetch lets the consumers of one Queue value claim up to n elements
// ahead of what they have taken, those that their channels offer included; if
// they are more than n, one each. What is claimed ahead is not given to others
// even if a consumer stops reading, until its context ends. With slow work and
// several processes 1 spreads elements most evenly. The default is 128, but
// a consumer begins with 1, and claims more only as it takes them quickly.
func WithPrefetch(n int) QueueOption {
	return positive("WithPrefetch", n, func(c *queueConfig) { c.Prefetch = n })
}

// WithPrefetchBytes bounds what [WithPrefetch] allows in bytes: consumers claim
// ahead about n bytes, by the size of the elements of their last claim, and one
// element at least. The default is 4 MiB.
func WithPrefetchBytes(n int) QueueOption {
	return positive("WithPrefetchBytes", n, func(c *queueConfig) { c.PrefetchBytes = n })
}

// WithMaxLen makes Send wait while its elements would make the queue longer
// than n. The limit is soft: a producer counts the queue at most every 100 ms, and what
// other producers send meanwhile may come on top. Those who
// send to the path without this option are not held back, nor are dead letters that
// are requeued: who does that may be the only one who consumes. An element that
// is remembered by its ID, see [Queue.SendID], does not wait.
//
// # Cost
//
// At most every 100 ms a listing, and one read for 100 buckets; and a sync if the queue is full.
func WithMaxLen(n int) QueueOption {
	return positive("WithMaxLen", n, func(c *queueConfig) { c.MaxLen = n })
}

// WithMaxAttempts sends an element to the dead letters that has been delivered
// n times and was returned, or lost with its consumer, each time. It is for
// the consumers. It needs [LayoutZsync]: others have no place for the count.
//
// An attempt is written down before the element is offered. So a process that is killed
// has also tried what the channel of [Queue.Deliveries] offered at that moment; with
// [Queue.Work], [Queue.All] and [Queue.Receive] that is only what was handed out.
func WithMaxAttempts(n int) QueueOption {
	return positive("WithMaxAttempts", n, func(c *queueConfig) { c.MaxAttempts = n })
}

// WithDeadRetention has consumers delete dead letters that were set aside longer than
// d ago, by the servers' clock; without it they are kept until somebody removes them.
// Consumers look when they have nothing else to do, every d, but not more often than
// each minute, and at least each six hours.
func WithDeadRetention(d time.Duration) QueueOption {
	return checked(func(c *queueConfig) { c.KeepDead = d }, d > 0, "WithDeadRetention(%v): must be more than 0", d)
}

// WithRetryBackoff makes [Delivery.Nack] wait before the element is delivered
// again, after the first attempt b.Min, and longer after each: it is
// [Delivery.NackAfter] then. What is lost with a consumer comes back at once. It is
// for the consumers, and needs [LayoutZsync].
func WithRetryBackoff(b Backoff) QueueOption {
	return queueOption(func(c *queueConfig) {
		if err := b.check(); err != nil {
			c.err = fmt.Errorf("WithRetryBackoff: %w", err)
		}
		c.retry = &b
	})
}

// WithKey has the elements of one key delivered in the order in which they were
// sent, one at a time: the next when the one before is acknowledged, removed or with
// the dead letters. Elements of other keys are delivered beside them, and so are those
// whose key is "". key is called for each element that is sent; what it returns is
// not stored, only a short hash, and two keys may have the same one: those are
// served as one key.
//
// It is for the producers: consumers, with the option or without, find what has a
// key. An element that comes back, by Nack, after a delay, or because its consumer
// has died, keeps its place: others of its key wait for it, for the whole of the
// delay. One at a time holds across priorities, the order within each. One of
// [Queue.SendAt] is in nobody's way before its time, and goes ahead of others then.
// [Queue.Recv] is done with an element when it is taken from the channel: to have
// the work done in order use Deliveries. A dead letter that is requeued comes last,
// with its key.
//
// It needs [LayoutZsync].
//
// # Cost
//
// Such a queue makes one claim at a time: its consumers take turns, however much
// waits, and each acknowledgement wakes the first of them. A claim costs some 10
// requests, for as many elements as there are keys that nobody works on.
func WithKey[T any](key func(T) string) QueueOption {
	return checked(func(c *queueConfig) { c.key = key }, key != nil, "WithKey(nil): the function is nil")
}

// WithPriorities gives the queue n priorities, at most 1,000, for
// [Queue.SendPriority]. It is for the producers; consumers find them.
func WithPriorities(n int) QueueOption {
	ok := 1 <= n && n <= maxPriorities
	return checked(func(c *queueConfig) { c.Priorities = n }, ok, "WithPriorities(%d): must be from 1 to %d", n, maxPriorities)
}

// WithQueueLayout chooses whose programs the path is shared with. The default
// is [LayoutZsync].
func WithQueueLayout(l QueueLayout) QueueOption {
	ok := LayoutZsync <= l && l <= LayoutKazooQueue
	return checked(func(c *queueConfig) { c.layout = l }, ok, "WithQueueLayout(%v): unknown layout", l)
}

func newQueueConfig(opts []QueueOption) queueConfig {
	c := queueConfig{codec: JSON, Config: queue.Config{Priorities: 1, PrefetchBytes: defaultPrefetchBytes, IDMemory: defaultIDMemory}}
	for i, o := range opts {
		if o == nil {
			c.err = session.Invalid("queue option %d is nil", i)
			continue
		}
		o.applyQueue(&c)
	}
	switch {
	case c.Prefetch > 0:
	case c.layout == LayoutZsync:
		c.Prefetch = defaultPrefetch
	default:
		c.Prefetch = 1
	}
	for _, o := range []struct {
		name string
		used bool
	}{
		{"WithMaxLen", c.MaxLen > 0}, {"WithMaxAttempts", c.MaxAttempts > 0}, {"WithRetryBackoff", c.retry != nil}, {"WithKey", c.key != nil},
	} {
		if c.err == nil && c.layout != LayoutZsync && o.used {
			c.err = session.Invalid("%s needs zsync's own layout, not %v", o.name, c.layout)
		}
	}
	if c.err == nil && c.layout == LayoutSimpleQueue && c.Priorities > 1 {
		c.err = session.Invalid("WithPriorities: layout %v has none", c.layout)
	}
	return c
}

// A QueueLayout is a choice of znodes for a Queue, so that programs written
// with other libraries can share its path.
//
// In the layouts of others a consumer owns an element by deleting its znode,
// and there are no claims that those others would respect. So there zsync
// deletes an element before it is offered to the consumer, and the guarantees
// are weaker. One that was not taken is written back to its place when the
// context or the session ends, and so is a Delivery that was not acknowledged
// when the session ends; but they are lost if the process dies, or the Session
// is closed while no server answers. [WithPrefetch] bounds how many, 1 by
// default. What cannot be decoded is never deleted, but moved to the dead
// letters in one transaction.
//
// There is no [WithMaxLen], no [WithMaxAttempts], as attempts are not counted,
// and no [Queue.SendAt]. A znode in which Curator's putMulti has stored several
// elements counts as one in [Queue.Len] until a consumer comes to it and gives
// each a znode of its own, <name>#<i>. A listing grows with the queue, to about
// 1 MiB at 50,000 elements. Sequence numbers are used up after 2^31 elements,
// and Send then returns go-zookeeper's ErrNodeExists: delete and make path anew,
// when it is empty.
type QueueLayout int

const (
	// LayoutZsync is zsync's own, with all guarantees. It is the default.
	LayoutZsync QueueLayout = iota
	// LayoutSimpleQueue is that of Curator's SimpleDistributedQueue:
	// qn-<seq>, without priorities.
	LayoutSimpleQueue
	// LayoutDistributedQueue is that of Curator's DistributedQueue without a
	// lock path, and of its DistributedPriorityQueue: queue-<seq>, or with
	// [WithPriorities] queue-<priority><seq>, the data in Curator's frame.
	LayoutDistributedQueue
	// LayoutKazooQueue is that of kazoo's Queue: entry-<priority>-<seq>. An
	// element without a priority has kazoo's default, 100.
	LayoutKazooQueue
)

// String returns the layout in a word.
func (l QueueLayout) String() string {
	switch l {
	case LayoutZsync:
		return "zsync"
	case LayoutSimpleQueue:
		return "SimpleDistributedQueue"
	case LayoutDistributedQueue:
		return "DistributedQueue"
	case LayoutKazooQueue:
		return "kazoo"
	}
	return "QueueLayout(" + strconv.Itoa(int(l)) + ")"
}
