package hammer

import (
	"testing"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// What a hammer wants to find when everybody has gone home.

// wantNothingHeld wants no session to hold anything, or to wait for it.
func wantNothingHeld(t *testing.T, sessions []*zsync.Session) {
	t.Helper()
	for _, s := range sessions {
		if st := s.Stats(); st.Holds != 0 || st.Waiters != 0 {
			t.Errorf("%d holds and %d waiters are left", st.Holds, st.Waiters)
		}
	}
}

// wantNothingLeft is wantNothingHeld, and wants no znode below path.
func wantNothingLeft(t *testing.T, srv *zktest.Server, sessions []*zsync.Session, path string) {
	t.Helper()
	wantNothingHeld(t, sessions)
	if names := harness.Children(t, harness.Plain(t, srv), path); len(names) > 0 {
		t.Errorf("%v are left", names)
	}
}
