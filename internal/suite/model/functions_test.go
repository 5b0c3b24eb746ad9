package model

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
)

// Models of what runs a function: OnceFunc, OnceValue and OnceValues, Flight, Schedule.

// An onlyOne is what must run once, or one at a time: those who have been told that
// they are not alone any more do not count.
type onlyOne struct {
	mu      sync.Mutex
	running map[string][]context.Context // by what runs
}

// enter says that what runs now, until leave, with a context that ends when another
// may run it.
func (o *onlyOne) enter(t *testing.T, what string, ctx context.Context) (leave func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running == nil {
		o.running = make(map[string][]context.Context)
	}
	for _, other := range o.running[what] {
		if other.Err() == nil && ctx.Err() == nil {
			t.Errorf("%s runs twice at a time", what)
		}
	}
	o.running[what] = append(o.running[what], ctx)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		for i, other := range o.running[what] {
			if other == ctx {
				o.running[what] = append(o.running[what][:i], o.running[what][i+1:]...)
				return
			}
		}
	}
}

// TestModelOfOnceValues runs OnceFunc, OnceValue and OnceValues. Who is told a value
// is told the same one as everybody else, and one that a function returned; and once
// anybody was told it no function runs any more.
func TestModelOfOnceValues(t *testing.T) {
	const kinds = 3
	modelsOf(t, 20, func(r *modelRun) {
		t := r.t
		r.refuses, r.freezes = r.rnd.IntN(4) == 0, r.rnd.IntN(2) == 0
		failed := errors.New("failed")
		var alone onlyOne
		var mu sync.Mutex
		number := 0
		var told [kinds]int // the value that somebody was told; 0 is none
		// call calls one of the functions of a process, and returns what it was told.
		call := func(kind int, s *zsync.Session, ctx context.Context, ms int, fails bool) (x, own int, err error) {
			f := func(ctx context.Context) (int, error) {
				mu.Lock()
				number++
				own = number
				if told[kind] != 0 {
					t.Errorf("kind %d runs though somebody was told %d", kind, told[kind])
				}
				mu.Unlock()
				leave := alone.enter(t, strconv.Itoa(kind), ctx)
				defer leave()
				time.Sleep(time.Duration(ms) * time.Millisecond)
				if fails {
					return own, failed
				}
				return own, nil
			}
			switch kind {
			case 0:
				err = zsync.OnceFunc(s, "/0", func(ctx context.Context) error { _, err := f(ctx); return err })(ctx)
				x = -1 // it has no value: that somebody was told that it is done
			case 1:
				x, err = zsync.OnceValue(s, "/1", f)(ctx)
			case 2:
				var text string
				x, text, err = zsync.OnceValues(s, "/2", func(ctx context.Context) (int, string, error) {
					x, err := f(ctx)
					return x, strconv.Itoa(x), err
				})(ctx)
				if err == nil && text != strconv.Itoa(x) {
					t.Errorf("the values are %d and %q", x, text)
				}
			}
			return x, own, err
		}
		r.hurt(true)
		var wg sync.WaitGroup
		for _, s := range r.ss {
			for range 3 {
				d := r.dice()
				wg.Go(func() {
					for range 4 {
						ctx, cancel := cut(t, d)
						kind, fails := d.IntN(kinds), d.IntN(2) == 0
						x, own, err := call(kind, s, ctx, d.IntN(10), fails)
						mu.Lock()
						switch {
						case err == nil && own != 0 && fails:
							t.Errorf("kind %d: its function failed, and it returned %d, nil", kind, x)
						case err == nil && told[kind] != 0 && told[kind] != x:
							t.Errorf("kind %d: told %d, and before %d", kind, x, told[kind])
						case err == nil:
							told[kind] = x
						case errors.Is(err, failed) != (own != 0 && fails):
							t.Errorf("kind %d: its function ran as %d, failing %v, and it returned %v", kind, own, fails, err)
						case own != 0 && x != own && kind != 0:
							t.Errorf("kind %d: its function returned %d, and it %d, %v", kind, own, x, err)
						case own != 0 && errors.Is(err, zsync.ErrLost), errors.Is(err, failed):
						default:
							r.mayFail("once", ctx, err)
						}
						mu.Unlock()
						cancel()
						harness.Nap(d, 20)
					}
				})
			}
		}
		wg.Wait()
		r.heal()
		time.Sleep(time.Minute)
		fresh := r.open()
		for kind := range kinds {
			before := told[kind]
			x, _, err := call(kind, fresh, harness.Within(t, time.Second), 0, false)
			harness.Must(t, err)
			if before != 0 && x != before {
				t.Errorf("kind %d: told %d, and in the end %d", kind, before, x)
			}
			if left := suite.ChildrenOf(t, fresh, "/"+strconv.Itoa(kind)); len(left) != 1 || left[0] != "done" {
				t.Errorf("kind %d: left %q", kind, left)
			}
		}
	})
}

// TestModelOfFlight: one function of a key runs at a time; what is shared was
// returned by a function that succeeded, and stored less than keep before the
// caller came; what failed, or was lost, is shared with nobody.
func TestModelOfFlight(t *testing.T) {
	modelsOf(t, 20, func(r *modelRun) {
		t := r.t
		r.refuses, r.freezes = r.rnd.IntN(4) == 0, r.rnd.IntN(2) == 0
		keep := time.Duration(r.rnd.IntN(3)) * 40 * time.Millisecond
		failed := errors.New("failed")
		keys := []string{"a", "b/%"}
		var alone onlyOne
		var mu sync.Mutex
		number := 0
		type result struct {
			key   string
			until time.Time // by then it was stored, if it was; zero if nobody knows
		}
		results := make(map[int]*result) // what functions returned that succeeded
		r.hurt(true)
		var wg sync.WaitGroup
		for _, s := range r.ss {
			shared := zsync.NewFlight[int](s, "/f", keep)
			for range 3 {
				d := r.dice()
				wg.Go(func() {
					for range 4 {
						f := shared
						if d.IntN(3) == 0 {
							f = zsync.NewFlight[int](s, "/f", keep)
						}
						ctx, cancel := cut(t, d)
						key, ms, fails, own := keys[d.IntN(2)], d.IntN(15), d.IntN(4) == 0, 0
						came := time.Now()
						v, share, err := f.Do(ctx, key, func(ctx context.Context) (int, error) {
							mu.Lock()
							number++
							own = number
							mu.Unlock()
							leave := alone.enter(t, key, ctx)
							defer leave()
							time.Sleep(time.Duration(ms) * time.Millisecond)
							if fails {
								return own, failed
							}
							mu.Lock()
							results[own] = &result{key: key}
							mu.Unlock()
							return own, nil
						})
						mu.Lock()
						from := results[v]
						switch {
						case own != 0 && (v != own || share):
							t.Errorf("its function returned %d, and Do %d, %v", own, v, share)
						case errors.Is(err, failed) != (own != 0 && fails):
							t.Errorf("its function ran as %d, failing %v, and Do returned %v", own, fails, err)
						case err == nil && share && (from == nil || from.key != key):
							t.Errorf("shared is %d, which no function of the key has returned with success", v)
						case err == nil && share && !from.until.IsZero() && came.Sub(from.until) > keep+time.Millisecond:
							t.Errorf("shared is what was stored %v before, and kept for %v", came.Sub(from.until), keep)
						case err == nil && !share && own == 0:
							t.Errorf("Do returns %d of its own, and its function did not run", v)
						case err == nil && !share:
							from.until = time.Now()
						case err == nil, errors.Is(err, failed):
						case own != 0 && errors.Is(err, zsync.ErrLost):
						default:
							r.mayFail("do", ctx, err)
						}
						mu.Unlock()
						cancel()
						harness.Nap(d, 30)
					}
				})
			}
		}
		wg.Wait()
		r.heal()
		time.Sleep(time.Minute)
		fresh := r.open()
		f := zsync.NewFlight[int](fresh, "/f", keep)
		for range 2 { // whoever runs a function looks after what others have left
			if v, share, err := f.Do(harness.Within(t, time.Second), "c", func(context.Context) (int, error) { return -1, nil }); v != -1 || share || err != nil {
				t.Errorf("a new key: %d, %v, %v", v, share, err)
			}
			time.Sleep(time.Minute)
		}
		for _, key := range append(keys, "c") {
			if left := suite.ChildrenOf(t, fresh, "/f/"+znodes.NameOfKey(key)); len(left) > 0 {
				t.Errorf("left of %s: %q", key, left)
			}
		}
	})
}

// TestModelOfSchedule: no instant is done twice by two who both succeeded, nor one
// after a later one; whoever is told that an instant is done is told the truth; Last
// is never older than what anybody was told.
func TestModelOfSchedule(t *testing.T) {
	modelsOf(t, 20, func(r *modelRun) {
		t := r.t
		r.refuses, r.freezes = r.rnd.IntN(4) == 0, r.rnd.IntN(2) == 0
		failed := errors.New("failed")
		var alone onlyOne
		var mu sync.Mutex
		succeeded := make(map[time.Time]int) // Dos that said so
		var done, maybe time.Time            // the latest instant that somebody knows to be done, and that may be
		begun := time.Now()
		const period = 50 * time.Millisecond
		table := suite.Timetable{}
		for i := range 8 {
			table = append(table, begun.Add(time.Duration(i+1)*period))
		}
		latest := func(to *time.Time, at time.Time) {
			if at.After(*to) {
				*to = at
			}
		}
		// work is the function for one instant.
		work := func(ctx context.Context, at time.Time, ms int, fails bool) error {
			mu.Lock()
			if !done.Before(at) {
				t.Errorf("%v runs though %v is done", at.Sub(begun), done.Sub(begun))
			}
			mu.Unlock()
			leave := alone.enter(t, "a function", ctx)
			defer leave()
			time.Sleep(time.Duration(ms) * time.Millisecond)
			if fails {
				return failed
			}
			mu.Lock()
			latest(&maybe, at)
			mu.Unlock()
			return nil
		}
		r.hurt(true)
		var wg sync.WaitGroup
		for i, s := range r.ss {
			shared := zsync.NewSchedule(s, "/s")
			for range 2 {
				d := r.dice()
				wg.Go(func() {
					for range 5 {
						c := shared
						if d.IntN(3) == 0 {
							c = zsync.NewSchedule(s, "/s")
						}
						ctx, cancel := cut(t, d)
						if d.IntN(4) == 0 {
							mu.Lock()
							least := done
							mu.Unlock()
							last, err := c.Last(ctx)
							if errors.Is(err, zsync.ErrNoValue) {
								err = nil
							}
							mu.Lock()
							switch {
							case err != nil:
								r.mayFail("last", ctx, err)
							case last.Before(least), last.After(maybe):
								t.Errorf("Last is %v; want from %v to %v", last.Sub(begun), least.Sub(begun), maybe.Sub(begun))
							default:
								latest(&done, last)
							}
							mu.Unlock()
							cancel()
							continue
						}
						at, ms, fails, ran := table[d.IntN(len(table))], d.IntN(15), d.IntN(3) == 0, false
						said, err := c.Do(ctx, at, func(ctx context.Context) error { ran = true; return work(ctx, at, ms, fails) })
						mu.Lock()
						switch {
						case said != ran:
							t.Errorf("Do says that its function ran: %v; it is %v", said, ran)
						case errors.Is(err, failed) != (ran && fails):
							t.Errorf("its function ran %v, failing %v, and Do returned %v", ran, fails, err)
						case err == nil && ran:
							if succeeded[at]++; succeeded[at] > 1 {
								t.Errorf("%v was done twice", at.Sub(begun))
							}
							latest(&done, at)
						case err == nil && maybe.Before(at):
							t.Errorf("%v is said to be done; the latest that can be is %v", at.Sub(begun), maybe.Sub(begun))
						case err == nil:
							latest(&done, at)
						case errors.Is(err, failed), ran && errors.Is(err, zsync.ErrLost):
						default:
							r.mayFail("do", ctx, err)
						}
						mu.Unlock()
						cancel()
						harness.Nap(d, 40)
					}
				})
			}
			if i == 0 && r.rnd.IntN(2) == 0 && !r.refuses {
				d := r.dice()
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
					defer cancel()
					// Beside Dos of any instant all is done that is left, up to the last.
					err := zsync.NewSchedule(s, "/s", zsync.WithMissed(zsync.MissedAll), zsync.WithRetries(1000, suite.Quickly)).Run(ctx, table, func(ctx context.Context, at time.Time) error {
						return work(ctx, at, d.IntN(15), d.IntN(3) == 0)
					})
					mu.Lock()
					defer mu.Unlock()
					if last := table[len(table)-1]; err != nil || maybe.Before(last) {
						t.Errorf("Run = %v; the latest that can be done is %v", err, maybe.Sub(begun))
					} else {
						latest(&done, last)
					}
				})
			}
		}
		wg.Wait()
		r.heal()
		time.Sleep(time.Minute)
		look := r.open()
		fresh := zsync.NewSchedule(look, "/s")
		last, err := fresh.Last(t.Context())
		if errors.Is(err, zsync.ErrNoValue) {
			err = nil
		}
		if err != nil || last.Before(done) || last.After(maybe) {
			t.Errorf("in the end Last is %v, %v; want from %v to %v", last.Sub(begun), err, done.Sub(begun), maybe.Sub(begun))
		}
		ran, err := fresh.Do(harness.Within(t, time.Second), time.Now(), func(context.Context) error { return nil })
		if !ran || err != nil {
			t.Errorf("in the end Do = %v, %v", ran, err)
		}
		if left := suite.ChildrenOf(t, look, "/s"); len(left) != 1 || left[0] != "last" {
			t.Errorf("left: %q", left)
		}
	})
}
