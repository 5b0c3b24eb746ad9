package ui

// This file makes the data of the page, a model, from one look at the tree. For the timeline,
// it compares the look with the previous look. The time of a look is the business of
// watcher.go, and the HTML is the business of page.html.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/kinds"
	"github.com/zsync/zsync/internal/look"
)

// The type `model` is the data of the page: the result of one look, and a part of earlier results.
type model struct {
	Version   uint64
	At        time.Time
	Err       string
	Cut       bool
	Lines     []lineView // the lines of locks, elections and semaphores
	Queues    []queueView
	Groups    []groupView
	Schedules []scheduleView
	Others    []look.Line
	Refused   []string
	Waits     *graphView
	Timeline  []handOver // the latest hand-over first

	requests int                // about how many requests the look has sent
	holds    map[string]held    // by path and node
	samples  map[string][]count // by queue: its counts, the latest last
}

// The type `who` is a holder or a waiter.
type who struct {
	Owner, Session, Node, Mode string
	Since                      time.Time
	AtMost                     bool // Since may include the wait
	Holding                    bool
	Margin                     string // for how long the hold is confirmed; only for the page's own session
	Place                      int
}

// A lineView is the line at a path.
type lineView struct {
	Path, Kind       string
	Holders, Waiters []who
	Term             string // the number of a leader's term
	State            string
}

// Ours reports whether the page's own session is a holder. If so, the page shows for how long the
// hold is confirmed.
func (l lineView) Ours() bool {
	return slices.ContainsFunc(l.Holders, func(w who) bool { return w.Margin != "" })
}

// Standby reports whether the waiters are candidates behind a leader. Such a wait is normal.
func (l lineView) Standby() bool { return l.Kind == string(kinds.Election) && len(l.Holders) > 0 }

// Holds returns the verb for the holder.
func (l lineView) Holds() string {
	if l.Kind == string(kinds.Election) {
		return "leads"
	}
	return "holds"
}

// The method `before` orders lines: first the lines with waiters, by the longest wait; then the
// lines with candidates on standby; then the lines without waiters.
func (l lineView) before(other lineView) int {
	rank := func(l lineView) int {
		switch {
		case len(l.Waiters) == 0:
			return 2
		case l.Standby():
			return 1
		}
		return 0
	}
	if c := cmp.Compare(rank(l), rank(other)); c != 0 || len(l.Waiters) == 0 {
		return c
	}
	return l.Waiters[0].Since.Compare(other.Waiters[0].Since)
}

// A groupView is a group or a partition.
type groupView struct {
	Path, State string // State is only for a partition
	Members     []look.Line
}

type scheduleView struct {
	Path, Last, Failure string
	Next                time.Time // zero if it is not known
}

// The type `count` is the contents of a queue at one time.
type count struct{ Ready, Claimed, Delayed, Dead int }

// A queueView is a queue with its counts.
type queueView struct {
	Path, Layout, Err string
	count
	Oldest  time.Time
	Holders []zsync.QueueHolder
	Points  string // the points of a polyline, in a picture of 120 by 24
	Most    int
}

// The type `held` is a hold that a look has found.
type held struct {
	path, kind, owner, session, node string
	since                            time.Time
	atMost                           bool
}

// A handOver is the end of a hold: one look found the hold, and the next did not.
type handOver struct {
	Path, Kind, Owner, Next string
	Why                     string // empty if it is not known
	Long                    string
	At                      time.Time
}

// A model has at most remembered hand-overs. For a queue, it has the counts of at most sampled
// looks. A look counts the elements of at most counted queues.
const (
	remembered = 200
	sampled    = 120
	counted    = 50
)

// newModel makes a model from the look t or its error, and from the previous model.
func newModel(ctx context.Context, s *zsync.Session, opts Options, before *model, t *look.Tree, err error, broken func(path, node string) bool) *model {
	if err != nil {
		return before.old(err)
	}
	first := before == nil
	if first {
		before = &model{}
	}
	m := &model{
		At: time.Now(), Cut: t.Cut, Refused: t.Refused, Timeline: before.Timeline,
		requests: t.Znodes, holds: map[string]held{}, samples: map[string][]count{},
	}
	var g look.Graph
	sessions := map[string]bool{}
	for _, p := range t.Places {
		m.requests += 3 + len(p.Lines)/100 // some kinds need more requests
		switch {
		case slices.Contains(p.Kinds, kinds.Queue), slices.Contains(p.Kinds, kinds.ForeignQueue):
			m.requests += 6
		case slices.Contains(p.Kinds, kinds.WaitGroup):
			m.requests += 2
		}
		g.Add(p.Lines)
		for _, l := range p.Lines {
			sessions[l.Session] = true
		}
		m.place(ctx, s, opts, before, p)
	}
	slices.SortStableFunc(m.Lines, lineView.before)
	m.Waits = circles(&g)
	if !first {
		before.forget(t)
		m.remember(before, sessions, broken)
	}
	return m
}

// The method `old` returns a copy of m with the error of a later look. m may be nil.
func (m *model) old(err error) *model {
	var old model
	if m != nil {
		old = *m
	}
	old.Err, old.requests = err.Error(), 0
	return &old
}

// The method `place` adds the primitives at one path, by kind.
func (m *model) place(ctx context.Context, s *zsync.Session, opts Options, before *model, p look.Place) {
	for i := 0; i < len(p.Lines); {
		kind, j := p.Lines[i].Kind, i
		for j < len(p.Lines) && p.Lines[j].Kind == kind {
			j++
		}
		lines := p.Lines[i:j]
		i = j
		switch {
		case kind == "":
		case kind == "queue":
			m.queue(ctx, s, before, p, lines)
		case kind == string(kinds.Group), kind == string(kinds.Partition):
			m.Groups = append(m.Groups, members(opts, p.Path, lines))
		case kind == "schedule":
			v := scheduleView{Path: p.Path, Last: "none", Failure: lines[0].Failure}
			if last, ok := strings.CutPrefix(lines[0].State, "last done: "); ok {
				v.Last, _, _ = strings.Cut(last, "; ")
			}
			if table := opts.Timetables[p.Path]; table != nil {
				v.Next = table.Next(m.At)
			}
			m.Schedules = append(m.Schedules, v)
		case lines[0].Since == nil:
			m.Others = append(m.Others, lines...)
		default:
			m.Lines = append(m.Lines, m.line(s, opts, kind, lines))
		}
	}
}

// The function `members` returns the view of a group or a partition.
func members(opts Options, path string, lines []look.Line) groupView {
	g := groupView{Path: path}
	for _, l := range lines {
		if l.Since == nil {
			g.State = l.State
			continue
		}
		if l.Info != "" {
			l.Info = opts.Format(path, l.Info)
		}
		g.Members = append(g.Members, l)
	}
	return g
}

// The method `line` returns the view of a line, and adds its holds to m.
func (m *model) line(s *zsync.Session, opts Options, kind string, lines []look.Line) lineView {
	v := lineView{Path: lines[0].Path, Kind: kind}
	for _, l := range lines {
		if l.Since == nil {
			v.State = l.State
			continue
		}
		w := who{Owner: opts.Format(l.Path, l.Owner), Session: l.Session, Node: l.Node, Mode: l.Mode, Since: *l.Since, Holding: l.Holding}
		if w.Owner == "" {
			w.Owner = "session " + l.Session
		}
		if since, atMost := l.HeldSince(); l.Holding {
			w.Since, w.AtMost = *since, atMost
		}
		if !l.Holding {
			w.Place = len(v.Waiters) + 1
			v.Waiters = append(v.Waiters, w)
			continue
		}
		if l.Retained {
			v.State = "may only be kept"
		}
		if l.Session == look.SessionText(s.ID()) {
			w.Margin = s.Margin().Round(100 * time.Millisecond).String()
		}
		v.Holders = append(v.Holders, w)
		m.holds[l.Path+"/"+l.Node] = held{l.Path, kind, w.Owner, l.Session, l.Node, w.Since, w.AtMost}
		if kind == "election" {
			v.Term = term(l.Node)
		}
	}
	return v
}

// The function `term` returns the number of a leader's term, which is the number in its znode's
// name. Later terms have greater numbers.
func term(node string) string {
	if len(node) < 10 {
		return ""
	}
	n, err := strconv.ParseUint(node[len(node)-10:], 10, 32)
	if err != nil {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// The method `queue` adds the view of a queue, with its counts.
func (m *model) queue(ctx context.Context, s *zsync.Session, before *model, p look.Place, lines []look.Line) {
	if slices.ContainsFunc(m.Queues, func(q queueView) bool { return q.Path == p.Path }) {
		return
	}
	q := queueView{Path: p.Path}
	for _, l := range lines {
		if l.Layout != "" {
			q.Layout = l.Layout
		}
		if l.Count != nil {
			q.Ready = *l.Count
		}
		if l.Dead != nil {
			q.Dead = *l.Dead
		}
	}
	if len(m.Queues) < counted && q.Layout == "zsync" {
		m.requests += 6 + q.Ready/1000
		st, err := zsync.NewQueue[[]byte](s, p.Path, zsync.WithCodec(zsync.Raw)).Stats(ctx)
		if err != nil {
			q.Err = err.Error()
		} else {
			q.count, q.Oldest, q.Holders = count{st.Ready, st.Claimed, st.Delayed, st.Dead}, st.Oldest, st.Holders
		}
	}
	all := append(slices.Clone(before.samples[p.Path]), q.count)
	all = all[max(len(all)-sampled, 0):]
	m.samples[p.Path] = all
	for _, c := range all {
		q.Most = max(q.Most, c.Ready)
	}
	var points []string
	for i, c := range all {
		points = append(points, fmt.Sprintf("%d,%.1f", i+sampled-len(all), 23-22*float64(c.Ready)/float64(max(q.Most, 1))))
	}
	q.Points = strings.Join(points, " ")
	m.Queues = append(m.Queues, q)
}

// The method `forget` is called on the previous model. It deletes the holds at the paths that the
// look t has not read, because these holds may still exist.
func (m *model) forget(t *look.Tree) {
	for key, h := range m.holds {
		_, read := slices.BinarySearchFunc(t.Places, h.path, func(p look.Place, path string) int { return cmp.Compare(p.Path, path) })
		if t.Cut && !read || slices.Contains(t.Refused, h.path) {
			delete(m.holds, key)
		}
	}
}

// The method `remember` adds the holds that have ended since the previous look to the timeline. It
// misses holds that began and ended between the two looks.
func (m *model) remember(before *model, sessions map[string]bool, broken func(path, node string) bool) {
	var ended []handOver
	for key, h := range before.holds {
		if _, still := m.holds[key]; still {
			continue
		}
		e := handOver{Path: h.path, Kind: h.kind, Owner: h.owner, Long: span(m.At.Sub(h.since)), At: m.At}
		if h.atMost {
			e.Long = "<" + e.Long
		}
		switch {
		case broken(h.path, h.node):
			e.Why = "broken from this page"
		case sessions[h.session]:
			e.Why = "released" // the look has found its session, so the session has not ended
		}
		e.Next = m.newHolders(before, e.Path, e.Kind)
		ended = append(ended, e)
	}
	slices.SortFunc(ended, func(a, b handOver) int { return cmp.Compare(a.Path, b.Path) })
	m.Timeline = slices.Concat(ended, before.Timeline)
	m.Timeline = m.Timeline[:min(len(m.Timeline), remembered)]
	// A look during a hand-over finds no new holder. If this look finds it, add it to the
	// hand-overs of the previous look.
	for i := len(ended); i < len(m.Timeline) && m.Timeline[i].At.Equal(before.At); i++ {
		if e := &m.Timeline[i]; e.Next == "" {
			e.Next = m.newHolders(before, e.Path, e.Kind)
		}
	}
}

// newHolders returns the names of the holders that the previous look did not find.
func (m *model) newHolders(before *model, path, kind string) string {
	var names []string
	for key, n := range m.holds {
		if _, had := before.holds[key]; !had && n.path == path && n.kind == kind {
			names = append(names, n.owner)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// A graphView has the deadlocks and the number of waiting sessions.
type graphView struct {
	Circles []circleView
	Waiting int
}

// A circleView has the sessions of a deadlock: each waits for the next, and the last waits for the
// first.
type circleView struct{ Steps []stepView }

type stepView struct{ Name, Path string } // an empty Path: the session is the process that started the next session

// The function `circles` returns the deadlocks for the page.
func circles(g *look.Graph) *graphView {
	v := &graphView{Waiting: len(g.Waits)}
	for _, circle := range g.Circles() {
		var c circleView
		for _, step := range circle {
			c.Steps = append(c.Steps, stepView{g.Name(step.Session), step.Path})
		}
		v.Circles = append(v.Circles, c)
	}
	return v
}
