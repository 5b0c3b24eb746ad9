package queue

import (
	"slices"
	"strings"

	"github.com/zsync/zsync/internal/dice"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/shared"
)

// This file finds a bucket for a delayed element. It does not choose the slot of the element: see
// slotOf in layout.go.

// A slots value remembers one bucket for each slot of delayed elements.
type slots struct {
	*Common
	known shared.Cache[string] // by slot, a bucket that probably exists and is not full
}

// The method `bucket` returns the path of a bucket of a slot. It creates a bucket if it finds none
// with room.
func (s *slots) bucket(inc *session.Incarnation, at string) (path string, err error) {
	ctx := session.Finishing
	name, ok := s.known.Load(at)
	if ok {
		return session.ChildPath(s.dir, name), nil
	}
	all, _, err := inc.Children(ctx, s.dir)
	if err != nil {
		return "", err
	}
	all = slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !strings.HasPrefix(name, at) })
	dice.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	paths := pathsOf(s.dir, all[:min(len(all), 16)], func(name string) string { return name })
	nodes, err := inc.GetSmall(ctx, paths)
	if err != nil {
		return "", err
	}
	for i, n := range nodes {
		if n.Stat != nil && !n.Concealed() && newLot(bucket{}, n).last < bucketSize-1 {
			s.known.Store(at, all[i])
			return paths[i], nil
		}
	}
	name = at + randomDigits(12)
	path = session.ChildPath(s.dir, name)
	if _, err := inc.Create(ctx, path, nil); err != nil {
		return "", err
	}
	s.known.Store(at, name)
	return path, nil
}

// The method `cure` returns the cure for a transaction that the servers refuse because the bucket
// of a slot was deleted.
func (s *slots) cure(at string) func(*session.Incarnation, error) error {
	return when(session.IsNoNode, func(*session.Incarnation) error { s.known.Delete(at); return nil })
}

// The method `learn` is called with the path of each znode that a transaction has created. If the
// path shows that a bucket is full, `learn` forgets the bucket.
func (s *slots) learn(path string) {
	if b, _ := parseBucket(session.BaseName(session.ParentPath(path))); b.delayed {
		if e, ok := parseElement(b, session.BaseName(path)); ok && e.seq >= bucketSize-1 {
			s.known.Delete(b.name[:strings.LastIndex(b.name, "-")+1])
		}
	}
}
