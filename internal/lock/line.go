package lock

// This file has the line of contenders, and a contender in it: how it enters and leaves, and how it
// learns that its znode exists. The wait for a turn is not its business (acquire.go), nor are
// holds.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/session"
)

// A Line is the ephemeral, sequential children of one znode: contenders, in the order in which
// ZooKeeper saw them arrive. Every primitive with waiters uses it. A Rule has the condition of a
// turn.
//
// The protocol is "Locks" from the ZooKeeper recipes:
//
//  1. Enter: create an ephemeral, sequential child.
//  2. List the children, without a watch.
//  3. If no contender ahead blocks us, it is our turn.
//  4. Otherwise watch only the nearest contender that blocks us, and wait until it is deleted.
//  5. If no other contender blocked us, and our own child still exists, it is our turn. Otherwise
//     continue with 2.
//
// Place.acquire is this protocol. If several contenders block us, the children are also listed
// during step 4. Such a listing may show that only the nearest is left, and step 5 then knows that:
// see relisting.
type Line struct {
	Manager *session.Manager
	Dir     string                         // the parent, as the server knows it
	Bases   []string                       // each marks a child as a contender, before its number
	name    func(guid, base string) string // returns a name up to the number

	Part    bool // the znode above Dir belongs to the same primitive
	Kept    bool // other programs rely on the parent: see [session.Dir]
	Strict  bool // no contender enters after a contender of another kind
	Settled bool // no contender can arrive ahead of an existing one
	Keeps   bool // a contender with the first of Bases may keep its place while no goroutine holds it

	// Defers is nil, or reports whether the contender me, whose turn has come, defers to others.
	// names are all children. A contender that defers enters again at the end of the line.
	Defers func(me Child, names []string) bool

	trip *atomic.Int64 // the shortest duration of a listing, or of entering, that waiters of this Line have measured
	each *atomic.Int64 // duration of a handoff in the last wait of such a waiter; 0 if unknown

	Limits *Limits // limits of holds, or nil
	Kind   string  // its kind in the trace; for a read-write lock, the kind of a writer
}

// New returns the line of contenders below path. name makes the names of their znodes.
func New(m *session.Manager, path string, name func(guid, base string) string, bases ...string) Line {
	return Line{Manager: m, Dir: m.Full(path), Bases: bases, name: name, trip: new(atomic.Int64), each: new(atomic.Int64)}
}

// SessionDir describes the parent znode, for its creation.
func (l *Line) SessionDir() session.Dir { return session.Dir{Path: l.Dir, Part: l.Part, Kept: l.Kept} }

// A Rule decides which of the contenders ahead blocks a contender. They are in order. If none of
// them blocks, blocker is nil. Otherwise, blocker is the contender whose deletion is worth waiting
// for. alone means that no other contender blocks, now or later. Then the deletion of the blocker
// proves that it is our turn.
type Rule func(ahead []Child) (blocker *Child, alone bool)

// EveryoneAhead is the rule of a mutex: every contender ahead blocks.
func EveryoneAhead(ahead []Child) (blocker *Child, alone bool) {
	if len(ahead) == 0 {
		return nil, false
	}
	return &ahead[len(ahead)-1], len(ahead) == 1
}

// A HoldMode is how a lock is held.
type HoldMode int8

const (
	Exclusive HoldMode = iota // by one goroutine
	Shared                    // by any number
)

// A Claim is a contender of this process in a line: a znode and its session. It waits for its
// turn. After that, every goroutine with a grant of it holds it.
type Claim struct {
	Hold
	Line      *Line
	data      []byte // of its znode
	beside    string // the znode whose place it shares
	Unwatched bool   // its owner watches its znode
	recalls   bool   // OnRecall has registered with lineWatch; guarded by mu

	version   int32             // of its znode, after our last write to it; guarded by mu
	users     int32             // number of present grants; guarded by mu
	Path      string            // of its znode, as the server knows it; guarded by mu once its turn has come
	Child     Child             // guarded by mu once its turn has come
	own       *conn.Watch       // the watch on its znode, joined, or nil; guarded by mu
	lineWatch *conn.Watch       // the watch on the line, joined; nil unless it was set while c was alone in the line; guarded by mu
	ownWatch  *session.OwnWatch // during the hold; nil if Unwatched; guarded by mu
	leaveHeld func()            // from ownWatch.Drop; called when its znode is deleted; guarded by mu
	asked     chan struct{}     // if not nil, closed when another client asks the holder to release; guarded by mu
	granted   int               // number of all grants, for the trace; guarded by mu
	first     Grant             // storage for its first grant

	// The fields of a claim that a Lock has granted; guarded by Lock.mu:
	mode    HoldMode
	listed  bool          // the line was listed once, and a watch set if c was alone
	closed  bool          // no more readers may join
	open    int32         // transactions that may still be applied
	uses    []*Grant      // one for each goroutine, in the order in which they were granted
	one     [1]*Grant     // memory for uses, while it has one element
	passed  int           // handoffs, or readers that joined, since it was last known that no contender waits
	listing chan struct{} // closed when the listing under way is answered; nil if there is none
	moving  chan struct{} // closed at the end of the Downgrade under way; nil if there is none
	stop    func()        // ends that Downgrade early, unless it is done already
	keptAt  time.Time     // when its last goroutine released it, if it is kept
	timer   *time.Timer   // ends the time for which it is kept; nil if it fired while a goroutine had c
	recall  func()        // gives up the place if no goroutine has it; nil if it was never kept
}

func (l *Line) ranks(r *session.Roll) *ranks { return ranksOf(r, l.Bases) }

// confirm is the last step before a caller learns of the turn: see Place.acquire.
func (c *Claim) confirm() error {
	if !c.Incarnation.Alive() {
		return session.ErrEnded
	}
	return nil
}

// assure is confirm for a caller that will hold: the session must be confirmed, and a stake keeps
// it confirmed.
func (c *Claim) assure(ctx context.Context) (err error) {
	c.Stake, err = c.Incarnation.Stake(ctx)
	return err
}

// withdraw deletes c after err. No caller has learned of its turn.
func (c *Claim) withdraw(err error) {
	if errors.Is(err, session.ErrVanished) {
		c.Stake.Drop()
		c.disown()
		return
	}
	c.Leave().Await(session.Grace)
}

// standsAfter is confirm after the deletion of the only blocker. proof is the number of the
// connection that has delivered the event of that deletion, or 0. The error is ErrVanished if c's
// znode did not exist then.
//
// The events of one connection come in the order of the changes, and before any reply that shows
// one of these changes. So c's znode existed if a read on that same connection has found it and set
// its watch, and the watch has not fired. Otherwise standsAfter reads the znode.
//
// If one transaction has deleted both znodes, the event of our znode may still follow. That is as
// if our znode had been deleted right after our turn: the holder learns of the loss by that event.
func (c *Claim) standsAfter(ctx context.Context, proof int64) error {
	own, watches := c.watch(), c.Incarnation.Watches
	if proof == 0 || watches.ArmedOn(own) != proof || !watches.ArmedOnOurs(own) || session.IsClosed(own.Fired) {
		if err := c.mustStand(ctx); err != nil {
			return err
		}
	}
	return c.confirm()
}

// mustStand returns ErrVanished if c's znode does not exist. If c has joined its watch, and the
// watch is not set, the read sets it. The watch is on the znode's children. An ephemeral znode has
// none, so the watch fires only at the deletion, and not at a change of data such as a fencing
// token.
func (c *Claim) mustStand(ctx context.Context) error {
	_, stat, err := c.Incarnation.Children(ctx, c.Path)
	return c.standsBy(session.Look{Stat: stat, Err: err})
}

// standsBy is mustStand for the result of a read.
func (c *Claim) standsBy(l session.Look) error {
	switch {
	case session.IsNoNode(l.Err):
		return session.ErrVanished
	case l.Err != nil:
		return l.Err
	case l.Stat.EphemeralOwner != c.Incarnation.ID.Load():
		return session.ErrVanished // a znode with this name in another session is another client's copy
	}
	return nil
}

// watch returns the watch on c's own znode, which is joined.
func (c *Claim) watch() *conn.Watch {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ownLocked()
}

func (c *Claim) ownLocked() *conn.Watch {
	if c.own != nil && session.IsClosed(c.own.Fired) {
		c.disownLocked()
	}
	if c.own == nil {
		c.own = c.Incarnation.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: c.Path})
	}
	return c.own
}

// disown leaves the watches of c.
func (c *Claim) disown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disownLocked()
	c.leaveLineWatchLocked()
}

func (c *Claim) disownLocked() {
	if c.own != nil {
		c.Incarnation.Watches.Leave(c.own)
		c.own = nil
	}
	if left := c.leaveHeld; left != nil {
		c.leaveHeld = nil
		left()
	}
}

// Enter creates a claim at the end of the line, and lists the line. If the claim may keep its
// place, the listing sets a watch on the line.
func (l *Line) Enter(ctx context.Context, inc *session.Incarnation, base string, data []byte) (*Claim, *session.Roll, error) {
	guid := session.NewGUID()
	var lineWatch *conn.Watch
	if l.Keeps && base == l.Bases[0] {
		guid, lineWatch = session.NewMarkedGUID(), l.joinLineWatch(inc)
	}
	name := l.name(guid, base)
	if i := len(name) - len(base); i > 0 {
		guid = name[:i] // the part before base, in Curator's form or kazoo's
	}
	made := session.Creation{Dir: l.SessionDir(), Paths: []string{session.ChildPath(l.Dir, name)}, GUID: guid, Data: data, List: true}
	if err := inc.CreateEphemeral(ctx, &made); err != nil {
		if lineWatch != nil {
			inc.Watches.Leave(lineWatch)
		}
		return nil, nil, err
	}
	path, roll := made.Path, made.Roll
	c := &Claim{Hold: Hold{Incarnation: inc}, Line: l, Path: path, data: data}
	rk := l.ranks(roll)
	c.keepLineWatch(lineWatch, len(rk.in) == 1 && rk.sure)
	var err error
	if me, ok := ParseChild(session.BaseName(path), l.Bases...); ok {
		c.Child = me
		if l.Strict {
			err = unmixed(l.Bases, rk.mixed, &me)
		}
	} else { // no correct server answers so
		err = fmt.Errorf("%w: created %q as %q", conn.ErrProtocol, name, path)
	}
	if err != nil {
		c.withdraw(err)
		return nil, nil, err
	}
	return c, roll, nil
}

// ahead returns the contenders ahead of me, in order. The error is ErrVanished if the listing does
// not contain me, because then our znode is deleted.
//
// ahead compares only names. If our znode was deleted, another client may have created a copy with
// the same name. For as long as our session counts as alive, the copy blocks others as our znode
// did. standsBy finds that the copy is not ours.
func (l *Line) ahead(ctx context.Context, inc *session.Incarnation, roll *session.Roll, me Child) ([]Child, error) {
	rk := l.ranks(roll)
	if !rk.told || me.Exhausted() {
		return l.aheadAmong(ctx, inc, roll.Names(), me)
	}
	if ahead, ok := rk.before(me); ok {
		return ahead, nil
	}
	return nil, session.ErrVanished
}

// AheadAmong returns the contenders ahead of c in a listing that the caller has made.
func (c *Claim) AheadAmong(ctx context.Context, names []string) ([]Child, error) {
	return c.Line.aheadAmong(ctx, c.Incarnation, names, c.Child)
}

func (l *Line) aheadAmong(ctx context.Context, inc *session.Incarnation, names []string, me Child) ([]Child, error) {
	all, err := l.InOrder(ctx, inc, names)
	if err != nil {
		return nil, err
	}
	for i, o := range all {
		if o.Name == me.Name {
			return all[:i], nil
		}
	}
	return nil, session.ErrVanished
}

// InOrder returns the contenders among names in the order of their arrival. If the numbers do not
// show the order, it is the order of the zxids of the creates, which every client can read. To read
// the zxids costs one request for every 128 contenders.
func (l *Line) InOrder(ctx context.Context, inc *session.Incarnation, names []string) ([]Child, error) {
	all := ParseChildren(names, l.Bases...)
	in, exhausted, tell := split(all)
	switch {
	case !tell:
		return l.byCreation(ctx, inc, all)
	case len(exhausted) < 2:
		return all, nil
	}
	behind, err := l.byCreation(ctx, inc, exhausted)
	return append(in, behind...), err
}

// byCreation sorts line by the zxids of the creates, without contenders that have left.
//
// A granted znode that shares the place of another znode comes first. The zxid of its place is
// unknown if the other znode is deleted. But first is right: at the grant, all contenders ahead of
// the place had left, or may hold together with it. So it does no harm if they come after it.
//
// A persistent znode whose number is exhausted comes last. It is no contender, because contenders
// are ephemeral: a client has chosen its number, and no end of a session would ever delete it.
func (l *Line) byCreation(ctx context.Context, inc *session.Incarnation, line []Child) ([]Child, error) {
	paths := make([]string, len(line))
	for i, c := range line {
		paths[i] = session.ChildPath(l.Dir, c.Name)
	}
	nodes, err := inc.GetAll(ctx, paths)
	if err != nil {
		return nil, err
	}
	czxids := make(map[string]int64, len(line))
	for i, n := range nodes {
		switch c := line[i]; {
		case n.Stat == nil: // it has just left
		case c.beside():
			czxids[c.Name] = -1
		case c.Exhausted() && n.Stat.EphemeralOwner == 0:
			czxids[c.Name] = math.MaxInt64
		default:
			czxids[c.Name] = n.Stat.Czxid
		}
	}
	sorted := slices.DeleteFunc(slices.Clone(line), func(c Child) bool { return czxids[c.Name] == 0 })
	slices.SortStableFunc(sorted, func(a, b Child) int { return cmp.Compare(czxids[a.Name], czxids[b.Name]) })
	return sorted, nil
}

// joinLineWatch joins the watch on the line.
func (l *Line) joinLineWatch(inc *session.Incarnation) *conn.Watch {
	return inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: l.Dir})
}

// keepLineWatch gives c a watch on the line that was joined before the line was listed. alone says
// that the listing has shown no other contender. If the watch is nil or the listing has failed, c
// keeps the watch that it has, because a goroutine may be waiting for it. If a listing shows other
// contenders, that watch has fired before, provided that it was armed.
func (c *Claim) keepLineWatch(w *conn.Watch, alone bool) {
	if w == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if alone && c.state < lost && c.Incarnation.Watches.Armed(w) && !session.IsClosed(w.Fired) {
		c.leaveLineWatchLocked()
		c.lineWatch = w
		return
	}
	c.Incarnation.Watches.Leave(w)
}

func (c *Claim) leaveLineWatchLocked() {
	if c.lineWatch != nil {
		if c.recalls {
			c.recalls = false
			c.Incarnation.Watches.Untell(c.lineWatch, c)
		}
		c.Incarnation.Watches.Leave(c.lineWatch)
		c.lineWatch = nil
	}
}

// Leave deletes c, which was never granted or has ended, in the background.
func (c *Claim) Leave() *session.Deletion {
	c.Stake.Drop()
	// c leaves its own watch only after the deletion. Otherwise, the watch could be removed just
	// before it fires.
	return c.Incarnation.Delete(&session.Deletion{Paths: []string{c.Znode()}, Then: c.disown})
}

// askTime is how long a release waits for a listing that shows whether there are waiters. Without a
// reply, it assumes that there are.
const askTime = 200 * time.Millisecond

// others reports whether a contender of these bases is in the line, except c and the znode that
// shares its place: see RWMutex.Downgrade. If c itself is not in the listing, it is lost. With
// watch, bases must be all bases of the line, and the listing sets a watch. If there is no other
// contender, c.Alone is true from then on, until another contender comes or c is deleted.
//
// It fails if there is no connection, or no answer within askTime: a release does not wait for the
// next connection.
func (c *Claim) others(watch bool, bases ...string) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	down := c.Incarnation.Disconnection()
	c.Line.Manager.Spawn(func() {
		select {
		case <-down:
			cancel()
		case <-ctx.Done():
		}
	})
	child := func() Child {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.Child
	}
	me := child()
	var lineWatch *conn.Watch
	if watch {
		lineWatch = c.Line.joinLineWatch(c.Incarnation)
	}
	alone := false
	defer func() { c.keepLineWatch(lineWatch, alone) }()
	names, _, err := c.Incarnation.Children(ctx, c.Line.Dir)
	if err != nil {
		return false, c.Explain(err) // without the parent there is no child
	}
	if child() != me {
		// c was downgraded during the listing. So the listing may show either znode or both, and
		// proves nothing about waiters. That is no loss.
		return true, nil
	}
	if !slices.Contains(names, me.Name) {
		return false, c.Explain(zk.ErrNoNode)
	}
	for _, o := range ParseChildren(names, bases...) {
		if !o.SamePlace(me) {
			return true, nil
		}
	}
	alone = true
	return false, nil
}

// First returns the name of the first contender, or "". list lists the children of a znode:
// Incarnation.Children or ChildrenFresh.
func (l *Line) First(ctx context.Context, inc *session.Incarnation, list func(ctx context.Context, path string) ([]string, *zk.Stat, error)) (string, error) {
	names, _, err := list(ctx, l.Dir)
	if err != nil && !session.IsNoNode(err) {
		return "", err
	}
	all, err := l.InOrder(ctx, inc, names)
	if err != nil || len(all) == 0 {
		return "", err
	}
	return all[0].Name, nil
}

// ReadFirst returns the name of the first contender, not older than the call, and its znode; or "".
// If known is the name of the first contender, that takes one round trip, and otherwise two. known
// may be "".
func (l *Line) ReadFirst(ctx context.Context, inc *session.Incarnation, known string) (name string, n session.Node, err error) {
	list := inc.ChildrenFresh
	if known != "" {
		list = func(ctx context.Context, path string) (names []string, _ *zk.Stat, err error) {
			names, n, err = inc.ChildrenFreshBeside(ctx, path, session.ChildPath(path, known))
			return names, nil, err
		}
	}
	for {
		if name, err = l.First(ctx, inc, list); err != nil || name == "" || name == known && n.Stat != nil {
			return name, n, err
		}
		if n.Data, n.Stat, err = inc.Get(ctx, session.ChildPath(l.Dir, name)); !session.IsNoNode(err) {
			return name, n, err
		}
		// The first contender left between the listing and the read: list the line again.
		list, known = inc.Children, ""
	}
}

// errExhausted means that a number no longer shows the place of its znode, so no znode can share
// it. See split.
var errExhausted = errors.New("the path has had 2^31 children: the order is kept, but no read lock can be put in a writer's place")

// Beside creates a child of another mode at the place of c in the line: its name ends in the same
// number. The servers create it only if c's own child exists; otherwise, the error is NoNode. If
// ctx ends, or after any other error, no child is left.
func (c *Claim) Beside(ctx context.Context, base string, data []byte) (*Claim, error) {
	l, inc := c.Line, c.Incarnation
	for {
		c.mu.Lock()
		path, me := c.Path, c.Child
		c.mu.Unlock()
		if me.Exhausted() {
			return nil, errExhausted
		}
		number := me.Name[strings.LastIndex(me.Name, me.Base)+len(me.Base):]
		name := l.name(session.NewMarkedGUID(), base) + number // Child.beside recognizes the mark
		b := &Claim{Hold: Hold{Incarnation: inc}, Line: l, Path: session.ChildPath(l.Dir, name), data: data, Child: Child{Name: name, Base: base, Seq: me.Seq}, beside: me.Name}
		err := inc.CreateEphemeral(ctx, &session.Creation{
			Dir: l.SessionDir(), Paths: []string{b.Path}, Data: data,
			Holds: []*zk.CheckVersionRequest{{Path: path, Version: -1}},
		})
		switch {
		case err == nil:
			if err = b.assure(ctx); err != nil {
				b.withdraw(err)
				return nil, err
			}
			return b, nil
		case errors.Is(err, session.ErrVanished) && c.Znode() != path:
			continue // it was downgraded during the request, and has another znode
		case errors.Is(err, session.ErrVanished):
			err = zk.ErrNoNode
		}
		return nil, err
	}
}
