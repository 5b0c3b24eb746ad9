package queue

import (
	"context"

	"github.com/zsync/zsync/internal/session"
)

// A reading is what was read of claimed elements.
type reading struct {
	nodes   []session.Node
	refused []error // why the servers did not let us read one
	err     error
	done    chan struct{}
}

// read begins to read elements of the queue at dir. It may be begun before they are
// claimed: while nobody has claimed them nobody changes them, and if the claim is made
// nobody else had one since the search, whose reads came before this.
func read(ctx context.Context, inc *session.Incarnation, dir string, es []element) *reading {
	r := &reading{refused: make([]error, len(es)), done: make(chan struct{})}
	paths := make([]string, len(es))
	for i, e := range es {
		paths[i] = session.ChildPath(dir, e.key())
	}
	inc.Manager.Spawn(func() {
		defer close(r.done)
		r.nodes, r.err = inc.GetAll(ctx, paths)
		if r.err != nil && session.OutcomeOf(r.err) == session.Answered {
			r.err = r.each(ctx, inc, paths)
		}
	})
	return r
}

// each reads elements one by one, and notes which of them the servers do not let us
// read.
func (r *reading) each(ctx context.Context, inc *session.Incarnation, paths []string) error {
	r.nodes = make([]session.Node, len(paths))
	return session.Parallel(len(paths), func(i int) error {
		data, stat, err := inc.Get(ctx, paths[i])
		if err != nil && session.OutcomeOf(err) == session.Answered {
			if !session.IsNoNode(err) {
				r.refused[i] = err
			}
			return nil
		}
		r.nodes[i] = session.Node{Data: data, Stat: stat}
		return err
	})
}
