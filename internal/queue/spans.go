package queue

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// The type `span` is the numbers from a to b, both included.
type span struct{ a, b int32 }

// A spans value is a set of non-negative numbers. Its spans are in order, and no two of them
// overlap or touch. A spans value is never changed in place.
type spans []span

func (s spans) has(n int32) bool {
	i, _ := slices.BinarySearchFunc(s, n, func(x span, n int32) int { return cmp.Compare(x.b, n) })
	return i < len(s) && s[i].a <= n
}

// The method `covers` reports whether the set has every number from 0 to `n`.
func (s spans) covers(n int32) bool { return n < 0 || len(s) > 0 && s[0].a == 0 && s[0].b >= n }

// setOf returns the set of the numbers in `all`. The spans in `all` can be in any order. setOf
// sorts `all` in place, and the result uses the memory of `all`.
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

// spansOf returns the set of the given numbers.
func spansOf(numbers []int32) spans {
	all := make([]span, len(numbers))
	for i, n := range numbers {
		all[i] = span{n, n}
	}
	return setOf(all)
}

// The method `union` returns the set of all numbers in `s` and in `t`.
func (s spans) union(t spans) spans { return setOf(slices.Concat(s, t)) }

// String returns the set as text, for example 0-127,130.
func (s spans) String() string {
	parts := make([]string, len(s))
	for i, x := range s {
		if parts[i] = strconv.Itoa(int(x.a)); x.b > x.a {
			parts[i] += "-" + strconv.Itoa(int(x.b))
		}
	}
	return strings.Join(parts, ",")
}

// parseSpans parses the result of the method String. It ignores text that it does not understand.
func parseSpans(text string) spans {
	var all []span
	for part := range strings.SplitSeq(text, ",") {
		first, last, _ := strings.Cut(part, "-")
		a, err := strconv.ParseInt(first, 10, 32)
		b, err2 := strconv.ParseInt(cmp.Or(last, first), 10, 32)
		if err == nil && err2 == nil && 0 <= a && a <= b {
			all = append(all, span{int32(a), int32(b)})
		}
	}
	return setOf(all)
}
