package zsync

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// The function `describe` reads the znodes of contenders below dir, except those that have left since
// the listing. Without the permission to read a znode, the owner stays unknown.
func describe(ctx context.Context, inc *session.Incarnation, dir string, names []string, judge func(i int) (Mode, bool)) ([]Contender, error) {
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = znodes.ChildPath(dir, name)
	}
	nodes, err := znodes.GetVisible(ctx, inc, paths)
	if err != nil {
		return nil, err
	}
	var out []Contender
	for i, n := range nodes {
		if n.Stat == nil {
			continue
		}
		mode, holding := judge(i)
		c := contenderOf(names[i], n, mode, holding)
		c.Retained = holding && lock.MayBeKept(c.Node)
		out = append(out, c)
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
	return nameOf(m, "Mode", "exclusive", "shared", "permits", "party")
}

// nameOf returns the name of the constant v, or its kind and number.
func nameOf[E ~int](v E, kind string, names ...string) string {
	if v >= 0 && int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", kind, int(v))
}

// contenderOf describes the contender with this name. n is its znode, as far as it was read.
func contenderOf(name string, n session.Node, mode Mode, holding bool) Contender {
	c := Contender{Node: name, Mode: mode, Holding: holding}
	if n.Stat != nil {
		c.Owner, c.Session = string(n.Data), n.Stat.EphemeralOwner
		c.Since, c.HeldSince = time.UnixMilli(n.Stat.Ctime), lock.HeldSince(holding, n)
	}
	return c
}
