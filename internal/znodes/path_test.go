package znodes

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-zookeeper/zk"
)

// What is read back from znodes may have been written by anyone: it must not
// make a program panic, and what zsync writes it must read as it was.

func FuzzPath(f *testing.F) {
	for _, p := range []string{"", "/", "/a", "/a/", "a", "//", "/a/../b", "/\x00", "/\xff", "/ä/日本", strings.Repeat("/x", 2000)} {
		f.Add(p)
	}
	m := rooted("/root")
	f.Fuzz(func(t *testing.T, p string) {
		if CheckPath(p) != nil {
			return
		}
		if !utf8.ValidString(p) || len(p) > MaxPath || ChildPath(ParentPath(p), BaseName(p)) != p {
			t.Errorf("%q passed; its parent is %q and its name %q", p, ParentPath(p), BaseName(p))
		}
		if got := m.Bare(m.Full(p)); got != p {
			t.Errorf("%q below a chroot and back is %q", p, got)
		}
		if _, _, err := CheckOps(m, []any{&zk.DeleteRequest{Path: p}}); err != nil {
			t.Errorf("%q is a path, but not for Txn: %v", p, err)
		}
	})
}

func TestCheckPathNamesTheRule(t *testing.T) {
	for _, p := range []string{"/a", "/a/b", "/a.b/..c/d..", "/ä/日本"} {
		if err := CheckPath(p); err != nil {
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
		"/a\u009f":     "U+009F",
		"/a\ue000":     "U+E000",
		"/a\xff":       "UTF-8",
		"/a\ufffeb":    "U+FFFE",
		"/a/b\u0001/c": "U+0001",

		"/" + strings.Repeat("x", MaxPath): "too long",
	} {
		err := CheckPath(p)
		if err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("checkPath(%q) = %v, want an error about %q", p, err, rule)
		}
	}
}
