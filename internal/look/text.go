package look

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// This file makes text safe for a terminal. The owners, the paths, and the errors that quote them
// come from other users. Such text must not control the reader's terminal. This file does not lay
// out the output.

// Plain returns s with special characters escaped: control characters, newlines, bytes that are not
// UTF-8, and characters that change the direction of the text.
func Plain(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\x` + strconv.FormatUint(uint64(s[0])|0x100, 16)[1:])
		case Special(r):
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		default:
			b.WriteRune(r)
		}
		s = s[size:]
	}
	return b.String()
}

// Special reports whether a rune must be escaped to be printed.
func Special(r rune) bool { return !strconv.IsPrint(r) }

// Printable returns the data of a znode for a table. It cuts the data to 60 bytes, and quotes data
// with special characters.
func Printable(s string) string {
	const most = 60
	if len(s) > most {
		cut := most
		for cut > most-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "..."
	}
	if Plain(s) != s {
		s = strconv.Quote(s)
	}
	return s
}
