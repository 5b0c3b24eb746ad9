package verify

// This file judges the records about elements of queues: each element has one owner at a time, and
// is removed once. The judgement of holds is in verify.go.

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/zsync/zsync/internal/trace"
)

// endedBefore reports whether c had ended before the time `at`.
func (c *claim) endedBefore(at time.Time) bool {
	return c.fate != "" && c.ended.Before(at) || !c.lost.IsZero() && c.lost.Before(at)
}

// ofElements handles a record about elements.
func (j *judge) ofElements(t *one, l trace.Record) {
	if l.Event == trace.Loss {
		j.Losses++
	}
	for _, name := range l.Elements {
		key := l.Path + "\x00" + l.Claim + "\x00" + name
		c := t.claimed[key]
		switch l.Event {
		case trace.Grant:
			if c != nil {
				j.odd(t, l, "claimed a second time by the same claimant", name)
			}
			c = &claim{path: l.Path, element: name, who: t.name(), claimant: l.Claim, session: l.Session, from: l.Zxid, begun: l.Time}
			of := l.Path + "\x00" + name
			j.elements[of] = append(j.elements[of], c)
			j.Claims++
			j.remembered++
			t.claimed[key] = c
		case trace.Loss:
			switch {
			case c == nil:
				j.odd(t, l, "the loss of what was not claimed", name)
			case !c.lost.IsZero():
				j.odd(t, l, "lost twice", name)
			default:
				c.lost, c.why = l.Time, l.Reason
			}
		case trace.Release:
			if c == nil {
				j.odd(t, l, l.Fate+", and was not claimed", name)
				continue
			}
			j.end(c, l)
			delete(t.claimed, key)
		}
	}
}

// endClaims ends the claims of a trace that have no end.
func (j *judge) endClaims(t *one) {
	for _, c := range t.claimed {
		// While the session of the claimant still saw transactions, no other claimant can have
		// claimed the element, unless another client has deleted the claimant's mark.
		if c.why != "deleted" {
			c.over = t.last[c.session].most
		}
	}
}

// The method `end` notes that c has ended, by the record l.
func (j *judge) end(c *claim, l trace.Record) {
	c.fate, c.over, c.ended = l.Fate, l.Zxid, l.Time
	if c.fate == trace.Removed {
		j.Removed++
	}
}

// The method `element` judges all claims of one element.
func (r *Report) element(all []*claim) {
	slices.SortStableFunc(all, func(a, b *claim) int { return cmp.Or(cmp.Compare(a.from, b.from), a.begun.Compare(b.begun)) })
	var removed *claim
	for i, c := range all {
		for _, before := range all[:i] {
			r.twoOwners(before, c)
		}
		if c.fate != trace.Removed {
			continue
		}
		if removed != nil {
			r.violation(c.path, "%s was removed twice: by %s at %s, and by %s at %s", c.element, removed, clock(removed.ended), c, clock(c.ended))
		}
		removed = c
	}
}

// twoOwners judges two claims of one element. If both transactions are known, b begins after a. If
// not, a is the claim without a transaction.
func (r *Report) twoOwners(a, b *claim) {
	known := a.from != 0 && b.from != 0
	after := known || a.fate != "" && a.over != 0 && b.from > a.over // by transactions, b comes after a
	if a.from == 0 && a.fate != "" && b.from != 0 && b.from <= a.over && a.over < b.over {
		// Whenever a began, both have the element at a.over.
		r.violation(a.path, "%s had two owners at transaction 0x%x: %s, and %s, who claimed it in 0x%x and had it to 0x%x", a.element, a.over, a, b, b.from, b.over)
		return
	}
	if !after && b.begun.Before(a.begun) {
		a, b = b, a
	}
	late := func(a, b *claim) bool { return !a.lost.IsZero() && a.lost.Sub(b.begun) > r.Tolerance }
	after = after || b.begun.Sub(a.begun) > r.Tolerance
	both := !after && late(a, b) && late(b, a)                                      // whoever began first, both have the element at one instant
	could := func(c *claim) bool { return c.why != "deleted" && c.why != "paused" } // the claimant could learn of its loss in time
	switch {
	case known && b.from <= a.over:
		r.violation(a.path, "%s had two owners at transaction 0x%x: %s, who claimed it in 0x%x and had it to 0x%x, and %s", a.element, b.from, a, a.from, a.over, b)
	case a.fate == trace.Removed && a.over != 0 && b.from != 0 && after:
		r.violation(a.path, "%s was claimed after it was removed: by %s in transaction 0x%x, and removed by %s in 0x%x", a.element, b, b.from, a, a.over)
	case both, after && late(a, b):
		text := fmt.Sprintf("%s had two owners by the clocks: %s, told at %s that it is lost (%s), and %s, who had it at %s",
			a.element, a, clock(a.lost), cmp.Or(a.why, "no reason"), b, clock(b.begun))
		if could(a) && (could(b) || !both) {
			r.violation(a.path, "%s", text)
		} else {
			r.note(a.path, "%s", text)
		}
	}
}
