// Package verify judges the records of package trace: see [Files]. The library does not use it.
package verify

// This file passes the records of all traces to the judges of holds and of elements, in about the
// order of their times. It forgets judged holds and claims, so that the memory does not grow with
// the traces. The judgements are in verify.go and elements.go.

import (
	"cmp"
	"hash/maphash"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/zsync/zsync/internal/trace"
)

// DefaultTolerance is the longest overlap, by the clocks of two processes, that [Files] ignores.
const DefaultTolerance = 100 * time.Millisecond

// An Input is a file with traces.
type Input struct {
	Name   string
	Reader io.Reader
}

// Inputs is the variant of [Files] for traces of any length. It reads the inputs side by side, and
// needs about 30 MiB of memory, and 64 KiB for each input. It forgets a hold or a claim long after
// its end. If a hold that comes later may overlap a forgotten hold, Report.Missing gets an entry.
// That happens if one input has the traces of several processes one after another. Inputs fails if
// a reader fails, or if an input is no trace.
func Inputs(inputs []Input, tolerance time.Duration) (*Report, error) {
	var sources []source
	for _, in := range inputs {
		sources = append(sources, newReader(in.Reader, in.Name))
	}
	return verify(sources, tolerance, mostRemembered)
}

// Files judges traces, which should come from all processes that use a path. It checks:
//
//   - Two exclusive holds never overlap by the order of transactions. By the clocks, they never
//     overlap for longer than the tolerance. The holds of readers may overlap. Up to the limit,
//     permits may overlap, too.
//   - By the clocks, a holder learns of a loss before the next hold is granted.
//   - Fencing tokens increase from hold to hold.
//   - Every end of a hold has a grant, and no hold ends twice.
//   - An element of a queue has one owner at a time, and is removed once.
//
// If another client has deleted the znode, or the process was stopped, the holder cannot learn of
// the loss in time. Then an overlap is only a note.
func Files(files []*File, tolerance time.Duration) *Report {
	var sources []source
	for _, f := range files {
		sources = append(sources, &kept{File: f})
	}
	r, _ := verify(sources, tolerance, mostRemembered) // without a reader, there is no error
	return r
}

// The type `source` returns records one at a time.
type source interface {
	next() (trace.Record, error) // io.EOF after the last
	end() (name string, cut bool, torn []int)
}

func (r *reader) end() (name string, cut bool, torn []int) { return r.name, r.cut, r.torn }

// The type `kept` is for the source of a File.
type kept struct {
	*File
	at int
}

func (k *kept) next() (trace.Record, error) {
	if k.at == len(k.Lines) {
		return trace.Record{}, io.EOF
	}
	k.at++
	return k.Lines[k.at-1], nil
}

func (k *kept) end() (name string, cut bool, torn []int) { return k.Name, k.Cut, k.Torn }

// mostRemembered is the largest number of holds and claims in memory. Each takes about 500 bytes.
const mostRemembered = 30_000

// The judge remembers holds and claims for at least the time firstWindow after their end, by the
// clocks. If there are too many, it forgets them earlier.
const firstWindow = 10 * time.Minute

func verify(sources []source, tolerance time.Duration, most int) (*Report, error) {
	j := &judge{
		Report: &Report{Tolerance: tolerance}, traces: make(map[string]*one), places: make(map[string]*place), elements: make(map[string][]*claim),
		words: make(map[string]string), over: make(map[uint64]bool), seed: maphash.MakeSeed(), most: most, window: firstWindow,
	}
	if err := j.read(sources); err != nil {
		return nil, err
	}
	for _, s := range sources {
		name, cut, torn := s.end()
		if cut {
			j.note("", "%s: the last line was cut off, as when a process is killed", name)
		}
		for _, n := range torn {
			j.missing("%s:%d: this is no whole line", name, n)
		}
	}
	if j.Lines == 0 {
		j.missing("there is no record at all, so this proves nothing")
	}
	rest := slices.SortedFunc(maps.Values(j.traces), func(a, b *one) int { return a.turn - b.turn })
	for _, t := range rest {
		j.finish(t)
	}
	for _, path := range slices.Sorted(maps.Keys(j.places)) {
		j.path(j.places[path], j.newest, j.newest, true)
	}
	for _, name := range slices.Sorted(maps.Keys(j.elements)) {
		j.element(j.elements[name])
	}
	if j.forgotten {
		j.note("", "holds and claims that had ended %v before the latest record were judged and forgotten: no later record was compared with them", 2*j.window)
	}
	return j.Report, nil
}

// The method `read` passes all records to the method `line`. If the records of each input are in
// the order of their times, so are all records.
func (j *judge) read(sources []source) error {
	type head struct {
		source
		trace.Record
	}
	var heads []*head
	for _, s := range sources {
		l, err := s.next()
		if err == nil {
			heads = append(heads, &head{s, l})
		} else if err != io.EOF {
			return err
		} else {
			name, _, _ := s.end()
			j.note("", "%s: there is no record, as when a process never had a session; it shows nothing", name)
		}
	}
	for len(heads) > 0 {
		first := 0
		for i, h := range heads {
			if h.Time.Before(heads[first].Time) {
				first = i
			}
		}
		h := heads[first]
		j.line(h.Record)
		l, err := h.next()
		switch {
		case err == io.EOF:
			heads = slices.Delete(heads, first, first+1)
		case err != nil:
			return err
		default:
			h.Record = l
		}
	}
	return nil
}

// The method `word` returns a copy of `text`. Equal texts share one copy.
func (j *judge) word(text string) string {
	if w, ok := j.words[text]; ok {
		return w
	}
	if len(j.words) > 10_000 { // most texts belong to paths and sessions that are no longer used
		clear(j.words)
	}
	j.words[text] = text
	return text
}

// The method `line` handles the next record of a file.
func (j *judge) line(l trace.Record) {
	j.Lines++
	if l.Time.After(j.newest) {
		j.newest = l.Time
	}
	for _, text := range []*string{&l.Trace, &l.Event, &l.Kind, &l.Path, &l.Claim, &l.Fate, &l.Session, &l.Reason} {
		*text = j.word(*text)
	}
	t := j.traces[l.Trace]
	if t == nil && j.over[maphash.String(j.seed, l.Trace)] {
		j.missing("trace %s: line %d is there twice", l.Trace, l.N)
		return
	}
	if t == nil {
		j.Traces++
		t = &one{id: l.Trace, turn: j.Traces, next: 1, complete: true, open: make(map[string]*hold), claimed: make(map[string]*claim), last: make(map[string]sight)}
		j.traces[l.Trace] = t
	}
	switch {
	case l.N < t.next:
		j.missing("trace %s: line %d is there twice", t.id, l.N)
	case l.N > t.next:
		t.early = append(t.early, l)
		if len(t.early) > mostEarly {
			j.drain(t)
		}
	default:
		j.inOrder(t, l)
		j.ready(t)
		if l.Event == trace.End {
			j.finish(t)
			delete(j.traces, t.id)
			j.over[maphash.String(j.seed, t.id)] = true
		}
	}
	if j.remembered > j.most {
		j.forget()
	}
}

// Records of a trace may wait for an earlier record. mostEarly is the largest number of such
// records. Records come in the wrong order if the clock was set while the files were rotated.
const mostEarly = 1000

// The method `ready` passes on the early records that no longer wait for an earlier record.
func (j *judge) ready(t *one) {
	for {
		i := slices.IndexFunc(t.early, func(l trace.Record) bool { return l.N <= t.next })
		if i < 0 {
			return
		}
		l := t.early[i]
		t.early = slices.Delete(t.early, i, i+1)
		if l.N < t.next {
			j.missing("trace %s: line %d is there twice", t.id, l.N)
		} else {
			j.inOrder(t, l)
		}
	}
}

// The method `drain` passes on the early records of a trace, although earlier records are missing.
func (j *judge) drain(t *one) {
	slices.SortStableFunc(t.early, func(a, b trace.Record) int { return cmp.Compare(a.N, b.N) })
	for _, l := range t.early {
		if l.N < t.next {
			j.missing("trace %s: line %d is there twice", t.id, l.N)
			continue
		}
		if l.N > t.next {
			t.complete = false
			j.missing("trace %s: lines %d to %d are missing", t.id, t.next, l.N-1)
		}
		j.inOrder(t, l)
	}
	t.early = nil
}

// inOrder handles the next record of a trace.
func (j *judge) inOrder(t *one, l trace.Record) {
	t.next = l.N + 1
	switch l.Event {
	case trace.Begin:
		t.owner, t.root = l.Owner, l.Root
	case trace.Dropped:
		t.complete = false
		j.missing("trace %s: %d lines were dropped before line %d", t.id, l.Dropped, l.N)
	}
	if l.Session != "" {
		seen := t.last[l.Session]
		t.last[l.Session] = sight{l.Time, l.Zxid, max(seen.most, l.Zxid)}
	}
	if t.root != "" && l.Path != "" {
		l.Path = j.word(t.root + l.Path) // equal paths of two chroots are two paths
	}
	if l.Kind == trace.Element {
		j.ofElements(t, l)
	} else {
		j.ofHold(t, l)
	}
}

// The method `finish` handles the end of a trace.
func (j *judge) finish(t *one) {
	j.drain(t)
	j.endHolds(t)
	j.endClaims(t)
}

// The method `forget` judges holds and claims that have ended before the window, and forgets them. If too many
// are left, the window becomes shorter.
func (j *judge) forget() {
	for ; ; j.window /= 2 {
		cut := j.newest.Add(-j.window) // holds that begin after the time `cut` are not judged yet; the forgotten holds end long before that time
		old := cut.Add(-j.window)
		for name, p := range j.places {
			j.path(p, cut, old, false)
			if len(p.holds) == 0 && len(j.places) > j.most {
				delete(j.places, name)
			}
		}
		for name, all := range j.elements {
			if !slices.ContainsFunc(all, func(c *claim) bool { return !c.endedBefore(old) }) {
				j.element(all)
				j.remembered -= len(all)
				j.forgotten = true
				delete(j.elements, name)
			}
		}
		if j.remembered <= j.most/2 {
			return
		}
		if j.window < 2*time.Second { // most holds and claims have not ended, or ended just now
			j.most = 2 * j.remembered
			return
		}
	}
}
