package timetable

import (
	"errors"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/session"
)

var midnight = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

func hour(h float64) time.Time { return midnight.Add(time.Duration(h * float64(time.Hour))) }

func TestDueIsWhatThePolicySaysOfWhatWasMissed(t *testing.T) {
	var never time.Time
	for _, c := range []struct {
		last, began, now time.Time
		want             [3]float64 // by policy: the latest, none, all
	}{
		{never, hour(0.5), hour(0.5), [3]float64{1, 1, 1}},
		{never, hour(0.5), hour(1), [3]float64{1, 2, 1}},
		{hour(1), hour(0.5), hour(1.5), [3]float64{2, 2, 2}},
		{hour(1), hour(0.5), hour(4.5), [3]float64{4, 5, 2}},
		{hour(1), hour(4.2), hour(4.5), [3]float64{4, 5, 2}}, // others had begun before
		{hour(6), hour(4.2), hour(4.5), [3]float64{7, 7, 7}}, // by a clock that is ahead
	} {
		for policy, want := range c.want {
			from := c.last
			if from.IsZero() {
				from = c.began
			}
			if policy == 1 && from.Before(c.now) { // no missed instant runs
				from = c.now
			}
			got, err := Due(Every(time.Hour), from, c.now, policy == 0)
			if !got.Equal(hour(want)) || err != nil {
				t.Errorf("policy %d, last %v, began %v, now %v: %v, %v; want %v", policy, c.last, c.began, c.now, got, err, hour(want))
			}
		}
	}
}

type fixed time.Time

func (f fixed) Next(time.Time) time.Time { return time.Time(f) }

func TestATimetableThatStandsStillOrLeavesTheCalendarIsRefused(t *testing.T) {
	for _, at := range []time.Time{hour(1), hour(-1), time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)} {
		for _, latest := range []bool{false, true} {
			if got, err := Due(fixed(at), hour(1), hour(1), latest); !errors.Is(err, session.ErrInvalid) {
				t.Errorf("latest %v, a timetable that gives %v: %v, %v", latest, at, got, err)
			}
		}
	}
	if got, err := Due(Every(0), hour(1), hour(1), true); !got.IsZero() || err != nil {
		t.Errorf("no instant: %v, %v", got, err)
	}
}

// delay is robfig/cron's @every: its next instant depends on the moment at which it is asked.
type delay time.Duration

func (d delay) Next(t time.Time) time.Time { return t.Add(time.Duration(d)) }

func TestATimetableThatMovesWithTheMomentItIsAskedAtIsRefused(t *testing.T) {
	for _, table := range []Table{delay(time.Hour), delay(time.Second), delay(0), delay(-time.Hour), Every(0), Every(-1)} {
		if err := Check(table, hour(0.5)); !errors.Is(err, session.ErrInvalid) {
			t.Errorf("%T %v: %v", table, table, err)
		}
	}
	for _, table := range []Table{Every(time.Hour), Every(1), fixed(hour(1)), fixed(time.Time{})} {
		if err := Check(table, hour(0.5)); err != nil {
			t.Errorf("%T %v: %v", table, table, err)
		}
	}
}

func TestATimetableHasItsInstantsAlone(t *testing.T) {
	daily, err := Daily("03:00", zone(t, "Europe/Berlin"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		table Table
		at    time.Time
		want  bool
	}{
		{Every(time.Hour), hour(3), true}, {Every(time.Hour), hour(3).Add(1), false}, {Every(time.Hour), hour(3).Add(-1), false},
		{daily, hour(2), true}, {daily, hour(3), false}, {fixed(hour(1)), hour(1), true}, {fixed(time.Time{}), hour(1), false},
	} {
		if at, err := Due(c.table, c.at.Add(-1), c.at, false); err != nil || at.Equal(c.at) != c.want {
			t.Errorf("%v has %v: %v, %v", c.table, c.at, at, err)
		}
	}
}

// stuck answers one question with an instant that is not after it, as robfig/cron does near
// a change of the clocks in Pacific/Chatham.
type stuck struct{ Every }

func (s stuck) Next(t time.Time) time.Time {
	if t.Equal(hour(2)) {
		return t
	}
	return s.Every.Next(t)
}

// limited answers as often as calls says.
type limited struct {
	Table
	calls int
}

func (l *limited) Next(t time.Time) time.Time {
	if l.calls--; l.calls < 0 {
		return time.Time{}
	}
	return l.Table.Next(t)
}

// A program cannot end the search, so the search must be short.
func TestTheLatestInstantIsFoundSoonHoweverCloseTheInstantsAre(t *testing.T) {
	now := time.Date(2024, 5, 6, 7, 8, 9, 10, time.UTC)
	for every := time.Nanosecond; every < 1000*time.Hour; every *= 10 {
		at, err := Due(&limited{Every(every), 2000}, now.Add(-every-time.Second), now, true)
		if want := now.Truncate(every); err != nil || !at.Equal(want) {
			t.Errorf("Every(%v): %v, %v; want %v", every, at, err, want)
		}
	}
}

func TestOneStrangeAnswerOfATimetableDoesNotEndIt(t *testing.T) {
	for _, latest := range []bool{false, true} {
		if got, err := Due(stuck{Every(time.Hour)}, hour(2), hour(2), latest); !got.Equal(hour(3)) || err != nil {
			t.Errorf("latest %v: %v, %v; want %v", latest, got, err, hour(3))
		}
	}
}
