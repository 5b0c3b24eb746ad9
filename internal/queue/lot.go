package queue

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// To claim elements:
//
//  1. List the buckets, and read many of them at once: their data are the numbers
//     that are claimed, and their Stat tells without a listing whether any is not.
//  2. List the first bucket that may have free elements.
//  3. In one transaction write our journal, which says that they are ours, and the
//     bucket's data, expecting the version of step 1. If it fails somebody else has
//     claimed in the meantime: go to 1, and perhaps to another bucket.
//
// A server that lags does no harm. The version decides, and what is listed is not
// older than what was read before it in the same session: so an element that is
// listed, and not among the claimed of that version, is nobody's when the transaction
// is applied, and one whose number is lower than another's, and that is not listed,
// is gone for ever.

// A lot is a bucket as somebody has read it.
type lot struct {
	bucket
	version  int32 // of its data
	claimed  spans
	children int32
	last     int32 // the highest number that it has given; of what is not delayed
	pzxid    int64 // tells listings apart
	elements []element
	keyed    bool  // elements of the queue may have keys
	keys     int32 // the version of "keys" before anything else was read
}

func newLot(b bucket, n session.Node) *lot {
	return &lot{
		bucket: b, version: n.Stat.Version, claimed: parseSpans(string(n.Data)), pzxid: n.Stat.Pzxid, children: n.Stat.NumChildren,
		// ZooKeeper counts creations, and tells twice as many less what is there; which
		// is 32 bits of it, and negative from 2^30 on.
		last: int32(uint32(n.Stat.Cversion+n.Stat.NumChildren)/2) - 1,
	}
}

// exhausted reports that no element of it is free, as far as that is known
// without a listing.
func (t *lot) exhausted() bool {
	return t.children == 0 || !t.delayed && t.claimed.covers(t.last)
}

// with returns what is claimed when es, elements of the lot, are as well.
func (t *lot) with(es []element) spans {
	return t.concise(t.claimed.union(spansOf(numbers(es))), !t.delayed)
}

// runs returns the numbers of es as few spans. Whatever else these hold is gone for ever.
func (t *lot) runs(es []element) spans { return t.concise(spansOf(numbers(es)), false) }

// concise is that of s among the elements of the lot.
func (t *lot) concise(s spans, whole bool) spans {
	there := numbers(t.elements)
	slices.Sort(there)
	return s.concise(there, whole)
}

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
	now := time.Now().UnixMilli()
	for _, e := range t.elements {
		switch {
		case len(es) == n:
			return es, due
		case t.claimed.has(e.seq):
		case e.due > now:
			return es, time.UnixMilli(e.due)
		case may(e):
			es = append(es, e)
		}
	}
	return es, due
}

// busy reports whether an element of it is claimed, if it is exhausted or listed.
func (t *lot) busy() bool {
	if t.exhausted() {
		return t.children > 0
	}
	return slices.ContainsFunc(t.elements, func(e element) bool { return t.claimed.has(e.seq) })
}

// A finding is what a search has found.
type finding struct {
	lot   *lot
	es    []element // free ones of it; none if there are none anywhere
	due   time.Time // when something may become free without the bell
	busy  bool      // if nothing is free: something is claimed
	more  bool      // there is another bucket that may have free ones
	left  *finding  // if nothing is free: a lot and an element of it that is but for its being passed over as a misfit; or nil
	at    time.Time // when it was found
	since uint64    // of the order, when the search began
}

// A finder looks for free elements.
type finder struct {
	site
	skips    skipper
	listings sync.Map    // of those buckets of which they are remembered: see list
	keyed    atomic.Bool // elements have had keys
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

// search is steps 1 and 2: up to n free elements, all of one bucket. It is the
// first that has any, or one of the first few, as many as spread, of the same
// priority: those who have claimed from one bucket at once go to several. With
// aside nothing is written.
func (q *finder) search(ctx context.Context, inc *session.Incarnation, n, spread int, aside bool) (*finding, error) {
	f := &finding{}
	again, full := q.skips.next()
	if f.due = again; full {
		return f, nil
	}
	path := session.ChildPath(q.dir, keysName)
	for {
		var keys *zk.Stat
		var err error
		if q.keyed.Load() {
			if keys, err = inc.Exists(ctx, path); err != nil {
				return nil, err
			}
		}
		names, _, err := inc.Children(ctx, q.dir)
		if session.IsNoNode(err) {
			return f, nil
		}
		if err != nil {
			return nil, err
		}
		buckets := parseBuckets(names)
		if keys == nil {
			has := slices.Contains(names, keysName)
			if q.keyed.Store(has); has {
				continue
			}
		}
		if err := q.searchLots(ctx, inc, f, buckets, n, spread, keys, aside); err != nil {
			return nil, err
		}
		if keys != nil || !slices.ContainsFunc(f.es, func(e element) bool { return keyOf(e.tag) != "" }) {
			return f, nil
		}
		// The first that has a key has come meanwhile; or somebody has deleted "keys".
		q.keyed.Store(true)
		if _, err := inc.Create(ctx, path, nil); err != nil && !session.IsNoNode(err) {
			return nil, err
		}
		*f = finding{due: again}
	}
}

// searchLots is search among buckets; keys is nil where no element has a key. Where some
// have, all buckets are read at once, and in their order.
func (q *finder) searchLots(ctx context.Context, inc *session.Incarnation, f *finding, buckets []bucket, n, spread int, keys *zk.Stat, aside bool) error {
	atOnce := lotsAtOnce
	if keys != nil {
		atOnce, spread = len(buckets), 1
	}
	for from := 0; from < len(buckets); from += atOnce {
		lots, err := q.lots(ctx, inc, buckets[from:min(from+atOnce, len(buckets))])
		if err != nil {
			return err
		}
		if !aside {
			q.deleteEmpty(inc, lots, buckets[from:])
		}
		may := func(e element) bool { return !q.skips.skipped(e.key()) }
		if keys != nil {
			if may, err = q.guard(ctx, inc, lots, keys.Version); err != nil {
				return err
			}
		}
		for i := pick(lots, spread); i >= 0; i = pick(lots, 1) { // if that has none, the first
			t := lots[i]
			if err := q.list(ctx, inc, t); err != nil {
				return err
			}
			es, due := t.free(n, may)
			f.due = earlier(f.due, due)
			lots = slices.Delete(lots, i, i+1)
			if len(es) > 0 {
				f.lot, f.es = t, es
				f.more = keys == nil && pick(lots, 1) >= 0
				return nil
			}
			if es, _ := t.free(1, func(e element) bool { return q.skips.left(e.key()) }); len(es) > 0 && f.left == nil {
				f.left = &finding{lot: t, es: es}
			}
			f.busy = f.busy || t.busy()
		}
		f.busy = f.busy || slices.ContainsFunc(lots, (*lot).busy)
	}
	return nil
}

// guard tells which elements may be claimed as far as their keys go, in the order of the
// lots. It must look at every element that is claimed, to know its key.
func (q *finder) guard(ctx context.Context, inc *session.Incarnation, lots []*lot, keys int32) (may func(element) bool, err error) {
	q.forget(lots)
	w := make(ward)
	for _, t := range lots {
		t.keyed, t.keys = true, keys
		if t.children == 0 || len(t.claimed) == 0 && !t.delayed {
			continue
		}
		if err := q.list(ctx, inc, t); err != nil { // again, later, from memory
			return nil, err
		}
		for _, e := range t.elements {
			if t.claimed.has(e.seq) {
				w.bar(e, nobody)
			} else if e.first > 0 && w.allows(e) {
				w.bar(e, e.key())
			}
		}
	}
	return func(e element) bool {
		skip := q.skips.skipped(e.key())
		ok := !skip && w.allows(e)
		if ok || skip {
			w.bar(e, nobody) // what is passed over keeps its place
		}
		return ok
	}, nil
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
		if choice = append(choice, i); len(choice) >= spread {
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
		switch {
		case n.Stat == nil || q.skips.skipped(buckets[i].name):
		case hidden(n):
			q.skips.unreadable(buckets[i].name, zk.ErrNoAuth)
		default:
			lots = append(lots, newLot(buckets[i], n))
		}
	}
	return lots, nil
}

// deleteEmpty deletes the buckets that are empty and have a successor: nothing
// comes into them any more. all are those that begin with lots.
func (q *finder) deleteEmpty(inc *session.Incarnation, lots []*lot, all []bucket) {
	newest := make(map[int]int64)
	for _, b := range all {
		if !b.delayed {
			newest[b.prio] = b.number
		}
	}
	for _, t := range lots {
		if t.children == 0 && !t.delayed && t.number < newest[t.prio] {
			inc.Tidy(&session.Deletion{Paths: []string{session.ChildPath(q.dir, t.name)}})
		}
	}
}

// list lists the elements of a lot. Those of delayed ones, which may be many and
// seldom change, are remembered, and so are all where elements have keys: one may
// have to look behind many that wait.
func (q *finder) list(ctx context.Context, inc *session.Incarnation, t *lot) error {
	remembered := t.delayed || t.keyed
	if before, ok := q.listings.Load(t.name); ok && remembered && before.(listing).pzxid == t.pzxid {
		t.elements = before.(listing).elements
		return nil
	}
	names, stat, err := inc.Children(ctx, session.ChildPath(q.dir, t.name))
	if session.IsNoNode(err) || q.skips.unreadable(t.name, err) {
		return nil // was empty, and deleted; or may not be read
	}
	if err != nil {
		return err
	}
	t.elements = parseElements(t.bucket, names)
	if remembered {
		q.listings.Store(t.name, listing{stat.Pzxid, t.elements})
	}
	return nil
}

// A listing is what the elements of a bucket were.
type listing struct {
	pzxid    int64
	elements []element // not to be changed
}

// forget drops the listings of all buckets but lots.
func (q *finder) forget(lots []*lot) {
	there := make(map[any]bool)
	for _, t := range lots {
		there[t.name] = true
	}
	q.listings.Range(func(name, _ any) bool {
		if !there[name] {
			q.listings.Delete(name)
		}
		return true
	})
}

// exclusion returns the operation that is refused if another claim was made, or an
// element was moved, since the lot was read.
func (t *lot) exclusion(dir string) any {
	return &zk.SetDataRequest{Path: session.ChildPath(dir, keysName), Version: t.keys}
}

// claiming returns the operations that claim elements of the lot, and are refused
// if what was read of it is stale.
func (t *lot) claiming(dir string, es ...element) []any {
	ops := []any{&zk.SetDataRequest{Path: session.ChildPath(dir, t.name), Data: []byte(t.with(es).String()), Version: t.version}}
	if t.keyed {
		ops = append(ops, t.exclusion(dir))
	}
	return ops
}
