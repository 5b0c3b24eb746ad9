package main

import (
	"errors"
	"math"
	"strconv"
	"time"
)

// seconds is a flag for a length of time: seconds, or a number with a unit. It
// is not negative.
type seconds time.Duration

func (s *seconds) String() string { return time.Duration(*s).String() }
func (s *seconds) Type() string   { return "time" }

func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if f, number := strconv.ParseFloat(text, 64); number == nil {
		if math.IsNaN(f) || math.Abs(f) > math.MaxInt64/float64(time.Second) {
			return errors.New("out of range")
		}
		d, err = time.Duration(f*float64(time.Second)), nil
	}
	switch {
	case err != nil:
		return errors.New("want seconds, or a number with a unit, such as 5, 0.5, 5s or 1m30s")
	case d < 0:
		return errors.New("must not be negative")
	}
	*s = seconds(d)
	return nil
}
