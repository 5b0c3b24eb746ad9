package zsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-zookeeper/zk"
)

// A line is the ephemeral, sequential children of one znode: contenders, in
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
type line struct {
	m     *manager
	dir   string                         // the parent, as the server knows it
	bases []string                       // what marks a child as a contender, before its number
	name  func(guid, base string) string // makes a name, up to the number

	strict bool // nobody enters behind a contender of another kind
}

// newLine returns the line of contenders below path, whose znodes name names.
func newLine(m *manager, path string, name func(guid, base string) string, bases ...string) line {
	return line{m: m, dir: m.full(path), bases: bases, name: name}
}

// A rule says who stands in the way of a contender, given those ahead of it in
// their order: nobody, or the one whose going is worth waking up for. alone
// means that no other stands in the way and none can come to: then the going
// of this one is proof enough that it is our turn.
type rule func(ahead []child) (blocker *child, alone bool)

// exclusive is the rule of a mutex: everyone ahead is in the way.
func exclusive(ahead []child) (blocker *child, alone bool) {
	if len(ahead) == 0 {
		return nil, false
	}
	return &ahead[len(ahead)-1], len(ahead) == 1
}

// A lineClaim is one contender of ours in a line: a znode and its session. It waits
// for its turn and, once that has come, is held by whoever has a grant of it.
type lineClaim struct {
	line      *line
	inc       *incarnation // whose session its znode belongs to
	data      []byte       // of its znode
	unwatched bool         // its znode is looked after by somebody else
	stake     *stake       // nil until something is held by it

	mu   sync.Mutex
	path string // of its znode, as the server knows it; guarded by mu once its turn has come
	me   child  // guarded by mu once its turn has come
	own  *watch // on its znode, joined, if it is watched; guarded by mu
	held tenure
}

// errVanished means that somebody deleted the znode of a claim.
var errVanished = errors.New("zsync: own znode vanished")

// acquire waits for its turn in the line, whatever happens to sessions and
// znodes in between. When ctx ends it leaves nothing in the line.
func (l *line) acquire(ctx context.Context, base string, data []byte, turn rule) (*lineClaim, error) {
	l.m.waiters.Add(1)
	defer l.m.waiters.Add(-1)
	var c *lineClaim
	err := l.m.during(ctx, func(inc *incarnation) error {
		for {
			var err error
			if c, err = l.contend(ctx, inc, base, data, turn); err == nil {
				if err = c.assure(ctx); err != nil {
					c.withdraw(err)
					c = nil
				}
			}
			if !errors.Is(err, errVanished) {
				return err
			}
			// Somebody deleted our znode. Nobody was told that we hold
			// anything, so we go to the back of the line.
		}
	})
	return c, err
}

// contend is acquire within one session.
func (l *line) contend(ctx context.Context, inc *incarnation, base string, data []byte, turn rule) (*lineClaim, error) {
	c, names, err := l.enter(ctx, inc, base, data) // Steps 1 and 2.
	if err != nil {
		return nil, err
	}
	if err = c.awaitTurn(ctx, names, turn); err != nil {
		// It may be our turn at this same instant. Leaving is still right:
		// nobody has been told so, and deleting our child wakes whoever is next.
		c.withdraw(err)
		return nil, err
	}
	return c, nil
}

// awaitTurn waits until it is c's turn. names are those of the line.
func (c *lineClaim) awaitTurn(ctx context.Context, names []string, turn rule) error {
	for {
		ahead, err := c.ahead(ctx, names)
		if err != nil {
			return err
		}
		blocker, alone := turn(ahead) // Step 3.
		if blocker == nil {
			return c.confirm()
		}
		proof, err := c.awaitGone(ctx, blocker.name) // Step 4.
		if err != nil {
			return err
		}
		if alone { // Step 5.
			stands, err := c.stands(ctx, proof)
			switch {
			case err != nil:
				return err
			case !stands:
				return errVanished
			}
			return c.confirm()
		}
		if names, _, err = c.inc.children(ctx, c.line.dir); err != nil && !isNoNode(err) {
			return err
		}
	}
}

// confirm is the last step before anybody is told: it is our turn if the
// session still stands. That our znode was there, and nobody in the way, is the
// state of one server at one time, which was not before the last event that we
// were told of: whatever is read after an event is at least as new, on the same
// connection because a server answers in order, and on the next because the
// link has its server catch up first.
func (c *lineClaim) confirm() error {
	if !c.inc.alive() {
		return errEnded
	}
	return nil
}

// assure is confirm for whoever is to be told that he holds something: the
// session must certainly stand, and go on to be known to.
func (c *lineClaim) assure(ctx context.Context) (err error) {
	c.stake, err = c.inc.stake(ctx)
	return err
}

// withdraw deletes c, of which nobody has been told, after err.
func (c *lineClaim) withdraw(err error) {
	c.stake.drop()
	if errors.Is(err, errVanished) {
		c.disown()
		return
	}
	c.inc.takeBack(c.path).await(grace)
	c.disown()
}

// awaitGone waits until the contender of this name is gone, and c's own znode is
// watched meanwhile: if that is gone first the error is errVanished, at once. It
// returns the number of the connection that has told that the other is gone, or
// 0 if that is not certain.
//
// Both watches are set at the same time.
func (c *lineClaim) awaitGone(ctx context.Context, name string) (proof int64, err error) {
	inc, hub := c.inc, c.inc.hub
	var looked <-chan error
	own := c.watch()
	if !hub.armed(own) {
		looked = c.lookSoon(ctx)
	}
	for {
		w := hub.join(watchKey{watchChildren, childPath(c.line.dir, name)})
		conn := hub.connection()
		_, _, err := inc.children(ctx, w.key.path)
		for err == nil && !isClosed(w.fired) {
			// Whichever is picked of several that are ready, it is right: that
			// the other is gone is proof of nothing before c.stands has looked
			// at c's own watch, and whoever leaves tells nobody anything.
			select {
			case <-w.fired:
			case err = <-looked:
				looked = nil
			case <-own.fired:
				own = c.watch() // the next, which this look sets
				err = c.mustStand(ctx)
			case <-ctx.Done():
				err = ctxErr(ctx)
			case <-inc.ctx.Done():
				err = errEnded
			}
		}
		hub.leave(w)
		if looked != nil && (err == nil || isNoNode(err)) {
			// Our own look was under way at the same time, and is needed.
			if e := <-looked; e != nil {
				return 0, e
			}
			looked = nil
		}
		switch {
		case isNoNode(err):
			if hub.connection() != conn {
				conn = 0 // it was sent on one, and answered on another
			}
			return conn, nil
		case err != nil:
			return 0, err
		case w.event == zk.EventNodeDeleted:
			return hub.told(w), nil
		}
	}
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
func (c *lineClaim) stands(ctx context.Context, proof int64) (bool, error) {
	if own := c.watch(); proof != 0 && c.inc.hub.armedOn(own) == proof && !isClosed(own.fired) {
		return true, nil
	}
	return c.lookAt(ctx, c.path)
}

// mustStand is errVanished if c's znode is not there any more.
func (c *lineClaim) mustStand(ctx context.Context) error {
	stands, err := c.lookAt(ctx, c.path)
	if err == nil && !stands {
		err = errVanished
	}
	return err
}

// lookSoon is mustStand in the background.
func (c *lineClaim) lookSoon(ctx context.Context) <-chan error {
	looked := make(chan error, 1)
	c.inc.m.spawn(func() { looked <- c.mustStand(ctx) })
	return looked
}

// lookAt reports whether c's own znode is there, at path. It sets the watch, if
// that is joined and not set yet: one of children, because an ephemeral znode
// has none, so it fires when it is deleted and at nothing else, such as a
// fencing token.
func (c *lineClaim) lookAt(ctx context.Context, path string) (bool, error) {
	_, stat, err := c.inc.children(ctx, path)
	if isNoNode(err) {
		return false, nil
	}
	// The same name in another session is somebody's copy of ours.
	return err == nil && stat.EphemeralOwner == c.inc.id.Load(), err
}

// watch returns the watch on c's own znode, which is joined.
func (c *lineClaim) watch() *watch {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ownLocked()
}

func (c *lineClaim) ownLocked() *watch {
	if c.own != nil && isClosed(c.own.fired) {
		c.disownLocked()
	}
	if c.own == nil {
		c.own = c.inc.hub.join(watchKey{watchChildren, c.path})
	}
	return c.own
}

// disown is the end of watch.
func (c *lineClaim) disown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disownLocked()
}

func (c *lineClaim) disownLocked() {
	if c.own != nil {
		c.inc.hub.leave(c.own)
		c.own = nil
	}
}

// enter makes a claim at the end of the line, and lists who is in it.
func (l *line) enter(ctx context.Context, inc *incarnation, base string, data []byte) (*lineClaim, []string, error) {
	guid := newGUID()
	name := l.name(guid, base)
	if i := len(name) - len(base); i > 0 {
		guid = name[:i] // as the name spells it
	}
	path, names, err := inc.createChild(ctx, l.dir, name, guid, data, zk.FlagEphemeralSequential, true)
	if err != nil {
		return nil, nil, err
	}
	c := &lineClaim{line: l, inc: inc, path: path, data: data}
	me, ok := parseChild(baseName(path), l.bases...)
	if !ok { // no server that speaks the protocol answers so
		err = fmt.Errorf("%w: created %q as %q", errProtocol, name, path)
	} else {
		c.me = me
		err = l.unmixed(names, &me)
	}
	if err != nil {
		c.withdraw(err)
		return nil, nil, err
	}
	return c, names, nil
}

// unmixed is ErrMixed if a contender of another kind is among names, before me if
// there is one: they would not keep each other out.
//
// All children of one parent are numbered together, so of two that come at the
// same time the later one sees the earlier, and alone goes; and nobody who has
// listed the line needs to look again, since nobody comes before him any more.
func (l *line) unmixed(names []string, me *child) error {
	if !l.strict {
		return nil
	}
	for _, name := range names {
		if _, ours := parseChild(name, l.bases...); ours {
			continue
		}
		if c, other := parseChild(name, contenderBases...); other && (me == nil || c.exhausted() || c.before(*me)) {
			return fmt.Errorf("%w: %q stands there; this line is of those with %q before their number", ErrMixed, name, l.bases)
		}
	}
	return nil
}

// try takes its turn if it comes at once, and otherwise leaves the line. A
// line in which somebody already stands in the way is only read.
func (l *line) try(ctx context.Context, base string, data []byte, turn rule) (*lineClaim, error) {
	var won *lineClaim
	err := l.m.during(ctx, func(inc *incarnation) error {
		if blocked, err := l.blocked(ctx, inc, turn); blocked || err != nil {
			return err
		}
		c, names, err := l.enter(ctx, inc, base, data)
		if err != nil {
			return err
		}
		ahead, err := c.ahead(ctx, names)
		if err == nil {
			if blocker, _ := turn(ahead); blocker != nil {
				err = errBlocked
			} else {
				err = c.assure(ctx)
			}
		}
		switch {
		case err == nil:
			won = c
			return nil
		case errors.Is(err, errBlocked), errors.Is(err, errVanished):
			c.withdraw(err)
			return nil
		}
		c.withdraw(err)
		return err
	})
	return won, err
}

// errBlocked means that somebody stands in the way of one who does not wait.
var errBlocked = errors.New("zsync: somebody stands in the way")

// blocked reports whether somebody stands in the way of one who would enter
// now. Of a server that lags that is not believed: whoever stood there may have
// left before we were called.
func (l *line) blocked(ctx context.Context, inc *incarnation, turn rule) (bool, error) {
	for synced := false; ; synced = true {
		names, _, err := inc.children(ctx, l.dir)
		if err != nil && !isNoNode(err) {
			return false, err
		}
		blocker, _ := turn(parseChildren(names, l.bases...))
		mixed := l.unmixed(names, nil)
		if blocker == nil && mixed == nil || synced {
			return blocker != nil, mixed
		}
		if err := inc.sync(ctx, l.dir); err != nil {
			return false, err
		}
	}
}

// ahead returns those of names that are ahead of c in the line, in order. Our
// own name must be among them: otherwise our claim is gone.
//
// The name is enough: whoever has made the same name anew, by hand, keeps others
// out as ours would, for as long as we may believe in it, and c.lookAt sees that
// it is not ours.
func (c *lineClaim) ahead(ctx context.Context, names []string) ([]child, error) {
	var all []child
	var err error
	if c.me.exhausted() {
		all, err = c.line.inOrder(ctx, c.inc, names)
	} else {
		all, _ = c.line.numbered(names) // the others are behind
	}
	if err != nil {
		return nil, err
	}
	for i, o := range all {
		if o.name == c.me.name {
			return all[:i], nil
		}
	}
	return nil, errVanished
}

// numbered returns the contenders among names whose numbers say when they came,
// in that order, and those behind them, in none.
//
// A parent numbers its children one by one, until it has had 2^31 of them. What
// comes then depends on the server: a Java server gives 2147483647 again and
// again, and -2147483648 and what follows it while a create before is still
// under way. So numbers from there on say nothing but that whoever has one came
// after all who have others. (Or that somebody has chosen his name himself, and
// with it to be behind all others.)
func (l *line) numbered(names []string) (in, behind []child) {
	all := parseChildren(names, l.bases...)
	for _, c := range all {
		if c.exhausted() {
			behind = append(behind, c)
		} else {
			in = append(in, c)
		}
	}
	return in, behind
}

// inOrder returns the contenders among names in the order of their arrival.
// Those whose numbers do not tell are in the order of the zxids of their creates,
// which everyone can read. That costs one request for every 128 of them.
func (l *line) inOrder(ctx context.Context, inc *incarnation, names []string) ([]child, error) {
	all, behind := l.numbered(names)
	if len(behind) < 2 {
		return append(all, behind...), nil
	}
	paths := make([]string, len(behind))
	for i, c := range behind {
		paths[i] = childPath(l.dir, c.name)
	}
	nodes, err := inc.getAll(ctx, paths)
	if err != nil {
		return nil, err
	}
	czxids := make(map[string]int64, len(behind))
	for i, n := range nodes {
		if n.stat != nil {
			czxids[behind[i].name] = n.stat.Czxid
		}
	}
	behind = slices.DeleteFunc(behind, func(c child) bool { return czxids[c.name] == 0 })
	slices.SortStableFunc(behind, func(a, b child) int { return cmp.Compare(czxids[a.name], czxids[b.name]) })
	return append(all, behind...), nil
}

// leave deletes c, in the background.
func (c *lineClaim) leave() *removal {
	c.stake.drop()
	path := c.at()
	return c.inc.inBackground(path, func() error {
		err := c.inc.removeNow(context.Background(), path)
		c.disown() // not before, so that the watch is not removed while it is about to fire
		return err
	})
}

// others reports whether anyone of these bases is in the line, besides c and
// what stands in its very place: see RWMutex.Downgrade. If c itself is not there
// any more it is lost.
func (c *lineClaim) others(ctx context.Context, bases ...string) (bool, error) {
	names, _, err := c.inc.children(ctx, c.line.dir)
	if err != nil {
		return false, c.verdict(err) // without the parent there is no child
	}
	c.mu.Lock()
	me := c.me
	c.mu.Unlock()
	if !slices.Contains(names, me.name) {
		return false, c.verdict(zk.ErrNoNode)
	}
	for _, o := range parseChildren(names, bases...) {
		if !o.samePlace(me) {
			return true, nil
		}
	}
	return false, nil
}
