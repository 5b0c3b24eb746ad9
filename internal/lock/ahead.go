package lock

import (
	"context"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// An Ahead records the contenders that a waiter waits for, for errors and reports: which is the
// first, and how many there are. It learns them from listings that the waiter makes anyway and,
// in a long wait, from its own reads. It does not decide any turn. A zero Ahead is empty; all
// methods may be called at any time.
type Ahead struct {
	mu    sync.Mutex
	dir   string
	first []string // names of the first contenders, in order
	place int      // number of contenders at the listing
	head  Head     // the first contender, as it was last read
}

// A Head is the first contender ahead. Node is empty before the first read.
type Head struct {
	Name string
	Node session.Node
}

// A wait is long after lookAfter. Then its Ahead reads the first contender, and again each time
// that the wait has lasted twice as long, at most once in lookEvery.
const (
	lookAfter = time.Second
	lookEvery = time.Minute
)

// lookAmong is the number of contenders ahead that an Ahead keeps, and reads with one request.
// The first of them that still exists is the first of the line: no contender arrives ahead of
// them.
const lookAmong = 8

// Set sets the contenders ahead: the children of dir with these names, in order. a keeps names.
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
		a.head = Head{} // of another wait, or deleted
	}
}

// Forget is Set for a contender that is not in the line.
func (a *Ahead) Forget() {
	if a != nil {
		a.Set("", nil)
	}
}

// Now returns the first contender ahead, as far as it is known, and how many there were at the
// last listing: 0 if there was none.
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
		// After an error, a stays unchanged.
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

// relisted sets the names that p has listed, unless p was stopped: then a belongs to another
// wait.
func (a *Ahead) relisted(p *poll, names []string, place int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.hasEnded() {
		return false
	}
	a.setLocked(names, place)
	return true
}

// look reads the first contender, and reports whether any contender in a still exists.
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
		return true, nil // a new listing has replaced them; the next look uses it
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
