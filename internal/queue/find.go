package queue

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// This file finds free elements:
//
//  1. List the buckets, and read many of them at once: a board says what is claimed, and the
//     Stat of the bucket tells without a listing whether anything else is there.
//  2. If marks of others are on the boards, list the marks. It comes after the boards: a mark
//     that is not there then is gone for good, and what it has claimed is free.
//  3. List the first bucket that may have free elements.
//
// A server that lags does no harm. A claim expects the version of the board of step 1, and what
// is listed is not older than what was read before it in the same session: so an element that
// is listed, and is not on that board, is free when the claim is applied.

// A lot is a bucket as somebody has read it.
type lot struct {
	bucket
	version  int32
	board    *board          // without the lines of marks that are gone
	dead     map[string]hold // those lines
	children int32
	last     int32 // the highest number that it has given
	pzxid    int64 // changes when anything is added or removed
	elements []element
	keyed    bool  // elements of the queue may have keys
	keys     int32 // the version of "keys" before anything else was read
}

func newLot(b bucket, n session.Node) *lot {
	return &lot{
		bucket: b, version: n.Stat.Version, board: parseBoard(n.Data), children: n.Stat.NumChildren, pzxid: n.Stat.Pzxid,
		// ZooKeeper counts creations, and tells twice as many less what is there; which
		// is 32 bits of it, and negative from 2^30 on.
		last: int32(uint32(n.Stat.Cversion+n.Stat.NumChildren)/2) - 1,
	}
}

// exhausted reports that no element of it is free, as far as that is known
// without a listing.
func (t *lot) exhausted() bool { return t.children == 0 || t.board.taken().covers(t.last) }

func numbers(es []element) []int32 {
	ns := make([]int32, len(es))
	for i, e := range es {
		ns[i] = e.seq
	}
	return ns
}

// free returns up to n elements that nobody has claimed and that may be, and when
// the next delayed one is due.
func (t *lot) free(n int, may func(element) bool) (es []element, due time.Time) {
	now, taken := time.Now().UnixMilli(), t.board.taken()
	for _, e := range t.elements {
		switch {
		case len(es) == n:
			return es, due
		case taken.has(e.seq):
		case e.due > now:
			return es, time.UnixMilli(e.due)
		case may(e):
			es = append(es, e)
		}
	}
	return es, due
}

// next returns the board that comes after that of t: the lines of the dead are taken out, and
// of what was in the hands of the dead an attempt is counted.
func (t *lot) next() *board {
	next := t.board.clone()
	there := numbers(t.elements)
	slices.Sort(there)
	var gone spans
	for from := int32(0); len(there) > 0; there = there[1:] {
		if from < there[0] {
			gone = append(gone, span{from, there[0] - 1})
		}
		from = there[0] + 1
	}
	for _, e := range t.elements {
		for _, h := range t.dead {
			if h.claimed.has(e.seq) && h.hand.has(e.seq) {
				next.tried[e.seq]++
			}
		}
	}
	next.forget(gone)
	return next
}

// A finding is what a search has found.
type finding struct {
	lot    *lot
	es     []element // free ones of it; none if there are none anywhere
	due    time.Time // when something may become free without the bell
	more   bool      // there is another bucket that may have free ones
	others bool      // marks of others are on the boards
	left   *finding  // if nothing is free: a lot and an element of it that is but for its being passed over as a misfit; or nil
	at     time.Time // when it was found
	all    []bucket  // the buckets that there are
	from   time.Time // before they were listed
}

// A finder looks for free elements.
type finder struct {
	site
	skips    Skipper
	listings sync.Map    // by name of a bucket: see list
	keyed    atomic.Bool // elements have had keys
	mark     func() string

	mu     sync.Mutex
	alive  map[string]bool // the marks that were listed last; guarded by mu
	listed time.Time       // when; guarded by mu
}

// lotsAtOnce is how many buckets are read with one request.
const lotsAtOnce = 100

// earlier returns the earlier of two times, of which the zero time is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// A quest says how to search.
type quest struct {
	n      int  // how many elements are wanted at most, all of one bucket
	spread int  // it is one of so many of the first buckets of one priority: who have claimed from one bucket at once go to several
	aside  bool // nothing is written
	watch  bool // the marks are listed behind the boards, whatever is known of them
}

// search finds free elements.
func (q *finder) search(ctx context.Context, inc *session.Incarnation, how quest) (*finding, error) {
	f := &finding{}
	again := q.skips.Next()
	path := session.ChildPath(q.dir, keysName)
	for {
		*f = finding{due: again, from: time.Now()}
		var keys *zk.Stat
		var err error
		if q.keyed.Load() {
			if keys, err = inc.Exists(ctx, path); err != nil {
				return nil, err
			}
		}
		names, _, err := inc.Children(ctx, q.dir)
		if session.IsNoNode(err) || err == nil && slices.Contains(names, pausedName) {
			return f, nil
		}
		if err != nil {
			return nil, err
		}
		if keys == nil {
			has := slices.Contains(names, keysName)
			if q.keyed.Store(has); has {
				continue
			}
		}
		f.all = parseBuckets(names)
		if err := q.searchLots(ctx, inc, f, f.all, keys, how); err != nil {
			return nil, err
		}
		if f.at = time.Now(); keys != nil || !slices.ContainsFunc(f.es, func(e element) bool { return keyOf(e.tag) != "" }) {
			return f, nil
		}
		// The first that has a key has come meanwhile; or somebody has deleted "keys".
		q.keyed.Store(true)
		if _, err := inc.Create(ctx, path, nil); err != nil && !session.IsNoNode(err) {
			return nil, err
		}
	}
}

// searchLots is search among buckets; keys is nil where no element has a key. Where some
// have, all buckets are read at once, and in their order.
func (q *finder) searchLots(ctx context.Context, inc *session.Incarnation, f *finding, all []bucket, keys *zk.Stat, how quest) error {
	atOnce := lotsAtOnce
	if q.forget(all); keys != nil {
		atOnce, how.spread = max(len(all), 1), 1
	} else {
		now := time.Now().UnixMilli()
		all = slices.DeleteFunc(all, func(b bucket) bool {
			early := b.delayed && b.number > now
			if early {
				f.due = earlier(f.due, time.UnixMilli(b.number))
			}
			return early
		})
	}
	for from := 0; from < len(all); from += atOnce {
		lots, err := q.lots(ctx, inc, all[from:min(from+atOnce, len(all))])
		if err == nil {
			f.others, err = q.bury(ctx, inc, lots, f.others, how.watch)
		}
		if err != nil {
			return err
		}
		if !how.aside {
			q.deleteEmpty(inc, lots, all[from:])
		}
		may := func(e element) bool { return !q.skips.Skipped(e.bucket, e.seq) }
		if keys != nil {
			if may, err = q.guard(ctx, inc, lots, keys.Version); err != nil {
				return err
			}
		}
		for i := pick(lots, how.spread); i >= 0; i = pick(lots, 1) { // if that has none, the first
			t := lots[i]
			if err := q.list(ctx, inc, t); err != nil {
				return err
			}
			es, due := t.free(how.n, may)
			f.due = earlier(f.due, due)
			lots = slices.Delete(lots, i, i+1)
			if len(es) > 0 {
				f.lot, f.es = t, es
				f.more = keys == nil && (pick(lots, 1) >= 0 || from+atOnce < len(all))
				return nil
			}
			if es, _ := t.free(1, func(e element) bool { return q.skips.Left(e.bucket, e.seq) }); len(es) > 0 && f.left == nil {
				f.left = &finding{lot: t, es: es}
			}
		}
	}
	return nil
}

// aliveFor is for how long a mark that was listed is believed to exist.
const aliveFor = time.Second

// bury takes the lines of marks that are gone off the boards of lots, and reports whether
// there are, or were, any of others. With watch the marks are listed now.
func (q *finder) bury(ctx context.Context, inc *session.Incarnation, lots []*lot, others, watch bool) (bool, error) {
	mine, unknown := q.mark(), false
	q.mu.Lock()
	alive := q.alive
	fresh := time.Since(q.listed) < aliveFor
	q.mu.Unlock()
	for _, t := range lots {
		for mark := range t.board.lines {
			if mark != mine && t.children > 0 {
				others, unknown = true, unknown || !fresh || !alive[mark]
			}
		}
	}
	if !others || !unknown && !watch {
		return others, nil
	}
	names, err := inc.Names(ctx, q.live) // after the boards were read
	if err != nil {
		return others, err
	}
	alive = make(map[string]bool, len(names))
	for _, name := range names {
		alive[name] = true
	}
	q.mu.Lock()
	q.alive, q.listed = alive, time.Now()
	q.mu.Unlock()
	for _, t := range lots {
		for mark, h := range t.board.lines {
			if mark != mine && !alive[mark] {
				if t.dead == nil {
					t.dead = make(map[string]hold)
				}
				t.dead[mark] = h
				delete(t.board.lines, mark)
			}
		}
	}
	return others, nil
}

// pick chooses among the first few lots that may have free elements, and returns
// -1 if there are none. Of the delayed ones only the first is chosen.
func pick(lots []*lot, spread int) int {
	var choice []int
	for i, t := range lots {
		if t.exhausted() {
			continue
		}
		if len(choice) > 0 && (t.prio != lots[choice[0]].prio || t.delayed != lots[choice[0]].delayed) {
			break
		}
		if choice = append(choice, i); len(choice) >= spread || t.delayed {
			break
		}
	}
	if choice == nil {
		return -1
	}
	return choice[rand.IntN(len(choice))]
}

// lots reads buckets. Those that are gone, or may not be read, are left out.
func (q *finder) lots(ctx context.Context, inc *session.Incarnation, buckets []bucket) (lots []*lot, err error) {
	paths := make([]string, len(buckets))
	for i, b := range buckets {
		paths[i] = session.ChildPath(q.dir, b.name)
	}
	nodes, err := inc.GetSmall(ctx, paths)
	if err != nil {
		return nil, err
	}
	for i, n := range nodes {
		switch name := buckets[i].name; {
		case n.Stat == nil || q.skips.Skipped(name, -1):
		case hidden(n):
			q.skips.Unreadable(name, -1, name, zk.ErrNoAuth)
		default:
			lots = append(lots, newLot(buckets[i], n))
		}
	}
	return lots, nil
}

// hidden reports that a znode is there and the servers did not let us read it.
func hidden(n session.Node) bool { return n.Stat != nil && int(n.Stat.DataLength) != len(n.Data) }

// deleteEmpty deletes the buckets that are empty and get no more elements: they have a successor,
// or their time is over. all are those that begin with lots.
func (q *finder) deleteEmpty(inc *session.Incarnation, lots []*lot, all []bucket) {
	newest := make(map[int]int64)
	for _, b := range all {
		if !b.delayed {
			newest[b.prio] = b.number
		}
	}
	over := time.Now().Add(-time.Minute).UnixMilli()
	for _, t := range lots {
		if t.children == 0 && (!t.delayed && t.number < newest[t.prio] || t.delayed && t.number < over) {
			inc.Tidy(&session.Deletion{Paths: []string{session.ChildPath(q.dir, t.name)}})
		}
	}
}

// list lists the elements of a lot. A listing is remembered: it serves as long as nothing was
// added, because what was removed is on the board. Where marks are gone, or elements have keys, we
// must know what was removed.
func (q *finder) list(ctx context.Context, inc *session.Incarnation, t *lot) error {
	if before, ok := q.listings.Load(t.name); ok {
		before := before.(listing)
		if before.pzxid == t.pzxid || before.last == t.last && t.dead == nil && !t.keyed {
			t.elements = before.elements
			return nil
		}
	}
	names, stat, err := inc.Children(ctx, session.ChildPath(q.dir, t.name))
	if session.IsNoNode(err) || q.skips.Unreadable(t.name, -1, t.name, err) {
		return nil // was empty, and deleted; or may not be read
	}
	if err != nil {
		return err
	}
	t.elements = parseElements(t.bucket, names)
	q.listings.Store(t.name, listing{t.last, stat.Pzxid, t.elements})
	return nil
}

// A listing is what the elements of a bucket were.
type listing struct {
	last     int32
	pzxid    int64
	elements []element // not to be changed
}

// forget drops the listings of buckets that are gone.
func (q *finder) forget(all []bucket) {
	var there map[string]bool
	q.listings.Range(func(name, _ any) bool {
		if there == nil {
			there = make(map[string]bool, len(all))
			for _, b := range all {
				there[b.name] = true
			}
		}
		if !there[name.(string)] {
			q.listings.Delete(name)
		}
		return true
	})
}

// Elements with keys. Of those of one key one is claimed at a time, in order; the
// next is free when it is gone for good.
//
// Where an element has a key the znode "keys" is there: producers check it in the
// transaction that stores the element. Every claim writes it, at the version that
// was read before anything else; so claims of such a queue have one order, and what
// one has read is, as far as claims go, still so when it is applied. What else
// may happen in between:
//
//   - An element is removed, buried, or cancelled: then its key is free. It was
//     seen before, so others of its key waited in vain. The removal rings the bell.
//     Clear removes what stands behind before what it waits for, so that nothing
//     is freed that it is about to remove.
//   - An element is given back to its place, by its consumer or because that
//     died: it was there all the time, so the others waited for it and go on to.
//   - An element is given back for later, and so gets another place: that writes
//     "keys" too. Otherwise a claim could look in its new place before it is
//     there, and in the old one after it has gone, and take the next of its key.
//     In its new place it goes before all others of its key, that they wait for,
//     due or not.
//   - An element is sent, or one that was sent for later is due: if it stands before
//     what is claimed it is as if it had been sent a moment later.
//
// An element that is sent for later is not there for its key before its time.
// Between priorities it is the priority that counts, as without keys; but
// one at a time holds across all of them.

// A ward tells, by key, which element alone may be claimed next: none if the value
// is another's name that nobody has.
type ward map[string]string

const nobody = "*"

// allows reports whether e may be claimed as far as its key goes.
func (w ward) allows(e element) bool {
	owner, ok := w[keyOf(e.tag)]
	return keyOf(e.tag) == "" || !ok || owner == e.key()
}

// bar keeps the key of e from everybody but owner, if it has one.
func (w ward) bar(e element, owner string) {
	if key := keyOf(e.tag); key != "" {
		w[key] = owner
	}
}

// guard tells which elements may be claimed as far as their keys go, in the order of the
// lots. It must look at every element that is claimed, to know its key.
func (q *finder) guard(ctx context.Context, inc *session.Incarnation, lots []*lot, keys int32) (may func(element) bool, err error) {
	w := make(ward)
	for _, t := range lots {
		t.keyed, t.keys = true, keys
		claimed := setOf(slices.Concat(slices.Collect(maps.Values(claims(t.board)))...))
		if t.children == 0 || len(claimed) == 0 && !t.delayed {
			continue
		}
		if err := q.list(ctx, inc, t); err != nil { // again, later, from memory
			return nil, err
		}
		for _, e := range t.elements {
			switch {
			case t.board.gone.has(e.seq):
			case claimed.has(e.seq):
				w.bar(e, nobody)
			case e.first > 0 && w.allows(e):
				w.bar(e, e.key())
			}
		}
	}
	return func(e element) bool {
		skip := q.skips.Skipped(e.bucket, e.seq)
		ok := !skip && w.allows(e)
		if ok || skip {
			w.bar(e, nobody) // what is passed over keeps its place
		}
		return ok
	}, nil
}

func claims(b *board) map[string][]span {
	all := make(map[string][]span, len(b.lines))
	for mark, h := range b.lines {
		all[mark] = h.claimed
	}
	return all
}

// exclusion returns the operations that are refused if another claim was made, or an
// element was moved, since the lot was read: where elements have keys.
func (t *lot) exclusion(dir string) []any {
	if !t.keyed {
		return nil
	}
	return []any{&zk.SetDataRequest{Path: session.ChildPath(dir, keysName), Version: t.keys}}
}
