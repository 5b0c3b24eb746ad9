package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

func TestScheduleRunsEachInstantOnce(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		ctx := within(t, 2*time.Minute)
		a, b := zsync.NewSchedule(connect(), "/deep/jobs"), zsync.NewSchedule(connect(), "/deep/jobs")
		_, err := a.Last(ctx)
		wantErr(t, err, zsync.ErrNoValue)
		do := func(c *zsync.Schedule, at time.Time, want bool) {
			t.Helper()
			called := false
			ran, err := c.Do(ctx, at, func(context.Context) error { called = true; return nil })
			if ran != want || called != want || err != nil {
				t.Fatalf("Do(%v) = %v, %v, called %v; want %v", at, ran, err, called, want)
			}
		}
		do(a, noon, true)
		do(b, noon, false)
		do(a, noon, false)
		do(b, noon.Add(-time.Hour), false)
		do(b, noon.Add(time.Nanosecond), true)
		if last, err := a.Last(ctx); !last.Equal(noon.Add(time.Nanosecond)) || err != nil {
			t.Errorf("Last = %v, %v", last, err)
		}
		boom := errors.New("boom")
		ran, err := a.Do(ctx, noon.Add(time.Hour), func(context.Context) error { return boom })
		if !ran || err == nil {
			t.Errorf("Do of a function that fails = %v, %v", ran, err)
		}
		wantErr(t, err, boom)
		do(b, noon.Add(time.Hour), true)
	})
}

func TestWhoWaitsForAnInstantReturnsWhenItIsDoneAndRunsItWhenItFailed(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		for _, fails := range []bool{false, true} {
			at := noon
			if fails {
				at = at.Add(time.Hour)
			}
			var err error
			if fails {
				err = errors.New("boom")
			}
			finish := make(chan error)
			runner := zsync.NewSchedule(open(t, srv), "/jobs")
			first := async(func() error {
				_, err := runner.Do(t.Context(), at, func(context.Context) error { return <-finish })
				return err
			})
			synctest.Wait()
			var ran int
			var mu sync.Mutex
			var waiting []<-chan error
			for range 5 {
				c := zsync.NewSchedule(open(t, srv), "/jobs")
				waiting = append(waiting, async(func() error {
					_, err := c.Do(t.Context(), at, func(context.Context) error {
						mu.Lock()
						defer mu.Unlock()
						ran++
						return nil
					})
					return err
				}))
			}
			for _, w := range waiting {
				pendingStill(t, w)
			}
			finish <- err
			if got := <-first; !errors.Is(got, err) {
				t.Errorf("Do = %v, want %v", got, err)
			}
			for _, w := range waiting {
				must(t, <-w)
			}
			want := 0
			if fails {
				want = 1
			}
			if ran != want {
				t.Errorf("fails %v: the function of who waited ran %d times, want %d", fails, ran, want)
			}
		}
	})
}

func TestScheduleWhoseSessionIsLostRecordsNothingAndAnotherRunsIt(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		a, b := zsync.NewSchedule(s, "/jobs"), zsync.NewSchedule(open(t, srv), "/jobs")
		started := make(chan struct{})
		first := async(func() error {
			ran, err := a.Do(t.Context(), noon, func(ctx context.Context) error {
				close(started)
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), zsync.ErrLost) {
					t.Errorf("the context ended with %v", context.Cause(ctx))
				}
				return nil
			})
			if !ran {
				t.Error("Do says that it did not run the function")
			}
			return err
		})
		<-started
		srv.Expire(s.ID())
		ran, err := b.Do(t.Context(), noon, func(context.Context) error { return nil })
		if !ran || err != nil {
			t.Errorf("Do of another process = %v, %v", ran, err)
		}
		wantErr(t, <-first, zsync.ErrLost)
	})
}

func TestScheduleRefusesBadInput(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		f := func(context.Context) error { return nil }
		g := func(context.Context, time.Time) error { return nil }
		for _, c := range []*zsync.Schedule{zsync.NewSchedule(nil, "/s"), zsync.NewSchedule(s, "s"), zsync.NewSchedule(s, "/s", nil), zsync.NewSchedule(s, "/s", zsync.WithMissed(7)),
			zsync.NewSchedule(s, "/s", zsync.WithRetries(0, quickly)), zsync.NewSchedule(s, "/s", zsync.WithRetries(3, zsync.Backoff{})), {}} {
			_, err := c.Do(t.Context(), noon, f)
			wantErr(t, err, zsync.ErrInvalid)
			wantErr(t, c.Run(t.Context(), zsync.Every(time.Hour), g), zsync.ErrInvalid)
			_, err = c.Last(t.Context())
			wantErr(t, err, zsync.ErrInvalid)
			_, err = c.LastFailure(t.Context())
			wantErr(t, err, zsync.ErrInvalid)
		}
		c := zsync.NewSchedule(s, "/s")
		_, err := c.Do(t.Context(), noon, nil)
		wantErr(t, err, zsync.ErrInvalid)
		_, err = c.Do(t.Context(), time.Time{}, f)
		wantErr(t, err, zsync.ErrInvalid)
		wantErr(t, c.Run(t.Context(), nil, g), zsync.ErrInvalid)
		wantErr(t, c.Run(t.Context(), zsync.Every(time.Hour), nil), zsync.ErrInvalid)
		wantErr(t, c.Run(t.Context(), zsync.Every(0), g), zsync.ErrInvalid)
		wantErr(t, c.Run(t.Context(), delayTable(time.Hour), g), zsync.ErrInvalid)
		must(t, c.Run(t.Context(), timetable{}, g)) // there is no instant
		_, err = c.Do(t.Context(), noon, func(ctx context.Context) error {
			_, err := c.Do(ctx, noon.Add(time.Hour), f)
			return err
		})
		wantErr(t, err, zsync.ErrDeadlock)
		must(t, zsync.NewValue[string](s, "/bad/last").Store(t.Context(), "text"))
		if _, err := zsync.NewSchedule(s, "/bad").Do(t.Context(), noon, f); err == nil {
			t.Error("Do of a path that is used otherwise succeeds")
		}
	})
}

// What cannot be written down so that everybody can read it would stop the Schedule of
// all processes.
func TestAnInstantThatCannotBeRecordedIsRefusedAndHurtsNobody(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		c := zsync.NewSchedule(s, "/jobs")
		ran := false
		f := func(context.Context) error { ran = true; return nil }
		for _, at := range []time.Time{
			time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC),
			time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -2*3600)),
			time.Date(-1, 12, 31, 0, 0, 0, 0, time.UTC),
			time.Unix(1<<60, 0),
			{},
		} {
			if _, err := c.Do(t.Context(), at, f); !errors.Is(err, zsync.ErrInvalid) || ran {
				t.Errorf("Do(%v) = %v, and its function ran %v", at, err, ran)
			}
			err := c.Run(t.Context(), timetable{at}, func(ctx context.Context, _ time.Time) error { return f(ctx) })
			if at.After(time.Now()) && !errors.Is(err, zsync.ErrInvalid) || ran {
				t.Errorf("Run at %v = %v, and its function ran %v", at, err, ran)
			}
		}
		for _, at := range []time.Time{time.Time{}.Add(1), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)} {
			if _, err := c.Do(t.Context(), at, f); err != nil {
				t.Fatal(err)
			}
			if last, err := zsync.NewSchedule(s, "/jobs").Last(t.Context()); !last.Equal(at) || err != nil {
				t.Errorf("Last = %v, %v; want %v", last, err, at)
			}
		}
	})
}

// delayTable is robfig/cron's @every: its next instant depends on when it is asked.
type delayTable time.Duration

func (d delayTable) Next(t time.Time) time.Time { return t.Add(time.Duration(d)) }

func TestRunDoesWithMissedInstantsWhatThePolicySays(t *testing.T) {
	t.Parallel()
	for policy, want := range map[zsync.MissedPolicy][]int{
		zsync.MissedLatest: {1, 4, 5},
		zsync.MissedSkip:   {1, 5},
		zsync.MissedAll:    {1, 2, 3, 4, 5},
	} {
		t.Run(policy.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				c := zsync.NewSchedule(open(t, srv, longSession), "/jobs", zsync.WithMissed(policy))
				var hours timetable
				began := time.Now()
				for h := 1; h <= 5; h++ {
					hours = append(hours, began.Add(time.Duration(h)*time.Hour))
				}
				var ran []int
				f := func(_ context.Context, at time.Time) error {
					ran = append(ran, int(at.Sub(began)/time.Hour))
					return nil
				}
				ctx, cancel := context.WithTimeout(t.Context(), 90*time.Minute)
				defer cancel()
				wantErr(t, c.Run(ctx, hours, f), context.DeadlineExceeded)
				time.Sleep(3 * time.Hour) // all are down from 1:30 to 4:30
				must(t, c.Run(t.Context(), hours, f))
				if len(ran) != len(want) {
					t.Fatalf("ran %v, want %v", ran, want)
				}
				for i := range ran {
					if ran[i] != want[i] {
						t.Fatalf("ran %v, want %v", ran, want)
					}
				}
			}, longSessions)
		})
	}
}

func TestRunTriesAFailedInstantAgainWithinItsTime(t *testing.T) {
	t.Parallel()
	for policy, want := range map[zsync.MissedPolicy]bool{zsync.MissedLatest: false, zsync.MissedAll: true} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			c := zsync.NewSchedule(open(t, srv, longSession), "/jobs", zsync.WithMissed(policy), zsync.WithRetries(10_000, zsync.Backoff{Min: 10 * time.Second, Max: 10 * time.Second}))
			began := time.Now()
			hours := timetable{began.Add(time.Hour), began.Add(2 * time.Hour)}
			tries, late := 0, false
			must(t, c.Run(t.Context(), hours, func(_ context.Context, at time.Time) error {
				if !at.Equal(hours[0]) {
					return nil
				}
				if tries++; time.Now().Before(hours[1].Add(time.Minute)) {
					return errors.New("not yet")
				}
				late = true
				return nil
			}))
			if tries < 100 || late != want {
				t.Errorf("%v: tried %d times, done after its time %v; want %v", policy, tries, late, want)
			}
		}, longSessions)
	}
}

func TestRunReturnsWhatKeepsAnInstantFromBeingRecordedAndRunsItOnce(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		c := zsync.NewSchedule(s, "/s")
		_, err := c.Do(t.Context(), time.Now(), func(context.Context) error { return nil })
		must(t, err)
		harness.SetACL(t, srv, "/s/last", zk.WorldACL(zk.PermRead))
		ran := 0
		err = c.Run(within(t, 3*time.Hour), zsync.Every(time.Hour), func(context.Context, time.Time) error { ran++; return nil })
		if wantErr(t, err, zk.ErrNoAuth); ran != 1 {
			t.Errorf("ran %d times", ran)
		}
	})
}

func TestRunAfterALongPauseGoesStraightToTheLatestInstant(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		c := zsync.NewSchedule(open(t, srv), "/jobs")
		_, err := c.Do(t.Context(), time.Now().Add(-365*24*time.Hour), func(context.Context) error { return nil })
		must(t, err)
		calls := 0
		ctx, cancel := context.WithCancel(t.Context())
		c.Run(ctx, counting{zsync.Every(time.Second), &calls}, func(_ context.Context, at time.Time) error {
			if time.Since(at) > time.Second {
				t.Errorf("ran %v, %v ago", at, time.Since(at))
			}
			cancel()
			return nil
		})
		if calls > 100 {
			t.Errorf("the timetable was asked %d times", calls)
		}
	})
}

type counting struct {
	next  interface{ Next(time.Time) time.Time }
	calls *int
}

func (c counting) Next(t time.Time) time.Time { *c.calls++; return c.next.Next(t) }

// A killable is a process that can be killed: its session falls silent for good, and
// the process that takes its place has another.
type killable struct {
	srv *zktest.Server
	s   atomic.Pointer[zsync.Session]
}

func (m *killable) ID() int64 { return m.s.Load().ID() }

// live runs f, a process. If mayDie it is killed after that time, if it takes as
// long, and another one is started.
func (m *killable) live(t *testing.T, ctx context.Context, mayDie bool, after time.Duration, f func(ctx context.Context, s *zsync.Session) error) error {
	s := m.s.Load()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !mayDie {
		return f(ctx, s)
	}
	death := time.AfterFunc(after, func() {
		m.srv.Partition(s.ID())
		cancel()
	})
	err := f(ctx, s)
	if !death.Stop() {
		m.s.Store(open(t, m.srv))
	}
	return err
}

// Processes whose clocks are wrong by up to a minute or five, either way, do what is due
// every ten seconds, some by Run and some by Do, while sessions break and end and
// processes are killed and replaced. No instant succeeds twice, and none is left out.
// ZSYNC_TEST_INSTANTS is how many instants each seed has.
func TestHammerScheduleRunsEveryInstantOnceWhateverTheClocks(t *testing.T) {
	processes, instants := 4, 4
	if longTests() {
		processes, instants = 8, 6
	}
	if n := os.Getenv("ZSYNC_TEST_INSTANTS"); n != "" {
		var err error
		if instants, err = strconv.Atoi(n); err != nil || instants < 1 {
			t.Fatalf("ZSYNC_TEST_INSTANTS is %q; want a number from 1", n)
		}
	}
	seeds(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		var mu sync.Mutex
		tried, succeeded := make(map[time.Time]int), make(map[time.Time]int)
		fails, failures := rnd.IntN(2) == 0, 0
		const period = 10 * time.Second
		wrong := []time.Duration{time.Minute, 5 * time.Minute}[rnd.IntN(2)]
		first := time.Now().Truncate(period).Add(8 * period)
		var table timetable
		for i := range instants {
			table = append(table, first.Add(time.Duration(i)*period))
		}
		count := func(in map[time.Time]int, at time.Time) {
			mu.Lock()
			defer mu.Unlock()
			in[at]++
		}
		// From the first instant that was ever done on, none may be missed.
		_, err := zsync.NewSchedule(open(t, srv), "/jobs").Do(t.Context(), first.Add(-period), func(context.Context) error { return nil })
		must(t, err)
		var wg sync.WaitGroup
		var ps []*killable
		for process := range processes {
			m := &killable{srv: srv}
			m.s.Store(open(t, srv))
			ps = append(ps, m)
			r := rand.New(rand.NewPCG(rnd.Uint64(), 1))
			skew := time.Duration(r.Int64N(int64(2*wrong))) - wrong
			job := func(ctx context.Context, at time.Time) error {
				time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
				if fails && r.IntN(5) == 0 {
					mu.Lock()
					defer mu.Unlock()
					failures++
					return errors.New("boom")
				}
				count(tried, at)
				return nil
			}
			wg.Go(func() {
				if process%2 == 1 { // by Do, whose result tells who succeeded
					for _, at := range table {
						time.Sleep(time.Until(at.Add(-skew)))
						err := errors.New("not tried")
						for try := 0; err != nil; try++ {
							if try > 500 {
								t.Errorf("%v is not done after %d tries: %v", at, try, err)
								return
							}
							err = m.live(t, t.Context(), r.IntN(6) == 0, time.Duration(r.IntN(3000))*time.Millisecond, func(ctx context.Context, s *zsync.Session) error {
								ran, err := zsync.NewSchedule(s, "/jobs").Do(ctx, at, func(ctx context.Context) error { return job(ctx, at) })
								if err == nil && ran {
									count(succeeded, at)
								}
								return err
							})
						}
					}
					return
				}
				for {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+r.IntN(20))*period)
					err := m.live(t, ctx, r.IntN(4) == 0, time.Duration(r.Int64N(int64(10*period))), func(ctx context.Context, s *zsync.Session) error {
						c := zsync.NewSchedule(s, "/jobs", zsync.WithMissed(zsync.MissedAll), zsync.WithRetries(1000, quickly))
						zsync.SetSkew(c, skew)
						return c.Run(ctx, table, job)
					})
					cancel()
					if err == nil {
						return
					}
					if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
						t.Error(err)
						return
					}
					time.Sleep(time.Duration(r.IntN(6)) * period) // down
				}
			})
		}
		until := make(chan struct{})
		ended := async(func() error { harness.Chaos(t, srv, rnd, ps, until); return nil })
		wg.Wait()
		close(until)
		<-ended
		for _, at := range table {
			if tried[at] == 0 || succeeded[at] > 1 {
				t.Errorf("%v was done %d times, and %d succeeded", at, tried[at], succeeded[at])
			}
		}
		last, err := zsync.NewSchedule(open(t, srv), "/jobs").Last(t.Context())
		if !last.Equal(table[len(table)-1]) || err != nil {
			t.Errorf("Last = %v, %v", last, err)
		}
		// Run does not say which process succeeded. But each success is a write of path/last,
		// as is each failure that could be recorded, and no success comes twice or after a later
		// one: there are as many as there are instants, besides the one that made the znode.
		_, stat, err := plain(t, srv).Get("/jobs/last")
		if must(t, err); int(stat.Version) < instants || int(stat.Version) > instants+failures {
			t.Errorf("%d writes of %d instants and at most %d failures", stat.Version, instants, failures)
		}
	})
}

func TestAnInstantIsRecordedThoughCtxEndsFarFromTheServers(t *testing.T) {
	for _, first := range []bool{false, true} {
		t.Run(map[bool]string{true: "first", false: "later"}[first], func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, other := open(t, srv), open(t, srv)
				c := zsync.NewSchedule(s, "/jobs")
				at := time.Now()
				if !first {
					_, err := c.Do(t.Context(), at.Add(-time.Hour), func(context.Context) error { return nil })
					must(t, err)
				}
				srv.SetLatency(500 * time.Millisecond)
				ctx, cancel := context.WithCancel(t.Context())
				ran, err := c.Do(ctx, at, func(context.Context) error { cancel(); return nil })
				t.Log(ran, err)
				time.Sleep(time.Minute)
				srv.SetLatency(0)
				ran, err = zsync.NewSchedule(other, "/jobs").Do(t.Context(), at, func(context.Context) error { return nil })
				if ran || err != nil {
					t.Errorf("run again: %v, %v", ran, err)
				}
			})
		})
	}
}

func TestAnInstantIsRecordedThoughCtxEndsAndRequestsAreLost(t *testing.T) {
	for _, drops := range []int32{1, 3, 6} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, other := open(t, srv), open(t, srv)
			c := zsync.NewSchedule(s, "/jobs")
			at := time.Now()
			_, err := c.Do(t.Context(), at.Add(-time.Hour), func(context.Context) error { return nil })
			must(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			var n atomic.Int32
			id := s.ID()
			ran, err := c.Do(ctx, at, func(context.Context) error {
				cancel()
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Session == id && r.Op == zktest.OpMulti && n.Add(1) <= drops {
						return zktest.DropRequest
					}
					return zktest.Pass
				})
				return nil
			})
			t.Log(drops, ran, err)
			time.Sleep(time.Minute)
			ran, err = zsync.NewSchedule(other, "/jobs").Do(t.Context(), at, func(context.Context) error { return nil })
			if ran || err != nil {
				t.Errorf("%d drops: run again: %v, %v", drops, ran, err)
			}
			if s.ID() != id {
				t.Log("lost session")
			}
		})
	}
}

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
		s := open(t, srv, longSession)
		began := time.Now()
		far := began.Add(4 * time.Hour)
		do := func(c *zsync.Schedule, at time.Time) bool {
			ran, err := c.Do(t.Context(), at, func(context.Context) error { return nil })
			must(t, err)
			return ran
		}
		broken, c := zsync.NewSchedule(open(t, srv, longSession), "/jobs"), zsync.NewSchedule(s, "/jobs")
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
	}, longSessions)
}

// A process whose clock is four hours ahead has given up an instant, and somebody deletes that.
func TestRunGoesOnWhenAnInstantFarAheadThatWasGivenUpIsDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		began := time.Now()
		hours := timetable{began.Add(time.Hour), began.Add(2 * time.Hour), began.Add(5 * time.Hour), began.Add(9 * time.Hour)}
		broken := zsync.NewSchedule(open(t, srv), "/jobs", zsync.WithRetries(1, quickly))
		zsync.SetSkew(broken, 4*time.Hour)
		wantErr(t, broken.Run(within(t, 61*time.Minute), hours, func(context.Context, time.Time) error { return errors.New("no") }), context.DeadlineExceeded)
		if failure, err := broken.LastFailure(t.Context()); err != nil || !failure.At.Equal(hours[2]) {
			t.Fatalf("LastFailure = %+v, %v", failure, err)
		}
		var ran []time.Duration
		done := async(func() error {
			return zsync.NewSchedule(open(t, srv), "/jobs").Run(within(t, time.Hour), hours, func(_ context.Context, at time.Time) error {
				ran = append(ran, at.Sub(began))
				return nil
			})
		})
		time.Sleep(time.Minute)
		must(t, plain(t, srv).Delete("/jobs/last", -1))
		wantErr(t, <-done, context.DeadlineExceeded)
		if fmt.Sprint(ran) != "[2h0m0s]" {
			t.Errorf("Run ran %v, want the second hour", ran)
		}
	})
}

// The clock of a process is ahead, and is set right. If it has recorded a future instant by then, an
// operator deletes that. From then on, the process runs each instant in its time.
func TestRunGoesOnWhenItsOwnClockThatWasAheadIsSetRight(t *testing.T) {
	for _, policy := range []zsync.MissedPolicy{zsync.MissedLatest, zsync.MissedSkip, zsync.MissedAll} {
		for _, record := range []string{"none", "a success", "a failure"} {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				began := time.Now()
				var hours timetable
				for n := range 9 {
					hours = append(hours, began.Add(time.Duration(n+1)*time.Hour))
				}
				c := zsync.NewSchedule(open(t, srv), "/jobs", zsync.WithMissed(policy), zsync.WithRetries(1, quickly))
				zsync.SetSkew(c, 150*time.Minute)
				right := false
				var ran []run
				done := async(func() error {
					return c.Run(within(t, 270*time.Minute), hours, func(_ context.Context, at time.Time) error {
						if right {
							ran = append(ran, run{at.Sub(began), time.Since(began).Truncate(time.Minute)})
						} else if record == "a failure" {
							return errors.New("no")
						}
						return nil
					})
				})
				time.Sleep(10 * time.Minute)
				if record != "none" {
					time.Sleep(30 * time.Minute)
					must(t, plain(t, srv).Delete("/jobs/last", -1))
				}
				zsync.SetSkew(c, 0)
				right = true
				wantErr(t, <-done, context.DeadlineExceeded)
				if want := []run{{time.Hour, time.Hour}, {2 * time.Hour, 2 * time.Hour}, {3 * time.Hour, 3 * time.Hour}, {4 * time.Hour, 4 * time.Hour}}; !slices.Equal(ran, want) {
					t.Errorf("%v, after %s: ran %v, want %v", policy, record, ran, want)
				}
			})
		}
	}
}

// A program may read its owner from a file, with the line feed at its end.
func TestAnOwnerOfSeveralLinesLeavesTheScheduleReadable(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		at := time.Now()
		for i, owner := range []string{"host-a\n", "host-b"} {
			c := zsync.NewSchedule(open(t, srv, zsync.WithOwner(owner)), "/jobs")
			at := at.Add(time.Duration(i) * time.Second)
			if ran, err := c.Do(t.Context(), at, func(context.Context) error { return nil }); !ran || err != nil {
				t.Fatalf("%q: %v, %v", owner, ran, err)
			}
			_, err := c.Do(t.Context(), at.Add(time.Hour), func(context.Context) error { return errors.New("no") })
			if failure, e := c.LastFailure(t.Context()); e != nil || failure.Owner != owner {
				t.Errorf("%q: LastFailure = %+v, %v after %v", owner, failure, e, err)
			}
		}
	})
}

// The function of one Schedule may use another, whose record the servers refuse.
func TestAFunctionThatFailsWithARecordOfAnotherScheduleDoesNotEndRun(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		other := zsync.NewSchedule(s, "/other")
		_, err := other.Do(t.Context(), time.Unix(1, 0), func(context.Context) error { return nil })
		must(t, err)
		harness.SetACL(t, srv, "/other/last", zk.WorldACL(zk.PermRead))
		tries := 0
		c := zsync.NewSchedule(s, "/jobs")
		must(t, c.Run(t.Context(), timetable{time.Now().Add(time.Hour)}, func(ctx context.Context, at time.Time) error {
			if tries++; tries == 1 {
				_, err := other.Do(ctx, at, func(context.Context) error { return nil })
				wantErr(t, err, zk.ErrNoAuth)
				return err
			}
			return nil
		}))
		if tries != 2 {
			t.Errorf("the function was called %d times, want 2", tries)
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
	for policy, want := range map[zsync.MissedPolicy]string{
		zsync.MissedLatest: "[3h0m0s 9h0m0s]",
		zsync.MissedSkip:   "[9h0m0s]",
		zsync.MissedAll:    "[1h0m0s 2h0m0s 3h0m0s 9h0m0s]",
	} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			c := zsync.NewSchedule(open(t, srv), "/jobs", zsync.WithMissed(policy))
			began := time.Now()
			hours := timetable{began.Add(time.Hour), began.Add(2 * time.Hour), began.Add(3 * time.Hour), began.Add(9 * time.Hour)}
			var ran []time.Duration
			set := async(func() error {
				time.Sleep(30 * time.Minute)
				zsync.SetSkew(c, 4*time.Hour)
				return nil
			})
			err := c.Run(t.Context(), hours, func(_ context.Context, at time.Time) error {
				ran = append(ran, at.Sub(began))
				if len(ran) > 4 {
					return errors.New("again")
				}
				return nil
			})
			must(t, err)
			must(t, <-set)
			if fmt.Sprint(ran) != want {
				t.Errorf("%v: ran %v, want %s", policy, ran, want)
			}
		})
	}
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
		c := zsync.NewSchedule(open(t, srv, longSession), "/jobs", opts...)
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
			c := zsync.NewSchedule(open(t, srv, longSession, zsync.WithOwner("tester")), "/jobs")
			failure, err := c.LastFailure(t.Context())
			must(t, err)
			if !failure.At.Equal(hours[0]) || failure.Attempts != 5 || failure.Err != "disk full" || failure.Owner == "" ||
				failure.Failed.Sub(began).Round(time.Second) != 75*time.Minute {
				t.Errorf("%v: LastFailure = %+v", policy, failure)
			}
			if last, err := c.Last(t.Context()); !last.Equal(hours[1]) || err != nil {
				t.Errorf("%v: Last = %v, %v", policy, last, err)
			}
		}, longSessions)
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
		}, longSessions)
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
	}, longSessions)
}

// Do of an instant that is not in the timetable fails, as by hand. No later Run repeats that.
func TestRunDoesNotRepeatAFailureOfAnInstantThatIsNotInItsTimetable(t *testing.T) {
	for _, policy := range []zsync.MissedPolicy{zsync.MissedLatest, zsync.MissedSkip, zsync.MissedAll} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			hour := time.Now().Truncate(time.Hour)
			c := zsync.NewSchedule(open(t, srv), "/jobs", zsync.WithMissed(policy))
			_, err := c.Do(t.Context(), hour, func(context.Context) error { return nil })
			must(t, err)
			if ran, err := c.Do(t.Context(), hour.Add(time.Second), func(context.Context) error { return errors.New("no") }); !ran || err == nil {
				t.Fatal(ran, err)
			}
			time.Sleep(20 * time.Minute)
			var ran []time.Duration
			err = c.Run(within(t, 90*time.Minute), zsync.Every(time.Hour), func(_ context.Context, at time.Time) error {
				ran = append(ran, at.Sub(hour))
				return nil
			})
			if wantErr(t, err, context.DeadlineExceeded); fmt.Sprint(ran) != "[1h0m0s]" {
				t.Errorf("%v: Run ran %v, want the next hour alone", policy, ran)
			}
		})
	}
}

// Between two attempts of Run, a Do of another instant fails. The attempts and the pauses of Run go on.
func TestAFailedDoDoesNotReopenTheAttemptsOfRun(t *testing.T) {
	unlimited := zsync.WithRetries(math.MaxInt, zsync.Backoff{Min: time.Minute, Max: time.Hour})
	for i, opt := range []zsync.ScheduleOption{zsync.WithMissed(zsync.MissedLatest), zsync.WithMissed(zsync.MissedSkip), zsync.WithMissed(zsync.MissedAll), unlimited} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			began := time.Now()
			fails := func(context.Context) error { return errors.New("no") }
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
			defer cancel()
			calls := async(func() error {
				var got []time.Duration
				for _, a := range fleet(t, ctx, srv, 2, timetable{began.Add(time.Hour), began.Add(24 * time.Hour)}, func(time.Duration) error { return fails(nil) }, opt) {
					got = append(got, a.after-time.Hour)
				}
				return errors.New(fmt.Sprint(got))
			})
			c := zsync.NewSchedule(open(t, srv, longSession), "/jobs")
			for _, other := range []time.Duration{time.Minute, 2 * time.Minute} { // they are in no timetable
				time.Sleep(time.Until(began.Add(time.Hour + other + time.Second)))
				if ran, err := c.Do(t.Context(), began.Add(other), fails); !ran || err == nil {
					t.Fatal(ran, err)
				}
			}
			want, attempts := "[0s 1m0s 3m0s 7m0s 15m0s]", 5
			if i == 3 {
				want, attempts = "[0s 1m0s 3m0s 7m0s 15m0s 31m0s 1h3m0s]", 7
			}
			if got := (<-calls).Error(); got != want {
				t.Errorf("%d: attempts after %s", i, got)
			}
			if f, err := c.LastFailure(t.Context()); err != nil || f.Attempts != attempts || !f.At.Equal(began.Add(time.Hour)) {
				t.Errorf("%d: LastFailure = %+v, %v", i, f, err)
			}
		}, longSessions)
	}
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
	}, longSessions)
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
				c := zsync.NewSchedule(open(t, srv, longSession), "/jobs", zsync.WithMissed(policy), zsync.WithRetries(2, zsync.Backoff{Min: time.Second, Max: time.Second}))
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
		}, longSessions)
	}
}

// At the instant, the line is busy with an earlier one, which Do names. Perhaps the session of the
// waiter ends, too. The next instant is far, so this one is not missed, under any policy.
func TestAnInstantThatHasToWaitInTheLineIsNotMissed(t *testing.T) {
	t.Parallel()
	for _, policy := range []zsync.MissedPolicy{zsync.MissedLatest, zsync.MissedSkip, zsync.MissedAll} {
		for _, expires := range []bool{false, true} {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				srv.SetLatency(10 * time.Millisecond)
				at := time.Now().Add(time.Hour)
				var ran []time.Duration
				s := open(t, srv)
				run := async(func() error {
					c := zsync.NewSchedule(s, "/jobs", zsync.WithMissed(policy))
					return c.Run(t.Context(), timetable{at, at.Add(time.Hour)}, func(context.Context, time.Time) error {
						ran = append(ran, time.Since(at).Round(time.Second))
						return nil
					})
				})
				time.Sleep(time.Until(at) - time.Second)
				_, err := zsync.NewSchedule(open(t, srv), "/jobs").Do(t.Context(), at.Add(-time.Minute), func(context.Context) error {
					time.Sleep(3 * time.Second)
					if expires {
						srv.Expire(s.ID())
					}
					time.Sleep(2 * time.Second)
					return nil
				})
				must(t, err)
				must(t, <-run)
				if want := []time.Duration{4 * time.Second, time.Hour}; !slices.Equal(ran, want) {
					t.Errorf("%v, expires %v: ran %v after the first instant, want %v", policy, expires, ran, want)
				}
			})
		}
	}
}

// An instant that comes due while a process runs another is late for all processes when the line is
// free. With MissedSkip, none of them runs it, whichever gets the line.
func TestMissedSkipRunsNoInstantThatCameDueDuringARun(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		began := time.Now()
		var hours timetable
		var want []run
		for h := range time.Duration(40) {
			at := (h + 1) * time.Hour
			if hours = append(hours, began.Add(at)); h%2 == 0 {
				want = append(want, run{at, at})
			}
		}
		ctx, cancel := context.WithDeadline(t.Context(), hours[39].Add(time.Hour))
		defer cancel()
		calls := fleet(t, ctx, srv, 3, append(hours, began.Add(99*time.Hour)), func(time.Duration) error {
			time.Sleep(90 * time.Minute)
			return nil
		}, zsync.WithMissed(zsync.MissedSkip))
		if !slices.Equal(calls, want) {
			t.Errorf("called %v, want %v", calls, want)
		}
	}, longSessions)
}

// Calls of Do wait in a line. The end of the call ahead changes nothing of their order: otherwise a
// later instant could be done first, and the earlier ones would never run.
func TestDosThatWaitRunInTheOrderInWhichTheyCame(t *testing.T) {
	for _, fails := range []bool{false, true} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			srv.SetLatency(time.Millisecond)
			began := time.Now()
			var ran, want []int
			var done []<-chan error
			for i := range 10 {
				c := zsync.NewSchedule(open(t, srv), "/jobs")
				want = append(want, i)
				done = append(done, async(func() error {
					_, err := c.Do(t.Context(), began.Add(time.Duration(i)*time.Second), func(context.Context) error {
						ran = append(ran, i)
						time.Sleep(20 * time.Second)
						if fails {
							return errors.New("no")
						}
						return nil
					})
					return err
				}))
				time.Sleep(time.Second)
			}
			for _, d := range done {
				if err := <-d; (err != nil) != fails {
					t.Error(err)
				}
			}
			if !slices.Equal(ran, want) {
				t.Errorf("failing %v: ran %v, want %v", fails, ran, want)
			}
		})
	}
}

type panicking struct {
	timetable
	now *atomic.Bool
}

func (p panicking) Next(t time.Time) time.Time {
	if p.now.Load() {
		panic("no more instants")
	}
	return p.timetable.Next(t)
}

// The caller of Run may recover, so the panic must not be in another goroutine, which ends the process. And
// it must not leave the lock held, or a znode in the line.
func TestTheCallerOfRunGetsAPanicOfItsTimetable(t *testing.T) {
	for _, where := range []string{"while it waits", "in its turn"} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			at := time.Now().Add(time.Hour)
			var now atomic.Bool
			s, other := open(t, srv), open(t, srv)
			run := async(func() (err error) {
				defer func() { err = fmt.Errorf("panic: %v", recover()) }()
				return zsync.NewSchedule(s, "/jobs").Run(t.Context(), panicking{timetable{at}, &now}, func(context.Context, time.Time) error { return nil })
			})
			time.Sleep(time.Until(at) - time.Second)
			m := zsync.NewMutex(other, "/jobs") // a Schedule's line
			must(t, m.Lock(t.Context()))
			time.Sleep(2 * time.Second)
			now.Store(true)
			if where == "while it waits" {
				_, err := m.Txn(t.Context(), &zk.CreateRequest{Path: "/jobs/last", Data: []byte("2000-01-01T00:00:00Z")})
				must(t, err)
				synctest.Wait()
			}
			must(t, m.Unlock())
			if err := <-run; err.Error() != "panic: no more instants" {
				t.Errorf("%s: %v", where, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := m.Lock(ctx); err != nil {
				t.Errorf("after a panic %s: %v", where, err)
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
