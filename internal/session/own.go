package session

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"
)

// CreateOwn makes an ephemeral znode whose name is not unique, with its parents.
// The error is NodeExists if there is one. No other goroutine of this process may
// create there meanwhile: so when a reply is lost, and a znode of this very
// session is there, it is the one. When it fails nothing is left: what may have
// been made is deleted in the background, and undo is that, if there is any. Until
// it is over nobody of this process may create there.
func (inc *Incarnation) CreateOwn(ctx context.Context, path string, data []byte) (undo *Removal, err error) {
	if err := inc.Vet(ctx, ParentPath(path), nil); err != nil {
		return nil, err
	}
	var create *pending[string]
	open := false // an attempt without a reply may have been applied, or may be yet
	err = inc.repeat(ctx, func(a *attempts) error {
		p, err := start(ctx, inc, inc.createCall(path, data, zk.FlagEphemeral))
		if err != nil {
			return err
		}
		create = p
		_, err = p.Wait(ctx, inc)
		a.outcome(err)
		if IsNoNode(err) {
			a.open = false // where there is no parent there is no child
		}
		open = a.open // a refusal says nothing of the attempts before it
		switch {
		case IsNoNode(err):
			if err := inc.MakeDir(ctx, ParentPath(path)); err != nil {
				return a.last(err)
			}
			return errAgain
		case IsNodeExists(err) && open:
			stat, e := inc.Exists(ctx, path)
			switch {
			case e != nil:
				return e
			case stat == nil:
				return errAgain // gone in between
			case stat.EphemeralOwner == inc.ID.Load():
				return nil
			}
			open = false // another's, so none of ours
		}
		return err
	})
	if err != nil && open && !errors.Is(err, ErrEnded) { // else it was ephemeral
		undo = inc.withdrawOwn(create, path)
	}
	return undo, err
}

// withdrawOwn deletes in the background what CreateOwn may have made, once the
// request is over, if it is this session's.
func (inc *Incarnation) withdrawOwn(making *pending[string], path string) *Removal {
	return reapAfter(inc, making, &Removal{path: path, kind: removeOwn, f: func() error {
		return inc.removeOwn(inc.Ctx, path, false) // there is nobody else to wait for
	}})
}

// AwaitOwnGone waits until what CreateOwn has made is gone: also if another session has
// made its own there since. To a watch that is set again after an outage the znode has
// only changed then. It is not told of a change of the data, see AwaitGone.
func (inc *Incarnation) AwaitOwnGone(ctx context.Context, path string) error {
	for {
		w := inc.Watches.Join(WatchKey{WatchChildren, path})
		_, stat, err := inc.Children(ctx, path)
		ours := err == nil && stat.EphemeralOwner == inc.ID.Load()
		if ours {
			err = inc.AwaitFired(ctx, w)
		}
		inc.Watches.Leave(w)
		switch {
		case IsNoNode(err):
			return nil
		case err != nil, !ours, w.Event == zk.EventNodeDeleted:
			return err
		}
	}
}

// RemoveOwn deletes in the background what CreateOwn has made. Unlike Remove it
// never deletes what another session has made there after it.
func (inc *Incarnation) RemoveOwn(path string) *Removal {
	sure := true
	return inc.Vacate(path, func() error {
		defer func() { sure = false }()
		return inc.removeOwn(inc.Ctx, path, sure)
	})
}

// removeOwn deletes the znode at path if it is this session's; sure is that it was
// a moment ago.
func (inc *Incarnation) removeOwn(ctx context.Context, path string, sure bool) error {
	return inc.removeWhile(ctx, path, sure, func() (bool, error) {
		stat, err := inc.ExistsFresh(ctx, path)
		return stat != nil && stat.EphemeralOwner == inc.ID.Load(), err
	})
}

// RemoveIfData deletes the znode at path, which this session has made, if its data
// is data, which no other znode there ever has.
func (inc *Incarnation) RemoveIfData(ctx context.Context, path, data string) error {
	return inc.removeWhile(ctx, path, false, func() (bool, error) {
		was, _, err := inc.GetFresh(ctx, path)
		return string(was) == data, err
	})
}

// removeWhile deletes the znode at path as long as ours says that it is ours; sure is
// that it was a moment ago. A deletion without a reply may have been applied, and
// another may have made the next znode since: so each repetition looks first. The
// look, which is fresh, is not older than that deletion, and none of a session comes
// late (see find): what it finds of this session is still there when the repetition
// comes, as nobody else deletes it.
func (inc *Incarnation) removeWhile(ctx context.Context, path string, sure bool, ours func() (bool, error)) error {
	sure = sure && !IsClosed(inc.Disconnection()) // what was long ago may not be so any more
	return inc.repeat(ctx, func(*attempts) error {
		if !sure {
			if is, err := ours(); !is || err != nil {
				return err
			}
		}
		sure = false
		p, err := start(ctx, inc, deleteCall(path))
		if err == nil {
			_, err = p.Wait(ctx, inc)
		}
		return err
	})
}

// GetThenRemove reads the znode at path, and deletes own, which is ephemeral and of
// a unique name, in one round trip. The read comes first, but where a connection
// was lost under both: then it is made again, and may come after the deletion. err
// is that of the deletion; NoNode means that somebody else has deleted it. sent is called when
// both are on their way.
func (inc *Incarnation) GetThenRemove(ctx context.Context, path, own string, sent func()) (n Node, readErr, err error) {
	b := new(Batch)
	read, remove := add(b, getCall(path)), add(b, deleteCall(own))
	if err := inc.startBatch(ctx, b); err != nil {
		return n, err, err
	}
	sent()
	n, readErr = read.Wait(ctx, inc)
	if err = inc.removeAfter(ctx, remove, own); err == nil && readErr != nil && OutcomeOf(readErr) != Answered {
		n, readErr = retry(ctx, inc, getCall(path))
	}
	return n, readErr, err
}
