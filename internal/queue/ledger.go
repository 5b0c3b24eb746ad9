package queue

import (
	"cmp"
	"context"
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
	stake    *session.Stake  // while there are batches, once one of them has been offered
	queue    []*entry        // not posted yet
	want     *batch          // one that is to be claimed with what is posted next, or nil
	running  bool            // a goroutine posts
	noteSoon bool            // note is about to be called
	refused  map[*entry]bool // what retry will post again
	size     int             // of the journal's data
	ended    bool            // nothing more is claimed, what is not out goes back
	void     bool            // somebody has given the claims back
	swept    bool            // nothing is left to be posted
	posted   chan struct{}   // closed when it has ended and what went back then is back
	over     chan struct{}   // closed when nothing is left

	held context.Context         // of what is in hand: it ends when that goes back, with the loss as its cause
	lose context.CancelCauseFunc // ends held

	journal *journal // belongs to the goroutine that posts
}

// A batch is what is claimed in one transaction, of one bucket.
type batch struct {
	items    []*item
	left     int  // how many have no posted entry; guarded by ledger.mu
	claiming bool // its claim is under way; guarded by ledger.mu

	// Of one that is to be claimed with what is posted next.

	lot   *lot          // nil in another library's layout
	es    []element     // of lot
	since uint64        // of the order, when they were looked for
	done  chan struct{} // closed when it has been tried
	err   error         // read it only after done is closed
}

// A place is where a claimed item is.
type place int

const (
	ahead   place = iota // claimed ahead
	offered              // with a consumer, who has not taken it
	inHand               // delivered, neither acknowledged nor returned
)

// An item is an element that is claimed.
type item struct {
	element
	ledger  *ledger
	batch   *batch
	data    []byte
	stored  []byte    // the data of its znode: that in another library's frame
	inside  [][]byte  // in another library's layout: the elements in its znode
	size    int       // of that; it stays when the data is dropped
	version int32     // of its znode: how many attempts there were before
	sent    time.Time // when it was stored, by the servers' clock
	pump    *pump     // from which it is being offered
	fault   error     // why it is none: it cannot be taken out of its frame, or decoded
	misfit  bool      // it cannot be decoded by us
	value   any       // as decoded
	decoded bool
	place   place           // guarded by ledger.mu
	note    <-chan struct{} // closed when that is written down, where attempts are limited; guarded by ledger.mu
	noted   bool            // that it is in hand is written down, or will be; guarded by ledger.mu
	posted  bool            // what becomes of it is; guarded by ledger.mu
	told    bool            // the trace tells that its claim is lost; guarded by ledger.mu
	final   *entry          // what becomes of it; guarded by ledger.mu

	ctx    context.Context    // of the claim; nil until somebody asks; guarded by ledger.mu
	cancel context.CancelFunc // ends ctx; guarded by ledger.mu
}

// read is told what was read of its znode.
func (it *item) read(data []byte, stat *zk.Stat) {
	it.data, it.stored, it.size, it.version, it.sent = data, data, len(data), stat.Version, time.UnixMilli(stat.Ctime)
	if it.first > 0 {
		it.sent = time.UnixMilli(it.first)
	}
}

// drop forgets its data, which others of its batch would keep for as long as they
// are in hand. Nobody reads them once its fate is posted.
func (it *item) drop() { it.data, it.stored, it.inside, it.value = nil, nil, nil, nil }

// attempts returns how often it was delivered before.
func (it *item) attempts() int { return int(it.tries) + int(it.version) }

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
		refused: make(map[*entry]bool),
		posted:  make(chan struct{}),
		over:    make(chan struct{}),
	}
	l.held, l.lose = context.WithCancelCause(context.Background())
	l.journal = &journal{m: q.m, vet: q.vet, path: session.ChildPath(q.claims, l.guid), mark: session.ChildPath(q.live, l.guid), home: inc}
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
	over := q.order.claimant(l.guid)
	q.m.Spawn(func() {
		defer stay()
		defer over()
		// Close waits for functions, which settle what they have, between Closing and leaving.
		select {
		case <-inc.Ctx.Done():
		case <-q.m.Closing:
			l.end(false)
		case <-l.over:
		}
		select {
		case <-inc.Ctx.Done():
			l.end(true)
		case <-leaving:
			l.end(true)
		case <-l.over:
		}
		select {
		case <-l.over:
		case <-q.m.Over:
		}
	})
	return l, nil
}

// claim claims es, which are free elements of t, found when the order was at since.
func (l *ledger) claim(t *lot, es []element, since uint64) (*batch, error) {
	items := make([]*item, len(es))
	for i, e := range es {
		items[i] = &item{element: e}
	}
	return l.claimAll(&batch{items: items, lot: t, es: es, since: since})
}

// claimAll claims the items of b, with what is posted next. The batch that it returns is nil
// if none was claimed: what was read of them is stale.
func (l *ledger) claimAll(b *batch) (*batch, error) {
	b.left, b.claiming, b.done = len(b.items), true, make(chan struct{})
	l.mu.Lock()
	ended := l.ended
	if !ended {
		for _, it := range b.items {
			it.ledger, it.batch = l, b
		}
		l.batches[b], l.want = struct{}{}, b
		l.startLocked()
	}
	l.mu.Unlock()
	if ended {
		return nil, l.ending()
	}
	select {
	case <-b.done:
		if len(b.items) == 0 {
			return nil, b.err
		}
		return b, nil
	case <-l.inc.Ctx.Done():
		// It may have been made, or be made yet: the ledger gives it back.
		return nil, session.ErrEnded
	}
}

// claimed is told which items of a batch were claimed. Until then it is not given back.
func (l *ledger) claimed(b *batch, items []*item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.items, b.left, b.claiming = items, len(items), false
	b.lot, b.es = nil, nil // which hold the whole bucket
	if b.left == 0 {
		l.dropLocked(b)
	}
	if l.ended {
		l.giveBackLocked(b.items...)
		l.startLocked()
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

// context returns the context of a claim, which ends with it: with the loss as its cause
// if that came before it was settled.
func (l *ledger) context(it *item) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if it.ctx == nil {
		it.ctx, it.cancel = context.WithCancel(l.held)
		if it.final != nil && (it.final.with == nil || it.posted) {
			it.cancel()
		}
	}
	return it.ctx
}

// end gives back what is not out; with lost, or later when the session is
// lost, what is in hand as well.
func (l *ledger) end(lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost = l.loss() == nil && (lost || l.inc.Ctx.Err() != nil)
	if l.ended && !lost {
		return // that was done; each settlement after a loss asks for it
	}
	l.ended = true
	if lost {
		l.lose(l.inc.EndError(cmp.Or(context.Cause(l.inc.Ctx), session.ErrClosed))) // it has ended, or the Session is being closed
	}
	for b := range l.batches {
		if !b.claiming {
			l.giveBackLocked(b.items...)
		}
	}
	l.startLocked() // even if there is nothing to post, to find that it is over
}

// giveBackLocked gives back what goes back of items when the ledger has ended.
func (l *ledger) giveBackLocked(items ...*item) {
	var lost []*item
	for _, it := range items {
		switch {
		case it.final == nil && it.place == ahead:
			l.enterLocked(it, entry{fate: Return})
		case l.loss() == nil:
		case it.final == nil && it.place == inHand:
			lost = append(lost, it)
			l.enterLocked(it, entry{fate: Return, bump: true})
		case it.final != nil && it.final.with != nil: // it may be refused in another session
			lost = append(lost, it)
		}
	}
	l.traceLossLocked(lost...)
}

func (l *ledger) offers() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.offersLocked()
}

// offersLocked reports whether an item is being offered, or claimed.
func (l *ledger) offersLocked() bool {
	for b := range l.batches {
		if b.claiming {
			return true
		}
		for _, it := range b.items {
			if it.place == offered && it.final == nil {
				return true
			}
		}
	}
	return false
}

// loss says why claims are lost, or is nil if they are not.
func (l *ledger) loss() error { return context.Cause(l.held) }

// taken says why a claim is lost that others have given back, or whose element they
// have deleted.
func (l *ledger) taken() error {
	if l.inc.Ctx.Err() != nil {
		return l.inc.Loss()
	}
	return l.inc.Deleted()
}

// traceLine is a line of the trace, about all elements of one transaction.
func (l *ledger) traceLine(event string, keys []string) trace.Line {
	t := l.inc.TraceLine(event, trace.Element, l.q.dir, "")
	t.Claim, t.Elements = l.guid, keys
	return t
}

// traceLossLocked writes that the claims of items are lost, once of each. What has been
// decided before is still carried out, unless others have taken it.
func (l *ledger) traceLossLocked(items ...*item) {
	if l.q.trace == nil {
		return
	}
	var keys []string
	for _, it := range items {
		if !it.told && !it.posted {
			it.told = true
			keys = append(keys, it.key())
		}
	}
	if slices.Sort(keys); keys != nil {
		l.q.trace.Line(l.q.m.TraceLoss(l.traceLine(trace.Loss, keys), l.loss()))
	}
}

// sweep deletes the journal and the live mark, when no batch is left. Where they do not
// go together the journal goes first: one without its mark would be noted as that of a
// dead claimant, and nobody would come back for the note.
func (l *ledger) sweep() {
	ctx := session.Finishing
	j := l.journal
	l.q.m.During(ctx, func(inc *session.Incarnation) error {
		err := inc.RemoveNow(ctx, j.path, j.mark)
		if (inc != l.inc || j.bare) && (err == nil || session.IsNoNode(err)) {
			// Others may have noted that the session had gone.
			err = inc.RemoveNow(ctx, j.path+goneSuffix)
		}
		return err
	})
}

// fetch gives the items of a batch what was read. Those that are gone, or cannot
// be read, are taken off the batch. What the end of the ledger gives back
// meanwhile belongs to whoever posts that, and is left alone.
func (l *ledger) fetch(b *batch, r *reading) ([]*item, error) {
	<-r.done
	if r.err != nil {
		return nil, r.err
	}
	for i, n := range r.nodes {
		if hidden(n) {
			l.settle(b.items[i], Return)
			l.q.skips.unreadable(b.items[i].key(), zk.ErrNoAuth)
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
