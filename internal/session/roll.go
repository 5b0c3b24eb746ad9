package session

// This file shares listings among the callers in a session. The callers decide what a listing
// means.

import (
	"context"
	"slices"
	"sync"

	"github.com/zsync/zsync/internal/conn"
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
	rolls *rolls

	mu   sync.Mutex
	made []madeOf // guarded by mu
}

// A madeOf is a value that Make has derived from a Roll.
type madeOf struct {
	key string
	v   any
}

// Names returns the listed names. They share memory: see [wire.Scanner.Strings].
func (r *Roll) Names() []string { return r.val.names }

// Has reports whether `name` is listed.
func (r *Roll) Has(name string) bool { return slices.Contains(r.val.names, name) }

// Make returns the result of f for r. f is called once for all users of r with this key.
func (r *Roll) Make(key string, f func(names []string) any) any {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.made {
		if m.key == key {
			return m.v
		}
	}
	v := f(r.val.names)
	r.made = append(r.made, madeOf{key, v})
	return v
}

// The type `rolls` has the listings of one parent znode. Its fields are guarded by rollBook.mu.
type rolls struct {
	inc      *Incarnation
	dir      string
	inFlight bool
	next     *Roll // not sent yet; nil if no caller has asked for it
}

// A rollBook has the rolls of a session, by parent path, while a listing is in flight.
type rollBook struct {
	mu    sync.Mutex
	byDir map[string]*rolls // guarded by mu
}

func (inc *Incarnation) rollBook() *rollBook {
	b, ok := inc.Attached.Load(rollBookKey{})
	if !ok {
		b, _ = inc.Attached.LoadOrStore(rollBookKey{}, &rollBook{byDir: make(map[string]*rolls)})
	}
	return b.(*rollBook)
}

type rollBookKey struct{}

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
	rs := b.byDir[dir]
	if rs == nil {
		rs = &rolls{inc: inc, dir: dir}
		b.byDir[dir] = rs
	}
	if rs.inFlight && !share {
		return nil, false
	}
	if rs.next == nil {
		rs.next = &Roll{rolls: rs, pending: pending[listing]{Done: make(chan struct{}), call: childrenCall(dir)}}
	}
	if rs.inFlight {
		return rs.next, false
	}
	return rs.takeLocked(), true
}

// takeLocked takes the next Roll, which the caller sends. No later caller gets this Roll.
func (rs *rolls) takeLocked() *Roll {
	r := rs.next
	rs.next, rs.inFlight = nil, true
	return r
}

func (r *Roll) send() { r.rolls.inc.newestConn().SendOrFail(r) }

func (r *Roll) Finish() {
	r.rolls.ended()
	r.pending.Finish()
}

func (r *Roll) Fail(err error) {
	r.rolls.ended()
	r.pending.Fail(err)
}

// The method `ended` is called when the listing in flight is over. It sends the next Roll, if there
// is one.
func (rs *rolls) ended() {
	b := rs.inc.rollBook()
	b.mu.Lock()
	rs.inFlight = false
	var next *Roll
	if rs.next != nil {
		next = rs.takeLocked()
	} else {
		delete(b.byDir, rs.dir)
	}
	b.mu.Unlock()
	if next != nil {
		next.send()
	}
}

// Roll returns a listing of dir that is sent after the call begins. Other callers may share it.
func (inc *Incarnation) Roll(ctx context.Context, dir string) (*Roll, error) {
	var r *Roll
	err := inc.repeat(ctx, func(*attempts) error {
		if _, err := inc.openConn(ctx); err != nil {
			return err
		}
		r = inc.roll(dir)
		_, err := r.Wait(ctx, inc)
		return err
	})
	return r, err
}

var _ conn.Request = (*Roll)(nil)
