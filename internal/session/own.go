package session

import (
	"cmp"
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
	var on <-chan struct{}
	open := false // an attempt without a reply may have been applied, or may be yet
	err = inc.repeat(ctx, func(a *attempts) error {
		on = inc.Disconnection()
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
	switch {
	case err == nil:
		inc.own.Store(path, on)
	case open && !errors.Is(err, ErrEnded): // else it was ephemeral
		undo = inc.withdrawOwn(create, path)
	}
	return undo, err
}

// withdrawOwn deletes in the background what CreateOwn may have made, once the
// request is over, if it is this session's.
func (inc *Incarnation) withdrawOwn(making *pending[string], path string) *Removal {
	return reapAfter(inc, making, &Removal{path: path, kind: removeOwn, f: func() error {
		return inc.removeOwn(path, ClosedChan)
	}})
}

// AwaitOwnGone waits until what CreateOwn has made is gone: also if another session has
// made its own there since. To a watch that is set again after an outage the znode has
// only changed then. It is not told of a change of the data, see AwaitGone.
func (inc *Incarnation) AwaitOwnGone(ctx context.Context, path string) error {
	for {
		w := inc.Watches.Join(WatchKey{WatchChildren, path})
		on := inc.Disconnection()
		_, stat, err := inc.Children(ctx, path)
		ours := err == nil && stat.EphemeralOwner == inc.ID.Load()
		if ours {
			inc.own.Store(path, on)
			err = inc.AwaitFired(ctx, w)
		}
		inc.Watches.Leave(w)
		switch {
		case err != nil && !IsNoNode(err):
			return err
		case !ours, w.Event == zk.EventNodeDeleted:
			inc.own.Delete(path)
			return nil
		}
	}
}

// SetOwn writes the data of what CreateOwn has made. The error is NoNode if that is gone,
// also if another session has made its own there since: then nothing was written. It
// costs 1 request; the first after an outage looks at the znode before, which costs 2 more.
func (inc *Incarnation) SetOwn(ctx context.Context, path string, data []byte) error {
	on, err := whileOurs(ctx, inc, setCall(path, data, -1), inc.seenOwn(path), func() (bool, error) { return inc.owns(ctx, path) })
	if err == nil {
		inc.own.Store(path, on)
	}
	return err
}

// RemoveOwn deletes in the background what CreateOwn has made. Unlike Remove it
// never deletes what another session has made there after it.
func (inc *Incarnation) RemoveOwn(path string) *Removal {
	return inc.Vacate(path, func() error {
		seen := inc.seenOwn(path)
		inc.own.Delete(path) // nobody watches it any more, so a repetition looks
		return inc.removeOwn(path, seen)
	})
}

// removeOwn deletes the znode at path if it is this session's; seen is as for whileOurs.
func (inc *Incarnation) removeOwn(path string, seen <-chan struct{}) error {
	ctx := inc.Ctx // there is nobody else to wait for
	_, err := whileOurs(ctx, inc, deleteCall(path), seen, func() (bool, error) { return inc.owns(ctx, path) })
	return err
}

// seenOwn returns what is closed unless there is the connection still over which what
// CreateOwn has made at path was last seen.
func (inc *Incarnation) seenOwn(path string) <-chan struct{} {
	if on, ok := inc.own.Load(path); ok {
		return on.(<-chan struct{})
	}
	return ClosedChan
}

func (inc *Incarnation) owns(ctx context.Context, path string) (bool, error) {
	stat, err := inc.ExistsFresh(ctx, path)
	return stat != nil && stat.EphemeralOwner == inc.ID.Load(), err
}

// RemoveIfData deletes the znode at path, which this session has made, if its data
// is data, which no other znode there ever has. It is NoNode if there is none of that.
func (inc *Incarnation) RemoveIfData(ctx context.Context, path, data string) error {
	_, err := whileOurs(ctx, inc, deleteCall(path), ClosedChan, func() (bool, error) {
		was, _, err := inc.GetFresh(ctx, path)
		return string(was) == data, err
	})
	return err
}

// whileOurs makes attempts at c, which is about a znode whose name others may make again,
// until it is answered, and as long as ours says that the znode is ours: else the error
// is NoNode. seen is closed unless the connection is there still over which it was last
// seen to be ours: over that one whoever watches it is told when it goes. on is closed when
// the connection is gone over which c was answered.
//
// During an outage, and behind an attempt that has no reply, the znode may have gone, and
// another may have made the next: then ours looks first. The look, which is fresh, is not
// older than that attempt, and none of a session comes late (see find). What is sent goes
// over a connection that was there before the look, or not at all: so there is no
// outage between the two.
func whileOurs[T any](ctx context.Context, inc *Incarnation, c call[T], seen <-chan struct{}, ours func() (bool, error)) (on <-chan struct{}, err error) {
	err = inc.repeat(ctx, func(*attempts) error {
		l, err := inc.openLink(ctx)
		if err != nil {
			return err
		}
		// If l has gone by now this is of the next connection, and l takes no request.
		on = inc.Disconnection()
		if IsClosed(seen) {
			if is, err := ours(); err != nil || !is {
				return cmp.Or(err, zk.ErrNoNode)
			}
		}
		seen = ClosedChan
		p := newPending(c)
		l.sendOrFail(p)
		_, err = p.Wait(ctx, inc)
		return err
	})
	return on, err
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
