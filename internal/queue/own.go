package queue

import (
	"context"
	"fmt"

	"github.com/zsync/zsync/internal/session"
)

// An own is the Engine of zsync's own layout, see layout.go. Elements are claimed, see
// pump.go and ledger.go.
type own struct{ *core }

// New returns the Engine of zsync's own layout. It does no I/O.
func New(m *session.Manager, cfg Config) Engine {
	return newEngine(m, cfg, func(q *core) layout {
		q.trace, q.unframe = m.Trace, justOne
		return own{q}
	})
}

func (own) lacks(string) error { return nil }

func (own) store(g *posted, inc *session.Incarnation) error {
	err := g.o.locate(inc, g.group)
	if err == nil {
		g.assemble()
	}
	return err
}

func (q own) length(ctx context.Context, inc *session.Incarnation, names []string) (n int, err error) {
	var paths []string
	for _, b := range parseBuckets(names) {
		paths = append(paths, session.ChildPath(q.dir, b.name))
	}
	nodes, err := inc.GetSmall(ctx, paths)
	for _, node := range nodes {
		if node.Stat != nil {
			n += int(node.Stat.NumChildren)
		}
	}
	return n, err
}

func (own) serve(p *pump, inc *session.Incarnation, l *ledger) error { return p.serve(inc, l) }

func (own) stands(ctx context.Context, l *ledger) bool { return l.stands(ctx) }

func (own) post(p *posting) error { return p.post() }

func (own) bytes(e *entry) (n int) {
	if e.fate == Bury || e.fate == Later || e.fate == Return && e.bump {
		n = len(e.item.stored)
	}
	if e.fate == Bury {
		n += maxReason + 1024
	}
	return n
}

func (own) class(e element) string { return fmt.Sprintf("%05d%s", e.prio, keyOf(e.tag)) }

func (q own) Requeue(ctx context.Context, d *Letter) error {
	prio, tag, err := placeOf(d)
	if err != nil {
		return err
	}
	remove, size := q.removal(d)
	p := &parcel{ctx: ctx, prio: prio, data: [][]byte{d.Framed}, tags: []string{tag}, with: remove, done: make(chan error, 1)}
	p.size = q.out.elementSize(d.Framed) + size
	return q.out.send(p)
}
