package line

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// A vigil is the wait of a claim for the deletion of one contender ahead. It also watches the
// claim's own znode: if that is deleted first, the wait is useless. The meaning of the deletion
// is not its business.
type vigil struct {
	claim *Claim
	path  string         // of the contender ahead
	watch *session.Watch // on path, joined and set; nil if it must be set
	own   *session.Watch // on the claim's own znode, set; see Claim.watch
}

func (c *Claim) vigil(name string) *vigil {
	return &vigil{claim: c, path: session.ChildPath(c.Line.Dir, name)}
}

// await waits until the contender ahead is deleted. It returns the number of the connection that
// has shown the deletion, or 0 if that is uncertain. The error is ErrVanished if the claim's own
// znode is deleted. After the end of ctx, await can be called again.
func (v *vigil) await(ctx context.Context) (proof int64, err error) {
	for proof, err = v.keep(ctx); err == errWaits; proof, err = v.keep(ctx) {
		v.wait(ctx)
	}
	return proof, err
}

// errWaits means that keep can do nothing until an event comes.
var errWaits = errors.New("zsync: BUG: it waits for those ahead")

// keep is await, but returns errWaits while the contender ahead exists.
//
// Several events may have come; the order of the checks does not matter. The deletion of the
// other znode proves nothing before Claim.stands has checked the claim's own watch. And a claim
// that leaves has not been granted.
func (v *vigil) keep(ctx context.Context) (proof int64, err error) {
	inc := v.claim.Incarnation
	for {
		switch {
		case ctx.Err() != nil:
			return 0, session.CtxErr(ctx)
		case inc.Ctx.Err() != nil:
			return 0, session.ErrEnded
		case session.IsClosed(inc.Manager.Closing): // the session may live on for functions
			return 0, inc.Manager.Failure()
		case v.watch == nil:
			switch gone, proof, err := v.set(ctx); {
			case err != nil:
				v.end() // it may not be set; the next call sets it
				return 0, err
			case gone:
				return proof, nil
			}
		case session.IsClosed(v.watch.Fired):
			w := v.watch
			v.end() // if that was another event, the watch must be set again
			if w.Event == zk.EventNodeDeleted {
				return inc.Watches.Told(w), nil
			}
		case session.IsClosed(v.own.Fired):
			own := v.claim.watch() // the next watch, which this read sets
			if err := v.claim.mustStand(ctx); err != nil {
				return 0, err
			}
			v.own = own
		default:
			return 0, errWaits
		}
	}
}

// set sets both watches at the same time, unless it finds that the contender ahead is deleted.
func (v *vigil) set(ctx context.Context) (gone bool, proof int64, err error) {
	c, inc, watches := v.claim, v.claim.Incarnation, v.claim.Incarnation.Watches
	v.watch = watches.Join(session.WatchKey{Kind: session.WatchChildren, Path: v.path})
	v.path = v.watch.Key.Path // shared with other waits for the same znode
	v.own = c.watch()
	paths := []string{v.path, c.Path}
	if watches.ArmedOnOurs(v.own) {
		paths = paths[:1]
	}
	conn := watches.Connection()
	looks, err := inc.LookAtAll(ctx, paths...)
	if err != nil {
		return false, 0, err
	}
	ahead := looks[0]
	if ahead.Err != nil && !session.IsNoNode(ahead.Err) {
		return false, 0, ahead.Err
	}
	if len(looks) > 1 {
		if stands, err := c.standsBy(looks[1]); err != nil {
			return false, 0, err
		} else if !stands {
			return false, 0, session.ErrVanished
		}
	}
	if ahead.Err == nil {
		return false, 0, nil
	}
	if watches.Connection() != conn {
		conn = 0 // sent on one connection, and answered on another
	}
	return true, conn, nil
}

// end leaves the watch on the contender ahead. The claim keeps its own watch.
func (v *vigil) end() {
	if v.watch != nil {
		v.claim.Incarnation.Watches.Leave(v.watch)
		v.watch = nil
	}
}

// wait waits until keep can continue, or ctx ends.
func (v *vigil) wait(ctx context.Context) {
	select {
	case <-v.watch.Fired:
	case <-v.own.Fired:
	case <-ctx.Done():
	case <-v.claim.Incarnation.Ctx.Done():
	case <-v.claim.Incarnation.Manager.Closing:
	}
}

// awaitGone waits until the contender of this name is deleted: see vigil.await.
func (c *Claim) awaitGone(ctx context.Context, name string) (proof int64, err error) {
	v := c.vigil(name)
	defer v.end()
	return v.await(ctx)
}
