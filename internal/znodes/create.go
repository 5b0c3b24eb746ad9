package znodes

// This file creates ephemeral znodes. write.go and dir.go create the other znodes.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/wire"
)

// A Creation has the ephemeral znodes to create, and the reads that follow: see CreateEphemeral.
type Creation struct {
	Dir   Dir      // their parent
	Paths []string // one transaction creates all of them or none
	Data  []byte   // of each

	// If neither GUID nor Shared is set, no other client ever creates a znode with one of these
	// names.
	GUID   string // if set: Paths has one path, to which the servers append a number; its last element begins with GUID, which is unique
	Shared bool   // Paths has one path; other sessions may create a znode there, but no other goroutine of this process does

	Holds []*zk.CheckVersionRequest // checks that must pass in the same transaction; a check with version -1 requires only that the znode exists

	// At most one of these three is set.
	List bool     // lists Dir, with the first znode among its children
	Read bool     // reads Dir
	Also []string // other znodes to list, in order

	Path    string       // of the first znode
	Roll    *Roll        // the result of `List`
	Node    session.Node // the result of `Read`, if ReadErr is nil
	ReadErr error        // the znodes are created even if the servers refuse to read Dir
	Lists   [][]string   // the results of `Also`; a znode that does not exist has no children
	Undo    *Deletion    // after an error: the Deletion of the znodes that may have been created, or nil

	made   *session.Pending[string] // the last request that was sent; its value is the path of a single znode, or of a check of `Holds` that has failed
	roll   *Roll                    // was sent after `made`; nil if it must be sent again
	behind session.Requests         // the other reads that were sent after `made`; nil if they must be sent again
	read   *session.Pending[session.Node]
	lists  []*session.Pending[session.Listing]
}

// CreateEphemeral creates the znodes of c, and c.Dir if it is missing. All requests are sent
// together. Each read is at least as new as the creation, and each listing of c.Also is at least as
// new as the one before it.
//
// A request without a reply may have been executed. With GUID, the servers complete the name, so
// CreateEphemeral then looks for a child whose name begins with GUID. Without GUID, it sends the
// request again. NodeExists then means that an earlier request was executed. With `Shared`,
// CreateEphemeral also checks that the znode belongs to this session. If another client deletes the
// znode before the listing, CreateEphemeral creates a new znode. A deletion after the listing is a
// loss, and the owner of the znode learns of it.
//
// After an error, no znode stays: in the background, c.Undo deletes the znodes that may have been
// created. Until `Undo` has ended, their names must not be used again. If c has `Holds`, the error is
// ErrVanished if the znode of the first check does not exist, and NoNode if the znode of another
// check does not exist.
func CreateEphemeral(ctx context.Context, inc *session.Incarnation, c *Creation) (err error) {
	call, err := creation(inc, c)
	if err == nil {
		err = Vet(ctx, inc, c.Dir)
	}
	if err != nil {
		return err
	}
	size, err := reserve(ctx, inc, c.Paths)
	if err != nil {
		return err
	}
	// The parents to create first: Dir and all paths above it. The replies do not matter: if a parent
	// cannot be created, the request for its child fails with NoNode again.
	var missing []string
	open := false // a request without a reply may have created the znodes, or may still create them
	var final error
	end := func(err error) error { // ends the attempts with err, even if err is not the reply to an attempt
		final = err
		return nil
	}
	err = inc.Repeat(ctx, func() error {
		l, err := inc.OpenConn(ctx)
		if err != nil {
			return err
		}
		seen := sighting{over: l}
		b := make(session.Requests, 0, 4) // most batches need no more
		for _, d := range missing {
			session.Add(&b, dirCall(inc, d, c.Dir))
		}
		c.made = session.Add(&b, call)
		sent := len(b)
		c.addReads(&b)
		c.behind = b[sent:]
		if !c.List {
			l.Send(b...)
		} else if c.roll = roll(inc, c.Dir.Path, b...); c.roll.atOnce {
			c.roll.Wait(ctx, inc) // its reply comes after that of c.made, so this goroutine is woken once, not twice
		}
		path, err := c.made.Wait(ctx, inc)
		open = open || session.OutcomeOf(err) == session.Unknown
		switch {
		case err == nil:
			c.Path = cmp.Or(path, c.Paths[0])
		case errors.Is(err, session.ErrEnded):
			return err // the znodes, which are ephemeral, end with the session
		case c.GUID != "" && errors.Is(err, conn.ErrProtocol): // a broken server has not told the completed name
			return end(err)
		case c.GUID != "" && open && ctx.Err() == nil:
			found, e := Find(ctx, inc, c.Dir.Path, c.GUID)
			if e != nil {
				return end(e)
			}
			if found == "" {
				open = false // the znode was not created, and will not be
				return err
			}
			c.Path, c.roll, c.behind = found, nil, nil // the reads may be older than the znode
		case session.IsNodeExists(err) && open:
			if c.Shared {
				stat, e := inc.Exists(ctx, c.Paths[0])
				switch {
				case e != nil:
					return e
				case stat == nil:
					return session.ErrAgain // deleted since the attempt
				case stat.EphemeralOwner != inc.ID.Load():
					open = false // the znode is another session's, so ours does not exist
					return err
				}
				seen.version = stat.Version
			}
			c.Path = c.Paths[0]
		case session.IsNoNode(err) && path == "": // not of a check
			open = false // no parent, so no child
			// With its own ACL, the session must know which parents other clients have created.
			if missing != nil || protects(inc.Manager) {
				if err := MakeDir(ctx, inc, c.Dir); err != nil {
					return end(err)
				}
				missing = nil
				return session.ErrAgain
			}
			for d := c.Dir.Path; d != "/"; d = ParentPath(d) {
				missing = slices.Insert(missing, 0, d)
			}
			return session.ErrAgain
		case session.IsNoNode(err) && path == c.Holds[0].Path:
			return end(session.ErrVanished)
		default:
			return err // a refusal proves nothing about earlier attempts
		}
		open = true
		if err := readBehind(ctx, inc, c); !session.IsNoNode(err) {
			if err == nil && c.Shared {
				of(inc).own.Store(c.Path, seen)
			}
			return end(err)
		}
		// The listing, which is newer than the creation, shows that Dir does not exist. So our znode was
		// deleted, and then Dir. No caller has seen the znode.
		c.Path, open = "", false
		return session.ErrAgain
	})
	if err = cmp.Or(err, final); err != nil && open && !errors.Is(err, session.ErrEnded) {
		c.Undo = undo(inc, c, func() { of(inc).settle(size, nil) }) // until then, the servers may have the znodes
		c.Undo.Await(session.Grace)
		return err
	}
	var made []string
	if err == nil {
		made = append([]string{c.Path}, c.Paths[1:]...)
	}
	of(inc).settle(size, made)
	return err
}

// RoomFor reserves room for the ephemeral znodes that `ops` create, until the caller calls `done`. It
// returns ErrTooLarge if the session cannot have so many. From the reply until `done`, a znode counts
// twice, so another caller at that moment may be refused although there is room.
func RoomFor(ctx context.Context, inc *session.Incarnation, ops ...any) (done func(), err error) {
	var paths []string
	for _, op := range ops {
		if create, ok := op.(*zk.CreateRequest); ok && create.Flags&zk.FlagEphemeral != 0 {
			paths = append(paths, create.Path)
		}
	}
	if len(paths) > 0 {
		paths = append(paths, ChildPath(inc.Manager.Full("/"), LogName)) // the log of the transaction
	}
	size, err := reserve(ctx, inc, paths)
	return func() { of(inc).settle(size, nil) }, err
}

// The function `reserve` is known.reserve. But if there is no room, it first looks which of the
// znodes other clients have deleted, and forgets those. It looks once a second for all callers, so a
// caller may wait that long.
func reserve(ctx context.Context, inc *session.Incarnation, paths []string) (size int, err error) {
	k := of(inc)
	if size, err = k.reserve(paths); err == nil || len(paths) == 0 { // the logs of transactions need no room, so `size` may exceed the limit
		return size, nil
	}
	asked := time.Now()
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return 0, session.CtxErr(ctx)
	case <-inc.Ctx.Done():
		return 0, session.ErrEnded
	}
	if !k.counted.After(asked) {
		if err := session.AwaitIn(ctx, inc, time.After(time.Until(k.counted.Add(time.Second)))); err != nil {
			return 0, err
		}
		k.mu.Lock()
		all, began := slices.Collect(maps.Keys(k.paths)), time.Now()
		k.mu.Unlock()
		nodes, err := GetVisible(ctx, inc, all) // newer than the replies that have reported the creations
		if err != nil {
			return 0, err
		}
		for i, n := range nodes {
			if n.Stat == nil || !Concealed(n) && n.Stat.EphemeralOwner != inc.ID.Load() {
				k.gone(all[i])
			}
		}
		k.counted = began
	}
	return k.reserve(paths)
}

// The function `creation` returns the request that creates the znodes of c.
func creation(inc *session.Incarnation, c *Creation) (session.Call[string], error) {
	m := inc.Manager
	if len(c.Paths) == 1 && len(c.Holds) == 0 {
		flags := int32(zk.FlagEphemeral)
		if c.GUID != "" {
			flags |= zk.FlagSequence
		}
		if SizeOf(m, c.Paths[0], c.Data) > MaxPacket {
			return session.Call[string]{}, session.ErrTooLarge
		}
		return createCall(inc, c.Paths[0], c.Data, flags), nil
	}
	var ops []any
	for _, check := range c.Holds {
		ops = append(ops, check)
	}
	for _, path := range c.Paths {
		ops = append(ops, &zk.CreateRequest{Path: path, Data: c.Data, Acl: m.Config.ACL, Flags: zk.FlagEphemeral})
	}
	multi, holds := multiCall(inc, ops, false), c.Holds
	return session.Call[string]{Op: multi.Op, Body: multi.Body, Judge: func(s *wire.Scanner) (path string, code int32, err error) {
		rs, code, err := multi.Judge(s)
		if failed := FailedOp(rs); failed >= 0 && failed < len(holds) {
			path = holds[failed].Path // of the check
		}
		return path, code, err
	}}, CheckSize(m, ops)
}

// addReads adds the reads of c to b, except that of `List`.
func (c *Creation) addReads(b *session.Requests) {
	if c.Read {
		c.read = session.Add(b, session.GetCall(c.Dir.Path))
	}
	c.lists = session.AddEach(b, c.Also, session.ChildrenCall)
}

// readBehind waits for the reads of c. If one was not answered, readBehind repeats all. The error is
// NoNode if the listing of Dir shows that Dir was deleted since.
func readBehind(ctx context.Context, inc *session.Incarnation, c *Creation) (err error) {
	if c.List {
		if c.roll != nil {
			_, err = c.roll.Wait(ctx, inc)
			if err != nil && session.OutcomeOf(err) == session.Answered {
				return err
			}
		}
		// If the reply was lost, or the connection was replaced between the two requests, list again.
		if c.Roll = c.roll; c.roll == nil || err != nil || !c.roll.Has(BaseName(c.Path)) {
			c.Roll, err = GetRoll(ctx, inc, c.Dir.Path)
		}
		return err
	}
	if c.behind == nil || c.behind.Wait(ctx, inc) != nil {
		if err := inc.RetryAll(ctx, c.addReads); err != nil {
			return err
		}
	}
	if c.Read {
		c.Node, c.ReadErr = c.read.Val, c.read.Err
	}
	for _, l := range c.lists {
		if l.Err != nil && !session.IsNoNode(l.Err) {
			return l.Err
		}
		c.Lists = append(c.Lists, l.Val.Names)
	}
	return nil
}

// The function `undo` deletes, in the background, the znodes that c may have created. It begins when
// the last request of c is over. If that request has no reply, a search looks for the znode of GUID. At
// the end, `undo` calls the function `then`.
func undo(inc *session.Incarnation, c *Creation, then func()) *Deletion {
	made, d := c.made, prepare(inc, &Deletion{Paths: c.Paths, Then: then})
	switch {
	case c.GUID != "" && c.Path != "":
		d.Paths = []string{c.Path}
	case c.GUID != "":
		d.Paths, d.guid = []string{ChildPath(c.Dir.Path, c.GUID)}, c.GUID
	case c.Shared:
		of(inc).own.Delete(c.Paths[0]) // of an earlier znode: SetOwn may have ended after AwaitOwnGone
		d.By = func() error { return RemoveOwn(inc, d.Paths[0], "") }
	}
	made.Then(func(err error) {
		switch {
		case d.guid != "" && err == nil:
			d.found(made.Val)
		case d.guid != "" && session.OutcomeOf(err) != session.Unknown:
			d.over(nil) // nothing was created, and nothing will be
		default:
			d.again(0)
		}
	})
	return d
}

// Find looks for the child of dir whose name begins with guid, and returns its path or "". The result
// is certain, and concurrent calls share their requests: see `search`.
func Find(ctx context.Context, inc *session.Incarnation, dir, guid string) (string, error) {
	d := prepare(inc, &Deletion{Paths: []string{ChildPath(dir, guid)}, guid: guid, keep: true, MayStay: true})
	d.again(0)
	if err := d.Outcome(ctx); err != nil && !session.IsNoNode(err) {
		return "", err
	}
	if d.guid != "" {
		return "", nil
	}
	return d.Paths[0], nil
}

// findIn returns the path of the listed child of dir whose name begins with guid, or with Curator's
// form of guid, or "". Behind another prefix, a name may contain the GUID of another znode.
func findIn(names []string, dir, guid string) string {
	protected := ProtectedName(guid, "")
	for _, name := range names {
		if strings.HasPrefix(name, guid) || strings.HasPrefix(name, protected) {
			return ChildPath(dir, strings.Clone(name))
		}
	}
	return ""
}

// MakeAndLeave creates a persistent znode and deletes `own`, an ephemeral znode with a unique name,
// in one transaction. Then it reads the znode at path. If `made` is true, the read has seen the
// created znode, and has set the watch that the caller had joined. The error is NodeExists if the
// znode exists already, and ErrVanished if `own` does not exist. If `open` is true, the outcome is
// unknown: the session was lost, or the servers refused a read. After any other error, the transaction
// was not applied, and will not be.
//
// MakeAndLeave needs no log, because no client creates the name of `own` again. While `own` exists, no
// attempt was applied; afterwards, none can be applied. The znode at path shows whether our attempt has
// deleted `own`, or another client. If our znode is not at path, the error is ErrVanished. Even then,
// our attempt may have created the znode, and the znode may have been deleted since.
func MakeAndLeave(inc *session.Incarnation, path string, data []byte, own string) (made, open bool, err error) {
	if SizeOf(inc.Manager, path, data)+SizeOf(inc.Manager, own, nil)+256 > MaxPacket {
		return false, false, session.ErrTooLarge
	}
	ctx := context.Background() // ends with the session
	ops := []any{
		&zk.CreateRequest{Path: path, Data: data, Acl: inc.Manager.Config.ACL},
		&zk.DeleteRequest{Path: own, Version: -1},
	}
	var read *session.Pending[session.Node]
	err = inc.Repeat(ctx, func() error {
		var b session.Requests
		txn := session.Add(&b, multiCall(inc, ops, true))
		read = session.Add(&b, session.GetCall(path))
		if err := b.Start(ctx, inc); err != nil {
			return err
		}
		_, err := txn.Wait(ctx, inc)
		open = open || session.OutcomeOf(err) == session.Unknown
		return err
	})
	switch {
	case err == nil:
		// The read over the same connection has seen our znode, or a later znode at path.
		n, e := read.Wait(ctx, inc)
		return e == nil && bytes.Equal(n.Data, data), false, nil
	case session.OutcomeOf(err) != session.Answered: // err is ErrEnded, because ctx does not end
		return false, open, inc.Loss()
	case open:
		// The leader orders refusals like writes, so these reads are newer than all attempts.
		stat, e := inc.Exists(ctx, own)
		if e == nil && stat != nil {
			return false, false, err
		}
		var stored []byte
		if e == nil {
			stored, _, e = inc.Get(ctx, path)
		}
		switch {
		case e == nil && bytes.Equal(stored, data):
			return true, false, nil
		case errors.Is(e, session.ErrEnded):
			return false, true, inc.Loss()
		case e != nil && !session.IsNoNode(e):
			return false, true, e
		}
		return false, false, session.ErrVanished
	case session.IsNoNode(err):
		return false, false, session.ErrVanished // `own` was deleted, with its parent or alone
	}
	return false, false, err
}
