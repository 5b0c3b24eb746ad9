package line

import (
	"context"
	"strings"
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
	first []string      // the names of the first of them, in their order
	place int           // how many there were
	head  Head          // who was the first of them when that was looked at
	soon  chan struct{} // has a token when somebody has begun to wait, if anybody looks

	now func() (Head, int) // who knows instead, if it is not nil
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

// Set says whom the wait is for: those of these names in dir, in their order.
func (a *Ahead) Set(dir string, names []string) { a.set(dir, names, len(names)) }

func (a *Ahead) set(dir string, names []string, place int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dir, a.place = dir, place
	a.first = append([]string(nil), names[:min(len(names), lookAmong)]...)
	if len(names) == 0 || names[0] != a.head.Name {
		a.head = Head{} // of another wait, or gone
	}
}

// setChildren is Set for contenders.
func (a *Ahead) setChildren(dir string, ahead []Child) {
	names := make([]string, 0, lookAmong)
	for _, c := range ahead[:min(len(ahead), lookAmong)] {
		names = append(names, strings.Clone(c.Name)) // without the whole listing
	}
	a.set(dir, names, len(ahead))
}

// share has now say what is known.
func (a *Ahead) share(now func() (Head, int)) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = now
}

// Forget is for one who does not stand in the line any more, or not yet.
func (a *Ahead) Forget() {
	if a != nil {
		a.share(nil)
		a.Set("", nil)
	}
}

// lookSoon has who looks look again as if the wait had just begun.
func (a *Ahead) lookSoon() {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case a.soon <- struct{}{}:
	default:
	}
}

// Now returns the first of those ahead, as far as is known, and how many there
// were when they were listed: 0 if they have not been.
func (a *Ahead) Now() (head Head, place int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.now != nil {
		return a.now() // what all waiters of the session know together
	}
	switch {
	case a.head.Name != "":
		return a.head, a.place
	case len(a.first) > 0:
		return Head{Name: a.first[0]}, a.place
	}
	return Head{}, a.place
}

// LookWhileWaiting looks who is the first, through inc, as often as is due until
// stop is called, and leaves then what is under way. It keeps nobody waiting.
// list lists those ahead anew.
func (a *Ahead) LookWhileWaiting(ctx context.Context, inc *session.Incarnation, list func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	a.mu.Lock()
	a.soon = make(chan struct{}, 1)
	a.mu.Unlock()
	begin := time.AfterFunc(lookAfter, func() {
		inc.Manager.Spawn(func() { a.lookOften(ctx, inc, list) })
	})
	return func() {
		begin.Stop()
		cancel()
	}
}

func (a *Ahead) lookOften(ctx context.Context, inc *session.Incarnation, list func(ctx context.Context) error) {
	a.mu.Lock()
	soon := a.soon
	a.mu.Unlock()
	for wait := lookAfter; ; wait = min(2*wait, lookEvery) {
		// What cannot be read stays unknown.
		if found, err := a.look(ctx, inc); err == nil && !found && list(ctx) == nil {
			a.look(ctx, inc)
		}
		select {
		case <-time.After(wait):
			continue
		case <-soon:
			wait = lookAfter / 2
		case <-ctx.Done():
			return
		case <-inc.Ctx.Done():
			return
		}
		select { // those who have just come
		case <-time.After(lookAfter):
		case <-ctx.Done():
			return
		case <-inc.Ctx.Done():
			return
		}
	}
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
