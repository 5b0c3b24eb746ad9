package session

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"
)

// A transaction whose reply is lost may be applied or not, and cannot simply
// be sent again. So it carries a receipt: it also creates a znode of unique
// name. The same transaction, sent again with the same receipt, cannot be
// applied a second time, whenever and through whichever server that happens; and
// if it fails the receipt tells whether the first was applied.

// Within one session the receipt is a page of a book: an ephemeral znode
// below the root, which the session keeps for its transactions, one at a time.
// The first makes it, and each later one sets it at the version that the one
// before has left. So the receipts of a thousand transactions are one znode, in
// a place where nobody else's znodes are: it fires no watch beside them, and is
// not in the way of their deletion.

// Commit applies ops in one transaction, exactly once, within one ZooKeeper
// session. It is ErrLost if that session is lost while the outcome is open.
func (m *Manager) Commit(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	ops, dir, err := m.CheckOps(ops)
	if err != nil {
		return nil, err
	}
	var rs []zk.MultiResponse
	err = m.During(ctx, func(inc *Incarnation) error {
		var err error
		rs, err = inc.Commit(ctx, dir, ops)
		return err
	})
	return rs, err
}

// op is the operation that gives the receipt.
func (r *receipt) op(acl []zk.ACL) any {
	if r.version < 0 {
		return &zk.CreateRequest{Path: r.path, Acl: acl, Flags: zk.FlagEphemeral}
	}
	return &zk.SetDataRequest{Path: r.path, Data: r.said(), Version: r.version}
}

// said is the data of a receipt that is given: of the one that was made none, and else
// what tells it from a bar and from what a stranger writes.
func (r *receipt) said() []byte {
	if r.version < 0 {
		return nil
	}
	return strconv.AppendInt(nil, int64(r.version), 10)
}

// IsReceiptName reports whether a znode is called as the receipt of a transaction across sessions.
func IsReceiptName(name string) bool {
	guid, ok := strings.CutPrefix(name, "_c_")
	guid, ok2 := strings.CutSuffix(guid, "-receipt")
	return ok && ok2 && len(guid) == 36 && uuid.Validate(guid) == nil
}

// IsReceipt reports whether a znode of that name holds what a receipt holds: it was made by its
// transaction, written once more by a later one, or barred.
func IsReceipt(data []byte, stat *zk.Stat) bool {
	r := receipt{version: stat.Version - 1}
	return stat.EphemeralOwner == 0 && (bytes.Equal(data, r.said()) || string(data) == barred)
}

// given reports whether a znode with this Stat, or none, is a given receipt. A
// transaction that has given it is the last that has written the znode.
func (r *receipt) given(stat *zk.Stat) bool { return stat != nil && stat.Version != r.version }

// foreign reports whether a stranger has written a page that looks given, or made it
// again. A Stat is enough, which is shown to whoever may not read: what we write has
// this length.
func (r *receipt) foreign(stat *zk.Stat) bool {
	return r.version >= 0 && (stat.Version != r.version+1 || int(stat.DataLength) != len(r.said()))
}

// Commit is Manager.Commit within inc. dir is where a receipt is made if it
// cannot be in the book; the paths of ops are the server's. commit is
// ErrEnded only if nothing was sent.
func (inc *Incarnation) Commit(ctx context.Context, dir string, ops []any) ([]zk.MultiResponse, error) {
	if page := inc.book.page(inc.Manager.Full("/")); page != nil {
		rs, refused, err := inc.commitWith(ctx, page, ops)
		if !refused {
			return rs, err
		}
		inc.book.refuse()
	}
	once := &receipt{ChildPath(dir, ProtectedName(NewGUID(), "txn")), -1}
	rs, refused, err := inc.commitWith(ctx, once, ops)
	if refused {
		return inc.commitBare(ctx, ops)
	}
	return rs, err
}

// commitWith is commit with this receipt, unless that is refused: then nothing
// has been applied.
//
// The receipt comes last, so that what fails before it is told as it would be
// without it.
func (inc *Incarnation) commitWith(ctx context.Context, r *receipt, ops []any) (rs []zk.MultiResponse, refused bool, err error) {
	all := append(slices.Clip(ops), r.op(inc.Manager.Config.ACL))
	open := false // an attempt without a reply may have been applied, or may be yet
	based := inc.Manager.chroot == ""
	for try := 0; ; try++ {
		var rs []zk.MultiResponse
		p, err := inc.StartMulti(ctx, all)
		if err == nil {
			rs, err = p.Wait(ctx, inc)
			open = open || OutcomeOf(err) == Unknown
		}
		var stat *zk.Stat
		if open && err != nil && OutcomeOf(err) == Answered {
			// Failures too are answered in the servers' one order, so what is
			// read next knows of every attempt before: it has been applied, or
			// never will be.
			var e error
			switch stat, e = inc.Exists(ctx, r.path); {
			case e != nil && OutcomeOf(e) == Answered:
				// The receipt may not be looked at, and is not used any more.
				inc.discardReceipt(p, r.path)
				return nil, false, fmt.Errorf("it may have been applied, and its receipt %s cannot be read: %w", inc.Manager.Bare(r.path), e)
			case e != nil:
				err = e
			case stat == nil && r.version >= 0:
				// The page was there, and somebody else has deleted it.
				return nil, false, fmt.Errorf("it may have been applied: its receipt %s was deleted: %v", inc.Manager.Bare(r.path), err)
			case r.given(stat) && r.foreign(stat):
				// Whether an attempt of ours was before it nobody can say.
				inc.discardReceipt(p, r.path)
				return nil, false, fmt.Errorf("it may have been applied: its receipt %s was written by another: %v", inc.Manager.Bare(r.path), err)
			}
		}
		mine := FailedOp(rs) == len(ops) // it is the receipt that is refused
		switch {
		case err == nil:
			inc.file(r, r.version+1)
			return inc.Manager.BareResponses(rs[:len(ops)]), false, nil
		case r.given(stat):
			rs = inc.Recall(ctx, ops, stat.Mzxid)
			inc.file(r, stat.Version)
			return inc.Manager.BareResponses(rs), false, nil
		case OutcomeOf(err) == Answered && IsNoNode(err) && !based:
			based = true
			if _, e := inc.addDir(ctx, inc.Manager.chroot, Dir{}); e == nil {
				continue
			}
		case OutcomeOf(err) == Answered && mine && r.version >= 0 && (IsNoNode(err) || IsBadVersion(err)):
			// Somebody else has deleted the page, or written it.
			r = &receipt{ChildPath(ParentPath(r.path), ProtectedName(NewGUID(), "txn")), -1}
			all[len(ops)], open = r.op(inc.Manager.Config.ACL), false
			continue
		case OutcomeOf(err) == Answered && mine && errors.Is(err, zk.ErrNoAuth):
			return nil, true, err
		case !errors.Is(err, ErrEnded) && ctx.Err() == nil && OutcomeOf(err) != Answered:
			if err = inc.Pause(ctx, try); err == nil {
				continue
			}
		}
		switch {
		case OutcomeOf(err) == Answered:
			inc.file(r, r.version) // nothing was applied, nor will be
			return inc.Manager.BareResponses(rs[:min(len(rs), len(ops))]), false, err
		case !errors.Is(err, ErrEnded):
			if open {
				// It is in nobody's way, so the session stays though this is refused.
				inc.discardReceipt(p, r.path).Await(Grace)
			} else {
				inc.file(r, r.version)
			}
			return nil, false, CtxErr(ctx)
		case open:
			return nil, false, inc.Loss()
		}
		return nil, false, err
	}
}

// file puts a receipt whose znode has this version into the book for the next
// transaction, or deletes the znode. Where that is not allowed it stays as long
// as the session.
//
// A receipt that lies elsewhere is deleted before the caller goes on: it would
// be in the way of the deletion of what it lies in.
func (inc *Incarnation) file(r *receipt, version int32) {
	r.version = version
	switch {
	case ParentPath(r.path) == inc.Manager.Full("/") && inc.book.keep(r), version < 0:
	case ParentPath(r.path) == inc.Manager.Full("/"):
		inc.reap(&Removal{path: r.path, kind: removeOnce})
	default:
		inc.reap(&Removal{path: r.path, kind: removeOnce}).Await(ReleaseTime)
	}
}

// commitBare is commit where no receipt may be made: it does not try again
// unless nothing was sent.
func (inc *Incarnation) commitBare(ctx context.Context, ops []any) (rs []zk.MultiResponse, err error) {
	err = inc.repeat(ctx, func(a *attempts) error {
		p, err := inc.StartMulti(ctx, ops)
		if err != nil {
			return err
		}
		rs, err = p.Wait(ctx, inc)
		switch {
		case errors.Is(err, ErrEnded):
			return a.last(inc.Loss())
		case OutcomeOf(err) == Unknown && ctx.Err() == nil:
			return a.last(fmt.Errorf("it may have been applied, and without permission to create beside it that cannot be found out: %w", err))
		}
		return err
	})
	return inc.Manager.BareResponses(rs), err
}

// Recall finds out the responses of a transaction that was applied at zxid, but
// whose reply was lost. What others have changed since cannot be found out.
func (inc *Incarnation) Recall(ctx context.Context, ops []any, zxid int64) []zk.MultiResponse {
	rs := presumed(ops)
	found := make(map[string]bool)
	for i, op := range slices.Backward(ops) {
		switch op := op.(type) {
		case *zk.SetDataRequest:
			if stat, err := inc.Exists(ctx, op.Path); err == nil && stat != nil && stat.Mzxid == zxid {
				rs[i].Stat = stat
			}
		case *zk.CreateRequest:
			if op.Flags&zk.FlagSequence == 0 {
				continue
			}
			dir, base := op.Path[:strings.LastIndexByte(op.Path, '/')], op.Path[strings.LastIndexByte(op.Path, '/')+1:]
			names, _, _ := inc.Children(ctx, cmp.Or(dir, "/"))
			slices.Sort(names) // the newest last; several of one prefix were numbered in their order
			for _, name := range slices.Backward(names) {
				if _, ok := ParseSeq(strings.TrimPrefix(name, base)); !ok || !strings.HasPrefix(name, base) || found[dir+"/"+name] {
					continue
				}
				stat, err := inc.Exists(ctx, dir+"/"+name)
				if err != nil || stat != nil && stat.Czxid < zxid {
					break // it is gone
				}
				if stat != nil && stat.Czxid == zxid {
					rs[i].String = dir + "/" + name
					found[rs[i].String] = true
					break
				}
			}
		}
	}
	return rs
}

// presumed is what is known without asking of the responses of a transaction
// that was applied: the paths that are not sequential.
func presumed(ops []any) []zk.MultiResponse {
	rs := make([]zk.MultiResponse, len(ops))
	for i, op := range ops {
		if c, ok := op.(*zk.CreateRequest); ok && c.Flags&zk.FlagSequence == 0 {
			rs[i].String = c.Path
		}
	}
	return rs
}

// BareResponses takes the chroot off the paths of rs.
func (m *Manager) BareResponses(rs []zk.MultiResponse) []zk.MultiResponse {
	for i := range rs {
		if rs[i].String != "" {
			rs[i].String = m.Bare(rs[i].String)
		}
	}
	return rs
}

// CheckOps refuses operations that cannot be sent, gives copies of the others
// the chroot and says beside which path a receipt can be made. They are copies
// because they may be sent when the caller has gone, and uses its buffers for
// something else. extra are the server's paths of what else will be named in
// the transaction.
func (m *Manager) CheckOps(ops []any, extra ...string) (full []any, dir string, err error) {
	if len(ops) == 0 {
		return nil, "", Invalid("a transaction needs at least one operation")
	}
	full = make([]any, len(ops))
	size, created := 256, false
	for i, op := range ops {
		if v := reflect.ValueOf(op); v.Kind() == reflect.Pointer && v.IsNil() {
			return nil, "", Invalid("operation %d is nil", i)
		}
		var path string
		var data []byte
		creates := false
		switch op := op.(type) {
		case *zk.CreateRequest:
			if op.Flags&^zk.FlagEphemeralSequential != 0 {
				return nil, "", Invalid("operation %d has flags %d; a transaction creates persistent and ephemeral znodes, sequential or not", i, op.Flags)
			}
			r := *op
			path, data, creates = op.Path, op.Data, true
			r.Path, r.Data, r.Acl = m.Full(path), bytes.Clone(data), slices.Clone(op.Acl)
			if len(r.Acl) == 0 {
				r.Acl = m.Config.ACL
			}
			size += sizeOfACL(r.Acl)
			full[i] = &r
		case *zk.SetDataRequest:
			path, data = op.Path, op.Data
			full[i] = &zk.SetDataRequest{Path: m.Full(path), Data: bytes.Clone(data), Version: op.Version}
		case *zk.DeleteRequest:
			path = op.Path
			full[i] = &zk.DeleteRequest{Path: m.Full(path), Version: op.Version}
		case *zk.CheckVersionRequest:
			path = op.Path
			full[i] = &zk.CheckVersionRequest{Path: m.Full(path), Version: op.Version}
		default:
			return nil, "", Invalid("operation %d is a %T; want *zk.CreateRequest, *zk.SetDataRequest, *zk.DeleteRequest or *zk.CheckVersionRequest", i, op)
		}
		size += m.SizeOf(m.Full(path), data)
		if creates && !created || dir == "" {
			created, dir = creates, ParentPath(m.Full(path))
		}
		if err := checkOpPath(op, path); err != nil {
			return nil, "", fmt.Errorf("operation %d: %w", i, err)
		}
	}
	// A receipt cannot be made in what is deleted.
	for slices.ContainsFunc(full, func(op any) bool { d, ok := op.(*zk.DeleteRequest); return ok && d.Path == dir }) {
		dir = ParentPath(dir)
	}
	for _, path := range append(extra, ChildPath(dir, ReceiptName)) {
		size += m.SizeOf(path, nil)
	}
	if size > MaxPacket {
		return nil, "", fmt.Errorf("transaction of %d operations: %w", len(ops), ErrTooLarge)
	}
	return full, dir, nil
}

// ReceiptName is as long as the name of a receipt may be.
const ReceiptName = "_c_xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx-receipt"

// checkOpPath is CheckPath, but the path of a sequential create may end in a
// slash: the number is then the whole name.
func checkOpPath(op any, path string) error {
	if c, ok := op.(*zk.CreateRequest); ok && c.Flags&zk.FlagSequence != 0 && len(path) > 1 && path[len(path)-1] == '/' {
		path += "0"
	}
	return CheckPathText(path)
}

// FailedOp returns the index of the operation that failed a transaction.
func FailedOp(rs []zk.MultiResponse) int {
	for i, r := range rs {
		if r.Error != nil {
			return i
		}
	}
	return -1
}
