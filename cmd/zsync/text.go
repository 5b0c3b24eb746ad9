package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strconv"
	"unicode/utf8"

	"github.com/zsync/zsync/internal/look"
)

// This file prints text from other users so that it cannot control the terminal. Package look has
// the rules for such text.

// These functions of package look are for text from other users.
var (
	plain     = look.Plain
	special   = look.Special
	printable = look.Printable
	count     = look.Count
)

// writeJSON writes v as JSON with only printable characters. It escapes all other characters, which
// occur in strings only.
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
		case r == utf8.RuneError: // also for invalid bytes, which JSON cannot represent
			out = append(out, `\ufffd`...)
		case r == '\n' || !special(r):
			out = append(out, text[:size]...)
		case r > 0xffff:
			// JSON escapes it as a surrogate pair of UTF-16.
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

// isTerminal reports whether w is a character device, such as a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
