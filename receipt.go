package zsync

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
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

// commit applies ops in one transaction, exactly once, within one ZooKeeper
// session. It is ErrLost if that session is lost while the outcome is open.
func (m *manager) commit(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	ops, dir, err := m.checkOps(ops)
	if err != nil {
		return nil, err
	}
	var rs []zk.MultiResponse
	err = m.during(ctx, func(inc *incarnation) error {
		var err error
		rs, err = inc.commit(ctx, dir, ops)
		return err
	})
	return rs, err
}

// A receipt is what a transaction writes beside what it is for.
type receipt struct {
	path    string
	version int32 // before the transaction; -1 if there is no such znode yet
}

// op is the operation that gives the receipt.
func (r *receipt) op(acl []zk.ACL) any {
	if r.version < 0 {
		return &zk.CreateRequest{Path: r.path, Acl: acl, Flags: zk.FlagEphemeral}
	}
	return &zk.SetDataRequest{Path: r.path, Version: r.version}
}

// given reports whether a znode with this Stat, or none, is a given receipt. A
// transaction that has given it is the last that has written the znode.
func (r *receipt) given(stat *zk.Stat) bool { return stat != nil && stat.Version != r.version }

// A book is the pages for receipts that no transaction uses at present.
type book struct {
	mu    sync.Mutex
	pages []*receipt
	none  bool // the servers refuse it
}

// maxPages is how many pages are kept; more are deleted when they have been
// used. lastVersion is the version at which a page is full: it must not become
// -1, which is any.
const (
	maxPages    = 16
	lastVersion = math.MaxInt32 - 1
)

// page takes a page out of the book, or a new one. It is nil if there is no
// book.
func (b *book) page(root string) *receipt {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.none {
		return nil
	}
	if n := len(b.pages); n > 0 {
		r := b.pages[n-1]
		b.pages = b.pages[:n-1]
		return r
	}
	return &receipt{childPath(root, protectedName(newGUID(), "txn")), -1}
}

// keep puts a page back, and reports whether there was room.
func (b *book) keep(r *receipt) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pages) >= maxPages || r.version >= lastVersion {
		return false
	}
	b.pages = append(b.pages, r)
	return true
}

// refuse has every transaction of the session write its receipt elsewhere.
func (b *book) refuse() {
	b.mu.Lock()
	b.none = true
	b.mu.Unlock()
}

// commit is manager.commit within inc. dir is where a receipt is made if it
// cannot be in the book; the paths of ops are the server's. commit is
// errEnded only if nothing was sent.
func (inc *incarnation) commit(ctx context.Context, dir string, ops []any) ([]zk.MultiResponse, error) {
	if page := inc.book.page(inc.m.full("/")); page != nil {
		rs, refused, err := inc.commitWith(ctx, page, ops)
		if !refused {
			return rs, err
		}
		inc.book.refuse()
	}
	once := &receipt{childPath(dir, protectedName(newGUID(), "txn")), -1}
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
func (inc *incarnation) commitWith(ctx context.Context, r *receipt, ops []any) (rs []zk.MultiResponse, refused bool, err error) {
	all := append(slices.Clip(ops), r.op(inc.m.cfg.acl))
	open := false // an attempt without a reply may have been applied, or may be yet
	based := inc.m.chroot == ""
	for try := 0; ; try++ {
		var rs []zk.MultiResponse
		p, err := inc.beginMulti(ctx, all)
		if err == nil {
			rs, err = p.wait(ctx, inc)
			open = open || outcomeOf(err) == unknown
		}
		var stat *zk.Stat
		if open && err != nil && outcomeOf(err) == answered {
			// Failures too are answered in the servers' one order, so what is
			// read next knows of every attempt before: it has been applied, or
			// never will be.
			var e error
			if stat, e = inc.exists(ctx, r.path); e != nil {
				err = e
			}
		}
		mine := failedOp(rs) == len(ops) // it is the receipt that is refused
		switch {
		case err == nil:
			inc.file(r, r.version+1)
			return inc.m.bareResponses(rs[:len(ops)]), false, nil
		case r.given(stat):
			rs = inc.recall(ctx, ops, stat.Mzxid)
			inc.file(r, stat.Version)
			return inc.m.bareResponses(rs), false, nil
		case outcomeOf(err) == answered && isNoNode(err) && !based:
			if based = true; inc.makeDir(ctx, inc.m.chroot) == nil {
				continue
			}
		case outcomeOf(err) == answered && mine && r.version >= 0 && (isNoNode(err) || isBadVersion(err)):
			// Somebody else has deleted the page, or written it.
			if open && stat == nil {
				return nil, false, fmt.Errorf("it may have been applied: its receipt %s was deleted: %w", inc.m.bare(r.path), err)
			}
			r = &receipt{childPath(parentPath(r.path), protectedName(newGUID(), "txn")), -1}
			all[len(ops)], open = r.op(inc.m.cfg.acl), false
			continue
		case outcomeOf(err) == answered && mine && errors.Is(err, zk.ErrNoAuth):
			return nil, true, err
		case !errors.Is(err, errEnded) && ctx.Err() == nil && outcomeOf(err) != answered:
			if err = inc.pause(ctx, try); err == nil {
				continue
			}
		}
		switch {
		case outcomeOf(err) == answered:
			inc.file(r, r.version) // nothing was applied, nor will be
			return inc.m.bareResponses(rs[:min(len(rs), len(ops))]), false, err
		case !errors.Is(err, errEnded):
			if open {
				inc.discard(p, []string{r.path}).await(grace)
			} else {
				inc.file(r, r.version)
			}
			return nil, false, ctxErr(ctx)
		case open:
			return nil, false, inc.loss()
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
func (inc *incarnation) file(r *receipt, version int32) {
	r.version = version
	switch {
	case parentPath(r.path) == inc.m.full("/") && inc.book.keep(r), version < 0:
	case parentPath(r.path) == inc.m.full("/"):
		inc.m.spawn(func() { inc.removeNow(context.Background(), r.path) })
	default:
		gone := make(chan struct{})
		inc.m.spawn(func() {
			defer close(gone)
			inc.removeNow(context.Background(), r.path)
		})
		select {
		case <-gone:
		case <-inc.disconnection():
		case <-inc.ctx.Done():
		case <-time.After(releaseTime):
		}
	}
}

// commitBare is commit where no receipt may be made: it does not try again
// unless nothing was sent.
func (inc *incarnation) commitBare(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	for try := 0; ; try++ {
		var rs []zk.MultiResponse
		p, err := inc.beginMulti(ctx, ops)
		if err != nil {
			return nil, err
		}
		rs, err = p.wait(ctx, inc)
		switch {
		case outcomeOf(err) == answered:
			return inc.m.bareResponses(rs), err
		case errors.Is(err, errEnded):
			return nil, inc.loss()
		case ctx.Err() != nil:
			return nil, ctxErr(ctx)
		case outcomeOf(err) == unknown:
			return nil, fmt.Errorf("it may have been applied, and without permission to create beside it that cannot be found out: %w", err)
		}
		if err := inc.pause(ctx, try); err != nil {
			return nil, err
		}
	}
}

// recall finds out the responses of a transaction that was applied at zxid, but
// whose reply was lost. What others have changed since cannot be found out.
func (inc *incarnation) recall(ctx context.Context, ops []any, zxid int64) []zk.MultiResponse {
	rs := presumed(ops)
	found := make(map[string]bool)
	for i, op := range slices.Backward(ops) {
		switch op := op.(type) {
		case *zk.SetDataRequest:
			if stat, err := inc.exists(ctx, op.Path); err == nil && stat != nil && stat.Mzxid == zxid {
				rs[i].Stat = stat
			}
		case *zk.CreateRequest:
			if op.Flags&zk.FlagSequence == 0 {
				continue
			}
			dir, base := op.Path[:strings.LastIndexByte(op.Path, '/')], op.Path[strings.LastIndexByte(op.Path, '/')+1:]
			names, _, _ := inc.children(ctx, cmp.Or(dir, "/"))
			slices.Sort(names) // the newest last; several of one prefix were numbered in their order
			for _, name := range slices.Backward(names) {
				if _, ok := parseSeq(strings.TrimPrefix(name, base)); !ok || !strings.HasPrefix(name, base) || found[dir+"/"+name] {
					continue
				}
				stat, err := inc.exists(ctx, dir+"/"+name)
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

// bareResponses takes the chroot off the paths of rs.
func (m *manager) bareResponses(rs []zk.MultiResponse) []zk.MultiResponse {
	for i := range rs {
		if rs[i].String != "" {
			rs[i].String = m.bare(rs[i].String)
		}
	}
	return rs
}

// checkOps refuses operations that cannot be sent, gives copies of the others
// the chroot and says beside which path a receipt can be made. They are copies
// because they may be sent when the caller has gone, and uses its buffers for
// something else. extra are the server's paths of what else will be named in
// the transaction.
func (m *manager) checkOps(ops []any, extra ...string) (full []any, dir string, err error) {
	if len(ops) == 0 {
		return nil, "", invalid("a transaction needs at least one operation")
	}
	full = make([]any, len(ops))
	size, created := 256, false
	for i, op := range ops {
		if v := reflect.ValueOf(op); v.Kind() == reflect.Pointer && v.IsNil() {
			return nil, "", invalid("operation %d is nil", i)
		}
		var path string
		var data []byte
		creates := false
		switch op := op.(type) {
		case *zk.CreateRequest:
			if op.Flags&^zk.FlagEphemeralSequential != 0 {
				return nil, "", invalid("operation %d has flags %d; a transaction creates persistent and ephemeral znodes, sequential or not", i, op.Flags)
			}
			r := *op
			path, data, creates = op.Path, op.Data, true
			r.Path, r.Data, r.Acl = m.full(path), bytes.Clone(data), slices.Clone(op.Acl)
			if len(r.Acl) == 0 {
				r.Acl = m.cfg.acl
			}
			size += sizeOfACL(r.Acl)
			full[i] = &r
		case *zk.SetDataRequest:
			path, data = op.Path, op.Data
			full[i] = &zk.SetDataRequest{Path: m.full(path), Data: bytes.Clone(data), Version: op.Version}
		case *zk.DeleteRequest:
			path = op.Path
			full[i] = &zk.DeleteRequest{Path: m.full(path), Version: op.Version}
		case *zk.CheckVersionRequest:
			path = op.Path
			full[i] = &zk.CheckVersionRequest{Path: m.full(path), Version: op.Version}
		default:
			return nil, "", invalid("operation %d is a %T; want *zk.CreateRequest, *zk.SetDataRequest, *zk.DeleteRequest or *zk.CheckVersionRequest", i, op)
		}
		size += m.sizeOf(m.full(path), data)
		if creates && !created || dir == "" {
			created, dir = creates, parentPath(m.full(path))
		}
		if err := checkOpPath(op, path); err != nil {
			return nil, "", fmt.Errorf("operation %d: %w", i, err)
		}
	}
	// A receipt cannot be made in what is deleted.
	for slices.ContainsFunc(full, func(op any) bool { d, ok := op.(*zk.DeleteRequest); return ok && d.Path == dir }) {
		dir = parentPath(dir)
	}
	for _, path := range append(extra, childPath(dir, receiptName)) {
		size += m.sizeOf(path, nil)
	}
	if size > maxPacket {
		return nil, "", fmt.Errorf("transaction of %d operations: %w", len(ops), ErrTooLarge)
	}
	return full, dir, nil
}

// receiptName is as long as the name of a receipt.
const receiptName = "_c_xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx-txn"

// checkOpPath is checkPath, but the path of a sequential create may end in a
// slash: the number is then the whole name.
func checkOpPath(op any, path string) error {
	if c, ok := op.(*zk.CreateRequest); ok && c.Flags&zk.FlagSequence != 0 && len(path) > 1 && path[len(path)-1] == '/' {
		path += "0"
	}
	return checkPathText(path)
}

// commitOnce applies ops in one transaction, exactly once, through as many
// sessions as it takes. The receipt is a persistent child of the container
// receipts; it and the paths of ops are the server's.
//
// An attempt of a former session may still be on its way to the leader when
// the next is made: whichever comes first creates the receipt, and the other
// fails. So the receipt must outlive every attempt. After a change of session
// it is deleted only when the former session cannot exist any more; a process
// that ends before leaves it.
//
// When ctx ends first the outcome is unknown to the caller: all of ops or none.
// So it is after an error that says so. After any other error nothing has been
// applied, nor will be.
func (m *manager) commitOnce(ctx context.Context, receipts string, ops []any) ([]zk.MultiResponse, error) {
	receipt := childPath(receipts, newGUID())
	all := append([]any{&zk.CreateRequest{Path: receipt, Acl: m.cfg.acl}}, ops...)
	var rs []zk.MultiResponse
	var last *incarnation
	open := false  // an attempt without a reply may have been applied, or may be yet
	moved := false // one of them was made in a former session
	err := m.during(ctx, func(inc *incarnation) error {
		moved = moved || open && last != inc
		last = inc
		// What only deletes makes no directory. See below.
		if _, deletes := ops[0].(*zk.DeleteRequest); !deletes || len(ops) > 1 {
			if err := inc.vet(ctx, receipts, nil); err != nil {
				return err
			}
		}
		for try := 0; ; try++ {
			var got []zk.MultiResponse
			p, err := inc.beginMulti(ctx, all)
			if err == nil {
				got, err = p.wait(ctx, inc)
				open = open || outcomeOf(err) == unknown
			}
			mine := len(got) > 0
			switch {
			case err == nil:
				rs = got[1:]
				return nil
			case errors.Is(err, errEnded):
				return err
			case ctx.Err() != nil && outcomeOf(err) != answered:
				return ctxErr(ctx)
			case mine && isNodeExists(got[0].Error):
				rs = presumed(ops)
				return nil
			case mine && isNoNode(got[0].Error):
				open = open && moved // where there is no directory there is no receipt
				// Nothing is made for what finds nothing to delete: a container
				// that never has a child is never removed.
				if d, ok := ops[0].(*zk.DeleteRequest); ok && !moved {
					if rs, err = inc.multi(ctx, &zk.CheckVersionRequest{Path: d.Path, Version: -1}); err != nil {
						return err
					}
				}
				if err := inc.makeDir(ctx, receipts); err != nil {
					return err
				}
				continue
			case outcomeOf(err) == answered:
				if mine {
					rs = got[1:]
				}
				if open {
					absent := mine && got[0].Error == nil // the receipt could be made: what failed is behind it
					applied, e := inc.settle(ctx, receipt, moved, absent)
					if e != nil {
						return e
					}
					open = false
					if applied {
						rs = presumed(ops)
						return nil
					}
				}
				return err
			}
			if err := inc.pause(ctx, try); err != nil {
				return err
			}
		}
	})
	// A receipt that bars what a former session may still send is deleted as
	// late as one that was given.
	if last != nil && (err == nil || open || moved) {
		m.dropReceipt(last, receipt, moved || err != nil)
	}
	switch {
	case err == nil || !open || ctx.Err() != nil:
	case isNoNode(err), isNodeExists(err), isBadVersion(err):
		err = fmt.Errorf("it may have been applied: %v", err) // not the answer to ops, for which callers would take it
	default:
		err = fmt.Errorf("it may have been applied: %w", err)
	}
	return m.bareResponses(rs), err
}

// settle finds out, after an attempt that was refused, whether one before it
// that had no reply has been applied, and sees to it that none will be. absent
// is that the refusal was such that there was no receipt then.
//
// Within one session no attempt comes late (see find). So no receipt at the
// refusal means that none was applied; but a refusal of the receipt itself, such
// as NoAuth, which servers find before NodeExists, or of the whole request says
// nothing of those before it.
//
// An attempt of a former session can still come, and may then find the state that
// it wants. The receipt alone bars it.
func (inc *incarnation) settle(ctx context.Context, receipt string, moved, absent bool) (applied bool, err error) {
	switch {
	case moved:
		return inc.bar(ctx, receipt)
	case absent:
		return false, nil
	}
	if err := inc.sync(ctx, receipt); err != nil {
		return false, err
	}
	stat, err := inc.exists(ctx, receipt)
	return stat != nil, err
}

// bar creates a receipt without its transaction, so that no attempt can be
// applied any more, unless one has been already: that is reported.
func (inc *incarnation) bar(ctx context.Context, receipt string) (applied bool, err error) {
	const mark = "barred"
	created, err := inc.create(ctx, receipt, []byte(mark))
	if err != nil && outcomeOf(err) != answered || created {
		return false, err
	}
	// It is there already; the reply of our own create may have been lost. Where
	// the create was refused it may be there as well: the attempt came before
	// whoever refuses it.
	if err != nil {
		if e := inc.sync(ctx, receipt); e != nil {
			return false, e
		}
	}
	data, _, e := inc.get(ctx, receipt)
	if e != nil {
		return false, cmp.Or(err, e)
	}
	return string(data) != mark, nil
}

// removeSoon deletes a persistent znode in the background, in this session or,
// if it ends first, the next. What the servers refuse is tried again in this
// session alone.
func (m *manager) removeSoon(inc *incarnation, path string) *removal {
	return inc.inBackground(path, func() error {
		ctx := context.Background() // ends with the Session
		return m.during(ctx, func(inc *incarnation) error { return inc.removeNow(ctx, path) })
	})
}

// dropReceipt deletes a receipt in the background: at once, or when no attempt
// that carries it can still be on its way.
func (m *manager) dropReceipt(inc *incarnation, receipt string, later bool) {
	if !later {
		m.tidy(m.removeSoon(inc, receipt))
		return
	}
	wait := 2 * time.Duration(inc.timeout.Load())
	m.spawn(func() {
		select {
		case <-time.After(wait):
		case <-m.closing:
			return
		}
		m.removeSoon(inc, receipt)
	})
}
