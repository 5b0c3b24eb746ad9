package session

import (
	"context"
	"slices"
	"sync"
)

// A Roll is one listing of a directory, which many wait for.
//
// Whoever has sent a create asks for a roll behind it: if few listings of that
// directory are under way it is one of his own, sent at once; otherwise the next,
// which is sent when one of them has been answered, and which everybody has who
// asks until then. So ten thousand who come at once cause a few listings, and not
// ten thousand of ten thousand names each, and pings are not kept waiting.
//
// A roll is always sent after it was asked for. So it is behind a request that was
// sent before, if both went over the same connection. It may be another: whoever
// needs to know looks for what he has made. That it is listed proves that the roll
// is of later than its making, however the roll came; that it is not proves
// nothing, and he asks again.
type Roll struct {
	pending[listing]
	rolls  *rolls
	number int64

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

// Czxid returns that of the directory, which tells it from one that was made
// anew in its place, with numbers that begin again. It is 0 if there was none.
func (r *Roll) Czxid() int64 {
	if r.val.stat == nil {
		return 0
	}
	return r.val.stat.Czxid
}

// Number says which of all rolls of the session r is.
func (r *Roll) Number() int64 { return r.number }

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

// rolls are the listings of one directory. Their fields are guarded by
// rollBook.mu.
type rolls struct {
	inc   *Incarnation
	book  *rollBook
	dir   string
	under int   // listings under way
	next  *Roll // not sent yet, if anybody waits for it
	size  int   // names in the last; 0 if not known
}

// A rollBook has the rolls of a session.
type rollBook struct {
	mu     sync.Mutex
	byDir  map[string]*rolls // guarded by mu
	rolled int64             // how many there were; guarded by mu
}

func (inc *Incarnation) rollBook() *rollBook {
	b, ok := inc.Attached.Load(rollBookKey{})
	if !ok {
		b, _ = inc.Attached.LoadOrStore(rollBookKey{}, &rollBook{byDir: make(map[string]*rolls)})
	}
	return b.(*rollBook)
}

type rollBookKey struct{}

// rollNames is about how many names are listed at once, and maxRolls how many
// listings of one directory are under way at most, when they are known to be
// short. Of so many directories it is remembered how large they are.
const (
	rollNames = 1024
	maxRolls  = 4
	keptRolls = 128
)

func (rs *rolls) limit() int {
	if rs.size == 0 {
		return 1
	}
	return min(max(rollNames/rs.size, 1), maxRolls)
}

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
		rs = &rolls{inc: inc, book: b, dir: dir}
		b.byDir[dir] = rs
	}
	full := rs.under >= rs.limit()
	if full && !share {
		return nil, false
	}
	if rs.next == nil {
		rs.next = &Roll{rolls: rs, pending: pending[listing]{Done: make(chan struct{}), call: childrenCall(dir)}}
	}
	if full {
		return rs.next, false
	}
	return rs.takeLocked(), true
}

// takeLocked takes the next roll, which the caller sends: from here on nobody
// else is given it.
func (rs *rolls) takeLocked() *Roll {
	r := rs.next
	rs.next = nil
	rs.under++
	rs.book.rolled++
	r.number = rs.book.rolled
	return r
}

func (r *Roll) send() { r.rolls.inc.newestLink().sendOrFail(r) }

func (r *Roll) done() {
	r.rolls.ended(r)
	r.pending.done()
}

func (r *Roll) fail(err error) {
	r.rolls.ended(nil)
	r.pending.fail(err)
}

// ended is told that a roll is no longer under way.
func (rs *rolls) ended(r *Roll) {
	rs.book.mu.Lock()
	if r != nil && r.err == nil {
		rs.size = len(r.val.names)
	}
	rs.under--
	var next *Roll
	if rs.next != nil && rs.under < rs.limit() {
		next = rs.takeLocked()
	}
	if rs.under == 0 && (rs.size < rollNames/maxRolls || len(rs.book.byDir) > keptRolls) {
		delete(rs.book.byDir, rs.dir) // of what is large the size is remembered
	}
	rs.book.mu.Unlock()
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
