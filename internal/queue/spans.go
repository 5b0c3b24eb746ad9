package queue

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// A span is the numbers from a to b, both included.
type span struct{ a, b int32 }

// A spans is a set of numbers that are not negative, as spans in order, of which
// no two overlap or touch. It is never changed in place.
type spans []span

func (s spans) has(n int32) bool {
	_, found := slices.BinarySearchFunc(s, n, func(x span, n int32) int {
		if x.a <= n && n <= x.b {
			return 0
		}
		return cmp.Compare(x.a, n)
	})
	return found
}

// covers reports whether s holds every number from 0 to n.
func (s spans) covers(n int32) bool { return n < 0 || len(s) > 0 && s[0].a == 0 && s[0].b >= n }

// setOf returns the set of the numbers of spans in any order, which it sorts.
func setOf(all []span) spans {
	slices.SortFunc(all, func(x, y span) int { return cmp.Compare(x.a, y.a) })
	s := all[:0]
	for _, x := range all {
		if i := len(s) - 1; i >= 0 && int64(x.a) <= int64(s[i].b)+1 {
			s[i].b = max(s[i].b, x.b)
		} else {
			s = append(s, x)
		}
	}
	return s
}

// spansOf returns the set of numbers.
func spansOf(numbers []int32) spans {
	all := make([]span, len(numbers))
	for i, n := range numbers {
		all[i] = span{n, n}
	}
	return setOf(all)
}

// union returns the numbers of s and of t, all at once: to add the spans of t one by one
// would copy s for each.
func (s spans) union(t spans) spans { return setOf(slices.Concat(s, t)) }

// minus returns the numbers of s that are not of t, likewise all at once.
func (s spans) minus(t spans) (u spans) {
	for _, x := range s {
		for len(t) > 0 && t[0].b < x.a {
			t = t[1:]
		}
		rest := t // the last of these may reach into the next of s
		for ; len(rest) > 0 && rest[0].a <= x.b; rest = rest[1:] {
			if rest[0].a > x.a {
				u = append(u, span{x.a, rest[0].a - 1})
			}
			if rest[0].b >= x.b {
				break
			}
			x.a = rest[0].b + 1
		}
		if len(rest) == 0 || rest[0].a > x.b {
			u = append(u, x)
		}
		t = rest
	}
	return u
}

// String writes s as in 0-127,130.
func (s spans) String() string {
	var b strings.Builder
	for i, x := range s {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(x.a)))
		if x.b > x.a {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(int(x.b)))
		}
	}
	return b.String()
}

// parseSpans reads what String has written. What is not understood is left out:
// somebody has written it by hand.
func parseSpans(text string) spans {
	var all []span
	for part := range strings.SplitSeq(text, ",") {
		first, last, more := strings.Cut(part, "-")
		a, err := strconv.ParseInt(first, 10, 32)
		b := a
		if err == nil && more {
			b, err = strconv.ParseInt(last, 10, 32)
		}
		if err == nil && 0 <= a && a <= b {
			all = append(all, span{int32(a), int32(b)})
		}
	}
	return setOf(all)
}
