package line

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// ranks is what a listing says of a line, worked out once for all who share it.
type ranks struct {
	roll  *session.Roll
	in    []Child // in the order of their numbers, those that have one to go by
	told  bool    // that is the order of arrival, and all others are behind
	sure  bool    // so it is, there are no others, and no two numbers are the same
	mixed []Child // contenders of other kinds, if the line is strict
}

// ranksKey is what ranks depend on besides the listing.
type ranksKey struct {
	bases  string
	strict bool
}

func ranksOf(r *session.Roll, strict bool, bases []string) *ranks {
	key := ranksKey{strings.Join(bases, "/"), strict}
	return r.Make(key, func(names []string) any {
		in, exhausted, told := split(ParseChildren(names, bases...))
		rk := &ranks{roll: r, in: in, told: told, sure: told && len(exhausted) == 0}
		for i := 1; i < len(in); i++ {
			rk.sure = rk.sure && in[i-1].Seq != in[i].Seq
		}
		if strict && len(in)+len(exhausted) < len(names) {
			rk.mixed = strangers(names, bases)
		}
		return rk
	}).(*ranks)
}

// before returns those ahead of c, and whether c is there, where numbers tell the order.
func (rk *ranks) before(c Child) ([]Child, bool) {
	i, _ := slices.BinarySearchFunc(rk.in, c, func(a, b Child) int {
		if a.Seq != b.Seq {
			return cmp.Compare(a.Seq, b.Seq)
		}
		return strings.Compare(a.Name, b.Name)
	})
	if i < len(rk.in) && rk.in[i].Name == c.Name {
		return rk.in[:i], true
	}
	return nil, false
}

// A view is what a session knows of a line in which it has waiters: who stood
// there when it was last listed, without those of whom a waiter has been told
// since that they have gone.
//
// So whoever finds nobody ahead of him in it, and himself, need not list the line
// again, if nobody can come to stand ahead of anyone there: all who stood ahead of
// him when it was listed have gone. That a listing is replaced by one that was
// sent later but is older, or loses what waiters have been told meanwhile, does no
// harm: who has gone is taken to be there, and the line is listed again.
//
// Contenders are known by their numbers, which begin again where the directory was
// deleted and made anew. So a view is of one directory, by its czxid. What is said
// of another, by a waiter who is late or early, is not believed: else one who has
// gone with the former directory would be struck off in place of one who stands in
// this, or a waiter in this find himself among those of the former.
type view struct {
	inc   *session.Incarnation
	key   viewKey
	ahead Ahead // of everybody: who is the first

	mu    sync.Mutex
	of    int64  // the number of the listing
	dir   int64  // the czxid of the directory
	sure  bool   // of the listing
	spots []spot // in their order; none where numbers do not tell it
	long  bool   // the line is long, and of others mostly

	seers     []*seer       // in their order: who wait behind others; see foresee
	foresight *foresight    // of the first, if it can have one
	trip      time.Duration // the shortest that a look took
	each      time.Duration // how long a hand-over took, of late

	waiters int    // guarded by views.mu
	stop    func() // of looking who is the first, if somebody wants to know; guarded by views.mu
}

// viewKey is what a session has a view for.
type viewKey struct{ dir, bases string }

func viewKeyOf(dir string, bases []string) viewKey { return viewKey{dir, strings.Join(bases, "/")} }

// views guards the views of all sessions coming and going.
var views sync.Mutex

// viewOf returns the view of a line in inc for a waiter, who must leave it.
func viewOf(inc *session.Incarnation, dir string, bases []string) *view {
	views.Lock()
	defer views.Unlock()
	key := viewKeyOf(dir, bases)
	got, _ := inc.Attached.LoadOrStore(key, &view{inc: inc, key: key})
	v := got.(*view)
	v.waiters++
	return v
}

// look has v look who is the first, for a waiter who has just come and wants to
// know. Where nobody does, a line in which all are idle costs nothing.
func (v *view) look(strict bool) {
	views.Lock()
	defer views.Unlock()
	if v.stop != nil {
		v.ahead.lookSoon()
		return
	}
	v.stop = v.ahead.LookWhileWaiting(v.inc.Ctx, v.inc, func(ctx context.Context) error {
		r, err := v.inc.Roll(ctx, v.key.dir)
		if err == nil {
			v.update(ranksOf(r, strict, v.bases()))
		}
		return err
	})
}

func (v *view) bases() []string { return strings.Split(v.key.bases, "/") }

func (v *view) leave() {
	views.Lock()
	defer views.Unlock()
	if v.waiters--; v.waiters == 0 {
		if v.stop != nil {
			v.stop()
		}
		v.inc.Attached.Delete(v.key)
	}
}

// update puts a listing in the place of what v knew, if it was sent later.
func (v *view) update(rk *ranks) {
	views.Lock()
	mostlyOurs := 2*v.waiters > len(rk.in) // they are told of each other
	views.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	if mostlyOurs {
		v.long = false
	}
	if rk.roll.Number() <= v.of {
		return
	}
	v.of, v.dir = rk.roll.Number(), rk.roll.Czxid()
	in := rk.in
	if !rk.told {
		in = nil
	}
	v.sure, v.spots = rk.sure, make([]spot, len(in))
	for i, c := range in {
		v.spots[i] = spotOf(c)
	}
	v.long = !mostlyOurs && len(in) >= longLine
	v.ahead.setChildren(v.key.dir, in)
}

// findLocked returns where the first of a number is, or would be.
func (v *view) findLocked(seq int32) int {
	i, _ := slices.BinarySearchFunc(v.spots, seq, func(a spot, b int32) int { return cmp.Compare(a.seq, b) })
	return i
}

// spotLocked returns where s is, and whether it is there.
func (v *view) spotLocked(s spot) (int, bool) {
	for i := v.findLocked(s.seq); i < len(v.spots) && v.spots[i].seq == s.seq; i++ {
		if v.spots[i] == s {
			return i, true
		}
	}
	return 0, false
}

// gone is told that a contender in dir is not there any more.
func (v *view) gone(dir int64, s spot) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch i, there := v.spotLocked(s); {
	case v.dir != dir: // see view
	case there && i == 0:
		v.spots = v.spots[1:]
	case there:
		v.spots = slices.Delete(v.spots, i, i+1)
	}
}

// place returns how many are ahead of c in dir, if it is there. Of one number nobody
// is ahead of the other. If first is there, nobody is ahead of that any more.
func (v *view) place(dir int64, c, first Child) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	gone, _ := v.spotLocked(spotOf(first))
	return max(v.placeLocked(dir, c)-gone, 0)
}

func (v *view) placeLocked(dir int64, c Child) int {
	if _, there := v.spotLocked(spotOf(c)); v.dir != dir || !there {
		return 0 // see view
	}
	return v.findLocked(c.Seq)
}

// nobodyAhead reports whether c is there, in dir, and nobody ahead of it, as far as
// numbers tell for certain.
func (v *view) nobodyAhead(dir int64, c Child) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.dir == dir && v.sure && len(v.spots) > 0 && v.spots[0] == spotOf(c)
}

// now is Ahead.Now for one who waits in dir.
func (v *view) now(dir int64, me Child) (head Head, place int) {
	head, _ = v.ahead.Now()
	var first Child
	if head.Node.Stat != nil { // a look has found it, and nobody before it
		first, _ = ParseChild(head.Name, v.bases()...)
	}
	if place = v.place(dir, me, first); place == 0 || head.Name == me.Name {
		head = Head{} // nobody, or it has become the first, and was looked at before it knew
	}
	return head, place
}

// What is asked of a line instead of listing it.
const (
	longLine = 512  // how long the line must be
	askMost  = 2048 // after how many at most, so that the servers have time for others
)

// aheadOf returns the names of those whom v takes to be ahead of c in dir, if it is sure who
// they are, and that costs less than to list the line.
func (v *view) aheadOf(dir int64, c Child) (names []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	i, there := v.spotLocked(spotOf(c))
	if v.dir != dir || !v.sure || !v.long || !there || i > askMost || 2*i > len(v.spots) {
		return nil
	}
	for _, s := range v.spots[:i] {
		name, ok := s.name()
		if !ok {
			return nil
		}
		names = append(names, name)
	}
	return names
}

// strangers returns the contenders of other kinds among names.
func strangers(names []string, bases []string) (mixed []Child) {
	for _, name := range names {
		if _, ours := ParseChild(name, bases...); ours {
			continue
		}
		if c, other := ParseChild(name, contenderBases...); other {
			mixed = append(mixed, c)
		}
	}
	return mixed
}

// unmixed is ErrMixed if there is a contender of another kind, before me if there
// is one: they would not keep each other out.
//
// All children of one parent are numbered together, so of two that come at the
// same time the later one sees the earlier, and alone goes; and nobody who has
// listed the line needs to look again, since nobody comes before him any more.
func unmixed(bases []string, mixed []Child, me *Child) error {
	for _, c := range mixed {
		if me == nil || !c.certainlyAfter(*me) {
			return fmt.Errorf("%w: %q stands there; this line is of those with %q before their number", ErrMixed, strings.Clone(c.Name), bases)
		}
	}
	return nil
}
