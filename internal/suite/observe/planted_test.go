package observe

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/trace"
	"github.com/zsync/zsync/internal/verify"
	"github.com/zsync/zsync/zktest"
)

// A recording has the traces of three processes, by their names.
type recording struct {
	t     *testing.T
	lines map[string][]trace.Record
}

// record has three processes take turns with a lock, read together, share permits and work through a queue. The third
// is cut off while it holds a lock and an element, which others then get.
func record(t *testing.T, srv *zktest.Server) *recording {
	t.Helper()
	names := []string{"a", "b", "c"}
	writers, sessions := map[string]*suite.TraceBuffer{}, map[string]*zsync.Session{}
	for _, name := range names {
		writers[name] = new(suite.TraceBuffer)
		sessions[name] = suite.Open(t, srv, zsync.WithTrace(writers[name]), zsync.WithOwner(name))
	}
	srv.SetLatency(time.Millisecond)
	a, b, c, ctx := sessions["a"], sessions["b"], sessions["c"], t.Context()
	for _, s := range []*zsync.Session{a, b} {
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(ctx))
		_, err := m.Token(ctx)
		harness.Must(t, err)
		time.Sleep(time.Second)
		harness.Must(t, m.Unlock())
		time.Sleep(time.Second)
	}
	readers := []*zsync.RWMutex{zsync.NewRWMutex(a, "/rw"), zsync.NewRWMutex(b, "/rw")}
	for _, rw := range readers {
		harness.Must(t, rw.RLock(ctx))
	}
	time.Sleep(time.Second)
	for _, rw := range readers {
		harness.Must(t, rw.RUnlock())
	}
	permits := []*zsync.Semaphore{zsync.NewSemaphore(a, "/s", 2), zsync.NewSemaphore(b, "/s", 2)}
	for _, s := range permits {
		harness.Must(t, s.Acquire(ctx, 1))
	}
	time.Sleep(time.Second)
	for _, s := range permits {
		harness.Must(t, s.Release(1))
	}
	qa, qb := zsync.NewQueue[string](a, "/q"), zsync.NewQueue[string](b, "/q")
	harness.Must(t, qa.Send(ctx, "x"))
	d, err := qa.Receive(ctx)
	harness.Must(t, err)
	harness.Must(t, d.Nack())
	time.Sleep(time.Second)
	d, err = qb.Receive(ctx)
	harness.Must(t, err)
	harness.Must(t, d.Ack(ctx))

	late := zsync.NewMutex(c, "/late")
	harness.Must(t, late.Lock(ctx))
	la, lc := zsync.NewQueue[string](a, "/late-q"), zsync.NewQueue[string](c, "/late-q")
	harness.Must(t, la.Send(ctx, "x"))
	_, err = lc.Receive(ctx)
	harness.Must(t, err)
	time.Sleep(time.Second)
	id := c.ID()
	srv.Partition(id)
	next := zsync.NewMutex(a, "/late")
	harness.Must(t, next.Lock(ctx))
	d, err = la.Receive(ctx)
	harness.Must(t, err)
	harness.Must(t, d.Ack(ctx))
	harness.Must(t, next.Unlock())
	srv.Heal(id)
	<-late.Lost()
	time.Sleep(time.Minute)

	r := &recording{t, map[string][]trace.Record{}}
	for _, name := range names {
		harness.Must(t, sessions[name].Close())
		r.lines[name] = writers[name].File(t, name).Lines
	}
	return r
}

// verify judges the recording. There is one clock.
func (r *recording) verify() *verify.Report {
	var files []*verify.File
	for name, lines := range r.lines {
		files = append(files, &verify.File{Name: name, Lines: lines})
	}
	return verify.Files(files, 0)
}

func (r *recording) clone() *recording {
	c := &recording{r.t, map[string][]trace.Record{}}
	for name, lines := range r.lines {
		c.lines[name] = slices.Clone(lines)
	}
	return c
}

// at returns the first record of an event at a path in a process.
func (r *recording) at(process, path, event string) *trace.Record {
	r.t.Helper()
	i := slices.IndexFunc(r.lines[process], func(l trace.Record) bool { return l.Path == path && l.Event == event })
	if i < 0 {
		r.t.Fatalf("%s has no %s of %s", process, event, path)
	}
	return &r.lines[process][i]
}

// replace puts records in the place of one of them, and numbers all anew, so that none is missing.
func (r *recording) replace(process string, l *trace.Record, by ...trace.Record) {
	lines := r.lines[process]
	i := slices.IndexFunc(lines, func(o trace.Record) bool { return o.N == l.N })
	lines = slices.Replace(slices.Clone(lines), i, i+1, by...)
	for i := range lines {
		lines[i].N = int64(i + 1)
	}
	r.lines[process] = lines
}

// Each violation is planted in the traces of a real run by changing what one or two records say.
func TestVerifyFindsEachPlantedViolation(t *testing.T) {
	const moment = 500 * time.Millisecond
	planted := []struct {
		name, path, want string
		plant            func(r *recording)
	}{
		{"two holders, by the transactions", "/m", "two holders at transaction", func(r *recording) {
			r.at("a", "/m", trace.Gone).Zxid = r.at("b", "/m", trace.Gone).Zxid
		}},
		{"two holders, by the clocks", "/m", "two holders by the clocks", func(r *recording) {
			r.at("a", "/m", trace.Release).Time = r.at("b", "/m", trace.Grant).Time.Add(moment)
		}},
		{"a loss that is told after the next grant", "/late", "two holders by the clocks", func(r *recording) {
			r.at("c", "/late", trace.Loss).Time = r.at("a", "/late", trace.Grant).Time.Add(moment)
		}},
		{"grants out of the order of their tokens", "/m", "tokens do not grow", func(r *recording) {
			b := r.at("b", "/m", trace.Token)
			b.Token = r.at("a", "/m", trace.Token).Token - 1
			b.Zxid = b.Token
		}},
		{"a writer beside a reader", "/rw", "two holders", func(r *recording) {
			for i := range r.lines["b"] {
				if l := &r.lines["b"][i]; l.Path == "/rw" {
					l.Kind = trace.Write
				}
			}
		}},
		{"more permits than there are", "/s", "3 permits of 2", func(r *recording) { r.at("a", "/s", trace.Grant).Permits = 2 }},
		{"a release without a grant", "/m", "the release of what was not held", func(r *recording) { r.replace("a", r.at("a", "/m", trace.Grant)) }},
		{"two releases of one grant", "/m", "released after its release", func(r *recording) {
			l := r.at("a", "/m", trace.Release)
			r.replace("a", l, *l, *l)
		}},
		{"two grants of one hold", "/m", "granted to a second goroutine", func(r *recording) {
			l := r.at("a", "/m", trace.Grant)
			r.replace("a", l, *l, *l)
		}},
		{"an element received twice while the first session lives", "/q", "had two owners at transaction", func(r *recording) {
			r.at("b", "/q", trace.Grant).Zxid = r.at("a", "/q", trace.Grant).Zxid
		}},
		{"an element removed twice", "/q", "was removed twice", func(r *recording) { r.at("a", "/q", trace.Release).Fate = trace.Removed }},
		{"an element received after it was removed", "/q", "was claimed after it was removed", func(r *recording) {
			r.at("a", "/q", trace.Release).Fate = trace.Removed
			r.replace("b", r.at("b", "/q", trace.Release))
		}},
		{"an element whose loss is told after the next receive", "/late-q", "had two owners by the clocks", func(r *recording) {
			r.at("c", "/late-q", trace.Loss).Time = r.at("a", "/late-q", trace.Grant).Time.Add(moment)
		}},
	}
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		whole := record(t, srv)
		if r := whole.verify(); !r.Whole() || r.Holds < 8 || r.Claims != 4 || r.Losses < 2 || r.Tokens != 2 {
			var out strings.Builder
			_ = r.Print(&out)
			t.Fatalf("the run without a planted violation: %s", out.String())
		}
		for _, p := range planted {
			edited := whole.clone()
			p.plant(edited)
			r := edited.verify()
			if !slices.ContainsFunc(r.Violations, func(f verify.Finding) bool { return f.Path == p.path && strings.Contains(f.Text, p.want) }) {
				t.Errorf("%s: violations %v; want one at %s that says %q", p.name, r.Violations, p.path, p.want)
			}
			if i := slices.IndexFunc(r.Violations, func(f verify.Finding) bool { return f.Path != p.path }); i >= 0 {
				t.Errorf("%s: %v", p.name, r.Violations[i])
			}
		}
	})
}
