package look

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// This file finds deadlocks: circles of sessions that wait for each other. It reads nothing: other
// files have read the holders and waiters.

// A Graph records which session waits for which other session.
type Graph struct {
	Names map[string]string // by session: its owner
	Waits map[string][]Wait // by the session that waits
}

// A Wait records that a session waits at a path for the holders there. If Path is empty, the
// session waits for the end of a command that it has started. In that case, Holders has one
// element: the session of that command. For example, a zsync lock command that runs another zsync
// lock command holds its own lock until the other command ends.
type Wait struct {
	Path    string
	Holders []string // sessions
	Any     bool     // the session waits for permits, so the release of a single holder is enough
}

// Add adds the waits that `lines` shows.
func (g *Graph) Add(lines []Line) {
	if g.Names == nil {
		g.Names, g.Waits = map[string]string{}, map[string][]Wait{}
	}
	for _, l := range lines {
		switch l.Kind {
		case "lock", "read-write lock", "kazoo lock", "semaphore", "kazoo semaphore", "election":
		default:
			continue
		}
		if g.Names[l.Session] == "" {
			g.Names[l.Session] = l.Owner
		}
		for _, outer := range l.Within {
			inner := func(w Wait) bool { return w.Path == "" && w.Holders[0] == l.Session }
			if outer != l.Session && !slices.ContainsFunc(g.Waits[outer], inner) {
				g.Waits[outer] = append(g.Waits[outer], Wait{Holders: []string{l.Session}})
			}
		}
		if l.Holding || l.Since == nil || l.Session == NoSession { // two unknown sessions may be different
			continue
		}
		w := Wait{Path: l.Path, Any: strings.HasSuffix(l.Kind, "semaphore")}
		for _, holder := range lines {
			if holder.Holding && holder.Kind == l.Kind && holder.Session != l.Session && holder.Session != NoSession && !slices.Contains(w.Holders, holder.Session) {
				w.Holders = append(w.Holders, holder.Session)
			}
		}
		if len(w.Holders) > 0 {
			g.Waits[l.Session] = append(g.Waits[l.Session], w)
		}
	}
}

// The method `stuck` returns the sessions in a circle, and the sessions that wait for such
// sessions. If each session keeps its holds while it waits, none of the returned sessions can
// proceed by itself. A session that waits for a permit can proceed if a single holder can proceed.
func (g *Graph) stuck() map[string]bool {
	stuck := map[string]bool{}
	for s := range g.Waits {
		stuck[s] = true
	}
	for changed := true; changed; {
		changed = false
		for s := range stuck {
			goesOn := !slices.ContainsFunc(g.Waits[s], func(w Wait) bool {
				held := func(h string) bool { return stuck[h] }
				if w.Any {
					return !slices.ContainsFunc(w.Holders, func(h string) bool { return !held(h) })
				}
				return slices.ContainsFunc(w.Holders, held)
			})
			if goesOn {
				delete(stuck, s)
				changed = true
			}
		}
	}
	return stuck
}

// A Step is a part of a circle: a session waits at a path for another session.
type Step struct{ Session, Path, For string }

// Circles returns the circles of sessions that wait for each other. It returns each circle once. A
// circle is a deadlock, unless a process in it waits with one thread and can release its lock with
// another thread.
func (g *Graph) Circles() (found [][]Step) {
	stuck, done := g.stuck(), map[string]bool{}
	sessions := slices.SortedFunc(maps.Keys(stuck), func(a, b string) int {
		return cmp.Or(cmp.Compare(g.Names[a], g.Names[b]), cmp.Compare(a, b))
	})
	var trail []Step
	var follow func(session string)
	follow = func(session string) {
		if i := slices.IndexFunc(trail, func(s Step) bool { return s.Session == session }); i >= 0 {
			found = append(found, slices.Clone(trail[i:]))
			return
		}
		if done[session] || !stuck[session] {
			return
		}
		for _, w := range g.Waits[session] {
			for _, h := range w.Holders {
				trail = append(trail, Step{session, w.Path, h})
				follow(h)
				trail = trail[:len(trail)-1]
			}
		}
		done[session] = true
	}
	for _, s := range sessions {
		follow(s)
	}
	return found
}

// Describe describes a circle in words: which session waits for which.
func (g *Graph) Describe(circle []Step) string {
	words := make([]string, len(circle))
	for i, s := range circle {
		if s.Path == "" {
			words[i] = fmt.Sprintf("%s runs %s", g.Name(s.Session), g.Name(s.For))
			continue
		}
		words[i] = fmt.Sprintf("%s waits at %s for %s", g.Name(s.Session), s.Path, g.Name(s.For))
	}
	return strings.Join(words, ", ")
}

// Name returns a printable name of a session.
func (g *Graph) Name(session string) string {
	if g.Names[session] == "" {
		return "session " + session
	}
	return Printable(g.Names[session])
}
