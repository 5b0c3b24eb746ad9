package zsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zsync/zsync/internal/codec"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// A Group is a list of processes, with an info from each member:
//
//	g := zsync.NewGroup[Backend](s, "/services/billing")
//	me, err := g.Join(ctx, "billing-7", Backend{Addr: addr})
//	defer me.Leave()
//
//	for members := range g.Watch(ctx) { … } // all of them, after each change
//
// A process is a member, through reconnects and expiries, until it leaves or ends. Except with
// [LayoutKazoo], no two members have the same id at a time.
//
// # Loss
//
// A process that dies or is cut off is a member until its session ends. If only the session ends,
// the process joins again. A Group excludes no process.
//
// # Cost
//
// Join takes 1 round trip, Members 2, and a Watch 1 or 2 after each change.
//
// # Znodes
//
// A member is an ephemeral znode: path/<id> with its info, as in Curator's GroupMember, or
// path/<guid>__party__ without info, as in kazoo's Party.
type Group[T any] struct {
	made
	codec Codec
	kazoo bool
}

// A Member is one process in a [Group].
type Member[T any] struct {
	ID      string
	Info    T
	Session int64     // the ZooKeeper session it belongs to
	Since   time.Time // when that session joined, by the servers' clock
}

// NewGroup returns the Group at path.
func NewGroup[T any](s *Session, path string, opts ...GroupOption) *Group[T] {
	c := setup{codec: JSON}
	session.ApplyEach("group", opts, &c.err, func(o GroupOption) { o.applyGroup(&c) })
	c.allow("a Group", c.notGroup, LayoutCurator, LayoutKazoo)
	return &Group[T]{made: made{s: s, path: path, err: checkNew(s, path, c.err)}, codec: c.codec, kazoo: c.layout == LayoutKazoo}
}

func (g *Group[T]) dir() string { return g.s.m.Full(g.path) }

// partyName is the part that all names of kazoo's members have in common.
const partyName = "__party__"

// A Membership is this process's entry in a Group. [Group.Join] returns it.
type Membership[T any] struct {
	g    *Group[T]
	id   string
	path string // full path of the znode on the server

	leaving context.Context    // ends with Leave
	leave   context.CancelFunc // begins to leave
	ended   chan struct{}      // closed when m has left, or cannot join or stay
	err     error              // the reason why m could not join or stay; set before `ended` is closed
	joined  chan struct{}      // closed when m has joined for the first time
	writing chan struct{}      // has a token while a goroutine uses the next two fields, or writes the znode

	data []byte               // the data that the znode has or must get
	inc  *session.Incarnation // the session of the znode; nil while there is no znode
}

// Join makes the caller a member, and returns when other processes can see it. If another member
// has the id, such as the old session of a restarted process, Join waits until that member leaves
// (not with [LayoutKazoo]).
func (g *Group[T]) Join(ctx context.Context, id string, info T) (_ *Membership[T], err error) {
	defer g.wrap("join", &err)
	if err := g.check(ctx); err != nil {
		return nil, err
	}
	path := znodes.ChildPath(g.path, znodes.NameOfKey(id))
	if g.kazoo {
		path = znodes.ChildPath(g.path, lock.KazooName(znodes.NewGUID(), partyName))
	}
	switch {
	case id == "":
		return nil, session.Invalid("the id is empty")
	case len(path) > znodes.MaxPath:
		return nil, session.Invalid("id of %d bytes: its path has %d; the limit is %d", len(id), len(path), znodes.MaxPath)
	}
	m := &Membership[T]{g: g, id: id, path: g.s.m.Full(path), ended: make(chan struct{}), writing: make(chan struct{}, 1), joined: make(chan struct{})}
	if m.data, err = m.encode(info); err != nil {
		return nil, err
	}
	m.leaving, m.leave = context.WithCancel(context.Background())
	g.s.m.Spawn(m.run)
	select {
	case <-m.joined:
		return m, nil
	case <-m.ended:
		return nil, m.err
	case <-ctx.Done():
		err = session.CtxErr(ctx)
	case <-g.s.m.Closing: // the session may live on for the functions of the program
		err = g.s.m.Failure()
	}
	// The member may have joined at the same instant.
	m.leave()
	session.AwaitFor(m.ended, session.Grace)
	return nil, err
}

// The method `encode` returns the stored form of info, which fits into a request.
func (m *Membership[T]) encode(info T) (data []byte, err error) {
	data, what := []byte(m.id), "id"
	if !m.g.kazoo {
		if data, err = codec.Encode(m.g.codec, info); err != nil {
			return nil, fmt.Errorf("cannot encode a %T: %w", info, err)
		}
		what = "info"
	}
	if znodes.SizeOf(m.g.s.m, m.path, data)+256 > znodes.MaxPacket {
		return nil, fmt.Errorf("%s of %d bytes: %w", what, len(data), ErrTooLarge)
	}
	return data, nil
}

var errNotJoined = session.Invalid("a zero value; Join returns a Membership")

// ID returns the id that m has joined with.
func (m *Membership[T]) ID() string { return m.id }

func (m *Membership[T]) run() {
	// Memberships of one Session take turns at an id: the servers cannot tell them apart.
	first := make(chan struct{}, 1)
	turn := m.g.s.ids.Of(m.path, &first)
	var gone *znodes.Deletion
	select {
	case *turn <- struct{}{}:
		defer func() { <-*turn }()
		m.err = m.g.s.m.During(m.leaving, func(inc *session.Incarnation) (err error) {
			for err == nil {
				gone, err = m.stay(inc)
			}
			if gone != nil && m.leaving.Err() != nil { // otherwise, m has failed, and Set must return the reason now
				gone.Await(leaveTime)
			}
			return err
		})
	case <-m.leaving.Done():
	}
	if session.IsClosed(m.joined) && m.leaving.Err() == nil && m.g.s.m.Failure() == nil { // otherwise, Join returns the error
		m.g.s.m.Log.Error("zsync: cannot stay in the group", "path", m.g.path, "id", m.id, "err", m.err)
	}
	close(m.ended)
	if gone != nil {
		<-gone.Done // until then, the next member of this Session with this id would mistake the znode for its own
	}
}

// The method `stay` creates the znode and waits for its deletion, within one session. Before it creates
// the znode, it waits for the deletion of another session's: of another member, or of our previous
// session, which may end on the servers a little later than in this process. The error is nil if the znode
// was deleted. Otherwise, `gone` is the deletion of the znode, if that may exist.
func (m *Membership[T]) stay(inc *session.Incarnation) (gone *znodes.Deletion, err error) {
	m.writing <- struct{}{}
	data := m.data
	<-m.writing
	dir := znodes.Dir{Path: m.g.dir(), Kept: m.g.kazoo} // kazoo's objects create the path once, and rely on it
	made := znodes.Creation{Dir: dir, Paths: []string{m.path}, Data: data, Shared: true}
	if err := znodes.CreateEphemeral(m.leaving, inc, &made); session.IsNodeExists(err) {
		return nil, inc.AwaitGone(m.leaving, m.path)
	} else if err != nil {
		return made.Undo, err
	}
	m.writing <- struct{}{}
	if !slices.Equal(m.data, data) { // Set was called during the create, and left the write to us
		err = znodes.SetOwn(m.leaving, inc, m.path, m.data)
	}
	if err == nil {
		m.inc = inc
	}
	<-m.writing
	if err == nil {
		m.observe(session.EventJoined, nil) // before Join returns: what follows has later events
		if !session.IsClosed(m.joined) {
			close(m.joined)
		}
		err = znodes.AwaitOwnGone(m.leaving, inc, m.path)
		m.writing <- struct{}{} // wait until a write in progress has been answered or abandoned
		m.inc = nil
		<-m.writing
		var why error
		switch {
		case err == nil:
			why = inc.Deleted()
		case errors.Is(err, session.ErrEnded):
			why = inc.Loss()
		}
		m.observe(session.EventLeft, why)
	}
	switch {
	case session.IsNoNode(err): // in SetOwn
		err = nil
	case err != nil && !errors.Is(err, session.ErrEnded):
		gone = znodes.Delete(inc, &znodes.Deletion{Paths: []string{m.path}, By: func() error { return znodes.RemoveOwn(inc, m.path, "") }})
	}
	return gone, err
}

func (m *Membership[T]) observe(kind session.ReportKind, err error) {
	m.g.s.m.Observe(session.Report{Kind: kind, Op: "join", Path: m.g.path, Err: err})
}

// Set replaces the info, in 1 round trip. Between sessions, Set returns at once; m then joins with
// info. If m cannot join, Set returns the reason.
func (m *Membership[T]) Set(ctx context.Context, info T) (err error) {
	if m.g == nil {
		return opError("set", "", errNotJoined)
	}
	defer m.g.wrap("set", &err)
	data, err := m.encode(info)
	if err != nil {
		return err
	}
	// When m leaves, no write must follow: the next member with the same id may have its znode already.
	writing, stop := m.g.s.m.Until(ctx, m.leaving.Done())
	defer stop()
	select {
	case m.writing <- struct{}{}:
		defer func() { <-m.writing }()
	case <-writing.Done():
	}
	var was []byte
	if err = session.CtxErr(writing); err == nil {
		was, m.data = m.data, data
		err = session.ErrEnded
		if m.inc != nil {
			err = znodes.SetOwn(writing, m.inc, m.path, data) // NoNode if the znode now belongs to another session
		}
	}
	switch {
	case err != nil && ctx.Err() == nil && m.leaving.Err() != nil:
		return ErrNotLocked
	case !errors.Is(err, session.ErrEnded) && !session.IsNoNode(err):
		if err != nil && session.OutcomeOf(err) == session.Answered {
			m.data = was // the servers refused the data, so the next znode must not have these data either
		}
		return err
	case session.IsClosed(m.ended):
		return m.err
	}
	return m.g.s.m.Failure() // nil: the method `stay` stores the data, in the request that creates the znode, or later
}

const leaveTime = 400 * time.Millisecond // the longest wait of Leave

// Leave ends the membership. It waits up to half a second until others see the end, and then
// continues in the background. A second Leave is no error.
func (m *Membership[T]) Leave() error {
	if m.g == nil {
		return opError("leave", "", errNotJoined)
	}
	m.leave()
	session.AwaitFor(m.ended, leaveTime)
	return nil
}

// Members returns the members in the order of their ids. The list is at least as new as the call.
// If an info cannot be decoded, an error names its member.
func (g *Group[T]) Members(ctx context.Context) (members []Member[T], err error) {
	defer g.wrap("members", &err)
	var found map[string]session.Node
	err = g.during(ctx, func(inc *session.Incarnation) error {
		names, err := inc.NamesFresh(ctx, g.dir())
		if err == nil {
			found, err = znodes.GetChildren(ctx, inc, g.dir(), names)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	members, bad := g.members(found)
	return members, errors.Join(bad...)
}

func (g *Group[T]) members(nodes map[string]session.Node) (members []Member[T], bad []error) {
	members = []Member[T]{} // nil would mean that the members could not be read
	for name, n := range nodes {
		if n.Stat.EphemeralOwner == 0 || g.kazoo && !strings.Contains(name, partyName) {
			continue // the znode belongs to another program
		}
		member := Member[T]{ID: name, Session: n.Stat.EphemeralOwner, Since: time.UnixMilli(n.Stat.Ctime)}
		var err error
		if g.kazoo {
			member.ID = string(n.Data)
		} else if member.Info, err = codec.Decode[T](g.codec, n.Data); err != nil {
			bad = append(bad, fmt.Errorf("member %q: %w", name, err))
			continue
		} else if id, ok := znodes.KeyOfName(name); ok { // else another program has chosen the name
			member.ID = id
		}
		members = append(members, member)
	}
	slices.SortFunc(members, func(a, b Member[T]) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), cmp.Compare(a.Session, b.Session))
	})
	return members, bad
}

// Watch returns a channel that receives the members, in the order of their ids, now and after each
// change. No list is older than the last. A list shows one moment, unless members change faster
// than the servers answer.
func (g *Group[T]) Watch(ctx context.Context) <-chan []Member[T] {
	return watching(ctx, &g.made, func(ctx context.Context, out chan<- []Member[T]) error {
		return znodes.FollowDir(ctx, g.s.m, g.dir(), false, func(nodes map[string]session.Node, changed, lost <-chan struct{}) (bool, error) {
			members, bad := g.members(nodes)
			for _, err := range bad {
				g.s.m.Log.Error("zsync: cannot watch a member", "path", g.path, "err", err)
			}
			return session.Offer(ctx, out, members, changed, lost)
		})
	})
}
