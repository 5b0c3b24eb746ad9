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

// The kinds of watches. Each has the number of the read that sets it.
const (
	WatchData     int32 = wire.OpGetData      // fires at a change of the data and at deletion
	WatchExists   int32 = wire.OpExists       // fires at creation, a change of the data, and deletion
	WatchChildren int32 = wire.OpGetChildren2 // fires at a change of the children and at deletion
)

type WatchKey struct {
	Kind int32
	Path string // as the server knows it
}

// A Watches shares the watches of one ZooKeeper session among all waiters.
//
// All waiters for a key share at most one watch on the server, and each waiter may leave at any
// time. To watch a znode, call `Join`, then read the znode, then wait for `Fired`. A watch is armed
// if the server has it. If a key has a waiter, the connection sets the watch flag of every read of
// the key: ZooKeeper since 3.8.4 drops even an armed watch, without an event, if the client may not read
// the znode at its change. So every other change after the state that a waiter has read fires the watch.
// A watch fires once: the waiter must then join another, and read again.
//
// A watch without a waiter is idle. Idle watches stay for later waiters, up to a limit. At each reply
// that arms a watch, and at each ping, the client has half of them removed if they are that many.
//
// No other type records whether the server has a watch. The connection calls these methods in the
// order of the packets:
//
//	ask        a read is written: with the flag, if the key has a waiter
//	answered   its reply has come: armed
//	forget     it is idle, and no read with the flag is unanswered: not armed. A removal is written
//	Fire       the event has come: not armed
//	resend     a new connection: armed watches are set again before any other request
//
// So for every armed watch, the server has the watch or has dropped it, or its event is on the way, or the
// client sets the watch again before any other request. The server may also have a watch that is
// not armed here. Such a watch does no harm, because Watches ignores an event without a waiter.
type Watches struct {
	Mu      sync.Mutex
	conn    int64 // number of the present connection, from 1; guarded by Mu, like all below
	watches map[WatchKey]*Watch
	Idle    map[WatchKey]struct{} // armed watches without a waiter
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
	ArmedOn int64 // number of the connection of the read that set it; `resend` does not change it
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

func NewWatches() *Watches {
	return &Watches{
		watches: make(map[WatchKey]*Watch),
		Idle:    make(map[WatchKey]struct{}),
	}
}

func (h *Watches) enterLocked(key WatchKey) *Watch {
	w := h.watches[key]
	if w == nil {
		w = &Watch{Key: key, Fired: make(chan struct{})}
		h.watches[key] = w
	}
	return w
}

// Join adds the caller to the waiters for a change of `key`. The caller must call `Leave` later.
func (h *Watches) Join(key WatchKey) *Watch {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	w := h.enterLocked(key)
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
	w.Told = append(w.Told, telling{owner, f})
}

// Untell removes the function that was registered for `owner`.
func (h *Watches) Untell(w *Watch, owner any) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	w.Told = slices.DeleteFunc(w.Told, func(t telling) bool { return t.owner == owner })
}

// Leave ends a `Join`. It never blocks, and wakes no goroutine, so a cleanup of the runtime may call it.
func (h *Watches) Leave(w *Watch) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
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

// The method `surplus` returns the idle watches to remove. If there are as many as the limit, half of
// the limit remains.
func (h *Watches) surplus() (keys []WatchKey) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if len(h.Idle) >= MaxIdleWatches {
		keys = slices.Collect(maps.Keys(h.Idle))[MaxIdleWatches/2:]
	}
	return keys
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
	// For the server, a data watch and an exists watch on one znode are the same watch.
	return key.Kind == WatchChildren || h.watches[WatchKey{WatchData + WatchExists - key.Kind, key.Path}] == nil
}

// The method `ask` is called before a read of `key` is written. It reports whether the read carries
// the watch flag. Then the caller must call `answered` with the reply.
func (h *Watches) ask(key WatchKey) bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	w := h.watches[key]
	return w != nil && w.Waiters > 0
}

// The method `answered` processes the reply to a read of `key` with the flag. The argument `code` is
// the reply's error code, and `ours` is true if the read has found an ephemeral znode of this session.
// The method runs in the reading goroutine, so later events are processed later. If the client must
// remove idle watches, `answered` returns true, and the caller wakes the goroutine of Conn.write.
func (h *Watches) answered(key WatchKey, code int32, ours bool) (crowded bool) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if code != 0 && (code != wire.CodeNoNode || key.Kind != WatchExists) {
		return false // the server has not set the watch
	}
	w := h.enterLocked(key) // perhaps all waiters have left before the server had the watch
	w.Armed, w.missing, w.Ours, w.ArmedOn = true, code != 0, ours, h.conn
	if w.Waiters == 0 {
		h.Idle[key] = struct{}{}
	}
	return len(h.Idle) >= MaxIdleWatches
}

// Fire processes an event of a server. It never blocks. A user of the session may also call it, to
// wake the waiters: they read again, and that read sets the watch again.
func (h *Watches) Fire(t zk.EventType, path string) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	for _, kind := range [...]int32{WatchData, WatchExists, WatchChildren} {
		w := h.watches[WatchKey{kind, path}]
		switch {
		case w == nil,
			t == zk.EventNodeCreated && (kind == WatchChildren || kind == WatchData && !w.Armed), // the server may take a data watch for an exists watch
			t == zk.EventNodeDataChanged && kind == WatchChildren,
			t == zk.EventNodeChildrenChanged && kind != WatchChildren:
			continue
		}
		w.Event, w.ToldOn = t, h.conn
		close(w.Fired)
		for _, told := range w.Told {
			told.f()
		}
		delete(h.watches, w.Key)
		delete(h.Idle, w.Key)
	}
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
// result is the packets that set all armed watches again, except surplus idle ones, and ask for the
// events after `zxid`.
func (h *Watches) resend(zxid int64) (portions [][]byte) {
	for _, key := range h.surplus() {
		h.forget(key)
	}
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.conn++
	var lists [3][]string // by kind: data, exists, children
	size := 0
	flush := func() {
		if size == 0 {
			return
		}
		p := wire.AppendHeader(nil, wire.XidSetWatches, wire.OpSetWatches)
		p = wire.AppendInt64(p, zxid)
		for i := range lists {
			p = wire.AppendStrings(p, lists[i])
			lists[i] = nil
		}
		portions = append(portions, wire.EndPacket(p))
		size = 0
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
		i := 0
		switch {
		case key.Kind == WatchChildren:
			i = 2
		case w.missing:
			i = 1
		}
		lists[i] = append(lists[i], key.Path)
	}
	flush()
	return portions
}
