package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"
)

// What others have written (owners, paths, errors that quote them) must not act
// on the terminal of whoever looks at it. This file has the ways to print it.

// plain returns s with everything escaped that is not printed as itself: control
// characters, newlines, bytes that are not UTF-8, and what turns the direction
// of the text around.
func plain(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\x` + strconv.FormatUint(uint64(s[0])|0x100, 16)[1:])
		case special(r):
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		default:
			b.WriteRune(r)
		}
		s = s[size:]
	}
	return b.String()
}

// special reports whether a rune is not printed as itself.
func special(r rune) bool { return !strconv.IsPrint(r) }

// printable returns what a znode holds, in a form for a table: no more than
// will fit, and quoted where something had to be escaped.
func printable(s string) string {
	const most = 60
	if len(s) > most {
		cut := most
		for cut > most-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "..."
	}
	if plain(s) != s {
		s = strconv.Quote(s)
	}
	return s
}

// writeJSON writes v as JSON of ASCII characters and of what is printed as
// itself; the rest is escaped, as it may stand in strings alone.
func writeJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	var out []byte
	for text := b.Bytes(); len(text) > 0; {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError: // invalid bytes too: JSON has no way to say them
			out = append(out, `\ufffd`...)
		case r == '\n' || !special(r):
			out = append(out, text[:size]...)
		case r > 0xffff:
			// As a surrogate pair, which is the same in JSON as in UTF-16.
			r -= 0x10000
			out = appendEscape(appendEscape(out, 0xd800+r>>10), 0xdc00+r&0x3ff)
		default:
			out = appendEscape(out, r)
		}
		text = text[size:]
	}
	_, err := w.Write(out)
	return err
}

func appendEscape(b []byte, r rune) []byte {
	return append(append(b, `\u`...), strconv.FormatUint(uint64(r)|0x10000, 16)[1:]...)
}

// isTerminal reports whether w is a terminal, or as good as one.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
