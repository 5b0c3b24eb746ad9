package state

import (
	"testing"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// The parent of other znodes is no key, so neither Delete nor Clear of a Map is about it.
func TestKeysOfAMapAreDeletedBesideALockBelowItsPath(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		m := zsync.NewMap[string](s, "/x")
		for _, key := range []string{"a", "z"} {
			harness.Must(t, m.Store(t.Context(), key, "value"))
		}
		locks := []*zsync.Mutex{zsync.NewMutex(s, "/x/lock"), zsync.NewMutex(s, "/x/deeper/lock")}
		for _, l := range locks {
			harness.Must(t, l.Lock(t.Context()))
		}
		harness.Must(t, m.Delete(t.Context(), "lock"))
		harness.Must(t, m.Delete(t.Context(), "deeper"))
		harness.Must(t, m.Clear(t.Context()))
		harness.Must(t, m.Range(t.Context(), func(key, _ string) bool {
			t.Errorf("%q is still there after Clear", key)
			return true
		}))
		for _, l := range locks {
			harness.Must(t, l.Unlock())
		}
	})
}
