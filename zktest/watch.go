package zktest

// This file stores the watches by path, and sends each event to the clients that watch. ops.go
// makes the changes of znodes.

// A watchMode is a set of watch kinds: all that one connection has on one path.
type watchMode uint8

const (
	watchOnce watchMode = 1 << iota
	watchPersistent
	watchRecursive
)

// A watchKey is the object of a watch: a node, which may not exist, or its list of children.
type watchKey struct {
	path     string
	children bool
}

// A watchTable has the watches on one [view]. Server.mu guards it.
type watchTable struct {
	byKey     map[watchKey]map[*conn]watchMode
	recursive int // the number of entries with watchRecursive
	count     int // the number of entries
}

func newWatchTable() *watchTable {
	return &watchTable{byKey: map[watchKey]map[*conn]watchMode{}}
}

// The method `add` sets a watch. If the connection already has a watch on the key, the method adds
// the mode to that watch.
func (w *watchTable) add(c *conn, key watchKey, mode watchMode) {
	watchers := w.byKey[key]
	if watchers == nil {
		watchers = map[*conn]watchMode{}
		w.byKey[key] = watchers
	}
	w.set(watchers, c, key, watchers[c]|mode)
}

// The method `set` sets the mode of c's watch on key. The mode 0 removes the watch.
func (w *watchTable) set(watchers map[*conn]watchMode, c *conn, key watchKey, mode watchMode) {
	old := watchers[c]
	w.recursive += int(mode&watchRecursive)/int(watchRecursive) - int(old&watchRecursive)/int(watchRecursive)
	switch {
	case mode == 0 && old != 0:
		w.count--
		delete(watchers, c)
		delete(c.watched, key)
		if len(watchers) == 0 {
			delete(w.byKey, key)
		}
	case mode != 0:
		if old == 0 {
			w.count++
		}
		watchers[c] = mode
		c.watched[key] = struct{}{}
	}
}

// The method `mode` returns the mode of c's watch on key, or 0.
func (w *watchTable) mode(c *conn, key watchKey) watchMode {
	return w.byKey[key][c]
}

// removeAll removes every watch of c.
func (w *watchTable) removeAll(c *conn) {
	for key := range c.watched {
		w.set(w.byKey[key], c, key, 0)
	}
}

// The method `move` moves every watch of c to another table.
func (w *watchTable) move(c *conn, to *watchTable) {
	for key := range c.watched {
		mode := w.mode(c, key)
		w.set(w.byKey[key], c, key, 0)
		to.add(c, key, mode)
	}
}

// The method `fire` sends the events of the change ch, by ZooKeeper's rules:
//
//   - a creation fires watches on the missing node and on the parent's
//     children;
//   - a deletion fires watches on the node, on its children, and on the parent's children; a client
//     that watches both the node and its children gets a single event for the two watches;
//   - a change of data fires watches on the node; a change of the ACL fires
//     none.
//
// A client without the permission to read the node loses its watch without an event, as in
// ZooKeeper since 3.8.4.
func (s *Server) fire(v *view, ch *change) {
	if v.watches.count == 0 {
		return
	}
	parent := parentOf(ch.path)
	switch ch.kind {
	case changeCreate:
		s.trigger(v, ch.path, false, eventCreated, s.nextEvent(), ch.acl)
		s.trigger(v, parent, true, eventChildrenChanged, s.nextEvent(), v.tree.aclOf(parent))
	case changeDelete:
		event := s.nextEvent()
		s.trigger(v, ch.path, false, eventDeleted, event, ch.acl)
		s.trigger(v, ch.path, true, eventDeleted, event, ch.acl)
		s.trigger(v, parent, true, eventChildrenChanged, s.nextEvent(), v.tree.aclOf(parent))
	case changeData:
		s.trigger(v, ch.path, false, eventDataChanged, s.nextEvent(), v.tree.aclOf(ch.path))
	}
}

// nextEvent returns a number for a new event. Each connection stores the number of the last event
// that was sent to it, so no event is sent to it twice.
func (s *Server) nextEvent() int64 {
	s.lastEvent++
	return s.lastEvent
}

// The method `trigger` sends an event to the watchers of a path. If `children` is false, it also
// sends the event to recursive watchers of the ancestors. The argument `list` is the node's ACL.
func (s *Server) trigger(v *view, path string, children bool, kind int32, event int64, list []acl) {
	w := v.watches
	key := watchKey{path, children}
	if watchers := w.byKey[key]; watchers != nil {
		for c, mode := range watchers {
			if mode == watchRecursive && kind == eventChildrenChanged {
				continue
			}
			if allowed(list, permRead, c.ids) {
				s.notify(c, path, kind, event)
			}
			w.set(watchers, c, key, mode&^watchOnce)
		}
	}
	if w.recursive == 0 || children {
		return
	}
	for p := path; p != "/"; {
		p = parentOf(p)
		for c, mode := range w.byKey[watchKey{p, false}] {
			if mode&watchRecursive != 0 && allowed(list, permRead, c.ids) {
				s.notify(c, path, kind, event)
			}
		}
	}
}

// The method `notify` sends an event to c, unless c already has it.
func (s *Server) notify(c *conn, path string, kind int32, event int64) {
	if c.lastEvent == event || c.closing {
		return
	}
	c.lastEvent = event
	b := startFrame(s.scratch[:0])
	b = appendInt32(b, kind)
	b = appendInt32(b, stateSyncConnected)
	b = appendString(b, path)
	finishFrame(b, xidNotification, -1, CodeOK)
	s.scratch = b
	s.notifications++
	c.send(b)
}

// setWatches sets the watches of a client that has reconnected. If a znode has changed since the
// transaction zxid, setWatches sends the event at once instead of setting the watch.
func (s *Server) setWatches(c *conn, zxid int64, lists *watchLists) {
	v := c.at.view
	for _, path := range lists.data {
		switch n := v.tree.get(path); {
		case n == nil:
			s.notify(c, path, eventDeleted, s.nextEvent())
		case n.mzxid > zxid:
			s.notify(c, path, eventDataChanged, s.nextEvent())
		default:
			v.watches.add(c, watchKey{path, false}, watchOnce)
		}
	}
	for _, path := range lists.exist {
		if v.tree.get(path) != nil {
			s.notify(c, path, eventCreated, s.nextEvent())
		} else {
			v.watches.add(c, watchKey{path, false}, watchOnce)
		}
	}
	for _, path := range lists.child {
		switch n := v.tree.get(path); {
		case n == nil:
			s.notify(c, path, eventDeleted, s.nextEvent())
		case n.pzxid > zxid:
			s.notify(c, path, eventChildrenChanged, s.nextEvent())
		default:
			v.watches.add(c, watchKey{path, true}, watchOnce)
		}
	}
	for _, path := range lists.persistent {
		v.watches.add(c, watchKey{path, false}, watchPersistent)
		v.watches.add(c, watchKey{path, true}, watchPersistent)
	}
	for _, path := range lists.recursive {
		v.watches.add(c, watchKey{path, false}, watchRecursive)
	}
}

// addWatch sets a persistent watch.
func (s *Server) addWatch(c *conn, path string, mode int32) int32 {
	w := c.at.view.watches
	switch mode {
	case 0:
		w.add(c, watchKey{path, false}, watchPersistent)
		w.add(c, watchKey{path, true}, watchPersistent)
	case 1:
		w.add(c, watchKey{path, false}, watchRecursive)
	default:
		return CodeMarshallingError
	}
	return CodeOK
}

// The types of watch in checkWatches and removeWatches.
const (
	watcherChildren int32 = 1
	watcherData     int32 = 2
	watcherAny      int32 = 3
)

// findWatches searches for c's watches on path that have the type `kind`. If `remove` is true, it
// removes these watches.
func (s *Server) findWatches(c *conn, path string, kind int32, remove bool) int32 {
	if kind < watcherChildren || kind > watcherAny {
		return CodeMarshallingError
	}
	w := c.at.view.watches
	code := int32(CodeNoWatcher)
	for _, key := range []watchKey{{path, true}, {path, false}} {
		if key.children && kind == watcherData || !key.children && kind == watcherChildren {
			continue
		}
		if w.mode(c, key) == 0 {
			continue
		}
		code = CodeOK
		if remove {
			w.set(w.byKey[key], c, key, 0)
		}
	}
	return code
}
