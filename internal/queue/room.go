package queue

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// A gate keeps the place of one Queue value among those who send to a queue of
// limited length. The first of the line alone counts and watches, so the limit is
// exact among those who keep it, and one is woken when elements are consumed.
//
// Who has counted keeps its place for a moment, and sends without counting again
// while there is certainly room: others may consume meanwhile, and nobody who keeps
// the limit can send.
//
// Whoever is first when its session ends may be followed by another while its
// own elements are still under way, and the queue become longer by those.
type gate struct {
	site
	line   line.Line // of those who wait for room
	maxLen int
	length func(ctx context.Context, inc *session.Incarnation) (int, error)

	busy chan struct{} // has a token while a goroutine of this process asks for room

	mu      sync.Mutex
	place   *line.Claim          // nil if there is none
	inc     *session.Incarnation // whose it is
	until   time.Time            // when it is to be left
	left    int                  // how many more elements certainly fit
	sending int                  // those who have room, and have not sent yet
	sent    chan struct{}        // closed when there are none
}

// keepPlace is how long a place is kept for the next who send. It is shorter than
// roomPatience.
const keepPlace = 50 * time.Millisecond

// await waits until n more elements fit into a queue of limited length. Until
// the caller leaves nobody else among those who keep the limit sends.
func (g *gate) await(ctx context.Context, n int) (leave func(), err error) {
	g.m.Waiters.Add(1)
	defer g.m.Waiters.Add(-1)
	return g.enter(ctx, n, nil, func(inc *session.Incarnation) error { return g.firstPlace(ctx, inc) }, g.fits)
}

// try is await, but ErrFull when it would have to wait for room.
func (g *gate) try(ctx context.Context, n int) (leave func(), err error) {
	full := func(ctx context.Context, inc *session.Incarnation, n int) (int, error) {
		have, err := g.length(ctx, inc)
		if err == nil && have+n > g.maxLen {
			err = ErrFull
		}
		return g.maxLen - have, err
	}
	return g.enter(ctx, n, time.After(roomPatience), func(inc *session.Incarnation) error {
		if err := inc.Sync(ctx, g.dir); err != nil { // it is full only if the leader says so
			return err
		}
		if _, err := full(ctx, inc, n); err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, roomPatience)
		defer cancel()
		err := g.firstPlace(limited, inc)
		if err != nil && limited.Err() != nil && ctx.Err() == nil {
			return ErrFull // those who stand before us wait for room
		}
		return err
	}, full)
}

// enter has room made for n elements: by what is left, or behind a new place,
// which take takes, and a count. count returns how many fit; it may return less
// than n, and is asked again. When patience has a value others of this process
// still wait for room, and it is ErrFull.
func (g *gate) enter(ctx context.Context, n int, patience <-chan time.Time, take func(inc *session.Incarnation) error, count func(ctx context.Context, inc *session.Incarnation, n int) (int, error)) (leave func(), err error) {
	if n > g.maxLen {
		return nil, session.Invalid("%d elements never fit into a queue of at most %d; see WithMaxLen", n, g.maxLen)
	}
	select {
	case g.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, session.CtxErr(ctx)
	case <-patience:
		return nil, ErrFull
	}
	defer func() { <-g.busy }()
	err = g.m.During(ctx, func(inc *session.Incarnation) error {
		if g.reserve(inc, n) {
			return nil
		}
		// What is still being sent may be counted or not.
		if err := g.allSent(ctx, inc); err != nil {
			return err
		}
		if !g.begin(inc) {
			if err := take(inc); err != nil {
				g.done()
				return err
			}
		}
		for {
			room, err := count(ctx, inc, n)
			if err == nil && !inc.Alive() {
				err = session.ErrEnded
			}
			if err != nil {
				g.leave().Await(session.Grace)
				g.done()
				return err
			}
			if room >= n {
				g.fill(room - n)
				return nil
			}
		}
	})
	return g.done, err
}

// settle is told of a new place.
func (g *gate) settle(inc *session.Incarnation, place *line.Claim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inc, g.place, g.until, g.left = inc, place, time.Now().Add(keepPlace), 0
}

// fill is told how many more elements fit.
func (g *gate) fill(left int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left = left
}

func (g *gate) sendLocked() {
	if g.sending++; g.sending == 1 {
		g.sent = make(chan struct{})
	}
}

// reserve reports whether n more elements certainly fit.
func (g *gate) reserve(inc *session.Incarnation, n int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.standsLocked(inc) || g.left < n {
		return false
	}
	g.left -= n
	g.sendLocked()
	return true
}

// begin keeps the place from being left until done, and reports whether there is
// one; if it is too old it is left.
func (g *gate) begin(inc *session.Incarnation) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sendLocked()
	if g.standsLocked(inc) {
		return true
	}
	g.leaveLocked()
	return false
}

func (g *gate) standsLocked(inc *session.Incarnation) bool {
	return g.place != nil && g.inc == inc && inc.Alive() && time.Now().Before(g.until)
}

// allSent waits until nothing is being sent.
func (g *gate) allSent(ctx context.Context, inc *session.Incarnation) error {
	g.mu.Lock()
	sent := g.sent
	if g.sending == 0 {
		sent = session.ClosedChan
	}
	g.mu.Unlock()
	return session.AwaitIn(ctx, inc, sent)
}

// done is told that somebody who had room has sent, or has failed to.
func (g *gate) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sending--; g.sending > 0 {
		return
	}
	close(g.sent)
	place, rest := g.place, time.Until(g.until)
	if place == nil || rest <= 0 {
		g.leaveLocked()
		return
	}
	time.AfterFunc(rest, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.place == place && g.sending == 0 {
			g.leaveLocked()
		}
	})
}

// leave leaves the place, if there is one.
func (g *gate) leave() *session.Removal {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leaveLocked()
}

func (g *gate) leaveLocked() *session.Removal {
	place := g.place
	if g.place = nil; place == nil {
		return nil
	}
	return place.Leave()
}

// roomPatience is how long TrySend waits for those who stand before it.
const roomPatience = 100 * time.Millisecond

// firstPlace waits for the first place in the line of those who send, for g.
func (g *gate) firstPlace(ctx context.Context, inc *session.Incarnation) error {
	for {
		place, err := g.line.Contend(ctx, inc, g.line.Bases[0], []byte(g.m.Config.Owner), line.Exclusive, nil)
		if err == nil {
			g.settle(inc, place)
		}
		if !errors.Is(err, session.ErrVanished) {
			return err
		}
	}
}

// fits returns how many elements fit. If these are less than n it waits until
// something has been consumed, and the question must be asked again.
func (g *gate) fits(ctx context.Context, inc *session.Incarnation, n int) (room int, err error) {
	have, err := g.length(ctx, inc)
	if room = g.maxLen - have; err != nil || room >= n {
		return room, err
	}
	// Elements can be consumed from any bucket: those at the front may be in the
	// hands of a consumer that is slow. What is counted here is no newer than
	// the watches, so whatever goes after it fires one of them.
	watches := []*session.Watch{inc.Watches.Join(session.WatchKey{Kind: session.WatchChildren, Path: g.dir})}
	defer func() {
		for _, w := range watches {
			inc.Watches.Leave(w)
		}
	}()
	names, _, err := inc.Children(ctx, g.dir)
	if session.IsNoNode(err) {
		return 0, nil // the queue was deleted: count anew
	}
	if err != nil {
		return 0, err
	}
	buckets := parseBuckets(names)
	for _, b := range buckets {
		watches = append(watches, inc.Watches.Join(session.WatchKey{Kind: session.WatchChildren, Path: session.ChildPath(g.dir, b.name)}))
	}
	var listed atomic.Int64
	err = session.Parallel(len(buckets), func(i int) error {
		names, _, err := inc.Children(ctx, session.ChildPath(g.dir, buckets[i].name))
		listed.Add(int64(len(names)))
		return err
	})
	switch {
	case session.IsNoNode(err):
		return 0, nil // a bucket was deleted, so something was consumed
	case err != nil:
		return 0, err
	case g.maxLen-int(listed.Load()) >= n:
		return g.maxLen - int(listed.Load()), nil
	}
	return 0, inc.AwaitAny(ctx, watches, time.Time{})
}
