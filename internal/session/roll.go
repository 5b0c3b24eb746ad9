package session

// This file shares listings among the callers in a session. The callers decide what a listing
// means.

import (
	"context"
	"slices"
	"sync"

	"github.com/zsync/zsync/internal/shared"
)

// A Roll is a listing of a parent znode that several callers share.
//
// A session has at most one listing of each parent in flight, and one next listing, which is sent
// when the first is answered. Until then, all callers share the next listing. So ten thousand
// contenders that arrive together cause a few listings, not ten thousand listings of ten thousand
// names each, and pings are not delayed.
//
// A Roll is always sent after the caller has asked for it. If the Roll and the caller's earlier
// requests are sent over the same connection, the server executes the Roll after those requests.
// But the connection may be replaced before the Roll is sent. So the caller looks for the znode
// that it has created. If the znode is listed, the Roll is newer than the znode. If it is not
// listed, that proves nothing, and the caller asks for another Roll.
type Roll struct {
	pending[listing]
	inc  *Incarnation
	next *Roll // while this Roll is in flight: the next, which is not sent yet; nil if no caller has asked for it; guarded by rollBook.mu

	mu   sync.Mutex
	made any    // the result of Make; guarded by mu
	key  string // of that result; guarded by mu
}

// Names returns the listed names. They share memory: see [wire.Scanner.Strings].
func (r *Roll) Names() []string { return r.val.names }

// Has reports whether `name` is listed.
func (r *Roll) Has(name string) bool { return slices.Contains(r.val.names, name) }

// Make returns the result of f for r. While callers use the same key, as the contenders of one kind
// do, f is called once for all of them.
func (r *Roll) Make(key string, f func(names []string) any) any {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made == nil || r.key != key {
		r.made, r.key = f(r.val.names), key
	}
	return r.made
}

// A rollBook has the Rolls of a session that are in flight, by parent path.
type rollBook struct {
	mu    sync.Mutex
	byDir map[string]*Roll // guarded by mu
}

func (inc *Incarnation) rollBook() *rollBook {
	return shared.Attached(&inc.Attached, func() *rollBook { return &rollBook{byDir: make(map[string]*Roll)} })
}

// The method `roll` asks for a Roll of dir. There must be a connection.
func (inc *Incarnation) roll(dir string) *Roll {
	r, ours := inc.nextRoll(dir, true)
	if ours {
		r.send()
	}
	return r
}

// nextRoll returns the next Roll of dir, and whether the caller must send it. If another caller
// must send it, and `share` is false, nextRoll returns nil.
func (inc *Incarnation) nextRoll(dir string, share bool) (r *Roll, ours bool) {
	b := inc.rollBook()
	b.mu.Lock()
	defer b.mu.Unlock()
	inFlight := b.byDir[dir]
	if inFlight != nil && !share {
		return nil, false
	}
	if inFlight != nil && inFlight.next != nil {
		return inFlight.next, false
	}
	r = &Roll{inc: inc, pending: pending[listing]{Done: make(chan struct{}), call: childrenCall(dir)}}
	r.heir = r.over
	if inFlight != nil {
		inFlight.next = r
		return r, false
	}
	b.byDir[dir] = r
	return r, true
}

func (r *Roll) send() { r.inc.newestConn().Send(r) }

// The method `over` is called when r, which was in flight, is over. It sends the next Roll, if there
// is one.
func (r *Roll) over(error) {
	b := r.inc.rollBook()
	b.mu.Lock()
	next := r.next
	if next != nil {
		b.byDir[r.call.path] = next
	} else {
		delete(b.byDir, r.call.path)
	}
	b.mu.Unlock()
	if next != nil {
		next.send()
	}
}

// Roll returns a listing of dir that is sent after the call begins. Other callers may share it.
func (inc *Incarnation) Roll(ctx context.Context, dir string) (*Roll, error) {
	var r *Roll
	err := inc.repeat(ctx, func() error {
		if _, err := inc.openConn(ctx); err != nil {
			return err
		}
		r = inc.roll(dir)
		_, err := r.Wait(ctx, inc)
		return err
	})
	return r, err
}
