package queue

import (
	"context"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// claimedOf returns a ledger with one batch of n elements, and what was read of them.
func claimedOf(n int) (*ledger, *batch, *reading) {
	q := &core{}
	q.layout = own{q}
	b := &batch{}
	l := &ledger{q: q, batches: map[*batch]struct{}{b: {}}}
	l.held, l.lose = context.WithCancelCause(context.Background())
	r := &reading{done: session.ClosedChan}
	for range n {
		b.items = append(b.items, &item{ledger: l, batch: b})
		r.nodes = append(r.nodes, session.Node{Data: []byte("data"), Stat: &zk.Stat{Version: 3, DataLength: 4}})
	}
	return l, b, r
}

// Who posts that they go back reads them without a lock.
func TestElementsThatAreGivenBackWhileTheyAreReadAreLeftAlone(t *testing.T) {
	l, b, r := claimedOf(3)
	b.items[1].final = &entry{fate: Return}
	items, err := l.fetch(b, r)
	if err != nil || len(items) != 2 || items[0] != b.items[0] || items[1] != b.items[2] {
		t.Errorf("fetch = %v, %v, want the first and the last of three", items, err)
	}
	if it := b.items[1]; it.data != nil || it.version != 0 {
		t.Errorf("what is being given back was given data %q and version %d", it.data, it.version)
	}
}

// The race detector judges: the end of a ledger drops the data of what it gave back
// whenever that is posted.
func TestElementsMayBeGivenBackWhileConsumersAreGivenThem(t *testing.T) {
	l, b, r := claimedOf(3)
	items, err := l.fetch(b, r)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, it := range b.items {
			it.drop()
		}
	}()
	p := &pump{q: l.q, changed: make(chan struct{}), ahead: 1}
	p.fill(items, 3, true)
	<-done
	if p.size != 5 {
		t.Errorf("elements of 4 bytes are taken for %d bytes each, want one more than they have", p.size)
	}
}

// Else one that was tried once could be tried again when its process dies then.
func TestWhatIsBeingSettledIsInHandUntilThatIsPosted(t *testing.T) {
	l, b, _ := claimedOf(3)
	l.q.m = &session.Manager{}
	l.journal, b.left = &journal{kept: record{holdings: map[string]holding{"b": {owned: spans{{0, 2}}}}}}, 3
	for i, it := range b.items {
		it.bucket, it.seq, it.noted = "b", int32(i), true
	}
	b.items[0].final = &entry{item: b.items[0], fate: Remove} // not posted yet
	back := &entry{item: b.items[2], fate: Return}
	b.items[2].final = back
	p := &posting{l: l, absent: make(map[string]bool), es: []*entry{back, {item: b.items[1], fate: fateHand, notes: b.items}}}
	p.assemble(nil)
	if got := p.next["b"].hand.String(); got != "0-1" {
		t.Errorf("in hand are %q, want 0-1: what is acknowledged, and what is noted, but not what is returned", got)
	}
}

// offeredTxn returns an item whose program calls Txn before its offer is over.
func offeredTxn() (*ledger, *item) {
	l, b, _ := claimedOf(1)
	l.q.m, l.inc = &session.Manager{}, &session.Incarnation{}
	l.running, b.left = true, 1
	it := b.items[0]
	it.place = offered
	it.final = &entry{item: it, fate: Remove, with: &txn{}, done: make(chan struct{})}
	return l, it
}

func TestATxnThatIsLostBeforeItsOfferIsOverIsNotInHand(t *testing.T) {
	l, it := offeredTxn()
	l.void, l.ended = true, true
	l.lose(session.ErrLost)
	close(it.final.done)
	l.handed(it)
	if it.place == inHand || l.q.m.Holds.Load() != 0 {
		t.Errorf("it is in hand: %v, %d holds, for ever", it.place == inHand, l.q.m.Holds.Load())
	}
}

func TestATxnThatIsRefusedAfterItsOfferIsOverWasAnAttempt(t *testing.T) {
	l, it := offeredTxn()
	l.noteSoon = true // one before it, so no timer is set
	e := it.final
	l.handed(it)
	l.mu.Lock()
	l.refuseTxnLocked(e, nil)
	l.mu.Unlock()
	l.note()
	if it.place != inHand || len(l.queue) != 1 || len(l.queue[0].notes) != 1 || l.queue[0].notes[0] != it {
		t.Errorf("it is in hand: %v, and noted with %d entries", it.place == inHand, len(l.queue))
	}
}

// What is refused may be the claim that shares the transaction. The element that is
// acknowledged in it goes by itself then, without any claim, and is not blamed.
func TestAnAcknowledgementIsNotRefusedForTheSakeOfAClaim(t *testing.T) {
	l, b, _ := claimedOf(1)
	l.q.m, l.journal, l.queue = &session.Manager{}, &journal{}, nil
	ack := &entry{item: b.items[0], fate: Remove, done: make(chan struct{})}
	l.finish(&posting{l: l, es: []*entry{ack}, want: &batch{}}, zk.ErrNoAuth)
	if session.IsClosed(ack.done) || ack.wait != 0 {
		t.Fatalf("it is refused: %v", ack.err)
	}
	l.want = &batch{}
	if es, w := l.next(); len(es) != 1 || es[0] != ack || w != nil {
		t.Errorf("next are %d entries and claim %v, want the one, by itself", len(es), w)
	}
}
