package timetable

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// This file has the timetables of crontab(5). It parses the five fields, and finds the
// instants in a time zone whose clocks can change.

// A Cron is a timetable of crontab(5) in a time zone. If the clocks change, a frequent job follows
// real time, and every other job is daily: see zsync.Cron.
type Cron struct {
	spec                        string
	loc                         *time.Location
	minute, hour, dom, mon, dow uint64 // sets of numbers: bit n is set if n is in the set
	frequent                    bool   // the field of the minute or of the hour begins with a star
	bothDays                    bool   // a day must match both `dom` and `dow`, because one of these fields begins with a star
}

// The type `field` describes a field of a crontab line, such as the hour.
type field struct {
	name     string
	min, max int
	words    []string // words[i] is the name of the number min+i
}

var fields = [5]field{
	{"minute", 0, 59, nil},
	{"hour", 0, 23, nil},
	{"day of month", 1, 31, nil},
	{"month", 1, 12, []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
	{"day of week", 0, 7, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
}

var shorthands = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
	"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

// ParseCron parses the five fields of crontab(5), or a word such as @daily.
func ParseCron(spec string, loc *time.Location) (Table, error) {
	if loc == nil {
		return nil, session.Invalid("the time zone is nil; use time.UTC, time.Local or time.LoadLocation")
	}
	texts := strings.Fields(spec)
	if strings.HasPrefix(strings.TrimSpace(spec), "@") { // perhaps of two words: @every 5m
		long, ok := shorthands[strings.ToLower(strings.Join(texts, " "))]
		if !ok {
			return nil, session.Invalid("cron %q: unknown word; want @hourly, @daily, @weekly, @monthly or @yearly; for @every use Every", spec)
		}
		texts = strings.Fields(long)
	}
	if len(texts) != len(fields) {
		return nil, session.Invalid("cron %q: %d fields; want 5: minute, hour, day of month, month, day of week", spec, len(texts))
	}
	c := &Cron{spec: strings.Join(strings.Fields(spec), " "), loc: loc}
	for i, set := range []*uint64{&c.minute, &c.hour, &c.dom, &c.mon, &c.dow} {
		var err error
		if *set, err = fields[i].parse(texts[i]); err != nil {
			return nil, session.Invalid("cron %q: field %d, the %s: %v", spec, i+1, fields[i].name, err)
		}
	}
	c.dow |= c.dow >> 7 // Sunday is both 0 and 7
	star := func(i int) bool { return texts[i][0] == '*' }
	c.frequent = star(0) || star(1)
	c.bothDays = star(2) || star(4)
	if c.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, loc)).IsZero() { // for example, February 30 never comes
		return nil, session.Invalid("cron %q: no such day ever comes", spec)
	}
	return c, nil
}

// Daily returns the timetable of a job that runs each day at a time such as "03:00".
func Daily(at string, loc *time.Location) (Table, error) {
	t, err := time.Parse("15:04", at)
	if err != nil || len(at) != len("15:04") {
		return nil, session.Invalid("the time of day is %q; want hours and minutes, such as \"03:00\"", at)
	}
	return ParseCron(fmt.Sprintf("%d %d * * *", t.Minute(), t.Hour()), loc)
}

// The method `parse` parses one field: a list of ranges, with or without steps.
func (f field) parse(text string) (set uint64, err error) {
	for _, part := range strings.Split(text, ",") {
		span, stepText, stepped := strings.Cut(part, "/")
		step := 1
		if stepped {
			if step, err = (field{min: 1, max: f.max}).number(stepText); err != nil {
				return 0, fmt.Errorf("step %w", err)
			}
		}
		first, last := f.min, f.max
		if span != "*" {
			from, to, isRange := strings.Cut(span, "-")
			if !isRange {
				to = from
			}
			if first, err = f.number(from); err == nil {
				last, err = f.number(to)
			}
			switch {
			case err != nil:
				return 0, err
			case stepped && !isRange:
				return 0, fmt.Errorf("%q has a step and no range; want %s-%d/%s", part, from, f.max, stepText)
			case last < first:
				return 0, fmt.Errorf("range %q runs backwards", span)
			}
		}
		for n := first; n <= last; n += step {
			set |= 1 << n
		}
	}
	return set, nil
}

func (f field) number(text string) (int, error) {
	for i, word := range f.words {
		if strings.EqualFold(text, word) {
			return f.min + i, nil
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < f.min || n > f.max || strings.Trim(text, "0123456789") != "" {
		names := ""
		if f.words != nil {
			names = fmt.Sprintf(", or a name from %s to %s", f.words[0], f.words[len(f.words)-1])
		}
		return 0, fmt.Errorf("%q; want a number from %d to %d%s", text, f.min, f.max, names)
	}
	return n, nil
}

// String returns the fields and the zone.
func (c *Cron) String() string { return c.spec + " in " + c.loc.String() }

func has(set uint64, n int) bool { return set>>n&1 != 0 }

// Next returns the first instant after `t`, or the zero time if there is none. Like cron(8), it reads the
// local time at each minute around a day on which the job runs.
func (c *Cron) Next(t time.Time) (first time.Time) {
	const change = 3 * time.Hour // the clocks change by no more than this, except for a whole day
	year, month, day := t.In(c.loc).Date()
	day-- // if the clock is put back at midnight, the previous day can have an instant after t
	// Try 41 years. The rarest match is February 29 on a given weekday: it comes once in 28 years, or in
	// 40 years around a year such as 2100.
	for last := day + 41*366; day <= last; day++ {
		midnight := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
		dom, dow := has(c.dom, midnight.Day()), has(c.dow, int(midnight.Weekday()))
		if !has(c.mon, int(midnight.Month())) || !dom && !dow || c.bothDays && dom != dow {
			continue
		}
		_, offset := time.Date(year, month, day, 12, 0, 0, 0, c.loc).Zone()
		at := midnight.Add(-time.Duration(offset)*time.Second - change).In(c.loc)
		end := at.Add(24*time.Hour + 2*change)
		if early := t.Sub(at) - change; early > 0 {
			at = at.Add(early.Truncate(time.Minute))
		}
		latest := -7 * 24 * 60 // the latest local time before `at`, in minutes since midnight
		for ; at.Before(end) && (first.IsZero() || at.Before(first)); at = at.Add(time.Minute) {
			_, offset = at.Zone()
			now := int(at.Unix()+int64(offset)-midnight.Unix()) / 60
			from := now
			if skipped := now - latest - 1; !c.frequent && skipped <= int(change.Minutes()) {
				from = latest + 1 // a daily job runs also for a local time that was skipped, but not again for a local time that comes twice
			}
			for m := max(from, 0); m <= now && m < 24*60; m++ {
				if at.After(t) && has(c.hour, m/60) && has(c.minute, m%60) {
					first, last = at, min(last, day+1) // if the clock is put back shortly after midnight, the next day can have an earlier instant
				}
			}
			latest = max(latest, now)
		}
	}
	return first
}
