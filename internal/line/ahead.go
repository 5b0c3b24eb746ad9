package line

import (
	"context"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// An Ahead is what is known of those whom somebody waits for, from what he has
// read anyway and, if he waits for long, from a look at who is the first of them.
// A zero Ahead knows nothing; all methods may be called at any time.
type Ahead struct {
	mu    sync.Mutex
	dir   string
	first []string // the names of the first of them, in their order
	place int      // how many there were
	head  Head     // who was the first of them when that was looked at
}

// A Head is the first of those ahead. Of one that has not been looked at only
// the name is known.
type Head struct {
	Name string
	Node session.Node
}

// A wait is long when it has lasted for lookAfter: then its Ahead looks who is
// the first, and again each time that it has lasted twice as long, up to once in
// lookEvery.
const (
	lookAfter = time.Second
	lookEvery = time.Minute
)

// lookAmong is how many of those ahead are kept, and read with one request. The
// first of them that is still there is the first of all: nobody comes before
// them.
const lookAmong = 8

// Set says whom the wait is for: those of these names in dir, in their order. a keeps names.
func (a *Ahead) Set(dir string, names []string) { a.set(dir, names, len(names)) }

func (a *Ahead) set(dir string, names []string, place int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dir = dir
	a.setLocked(names, place)
}

func (a *Ahead) setLocked(names []string, place int) {
	a.place = place
	a.first = names[:min(len(names), lookAmong):min(len(names), lookAmong)]
	if len(names) == 0 || names[0] != a.head.Name {
		a.head = Head{} // of another wait, or gone
	}
}

// Forget is for one who does not stand in the line any more, or not yet.
func (a *Ahead) Forget() {
	if a != nil {
		a.Set("", nil)
	}
}

// Now returns the first of those ahead, as far as is known, and how many there
// were when they were listed: 0 if they have not been.
func (a *Ahead) Now() (head Head, place int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.head.Name != "":
		return a.head, a.place
	case len(a.first) > 0:
		return Head{Name: a.first[0]}, a.place
	}
	return Head{}, a.place
}

// LookWhileWaiting reads the first contender after a second, and then at doubling intervals, up to
// once a minute, until the caller stops it. The caller does not wait for the reads. If the
// contenders that a knows have all left, list lists the line: it returns the names of the first
// ones, and the number of all ahead.
func (a *Ahead) LookWhileWaiting(inc *session.Incarnation, list func(ctx context.Context) (first []string, place int, err error)) *poll {
	wait := lookAfter / 2
	return newPoll(inc.Manager, lookAfter, func(p *poll) time.Duration {
		ctx := inc.Ctx
		// After an error a stays as it is.
		if found, err := a.look(ctx, inc); err == nil && !found {
			if names, place, err := list(ctx); err == nil && a.relisted(p, names, place) {
				a.look(ctx, inc)
			}
		}
		if ctx.Err() != nil {
			return never
		}
		wait = min(2*wait, lookEvery)
		return wait
	})
}

// relisted sets the names that p has listed, unless p was stopped: then a is about another wait.
func (a *Ahead) relisted(p *poll, names []string, place int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.hasEnded() {
		return false
	}
	a.setLocked(names, place)
	return true
}

// look reads who is the first, and reports whether it is one of those that are
// kept.
func (a *Ahead) look(ctx context.Context, inc *session.Incarnation) (found bool, err error) {
	a.mu.Lock()
	dir, first := a.dir, a.first
	a.mu.Unlock()
	paths := make([]string, len(first))
	for i, name := range first {
		paths[i] = session.ChildPath(dir, name)
	}
	nodes, err := inc.GetVisible(ctx, paths)
	if err != nil {
		return false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.first) != len(first) || a.dir != dir || len(first) > 0 && a.first[0] != first[0] {
		return true, nil // they have been listed anew, and will be looked at next time
	}
	for i, n := range nodes {
		if n.Stat != nil {
			a.head = Head{Name: first[i], Node: n}
			a.first = a.first[i:]
			a.place -= i
			return true, nil
		}
	}
	return false, nil
}
