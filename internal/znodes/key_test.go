package znodes

import "testing"

func FuzzKeysAreNamesOfZnodesAndBack(f *testing.F) {
	for _, key := range []string{"", ".", "a/b", "%41", "\xff", "\uFFFD", "\u0085"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		name := NameOfKey(key)
		if len(name) < 2000 && CheckPath("/m/"+name) != nil {
			t.Errorf("key %q makes the name %q: %v", key, name, CheckPath("/m/"+name))
		}
		if back, ok := KeyOfName(name); back != key || !ok {
			t.Errorf("key %q, name %q, back %q, %v", key, name, back, ok)
		}
		if back, ok := KeyOfName(key); ok && NameOfKey(back) != key {
			t.Errorf("two names for %q: %q and %q", back, key, NameOfKey(back))
		}
	})
}
