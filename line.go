package zsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

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

// A place is one contender of ours in a line.
type place struct {
	inc  *incarnation // whose session its znode belongs to
	path string       // of its znode, as the server knows it
	data []byte       // of its znode
	me   child
}

// errVanished means that somebody deleted the znode of a place.
var errVanished = errors.New("zsync: own znode vanished")

// acquire waits for its turn in the line, whatever happens to sessions and
// znodes in between. When ctx ends it leaves nothing in the line.
func (l *line) acquire(ctx context.Context, base string, data []byte, turn rule) (*place, error) {
	l.m.waiters.Add(1)
	defer l.m.waiters.Add(-1)
	var p *place
	err := l.m.during(ctx, func(inc *incarnation) error {
		for {
			var err error
			if p, err = l.contend(ctx, inc, base, data, turn); !errors.Is(err, errVanished) {
				return err
			}
			// Somebody deleted our znode. Nobody was told that we hold
			// anything, so we go to the back of the line.
		}
	})
	return p, err
}

// contend is acquire within one session.
func (l *line) contend(ctx context.Context, inc *incarnation, base string, data []byte, turn rule) (*place, error) {
	p, names, err := l.enter(ctx, inc, base, data) // Steps 1 and 2.
	if err != nil {
		return nil, err
	}
	for {
		ahead, err := p.ahead(ctx, l, names)
		if err != nil {
			if !errors.Is(err, errVanished) {
				p.leave().await(grace)
			}
			return nil, err
		}
		blocker, alone := turn(ahead) // Step 3.
		if blocker == nil {
			return p.granted()
		}
		if err := inc.awaitGone(ctx, childPath(l.dir, blocker.name)); err != nil { // Step 4.
			// It may be our turn at this same instant. Leaving is still
			// right: nobody has been told so, and deleting our child wakes
			// whoever is next.
			p.leave().await(grace)
			return nil, err
		}
		// Step 5. That the one ahead is gone says nothing of ourselves: the
		// whole tree may have been deleted, and others may have made it anew.
		if alone {
			stat, err := inc.exists(ctx, p.path)
			switch {
			case err != nil:
				p.leave().await(grace)
				return nil, err
			case stat == nil:
				return nil, errVanished
			case stat.EphemeralOwner == inc.id.Load():
				return p.granted()
			}
		}
		if names, _, err = inc.children(ctx, l.dir); err != nil && !isNoNode(err) {
			p.leave().await(grace)
			return nil, err
		}
	}
}

// enter makes a place at the end of the line, and lists who is in it.
func (l *line) enter(ctx context.Context, inc *incarnation, base string, data []byte) (*place, []string, error) {
	guid := newGUID()
	name := l.name(guid, base)
	if i := len(name) - len(base); i > 0 {
		guid = name[:i] // as the name spells it
	}
	path, names, err := inc.createChild(ctx, l.dir, name, guid, data, zk.FlagEphemeralSequential, true)
	if err != nil {
		return nil, nil, err
	}
	p := &place{inc: inc, path: path, data: data}
	me, ok := parseChild(baseName(path), l.bases...)
	if !ok { // no server that speaks the protocol answers so
		p.leave().await(grace)
		return nil, nil, fmt.Errorf("%w: created %q as %q", errProtocol, name, path)
	}
	p.me = me
	return p, names, nil
}

// try takes its turn if it comes at once, and otherwise leaves the line. A
// line in which somebody already stands in the way is only read.
func (l *line) try(ctx context.Context, base string, data []byte, turn rule) (*place, error) {
	var p *place
	err := l.m.during(ctx, func(inc *incarnation) error {
		p = nil
		if blocked, err := l.blocked(ctx, inc, turn); blocked || err != nil {
			return err
		}
		var names []string
		var err error
		if p, names, err = l.enter(ctx, inc, base, data); err != nil {
			return err
		}
		ahead, err := p.ahead(ctx, l, names)
		if errors.Is(err, errVanished) {
			p = nil
			return nil
		}
		if err != nil {
			p.leave().await(grace)
			p = nil
			return err
		}
		if blocker, _ := turn(ahead); blocker != nil {
			p.leave().await(grace)
			p = nil
			return nil
		}
		p, err = p.granted()
		return err
	})
	return p, err
}

// blocked reports whether somebody stands in the way of one who would enter
// now. Of a server that lags that is not believed: whoever stood there may have
// left before we were called.
func (l *line) blocked(ctx context.Context, inc *incarnation, turn rule) (bool, error) {
	for synced := false; ; synced = true {
		names, _, err := inc.children(ctx, l.dir)
		if err != nil && !isNoNode(err) {
			return false, err
		}
		if blocker, _ := turn(parseChildren(names, l.bases...)); blocker == nil || synced {
			return blocker != nil, nil
		}
		if err := inc.sync(ctx, l.dir); err != nil {
			return false, err
		}
	}
}

// ahead returns those of names that are ahead of p in the line, in order. Our
// own name must be among them: otherwise our place is gone.
func (p *place) ahead(ctx context.Context, l *line, names []string) ([]child, error) {
	all, err := l.inOrder(ctx, p.inc, names)
	if err != nil {
		return nil, err
	}
	for i, c := range all {
		if c.name == p.me.name {
			return all[:i], nil
		}
	}
	return nil, errVanished
}

// inOrder returns the contenders among names in the order of their arrival.
//
// That is the order of their numbers, until the parent has had 2^31 children.
// What comes then depends on the server: a Java server gives 2147483647 again
// and again, and -2147483648 and what follows it while a create before is still
// under way. So numbers from there on say nothing, and the order is that of the
// zxids of the creates, which everyone can read and nobody reads in vain.
func (l *line) inOrder(ctx context.Context, inc *incarnation, names []string) ([]child, error) {
	all := parseChildren(names, l.bases...)
	if !slices.ContainsFunc(all, child.exhausted) {
		return all, nil
	}
	czxids := make(map[string]int64, len(all))
	for _, c := range all {
		stat, err := inc.exists(ctx, childPath(l.dir, c.name))
		if err != nil {
			return nil, err
		}
		if stat != nil {
			czxids[c.name] = stat.Czxid
		}
	}
	all = slices.DeleteFunc(all, func(c child) bool { return czxids[c.name] == 0 })
	slices.SortStableFunc(all, func(a, b child) int { return cmp.Compare(czxids[a.name], czxids[b.name]) })
	return all, nil
}

// granted is the last step: it is our turn if the session still stands.
func (p *place) granted() (*place, error) {
	if !p.inc.alive() {
		return nil, errEnded
	}
	return p, nil
}

// leave deletes the place, in the background.
func (p *place) leave() *removal { return p.inc.remove(p.path) }

// others reports whether anyone of these bases is in the line, besides p and
// what stands in its very place: see RWMutex.Downgrade.
func (p *place) others(ctx context.Context, l *line, bases ...string) (bool, error) {
	names, _, err := p.inc.children(ctx, l.dir)
	if err != nil {
		return false, err
	}
	for _, c := range parseChildren(names, bases...) {
		if !c.samePlace(p.me) {
			return true, nil
		}
	}
	return false, nil
}
