package line

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"
)

// What a view keeps of those who foresee their turns. How they do it is in foresee.go, which
// knows the view: these types know nothing of it.

// A seer is one who waits and may foresee his turn.
type seer struct {
	dir      int64 // the czxid of the directory
	me       Child
	strict   bool            // the line is, always
	listings atomic.Int32    // that may still be made
	ctx      context.Context // while it is one of view.seers; guarded by view.mu
}

// byNumber is the order of those who wait in one session.
func byNumber(a, b *seer) int { return cmp.Compare(a.me.Seq, b.me.Seq) }

// A foresight is that of one seer.
type foresight struct {
	since time.Time
	ahead int           // how many were
	over  chan struct{} // closed when it is not wanted any more
	told  chan struct{} // closed when no listing of it is under way, nor will be
	begin *time.Timer
}
