package zsync_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
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

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

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

// timetable is a list of instants.
type timetable []time.Time

func (l timetable) Next(t time.Time) time.Time {
	for _, at := range l {
		if at.After(t) {
			return at
		}
	}
	return time.Time{}
}

func TestRunDoesWithMissedInstantsWhatThePolicySays(t *testing.T) {
	t.Parallel()
	for policy, want := range map[zsync.MissedPolicy][]int{
		zsync.MissedLatest: {1, 4, 5},
		zsync.MissedSkip:   {1, 5},
		zsync.MissedAll:    {1, 2, 3, 4, 5},
	} {
		t.Run(policy.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				c := zsync.NewSchedule(open(t, srv), "/jobs", zsync.WithMissed(policy))
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
			})
		})
	}
}

// quickly paces attempts as a session does its own.
var quickly = zsync.Backoff{Min: 10 * time.Millisecond, Max: 2 * time.Second}

func TestRunTriesAFailedInstantAgainWithinItsTime(t *testing.T) {
	t.Parallel()
	for policy, want := range map[zsync.MissedPolicy]bool{zsync.MissedLatest: false, zsync.MissedAll: true} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			c := zsync.NewSchedule(open(t, srv), "/jobs", zsync.WithMissed(policy), zsync.WithRetries(10_000, quickly))
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
		})
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
