package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// A run is one call of a scheduled function.
type run struct {
	at, after time.Duration // the instant, and when it was called, since the test began
}

// fleet runs a Schedule in several processes, whose function fails as fail says, and returns
// the calls until ctx ends.
func fleet(t *testing.T, ctx context.Context, srv *zktest.Server, processes int, next zsync.Timetable, fail func(at time.Duration) error, opts ...zsync.ScheduleOption) (calls []run) {
	began := time.Now()
	var done []<-chan error
	lock := make(chan struct{}, 1)
	for range processes {
		c := zsync.NewSchedule(open(t, srv), "/jobs", opts...)
		done = append(done, async(func() error {
			return c.Run(ctx, next, func(_ context.Context, at time.Time) error {
				lock <- struct{}{}
				defer func() { <-lock }()
				calls = append(calls, run{at.Sub(began), time.Since(began).Round(time.Second)})
				return fail(at.Sub(began))
			})
		}))
	}
	for _, d := range done {
		wantErr(t, <-d, ctx.Err())
	}
	return calls
}

// Five machines share the attempts of an instant: the pauses are between attempts of all of
// them. Then the instant is given up, also under MissedAll, and the next one has its own.
func TestAnInstantThatFailsIsTriedFiveTimesByTheWholeFleetAndThenGivenUp(t *testing.T) {
	t.Parallel()
	for _, policy := range []zsync.MissedPolicy{zsync.MissedLatest, zsync.MissedSkip, zsync.MissedAll} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 150*time.Minute)
			defer cancel()
			hours := timetable{began.Add(time.Hour), began.Add(2 * time.Hour), began.Add(9 * time.Hour)}
			calls := fleet(t, ctx, srv, 5, hours, func(at time.Duration) error {
				if at == time.Hour {
					return errors.New("disk full")
				}
				return nil
			}, zsync.WithMissed(policy))
			var want []run
			for _, after := range []time.Duration{0, 1, 3, 7, 15} {
				want = append(want, run{time.Hour, time.Hour + after*time.Minute})
			}
			want = append(want, run{2 * time.Hour, 2 * time.Hour})
			if !slices.Equal(calls, want) {
				t.Errorf("%v: called %v, want %v", policy, calls, want)
			}
			c := zsync.NewSchedule(open(t, srv, zsync.WithOwner("tester")), "/jobs")
			failure, err := c.LastFailure(t.Context())
			must(t, err)
			if !failure.At.Equal(hours[0]) || failure.Attempts != 5 || failure.Err != "disk full" || failure.Owner == "" ||
				failure.Failed.Sub(began).Round(time.Second) != 75*time.Minute {
				t.Errorf("%v: LastFailure = %+v", policy, failure)
			}
			if last, err := c.Last(t.Context()); !last.Equal(hours[1]) || err != nil {
				t.Errorf("%v: Last = %v, %v", policy, last, err)
			}
		})
	}
}

func TestTheNextInstantEndsTheAttemptsOfTheOneBefore(t *testing.T) {
	t.Parallel()
	for _, policy := range []zsync.MissedPolicy{zsync.MissedLatest, zsync.MissedSkip} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
			defer cancel()
			next := timetable{began.Add(time.Minute), began.Add(4 * time.Minute), began.Add(9 * time.Hour)}
			calls := fleet(t, ctx, srv, 3, next, func(time.Duration) error { return errors.New("no") }, zsync.WithMissed(policy))
			want := []run{{time.Minute, time.Minute}, {time.Minute, 2 * time.Minute}, {4 * time.Minute, 4 * time.Minute}, {4 * time.Minute, 5 * time.Minute}}
			if !slices.Equal(calls, want) {
				t.Errorf("%v: called %v, want %v", policy, calls, want)
			}
		})
	}
}

// A process that comes later, or in place of one that died, goes on with the attempts that are left.
func TestAttemptsOfAnInstantOutliveTheProcessThatMadeThem(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		began := time.Now()
		next := timetable{began.Add(time.Hour), began.Add(24 * time.Hour)}
		fails := func(time.Duration) error { return errors.New("no") }
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour+2*time.Minute)
		first := fleet(t, ctx, srv, 1, next, fails, zsync.WithRetries(4, zsync.Backoff{Min: time.Minute, Max: time.Hour}))
		cancel()
		ctx, cancel = context.WithTimeout(t.Context(), 3*time.Hour)
		defer cancel()
		ran := 0
		c := zsync.NewSchedule(open(t, srv), "/jobs", zsync.WithRetries(4, zsync.Backoff{Min: time.Minute, Max: time.Hour}))
		must(t, func() error {
			err := c.Run(ctx, timetable{began.Add(time.Hour), began.Add(24 * time.Hour)}, func(context.Context, time.Time) error {
				ran++
				return errors.New("no")
			})
			if errors.Is(err, context.DeadlineExceeded) {
				return nil
			}
			return err
		}())
		if len(first) != 2 || ran != 2 {
			t.Errorf("the first process made %d attempts, and the second %d; want 2 and 2", len(first), ran)
		}
	})
}

// With one attempt no failure is repeated.
func TestOneAttemptIsNotRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
		defer cancel()
		calls := fleet(t, ctx, srv, 2, timetable{began.Add(time.Hour), began.Add(24 * time.Hour)}, func(time.Duration) error { return errors.New("no") }, zsync.WithRetries(1, quickly))
		if len(calls) != 1 {
			t.Errorf("called %v", calls)
		}
	})
}

// An attempt that its caller ends, as at SIGTERM, is no failure.
func TestAnAttemptThatItsCallerEndsDoesNotCount(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		c := zsync.NewSchedule(open(t, srv), "/jobs")
		for range 7 {
			ctx, cancel := context.WithCancel(t.Context())
			wantErr(t, c.Run(ctx, zsync.Every(time.Hour), func(ctx context.Context, _ time.Time) error {
				cancel()
				<-ctx.Done()
				return ctx.Err()
			}), context.Canceled)
		}
		_, err := c.LastFailure(t.Context())
		wantErr(t, err, zsync.ErrNoValue)
		_, err = c.Last(t.Context())
		wantErr(t, err, zsync.ErrNoValue)
	})
}

// While one process ran an instant for long, later ones came due. A process that waited for the
// lock runs none that is past by then.
func TestNoInstantRunsThatIsPastWhenTheLockIsFree(t *testing.T) {
	t.Parallel()
	for policy, want := range map[zsync.MissedPolicy][]time.Duration{
		zsync.MissedLatest: {1, 4, 5},
		zsync.MissedSkip:   {1, 5},
		zsync.MissedAll:    {1, 1, 2, 3, 4, 5},
	} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			began := time.Now()
			var hours timetable
			for h := 1; h <= 5; h++ {
				hours = append(hours, began.Add(time.Duration(h)*time.Hour))
			}
			var ran []time.Duration
			first := true
			var done []<-chan error
			for range 2 {
				c := zsync.NewSchedule(open(t, srv), "/jobs", zsync.WithMissed(policy), zsync.WithRetries(2, zsync.Backoff{Min: time.Second, Max: time.Second}))
				done = append(done, async(func() error {
					return c.Run(t.Context(), hours, func(_ context.Context, at time.Time) error {
						ran = append(ran, at.Sub(began)/time.Hour)
						if first {
							first = false
							time.Sleep(200 * time.Minute) // until 4:20
							return errors.New("no")
						}
						return nil
					})
				}))
			}
			for _, d := range done {
				must(t, <-d)
			}
			if !slices.Equal(ran, want) {
				t.Errorf("%v: ran %v, want %v", policy, ran, want)
			}
		})
	}
}

// A failure keeps what was done before, and a success keeps the failure. Texts of any kind come back.
func TestAFailureAndASuccessKeepEachOther(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		ctx := within(t, time.Minute)
		c := zsync.NewSchedule(connect(zsync.WithOwner("me")), "/jobs")
		do := func(at time.Time, text string) {
			ran, err := c.Do(ctx, at, func(context.Context) error {
				if text != "" {
					return errors.New(text)
				}
				return nil
			})
			if !ran || (err != nil) != (text != "") {
				t.Fatalf("Do = %v, %v", ran, err)
			}
		}
		do(noon, "first")
		_, err := c.Last(ctx)
		wantErr(t, err, zsync.ErrNoValue)
		do(noon, "")
		for i, text := range []string{"two\nlines", "bad \xff byte", strings.Repeat("é", 5000)} {
			at := noon.Add(time.Duration(i+1) * time.Hour)
			do(at, text)
			failure, err := c.LastFailure(ctx)
			must(t, err)
			if want := strings.ToValidUTF8(text, "\uFFFD"); !failure.At.Equal(at) || failure.Attempts != 1 || failure.Owner != "me" || !strings.HasPrefix(want, failure.Err) || len(failure.Err) < min(len(want), 4000) {
				t.Errorf("LastFailure = %+v", failure)
			}
			if last, err := c.Last(ctx); !last.Equal(noon) || err != nil {
				t.Errorf("Last = %v, %v", last, err)
			}
		}
		do(noon.Add(9*time.Hour), "")
		if failure, err := c.LastFailure(ctx); err != nil || !failure.At.Equal(noon.Add(3*time.Hour)) {
			t.Errorf("LastFailure = %+v, %v", failure, err)
		}
	})
}

func TestAScheduledFunctionThatFailsIsOneLineOfTheLog(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		lines := 0
		log := harness.OnLog(func(msg string) {
			if strings.Contains(msg, "scheduled function") {
				lines++
			}
		})
		c := zsync.NewSchedule(open(t, srv, zsync.WithLogger(log)), "/jobs", zsync.WithRetries(3, quickly))
		tries := 0
		must(t, c.Run(t.Context(), timetable{time.Now().Add(time.Hour)}, func(context.Context, time.Time) error {
			tries++
			return fmt.Errorf("no %d", tries)
		}))
		if tries != 3 || lines != 3 {
			t.Errorf("%d lines of %d failures", lines, tries)
		}
	})
}
