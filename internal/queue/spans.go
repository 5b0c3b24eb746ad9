package queue

import (
	"slices"
	"strconv"
	"strings"
)

// A span is the numbers from a to b, both included.
type span struct{ a, b int32 }

// A spans is a set of numbers that are not negative, as spans in order, of which
// no two overlap or touch. It is never changed in place.
type spans []span

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

func (s spans) has(n int32) bool {
	i := s.after(n)
	return i < len(s) && s[i].a <= n
}

// covers reports whether s holds every number from 0 to n.
func (s spans) covers(n int32) bool { return n < 0 || len(s) > 0 && s[0].a == 0 && s[0].b >= n }

// add returns s with the numbers of x.
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

// spansOf returns the set of numbers, which it sorts.
func spansOf(numbers []int32) (s spans) {
	slices.Sort(numbers)
	for _, n := range numbers {
		if i := len(s) - 1; i >= 0 && int64(n) <= int64(s[i].b)+1 {
			s[i].b = n
		} else {
			s = append(s, span{n, n})
		}
	}
	return s
}

// union returns the numbers of s and of t. It takes as long as both are, where to add
// the spans of t one by one would copy s for each.
func (s spans) union(t spans) (u spans) {
	if len(s) == 0 || len(t) == 0 {
		return slices.Concat(s, t)
	}
	for len(s)+len(t) > 0 {
		var x span
		if len(t) == 0 || len(s) > 0 && s[0].a <= t[0].a {
			x, s = s[0], s[1:]
		} else {
			x, t = t[0], t[1:]
		}
		if i := len(u) - 1; i >= 0 && int64(x.a) <= int64(u[i].b)+1 {
			u[i].b = max(u[i].b, x.b)
		} else {
			u = append(u, x)
		}
	}
	return u
}

// minus returns the numbers of s that are not of t, likewise.
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
func parseSpans(text string) (s spans) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, more := strings.Cut(part, "-")
		a, err := strconv.ParseInt(first, 10, 32)
		b := a
		if err == nil && more {
			b, err = strconv.ParseInt(last, 10, 32)
		}
		switch x := (span{int32(a), int32(b)}); {
		case err != nil || a < 0 || b < a:
		case len(s) == 0 || int64(s[len(s)-1].b)+1 < a:
			s = append(s, x) // nobody else has it yet
		default:
			s = s.add(x)
		}
	}
	return s
}

// concise returns a set that holds the same of the numbers there, which are in
// order, and of those behind them, with few spans: other numbers do not matter,
// because they never come again. All before the first that is not in s are in the
// result if whole is set: then it begins at 0, see [spans.covers].
func (s spans) concise(there []int32, whole bool) (t spans) {
	from, taken := int32(0), whole // of the gap between two that are not in s
	end := int32(-1)               // of what is taken in it
	for _, n := range there {
		if s.has(n) {
			taken, end = true, n
			continue
		}
		if taken && n > from {
			t = append(t, span{from, n - 1})
		}
		from, taken, end = n+1, false, -1
	}
	if len(s) > 0 && s[len(s)-1].b >= from {
		last := s[len(s)-1].b
		switch {
		case taken, len(there) == 0 || last > there[len(there)-1]:
			end = max(end, last)
		}
	}
	if end >= from {
		t = append(t, span{from, end})
	}
	return t
}
