package queue

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// This file knows what is to become of elements: how that is decided, once for each,
// how it waits for its transaction, and what comes of what the servers refuse.

// What else an entry may be of.
const (
	fateMissing = Bury + 1 + iota // it was gone
	fateHand                      // no fate yet: it is being delivered
)

// An entry is the fate of one item, or a note of its being in hand.
type entry struct {
	item  *item
	notes []*item // of fateHand: those whose being in hand, or not, is to be written down
	fate  Fate
	bump  bool          // it counts as an attempt
	gone  bool          // the znode was found deleted
	wait  time.Duration // how long it was not tried after it was refused last; 0 if it was not
	alone bool          // it goes into a transaction of its own; guarded by ledger.mu
	back  bool          // the order waits for it; guarded by ledger.mu
	tried time.Time     // when it was refused first
	fault error         // why it is buried
	with  *txn          // what else its transaction does, or nil; of Remove
	due   int64         // when it may be received again, in Unix milliseconds; of Later
	done  chan struct{}
	err   error // read it only after done is closed
}

// attempts returns how often its item was delivered, with this time if that counts.
func (e *entry) attempts() int {
	if e.bump {
		return e.item.attempts() + 1
	}
	return e.item.attempts()
}

// settle decides the fate of an item, if it is not decided yet.
func (l *ledger) settle(it *item, f Fate) {
	l.decide(it, entry{fate: f, fault: it.fault})
}

// decide is settle with everything that may be said of a fate. It returns the entry of the
// fate; ok tells whether that is the one that was asked for.
func (l *ledger) decide(it *item, e entry) (_ *entry, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if it.final == nil {
		l.enterLocked(it, e)
	}
	return it.final, it.final.fate == e.fate
}

// settled reports whether the fate of an item is decided.
func (l *ledger) settled(it *item) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return it.final != nil
}

func (l *ledger) enterLocked(it *item, model entry) *entry {
	e := &model
	e.item, e.done = it, make(chan struct{})
	if e.fate != fateHand {
		it.final = e
	}
	if e.fate != fateHand && e.with == nil {
		l.leaveLocked(it)
	}
	if e.back = e.fate == Return; e.back {
		l.q.order.begin(!e.bump)
	}
	l.queueLocked(e)
	return e
}

// closeLocked tells the outcome of an entry.
func (l *ledger) closeLocked(e *entry) {
	if close(e.done); e.back {
		e.back = false
		l.q.order.end()
	}
}

// queueLocked has an entry posted.
func (l *ledger) queueLocked(e *entry) {
	if l.void {
		e.err = l.taken()
		l.closeLocked(e)
		return
	}
	l.queue = append(l.queue, e)
	l.startLocked()
}

func (l *ledger) startLocked() {
	if !l.running {
		l.running = true
		l.q.m.Spawn(l.run)
	}
}

// run posts entries, and claims, until there are none.
func (l *ledger) run() {
	for {
		es, w := l.next()
		if es == nil && w == nil {
			return
		}
		p := &posting{l: l, es: es, want: w, absent: make(map[string]bool)}
		err := l.q.layout.post(p)
		l.tracePosted(p, err)
		l.finish(p, err)
		if w != nil && !p.postponed {
			var made []*item
			switch {
			case p.want != nil && err == nil:
				made = p.made
			case p.want != nil:
				w.err = err
			}
			l.claimed(w, made)
			close(w.done)
		}
	}
}

// next returns what the next transaction is for, or nothing when run is to end.
func (l *ledger) next() ([]*entry, *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.want
	if len(l.queue) > 0 && l.queue[0].alone {
		w = nil // a txn may need all the space, and what is alone tells by itself
	} else {
		l.want = nil
	}
	size, n := 4096+2*l.size, 0
	for n < len(l.queue) && n < maxPost {
		e := l.queue[n]
		size += 2*l.q.m.SizeOf(l.q.dir+"/"+e.item.key(), nil) + l.q.layout.bytes(e)
		if n > 0 && (size > session.MaxPacket/2 || e.alone || l.queue[0].alone) {
			break
		}
		n++
	}
	if n > 0 || w != nil {
		es := l.queue[:n:n]
		l.queue = l.queue[n:]
		return es, w
	}
	l.running = false
	if l.ended && !session.IsClosed(l.posted) && !l.offersLocked() {
		close(l.posted)
	}
	if l.ended && len(l.batches) == 0 && !l.swept {
		l.swept = true
		mark := (l.journal.made || l.journal.open) && !l.void
		l.q.m.Spawn(func() {
			if mark {
				l.sweep()
			}
			close(l.over)
		})
	}
	return nil, nil
}

// finish tells the result of a transaction.
func (l *ledger) finish(p *posting, err error) {
	var buried []*entry
	var refused *entry
	defer func() { // the log and the observer are not called under a lock
		for _, e := range buried {
			l.q.report(e.item.key(), e.fault)
		}
		if refused != nil {
			l.q.m.Log.Error("zsync: cannot settle an element, and goes on trying", "path", l.q.path, "element", refused.item.key(), "err", err)
		}
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.size = p.size
	if p.applied && err != nil { // and then the claims were given back
		defer l.voidLocked()
		err = nil
	}
	lost := errors.Is(err, session.ErrLost)
	if lost {
		l.voidLocked()
	}
	one := p.culprit
	if one == nil && len(p.es) == 1 && p.want == nil { // else it may be the claim that is refused
		one = p.es[0]
	}
	// The journal tells every outcome, through as many sessions as it takes. So an
	// error that is not a loss, nor the end of the Session, says that nothing was
	// applied, whether the servers refused it or what it needs could not be made.
	nothing := err != nil && !lost && !session.IsClosed(l.q.m.Over)
	if nothing && p.want != nil && len(p.es) > 0 {
		// It goes with those that are not refused, or tells by itself.
		l.want, p.want, p.postponed = p.want, nil, true
	}
	switch {
	case err != nil && p.culprit != nil && one.with != nil,
		nothing && one != nil && one.with != nil && !l.journal.open: // it has been told, so it is not done later
		l.refuseTxnLocked(one, err)
	case nothing && one == nil:
		for _, e := range p.es { // each by itself will tell
			e.alone = true
		}
		l.queue = append(p.es, l.queue...)
	case nothing:
		if one.wait == 0 {
			refused = one
		}
		l.refuseLocked(one, err)
		l.queue = append(slices.DeleteFunc(p.es, func(e *entry) bool { return e == one }), l.queue...)
	default:
		for _, e := range p.es {
			if err == nil && e.fate == Bury && !e.gone {
				buried = append(buried, e)
			}
			l.doneLocked(e, err)
		}
	}
}

// doneLocked tells that an entry was carried out, or, with an error, never will be.
func (l *ledger) doneLocked(e *entry, err error) {
	switch {
	case err != nil:
		e.err = cmp.Or(e.err, err) // that of doubt
	case e.gone:
		e.err = l.taken()
	}
	if b := e.item.batch; e.fate != fateHand {
		if e.with != nil {
			l.leaveLocked(e.item)
		}
		e.item.drop()
		e.item.posted = true
		if b.left--; b.left == 0 {
			l.dropLocked(b)
		}
	}
	l.closeLocked(e)
}

// retryAfter is how long it takes until something is tried again that the
// servers have refused. It doubles, up to a minute, until they allow it.
const retryAfter = time.Second

// refuseLocked tells that the servers have refused an entry. The fate of its
// item stays what it is, and is tried again: what they refuse, they may allow
// later.
func (l *ledger) refuseLocked(e *entry, err error) {
	next := *e
	next.gone, next.alone = false, true
	if next.wait == 0 {
		next.tried = time.Now()
	}
	// What was given back by its consumer, who is told, keeps nothing back any more.
	next.back = e.back && !e.bump && time.Since(next.tried) < refusedFor
	e.back = e.back && !next.back
	next.wait = min(max(2*e.wait, retryAfter), time.Minute)
	if next.back { // consumers wait for it
		next.wait = min(next.wait, 4*retryAfter)
	}
	if e.fate != fateHand { // who waits for a note offers nothing before it is written down
		e.err, next.done = err, make(chan struct{})
		l.closeLocked(e)
		e.item.final = &next
	}
	l.refused[&next] = true
	time.AfterFunc(next.wait, func() { l.retry(&next) })
}

// retry posts again what was refused.
func (l *ledger) retry(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.refused[e]: // others have given it back
		return
	case e.fate == fateHand && e.item.batch.left == 0:
		close(e.done) // nothing is in hand
	default:
		l.queueLocked(e)
	}
	delete(l.refused, e)
}

// voidLocked is the end of claims that others have given back.
func (l *ledger) voidLocked() {
	l.void, l.ended = true, true
	l.lose(l.taken())
	for _, e := range slices.AppendSeq(l.queue, maps.Keys(l.refused)) {
		e.err = l.taken()
		l.closeLocked(e)
	}
	l.queue = nil
	clear(l.refused)
	for b := range l.batches {
		l.traceLossLocked(b.items...)
		l.giveBackLocked(b.items...) // which is over at once
		for _, it := range b.items {
			l.leaveLocked(it)
		}
		l.dropLocked(b)
	}
}

// settleNow decides the fate of an item and waits until it is carried out. It
// returns the entry of the fate that was decided.
func (l *ledger) settleNow(ctx context.Context, it *item, model entry) (e *entry, err error) {
	alive := l.inc.Alive()
	if !alive {
		l.end(true) // what was registered may not have run yet
	}
	for {
		var ok bool
		e, ok = l.decide(it, model)
		switch loss := l.loss(); {
		case !ok && loss != nil:
			return e, loss
		case !ok:
			return e, line.ErrNotLocked
		case e.fate == Return && e.bump && loss != nil && !alive:
			return e, loss
		}
		err = l.await(ctx, e)
		if e.with == nil || e.with == model.with || !session.IsClosed(e.done) || l.settled(it) {
			return e, err
		}
		// Another's txn was refused, so nothing is decided.
	}
}

// await waits until a fate is carried out.
func (l *ledger) await(ctx context.Context, e *entry) error {
	var down <-chan struct{}
	if e.fate == Return || e.fate == Later {
		down = l.inc.Disconnection()
	}
	select {
	case <-e.done:
		return e.err
	case <-down:
		return nil
	case <-l.q.m.Over:
		select {
		case <-e.done:
			return e.err
		default:
		}
		if e.fate == Return {
			return l.inc.EndError(session.ErrClosed) // it goes back, sooner or later
		}
		// It may have been carried out, so it is not told to be lost: that would say
		// that somebody else gets the element.
		return session.ErrClosed
	case <-ctx.Done():
		return session.CtxErr(ctx)
	}
}
