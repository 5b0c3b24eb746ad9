package queue

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A board is the data of a bucket: which mark has claimed which numbers.
//
//	4be0643f1d98573b 0-127,200 130   a mark, what it has claimed, and of that what is in hand
//	gone 0-16,18-20                  these never come again
//	tried 17:2,40:1                  how often each was delivered, and came back
//
// What an element was delivered for, and who has it, stands nowhere else. A number may be
// in a line though its element is gone.
type board struct {
	lines map[string]hold
	gone  spans
	tried map[int32]int
}

// A hold is what a mark has of a bucket.
type hold struct{ claimed, hand spans }

func (h hold) equal(o hold) bool {
	return slices.Equal(h.claimed, o.claimed) && slices.Equal(h.hand, o.hand)
}

// parseBoard reads what marshal has written. What is not understood is left out: a program
// that knew another layout, or a person, has written it.
func parseBoard(data []byte) *board {
	b := &board{lines: make(map[string]hold), tried: make(map[int32]int)}
	for line := range strings.SplitSeq(string(data), "\n") {
		words := strings.Fields(line)
		switch {
		case len(words) < 2:
		case words[0] == "gone":
			b.gone = parseSpans(words[1])
		case words[0] == "tried":
			for part := range strings.SplitSeq(words[1], ",") {
				number, count, _ := strings.Cut(part, ":")
				n, err := strconv.ParseInt(number, 10, 32)
				k, err2 := strconv.Atoi(count)
				if err == nil && err2 == nil && n >= 0 && k > 0 {
					b.tried[int32(n)] = k
				}
			}
		case len(words[0]) == markDigits:
			h := hold{claimed: parseSpans(words[1])}
			if len(words) > 2 {
				h.hand = parseSpans(words[2])
			}
			b.lines[words[0]] = h
		}
	}
	return b
}

// marshal writes b.
func (b *board) marshal() (out []byte) {
	for _, mark := range slices.Sorted(maps.Keys(b.lines)) {
		h := b.lines[mark]
		if len(h.claimed) == 0 {
			continue
		}
		out = append(out, mark+" "+h.claimed.String()...)
		if len(h.hand) > 0 {
			out = append(out, " "+h.hand.String()...)
		}
		out = append(out, '\n')
	}
	if len(b.gone) > 0 {
		out = append(out, "gone "+b.gone.String()+"\n"...)
	}
	for i, n := range slices.Sorted(maps.Keys(b.tried)) {
		word := ","
		if i == 0 {
			word = "tried "
		}
		out = fmt.Appendf(out, "%s%d:%d", word, n, b.tried[n])
	}
	return out
}

func (b *board) clone() *board { return &board{maps.Clone(b.lines), b.gone, maps.Clone(b.tried)} }

// taken returns the numbers that are not free.
func (b *board) taken() spans {
	all := slices.Clone([]span(b.gone))
	for _, h := range b.lines {
		all = append(all, h.claimed...)
	}
	return setOf(all)
}

// forget adds numbers to those that never come again.
func (b *board) forget(gone spans) {
	b.gone = b.gone.union(gone)
	maps.DeleteFunc(b.tried, func(n int32, _ int) bool { return b.gone.has(n) })
}

func only(n int32) spans { return spans{{n, n}} }
