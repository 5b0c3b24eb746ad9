package trace

// This file judges the holds in traces. Elements of queues are judged in elements.go.

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// DefaultTolerance is the difference between the clocks of two processes up to which [Verify]
// draws no conclusion from them.
const DefaultTolerance = 100 * time.Millisecond

// Verify judges traces. They should come from all processes that use a path. It checks:
//
//   - Never two holders, neither by the order of transactions nor by the clocks,
//     within the tolerance. Read holds may overlap, and permits up to the limit.
//   - By the clocks, a holder learns of a loss before the next is granted.
//   - Fencing tokens increase from hold to hold.
//   - Every end has a beginning, and there is only one end.
//   - An element of a queue has one owner at a time, and is removed once.
//
// If another client has deleted the znode, or the process was stopped, no process can know of the
// loss earlier. Then an overlap is only a note.
func Verify(files []*File, tolerance time.Duration) *Report {
	r := &Report{Tolerance: tolerance}
	byPath := make(map[string][]*hold)
	elements := make(map[string][]*claim)
	for _, f := range files {
		r.Lines += len(f.Lines)
		if f.Cut {
			r.note("", "%s: the last line was cut off, as when a process is killed", f.Name)
		}
		for _, n := range f.Torn {
			r.missing("%s:%d: this is no whole line", f.Name, n)
		}
	}
	for _, t := range traces(files) {
		r.Traces++
		for _, h := range r.holds(t) {
			byPath[h.path] = append(byPath[h.path], h)
		}
		for _, c := range r.claims(t) {
			elements[c.path+"\x00"+c.element] = append(elements[c.path+"\x00"+c.element], c)
		}
	}
	paths := make([]string, 0, len(byPath))
	for p := range byPath {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		r.Paths++
		r.Holds += len(byPath[p])
		r.path(byPath[p])
	}
	for _, name := range slices.Sorted(maps.Keys(elements)) {
		r.element(elements[name])
	}
	return r
}

// A hold is one hold by one znode, from the holder's grant to its release or to the notice of its
// loss.
type hold struct {
	path, kind, name string
	who              string // for the report
	owner            *one
	session          string
	permits, limit   int64

	from  *hold // the hold that it continues, or nil
	with  *hold // a write hold of the same Do, or nil
	begun time.Time
	ended time.Time // the time of the last record of its session, if there is no end
	end   string    // the event, or ""
	why   string    // of a loss
	token int64

	// By the order of transactions, it was certainly held from sure on, and before over. sure is
	// never if nothing is known of it.
	first int64 // zxid of the first record
	sure  int64
	over  int64

	use  int  // number of the last use
	used bool // that use has not ended
}

const never = math.MaxInt64

// excused reports whether no process could know of the end of h in time.
func (h *hold) excused() bool {
	return h.end == Loss && (h.why == "deleted" || h.why == "paused")
}

func (h *hold) String() string {
	return fmt.Sprintf("%s of %s (%s)", h.name, h.who, h.session)
}

// holds reads the records of a trace and returns the holds. An inconsistency is a violation,
// unless records are missing.
func (r *Report) holds(t *one) (all []*hold) {
	open := make(map[string]*hold) // by path and name, until the znode is deleted
	key := func(l Line) string { return l.Path + "\x00" + l.Hold }
	complete := true
	lastOf := make(map[string]Line) // by session
	next := int64(1)
	for _, l := range t.lines {
		if l.N != next {
			if l.N < next {
				r.missing("trace %s: line %d is there twice", t.id, l.N)
				continue
			}
			complete = false
			r.missing("trace %s: lines %d to %d are missing", t.id, next, l.N-1)
		}
		next = l.N + 1
		if l.Session != "" {
			lastOf[l.Session] = l
		}
		if l.Kind == Element {
			continue // see claims
		}
		h := open[key(l)]
		odd := func(what string) {
			if complete && l.Kind != Party { // the coordinator also ends parties, together with its own
				r.violation(l.Path, "%s: %s of %s (%s, line %d)", what, l.Hold, cmp.Or(t.owner, t.id), l.Session, l.N)
			}
		}
		switch l.Event {
		case Session:
			r.Sessions++
		case Dropped:
			complete = false
			r.missing("trace %s: %d lines were dropped before line %d", t.id, l.Dropped, l.N)
		case Grant, Move:
			if l.Event == Grant && h != nil {
				if l.Kind != Read && h.used {
					odd("granted to a second goroutine while the first has it")
				}
				h.use, h.used = l.Use, true
				continue
			}
			if h != nil {
				odd("moved to a znode that is held already")
			}
			h = &hold{
				path: l.Path, kind: l.Kind, name: l.Hold, who: cmp.Or(t.owner, t.id), owner: t, session: l.Session,
				permits: max(l.Permits, 1), limit: l.Limit, begun: l.Time, first: l.Zxid, sure: never, over: never, use: l.Use, used: true,
			}
			if !l.Blind && l.Zxid != 0 {
				h.sure = l.Zxid
			}
			if l.Event == Grant && l.From != "" {
				h.with = open[l.Path+"\x00"+l.From]
			}
			if l.Event == Move {
				from := open[l.Path+"\x00"+l.From]
				if from == nil {
					odd("continues what was not held: " + l.From)
				} else {
					h.from = from
					from.finish(l)
				}
			}
			open[key(l)] = h
			all = append(all, h)
		case Pass:
			if h == nil || !h.used {
				odd("passed on by who did not hold it")
			} else if l.Kind != Read {
				h.used = false
			}
		case Token:
			r.Tokens++
			if h == nil || h.end != "" {
				odd("a token of what is not held")
				continue
			}
			if h.sure = min(h.sure, l.Token); l.Token <= h.token {
				odd(fmt.Sprintf("token %d follows %d", l.Token, h.token))
			}
			h.token = l.Token
		case Loss:
			r.Losses++
			switch {
			case h == nil:
				odd("the loss of what was not held")
			case h.end == Loss:
				odd("lost twice")
			case h.end == "":
				h.finish(l)
			}
		case Release:
			switch {
			case h == nil:
				odd("the release of what was not held")
			case h.end != "":
				odd("released after its " + h.end)
			default:
				h.finish(l)
			}
		case Gone:
			switch {
			case h == nil:
				odd("deleted, and was not held")
			case h.end == "":
				odd("deleted while it was held")
			case l.Zxid != 0:
				h.over = l.Zxid
			}
			delete(open, key(l))
		}
	}
	for _, h := range all {
		if h.end == "" {
			l := lastOf[h.session]
			h.ended = l.Time
			h.over = max(l.Zxid, h.first) + 1
			r.note(h.path, "%s was held to the end of its trace", h)
		}
	}
	return all
}

// finish ends h with the record l.
func (h *hold) finish(l Line) {
	h.end, h.why, h.ended, h.used = l.Event, l.Reason, l.Time, false
	if l.Event != Loss && !l.Blind && l.Zxid != 0 {
		h.sure = min(h.sure, l.Zxid) // the znode still existed, because its deletion was sent later
	}
	// This holds until a record has the transaction of the deletion: the session had seen this
	// transaction during the hold.
	h.over = l.Zxid + 1
	if h.excused() {
		h.over = 0
	}
}

// until returns the end of h, or a time in the far future if it is unknown.
func (h *hold) until() time.Time {
	if h.end == "" {
		return time.Unix(1<<40, 0)
	}
	return h.ended
}

// certain returns the transactions from which and until which h was certainly held.
func (h *hold) certain() (from, to int64) {
	from = h.sure
	if h.from != nil { // until its znode was deleted, the earlier hold had the place
		from = max(from, h.from.over)
	}
	return from, h.over
}

// together reports whether a and b certainly overlapped, by the order of transactions or by the
// clocks.
func (r *Report) together(a, b *hold) (how string, excused bool) {
	if a.kin(b) {
		return "", false
	}
	af, at := a.certain()
	bf, bt := b.certain()
	if from, to := max(af, bf), min(at, bt); from < to && from != never {
		return fmt.Sprintf("at transaction 0x%x", from), false
	}
	// If two began at the same time, the first to end counts as the first.
	if b.begun.Before(a.begun) || b.begun.Equal(a.begun) && b.until().Before(a.until()) {
		a, b = b, a
	}
	if d := a.ended.Sub(b.begun); d > r.Tolerance {
		return fmt.Sprintf("by the clocks, the first for %v after the second had begun", d.Round(time.Microsecond)), a.excused() || b.excused()
	}
	return "", false
}

// kin reports whether h or o continues the other, or belongs to the same Do.
func (h *hold) kin(o *hold) bool {
	return h.descends(o) || o.descends(h)
}

func (h *hold) descends(o *hold) bool {
	for x := h; x != nil; {
		if x == o {
			return true
		}
		if x.from != nil {
			x = x.from
		} else {
			x = x.with
		}
	}
	return false
}

// conflict reports whether the two holds exclude each other.
func conflict(a, b *hold) bool {
	return a.kind != Party && b.kind != Party && !(a.kind == Read && b.kind == Read)
}

// path judges the holds of one path.
func (r *Report) path(all []*hold) {
	// If two began at the same time, the first to end counts as the first.
	slices.SortStableFunc(all, func(a, b *hold) int { return cmp.Or(a.begun.Compare(b.begun), a.until().Compare(b.until())) })
	// firsts[i] is the first transaction in which a hold from i on was certainly held. A hold
	// that ended before it cannot overlap them.
	firsts := make([]int64, len(all)+1)
	firsts[len(all)] = never
	for i, h := range slices.Backward(all) {
		from, _ := h.certain()
		firsts[i] = min(firsts[i+1], from)
	}
	var before []*hold // holds that may still be held
	greatest := &hold{}
	for i, h := range all {
		var out int64
		var with []*hold
		var how string
		var excused int64
		before = slices.DeleteFunc(before, func(o *hold) bool {
			_, to := o.certain()
			return !o.ended.Add(r.Tolerance).After(h.begun) && to <= firsts[i]
		})
		for _, o := range before {
			if !conflict(o, h) {
				continue
			}
			if w, sorry := r.together(o, h); w != "" {
				how = cmp.Or(how, w)
				out += o.permits
				with = append(with, o)
				if sorry {
					excused += o.permits
				}
			}
		}
		if h.kind == Semaphore {
			with, out = mostAtOnce(h, with)
		}
		r.judge(h, with, how, out, excused)
		before = append(before, h)
		if h.token != 0 {
			if h.kind != Read && h.kind != Semaphore && h.token <= greatest.token && !h.kin(greatest) {
				r.violation(h.path, "tokens do not grow: %d of %s, begun %s, after %d of %s, begun %s",
					h.token, h, clock(h.begun), greatest.token, greatest, clock(greatest.begun))
			}
			if h.token > greatest.token {
				greatest = h
			}
		}
	}
}

// mostAtOnce returns the holds among others that were held with h in one transaction, and their permits, for
// the transaction with the most permits. Each of others overlaps h, but two of them need not overlap each
// other. A hold that overlaps h by the clocks alone counts in every transaction.
func mostAtOnce(h *hold, others []*hold) (most []*hold, out int64) {
	from, to := h.certain()
	for _, at := range append([]*hold{h}, others...) {
		point, _ := at.certain()
		if point = max(point, from); point >= to {
			point = from
		}
		var with []*hold
		var sum int64
		for _, o := range others {
			of, ot := o.certain()
			if by := max(of, from) < min(ot, to); !by || of <= point && point < ot {
				with, sum = append(with, o), sum+o.permits
			}
		}
		if sum > out {
			most, out = with, sum
		}
	}
	return most, out
}

// judge reports a violation if h must not overlap the holds in with. Of a semaphore, these have
// out permits, of which excused were lost in a way that no process could know in time.
func (r *Report) judge(h *hold, with []*hold, how string, out, excused int64) {
	if len(with) == 0 {
		return
	}
	if h.kind == Semaphore {
		limit := h.limit
		for _, o := range with {
			limit = max(limit, o.limit)
		}
		switch {
		case out+h.permits <= limit:
		case out-excused+h.permits <= limit:
			r.note(h.path, "%d permits of %d %s, of which %d were lost in a way that could not be told before", out+h.permits, limit, how, excused)
		default:
			r.violation(h.path, "%d permits of %d %s: %s and %d others", out+h.permits, limit, how, h, len(with))
		}
		return
	}
	for _, o := range with {
		how, sorry := r.together(o, h)
		text := fmt.Sprintf("two holders %s: %s, begun %s, %s; and %s, begun %s", how, o, clock(o.begun), o.fate(), h, clock(h.begun))
		if sorry {
			r.note(h.path, "%s", text)
		} else {
			r.violation(h.path, "%s", text)
		}
	}
}

// fate returns the end of h as text.
func (h *hold) fate() string {
	switch h.end {
	case "":
		return "without an end"
	case Loss:
		return fmt.Sprintf("told at %s that it is lost (%s)", clock(h.ended), cmp.Or(h.why, "no reason"))
	case Move:
		return "moved at " + clock(h.ended)
	}
	return "released at " + clock(h.ended)
}
