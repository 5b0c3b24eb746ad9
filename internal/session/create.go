package session

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"
)

// CreateChild makes a child of dir whose name holds guid, which is unique, and
// returns its path. With list it also lists the children of dir, as they are
// right after the create; both requests are on their way at once.
//
// When the reply is lost createChild looks for guid. When ctx ends it returns
// at once, and what may have been made is deleted in the background: so it must be
// ephemeral. What somebody deletes before it has been listed is made again.
func (inc *Incarnation) CreateChild(ctx context.Context, dir Dir, name, guid string, data []byte, flags int32, list bool) (path string, names *Roll, err error) {
	return inc.createChild(ctx, dir, name, guid, data, flags, list, nil)
}

// CreateChildAndGet is CreateChild that also reads dir, as it is right after the create; both
// requests are on their way at once. If the read fails, with readErr, the create still counts.
func (inc *Incarnation) CreateChildAndGet(ctx context.Context, dir Dir, name, guid string, data []byte, flags int32) (path string, n Node, readErr, err error) {
	var read *pending[Node]
	path, _, err = inc.createChild(ctx, dir, name, guid, data, flags, false, func() { read, readErr = start(ctx, inc, getCall(dir.Path)) })
	if err != nil {
		return "", n, nil, err
	}
	// The read is behind the create, or behind the listing that has found what it has made.
	if readErr == nil {
		n, readErr = read.Wait(ctx, inc)
	}
	if readErr != nil && OutcomeOf(readErr) != Answered {
		n, readErr = retry(ctx, inc, getCall(dir.Path))
	}
	return path, n, readErr, nil
}

// createChild is CreateChild that calls then, if there is one, when it has sent
// a create, and when it has found what one has made to which there was no answer: that may
// have been applied behind what then has sent.
func (inc *Incarnation) createChild(ctx context.Context, dir Dir, name, guid string, data []byte, flags int32, list bool, then func()) (path string, names *Roll, err error) {
	full := ChildPath(dir.Path, name)
	if inc.Manager.SizeOf(full, data) > MaxPacket {
		return "", nil, ErrTooLarge
	}
	if err := inc.Vet(ctx, dir); err != nil {
		return "", nil, err
	}
	// The directories to make first. They stay for the attempts behind one that has
	// no answer: if it has made them that costs a NodeExists each, and nothing else.
	var missing []string
	for try := 0; ; try++ {
		var create *pending[string]
		var listed *Roll
		create, listed, err = inc.startIn(ctx, dir, missing, inc.createCall(full, data, flags), list)
		if err != nil {
			return "", nil, err
		}
		if then != nil {
			then()
		}
		path, err = create.Wait(ctx, inc)
		if OutcomeOf(err) == Unknown && ctx.Err() == nil && !errors.Is(err, ErrEnded) {
			if path, err = inc.Find(ctx, dir.Path, guid); err != nil {
				inc.collect(create, dir.Path, guid).Await(Grace)
				return "", nil, err
			}
			listed = nil // it may be ahead of what was made
			if path != "" && then != nil {
				then()
			}
		}
		switch {
		case err == nil && path == "": // nothing was made, nor will be
		case err == nil:
			if list {
				names, err = inc.listBehind(ctx, dir.Path, path, listed)
			}
			switch {
			case err == nil:
				return path, names, nil
			case errors.Is(err, ErrEnded):
				return "", nil, err // what was made goes with it
			case !IsNoNode(err):
				inc.Remove(path).Await(Grace)
				return "", nil, err
			}
			// The listing is of later than the create: on another connection too,
			// where nothing is older than an answer that has come before. So dir
			// has been deleted since, and our child before it, which stands in the
			// way of that; no caller has seen it. We make another.
		case errors.Is(err, ErrEnded):
			return "", nil, err // it was ephemeral, or its owner retries under its own name
		case ctx.Err() != nil:
			inc.collect(create, dir.Path, guid).Await(Grace)
			return "", nil, CtxErr(ctx)
		case IsNoNode(err):
			if missing = inc.missingDirs(dir.Path, missing); missing == nil {
				if err := inc.MakeDir(ctx, dir); err != nil {
					return "", nil, err
				}
			}
			try = -1
			continue
		case OutcomeOf(err) == Answered:
			return "", nil, err
		}
		if err := inc.Pause(ctx, try); err != nil {
			return "", nil, err
		}
	}
}

// listBehind returns a listing of dir that is not older than the create of its child at path.
// listed was sent behind that create, over the same connection or the next, or is nil.
func (inc *Incarnation) listBehind(ctx context.Context, dir, path string, listed *Roll) (*Roll, error) {
	if listed != nil {
		_, err := listed.Wait(ctx, inc)
		switch {
		case err == nil && listed.Has(BaseName(path)):
			return listed, nil
		case err != nil && OutcomeOf(err) == Answered:
			return nil, err
		}
		// It was lost, or the connection changed between the create and the listing.
	}
	roll, err := inc.Roll(ctx, dir)
	if OutcomeOf(err) != Answered { // the caller is told of the cause, not of a request
		switch {
		case inc.Ctx.Err() != nil:
			err = ErrEnded
		case ctx.Err() != nil:
			err = CtxErr(ctx)
		}
	}
	return roll, err
}

// startIn starts a create in dir, behind those of the directories that are missing, and
// with list a listing of dir behind it. The two go in one write, unless others list dir too:
// then it is a listing that they share, and which is asked for when the create is on its way.
func (inc *Incarnation) startIn(ctx context.Context, dir Dir, missing []string, c call[string], list bool) (create *pending[string], listed *Roll, err error) {
	l, err := inc.openLink(ctx)
	if err != nil {
		return nil, nil, err
	}
	rs := make([]request, 0, 4) // most need no more
	for _, d := range missing {
		rs = append(rs, newPending(inc.dirCall(d, dir)))
	}
	create = newPending(c)
	rs = append(rs, create)
	if list {
		if listed, _ = inc.nextRoll(dir.Path, false); listed != nil {
			rs = append(rs, listed)
		}
	}
	l.sendOrFail(rs...)
	if list && listed == nil {
		listed = inc.roll(dir.Path) // behind the create, unless the connection is replaced between the two
	}
	return create, listed, nil
}

// creates returns a transaction of before, and then of creates of ephemeral znodes.
func (inc *Incarnation) creates(paths []string, data []byte, before ...any) ([]any, error) {
	ops := slices.Clip(before)
	for _, path := range paths {
		ops = append(ops, &zk.CreateRequest{Path: path, Data: data, Acl: inc.Manager.Config.ACL, Flags: zk.FlagEphemeral})
	}
	return ops, CheckSize(ops)
}

// CreateAll makes ephemeral znodes of unique names in dir, all or none, and only if
// there is a znode at proof and check, if there is one, passes. It is
// ErrVanished if there is none, and NoNode if a parent is missing. When ctx
// ends, or after any other error, nothing is left that is not being deleted: so the
// names must not be used again.
func (inc *Incarnation) CreateAll(ctx context.Context, dir Dir, proof string, check *zk.CheckVersionRequest, paths []string, data []byte) error {
	before := []any{&zk.CheckVersionRequest{Path: proof, Version: -1}}
	if check != nil {
		before = append(before, check)
	}
	ops, err := inc.creates(paths, data, before...)
	if err != nil {
		return err
	}
	if err := inc.Vet(ctx, dir); err != nil {
		return err
	}
	var multi *pending[[]zk.MultiResponse]
	var rs []zk.MultiResponse
	open := false
	err = inc.repeat(ctx, func(a *attempts) (err error) {
		var p *pending[[]zk.MultiResponse]
		if p, err = inc.StartMulti(ctx, ops); err == nil {
			multi = p
			rs, err = p.Wait(ctx, inc)
			a.outcome(err)
		}
		open = a.open
		if i := FailedOp(rs); i >= len(before) && IsNodeExists(rs[i].Error) {
			// An attempt without a reply has been applied: nobody else makes such a name. Those
			// before it are not there if somebody has deleted them, which is told as a loss.
			return nil
		}
		return err
	})
	switch {
	case err == nil, errors.Is(err, ErrEnded): // they were ephemeral
		return err
	case open:
		// An attempt before the last may have been applied, or the last may be yet.
		deleteBehind(inc, multi, &Deletion{Paths: paths}).Await(Grace)
	}
	switch {
	case ctx.Err() != nil:
		return CtxErr(ctx)
	case len(rs) > 0 && IsNoNode(rs[0].Error):
		return ErrVanished
	}
	return err
}

// CreateThenList makes ephemeral znodes of unique names in dir, all or none, and only if
// check passes; and then lists dirs, in their order. It takes one round trip, and
// is tried once. A directory that does not exist is empty.
//
// Without an error all were made, and each listing is newer than that, and than
// the listings before it. Otherwise none was, or withdrawn deletes them; it is nil
// if none was, or will be.
func (inc *Incarnation) CreateThenList(ctx context.Context, dir Dir, check *zk.CheckVersionRequest, paths []string, data []byte, dirs ...string) (lists [][]string, withdrawn *Deletion, err error) {
	ops, err := inc.creates(paths, data, check)
	if err != nil {
		return nil, nil, err
	}
	if err := inc.Vet(ctx, dir); err != nil {
		return nil, nil, err
	}
	b := new(Batch)
	made := add(b, multiCall(ops))
	var listed []*pending[listing]
	for _, dir := range dirs {
		listed = append(listed, add(b, childrenCall(dir)))
	}
	if err := inc.startBatch(ctx, b); err != nil {
		return nil, nil, err
	}
	if _, err = made.Wait(ctx, inc); err == nil {
		for _, l := range listed {
			var ls listing
			if ls, err = l.Wait(ctx, inc); err != nil && !IsNoNode(err) {
				break
			}
			lists, err = append(lists, ls.names), nil
		}
	} else if OutcomeOf(err) != Unknown {
		return nil, nil, err // none was made
	}
	if err != nil {
		return nil, deleteBehind(inc, made, &Deletion{Paths: paths}), err
	}
	return lists, nil, nil
}

// Find looks for the child of dir whose name holds guid, and returns its path
// or "". It is exact: a write brings the server up to everything that this
// session's earlier connections got through to the leader, and what they did
// not get through can no longer be applied, because the leader refuses requests
// that come from a server which the session has left (SessionMoved). The write changes
// nothing, see flush. A sync alone would not do where the server is the leader: it answers
// a sync of its own client at once, before what it has proposed is committed.
//
// The listing is shared: where one reply is lost others are too. It is behind the
// sync, or has come over a later connection, which began with a sync of its own. A
// listing whose sync was not carried out, as by a server that has put it aside, has
// not been read: we ask again.
func (inc *Incarnation) Find(ctx context.Context, dir, guid string) (string, error) {
	var path string
	err := inc.repeat(ctx, func(*attempts) error {
		flush, err := start(ctx, inc, inc.flush())
		if err != nil {
			return err
		}
		sync, err := start(ctx, inc, syncCall(dir))
		if err != nil {
			return err
		}
		roll, err := inc.Roll(ctx, dir)
		if err != nil && !IsNoNode(err) {
			return err
		}
		if _, err = flush.Wait(ctx, inc); OutcomeOf(err) != Answered {
			return err
		}
		if _, err = sync.Wait(ctx, inc); err == nil {
			path = findIn(roll.Names(), dir, guid)
		}
		return err
	})
	return path, err
}

// findIn returns the path of the child of dir that is listed and whose name begins
// with guid, protected or not; or "". Other names may hold it too, as that of a wish
// for a candidate of an Election does: they are not what was made.
func findIn(names []string, dir, guid string) string {
	protected := ProtectedName(guid, "")
	for _, name := range names {
		if strings.HasPrefix(name, guid) || strings.HasPrefix(name, protected) {
			return ChildPath(dir, strings.Clone(name))
		}
	}
	return ""
}

// collect deletes in the background what an abandoned create may have made. It
// goes with its session if the servers do not let us find it, or delete it.
func (inc *Incarnation) collect(create *pending[string], dir, guid string) *Deletion {
	d := inc.deletion(&Deletion{Paths: []string{ChildPath(dir, guid)}, guid: guid})
	create.then(func() {
		switch err := create.err; {
		case err == nil:
			d.found(create.val)
		case OutcomeOf(err) != Unknown:
			d.over(nil) // nothing was made, nor will be
			return
		}
		d.queue.wait(d)
	})
	return d
}

// Exchange makes an ephemeral znode of a unique name in place of another, in
// one transaction, so that nobody sees too few permits out or is woken twice.
// It is NoNode if the other is gone.
func (inc *Incarnation) Exchange(ctx context.Context, old, name string, data []byte) error {
	rs, err := inc.Multi(ctx,
		&zk.CreateRequest{Path: name, Data: data, Acl: inc.Manager.Config.ACL, Flags: zk.FlagEphemeral},
		&zk.DeleteRequest{Path: old, Version: -1})
	if len(rs) > 0 && IsNodeExists(rs[0].Error) {
		return nil // an attempt without a reply has been applied: nobody else makes this name
	}
	return err
}

// MakeAndLeave makes a persistent znode and deletes own, which is ephemeral and of
// a unique name, in one transaction, and reads what it has made: made means that
// this has been seen, and that the watch is set that was joined for it. The error
// is NodeExists if it is there already, and ErrVanished if own is not there any
// more. After any error but ErrLost, with open set, nothing has been applied, nor
// will be.
//
// A lost reply needs no log. Nobody makes the name of own again: while own is
// there no attempt has been applied, and when it is gone none will be. Then either
// an attempt of ours has deleted it, and made what is at path, or somebody has
// deleted it by hand; which of them it was is told by what is there. If that is not
// ours the error is ErrVanished, though ours may have been there and be gone again.
func (inc *Incarnation) MakeAndLeave(path string, data []byte, own string) (made, open bool, err error) {
	if inc.Manager.SizeOf(path, data)+inc.Manager.SizeOf(own, nil)+256 > MaxPacket {
		return false, false, ErrTooLarge
	}
	ctx := context.Background() // ends with the session
	ops := []any{
		&zk.CreateRequest{Path: path, Data: data, Acl: inc.Manager.Config.ACL},
		&zk.DeleteRequest{Path: own, Version: -1},
	}
	var read *pending[Node]
	err = inc.repeat(ctx, func(a *attempts) error {
		b := new(Batch)
		txn := add(b, multiCall(ops))
		read = add(b, getCall(path))
		if err := inc.startBatch(ctx, b); err != nil {
			return err
		}
		_, err := txn.Wait(ctx, inc)
		a.outcome(err)
		open = a.open
		return err
	})
	switch {
	case err == nil:
		// The read is of the same connection, right behind: it has seen this
		// mark, or one that was made since.
		n, e := read.Wait(ctx, inc)
		return e == nil && bytes.Equal(n.Data, data), false, nil
	case OutcomeOf(err) != Answered: // ErrEnded, as ctx does not end
		return false, open, inc.Loss()
	case open:
		return inc.foundOut(ctx, path, data, own, err)
	case IsNoNode(err):
		return false, false, ErrVanished // with the directory, or without
	}
	return false, false, err
}

// foundOut is what became of the attempts of MakeAndLeave, of which the last was
// refused, and one before it has no answer. Refusals are answered in the servers'
// one order, so what is read now is of after all of them.
func (inc *Incarnation) foundOut(ctx context.Context, path string, data []byte, own string, refusal error) (made, open bool, err error) {
	stat, err := inc.Exists(ctx, own)
	if err == nil && stat == nil {
		var stored []byte
		stored, _, err = inc.Get(ctx, path)
		if made = err == nil && bytes.Equal(stored, data); made {
			return true, false, nil
		}
		if err == nil || IsNoNode(err) {
			return false, false, ErrVanished
		}
	}
	switch {
	case errors.Is(err, ErrEnded):
		return false, true, inc.Loss()
	case err != nil:
		return false, false, err
	}
	return false, false, refusal
}
