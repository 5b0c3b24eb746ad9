package queue

import (
	"slices"
	"strings"
	"sync"

	"github.com/zsync/zsync/internal/dice"
	"github.com/zsync/zsync/internal/session"
)

// This file finds a bucket for a delayed element. It does not choose the slot of the element: see
// slotOf in layout.go.

// A slots value remembers one bucket for each slot of delayed elements.
type slots struct {
	site
	mu    sync.Mutex
	known map[string]string // by slot, a bucket that probably exists and is not full; guarded by mu
}

// maxSlots is the largest number of remembered slots.
const maxSlots = 1000

// The method `bucket` returns the path of a bucket of a slot. It creates a bucket if it finds none
// with room.
func (s *slots) bucket(inc *session.Incarnation, at string) (path string, err error) {
	ctx := session.Finishing
	s.mu.Lock()
	name, ok := s.known[at]
	s.mu.Unlock()
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
			s.know(at, all[i])
			return paths[i], nil
		}
	}
	name = at + randomDigits(12)
	path = session.ChildPath(s.dir, name)
	if _, err := inc.Create(ctx, path, nil); err != nil {
		return "", err
	}
	s.know(at, name)
	return path, nil
}

func (s *slots) know(at string, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || len(s.known) >= maxSlots {
		s.known = make(map[string]string)
	}
	s.known[at] = name
}

func (s *slots) forget(at string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, at)
}

// The method `cure` returns the cure for a transaction that the servers refuse because the bucket
// of a slot was deleted.
func (s *slots) cure(at string) func(*session.Incarnation, error) error {
	return when(session.IsNoNode, func(*session.Incarnation) error { s.forget(at); return nil })
}

// The method `learn` is called with the path of each znode that a transaction has created. If the
// path shows that a bucket is full, `learn` forgets the bucket.
func (s *slots) learn(path string) {
	b, _ := parseBucket(session.BaseName(session.ParentPath(path)))
	if e, ok := parseElement(b, session.BaseName(path)); ok && b.delayed && e.seq >= bucketSize-1 {
		s.forget(b.name[:strings.LastIndex(b.name, "-")+1])
	}
}
