package sync

import (
	"context"
	"errors"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/gosync"
)

// This file adapts zsync.Map to the API of package sync.

// A Map uses a [zsync.Map], with the texts of keys and values. Its methods behave like the methods
// of Go's sync.Map.
type Map struct {
	_      noCopy
	shared gosync.Shared[*zsync.Map[string]]
}

func (m *Map) one() *zsync.Map[string] {
	return one(&m.shared, func(s *zsync.Session, path string) *zsync.Map[string] {
		return zsync.NewMap[string](s, path, zsync.WithCodec(zsync.Raw))
	})
}

// The function `found` returns the value of text if ok is true.
func found(text string, ok bool, err error) (any, bool) {
	gosync.Must(err)
	if !ok {
		return nil, false
	}
	return gosync.Value(text), true
}

// Load is like Go's.
func (m *Map) Load(key any) (value any, ok bool) {
	text, _, err := m.one().Load(context.Background(), gosync.Text(key))
	if errors.Is(err, zsync.ErrNoValue) {
		return nil, false
	}
	return found(text, true, err)
}

// Store is like Go's.
func (m *Map) Store(key, value any) {
	gosync.Must(m.one().Store(context.Background(), gosync.Text(key), gosync.Text(value)))
}

// LoadOrStore is like Go's.
func (m *Map) LoadOrStore(key, value any) (actual any, loaded bool) {
	text, loaded, err := m.one().LoadOrStore(context.Background(), gosync.Text(key), gosync.Text(value))
	gosync.Must(err)
	return gosync.Value(text), loaded
}

// LoadAndDelete is like Go's.
func (m *Map) LoadAndDelete(key any) (value any, loaded bool) {
	return found(m.one().LoadAndDelete(context.Background(), gosync.Text(key)))
}

// Delete is like Go's.
func (m *Map) Delete(key any) {
	gosync.Must(m.one().Delete(context.Background(), gosync.Text(key)))
}

// Swap is like Go's.
func (m *Map) Swap(key, value any) (previous any, loaded bool) {
	return found(m.one().Swap(context.Background(), gosync.Text(key), gosync.Text(value)))
}

// CompareAndSwap is like Go's. It compares the values, and then swaps by the version of the value.
func (m *Map) CompareAndSwap(key, old, new any) (swapped bool) {
	return m.ifStill(key, old, func(z *zsync.Map[string], v zsync.Version) (bool, error) {
		return z.CompareAndSwap(context.Background(), gosync.Text(key), v, gosync.Text(new))
	})
}

// CompareAndDelete is like Go's. It compares the values, and then deletes by the version of the
// value.
func (m *Map) CompareAndDelete(key, old any) (deleted bool) {
	return m.ifStill(key, old, func(z *zsync.Map[string], v zsync.Version) (bool, error) {
		return z.CompareAndDelete(context.Background(), gosync.Text(key), v)
	})
}

// ifStill calls do with the version of key's value, again until do succeeds. It returns false if
// the value is not old.
func (m *Map) ifStill(key, old any, do func(z *zsync.Map[string], v zsync.Version) (bool, error)) bool {
	for {
		z := m.one()
		text, version, err := z.Load(context.Background(), gosync.Text(key))
		if errors.Is(err, zsync.ErrNoValue) {
			return false
		}
		gosync.Must(err)
		if text != gosync.Text(old) {
			return false
		}
		done, err := do(z, version)
		gosync.Must(err)
		if done {
			return true
		}
	}
}

// Range is like Go's.
func (m *Map) Range(f func(key, value any) bool) {
	gosync.Must(m.one().Range(context.Background(), func(key, value string) bool {
		return f(gosync.Value(key), gosync.Value(value))
	}))
}

// Clear is like Go's.
func (m *Map) Clear() { gosync.Must(m.one().Clear(context.Background())) }
