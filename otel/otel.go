// Package otel reports what zsync does to OpenTelemetry: metrics and spans.
//
//	tel, err := otel.New()
//	s, err := zsync.Connect(ctx, servers, zsync.WithObserver(tel), zsync.WithTracer(tel))
//	stop, err := tel.Watch(s)        // how long the session's holds are confirmed
//	stop, err = tel.WatchQueue(q)    // length and age, in one process or few
//	stop, err = tel.WatchSchedule(c) // the last success
//
// # Metrics
//
//	zsync.acquire.duration  s          how long callers waited, by outcome: acquired, gave_up
//	zsync.hold.duration     s          how long they held, by outcome: released, lost
//	zsync.hold.age          s          how long the oldest present hold has been held
//	zsync.holds             {hold}     held at present
//	zsync.holds.expiring    {hold}     of these, holds that are lost within a quarter of the session timeout unless a server answers
//	zsync.waiters           {waiter}   waiting for a hold at present
//	zsync.losses            {loss}     holds lost, by zsync.reason
//	zsync.leader            {leader}   1 while this process leads
//	zsync.reconnects        {reconnect} connections replaced within a session
//	zsync.expiries          {session}  sessions that ended, and with them all their holds
//	zsync.session.margin    s          for how long the holds are confirmed: see [Telemetry.Watch]
//	zsync.dead_letters      {message}  elements of queues that went to the dead letters
//	zsync.queue.length      {message}  elements of a watched queue, by zsync.state: ready, claimed, delayed, dead
//	zsync.queue.age         s          the age of the oldest element that is ready
//	zsync.schedule.running  {run}      functions of schedules that run at present
//	zsync.schedule.failures {run}      runs that failed; a run that was interrupted did not
//	zsync.schedule.last_success_timestamp  the last instant of a watched schedule that was done, in seconds since 1970; see [Telemetry.WatchSchedule]
//
// and for queues messaging.client.operation.duration, messaging.client.sent.messages
// and messaging.client.consumed.messages, with messaging.system "zsync".
//
// Attributes are zsync.kind (mutex, rwmutex, election …), zsync.op and zsync.path.template: the
// path without the parts that vary. A Telemetry reports at most 100 templates ([WithMaxPaths]), and
// calls all others "other". See [WithPathTemplate].
//
// Counters begin at 0: the losses of a lock when it is first held, the dead letters of a queue when
// it is first used, expiries and reconnects with New. So increase(…) also counts the first event.
//
// # Spans
//
// Each acquisition, hold, wait and queue operation is a span, with zsync.path in full. The span of a hold is the
// parent of the spans of Do's function. The span of an acquisition is linked to the hold that it waited for, if
// both are in this process. A hold in another process is not linked: its span context would have to travel in
// the data of its znode, which Curator and kazoo display as the owner. Instead, both spans name the znode in
// zsync.hold, so that a search for it finds both.
package otel

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/zsync/zsync"
)

// Scope is the name of the instrumentation.
const Scope = "github.com/zsync/zsync/otel"

// A Telemetry observes and traces any number of Sessions. Create it with [New].
type Telemetry struct {
	template func(path string) string
	maxPaths int
	tracer   trace.Tracer

	acquire, hold, operation           metric.Float64Histogram
	holds, waiters, leader, running    metric.Int64UpDownCounter
	losses, reconnects, expiries, dead metric.Int64Counter
	sent, consumed, failures           metric.Int64Counter
	margin, holdAge, age, lastSuccess  metric.Float64ObservableGauge
	expiring, length                   metric.Int64ObservableGauge

	mu      sync.Mutex
	watch   watch                        // guarded by mu
	held    map[*heldSince]bool          // the present holds; guarded by mu
	present map[string]trace.SpanContext // the newest hold of each path in this process; guarded by mu
	paths   map[string]bool              // the templates that are reported; guarded by mu
	begun   map[attribute.Set]bool       // the attributes whose counters have begun; guarded by mu
}

// A heldSince is a present hold.
type heldSince struct {
	attrs attribute.Set
	since time.Time
}

// A Telemetry implements both interfaces.
var (
	_ zsync.Observer = (*Telemetry)(nil)
	_ zsync.Tracer   = (*Telemetry)(nil)
)

type config struct {
	meters   metric.MeterProvider
	tracers  trace.TracerProvider
	template func(path string) string
	maxPaths int
}

// An Option changes how [New] sets a Telemetry up.
type Option func(*config)

// WithMeterProvider reports metrics to p. The default is OpenTelemetry's global provider.
func WithMeterProvider(p metric.MeterProvider) Option { return func(c *config) { c.meters = p } }

// WithTracerProvider reports spans to p. The default is OpenTelemetry's global provider.
func WithTracerProvider(p trace.TracerProvider) Option { return func(c *config) { c.tracers = p } }

// WithPathTemplate sets the function that removes the variable parts of a path, for
// zsync.path.template. Each result is a time series of its own. The default is [Template].
func WithPathTemplate(f func(path string) string) Option {
	return func(c *config) { c.template = f }
}

// WithMaxPaths limits the number of values of zsync.path.template: metrics name the first n
// templates, and call all others "other". The default is 100.
func WithMaxPaths(n int) Option { return func(c *config) { c.maxPaths = n } }

var varies = regexp.MustCompile(`[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}|[0-9]+`)

// Template replaces every UUID and every number by *: /orders/4711/lock becomes /orders/*/lock.
func Template(path string) string { return varies.ReplaceAllString(path, "*") }

// New returns a Telemetry, for [zsync.WithObserver] and [zsync.WithTracer].
func New(opts ...Option) (*Telemetry, error) {
	c := config{meters: otel.GetMeterProvider(), tracers: otel.GetTracerProvider(), template: Template, maxPaths: 100}
	for _, o := range opts {
		o(&c)
	}
	if c.meters == nil || c.tracers == nil || c.template == nil {
		return nil, errors.New("zsync/otel: an option's argument is nil")
	}
	if c.maxPaths < 1 {
		return nil, fmt.Errorf("zsync/otel: WithMaxPaths(%d): want at least 1", c.maxPaths)
	}
	m := c.meters.Meter(Scope)
	t := &Telemetry{
		template: c.template, maxPaths: c.maxPaths, tracer: c.tracers.Tracer(Scope),
		held: make(map[*heldSince]bool), present: make(map[string]trace.SpanContext), paths: make(map[string]bool), begun: make(map[attribute.Set]bool),
	}
	var errs []error
	seconds := metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)
	histogram := func(name, what string) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(what), seconds)
		errs = append(errs, err)
		return h
	}
	counter := func(name, unit, what string) metric.Int64Counter {
		n, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(what))
		errs = append(errs, err)
		return n
	}
	gauge := func(name, unit, what string) metric.Int64UpDownCounter {
		n, err := m.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
		errs = append(errs, err)
		return n
	}
	t.acquire = histogram("zsync.acquire.duration", "How long callers waited for a lock, permits or a leadership.")
	t.hold = histogram("zsync.hold.duration", "How long it was held.")
	t.operation = histogram("messaging.client.operation.duration", "How long an operation of a queue took.")
	t.holds = gauge("zsync.holds", "{hold}", "Locks, permits and leaderships held at present.")
	t.waiters = gauge("zsync.waiters", "{waiter}", "Callers that wait for one at present.")
	t.leader = gauge("zsync.leader", "{leader}", "1 while this process leads.")
	t.losses = counter("zsync.losses", "{loss}", "Holds that were lost.")
	t.reconnects = counter("zsync.reconnects", "{reconnect}", "Connections replaced within a session.")
	t.expiries = counter("zsync.expiries", "{session}", "Sessions that ended with what was held through them.")
	t.dead = counter("zsync.dead_letters", "{message}", "Elements of queues that went to the dead letters.")
	t.sent = counter("messaging.client.sent.messages", "{message}", "Elements sent.")
	t.consumed = counter("messaging.client.consumed.messages", "{message}", "Elements received.")
	t.running = gauge("zsync.schedule.running", "{run}", "Functions of schedules that run at present.")
	t.failures = counter("zsync.schedule.failures", "{run}", "Runs of scheduled functions that failed.")
	observed := func(name, unit, what string) metric.Float64ObservableGauge {
		g, err := m.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(what))
		errs = append(errs, err)
		return g
	}
	counted := func(name, unit, what string) metric.Int64ObservableGauge {
		g, err := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(what))
		errs = append(errs, err)
		return g
	}
	t.margin = observed("zsync.session.margin", "s", "For how long what is held is certainly held if nothing more is heard from the servers.")
	t.holdAge = observed("zsync.hold.age", "s", "How long the oldest present hold has been held.")
	t.age = observed("zsync.queue.age", "s", "The age of the oldest element that is ready.")
	t.lastSuccess = observed("zsync.schedule.last_success_timestamp", "", "The last instant that was done, in seconds since 1970.")
	t.expiring = counted("zsync.holds.expiring", "{hold}", "Holds that are lost within a quarter of the session timeout if nothing more is heard.")
	t.length = counted("zsync.queue.length", "{message}", "Elements of a queue, by state.")
	_, err := m.RegisterCallback(t.collect, t.margin, t.holdAge, t.age, t.lastSuccess, t.expiring, t.length)
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	t.reconnects.Add(context.Background(), 0)
	for _, word := range reasons {
		t.expiries.Add(context.Background(), 0, metric.WithAttributes(attribute.String("zsync.reason", word)))
	}
	return t, nil
}

// reasons are the words of zsync.reason.
var reasons = func() (words []string) {
	for _, r := range []zsync.LossReason{
		zsync.LossExpired, zsync.LossCutOff, zsync.LossPaused, zsync.LossReplaced,
		zsync.LossDeleted, zsync.LossClosed, zsync.LossSuspended, zsync.LossGivenUp,
	} {
		word, err := r.MarshalText()
		if err != nil {
			panic(err)
		}
		words = append(words, string(word))
	}
	return words
}()

// The method `path` returns the template of a path, or "other" if there are too many.
func (t *Telemetry) path(path string) attribute.KeyValue {
	name := t.template(path)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.paths[name] {
		if len(t.paths) >= t.maxPaths {
			name = "other"
		} else {
			t.paths[name] = true
		}
	}
	return attribute.String("zsync.path.template", name)
}

// The method `first` reports whether this call is the first with these attrs.
func (t *Telemetry) first(attrs ...attribute.KeyValue) bool {
	set := attribute.NewSet(attrs...)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun[set] {
		return false
	}
	t.begun[set] = true
	return true
}

// Observe is for [zsync.WithObserver].
func (t *Telemetry) Observe(e zsync.Event) {
	ctx := context.Background()
	switch e.Kind {
	case zsync.EventReconnected:
		t.reconnects.Add(ctx, 1)
	case zsync.EventExpired:
		t.expiries.Add(ctx, 1, metric.WithAttributes(reason(e.Err)))
	case zsync.EventDead:
		t.dead.Add(ctx, 1, metric.WithAttributes(t.path(e.Path)))
	case zsync.EventStarted:
		path := metric.WithAttributes(t.path(e.Path))
		t.failures.Add(ctx, 0, path)
		t.running.Add(ctx, 1, path)
	case zsync.EventEnded:
		path := metric.WithAttributes(t.path(e.Path))
		t.running.Add(ctx, -1, path)
		if e.Err != nil && !interrupted(e.Err) {
			t.failures.Add(ctx, 1, path)
		}
	}
}

// The function `interrupted` reports whether a run ended because its hold was lost, its Session was
// closed or its context was canceled. Such a run is not a failure of the function.
func interrupted(err error) bool {
	return errors.Is(err, zsync.ErrLost) || errors.Is(err, zsync.ErrClosed) || errors.Is(err, context.Canceled)
}

func reason(err error) attribute.KeyValue {
	word := "unknown"
	var lost *zsync.LostError
	if errors.As(err, &lost) {
		if b, err := lost.Reason.MarshalText(); err == nil {
			word = string(b)
		}
	} else if errors.Is(err, zsync.ErrClosed) {
		word = "closed"
	}
	return attribute.String("zsync.reason", word)
}

// began is the context key of a span's start time. heldKey is the context key of its hold.
type (
	began   struct{}
	heldKey struct{}
)

func (t *Telemetry) begin(ctx context.Context, name string, what zsync.Op, opts ...trace.SpanStartOption) context.Context {
	attrs := []attribute.KeyValue{
		attribute.String("zsync.kind", what.Primitive), attribute.String("zsync.op", what.Name), attribute.String("zsync.path", what.Path),
		attribute.String("zsync.owner", what.Owner), attribute.Int64("zsync.session", what.Session),
	}
	if what.Hold != "" {
		attrs = append(attrs, attribute.String("zsync.hold", what.Hold))
	}
	if what.Count > 0 {
		attrs = append(attrs, attribute.Int("zsync.count", what.Count))
	}
	opts = append(opts, trace.WithAttributes(attrs...))
	ctx, _ = t.tracer.Start(ctx, name+" "+t.template(what.Path), opts...)
	return context.WithValue(ctx, began{}, time.Now())
}

// The function `finish` ends the span of ctx, and returns its duration.
func finish(ctx context.Context, err error) time.Duration {
	span := trace.SpanFromContext(ctx)
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
	start, _ := ctx.Value(began{}).(time.Time)
	return time.Since(start)
}

// The method `labels` are the attributes of metrics.
func (t *Telemetry) labels(what zsync.Op, more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(append(t.attributes(what), more...)...)
}

func (t *Telemetry) attributes(what zsync.Op) []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("zsync.kind", what.Primitive), attribute.String("zsync.op", what.Name), t.path(what.Path)}
}

// Start is for [zsync.WithTracer].
func (t *Telemetry) Start(ctx context.Context, op zsync.Op) context.Context {
	switch op.Kind {
	case zsync.OpAcquire:
		return t.acquireStart(ctx, op)
	case zsync.OpHold:
		return t.holdStart(ctx, op)
	case zsync.OpWait:
		t.waiters.Add(ctx, 1, t.labels(op))
		return t.begin(ctx, op.Name, op)
	}
	return t.queueStart(ctx, op)
}

// End is for [zsync.WithTracer].
func (t *Telemetry) End(ctx context.Context, op zsync.Op, err error) {
	switch op.Kind {
	case zsync.OpAcquire:
		t.acquireEnd(ctx, op, err)
	case zsync.OpHold:
		t.holdEnd(ctx, op, err)
	case zsync.OpWait:
		finish(ctx, err)
		t.waiters.Add(ctx, -1, t.labels(op))
	default:
		t.queueEnd(ctx, op, err)
	}
}

func (t *Telemetry) acquireStart(ctx context.Context, what zsync.Op) context.Context {
	t.waiters.Add(ctx, 1, t.labels(what))
	if what.Primitive == "election" {
		t.leader.Add(ctx, 0, t.labels(what)) // the metric of a candidate begins at 0
	}
	t.mu.Lock()
	holder, held := t.present[what.Path]
	t.mu.Unlock()
	var opts []trace.SpanStartOption
	if held {
		opts = append(opts, trace.WithLinks(linkTo(holder)))
	}
	return t.begin(ctx, what.Name, what, opts...)
}

func linkTo(holder trace.SpanContext) trace.Link {
	return trace.Link{SpanContext: holder, Attributes: []attribute.KeyValue{attribute.String("zsync.link", "behind")}}
}

func (t *Telemetry) acquireEnd(ctx context.Context, what zsync.Op, err error) {
	outcome := "acquired"
	if err != nil {
		outcome = "gave_up"
	}
	span := trace.SpanFromContext(ctx)
	if what.Hold != "" {
		span.SetAttributes(attribute.String("zsync.hold", what.Hold))
	}
	d := finish(ctx, err)
	t.waiters.Add(ctx, -1, t.labels(what))
	t.acquire.Record(ctx, d.Seconds(), t.labels(what, attribute.String("zsync.outcome", outcome)))
}

func (t *Telemetry) holdStart(ctx context.Context, what zsync.Op) context.Context {
	ctx = t.begin(ctx, "hold", what)
	t.holds.Add(ctx, 1, t.labels(what))
	if attrs := t.attributes(what); t.first(attrs...) {
		for _, word := range reasons {
			t.losses.Add(ctx, 0, t.labels(what, attribute.String("zsync.reason", word)))
		}
	}
	if what.Primitive == "election" {
		t.leader.Add(ctx, 1, t.labels(what))
	}
	h := &heldSince{attribute.NewSet(t.attributes(what)...), time.Now()}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held[h] = true
	t.present[what.Path] = trace.SpanContextFromContext(ctx)
	return context.WithValue(ctx, heldKey{}, h)
}

func (t *Telemetry) holdEnd(ctx context.Context, what zsync.Op, err error) {
	d := finish(ctx, err)
	outcome := "released"
	if err != nil {
		outcome = "lost"
		t.losses.Add(ctx, 1, t.labels(what, reason(err)))
	}
	t.holds.Add(ctx, -1, t.labels(what))
	if what.Primitive == "election" {
		t.leader.Add(ctx, -1, t.labels(what))
	}
	t.hold.Record(ctx, d.Seconds(), t.labels(what, attribute.String("zsync.outcome", outcome)))
	h, _ := ctx.Value(heldKey{}).(*heldSince)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.held, h)
	if t.present[what.Path].Equal(trace.SpanContextFromContext(ctx)) {
		delete(t.present, what.Path)
	}
}

func (t *Telemetry) queueStart(ctx context.Context, what zsync.Op) context.Context {
	if path := t.path(what.Path); t.first(path) {
		t.dead.Add(ctx, 0, metric.WithAttributes(path))
	}
	kind := trace.SpanKindClient
	switch what.Name {
	case "send":
		kind = trace.SpanKindProducer
	case "receive":
		kind = trace.SpanKindConsumer
	}
	return t.begin(ctx, what.Name, what, trace.WithSpanKind(kind), trace.WithAttributes(
		attribute.String("messaging.system", "zsync"), attribute.String("messaging.operation.name", what.Name),
		attribute.String("messaging.operation.type", operationType(what.Name)),
		attribute.String("messaging.destination.name", what.Path), attribute.Int("messaging.batch.message_count", what.Count)))
}

func operationType(op string) string {
	switch op {
	case "send", "receive":
		return op
	}
	return "settle"
}

func (t *Telemetry) queueEnd(ctx context.Context, what zsync.Op, err error) {
	trace.SpanFromContext(ctx).SetAttributes(attribute.Int("messaging.batch.message_count", what.Count)) // ReceiveN receives at most the number that it asks for
	d := finish(ctx, err)
	attrs := []attribute.KeyValue{
		attribute.String("messaging.system", "zsync"), attribute.String("messaging.operation.name", what.Name),
		attribute.String("messaging.destination.template", t.path(what.Path).Value.AsString()),
	}
	if err != nil {
		attrs = append(attrs, attribute.String("error.type", errorType(err)))
	}
	set := metric.WithAttributes(attrs...)
	t.operation.Record(ctx, d.Seconds(), set)
	switch {
	case err != nil:
	case what.Name == "send":
		t.sent.Add(ctx, int64(what.Count), set)
	case what.Name == "receive":
		t.consumed.Add(ctx, int64(what.Count), set)
	}
}

func errorType(err error) string {
	for _, c := range []struct {
		err  error
		word string
	}{
		{zsync.ErrLost, "lost"}, {zsync.ErrClosed, "closed"}, {zsync.ErrTooLarge, "too_large"}, {zsync.ErrFull, "full"},
		{context.DeadlineExceeded, "timeout"}, {context.Canceled, "canceled"},
	} {
		if errors.Is(err, c.err) {
			return c.word
		}
	}
	return "_OTHER"
}
