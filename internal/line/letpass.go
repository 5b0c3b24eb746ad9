package line

import (
	"context"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// Who leaves a line in which others wait, and comes back at once, asks to be let in just
// when the next one, who is told at the same time, may leave again. Both are writes, which
// the servers' disk takes one after the other; if ours is first, everybody's hand-over
// takes as long as that write more. So we let the other pass. It costs us nothing: we come
// to stand behind all who wait either way.

// A departure is the last release through a session of a place that had been waited for.
type departure struct {
	dir  string
	next time.Time // when the one who was next has probably left, if nobody held him up
}

const (
	// On shorter links the write of the next one is not worth a timer.
	letPassTrip = 2 * time.Millisecond

	// What the next one needs to be told, to let go and to write that, when the trips of
	// both are equally long, is this part of one.
	letPassPart = 16
)

// departureKey is what an incarnation has its last departure for.
type departureKey struct{}

// departs is told that a place in the line of dir was released, for which inc had waited,
// and how long a round trip takes.
func departs(inc *session.Incarnation, dir string, trip time.Duration) {
	if trip >= letPassTrip {
		inc.Attached.Store(departureKey{}, departure{dir, time.Now().Add(trip / letPassPart)})
	}
}

// letPass waits until the next one in the line of dir has probably left, if we have. Whether
// he has is a matter of speed alone, and so is whether we wait at all: of several lines
// that a session leaves, the last is remembered.
func letPass(ctx context.Context, inc *session.Incarnation, dir string) {
	d, ok := inc.Attached.Load(departureKey{})
	if !ok || d.(departure).dir != dir {
		return
	}
	wait := time.Until(d.(departure).next)
	if wait <= 0 {
		return
	}
	// Whichever is picked of several that are ready: what comes next finds out.
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	case <-inc.Ctx.Done():
	}
}
