package session

import (
	"context"
	"slices"
	"sync"
)

// A Roll is one listing of a directory, which many may wait for.
//
// Of each directory a session has one listing in flight at most, and one next, which is sent when
// that is answered, for all who have asked meanwhile. So ten thousand contenders that come at once
// cause a few listings, and not ten thousand of ten thousand names each, and pings are not kept
// waiting.
//
// A roll is always sent after it was asked for. So it is behind a request that was
// sent before, if both went over the same connection. It may be another: the caller looks for
// the znode that it has made. If that is listed the roll was made later than the znode, however
// the roll came; if it is not, that proves nothing, and the caller asks again.
type Roll struct {
	pending[listing]
	rolls *rolls

	once sync.Once
	has  map[string]struct{}

	mu   sync.Mutex
	made []madeOf // guarded by mu
}

// A madeOf is what one has made of a roll for all.
type madeOf struct{ key, v any }

// Names returns the names that are listed. They share memory: see
// [wire.Scanner.Strings].
func (r *Roll) Names() []string { return r.val.names }

// Has reports whether name is listed.
func (r *Roll) Has(name string) bool {
	if len(r.val.names) <= fewNames {
		return slices.Contains(r.val.names, name)
	}
	r.once.Do(func() {
		r.has = make(map[string]struct{}, len(r.val.names))
		for _, n := range r.val.names {
			r.has[n] = struct{}{}
		}
	})
	_, ok := r.has[name]
	return ok
}

// Make returns what f makes of r, which is made once for all who have r.
func (r *Roll) Make(key any, f func(names []string) any) any {
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

// fewNames is how many names are looked through rather than indexed.
const fewNames = 8

// rolls are the listings of one directory. Their fields are guarded by rollBook.mu.
type rolls struct {
	inc      *Incarnation
	dir      string
	inFlight bool
	next     *Roll // not sent yet; nil if no caller has asked for it
}

// A rollBook has the rolls of a session. A directory is in it while a listing of it is in flight.
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

// roll asks for a roll of dir. There must be a connection.
func (inc *Incarnation) roll(dir string) *Roll {
	r, ours := inc.nextRoll(dir, true)
	if ours {
		r.send()
	}
	return r
}

// nextRoll returns the next roll of dir, and whether it is for the caller to send. If it is not,
// and is not to be shared, there is none.
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

// takeLocked takes the next roll, which the caller sends: from here on no other caller gets it.
func (rs *rolls) takeLocked() *Roll {
	r := rs.next
	rs.next, rs.inFlight = nil, true
	return r
}

func (r *Roll) send() { r.rolls.inc.newestLink().sendOrFail(r) }

func (r *Roll) done() {
	r.rolls.ended()
	r.pending.done()
}

func (r *Roll) fail(err error) {
	r.rolls.ended()
	r.pending.fail(err)
}

// ended sends the next roll, if there is one, as none is in flight any more.
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

// Roll returns a listing of dir that was sent after it was asked for. It may be
// shared with others.
func (inc *Incarnation) Roll(ctx context.Context, dir string) (*Roll, error) {
	var r *Roll
	err := inc.repeat(ctx, func(*attempts) error {
		if _, err := inc.openLink(ctx); err != nil {
			return err
		}
		r = inc.roll(dir)
		_, err := r.Wait(ctx, inc)
		return err
	})
	return r, err
}

var _ request = (*Roll)(nil)
