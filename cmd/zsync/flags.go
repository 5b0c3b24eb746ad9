package main

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// This file has the flag type for a duration. hold.go has the flag type for the limit of a wait.

// The type `seconds` is a flag for a duration: a number of seconds, or a number with a unit. It is
// never negative.
type seconds time.Duration

func (s *seconds) Type() string { return "time" }

// String returns "0" for a duration of zero. Then help shows no default, because the help text of
// each flag explains 0.
func (s *seconds) String() string {
	if *s == 0 {
		return "0"
	}
	return time.Duration(*s).String()
}

func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	zero := !strings.ContainsAny(text, "123456789")
	if f, number := strconv.ParseFloat(text, 64); number == nil {
		if math.IsNaN(f) || math.Abs(f) > math.MaxInt64/float64(time.Second) {
			return errors.New("out of range")
		}
		d, err, zero = time.Duration(f*float64(time.Second)), nil, f == 0
	}
	switch {
	case err == nil && d == 0 && !zero: // for many programs, 0 means no limit
		return errors.New("out of range")
	case err != nil:
		return errors.New("want seconds, or a number with a unit, such as 5, 0.5, 5s or 1m30s")
	case d < 0:
		return errors.New("must not be negative")
	}
	*s = seconds(d)
	return nil
}
