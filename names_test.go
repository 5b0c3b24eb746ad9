package zsync_test

import (
	"strings"
	"testing"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

func TestParseChildTakesTheNumberFromTheEndAndIgnoresForeignNames(t *testing.T) {
	for _, tt := range []struct {
		name  string
		bases []string
		want  line.Child
		ok    bool
	}{
		{"_c_48e50edc-09ec-4785-b44e-13769185aea0-lock-0000000001", []string{"lock-"}, line.Child{Base: "lock-", Seq: 1}, true},
		{"_c_0123456789abcdef0123456789abcdef-lock-0000000007", []string{"lock-"}, line.Child{Base: "lock-", Seq: 7}, true},
		{"lock-0000000001", []string{"lock-"}, line.Child{Base: "lock-", Seq: 1}, true},
		{"lock-0000000001-lock-0000000002", []string{"lock-"}, line.Child{Base: "lock-", Seq: 2}, true},
		{"_c_x-__WRIT__0000000003", []string{"__READ__", "__WRIT__"}, line.Child{Base: "__WRIT__", Seq: 3}, true},
		{"0123__lock__0000000004", []string{"__lock__"}, line.Child{Base: "__lock__", Seq: 4}, true},
		{"_c_x-lock-", []string{"lock-"}, line.Child{}, false},
		{"_c_x-lock-12", []string{"lock-"}, line.Child{}, false},
		{"_c_x-lock-00000000-1", []string{"lock-"}, line.Child{}, false},
		{"_c_x-lock-99999999999", []string{"lock-"}, line.Child{}, false},
		{"_c_x-lock-00000000001", []string{"lock-"}, line.Child{}, false},
		{"_c_x-latch-0000000001", []string{"lock-"}, line.Child{}, false},
		{"_c_", []string{"lock-"}, line.Child{}, false},
		{"ready", []string{"lock-"}, line.Child{}, false},
		{"", []string{"lock-"}, line.Child{}, false},
	} {
		got, ok := line.ParseChild(tt.name, tt.bases...)
		tt.want.Name = ""
		if ok {
			tt.want.Name = tt.name
		}
		if ok != tt.ok || got != tt.want {
			t.Errorf("parseChild(%q, %q) = %+v, %v; want %+v, %v", tt.name, tt.bases, got, ok, tt.want, tt.ok)
		}
	}
}

func TestCheckPathNamesTheRule(t *testing.T) {
	for _, p := range []string{"/a", "/a/b", "/a.b/..c/d..", "/ä/日本"} {
		if err := session.CheckPath(p); err != nil {
			t.Errorf("checkPath(%q) = %v, want nil", p, err)
		}
	}
	for p, rule := range map[string]string{
		"":             "empty",
		"a":            "relative",
		"/":            "root",
		"/a/":          "ends in a slash",
		"//a":          "empty element",
		"/a//b":        "empty element",
		"/a/./b":       "relative element",
		"/a/..":        "relative element",
		"/a\x00b":      "U+0000",
		"/a\u007f":     "U+007F",
		"/a\ue000":     "U+E000",
		"/a\xff":       "UTF-8",
		"/a\ufffeb":    "U+FFFE",
		"/a/b\u0001/c": "U+0001",

		"/" + strings.Repeat("x", session.MaxPath): "too long",
	} {
		err := session.CheckPath(p)
		if err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("checkPath(%q) = %v, want an error about %q", p, err, rule)
		}
	}
}

func FuzzParseChildNeverPanicsAndKeepsTheName(f *testing.F) {
	f.Add("_c_48e50edc-09ec-4785-b44e-13769185aea0-lock-0000000001", "lock-")
	f.Add("_c_", "lock-")
	f.Add("lock--2147483648", "lock-")
	f.Fuzz(func(t *testing.T, name, base string) {
		c, ok := line.ParseChild(name, base)
		if ok && (c.Name != name || c.Base != base || !strings.Contains(name, base)) {
			t.Errorf("parseChild(%q, %q) = %+v", name, base, c)
		}
	})
}
