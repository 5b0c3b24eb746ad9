package line

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// A vigil is for one contender to go, by the claim that waits behind. That one's own
// znode is watched as well: if that is gone first, it waits in vain.
type vigil struct {
	claim *Claim
	path  string         // of the one ahead
	watch *session.Watch // on that, joined and set; nil if it has to be
	own   *session.Watch // on the claim's own, set; see Claim.watch
}

func (c *Claim) vigil(name string) *vigil {
	return &vigil{claim: c, path: session.ChildPath(c.Line.Dir, name)}
}

// await waits until the one ahead has gone, and returns then the number of the connection that
// has told so, or 0 if that is not certain. The error is ErrVanished if the claim's own znode is
// not there any more. After the error of a ctx that has ended, await can be called again.
func (v *vigil) await(ctx context.Context) (proof int64, err error) {
	for proof, err = v.keep(ctx); err == errWaits; proof, err = v.keep(ctx) {
		v.wait(ctx)
	}
	return proof, err
}

// errWaits means that nothing can be done until something has happened.
var errWaits = errors.New("zsync: BUG: it waits for those ahead")

// keep is await, with errWaits while the one ahead is there.
//
// Whichever is looked at first of what has happened, it is right: that the other is gone
// is proof of nothing before Claim.stands has looked at the claim's own watch, and
// whoever leaves tells nobody anything.
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
			v.end() // if that was another event, it has to be set again
			if w.Event == zk.EventNodeDeleted {
				return inc.Watches.Told(w), nil
			}
		case session.IsClosed(v.own.Fired):
			own := v.claim.watch() // the next, which this look sets
			if err := v.claim.mustStand(ctx); err != nil {
				return 0, err
			}
			v.own = own
		default:
			return 0, errWaits
		}
	}
}

// set sets the watches, both at the same time, unless it finds that the one ahead is gone.
func (v *vigil) set(ctx context.Context) (gone bool, proof int64, err error) {
	c, inc, watches := v.claim, v.claim.Incarnation, v.claim.Incarnation.Watches
	v.watch = watches.Join(session.WatchKey{Kind: session.WatchChildren, Path: v.path})
	v.path = v.watch.Key.Path // shared with the other waits for it
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
		conn = 0 // it was sent on one, and answered on another
	}
	return true, conn, nil
}

// end leaves the watch on the one ahead; that on the claim's own is the claim's.
func (v *vigil) end() {
	if v.watch != nil {
		v.claim.Incarnation.Watches.Leave(v.watch)
		v.watch = nil
	}
}

// wait waits until keep has something to do, or ctx ends.
func (v *vigil) wait(ctx context.Context) {
	select {
	case <-v.watch.Fired:
	case <-v.own.Fired:
	case <-ctx.Done():
	case <-v.claim.Incarnation.Ctx.Done():
	case <-v.claim.Incarnation.Manager.Closing:
	}
}

// awaitGone waits until the contender of this name is gone: see vigil.await.
func (c *Claim) awaitGone(ctx context.Context, name string) (proof int64, err error) {
	v := c.vigil(name)
	defer v.end()
	return v.await(ctx)
}
