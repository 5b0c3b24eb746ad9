package line

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// A Line is the ephemeral, sequential children of one znode: contenders, in
// the order in which ZooKeeper saw them arrive. It is the one mechanism behind
// every primitive that people queue for.
//
// The protocol is "Locks" from the ZooKeeper recipes:
//
//  1. Enter: create an ephemeral, sequential child.
//  2. List the children, without a watch.
//  3. If nobody ahead of us stands in our way, it is our turn.
//  4. Otherwise watch only the nearest who does, and wait until it is gone.
//  5. If nobody else stood in our way, and our own child is still there, it is
//     our turn; otherwise go to 2.
//
// If several are ahead of us, the children are also listed during step 4, so that step 5
// knows that only the nearest was left: see relisting.
type Line struct {
	Manager *session.Manager
	Dir     string                         // the parent, as the server knows it
	Bases   []string                       // what marks a child as a contender, before its number
	name    func(guid, base string) string // makes a name, up to the number

	Part    bool // the znode above Dir is of what the line is part of
	Kept    bool // other programs rely on the parent: see [session.Dir]
	Strict  bool // nobody enters behind a contender of another kind
	Settled bool // nobody can come to stand ahead of anyone who is there
	Keeps   bool // who is of the first of Bases may be kept in his place when nobody has it

	// Defers reports, if it is not nil, whether one whose turn has come lets others
	// go before, given all children: then it goes to the back of the line.
	Defers func(me Child, names []string) bool

	speed *speed // how fast contenders have left, as waiters of this Line saw it

	Limits *Limits // of what is held, if there are any
	Kind   string  // what the trace calls it; of a read-write lock, a write
}

// New returns the line of contenders below path, whose znodes name names.
func New(m *session.Manager, path string, name func(guid, base string) string, bases ...string) Line {
	return Line{Manager: m, Dir: m.Full(path), Bases: bases, name: name, speed: new(speed)}
}

// SessionDir is the parent, as it is made where it is missing.
func (l *Line) SessionDir() session.Dir { return session.Dir{Path: l.Dir, Part: l.Part, Kept: l.Kept} }

// A Rule says who stands in the way of a contender, given those ahead of it in
// their order: nobody, or the one whose going is worth waking up for. alone
// means that no other stands in the way and none can come to: then the going
// of this one is proof enough that it is our turn.
type Rule func(ahead []Child) (blocker *Child, alone bool)

// Exclusive is the rule of a mutex: everyone ahead is in the way.
func Exclusive(ahead []Child) (blocker *Child, alone bool) {
	if len(ahead) == 0 {
		return nil, false
	}
	return &ahead[len(ahead)-1], len(ahead) == 1
}

// A Claim is one contender of ours in a line: a znode and its session. It waits
// for its turn and, once that has come, is held by whoever has a grant of it.
type Claim struct {
	Hold
	Line      *Line
	data      []byte // of its znode
	beside    string // the znode in whose very place it was made
	Unwatched bool   // its znode is looked after by somebody else

	version   int32             // of its znode, after our last write to it; guarded by mu
	Path      string            // of its znode, as the server knows it; guarded by mu once its turn has come
	Child     Child             // guarded by mu once its turn has come
	own       *session.Watch    // on its znode, joined, if it is watched; guarded by mu
	lineWatch *session.Watch    // on the line, joined, if it was alone there when that was set; guarded by mu
	recalls   bool              // OnRecall is told of lineWatch; guarded by mu
	ownWatch  *session.OwnWatch // while it is held; nil if Unwatched; guarded by mu
	leaveHeld func()            // of ownWatch.Drop: called when its znode is deleted; guarded by mu
	asked     chan struct{}     // if not nil, closed when somebody asks the holder to give up; guarded by mu
	users     int               // the grants that last; guarded by mu
	uses      int               // all its grants, for the trace; guarded by mu
	first     Grant             // the memory of its first grant
}

func (l *Line) ranks(r *session.Roll) *ranks { return ranksOf(r, l.Strict, l.Bases) }

// confirm is the last step before anybody is told: it is our turn if the
// session still stands. That our znode was there, and nobody in the way, is the
// state of one server at one time, which was not before the last event that we
// were told of: whatever is read after an event is at least as new, on the same
// connection because a server answers in order, and on the next because the
// link has its server catch up first.
func (c *Claim) confirm() error {
	if !c.Incarnation.Alive() {
		return session.ErrEnded
	}
	return nil
}

// assure is confirm for whoever is to be told that he holds something: the
// session must certainly stand, and go on to be known to.
func (c *Claim) assure(ctx context.Context) (err error) {
	c.Stake, err = c.Incarnation.Stake(ctx)
	return err
}

// withdraw deletes c, of which nobody has been told, after err.
func (c *Claim) withdraw(err error) {
	c.Stake.Drop()
	if errors.Is(err, session.ErrVanished) {
		c.disown()
		return
	}
	c.Incarnation.Remove(c.Path).Await(session.Grace)
	c.disown()
}

// stands reports whether c's znode was there when the one ahead was gone, which
// connection proof has told.
//
// The events of one connection come in the order of the changes, and before any
// answer that is as new. So if c's watch was set on that same connection, by a
// look that has found c, and has not fired, then c stood. Otherwise we look.
//
// Where one transaction has deleted both, our own event may still be behind the
// other's. That is as if ours had been deleted right after our turn had come:
// whoever is told that he holds it is told of the loss by that next event.
func (c *Claim) stands(ctx context.Context, proof int64) (bool, error) {
	own, watches := c.watch(), c.Incarnation.Watches
	if proof != 0 && watches.ArmedOn(own) == proof && watches.ArmedOnOurs(own) && !session.IsClosed(own.Fired) {
		return true, nil
	}
	return c.lookAt(ctx, c.Path)
}

// mustStand is ErrVanished if c's znode is not there any more.
func (c *Claim) mustStand(ctx context.Context) error {
	stands, err := c.lookAt(ctx, c.Path)
	if err == nil && !stands {
		err = session.ErrVanished
	}
	return err
}

// lookAt reports whether c's own znode is there, at path. It sets the watch, if
// that is joined and not set yet: one of children, because an ephemeral znode
// has none, so it fires when it is deleted and at nothing else, such as a
// fencing token.
func (c *Claim) lookAt(ctx context.Context, path string) (bool, error) {
	_, stat, err := c.Incarnation.Children(ctx, path)
	return c.standsBy(session.Look{Stat: stat, Err: err})
}

// standsBy is lookAt by what a look has shown.
func (c *Claim) standsBy(l session.Look) (bool, error) {
	if session.IsNoNode(l.Err) {
		return false, nil
	}
	// The same name in another session is somebody's copy of ours.
	return l.Err == nil && l.Stat.EphemeralOwner == c.Incarnation.ID.Load(), l.Err
}

// watch returns the watch on c's own znode, which is joined.
func (c *Claim) watch() *session.Watch {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ownLocked()
}

func (c *Claim) ownLocked() *session.Watch {
	if c.own != nil && session.IsClosed(c.own.Fired) {
		c.disownLocked()
	}
	if c.own == nil {
		c.own = c.Incarnation.Watches.Join(session.WatchKey{Kind: session.WatchChildren, Path: c.Path})
	}
	return c.own
}

// disown is the end of watch.
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

// Enter makes a claim at the end of the line, and lists who is in it.
func (l *Line) Enter(ctx context.Context, inc *session.Incarnation, base string, data []byte) (*Claim, *session.Roll, error) {
	n := l.newcomer(inc, base)
	path, roll, err := inc.CreateChild(ctx, l.SessionDir(), n.name, n.guid, data, zk.FlagEphemeralSequential, true)
	if err != nil {
		n.turnBack(inc)
		return nil, nil, err
	}
	c, err := n.arrive(inc, path, data, roll)
	if err != nil {
		c.withdraw(err)
		return nil, nil, err
	}
	return c, roll, nil
}

// A newcomer is about to enter a line.
type newcomer struct {
	line       *Line
	name, guid string         // of the znode; guid as the name spells it
	lineWatch  *session.Watch // joined if the place may be kept; the listing sets it
}

func (l *Line) newcomer(inc *session.Incarnation, base string) newcomer {
	n := newcomer{line: l, guid: session.NewGUID()}
	if l.Keeps && base == l.Bases[0] {
		n.guid, n.lineWatch = session.NewMarkedGUID(), l.joinLineWatch(inc)
	}
	n.name = l.name(n.guid, base)
	if i := len(n.name) - len(base); i > 0 {
		n.guid = n.name[:i]
	}
	return n
}

// turnBack is the end of n, whose znode was not made.
func (n newcomer) turnBack(inc *session.Incarnation) {
	if n.lineWatch != nil {
		inc.Watches.Leave(n.lineWatch)
	}
}

// arrive returns the claim of n, whose znode was made at path before roll was listed.
// If there is an error the claim is to be withdrawn.
func (n newcomer) arrive(inc *session.Incarnation, path string, data []byte, roll *session.Roll) (*Claim, error) {
	l := n.line
	c := &Claim{Hold: Hold{Incarnation: inc}, Line: l, Path: path, data: data}
	rk := l.ranks(roll)
	c.keepLineWatch(n.lineWatch, len(rk.in) == 1 && rk.sure)
	me, ok := ParseChild(session.BaseName(path), l.Bases...)
	if !ok { // no server that speaks the protocol answers so
		return c, fmt.Errorf("%w: created %q as %q", session.ErrProtocol, n.name, path)
	}
	c.Child = me
	return c, unmixed(l.Bases, rk.mixed, &me)
}

// Ahead returns those of names that are ahead of c in the line, in order. Our
// own name must be among them: otherwise our claim is gone.
//
// The name is enough: whoever has made the same name anew, by hand, keeps others
// out as ours would, for as long as we may believe in it, and c.lookAt sees that
// it is not ours.
func (c *Claim) Ahead(ctx context.Context, roll *session.Roll) ([]Child, error) {
	rk := c.Line.ranks(roll)
	if !rk.told || c.Child.Exhausted() {
		return c.AheadAmong(ctx, roll.Names())
	}
	if ahead, ok := rk.before(c.Child); ok {
		return ahead, nil
	}
	return nil, session.ErrVanished
}

// AheadAmong is Ahead for a listing of one's own.
func (c *Claim) AheadAmong(ctx context.Context, names []string) ([]Child, error) {
	all, err := c.Line.InOrder(ctx, c.Incarnation, names)
	if err != nil {
		return nil, err
	}
	for i, o := range all {
		if o.Name == c.Child.Name {
			return all[:i], nil
		}
	}
	return nil, session.ErrVanished
}

// InOrder returns the contenders among names in the order of their arrival. Those whose
// numbers do not tell are in the order of the zxids of their creates, which everyone can
// read. That costs one request for every 128 of them.
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

// byCreation sorts line by the zxids of the creates, without those who have left.
//
// A znode that was put in the place of another, which was granted, is the first. That
// other may be gone, and with it the zxid of the place. But all that stood ahead of the
// place had left when it was granted, or may be beside it, and so does no harm behind it.
//
// A persistent znode whose number is exhausted is the last. No contender is persistent, so
// the number was chosen, and nothing would ever have it leave.
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
func (l *Line) joinLineWatch(inc *session.Incarnation) *session.Watch {
	return inc.Watches.Join(session.WatchKey{Kind: session.WatchChildren, Path: l.Dir})
}

// keepLineWatch gives c a watch on the line that was joined before the line was listed;
// alone says that nobody else was in that listing. A nil watch changes nothing.
// Nor does a listing that failed: somebody may be waiting for the watch that c has. One
// that shows others comes behind the event of that watch, if it was armed.
func (c *Claim) keepLineWatch(w *session.Watch, alone bool) {
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

// Leave deletes c, in the background.
func (c *Claim) Leave() *session.Deletion {
	c.Stake.Drop()
	// Its own watch is left behind the deletion, so that it is not removed while it is
	// about to fire.
	return c.Incarnation.Delete(&session.Deletion{Paths: []string{c.Znode()}, Then: c.disown})
}

// others reports whether anyone of these bases is in the line, besides c and
// what stands in its very place: see RWMutex.Downgrade. If c itself is not there
// any more it is lost. With watch the listing sets the watch that c.Alone asks; bases
// must be those of all then.
func (c *Claim) others(ctx context.Context, watch bool, bases ...string) (bool, error) {
	child := func() Child {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.Child
	}
	me := child()
	var lineWatch *session.Watch
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
		// It was downgraded meanwhile: the listing may show the one, the other or
		// both, and says nothing of who waits. Nobody's loss.
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

// A listing lists the children of a znode: Incarnation.Children or ChildrenFresh.
type listing = func(ctx context.Context, path string) ([]string, *zk.Stat, error)

// First returns the name of the first in the line, or "".
func (l *Line) First(ctx context.Context, inc *session.Incarnation, list listing) (string, error) {
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

// ReadFirst returns the name of the first in the line, as it is not before the call, and
// its znode; or "". It takes one round trip where the first is the one of the name known,
// which may be "", and otherwise two.
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
		// It left between the listing and the read: look who is first now.
		list, known = inc.Children, ""
	}
}

// errExhausted means that a number no longer says where in the line its znode
// stands, so nothing can be put beside it. See split.
var errExhausted = errors.New("the path has had 2^31 children: the order is kept, but no read lock can be put in a writer's place")

// askTime is how long a release asks whether others wait. Without an answer it
// takes it that they do.
const askTime = 200 * time.Millisecond

// Beside makes a child of another mode at the very place that c has in the
// line: its name ends in the same number. The servers make it only if c's own
// child is there. If that is gone the error is NoNode; when ctx ends, or after
// any other error, nothing is left.
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
		name := l.name(session.NewMarkedGUID(), base) + number // the mark is what Child.beside reads
		b := &Claim{Hold: Hold{Incarnation: inc}, Line: l, Path: session.ChildPath(l.Dir, name), data: data, Child: Child{Name: name, Base: base, Seq: me.Seq}, beside: me.Name}
		err := inc.CreateAll(ctx, l.SessionDir(), path, nil, []string{b.Path}, data)
		switch {
		case err == nil:
			if err = b.assure(ctx); err != nil {
				b.withdraw(err)
				return nil, err
			}
			return b, nil
		case errors.Is(err, session.ErrVanished) && c.Znode() != path:
			continue // it has been downgraded in the meantime, and stands elsewhere
		case errors.Is(err, session.ErrVanished):
			err = zk.ErrNoNode
		}
		return nil, err
	}
}

// Anyone reports whether anybody of these bases waits behind c. It fails when
// there is no connection, or no answer for askTime: whoever gives up does not
// wait for the next.
func (c *Claim) Anyone(bases ...string) (bool, error) { return c.ask(false, bases) }

// AnyoneElse is Anyone of all bases. If there is nobody c.Alone says so from then on,
// until somebody comes, or c goes: the listing sets a watch.
func (c *Claim) AnyoneElse() (bool, error) { return c.ask(true, c.Line.Bases) }

func (c *Claim) ask(watch bool, bases []string) (bool, error) {
	inc := c.Incarnation
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	down := inc.Disconnection()
	inc.Manager.Spawn(func() {
		select {
		case <-down:
			cancel()
		case <-ctx.Done():
		}
	})
	return c.others(ctx, watch, bases...)
}
