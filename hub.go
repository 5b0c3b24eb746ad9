package zsync

import (
	"slices"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
)

// A watchKind is what of a znode is watched.
type watchKind int

const (
	watchData     watchKind = iota // set by getData: the znode's data, and its deletion
	watchExists                    // set by exists: creation, data, deletion
	watchChildren                  // set by getChildren2: its children, and its deletion
)

// kindOfRead returns the kind of watch that a read sets.
func kindOfRead(op int32) watchKind {
	switch op {
	case wire.OpGetData:
		return watchData
	case wire.OpExists:
		return watchExists
	}
	return watchChildren
}

// watcherType is the WatcherType of a removeWatches request.
func (k watchKind) watcherType() int32 {
	if k == watchChildren {
		return 1 // Children
	}
	return 2 // Data; exists watches are of this type too
}

type watchKey struct {
	kind watchKind
	path string // as the server knows it
}

// A hub shares the watches of one ZooKeeper session among all who wait.
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
// When the session is replaced the hub goes with it.
//
// A watch that nobody waits for any more stays for the next who comes, up to
// a limit; beyond it the server is asked to forget it.
//
// The hub alone decides whether the server has a watch, from what the link
// tells it in the order of the packets:
//
//	ask        a read is written: with the flag, if it is wanted and not armed
//	answered   its reply has come: armed, unless a removal was written behind it
//	forget     a removal is written: not armed, nor by any read before it
//	fire       the event has come: not armed
//	resend     a new connection: what is armed is set again before all else
//
// So a watch that the hub takes for armed is on the server, or its event is on
// its way, or it is set again before anything else is asked. The opposite may
// happen, and does no harm: an event that nobody waits for is ignored.
type hub struct {
	remove func(watchKey) // asks the server to forget a watch that is idle
	spawn  func(func())   // runs a goroutine that the session waits for when it is closed

	mu      sync.Mutex
	conn    int64 // the number of the present connection, from 1; guarded by mu
	watches map[watchKey]*watch
	idle    map[watchKey]struct{} // armed, and nobody waits
	asks    map[serverWatch][]*ask
	janitor bool // a goroutine is removing idle watches
}

// A serverWatch is what is one watch to the server: those of a znode's data
// and of its existence are.
type serverWatch struct {
	path     string
	children bool
}

func (k watchKey) onServer() serverWatch { return serverWatch{k.path, k.kind == watchChildren} }

// An ask is a read that carries the watch flag and whose reply has not come.
type ask struct {
	key  watchKey
	void bool // the removal of the watch was written behind it; guarded by hub.mu
}

// maxIdleWatches is how many watches a session keeps that nobody waits for.
const maxIdleWatches = 64

// A watch is one watch on the server, or the wish for one.
type watch struct {
	key     watchKey
	fired   chan struct{} // closed, under hub.mu, when the event has come
	event   zk.EventType  // which event; read it only after fired is closed
	told    []func()      // called, under hub.mu, when the event has come; guarded by hub.mu
	waiters int           // guarded by hub.mu
	armed   bool          // the server has it; guarded by hub.mu
	setOn   int64         // the number of the connection on which it was set; guarded by hub.mu
	toldOn  int64         // the number of the connection on which the event came; guarded by hub.mu
	missing bool          // it was set by an exists that found nothing; guarded by hub.mu
}

func newWatch(key watchKey) *watch { return &watch{key: key, fired: make(chan struct{})} }

func newHub(remove func(watchKey), spawn func(func())) *hub {
	return &hub{
		remove:  remove,
		spawn:   spawn,
		watches: make(map[watchKey]*watch),
		idle:    make(map[watchKey]struct{}),
		asks:    make(map[serverWatch][]*ask),
	}
}

// join makes the caller one who waits for a change of key. It must leave.
func (h *hub) join(key watchKey) *watch {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.watches[key]
	if w == nil {
		w = newWatch(key)
		h.watches[key] = w
	}
	w.waiters++
	delete(h.idle, key)
	return w
}

// tell has f called when w fires, for a waiter with more watches than it can
// select on. f runs with h.mu held: it must not block, nor call h. If w has
// fired already f is called at once.
func (h *hub) tell(w *watch, f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if isClosed(w.fired) {
		f()
		return
	}
	w.told = append(w.told, f)
}

// leave is the end of a join. It never blocks.
func (h *hub) leave(w *watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leaveLocked(w)
	if len(h.idle) > maxIdleWatches && !h.janitor {
		h.janitor = true
		h.spawn(h.clean)
	}
}

// abandon is leave for one who has become garbage. It starts no goroutine: it
// is called by the runtime, and what is idle too many the next leave removes.
func (h *hub) abandon(w *watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leaveLocked(w)
}

func (h *hub) leaveLocked(w *watch) {
	w.waiters--
	if w.waiters > 0 || h.watches[w.key] != w {
		return
	}
	if !w.armed {
		// A read that was sent may still set it. See answered.
		delete(h.watches, w.key)
		return
	}
	h.idle[w.key] = struct{}{}
}

// clean removes idle watches until half the limit is left.
func (h *hub) clean() {
	for {
		h.mu.Lock()
		var key watchKey
		for key = range h.idle {
			break
		}
		if len(h.idle) <= maxIdleWatches/2 {
			h.janitor = false
			h.mu.Unlock()
			return
		}
		delete(h.idle, key)
		h.mu.Unlock()
		h.remove(key)
	}
}

// forget drops the watch of key if it is still idle, and reports whether a
// removal must be written, so that the server drops it too. Nothing else is
// written between this and the removal.
func (h *hub) forget(key watchKey) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.watches[key]
	if w == nil || w.waiters > 0 || !w.armed {
		return false
	}
	delete(h.watches, key)
	delete(h.idle, key)
	other := watchKey{watchData + watchExists - key.kind, key.path}
	if key.kind != watchChildren && h.watches[other] != nil {
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
func (h *hub) ask(key watchKey) *ask {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.watches[key]; w == nil || w.armed {
		return nil
	}
	a := &ask{key: key}
	h.asks[key.onServer()] = append(h.asks[key.onServer()], a)
	return a
}

// answered is told that the read of a has been answered with code. It runs in
// the reading goroutine, so events that the server sent later are processed
// later.
func (h *hub) answered(a *ask, code int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	slot := a.key.onServer()
	if h.asks[slot] = slices.DeleteFunc(h.asks[slot], func(b *ask) bool { return b == a }); len(h.asks[slot]) == 0 {
		delete(h.asks, slot)
	}
	set := code == 0 || code == wire.CodeNoNode && a.key.kind == watchExists
	if !set || a.void {
		return
	}
	w := h.watches[a.key]
	if w == nil { // all have left before the server had it
		w = newWatch(a.key)
		h.watches[a.key] = w
	}
	w.armed, w.missing, w.setOn = true, code != 0, h.conn
	if w.waiters == 0 {
		h.idle[a.key] = struct{}{}
	}
}

// fire is told of each event that a server sends. It never blocks.
func (h *hub) fire(t zk.EventType, path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch t {
	case zk.EventNodeCreated:
		h.fireLocked(t, watchKey{watchExists, path})
		// The server has one watch less, whatever it was taken for.
		if w := h.watches[watchKey{watchData, path}]; w != nil && w.armed {
			h.fireLocked(t, w.key)
		}
	case zk.EventNodeDataChanged:
		h.fireLocked(t, watchKey{watchData, path})
		h.fireLocked(t, watchKey{watchExists, path})
	case zk.EventNodeChildrenChanged:
		h.fireLocked(t, watchKey{watchChildren, path})
	case zk.EventNodeDeleted:
		h.fireLocked(t, watchKey{watchData, path})
		h.fireLocked(t, watchKey{watchExists, path})
		h.fireLocked(t, watchKey{watchChildren, path})
	}
}

func (h *hub) fireLocked(t zk.EventType, key watchKey) {
	w := h.watches[key]
	if w == nil {
		return
	}
	w.event, w.toldOn = t, h.conn
	close(w.fired)
	for _, f := range w.told {
		f()
	}
	delete(h.watches, key)
	delete(h.idle, key)
}

// connected is told that there is another connection, before anything comes on
// it. What came on the one before has been told by then: go-zookeeper ends one
// before it makes the next.
func (h *hub) connected() {
	h.mu.Lock()
	h.conn++
	h.mu.Unlock()
}

// connection returns the number of the present connection, or of the last. On
// one connection, and only there, events and answers come in the order of what
// they tell of: an event, before every answer that is as new as it.
func (h *hub) connection() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conn
}

// armed reports whether the server has w, or has had it until it fired.
func (h *hub) armed(w *watch) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return w.armed
}

// armedOn returns the number of the connection on which w was set, and told that
// on which it fired.
func (h *hub) armedOn(w *watch) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return w.setOn
}

func (h *hub) told(w *watch) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return w.toldOn
}

// len returns how many watches the session has or wants.
func (h *hub) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watches)
}

// resend begins a new connection. It returns the packets that set all armed
// watches again and ask for the events after zxid; nothing is asked before them.
func (h *hub) resend(zxid int64) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.asks) // no reply comes from the former connection any more
	var out []byte
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
		out = append(out, wire.EndPacket(p)...)
		data, exist, child, size = nil, nil, nil, 0
	}
	for key, w := range h.watches {
		if !w.armed {
			continue
		}
		if size > 0 && size+4+len(key.path) > wire.SetWatchesPortion {
			flush() // a long path must not make the others too many
		}
		size += 4 + len(key.path)
		switch {
		case key.kind == watchChildren:
			child = append(child, key.path)
		case w.missing:
			exist = append(exist, key.path)
		default:
			data = append(data, key.path)
		}
	}
	flush()
	return out
}

// isClosed reports whether c is closed now.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
