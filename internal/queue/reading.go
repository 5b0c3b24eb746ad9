package queue

import (
	"context"

	"github.com/zsync/zsync/internal/session"
)

// A reading is what was read of claimed elements.
type reading struct {
	nodes []session.Node
	err   error
	done  chan struct{}
}

// read begins to read elements of the queue at dir. It may be begun before they are
// claimed: while nobody has claimed them nobody changes them, and if the claim is made
// nobody else had one since the search, whose reads came before this.
func read(ctx context.Context, inc *session.Incarnation, dir string, es []element) *reading {
	r := &reading{done: make(chan struct{})}
	paths := make([]string, len(es))
	for i, e := range es {
		paths[i] = session.ChildPath(dir, e.key())
	}
	inc.Manager.Spawn(func() {
		defer close(r.done)
		r.nodes, r.err = inc.GetVisible(ctx, paths)
	})
	return r
}

// hidden reports that a znode is there and the servers did not let us read it.
func hidden(n session.Node) bool { return n.Stat != nil && int(n.Stat.DataLength) != len(n.Data) }
