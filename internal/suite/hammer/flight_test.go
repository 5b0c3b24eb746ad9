package hammer

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// The functions of Flights that fail return it.
var errFlight = errors.New("the function failed")

// An execution is one run of a function of a Flight. All of it but what it is made
// with is guarded by flights.mu.
type execution struct {
	key       string
	v         int // what it returns
	began     time.Time
	ended     time.Time // zero while it runs
	succeeded bool
	told      time.Time // when its own Do returned; zero before
	certain   bool      // its own Do has returned no error, so it is stored
	late      bool      // it began when its session had ended: it was not told yet, or at this instant
}

// flights is all that is known of the executions at one path.
type flights struct {
	path  string
	keep  time.Duration
	rooms map[string]*floor // of each key, where one may be at a time

	late   time.Duration      // a Do whose context has ended returns by then
	losses []zsync.LossReason // that can be

	mu  sync.Mutex
	all []*execution // by what they return; guarded by mu
}

const (
	// Two clocks are compared, of which the servers' shows whole milliseconds.
	tick = 2 * time.Millisecond
	// Who has waited for so long waits for ever.
	forEver = 20 * time.Minute
)

var flightKeys = []string{"a", "b/%", ""}

func newFlights(path string, keep, late time.Duration, stands func(session int64) bool) *flights {
	l := &flights{path: path, keep: keep, late: late, rooms: make(map[string]*floor), losses: []zsync.LossReason{zsync.LossExpired, zsync.LossCutOff}}
	for _, key := range flightKeys {
		l.rooms[key] = &floor{stands: stands}
	}
	return l
}

// begin notes that the function of a call that came then begins. It need not, if
// the result of another was kept from before the call until now.
func (l *flights) begin(t *testing.T, key string, came time.Time, late bool) *execution {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := &execution{key: key, v: len(l.all), began: time.Now(), late: late}
	for _, o := range l.all {
		if o.key == key && o.certain && !o.told.After(came) && x.began.Before(o.ended.Add(l.keep-tick)) {
			t.Errorf("%q runs %v after a result was stored that is kept for %v", key, x.began.Sub(o.ended), l.keep)
		}
	}
	l.all = append(l.all, x)
	return x
}

func (l *flights) end(x *execution, succeeded bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x.ended, x.succeeded = time.Now(), succeeded
}

// returned notes that the Do of x has returned, and whether with success. Whose
// result is stored held the key all the time, whatever the servers thought of its
// session meanwhile: nobody else began, but who had been granted the key before, in a
// session that others have ended.
func (l *flights) returned(t *testing.T, x *execution, certain bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x.told, x.certain = time.Now(), certain
	for _, o := range l.all {
		if x.certain && o != x && !o.late && o.key == x.key && !o.began.Before(x.began) && o.began.Before(x.ended) {
			t.Errorf("%q: %d is stored, and %d began while it ran", x.key, x.v, o.v)
		}
	}
}

// shared checks the result of another that was given to a call that came then.
func (l *flights) shared(t *testing.T, key string, v int, came time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v < 0 || v >= len(l.all) || l.all[v].key != key || !l.all[v].succeeded {
		t.Errorf("%q: shared is %d, which no function of it has returned with success", key, v)
		return
	}
	x := l.all[v]
	stored := x.told // at the latest
	if !x.certain {
		stored = stored.Add(2 * harness.Timeout) // what was on its way arrives until its session ends
	}
	if !x.told.IsZero() && came.Sub(stored) > l.keep+tick {
		t.Errorf("%q: shared is what was stored %v before the call, and kept for %v", key, came.Sub(stored), l.keep)
	}
}

// function returns one that fails or panics at times, and does not always care
// about its context.
func (l *flights) function(t *testing.T, s *zsync.Session, rnd *rand.Rand, x **execution, key string, came time.Time, pause time.Duration) (f func(ctx context.Context) (int, error), fails, panics bool) {
	work, stubborn := time.Duration(rnd.Int64N(int64(pause))), rnd.IntN(3) == 0
	fails, panics = rnd.IntN(6) == 0, rnd.IntN(12) == 0
	return func(ctx context.Context) (int, error) {
		if *x != nil {
			t.Errorf("%q: the function of one call runs twice", key)
		}
		*x = l.begin(t, key, came, ctx.Err() != nil || !l.rooms[key].stands(s.ID()))
		v := &visit{write: true, session: s.ID(), lost: ctx.Done()}
		l.rooms[key].enter(t, v)
		end := ctx.Done()
		if stubborn {
			end = nil
		}
		select {
		case <-time.After(work):
		case <-end:
		}
		l.rooms[key].leave(v)
		l.end(*x, !fails && !panics)
		switch {
		case panics:
			panic(*x)
		case fails:
			return (*x).v, errFlight
		}
		return (*x).v, nil
	}, fails, panics
}

// call calls Do once, and checks whatever comes of it.
func (l *flights) call(t *testing.T, s *zsync.Session, f *zsync.Flight[int], rnd *rand.Rand, key string, patience, pause time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	came := time.Now()
	var x *execution
	fn, fails, panics := l.function(t, s, rnd, &x, key, came, pause)
	v, shared, thrown, err := doFlight(ctx, f, key, fn)
	if x != nil {
		l.returned(t, x, err == nil && thrown == nil)
	}
	var lost *zsync.LostError
	switch {
	case thrown != nil || x != nil && panics:
		if !panics || thrown != x {
			t.Errorf("%q: Do panics with %v, and its function with %v", key, thrown, x)
		}
	case x != nil && (shared || v != x.v):
		t.Errorf("%q: its function returned %d, and Do %d, %v, %v", key, x.v, v, shared, err)
	case errors.Is(err, errFlight) != (x != nil && fails):
		t.Errorf("%q: its function was %+v, and Do returned %v", key, x, err)
	case err == nil && shared:
		l.shared(t, key, v, came)
	case err == nil && x == nil:
		t.Errorf("%q: Do returns %d of its own, and its function did not run", key, v)
	case err == nil, errors.Is(err, errFlight):
	case errors.Is(err, zsync.ErrLost) && x != nil:
		if !errors.As(err, &lost) || !slices.Contains(l.losses, lost.Reason) {
			t.Errorf("%q: a loss is told as %#v", key, err)
		}
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil && patience < forEver:
	default:
		t.Errorf("%q: %v", key, err)
	}
	over := came.Add(patience)
	if x != nil && x.ended.After(over) {
		over = x.ended
	}
	if late := time.Since(over); late > l.late {
		t.Errorf("%q: Do returned %v after its context had ended", key, late)
	}
}

// doFlight is Do, and what it panics with.
func doFlight(ctx context.Context, f *zsync.Flight[int], key string, fn func(ctx context.Context) (int, error)) (v int, shared bool, thrown any, err error) {
	defer func() { thrown = recover() }()
	v, shared, err = f.Do(ctx, key, fn)
	return
}

// hammer calls f for one key or another.
func (l *flights) hammer(t *testing.T, s *zsync.Session, f *zsync.Flight[int], rnd *rand.Rand, loops int, pause time.Duration) {
	for range loops {
		patience := forEver
		if rnd.IntN(3) == 0 {
			patience = time.Duration(rnd.Int64N(int64(10 * pause)))
		}
		l.call(t, s, f, rnd, flightKeys[rnd.IntN(len(flightKeys))], patience, pause)
		time.Sleep(time.Duration(rnd.Int64N(int64(2 * pause)))) // real time: the pause between calls, also on real servers
	}
}

// TestHammerFlight: one function of a key runs at a time, of those who have not lost
// it; each caller gets what a function returned that ran during the call or was
// stored less than keep before; what is kept is not computed again; errors, panics
// and losses are those of the caller's own function; nobody waits for ever.
func TestHammerFlight(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		var sessions []*zsync.Session
		for range 3 {
			sessions = append(sessions, suite.Open(t, srv, zsync.WithSessionTimeout(time.Duration(2+rnd.IntN(8))*time.Second)))
		}
		keep := []time.Duration{0, time.Second, 10 * time.Second}[rnd.IntN(3)]
		l := newFlights("/f", keep, time.Second, harness.Standing(srv))
		var wg sync.WaitGroup
		for _, s := range sessions {
			f := zsync.NewFlight[int](s, l.path, keep)
			for range 4 {
				src := rand.New(rand.NewPCG(rnd.Uint64(), 3))
				wg.Go(func() { l.hammer(t, s, f, src, 8, time.Second) })
			}
		}
		harness.UnderChaos(t, srv, rnd, sessions, wg.Wait)
		time.Sleep(time.Minute)
		l.allAtOnce(t, sessions)
		l.wantSwept(t, srv)
		wantNothingHeld(t, sessions)
	})
}

// allAtOnce wants one execution when all come while it runs.
func (l *flights) allAtOnce(t *testing.T, sessions []*zsync.Session) {
	t.Helper()
	var ran, shares sync.Map
	var wg sync.WaitGroup
	for i := range 4 * len(sessions) {
		f := zsync.NewFlight[int](sessions[i%len(sessions)], l.path, l.keep)
		wg.Go(func() {
			v, shared, err := f.Do(t.Context(), "all", func(context.Context) (int, error) {
				time.Sleep(time.Second)
				ran.Store(i, true)
				return i, nil
			})
			if err != nil {
				t.Error(err)
			}
			shares.Store(v, true)
			if _, own := ran.Load(i); own == shared {
				t.Errorf("call %d ran %v, and shared is %v", i, own, shared)
			}
		})
	}
	wg.Wait()
	if n, results := count(&ran), count(&shares); n != 1 || results != 1 {
		t.Errorf("%d functions ran, and callers got %d results", n, results)
	}
}

func count(m *sync.Map) (n int) {
	m.Range(func(any, any) bool { n++; return true })
	return n
}

// wantSwept wants no result to be left when its time is over, and somebody has
// looked after those of sessions that are gone.
func (l *flights) wantSwept(t *testing.T, srv *zktest.Server) {
	t.Helper()
	fresh := suite.Open(t, srv)
	f := zsync.NewFlight[int](fresh, l.path, l.keep)
	for range 2 {
		time.Sleep(time.Minute)
		_, _, err := f.Do(t.Context(), "last", func(context.Context) (int, error) { return -1, nil })
		harness.Must(t, err)
	}
	time.Sleep(time.Minute)
	c := harness.Plain(t, srv)
	for _, dir := range harness.Children(t, c, l.path) {
		if names := harness.Children(t, c, l.path+"/"+dir); len(names) > 0 {
			t.Errorf("left of %q: %v", dir, names)
		}
	}
}

func TestHammerFlightOnServers(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		l := newFlights("/f", 200*time.Millisecond, 20*time.Second, stands)
		l.losses = append(l.losses, zsync.LossPaused) // a machine may stop for a while
		var wg sync.WaitGroup
		until := time.Now().Add(time.Minute)
		for i := range 4 {
			s := connect()
			f := zsync.NewFlight[int](s, l.path, l.keep)
			for j := range 4 {
				src := rand.New(rand.NewPCG(uint64(i), uint64(j)))
				wg.Go(func() {
					for time.Now().Before(until) {
						l.hammer(t, s, f, src, 10, 50*time.Millisecond)
					}
				})
			}
		}
		wg.Wait()
	})
}
