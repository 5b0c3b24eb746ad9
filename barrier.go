package zsync

import (
	"context"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/txn"
	"github.com/zsync/zsync/internal/znodes"
)

// A Barrier is a gate that any process can close and open:
//
//	err := b.Close(ctx) // from now on, Wait blocks
//	err = b.Wait(ctx)   // returns when the barrier is open
//	err = b.Open(ctx)   // releases every waiter
//
// A new Barrier is open. After Close has returned, a new Wait waits for the next Open. Open
// releases every Wait that is waiting at that moment, even if another Close follows at once. Open
// synchronizes before these Waits return.
//
// # Loss
//
// A Barrier belongs to no session: it stays closed if its closer dies.
//
// # Cost
//
// A method takes 1 round trip; on a closed Barrier, Wait also gets an event.
//
// # Znodes
//
// The Barrier is closed while the persistent znode path exists, as in Curator and kazoo. Nothing
// else may use path, or a path below it.
type Barrier struct {
	made
}

// The protocol is "Barriers" from the ZooKeeper recipes:
//
//  1. Wait reads the znode and leaves a watch.
//  2. If there is no znode, Wait returns.
//  3. If the znode exists, Wait waits for its deletion.
//
// Close creates the znode and Open deletes it. After a lost reply, neither may simply be repeated:
// another process may have opened or closed the barrier, and the repetition would undo that. A
// deletion leaves no trace, so both are transactions with a receipt.

// NewBarrier returns the Barrier at path.
func NewBarrier(s *Session, path string) *Barrier {
	return &Barrier{made{s: s, path: path, err: checkNew(s, path, nil)}}
}

// Close closes b. Closing a closed Barrier is no error.
func (b *Barrier) Close(ctx context.Context) error {
	err := b.change(ctx, func(znode string) any {
		m := b.s.m
		owner := strings.ReplaceAll(m.Config.Owner, "\n", " ") // one line: the last of several could mark a Dir
		return &zk.CreateRequest{Path: znode, Data: []byte(marks.Gate + owner), Acl: m.Config.ACL}
	})
	if session.IsNodeExists(err) {
		// The znode exists. Check that its ACL is narrow enough, and that it is the znode of a
		// barrier. NoNode means that another process has opened the barrier since.
		err = b.s.m.During(ctx, func(inc *session.Incarnation) error {
			znode := b.s.m.Full(b.path)
			if err := znodes.VetNow(ctx, inc, znode); err != nil {
				return err
			}
			_, _, err := znodes.GetMade(ctx, inc, znode, inc.Get)
			return err
		})
	}
	return opError("close", b.path, unlessNoNode(err))
}

// Open opens b and releases every waiter. Opening an open Barrier is no error.
func (b *Barrier) Open(ctx context.Context) error {
	err := b.change(ctx, func(znode string) any { return &zk.DeleteRequest{Path: znode, Version: -1} })
	if session.IsAnswer(err, zk.ErrNotEmpty) { // the znode of a barrier has no children
		err = znodes.Mixed(b.s.m, b.s.m.Full(b.path))
	}
	return opError("open", b.path, unlessNoNode(err))
}

func unlessNoNode(err error) error {
	if session.IsNoNode(err) {
		return nil
	}
	return err
}

// The method `change` applies one operation to the znode exactly once. If there is nothing to
// change, the error is NodeExists or NoNode.
func (b *Barrier) change(ctx context.Context, op func(znode string) any) error {
	if err := b.check(ctx); err != nil {
		return err
	}
	znode := b.s.m.Full(b.path)
	// The receipts are below a sibling of the znode. A client that creates this sibling has created
	// the parent of both. So only Open can get NoNode.
	_, err := txn.Across(ctx, b.s.m, znode+"-receipts", []any{op(znode)})
	return err
}

// Wait returns when b is open.
func (b *Barrier) Wait(ctx context.Context) error {
	var closed *zk.Stat // Stat of the znode that we wait for; nil before the first read
	return b.waiting(ctx, "barrier", func(ctx context.Context) error {
		b.s.m.Waiters.Add(1)
		defer b.s.m.Waiters.Add(-1)
		return b.s.m.During(ctx, func(inc *session.Incarnation) error {
			key := conn.WatchKey{Kind: conn.WatchData, Path: b.s.m.Full(b.path)}
			read := inc.GetFresh // a server that lags could show a closed barrier as open
			return inc.EachChange(ctx, key, 0, func(w *conn.Watch) (open bool, err error) {
				_, stat, err := znodes.GetMade(ctx, inc, key.Path, read) // Step 1.
				read = inc.Get
				switch {
				case session.IsNoNode(err): // Step 2.
					return true, nil
				case err != nil:
					return false, err
				case closed == nil:
					closed = stat
				case closed.Czxid != stat.Czxid, closed.Ctime != stat.Ctime: // Ctime too, because zxids begin again if the servers lose their data
					return true, nil // between two reads, other processes have opened and closed the barrier, and the opening released us
				}
				// Other goroutines share this watch, so it may be older than this call, and its event may
				// report an opening before the call. The order of the event and the read is unknown, so read
				// again. If the barrier was opened after the call, and closed again, its znode is another one.
				if session.IsClosed(w.Fired) {
					return false, nil
				}
				if err := session.AwaitIn(ctx, inc, w.Fired); err != nil { // Step 3.
					return false, err
				}
				return w.Event == zk.EventNodeDeleted, nil
			})
		})
	})
}
