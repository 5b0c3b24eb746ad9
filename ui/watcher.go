package ui

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/look"
)

// perSecond is how many requests a second are sent at most, on the average.
const perSecond = 200

// patience is how long a look may take before what is shown is called old. The look
// goes on: a large tree takes longer where the servers are far.
const patience = 10 * time.Second

var errSlow = fmt.Errorf("the present look has taken longer than %v: the servers do not answer, or have much to tell", patience)

// idle is how much less often the tree is looked at while nobody has the page
// open.
const idle = 10

// A watcher looks at the tree, once for all who watch.
type watcher struct {
	s     *zsync.Session
	opts  Options
	once  sync.Once
	ended chan struct{} // closed when the session is

	mu       sync.Mutex
	model    *model        // the latest; guarded by mu
	changed  chan struct{} // closed when there is another; guarded by mu
	viewers  int           // guarded by mu
	asked    time.Time     // when somebody last asked; guarded by mu
	wake     chan struct{} // has one element when somebody has come
	brokenAt map[string]bool
	seen     look.Memory // used by look alone
}

func newWatcher(s *zsync.Session, opts Options) *watcher {
	return &watcher{s: s, opts: opts, ended: make(chan struct{}), changed: make(chan struct{}), wake: make(chan struct{}, 1), brokenAt: map[string]bool{}}
}

// start begins to look, at the first request. If nobody has asked for long, and the
// tree was looked at rarely, it waits for the next look.
func (w *watcher) start(ctx context.Context) {
	w.mu.Lock()
	rarely, changed := w.rarely() && w.model != nil, w.changed
	w.asked = time.Now()
	w.mu.Unlock()
	w.once.Do(func() { go w.run() })
	if rarely {
		w.lookNow()
		select {
		case <-changed:
		case <-w.ended:
		case <-ctx.Done():
		}
	}
}

// rarely reports whether nobody has the page open. w.mu is held.
func (w *watcher) rarely() bool {
	return w.viewers == 0 && time.Since(w.asked) > idle*w.opts.Interval
}

// run looks until the session is closed.
func (w *watcher) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	states := w.s.States(ctx)
	defer close(w.ended)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for state := range states {
			if state == zsync.StateClosed {
				return
			}
		}
	}()
	defer func() { cancel(); <-closed }()
	for {
		if w.s.State() == zsync.StateClosed { // before States was called
			return
		}
		pause := w.look(ctx, closed)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-w.wake:
		case <-closed:
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// look looks once, and returns how long to wait before the next.
func (w *watcher) look(ctx context.Context, closed <-chan struct{}) time.Duration {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	go func() {
		select {
		case <-closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	before := w.present()
	slow := time.AfterFunc(patience, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.model == before { // the look has not ended at this same instant
			w.publish(before.old(errSlow))
		}
	})
	defer slow.Stop()
	tree, err := look.Look(ctx, w.s, w.opts.Root)
	if err == nil {
		w.seen.Note(tree)
	}
	m := newModel(ctx, w.s, w.opts, before, tree, err, w.wasBroken)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.publish(m)
	pause := max(w.opts.Interval, time.Duration(m.requests)*time.Second/perSecond)
	if w.rarely() {
		pause *= idle
	}
	return pause
}

// publish makes m the latest. w.mu is held.
func (w *watcher) publish(m *model) {
	m.Version = 1
	if w.model != nil {
		m.Version = w.model.Version + 1
	}
	w.model = m
	close(w.changed)
	w.changed = make(chan struct{})
}

// present returns the latest model, or nil if there is none yet.
func (w *watcher) present() *model {
	m, _ := w.now()
	return m
}

// latest returns the latest model, and waits for the first.
func (w *watcher) latest(ctx context.Context) *model {
	for {
		m, changed := w.now()
		if m != nil {
			return m
		}
		select {
		case <-changed:
		case <-w.ended:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// now returns the latest model, and what is closed when there is another.
func (w *watcher) now() (*model, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.model, w.changed
}

// join is somebody who has the page open.
func (w *watcher) join() (leave func()) {
	w.mu.Lock()
	w.viewers++
	first := w.viewers == 1
	w.mu.Unlock()
	if first {
		w.lookNow()
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.viewers--
	}
}

// lookNow has run look at once.
func (w *watcher) lookNow() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// breaks notes that a hold is about to be broken here.
func (w *watcher) breaks(path, node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.brokenAt[path+"/"+node] = true
}

// wasBroken reports whether a hold was broken here, and forgets it.
func (w *watcher) wasBroken(path, node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.brokenAt[path+"/"+node]
	delete(w.brokenAt, path+"/"+node)
	return was
}
