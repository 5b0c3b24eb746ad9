package zsync

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func TestSequenceOrderSurvivesWrap(t *testing.T) {
	for _, tt := range []struct {
		a, b   int32
		before bool
	}{
		{0, 1, true}, {1, 0, false}, {5, 5, false},
		{math.MaxInt32, math.MinInt32, true}, // the wrap itself
		{math.MinInt32, math.MaxInt32, false},
		{math.MaxInt32 - 10, math.MinInt32 + 10, true},
		{-1, 0, true},
	} {
		if got := (child{seq: tt.a}).before(child{seq: tt.b}); got != tt.before {
			t.Errorf("child %d before %d: got %v, want %v", tt.a, tt.b, got, tt.before)
		}
	}
	got := parseChildren([]string{
		"_c_b-lock--2147483648", "_c_a-lock-2147483647", "_c_c-lock--2147483647",
	}, "lock-")
	var order []string
	for _, c := range got {
		order = append(order, c.name)
	}
	want := []string{"_c_a-lock-2147483647", "_c_b-lock--2147483648", "_c_c-lock--2147483647"}
	if !slices.Equal(order, want) {
		t.Errorf("order across the wrap: got %v, want %v", order, want)
	}
}

func TestParseChildTakesTheNumberFromTheEndAndIgnoresForeignNames(t *testing.T) {
	for _, tt := range []struct {
		name  string
		bases []string
		want  child
		ok    bool
	}{
		{"_c_48e50edc-09ec-4785-b44e-13769185aea0-lock-0000000001", []string{"lock-"}, child{base: "lock-", seq: 1}, true},
		{"_c_0123456789abcdef0123456789abcdef-lock-0000000007", []string{"lock-"}, child{base: "lock-", seq: 7}, true},
		{"lock-0000000001", []string{"lock-"}, child{base: "lock-", seq: 1}, true},
		{"lock-0000000001-lock-0000000002", []string{"lock-"}, child{base: "lock-", seq: 2}, true},
		{"_c_x-__WRIT__0000000003", []string{"__READ__", "__WRIT__"}, child{base: "__WRIT__", seq: 3}, true},
		{"0123__lock__0000000004", []string{"__lock__"}, child{base: "__lock__", seq: 4}, true},
		{"_c_x-lock-", []string{"lock-"}, child{}, false},
		{"_c_x-lock-12", []string{"lock-"}, child{}, false},
		{"_c_x-lock-00000000-1", []string{"lock-"}, child{}, false},
		{"_c_x-lock-99999999999", []string{"lock-"}, child{}, false},
		{"_c_x-lock-00000000001", []string{"lock-"}, child{}, false},
		{"_c_x-latch-0000000001", []string{"lock-"}, child{}, false},
		{"_c_", []string{"lock-"}, child{}, false},
		{"ready", []string{"lock-"}, child{}, false},
		{"", []string{"lock-"}, child{}, false},
	} {
		got, ok := parseChild(tt.name, tt.bases...)
		tt.want.name = ""
		if ok {
			tt.want.name = tt.name
		}
		if ok != tt.ok || got != tt.want {
			t.Errorf("parseChild(%q, %q) = %+v, %v; want %+v, %v", tt.name, tt.bases, got, ok, tt.want, tt.ok)
		}
	}
}

func TestCheckPathNamesTheRule(t *testing.T) {
	for _, p := range []string{"/a", "/a/b", "/a.b/..c/d..", "/ä/日本"} {
		if err := checkPath(p); err != nil {
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

		"/" + strings.Repeat("x", maxPath): "too long",
	} {
		err := checkPath(p)
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
		c, ok := parseChild(name, base)
		if ok && (c.name != name || c.base != base || !strings.Contains(name, base)) {
			t.Errorf("parseChild(%q, %q) = %+v", name, base, c)
		}
	})
}
