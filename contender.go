package zsync

import (
	"context"
	"log/slog"
	"time"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
)

// The function `describe` reads the znodes of contenders below dir. It leaves out contenders that
// have left since the listing. If this client has no permission to read a znode, the owner
// stays unknown.
func describe(ctx context.Context, inc *session.Incarnation, dir string, names []string, judge func(i int) (Mode, bool)) ([]Contender, error) {
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = session.ChildPath(dir, name)
	}
	nodes, err := inc.GetVisible(ctx, paths)
	if err != nil {
		return nil, err
	}
	var out []Contender
	for i, n := range nodes {
		if n.Stat == nil {
			continue
		}
		mode, holding := judge(i)
		out = append(out, Contender{
			Owner: string(n.Data), Node: names[i], Session: n.Stat.EphemeralOwner,
			Mode: mode, Holding: holding, Since: time.UnixMilli(n.Stat.Ctime), HeldSince: lock.HeldSince(holding, n),
			Retained: holding && lock.MayBeKept(names[i]),
		})
	}
	return out, nil
}

// A Contender is a holder or a waiter. Methods named Contenders return them in order of arrival, as
// one server sees them. That server can lag.
type Contender struct {
	Owner     string    // the data of its znode: the text of WithOwner, or the data that another library wrote; empty if this client may not read the znode
	Node      string    // the name of its znode
	Session   int64     // the ZooKeeper session it belongs to; -1 if the servers conceal it, because this client may not read the znode
	Mode      Mode      // the mode that it holds or waits for
	Holding   bool      // whether it holds, according to the listing
	Since     time.Time // time of its arrival, by the servers' clock; the present time if the servers conceal it
	HeldSince time.Time // when a holder took its fencing token, by the servers' clock: it has held since then; zero without a token
	Retained  bool      // whether it holds with WithRetention; perhaps it only keeps its place, and no goroutine holds the lock
}

// LogValue gives slog a group: owner, session, mode, state, since, node.
func (c Contender) LogValue() slog.Value {
	state := "waits"
	switch {
	case c.Retained:
		state = "holds or keeps"
	case c.Holding:
		state = "holds"
	}
	return slog.GroupValue(
		slog.String("owner", c.Owner),
		slog.String("session", session.Text(c.Session)),
		slog.String("mode", c.Mode.String()),
		slog.String("state", state),
		slog.Time("since", c.Since),
		slog.String("node", c.Node),
	)
}

// A Mode is the kind of hold that a contender has or waits for.
type Mode int

const (
	ModeExclusive Mode = iota // a lock or a leadership
	ModeShared                // a read lock
	ModePermits               // permits of a semaphore
	ModeParty                 // a part in a double barrier
)

// String returns "exclusive", "shared", "permits" or "party".
func (m Mode) String() string {
	switch m {
	case ModeExclusive:
		return "exclusive"
	case ModeShared:
		return "shared"
	case ModePermits:
		return "permits"
	case ModeParty:
		return "party"
	}
	return "unknown"
}

// The function `contenders` describes all contenders in the line. The function judge returns the
// mode of the i'th contender, and whether that contender holds.
func contenders(ctx context.Context, l *lock.Line, judge func(all []lock.Child, i int) (Mode, bool)) ([]Contender, error) {
	var out []Contender
	err := l.Manager.During(ctx, func(inc *session.Incarnation) error {
		names, err := inc.Names(ctx, l.Dir)
		if err != nil {
			return err
		}
		all, err := l.InOrder(ctx, inc, names)
		if err != nil {
			return err
		}
		names = names[:0]
		for _, c := range all {
			names = append(names, c.Name)
		}
		out, err = describe(ctx, inc, l.Dir, names, func(i int) (Mode, bool) { return judge(all, i) })
		return err
	})
	return out, err
}

// The function `leader` describes the first contender in the line of an election.
func leader(name string, n session.Node) Contender {
	return Contender{
		Owner: string(n.Data), Node: name, Session: n.Stat.EphemeralOwner,
		Mode: ModeExclusive, Holding: true, Since: time.UnixMilli(n.Stat.Ctime), HeldSince: lock.HeldSince(true, n),
	}
}
