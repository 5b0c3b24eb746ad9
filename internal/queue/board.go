package queue

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The type `board` is the data of a bucket. It records which mark has claimed which numbers:
//
//	4be0643f1d98573b 0-127,200 130   a mark, its claimed numbers, and its numbers in hand
//	gone 0-16,18-20                  numbers that are never used again
//	tried 17:2,40:1                  numbers, each with the attempts of its element
//
// The boards are the only record of claims. An element is in hand if the program may have received
// it. If the mark of such an element is deleted, the element counts as tried. A line of the board
// can contain the number of a deleted element.
type board struct {
	lines map[string]hold
	gone  spans
	tried map[int32]int
}

// The type `hold` is one line of a board: the numbers that a mark has claimed, and the numbers
// among them that are in hand.
type hold struct{ claimed, hand spans }

// parseBoard parses the result of `marshal`. It ignores text that it does not understand: an operator may
// have written it.
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

// The method `marshal` returns the board as the data of its bucket.
func (b *board) marshal() (out []byte) {
	for _, mark := range slices.Sorted(maps.Keys(b.lines)) {
		if h := b.lines[mark]; len(h.claimed) > 0 {
			out = fmt.Appendf(out, "%s %s %s\n", mark, h.claimed, h.hand)
		}
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

func (b *board) claimed() spans {
	var all []span
	for _, h := range b.lines {
		all = append(all, h.claimed...)
	}
	return setOf(all)
}

// The method `forget` records that numbers are never used again, and drops the attempts of their
// elements.
func (b *board) forget(gone spans) {
	b.gone = b.gone.union(gone)
	maps.DeleteFunc(b.tried, func(n int32, _ int) bool { return b.gone.has(n) })
}
