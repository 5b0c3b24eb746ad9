package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// A cronTable is each full hour of the time zone of the instant that it is given, as
// robfig/cron's schedules are which name no zone. Its processes' zone is half an hour
// off UTC.
type cronTable struct{}

func (cronTable) Next(t time.Time) time.Time {
	var off time.Duration
	if t.Location() == time.Local {
		off = 30 * time.Minute
	}
	return t.Add(off).Truncate(time.Hour).Add(time.Hour - off)
}

func TestRunGivesTheTimetableTimesOfTheLocalZone(t *testing.T) {
	for _, policy := range []zsync.MissedPolicy{zsync.MissedLatest, zsync.MissedSkip, zsync.MissedAll} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := open(t, srv)
			for range 2 { // the second goes on from what is recorded
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Minute)
				ran := 0
				err := zsync.NewSchedule(s, "/jobs", zsync.WithMissed(policy)).Run(ctx, cronTable{}, func(_ context.Context, at time.Time) error {
					if at.UTC().Minute() != 30 {
						t.Errorf("%v: ran %v, which is no full hour of the zone", policy, at)
					}
					ran++
					return nil
				})
				cancel()
				wantErr(t, err, context.DeadlineExceeded)
				if ran < 1 || ran > 2 {
					t.Errorf("%v: %d instants in 100 minutes", policy, ran)
				}
			}
		})
	}
}

// A broken clock has recorded an instant far ahead, and somebody deletes that.
func TestSchedulesGoOnWhenAnInstantFarAheadIsDeleted(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		began := time.Now()
		far := began.Add(4 * time.Hour)
		do := func(c *zsync.Schedule, at time.Time) bool {
			ran, err := c.Do(t.Context(), at, func(context.Context) error { return nil })
			must(t, err)
			return ran
		}
		broken, c := zsync.NewSchedule(open(t, srv), "/jobs"), zsync.NewSchedule(s, "/jobs")
		if !do(broken, far) || do(c, time.Now()) {
			t.Fatal("the instant far ahead does not count")
		}
		ctx, cancel := context.WithCancel(t.Context())
		var ran []time.Duration
		hours := timetable{began.Add(time.Hour), began.Add(2 * time.Hour), began.Add(3 * time.Hour), began.Add(5 * time.Hour)}
		done := async(func() error {
			return zsync.NewSchedule(s, "/jobs").Run(ctx, hours, func(_ context.Context, at time.Time) error {
				ran = append(ran, at.Sub(began))
				return nil
			})
		})
		time.Sleep(time.Minute)
		stranger := plain(t, srv)
		must(t, stranger.Delete("/jobs/last", -1))
		time.Sleep(time.Until(far))
		cancel()
		wantErr(t, <-done, context.Canceled)
		if fmt.Sprint(ran) != "[1h0m0s 2h0m0s 3h0m0s]" {
			t.Errorf("Run ran %v, want each hour", ran)
		}
		// One who has heard of it, and of nothing that was done since.
		if !do(c, time.Now()) {
			t.Error("the instant that was deleted counts still when its time comes")
		}
	})
}

func TestAFunctionThatFailsWithErrClosedOfAnotherSessionDoesNotEndRun(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		other := open(t, srv)
		must(t, other.Close())
		tries := 0
		began := time.Now()
		must(t, zsync.NewSchedule(open(t, srv), "/jobs").Run(t.Context(), timetable{began.Add(time.Hour)}, func(ctx context.Context, _ time.Time) error {
			if tries++; tries == 1 {
				return zsync.NewMutex(other, "/m").Lock(ctx)
			}
			return nil
		}))
		if tries != 2 {
			t.Errorf("the function was called %d times, want 2", tries)
		}
	})
}

func TestRunAfterAnInstantLongAgoWaitsForTheNext(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		c := zsync.NewSchedule(open(t, srv), "/jobs")
		_, err := c.Do(t.Context(), time.Time{}.Add(time.Hour), func(context.Context) error { return nil })
		must(t, err)
		at := time.Now().Add(time.Hour)
		ran := 0
		asked := 0
		must(t, c.Run(t.Context(), asking{timetable{at}, func() {
			if asked++; asked > 1000 {
				panic("the timetable is asked for ever")
			}
		}}, func(context.Context, time.Time) error { ran++; return nil }))
		if ran != 1 {
			t.Errorf("ran %d times", ran)
		}
	})
}

// An asking timetable tells when it is asked.
type asking struct {
	timetable
	f func()
}

func (a asking) Next(t time.Time) time.Time { a.f(); return a.timetable.Next(t) }

// The machine has slept, or its clock was set, while Run waited for the first.
func TestRunThatHasOversleptRunsTheLatestInstantAlone(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		c := zsync.NewSchedule(open(t, srv), "/jobs")
		began := time.Now()
		hours := timetable{began.Add(time.Hour), began.Add(2 * time.Hour), began.Add(3 * time.Hour), began.Add(9 * time.Hour)}
		var ran []time.Duration
		err := c.Run(t.Context(), asking{hours, func() { zsync.SetSkew(c, 4*time.Hour) }}, func(_ context.Context, at time.Time) error {
			ran = append(ran, at.Sub(began))
			if len(ran) > 3 {
				return errors.New("again")
			}
			return nil
		})
		must(t, err)
		if fmt.Sprint(ran) != "[3h0m0s 9h0m0s]" {
			t.Errorf("ran %v, want the latest of those that are due, and the last", ran)
		}
	})
}

func TestThePauseAfterAFailureIsNotMeasuredByTheWallClock(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var c *zsync.Schedule
		set := 0
		log := harness.OnLog(func(msg string) {
			if msg == "zsync: scheduled function failed" {
				set++
				zsync.SetSkew(c, -24*time.Hour) // the clock is set back
			}
		})
		c = zsync.NewSchedule(open(t, srv, zsync.WithLogger(log)), "/jobs")
		at := time.Now().Add(time.Hour)
		tries := 0
		must(t, c.Run(t.Context(), timetable{at}, func(context.Context, time.Time) error {
			if tries++; tries == 1 {
				return errors.New("not yet")
			}
			return nil
		}))
		if d := time.Since(at); d > 2*time.Minute || tries != 2 || set != 1 {
			t.Errorf("tried %d times within %v; the clock was set %d times", tries, d, set)
		}
	})
}
