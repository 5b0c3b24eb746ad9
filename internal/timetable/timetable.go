// Package timetable computes the instants of a Schedule: the next instant, and the missed
// instants that still run. It does no I/O, and does not call the function of the Schedule.
package timetable

import (
	"time"

	"github.com/zsync/zsync/internal/session"
)

// A Table is a timetable. Its Next returns the first instant after `t`, or the zero time.
type Table interface{ Next(t time.Time) time.Time }

// An Every is the timetable of the multiples of a duration since the zero time.
type Every time.Duration

func (e Every) Next(t time.Time) time.Time {
	if e <= 0 {
		return time.Time{}
	}
	return t.UTC().Truncate(time.Duration(e)).Add(time.Duration(e))
}

// Recordable reports whether the instant `at` has a text form that every reader can parse,
// and is after the zero time.
func Recordable(at time.Time) bool { return at.After(time.Time{}) && at.UTC().Year() <= 9999 }

// Check returns an error if `next` is not a timetable of fixed instants. Such a timetable returns the
// same instant for `t` and two moments between `t` and that instant. The delays of robfig/cron
// (@every) return a later instant each time, so each process would have instants of its own.
func Check(next Table, t time.Time) error {
	if e, ok := next.(Every); ok && e <= 0 {
		return session.Invalid("Every(%v) has no instant; want a duration above 0", time.Duration(e))
	}
	first, err := after(next, t)
	if err != nil || first.IsZero() {
		return err
	}
	third := first.Sub(t) / 3
	second, last := next.Next(t.Add(third).Local()), next.Next(t.Add(2*third).Local())
	if !second.Equal(first) && !last.Equal(second) && !last.Equal(first) {
		return session.Invalid("the timetable moves with the moment at which it is asked (the next instant is %v, and a little later %v); use Every", first, second)
	}
	return nil
}

// The function `after` returns the first instant later than `t`, or the zero time. Near a change of
// the clocks in Pacific/Chatham, robfig/cron returns an instant that is not later than `t`. Then
// `after` calls Next again, with a later time.
func after(next Table, t time.Time) (time.Time, error) {
	at := next.Next(t.Local())
	for step := time.Minute; !at.IsZero() && !at.After(t) && step < 48*time.Hour; step *= 2 {
		at = next.Next(t.Add(step).Local())
	}
	if !at.IsZero() && (!at.After(t) || !Recordable(at)) {
		return at, session.Invalid("the timetable gives %v as the next instant after %v", at, t)
	}
	return at, nil
}

// Due returns the next instant to run after the instant `from`. If `latest` is true, and several
// instants have passed, Due returns the last of them. Many instants can lie between `from` and `now`.
// So it searches for an instant just before `now`, and doubles the distance until it finds one.
func Due(next Table, from, now time.Time, latest bool) (time.Time, error) {
	passed := func(at time.Time) bool { return !at.IsZero() && !at.After(now) }
	last, err := after(next, from)
	if err != nil || !latest || !passed(last) {
		return last, err
	}
	for back := time.Microsecond; back > 0 && now.Add(-back).After(last); back *= 2 {
		at, err := after(next, now.Add(-back))
		if err != nil {
			return at, err
		}
		if passed(at) {
			last = at
			break
		}
	}
	for {
		at, err := after(next, last)
		if err != nil || !passed(at) {
			return last, err
		}
		last = at
	}
}
