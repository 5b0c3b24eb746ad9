package otel_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/need"
	"github.com/zsync/zsync/otel"
	"github.com/zsync/zsync/zktest"
)

// A recording is all that a Telemetry exports while a scenario runs in virtual time, as the input of promtool.
type recording struct {
	t      *testing.T
	srv    *zktest.Server
	tel    *otel.Telemetry
	reader *metric.ManualReader
	began  time.Time
	every  time.Duration // between two scrapes
	n      int           // of scrapes
	series map[string][]string
}

func record(t *testing.T, srv *zktest.Server, every time.Duration) *recording {
	t.Helper()
	r := &recording{t: t, srv: srv, reader: metric.NewManualReader(), began: time.Now(), every: every, series: map[string][]string{}}
	var err error
	r.tel, err = otel.New(otel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(r.reader))))
	must(t, err)
	return r
}

// open opens a session that reports to the Telemetry.
func (r *recording) open() *zsync.Session {
	r.t.Helper()
	return r.connect(zsync.WithObserver(r.tel), zsync.WithTracer(r.tel))
}

func (r *recording) connect(opts ...zsync.Option) *zsync.Session {
	r.t.Helper()
	s, err := zsync.Connect(r.t.Context(), r.srv.Addr(), append(opts, zsync.WithDialer(r.srv.Dial))...)
	must(r.t, err)
	r.t.Cleanup(func() { s.Close() })
	return s
}

// scrape scrapes n times.
func (r *recording) scrape(n int) {
	r.t.Helper()
	for range n {
		var rm metricdata.ResourceMetrics
		must(r.t, r.reader.Collect(r.t.Context(), &rm))
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				r.note(m)
			}
		}
		r.n++
		time.Sleep(r.every)
	}
}

// note notes the points of a metric, with the names that Prometheus gives them.
func (r *recording) note(m metricdata.Metrics) {
	name := strings.ReplaceAll(m.Name, ".", "_")
	if m.Unit == "s" {
		name += "_seconds"
	}
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		if data.IsMonotonic {
			name += "_total"
		}
		for _, p := range data.DataPoints {
			r.add(name, p.Attributes, float64(p.Value))
		}
	case metricdata.Gauge[int64]:
		for _, p := range data.DataPoints {
			r.add(name, p.Attributes, float64(p.Value))
		}
	case metricdata.Gauge[float64]:
		for _, p := range data.DataPoints {
			if strings.HasSuffix(name, "_timestamp") {
				p.Value -= float64(r.began.Unix()) // the time of promtool begins at 0
			}
			r.add(name, p.Attributes, p.Value)
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			sum := uint64(0)
			for i, n := range p.BucketCounts {
				le := "+Inf"
				if i < len(p.Bounds) {
					le = strconv.FormatFloat(p.Bounds[i], 'g', -1, 64)
				}
				sum += n
				r.add(name+"_bucket", p.Attributes, float64(sum), `le="`+le+`"`)
			}
			r.add(name+"_count", p.Attributes, float64(p.Count))
			r.add(name+"_sum", p.Attributes, p.Sum)
		}
	default:
		r.t.Errorf("%s is a %T", m.Name, m.Data)
	}
}

func (r *recording) add(name string, attrs attribute.Set, value float64, labels ...string) {
	labels = append(labels, `instance="a"`, `job="zsync"`) // of the scrape
	for _, a := range attrs.ToSlice() {
		labels = append(labels, fmt.Sprintf("%s=%q", strings.ReplaceAll(string(a.Key), ".", "_"), a.Value.Emit()))
	}
	key := name + "{" + strings.Join(labels, ", ") + "}"
	for len(r.series[key]) < r.n {
		r.series[key] = append(r.series[key], "_") // it was not there
	}
	r.series[key] = append(r.series[key], strconv.FormatFloat(value, 'g', -1, 64))
}

// test is the test of promtool that the alerts named, and no others, fire in the end.
func (r *recording) test(name string, alerts ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  - name: %s\n    interval: %s\n    input_series:\n", name, r.every)
	for _, key := range slices.Sorted(maps.Keys(r.series)) {
		values := r.series[key]
		for len(values) < r.n {
			values = append(values, "_")
		}
		fmt.Fprintf(&b, "      - series: '%s'\n        values: '%s'\n", key, strings.Join(values, " "))
	}
	fmt.Fprintf(&b, "    promql_expr_test:\n      - expr: count by (alertname) (ALERTS{alertstate=\"firing\"})\n        eval_time: %s\n        exp_samples: [", r.every*time.Duration(r.n-1))
	for i, alert := range alerts {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, `{labels: '{alertname="%s"}', value: 1}`, alert)
	}
	b.WriteString("]\n")
	return b.String()
}

// The rules are tested with what the module exports, from the first event on.
func TestEachAlertFiresByWhatIsExported(t *testing.T) {
	promtool := need.Command(t, "promtool")
	type scenario struct {
		every  time.Duration
		play   func(r *recording)
		alerts []string
	}
	nothing := func(context.Context) error { return nil }
	scenarios := map[string]scenario{
		"all is well": {time.Minute, func(r *recording) {
			s := r.open()
			_, err := r.tel.Watch(s)
			must(r.t, err)
			go zsync.NewElection(s, "/e").Run(r.t.Context(), func(ctx context.Context) error { <-ctx.Done(); return nil })
			q, c := zsync.NewQueue[int](s, "/q"), zsync.NewSchedule(s, "/c")
			_, err = r.tel.WatchQueue(q)
			must(r.t, err)
			_, err = r.tel.WatchSchedule(c)
			must(r.t, err)
			for range 100 {
				must(r.t, errors.Join(zsync.NewMutex(s, "/m").Do(r.t.Context(), nothing), q.Send(r.t.Context(), 1)))
				d, err := q.Receive(r.t.Context())
				must(r.t, errors.Join(err, d.Ack(r.t.Context())))
				_, err = c.Do(r.t.Context(), time.Now(), nothing)
				must(r.t, err)
				r.scrape(1)
			}
		}, nil},
		"a hold is lost": {time.Minute, func(r *recording) {
			s := r.open()
			must(r.t, zsync.NewMutex(s, "/m").Lock(r.t.Context()))
			r.scrape(5)
			r.srv.Expire(s.ID())
			time.Sleep(time.Second)
			r.scrape(5)
		}, []string{"ZsyncHoldsLost"}},
		"a session is cut off": {time.Minute, func(r *recording) {
			s := r.connect(zsync.WithObserver(r.tel), zsync.WithTracer(r.tel), zsync.WithSessionTimeout(time.Hour))
			_, err := r.tel.Watch(s)
			must(r.t, err)
			must(r.t, zsync.NewElection(s, "/e").Campaign(r.t.Context()))
			r.scrape(5)
			r.srv.Stop()
			r.scrape(40)
		}, []string{"ZsyncHoldsExpiring"}},
		"waits are long": {time.Minute, func(r *recording) {
			s := r.open()
			m := zsync.NewMutex(s, "/m")
			for range 20 {
				must(r.t, m.Lock(r.t.Context()))
				got, other := make(chan error), zsync.NewMutex(s, "/m")
				go func() { got <- other.Lock(r.t.Context()) }()
				r.scrape(3)
				must(r.t, errors.Join(m.Unlock(), <-got, other.Unlock()))
			}
		}, []string{"ZsyncWaitsLong"}},
		"a lock is stuck": {time.Minute, func(r *recording) {
			s := r.open()
			must(r.t, zsync.NewMutex(s, "/m").Lock(r.t.Context()))
			go zsync.NewMutex(s, "/m").Lock(r.t.Context())
			r.scrape(100)
		}, []string{"ZsyncStuck"}},
		"a lock is stuck whose holder exports nothing": {time.Minute, func(r *recording) {
			must(r.t, zsync.NewMutex(r.connect(), "/m").Lock(r.t.Context()))
			go zsync.NewMutex(r.open(), "/m").Lock(r.t.Context())
			r.scrape(100)
		}, []string{"ZsyncStuck"}},
		"a barrier is closed for long": {time.Minute, func(r *recording) {
			b := zsync.NewBarrier(r.open(), "/b")
			must(r.t, b.Close(r.t.Context()))
			go b.Wait(r.t.Context())
			r.scrape(100)
		}, nil},
		"two lead": {time.Minute, func(r *recording) { // below one template, which the rule takes for one election
			s := r.open()
			must(r.t, errors.Join(zsync.NewElection(s, "/e/1").Campaign(r.t.Context()), zsync.NewElection(s, "/e/2").Campaign(r.t.Context())))
			r.scrape(5)
		}, []string{"ZsyncManyLeaders"}},
		"none leads": {time.Minute, func(r *recording) { // the leader exports nothing
			must(r.t, zsync.NewElection(r.connect(), "/e").Campaign(r.t.Context()))
			go zsync.NewElection(r.open(), "/e").Campaign(r.t.Context())
			time.Sleep(time.Second)
			r.scrape(5)
		}, []string{"ZsyncNoLeader"}},
		"a connection is lost again and again": {time.Minute, func(r *recording) {
			s := r.open()
			r.scrape(1)
			for range 13 {
				r.srv.Disconnect(s.ID())
				time.Sleep(5 * time.Second)
				r.scrape(1)
			}
		}, []string{"ZsyncReconnects"}},
		"an element is rejected": {time.Minute, func(r *recording) {
			q := zsync.NewQueue[int](r.open(), "/q")
			must(r.t, q.Send(r.t.Context(), 1))
			r.scrape(3)
			d, err := q.Receive(r.t.Context())
			must(r.t, errors.Join(err, d.Reject(r.t.Context(), "bad")))
			time.Sleep(time.Second)
			r.scrape(3)
		}, []string{"ZsyncDeadLetters"}},
		"a lock is held for longer than usual": {time.Minute, func(r *recording) {
			m := zsync.NewMutex(r.open(), "/m")
			for range 20 {
				must(r.t, m.Do(r.t.Context(), func(context.Context) error { time.Sleep(time.Second); return nil }))
				r.scrape(1)
			}
			must(r.t, m.Lock(r.t.Context()))
			r.scrape(10)
		}, []string{"ZsyncHeldLong"}},
		"a queue ages": {time.Minute, func(r *recording) {
			q := zsync.NewQueue[int](r.open(), "/q")
			_, err := r.tel.WatchQueue(q)
			must(r.t, errors.Join(err, q.Send(r.t.Context(), 1)))
			r.scrape(30)
		}, []string{"ZsyncQueueAges"}},
		"a nightly job does not run": {4 * time.Minute, func(r *recording) {
			c := zsync.NewSchedule(r.open(), "/c")
			_, err := r.tel.WatchSchedule(c)
			must(r.t, err)
			_, err = c.Do(r.t.Context(), time.Now(), nothing)
			must(r.t, err)
			r.scrape(27 * 15)
		}, []string{"ZsyncScheduleLate"}},
		"a nightly job has never run": {4 * time.Minute, func(r *recording) {
			_, err := r.tel.WatchSchedule(zsync.NewSchedule(r.open(), "/c"))
			must(r.t, err)
			r.scrape(27 * 15)
		}, []string{"ZsyncScheduleLate"}},
		"a nightly job fails": {time.Minute, func(r *recording) {
			running := make(chan struct{})
			go zsync.NewSchedule(r.open(), "/c").Do(r.t.Context(), time.Now(), func(context.Context) error {
				close(running)
				time.Sleep(3 * time.Minute)
				return errors.New("disk full")
			})
			<-running
			r.scrape(6)
		}, []string{"ZsyncScheduleFails"}},
	}
	rules, err := filepath.Abs("prometheus/zsync.yaml")
	must(t, err)
	text, err := os.ReadFile(rules)
	must(t, err)
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(text), -1) {
		if !slices.ContainsFunc(slices.Collect(maps.Values(scenarios)), func(s scenario) bool { return slices.Contains(s.alerts, m[1]) }) {
			t.Errorf("no scenario is for %s", m[1])
		}
	}
	tests := map[string]string{}
	for name, s := range scenarios {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				r := record(t, srv, s.every)
				s.play(r)
				tests[name] = r.test(name, s.alerts...)
			}, zktest.WithSessionTimeouts(time.Second, time.Hour))
		})
	}
	all := "rule_files:\n  - " + rules + "\nevaluation_interval: 1m\ntests:\n"
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		all += tests[name]
	}
	file := filepath.Join(t.TempDir(), "alerts_test.yaml")
	must(t, os.WriteFile(file, []byte(all), 0o600))
	if out, err := exec.Command(promtool, "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}
