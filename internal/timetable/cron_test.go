package timetable

import (
	"errors"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // so no machine lacks a zone

	"github.com/zsync/zsync/internal/session"
)

func zone(t testing.TB, name string) *time.Location {
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

const minutes = "2006-01-02 15:04 -0700"

// The instants of a few days around both changes of the clocks, by crontab(5)'s rules.
func TestACronFollowsCrontabWhenClocksChange(t *testing.T) {
	for _, c := range []struct {
		spec, zone, from string
		want             string
	}{
		// A daily job runs once a day. Its hour is left out in spring, so it runs at the change; in autumn it comes twice, so it runs the first time.
		{"30 2 * * *", "Europe/Berlin", "2026-03-28 00:00 +0100", "2026-03-28 02:30 +0100, 2026-03-29 03:00 +0200, 2026-03-30 02:30 +0200"},
		{"30 2 * * *", "Europe/Berlin", "2026-10-24 00:00 +0200", "2026-10-24 02:30 +0200, 2026-10-25 02:30 +0200, 2026-10-26 02:30 +0100"},
		{"0,30 2,3 * * *", "Europe/Berlin", "2026-03-29 00:00 +0100", "2026-03-29 03:00 +0200, 2026-03-29 03:30 +0200, 2026-03-30 02:00 +0200"},
		// A frequent job follows real time.
		{"*/30 2 * * *", "Europe/Berlin", "2026-03-29 00:00 +0100", "2026-03-30 02:00 +0200, 2026-03-30 02:30 +0200"},
		{"*/30 2 * * *", "Europe/Berlin", "2026-10-25 00:00 +0200", "2026-10-25 02:00 +0200, 2026-10-25 02:30 +0200, 2026-10-25 02:00 +0100, 2026-10-25 02:30 +0100, 2026-10-26 02:00 +0100"},
		{"0 * * * *", "Europe/Berlin", "2026-03-29 00:30 +0100", "2026-03-29 01:00 +0100, 2026-03-29 03:00 +0200, 2026-03-29 04:00 +0200"},
		{"0 * * * *", "Europe/Berlin", "2026-10-25 01:30 +0200", "2026-10-25 02:00 +0200, 2026-10-25 02:00 +0100, 2026-10-25 03:00 +0100"},
		// Changes of other sizes, at other times.
		{"50 3 * * *", "Pacific/Chatham", "2026-04-04 00:00 +1345", "2026-04-04 03:50 +1345, 2026-04-05 03:50 +1245, 2026-04-06 03:50 +1245"},
		{"50 3 * * *", "Pacific/Chatham", "2026-09-26 00:00 +1245", "2026-09-26 03:50 +1245, 2026-09-27 03:50 +1345"},
		{"0 3 * * *", "Pacific/Chatham", "2026-09-26 12:00 +1245", "2026-09-27 03:45 +1345, 2026-09-28 03:00 +1345"},
		{"*/15 2-3 * * *", "Pacific/Chatham", "2026-04-05 02:20 +1345", "2026-04-05 02:30 +1345, 2026-04-05 02:45 +1345, 2026-04-05 03:00 +1345, 2026-04-05 03:15 +1345, 2026-04-05 03:30 +1345, 2026-04-05 02:45 +1245, 2026-04-05 03:00 +1245, 2026-04-05 03:15 +1245, 2026-04-05 03:30 +1245, 2026-04-05 03:45 +1245"},
		{"45 1 * * *", "Australia/Lord_Howe", "2026-04-04 12:00 +1100", "2026-04-05 01:45 +1100, 2026-04-06 01:45 +1030"},
		{"15 0 * * *", "America/Havana", "2026-03-07 12:00 -0500", "2026-03-08 01:00 -0400, 2026-03-09 00:15 -0400"},
		{"30 23 * * *", "Asia/Beirut", "2026-10-24 12:00 +0300", "2026-10-24 23:30 +0300, 2026-10-25 23:30 +0200"},
		{"30 2 * * *", "Antarctica/Casey", "2020-10-02 12:00 +0800", "2020-10-03 02:30 +0800, 2020-10-04 03:01 +1100, 2020-10-05 02:30 +1100"},
		{"0,30 * * * *", "America/Goose_Bay", "2010-11-06 23:10 -0300", "2010-11-06 23:30 -0300, 2010-11-07 00:00 -0300, 2010-11-06 23:30 -0400, 2010-11-07 00:00 -0400"}, // set back at 00:01
		// A whole day is no change of the clocks.
		{"0 12 * * *", "Pacific/Apia", "2011-12-29 00:00 -1000", "2011-12-29 12:00 -1000, 2011-12-31 12:00 +1400"},
		// Days: both fields, or either.
		{"0 3 * * 7", "UTC", "2026-03-01 04:00 +0000", "2026-03-08 03:00 +0000"},
		{"0 3 * * Sun", "UTC", "2026-03-01 04:00 +0000", "2026-03-08 03:00 +0000"},
		{"0 0 1,15 * wed", "UTC", "2026-03-31 12:00 +0000", "2026-04-01 00:00 +0000, 2026-04-08 00:00 +0000, 2026-04-15 00:00 +0000"},
		{"0 0 */2 * mon", "UTC", "2026-03-01 12:00 +0000", "2026-03-09 00:00 +0000, 2026-03-23 00:00 +0000"},
		{"0 0 29 feb *", "UTC", "2096-03-01 00:00 +0000", "2104-02-29 00:00 +0000"},
		{"@hourly", "UTC", "2026-03-01 04:10 +0000", "2026-03-01 05:00 +0000"},
		{"5 4 1 JAN-MAR/2 *", "UTC", "2026-01-02 00:00 +0000", "2026-03-01 04:05 +0000, 2027-01-01 04:05 +0000"},
	} {
		table, err := ParseCron(c.spec, zone(t, c.zone))
		if err != nil {
			t.Errorf("%s: %v", c.spec, err)
			continue
		}
		at, err := time.Parse(minutes, c.from)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for range strings.Split(c.want, ", ") {
			at = table.Next(at)
			got = append(got, at.Format(minutes))
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("%v from %s:\n got %s\nwant %s", table, c.from, s, c.want)
		}
	}
}

// The second implementation: it looks at every minute of real time, one after the other,
// as cron(8) does, and knows nothing of offsets.
func slowly(t *testing.T, spec string, loc *time.Location, from time.Time, days int) (found []time.Time) {
	table, err := ParseCron(spec, loc)
	if err != nil {
		t.Fatal(err)
	}
	c := table.(*Cron)
	fits := func(wall time.Time) bool { // wall is a local time, in UTC
		dom, dow := has(c.dom, wall.Day()), has(c.dow, int(wall.Weekday()))
		day := dom || dow
		if c.bothDays {
			day = dom && dow
		}
		return has(c.minute, wall.Minute()) && has(c.hour, wall.Hour()) && has(c.mon, int(wall.Month())) && day
	}
	wallOf := func(at time.Time) time.Time {
		return time.Date(at.Year(), at.Month(), at.Day(), at.Hour(), at.Minute(), 0, 0, time.UTC)
	}
	at := from.In(loc)
	virtual := wallOf(at) // the last local minute that has been served
	for range days * 24 * 60 {
		at = at.Add(time.Minute)
		wall := wallOf(at)
		runs := false
		switch jump := wall.Sub(virtual); {
		case c.frequent:
			runs = fits(wall)
			virtual = wall
		case jump > 3*time.Hour+time.Minute || jump < -3*time.Hour: // the minute has passed anyway
			runs = fits(wall)
			virtual = wall
		default:
			for virtual.Before(wall) { // what was left out is served now, what comes again is not
				virtual = virtual.Add(time.Minute)
				runs = runs || fits(virtual)
			}
		}
		if runs {
			found = append(found, at)
		}
	}
	return found
}

func TestACronAgreesWithAClockThatIsReadEachMinute(t *testing.T) {
	for _, name := range []string{"UTC", "Europe/Berlin", "America/New_York", "Pacific/Chatham", "Australia/Lord_Howe", "America/Havana", "Asia/Beirut", "America/St_Johns"} {
		loc := zone(t, name)
		for _, spec := range []string{"0 3 * * *", "30 2 * * *", "15,45 0-3 * * *", "*/20 1-3 * * *", "30 * * * 0,6", "59 23 * * sun", "0 0 * * *", "7 */2 1-7 * 7"} {
			for _, from := range []string{"2026-03-01 00:00 +0000", "2026-09-20 00:00 +0000"} {
				start, _ := time.Parse(minutes, from)
				table, err := ParseCron(spec, loc)
				if err != nil {
					t.Fatal(err)
				}
				at := start
				for i, want := range slowly(t, spec, loc, start, 50) {
					if at = table.Next(at); !at.Equal(want) {
						t.Errorf("%s in %s, instant %d from %s: %v, want %v", spec, name, i, from, at.In(loc), want)
						break
					}
				}
			}
		}
	}
}

func TestACronThatCannotBeReadIsRefusedWithTheFieldThatIsWrong(t *testing.T) {
	for spec, want := range map[string]string{
		"":                "0 fields; want 5",
		"0 3 * *":         "4 fields; want 5",
		"0 0 3 * * *":     "6 fields; want 5",
		"60 3 * * *":      `field 1, the minute: "60"; want a number from 0 to 59`,
		"0 24 * * *":      `field 2, the hour: "24"; want a number from 0 to 23`,
		"0 3 0 * *":       `field 3, the day of month: "0"; want a number from 1 to 31`,
		"0 3 * 13 *":      `field 4, the month: "13"; want a number from 1 to 12, or a name from jan to dec`,
		"0 3 * * 8":       `field 5, the day of week: "8"; want a number from 0 to 7, or a name from sun to sat`,
		"0 3 * * monday":  `field 5, the day of week: "monday"`,
		"5-1 3 * * *":     `range "5-1" runs backwards`,
		"*/0 3 * * *":     `step "0"`,
		"*/x 3 * * *":     `step "x"`,
		"*/+5 3 * * *":    `step "+5"`,
		"5/10 3 * * *":    `want 5-59/10`,
		"1,,2 3 * * *":    `field 1, the minute: ""`,
		"+1 3 * * *":      `"+1"`,
		"0 0 30 2 *":      "no such day ever comes",
		"0 0 31 4,6,9 *":  "no such day ever comes",
		"@every 1h":       "use Every",
		"@often":          "unknown word",
		"0 3 * * * extra": "6 fields",
	} {
		_, err := ParseCron(spec, time.UTC)
		if !errors.Is(err, session.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", spec, err, want)
		}
	}
	if _, err := ParseCron("0 3 * * *", nil); !errors.Is(err, session.ErrInvalid) {
		t.Errorf("no zone: %v", err)
	}
	for _, at := range []string{"", "3", "24:00", "3:00", "03:60", "03:00:00", "03:00 "} {
		if _, err := Daily(at, time.UTC); !errors.Is(err, session.ErrInvalid) {
			t.Errorf("Daily(%q): %v", at, err)
		}
	}
	if d, err := Daily("03:05", time.UTC); err != nil || d.Next(hour(0)) != hour(3).Add(5*time.Minute) {
		t.Errorf("Daily: %v, %v", d, err)
	}
}

// Whatever can be parsed gives instants that rise, and panics at nothing.
func FuzzCron(f *testing.F) {
	f.Add("0 3 * * *")
	f.Add("*/7,3-9/2 1-2 */3 feb sun")
	loc := zone(f, "Pacific/Chatham")
	f.Fuzz(func(t *testing.T, spec string) {
		c, err := ParseCron(spec, loc)
		if err != nil {
			return
		}
		at := hour(0)
		for range 5 {
			next := c.Next(at)
			if !next.After(at) {
				t.Fatalf("%q: %v after %v", spec, next, at)
			}
			at = next
		}
	})
}
