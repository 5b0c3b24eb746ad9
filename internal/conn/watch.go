package conn

// This file records the watches that the server has, and shares each watch among its waiters. The
// waiters interpret the events.

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
)

// A WatchKind is the part of a znode that is watched.
type WatchKind int

const (
	WatchData     WatchKind = iota // set by getData: fires at a change of the data and at deletion
	WatchExists                    // set by exists: fires at creation, a change of the data, and deletion
	WatchChildren                  // set by getChildren2: fires at a change of the children and at deletion
)

// KindOfRead returns the kind of watch that a read sets. For other requests, ok is false.
func KindOfRead(op int32) (kind WatchKind, ok bool) {
	switch op {
	case wire.OpGetData:
		return WatchData, true
	case wire.OpExists:
		return WatchExists, true
	case wire.OpGetChildren2:
		return WatchChildren, true
	}
	return 0, false
}

type WatchKey struct {
	Kind WatchKind
	Path string // as the server knows it
}

// A Watches shares the watches of one ZooKeeper session among all waiters.
//
// All waiters for a key share at most one watch on the server, and each waiter may leave at any
// time. To watch a znode, call `Join`, then read the znode, then wait for `Fired`. A watch is armed
// if the server has it. If a key has a waiter and its watch is not armed, the connection sets the
// watch flag of every read of the key. So every change after the state that a waiter has read fires
// the watch. A watch fires once: the waiter must then join another, and read again.
//
// A watch without a waiter is idle. Idle watches stay for later waiters, up to a limit. Beyond the
// limit, the client asks the server to remove idle watches.
//
// No other type records whether the server has a watch. The connection calls these methods in the
// order of the packets:
//
//	ask        a read is written: with the flag, if the key has a waiter and is not armed
//	answered   its reply has come: armed, unless a removal was written after the read
//	forget     a removal is written: not armed, and no earlier read arms it
//	Fire       the event has come: not armed
//	resend     a new connection: armed watches are set again before any other request
//
// So for every armed watch, the server has the watch, or its event is on the way, or the client sets
// the watch again before any other request. The server may also have a watch that is
// not armed here. Such a watch does no harm, because Watches ignores an event without a waiter.
type Watches struct {
	remove func(WatchKey) // asks the server to remove an idle watch
	spawn  func(func())   // runs a function in a goroutine for which Close waits

	Mu      sync.Mutex
	conn    int64 // number of the present connection, from 1; guarded by Mu, like all below
	watches map[WatchKey]*Watch
	Idle    map[WatchKey]struct{} // armed watches without a waiter
	asks    map[WatchKey][]*ask   // by WatchKey.onServer
	janitor bool                  // a goroutine is removing idle watches
}

// The method `onServer` returns the key that stands for the watch of k on the server. For the
// server, a data watch and an exists watch on one znode are the same watch.
func (k WatchKey) onServer() WatchKey {
	if k.Kind == WatchExists {
		k.Kind = WatchData
	}
	return k
}

// The type `ask` is an unanswered read with the watch flag.
type ask struct {
	key  WatchKey
	void bool // a removal of the watch was written after the read; guarded by Watches.Mu
}

// MaxIdleWatches is the maximum number of idle watches that a session keeps.
const MaxIdleWatches = 64

// A Watch is a watch that the server has, or that a waiter wants.
type Watch struct {
	Key   WatchKey
	Fired chan struct{} // closed, under Watches.Mu, by the event
	Event zk.EventType  // the event, or 0; read it only after `Fired` is closed, or with Watches.State

	// Watches.Mu guards the fields below. Other packages read them with Watches.State.
	Told    []telling // the functions that the event calls
	Waiters int
	Armed   bool  // the server has it, or had it until it fired
	ArmedOn int64 // number of the connection on which it was set
	ToldOn  int64 // number of the connection on which the event came
	missing bool  // it was set by an `exists` request that found no znode

	// Ours is true if the read that armed the watch has found an ephemeral znode of this session. Another
	// client may have created a copy of the znode, and another waiter may have set the watch on the copy.
	Ours bool
}

// The type `telling` is a function that the event calls, with Watches.Mu held.
type telling struct {
	owner any // identifies the telling for Untell
	f     func()
}

func newWatch(key WatchKey) *Watch { return &Watch{Key: key, Fired: make(chan struct{})} }

func NewWatches(remove func(WatchKey), spawn func(func())) *Watches {
	return &Watches{
		remove:  remove,
		spawn:   spawn,
		watches: make(map[WatchKey]*Watch),
		Idle:    make(map[WatchKey]struct{}),
		asks:    make(map[WatchKey][]*ask),
	}
}

// Join adds the caller to the waiters for a change of `key`. The caller must call `Leave` later.
func (h *Watches) Join(key WatchKey) *Watch {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	w := h.watches[key]
	if w == nil {
		w = newWatch(key)
		h.watches[key] = w
	}
	w.Waiters++
	delete(h.Idle, key)
	return w
}

// Tell registers f, for a waiter without a goroutine, or with too many watches for a select: `h` calls
// f when `w` fires, or at once if `w` has fired already. The caller of f holds h.Mu, so f must not
// block and must not call methods of h.
func (h *Watches) Tell(w *Watch, owner any, f func()) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if w.Event != 0 {
		f()
		return
	}
	h.untellLocked(w, owner)
	w.Told = append(w.Told, telling{owner: owner, f: f})
}

// Untell removes the function that was registered for `owner`.
func (h *Watches) Untell(w *Watch, owner any) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.untellLocked(w, owner)
}

func (h *Watches) untellLocked(w *Watch, owner any) {
	w.Told = slices.DeleteFunc(w.Told, func(t telling) bool { return t.owner == owner })
}

// LeaveUntold calls `Untell` and `Leave`.
func (h *Watches) LeaveUntold(w *Watch, owner any) {
	h.Untell(w, owner)
	h.Leave(w)
}

// Leave ends a `Join`. It never blocks.
func (h *Watches) Leave(w *Watch) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.leaveLocked(w)
	h.tidyLocked()
}

// tidyLocked starts the goroutine of `clean` if there are too many idle watches.
func (h *Watches) tidyLocked() {
	if len(h.Idle) > MaxIdleWatches && !h.janitor {
		h.janitor = true
		h.spawn(h.clean)
	}
}

// Abandon replaces `Leave` for a waiter that the garbage collector has freed. The runtime calls it, so
// it starts no goroutine. The next call of `Leave` removes surplus idle watches.
func (h *Watches) Abandon(w *Watch) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.leaveLocked(w)
}

func (h *Watches) leaveLocked(w *Watch) {
	w.Waiters--
	if w.Waiters > 0 || h.watches[w.Key] != w {
		return
	}
	if !w.Armed {
		// A read that was already sent may still set the watch on the server: see `answered`.
		delete(h.watches, w.Key)
		return
	}
	h.Idle[w.Key] = struct{}{}
}

// The method `clean` removes idle watches until only half of the limit remains.
func (h *Watches) clean() {
	for {
		h.Mu.Lock()
		var key WatchKey
		for key = range h.Idle {
			break
		}
		if len(h.Idle) <= MaxIdleWatches/2 {
			h.janitor = false
			h.Mu.Unlock()
			return
		}
		delete(h.Idle, key)
		h.Mu.Unlock()
		h.remove(key)
	}
}

// The method `forget` drops the watch of `key` if that watch is still idle. If `forget` returns
// true, the caller must write a removal, so that the server drops the watch, too. The caller writes
// no other packet between this call and the removal.
func (h *Watches) forget(key WatchKey) bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	w := h.watches[key]
	if w == nil || w.Waiters > 0 || !w.Armed {
		return false
	}
	delete(h.watches, key)
	delete(h.Idle, key)
	other := WatchKey{WatchData + WatchExists - key.Kind, key.Path}
	if key.Kind != WatchChildren && h.watches[other] != nil {
		return false // the removal would also remove the other watch
	}
	// The removal also removes the watches of earlier reads with the flag. There is no waiter for them,
	// and a later waiter sends its read after the removal.
	for _, a := range h.asks[key.onServer()] {
		a.void = true
	}
	return true
}

// The method `ask` is called before a read of `key` is written. If the result is nil, the read does
// not carry the watch flag. Otherwise, the read carries the flag, and the caller must call
// `answered` with the reply.
func (h *Watches) ask(key WatchKey) *ask {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if w := h.watches[key]; w == nil || w.Armed {
		return nil
	}
	a := &ask{key: key}
	h.asks[key.onServer()] = append(h.asks[key.onServer()], a)
	return a
}

// The method `answered` processes the reply to the read of `a`. The argument `code` is the reply's
// error code, and `ours` is true if the read has found an ephemeral znode of this session. The
// method runs in the reading goroutine, so later events are processed later.
func (h *Watches) answered(a *ask, code int32, ours bool) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	slot := a.key.onServer()
	if h.asks[slot] = slices.DeleteFunc(h.asks[slot], func(b *ask) bool { return b == a }); len(h.asks[slot]) == 0 {
		delete(h.asks, slot)
	}
	set := code == 0 || code == wire.CodeNoNode && a.key.Kind == WatchExists
	if !set || a.void {
		return
	}
	w := h.watches[a.key]
	if w == nil { // before the server had the watch, all waiters left
		w = newWatch(a.key)
		h.watches[a.key] = w
	}
	w.Armed, w.missing, w.Ours, w.ArmedOn = true, code != 0, ours, h.conn
	if w.Waiters == 0 {
		h.Idle[a.key] = struct{}{}
		h.tidyLocked() // perhaps no call of `Leave` follows, which would do that
	}
}

// Fire processes an event of a server. It never blocks. A user of the session may also call it, to
// wake the waiters: they read again, and that read sets the watch again.
func (h *Watches) Fire(t zk.EventType, path string) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	switch t {
	case zk.EventNodeCreated:
		h.fireLocked(t, WatchKey{WatchExists, path})
		// For the server, the data watch and the exists watch are the same watch.
		if w := h.watches[WatchKey{WatchData, path}]; w != nil && w.Armed {
			h.fireLocked(t, w.Key)
		}
	case zk.EventNodeDataChanged:
		h.fireLocked(t, WatchKey{WatchData, path})
		h.fireLocked(t, WatchKey{WatchExists, path})
	case zk.EventNodeChildrenChanged:
		h.fireLocked(t, WatchKey{WatchChildren, path})
	case zk.EventNodeDeleted:
		h.fireLocked(t, WatchKey{WatchData, path})
		h.fireLocked(t, WatchKey{WatchExists, path})
		h.fireLocked(t, WatchKey{WatchChildren, path})
	}
}

func (h *Watches) fireLocked(t zk.EventType, key WatchKey) {
	w := h.watches[key]
	if w == nil {
		return
	}
	w.Event, w.ToldOn = t, h.conn
	close(w.Fired)
	for _, t := range w.Told {
		t.f()
	}
	delete(h.watches, key)
	delete(h.Idle, key)
}

// Connection returns the number of the present connection, or of the last one. On one connection, an
// event arrives before every reply whose state includes the change.
func (h *Watches) Connection() int64 {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.conn
}

// State returns a copy of w as it is now. After the event, only the waiters change.
func (h *Watches) State(w *Watch) Watch {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return *w
}

// Stands reports whether `w` is armed and has not fired. Then a state that was read after `Join` is
// still current, as of the server's latest reply.
func (h *Watches) Stands(w *Watch) bool {
	state := h.State(w)
	return state.Armed && state.Event == 0
}

// All returns the watches, armed or not.
func (h *Watches) All() []*Watch {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return slices.Collect(maps.Values(h.watches))
}

// The method `resend` is called for a new connection, before a watch is set or an event arrives on
// it. All events of the previous connection have been processed, because one goroutine reads both. The
// result is the packets that set all armed watches again and ask for the events after `zxid`.
func (h *Watches) resend(zxid int64) (portions [][]byte) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.conn++
	clear(h.asks) // the previous connection delivers no replies now
	var data, exist, child []string
	size := 0
	flush := func() {
		if size == 0 {
			return
		}
		p := wire.AppendHeader(nil, wire.XidSetWatches, wire.OpSetWatches)
		p = wire.AppendInt64(p, zxid)
		p = wire.AppendStrings(p, data)
		p = wire.AppendStrings(p, exist)
		p = wire.AppendStrings(p, child)
		portions = append(portions, wire.EndPacket(p))
		data, exist, child, size = nil, nil, nil, 0
	}
	keys := slices.SortedFunc(maps.Keys(h.watches), func(a, b WatchKey) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), cmp.Compare(a.Kind, b.Kind))
	})
	for _, key := range keys {
		w := h.watches[key]
		if !w.Armed {
			continue
		}
		if size > 0 && size+4+len(key.Path) > wire.SetWatchesPortion {
			flush() // so that a long path does not make the packet too long
		}
		size += 4 + len(key.Path)
		switch {
		case key.Kind == WatchChildren:
			child = append(child, key.Path)
		case w.missing:
			exist = append(exist, key.Path)
		default:
			data = append(data, key.Path)
		}
	}
	flush()
	return portions
}
