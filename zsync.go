package zsync

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/zsync/zsync/internal/session"
)

// An orderedLocker is a locker of LockAll with its position in the order.
type orderedLocker struct {
	Locker
	path string // the name to call it by
	full string // the path as the servers know it, if that is known
}

// inOrder sorts lockers by their full paths, so that processes with different chroots have
// the same order.
func inOrder(ls []Locker) ([]orderedLocker, error) {
	sorted := make([]orderedLocker, 0, len(ls))
	for i, l := range ls {
		p, ok := l.(interface{ Path() string })
		if v := reflect.ValueOf(l); ok && v.Kind() == reflect.Pointer && v.IsNil() {
			return nil, opError("lockall", "", session.Invalid("locker %d is nil", i))
		}
		if !ok {
			return nil, opError("lockall", "", session.Invalid("locker %d is a %T, which has no method Path() string to order it by", i, l))
		}
		o := orderedLocker{Locker: l, path: p.Path(), full: p.Path()}
		if f, ok := l.(interface{ fullPath() string }); ok {
			o.full = f.fullPath()
		}
		sorted = append(sorted, o)
	}
	slices.SortStableFunc(sorted, func(a, b orderedLocker) int { return cmp.Compare(a.full, b.full) })
	for i := range sorted {
		if i > 0 && sorted[i].full == sorted[i-1].full {
			return nil, opError("lockall", sorted[i].path, session.Invalid("the path is given twice: %w", ErrDeadlock))
		}
	}
	return sorted, nil
}

// fullPath returns the path as the servers know it.
func (m *made) fullPath() string {
	if m.s == nil {
		return m.path
	}
	return m.s.m.Full(m.path)
}

func (r *rlocker) fullPath() string { return r.made.fullPath() }
