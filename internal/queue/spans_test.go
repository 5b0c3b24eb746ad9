package queue

import (
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

// without returns s without the numbers of x, of which minus takes away many at once.
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
	with, without, kept := s, s, slices.Clone(s)
	for _, n := range numbers {
		x := span{n, n}
		all, with, without = all.add(x), with.add(x), without.without(x)
	}
	if got := spansOf(numbers); !slices.Equal(got, all) {
		t.Errorf("%v are the set %v, want %v", numbers, got, all)
	}
	if got := s.union(all); !slices.Equal(got, with) {
		t.Errorf("%v with %v is %v, want %v", s, all, got, with)
	}
	if got := s.minus(all); !slices.Equal(got, without) {
		t.Errorf("%v without %v is %v, want %v", s, all, got, without)
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
		rnd := rand.New(rand.NewPCG(uint64(len(data)), 7))
		for _, whole := range []bool{false, true} {
			var there []int32
			for n := int32(0); n < 140; n++ {
				if rnd.IntN(3) == 0 {
					there = append(there, n)
				}
			}
			c := s.concise(there, whole)
			free, gone := 0, true
			for _, n := range there {
				if c.has(n) != set[n] {
					t.Errorf("%v of %v: concise is %v, which differs at %d", s, there, c, n)
				}
				if !set[n] {
					free++
				}
			}
			if len(c) > free+1 {
				t.Errorf("%v of %v: concise is %v, more than %d spans", s, there, c, free+1)
			}
			// What is behind all that are there may only be there later.
			last := int32(-1)
			if len(there) > 0 {
				last = there[len(there)-1]
			}
			end := int32(-1)
			if len(s) > 0 {
				end = s[len(s)-1].b
			}
			for n := max(last, end) + 1; n < 150; n++ {
				gone = gone && !c.has(n)
			}
			if !gone {
				t.Errorf("%v of %v: concise is %v, which takes what has not come yet", s, there, c)
			}
			if whole && free == 0 && end >= last && !c.covers(end) {
				t.Errorf("%v of %v: concise is %v, which does not say that all are taken", s, there, c)
			}
		}
	})
}

func TestRecordsAreReadAsTheyWereWritten(t *testing.T) {
	for _, r := range []record{
		{holdings: map[string]holding{}},
		{serial: 1 << 40, holdings: map[string]holding{"b-00000-0000000007": {owned: spans{{0, 5}, {9, 9}}}}},
		{serial: 3, givenBack: true, holdings: map[string]holding{
			"b-00000-0000000007": {owned: spans{{0, 5}}, hand: spans{{1, 1}, {4, 5}}},
			"d-00003-0000000001": {owned: spans{{2, 2}}},
		}},
	} {
		if got := parseRecord(r.marshal()); !reflect.DeepEqual(got, r) {
			t.Errorf("%q is read as %+v, want %+v", r.marshal(), got, r)
		}
	}
}

// The lists of runs bridge what is gone, never what is somebody else's.
func TestRunsOfAClaimHoldNoElementOfOthers(t *testing.T) {
	b := bucket{name: "b-00000-0000000001"}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		t1 := &lot{bucket: b}
		for n := int32(0); n < 40; n++ {
			if rnd.IntN(3) > 0 {
				t1.elements = append(t1.elements, element{bucket: b.name, seq: n})
				if rnd.IntN(3) == 0 {
					t1.claimed = t1.claimed.add(span{n, n})
				}
			}
		}
		es, _ := t1.free(1+rnd.IntN(20), func(element) bool { return rnd.IntN(8) > 0 })
		var ours spans
		for _, x := range t1.runs(es) {
			ours = ours.add(x)
		}
		after := t1.with(es)
		for _, e := range t1.elements {
			mine := slices.Contains(es, e)
			if ours.has(e.seq) != mine {
				t.Fatalf("of %v, claimed %v: %v are %v", t1.elements, t1.claimed, es, ours)
			}
			if after.has(e.seq) != (mine || t1.claimed.has(e.seq)) {
				t.Fatalf("of %v, claimed %v: with %v claimed are %v", t1.elements, t1.claimed, es, after)
			}
		}
	}
}
