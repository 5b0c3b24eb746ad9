package otel_test

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/need"
	"github.com/zsync/zsync/otel"
	"github.com/zsync/zsync/zktest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// granted is how long sessions live without a word: longer than a busy machine stands still.
const granted = time.Minute

var sessions = zktest.WithSessionTimeouts(granted, granted)

// drive has two sessions do a bit of everything; one lock is waited for, and one
// leadership is lost.
func drive(t *testing.T, tel *otel.Telemetry) {
	t.Helper()
	srv := zktest.Start(t, sessions)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	open := func(owner string) *zsync.Session {
		s, err := zsync.Connect(ctx, srv.Addr(), zsync.WithObserver(tel), zsync.WithTracer(tel), zsync.WithOwner(owner))
		must(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	a, b := open("a"), open("b")
	stop, err := tel.Watch(a)
	must(t, err)
	t.Cleanup(func() { _ = stop() })

	held := zsync.NewMutex(a, "/orders/4711/lock")
	must(t, held.Lock(ctx))
	got := make(chan error, 1)
	go func() {
		m := zsync.NewMutex(b, "/orders/4711/lock")
		err := m.Lock(ctx)
		if err == nil {
			err = m.Unlock()
		}
		got <- err
	}()
	await(t, func() error {
		if cs, err := held.Contenders(ctx); err != nil || len(cs) != 2 {
			return fmt.Errorf("in the line: %v, %v; want two", cs, err)
		}
		return nil
	})
	must(t, held.Unlock())
	must(t, <-got)

	q := zsync.NewQueue[string](a, "/jobs")
	must(t, q.Send(ctx, "one", "two"))
	d, err := q.Receive(ctx)
	must(t, err)
	must(t, d.Ack(ctx))
	_, err = tel.WatchQueue(q)
	must(t, err)
	_, err = tel.WatchQueue(zsync.NewQueue[int](b, "/jobs")) // reported once
	must(t, err)
	nightly := zsync.NewSchedule(b, "/nightly")
	_, err = tel.WatchSchedule(nightly)
	must(t, err)
	_, err = nightly.Do(ctx, time.Unix(1e9, 0), func(context.Context) error { return nil })
	must(t, err)
	_, err = nightly.Do(ctx, time.Unix(2e9, 0), func(context.Context) error { return errors.New("disk full") })
	if err == nil {
		t.Error("a failure is none")
	}

	kept := zsync.NewMutex(a, "/kept/550e8400-e29b-41d4-a716-446655440000")
	must(t, kept.Lock(ctx))
	leader := zsync.NewElection(b, "/leader")
	must(t, leader.Campaign(ctx))
	srv.Disconnect(a.ID())
	srv.Expire(b.ID())
	<-leader.Lost()
	await(t, func() error {
		if a.Stats().Reconnects == 0 || b.Stats().Expiries == 0 {
			return errors.New("no session has come back")
		}
		return nil
	})
}

// await waits until what is wrong is nothing: ends are told in another goroutine.
func await(t *testing.T, wrong func() error) {
	t.Helper()
	// real time: the exporter has goroutines of its own
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		err := wrong()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// A point is a data point: what it counts, and its attributes as text.
type point struct {
	value float64
	attrs string
}

func points(t *testing.T, rm *metricdata.ResourceMetrics) map[string][]point {
	t.Helper()
	all := make(map[string][]point)
	text := func(set attribute.Set) string { return set.Encoded(attribute.DefaultEncoder()) }
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					all[m.Name] = append(all[m.Name], point{float64(p.Value), text(p.Attributes)})
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					all[m.Name] = append(all[m.Name], point{float64(p.Value), text(p.Attributes)})
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					all[m.Name] = append(all[m.Name], point{p.Value, text(p.Attributes)})
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					all[m.Name] = append(all[m.Name], point{float64(p.Count), text(p.Attributes)})
				}
			default:
				t.Errorf("%s is a %T", m.Name, m.Data)
			}
		}
	}
	return all
}

func TestMetricsAndSpansTellWhatHappened(t *testing.T) {
	reader := metric.NewManualReader()
	spans := tracetest.NewInMemoryExporter()
	tp := trace.NewTracerProvider(trace.WithSyncer(spans))
	tel, err := otel.New(otel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))), otel.WithTracerProvider(tp))
	must(t, err)
	drive(t, tel)
	wants := []struct {
		name, attrs string // parts of the attributes
		value       float64
	}{
		{"zsync.acquire.duration", "zsync.kind=mutex,zsync.op=lock,zsync.outcome=acquired,zsync.path.template=/orders/*/lock", 2},
		{"zsync.hold.duration", "zsync.outcome=released,zsync.path.template=/orders/*/lock", 2},
		{"zsync.hold.duration", "zsync.kind=election,zsync.op=campaign,zsync.outcome=lost", 1},
		{"zsync.holds", "zsync.path.template=/orders/*/lock", 0},
		{"zsync.holds", "zsync.path.template=/kept/*", 1},
		{"zsync.waiters", "zsync.path.template=/orders/*/lock", 0},
		{"zsync.losses", "zsync.kind=election,zsync.op=campaign,zsync.path.template=/leader,zsync.reason=expired", 1},
		{"zsync.leader", "zsync.path.template=/leader", 0},
		{"zsync.reconnects", "", 1},
		{"zsync.expiries", "zsync.reason=expired", 1},
		{"messaging.client.sent.messages", "messaging.destination.template=/jobs,messaging.operation.name=send,messaging.system=zsync", 2},
		{"messaging.client.consumed.messages", "messaging.operation.name=receive", 1},
		{"messaging.client.operation.duration", "messaging.operation.name=ack", 1},
		{"zsync.queue.length", "zsync.path.template=/jobs,zsync.state=ready", 1},
		{"zsync.queue.length", "zsync.path.template=/jobs,zsync.state=dead", 0},
		{"zsync.schedule.running", "zsync.path.template=/nightly", 0},
		{"zsync.schedule.failures", "zsync.path.template=/nightly", 1},
		{"zsync.schedule.last_success_timestamp", "zsync.path.template=/nightly", 1e9},
	}
	var all map[string][]point
	await(t, func() error {
		var rm metricdata.ResourceMetrics
		must(t, reader.Collect(t.Context(), &rm))
		all = points(t, &rm)
		for _, w := range wants {
			i := slices.IndexFunc(all[w.name], func(p point) bool { return strings.Contains(p.attrs, w.attrs) })
			if i < 0 || all[w.name][i].value != w.value {
				return fmt.Errorf("%s{%s}: %v; want %v", w.name, w.attrs, all[w.name], w.value)
			}
		}
		for _, name := range []string{"zsync.hold.age", "zsync.queue.age"} {
			if m := all[name]; len(m) != 1 || m[0].value < 0 || m[0].value > 300 {
				return fmt.Errorf("%s: %v", name, m)
			}
		}
		return nil
	})
	if n := len(all["zsync.queue.length"]); n != 4 {
		t.Errorf("zsync.queue.length: %v", all["zsync.queue.length"])
	}
	if m := all["zsync.session.margin"]; len(m) != 1 || m[0].value <= 0 || m[0].value > granted.Seconds() {
		t.Errorf("zsync.session.margin: %v", m)
	}
	if !linked(t, spans.GetSpans().Snapshots()) {
		t.Error("no span of a waiter is linked to that of the holder")
	}
}

// linked reports whether an acquisition is linked to the hold that it waited for.
func linked(t *testing.T, spans []trace.ReadOnlySpan) bool {
	for _, s := range spans {
		for _, l := range s.Links() {
			for _, h := range spans {
				if h.SpanContext().Equal(l.SpanContext) && h.Name() == "hold /orders/*/lock" && s.Name() == "lock /orders/*/lock" {
					return h.StartTime().Before(s.StartTime())
				}
			}
		}
	}
	return false
}

func TestTheFunctionOfDoIsInTheSpanOfTheHold(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	tp := trace.NewTracerProvider(trace.WithSyncer(spans))
	tel, err := otel.New(otel.WithTracerProvider(tp))
	must(t, err)
	srv := zktest.Start(t, sessions)
	s, err := zsync.Connect(t.Context(), srv.Addr(), zsync.WithObserver(tel), zsync.WithTracer(tel))
	must(t, err)
	defer s.Close()
	root, outer := tp.Tracer("test").Start(t.Context(), "request")
	must(t, zsync.NewMutex(s, "/m").Do(root, func(ctx context.Context) error {
		_, inner := tp.Tracer("test").Start(ctx, "work")
		inner.End()
		return nil
	}))
	outer.End()
	must(t, s.Close()) // when all is told
	byName := make(map[string]tracetest.SpanStub)
	for _, s := range spans.GetSpans() {
		byName[s.Name] = s
	}
	for child, parent := range map[string]string{"lock /m": "request", "hold /m": "request", "work": "hold /m"} {
		if byName[child].Parent.SpanID() != byName[parent].SpanContext.SpanID() || !byName[parent].SpanContext.IsValid() {
			t.Errorf("%q is not a child of %q", child, parent)
		}
	}
}

func TestTemplateTakesOutWhatVaries(t *testing.T) {
	for path, want := range map[string]string{
		"/locks/accounts":   "/locks/accounts",
		"/orders/4711/lock": "/orders/*/lock",
		"/shards/shard-12":  "/shards/shard-*",
		"/":                 "/",
		"/x/550e8400-e29b-41d4-a716-446655440000/y": "/x/*/y",
		"/x/550e8400e29b41d4a716446655440000":       "/x/*",
	} {
		if got := otel.Template(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// A collector takes OTLP over HTTP.
type collector struct {
	mu      sync.Mutex
	metrics map[string]bool
	spans   map[string]string   // name by span id
	links   map[string][]string // ids by the name of the span
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		var err error
		if body, err = gzip.NewReader(body); err != nil {
			http.Error(w, err.Error(), 400)
			return
		}
	}
	data, err := io.ReadAll(body)
	var m colmetrics.ExportMetricsServiceRequest
	var s coltrace.ExportTraceServiceRequest
	var reply proto.Message = &colmetrics.ExportMetricsServiceResponse{}
	switch {
	case err != nil:
	case r.URL.Path == "/v1/metrics":
		err = proto.Unmarshal(data, &m)
	default:
		reply = &coltrace.ExportTraceServiceResponse{}
		err = proto.Unmarshal(data, &s)
	}
	if err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rm := range m.ResourceMetrics {
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				c.metrics[m.Name] = true
			}
		}
	}
	for _, rs := range s.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			for _, span := range ss.Spans {
				c.spans[string(span.SpanId)] = span.Name
				for _, l := range span.Links {
					c.links[span.Name] = append(c.links[span.Name], string(l.SpanId))
				}
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	out, _ := proto.Marshal(reply)
	_, _ = w.Write(out)
}

// metricNames are those of the package comment.
func metricNames(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("otel.go")
	must(t, err)
	var names []string
	for _, m := range regexp.MustCompile(`(?:observed|counted|histogram|counter|gauge)\("([a-z_.]+)"`).FindAllSubmatch(text, -1) {
		names = append(names, string(m[1]))
	}
	if len(names) < 20 {
		t.Fatalf("names: %q", names)
	}
	for _, n := range names {
		if strings.Count(string(text), n) < 2 {
			t.Errorf("%s is not in the package comment", n)
		}
	}
	return names
}

func TestACollectorReceivesMetricsAndLinkedSpans(t *testing.T) {
	c := &collector{metrics: map[string]bool{}, spans: map[string]string{}, links: map[string][]string{}}
	server := httptest.NewServer(c)
	defer server.Close()
	ctx := t.Context()
	me, err := otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(server.URL+"/v1/metrics"))
	must(t, err)
	te, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(server.URL+"/v1/traces"))
	must(t, err)
	mp := metric.NewMeterProvider(metric.WithReader(metric.NewPeriodicReader(me)))
	tp := trace.NewTracerProvider(trace.WithBatcher(te))
	tel, err := otel.New(otel.WithMeterProvider(mp), otel.WithTracerProvider(tp))
	must(t, err)
	drive(t, tel)
	await(t, func() error {
		must(t, mp.ForceFlush(ctx))
		must(t, tp.ForceFlush(ctx))
		return c.lacks(metricNames(t))
	})
	must(t, mp.Shutdown(ctx))
	must(t, tp.Shutdown(ctx))
}

// lacks says what c has not received of these metrics, but for what the test does
// not bring about, and of the spans.
func (c *collector) lacks(names []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		if name != "zsync.dead_letters" && !c.metrics[name] { // nothing was buried
			return fmt.Errorf("the collector has not received %s", name)
		}
	}
	for _, id := range c.links["lock /orders/*/lock"] {
		if c.spans[id] == "hold /orders/*/lock" {
			return nil
		}
	}
	return fmt.Errorf("links %v among spans %v", c.links, c.spans)
}

// prometheusName is what Prometheus calls a metric of OpenTelemetry.
func prometheusNames(name string) []string {
	n := strings.ReplaceAll(name, ".", "_")
	return []string{
		n + "_seconds_bucket", n + "_seconds_count", n + "_seconds_sum", // histograms
		n + "_seconds", n + "_total", n,
	}
}

var ours = regexp.MustCompile(`\b(?:zsync|messaging)_[a-z_]+\b`)

// known checks each metric that an expression names.
func known(t *testing.T, where, expr string) (n int) {
	t.Helper()
	expr = regexp.MustCompile(`\{[^}]*\}|by ?\([^)]*\)`).ReplaceAllString(expr, "") // labels
	for _, name := range ours.FindAllString(expr, -1) {
		n++
		if !slices.ContainsFunc(metricNames(t), func(m string) bool { return slices.Contains(prometheusNames(m), name) }) {
			t.Errorf("%s names %s, which is no metric", where, name)
		}
	}
	return n
}

func TestTheDashboardLoadsAndNamesMetricsThatExist(t *testing.T) {
	names, err := filepath.Glob("grafana/*.json")
	must(t, err)
	for _, name := range names {
		text, err := os.ReadFile(name)
		must(t, err)
		var d struct {
			Title  string
			UID    string
			Panels []struct {
				ID      int
				Title   string
				Type    string
				GridPos struct{ H, W, X, Y int }
				Targets []struct{ Expr string }
			}
		}
		must(t, json.Unmarshal(text, &d))
		seen, ids := 0, map[int]bool{}
		for _, p := range d.Panels {
			if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 || p.Title == "" {
				t.Errorf("panel %+v", p)
			}
			ids[p.ID] = true
			for _, target := range p.Targets {
				seen += known(t, p.Title, target.Expr)
			}
		}
		if d.Title == "" || d.UID == "" || seen < 8 {
			t.Errorf("%s: %d metrics", name, seen)
		}
	}
	if len(names) == 0 {
		t.Error("no dashboard")
	}
}

func TestTheAlertRulesAreRightAndNameMetricsThatExist(t *testing.T) {
	names, err := filepath.Glob("prometheus/*.yaml")
	must(t, err)
	seen := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.yaml") {
			continue
		}
		text, err := os.ReadFile(name)
		must(t, err)
		for _, m := range regexp.MustCompile(`(?m)^\s+expr: (.*)$`).FindAllStringSubmatch(string(text), -1) {
			seen += known(t, name, m[1])
		}
	}
	if seen < 4 {
		t.Errorf("%d metrics in rules", seen)
	}
	promtool := need.Command(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "prometheus/zsync.yaml"}, {"test", "rules", "prometheus/zsync_test.yaml"}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// Sixty keys of a Flight, and locks of any name, do not make as many time series.
func TestPathsBeyondTheBoundAreOther(t *testing.T) {
	reader := metric.NewManualReader()
	tel, err := otel.New(otel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))), otel.WithMaxPaths(3))
	must(t, err)
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "a"} {
		op := zsync.Op{Kind: zsync.OpHold, Primitive: "mutex", Name: "lock", Path: "/locks/" + name}
		tel.End(tel.Start(t.Context(), op), op, nil)
	}
	var rm metricdata.ResourceMetrics
	must(t, reader.Collect(t.Context(), &rm))
	seen := map[string]float64{}
	for _, p := range points(t, &rm)["zsync.hold.duration"] {
		seen[p.attrs] += p.value
	}
	want := map[string]float64{}
	for path, n := range map[string]float64{"/locks/a": 2, "/locks/b": 1, "/locks/c": 1, "other": 3} {
		want["zsync.kind=mutex,zsync.op=lock,zsync.outcome=released,zsync.path.template="+path] = n
	}
	if !maps.Equal(seen, want) {
		t.Errorf("%v, want %v", seen, want)
	}
	if _, err := otel.New(otel.WithMaxPaths(0)); err == nil {
		t.Error("WithMaxPaths(0) is taken")
	}
}

func TestAPathTemplateOfTheProgramNamesThePaths(t *testing.T) {
	reader := metric.NewManualReader()
	template := func(path string) string { return "/tenants" + path[strings.LastIndex(path, "/"):] }
	tel, err := otel.New(otel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))), otel.WithPathTemplate(template))
	must(t, err)
	for _, path := range []string{"/t/acme/lock", "/t/umbrella/lock"} {
		op := zsync.Op{Kind: zsync.OpHold, Primitive: "mutex", Name: "lock", Path: path}
		tel.End(tel.Start(t.Context(), op), op, nil)
	}
	var rm metricdata.ResourceMetrics
	must(t, reader.Collect(t.Context(), &rm))
	seen := map[string]float64{}
	for _, p := range points(t, &rm)["zsync.hold.duration"] {
		seen[p.attrs] += p.value
	}
	want := map[string]float64{"zsync.kind=mutex,zsync.op=lock,zsync.outcome=released,zsync.path.template=/tenants/lock": 2}
	if !maps.Equal(seen, want) {
		t.Errorf("%v, want %v", seen, want)
	}
	if _, err := otel.New(otel.WithPathTemplate(nil)); err == nil {
		t.Error("WithPathTemplate(nil) is taken")
	}
}

// Prometheus' increase is blind for the first event of a counter that begins with it.
func TestCountersBeginAtZero(t *testing.T) {
	reader := metric.NewManualReader()
	tel, err := otel.New(otel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))))
	must(t, err)
	hold := zsync.Op{Kind: zsync.OpHold, Primitive: "mutex", Name: "lock", Path: "/m"}
	send := zsync.Op{Kind: zsync.OpQueue, Primitive: "queue", Name: "send", Path: "/q"}
	tel.Start(t.Context(), hold)
	tel.Start(t.Context(), send)
	var rm metricdata.ResourceMetrics
	must(t, reader.Collect(t.Context(), &rm))
	all := points(t, &rm)
	for name, n := range map[string]int{"zsync.losses": 8, "zsync.dead_letters": 1, "zsync.reconnects": 1, "zsync.expiries": 8} {
		if len(all[name]) != n {
			t.Errorf("%s has %d series, want %d: %v", name, len(all[name]), n, all[name])
		}
		for _, p := range all[name] {
			if p.value != 0 {
				t.Errorf("%s begins with %v", name, p)
			}
		}
	}
}

// A test of a rule is worth nothing if it feeds series that are never exported.
func TestTheSeriesOfTheRuleTestsHaveTheLabelsThatAreExported(t *testing.T) {
	reader := metric.NewManualReader()
	tel, err := otel.New(otel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))))
	must(t, err)
	drive(t, tel)
	var rm metricdata.ResourceMetrics
	must(t, reader.Collect(t.Context(), &rm))
	exported := map[string]map[string]bool{} // label names, by the name of the metric
	for name, ps := range points(t, &rm) {
		for _, prom := range prometheusNames(name) {
			exported[prom] = map[string]bool{}
			for _, p := range ps {
				exported[prom][labelNames(strings.ReplaceAll(p.attrs, ".", "_"))] = true
			}
		}
	}
	text, err := os.ReadFile("prometheus/zsync_test.yaml")
	must(t, err)
	series := regexp.MustCompile(`series: (\w+)\{(.*)\}`).FindAllStringSubmatch(string(text), -1)
	for _, m := range series {
		labels := regexp.MustCompile(`(instance|job)="\w*",? ?`).ReplaceAllString(m[2], "") // the scrape adds these
		if got := labelNames(strings.ReplaceAll(labels, ", ", ",")); !exported[m[1]][got] {
			t.Errorf("%s has the labels %q; exported are %v", m[1], got, exported[m[1]])
		}
	}
	if len(series) < 5 {
		t.Errorf("%d series", len(series))
	}
}

// labelNames returns the sorted names of a=b,c=d.
func labelNames(set string) string {
	var names []string
	for _, label := range strings.Split(set, ",") {
		if name, _, ok := strings.Cut(label, "="); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}
