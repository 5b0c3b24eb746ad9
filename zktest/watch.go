package zktest

// This file has the watches: it keeps them by path and decides which client
// gets which event.

// A watchMode is a set of the ways in which one connection watches one path.
type watchMode uint8

const (
	watchOnce watchMode = 1 << iota
	watchPersistent
	watchRecursive
)

// A watchKey says what is watched: a node itself, there or not yet there, or
// its list of children.
type watchKey struct {
	path     string
	children bool
}

// A watchTable holds the watches left through one [view]. Server.mu guards it.
type watchTable struct {
	byKey     map[watchKey]map[*conn]watchMode
	recursive int // how many entries have watchRecursive
	count     int // how many entries there are
}

func newWatchTable() *watchTable {
	return &watchTable{byKey: map[watchKey]map[*conn]watchMode{}}
}

// add sets a watch. A second watch of a connection on the same key adds its mode
// to the first.
func (w *watchTable) add(c *conn, key watchKey, mode watchMode) {
	watchers := w.byKey[key]
	if watchers == nil {
		watchers = map[*conn]watchMode{}
		w.byKey[key] = watchers
	}
	w.set(watchers, c, key, watchers[c]|mode)
}

// set makes mode the way in which c watches under key. An empty mode removes
// the entry.
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

// mode returns how c watches key.
func (w *watchTable) mode(c *conn, key watchKey) watchMode {
	return w.byKey[key][c]
}

// removeAll removes every watch of c.
func (w *watchTable) removeAll(c *conn) {
	for key := range c.watched {
		w.set(w.byKey[key], c, key, 0)
	}
}

// move moves every watch of c to another table.
func (w *watchTable) move(c *conn, to *watchTable) {
	for key := range c.watched {
		mode := w.mode(c, key)
		w.set(w.byKey[key], c, key, 0)
		to.add(c, key, mode)
	}
}

// fire notifies the watchers that ch concerns, by ZooKeeper's rules:
//
//   - a creation fires watches on the missing node and on the parent's
//     children;
//   - a deletion fires watches on the node, on its children, and on the
//     parent's children; a client that watches the node and its children gets
//     one event for both;
//   - a change of data fires watches on the node; a change of the ACL fires
//     none.
//
// A client that may not read the node loses its watch without an event, as since
// ZooKeeper 3.8.4.
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

// nextEvent returns a number for one event on one path. A connection remembers the
// last event that it was sent, and is sent each once.
func (s *Server) nextEvent() int64 {
	s.lastEvent++
	return s.lastEvent
}

// trigger notifies the watchers of key. If the change is not to the children, it
// also notifies recursive watches on the ancestors. list is the node's ACL.
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

// notify sends c an event, once.
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

// setWatches sets the watches of a client that has reconnected. For each change
// since the transaction zxid, it sends the event at once instead.
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

// addWatch leaves a persistent watch.
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

// Types of watch in checkWatches and removeWatches.
const (
	watcherChildren int32 = 1
	watcherData     int32 = 2
	watcherAny      int32 = 3
)

// findWatches looks for watches of c on path, of the type kind, and removes
// them if remove is set.
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
