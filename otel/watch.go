package otel

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/zsync/zsync"
)

// This file reports values that no event has: it reads them from Sessions and servers at each
// collection of metrics. Metrics of events are in otel.go.

// A Queue is any [zsync.Queue].
type Queue interface {
	Path() string
	Stats(ctx context.Context) (zsync.QueueStats, error)
}

// collecting is the time limit for the requests of one collection. atOnce is the largest number of
// queues, or schedules, that a collection reads at the same time.
const (
	collecting = 5 * time.Second
	atOnce     = 8
)

// The type `watch` has the Sessions, queues and schedules that each collection reads. If several
// queues, or schedules, have one path, it reads only the first.
type watch struct {
	sessions  []*zsync.Session
	queues    []Queue
	schedules []watched
}

// A watched schedule is watched since a time.
type watched struct {
	*zsync.Schedule
	since time.Time
}

// Watch reports the margin of s, and how many of its holds are near their end, until stop is
// called. It reports no margin while s holds nothing. For several Sessions, the metrics are the
// lowest margin and the total of these holds.
func (t *Telemetry) Watch(s *zsync.Session) (stop func() error, err error) {
	if s == nil {
		return nil, errors.New("zsync/otel: the session is nil")
	}
	return add(t, &t.watch.sessions, s), nil
}

// WatchQueue reports the length and the age of q until stop is called. Each collection of metrics
// calls Stats. Call WatchQueue in one process, or in few, because all processes report the same
// numbers.
func (t *Telemetry) WatchQueue(q Queue) (stop func() error, err error) {
	if q == nil {
		return nil, errors.New("zsync/otel: the queue is nil")
	}
	return add(t, &t.watch.queues, q), nil
}

// WatchSchedule reports the last instant of c that was done, until stop is called. Before the first
// success it reports the time of the call of WatchSchedule, so a job that never succeeds looks late,
// too. Each collection of metrics costs two requests.
func (t *Telemetry) WatchSchedule(c *zsync.Schedule) (stop func() error, err error) {
	if c == nil {
		return nil, errors.New("zsync/otel: the schedule is nil")
	}
	return add(t, &t.watch.schedules, watched{c, time.Now()}), nil
}

// The function `add` adds x to a list of t.watch, until remove is called.
func add[T comparable](t *Telemetry, list *[]T, x T) (remove func() error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	*list = append(*list, x)
	var once sync.Once
	return func() error {
		once.Do(func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			var others []T // a new array: a collection may be reading the old one
			removed := false
			for _, y := range *list {
				if y == x && !removed {
					removed = true
					continue
				}
				others = append(others, y)
			}
			*list = others
		})
		return nil
	}
}

// The method `collect` is the callback of all observable metrics.
func (t *Telemetry) collect(ctx context.Context, o metric.Observer) error {
	t.mu.Lock()
	w := t.watch
	ages := map[attribute.Set]time.Duration{}
	for h := range t.held {
		ages[h.attrs] = max(ages[h.attrs], time.Since(h.since))
	}
	t.mu.Unlock()
	for attrs, age := range ages {
		o.ObserveFloat64(t.holdAge, age.Seconds(), metric.WithAttributeSet(attrs))
	}
	t.collectSessions(o, w.sessions)
	ctx, cancel := context.WithTimeout(ctx, collecting)
	defer cancel()
	t.collectQueues(ctx, o, w.queues)
	t.collectSchedules(ctx, o, w.schedules)
	return nil
}

func (t *Telemetry) collectSessions(o metric.Observer, sessions []*zsync.Session) {
	lowest, held := time.Duration(0), false
	expiring := 0
	for _, s := range sessions {
		holds, margin := s.Stats().Holds, s.Margin()
		if holds == 0 {
			continue
		}
		if !held || margin < lowest {
			lowest, held = margin, true
		}
		if margin < s.Timeout()/4 {
			expiring += int(holds)
		}
	}
	if held {
		o.ObserveFloat64(t.margin, lowest.Seconds())
	}
	if len(sessions) > 0 {
		o.ObserveInt64(t.expiring, int64(expiring))
	}
}

// collectQueues reports the total length of the queues of each template, and the age of their
// oldest element.
func (t *Telemetry) collectQueues(ctx context.Context, o metric.Observer, queues []Queue) {
	type sum struct {
		ready, claimed, delayed, dead int
		age                           time.Duration
	}
	var mu sync.Mutex
	sums := map[attribute.KeyValue]sum{}
	each(firstOfPath(queues), func(q Queue) {
		st, err := q.Stats(ctx)
		if err != nil {
			return // leave the queue out; the log of the Session has the reason
		}
		path := t.path(q.Path())
		mu.Lock()
		defer mu.Unlock()
		s := sums[path]
		s.ready, s.claimed, s.delayed, s.dead = s.ready+st.Ready, s.claimed+st.Claimed, s.delayed+st.Delayed, s.dead+st.Dead
		if !st.Oldest.IsZero() {
			s.age = max(s.age, time.Since(st.Oldest))
		}
		sums[path] = s
	})
	for path, s := range sums {
		for state, n := range map[string]int{"ready": s.ready, "claimed": s.claimed, "delayed": s.delayed, "dead": s.dead} {
			o.ObserveInt64(t.length, int64(n), metric.WithAttributes(path, attribute.String("zsync.state", state)))
		}
		o.ObserveFloat64(t.age, s.age.Seconds(), metric.WithAttributes(path))
	}
}

// Each schedule has a last success. collectSchedules reports the oldest of these, for each
// template.
func (t *Telemetry) collectSchedules(ctx context.Context, o metric.Observer, schedules []watched) {
	var mu sync.Mutex
	lasts := map[attribute.KeyValue]time.Time{}
	each(firstOfPath(schedules), func(c watched) {
		last, err := c.Last(ctx)
		if errors.Is(err, zsync.ErrNoValue) {
			last, err = c.since, nil
		}
		if err != nil {
			return
		}
		path := t.path(c.Path())
		mu.Lock()
		defer mu.Unlock()
		if old, ok := lasts[path]; !ok || last.Before(old) {
			lasts[path] = last
		}
	})
	for path, last := range lasts {
		o.ObserveFloat64(t.lastSuccess, float64(last.UnixMilli())/1000, metric.WithAttributes(path))
	}
}

// For each path, firstOfPath returns the first element with that path.
func firstOfPath[T interface{ Path() string }](all []T) (first []T) {
	seen := map[string]bool{}
	for _, x := range all {
		if !seen[x.Path()] {
			seen[x.Path()] = true
			first = append(first, x)
		}
	}
	return first
}

// The function `each` calls f for each element, up to atOnce calls at the same time.
func each[T any](all []T, f func(T)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, x := range all {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(x)
		})
	}
	wg.Wait()
}
