package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
)

// This file makes the transactions of a ledger: what becomes of elements, which of them
// are in hand, and a claim, with the journal that says so.

// A posting is one transaction of a ledger.
type posting struct {
	l       *ledger
	es      []*entry
	want    *batch          // to be claimed; nil if there is none, or it is in vain
	made    []*item         // of want: what was claimed
	absent  map[string]bool // znodes that need not be deleted, or written
	reread  bool            // what was read of buckets was stale
	next    map[string]holding
	wrote   map[string]*lot // what it leaves of buckets
	size    int
	culprit *entry // whom the servers refuse
	applied bool   // though the error is that others have given the claims back

	postponed bool // want is left to the next

	steps []step
}

// post posts entries, in this session or a later one.
func (p *posting) post() error {
	l := p.l
	if _, err := l.journal.apply(session.Finishing, p.unhand); err != nil {
		if errors.As(err, new(errTaken)) {
			return l.taken()
		}
		return err
	}
	rs, err := l.journal.apply(session.Finishing, p.build) // ends with the Session
	var taken errTaken
	tookOver := errors.As(err, &taken)
	for _, e := range p.es {
		if e.with != nil && (err == nil || taken.applied) {
			e.with.answered(l.journal, rs)
		}
	}
	if tookOver {
		if p.applied = taken.applied; taken == (errTaken{}) {
			p.doubt()
		}
		l.q.m.Log.Warn("zsync: claims were given back by others", "path", l.q.path)
		return l.taken()
	}
	if w := p.want; w != nil && err == nil {
		p.made = w.items
		w.lot.claimed, w.lot.version, w.lot.keys = p.wrote[w.lot.name].claimed, w.lot.version+1, w.lot.keys+1
	}
	return err
}

// large reports that e counts an attempt of an element that does not fit beside the rest.
func (p *posting) large(e *entry) bool {
	return e.fate == Return && e.bump && len(e.item.data) > session.MaxPacket/2
}

// unhand makes a transaction that takes what bumpLarge is about to count off the journal: if we
// die in between it is not counted, rather than twice.
func (p *posting) unhand(*session.Incarnation) (*transaction, error) {
	kept := p.l.journal.kept.holdings
	var next map[string]holding
	for _, e := range p.es {
		if h := kept[e.item.bucket]; p.large(e) && h.hand.has(e.item.seq) {
			if next == nil {
				next = maps.Clone(kept)
			}
			h = next[e.item.bucket]
			next[e.item.bucket] = holding{h.owned, h.hand.minus(spansOf([]int32{e.item.seq}))}
		}
	}
	if next == nil {
		return nil, nil
	}
	return &transaction{kept: record{holdings: next}}, nil
}

// doubt is told that the journal is gone, with what it said of the last transaction.
// Whoever gave the claims back has deleted it, and perhaps after that was applied. What
// removes an element was certainly not applied if that is there: no name comes again,
// and without the journal it cannot come late. If it is not, we may have removed it, or
// another since. What returns one is as good as a loss: the element is back, either way.
func (p *posting) doubt() {
	ctx := session.Finishing // ends with the Session
	session.Parallel(len(p.es), func(i int) error {
		e, there := p.es[i], false
		err := p.l.q.m.During(ctx, func(inc *session.Incarnation) error {
			stat, err := inc.ExistsFresh(ctx, session.ChildPath(p.l.q.dir, e.item.key()))
			there = stat != nil
			return err
		})
		if e.fate != Return && e.fate != fateHand && !e.gone && (err != nil || !there) {
			e.err = fmt.Errorf("its claim was given back by others, and is gone, so whether it was applied before is unknown: %w", zk.ErrNoNode)
		}
		return nil
	})
}

// build makes the transaction.
func (p *posting) build(inc *session.Incarnation) (*transaction, error) {
	ctx := session.Finishing // ends with the session
	p.culprit = nil
	if p.forgo(); inc != p.l.inc {
		p.want = nil
	}
	if p.want == nil && len(p.es) == 0 {
		return nil, nil
	}
	if err := p.bumpLarge(ctx, inc); err != nil {
		return nil, err
	}
	if err := p.prepare(inc); err != nil {
		return nil, err
	}
	for {
		lots, err := p.lots(ctx, inc)
		if err != nil {
			return nil, err
		}
		p.wrote = lots
		p.assemble(lots)
		kept := record{holdings: p.next}
		if p.size = len(kept.marshal()); p.bytes() <= session.MaxPacket || !p.cut() {
			return &transaction{kept, p.steps}, nil
		}
	}
}

// forgo leaves out the claim where the ledger has ended, or something goes back that may
// come before it.
func (p *posting) forgo() {
	if p.want == nil {
		return
	}
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	if p.l.ended || p.want.since != p.l.q.order.now() {
		p.want = nil
	}
}

// bytes is how large the transaction is, from above. How much of it is what it writes of
// buckets is not known before they are read.
func (p *posting) bytes() int {
	m, j := p.l.q.m, p.l.journal
	n := p.size + m.SizeOf(j.path, nil) + m.SizeOf(j.mark, m.Owner)
	for _, s := range p.steps {
		n += sizeOf(m, s.op)
	}
	return n
}

// cut leaves half of the transaction to the next, and reports whether there was more than
// one thing to do.
func (p *posting) cut() bool {
	l, half := p.l, len(p.es)/2
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case half > 0:
		l.queue = slices.Concat(p.es[half:], l.queue)
		p.es = p.es[:half:half]
	case half == 0 && len(p.es) > 0 && p.want != nil:
		l.want, p.want, p.postponed = p.want, nil, true
	default:
		return false
	}
	return true
}

// bumpLarge counts the attempts of elements that do not fit beside the rest.
func (p *posting) bumpLarge(ctx context.Context, inc *session.Incarnation) error {
	for _, e := range p.es {
		path := session.ChildPath(p.l.q.dir, e.item.key())
		if p.large(e) && !p.absent[path] {
			if err := p.l.q.under.bump(ctx, inc, e.item.key(), e.item.version); err != nil {
				p.culprit = e
				return err
			}
			p.absent[path] = true
		}
	}
	return nil
}

// lots returns what is claimed of the buckets into which something is returned, or
// from which something is claimed. If that is stale the transaction is refused.
func (p *posting) lots(ctx context.Context, inc *session.Incarnation) (map[string]*lot, error) {
	lots := make(map[string]*lot)
	if w := p.want; w != nil {
		lots[w.lot.name] = &lot{version: w.lot.version, claimed: w.lot.with(w.es)}
	}
	var names, paths []string
	for _, e := range p.es {
		name := e.item.bucket
		if e.fate == Return && lots[name] == nil && !slices.Contains(names, name) {
			names, paths = append(names, name), append(paths, session.ChildPath(p.l.q.dir, name))
		}
	}
	if names == nil {
		return lots, nil
	}
	if p.reread {
		if err := inc.Sync(ctx, p.l.q.dir); err != nil {
			return nil, err
		}
	}
	nodes, err := inc.GetAll(ctx, paths)
	if err != nil {
		return nil, err
	}
	for i, n := range nodes {
		if n.Stat != nil { // otherwise somebody has deleted the queue
			lots[names[i]] = &lot{version: n.Stat.Version, claimed: parseSpans(string(n.Data))}
		}
	}
	return lots, nil
}

// add adds a step for the sake of owner, or for several if that is nil.
func (p *posting) add(owner *entry, op any, c cure) {
	p.steps = append(p.steps, step{op, func(inc *session.Incarnation, err error) error {
		if err = c(inc, err); err != nil {
			p.culprit = owner
		}
		return err
	}})
}

// without cures what is refused for such an error by leaving out what writes path.
func (p *posting) without(path string, is func(err error) bool) cure {
	return when(is, func(*session.Incarnation) error {
		p.absent[path] = true
		return nil
	})
}

// assemble makes the steps, and what the journal is to hold.
func (p *posting) assemble(lots map[string]*lot) {
	p.steps = nil
	p.next = maps.Clone(p.l.journal.kept.holdings)
	if p.next == nil {
		p.next = make(map[string]holding)
	}
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	if w := p.want; w != nil {
		h := p.next[w.lot.name]
		// Of what was removed nothing is kept but what keeps the spans few.
		p.next[w.lot.name] = holding{w.lot.concise(h.owned.union(w.lot.runs(w.es)), false), w.lot.concise(h.hand, false)}
	}
	left := make(map[string]int) // how many claimed items have no posted entry, by bucket
	for b := range p.l.batches {
		left[b.items[0].bucket] += b.left
	}
	in, out, back := make(map[string][]int32), make(map[string][]int32), make(map[string][]int32) // by bucket
	bell, moved := false, false
	for _, e := range p.es {
		if e.fate == fateHand {
			// What is being settled is in hand until that is posted: if the process dies
			// before, it was tried.
			for _, it := range e.notes {
				switch {
				case it.posted:
				case it.noted:
					in[it.bucket] = append(in[it.bucket], it.seq)
				default:
					out[it.bucket] = append(out[it.bucket], it.seq)
				}
			}
			continue
		}
		left[e.item.bucket]--
		p.settle(e)
		// Consumers that wait must learn of the time, and of what waited for its key.
		bell = bell || e.fate == Return || e.fate == Later || keyOf(e.item.tag) != ""
		moved = moved || e.fate == Later && keyOf(e.item.tag) != ""
		if e.fate == Return {
			back[e.item.bucket] = append(back[e.item.bucket], e.item.seq)
		}
	}
	for name, h := range p.next {
		if left[name] <= 0 {
			delete(p.next, name)
			continue
		}
		gone := spansOf(back[name])
		p.next[name] = holding{h.owned.minus(gone), h.hand.union(spansOf(in[name])).minus(spansOf(out[name])).minus(gone)}
	}
	for _, name := range slices.Sorted(maps.Keys(lots)) {
		t := lots[name]
		t.claimed = t.claimed.minus(spansOf(back[name]))
		p.write(name, t)
	}
	if keys := session.ChildPath(p.l.q.dir, keysName); moved && !p.absent[keys] {
		p.add(nil, &zk.SetDataRequest{Path: keys, Version: -1}, p.without(keys, session.IsNoNode))
	}
	if w := p.want; w != nil && w.lot.keyed {
		p.add(nil, w.lot.exclusion(p.l.q.dir), when(outrun, func(*session.Incarnation) error {
			p.want = nil
			return nil
		}))
	}
	if bell && !p.absent[p.l.q.dir] {
		// It only wakes others sooner.
		p.add(nil, ring(p.l.q.dir), p.without(p.l.q.dir, func(err error) bool {
			return session.IsNoNode(err) || errors.Is(err, zk.ErrNoAuth)
		}))
	}
}

// settle adds what becomes of an item.
func (p *posting) settle(e *entry) {
	q := p.l.q
	path := session.ChildPath(q.dir, e.item.key())
	remove := func() {
		p.add(e, &zk.DeleteRequest{Path: path, Version: -1}, when(session.IsNoNode, func(*session.Incarnation) error {
			if e.gone = true; e.with != nil { // by somebody who deletes what is not his
				return zk.ErrNoNode
			}
			return nil
		}))
	}
	switch {
	case e.gone:
	case e.with != nil:
		remove()
		p.txn(e)
	case e.fate == Remove:
		remove()
	case e.fate == Bury:
		for _, op := range q.letterOf(e.item, e.fault, e.attempts()) {
			p.add(e, op, when(session.IsNoNode, func(inc *session.Incarnation) error {
				return inc.MakeDir(session.Finishing, session.Dir{Path: q.dead})
			}))
		}
		remove()
	case e.fate == Later:
		p.add(e, q.later(e.item, q.zxid.Load(), e.due, e.attempts()), when(session.IsNoNode, func(inc *session.Incarnation) error { return q.makeDelayed(inc, e) }))
		remove()
	case e.fate == Return && e.bump && !p.absent[path]:
		p.add(e, &zk.SetDataRequest{Path: path, Data: e.item.data, Version: e.item.version}, p.without(path, outrun))
	}
}

// write adds that a bucket's claims are what t says.
func (p *posting) write(name string, t *lot) {
	path := session.ChildPath(p.l.q.dir, name)
	p.add(nil, &zk.SetDataRequest{Path: path, Data: []byte(t.claimed.String()), Version: t.version}, when(outrun, func(*session.Incarnation) error {
		p.reread = true
		if p.want != nil && p.want.lot.name == name {
			p.want = nil
		}
		return nil
	}))
}

// makeDelayed makes the znode in which elements of its priority wait. If the
// queue was deleted, so was the element.
func (q *core) makeDelayed(inc *session.Incarnation, e *entry) error {
	ctx := session.Finishing // ends with the session
	stat, err := inc.Exists(ctx, q.dir)
	if err != nil {
		return err
	}
	if stat == nil {
		e.gone = true
		return nil
	}
	if q.zxid.Swap(stat.Czxid) == stat.Czxid {
		_, err = inc.Create(ctx, session.ChildPath(q.dir, delayedName(e.item.prio, stat.Czxid)), nil)
	}
	return err
}

// traceDone writes to the trace what was done with elements in the transaction zxid, 0 if
// that is not known.
func (l *ledger) traceDone(event, fate string, keys []string, zxid int64) {
	if keys != nil {
		t := l.traceLine(event, keys)
		t.Fate, t.Zxid, t.Blind = fate, zxid, false
		l.q.trace.Line(t)
	}
}

// tracePosted writes what a posting has settled, and claimed, if it was applied. When others
// have taken the journal over since, its last transaction is theirs.
func (l *ledger) tracePosted(p *posting, err error) {
	if l.q.trace == nil || err != nil && !p.applied {
		return
	}
	zxid := l.journal.zxid
	if p.applied {
		zxid = 0
	}
	keys := make(map[Fate][]string)
	for _, e := range p.es {
		if e.gone {
			keys[fateMissing] = append(keys[fateMissing], e.item.key())
		} else {
			keys[e.fate] = append(keys[e.fate], e.item.key())
		}
	}
	for fate, word := range []string{Remove: trace.Removed, Return: trace.Returned, Later: trace.Delayed, Bury: trace.Buried, fateMissing: trace.Missing} {
		l.traceDone(trace.Release, word, keys[Fate(fate)], zxid)
	}
	var made []string
	for _, it := range p.made {
		made = append(made, it.key())
	}
	l.traceDone(trace.Grant, "", made, zxid)
}
