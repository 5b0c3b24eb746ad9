package queue

import (
	"math"
	"time"
)

// This file measures how fast consumers work. It does not decide how many elements to claim ahead:
// see pump.go.

// The type `pace` measures how many elements the consumers of a pump take in a second. Time in
// which a consumer waits for an element does not count.
type pace struct {
	last time.Time     // time of the latest delivery to a consumer
	each time.Duration // about how long one element keeps all consumers busy
	asks int           // calls of `asked` after a delivery
}

// The method `asked` is called when a consumer begins to wait for an element and no other consumer
// waits.
func (c *pace) asked(now time.Time) {
	if c.last.IsZero() {
		return
	}
	c.asks++
	// The estimate adapts quickly if the consumers become slower, and not as quickly if they
	// become faster.
	if d := now.Sub(c.last); d > c.each {
		c.each = (c.each + d) / 2
	} else {
		c.each -= (c.each - d) / 4
	}
}

// The method `known` reports whether the pace is known. After one element, it is not known: the
// program may have received that element from a channel, and may not have begun to work on it.
func (c *pace) known() bool { return c.asks > 1 }

// perSecond returns how many elements the consumers take in a second at their present pace, at
// least 1. If `busy` is set, no consumer waits for an element.
func (c *pace) perSecond(now time.Time, busy bool) int {
	each := c.each
	if busy && !c.last.IsZero() {
		each = max(each, now.Sub(c.last))
	}
	if each <= 0 {
		return math.MaxInt
	}
	return max(int(time.Second/each), 1)
}
