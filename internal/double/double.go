// Package double is the double barrier of a WaitGroup: parties enter together and leave together,
// round after round. Package tally has the counter of a WaitGroup.
package double

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/shared"
	"github.com/zsync/zsync/internal/trace"
)

// A DoubleBarrier is the double barrier of one path. Each DoubleBarrier keeps the memberships of its own
// callers.
//
// The parties are ephemeral, sequential children of one znode, the room. The room's data say up to
// which number parties have been let in. So no round leaves a marker that could confuse the next.
// The party that completes a round lets the whole round in with one transaction. The servers apply
// it only if each party of the round still exists. That party becomes the round's keeper: it
// creates an ephemeral znode, by which the other parties learn that all have left.
//
// Enter:
//
//  1. Create a child of the room.
//  2. Read the room, with a watch. Its Stat contains the number of children. The
//     first time, this takes one round trip together with step 1.
//  3. If our number has been let in, we are inside.
//  4. Compare our number with the last number that was let in. If ours is greater by n or more, and
//     the room has at least n children, list them. If at least n-1 waiting parties are ahead of us,
//     let the first n waiting parties in. If we are the n'th, become their keeper. If that fails,
//     or we are not among the first n, go to 2.
//  5. Wait until the room is written. After a second, also wait for the deletion of our child, and
//     start again if it is deleted. When the room is written, we are inside if at most n-1 waiting
//     parties can have been ahead of us. Otherwise, go to 2.
//
// Leave:
//
//  6. Read the keeper's znode, with a watch. If we are the keeper, go to 10.
//  7. Delete our child, unless that is done. Together with step 6, this takes one
//     round trip.
//  8. If there is no keeper, become the keeper: create the znode. Go to 6.
//  9. Wait for the keeper's znode. If it is written, all have left. If it is deleted without
//     a write, the keeper has died: go to 6. Go to 6 also if the connection was replaced
//     since the watch was set, because the znode may be the next keeper's.
//  10. Wait until all other children of the round are deleted.
//  11. Write and delete the keeper's znode, and delete our child if it still
//     exists, in one transaction.
//
// In step 4, only a party with the n'th number or a later one looks at the line. That is enough: of
// any n waiting parties, the last has such a number, and it sees the others, which came before it.
// Such a party never waits in step 5 for a party ahead of it. So no party must be woken when a
// party ahead of it dies.
//
// Step 6 comes before step 7 because the keeper waits for the deletion of our child. So while the
// keeper lives, it does not delete its znode before we watch it.
type DoubleBarrier struct {
	line lock.Line // names only the path of the holds
	room string    // the parent of the parties, as the server knows it
	dir  string    // the path of the WaitGroup, as the server knows it

	mu     sync.Mutex
	inside []*party // entered and not left, in order; guarded by mu

	leftovers *leftovers
}

// Leftovers has the leftovers of one Session, by path. The zero value is ready for use.
type Leftovers struct {
	m shared.WeakMap[string, leftovers]
}

// leftovers identifies parties whose Enter is over but whose znodes may still exist. All DoubleBarrier
// values of a path in a Session share them: the caller may enter again by another value.
type leftovers struct {
	all *Leftovers
	dir string

	mu    sync.Mutex
	guids []string // guarded by mu
}

// A party is a membership from Enter to Leave: it enters, is inside, or leaves.
type party struct {
	name  string // of its child
	path  string
	seq   int32
	round roundID
	asked bool // whether it has asked to be the keeper

	// Of a party that is inside.
	hold   *lock.Grant
	left   bool     // its child is deleted, or will be
	keeps  bool     // it is certainly the keeper, because it let the round in
	others []string // the names of the other parties of the round, if it is the keeper

	making <-chan struct{} // if not nil, closed when the request that may make it the keeper is over
	going  <-chan struct{} // if not nil, closed when it has deleted its child, or has failed to
}

// A roundID identifies one round, and never another: it has the room, and the version of the room's
// data that let the round in.
type roundID struct {
	room    int64 // czxid
	version int32
}

// A round is the parties that were let in together. Their numbers are greater than the field after,
// and at most the field last.
type round struct {
	version     int32
	after, last int32
}

func (r round) has(seq int32) bool { return r.after < seq && seq <= r.last }

// roomState is the data of a room: "<n> <version>:<after>:<last>...", with the rounds whose parties
// may still be inside, the latest round last.
type roomState struct {
	n      int
	rounds []round
}

// admitted returns the number of the last party that was let in.
func (s roomState) admitted() int32 {
	if len(s.rounds) == 0 {
		return -1 // numbers begin at 0
	}
	return s.rounds[len(s.rounds)-1].last
}

// find returns the round that fits, if the room remembers it.
func (s roomState) find(fits func(round) bool) (round, bool) {
	i := slices.IndexFunc(s.rounds, fits)
	if i < 0 {
		return round{}, false
	}
	return s.rounds[i], true
}

// next returns the state after the parties of in have been let in too. all are the children of
// the room; a round without a child is forgotten.
func (s roomState) next(version int32, all, in []lock.Child) roomState {
	next := roomState{n: s.n}
	for _, r := range s.rounds {
		if slices.ContainsFunc(all, func(c lock.Child) bool { return r.has(c.Seq) }) {
			next.rounds = append(next.rounds, r)
		}
	}
	next.rounds = append(next.rounds, round{version, s.admitted(), in[len(in)-1].Seq})
	return next
}

func (s roomState) bytes() []byte {
	b := strconv.AppendInt(nil, int64(s.n), 10)
	for _, r := range s.rounds {
		b = fmt.Appendf(b, " %d:%d:%d", r.version, r.after, r.last)
	}
	return marks.Mark(b)
}

func parseRoomState(data []byte) (roomState, error) {
	var s roomState
	bad := session.Invalid("the znode holds %.64q, which is not from a double barrier", data)
	n, rest, _ := strings.Cut(string(marks.Unmark(data)), " ")
	var err error
	if s.n, err = strconv.Atoi(n); err != nil || s.n < 1 {
		return s, bad
	}
	for f := range strings.FieldsSeq(rest) {
		var r round
		if k, err := fmt.Sscanf(f, "%d:%d:%d", &r.version, &r.after, &r.last); err != nil || k != 3 {
			return s, bad
		}
		s.rounds = append(s.rounds, r)
	}
	return s, nil
}

// New returns the double barrier at path. It does no I/O.
func New(m *session.Manager, path string, all *Leftovers) *DoubleBarrier {
	dir := m.Full(path)
	return &DoubleBarrier{
		line:      lock.Line{Manager: m, Dir: dir, Kind: trace.Party},
		room:      session.ChildPath(dir, "parties"),
		dir:       dir,
		leftovers: all.m.Of(dir, &leftovers{all: all, dir: dir}),
	}
}

// Room returns the parent of the parties, as the server knows it.
func (b *DoubleBarrier) Room() string { return b.room }

// Check returns an error if there cannot be rounds of n.
func (b *DoubleBarrier) Check(n int) error {
	if most := (session.MaxPacket - 1024) / (len(b.room) + 128); n < 1 || n > most {
		return session.Invalid("%d parties; want from 1 to %d, which one transaction can let in", n, most)
	}
	return nil
}

const partyBase = "party-"

// partyOf returns the base of a party's name, which contains the number of parties that its
// caller wants. If that number is not the room's number of parties, the party is about to leave,
// and does not count.
func partyOf(n int) string { return strconv.Itoa(n) + "-" + partyBase }

func isPartyOf(n int, name string) bool { return strings.Contains(name, "-"+partyOf(n)) }

// LastParty is the number at which a new room replaces the old one. A server may give one number to
// many parties when the numbers are used up, which is much later. If a round reaches LastParty, the
// party that lets the round in also closes the room for all others. So no party waits there for
// parties of the next room. Between two rounds, 2^30 parties may come and leave again. If more of
// them come, all parties must leave before a new room can replace this one.
const LastParty = 1 << 30

// keeperPath returns the path of the keeper of a round. It is the same for all parties of the
// round, and no other round uses it.
func (b *DoubleBarrier) keeperPath(id roundID) string {
	return session.ChildPath(b.dir, fmt.Sprintf("keeper-%x-%d", id.room, id.version))
}

// The reasons to leave a room at once.
var (
	errOtherSize = errors.New("other number of parties")
	errUsedUp    = errors.New("the room's numbers are used up")
)

// Enter waits until n parties have entered and all are let in together. The hold is the
// caller's membership, which [DoubleBarrier.Leave] ends.
func (b *DoubleBarrier) Enter(ctx context.Context, n int) (*lock.Grant, error) {
	m := b.line.Manager
	m.Waiters.Add(1)
	defer m.Waiters.Add(-1)
	var p *party
	err := m.During(ctx, func(inc *session.Incarnation) error {
		for {
			var err error
			if p, err = b.enter(ctx, inc, n); !errors.Is(err, session.ErrVanished) {
				return err
			}
		}
	})
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inside = append(b.inside, p)
	return p.hold, nil
}

// Leave ends the earliest membership from Enter, and waits until all parties of its round have
// left.
func (b *DoubleBarrier) Leave(ctx context.Context) error {
	b.mu.Lock()
	if len(b.inside) == 0 {
		b.mu.Unlock()
		return lock.ErrNotLocked
	}
	p := b.inside[0]
	b.inside = slices.Delete(b.inside, 0, 1)
	b.mu.Unlock()
	if err := p.hold.Err(); err != nil {
		p.hold.Release()
		return err
	}
	err := b.leave(ctx, p.hold.Claim.Incarnation, p)
	if errors.Is(err, session.ErrEnded) {
		err = b.line.Manager.During(ctx, func(inc *session.Incarnation) error { return b.leave(ctx, inc, p) })
	}
	return err
}

// Membership returns the hold of the membership that Leave would end next, and its round. It
// returns nil if there is none.
func (b *DoubleBarrier) Membership() (hold *lock.Grant, round any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.inside) == 0 {
		return nil, nil
	}
	return b.inside[0].hold, b.inside[0].round
}

// enter is Enter within one session. It returns ErrVanished if the room or our child was
// deleted, and Enter must start again.
func (b *DoubleBarrier) enter(ctx context.Context, inc *session.Incarnation, n int) (*party, error) {
	// Without a connection, create nothing. So if ctx ends before there is one, no znode is left.
	if err := inc.Connection(ctx); err != nil {
		return nil, err
	}
	if err := b.removeLeftovers(ctx, inc); err != nil {
		return nil, err
	}
	if err := inc.Vet(ctx, session.Dir{Path: b.dir}); err != nil {
		return nil, err
	}
	guid := session.NewGUID()
	path, room, err := b.arrive(ctx, inc, guid, n)
	if err != nil {
		b.leaveBehind(guid)
		return nil, err
	}
	me, ok := lock.ParseChild(session.BaseName(path), partyBase)
	if !ok {
		panic("zsync: BUG: created " + path + ", which is no party")
	}
	p := &party{name: me.Name, path: path, seq: me.Seq}
	var s *session.Stake
	if err = b.await(ctx, inc, room, p, n); err == nil {
		s, err = inc.Stake(ctx)
	}
	if err == nil {
		p.hold = (&lock.Claim{Hold: lock.Hold{Incarnation: inc, Stake: s}, Line: &b.line, Path: path, Child: me, Unwatched: true}).Grant("enter")
		return p, nil
	}
	// Another party may let us in at this same instant. Then we count as having left.
	gone := b.withdraw(inc, p)
	switch {
	case errors.Is(err, errOtherSize), errors.Is(err, errUsedUp):
		refused := gone.Outcome(ctx)
		if session.IsClosed(gone.Done) {
			return nil, b.replace(ctx, inc, n, p.round.room, err)
		}
		err = refused
	default:
		gone.Await(session.Grace)
	}
	if !session.IsClosed(gone.Done) || gone.Err != nil {
		b.leaveBehind(guid)
	}
	return nil, err
}

// leaveBehind remembers a party that does not wait, or no longer waits, but may have a znode: its
// deletion is under way, or its session is lost to us and still alive at the servers. The same
// caller may enter again, or continue in the next session. Then the old znode must not count as a
// party in addition to the new one.
func (b *DoubleBarrier) leaveBehind(guid string) {
	l := b.leftovers
	l.mu.Lock()
	defer l.mu.Unlock()
	l.guids = append(l.guids, guid)
	l.all.m.Keep(l.dir, l, true)
}

// removeLeftovers deletes the znodes of leftover parties, the ghosts. A ghost remains in the list
// until its znode is deleted. Each party that enters tries to delete it.
//
// Within a session, Find is exact. The create of an earlier session can arrive after Find only if
// it was delayed until the client had given that session up. Then its znode looks like a party that
// enters and dies.
func (b *DoubleBarrier) removeLeftovers(ctx context.Context, inc *session.Incarnation) error {
	l := b.leftovers
	l.mu.Lock()
	ghosts := slices.Clone(l.guids)
	l.mu.Unlock()
	for _, guid := range ghosts {
		path, err := inc.Find(ctx, b.room, guid)
		if err != nil {
			return err
		}
		if path != "" {
			// If the session ends, so does the ghost.
			if err := inc.Remove(path).Outcome(ctx); err != nil && !session.IsNoNode(err) {
				return err
			}
		}
		l.mu.Lock()
		l.guids = slices.DeleteFunc(l.guids, func(g string) bool { return g == guid })
		l.all.m.Keep(l.dir, l, len(l.guids) > 0)
		l.mu.Unlock()
	}
	return nil
}

// withdraw deletes p's znodes in the background: its child, and the keeper's znode if p is the
// keeper.
func (b *DoubleBarrier) withdraw(inc *session.Incarnation, p *party) *session.Deletion {
	return inc.Delete(&session.Deletion{Paths: []string{p.path}, By: func() error {
		ctx := inc.Ctx // not the caller's, which may have ended: no other goroutine deletes the znodes
		if p.going != nil {
			// A Leave whose ctx has ended continues in the background. If we deleted its znode
			// first, it would report a loss.
			select {
			case <-p.going:
			case <-ctx.Done():
				return session.ErrEnded
			}
		}
		if err := inc.RemoveNow(ctx, p.path); err != nil && !session.IsNoNode(err) {
			return err
		}
		if !p.asked {
			return nil
		}
		// One of our attempts that had no reply may have let a round in. From now on, no attempt can let
		// a round in, because our child is deleted. If an attempt has done so, another party must become
		// the keeper of that round.
		if p.making != nil {
			select {
			case <-p.making:
			case <-ctx.Done():
				return nil
			}
		}
		// A deletion without a reply is not repeated blindly: by then, the keeper's znode may
		// be another party's.
		err := inc.RemoveIfData(ctx, b.keeperPath(p.round), p.name)
		if session.IsNoNode(err) {
			err = nil
		}
		return err
	}})
}

// replace deletes the empty room, so that another takes its place. It first waits until the
// room is empty; if the room is for another number of parties, and such parties are in it, it
// fails. It always returns an error: ErrVanished if Enter must start again.
func (b *DoubleBarrier) replace(ctx context.Context, inc *session.Incarnation, n int, room int64, why error) error {
	for {
		err := inc.RemoveNow(ctx, b.room)
		switch {
		case err == nil, session.IsNoNode(err):
			return session.ErrVanished
		case !errors.Is(err, zk.ErrNotEmpty):
			return err
		}
		names, stat, err := inc.Children(ctx, b.room)
		switch {
		case session.IsNoNode(err), err == nil && stat.Czxid != room:
			return session.ErrVanished // others have replaced it
		case err != nil:
			return err
		}
		others := func(name string) bool { return !isPartyOf(n, name) }
		if errors.Is(why, errOtherSize) && slices.ContainsFunc(names, others) {
			return session.Invalid("%d parties, while others enter or are inside with%s", n, strings.TrimPrefix(why.Error(), errOtherSize.Error()))
		}
		// This room lets no party in from now on. Its waiting parties leave as we do. The other
		// parties are inside, and will leave, too.
		if err := b.awaitAll(ctx, inc, names); err != nil {
			return err
		}
	}
}

// A seen is the room, as a party has read it after it created its child.
type seen struct {
	session.Node
	err   error
	watch *conn.Watch // which is set, unless there is an error
}

func (b *DoubleBarrier) watch(inc *session.Incarnation) *conn.Watch {
	return inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: b.room})
}

// arrive is steps 1 and 2.
func (b *DoubleBarrier) arrive(ctx context.Context, inc *session.Incarnation, guid string, n int) (path string, room seen, err error) {
	name, dir := session.ProtectedName(guid, partyOf(n)), session.Dir{Path: b.room, Part: true, Data: roomState{n: n}.bytes()}
	room.watch = b.watch(inc)
	made := session.Creation{Dir: dir, Paths: []string{session.ChildPath(b.room, name)}, GUID: guid, Data: inc.Manager.Owner, Read: true}
	if err = inc.CreateEphemeral(ctx, &made); err != nil {
		inc.Watches.Leave(room.watch)
	}
	room.Node, room.err = made.Node, made.ReadErr
	return made.Path, room, err
}

// read is step 2 alone.
func (b *DoubleBarrier) read(ctx context.Context, inc *session.Incarnation) (room seen) {
	room.watch = b.watch(inc)
	room.Data, room.Stat, room.err = inc.Get(ctx, b.room)
	return room
}

// await is Enter after step 1, and after step 2 the first time.
func (b *DoubleBarrier) await(ctx context.Context, inc *session.Incarnation, room seen, p *party, n int) error {
	for {
		inside, err := b.look(ctx, inc, room, p, n)
		inc.Watches.Leave(room.watch)
		if err != nil || inside {
			return err
		}
		room = b.read(ctx, inc)
	}
}

// look runs steps 3 to 5 once, with the result of step 2.
func (b *DoubleBarrier) look(ctx context.Context, inc *session.Incarnation, room seen, p *party, n int) (inside bool, _ error) {
	switch err := room.err; {
	case session.IsNoNode(err), err == nil && p.round.room != 0 && p.round.room != room.Stat.Czxid:
		return false, session.ErrVanished // another client deleted the room, and our child with it
	case err != nil:
		return false, err
	}
	p.round = roundID{room.Stat.Czxid, room.Stat.Version + 1}
	state, err := parseRoomState(room.Data)
	switch {
	case err != nil:
		return false, err
	case state.n != n:
		return false, fmt.Errorf("%w %d", errOtherSize, state.n)
	}
	if r, ok := state.find(func(r round) bool { return r.has(p.seq) }); ok { // Step 3.
		p.round.version = r.version
		if int(r.last-r.after) > n {
			// Some parties with such numbers were deleted before the round was let in. If our child
			// still exists, it was not one of them.
			if err := p.mustStand(ctx, inc); err != nil {
				return false, err
			}
		}
		return true, nil
	}
	if state.admitted() >= LastParty || (lock.Child{Seq: p.seq}).Exhausted() {
		return false, errUsedUp
	}
	nth := int(p.seq - state.admitted()) // our place is at most nth: parties before us may have left
	if nth >= n && int(room.Stat.NumChildren) >= n {
		place, inside, err := b.letIn(ctx, inc, state, p) // Step 4.
		if err != nil || inside || place >= n {
			return inside, err
		}
		nth = place
	}
	// Other parties may have joined the watch earlier. So it may be older than our read, and have
	// fired for a change that we have read already. Therefore, we read the room again if the watch
	// has fired by now. If the watch fired only for a write after our read, the second read was not
	// necessary: that is the price.
	if session.IsClosed(room.watch.Fired) {
		return false, nil
	}
	if err := b.awaitWritten(ctx, inc, room.watch, p); err != nil { // Step 5.
		return false, err
	}
	// The room is written only to let the next n in. If fewer than n were ahead of us, we are among
	// these n. There is one exception: another client has deleted our child before we watched it.
	// Then Leave reports the loss.
	return room.watch.Event == zk.EventNodeDataChanged && nth <= n, nil
}

// ownAfter is how long a party waits before it watches its own child. A wait for a lock is as
// patient before its first look.
const ownAfter = time.Second

// awaitWritten waits until the room is written. It returns ErrVanished if another client deletes
// our child, even after a party let the round in. To us, that is as if our session had ended at
// that moment.
func (b *DoubleBarrier) awaitWritten(ctx context.Context, inc *session.Incarnation, room *conn.Watch, p *party) error {
	err := inc.AwaitAny(ctx, []*conn.Watch{room}, time.Now().Add(ownAfter))
	watched := room
	if err == nil && !session.IsClosed(room.Fired) {
		watched = inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: p.path})
		defer inc.Watches.Leave(watched)
		// The watch is set already if the party has waited for another round before.
		if !inc.Watches.Stands(watched) || !inc.Watches.ArmedOnOurs(watched) {
			var stat *zk.Stat
			_, stat, err = inc.Children(ctx, p.path)
			err = p.ours(inc, stat, err)
		}
		if err == nil {
			err = inc.AwaitAny(ctx, []*conn.Watch{room, watched}, time.Time{})
		}
	}
	switch {
	case session.IsNoNode(err), err == nil && watched != room && session.IsClosed(watched.Fired):
		return session.ErrVanished
	case err == nil && inc.Watches.Told(room) != inc.Watches.ArmedOn(watched):
		// Over one connection, the event of a deletion before the round would have come first.
		// After an outage, both events may come in any order. The read below returns no older
		// state: if our child exists now, it existed when the round was let in.
		err = p.mustStand(ctx, inc)
	}
	return err
}

// mustStand returns ErrVanished if p's child no longer exists.
func (p *party) mustStand(ctx context.Context, inc *session.Incarnation) error {
	stat, err := inc.Exists(ctx, p.path)
	return p.ours(inc, stat, err)
}

// ours takes the result of a read of p's child. It returns ErrVanished if the read has found no
// znode, or a copy that another client has created.
func (p *party) ours(inc *session.Incarnation, stat *zk.Stat, err error) error {
	if err == nil && (stat == nil || stat.EphemeralOwner != inc.ID.Load()) {
		return session.ErrVanished
	}
	return err
}

// letIn is step 4: it lets the next round in if p is the n'th waiting party, or a later one.
// It returns p's place, and whether p is inside. If p is not inside and not among the first
// n-1, p must look again.
func (b *DoubleBarrier) letIn(ctx context.Context, inc *session.Incarnation, state roomState, p *party) (nth int, inside bool, err error) {
	names, err := inc.Names(ctx, b.room)
	if err != nil {
		return 0, false, err
	}
	all := slices.DeleteFunc(lock.ParseChildren(names, partyBase), lock.Child.Exhausted)
	waiting := slices.DeleteFunc(slices.Clone(all), func(c lock.Child) bool { return c.Seq <= state.admitted() || !isPartyOf(state.n, c.Name) })
	nth = 1 + slices.IndexFunc(waiting, func(c lock.Child) bool { return c.Name == p.name })
	switch {
	case nth == 0:
		return 0, false, session.ErrVanished
	case nth < state.n:
		return nth, false, nil
	}
	// A party that lists after its own create sees all parties before it. So these are the
	// first n waiting parties, or the transaction fails.
	in := waiting[:state.n]
	next := state.next(p.round.version, all, in)
	data := next.bytes()
	ops := []any{&zk.SetDataRequest{Path: b.room, Data: data, Version: p.round.version - 1}}
	size := 512 + len(data)
	others := make([]string, 0, len(in)-1) // not nil
	for _, c := range in {
		path := session.ChildPath(b.room, c.Name)
		ops = append(ops, &zk.CheckVersionRequest{Path: path, Version: -1})
		size += 32 + len(path)
		if c.Name != p.name {
			others = append(others, c.Name)
		}
	}
	if nth == state.n {
		// A party behind the round does not become its keeper. It will be inside a later round
		// itself, and then it could not serve as the keeper of this round.
		ops = append(ops, &zk.CreateRequest{Path: b.keeperPath(p.round), Data: []byte(p.name), Flags: zk.FlagEphemeral, Acl: inc.Manager.Config.ACL})
	}
	if size > session.MaxPacket {
		return nth, false, session.ErrTooLarge
	}
	p.asked = p.asked || nth == state.n
	_, err = inc.AttemptMulti(ctx, ops)
	switch {
	case err == nil && nth == state.n:
		p.keeps, p.others = true, others
		return nth, true, nil
	case err == nil, session.IsNoNode(err), session.IsBadVersion(err):
		// The round is in, or a party has left, or another party was quicker. Look again.
		return state.n, false, nil
	case errors.Is(err, session.ErrEnded), session.OutcomeOf(err) == session.Answered:
		return nth, false, err
	case ctx.Err() != nil:
		return nth, false, session.CtxErr(ctx) // also if the connection was lost at this same instant
	}
	// We do not know whether it was applied. The room will show whether we are inside, and
	// when we leave, the keeper's znode will show whether we are the keeper. A request that
	// was not applied before the next connection cannot be applied later (see Find).
	return state.n, false, inc.Pause(ctx, 1)
}

// leave is Leave within one session. The first call is in p's own session. It returns ErrEnded only
// if p has left. If it fails, p stops being the keeper, and another party becomes it.
func (b *DoubleBarrier) leave(ctx context.Context, inc *session.Incarnation, p *party) error {
	err := b.depart(ctx, inc, p)
	switch {
	case err == nil, p.left && !p.asked:
		return err
	case p.left:
	case p.hold.Err() != nil:
		return p.hold.Release()
	default:
		p.left = true
		p.hold.Left()
	}
	b.withdraw(inc, p).Await(session.Grace)
	return err
}

// depart runs steps 6 to 11.
func (b *DoubleBarrier) depart(ctx context.Context, inc *session.Incarnation, p *party) error {
	if p.keeps {
		p.keeps = false
		return b.keep(ctx, inc, p)
	}
	for {
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: b.keeperPath(p.round)})
		done, err := b.follow(ctx, inc, w, p)
		inc.Watches.Leave(w)
		if done || err != nil {
			return err
		}
	}
}

// follow runs steps 6 to 9 once, or becomes the keeper. It sets w, a watch on the keeper's
// znode.
func (b *DoubleBarrier) follow(ctx context.Context, inc *session.Incarnation, w *conn.Watch, p *party) (done bool, err error) {
	keeper, unread, err := b.readKeeper(ctx, inc, p) // Steps 6 and 7.
	switch {
	case err != nil:
		return false, err
	case unread == nil && string(keeper.Data) == p.name && keeper.Stat.EphemeralOwner == inc.ID.Load():
		return true, b.keep(ctx, inc, p)
	case session.IsNoNode(unread): // Step 8.
		// The keeper has died, or it wrote its znode when all had left, and the event was lost with
		// the connection. p becomes the keeper, and finds out which.
		return b.succeed(ctx, inc, p)
	case unread != nil:
		return false, unread
	}
	if err := inc.AwaitFired(ctx, w); err != nil { // Step 9.
		return false, err
	}
	// The event proves a write only if it came over the connection on which the watch was set.
	// After an outage, the servers report a change even if the keeper's znode was deleted and the
	// next keeper has created its own. Then p looks again.
	told := inc.Watches.Told(w) == inc.Watches.ArmedOn(w)
	return w.Event == zk.EventNodeDataChanged && told, nil
}

// readKeeper is step 6, and the first time also step 7: it reads the keeper's znode, and then
// deletes p's child. err means that p was no longer inside; unread is the error of the read.
// If ctx ends, both requests continue in the background.
//
// If the connection is lost before both replies, the read may come after the deletion. Then the
// keeper's znode may be deleted already. Step 8 finds that out.
func (b *DoubleBarrier) readKeeper(ctx context.Context, inc *session.Incarnation, p *party) (keeper session.Node, unread, err error) {
	path := b.keeperPath(p.round)
	if p.left {
		keeper.Data, keeper.Stat, unread = inc.Get(ctx, path)
		return keeper, unread, nil
	}
	p.left = true
	going := make(chan struct{})
	p.going = going
	type answer struct {
		keeper session.Node
		unread error
	}
	answers := make(chan answer, 1)
	err = inc.Manager.GiveUp(ctx, func() error {
		defer close(going)
		return p.hold.ReleaseBy(func(own string) error {
			read, unread, err := inc.GetThenRemove(context.Background(), path, own)
			answers <- answer{read, unread}
			switch {
			case session.IsNoNode(err):
				err = session.ErrVanished
			case errors.Is(err, session.ErrEnded):
				err = inc.Loss()
			}
			return err
		})
	})
	if err != nil {
		return session.Node{}, nil, err
	}
	select {
	case a := <-answers:
		return a.keeper, a.unread, nil
	default: // GiveUp has not waited for the requests
		return session.Node{}, nil, session.CtxErr(ctx)
	}
}

// succeed is step 8. If it returns neither done nor an error, p must look again.
func (b *DoubleBarrier) succeed(ctx context.Context, inc *session.Incarnation, p *party) (done bool, err error) {
	p.asked = true
	create, err := inc.StartCreate(ctx, b.keeperPath(p.round), []byte(p.name), zk.FlagEphemeral)
	if err != nil {
		return false, err
	}
	p.making = create.Done
	_, err = create.Wait(ctx, inc)
	switch {
	case err == nil:
		// Even if our server lagged, it has now caught up to this create.
		return true, b.keep(ctx, inc, p)
	case session.IsNoNode(err):
		return true, nil // the path of the WaitGroup is deleted, so all parties have left
	case session.IsNodeExists(err):
		return false, nil // another party was quicker
	case errors.Is(err, session.ErrEnded), session.OutcomeOf(err) == session.Answered:
		return false, err
	case ctx.Err() != nil:
		return false, session.CtxErr(ctx) // also if the connection was lost at this same instant
	}
	return false, inc.Pause(ctx, 1) // if it was made, step 6 finds that we are the keeper
}

// keep is steps 10 and 11.
func (b *DoubleBarrier) keep(ctx context.Context, inc *session.Incarnation, p *party) error {
	names, err := p.others, error(nil)
	if names == nil {
		names, err = b.rest(ctx, inc, p)
	}
	if err == nil {
		err = b.awaitAll(ctx, inc, names)
	}
	if err == nil {
		err = b.tell(ctx, inc, p)
	}
	return err
}

// rest returns the names of the other parties of p's round that are inside.
func (b *DoubleBarrier) rest(ctx context.Context, inc *session.Incarnation, p *party) ([]string, error) {
	// The listing comes before the read: if the room is ours when it is read, it was ours when
	// it was listed. In the other order, a new room could be listed, and its numbers begin at 0.
	names, err := inc.Names(ctx, b.room)
	if err != nil {
		return nil, err
	}
	data, stat, err := inc.Get(ctx, b.room)
	if session.IsNoNode(err) || err == nil && stat.Czxid != p.round.room {
		return nil, nil // a room is deleted only when it is empty
	}
	if err != nil {
		return nil, err
	}
	state, err := parseRoomState(data)
	if err != nil {
		return nil, err
	}
	r, ok := state.find(func(r round) bool { return r.version == p.round.version })
	if !ok {
		return nil, nil // a round is forgotten only when all its parties have left
	}
	return slices.DeleteFunc(names, func(name string) bool {
		c, ok := lock.ParseChild(name, partyBase)
		return !ok || !r.has(c.Seq) || name == p.name
	}), nil
}

// awaitAll waits until all of these children of the room are deleted. It asks the servers
// about all at once: a request each, in one round trip.
func (b *DoubleBarrier) awaitAll(ctx context.Context, inc *session.Incarnation, names []string) error {
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = session.ChildPath(b.room, name)
	}
	return inc.AwaitAllGone(ctx, paths)
}

// tell is step 11. The write is the first operation, so the waiting parties get its event. It
// returns ErrLost if another client had deleted p's child.
func (b *DoubleBarrier) tell(ctx context.Context, inc *session.Incarnation, p *party) (lost error) {
	path := b.keeperPath(p.round)
	ops := []any{&zk.SetDataRequest{Path: path, Version: -1}, &zk.DeleteRequest{Path: path, Version: -1}}
	if !p.left {
		rs, open, err := inc.MultiOpen(ctx, append(ops, &zk.DeleteRequest{Path: p.path, Version: -1}))
		switch {
		case err == nil:
			p.left = true
			p.hold.Left()
			return nil
		case !session.IsNoNode(err):
			return err
		}
		// An earlier attempt was applied, or another client has deleted either znode.
		gone := session.FailedOp(rs) == len(ops)
		if !gone {
			err := inc.RemoveNow(ctx, p.path)
			if gone = session.IsNoNode(err); err != nil && !gone {
				return err
			}
		}
		if p.left = true; gone && !open { // another client has deleted our child; but all other parties have left
			p.hold.Claim.Lose(inc.Deleted())
			lost = p.hold.Release()
		} else {
			p.hold.Left()
		}
	}
	if _, err := inc.Multi(ctx, ops...); err != nil && !session.IsNoNode(err) {
		return err
	}
	return lost
}

// Parties returns the names of all parties in the room, in their order, and a function that
// reports which of them are inside.
func (b *DoubleBarrier) Parties(ctx context.Context, inc *session.Incarnation) (names []string, inside func(i int) bool, err error) {
	names, _, err = inc.Children(ctx, b.room)
	if err != nil {
		return nil, nil, err
	}
	all := lock.ParseChildren(names, partyBase)
	if len(all) == 0 {
		return nil, nil, nil // without parties, the room may have no data yet
	}
	data, _, err := inc.Get(ctx, b.room) // after the listing, so that no party that is inside seems to wait
	if err != nil {
		return nil, nil, err
	}
	state, err := parseRoomState(data)
	if err != nil {
		return nil, nil, err
	}
	names = names[:0]
	for _, c := range all {
		names = append(names, c.Name)
	}
	return names, func(i int) bool {
		_, inside := state.find(func(r round) bool { return r.has(all[i].Seq) })
		return inside
	}, nil
}
