package ui

// This file decides when to look at the tree, and publishes the latest model to all viewers. The
// contents of the model are the business of model.go.

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/look"
)

// perSecond is the maximum of the average number of requests per second.
const perSecond = 200

// patience is the duration of a look after which the page says that its contents are old. The look
// continues, because a large tree on distant servers takes longer.
const patience = 10 * time.Second

var errSlow = fmt.Errorf("the present look has taken longer than %v: the servers do not answer, or there is much to read", patience)

// idle is the factor by which the pause between looks grows while no browser has the page open.
const idle = 10

// The type `watcher` looks at the tree for all viewers.
type watcher struct {
	s     *zsync.Session
	opts  Options
	once  sync.Once
	ended chan struct{} // closed after the end of the session

	mu       sync.Mutex
	model    *model        // the latest; guarded by mu
	changed  chan struct{} // closed when a newer model replaces the latest; guarded by mu
	viewers  int           // guarded by mu
	asked    time.Time     // the time of the last HTTP request; guarded by mu
	wake     chan struct{} // has an element if the next look is due at once
	brokenAt map[string]bool
	seen     look.Memory // only the method look uses it
}

func newWatcher(s *zsync.Session, opts Options) *watcher {
	return &watcher{s: s, opts: opts, ended: make(chan struct{}), changed: make(chan struct{}), wake: make(chan struct{}, 1), brokenAt: map[string]bool{}}
}

// The method `start` starts run at the first HTTP request. If the watcher looks rarely because the
// last request was long ago, start waits for a new look. It does not wait if the present look is
// slow, because that look may not end before the servers answer again.
func (w *watcher) start(ctx context.Context) {
	w.mu.Lock()
	rarely, changed := w.rarely() && w.model != nil, w.changed
	slow := w.model != nil && w.model.Err == errSlow.Error()
	w.asked = time.Now()
	w.mu.Unlock()
	w.once.Do(func() { go w.run() })
	if rarely {
		w.lookNow()
	}
	if rarely && !slow {
		select { // in any order: each outcome ends the wait
		case <-changed:
		case <-w.ended:
		case <-ctx.Done():
		}
	}
}

// The method `rarely` reports whether no browser has the page open, so that the watcher looks
// rarely. The caller holds w.mu.
func (w *watcher) rarely() bool {
	return w.viewers == 0 && time.Since(w.asked) > idle*w.opts.Interval
}

// The method `run` looks repeatedly until the session is closed.
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
		if w.s.State() == zsync.StateClosed { // closed before the call of States
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

// The method `look` looks once, and returns the pause before the next look.
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
		if w.model == before { // otherwise, the look has just ended
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

// The method `publish` makes m the latest model. The caller holds w.mu.
func (w *watcher) publish(m *model) {
	m.Version = 1
	if w.model != nil {
		m.Version = w.model.Version + 1
	}
	w.model = m
	close(w.changed)
	w.changed = make(chan struct{})
}

// The method `present` returns the latest model, or nil if there is none yet.
func (w *watcher) present() *model {
	m, _ := w.now()
	return m
}

// The method `latest` returns the latest model, and waits for the first.
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

// The method `now` returns the latest model, and a channel that is closed when a newer model
// replaces it.
func (w *watcher) now() (*model, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.model, w.changed
}

// The method `join` adds a viewer. The viewer calls leave when it ends.
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

// lookNow makes run look at once.
func (w *watcher) lookNow() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// The method `breaks` records that the page is about to break a hold.
func (w *watcher) breaks(path, node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.brokenAt[path+"/"+node] = true
}

// wasBroken reports whether the page has broken a hold, and deletes the record.
func (w *watcher) wasBroken(path, node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.brokenAt[path+"/"+node]
	delete(w.brokenAt, path+"/"+node)
	return was
}
