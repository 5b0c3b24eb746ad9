package double

import (
	"sync"

	"github.com/zsync/zsync/internal/session"
)

// A view is one read of a znode with one watch, which all parties of a session share that
// want to know what is there. A party of many needs no read of its own then.
//
// What was read is what is there as long as the watch has not fired. Whoever has had an
// answer from the servers has been told before of everything that is older than
// that answer (see session.Watches): so if the watch stands when he looks behind it,
// the view shows the znode as it was then, or later. That holds whether the view was
// read before his request or after it, and also if the connection was replaced in between.
//
// The number of children that it tells is that of the read: a watch on the data does not
// fire for a child.
type view struct {
	watch *session.Watch
	path  string
	users int // guarded by views.mu

	sent chan struct{} // closed when the read is on its way, or over
	over chan struct{} // closed when the read was answered, or has failed

	// Read them only after over is closed.
	node session.Node
	err  error
}

// The views of a session are those that somebody uses, by the paths of their znodes.
type views struct {
	mu  sync.Mutex
	all map[string]*view // guarded by mu
}

// viewsKey is what an incarnation has its views for.
type viewsKey struct{}

func viewsOf(inc *session.Incarnation) *views {
	v, _ := inc.Attached.LoadOrStore(viewsKey{}, &views{all: make(map[string]*view)})
	return v.(*views)
}

// viewOf returns the view of the znode at path, which the caller must leave. If it is a new
// one the caller must read it, and tell.
func viewOf(inc *session.Incarnation, path string) (v *view, reads bool) {
	w := inc.Watches.Join(session.WatchKey{Kind: session.WatchData, Path: path})
	vs := viewsOf(inc)
	vs.mu.Lock()
	defer vs.mu.Unlock()
	// A watch that has fired is not the one that was joined just now.
	if v = vs.all[path]; v == nil || v.watch != w || session.IsClosed(v.over) && v.err != nil {
		v = &view{watch: w, path: path, sent: make(chan struct{}), over: make(chan struct{})}
		vs.all[path] = v
		reads = true
	}
	v.users++
	return v, reads
}

func (v *view) leave(inc *session.Incarnation) {
	inc.Watches.Leave(v.watch)
	vs := viewsOf(inc)
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if v.users--; v.users == 0 && vs.all[v.path] == v {
		delete(vs.all, v.path)
	}
}

// onItsWay is told, by whoever reads it, that nothing that is sent from now on comes ahead
// of the read, unless the connection is replaced.
func (v *view) onItsWay() {
	if !session.IsClosed(v.sent) {
		close(v.sent)
	}
}

// tell is told what the read has come to.
func (v *view) tell(node session.Node, err error) {
	v.node, v.err = node, err
	v.onItsWay()
	close(v.over)
}

// stands reports whether v, whose read is over, still shows what is there.
func (v *view) stands(inc *session.Incarnation) bool {
	return v.err == nil && inc.Watches.Stands(v.watch)
}
