package session

// This file waits until znodes are deleted or created, or until a watch fires. The caller decides
// what the end of the wait means.

import (
	"context"
	"reflect"
	"runtime"
	"time"
	"weak"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
)

// AwaitGone waits until there is no znode at path. The call costs one request, which lists the
// znode's children and sets a watch on them. An ephemeral znode has no children, so the watch fires
// only when the znode is deleted. A change of its data, such as a fencing token, does not wake the
// caller.
func (inc *Incarnation) AwaitGone(ctx context.Context, path string) error {
	return inc.WhileThere(ctx, path, func(*zk.Stat, *conn.Watch) error { return nil })
}

// AwaitAllGone waits until there is no znode at any of `paths`. It costs one round trip for all
// paths together, and one event for each znode that exists.
func (inc *Incarnation) AwaitAllGone(ctx context.Context, paths []string) error {
	watches := make([]*conn.Watch, len(paths))
	for i, path := range paths {
		watches[i] = inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: path})
	}
	defer func() {
		for _, w := range watches {
			inc.Watches.Leave(w)
		}
	}()
	there, err := retryEach(ctx, inc, paths, childrenCall)
	for i := 0; i < len(paths) && err == nil; i++ {
		switch err = there[i].err; {
		case IsNoNode(err):
			err = nil
		case err == nil:
			if err = inc.AwaitFired(ctx, watches[i]); err == nil && watches[i].Event != zk.EventNodeDeleted {
				err = inc.AwaitGone(ctx, paths[i])
			}
		}
	}
	return err
}

// WhileThere is AwaitGone with one difference: before each wait, it calls f with the znode's Stat
// and the watch w. An error of f ends the wait.
func (inc *Incarnation) WhileThere(ctx context.Context, path string, f func(stat *zk.Stat, w *conn.Watch) error) error {
	for {
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: path})
		_, stat, err := inc.Children(ctx, path)
		if err == nil {
			err = f(stat, w)
		}
		if err == nil {
			err = inc.AwaitFired(ctx, w)
		}
		inc.Watches.Leave(w)
		switch {
		case IsNoNode(err):
			return nil
		case err != nil:
			return err
		case w.Event == zk.EventNodeDeleted:
			return nil
		}
	}
}

// Follow calls f with the znode at path, now and after each change, until f returns an error. While
// there is no znode, Follow waits for one. The watch w fires at the next change. f may return
// before that.
func (inc *Incarnation) Follow(ctx context.Context, path string, f func(n Node, w *conn.Watch) error) error {
	for {
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: path})
		data, stat, err := inc.Get(ctx, path)
		there := !IsNoNode(err)
		if err == nil {
			err = f(Node{data, stat}, w)
		}
		if err == nil {
			err = inc.AwaitFired(ctx, w)
		}
		inc.Watches.Leave(w)
		if !there {
			err = inc.AwaitMade(ctx, path)
		}
		if err != nil {
			return err
		}
	}
}

// Offer sends v on the channel `out`, and reports whether a reader has received it. If w fires
// first, v is out of date, and Offer returns false.
func Offer[T any](ctx context.Context, inc *Incarnation, w *conn.Watch, out chan<- T, v T) (sent bool, err error) {
	select {
	case out <- v:
		return true, nil
	case <-w.Fired:
		return false, nil
	case <-ctx.Done():
		return false, CtxErr(ctx)
	case <-inc.Ctx.Done():
		return false, ErrEnded
	}
}

// StayJoined keeps a caller that has joined w joined, while `owner` is in use. Without that, w would
// be removed as idle. The caller or the garbage collector leaves w; the caller calls `leave`.
//
// The cleanup has weak pointers. A session leads to functions of the program, such as its Observer,
// and they may lead to the owner. With a strong pointer to the session, the owner would never be
// freed.
func StayJoined[T any](owner *T, inc *Incarnation, w *conn.Watch) (leave func()) {
	within := weak.Make(inc)
	cleanup := runtime.AddCleanup(owner, func(w weak.Pointer[conn.Watch]) {
		if inc, w := within.Value(), w.Value(); inc != nil && w != nil {
			inc.Watches.Abandon(w)
		}
	}, weak.Make(w))
	return func() {
		cleanup.Stop()
		if inc := within.Value(); inc != nil {
			inc.Watches.Leave(w)
		}
	}
}

// AwaitFired waits until w has fired. The caller must first join w, and then read the watched
// znode.
func (inc *Incarnation) AwaitFired(ctx context.Context, w *conn.Watch) error {
	return AwaitIn(ctx, inc, w.Fired)
}

// AwaitMade waits until a znode exists at path. AwaitMade also returns if a znode was created there
// during the call and has been deleted since.
func (inc *Incarnation) AwaitMade(ctx context.Context, path string) error {
	for {
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchExists, Path: path})
		stat, err := inc.Exists(ctx, path)
		if err == nil && stat == nil {
			err = inc.AwaitFired(ctx, w)
		}
		inc.Watches.Leave(w)
		if err != nil || stat != nil || w.Event == zk.EventNodeCreated {
			return err
		}
	}
}

// AwaitAny waits until one of `watches` has fired. It also returns at the time `due`, unless `due`
// is zero.
func (inc *Incarnation) AwaitAny(ctx context.Context, watches []*conn.Watch, due time.Time) error {
	var expired <-chan time.Time
	if !due.IsZero() {
		expired = time.After(time.Until(due))
	}
	cases := []reflect.SelectCase{
		{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())},
		{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(inc.Ctx.Done())},
		{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(expired)},
	}
	for _, w := range watches {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(w.Fired)})
	}
	switch i, _, _ := reflect.Select(cases); i {
	case 0:
		return CtxErr(ctx)
	case 1:
		return ErrEnded
	}
	return nil
}

// AwaitConnected is AwaitFor for an operation that needs the servers. So it also returns without a
// connection, or after the end of the session.
func (inc *Incarnation) AwaitConnected(done <-chan struct{}, limit time.Duration) {
	select {
	case <-done:
	case <-inc.Disconnection():
	case <-inc.Ctx.Done():
	case <-time.After(limit):
	}
}
