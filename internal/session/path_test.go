package session

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
	f.Fuzz(func(t *testing.T, p string) {
		if CheckPath(p) != nil {
			return
		}
		if !utf8.ValidString(p) || len(p) > MaxPath || ChildPath(ParentPath(p), BaseName(p)) != p {
			t.Errorf("%q passed; its parent is %q and its name %q", p, ParentPath(p), BaseName(p))
		}
		m := &Manager{chroot: "/root"}
		if got := m.Bare(m.Full(p)); got != p {
			t.Errorf("%q below a chroot and back is %q", p, got)
		}
		if _, _, err := m.CheckOps([]any{&zk.DeleteRequest{Path: p}}); err != nil {
			t.Errorf("%q is a path, but not for Txn: %v", p, err)
		}
	})
}
