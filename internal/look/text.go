package look

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// What others have written (owners, paths, errors that quote them) must not act
// on the terminal of whoever looks at it. This file has the ways to print it.

// Plain returns s with everything escaped that is not printed as itself: control
// characters, newlines, bytes that are not UTF-8, and what turns the direction
// of the text around.
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

// Special reports whether a rune is not printed as itself.
func Special(r rune) bool { return !strconv.IsPrint(r) }

// Printable returns what a znode holds, in a form for a table: no more than
// will fit, and quoted where something had to be escaped.
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
