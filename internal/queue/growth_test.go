package queue

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/zsync/zsync/internal/session"
)

// everyOther returns a delayed lot of 2n elements of which every other is claimed, so
// that no two of n spans touch, and those that are not.
func everyOther(n int) (t *lot, es []element) {
	t = &lot{bucket: bucket{name: "d", delayed: true}}
	for i := range int32(2 * n) {
		e := element{bucket: "d", seq: i}
		if t.elements = append(t.elements, e); i%2 == 0 {
			t.claimed = append(t.claimed, span{i, i})
		} else if i%4 == 1 {
			es = append(es, e)
		}
	}
	return t, es
}

// growths are what is done with n numbers, none beside another.
var growths = map[string]func(n int) func(){
	"a claim": func(n int) func() {
		t, es := everyOther(n)
		return func() { t.with(es) }
	},
	"a note of what is in hand": func(n int) func() {
		l, b, _ := claimedOf(2 * n)
		l.q.m, l.journal, b.left = &session.Manager{}, &journal{}, 2*n
		for i, it := range b.items {
			it.bucket, it.seq, it.noted = "b", int32(i), i%2 == 0
		}
		return func() {
			p := &posting{l: l, absent: make(map[string]bool), es: []*entry{{item: b.items[0], fate: fateHand, notes: b.items}}}
			p.assemble(nil)
		}
	},
	"a return": func(n int) func() {
		l, b, _ := claimedOf(2 * n)
		l.q.m, b.left = &session.Manager{}, 2*n
		var all spans
		for i := range int32(n) {
			all = append(all, span{4 * i, 4*i + 1})
		}
		l.journal = &journal{kept: record{holdings: map[string]holding{"b": {owned: all, hand: all}}}}
		p := &posting{l: l, absent: make(map[string]bool)}
		for i, it := range b.items[:n] {
			it.bucket, it.seq, it.final = "b", int32(4*i), &entry{item: it, fate: Return}
			p.es = append(p.es, it.final)
		}
		return func() { p.assemble(map[string]*lot{"b": {claimed: all}}) }
	},
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestBookkeepingGrowsAsWhatIsClaimedAndNotAsItsSquare(t *testing.T) {
	for what, of := range growths {
		f, g := of(2000), of(16000)
		f()
		small, large := allocated(f), allocated(g)
		if large > 16*small {
			t.Errorf("%s: %d bytes, and %d for 8 times as many", what, small, large)
		}
	}
}

// Each Ack after the loss of the session sees to it that the ledger has ended.
func BenchmarkEndOfALedgerAgain(b *testing.B) {
	for _, n := range []int{1000, 8000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l, _, _ := claimedOf(n)
			l.running, l.ended = true, true
			l.lose(session.ErrClosed)
			for b.Loop() {
				l.end(true)
			}
		})
	}
}
