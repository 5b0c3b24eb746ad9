package session

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"
)

// CreateOwn makes an ephemeral znode whose name is not unique, with its parents.
// The error is NodeExists if there is one. No other goroutine of this process may
// create there meanwhile: so when a reply is lost, and a znode of this very
// session is there, it is the one. When ctx ends nothing is left.
func (inc *Incarnation) CreateOwn(ctx context.Context, path string, data []byte) error {
	if err := inc.Vet(ctx, ParentPath(path), nil); err != nil {
		return err
	}
	open := false // an attempt without a reply may have been applied
	for try := 0; ; try++ {
		p, err := start(ctx, inc, inc.createCall(path, data, zk.FlagEphemeral))
		if err == nil {
			_, err = p.Wait(ctx, inc)
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrEnded):
			return err // it was ephemeral
		case ctx.Err() != nil && OutcomeOf(err) != Answered:
			if p != nil || open {
				inc.withdrawOwn(p, path).Await(Grace)
			}
			return CtxErr(ctx)
		case IsNodeExists(err) && open:
			stat, e := inc.Exists(ctx, path)
			switch {
			case e != nil && !errors.Is(e, ErrEnded):
				inc.withdrawOwn(nil, path).Await(Grace)
				return e
			case e != nil:
				return e
			case stat != nil && stat.EphemeralOwner == inc.ID.Load():
				return nil
			case stat != nil:
				return err
			}
			continue // gone in between
		case IsNoNode(err):
			if err := inc.MakeDir(ctx, ParentPath(path)); err != nil {
				return err
			}
			continue
		case OutcomeOf(err) == Answered:
			return err
		}
		open = open || OutcomeOf(err) == Unknown
		if err := inc.Pause(ctx, try); err != nil {
			if open {
				inc.withdrawOwn(nil, path).Await(Grace)
			}
			return err
		}
	}
}

// withdrawOwn deletes in the background what createOwn may have made, once the
// request is over, if it is this session's.
func (inc *Incarnation) withdrawOwn(making *pending[string], path string) *Removal {
	return inc.Vacate(path, func() error {
		if making != nil {
			select {
			case <-making.Done:
			case <-inc.Ctx.Done():
				return ErrEnded
			}
		}
		ctx := inc.Ctx // there is nobody else to wait for
		stat, err := inc.ExistsFresh(ctx, path)
		if err != nil || stat == nil || stat.EphemeralOwner != inc.ID.Load() {
			return err
		}
		return inc.RemoveNow(ctx, path)
	})
}

// GetThenRemove reads the znode at path, and deletes own, which is ephemeral and of
// a unique name, in one round trip. The read comes first, but where a connection
// was lost under both: then it is made again, and may come after the deletion. err
// is that of the deletion; NoNode means that somebody else has deleted it.
func (inc *Incarnation) GetThenRemove(ctx context.Context, path, own string) (n Node, readErr, err error) {
	b := new(Batch)
	read, remove := add(b, getCall(path)), add(b, deleteCall(own))
	if err := inc.begin(ctx, b); err != nil {
		return n, err, err
	}
	n, readErr = read.Wait(ctx, inc)
	if err = inc.removeAfter(ctx, remove, own); err == nil && readErr != nil && OutcomeOf(readErr) != Answered {
		n, readErr = retry(ctx, inc, getCall(path))
	}
	return n, readErr, err
}
