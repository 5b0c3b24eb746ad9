package trace

// This file judges the part of a trace that is about elements of queues: each has one owner at a
// time, and is removed once.

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A claim is the time in which one element of a queue was claimed, from the claimant's notice to
// the end; or the removal of an element without a claim.
type claim struct {
	path, element string
	who           string // for the report
	claimant      string
	session       string

	// The element was claimed in transaction from, and owned at least until over, the transaction
	// that has ended the claim. Either is 0 if it is unknown.
	from, over int64

	begun time.Time
	lost  time.Time // when the owner learned of the loss, or zero
	why   string    // of a loss
	fate  string    // "" if the end is unknown
	ended time.Time // when that was recorded
}

func (c *claim) String() string { return fmt.Sprintf("%s (%s)", c.who, cmp.Or(c.session, "TryRecv")) }

// claims reads the records of a trace that are about elements. An inconsistency is a violation,
// unless records are missing.
func (r *Report) claims(t *one) (all []*claim) {
	open := make(map[string]*claim)
	last := make(map[string]int64) // by session, the newest transaction that it has seen
	complete, next := true, int64(1)
	for _, l := range t.lines {
		complete = complete && l.N <= next && l.Event != Dropped
		if l.N < next {
			continue // recorded twice, which holds has reported
		}
		next = l.N + 1
		if l.Session != "" {
			last[l.Session] = max(last[l.Session], l.Zxid)
		}
		if l.Kind != Element {
			continue
		}
		if l.Event == Loss {
			r.Losses++
		}
		for _, name := range l.Elements {
			key := l.Path + "\x00" + l.Claim + "\x00" + name
			c := open[key]
			odd := func(what string) {
				if complete {
					r.violation(l.Path, "%s: %s of %s (%s, line %d)", what, name, cmp.Or(t.owner, t.id), l.Session, l.N)
				}
			}
			if l.Event == Grant || l.Event == Take {
				if c != nil {
					odd("claimed a second time by the same claimant")
				}
				c = &claim{path: l.Path, element: name, who: cmp.Or(t.owner, t.id), claimant: l.Claim, session: l.Session, from: l.Zxid, begun: l.Time}
				all = append(all, c)
			}
			switch l.Event {
			case Grant:
				open[key] = c
			case Take:
				c.end(l)
			case Loss:
				switch {
				case c == nil:
					odd("the loss of what was not claimed")
				case !c.lost.IsZero():
					odd("lost twice")
				default:
					c.lost, c.why = l.Time, l.Reason
				}
			case Release:
				if c == nil {
					odd(l.Fate + ", and was not claimed")
					continue
				}
				c.end(l)
				delete(open, key)
			}
		}
	}
	for _, c := range open {
		// While its session still saw transactions, no other claimant can have taken it over,
		// unless another client has deleted the record of its owner.
		if c.why != "deleted" {
			c.over = last[c.session]
		}
	}
	return all
}

// end ends c with the record l.
func (c *claim) end(l Line) { c.fate, c.over, c.ended = l.Fate, l.Zxid, l.Time }

// element judges all claims of one element.
func (r *Report) element(all []*claim) {
	slices.SortStableFunc(all, func(a, b *claim) int { return cmp.Or(cmp.Compare(a.from, b.from), a.begun.Compare(b.begun)) })
	var removed *claim
	for i, c := range all {
		r.Claims++
		for _, before := range all[:i] {
			r.twoOwners(before, c)
		}
		if c.fate != Removed {
			continue
		}
		r.Removed++
		if removed != nil {
			r.violation(c.path, "%s was removed twice: by %s at %s, and by %s at %s", c.element, removed, clock(removed.ended), c, clock(c.ended))
		}
		removed = c
	}
}

// twoOwners judges two claims of one element. b is the later one.
func (r *Report) twoOwners(a, b *claim) {
	switch {
	case a.from != 0 && b.from != 0 && b.from <= a.over:
		r.violation(a.path, "%s had two owners at transaction 0x%x: %s, who claimed it in 0x%x and had it to 0x%x, and %s", a.element, b.from, a, a.from, a.over, b)
	case a.fate == Removed && a.over != 0 && b.from != 0:
		r.violation(a.path, "%s was claimed after it was removed: by %s in transaction 0x%x, and removed by %s in 0x%x", a.element, b, b.from, a, a.over)
	case !a.lost.IsZero() && a.lost.Sub(b.begun) > r.Tolerance:
		text := fmt.Sprintf("%s had two owners by the clocks: %s, told at %s that it is lost (%s), and %s, who had it at %s",
			a.element, a, clock(a.lost), cmp.Or(a.why, "no reason"), b, clock(b.begun))
		if a.why == "deleted" || a.why == "paused" {
			r.note(a.path, "%s", text)
		} else {
			r.violation(a.path, "%s", text)
		}
	}
}
