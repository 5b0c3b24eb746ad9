package verify

// This file judges the holds in traces. It does not judge elements of queues: see elements.go.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/zsync/zsync/internal/trace"
)

// The method `excused` reports whether the holder could not learn of the end of h in time.
func (h *hold) excused() bool {
	return h.end == trace.Loss && (h.why == "deleted" || h.why == "paused")
}

// ofHold handles a record that is not about elements.
func (j *judge) ofHold(t *one, l trace.Record) {
	key := l.Path + "\x00" + l.Hold
	h := t.open[key]
	odd := func(what string) {
		if l.Kind != trace.Party { // the coordinator also ends the parties of other processes, together with its own
			j.odd(t, l, what, l.Hold)
		}
	}
	switch l.Event {
	case trace.Session:
		j.Sessions++
	case trace.Grant, trace.Move:
		if l.Event == trace.Grant && h != nil {
			switch {
			case h.end != "":
				odd("granted after its " + h.end)
			case l.Kind != trace.Read && h.used:
				odd("granted to a second goroutine while the first has it")
			}
			h.use, h.used = l.Use, true
			return
		}
		if h != nil {
			odd("moved to a znode that is held already")
			h.finish(l)
		}
		h = &hold{
			path: l.Path, kind: l.Kind, name: l.Hold, who: t.name(), session: l.Session,
			permits: max(l.Permits, 1), limit: l.Limit, turn: t.turn, n: l.N, begun: l.Time, first: l.Zxid, sure: never, over: never, use: l.Use, used: true,
		}
		if !l.Blind && l.Zxid != 0 {
			h.sure = l.Zxid
		}
		if l.Event == trace.Move {
			from := t.open[l.Path+"\x00"+l.From]
			if from == nil {
				odd("continues what was not held: " + l.From)
			} else {
				h.from = from
				from.finish(l)
			}
		}
		t.open[key] = h
		j.add(h)
	case trace.Pass:
		if h == nil || !h.used {
			odd("passed on by who did not hold it")
		} else if l.Kind != trace.Read {
			h.used = false
		}
	case trace.Token:
		j.Tokens++
		if h == nil || h.end != "" {
			odd("a token of what is not held")
			return
		}
		if h.sure = min(h.sure, l.Token); l.Token <= h.token {
			odd(fmt.Sprintf("token %d follows %d", l.Token, h.token))
		}
		h.token = l.Token
	case trace.Loss:
		j.Losses++
		switch {
		case h == nil:
			odd("the loss of what was not held")
		case h.end == trace.Loss:
			odd("lost twice")
		case h.end == "", l.Reason == "deleted": // the release has found that another client had deleted the znode
			h.finish(l)
		}
	case trace.Release:
		switch {
		case h == nil:
			odd("the release of what was not held")
		case h.end != "":
			odd("released after its " + h.end)
		default:
			h.finish(l)
		}
	case trace.Gone:
		switch {
		case h == nil:
			odd("deleted, and was not held")
		case h.end == "":
			odd("deleted while it was held")
			h.finish(l)
			h.over, h.gone = l.Zxid, l.Zxid
		case l.Zxid != 0:
			h.over, h.gone = l.Zxid, l.Zxid
		}
		if l.Zxid != 0 { // otherwise, the loss may follow
			delete(t.open, key)
		}
	}
}

// The method `add` remembers a hold that has begun.
func (j *judge) add(h *hold) {
	j.Holds++
	p := j.places[h.path]
	if p == nil {
		p = &place{greatest: &hold{}}
		j.places[h.path] = p
		j.Paths++
	}
	p.holds = append(p.holds, h)
	j.remembered++
}

// endHolds is called at the end of a trace, and ends the holds that have no end.
func (j *judge) endHolds(t *one) {
	for _, key := range slices.Sorted(maps.Keys(t.open)) {
		h := t.open[key]
		if h.end == "" {
			seen := t.last[h.session]
			h.ended = seen.time
			h.over = max(seen.zxid, h.first) + 1
			j.note(h.path, "%s was held to the end of its trace", h)
		}
	}
}

// The method `finish` notes that h has ended, by the record l.
func (h *hold) finish(l trace.Record) {
	h.end, h.why, h.ended, h.used = l.Event, l.Reason, l.Time, false
	if l.Event != trace.Loss && !l.Blind && l.Zxid != 0 {
		h.sure = min(h.sure, l.Zxid) // the znode still existed: its deletion is sent after this record
	}
	// The session has seen transaction l.Zxid during the hold. If a later record has the
	// transaction of the deletion, `over` becomes that transaction.
	h.over = l.Zxid + 1
	if h.excused() {
		h.over = 0
	}
}

// The method `until` returns the end of h. If the end is unknown, the result is a time in the far
// future.
func (h *hold) until() time.Time {
	if h.end == "" {
		return time.Unix(1<<40, 0)
	}
	return h.ended
}

// The method `certain` returns bounds of the time of h: h was certainly held at the transaction
// `from`, and at every later transaction before `to`.
func (h *hold) certain() (from, to int64) {
	from = h.sure
	if h.from != nil { // the earlier hold had the place until its znode was deleted
		from = max(from, h.from.over)
	}
	return from, h.over
}

// The method `together` reports whether a and b certainly overlapped, by the order of transactions
// or by the clocks. The result `how` describes the overlap. Without an overlap, it is empty.
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

// The method `before` reports whether the servers deleted the znode of h in the first transaction in
// which o was certainly held, or earlier. If the two holds do not overlap, h came before o.
func (h *hold) before(o *hold) bool {
	from, _ := o.certain()
	return h.gone != 0 && h.gone <= from && from != never
}

// The method `kin` reports whether one of h and o continues the other.
func (h *hold) kin(o *hold) bool {
	return h.descends(o) || o.descends(h)
}

func (h *hold) descends(o *hold) bool {
	for h != nil && h != o {
		h = h.from
	}
	return h != nil
}

// The function `conflict` reports whether the two holds exclude each other.
func conflict(a, b *hold) bool {
	return a.kind != trace.Party && b.kind != trace.Party && !(a.kind == trace.Read && b.kind == trace.Read)
}

// The method `path` judges the holds of one path. If `all` is true, the traces have ended, and it judges all holds.
// Otherwise, it judges only holds that have begun before the time `cut`, up to the first hold without an end. Then
// it forgets the judged holds that have ended before the time `old`.
func (j *judge) path(p *place, cut, old time.Time, all bool) {
	// If two began at the same time, the first to end counts as the first.
	slices.SortStableFunc(p.holds, func(a, b *hold) int { return cmp.Or(a.begun.Compare(b.begun), a.until().Compare(b.until())) })
	// firsts[i] is about the holds from index i on: it is the first transaction in which one of them
	// was certainly held. A hold that ended before that transaction cannot overlap these holds.
	firsts := make([]int64, len(p.holds)+1)
	firsts[len(p.holds)] = never
	for i, h := range slices.Backward(p.holds) {
		from, _ := h.certain()
		firsts[i] = min(firsts[i+1], from)
	}
	var before []*hold // earlier holds that may overlap the next ones
	var open []*hold
	judged := len(p.holds)
	for i, h := range p.holds {
		if !all && (h.begun.After(cut) || h.end == "" && len(p.holds)-i < manyLater) {
			judged = i
			break
		}
		if !all && h.end == "" {
			h.skipped = true
			open = append(open, h)
			continue
		}
		before = slices.DeleteFunc(before, func(o *hold) bool {
			_, to := o.certain()
			return !o.ended.Add(j.Tolerance).After(h.begun) && to <= firsts[i]
		})
		if !h.judged {
			h.judged = true
			j.comesLate(p, h)
			j.compare(h, before)
			for _, later := range p.holds[i+1:] {
				if later.judged { // h was skipped
					j.compare(later, []*hold{h})
				}
			}
			j.token(p, h)
		}
		before = append(before, h)
	}
	if all {
		return
	}
	kept := p.holds[:0]
	for i, h := range p.holds {
		if i >= judged || h.end == "" || !h.ended.Before(old) {
			kept = append(kept, h)
			continue
		}
		from, over := h.certain()
		for _, o := range open {
			if conflict(o, h) && !h.begun.Before(o.begun) {
				if o.passed.IsZero() {
					o.passed, o.passedFrom = h.begun, from
				}
				o.passedFrom = min(o.passedFrom, from)
			}
		}
		p.over = max(p.over, over)
		if h.ended.After(p.ended) {
			p.ended = h.ended
		}
		j.remembered--
		j.forgotten = true
		h.from = nil
	}
	clear(p.holds[len(kept):])
	p.holds = kept
}

// comesLate adds an entry to the Report if h may have overlapped forgotten holds.
func (j *judge) comesLate(p *place, h *hold) {
	from, over := h.certain()
	switch {
	case p.late:
		return
	case h.skipped:
		if h.passed.IsZero() || !h.ended.After(h.passed.Add(j.Tolerance)) && over <= h.passedFrom {
			return
		}
	case !h.begun.Add(j.Tolerance).Before(p.ended) && from >= p.over:
		return
	}
	p.late = true
	j.missing("%s: a hold of %s, begun %s, lasted so long, or came so late, that others of its time are forgotten: give each trace as a file of its own", h.path, h, clock(h.begun))
}

// If a hold has no end yet, the holds after it are judged later. When `manyLater` holds wait, the
// method `path` skips the hold without an end, and judges the others.
const manyLater = 100

// The method `compare` judges h against the holds in `before`: whether they exclude each other.
func (j *judge) compare(h *hold, before []*hold) {
	var out int64
	var with []*hold
	var how string
	var excused int64
	for _, o := range before {
		if !conflict(o, h) {
			continue
		}
		if w, sorry := j.together(o, h); w != "" {
			how = cmp.Or(how, w)
			out += o.permits
			with = append(with, o)
			if sorry {
				excused += o.permits
			}
		}
	}
	if h.kind == trace.Semaphore {
		with, out = mostAtOnce(h, with)
	}
	j.judge(h, with, how, out, excused)
}

// The method `token` compares the token of h with those of earlier holds that exclude h.
func (j *judge) token(p *place, h *hold) {
	if h.token == 0 || h.begun.Before(p.greatest.begun) {
		return
	}
	if h.kind != trace.Semaphore && h.token <= p.greatest.token {
		// The clocks may show a short hold after its successor. So skip the holds that may come after h.
		earlier := append([]*hold{p.greatest}, p.holds[:max(slices.Index(p.holds, h), 0)]...)
		i := slices.IndexFunc(earlier, func(o *hold) bool {
			return h.token <= o.token && conflict(o, h) && !h.kin(o) && !h.before(o) && (h.token == o.token || o.before(h) || o.turn == h.turn && o.n < h.n || h.begun.Sub(o.begun) > j.Tolerance)
		})
		if i >= 0 {
			o := earlier[i]
			j.violation(h.path, "tokens do not grow: %d of %s, begun %s, after %d of %s, begun %s", h.token, h, clock(h.begun), o.token, o, clock(o.begun))
		}
	}
	if h.token > p.greatest.token {
		p.greatest = h
	}
}

// mostAtOnce finds the transaction, during h, in which the holds in `others` had the most permits.
// It returns the holds of that transaction and their permits. Each of the other holds overlaps h,
// but two of them need not overlap each other. Some holds overlap h only by the clocks. Such a hold
// counts in a transaction if its predecessor and its successor do not count there. They are the
// holds that it continues and that continue it.
func mostAtOnce(h *hold, others []*hold) (most []*hold, out int64) {
	from, to := h.certain()
	for _, at := range append([]*hold{h}, others...) {
		point, _ := at.certain()
		if point = max(point, from); point >= to {
			point = from
		}
		var with []*hold
		var sum int64
		for _, clocks := range []bool{false, true} { // first the holds that overlap h by transactions
			for _, o := range others {
				of, ot := o.certain()
				switch by := max(of, from) < min(ot, to); {
				case by == clocks:
				case by && (point < of || ot <= point):
				case slices.ContainsFunc(with, o.kin): // o continues a hold that counts, or a hold that counts continues o: the two are one hold
				default:
					with, sum = append(with, o), sum+o.permits
				}
			}
		}
		if sum > out {
			most, out = with, sum
		}
	}
	return most, out
}

// The method `judge` reports a violation if h must not overlap the holds in `with`. In a semaphore,
// these holds have `out` permits. The number `excused` counts the permits that were lost before
// their holder could learn of it.
func (r *Report) judge(h *hold, with []*hold, how string, out, excused int64) {
	if len(with) == 0 {
		return
	}
	if h.kind == trace.Semaphore {
		limit := h.limit
		for _, o := range with {
			limit = max(limit, o.limit)
		}
		switch {
		case out+h.permits <= limit:
		case out-excused+h.permits <= limit:
			r.note(h.path, "%d permits of %d %s, of which %d were lost in a way that could not be told before", out+h.permits, limit, how, excused)
		default:
			r.violation(h.path, "%d permits of %d %s: %s and %d others: %v", out+h.permits, limit, how, h, len(with), with)
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

// The method `fate` returns the end of h as text.
func (h *hold) fate() string {
	switch h.end {
	case "":
		return "without an end"
	case trace.Loss:
		return fmt.Sprintf("told at %s that it is lost (%s)", clock(h.ended), cmp.Or(h.why, "no reason"))
	case trace.Move:
		return "moved at " + clock(h.ended)
	}
	return "released at " + clock(h.ended)
}
