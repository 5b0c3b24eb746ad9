package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
)

// A ledger is the claims of one Queue value in one ZooKeeper session, and what
// becomes of the elements: each is removed, given back or buried, by one entry.
// Entries are posted many at once, in one transaction after another.
//
// A journal sees to it that each transaction is applied exactly once, through
// whatever session. This matters when a session ends: a consumer may have taken an
// element and the deletion not have got through. What the journal says is ours
// nobody can claim anew before we, in the next session, have settled it: it is
// among what is claimed of its bucket. Others give it back only when they have not
// seen the claimant's live mark for orphanTime, as they must if the process is
// dead; they write the journal for it, so if the process was only cut off for so
// long its transactions are not applied any more, and it learns of the loss.
type ledger struct {
	q    *core
	inc  *session.Incarnation
	guid string

	mu       sync.Mutex
	batches  map[*batch]struct{}
	live     map[string]int // by bucket: how many claimed items have no posted entry
	stake    *session.Stake // while there are batches, once one of them has been offered
	queue    []*entry       // not posted yet
	want     *want          // a claim that is to be made with what is posted next, or nil
	running  bool           // a goroutine posts
	hand     map[*item]bool // delivered, neither acknowledged nor returned
	fresh    []*item        // those of hand that note will write down
	refused  []*entry       // what retry will post again
	patience time.Duration  // after which it does; 0 if the last was allowed
	soon     bool           // retry is called before patience is over
	timer    *time.Timer    // that calls retry when it is
	size     int            // of the journal's data
	ended    bool           // nothing more is claimed, what is not out goes back
	lost     bool           // the session has ended: what is in hand goes back
	void     bool           // somebody has given the claims back
	swept    bool           // nothing is left to be posted
	posted   chan struct{}  // closed when it has ended and what went back then is back
	over     chan struct{}  // closed when nothing is left

	journal *journal // belongs to the goroutine that posts
	trace   claimTrace
}

// A batch is what is claimed in one transaction.
type batch struct {
	items []*item
	left  int // how many have no posted entry; guarded by ledger.mu

	claiming bool // its claim is under way; guarded by ledger.mu
}

// A want is a claim that is to be made.
type want struct {
	batch *batch
	lot   *lot
	es    []element
	since uint64 // of the order, when es were looked for
	done  chan struct{}

	// Read them only after done is closed.
	made bool
	err  error
}

// An item is an element that is claimed.
type item struct {
	element
	ledger  *ledger
	batch   *batch
	data    []byte
	size    int       // of what is stored; it stays when the data is dropped
	version int32     // of its znode: how many attempts there were before
	sent    time.Time // when it was stored, by the servers' clock
	pump    *pump     // from which it is being offered
	missing bool      // it was gone before it could be read
	framed  []byte    // in another library's layout: the data of its znode
	fault   error     // why it is none: it cannot be taken out of its frame, or decoded
	misfit  bool      // it cannot be decoded by us
	value   any       // as decoded
	decoded bool
	out     bool            // it is with a consumer, taken or not; guarded by ledger.mu
	note    <-chan struct{} // closed when that is written down, where attempts are limited; guarded by ledger.mu
	noted   bool            // that it is in hand is written down, or will be; guarded by ledger.mu
	to      *consumer       // to whom it is being offered, if by a channel; belongs to its goroutine
	posted  bool            // what becomes of it is; guarded by ledger.mu
	told    bool            // the trace tells that its claim is lost; guarded by ledger.mu
	final   *entry          // what becomes of it; guarded by ledger.mu

	ctx    context.Context         // of the claim; nil until somebody asks; guarded by ledger.mu
	cancel context.CancelCauseFunc // ends ctx; guarded by ledger.mu
}

// stored returns the data of its znode.
func (it *item) stored() []byte {
	if it.framed != nil {
		return it.framed
	}
	return it.data
}

// read is told what was read of its znode.
func (it *item) read(data []byte, stat *zk.Stat) {
	it.data, it.size, it.version, it.sent = data, len(data), stat.Version, time.UnixMilli(stat.Ctime)
	if it.first > 0 {
		it.sent = time.UnixMilli(it.first)
	}
}

// drop forgets its data, which others of its batch would keep for as long as they
// are in hand. Nobody reads them once its fate is posted.
func (it *item) drop() { it.data, it.framed, it.value = nil, nil, nil }

// attempts returns how often it was delivered before.
func (it *item) attempts() int { return int(it.tries) + int(it.version) }

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
	bump  bool      // count it as an attempt
	gone  bool      // the znode was found deleted
	again bool      // it was refused before
	alone bool      // it goes into a transaction of its own; guarded by ledger.mu
	back  bool      // the order waits for it; guarded by ledger.mu
	tried time.Time // when it was refused first
	fault error     // why it is buried
	with  *txn      // what else its transaction does, or nil; of Remove
	due   int64     // when it may be received again, in Unix milliseconds; of Later
	tries int       // how often it was delivered, of one that is buried
	done  chan struct{}
	err   error // read it only after done is closed
}

// newest returns the ledger that was opened last, if any.
func (q *core) newest() *ledger {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ledger
}

// newLedger opens a ledger, unless ctx has ended. A ledger is closed by end, by
// the end of its session, or by Session.Close.
func newLedger(ctx context.Context, q *core, inc *session.Incarnation) (*ledger, error) {
	l := &ledger{
		q: q, inc: inc, guid: session.NewGUID(),
		batches: make(map[*batch]struct{}),
		live:    make(map[string]int),
		hand:    make(map[*item]bool),
		posted:  make(chan struct{}),
		over:    make(chan struct{}),
	}
	l.journal = &journal{m: q.m, vet: q.vet, path: session.ChildPath(q.claims, l.guid), mark: session.ChildPath(q.live, l.guid), home: inc}
	if q.m.Trace != nil && q.foreign == nil { // in other layouts whoever has an element has deleted it
		l.trace = claimTrace{inc: inc, dir: q.dir, guid: l.guid}
	}
	leaving, stay := q.m.BeforeClose()
	l.ended = session.IsClosed(leaving) // Close would not wait for what is claimed now
	q.mu.Lock()
	if ctx.Err() != nil { // a later pump may have opened one already
		q.mu.Unlock()
		stay()
		return nil, session.CtxErr(ctx)
	}
	q.ledger = l
	q.mu.Unlock()
	q.order.claimant(l.guid, true)
	q.m.Spawn(func() {
		defer stay()
		defer q.order.claimant(l.guid, false)
		select {
		case <-inc.Ctx.Done():
			l.end(true)
		case <-leaving:
			l.end(true)
		case <-l.over:
		}
		select {
		case <-l.over:
		case <-q.m.Closing:
		}
	})
	return l, nil
}

// newBatch returns a batch that is about to be claimed, or nil if nothing may
// be claimed any more.
func (l *ledger) newBatch(es []element) *batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return nil
	}
	b := &batch{left: len(es), claiming: len(es) > 0}
	for _, e := range es {
		it := &item{element: e, ledger: l, batch: b}
		b.items = append(b.items, it)
		l.live[e.bucket]++
	}
	l.batches[b] = struct{}{}
	return b
}

// claim claims es, which are free elements of t, found when the order was at since, and
// reports whether that was done; if not what was read of t is stale.
func (l *ledger) claim(t *lot, es []element, since uint64) (*batch, bool, error) {
	b := l.newBatch(es)
	if b == nil {
		return nil, false, l.ending()
	}
	w := &want{batch: b, lot: t, es: es, since: since, done: make(chan struct{})}
	l.mu.Lock()
	l.want = w
	l.startLocked()
	l.mu.Unlock()
	select {
	case <-w.done:
		return b, w.made, w.err
	case <-l.inc.Ctx.Done():
		// It may have been made, or be made yet: the ledger gives it back.
		return nil, false, session.ErrEnded
	}
}

// claimed is told what came of a claim. Until then its batch is not given back.
func (l *ledger) claimed(w *want) {
	l.mu.Lock()
	w.batch.claiming = false
	switch {
	case !w.made:
		for _, it := range w.batch.items {
			l.unliveLocked(it)
		}
		l.dropLocked(w.batch)
	case l.ended:
		l.giveBackLocked(w.batch)
	}
	if l.ended {
		l.startLocked()
	}
	l.mu.Unlock()
	close(w.done)
}

func (l *ledger) unliveLocked(it *item) {
	if l.live[it.bucket]--; l.live[it.bucket] <= 0 {
		delete(l.live, it.bucket)
	}
}

// ending returns why nothing may be claimed any more.
func (l *ledger) ending() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.inc.Ctx.Err() != nil:
		return session.ErrEnded
	case l.void:
		return session.ErrVanished
	}
	return session.ErrClosed
}

// stands reports whether what is claimed certainly is, and goes on to be known
// to be: as long as there are claims.
func (l *ledger) stands(ctx context.Context) bool {
	if l.q.foreign != nil {
		return l.inc.Alive() // what was taken there is nobody else's any more
	}
	l.mu.Lock()
	staked := l.stake != nil
	l.mu.Unlock()
	if staked {
		return l.inc.Alive()
	}
	s, err := l.inc.Stake(ctx)
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stake != nil || len(l.batches) == 0 {
		s.Drop() // another consumer was quicker; or nothing is claimed any more
	} else {
		l.stake = s
	}
	return true
}

// dropLocked takes a batch off the ledger.
func (l *ledger) dropLocked(b *batch) {
	if delete(l.batches, b); len(l.batches) == 0 {
		l.stake.Drop()
		l.stake = nil
	}
}

// forget is told that a batch was not made.
func (l *ledger) forget(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(b)
	if l.ended {
		l.startLocked()
	}
}

// settle decides the fate of an item, if it is not decided yet.
func (l *ledger) settle(it *item, f Fate) {
	l.decide(it, entry{fate: f, fault: it.fault, tries: it.attempts()})
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
		l.unhandLocked(it)
		l.finishContextLocked(it)
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

// context returns the context of a claim, which ends with it.
func (l *ledger) context(it *item) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if it.ctx == nil {
		it.ctx, it.cancel = context.WithCancelCause(context.Background())
		if it.final != nil || l.lost || l.void {
			l.finishContextLocked(it)
		}
	}
	return it.ctx
}

// finishContextLocked ends the context of a claim, with the loss as its cause if
// the claim was lost before it was settled.
func (l *ledger) finishContextLocked(it *item) {
	if it.cancel == nil {
		return
	}
	settled := it.final != nil && it.final.fate != Return && it.final.with == nil // by the consumer
	if !settled && (l.lost || l.void || l.inc.Ctx.Err() != nil) {
		it.cancel(l.lossLocked())
	} else {
		it.cancel(nil)
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

// take is told that a consumer wants to offer an item. It is false if the item
// is not ours any more.
func (l *ledger) take(it *item) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || it.final != nil {
		return false
	}
	it.out = true
	return true
}

// noteAfter is how long an item is in hand before that is written down.
const noteAfter = 20 * time.Millisecond

// noting is told that an item is about to be offered, and how many may be noted at once.
// If attempts are limited noted is closed when it is written down that it is in hand, so
// that the attempt counts if the process dies.
func (l *ledger) noting(it *item, most int) (noted <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if it.final != nil || l.q.foreign != nil || l.q.cfg.MaxAttempts == 0 {
		return session.ClosedChan
	}
	if !it.noted {
		l.noteAheadLocked(it, most)
	}
	return it.note
}

// noted reports whether a note that is over was written down: it was not if the claims
// are found to be lost, or the Session is closed.
func (l *ledger) noted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.void && l.q.m.Failure() == nil
}

// handed is told that a consumer has taken an item, and settles it. Where attempts are not
// limited that is written down soon, with others, unless the item is acknowledged first.
//
// Until here the item was only offered: what ends the ledger does not count that as an
// attempt, and leaves it to whoever offers. So if that was while the consumer took it,
// it is here that it goes back.
func (l *ledger) handed(it *item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		l.startLocked() // it is not being offered any more
	}
	if it.posted || it.final != nil && (it.final.with == nil || session.IsClosed(it.final.done)) {
		return // it is settled already, or its txn is lost
	}
	l.hand[it] = true
	l.q.m.Holds.Add(1)
	switch {
	case it.final == nil && (l.lost || l.void):
		l.traceLossLocked(l.lossLocked(), it)
		l.enterLocked(it, entry{fate: Return, bump: true})
	case l.q.foreign == nil && l.q.cfg.MaxAttempts == 0:
		if l.fresh = append(l.fresh, it); len(l.fresh) == 1 {
			time.AfterFunc(noteAfter, l.note)
		}
	}
}

// noteAhead is how many are noted at once where attempts are limited, at most.
const noteAhead = 128

// noteAheadLocked writes down that an item is in hand, and with it others of its
// batch that are about to be: to write down each by itself would take a round trip
// for each. If the process dies those others are taken for tried too, though they
// were not, but never twice: what was tried before is noted by itself. So is
// everything where one attempt is all there is.
func (l *ledger) noteAheadLocked(it *item, most int) {
	e := l.enterNoteLocked(it)
	it.noted, it.note = true, e.done
	if it.attempts() > 0 || l.q.cfg.MaxAttempts == 1 {
		return
	}
	n := 1
	for _, other := range it.batch.items {
		if n >= most {
			return
		}
		if other.final == nil && !other.noted && other.attempts() == 0 {
			other.noted, other.note = true, e.done
			e.notes = append(e.notes, other)
			n++
		}
	}
}

// note writes down what has come into hand.
func (l *ledger) note() {
	l.mu.Lock()
	defer l.mu.Unlock()
	entered := make(map[*batch]*entry) // one for each batch
	for _, it := range l.fresh {
		if !l.hand[it] {
			continue
		}
		it.noted = true
		if e := entered[it.batch]; e != nil {
			e.notes = append(e.notes, it)
		} else {
			entered[it.batch] = l.enterNoteLocked(it)
		}
	}
	l.fresh = nil
}

// enterNoteLocked has it written down whether it is in hand. More may be added to the
// entry's notes at once.
func (l *ledger) enterNoteLocked(it *item) *entry {
	return l.enterLocked(it, entry{fate: fateHand, notes: []*item{it}})
}

func (l *ledger) unhandLocked(it *item) {
	if l.hand[it] {
		delete(l.hand, it)
		l.q.m.Holds.Add(-1)
	}
}

// withdraw is told that an offered item was not taken. It reports whether the
// item can be offered again.
func (l *ledger) withdraw(it *item) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	noted := it.noted
	it.out, it.noted = false, false
	switch {
	case it.final != nil:
	case l.ended:
		l.enterLocked(it, entry{fate: Return})
	case noted:
		l.enterNoteLocked(it) // that it is not
	}
	return !l.ended
}

// end gives back what is not out; with lost, or later when the session is
// lost, what is in hand as well.
func (l *ledger) end(lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.lost
	l.lost = l.lost || lost || l.inc.Ctx.Err() != nil
	if l.ended && l.lost == was {
		return // that was done; each settlement after a loss asks for it
	}
	l.ended = true
	for b := range l.batches {
		if !b.claiming {
			l.giveBackLocked(b)
		}
	}
	l.startLocked() // even if there is nothing to post, to find that it is over
}

func (l *ledger) giveBackLocked(b *batch) {
	var lost []*item
	for _, it := range b.items {
		switch {
		case it.final != nil:
			if it.final.with != nil && l.lost {
				lost = append(lost, it)
				l.finishContextLocked(it) // it may be refused in another session
			}
		case !it.out:
			l.enterLocked(it, entry{fate: Return})
		case l.lost && l.hand[it]:
			lost = append(lost, it)
			l.enterLocked(it, entry{fate: Return, bump: true})
		}
	}
	l.traceLossLocked(l.lossLocked(), lost...)
}

// run posts entries, and claims, until there are none.
func (l *ledger) run() {
	for {
		es, w := l.next()
		if es == nil && w == nil {
			return
		}
		p := &posting{l: l, es: es, want: w, absent: make(map[string]bool)}
		err := p.post()
		l.traceSettled(p, err)
		l.finish(p, err)
		if w != nil && !p.postponed {
			switch w.made = p.want != nil && err == nil; {
			case w.made:
				w.lot.claimed, w.lot.version, w.lot.keys = p.wrote[w.lot.name].claimed, w.lot.version+1, w.lot.keys+1
				l.traceClaim(w.batch.items)
			case p.want != nil:
				w.err = err
			}
			l.claimed(w)
		}
	}
}

// next returns what the next transaction is for, or nothing when run is to end.
func (l *ledger) next() ([]*entry, *want) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.want
	if len(l.queue) > 0 && l.queue[0].with != nil {
		w = nil // a txn may need all the space
	} else {
		l.want = nil
	}
	size, n := 4096+2*l.size, 0
	for n < len(l.queue) && n < maxPost {
		e := l.queue[n]
		size += 2 * l.q.m.SizeOf(l.q.dir+"/"+e.item.key(), nil)
		if e.fate == Bury || e.fate == Later || e.bump || l.q.foreign != nil {
			size += len(e.item.stored())
		}
		if e.fate == Bury {
			size += maxReason + 1024
		}
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

func (l *ledger) offers() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.offersLocked()
}

// offersLocked reports whether an item is being offered, or claimed in another
// library's layout.
func (l *ledger) offersLocked() bool {
	for b := range l.batches {
		if b.claiming || len(b.items) == 0 {
			return true // for the latter see deleteAll
		}
		for _, it := range b.items {
			if it.out && it.final == nil && !l.hand[it] {
				return true
			}
		}
	}
	return false
}

// lossLocked says why claims are lost, or go back.
func (l *ledger) lossLocked() error {
	if l.lost && !l.void && l.inc.Ctx.Err() == nil {
		return l.inc.EndError(session.ErrClosed) // the Session is being closed
	}
	return l.taken()
}

// taken says why a claim is lost that others have given back, or whose element they
// have deleted.
func (l *ledger) taken() error {
	if l.inc.Ctx.Err() != nil {
		return l.inc.Loss()
	}
	return l.inc.Deleted()
}

func (l *ledger) traceClaim(items []*item) {
	if !l.trace.on() {
		return
	}
	var keys []string
	for _, it := range items {
		keys = append(keys, it.key())
	}
	l.trace.granted(keys, l.journal.zxid)
}

// traceSettled writes what a posting has settled, if it was applied. When others
// have taken the journal over since, its last transaction is theirs.
func (l *ledger) traceSettled(p *posting, err error) {
	if !l.trace.on() || err != nil && !p.applied {
		return
	}
	zxid := l.journal.zxid
	if p.applied {
		zxid = 0
	}
	keys := make(map[string][]string)
	for _, e := range p.es {
		word := fateWords[e.fate]
		if e.gone {
			word = trace.Missing
		}
		if e.fate != fateHand {
			keys[word] = append(keys[word], e.item.key())
		}
	}
	l.trace.settled(keys, zxid)
}

// fateWords are the fates in the trace.
var fateWords = map[Fate]string{
	Remove: trace.Removed, Return: trace.Returned, Later: trace.Delayed, Bury: trace.Buried, fateMissing: trace.Missing,
}

// traceLossLocked writes that the claims of items are lost, once of each.
func (l *ledger) traceLossLocked(why error, items ...*item) {
	if !l.trace.on() {
		return
	}
	var keys []string
	for _, it := range items {
		if !it.told && !it.posted {
			it.told = true
			keys = append(keys, it.key())
		}
	}
	l.trace.lost(keys, why)
}

// sweep deletes the live mark and the journal, when no batch is left.
func (l *ledger) sweep() {
	ctx := context.Background() // ends with the Session
	j := l.journal
	l.q.m.During(ctx, func(inc *session.Incarnation) error {
		err := inc.RemoveAllNow(ctx, []string{j.mark, j.path})
		if (inc != l.inc || j.bare) && (err == nil || session.IsNoNode(err)) {
			// Others may have noted that the session had gone.
			err = inc.RemoveNow(ctx, j.path+goneSuffix)
		}
		return err
	})
}

// finish tells the result of a transaction. If the servers refuse it because of
// one entry, the culprit, the others are posted without it.
func (l *ledger) finish(p *posting, err error) {
	es, culprit := p.es, p.culprit
	var buried, refused []*entry
	defer func() { // the log and the observer are not called under a lock
		for _, e := range buried {
			l.q.report(e.item.key(), e.fault)
		}
		for _, e := range refused {
			l.q.m.Log.Error("zsync: cannot settle an element, and goes on trying", "path", l.q.cfg.Path, "element", e.item.key(), "err", err)
		}
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.size = p.size
	if p.applied && err != nil { // and then the claims were given back
		defer l.voidLocked()
		err = nil
	}
	if errors.Is(err, session.ErrLost) {
		l.voidLocked()
	}
	if culprit != nil && culprit.with != nil && err != nil {
		l.refuseTxnLocked(culprit, err)
		return
	}
	// The journal tells every outcome, through as many sessions as it takes. So an
	// error that is not a loss, nor the end of the Session, says that nothing was
	// applied, whether the servers refused it or what it needs could not be made.
	if err != nil && !errors.Is(err, session.ErrLost) && l.q.m.Failure() == nil {
		if culprit == nil && len(es) == 1 && es[0].with != nil && !l.journal.open { // it has been told, so it is not done later
			l.refuseTxnLocked(es[0], err)
			return
		}
		if culprit == nil && len(es) > 1 { // each by itself will tell
			for _, e := range es {
				e.alone = true
			}
			l.queue = append(es, l.queue...)
			return
		}
		var others []*entry
		for _, e := range es {
			if culprit == nil || e == culprit {
				if !e.again {
					refused = append(refused, e)
				}
				l.refuseLocked(e, err)
			} else {
				others = append(others, e)
			}
		}
		if others != nil {
			l.queue = append(others, l.queue...)
		}
		return
	}
	for _, e := range es {
		switch {
		case err != nil:
			e.err = cmp.Or(e.err, err) // that of doubt
		case e.gone:
			e.err = l.taken()
		}
		if e.again && err == nil {
			l.patience = 0
		}
		if b := e.item.batch; e.fate != fateHand {
			if err == nil && e.fate == Bury && !e.gone {
				buried = append(buried, e)
			}
			if e.with != nil {
				l.unhandLocked(e.item)
				l.finishContextLocked(e.item)
			}
			e.item.drop()
			e.item.posted = true
			l.unliveLocked(e.item)
			if b.left--; b.left == 0 {
				l.dropLocked(b)
			}
		}
		l.closeLocked(e)
	}
}

// retryAfter is how long it takes until something is tried again that the
// servers have refused. It doubles, up to a minute, until they allow something.
const retryAfter = time.Second

// refuseLocked tells that the servers have refused an entry. The fate of its
// item stays what it is, and is tried again: what they refuse, they may allow
// later.
func (l *ledger) refuseLocked(e *entry, err error) {
	next := *e
	next.gone, next.again, next.alone = false, true, true
	if next.tried.IsZero() {
		next.tried = time.Now()
	}
	// What was given back by its consumer, who is told, keeps nothing back any more.
	next.back = e.back && !e.bump && time.Since(next.tried) < refusedFor
	e.back = e.back && !next.back
	if e.fate != fateHand { // who waits for a note offers nothing before it is written down
		e.err, next.done = err, make(chan struct{})
		l.closeLocked(e)
		e.item.final = &next
	}
	if l.refused = append(l.refused, &next); len(l.refused) == 1 {
		l.patience = min(max(2*l.patience, retryAfter), time.Minute)
		if l.timer != nil {
			l.timer.Stop() // what it was for is tried with this
		}
		l.timer = time.AfterFunc(l.patience, l.retry)
	}
	if next.back && !l.soon { // consumers wait for it
		l.soon = true
		time.AfterFunc(4*retryAfter, func() {
			l.mu.Lock()
			l.soon = false
			l.mu.Unlock()
			l.retry()
		})
	}
}

// retry posts again what was refused.
func (l *ledger) retry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.refused {
		if e.fate == fateHand && e.item.batch.left == 0 {
			close(e.done) // nothing is in hand
			continue
		}
		l.queueLocked(e)
	}
	l.refused = nil
}

// voidLocked is the end of claims that others have given back.
func (l *ledger) voidLocked() {
	l.void, l.ended = true, true
	for _, e := range slices.Concat(l.queue, l.refused) {
		e.err = l.taken()
		l.closeLocked(e)
	}
	l.queue, l.refused = nil, nil
	for it := range l.hand {
		l.unhandLocked(it)
		if it.final == nil {
			it.final = &entry{item: it, fate: Return, done: session.ClosedChan, err: l.taken()}
		}
		l.finishContextLocked(it)
	}
	for b := range l.batches {
		l.traceLossLocked(l.taken(), b.items...)
		l.dropLocked(b)
	}
}

// A posting is one transaction of a ledger.
type posting struct {
	l       *ledger
	es      []*entry
	want    *want           // nil if there is none, or it is in vain
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
func (p *posting) post() (err error) {
	l := p.l
	if l.q.foreign != nil {
		p.culprit, err = l.postForeign(p.es)
		return err
	}
	rs, err := l.journal.apply(context.Background(), p.build) // ends with the Session
	var taken errTaken
	errors.As(err, &taken)
	for _, e := range p.es {
		if e.with != nil && (err == nil || taken.applied) {
			e.with.answered(l.journal, rs)
		}
	}
	if errors.As(err, &taken) {
		if p.applied = taken.applied; taken == (errTaken{}) {
			p.doubt()
		}
		l.q.m.Log.Warn("zsync: claims were given back by others", "path", l.q.cfg.Path)
		return l.taken()
	}
	return err
}

// doubt is told that the journal is gone, with what it said of the last transaction.
// Whoever gave the claims back has deleted it, and perhaps after that was applied. What
// removes an element was certainly not applied if that is there: no name comes again,
// and without the journal it cannot come late. If it is not, we may have removed it, or
// another since. What returns one is as good as a loss: the element is back, either way.
func (p *posting) doubt() {
	ctx := context.Background() // ends with the Session
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
	ctx := context.Background() // ends with the session
	p.l.mu.Lock()
	if p.l.ended || inc != p.l.inc || p.want != nil && p.want.since != p.l.q.order.now() {
		p.want = nil // the last: something that goes back may come before it
	}
	p.l.mu.Unlock()
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

// bytes is how large the transaction is, from above. How much of it is what it writes of
// buckets is not known before they are read.
func (p *posting) bytes() int {
	m, j := p.l.q.m, p.l.journal
	n := p.size + m.SizeOf(j.path, nil) + m.SizeOf(j.mark, []byte(m.Config.Owner))
	for _, s := range p.steps {
		switch op := s.op.(type) {
		case *zk.CreateRequest:
			n += m.SizeOf(op.Path, op.Data)
		case *zk.SetDataRequest:
			n += m.SizeOf(op.Path, op.Data)
		case *zk.DeleteRequest:
			n += m.SizeOf(op.Path, nil)
		}
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
		if e.bump && len(e.item.data) > session.MaxPacket/2 && !p.absent[path] {
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
		h.owned = h.owned.union(w.lot.runs(w.es))
		p.next[w.lot.name] = h
	}
	settled := make(map[string]int) // by bucket
	bell, moved := false, false
	p.noteLocked() // before what is returned: that is not in hand any more
	returned := make(map[string][]int32)
	for _, e := range p.es {
		if e.fate == fateHand {
			continue
		}
		settled[e.item.bucket]++
		p.settle(e)
		// Consumers that wait must learn of the time, and of what waited for its key.
		bell = bell || e.fate == Return || e.fate == Later || keyOf(e.item.tag) != ""
		moved = moved || e.fate == Later && keyOf(e.item.tag) != ""
		if e.fate == Return {
			returned[e.item.bucket] = append(returned[e.item.bucket], e.item.seq)
		}
	}
	for name, numbers := range returned {
		back, h := spansOf(numbers), p.next[name]
		p.next[name] = holding{h.owned.minus(back), h.hand.minus(back)}
		if t := lots[name]; t != nil {
			t.claimed = t.claimed.minus(back)
		}
	}
	for name := range p.next {
		if p.l.live[name] <= settled[name] {
			delete(p.next, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(lots)) {
		p.write(name, lots[name])
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
		p.add(nil, &zk.SetDataRequest{Path: p.l.q.dir, Version: -1}, p.without(p.l.q.dir, func(err error) bool {
			return session.IsNoNode(err) || errors.Is(err, zk.ErrNoAuth)
		}))
	}
}

// noteLocked writes down which items are in hand. What is being settled is, until
// that is posted: if the process dies before, it was tried.
func (p *posting) noteLocked() {
	in, out := make(map[string][]int32), make(map[string][]int32) // by bucket
	for _, e := range p.es {
		for _, it := range e.notes {
			switch {
			case it.posted:
			case it.noted:
				in[it.bucket] = append(in[it.bucket], it.seq)
			default:
				out[it.bucket] = append(out[it.bucket], it.seq)
			}
		}
	}
	for name, numbers := range out {
		h := p.next[name]
		p.next[name] = holding{h.owned, h.hand.minus(spansOf(numbers))}
	}
	for name, numbers := range in {
		h := p.next[name]
		p.next[name] = holding{h.owned, h.hand.union(spansOf(numbers))}
	}
}

// settle adds what becomes of an item.
func (p *posting) settle(e *entry) {
	q := p.l.q
	acl := q.m.Config.ACL
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
		for _, op := range q.letterOf(e.item, e.fault, e.tries) {
			p.add(e, op, when(session.IsNoNode, func(inc *session.Incarnation) error { return inc.MakeDir(context.Background(), q.dead) }))
		}
		remove()
	case e.fate == Later:
		dir := session.ChildPath(q.dir, delayedName(e.item.prio, q.zxid.Load()))
		p.add(e, &zk.CreateRequest{Path: session.ChildPath(dir, laterName(e.due, int32(e.tries), e.item.sent.UnixMilli(), e.item.tag)), Data: e.item.data, Acl: acl, Flags: zk.FlagSequence},
			when(session.IsNoNode, func(inc *session.Incarnation) error { return q.makeDelayed(inc, e) }))
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
	ctx := context.Background() // ends with the session
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

// A reading is what was read of claimed elements.
type reading struct {
	nodes   []session.Node
	refused []error // why the servers did not let us read one
	err     error
	done    chan struct{}
}

// read begins to read elements. It may be begun before they are claimed: while
// nobody has claimed them nobody changes them, and if the claim is made nobody else
// had one since the search, whose reads came before this.
func (l *ledger) read(ctx context.Context, es []element) *reading {
	r := &reading{refused: make([]error, len(es)), done: make(chan struct{})}
	paths := make([]string, len(es))
	for i, e := range es {
		paths[i] = session.ChildPath(l.q.dir, e.key())
	}
	l.q.m.Spawn(func() {
		defer close(r.done)
		r.nodes, r.err = l.inc.GetAll(ctx, paths)
		if r.err != nil && session.OutcomeOf(r.err) == session.Answered {
			r.nodes, r.err = l.fetchEach(ctx, paths, r.refused)
		}
	})
	return r
}

// fetch gives the items of a batch what was read. Those that are gone, or cannot
// be read, are taken off the batch. What the end of the ledger gives back
// meanwhile belongs to whoever posts that, and is left alone.
func (l *ledger) fetch(b *batch, r *reading) ([]*item, error) {
	<-r.done
	if r.err != nil {
		return nil, r.err
	}
	for i, err := range r.refused {
		if err != nil {
			l.settle(b.items[i], Return)
			l.q.skips.unreadable(b.items[i].key(), err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var ours []*item
	for i, n := range r.nodes {
		switch it := b.items[i]; {
		case it.final != nil: // refused above, or given back
		case n.Stat == nil:
			l.enterLocked(it, entry{fate: fateMissing})
		default:
			it.read(n.Data, n.Stat)
			ours = append(ours, it)
		}
	}
	return ours, nil
}

// fetchEach reads elements one by one, and notes which of them the servers do
// not let us read.
func (l *ledger) fetchEach(ctx context.Context, paths []string, refused []error) ([]session.Node, error) {
	nodes := make([]session.Node, len(paths))
	return nodes, session.Parallel(len(paths), func(i int) error {
		data, stat, err := l.inc.Get(ctx, paths[i])
		if err != nil && session.OutcomeOf(err) == session.Answered {
			if !session.IsNoNode(err) {
				refused[i] = err
			}
			return nil
		}
		nodes[i] = session.Node{Data: data, Stat: stat}
		return err
	})
}

// A txn is what is done in one transaction with the removal of an element. The
// ledger's journal sees to it that it is applied once. Until it has been, the
// element stays in hand: a txn that is refused changes nothing.
type txn struct {
	ops   []any              // the caller's; their paths are the server's
	sends []*sending         // to other queues
	size  int                // from above
	rooms []func()           // give up the room for them
	at    int                // where ops begin in the transaction
	rs    []zk.MultiResponse // of ops
}

// prepare has the sends of e's txn, if it has any, prepared for one attempt.
func (p *posting) prepare(inc *session.Incarnation) error {
	for _, e := range p.es {
		if e.with == nil {
			continue
		}
		for _, s := range e.with.sends {
			if err := s.prepare(inc); err != nil {
				if !errors.Is(err, session.ErrEnded) {
					p.culprit = e
				}
				return err
			}
		}
	}
	return nil
}

// txn adds what else is done in the transaction that removes e's element.
func (p *posting) txn(e *entry) {
	x := e.with
	x.at = len(p.steps)
	for i, op := range x.ops {
		p.add(e, op, func(_ *session.Incarnation, err error) error {
			x.rs = make([]zk.MultiResponse, len(x.ops))
			x.rs[i].Error = err
			return err
		})
	}
	for _, s := range x.sends {
		for _, st := range s.g.steps {
			p.add(e, st.op, st.cure)
		}
	}
}

// answered is told that a txn was applied, with the responses to the whole
// transaction, if its reply came.
func (x *txn) answered(j *journal, rs []zk.MultiResponse) {
	if rs != nil {
		x.rs = j.m.BareResponses(rs[x.at : x.at+len(x.ops)])
	} else {
		x.rs = j.m.BareResponses(j.last.Recall(context.Background(), x.ops, j.zxid))
	}
}

// refuseTxnLocked tells that the servers have refused a txn. The element is in
// hand as before; if the session was lost meanwhile it goes back now.
func (l *ledger) refuseTxnLocked(e *entry, err error) {
	if e.err = err; e.gone {
		e.err = l.taken()
	}
	e.item.final = nil
	close(e.done)
	if l.ended {
		l.giveBackLocked(e.item.batch)
	}
}
