package znodes

// This file shares listings among the callers in a session.

import (
	"context"
	"slices"
	"sync"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
)

// A Roll is a listing of a parent znode that several callers share.
//
// A session has at most one listing of each parent in flight, and one next listing, which is sent
// when the first is answered. Until then, all callers share the next listing. So ten thousand
// contenders that arrive together cause a few long listings, not ten thousand.
//
// A Roll is sent after the caller has asked for it. Over the same connection, the server executes it
// after the caller's earlier requests. But the connection may be replaced between them. So the caller
// looks for the znode that it has created: if the Roll lacks the znode, that proves nothing, and the
// caller asks for another Roll.
type Roll struct {
	session.Pending[session.Listing]
	inc    *session.Incarnation
	atOnce bool  // it was sent at once, and no other caller shares it
	next   *Roll // while this Roll is in flight: the next, or nil; guarded by known.rollMu

	mu   sync.Mutex
	made any    // the result of Make; guarded by mu
	key  string // of that result; guarded by mu
}

// Names returns the listed names. They share memory: see [wire.Scanner.Strings].
func (r *Roll) Names() []string { return r.Val.Names }

// Has reports whether `name` is listed.
func (r *Roll) Has(name string) bool { return slices.Contains(r.Val.Names, name) }

// Make returns the result of f for r. While callers use the same key, as the contenders of one kind
// do, f is called once for all of them.
func (r *Roll) Make(key string, f func(names []string) any) any {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made == nil || r.key != key {
		r.made, r.key = f(r.Val.Names), key
	}
	return r.made
}

// The function `roll` sends requests and asks for a Roll of dir, which is sent behind them. There must
// be a connection. If no listing is in flight, all are sent in one write.
func roll(inc *session.Incarnation, dir string, before ...conn.Request) *Roll {
	k := of(inc)
	k.rollMu.Lock()
	inFlight, _ := k.rolls[dir].(*Roll)
	if inFlight != nil && len(before) > 0 {
		k.rollMu.Unlock()
		inc.NewestConn().Send(before...)
		return roll(inc, dir)
	}
	if inFlight != nil && inFlight.next != nil {
		defer k.rollMu.Unlock()
		return inFlight.next
	}
	r := &Roll{inc: inc, atOnce: inFlight == nil, Pending: session.Pending[session.Listing]{Done: make(chan struct{}), Call: session.ChildrenCall(dir)}}
	r.Then(r.over)
	if inFlight != nil {
		inFlight.next = r
	} else {
		k.rolls[dir] = r
	}
	k.rollMu.Unlock()
	if inFlight == nil {
		inc.NewestConn().Send(append(before, r)...)
	}
	return r
}

// The method `over` is called when r, which was in flight, is over. It sends the next Roll, if there
// is one.
func (r *Roll) over(error) {
	k := of(r.inc)
	k.rollMu.Lock()
	next := r.next
	if next != nil {
		k.rolls[r.Path()] = next
	} else {
		delete(k.rolls, r.Path())
	}
	k.rollMu.Unlock()
	if next != nil {
		r.inc.NewestConn().Send(next)
	}
}

// GetRoll returns a listing of dir that is sent after the call begins. Other callers may share it.
func GetRoll(ctx context.Context, inc *session.Incarnation, dir string) (*Roll, error) {
	var r *Roll
	err := inc.Repeat(ctx, func() error {
		if _, err := inc.OpenConn(ctx); err != nil {
			return err
		}
		r = roll(inc, dir)
		_, err := r.Wait(ctx, inc)
		return err
	})
	return r, err
}
