package state

import (
	"context"
	"errors"
	"path"
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

// A Map below the path of another is no key of that other, and stays what it is.
func TestAMapBelowAnotherIsNoKeyOfIt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		outer, inner := zsync.NewMap[string](s, "/x"), zsync.NewMap[string](s, "/x/y")
		harness.Must(t, outer.Store(t.Context(), "a", "outer"))
		harness.Must(t, inner.Store(t.Context(), "a", "inner"))
		if _, _, err := outer.Load(t.Context(), "y"); !errors.Is(err, zsync.ErrNoValue) {
			t.Errorf("the path of the inner Map as a key: %v", err)
		}
		harness.WantErr(t, outer.Store(t.Context(), "y", "over the inner Map"), zsync.ErrMixed)
		keys := ""
		harness.Must(t, outer.Range(t.Context(), func(key, _ string) bool { keys += key; return true }))
		if keys != "a" {
			t.Errorf("the keys of the outer Map are %q", keys)
		}
		if all := <-outer.Watch(t.Context()); len(all) != 1 {
			t.Errorf("the outer Map is %v", all)
		}
		harness.Must(t, outer.Clear(t.Context()))
		if v, _, err := inner.Load(t.Context(), "a"); v != "inner" || err != nil {
			t.Errorf("the inner Map has %q, %v", v, err)
		}
	})
}

func TestNothingIsStoredAtThePathOfAMap(t *testing.T) {
	for name, store := range map[string]func(ctx context.Context, s *zsync.Session) error{
		"Value.Store": func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewValue[string](s, "/x").Store(ctx, "v")
		},
		"Value.CompareAndSwap": func(ctx context.Context, s *zsync.Session) error {
			_, err := zsync.NewValue[string](s, "/x").CompareAndSwap(ctx, zsync.Version{}, "v")
			return err
		},
		"Value.Update": func(ctx context.Context, s *zsync.Session) error {
			_, err := zsync.NewValue[string](s, "/x").Update(ctx, func(v string) (string, error) { return v + "v", nil })
			return err
		},
		"Int64.Add": func(ctx context.Context, s *zsync.Session) error {
			_, err := zsync.NewInt64(s, "/x").Add(ctx, 1)
			return err
		},
		"Barrier.Close": func(ctx context.Context, s *zsync.Session) error { return zsync.NewBarrier(s, "/x").Close(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv)
				m := zsync.NewMap[string](s, "/x")
				harness.Must(t, m.Store(t.Context(), "a", "kept"))
				harness.WantErr(t, store(t.Context(), s), zsync.ErrMixed)
				harness.WantErr(t, store(t.Context(), suite.Open(t, srv)), zsync.ErrMixed)
				if v, _, err := m.Load(t.Context(), "a"); v != "kept" || err != nil {
					t.Errorf("the Map has %q, %v", v, err)
				}
			})
		})
	}
}

// A Map writes its own znode when it deletes a key.
func TestAMapLeavesWhatIsStoredAtItsPath(t *testing.T) {
	for name, k := range states {
		if path.Base(k.znode) != "y" || name == "Map" {
			continue // the path is chosen by the primitive, or is a Map
		}
		for op, write := range map[string]func(ctx context.Context, m *zsync.Map[string]) error{
			"Store":  func(ctx context.Context, m *zsync.Map[string]) error { return m.Store(ctx, "k", "v") },
			"Swap":   func(ctx context.Context, m *zsync.Map[string]) error { _, _, err := m.Swap(ctx, "k", "v"); return err },
			"Delete": func(ctx context.Context, m *zsync.Map[string]) error { return m.Delete(ctx, "k") },
		} {
			t.Run(name+", "+op, func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					s := suite.Open(t, srv)
					harness.Must(t, k.store(t.Context(), s, k.znode))
					m := zsync.NewMap[string](s, k.znode)
					harness.WantErr(t, write(t.Context(), m), zsync.ErrMixed)
					harness.WantErr(t, write(t.Context(), zsync.NewMap[string](suite.Open(t, srv), k.znode)), zsync.ErrMixed)
					harness.WantErr(t, m.Delete(t.Context(), "k"), zsync.ErrMixed)
					if there, err := k.there(t.Context(), s, k.znode); !there || err != nil {
						t.Errorf("what was stored is there: %v, %v", there, err)
					}
				})
			})
		}
	}
}
