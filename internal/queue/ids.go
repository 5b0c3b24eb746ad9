package queue

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// What was sent with an ID is noted in the transaction that stores it, in
//
//	<path>-ids/<2 digits>/<30 digits>   of the ID's hash
//
// whose data say for how long, and where the element was put. While that is there
// the servers refuse to make it again; one whose time is over, by the servers'
// clock, is replaced. Whoever looks after the queue deletes those, see sweep.

// idPath is the path of the znode of the ID with a hash.
func (q *core) idPath(hash string) string { return q.ids + "/" + hash[:2] + "/" + hash[2:] }

// A note is the data of the znode of an ID.
type note struct {
	memory time.Duration
	bucket string // into which the element went
}

func (n note) marshal() []byte { return fmt.Appendf(nil, "%d %s", n.memory.Milliseconds(), n.bucket) }

func parseNote(data []byte) (n note) {
	var ms int64
	fmt.Sscan(string(data), &ms, &n.bucket)
	n.memory = time.Duration(ms) * time.Millisecond
	return n
}

// over reports whether the time of a note, made at a time, is over.
func (n note) over(made, now int64) bool { return now-made >= n.memory.Milliseconds() }

// identify adds the note of p's ID, if it has one.
func (g *posted) identify(p *parcel, bucket string) {
	if p.id == "" {
		return
	}
	q := g.o.q
	path := q.idPath(p.id)
	if p.stale != nil {
		g.ids[len(g.ops)] = p
		g.add(ofOthers, &zk.DeleteRequest{Path: path, Version: p.stale.Version})
	}
	g.ids[len(g.ops)] = p
	g.add(ofOthers, &zk.CreateRequest{Path: path, Data: note{q.cfg.IDMemory, bucket}.marshal(), Acl: q.m.Config.ACL})
}

// known is told that the note of p's ID was refused. If the ID is remembered p is
// taken out of the group.
func (o *outbox) known(ctx context.Context, inc *session.Incarnation, p *parcel, err error) (again bool, _ error) {
	path := o.q.idPath(p.id)
	switch {
	case session.IsNoNode(err) && p.stale == nil:
		err := inc.MakeDir(ctx, session.ParentPath(path))
		return err == nil, err
	case session.IsNoNode(err), session.IsBadVersion(err):
		p.stale = nil // somebody else has replaced, or deleted, it
		return true, nil
	case !session.IsNodeExists(err):
		return false, err
	}
	data, stat, err := inc.Get(ctx, path)
	if session.IsNoNode(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	dir, err := inc.Set(ctx, session.ParentPath(path), nil, -1) // for the servers' time
	if err != nil {
		return session.IsNoNode(err), err
	}
	if parseNote(data).over(stat.Ctime, dir.Mtime) {
		p.stale = stat
	} else {
		p.err = ErrKnown
	}
	return true, nil
}

func (q *core) Cancel(ctx context.Context, id string) (canceled bool, err error) {
	for {
		var ops []any
		err := q.m.During(ctx, func(inc *session.Incarnation) (err error) {
			if err = inc.Sync(ctx, q.dir); err == nil {
				ops, err = q.cancelling(ctx, inc, id)
			}
			return err
		})
		if err != nil || ops == nil {
			return false, err
		}
		_, err = q.m.CommitAcrossSessions(ctx, q.receipts, ops)
		if err == nil || !session.IsNoNode(err) && !session.IsBadVersion(err) {
			return err == nil, err
		}
	}
}

// cancelling returns operations that remove the element with an ID, if it is there
// and nobody has claimed it.
func (q *core) cancelling(ctx context.Context, inc *session.Incarnation, id string) ([]any, error) {
	tag := tagOf("", id)
	data, _, err := inc.Get(ctx, q.idPath(tag[1:]))
	if session.IsNoNode(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b, ok := parseBucket(parseNote(data).bucket)
	if !ok {
		return nil, nil
	}
	names, _, err := inc.Children(ctx, q.dir)
	if session.IsNoNode(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// It is where it was put, or, given back for later, among what waits. Who gives
	// it back so has it in hand; so if it is in neither, looked at in this order, it
	// was claimed in between, or is gone.
	buckets := slices.DeleteFunc(parseBuckets(names), func(o bucket) bool { return o.name != b.name && (o.prio != b.prio || !o.delayed) })
	slices.Reverse(buckets)
	lots, err := q.lots(ctx, inc, buckets)
	if err != nil {
		return nil, err
	}
	for _, t := range lots {
		if err := q.list(ctx, inc, t); err != nil {
			return nil, err
		}
		for _, e := range t.elements {
			if strings.HasSuffix(e.tag, tag) && !t.claimed.has(e.seq) {
				return append([]any{
					&zk.DeleteRequest{Path: session.ChildPath(q.dir, e.key()), Version: -1},
					&zk.SetDataRequest{Path: q.dir, Version: -1}, // the bell: what waits for its key may go
				}, t.claiming(q, e)...), nil
			}
		}
	}
	return nil, nil
}
