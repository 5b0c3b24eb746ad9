package zsync

import (
	"cmp"
	"time"

	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
)

const (
	defaultPrefetch      = 128     // so large that one claim, which costs a write on every server, covers many elements
	defaultPrefetchBytes = 4 << 20 // limits the elements that a consumer keeps in memory
	maxPriorities        = 1000    // limits the work of a consumer when the queue is empty
)

// The function `positive` returns an option that sets the number n, which must be at least 1.
func positive(name string, n int, set func(*setup)) QueueOption {
	return checked(set, n >= 1, "%s(%d): must be at least 1", name, n)
}

// WithPrefetch lets the consumers of one Queue value together claim up to n elements, and each at
// least one, before the program takes them. No other consumer gets these elements until the
// contexts of their consumers end. With 1, slow work spreads most evenly over processes. The
// default is 128; a slow consumer claims only 1. The layouts of other libraries know no claims.
func WithPrefetch(n int) QueueOption {
	return positive("WithPrefetch", n, func(c *setup) { c.Prefetch = n })
}

// WithPrefetchBytes limits the elements of [WithPrefetch] to about n bytes, but always allows one
// element. The default is 4 MiB.
func WithPrefetchBytes(n int) QueueOption {
	return positive("WithPrefetchBytes", n, func(c *setup) { c.PrefetchBytes = n })
}

// WithMaxLen makes Send wait while its elements would make the queue longer than n. The default is
// no limit. The limit is soft (docs/queue.md), and does not apply to producers without the option,
// [Queue.RequeueDead], or an ID that [Queue.SendID] remembers.
func WithMaxLen(n int) QueueOption {
	return positive("WithMaxLen", n, func(c *setup) { c.MaxLen = n })
}

// WithMaxAttempts makes an element a dead letter after n deliveries that were all returned, or lost
// with their consumers (docs/queue.md). Set it for the consumers. The default is no limit.
func WithMaxAttempts(n int) QueueOption {
	return positive("WithMaxAttempts", n, func(c *setup) { c.MaxAttempts = n })
}

// WithDeadRetention makes idle consumers and producers delete dead letters older than d, a minute
// to six hours later. By default, they are kept.
func WithDeadRetention(d time.Duration) QueueOption {
	return checked(func(c *setup) { c.KeepDead = d }, d > 0, "WithDeadRetention(%v): must be more than 0", d)
}

// WithRetryBackoff makes [Delivery.Nack] a [Delivery.NackAfter]: the delay after the first attempt
// is b.Min, and it grows with each attempt. A lost element comes back at once. The default is no
// delay. Set it for consumers.
func WithRetryBackoff(b Backoff) QueueOption {
	return option(func(c *setup) {
		c.err, c.backoff = cmp.Or(b.check("WithRetryBackoff"), c.err), &b
	})
}

// WithKey delivers the elements of a key one at a time and, within each priority, in the order of
// sending: the next waits until its predecessor is removed or is a dead letter. An element whose
// key is "" waits for no other. The default is no key. Set it for producers; consumers find the
// keys.
//
// Two keys with the same short hash count as one key. An element that returns keeps its place, also
// during its delay; an element of [Queue.SendAt] blocks no other before its time. To work in order,
// use Deliveries: [Queue.Recv] removes an element before the work.
func WithKey[T any](key func(T) string) QueueOption {
	return checked(func(c *setup) { c.key = key }, key != nil, "WithKey(nil): the function is nil")
}

// WithPriorities gives the queue n priorities, at most 1,000, for [Queue.SendPriority]. The
// default is 1. Set it for the producers.
func WithPriorities(n int) QueueOption {
	ok := 1 <= n && n <= maxPriorities
	return checked(func(c *setup) { c.Priorities = n }, ok, "WithPriorities(%d): must be from 1 to %d", n, maxPriorities)
}

// WithQueueLayout sets the layout of the znodes. The default is [LayoutZsync].
func WithQueueLayout(l QueueLayout) QueueOption {
	ok := LayoutZsync <= l && l <= LayoutKazooQueue
	return checked(func(c *setup) { c.queueLayout = l }, ok, "WithQueueLayout(%v): unknown layout", l)
}

func newQueueSetup(opts []QueueOption) setup {
	c := setup{codec: JSON, Settings: queue.Settings{Priorities: 1, Prefetch: defaultPrefetch, PrefetchBytes: defaultPrefetchBytes, IDMemory: defaultIDMemory}}
	session.ApplyEach("queue", opts, &c.err, func(o QueueOption) { o.applyQueue(&c) })
	for _, o := range []struct {
		name string
		used bool
	}{
		{"WithMaxLen", c.MaxLen > 0}, {"WithMaxAttempts", c.MaxAttempts > 0}, {"WithRetryBackoff", c.backoff != nil}, {"WithKey", c.key != nil},
	} {
		if c.err == nil && c.queueLayout != LayoutZsync && o.used {
			c.err = session.Invalid("%s needs zsync's own layout, not %v", o.name, c.queueLayout)
		}
	}
	if c.err == nil && c.queueLayout == LayoutSimpleQueue && c.Priorities > 1 {
		c.err = session.Invalid("WithPriorities: layout %v has none", c.queueLayout)
	}
	return c
}
