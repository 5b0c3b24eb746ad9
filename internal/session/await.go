package session

// This file waits until znodes are deleted or created, or until a watch fires. The caller decides
// what the end of the wait means.

import (
	"context"
	"runtime"
	"time"
	"weak"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
)

// AwaitGone waits until there is no znode at path. It lists the znode's children and sets a watch on
// them. An ephemeral znode has no children, so the watch fires only when the znode is deleted, and not
// at a change of its data, such as a fencing token.
func (inc *Incarnation) AwaitGone(ctx context.Context, path string) error {
	return inc.WhileThere(ctx, path, func(*zk.Stat, *conn.Watch) error { return nil })
}

// WhileThere is AwaitGone with one difference: before each wait, it calls f with the znode's Stat
// and the watch w. An error of f ends the wait.
func (inc *Incarnation) WhileThere(ctx context.Context, path string, f func(stat *zk.Stat, w *conn.Watch) error) error {
	key := conn.WatchKey{Kind: conn.WatchChildren, Path: path}
	return inc.EachChange(ctx, key, zk.EventNodeDeleted, func(w *conn.Watch) (gone bool, err error) {
		_, stat, err := inc.Children(ctx, path)
		if err == nil {
			err = f(stat, w)
		}
		if IsNoNode(err) {
			return true, nil
		}
		return false, err
	})
}

// EachChange joins the watch of `key`, calls `look`, which reads the znode, and waits until the watch
// has fired. It repeats these steps until `look` returns true or an error, or the event is `last`.
func (inc *Incarnation) EachChange(ctx context.Context, key conn.WatchKey, last zk.EventType, look func(w *conn.Watch) (over bool, err error)) error {
	for {
		w := inc.Watches.Join(key)
		over, err := look(w)
		if err == nil && !over {
			err = AwaitIn(ctx, inc, w.Fired)
			over = err == nil && w.Event == last
		}
		inc.Watches.Leave(w)
		if err != nil || over {
			return err
		}
	}
}

// Follow calls f with the znode at path, now and after each change, until f returns an error. While
// there is no znode, Follow waits for one. The watch w fires at the next change. f may return
// before that.
func (inc *Incarnation) Follow(ctx context.Context, path string, f func(n Node, w *conn.Watch) error) error {
	for {
		err := inc.EachChange(ctx, conn.WatchKey{Kind: conn.WatchData, Path: path}, 0, func(w *conn.Watch) (missing bool, err error) {
			data, stat, err := inc.Get(ctx, path)
			if IsNoNode(err) {
				return true, nil
			}
			if err == nil {
				err = f(Node{data, stat}, w)
			}
			return false, err
		})
		if err == nil {
			err = inc.AwaitMade(ctx, path)
		}
		if err != nil {
			return err
		}
	}
}

// Offer sends v on the channel `out`, and reports whether a reader has received it. If `changed` or
// `lost` is ready first, v is out of date, and Offer returns false.
func Offer[T any](ctx context.Context, out chan<- T, v T, changed, lost <-chan struct{}) (sent bool, err error) {
	select {
	case out <- v:
		return true, nil
	case <-changed:
		return false, nil
	case <-lost:
		return false, nil
	case <-ctx.Done():
		return false, CtxErr(ctx)
	}
}

// StayJoined keeps a caller that has joined w joined, while `owner` is in use. The caller or the
// garbage collector leaves w; the caller calls `leave`.
//
// The cleanup has weak pointers: a session leads to functions of the program, such as its Observer, and
// they may lead to the owner, which would then never be freed.
func StayJoined[T any](owner *T, inc *Incarnation, w *conn.Watch) (leave func()) {
	within := weak.Make(inc)
	cleanup := runtime.AddCleanup(owner, func(w weak.Pointer[conn.Watch]) {
		if inc, w := within.Value(), w.Value(); inc != nil && w != nil {
			inc.Watches.Leave(w)
		}
	}, weak.Make(w))
	return func() {
		cleanup.Stop()
		if inc := within.Value(); inc != nil {
			inc.Watches.Leave(w)
		}
	}
}

// AwaitMade waits until a znode exists at path. AwaitMade also returns if a znode was created there
// during the call and has been deleted since.
func (inc *Incarnation) AwaitMade(ctx context.Context, path string) error {
	key := conn.WatchKey{Kind: conn.WatchExists, Path: path}
	return inc.EachChange(ctx, key, zk.EventNodeCreated, func(*conn.Watch) (there bool, err error) {
		stat, err := inc.Exists(ctx, path)
		return stat != nil, err
	})
}

// AwaitAny waits until one of `watches` has fired. It also returns at the time `due`, unless `due`
// is zero.
func (inc *Incarnation) AwaitAny(ctx context.Context, watches []*conn.Watch, due time.Time) error {
	over := make(chan struct{}, len(watches)+1) // has room for every sender
	for _, w := range watches {
		inc.Watches.Tell(w, over, func() { over <- struct{}{} })
		defer inc.Watches.Untell(w, over)
	}
	if !due.IsZero() {
		defer time.AfterFunc(time.Until(due), func() { over <- struct{}{} }).Stop()
	}
	return AwaitIn(ctx, inc, over)
}

// AwaitConnected is AwaitFor for an operation that needs the servers. So it also returns without a
// connection, or after the end of the session.
func (inc *Incarnation) AwaitConnected(done <-chan struct{}, limit time.Duration) {
	timer, ok := inc.timers.Get().(*time.Timer) // every release waits here
	if !ok {
		timer = time.NewTimer(limit)
	}
	timer.Reset(limit)
	select {
	case <-done:
	case <-inc.Disconnection():
	case <-inc.Ctx.Done():
	case <-timer.C:
	}
	timer.Stop()
	inc.timers.Put(timer)
}
