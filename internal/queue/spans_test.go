package queue

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// after returns the index of the first span that does not end before n.
func (s spans) after(n int32) int {
	i, _ := slices.BinarySearchFunc(s, n, func(x span, n int32) int {
		if x.b < n {
			return -1
		}
		return 1
	})
	return i
}

// add returns s with the numbers of x, of which union adds many at once.
func (s spans) add(x span) spans {
	if n := len(s); n > 0 && s[n-1].b < x.a { // most often behind all others
		if s[n-1].b+1 < x.a {
			return append(s[:n:n], x)
		}
		return append(s[:n-1:n-1], span{s[n-1].a, x.b})
	}
	i := s.after(max(x.a-1, 0))
	j := i
	for ; j < len(s) && (s[j].a <= x.b || s[j].a-1 == x.b); j++ {
		x = span{min(x.a, s[j].a), max(x.b, s[j].b)}
	}
	return slices.Concat(s[:i], spans{x}, s[j:])
}

// without returns s without the numbers of x.
func (s spans) without(x span) spans {
	i := s.after(x.a)
	var parts spans
	j := i
	for ; j < len(s) && s[j].a <= x.b; j++ {
		if s[j].a < x.a {
			parts = append(parts, span{s[j].a, x.a - 1})
		}
		if s[j].b > x.b {
			parts = append(parts, span{x.b + 1, s[j].b})
		}
	}
	return slices.Concat(s[:i], parts, s[j:])
}

// wantTogether compares what is done with many numbers with what is done one by one.
func wantTogether(t *testing.T, s spans, data []byte) {
	t.Helper()
	var numbers []int32
	for _, b := range data {
		numbers = append(numbers, int32(b&0x7f))
	}
	var all spans
	with, kept := s, slices.Clone(s)
	for _, n := range numbers {
		x := span{n, n}
		all, with = all.add(x), with.add(x)
	}
	if got := spansOf(numbers); !slices.Equal(got, all) {
		t.Errorf("%v are the set %v, want %v", numbers, got, all)
	}
	if got := s.union(all); !slices.Equal(got, with) {
		t.Errorf("%v with %v is %v, want %v", s, all, got, with)
	}
	if !slices.Equal(s, kept) {
		t.Errorf("%v was changed in place to %v", kept, s)
	}
}

// FuzzSpans compares spans with a set.
func FuzzSpans(f *testing.F) {
	f.Add([]byte{1, 2, 3, 0x84, 2, 9, 200, 1})
	f.Add([]byte{0, 0, 5, 5, 0x80 | 3, 1, 4, 40})
	f.Fuzz(func(t *testing.T, data []byte) {
		var s spans
		set := make(map[int32]bool)
		for i := 0; i+1 < len(data); i += 2 {
			x := span{int32(data[i] & 0x7f), int32(data[i]&0x7f) + int32(data[i+1]%8)}
			before := slices.Clone(s)
			kept := s
			if data[i]&0x80 != 0 {
				s = s.without(x)
			} else {
				s = s.add(x)
			}
			for n := x.a; n <= x.b; n++ {
				set[n] = data[i]&0x80 == 0
			}
			if !slices.Equal(before, kept) {
				t.Fatalf("%v was changed in place to %v", before, kept)
			}
		}
		for i, x := range s {
			if x.a > x.b || i > 0 && x.a <= s[i-1].b+1 {
				t.Fatalf("%v: spans %d and before overlap, touch or are no spans", s, i)
			}
		}
		all := true
		for n := int32(0); n < 140; n++ {
			if s.has(n) != set[n] {
				t.Errorf("%v: has %d is %v", s, n, s.has(n))
			}
			if all = all && set[n]; s.covers(n) != all {
				t.Errorf("%v: covers %d is %v", s, n, !all)
			}
		}
		if back := parseSpans(s.String()); !slices.Equal(back, s) {
			t.Errorf("%v is read as %v", s, back)
		}
		wantTogether(t, s, data)
	})
}

func TestBoardsAreReadAsTheyWereWritten(t *testing.T) {
	for _, b := range []*board{
		{lines: map[string]hold{}, tried: map[int32]int{}},
		{lines: map[string]hold{"0123456789abcdef": {claimed: spans{{0, 5}, {9, 9}}}}, tried: map[int32]int{}},
		{lines: map[string]hold{"0123456789abcdef": {spans{{2, 5}}, spans{{3, 3}, {5, 5}}}, "fedcba9876543210": {claimed: spans{{7, 7}}}}, gone: spans{{0, 1}, {6, 6}}, tried: map[int32]int{3: 2, 40: 1}},
	} {
		if got := parseBoard(b.marshal()); !reflect.DeepEqual(got, b) {
			t.Errorf("%q is read as %+v, want %+v", b.marshal(), got, b)
		}
	}
}

// What an engine before this one has written there, or a person, claims nothing.
func TestABoardThatIsNotUnderstoodIsEmpty(t *testing.T) {
	for _, text := range []string{"0-17,20", "0-17 20", "gone", "tried 1:x,-1:2", "\x00\n 0"} {
		if b := parseBoard([]byte(text)); len(b.lines)+len(b.gone)+len(b.claimed())+len(b.tried) != 0 {
			t.Errorf("%q is read as %+v", text, b)
		}
	}
}

// The board that follows says that what the dead have left is free, and how often it was tried; and
// that numbers without elements never come again.
func TestTheNextBoardTakesOutTheDead(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		b := bucket{name: "b-00000-0000000001"}
		l := &lot{bucket: b, board: &board{lines: map[string]hold{}, tried: map[int32]int{}}}
		dead := map[string]hold{}
		want := map[int32]int{}
		for n := int32(0); n < 40; n++ {
			mark := []string{"", "", "alive", "dead", "dead too"}[rnd.IntN(5)]
			if there := rnd.IntN(3) > 0; there {
				l.elements = append(l.elements, &element{bucket: b.name, seq: n})
				if want[n] = rnd.IntN(2); want[n] > 0 {
					l.board.tried[n] = want[n]
				}
			}
			h := hold{claimed: spansOf([]int32{n})}
			if rnd.IntN(2) == 0 {
				h.hand = spansOf([]int32{n})
			}
			add := func(to map[string]hold) {
				to[mark] = hold{to[mark].claimed.union(h.claimed), to[mark].hand.union(h.hand)}
			}
			switch mark {
			case "":
			case "alive":
				add(l.board.lines)
			default:
				if add(dead); h.hand != nil {
					want[n]++
				}
			}
		}
		l.dead = slices.Collect(maps.Values(dead))
		next := l.next()
		taken := next.gone.union(next.claimed())
		for _, e := range l.elements {
			if owned := l.board.lines["alive"].claimed.has(e.seq); taken.has(e.seq) != owned {
				t.Fatalf("%d is taken: %v, want %v", e.seq, taken.has(e.seq), owned)
			}
			if next.tried[e.seq] != want[e.seq] {
				t.Fatalf("%d was tried %d times, want %d", e.seq, next.tried[e.seq], want[e.seq])
			}
		}
		if last := l.elements[len(l.elements)-1].seq; len(taken) > 0 {
			for n := int32(0); n < last; n++ {
				if !taken.has(n) && !slices.ContainsFunc(l.elements, func(e *element) bool { return e.seq == n }) {
					t.Fatalf("%d, which has no element, is free", n)
				}
			}
		}
	}
}

func TestSlotsAreFewAndHoldWhatIsDueInThem(t *testing.T) {
	const now = int64(1_800_000_000_000)
	slots := map[string]bool{}
	for delay := int64(1); delay < 1<<50; delay += delay/300 + 1 {
		s := slotOf(3, now+delay, now)
		b, ok := parseBucket(s + randomDigits(12))
		if !ok || b.prio != 3 || !b.delayed {
			t.Fatalf("%s is read as %+v, %v", s, b, ok)
		}
		if b.number > now+delay || b.number < now-1000 && delay > 1000 || now+delay-b.number > max(1000, delay/16) {
			t.Fatalf("what is due in %d ms has the slot that begins in %d", delay, b.number-now)
		}
		slots[s] = true
	}
	if len(slots) > 2500 {
		t.Errorf("%d slots", len(slots))
	}
	if late, now := slotOf(3, now-60_000, now), slotOf(3, now, now); late != now {
		t.Errorf("what is due has the slots %v and %v", late, now)
	}
}

// An element keeps its first name through any number of delays.
func TestTheFirstNameOfAnElementIsKept(t *testing.T) {
	for _, first := range []element{{bucket: "b-00000-0000000123", name: "e-k0a1b2c3d-0000000004"}, {bucket: "d-00001-1800000000000-0123456789ab", name: "t1800000000123-0000000000"}} {
		b, _ := parseBucket("d-00000-1800000000000-ba9876543210")
		e, ok := parseElement(b, laterName(1800000000500, 3, 17, first.id(), "k0a1b2c3d")+"0000000009")
		if !ok || e.id() != first.key() || e.tries != 3 || e.first != 17 || e.due != 1800000000500 || e.tag != "k0a1b2c3d" || e.seq != 9 {
			t.Errorf("%+v, %v", e, ok)
		}
		again, ok := parseElement(b, laterName(1800000000900, 4, e.first, e.id(), e.tag)+"0000000010")
		if !ok || again.id() != first.key() {
			t.Errorf("%+v, %v", again, ok)
		}
	}
}
