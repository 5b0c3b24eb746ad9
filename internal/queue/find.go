package queue

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/dice"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/shared"
	"github.com/zsync/zsync/internal/znodes"
)

// This file finds free elements with few requests, however long the queue is. claimant.go claims them,
// and idle.go waits for them. A search has three steps:
//
//  1. List the buckets, and read many of them at once. The board of a bucket shows the claimed
//     elements. The Stat of the bucket shows whether there are other elements, without a listing.
//  2. If the boards have lines of other marks, list the marks. If a mark is on a board and not in
//     this later listing, the mark was deleted, and its name is never used again. So its elements
//     are free.
//  3. List the first bucket that may have free elements.
//
// A server that lags does no harm. In one session, a read is never older than the reads before it,
// so the listing of step 3 is not older than the board of step 1. The claim checks the version of
// that board. So if an element is in the listing and not on the board, the element is free when the
// claim is applied.

// The type `lot` is a bucket as this client has read it.
type lot struct {
	bucket
	czxid    int64
	version  int32
	board    *board // without the lines of deleted marks, after the method `lots`
	dead     []hold // the lines of deleted marks
	children int32
	last     int32              // the highest number that ZooKeeper has assigned in the bucket
	pzxid    int64              // changes with every element that is added or removed
	elements []*element         // read only
	taken    spans              // after `lots`: the numbers that are claimed or never used again
	keys     *zk.SetDataRequest // if elements of the queue may have keys: an operation for a claim, see `guard`
}

func newLot(b bucket, n session.Node) *lot {
	return &lot{
		bucket: b, czxid: n.Stat.Czxid, version: n.Stat.Version, board: parseBoard(n.Data), children: n.Stat.NumChildren, pzxid: n.Stat.Pzxid,
		// Cversion is twice the number of creations, minus the number of children. It has 32
		// bits, so it is negative from 2^30 creations on.
		last: int32(uint32(n.Stat.Cversion+n.Stat.NumChildren)/2) - 1,
	}
}

// The method `exhausted` returns true if the lot certainly has no free element. It needs no
// listing.
func (t *lot) exhausted() bool { return t.children == 0 || t.taken.covers(t.last) }

func numbers(es []*element) spans {
	ns := make([]int32, len(es))
	for i, e := range es {
		ns[i] = e.seq
	}
	return spansOf(ns)
}

// The method `unclaimed` returns the elements of the lot that no consumer has claimed.
func (t *lot) unclaimed() (es []*element) {
	for _, e := range t.elements {
		if !t.taken.has(e.seq) {
			es = append(es, e)
		}
	}
	return es
}

// The method `next` returns the board that a client writes after the board of `t`. The new board
// has no lines of deleted marks, and counts an attempt for each element that a deleted mark had in
// hand. Its line "gone" lists the numbers without an element, up to the last element.
func (t *lot) next() *board {
	next := &board{maps.Clone(t.board.lines), t.board.gone, maps.Clone(t.board.tried)}
	var gone spans
	from := int32(0)
	for _, there := range numbers(t.elements) {
		if from < there.a {
			gone = append(gone, span{from, there.a - 1})
		}
		from = there.b + 1
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

// The type `finding` is a search: its settings and its result.
type finding struct {
	n      int  // largest number of elements to find; all are in one bucket
	spread int  // number of buckets of one priority among which to choose at random, so that competing consumers choose different buckets
	aside  bool // write nothing
	odd    bool // if the queue has no other free element, find one that is skipped as a misfit
	watch  bool // if other marks are on the boards, list the marks, even if the last listing is fresh

	lot    *lot
	es     []*element // free elements of `lot`; empty if the queue has none
	due    time.Time  // time at which an element may next become free without a ring of the bell
	more   bool       // another bucket may have free elements
	others bool       // the boards have lines of other marks that exist
	paused bool       // the queue is paused
	at     time.Time  // when the search ended
}

// The type `finder` looks for free elements.
type finder struct {
	*Common
	keyed    atomic.Bool        // elements have had keys
	mark     func() string      // returns the name of this client's mark, or "" if its claims are lost
	listings shared.Cache[*lot] // by name of a bucket: the latest, without its board, see the method `list`

	mu     sync.Mutex      // guards the fields below
	alive  map[string]bool // the marks of the last listing
	listed time.Time       // time of that listing
	lister string          // this client's mark at that listing
}

// lotsAtOnce is the number of buckets that a search reads with one request.
const lotsAtOnce = 100

// The function `earlier` returns the earlier of two times. The zero time means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// The method `search` finds free elements. The argument `how` has the settings of the search.
func (q *finder) search(ctx context.Context, inc *session.Incarnation, how finding) (*finding, error) {
	how.due = q.Skips.Next()
	path := znodes.ChildPath(q.dir, keysName)
	for {
		f := how
		var keys *zk.Stat
		var err error
		if q.keyed.Load() {
			if keys, err = inc.Exists(ctx, path); err != nil {
				return nil, err
			}
		}
		names, _, err := inc.Children(ctx, q.dir)
		f.paused = slices.Contains(names, pausedName)
		switch {
		case f.paused || session.IsNoNode(err):
			return &f, nil
		case err != nil:
			return nil, err
		case keys == nil && slices.Contains(names, keysName):
			q.keyed.Store(true)
			continue
		}
		all := parseBuckets(names)
		err = q.searchLots(ctx, inc, &f, all, keys, q.Skips.Skipped)
		if err == nil && f.odd && len(f.es) == 0 && !how.due.IsZero() {
			err = q.searchLots(ctx, inc, &f, all, keys, func(key string) bool { return q.Skips.Skipped(key) && !q.Skips.Left(key) })
		}
		if err != nil {
			return nil, err
		}
		if f.at = time.Now(); keys != nil || f.aside || !slices.ContainsFunc(f.es, (*element).keyed) {
			return &f, nil
		}
		// The search has found an element with a key, but not the znode "keys". Either a producer
		// has sent the first such element since the search looked for "keys", or another client has
		// deleted "keys".
		q.keyed.Store(true)
		if _, err := znodes.Create(ctx, inc, path, nil); err != nil && !session.IsNoNode(err) {
			return nil, err
		}
	}
}

// searchLots searches the buckets `all` for elements that it must not skip. The argument `keys` is nil if
// no element has a key. If elements have keys, searchLots reads all buckets at once, and searches them in
// order.
func (q *finder) searchLots(ctx context.Context, inc *session.Incarnation, f *finding, all []bucket, keys *zk.Stat, skip func(key string) bool) error {
	atOnce, spread, now := lotsAtOnce, f.spread, time.Now().UnixMilli()
	if keys != nil {
		atOnce, spread = max(len(all), 1), 1
	}
	var due []bucket
	for _, b := range all {
		if early := b.delayed && b.number > now; early && keys == nil {
			f.due = earlier(f.due, time.UnixMilli(b.number))
		} else {
			due = append(due, b)
		}
	}
	for len(due) > 0 {
		n := min(atOnce, len(due))
		for n < len(due) && together(due[n-1], due[n]) {
			n++
		}
		lots, others, err := q.lots(ctx, inc, due[:n], f.watch)
		if f.others = f.others || others; err != nil {
			return err
		}
		if !f.aside {
			q.deleteEmpty(inc, lots, due)
		}
		due = due[n:]
		inOrder(lots)
		may := func(e *element) bool { return !skip(e.key()) }
		if keys != nil {
			if may, err = q.guard(ctx, inc, lots, keys.Version, skip); err != nil {
				return err
			}
		}
		groups := grouped(slices.DeleteFunc(lots, (*lot).exhausted), func(t *lot) bucket { return t.bucket })
		to := 1 // the number of groups from which one is chosen at random, and searched first
		for to < min(spread, len(groups)) && !groups[0][0].delayed && groups[to][0].prio == groups[0][0].prio {
			to++
		}
		if len(groups) > 0 {
			i := dice.Rand().IntN(to)
			first := groups[i]
			copy(groups[1:], groups[:i])
			groups[0] = first
		}
		for i, group := range groups {
			t, es, next, err := q.soonest(ctx, inc, group, f.n, may)
			if err != nil {
				return err
			}
			if f.due = earlier(f.due, next); t != nil {
				f.lot, f.es = t, es
				f.more = keys == nil && (len(due) > 0 || i+1 < len(groups) || len(group) > 1)
				return nil
			}
		}
	}
	return nil
}

// The function `inOrder` sorts lots. Of several delayed lots for the same time, the oldest has the first elements: it
// was full when a producer created the next.
func inOrder(lots []*lot) {
	slices.SortFunc(lots, func(a, b *lot) int {
		return cmp.Or(compareBuckets(a.bucket, b.bucket), cmp.Compare(a.czxid, b.czxid))
	})
}

// The function `together` reports whether the periods of two buckets can overlap, because the period is longer if
// the delay is longer. Then only the times of the elements show their order.
func together(a, b bucket) bool { return a.delayed && b.delayed && a.prio == b.prio }

// The function `grouped` returns groups of all, in order: the delayed buckets of one priority are a group, and each
// other bucket is a group. The function `of` returns the bucket of an element of all.
func grouped[E any](all []E, of func(E) bucket) (groups [][]E) {
	for i, e := range all {
		if i > 0 && together(of(all[i-1]), of(e)) {
			groups[len(groups)-1] = append(groups[len(groups)-1], e)
		} else {
			groups = append(groups, []E{e})
		}
	}
	return groups
}

// The method `soonest` lists the `lots`, and returns up to `n` free elements of one of them, the lot
// `t`: no consumer has claimed them, and `may(e)` is true for each. No other of the lots has an element
// that comes before them. If no element is free, `t` is nil. At the first element that is not due yet,
// `soonest` stops, and returns the due time of that element.
//
// The method looks at the elements of several delayed lots in the order of their times, and lists a lot only if its
// period has begun by the time of the next element.
func (q *finder) soonest(ctx context.Context, inc *session.Incarnation, lots []*lot, n int, may func(*element) bool) (t *lot, es []*element, due time.Time, err error) {
	var left []*element // unclaimed elements of the listed lots, in the order of their times
	of := make(map[string]*lot)
	for now := time.Now().UnixMilli(); len(es) < n && len(lots)+len(left) > 0; {
		if len(lots) > 0 && (len(left) == 0 || lots[0].number <= left[0].due) {
			l := lots[0]
			lots = lots[1:]
			if err := q.list(ctx, inc, l); err != nil {
				return nil, nil, due, err
			}
			of[l.name], left = l, append(left, l.unclaimed()...)
			if len(of) > 1 {
				slices.SortStableFunc(left, func(a, b *element) int { return cmp.Compare(a.due, b.due) })
			}
			continue
		}
		e := left[0]
		switch l := of[e.bucket]; {
		case e.due > now:
			return t, es, time.UnixMilli(e.due), nil
		case !may(e):
		case t != nil && t != l:
			return t, es, due, nil
		default:
			t, es = l, append(es, e)
		}
		left = left[1:]
	}
	return t, es, due, nil
}

// After a listing of the marks, the client assumes for the time aliveFor that the listed marks
// exist, unless it has had another mark since. If it took its earlier mark for alive, an only consumer
// would skip elements that it had claimed before, and would deliver later elements first.
const aliveFor = time.Second

// The method `lots` reads buckets, and leaves out deleted buckets, skipped buckets, and buckets that the
// client cannot read. Then it moves the lines of deleted marks from the boards to the `dead` lines of the
// lots. The result `others` is true if the board of a lot with elements keeps a line of another mark. If
// `watch` is set, `lots` lists the marks even if the last listing is fresh.
func (q *finder) lots(ctx context.Context, inc *session.Incarnation, buckets []bucket, watch bool) (lots []*lot, others bool, err error) {
	nodes, err := znodes.GetSmall(ctx, inc, pathsOf(q.dir, buckets, bucket.text))
	if err != nil {
		return nil, false, err
	}
	for i, n := range nodes {
		switch name := buckets[i].name; {
		case n.Stat == nil || q.Skips.Skipped(name):
		case hidden(n):
			q.Skips.Unreadable(name, zk.ErrNoAuth)
		default:
			lots = append(lots, newLot(buckets[i], n))
		}
	}
	mine := q.mark()
	q.mu.Lock()
	alive := q.alive
	if q.lister != mine || time.Since(q.listed) >= aliveFor {
		alive = nil
	}
	q.mu.Unlock()
	unknown := false
	for _, t := range lots {
		for mark := range t.board.lines {
			unknown = unknown || mark != mine && t.children > 0 && (watch || !alive[mark])
		}
	}
	if unknown {
		names, err := inc.Names(ctx, q.live) // after the boards were read
		if err != nil {
			return lots, false, err
		}
		alive = make(map[string]bool, len(names))
		for _, name := range names {
			alive[name] = true
		}
		q.mu.Lock()
		q.alive, q.listed, q.lister = alive, time.Now(), mine
		q.mu.Unlock()
	}
	for _, t := range lots {
		for mark, h := range t.board.lines {
			if mark == mine {
				continue
			}
			if unknown && !alive[mark] {
				t.dead = append(t.dead, h)
				delete(t.board.lines, mark)
			} else if t.children > 0 {
				others = true
			}
		}
		t.taken = t.board.gone.union(t.board.claimed())
	}
	return lots, others, nil
}

// The function `hidden` returns true if a znode exists and the servers did not let the client read
// its data.
func hidden(n session.Node) bool { return n.Stat != nil && int(n.Stat.DataLength) != len(n.Data) }

// deleteEmpty forgets the listings of empty lots, and deletes those to which producers no longer add
// elements: the lot has a successor, or its time has passed. The argument `all` has the buckets of
// `lots` and all buckets after them.
func (q *finder) deleteEmpty(inc *session.Incarnation, lots []*lot, all []bucket) {
	newest := make(map[int]int64)
	for _, b := range all {
		if !b.delayed {
			newest[b.prio] = b.number
		}
	}
	over := time.Now().Add(-time.Minute).UnixMilli()
	for _, t := range lots {
		if t.children > 0 {
			continue
		}
		if q.listings.Delete(t.name); !t.delayed && t.number < newest[t.prio] || t.delayed && t.number < over {
			znodes.Tidy(inc, &znodes.Deletion{Paths: []string{znodes.ChildPath(q.dir, t.name)}})
		}
	}
}

// The method `list` lists the elements of one `lot`. It uses the last listing until an element is
// added, because the board shows removed elements. If the lot has lines of deleted marks, or the queue
// has keys, the board does not suffice: then `list` lists again after each removal, too.
func (q *finder) list(ctx context.Context, inc *session.Incarnation, t *lot) error {
	before, ok := q.listings.Load(t.name)
	if ok && (before.pzxid == t.pzxid || before.czxid == t.czxid && before.last == t.last && t.dead == nil && t.keys == nil) {
		t.elements = before.elements
		return nil
	}
	names, stat, err := inc.Children(ctx, znodes.ChildPath(q.dir, t.name))
	if session.IsNoNode(err) || q.Skips.Unreadable(t.name, err) {
		return nil // the bucket was empty, and is deleted; or the client cannot read it
	}
	if err != nil {
		return err
	}
	t.elements = parseElements(t.bucket, names)
	q.listings.Store(t.name, &lot{czxid: t.czxid, last: t.last, pzxid: stat.Pzxid, elements: t.elements})
	return nil
}

// Elements with keys. Consumers claim the elements of one key in order, and one at a time. An
// element with a key becomes free when the queue no longer has the previous element of that key.
//
// If an element has a key, the znode "keys" exists: producers check it in the transaction that
// stores the element. Every claim writes "keys", and checks that its version has not changed since
// the beginning of the search. So no other claim is applied between a search and its claim. Other
// events can happen between the two:
//
//   - An element is removed, cancelled, or made a dead letter. That frees its key. The search still
//     saw the element, so it does not find the next element of the key. The removal rings the bell,
//     so another search finds it.
//   - An element returns to its position. It existed all the time. So the other elements of its key
//     have waited for it, and still wait.
//   - A consumer returns an element with the fate Later, and so moves the element to another
//     bucket. The transaction writes "keys" too. Without that write, a search could read the new
//     bucket before the move and the old bucket after the move, and its consumer would claim the next
//     element of the key. In the new bucket, the element still comes before all others of its key.
//     They wait for it, even while it is not due.
//   - A producer sends an element, or a delayed element becomes due, before the claimed element. That
//     does no harm: the producer could have sent it a moment after the claim.
//
// An element that was sent with a delay does not block its key before it is due.

// The method `guard` returns the function `may`, which reports whether the key of an element allows
// a claim. The caller must call `may` in the order of the lots. The method lists each lot with
// claimed elements, because only the name of an element shows its key. It gives each lot the operation
// `keys`: the servers refuse it if another claim was applied, or an element was moved, since the search
// read the znode "keys" in this version.
func (q *finder) guard(ctx context.Context, inc *session.Incarnation, lots []*lot, version int32, skip func(key string) bool) (may func(*element) bool, err error) {
	next := make(map[string]string) // by key of a barred element: the key() of the only element that a consumer may claim next, or ""
	allows := func(e *element) bool {
		only, barred := next[keyOf(e.tag)]
		return !e.keyed() || !barred || only == e.key()
	}
	keys := &zk.SetDataRequest{Path: znodes.ChildPath(q.dir, keysName), Version: version}
	for _, t := range lots {
		t.keys = keys
		claimed := t.board.claimed()
		if t.children == 0 || len(claimed) == 0 && !t.delayed {
			continue
		}
		if err := q.list(ctx, inc, t); err != nil { // searchLots lists the lot again, from memory
			return nil, err
		}
		for _, e := range t.elements {
			switch {
			case t.board.gone.has(e.seq):
			case claimed.has(e.seq):
				next[keyOf(e.tag)] = ""
			case e.first > 0 && allows(e):
				next[keyOf(e.tag)] = e.key()
			}
		}
	}
	return func(e *element) bool {
		skipped, ok := skip(e.key()), allows(e)
		if ok || skipped {
			next[keyOf(e.tag)] = "" // a skipped element keeps its position before the other elements of its key
		}
		return ok && !skipped
	}, nil
}
