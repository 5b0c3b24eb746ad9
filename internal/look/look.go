// Package look finds the primitives in a tree of znodes: their holders, their waiters, and the
// waits of sessions for other sessions. It writes nothing. It reads through a [zsync.Session], with
// a bounded number of requests at a time. It is for tools that show a tree to people: the command
// and package ui.
package look

import (
	"cmp"
	"context"
	"errors"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/kinds"
	"github.com/zsync/zsync/internal/marks"
)

// Atonce is the largest number of requests, or of places, in progress at the same time.
const Atonce = 8

// TooMany is the largest number of znodes that Explore visits.
const TooMany = 20_000

// A Place is a path at which a primitive may be.
type Place struct {
	Path  string
	Kinds []kinds.Kind // by the mark of the path, or else by the names of its children and neighbours
	Names []string     // the names of its children; for a map, without the entries
	Made  int64        // number of children that were ever created, approximately
	Data  bool         // it has data
	Gated bool         // it has the neighbour with the waiters for kazoo's permits
	Lines []Line       // set by Look
}

// A Tree is the result of a look below a path.
type Tree struct {
	Places  []Place
	Strays  []string // znodes that belong to a neighbour that does not exist
	Refused []string // paths that the client may not read
	Znodes  int      // the number of visited znodes; 0 if the root does not exist
	Cut     bool     // Explore left out the rest
}

// Look explores the tree below `root`, and reads the primitives at each place that it finds.
func Look(ctx context.Context, s *zsync.Session, root string) (*Tree, error) {
	t, err := Explore(ctx, s, root)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	err = each(ctx, len(t.Places), func(i int) error {
		p := &t.Places[i]
		lines, err := p.look(ctx, s)
		if errors.Is(err, zk.ErrNoAuth) {
			mu.Lock()
			defer mu.Unlock()
			t.Refused = append(t.Refused, p.Path)
			err = nil
		}
		p.Lines = lines
		return err
	})
	if err != nil {
		return nil, err
	}
	t.dropMarks()
	slices.Sort(t.Refused)
	return t, nil
}

// A double barrier writes the number of its parties and the state of its last rounds into the
// parent znode. The pattern `rounds` matches this data.
var rounds = regexp.MustCompile(`^\d+( -?\d+:-?\d+:-?\d+)+$`)

// dropMarks removes places that show nothing new. The places of Once, Schedule and Partition
// already show the znodes below them. A double barrier that is not in use has only its znode
// "parties".
func (t *Tree) dropMarks() {
	marks := map[string]bool{}
	for _, p := range t.Places {
		for _, l := range p.Lines {
			switch l.Kind {
			case "once":
				marks[p.Path+"/done"] = true
			case "schedule":
				marks[p.Path+"/last"] = true
			case string(kinds.Partition):
				marks[p.Path+"/members"], marks[p.Path+"/plan"] = true, true
			}
		}
	}
	t.Places = slices.DeleteFunc(t.Places, func(p Place) bool {
		idle := path.Base(p.Path) == "parties" && len(p.Lines) == 1 && rounds.MatchString(p.Lines[0].State)
		return marks[p.Path] || idle
	})
}

// The function `each` calls f with 0 to n-1, until a call fails. Up to Atonce calls run at the same
// time.
func each(ctx context.Context, n int, f func(i int) error) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	next := 0
	for range min(n, Atonce) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				stop := i >= n || first != nil
				mu.Unlock()
				if stop {
					return
				}
				err := f(i)
				if err == nil && ctx.Err() != nil {
					err = context.Cause(ctx)
				}
				mu.Lock()
				if first == nil {
					first = err
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return first
}

// Explore finds the places below `root`. It sends one request for each znode that is not certainly
// part of a primitive, and one more request for the root and for each possible map. A user may give
// a lock almost any name. So only a generated name shows by itself that a znode is part of a
// primitive. Explore visits the entries of a map. An entry without a primitive is a place only if
// the entry is `root`.
func Explore(ctx context.Context, s *zsync.Session, root string) (*Tree, error) {
	x := &explorer{root: root, groups: map[string]bool{}, inMaps: map[string][]string{}, permits: map[string]bool{}, queues: map[string]bool{}}
	if root == "" || root[0] != '/' { // an invalid path: the Session returns the error
		_, _, err := s.Children(ctx, root)
		return nil, err
	}
	entry, err := inMap(ctx, s, root)
	if err != nil {
		return nil, err
	}
	for level := []found{{path: root, entry: entry}}; len(level) > 0; {
		slices.SortFunc(level, func(a, b found) int { return cmp.Compare(a.path, b.path) })
		if room := TooMany - x.tree.Znodes; len(level) > room {
			level, x.tree.Cut = level[:room], true
		}
		x.tree.Znodes += len(level)
		var below []found
		var mu sync.Mutex
		err := each(ctx, len(level), func(i int) error {
			at := level[i]
			names, stat, err := s.Children(ctx, at.path)
			if err == nil && stat.DataLength == int32(len(marks.Map)) && !(at.entry && len(names) == 0) {
				at.isMap, err = isMap(ctx, s, at.path)
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, zk.ErrNoNode):
				x.tree.Znodes-- // it was deleted, or it is a root that never existed
				return nil
			case errors.Is(err, zk.ErrNoAuth) && (at.perhaps || at.of != ""):
				return nil // most likely part of a primitive that the client may not read either
			case errors.Is(err, zk.ErrNoAuth):
				x.tree.Refused = append(x.tree.Refused, at.path)
				return nil
			case err != nil:
				return err
			}
			below = append(below, x.add(at, names, stat)...)
			return nil
		})
		if err != nil {
			return nil, err
		}
		level = below
	}
	x.group()
	x.holdInMaps()
	x.settle()
	t := &x.tree
	slices.SortFunc(t.Places, func(a, b Place) int { return cmp.Compare(a.Path, b.Path) })
	slices.Sort(t.Strays)
	return t, nil
}

// A found value is a znode that Explore must visit.
type found struct {
	path    string
	perhaps bool   // by its name, it may be part of the primitive at its parent
	of      string // by its name, it belongs to the primitive at this path
	gated   bool   // it has a neighbour that only kazoo's semaphore has
	entry   bool   // its parent is a map
	isMap   bool
}

type explorer struct {
	root   string
	tree   Tree
	groups map[string]bool     // paths with ephemeral children that belong to no other primitive
	inMaps map[string][]string // by path of a map: the ephemeral children whose names belong to a primitive

	permits map[string]bool // paths of kazoo's semaphores with permits in use
	queues  map[string]bool // paths that have the neighbours of a queue
}

// isMap reports whether a znode has the mark of a map. If the client may not read the znode, the
// result is false.
func isMap(ctx context.Context, s *zsync.Session, path string) (bool, error) {
	data, _, err := s.Get(ctx, path)
	if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNoAuth) {
		err = nil
	}
	return err == nil && string(data) == marks.Map, err
}

// inMap reports whether the parent of a path is a map.
func inMap(ctx context.Context, s *zsync.Session, at string) (bool, error) {
	if parent := path.Dir(at); parent != "/" {
		return isMap(ctx, s, parent)
	}
	return false, nil
}

// The method `add` adds a znode to the tree, and returns the children to visit.
func (x *explorer) add(at found, names []string, stat *zk.Stat) (below []found) {
	p := Place{Path: at.path, Kinds: kinds.Of(names), Names: names, Data: stat.DataLength > 0}
	// A server counts creations and deletions, in 32 bits.
	p.Made = (int64(uint32(stat.Cversion)) + int64(stat.NumChildren)) / 2
	p.Gated = at.gated
	below = x.children(at, names)
	switch {
	case at.perhaps && stat.EphemeralOwner != 0:
		if dir, name := path.Split(at.path); kinds.Own(name) {
			x.permits[path.Clean(dir)] = true
		}
		return nil
	case at.perhaps && !kinds.Own(path.Base(at.path)) && !kinds.Line(p.Kinds):
		return below
	case at.of != "" && stat.EphemeralOwner == 0 && int(stat.DataLength) == len(marks.Dir) && !kinds.Line(p.Kinds):
		x.queues[at.of] = x.queues[at.of] || queueOnly(at.path)
		return below
	}
	switch {
	case at.isMap:
		p.Kinds, p.Names, p.Made = []kinds.Kind{kinds.Map}, nil, 0
	case stat.EphemeralOwner == 0 && at.entry && len(p.Kinds) == 0:
		if p.Kinds = []kinds.Kind{kinds.Entry}; at.path != x.root {
			return below
		}
	}
	if stat.EphemeralOwner != 0 {
		if dir, name := path.Split(at.path); at.entry && len(kinds.Of([]string{name})) > 0 {
			x.inMaps[path.Clean(dir)] = append(x.inMaps[path.Clean(dir)], name)
		} else {
			x.groups[path.Clean(dir)] = true
		}
		return below
	}
	if at.path != "/" && (len(p.Kinds) > 0 || p.Data || len(names) == 0) {
		x.tree.Places = append(x.tree.Places, p)
	}
	return below
}

// The method `children` returns the children of the znode `at` that Explore must visit.
func (x *explorer) children(at found, names []string) (below []found) {
	if at.isMap { // every child is an entry, whatever its name is
		for _, name := range names {
			below = append(below, found{path: path.Join(at.path, name), entry: true})
		}
		return below
	}
	gates := map[string]bool{}
	for _, name := range names {
		if of, ok := kinds.Beside(name); ok && (name == of+"-__lock__" || name == of+"-__resized__") {
			gates[of] = true
		}
	}
	for _, name := range names {
		child := path.Join(at.path, name)
		of, beside := kinds.Beside(name)
		switch {
		case child == "/zookeeper" || kinds.Certain(name, names) || at.of != "" && kinds.InNeighbour(at.path, name):
			continue
		case beside && !slices.Contains(names, of) && name != of+"-dead": // dead letters may well outlive their queue
			x.tree.Strays = append(x.tree.Strays, child)
		}
		f := found{path: child, perhaps: kinds.Part(name, names), gated: gates[name]}
		if beside {
			f.of = path.Join(at.path, of)
		}
		below = append(below, f)
	}
	return below
}

// queueOnly reports whether a path is the path of a neighbour that only queues have.
func queueOnly(at string) bool {
	return !strings.HasSuffix(at, "-receipts") && !strings.HasSuffix(at, "__")
}

// The method `settle` removes the places that are parts of a semaphore. The method also finds
// queues by their neighbours, and adds the kind Queue to the places of these queues.
func (x *explorer) settle() {
	line, semaphore := map[string]bool{}, map[string]bool{}
	for _, p := range x.tree.Places {
		line[p.Path] = kinds.Line(p.Kinds)
	}
	for i := range x.tree.Places {
		p := &x.tree.Places[i]
		for _, name := range p.Names {
			if line[path.Join(p.Path, name)] { // the child is a primitive itself, so its name shows nothing about p
				p.Kinds = slices.DeleteFunc(p.Kinds, func(k kinds.Kind) bool { return kinds.Is(name, k) && (k == kinds.Semaphore || k == kinds.Queue) })
			}
		}
		semaphore[p.Path] = slices.Contains(p.Kinds, kinds.Semaphore)
		if x.queues[p.Path] && !slices.Contains(p.Kinds, kinds.Queue) {
			p.Kinds = append(p.Kinds, kinds.Queue)
		}
	}
	x.tree.Places = slices.DeleteFunc(x.tree.Places, func(p Place) bool {
		of, gate := strings.CutSuffix(p.Path, "-__lock__")
		return gate && x.permits[of] || path.Base(p.Path) == "locks" && semaphore[path.Dir(p.Path)]
	})
}

// The children of a map can include contenders of other primitives. holdInMaps finds these
// primitives, and adds their kinds to the place of the map. A contender is always ephemeral, and an
// entry of a map never is.
func (x *explorer) holdInMaps() {
	for i := range x.tree.Places {
		if p := &x.tree.Places[i]; len(p.Kinds) > 0 && p.Kinds[0] == kinds.Map {
			p.Names = x.inMaps[p.Path]
			p.Kinds = append(p.Kinds, kinds.Of(p.Names)...)
		}
	}
}

// The method `group` finds the paths whose ephemeral children are members of a group. It makes each
// such path a place of the kind Group. These children must be members: a gate, a value or a map has
// none, and the names of contenders have another form.
func (x *explorer) group() {
	for dir := range x.groups {
		if dir == "/" {
			continue
		}
		i := slices.IndexFunc(x.tree.Places, func(p Place) bool { return p.Path == dir })
		if i < 0 {
			x.tree.Places = append(x.tree.Places, Place{Path: dir})
			i = len(x.tree.Places) - 1
		}
		p := &x.tree.Places[i]
		if p.Kinds = append(p.Kinds, kinds.Group); len(p.Names) == 0 {
			p.Names = nil
		}
	}
}

// A Line is a contender, or another fact about a path.
type Line struct {
	Path     string     `json:"path"`
	Kind     string     `json:"kind"` // empty if the path is free
	Mode     string     `json:"mode,omitempty"`
	State    string     `json:"state"` // in words
	Holding  bool       `json:"holding"`
	Retained bool       `json:"retained,omitempty"` // it keeps its place in line; perhaps it does not hold the lock at present
	Owner    string     `json:"owner,omitempty"`
	Within   []string   `json:"within,omitempty"` // the sessions above it: a command of such a session has started the process of this session
	Since    *time.Time `json:"since,omitempty"`  // when the contender came
	Held     *time.Time `json:"held,omitempty"`   // when it was granted, if that is known
	Session  string     `json:"session,omitempty"`
	Node     string     `json:"node,omitempty"`
	Count    *int       `json:"count,omitempty"`   // number of elements of a queue, or of tasks of a wait group
	Dead     *int       `json:"dead,omitempty"`    // dead letters of a queue
	Layout   string     `json:"layout,omitempty"`  // layout of a queue, by its name in --layout
	Value    rawJSON    `json:"value,omitempty"`   // the data of the znode: unchanged if it is JSON, or else as a string
	Info     string     `json:"info,omitempty"`    // the info of a member of a group, or the shards of a member of a partition
	Failure  string     `json:"failure,omitempty"` // the last failure of a schedule, in words
}

// HeldSince returns the time of the grant to a holder. If `atMost` is true, the time of the grant
// is unknown. Then `since` is the time at which the holder came, and the holder may have waited
// before the grant.
func (l Line) HeldSince() (since *time.Time, atMost bool) {
	switch {
	case l.Held != nil:
		return l.Held, false
	case l.Kind == string(kinds.Group), l.Kind == string(kinds.Partition), l.Kind == string(kinds.DoubleBarrier):
		return l.Since, false
	}
	return l.Since, l.Since != nil
}

// A Memory compares each look with the previous one. A contender that waited in the previous look
// and holds in the present look was granted between the two looks.
type Memory struct{ waited, held map[string]time.Time }

// Note adds to the memory the tree t, the result of a look that has just ended. It sets Held in
// each line of t for which the memory shows the time of the grant.
func (m *Memory) Note(t *Tree) {
	now, before := time.Now(), *m
	m.waited, m.held = map[string]time.Time{}, map[string]time.Time{}
	for _, p := range t.Places {
		for i := range p.Lines {
			l := &p.Lines[i]
			if l.Since == nil || l.Node == "" {
				continue
			}
			at := l.Znode()
			if !l.Holding {
				m.waited[at] = now
				continue
			}
			since, seen := before.held[at]
			if _, waited := before.waited[at]; waited {
				since, seen = now, true
			}
			if seen {
				m.held[at] = since
			}
			if l.Held == nil && seen {
				l.Held = &since
			}
		}
	}
}

// Znode returns the path of a contender's znode.
func (l Line) Znode() string {
	dir := ""
	switch kinds.Kind(l.Kind) {
	case kinds.Semaphore:
		if dir = "locks"; l.Holding {
			dir = "leases"
		}
	case kinds.DoubleBarrier:
		dir = "parties"
	}
	return path.Join(l.Path, dir, l.Node)
}
