package queue

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// A ledger is the claims of one Queue value in one ZooKeeper session, and what
// becomes of the elements: each is removed, given back or buried, by one entry.
// Entries are posted many at once, in one transaction after another.
//
// Each transaction writes the claimant's state znode and expects its version,
// so it is applied exactly once however often it is sent, and through whatever
// session. This matters when a session ends: a consumer may have taken an
// element and the deletion not have got through. The ledger's batches are
// persistent, so nobody can claim the element anew before they are deleted;
// that does the ledger itself, in the next session, with or after what was
// still to be posted. Others do it only when they have not seen the claimant's
// live mark for orphanTime, as they must if the process is dead; if it was cut
// off for so long, its transaction finds no state znode and is not applied.
type ledger struct {
	q    *core
	inc  *session.Incarnation
	guid string

	mu       sync.Mutex
	begun    bool // the live mark and the state may have been made
	batches  map[*batch]struct{}
	stake    *session.Stake // while there are batches, once one of them has been offered
	serial   int            // of the last batch
	queue    []*entry       // not posted yet
	running  bool           // a goroutine posts
	hand     map[*item]bool // delivered, neither acknowledged nor returned
	fresh    []*item        // those of hand that note will write down
	refused  []*entry       // what retry will post again
	patience time.Duration  // after which it does; 0 if the last was allowed
	ended    bool           // nothing more is claimed, what is not out goes back
	lost     bool           // the session has ended: what is in hand goes back
	void     bool           // somebody has given the claims back
	swept    bool           // nothing is left to be posted
	posted   chan struct{}  // closed when it has ended and what went back then is back
	over     chan struct{}  // closed when nothing is left

	// What follows belongs to the goroutine that posts.

	version int32  // of the state znode
	unknown bool   // an attempt that expects version may have been applied, or may be yet
	bar     string // what was written, or may have been, to bar that attempt; or empty
	barred  bool   // the live mark has been deleted
}

// A batch is what is claimed in one transaction.
type batch struct {
	name  string // of its znode, below <path>-claims
	size  int    // of its znode's data, from above
	items []*item
	left  map[*item]bool // those without a posted entry; guarded by ledger.mu

	claiming bool // its claim is under way; guarded by ledger.mu
}

// An item is an element that is claimed.
type item struct {
	element
	ledger  *ledger
	batch   *batch
	data    []byte
	version int32     // of its znode: how many attempts there were before
	sent    time.Time // when it was stored, by the servers' clock
	pump    *pump     // from which it is being offered
	missing bool      // it was gone before it could be read
	framed  []byte    // in another library's layout: the data of its znode
	fault   error     // why it is none: it cannot be taken out of its frame, or decoded
	misfit  bool      // it cannot be decoded by us
	value   any       // as decoded
	decoded bool
	out     bool   // it is with a consumer, taken or not; guarded by ledger.mu
	noted   bool   // that it is in hand is written down, or will be; guarded by ledger.mu
	final   *entry // what becomes of it; guarded by ledger.mu

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
	it.data, it.version, it.sent = data, stat.Version, time.UnixMilli(stat.Ctime)
	if it.first > 0 {
		it.sent = time.UnixMilli(it.first)
	}
}

// attempts returns how often it was delivered before.
func (it *item) attempts() int { return int(it.tries) + int(it.version) }

// A fate is what becomes of an item.
type fate int

const (
	fateRemove  fate = iota // taken, or acknowledged
	fateReturn              // back to its place
	fateLater               // back to the queue, at a later time
	fateBury                // to the dead letters
	fateMissing             // it was gone
	fateHand                // none yet: it is being delivered
)

// An entry is the fate of one item, or a note of its being in hand.
type entry struct {
	item  *item
	fate  fate
	bump  bool  // count it as an attempt
	gone  bool  // the znode was found deleted
	again bool  // it was refused before
	alone bool  // it goes into a transaction of its own; guarded by ledger.mu
	fault error // why it is buried
	due   int64 // when it may be received again, in Unix milliseconds; of fateLater
	tries int   // how often it was delivered, of one that is buried
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
		hand:    make(map[*item]bool),
		posted:  make(chan struct{}),
		over:    make(chan struct{}),
	}
	q.mu.Lock()
	if ctx.Err() != nil { // a later pump may have opened one already
		q.mu.Unlock()
		return nil, session.CtxErr(ctx)
	}
	q.ledger = l
	q.mu.Unlock()
	leaving, stay := q.m.BeforeClose()
	l.ended = session.IsClosed(leaving) // Close would not wait for what is claimed now
	q.m.Spawn(func() {
		defer stay()
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
	b := &batch{name: l.batchNameLocked(), left: make(map[*item]bool, len(es))}
	for _, e := range es {
		it := &item{element: e, ledger: l, batch: b}
		b.items = append(b.items, it)
		b.left[it] = true
	}
	b.claiming = len(es) > 0
	b.size = len(marshalKeys(b.keys())) + len(es)*len("*-2147483648")
	l.batches[b] = struct{}{}
	return b
}

// open makes the live mark and the state. No claim is sent before they are
// there, so whatever a session has left on its way when it ends, the claims
// among it expect the live mark.
func (l *ledger) open(ctx context.Context) error {
	l.mu.Lock()
	begun := l.begun
	l.begun = true // or may have
	l.mu.Unlock()
	if begun {
		return nil
	}
	q := l.q
	ops := []any{
		&zk.CreateRequest{Path: session.ChildPath(q.claims, l.guid+"-"+stateSuffix), Acl: q.m.Config.ACL},
		&zk.CreateRequest{Path: session.ChildPath(q.claims, l.guid+"-"+liveSuffix), Data: []byte(q.m.Config.Owner), Acl: q.m.Config.ACL, Flags: zk.FlagEphemeral},
	}
	_, err := l.inc.Multi(ctx, ops...)
	if session.IsNodeExists(err) { // an attempt whose reply was lost
		return nil
	}
	return err
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

func (l *ledger) batchNameLocked() string {
	l.serial++
	return l.guid + "-r" + strconv.Itoa(l.serial)
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

// claimed is told that a batch was made, or that the session has ended before
// that was known. Until then it is not given back: the return could be quicker
// than the claim, and find nothing.
func (l *ledger) claimed(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.claiming = false
	if l.ended {
		l.giveBackLocked(b)
		l.startLocked()
	}
}

func (b *batch) keys() []string {
	keys := make([]string, len(b.items))
	for i, it := range b.items {
		keys[i] = it.key()
	}
	return keys
}

// miss is told which items were gone before they could be read.
func (l *ledger) miss(items []*item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, it := range items {
		if it.missing {
			l.enterLocked(it, fateMissing, false)
		}
	}
}

// settle decides the fate of an item, if it is not decided yet, and returns
// the entry of it. ok tells whether the fate is the one that was asked for.
func (l *ledger) settle(it *item, f fate, bump bool) (e *entry, ok bool) {
	return l.decide(it, entry{fate: f, bump: bump, fault: it.fault, tries: it.attempts()})
}

// decide is settle with everything that may be said of a fate.
func (l *ledger) decide(it *item, e entry) (_ *entry, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if it.final == nil {
		l.enterFateLocked(it, e)
	}
	return it.final, it.final.fate == e.fate
}

// settled reports whether the fate of an item is decided.
func (l *ledger) settled(it *item) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return it.final != nil
}

func (l *ledger) enterLocked(it *item, f fate, bump bool) *entry {
	return l.enterFateLocked(it, entry{fate: f, bump: bump})
}

func (l *ledger) enterFateLocked(it *item, model entry) *entry {
	e := &model
	e.item, e.done = it, make(chan struct{})
	if e.fate != fateHand {
		it.final = e
		l.unhandLocked(it)
		l.finishContextLocked(it)
	}
	l.queueLocked(e)
	return e
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
	var cause error
	switch {
	case l.void || l.inc.Ctx.Err() != nil:
		cause = l.loss()
	case l.lost: // the Session is being closed
		cause = l.inc.EndError(session.ErrClosed)
	}
	if it.final != nil && it.final.fate != fateReturn {
		cause = nil // settled by the consumer
	}
	it.cancel(cause)
}

// queueLocked has an entry posted.
func (l *ledger) queueLocked(e *entry) {
	if l.void {
		e.err = l.loss()
		close(e.done)
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

// handing notes that an item is being delivered, so that an attempt is counted
// if the process dies. The note is written down soon, with others, unless the
// item is acknowledged first; or, if attempts are limited, before noted is
// closed.
func (l *ledger) handing(it *item) (noted <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if it.final != nil {
		return session.ClosedChan
	}
	l.hand[it] = true
	l.q.m.Holds.Add(1)
	if l.lost { // since it was taken from the channel: see end
		l.enterLocked(it, fateReturn, true)
		return session.ClosedChan
	}
	if l.ended {
		l.startLocked() // it is not being offered any more
	}
	switch {
	case l.q.foreign != nil:
	case l.q.cfg.MaxAttempts > 0:
		it.noted = true
		return l.enterLocked(it, fateHand, false).done
	default:
		if l.fresh = append(l.fresh, it); len(l.fresh) == 1 {
			time.AfterFunc(noteAfter, l.note)
		}
	}
	return session.ClosedChan
}

// note writes down what has come into hand.
func (l *ledger) note() {
	l.mu.Lock()
	defer l.mu.Unlock()
	entered := make(map[*batch]bool)
	for _, it := range l.fresh {
		if !l.hand[it] {
			continue
		}
		it.noted = true
		if !entered[it.batch] { // one entry writes down all of a batch
			entered[it.batch] = true
			l.enterLocked(it, fateHand, false)
		}
	}
	l.fresh = nil
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
	it.out = false
	l.unhandLocked(it)
	switch {
	case l.ended && it.final == nil:
		l.enterLocked(it, fateReturn, false)
	case it.noted && it.final == nil:
		it.noted = false
		l.enterLocked(it, fateHand, false) // that it is not
	}
	return !l.ended
}

// end gives back what is not out; with lost, or later when the session is
// lost, what is in hand as well.
func (l *ledger) end(lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.lost = l.lost || lost || l.inc.Ctx.Err() != nil
	for b := range l.batches {
		if !b.claiming {
			l.giveBackLocked(b)
		}
	}
	l.startLocked() // even if there is nothing to post, to find that it is over
}

func (l *ledger) giveBackLocked(b *batch) {
	for _, it := range b.items {
		switch {
		case it.final != nil:
		case !it.out:
			l.enterLocked(it, fateReturn, false)
		case l.lost && l.hand[it]:
			l.enterLocked(it, fateReturn, true)
		}
	}
}

// run posts entries until there are none.
func (l *ledger) run() {
	for {
		es := l.next()
		if es == nil {
			return
		}
		culprit, err := l.post(es)
		l.finish(es, culprit, err)
	}
}

// maxPost is how many entries go into one transaction.
const maxPost = 500

// next returns the entries of the next transaction, or nil when run is to end.
func (l *ledger) next() []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	size, n := 4096, 0
	batches := make(map[*batch]bool)
	for n < len(l.queue) && n < maxPost {
		e := l.queue[n]
		size += 2 * l.q.m.SizeOf(l.q.dir+"/"+e.item.key(), nil)
		if e.fate == fateBury || e.fate == fateLater || e.bump || l.q.foreign != nil {
			size += len(e.item.stored())
		}
		if e.fate == fateBury {
			size += maxReason + 1024
		}
		if b := e.item.batch; !batches[b] {
			batches[b] = true
			size += 2*l.q.m.SizeOf(l.q.claims+"/"+b.name, nil) + b.size
		}
		if n > 0 && (size > session.MaxPacket/2 || e.alone || l.queue[0].alone) {
			break
		}
		n++
	}
	if n > 0 {
		es := l.queue[:n:n]
		l.queue = l.queue[n:]
		return es
	}
	l.running = false
	if l.ended && !session.IsClosed(l.posted) && !l.offersLocked() {
		close(l.posted)
	}
	if l.ended && len(l.batches) == 0 && !l.swept {
		l.swept = true
		mark := l.begun && !l.void
		l.q.m.Spawn(func() {
			if mark {
				l.sweep()
			}
			close(l.over)
		})
	}
	return nil
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

// loss says why a claim is lost.
func (l *ledger) loss() error {
	if l.inc.Ctx.Err() != nil {
		return l.inc.Loss()
	}
	return l.inc.Deleted()
}

// sweep deletes the live mark and the state, when no batch is left.
func (l *ledger) sweep() {
	ctx := context.Background() // ends with the Session
	l.q.m.During(ctx, func(inc *session.Incarnation) error {
		err := inc.RemoveAllNow(ctx, []string{session.ChildPath(l.q.claims, l.guid+"-"+liveSuffix), session.ChildPath(l.q.claims, l.guid+"-"+stateSuffix)})
		if inc != l.inc && (err == nil || session.IsNoNode(err)) {
			// Others may have noted that the session had gone.
			err = inc.RemoveNow(ctx, session.ChildPath(l.q.claims, l.guid+"-"+goneSuffix))
		}
		return err
	})
}

// finish tells the result of a transaction. If the servers refuse it because of
// one entry, the culprit, the others are posted without it.
func (l *ledger) finish(es []*entry, culprit *entry, err error) {
	var buried []*entry
	defer func() { // the log and the observer are not called under a lock
		for _, e := range buried {
			l.q.report(e.item.key(), e.fault)
		}
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(err, session.ErrLost) {
		l.voidLocked()
	}
	if err != nil && session.OutcomeOf(err) == session.Answered {
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
				l.refuseLocked(e, err)
			} else {
				others = append(others, e)
			}
		}
		l.queue = append(others, l.queue...)
		return
	}
	for _, e := range es {
		switch {
		case err != nil:
			e.err = err
		case e.gone:
			e.err = l.loss()
		}
		if e.again && err == nil {
			l.patience = 0
		}
		if b := e.item.batch; e.fate != fateHand {
			if err == nil && e.fate == fateBury && !e.gone {
				buried = append(buried, e)
			}
			// Others of its batch may be in hand for long.
			e.item.data, e.item.framed, e.item.value = nil, nil, nil
			delete(b.left, e.item)
			if len(b.left) == 0 {
				l.dropLocked(b)
			}
		}
		close(e.done)
	}
}

// retryAfter is how long it takes until something is tried again that the
// servers have refused. It doubles, up to a minute, until they allow something.
const retryAfter = time.Second

// refuseLocked tells that the servers have refused an entry. The fate of its
// item stays what it is, and is tried again: what they refuse, they may allow
// later.
func (l *ledger) refuseLocked(e *entry, err error) {
	e.err = err
	close(e.done)
	if e.fate == fateHand {
		return
	}
	if !e.again {
		l.q.m.Log.Error("zsync: cannot settle an element, and goes on trying", "path", l.q.cfg.Path, "element", e.item.key(), "err", err)
	}
	next := *e
	next.err, next.gone, next.again, next.alone, next.done = nil, false, true, true, make(chan struct{})
	e.item.final = &next
	if l.refused = append(l.refused, e.item.final); len(l.refused) == 1 {
		l.patience = min(max(2*l.patience, retryAfter), time.Minute)
		time.AfterFunc(l.patience, l.retry)
	}
}

// retry posts again what was refused.
func (l *ledger) retry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.refused {
		l.queueLocked(e)
	}
	l.refused = nil
}

// voidLocked is the end of claims that others have given back.
func (l *ledger) voidLocked() {
	l.void, l.ended = true, true
	for _, e := range l.queue {
		e.err = l.loss()
		close(e.done)
	}
	l.queue = nil
	for it := range l.hand {
		l.unhandLocked(it)
		if it.final == nil {
			it.final = &entry{item: it, fate: fateReturn, done: session.ClosedChan, err: l.loss()}
			l.finishContextLocked(it)
		}
	}
	for b := range l.batches {
		l.dropLocked(b)
	}
}

// A posting is one transaction of a ledger.
type posting struct {
	l       *ledger
	es      []*entry
	renamed map[*batch]string // what takes the place of a batch
	absent  map[string]bool   // znodes that need not be deleted, or written
	ops     []any
	owners  []*entry                                                          // for whom each of ops is; nil if for several
	cures   []func(inc *session.Incarnation, err error) (cured bool, _ error) // nil if there is none
}

// post posts entries, in this session or a later one. If the servers refuse
// one of them, that is the culprit.
func (l *ledger) post(es []*entry) (culprit *entry, err error) {
	if l.q.foreign != nil {
		return l.postForeign(es)
	}
	p := &posting{l: l, es: es, renamed: make(map[*batch]string), absent: make(map[string]bool)}
	ctx := context.Background() // ends with the Session
	err = l.q.m.During(ctx, func(inc *session.Incarnation) (err error) {
		culprit, err = p.send(ctx, inc)
		if l.unknown && err != nil && session.OutcomeOf(err) == session.Answered {
			// It is refused before it was sent here. What was sent in a former
			// session must be known before anything else is posted.
			if applied, e := l.close(inc); e != nil || applied {
				return cmp.Or(e, p.applied(applied))
			}
		}
		return err
	})
	return culprit, err
}

// send sends the transaction within one session.
func (p *posting) send(ctx context.Context, inc *session.Incarnation) (culprit *entry, err error) {
	l := p.l
	if inc != l.inc && !l.barred {
		// A claim of the former session may still be on its way. It expects
		// the live mark, so from here on it can do nothing.
		if err := inc.RemoveNow(ctx, session.ChildPath(l.q.claims, l.guid+"-"+liveSuffix)); err != nil && !session.IsNoNode(err) {
			return nil, err
		}
		l.barred = true
	}
	for _, e := range p.es {
		path := session.ChildPath(l.q.dir, e.item.key())
		if e.bump && len(e.item.data) > session.MaxPacket/2 && !p.absent[path] {
			// It does not fit beside the rest.
			if err := l.q.bump(ctx, inc, e.item.key(), e.item.version); err != nil {
				return e, err
			}
			p.absent[path] = true
		}
	}
	for try := 0; ; {
		p.build()
		ops := p.ops // an attempt that is abandoned may read them when the next are built
		rs, err := inc.AttemptMulti(ctx, ops)
		i := session.FailedOp(rs)
		switch {
		case err == nil:
			return nil, p.applied(true)
		case errors.Is(err, session.ErrEnded):
			l.unknown = true // it may have been sent
			return nil, err
		case session.OutcomeOf(err) != session.Answered:
			l.unknown = l.unknown || session.OutcomeOf(err) == session.Unknown
			if err := inc.Pause(ctx, try); err != nil {
				return nil, err
			}
			try++
			continue
		case l.unknown:
			// The servers refuse this attempt, but one without a reply may have
			// been applied before, or come later. Which it is must be known
			// before anything else is done at this version.
			if applied, e := l.close(inc); e != nil || applied {
				return nil, cmp.Or(e, p.applied(applied))
			}
			continue
		case i == 0 && (session.IsNoNode(err) || session.IsBadVersion(err)):
			return nil, l.givenBack()
		case i < 0:
			return nil, err
		}
		cured := false
		if cure := p.cures[i]; cure != nil {
			if cured, err = cure(inc, err); err != nil {
				return p.owners[i], err
			}
		}
		if !cured {
			return p.owners[i], rs[i].Error
		}
	}
}

// givenBack is what is told when others have given the claims back.
func (l *ledger) givenBack() error {
	l.q.m.Log.Warn("zsync: claims were given back by others", "path", l.q.cfg.Path)
	return l.loss()
}

// close finds out whether an attempt of open outcome was applied, and sees to it
// that otherwise it never is: it writes the state itself, at the version that the
// attempt expects. So one of the two is applied, and not the other. An attempt
// writes no data, and close something unique, so when the reply to close is lost
// too the state says who was first. This holds whatever comes between, another
// session included, because nobody else writes the state; others only delete it.
//
// What the servers refuse is tried again until the session ends: nothing can be
// posted before it is known.
func (l *ledger) close(inc *session.Incarnation) (applied bool, err error) {
	ctx := context.Background() // ends with the session
	state := session.ChildPath(l.q.claims, l.guid+"-"+stateSuffix)
	if l.bar == "" {
		l.bar = session.NewGUID()
	}
	for try := 0; ; try++ {
		_, err := inc.Set(ctx, state, []byte(l.bar), l.version)
		if session.IsBadVersion(err) {
			// The refusal came in the servers' one order, so this read knows
			// of whatever was applied before it.
			var data []byte
			if data, _, err = inc.Get(ctx, state); err == nil {
				applied = string(data) != l.bar
			}
		}
		switch {
		case err == nil:
			if l.unknown, l.bar = false, ""; !applied {
				l.version++
			}
			return applied, nil
		case session.IsNoNode(err):
			return false, l.givenBack()
		case session.OutcomeOf(err) != session.Answered:
			return false, err // the session has ended
		}
		if err := inc.Pause(ctx, try+1); err != nil {
			return false, err
		}
	}
}

// applied is told whether the transaction was applied.
func (p *posting) applied(was bool) error {
	if !was {
		return nil
	}
	p.l.version++
	p.l.unknown, p.l.bar = false, ""
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	for b, name := range p.renamed {
		b.name = name
	}
	return nil
}

func (p *posting) add(owner *entry, op any, cure func(inc *session.Incarnation, err error) (bool, error)) {
	p.ops, p.owners, p.cures = append(p.ops, op), append(p.owners, owner), append(p.cures, cure)
}

// build makes the transaction.
func (p *posting) build() {
	l, q := p.l, p.l.q
	acl := q.m.Config.ACL
	p.ops, p.owners, p.cures = nil, nil, nil
	l.mu.Lock()
	defer l.mu.Unlock()
	p.add(nil, &zk.SetDataRequest{Path: session.ChildPath(q.claims, l.guid+"-"+stateSuffix), Version: l.version}, nil)

	posted := make(map[*batch]map[*item]bool)
	returns, notes, bell := make(map[*batch]bool), make(map[*batch]bool), false
	for _, e := range p.es {
		b := e.item.batch
		if posted[b] == nil {
			posted[b] = make(map[*item]bool)
		}
		if e.fate == fateHand {
			notes[b] = true
			continue
		}
		posted[b][e.item] = true
		path := session.ChildPath(q.dir, e.item.key())
		gone := func(_ *session.Incarnation, err error) (bool, error) {
			e.gone = session.IsNoNode(err) // by somebody who deletes what is not his
			return e.gone, nil
		}
		switch {
		case e.gone:
		case e.fate == fateRemove:
			p.add(e, &zk.DeleteRequest{Path: path, Version: -1}, gone)
		case e.fate == fateBury:
			for _, op := range q.letterOf(e.item, e.fault, e.tries) {
				p.add(e, op, func(inc *session.Incarnation, err error) (bool, error) {
					return session.IsNoNode(err), inc.MakeDir(context.Background(), q.dead)
				})
			}
			p.add(e, &zk.DeleteRequest{Path: path, Version: -1}, gone)
		case e.fate == fateLater:
			bell = true // consumers that wait must learn of the time
			dir := session.ChildPath(q.dir, delayedName(e.item.prio, q.zxid.Load()))
			p.add(e, &zk.CreateRequest{Path: session.ChildPath(dir, laterName(e.due, int32(e.tries), e.item.sent.UnixMilli())), Data: e.item.data, Acl: acl, Flags: zk.FlagSequence},
				func(inc *session.Incarnation, err error) (bool, error) {
					if !session.IsNoNode(err) {
						return false, nil
					}
					return true, q.makeDelayed(inc, e)
				})
			p.add(e, &zk.DeleteRequest{Path: path, Version: -1}, gone)
		case e.fate == fateMissing:
			// Whoever has taken it may put it back, and it must not be taken
			// for claimed then.
			returns[b] = true
		case e.fate == fateReturn:
			returns[b] = true
			if e.bump && !p.absent[path] {
				p.add(e, &zk.SetDataRequest{Path: path, Data: e.item.data, Version: e.item.version},
					func(_ *session.Incarnation, err error) (bool, error) {
						p.absent[path] = true
						return session.IsNoNode(err) || session.IsBadVersion(err), nil
					})
			}
		}
	}
	for b, items := range posted {
		path := session.ChildPath(q.claims, b.name)
		rest := len(items) < len(b.left)
		var keys []string
		for _, it := range b.items {
			switch {
			case !b.left[it] || items[it]:
			case l.hand[it] && it.noted:
				keys = append(keys, marked(it.key(), it.version))
			default:
				keys = append(keys, it.key())
			}
		}
		missing := func(_ *session.Incarnation, err error) (bool, error) {
			p.absent[path] = true
			return session.IsNoNode(err), nil
		}
		switch {
		case p.absent[path]:
		case !rest || returns[b]:
			p.add(nil, &zk.DeleteRequest{Path: path, Version: -1}, missing)
		case notes[b]:
			p.add(nil, &zk.SetDataRequest{Path: path, Data: marshalKeys(keys), Version: -1}, missing)
		}
		if !rest || !returns[b] {
			continue // nothing of it becomes free, or all
		}
		if p.renamed[b] == "" {
			p.renamed[b] = l.batchNameLocked()
		}
		p.add(nil, &zk.CreateRequest{Path: session.ChildPath(q.claims, p.renamed[b]), Data: marshalKeys(keys), Acl: acl}, nil)
	}
	if (len(returns) > 0 || bell) && !p.absent[q.dir] {
		p.add(nil, &zk.SetDataRequest{Path: q.dir, Version: -1}, // the bell
			func(_ *session.Incarnation, err error) (bool, error) {
				p.absent[q.dir] = true
				return session.IsNoNode(err) || errors.Is(err, zk.ErrNoAuth), nil // it only wakes others sooner
			})
	}
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
