package zsync

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

// This file holds the verbs with which the recipes speak to ZooKeeper: one
// request each, within one incarnation, with what must be done when the reply
// does not come. Paths are the server's (see manager.full).

// maxPacket is the largest request that a server with the default
// jute.maxbuffer accepts. A larger one would cost everyone the connection.
const maxPacket = 1<<20 - 1 - 64

// sizeOf estimates the size of a create, or set, from above.
func (m *manager) sizeOf(path string, data []byte) int {
	return 64 + len(path) + len(data) + sizeOfACL(m.cfg.acl)
}

func sizeOfACL(acl []zk.ACL) (n int) {
	for _, a := range acl {
		n += 12 + len(a.Scheme) + len(a.ID)
	}
	return n
}

// get reads the data of a znode.
func (inc *incarnation) get(ctx context.Context, path string) ([]byte, *zk.Stat, error) {
	n, err := again(ctx, inc, func(c *zk.Conn) (node, error) {
		data, stat, err := c.Get(path)
		return node{data, stat}, err
	})
	return n.data, n.stat, err
}

// exists reads the Stat of a znode, or nil if there is none.
func (inc *incarnation) exists(ctx context.Context, path string) (*zk.Stat, error) {
	return again(ctx, inc, func(c *zk.Conn) (*zk.Stat, error) {
		ok, stat, err := c.Exists(path)
		if !ok {
			stat = nil
		}
		return stat, err
	})
}

// children lists the children of a znode.
func (inc *incarnation) children(ctx context.Context, path string) ([]string, *zk.Stat, error) {
	type list struct {
		names []string
		stat  *zk.Stat
	}
	l, err := again(ctx, inc, func(c *zk.Conn) (list, error) {
		names, stat, err := c.Children(path)
		return list{names, stat}, err
	})
	return l.names, l.stat, err
}

// sync makes the server that answers catch up with the leader.
func (inc *incarnation) sync(ctx context.Context, path string) error {
	_, err := again(ctx, inc, func(c *zk.Conn) (string, error) { return c.Sync(path) })
	return err
}

// multi applies ops, which must be such that they can be applied only once, in
// one transaction. If a reply was lost the error may be that they have been.
func (inc *incarnation) multi(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	return again(ctx, inc, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(ops...) })
}

// tryMulti is a single attempt at a transaction. An error of unknown outcome is
// passed on as it is.
func (inc *incarnation) tryMulti(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	return once(ctx, inc, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(ops...) })
}

// beginMulti is tryMulti without waiting for the reply.
func (inc *incarnation) beginMulti(ctx context.Context, ops []any) (*pending[[]zk.MultiResponse], error) {
	return begin(ctx, inc, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(ops...) })
}

// beginCreate sends a single attempt at a create, without waiting for the reply.
func (inc *incarnation) beginCreate(ctx context.Context, path string, data []byte, flags int32) (*pending[string], error) {
	return begin(ctx, inc, func(c *zk.Conn) (string, error) { return c.Create(path, data, flags, inc.m.cfg.acl) })
}

// deleteEmpty deletes a znode that nobody would miss, if it has no children.
// When a reply was lost the error may be that there is none.
func (inc *incarnation) deleteEmpty(ctx context.Context, path string) error {
	_, err := again(ctx, inc, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(path, -1) })
	return err
}

// set writes the data of a znode that only this client writes, so that writing
// it twice does no harm. It returns the new Stat.
func (inc *incarnation) set(ctx context.Context, path string, data []byte, version int32) (*zk.Stat, error) {
	return again(ctx, inc, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(path, data, version) })
}

// create makes a persistent znode, with its parents, and reports whether it
// was missing; one that exists already is left as it is.
//
// When a reply is lost, the repetition may find the znode that the first
// attempt made, and report false. Who must know whether it was itself writes
// something unique into it.
func (inc *incarnation) create(ctx context.Context, path string, data []byte) (bool, error) {
	for {
		_, err := again(ctx, inc, func(c *zk.Conn) (string, error) {
			return c.Create(path, data, zk.FlagPersistent, inc.m.cfg.acl)
		})
		switch {
		case isNodeExists(err):
			return false, nil
		case isNoNode(err):
			if err := inc.makeDir(ctx, parentPath(path)); err != nil {
				return false, err
			}
		default:
			return err == nil, err
		}
	}
}

// makeDir makes a znode for others to be children of, and its parents where
// they are missing. It makes containers, as Curator does: the server removes
// them when they have become empty. So they can vanish between any two
// requests, and NoNode always means: make them again and retry. Those that must
// last are persistent. See vet for those that are there already.
func (inc *incarnation) makeDir(ctx context.Context, path string) error {
	return inc.makeDirWith(ctx, path, nil)
}

// makeDirWith is makeDir for a znode that, if it is missing, begins with data.
func (inc *incarnation) makeDirWith(ctx context.Context, path string, data []byte) error {
	for {
		made, err := inc.addDir(ctx, path, data)
		if made || err != nil {
			return err
		}
		// Somebody else has made it, or we have, and the reply is lost.
		if err := inc.vetNow(ctx, path); !isNoNode(err) {
			return err
		}
	}
}

// addDir makes a directory, and its parents where they are missing, and reports
// whether it was missing.
func (inc *incarnation) addDir(ctx context.Context, path string, data []byte) (bool, error) {
	if path == "/" {
		return true, nil
	}
	for {
		_, err := again(ctx, inc, func(c *zk.Conn) (string, error) {
			if inc.m.lasts(path) {
				return c.Create(path, data, zk.FlagPersistent, inc.m.cfg.acl)
			}
			p, err := c.Create(path, data, zk.FlagContainer, inc.m.cfg.acl) // see link
			if isUnimplemented(err) {                                       // before ZooKeeper 3.5
				return c.Create(path, data, zk.FlagPersistent, inc.m.cfg.acl)
			}
			return p, err
		})
		switch {
		case isNodeExists(err):
			return false, nil
		case isNoNode(err):
			// Whose the parents are is for whoever made them to say: the root of
			// a tree is open on most servers.
			if _, err := inc.addDir(ctx, parentPath(path), nil); err != nil {
				return false, err
			}
		case err == nil:
			inc.vetted.Store(path, struct{}{})
			return true, nil
		default:
			return false, err
		}
	}
}

// createChild makes a child of dir whose name holds guid, which is unique, and
// returns its path. With list it also lists the children of dir, as they are
// right after the create; both requests are on their way at once.
//
// When the reply is lost createChild looks for guid. When ctx ends it returns
// at once, and what may have been made is deleted in the background.
func (inc *incarnation) createChild(ctx context.Context, dir, name, guid string, data []byte, flags int32, list bool) (path string, names []string, err error) {
	return inc.createChildOf(ctx, dir, nil, name, guid, data, flags, list)
}

// createChildOf is createChild in a dir that, if it is missing, is made with
// dirData.
func (inc *incarnation) createChildOf(ctx context.Context, dir string, dirData []byte, name, guid string, data []byte, flags int32, list bool) (path string, names []string, err error) {
	full := childPath(dir, name)
	if inc.m.sizeOf(full, data) > maxPacket {
		return "", nil, ErrTooLarge
	}
	if err := inc.vet(ctx, dir, dirData); err != nil {
		return "", nil, err
	}
	if err := inc.mayTakeBack(ctx, dir); err != nil {
		return "", nil, err
	}
	for try := 0; ; try++ {
		written, stop := inc.expectCreate(full)
		create, err := begin(ctx, inc, func(c *zk.Conn) (string, error) {
			defer stop()
			return c.Create(full, data, flags, inc.m.cfg.acl)
		})
		if err != nil {
			stop()
			return "", nil, err
		}
		var listing *pending[[]string]
		if list {
			// Requests of one session are executed in the order in which
			// they were written, so this listing shows what was created.
			select {
			case <-written:
			case <-create.done:
			case <-ctx.Done():
			case <-inc.ctx.Done():
			}
			listing, _ = begin(ctx, inc, func(c *zk.Conn) ([]string, error) {
				names, _, err := c.Children(dir)
				return names, err
			})
		}
		path, err = create.wait(ctx, inc)
		switch {
		case err == nil && !list:
			return path, nil, nil
		case err == nil:
			if listing != nil {
				names, err = listing.wait(ctx, inc)
			} else {
				// It could not be begun: ctx ended, or the session, when the
				// create was on its way already.
				names, _, err = inc.children(ctx, dir)
			}
			if err == nil && slices.Contains(names, baseName(path)) {
				return path, names, nil
			}
			if err == nil || outcomeOf(err) != answered && ctx.Err() == nil && inc.ctx.Err() == nil {
				// The listing was lost, or was not behind the create after
				// all because the connection changed between the two.
				names, _, err = inc.children(ctx, dir)
			}
			if err != nil {
				inc.takeBack(path).await(grace)
				return "", nil, err
			}
			return path, names, nil
		case errors.Is(err, errEnded):
			return "", nil, err // it was ephemeral, or its owner retries under its own name
		case ctx.Err() != nil:
			inc.collect(create, dir, guid).await(grace)
			return "", nil, ctxErr(ctx)
		case isNoNode(err):
			if err := inc.makeDirWith(ctx, dir, dirData); err != nil {
				return "", nil, err
			}
			try = -1
			continue
		case outcomeOf(err) == answered:
			return "", nil, err
		case outcomeOf(err) == unknown:
			path, err = inc.find(ctx, dir, guid)
			if err != nil {
				inc.collect(create, dir, guid).await(grace)
				return "", nil, err
			}
			if path != "" {
				if list {
					names, _, err = inc.children(ctx, dir)
				}
				if err != nil {
					inc.takeBack(path).await(grace)
					return "", nil, err
				}
				return path, names, nil
			}
		}
		if err := inc.pause(ctx, try); err != nil {
			return "", nil, err
		}
	}
}

// createAll makes ephemeral znodes of unique names, all or none, and only if
// there is a znode at proof and check, if there is one, passes. It is
// errVanished if there is none, and NoNode if a parent is missing. When ctx
// ends, or after any other error, nothing is left.
func (inc *incarnation) createAll(ctx context.Context, proof string, check *zk.CheckVersionRequest, paths []string, data []byte) error {
	ops := []any{&zk.CheckVersionRequest{Path: proof, Version: -1}}
	size := 256 + len(proof)
	if check != nil {
		ops = append(ops, check)
		size += 64 + len(check.Path)
	}
	first := len(ops)
	for _, path := range paths {
		ops = append(ops, &zk.CreateRequest{Path: path, Data: data, Acl: inc.m.cfg.acl, Flags: zk.FlagEphemeral})
		size += inc.m.sizeOf(path, data)
	}
	if size > maxPacket {
		return ErrTooLarge
	}
	if err := inc.vet(ctx, parentPath(paths[0]), nil); err != nil {
		return err
	}
	for try := 0; ; try++ {
		multi, err := inc.beginMulti(ctx, ops)
		var rs []zk.MultiResponse
		if err == nil {
			rs, err = multi.wait(ctx, inc)
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errEnded):
			return err // they were ephemeral
		case len(rs) > first && isNodeExists(rs[first].Error):
			return nil // an attempt without a reply has been applied: nobody else makes this name
		case ctx.Err() != nil, outcomeOf(err) == answered:
			// An attempt before this one may have been applied, or this one
			// may be yet, if its reply is open.
			if try > 0 || outcomeOf(err) != answered {
				inc.discard(multi, paths).await(grace)
			}
			switch {
			case ctx.Err() != nil:
				return ctxErr(ctx)
			case len(rs) > 0 && isNoNode(rs[0].Error):
				return errVanished
			}
			return err
		}
		if err := inc.pause(ctx, try); err != nil {
			inc.discard(multi, paths).await(grace)
			return err
		}
	}
}

// discard deletes znodes in the background once the request that may make them,
// if there is one, is over.
func (inc *incarnation) discard(making *pending[[]zk.MultiResponse], paths []string) *removal {
	return inc.inBackground(parentPath(paths[0]), func() error {
		if making != nil {
			select {
			case <-making.done:
			case <-inc.ctx.Done():
				return errEnded
			}
		}
		return inc.removeAllNow(context.Background(), paths)
	})
}

// worse returns the error of two deletions that is not just that there was
// nothing to delete.
func worse(a, b error) error {
	if b == nil || a != nil && isNoNode(b) {
		return a
	}
	return b
}

// removeAll deletes znodes in the background.
func (inc *incarnation) removeAll(paths []string) *removal { return inc.discard(nil, paths) }

// removeAllNow deletes znodes, in one transaction if all are there and it is not
// too large. The error is NoNode if one of them certainly was not.
func (inc *incarnation) removeAllNow(ctx context.Context, paths []string) error {
	if len(paths) == 1 {
		return inc.removeNow(ctx, paths[0])
	}
	ops, size := make([]any, len(paths)), 256
	for i, path := range paths {
		ops[i] = &zk.DeleteRequest{Path: path, Version: -1}
		size += inc.m.sizeOf(path, nil)
	}
	if size > maxPacket {
		half := len(paths) / 2
		err := inc.removeAllNow(ctx, paths[:half])
		return worse(err, inc.removeAllNow(ctx, paths[half:]))
	}
	_, err := inc.tryMulti(ctx, ops)
	if err == nil || errors.Is(err, errEnded) {
		return err
	}
	// The reply is lost, or one of them is gone and has kept the others: one
	// by one then.
	missing := isNoNode(err)
	err = nil
	for _, path := range paths {
		if e := inc.removeNow(ctx, path); e != nil && !isNoNode(e) {
			err = e
		}
	}
	if err == nil && missing {
		err = zk.ErrNoNode
	}
	return err
}

// find looks for the child of dir whose name holds guid, and returns its path
// or "". It is exact: the sync brings the server up to everything that this
// session's earlier connections got through to the leader, and what they did
// not get through can no longer be applied, because the leader refuses requests
// that come from a server which the session has left (SessionMoved).
func (inc *incarnation) find(ctx context.Context, dir, guid string) (string, error) {
	if err := inc.sync(ctx, dir); err != nil {
		return "", err
	}
	names, _, err := inc.children(ctx, dir)
	if err != nil && !isNoNode(err) {
		return "", err
	}
	for _, name := range names {
		if strings.Contains(name, guid) {
			return childPath(dir, name), nil
		}
	}
	return "", nil
}

// grace is how long a call that has been cancelled, or has failed, waits for
// its traces to be deleted. With a server that answers this is enough;
// otherwise the deletion goes on in the background.
const grace = 25 * time.Millisecond

// A removal is a deletion in the background. It is repeated until the znode is
// gone or the ZooKeeper session, and every ephemeral znode with it, has ended:
// what the servers refuse, they may allow later.
type removal struct {
	inc     *incarnation
	done    chan struct{} // closed when err is set
	err     error         // nil; NoNode if it was gone before; or errEnded
	refused chan struct{} // closed when refusal is set
	refusal error         // the servers' first
}

// inBackground runs f, which deletes something at path, until it succeeds.
func (inc *incarnation) inBackground(path string, f func() error) *removal {
	r := &removal{inc: inc, done: make(chan struct{}), refused: make(chan struct{})}
	inc.m.spawn(func() {
		defer close(r.done)
		for try := 0; ; try++ {
			r.err = f()
			if r.err == nil || isNoNode(r.err) || outcomeOf(r.err) != answered {
				return
			}
			if try == 0 {
				inc.m.log.Error("zsync: cannot delete, and goes on trying", "path", path, "err", r.err)
				r.refusal = r.err
				close(r.refused)
			}
			if r.err = inc.pause(context.Background(), try+1); r.err != nil {
				return
			}
		}
	})
	return r
}

// remove deletes the znode at path in the background.
func (inc *incarnation) remove(path string) *removal {
	return inc.inBackground(path, func() error { return inc.removeNow(context.Background(), path) })
}

// removeNow deletes the znode at path. Names are unique, so a repeated deletion
// deletes nothing else.
func (inc *incarnation) removeNow(ctx context.Context, path string) error {
	mayBeDone := false // an attempt without a reply may have been applied
	for try := 0; ; try++ {
		_, err := once(ctx, inc, func(c *zk.Conn) (struct{}, error) {
			return struct{}{}, c.Delete(path, -1)
		})
		switch {
		case err == nil, isNoNode(err) && mayBeDone:
			return nil
		case errors.Is(err, errEnded), ctx.Err() != nil:
			return err
		case outcomeOf(err) == answered:
			return err
		case outcomeOf(err) == unknown:
			mayBeDone = true
		}
		if err := inc.pause(ctx, try); err != nil {
			return err
		}
	}
}

// collect deletes in the background what an abandoned create may have made.
func (inc *incarnation) collect(create *pending[string], dir, guid string) *removal {
	return inc.inBackground(dir, func() error {
		ctx := inc.ctx // there is nobody else to wait for
		select {
		case <-create.done:
		case <-ctx.Done():
			return errEnded
		}
		path, err := create.val, create.err
		switch {
		case outcomeOf(err) == unknown:
			path, err = inc.find(ctx, dir, guid)
		case err != nil:
			return nil // nothing was made
		}
		if err == nil && path != "" {
			err = inc.takeBackNow(ctx, path)
		}
		return err
	})
}

// takeBack deletes, in the background, an ephemeral znode that was made for a
// call which has failed. Where the servers do not permit that, the session is
// given up, which deletes it: what nobody uses, and nobody can delete, would hold
// up everybody else for as long as the session lasts. What else is held is told
// to be lost, with LossGivenUp.
//
// To look first, before every create, would cost a round trip each time for what
// hardly ever happens. So we look first where it has happened: see mayTakeBack.
func (inc *incarnation) takeBack(path string) *removal {
	return inc.inBackground(path, func() error { return inc.takeBackNow(context.Background(), path) })
}

func (inc *incarnation) takeBackNow(ctx context.Context, path string) error {
	err := inc.removeNow(ctx, path)
	if !isAnswer(err, zk.ErrNoAuth) {
		return err
	}
	inc.m.log.Error("zsync: what was made may not be deleted; giving up the session", "path", path)
	inc.m.barred.Store(parentPath(path), struct{}{})
	inc.giveUp()
	return errEnded
}

// mayTakeBack fails if what is made in dir may not be deleted again. It asks
// where that was so once.
func (inc *incarnation) mayTakeBack(ctx context.Context, dir string) error {
	if _, barred := inc.m.barred.Load(dir); !barred {
		return nil
	}
	probe := childPath(dir, protectedName(newGUID(), "probe"))
	_, err := inc.multi(ctx,
		&zk.CreateRequest{Path: probe, Acl: inc.m.cfg.acl, Flags: zk.FlagEphemeral},
		&zk.DeleteRequest{Path: probe, Version: -1})
	if err == nil || isNoNode(err) {
		inc.m.barred.Delete(dir) // permitted by now, or made anew
		return nil
	}
	return err
}

// await waits for the end of r, but no longer than limit, and not while there
// is no connection.
func (r *removal) await(limit time.Duration) {
	select {
	case <-r.done:
	case <-r.inc.disconnection():
	case <-r.inc.ctx.Done():
	case <-time.After(limit):
	}
}

// releaseTime is how long a release without a context waits to learn what came
// of it; with askTime, which it may need before, less than half a second.
const releaseTime = 250 * time.Millisecond

// verdict waits for r, the deletion of what was held through its session, and
// says what came of it. It does not wait for long, nor while there is no
// connection: the deletion goes on.
func (r *removal) verdict() error {
	select {
	case <-r.done:
	case <-r.refused:
	case <-r.inc.disconnection():
	case <-r.inc.ctx.Done():
	case <-time.After(releaseTime):
	}
	// Several may be ready. What is known goes before what must be feared.
	switch {
	case isClosed(r.done) && r.err == nil:
		return nil // deleted by us, so it was ours until then, even if the session has ended since
	case isClosed(r.done) && isNoNode(r.err):
		return r.inc.deleted() // by somebody else, so others may have it
	case !r.inc.alive():
		return r.inc.loss()
	case isClosed(r.done):
		return r.err
	case isClosed(r.refused):
		return r.refusal // whoever waits for it goes on waiting, and so does the deletion
	}
	// Whether or not the deletion has got through, it will be repeated for as
	// long as the session can last.
	return nil
}

// awaitGone waits until there is no znode at path. It costs one request, and a
// watch that fires when the znode is deleted and at nothing else: a znode's
// children are listed, and an ephemeral one has none. A change of its data,
// such as a fencing token, wakes nobody.
func (inc *incarnation) awaitGone(ctx context.Context, path string) error {
	return inc.whileThere(ctx, path, func(w *watch) error { return inc.awaitFired(ctx, w) })
}

// whileThere is awaitGone with f, which is to return when w has fired.
func (inc *incarnation) whileThere(ctx context.Context, path string, f func(w *watch) error) error {
	for {
		w := inc.hub.join(watchKey{watchChildren, path})
		_, _, err := inc.children(ctx, path)
		if err == nil {
			err = f(w)
		}
		inc.hub.leave(w)
		switch {
		case isNoNode(err):
			return nil
		case err != nil:
			return err
		case w.event == zk.EventNodeDeleted:
			return nil
		}
	}
}

// awaitFired waits for a watch that the caller has joined and whose znode it
// has read.
func (inc *incarnation) awaitFired(ctx context.Context, w *watch) error {
	// When the watch has fired and ctx has ended as well, either outcome is
	// right: nobody has been told anything yet, and the caller cleans up.
	select {
	case <-w.fired:
		return nil
	case <-ctx.Done():
		return ctxErr(ctx)
	case <-inc.ctx.Done():
		return errEnded
	}
}

// awaitMade waits until there is, or was, a znode at path.
func (inc *incarnation) awaitMade(ctx context.Context, path string) error {
	for {
		w := inc.hub.join(watchKey{watchExists, path})
		stat, err := inc.exists(ctx, path)
		if err == nil && stat == nil {
			err = inc.awaitFired(ctx, w)
		}
		inc.hub.leave(w)
		if err != nil || stat != nil || w.event == zk.EventNodeCreated {
			return err
		}
	}
}

// awaitAny is awaitFired for several watches. It ends at due as well, unless
// that is zero.
func (inc *incarnation) awaitAny(ctx context.Context, watches []*watch, due time.Time) error {
	var expired <-chan time.Time
	if !due.IsZero() {
		expired = time.After(time.Until(due))
	}
	cases := []reflect.SelectCase{
		{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())},
		{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(inc.ctx.Done())},
		{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(expired)},
	}
	for _, w := range watches {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(w.fired)})
	}
	switch i, _, _ := reflect.Select(cases); i {
	case 0:
		return ctxErr(ctx)
	case 1:
		return errEnded
	}
	return nil
}
