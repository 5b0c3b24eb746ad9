// Package timetable says which instant of a timetable is next, and which of those that
// were missed count.
package timetable

import (
	"time"

	"github.com/zsync/zsync/internal/session"
)

// A Table is a timetable: Next returns its first instant after t, or the zero time.
type Table interface{ Next(t time.Time) time.Time }

// Every is the timetable of the multiples of a duration since the zero time.
type Every time.Duration

func (e Every) Next(t time.Time) time.Time {
	if e <= 0 {
		return time.Time{}
	}
	return t.UTC().Truncate(time.Duration(e)).Add(time.Duration(e))
}

// A Policy says what becomes of instants that nobody was there for.
type Policy int

const (
	Latest Policy = iota // the latest of them is due
	Skip                 // none is
	All                  // the first is, and then the others
)

func (p Policy) String() string {
	switch p {
	case Latest:
		return "latest"
	case Skip:
		return "skip"
	case All:
		return "all"
	}
	return "unknown"
}

// Recordable reports whether at can be written down so that everybody can read it, and
// is after what stands for no instant at all.
func Recordable(at time.Time) bool { return at.After(time.Time{}) && at.UTC().Year() <= 9999 }

// Due returns the next instant to run, given the last that was done, if any,
// when all began, and the time.
func Due(next Table, missed Policy, last, began, now time.Time) (time.Time, error) {
	from := last
	if last.IsZero() {
		from = began
	}
	after := func(t time.Time) (time.Time, error) {
		at := next.Next(t.Local())
		if !at.IsZero() && (!at.After(t) || !Recordable(at)) {
			return at, session.Invalid("the timetable gives %v as the next after %v", at, t)
		}
		return at, nil
	}
	switch missed {
	case Skip:
		if from.Before(now) {
			from = now
		}
		return after(from)
	case All:
		return after(from)
	}
	// The latest that is not in the future, without going through years of them:
	// begin a little before now, and go further back until there is one.
	for back := time.Second; back > 0 && now.Add(-back).After(from); back *= 2 {
		at, err := after(now.Add(-back))
		if err != nil {
			return at, err
		}
		if !at.IsZero() && !at.After(now) {
			from = now.Add(-back)
			break
		}
	}
	at, err := after(from)
	for err == nil && !at.IsZero() {
		later, e := after(at)
		if e != nil || later.IsZero() || later.After(now) {
			return at, e
		}
		at = later
	}
	return at, err
}

// Over reports whether the instant after at is due.
func Over(next Table, at, now time.Time) bool {
	later := next.Next(at.Local())
	return !later.IsZero() && !now.Before(later)
}
