package double

import (
	"context"
	"sync"

	"github.com/zsync/zsync/internal/session"
)

// The insiders of a session are those of its parties that are inside, or wait to be let
// in, by the paths of their children. Whoever keeps a round knows by it when those of its
// own process have left, and asks the servers about the others only.
type insiders struct {
	mu  sync.Mutex
	all map[string]*stay // guarded by mu
}

// A stay is that of one party.
type stay struct {
	over chan struct{} // closed when its child is deleted, or its Enter has failed, or its Leave is over
	gone bool          // its child is certainly deleted; read it only after over is closed
}

// insidersKey is what an incarnation has its insiders for.
type insidersKey struct{}

func insidersOf(inc *session.Incarnation) *insiders {
	i, _ := inc.Attached.LoadOrStore(insidersKey{}, &insiders{all: make(map[string]*stay)})
	return i.(*insiders)
}

func (i *insiders) begin(path string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.all[path] = &stay{over: make(chan struct{})}
}

// end is told that a stay is over, if it was not told so before. gone is whether the servers
// have answered that the child is deleted: an Enter and a Leave may be given up before that.
func (i *insiders) end(path string, gone bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if s := i.all[path]; s != nil {
		delete(i.all, path)
		s.gone = gone
		close(s.over)
	}
}

// among returns the stays of those who are among these children of room, and the names
// of the others.
func (i *insiders) among(room string, names []string) (ours map[string]*stay, others []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	ours = make(map[string]*stay)
	for _, name := range names {
		if s := i.all[session.ChildPath(room, name)]; s != nil {
			ours[name] = s
		} else {
			others = append(others, name)
		}
	}
	return ours, others
}

// awaitStays waits until these stays are over, and returns the names of those of whom it is
// not known whether their children are gone.
//
// A deletion that was answered is before whatever is sent after the answer, so that
// those are gone for everybody who is told of what we do next.
func awaitStays(ctx context.Context, inc *session.Incarnation, stays map[string]*stay) (unknown []string, err error) {
	for name, s := range stays {
		if err := session.AwaitIn(ctx, inc, s.over); err != nil {
			return nil, err
		}
		if !s.gone {
			unknown = append(unknown, name)
		}
	}
	return unknown, nil
}
