package queue

import (
	"math"
	"time"
)

// A pace tells how quick the consumers of a pump are, whatever they have to
// wait for.
type pace struct {
	last time.Time     // when an element was taken last
	each time.Duration // about how long one keeps them all busy
}

// took is told that a consumer has been given an element.
func (c *pace) took(now time.Time) { c.last = now }

// asked is told that a consumer wants an element and no other does.
func (c *pace) asked(now time.Time) {
	if c.last.IsZero() {
		return
	}
	// Whoever becomes slow is soon believed to be, and who becomes quick a little
	// later.
	if d := now.Sub(c.last); d > c.each {
		c.each = (c.each + d) / 2
	} else {
		c.each -= (c.each - d) / 4
	}
}

// perSecond returns how many elements the consumers take in a second at their
// present pace, at least 1. busy tells that none of them waits.
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
