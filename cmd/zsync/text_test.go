package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzWhatIsPrintedIsSafeOnATerminal(f *testing.F) {
	for _, s := range []string{"", "plain", "\x1b[31m", "a\nb\r\t\x00\x7f", "\u009b2J", "\u202eevil", "\xff\xfe", "\ufffd", "é 世界", "\U000e0001", "\u2028", `"\`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for name, got := range map[string]string{"plain": plain(s), "printable": printable(s)} {
			if strings.ContainsFunc(got, special) || !utf8.ValidString(got) {
				t.Errorf("%s(%q) is %q", name, s, got)
			}
		}
		if utf8.ValidString(s) && !strings.ContainsFunc(s, special) && plain(s) != s {
			t.Errorf("plain(%q) is %q", s, plain(s))
		}
		raw, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := writeJSON(&b, []any{s, json.RawMessage(raw)}); err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(b.String(), "\n", ""); strings.ContainsFunc(got, special) {
			t.Errorf("as JSON %q is %q", s, got)
		}
		var back []string
		want := strings.ToValidUTF8(s, "\ufffd") // of a run of invalid bytes, at least one
		if err := json.Unmarshal(b.Bytes(), &back); err != nil {
			t.Fatal(err)
		}
		if utf8.ValidString(s) && (back[0] != want || back[1] != want) {
			t.Errorf("%q comes back as %q", s, back)
		}
	})
}
