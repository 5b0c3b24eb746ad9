package session

import (
	"cmp"
	"context"
	"errors"

	"github.com/go-zookeeper/zk"
)

// CreateOwn makes an ephemeral znode whose name is not unique in dir.
// The error is NodeExists if there is one. No other goroutine of this process may
// create there meanwhile: so when a reply is lost, and a znode of this very
// session is there, it is the one. When it fails nothing is left: what may have
// been made is deleted in the background, and undo is that, if there is any. Until
// it is over nobody of this process may create there.
func (inc *Incarnation) CreateOwn(ctx context.Context, dir Dir, path string, data []byte) (undo *Deletion, err error) {
	if err := inc.Vet(ctx, dir); err != nil {
		return nil, err
	}
	var create *pending[string]
	var seen sighting
	open := false // an attempt without a reply may have been applied, or may be yet
	err = inc.repeat(ctx, func(a *attempts) error {
		seen = sighting{on: inc.Disconnection()}
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
			if err := inc.MakeDir(ctx, dir); err != nil {
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
				seen.version = stat.Version
				return nil
			}
			open = false // another's, so none of ours
		}
		return err
	})
	switch {
	case err == nil:
		inc.own.Store(path, seen)
	case open && !errors.Is(err, ErrEnded): // else it was ephemeral
		undo = deleteBehind(inc, create, &Deletion{Paths: []string{path}, By: func() error {
			return inc.removeOwn(path, sighting{on: ClosedChan})
		}})
	}
	return undo, err
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
			inc.sawOwn(path, sighting{on, stat.Version})
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
	stat, on, err := whileOurs(ctx, inc, inc.seenOwn(path), inc.lookAtOwn(ctx, path), func(version int32) call[*zk.Stat] { return setCall(path, data, version) })
	if err == nil {
		inc.sawOwn(path, sighting{on, stat.Version})
	}
	return err
}

// RemoveOwn deletes in the background what CreateOwn has made. Unlike Remove it
// never deletes what another session has made there after it.
func (inc *Incarnation) RemoveOwn(path string) *Deletion {
	return inc.Delete(&Deletion{Paths: []string{path}, By: func() error {
		seen := inc.seenOwn(path)
		inc.own.Delete(path) // nobody watches it any more, so a repetition looks
		return inc.removeOwn(path, seen)
	}})
}

// removeOwn deletes the znode at path if it is this session's.
func (inc *Incarnation) removeOwn(path string, seen sighting) error {
	// There is nobody else to wait for than the session.
	_, _, err := whileOurs(inc.Ctx, inc, seen, inc.lookAtOwn(inc.Ctx, path), func(version int32) call[void] { return deleteVersionCall(path, version) })
	return err
}

// A sighting is what is known of a znode of ours whose name others may make again: what is
// closed unless there is the connection still over which it was last seen, and its version then.
type sighting struct {
	on      <-chan struct{}
	version int32
}

// sawOwn is told of a sighting of what is at path, which may be older than what is known: a
// look may be answered before a write, and told after it.
func (inc *Incarnation) sawOwn(path string, seen sighting) {
	for {
		known, ok := inc.own.LoadOrStore(path, seen)
		if was := known.(sighting); !ok || was.on == seen.on && was.version >= seen.version || inc.own.CompareAndSwap(path, was, seen) {
			return
		}
	}
}

// seenOwn returns the last sighting of what CreateOwn has made at path.
func (inc *Incarnation) seenOwn(path string) sighting {
	if seen, ok := inc.own.Load(path); ok {
		return seen.(sighting)
	}
	return sighting{on: ClosedChan}
}

// lookAtOwn returns what looks for what CreateOwn has made at path.
func (inc *Incarnation) lookAtOwn(ctx context.Context, path string) func() (*zk.Stat, error) {
	return func() (*zk.Stat, error) {
		stat, err := inc.ExistsFresh(ctx, path)
		if err == nil && stat != nil && stat.EphemeralOwner != inc.ID.Load() {
			stat = nil
		}
		return stat, err
	}
}

// RemoveIfData deletes the znode at path, which this session has made, if its data
// is data, which no other znode there ever has. It is NoNode if there is none of that.
func (inc *Incarnation) RemoveIfData(ctx context.Context, path, data string) error {
	_, _, err := whileOurs(ctx, inc, sighting{on: ClosedChan}, func() (*zk.Stat, error) {
		was, stat, err := inc.GetFresh(ctx, path)
		if string(was) != data {
			stat = nil
		}
		return stat, err
	}, func(version int32) call[void] { return deleteVersionCall(path, version) })
	return err
}

// whileOurs makes attempts at c, which is about a znode whose name others may make again
// and expects this version of it, until it is answered, and as long as look finds that the
// znode is ours: else the error is NoNode. seen is when that was last found. on is closed
// when the connection is gone over which c was answered.
//
// While the connection is there over which it was last seen, whoever watches the znode is
// told when it goes. During an outage, and behind an attempt that has no reply, it may have
// gone, and another may have made the next: then look comes first. It is fresh, and so not
// older than that attempt, and none of a session comes late (see find). What is sent goes
// over a connection that was there before the look, or not at all: so there is no
// outage between the two.
//
// What goes before we can have been told leaves the version alone to tell them apart. A
// znode that somebody else has written has another version too, and is looked at again.
func whileOurs[T any](ctx context.Context, inc *Incarnation, seen sighting, look func() (*zk.Stat, error), c func(version int32) call[T]) (v T, on <-chan struct{}, err error) {
	err = inc.repeat(ctx, func(*attempts) error {
		l, err := inc.openLink(ctx)
		if err != nil {
			return err
		}
		// If l has gone by now this is of the next connection, and l takes no request.
		on = inc.Disconnection()
		if IsClosed(seen.on) {
			stat, err := look()
			if err != nil || stat == nil {
				return cmp.Or(err, zk.ErrNoNode)
			}
			seen.version = stat.Version
		}
		seen.on = ClosedChan
		p := newPending(c(seen.version))
		l.sendOrFail(p)
		if v, err = p.Wait(ctx, inc); IsBadVersion(err) {
			return errAgain
		}
		return err
	})
	return v, on, err
}

// GetThenRemove reads the znode at path, and deletes own, which is ephemeral and of a unique name, in
// one round trip. The read comes first. But if the connection is lost under both, the read is
// repeated, and may come after the deletion. err is the error of the deletion; NoNode means that
// another client has deleted own.
func (inc *Incarnation) GetThenRemove(ctx context.Context, path, own string) (n Node, readErr, err error) {
	b := new(Batch)
	read, remove := add(b, getCall(path)), add(b, deleteCall(own))
	if err := inc.startBatch(ctx, b); err != nil {
		return n, err, err
	}
	n, readErr = read.Wait(ctx, inc)
	if _, err = remove.Wait(ctx, inc); OutcomeOf(err) != Answered {
		open := OutcomeOf(err) == Unknown
		if err = inc.RemoveNow(ctx, own); open && IsNoNode(err) {
			err = nil
		}
	}
	if err == nil && readErr != nil && OutcomeOf(readErr) != Answered {
		n, readErr = retry(ctx, inc, getCall(path))
	}
	return n, readErr, err
}
