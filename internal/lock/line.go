package lock

// This file has the line of contenders: how a contender enters the line and leaves it, and how it
// learns that its znode exists. The wait for a turn is in acquire.go, and holds are in hold.go.

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

// A Line is the contenders of one primitive, in the order of their arrival. Each contender is an
// ephemeral, sequential child of one znode. Every primitive with waiters uses a Line. A Rule says
// which contenders must leave before another contender has its turn.
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
// Place.acquire carries out this protocol. If several contenders block us, it also lists the
// children during step 4. If such a listing shows that only the nearest is left, step 5 needs no
// other listing: see relisting.
type Line struct {
	Manager *session.Manager
	Dir     string                         // the parent, as the server knows it
	Bases   []string                       // kinds of contenders: the part of a name right before the number
	name    func(guid, base string) string // returns a name up to the number

	Part    bool // the znode above Dir belongs to the same primitive
	Kept    bool // other programs rely on the parent: see [session.Dir]
	Strict  bool // Enter fails with ErrMixed if a contender of another kind may be ahead
	Settled bool // no contender can arrive ahead of an existing one
	Keeps   bool // a contender with the base Bases[0] may keep its place while no goroutine holds the lock

	// Defers reports whether the contender me, whose turn has come, must let others go first. names
	// are the names of all children. A contender that defers enters the line again, at its end. If
	// Defers is nil, no contender defers.
	Defers func(me Child, names []string) bool

	trip *atomic.Int64 // shortest duration of an Enter or a listing that waiters of this Line have measured; 0 if none has
	each *atomic.Int64 // mean duration of a handoff during the last wait with a relisting; 0 if unknown

	Limits *Limits // limits of holds, or nil
	Kind   string  // its kind in the trace; for a read-write lock, the kind of a writer
}

// New returns the line of contenders below path. name makes the names of their znodes.
func New(m *session.Manager, path string, name func(guid, base string) string, bases ...string) Line {
	return Line{Manager: m, Dir: m.Full(path), Bases: bases, name: name, trip: new(atomic.Int64), each: new(atomic.Int64)}
}

// SessionDir describes the parent znode, for its creation.
func (l *Line) SessionDir() session.Dir { return session.Dir{Path: l.Dir, Part: l.Part, Kept: l.Kept} }

// A Rule decides whether the contenders ahead, which are in order, block a contender. If none of
// them does, blocker is nil. Otherwise, the contender waits for the deletion of blocker. alone
// means that no contender except blocker blocks it, now or later. Then, after that deletion, it has
// its turn.
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

// A Claim is a contender of this process: a znode in a line, and the session that created it. When
// its turn has come, goroutines hold it, each by a Grant.
type Claim struct {
	Hold
	Line      *Line
	data      []byte // of its znode
	beside    string // name of the znode whose place it shares, or "": see Beside
	Unwatched bool   // the primitive that uses it watches its znode itself
	recalls   bool   // OnRecall has registered a function with lineWatch; guarded by mu

	version   int32             // of its znode, after our last write to it; guarded by mu
	users     int32             // number of grants that have not ended; guarded by mu
	Path      string            // of its znode, as the server knows it; guarded by mu once its turn has come
	Child     Child             // guarded by mu once its turn has come
	own       *conn.Watch       // its watch on its own znode (Watches.Join), or nil; guarded by mu
	lineWatch *conn.Watch       // its watch on the line; nil unless a listing set it and showed no other contender; guarded by mu
	ownWatch  *session.OwnWatch // watches its znode during the hold; nil if Unwatched; guarded by mu
	leaveHeld func()            // from ownWatch.Drop; called when its znode is deleted; guarded by mu
	asked     chan struct{}     // if not nil, closed when another client asks the holder to release; guarded by mu
	granted   int               // number of all grants, for the trace; guarded by mu
	first     Grant             // storage for its first grant

	// Only a Lock uses the following fields; guarded by Lock.mu:
	mode    HoldMode
	listed  bool          // Lock.list has listed the line for c
	closed  bool          // no more readers may join
	open    int32         // number of transactions that may still be applied
	uses    []*Grant      // one for each goroutine that holds c, in the order in which they were granted
	one     [1]*Grant     // memory for uses, while it has one element
	passed  int           // number of handoffs, or of readers that joined, since c was last known to block no other contender
	listing chan struct{} // closed when the listing of Lock.list is answered; nil if none is under way
	moving  chan struct{} // closed at the end of a Downgrade; nil if none is under way
	stop    func()        // cancels that Downgrade, unless it is done already
	keptAt  time.Time     // when its last goroutine released it, if it is kept
	timer   *time.Timer   // fires when c was kept for Lock.Retain; nil if it fired while a goroutine held c
	recall  func()        // deletes c if no goroutine holds it; nil if c was never kept
}

func (l *Line) ranks(r *session.Roll) *ranks { return ranksOf(r, l.Bases) }

// confirm returns ErrEnded if the session has ended. It is the last check before a caller learns of
// the turn: see Place.acquire.
func (c *Claim) confirm() error {
	if !c.Incarnation.Alive() {
		return session.ErrEnded
	}
	return nil
}

// assure is confirm for a caller that will hold c. It waits until the session is confirmed, and
// takes a stake, which keeps the session confirmed: see [session.Incarnation.Stake].
func (c *Claim) assure(ctx context.Context) (err error) {
	c.Stake, err = c.Incarnation.Stake(ctx)
	return err
}

// withdraw deletes c, which was not granted. err is the error of the step that failed, or nil.
func (c *Claim) withdraw(err error) {
	if errors.Is(err, session.ErrVanished) {
		c.Stake.Drop()
		c.disown()
		return
	}
	c.Leave().Await(session.Grace)
}

// standsAfter is confirm after the deletion of the only blocker, and also checks that c's znode
// exists. If it does not, the error is ErrVanished. proof is the number of the connection that has
// delivered the event of the blocker's deletion, or 0 if that is unknown.
//
// The events of one connection come in the order of the changes, and before any reply that shows
// one of these changes. So if a read over that connection has found c's znode and set a watch on
// it, and the watch has not fired, the znode still existed when the blocker was deleted. Otherwise,
// standsAfter reads the znode.
//
// If one transaction has deleted both znodes, the event of c's znode may come after the event of
// the blocker. Then c is granted, and the second event reports the loss, as if c's znode had been
// deleted right after the grant.
func (c *Claim) standsAfter(ctx context.Context, proof int64) error {
	own, watches := c.watch(), c.Incarnation.Watches
	if proof == 0 || watches.ArmedOn(own) != proof || !watches.ArmedOnOurs(own) || session.IsClosed(own.Fired) {
		if err := c.mustStand(ctx); err != nil {
			return err
		}
	}
	return c.confirm()
}

// mustStand reads c's znode, and returns ErrVanished if it does not exist. If c waits for a watch
// on the znode that is not set, the read sets it. It is a watch on the znode's children. An
// ephemeral znode has no children, so the watch fires only at the deletion of the znode, and not
// when the holder writes the znode for a fencing token.
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

// watch returns c's watch on its own znode. If the watch has fired, or there is none, c joins a new
// one.
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
// ahead compares only names. If our znode was deleted, another client may have created a copy, a
// znode with the same name. While our session counts as alive, the copy blocks other contenders as
// our znode did. standsBy finds by the copy's owner that it is not ours.
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

// InOrder returns the contenders among names in the order of their arrival. If their numbers do not
// show that order, InOrder reads the zxids of their creates, with one request for every 128
// contenders.
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

// byCreation sorts line by the zxids at which the znodes were created, without contenders that have
// left.
//
// A znode that shares the place of another znode (Claim.Beside) comes first. The zxid of its own
// creation does not show that place, and the other znode may be deleted. To put it first does no
// harm: the place has had its turn, so every contender ahead of it has left, or may hold together
// with it.
//
// A persistent znode with an exhausted number comes last. Contenders are ephemeral, so it is none:
// a client has chosen its number. No end of a session deletes it, so ahead of contenders it would
// block them forever.
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

// keepLineWatch is called after a listing that could set w, a watch on the line; w may be nil.
// alone says that the listing has shown no other contender. If so, and if w is set and has not
// fired, c takes w. Otherwise, c keeps its present watch, for which a goroutine may wait. If the
// listing has shown other contenders, their arrival has fired that watch, provided that it was
// armed.
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
// reply, the release assumes that there are waiters.
const askTime = 200 * time.Millisecond

// others lists the line, and reports whether it has another contender with one of bases. A znode
// that shares c's place does not count: see RWMutex.Downgrade. If c itself is not listed, c is
// lost. With watch, the listing also sets a watch on the line, and bases must be all bases of the
// line. If there is no other contender, c.Alone is then true until another contender comes or c is
// deleted.
//
// others fails if there is no connection, or no answer within askTime: a release does not wait for
// the next connection.
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
		// c was downgraded during the listing. So the listing may show the old znode, the new one
		// or both. It proves nothing about waiters, and shows no loss.
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

// ReadFirst returns the name of the first contender and its znode, at least as new as the call. The
// name is "" if there is no contender. If known is the name of the first contender, ReadFirst takes
// one round trip, and otherwise two. known may be "".
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

// errExhausted means that the number of a znode does not show its place (see split). So no other
// znode can share that place.
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
