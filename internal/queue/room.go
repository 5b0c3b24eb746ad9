package queue

import (
	"context"
	"errors"
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

	sending tally // those who have room, and have not sent yet

	// What follows belongs to whoever has put a token into busy: a goroutine of this
	// process that asks for room, or leaves the place.

	busy  chan struct{}
	left  int                  // how many more elements certainly fit
	place *line.Claim          // nil if there is none
	inc   *session.Incarnation // whose it is
	until time.Time            // when it is to be left
}

// keepPlace is how long a place is kept for the next who send. It is shorter than
// roomPatience.
const keepPlace = 50 * time.Millisecond

// roomPatience is how long TrySend waits for others of this process that wait for room,
// and then for other processes.
const roomPatience = 100 * time.Millisecond

// enter waits until n more elements fit into a queue of limited length: by what is left,
// or behind a place in the line, and a count. Until the caller leaves nobody else among those
// who keep the limit sends. With hurry it is ErrFull where it would have to wait for room.
func (g *gate) enter(ctx context.Context, n int, hurry bool) (leave func(), err error) {
	var patience <-chan time.Time
	switch {
	case g.maxLen == 0:
		return func() {}, nil
	case n > g.maxLen:
		return nil, session.Invalid("%d elements never fit into a queue of at most %d; see WithMaxLen", n, g.maxLen)
	case hurry:
		patience = time.After(roomPatience)
	default:
		g.m.Waiters.Add(1)
		defer g.m.Waiters.Add(-1)
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
		if g.stands(inc) && g.left >= n {
			g.left -= n
			return nil
		}
		// What is still being sent may be counted or not.
		if err := briefly(ctx, hurry, func(ctx context.Context) error { return await(ctx, inc, 0, g.sending.pending) }); err != nil {
			return err
		}
		if !g.stands(inc) {
			g.leave()
			if err := g.take(ctx, inc, n, hurry); err != nil {
				return err
			}
		}
		for {
			room, err := g.fits(ctx, inc, n, hurry)
			if err == nil && !inc.Alive() {
				err = session.ErrEnded
			}
			if err != nil {
				g.leave().Await(session.Grace)
				return err
			}
			if room >= n {
				g.left = room - n
				return nil
			}
		}
	})
	if err != nil {
		return nil, err
	}
	g.sending.begin()
	until := g.until
	return func() { g.done(until) }, nil
}

// stands reports whether our place is one behind which may be sent.
func (g *gate) stands(inc *session.Incarnation) bool {
	return g.place != nil && g.inc == inc && inc.Alive() && time.Now().Before(g.until)
}

// done is told that somebody who had room behind a place to be left at until has sent, or
// has failed to. The place is left then, unless another sends: that will leave it. Who asks
// for room meanwhile is waited for, and so the place is left if that fails.
func (g *gate) done(until time.Time) {
	g.sending.end()
	time.AfterFunc(time.Until(until), func() {
		g.busy <- struct{}{}
		defer func() { <-g.busy }()
		if g.sending.pending() == nil && !time.Now().Before(g.until) {
			g.leave()
		}
	})
}

// leave leaves the place, if there is one.
func (g *gate) leave() *session.Deletion {
	place := g.place
	if g.place = nil; place == nil {
		return nil
	}
	return place.Leave()
}

// take waits for the first place in the line of those who send. With hurry it does so
// only if n elements fit, and not for long.
func (g *gate) take(ctx context.Context, inc *session.Incarnation, n int, hurry bool) error {
	if hurry {
		if err := inc.Sync(ctx, g.dir); err != nil { // it is full only if the leader says so
			return err
		}
		if _, err := g.fits(ctx, inc, n, true); err != nil {
			return err
		}
	}
	return briefly(ctx, hurry, func(ctx context.Context) error {
		for {
			place, err := g.line.Contend(ctx, inc, g.line.Bases[0], g.m.Owner, line.Exclusive)
			if err == nil {
				g.inc, g.place, g.until, g.left = inc, place, time.Now().Add(keepPlace), 0
			}
			if !errors.Is(err, session.ErrVanished) {
				return err
			}
		}
	})
}

// briefly calls f. With hurry f has roomPatience, and is ErrFull if that ends: others have the
// room, or are waiting for it.
func briefly(ctx context.Context, hurry bool, f func(ctx context.Context) error) error {
	if !hurry {
		return f(ctx)
	}
	limited, cancel := context.WithTimeout(ctx, roomPatience)
	defer cancel()
	err := f(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return ErrFull
	}
	return err
}

// fits returns how many elements fit. If these are less than n it waits until
// something has been consumed, and the question must be asked again; with hurry it is
// ErrFull.
func (g *gate) fits(ctx context.Context, inc *session.Incarnation, n int, hurry bool) (room int, err error) {
	have, err := g.length(ctx, inc)
	if room = g.maxLen - have; err != nil || room >= n {
		return room, err
	}
	if hurry {
		return 0, ErrFull
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
