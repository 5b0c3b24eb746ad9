package session

// This file creates znodes whose reply may be lost. A function either finds what its create has
// made, or deletes it in the background. Persistent znodes and single attempts are in verbs.go,
// and znodes whose names are not unique in own.go.

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
)

// CreateChild creates a child of dir whose name contains guid, which is unique, and returns its
// path. With list, it also lists the children of dir, with the new child among them. Both
// requests are sent together.
//
// If the reply is lost, CreateChild looks for guid. If ctx ends, it returns at once, and deletes
// in the background a znode that may have been created: so the znode must be ephemeral. If
// another client deletes the znode before the listing, CreateChild creates another.
func (inc *Incarnation) CreateChild(ctx context.Context, dir Dir, name, guid string, data []byte, flags int32, list bool) (path string, names *Roll, err error) {
	return inc.createChild(ctx, dir, name, guid, data, flags, list, nil)
}

// CreateChildAndGet is CreateChild that also reads dir after the create. Both requests are sent
// together. If the read fails, with readErr, the create still counts.
func (inc *Incarnation) CreateChildAndGet(ctx context.Context, dir Dir, name, guid string, data []byte, flags int32) (path string, n Node, readErr, err error) {
	var read *pending[Node]
	path, _, err = inc.createChild(ctx, dir, name, guid, data, flags, false, func() { read, readErr = start(ctx, inc, getCall(dir.Path)) })
	if err != nil {
		return "", n, nil, err
	}
	// The read comes after the create, or after the listing that has found the created znode.
	if readErr == nil {
		n, readErr = read.Wait(ctx, inc)
	}
	if readErr != nil && OutcomeOf(readErr) != Answered {
		n, readErr = retry(ctx, inc, getCall(dir.Path))
	}
	return path, n, readErr, nil
}

// createChild is CreateChild that also calls then, if it is not nil, after it has sent a create.
// It calls then again after it has found the znode of a create without a reply: the servers may
// have executed that create after the requests of the first call.
func (inc *Incarnation) createChild(ctx context.Context, dir Dir, name, guid string, data []byte, flags int32, list bool, then func()) (path string, names *Roll, err error) {
	full := ChildPath(dir.Path, name)
	if inc.Manager.SizeOf(full, data) > MaxPacket {
		return "", nil, ErrTooLarge
	}
	if err := inc.Vet(ctx, dir); err != nil {
		return "", nil, err
	}
	// The parents to create first. They are sent again after an attempt without a reply. If that
	// attempt has created them, each costs only a NodeExists.
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
			listed = nil // it may be older than the created znode
			if path != "" && then != nil {
				then()
			}
		}
		switch {
		case err == nil && path == "": // no znode was created, nor will be
		case err == nil:
			if list {
				names, err = inc.listBehind(ctx, dir.Path, path, listed)
			}
			switch {
			case err == nil:
				return path, names, nil
			case errors.Is(err, ErrEnded):
				return "", nil, err // the session has ended, and the znode with it
			case !IsNoNode(err):
				inc.Remove(path).Await(Grace)
				return "", nil, err
			}
			// The listing is newer than the create, even over another connection: no reply there
			// is older than an earlier one. So dir was deleted since, and our child before it,
			// because a parent with children cannot be deleted. No caller has seen the child, so
			// we create another.
		case errors.Is(err, ErrEnded):
			return "", nil, err // the znode was ephemeral, or its owner repeats the create under the same name
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
// listed was sent after that create, over the same connection or the next, or is nil.
func (inc *Incarnation) listBehind(ctx context.Context, dir, path string, listed *Roll) (*Roll, error) {
	if listed != nil {
		_, err := listed.Wait(ctx, inc)
		switch {
		case err == nil && listed.Has(BaseName(path)):
			return listed, nil
		case err != nil && OutcomeOf(err) == Answered:
			return nil, err
		}
		// The reply was lost, or the connection changed between the create and the listing.
	}
	roll, err := inc.Roll(ctx, dir)
	if OutcomeOf(err) != Answered { // return the cause to the caller, not the error of a request
		switch {
		case inc.Ctx.Err() != nil:
			err = ErrEnded
		case ctx.Err() != nil:
			err = CtxErr(ctx)
		}
	}
	return roll, err
}

// startIn starts a create in dir, after the creates of the missing parents, and with list also a
// listing of dir after it. All go into one write, unless a listing of dir is in flight. Then the
// caller shares the next listing, which is requested after the create is sent.
func (inc *Incarnation) startIn(ctx context.Context, dir Dir, missing []string, c call[string], list bool) (create *pending[string], listed *Roll, err error) {
	l, err := inc.openConn(ctx)
	if err != nil {
		return nil, nil, err
	}
	rs := make([]conn.Request, 0, 4) // most need no more
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
	l.SendOrFail(rs...)
	if list && listed == nil {
		listed = inc.roll(dir.Path) // after the create, unless the connection is replaced between the two
	}
	return create, listed, nil
}

// creates returns a transaction of the operations before, followed by creates of ephemeral
// znodes.
func (inc *Incarnation) creates(paths []string, data []byte, before ...any) ([]any, error) {
	ops := slices.Clip(before)
	for _, path := range paths {
		ops = append(ops, &zk.CreateRequest{Path: path, Data: data, Acl: inc.Manager.Config.ACL, Flags: zk.FlagEphemeral})
	}
	return ops, CheckSize(ops)
}

// CreateAll creates ephemeral znodes with unique names in dir, all or none. It creates them only
// if a znode exists at proof and check, if it is not nil, passes. The error is ErrVanished if
// there is none at proof, and NoNode if a parent is missing. If ctx ends, or after any other
// error, every created znode is being deleted, so the names must not be used again.
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
			// An attempt without a reply has been applied, because no other client creates such a
			// name. If another client has deleted an earlier znode of paths, its owner learns of
			// that as a loss.
			return nil
		}
		return err
	})
	switch {
	case err == nil, errors.Is(err, ErrEnded): // the znodes were ephemeral
		return err
	case open:
		// An attempt before the last may have been applied, or the last may yet be.
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

// CreateThenList creates ephemeral znodes with unique names in dir, all or none, only if check
// passes. Then it lists dirs, in order. It makes one attempt, in one round trip. A parent that
// does not exist has no children.
//
// Without an error, all were created. Each listing is newer than the creates, and than the
// listings before it. After an error, either none was created and none will be, and withdrawn is
// nil; or withdrawn deletes them.
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
		return nil, nil, err // none was created
	}
	if err != nil {
		return nil, deleteBehind(inc, made, &Deletion{Paths: paths}), err
	}
	return lists, nil, nil
}

// Find looks for the child of dir whose name begins with guid, and returns its path or "".
//
// It is exact, for this reason. It first sends a write, which changes nothing (see flush). The
// reply shows that the server has applied every request of this session's earlier connections
// that reached the leader. Requests that did not reach the leader cannot be applied any longer,
// because the leader refuses requests from a server that the session has left (SessionMoved). A
// sync alone is not enough if the server is the leader: it answers a sync of its own client at
// once, before its proposals are committed.
//
// The listing is shared, because several replies are usually lost together. It comes after the
// sync, or over a later connection, which began with its own sync. If the sync was not executed,
// for example because the server is overloaded, Find ignores the listing and repeats all
// requests.
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

// findIn returns the path of the listed child of dir whose name begins with guid, protected or
// not; or "". Other names may contain guid too, such as the name of a wish for a candidate of an
// Election. They are not the created znode.
func findIn(names []string, dir, guid string) string {
	protected := ProtectedName(guid, "")
	for _, name := range names {
		if strings.HasPrefix(name, guid) || strings.HasPrefix(name, protected) {
			return ChildPath(dir, strings.Clone(name))
		}
	}
	return ""
}

// collect deletes in the background a znode that an abandoned create may have made. If the
// servers refuse to list or delete it, it ends with its session.
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

// Exchange creates an ephemeral znode with a unique name and deletes another, in one transaction.
// So no client counts too few permits, or is woken twice. The error is NoNode if the other does
// not exist.
func (inc *Incarnation) Exchange(ctx context.Context, old, name string, data []byte) error {
	rs, err := inc.Multi(ctx,
		&zk.CreateRequest{Path: name, Data: data, Acl: inc.Manager.Config.ACL, Flags: zk.FlagEphemeral},
		&zk.DeleteRequest{Path: old, Version: -1})
	if len(rs) > 0 && IsNodeExists(rs[0].Error) {
		return nil // an attempt without a reply has been applied: no other client creates this name
	}
	return err
}

// MakeAndLeave creates a persistent znode and deletes own, an ephemeral znode with a unique name,
// in one transaction. Then it reads the created znode. made means that the read has seen it, and
// has set a watch that the caller has joined. The error is NodeExists if the znode exists
// already, and ErrVanished if own does not exist. After any error except ErrLost with open set,
// the transaction was not applied, nor will be.
//
// A lost reply needs no log, because no client creates the name of own again. While own exists,
// no attempt has been applied. When it is deleted, no attempt will be. Then either our attempt
// has deleted it, and created the znode at path, or another client has deleted own. The znode at
// path shows which of the two happened. If it is not ours, the error is ErrVanished, although
// ours may have existed and been deleted again.
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
		// The read came directly after, over the same connection. So it has seen this mark, or a
		// later one.
		n, e := read.Wait(ctx, inc)
		return e == nil && bytes.Equal(n.Data, data), false, nil
	case OutcomeOf(err) != Answered: // it is ErrEnded, because ctx does not end
		return false, open, inc.Loss()
	case open:
		return inc.foundOut(ctx, path, data, own, err)
	case IsNoNode(err):
		return false, false, ErrVanished // with its parent, or alone
	}
	return false, false, err
}

// foundOut returns the result of MakeAndLeave if the last attempt was refused, and an earlier one
// has no reply. The leader orders refusals like writes, so a read is now newer than all attempts.
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
