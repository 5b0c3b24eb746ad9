package queue

import (
	"time"

	"github.com/zsync/zsync/internal/session"
)

// This file knows which elements are in the hands of consumers: offered, taken, put
// back. If their process dies each of those was tried once more, so that they are in
// hand is written down, in the ledger's journal.

// take is told that a consumer wants to offer an item. It is false if the item
// is not ours any more.
func (l *ledger) take(it *item) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || it.final != nil {
		return false
	}
	it.place = offered
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
	if it.final != nil || l.q.cfg.MaxAttempts == 0 {
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
	if it.final != nil && (it.final.with == nil || session.IsClosed(it.final.done)) {
		return // it is settled already, or its txn is lost
	}
	it.place = inHand
	l.q.m.Holds.Add(1)
	switch {
	case l.loss() != nil:
		l.giveBackLocked(it)
	case l.q.cfg.MaxAttempts == 0 && !l.noteSoon:
		l.noteSoon = true
		time.AfterFunc(noteAfter, l.note)
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

// note writes down what has come into hand, with one entry for each batch.
func (l *ledger) note() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteSoon = false
	for b := range l.batches {
		var e *entry
		for _, it := range b.items {
			switch {
			case it.place != inHand || it.noted:
				continue
			case e == nil:
				e = l.enterNoteLocked(it)
			default:
				e.notes = append(e.notes, it)
			}
			it.noted = true
		}
	}
}

// enterNoteLocked has it written down whether it is in hand. More may be added to the
// entry's notes at once.
func (l *ledger) enterNoteLocked(it *item) *entry {
	return l.enterLocked(it, entry{fate: fateHand, notes: []*item{it}})
}

// leaveLocked is told that an item is in nobody's hands any more.
func (l *ledger) leaveLocked(it *item) {
	if it.place == inHand {
		it.place = offered
		l.q.m.Holds.Add(-1)
	}
	if it.cancel != nil {
		it.cancel()
	}
}

// withdraw is told that an offered item was not taken. It reports whether the
// item can be offered again.
func (l *ledger) withdraw(it *item) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	noted := it.noted
	it.place, it.noted = ahead, false
	switch {
	case l.ended:
		l.giveBackLocked(it)
	case noted && it.final == nil:
		l.enterNoteLocked(it) // that it is not
	}
	return !l.ended
}
