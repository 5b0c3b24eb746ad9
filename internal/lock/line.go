package lock

// This file has the line of contenders. A contender enters the line, checks that its znode exists,
// and leaves the line. The wait for a turn is in acquire.go, and holds are in hold.go.

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
	"github.com/zsync/zsync/internal/znodes"
)

// A Line has the contenders of one primitive, in the order of their arrival. All of them are
// ephemeral, sequential children of the same znode.
//
// The protocol is "Locks" from the ZooKeeper recipes:
//
//  1. Enter: create an ephemeral, sequential child.
//  2. List the children, without a watch.
//  3. If no contender ahead of us blocks us, it is our turn.
//  4. If contenders block us, watch only the nearest of them. Wait until it is deleted.
//  5. If no other contender blocked us, and our own child still exists, it is our turn. In all
//     other cases, continue with step 2.
//
// The code of this protocol is Place.acquire. If several contenders block us, it also lists the
// children during step 4. If this listing shows that only the nearest of them is left, step 5 needs
// no other listing: see Place.plan.
type Line struct {
	Manager *session.Manager
	Dir     string                         // full path of the parent
	Bases   []string                       // the kinds of contenders, by HoldMode; a base is the part of a name right before the number
	name    func(guid, base string) string // returns the part of a name before the number
	Data    []byte                         // of the znodes

	Part    bool // the parent of Dir belongs to the same primitive
	Kept    bool // other programs rely on the znode Dir: see [znodes.Dir]
	Strict  bool // Enter fails with ErrMixed if a contender of another kind may be ahead
	Settled bool // no contender can arrive ahead of an existing contender
	Keeps   bool // an exclusive contender may keep its place while no goroutine holds the lock

	// Defers reports whether the contender of `me`, whose turn has come, must let other contenders go
	// first. The argument `names` has the names of all children. A contender that defers enters the
	// line again, at its end. If Defers is nil, no contender defers.
	Defers func(me *Claim, names []string) bool

	each *atomic.Int64 // mean duration of a handoff during the last wait with listings; 0 if unknown

	Limits *Limits // limits of holds, or nil
	Kind   string  // the kind in the trace; for a read-write lock, the kind of a writer
}

// New returns the line of contenders below `path`. The function `name` returns the names of their
// znodes, up to the number.
func New(m *session.Manager, path string, name func(guid, base string) string, bases ...string) Line {
	return Line{Manager: m, Dir: m.Full(path), Bases: bases, name: name, Data: m.Owner, each: new(atomic.Int64)}
}

// SessionDir describes the parent znode, for its creation.
func (l *Line) SessionDir() znodes.Dir { return znodes.Dir{Path: l.Dir, Part: l.Part, Kept: l.Kept} }

// Blocker returns the nearest of the contenders in `ahead` that block a contender in `mode`, or nil
// if no contender blocks it. The contenders in `ahead` are in order. All of them block an exclusive
// contender, and only exclusive contenders block a shared contender. If only `nearest` can block the
// contender, now or in the future, `alone` is true. Then its turn comes when `nearest` is deleted.
//
// It is tempting to return true also for a writer of an RWMutex. But the only contender ahead may be
// a writer that has become a reader: its znode then has another name with the same number, which is
// smaller than ours. So a writer lists the line again.
func (l *Line) Blocker(mode HoldMode, ahead []Child) (nearest *Child, alone bool) {
	blockers := 0
	for i := range ahead {
		if mode == Exclusive || ahead[i].Base == l.Base(Exclusive) {
			nearest = &ahead[i]
			blockers++
		}
	}
	return nearest, blockers == 1 && (mode == Shared || l.Base(Shared) == "")
}

// Base returns the base of contenders in `mode`, or "" if l has no such contenders.
func (l *Line) Base(mode HoldMode) string {
	if int(mode) < len(l.Bases) {
		return l.Bases[mode]
	}
	return ""
}

// A HoldMode is the mode in which a lock is held.
type HoldMode int8

const (
	Exclusive HoldMode = iota // held by one goroutine
	Shared                    // held by any number of goroutines
)

// A Claim is a contender of this process: a znode in a line, and the session that created the
// znode. When its turn has come, one or more goroutines hold the claim. Each of them has a Grant.
type Claim struct {
	Hold
	Line      *Line
	Unwatched bool // the primitive itself watches the znode

	version   int32            // the version of its znode after our last write; guarded by mu
	Path      string           // full path of its znode; guarded by mu once its turn has come
	Child     Child            // guarded by mu once its turn has come
	own       *conn.Watch      // its watch on its znode (Watches.Join), or nil; guarded by mu
	lineWatch *conn.Watch      // its watch on the line, if a listing has set the watch and shown no other contender; otherwise nil; guarded by mu
	ownWatch  *znodes.OwnWatch // watches its znode during the hold; nil if Unwatched; guarded by mu
	leaveHeld func()           // result of ownWatch.Drop; called when its znode is deleted; guarded by mu
	asked     chan struct{}    // closed when another client asks the holder to release; nil before Asked is called; guarded by mu
	granted   int              // number of all grants, for the trace; guarded by mu

	owner any // the Lock that shares the claim among goroutines, or nil; constant since the first grant

	// Only a Lock uses the following fields; guarded by Lock.mu:
	closed  bool          // no more readers may join
	open    int32         // number of transactions that are under way, or may still be applied
	uses    []*Grant      // one for each goroutine that holds c, in the order of the grants
	passed  int           // number of handoffs, or of readers that have joined, since it was last certain that c blocks no other contender
	listing chan struct{} // closed when the latest listing of Lock.list is answered; nil before the first
	timer   *time.Timer   // calls `recall` after the time Lock.Retain, if c is kept; nil if c was never kept
}

// standsAfter is called after the deletion of the only blocker, and checks that c's znode exists. If
// not, the error is ErrVanished.
//
// The events of one connection come in the order of the changes, and before any reply that shows
// their changes. Suppose that a read over the present connection has found c's znode and set a watch on
// it, and that the watch has not fired. If the deletion of the blocker was reported before that read,
// perhaps over an earlier connection, the znode existed at the read. If it was reported after the read,
// the znode still existed when the blocker was deleted. In every other case, standsAfter reads the znode.
//
// If one transaction deletes both znodes, the event of c's znode may come second. Then c is granted,
// and this event reports the loss, as if c's znode were deleted right after the grant.
func (c *Claim) standsAfter(ctx context.Context) error {
	watches := c.Incarnation.Watches
	if w := watches.State(c.watch()); w.ArmedOn != watches.Connection() || !w.Ours || w.Event != 0 {
		return c.MustStand(ctx)
	}
	return nil
}

// TakeStake takes a stake for c, whose turn has come: from then on, the session stays confirmed.
func (c *Claim) TakeStake(ctx context.Context) (err error) {
	lapse := c.Incarnation.Lapse()
	if c.Stake, err = c.Incarnation.Stake(ctx); err != nil {
		return err
	}
	if err = c.standsSince(ctx, lapse); err != nil {
		c.Stake.Drop() // the caller may wait again, with a new stake
		c.Stake = nil
	}
	return err
}

// The method standsSince is called right before the caller learns that it holds c. Requests may have
// been sent since the turn of c, such as the confirmation of the session. If they may have taken an
// outage (Lapse.Outage), it reads c's znode. `lapse` began before them.
func (c *Claim) standsSince(ctx context.Context, lapse session.Lapse) error {
	c.mu.Lock()
	fired := c.own != nil && session.IsClosed(c.own.Fired)
	c.mu.Unlock()
	if !fired && !lapse.Outage() {
		return nil
	}
	return c.MustStand(ctx)
}

// MustStand reads c's znode, and returns ErrVanished if the znode does not exist. If c has joined a
// watch on the znode, and the watch is not set yet, the read sets the watch. The watch is on the
// znode's children: an ephemeral znode has none, so nothing but its deletion fires the watch.
func (c *Claim) MustStand(ctx context.Context) error {
	_, stat, err := c.Incarnation.Children(ctx, c.Path)
	return c.standsBy(stat, err)
}

// standsBy is MustStand for a read by the caller.
func (c *Claim) standsBy(stat *zk.Stat, err error) error {
	switch {
	case session.IsNoNode(err):
		return session.ErrVanished
	case err != nil:
		return err
	case stat.EphemeralOwner != c.Incarnation.ID.Load():
		return session.ErrVanished // if another session owns the znode, it is another client's copy
	}
	return nil
}

// The method `watch` returns c's watch on its own znode, or joins a new one if that has fired.
func (c *Claim) watch() *conn.Watch {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own != nil && session.IsClosed(c.own.Fired) {
		c.disownLocked()
	}
	if c.own == nil {
		c.own = c.Incarnation.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: c.Path})
	}
	return c.own
}

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

// Enter creates a claim at the end of the line, and lists the line. If the claim may later keep its
// place, the listing sets a watch on the line.
func (l *Line) Enter(ctx context.Context, inc *session.Incarnation, mode HoldMode) (*Claim, *znodes.Roll, error) {
	guid, base := znodes.NewGUID(), l.Base(mode)
	var lineWatch *conn.Watch
	if l.Keeps && mode == Exclusive {
		guid, lineWatch = znodes.NewMarkedGUID(), inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: l.Dir})
	}
	name := l.name(guid, base)
	if i := len(name) - len(base); i > 0 {
		guid = name[:i] // the part before `base`, in the form of Curator or kazoo
	}
	made := znodes.Creation{Dir: l.SessionDir(), Paths: []string{znodes.ChildPath(l.Dir, name)}, GUID: guid, Data: l.Data, List: true}
	if err := znodes.CreateEphemeral(ctx, inc, &made); err != nil {
		if lineWatch != nil {
			inc.Watches.Leave(lineWatch)
		}
		return nil, nil, err
	}
	path, roll := made.Path, made.Roll
	c := &Claim{Hold: Hold{Incarnation: inc}, Line: l, Path: path}
	all := l.contenders(roll)
	c.keepLineWatch(lineWatch, len(all) == 1)
	var err error
	if me, ok := ParseChild(znodes.BaseName(path), l.Bases...); ok {
		c.Child = me
		if l.Strict && len(all) < len(roll.Names()) {
			err = unmixed(l.Bases, roll.Names(), &me)
		}
	} else { // a correct server never gives this answer
		err = fmt.Errorf("%w: created %q as %q", conn.ErrProtocol, name, path)
	}
	if err != nil {
		c.Leave().Await(session.Grace)
		return nil, nil, err
	}
	return c, roll, nil
}

// The method `contenders` returns the contenders in a listing, in the order of their numbers. Waiters
// share the result, and must not change it.
func (l *Line) contenders(r *znodes.Roll) []Child {
	parse := func(names []string) any { return ParseChildren(names, l.Bases...) }
	return r.Make(strings.Join(l.Bases, "/"), parse).([]Child)
}

// InOrder returns the contenders among `names`, in the order of arrival: see `inOrder`.
func (l *Line) InOrder(ctx context.Context, inc *session.Incarnation, names []string) ([]Child, error) {
	return l.inOrder(ctx, inc, ParseChildren(names, l.Bases...))
}

// The method `inOrder` sorts contenders, which are in the order of their numbers, by their arrival. If
// their numbers do not show this order, it reads their znodes, with one request for every 128, for the
// zxids of the creates. Then the result has only the contenders that still exist.
//
// A znode that shares the place of another znode (Claim.Beside) comes first, because that place has
// had its turn. A persistent znode with an exhausted number comes last: a client has chosen the number
// itself, and no end of a session deletes the znode. Ahead of the contenders, it would block them forever.
func (l *Line) inOrder(ctx context.Context, inc *session.Incarnation, all []Child) ([]Child, error) {
	in, rest, tell := split(all)
	switch {
	case !tell:
		in, rest = nil, all
	case len(rest) < 2:
		return all, nil
	}
	names := make([]string, len(rest))
	for i, c := range rest {
		names[i] = c.Name
	}
	nodes, err := znodes.GetChildren(ctx, inc, l.Dir, names)
	if err != nil {
		return nil, err
	}
	arrival := func(c Child) int64 {
		switch stat := nodes[c.Name].Stat; {
		case c.beside():
			return -1
		case c.Exhausted() && stat.EphemeralOwner == 0:
			return math.MaxInt64
		default:
			return stat.Czxid
		}
	}
	sorted := slices.DeleteFunc(slices.Clone(rest), func(c Child) bool { return nodes[c.Name].Stat == nil })
	slices.SortStableFunc(sorted, func(a, b Child) int { return cmp.Compare(arrival(a), arrival(b)) })
	return slices.Concat(in, sorted), nil
}

// keepLineWatch is called after a listing that could set w, a watch on the line. w may be nil. If the
// listing has shown no other contender (`alone`), and w is set and has not fired, c takes w. In all
// other cases, c keeps its present watch, for which a goroutine may wait. If other contenders have
// arrived, their creates have fired that watch.
func (c *Claim) keepLineWatch(w *conn.Watch, alone bool) {
	if w == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if alone && c.state < lost && c.Incarnation.Watches.Stands(w) {
		c.leaveLineWatchLocked()
		c.lineWatch = w
		return
	}
	c.Incarnation.Watches.Leave(w)
}

// The method `recalled` reports whether another contender may have entered the line of c, or c itself
// is deleted.
func (c *Claim) recalled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lineWatch == nil || session.IsClosed(c.lineWatch.Fired)
}

// Alone reports whether c is the only contender in the line, according to the events so far.
// Without a connection, no events can come, and Alone returns false.
func (c *Claim) Alone() bool {
	return !c.recalled() && !session.IsClosed(c.Incarnation.Disconnection())
}

func (c *Claim) leaveLineWatchLocked() {
	if c.lineWatch != nil {
		c.Incarnation.Watches.Untell(c.lineWatch, c)
		c.Incarnation.Watches.Leave(c.lineWatch)
		c.lineWatch = nil
	}
}

// Leave deletes c in the background. c was never granted, or its hold has ended.
func (c *Claim) Leave() *znodes.Deletion {
	c.Stake.Drop()
	// If c left its own watch before the deletion, the watch could be removed just before it fires.
	return znodes.Delete(c.Incarnation, &znodes.Deletion{Paths: []string{c.Znode()}, Then: c.disown})
}

// askTime is the longest time for which a release waits for a listing. After it, the release assumes
// that there are waiters.
const askTime = 200 * time.Millisecond

// The method `blocksNone` lists the line, and reports whether a hold in `mode` blocks no contender in it:
// a shared hold blocks only writers. A znode that shares c's place does not count: see
// RWMutex.Downgrade. If c itself is not in the listing, c is lost. For an exclusive hold, the listing
// also sets a watch on the line: see keepLineWatch.
//
// Without a connection, or without an answer within askTime, the result is false. So a release does
// not wait for the next connection.
func (c *Claim) blocksNone(mode HoldMode) (alone bool) {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	ctx, stop := c.Line.Manager.Until(ctx, c.Incarnation.Disconnection())
	defer stop()
	path := c.Znode()
	me, _ := ParseChild(znodes.BaseName(path), c.Line.Bases...)
	bases := c.Line.Bases[:1]
	var lineWatch *conn.Watch
	if mode == Exclusive {
		bases = c.Line.Bases
		lineWatch = c.Incarnation.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: c.Line.Dir})
	}
	defer func() { c.keepLineWatch(lineWatch, alone) }()
	names, _, err := c.Incarnation.Children(ctx, c.Line.Dir)
	if err == nil && c.Znode() != path {
		return false // c was downgraded during the listing, so the listing proves nothing, and does not show a loss
	}
	if err == nil && !slices.Contains(names, me.Name) {
		err = zk.ErrNoNode
	}
	if err != nil {
		c.Explain(err) // NoNode: without the parent, c's znode does not exist either
		return false
	}
	return !slices.ContainsFunc(ParseChildren(names, bases...), func(o Child) bool { return !o.SamePlace(me) })
}

// List returns the contenders, in the order of arrival. The function `list` is Incarnation.Names or
// NamesFresh.
func (l *Line) List(ctx context.Context, inc *session.Incarnation, list func(ctx context.Context, path string) ([]string, error)) ([]Child, error) {
	names, err := list(ctx, l.Dir)
	if err != nil {
		return nil, err
	}
	return l.InOrder(ctx, inc, names)
}

// First returns the name of the first contender, or "": see List.
func (l *Line) First(ctx context.Context, inc *session.Incarnation, list func(ctx context.Context, path string) ([]string, error)) (string, error) {
	all, err := l.List(ctx, inc, list)
	if err != nil || len(all) == 0 {
		return "", err
	}
	return all[0].Name, nil
}

// ReadFirst returns the name of the first contender, or "", and its znode. Neither is older than the
// call. The argument `known` is the name of the last known first contender, or "". If this is still
// the first contender, ReadFirst takes one round trip. If not, it takes two.
func (l *Line) ReadFirst(ctx context.Context, inc *session.Incarnation, known string) (name string, n session.Node, err error) {
	list := inc.NamesFresh
	if known != "" {
		list = func(ctx context.Context, path string) (names []string, err error) {
			names, n, err = inc.NamesFreshBeside(ctx, path, znodes.ChildPath(path, known))
			return names, err
		}
	}
	for {
		if name, err = l.First(ctx, inc, list); err != nil || name == "" || name == known && n.Stat != nil {
			return name, n, err
		}
		if n.Data, n.Stat, err = inc.Get(ctx, znodes.ChildPath(l.Dir, name)); !session.IsNoNode(err) {
			return name, n, err
		}
		// The first contender has left between the listing and the read. List the line again.
		list, known = inc.Names, ""
	}
}

// Beside creates a shared child at the place of c in the line: the name of the child ends in c's
// number. If c's own child does not exist, the servers refuse the create: the error is ErrVanished.
// After any error, no new child is left. The child needs no stake: c has one, in the same session.
func (c *Claim) Beside(ctx context.Context) (Child, error) {
	l, base := c.Line, c.Line.Base(Shared)
	c.mu.Lock()
	path, me := c.Path, c.Child
	c.mu.Unlock()
	if me.Exhausted() { // so c's number does not show its place (see `split`), and no other znode can share this place
		return Child{}, errors.New("the path has had 2^31 children: the order is kept, but no read lock can be put in a writer's place")
	}
	number := me.Name[strings.LastIndex(me.Name, me.Base)+len(me.Base):]
	b := Child{Name: l.name(znodes.NewMarkedGUID(), base) + number, Base: base, Seq: me.Seq} // Child.beside recognizes the mark in the GUID
	return b, znodes.CreateEphemeral(ctx, c.Incarnation, &znodes.Creation{
		Dir: l.SessionDir(), Paths: []string{znodes.ChildPath(l.Dir, b.Name)}, Data: l.Data,
		Holds: []*zk.CheckVersionRequest{{Path: path, Version: -1}},
	})
}
