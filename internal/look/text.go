package look

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Other users have written the owners, the paths, and the errors that quote them. Such text must not act on the
// terminal of the person who reads it. The functions here print it safely.

// Plain returns s with special characters escaped: control characters, newlines, bytes that are not UTF-8, and
// characters that turn the direction of the text around.
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

// Printable returns the data of a znode in a form for a table: cut to a length that fits, and quoted if a
// character had to be escaped.
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
