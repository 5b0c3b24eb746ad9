package session

import (
	"slices"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
)

// A watchKind is what of a znode is watched.
type watchKind int

const (
	WatchData     watchKind = iota // set by getData: the znode's data, and its deletion
	WatchExists                    // set by exists: creation, data, deletion
	WatchChildren                  // set by getChildren2: its children, and its deletion
)

// kindOfRead returns the kind of watch that a read sets.
func kindOfRead(op int32) watchKind {
	switch op {
	case wire.OpGetData:
		return WatchData
	case wire.OpExists:
		return WatchExists
	}
	return WatchChildren
}

// watcherType is the WatcherType of a removeWatches request.
func (k watchKind) watcherType() int32 {
	if k == WatchChildren {
		return 1 // Children
	}
	return 2 // Data; exists watches are of this type too
}

type WatchKey struct {
	Kind watchKind
	Path string // as the server knows it
}

// A Watches shares the watches of one ZooKeeper session among all who wait.
//
// There is at most one watch on the server for each key, however many wait,
// and anyone may leave at any time. To watch: join, then read the znode, then
// wait for fired. The link sets the watch flag of every read of a key that is
// wanted and not armed yet, so the state that a waiter has read is never newer
// than the watch: either its own read set the watch, or the watch stood before
// the read was sent. A watch that has fired is gone; who wants the next change
// joins and reads again. A fired watch means "look again", and nothing more.
//
// When the connection is replaced, the watches that are armed are set again
// ahead of any call; the server answers with the events that were missed.
// When the session is replaced its Watches go with it.
//
// A watch that nobody waits for any more stays for the next who comes, up to
// a limit; beyond it the server is asked to forget it.
//
// Watches alone decides whether the server has a watch, from what the link
// tells it in the order of the packets:
//
//	ask        a read is written: with the flag, if it is wanted and not armed
//	answered   its reply has come: armed, unless a removal was written behind it
//	forget     a removal is written: not armed, nor by any read before it
//	fire       the event has come: not armed
//	resend     a new connection: what is armed is set again before all else
//
// So a watch that is taken for armed is on the server, or its event is on
// its way, or it is set again before anything else is asked. The opposite may
// happen, and does no harm: an event that nobody waits for is ignored.
type Watches struct {
	remove func(WatchKey) // asks the server to forget a watch that is idle
	spawn  func(func())   // runs a goroutine that the session waits for when it is closed

	Mu      sync.Mutex
	conn    int64 // the number of the present connection, from 1; guarded by mu
	watches map[WatchKey]*Watch
	Idle    map[WatchKey]struct{} // armed, and nobody waits
	asks    map[serverWatch][]*ask
	janitor bool // a goroutine is removing idle watches
}

// A serverWatch is what is one watch to the server: those of a znode's data
// and of its existence are.
type serverWatch struct {
	path     string
	children bool
}

func (k WatchKey) onServer() serverWatch { return serverWatch{k.Path, k.Kind == WatchChildren} }

// An ask is a read that carries the watch flag and whose reply has not come.
type ask struct {
	key  WatchKey
	void bool // the removal of the watch was written behind it; guarded by Watches.Mu
}

// MaxIdleWatches is how many watches a session keeps that nobody waits for.
const MaxIdleWatches = 64

// A Watch is one watch on the server, or the wish for one.
type Watch struct {
	Key     WatchKey
	Fired   chan struct{} // closed, under Watches.Mu, when the event has come
	Event   zk.EventType  // which event; read it only after fired is closed
	told    []telling     // guarded by Watches.Mu
	waiters int           // guarded by Watches.Mu
	armed   bool          // the server has it; guarded by Watches.Mu
	ours    bool          // it was set on a znode of this session; guarded by Watches.Mu
	setOn   int64         // the number of the connection on which it was set; guarded by Watches.Mu
	toldOn  int64         // the number of the connection on which the event came; guarded by Watches.Mu
	missing bool          // it was set by an exists that found nothing; guarded by Watches.Mu
}

// A telling is what is called, under Watches.Mu, when the event has come.
type telling struct {
	owner any // whom it is for
	f     func()
}

func newWatch(key WatchKey) *Watch { return &Watch{Key: key, Fired: make(chan struct{})} }

func newWatches(remove func(WatchKey), spawn func(func())) *Watches {
	return &Watches{
		remove:  remove,
		spawn:   spawn,
		watches: make(map[WatchKey]*Watch),
		Idle:    make(map[WatchKey]struct{}),
		asks:    make(map[serverWatch][]*ask),
	}
}

// Join makes the caller one who waits for a change of key. It must leave.
func (h *Watches) Join(key WatchKey) *Watch {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	w := h.watches[key]
	if w == nil {
		w = newWatch(key)
		h.watches[key] = w
	}
	w.waiters++
	delete(h.Idle, key)
	return w
}

// Tell has f called when w fires, for a waiter with more watches than it can
// select on, or without a goroutine to wait in. f runs with h.mu held: it must not
// block, nor call h. If w has fired already f is called at once.
func (h *Watches) Tell(w *Watch, owner any, f func()) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if IsClosed(w.Fired) {
		f()
		return
	}
	h.untellLocked(w, owner)
	w.told = append(w.told, telling{owner: owner, f: f})
}

// Untell is the end of Tell.
func (h *Watches) Untell(w *Watch, owner any) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.untellLocked(w, owner)
}

func (h *Watches) untellLocked(w *Watch, owner any) {
	w.told = slices.DeleteFunc(w.told, func(t telling) bool { return t.owner == owner })
}

// leaveUntold is Leave for one who was to be told.
func (h *Watches) leaveUntold(w *Watch, owner any) {
	h.Untell(w, owner)
	h.Leave(w)
}

// Leave is the end of a join. It never blocks.
func (h *Watches) Leave(w *Watch) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.leaveLocked(w)
	h.tidyLocked()
}

// tidyLocked has idle watches removed if there are too many.
func (h *Watches) tidyLocked() {
	if len(h.Idle) > MaxIdleWatches && !h.janitor {
		h.janitor = true
		h.spawn(h.clean)
	}
}

// Abandon is leave for one who has become garbage. It starts no goroutine: it
// is called by the runtime, and what is idle too many the next leave removes.
func (h *Watches) Abandon(w *Watch) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.leaveLocked(w)
}

func (h *Watches) leaveLocked(w *Watch) {
	w.waiters--
	if w.waiters > 0 || h.watches[w.Key] != w {
		return
	}
	if !w.armed {
		// A read that was sent may still set it. See answered.
		delete(h.watches, w.Key)
		return
	}
	h.Idle[w.Key] = struct{}{}
}

// clean removes idle watches until half the limit is left.
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

// forget drops the watch of key if it is still idle, and reports whether a
// removal must be written, so that the server drops it too. Nothing else is
// written between this and the removal.
func (h *Watches) forget(key WatchKey) bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	w := h.watches[key]
	if w == nil || w.waiters > 0 || !w.armed {
		return false
	}
	delete(h.watches, key)
	delete(h.Idle, key)
	other := WatchKey{WatchData + WatchExists - key.Kind, key.Path}
	if key.Kind != WatchChildren && h.watches[other] != nil {
		return false // removing one would remove the other
	}
	// The reads that were written before carry the flag in vain: their watch
	// goes too. Nobody waits for one of them, or there would be a watch here;
	// who comes now asks anew, behind the removal.
	for _, a := range h.asks[key.onServer()] {
		a.void = true
	}
	return true
}

// ask is called when a read of key is about to be written. It returns nil if
// the read need not carry the watch flag; else answered must be told of the
// reply.
func (h *Watches) ask(key WatchKey) *ask {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if w := h.watches[key]; w == nil || w.armed {
		return nil
	}
	a := &ask{key: key}
	h.asks[key.onServer()] = append(h.asks[key.onServer()], a)
	return a
}

// answered is told that the read of a has been answered with code, and whether the znode
// that it has found is ours. It runs in the reading goroutine, so events that the server sent later are processed
// later.
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
	if w == nil { // all have left before the server had it
		w = newWatch(a.key)
		h.watches[a.key] = w
	}
	w.armed, w.missing, w.ours, w.setOn = true, code != 0, ours, h.conn
	if w.waiters == 0 {
		h.Idle[a.key] = struct{}{}
		h.tidyLocked() // perhaps all have left, and nobody else will
	}
}

// fire is told of each event that a server sends. It never blocks.
func (h *Watches) fire(t zk.EventType, path string) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	switch t {
	case zk.EventNodeCreated:
		h.fireLocked(t, WatchKey{WatchExists, path})
		// The server has one watch less, whatever it was taken for.
		if w := h.watches[WatchKey{WatchData, path}]; w != nil && w.armed {
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
	w.Event, w.toldOn = t, h.conn
	close(w.Fired)
	for _, t := range w.told {
		t.f()
	}
	delete(h.watches, key)
	delete(h.Idle, key)
}

// connected is told that there is another connection, before anything comes on
// it. What came on the one before has been told by then: one goroutine reads them
// one after the other.
func (h *Watches) connected() {
	h.Mu.Lock()
	h.conn++
	h.Mu.Unlock()
}

// Connection returns the number of the present connection, or of the last. On
// one connection, and only there, events and answers come in the order of what
// they tell of: an event, before every answer that is as new as it.
func (h *Watches) Connection() int64 {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.conn
}

// Armed reports whether the server has w, or has had it until it fired.
func (h *Watches) Armed(w *Watch) bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return w.armed
}

// ArmedOnOurs is Armed by a read that has found an ephemeral znode of this session. A watch
// says that a znode exists, and not whose it is: another waiter of this session may have set
// the watch on a copy that another client has made of our znode.
func (h *Watches) ArmedOnOurs(w *Watch) bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return w.armed && w.ours
}

// Stands reports whether the server has w and w has not fired: whoever has read the znode
// since he joined w has seen what is there, as of the latest answer that has come.
func (h *Watches) Stands(w *Watch) bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return w.armed && !IsClosed(w.Fired)
}

// ArmedOn returns the number of the connection on which w was set, and told that
// on which it fired.
func (h *Watches) ArmedOn(w *Watch) int64 {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return w.setOn
}

func (h *Watches) Told(w *Watch) int64 {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return w.toldOn
}

// len returns how many watches the session has or wants.
func (h *Watches) len() int {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return len(h.watches)
}

// resend begins a new connection. It returns the packets that set all armed
// watches again and ask for the events after zxid; nothing is asked before them.
func (h *Watches) resend(zxid int64) (portions [][]byte) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	clear(h.asks) // no reply comes from the former connection any more
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
	for key, w := range h.watches {
		if !w.armed {
			continue
		}
		if size > 0 && size+4+len(key.Path) > wire.SetWatchesPortion {
			flush() // a long path must not make the others too many
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
