package main

import (
	"testing"
	"testing/synctest"
	"time"
)

// A search through all instants of the last years would find none, or would not end.
func TestTheLatestInstantOfAnIntervalIsComputedHoweverItIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, every := range []string{"400000h", "1h30m", "1ns"} {
			d, err := time.ParseDuration(every)
			if err != nil {
				t.Fatal(err)
			}
			want := time.Now().Truncate(d)
			for _, table := range []timetable{{every: d}, {cron: "@every " + every}} {
				if got, err := table.instant(""); err != nil || !got.Equal(want) {
					t.Fatalf("%+v: %v, %v; want %v", table, got, err, want)
				}
			}
		}
	})
}
