package queue

import (
	"slices"
	"strings"

	"github.com/zsync/zsync/internal/dice"
	"github.com/zsync/zsync/internal/session"
)

// This file finds a bucket for a delayed element. It does not choose the slot of the element: see
// slotOf in layout.go.

// The method `slot` returns the path of a bucket of the slot `at`. It creates a bucket if it finds none
// with room. If the servers refuse a transaction because the bucket was deleted, the function `cure`
// forgets the bucket.
func (q *producer) slot(inc *session.Incarnation, at string) (path string, cure func(*session.Incarnation, error) error, err error) {
	cure = when(session.IsNoNode, func(*session.Incarnation) error { q.slots.Delete(at); return nil })
	name, ok := q.slots.Load(at)
	if !ok {
		ctx := session.Finishing
		all, _, err := inc.Children(ctx, q.dir)
		if err != nil {
			return "", nil, err
		}
		all = slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !strings.HasPrefix(name, at) })
		dice.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:min(len(all), 16)]
		nodes, err := inc.GetSmall(ctx, pathsOf(q.dir, all, func(name string) string { return name }))
		if err != nil {
			return "", nil, err
		}
		i := slices.IndexFunc(nodes, func(n session.Node) bool {
			return n.Stat != nil && !n.Concealed() && newLot(bucket{}, n).last < bucketSize-1
		})
		if i >= 0 {
			name = all[i]
		} else {
			name = at + randomDigits(12)
			if _, err := inc.Create(ctx, session.ChildPath(q.dir, name), nil); err != nil {
				return "", nil, err
			}
		}
		q.slots.Store(at, name)
	}
	return session.ChildPath(q.dir, name), cure, nil
}

// The method `learnSlot` is called with the path of each znode that a transaction has created. If the
// path shows that a bucket is full, `learnSlot` forgets the bucket.
func (q *producer) learnSlot(path string) {
	if b, _ := parseBucket(session.BaseName(session.ParentPath(path))); b.delayed {
		if e, ok := parseElement(b, session.BaseName(path)); ok && e.seq >= bucketSize-1 {
			q.slots.Delete(b.name[:strings.LastIndex(b.name, "-")+1])
		}
	}
}
