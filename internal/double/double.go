// Package double is the double barrier of a WaitGroup. In each round, parties enter together and
// leave together. The counter of a WaitGroup is in package tally.
package double

import (
	"cmp"
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
	"github.com/zsync/zsync/internal/trace"
	"github.com/zsync/zsync/internal/znodes"
)

// A DoubleBarrier is the double barrier at one path. It has the memberships of its own callers.
//
// The parties are ephemeral, sequential children of one znode, the room. The room's data have the
// number of the last party that was let in, so no round leaves a marker that could confuse the next.
// One party completes a round, and lets the whole round in with one transaction. The servers apply
// it only if all parties of the round still exist. The party becomes the keeper of the round: it
// creates an ephemeral znode, the keeper's znode. By this znode, the other parties find out when all
// have left.
//
// Enter:
//
//  1. Create a child of the room.
//  2. Read the room, with a watch. The room's Stat contains the number of children. The first time,
//     steps 1 and 2 together take one round trip.
//  3. If our number was let in, we are inside.
//  4. Compare our number with the last number that was let in. If our number is greater by n or
//     more, and the room has at least n children, list the children. If at least n-1 waiting
//     parties are ahead of us, let the first n waiting parties in. If we are the n'th of them,
//     become their keeper. If a party has left meanwhile, list the children again.
//  5. Wait until the room is written. After one second, also watch our child, and start again if
//     our child is deleted. When the room is written, we are inside if at most n-1 waiting parties
//     can have been ahead of us. If more can have been ahead, go to 2.
//
// Leave:
//
//  6. Read the keeper's znode, with a watch. If we are the keeper, go to 10.
//  7. Delete our child, unless it is already deleted. Steps 6 and 7 together take one round trip.
//  8. If there is no keeper, become the keeper: create the keeper's znode, and go to 10. If another
//     party was faster, go to 6.
//  9. Wait for an event of the keeper's znode. If the znode is written, all have left. If it is
//     deleted without a write, the keeper has crashed: go to 6. If the connection was replaced
//     after the watch was set, also go to 6, because the znode may belong to the next keeper.
//  10. Wait until all other children of this round are deleted.
//  11. In one transaction, write the keeper's znode, delete it, and delete our child if it still
//     exists.
//
// In step 4, a party lists the children only if its number is the n'th after the last number that
// was let in, or a later one. That is enough. Of any n waiting parties, the last one has such a
// number. It sees all the others, because they came earlier. In step 5, a party with such a number
// never waits for a party ahead of it. So if a party crashes, no party behind it must be woken.
//
// Step 6 comes before step 7. The reason is that the keeper waits for the deletion of our child. So
// we watch the keeper's znode before a live keeper can delete it.
//
// A transaction of step 4 and the create of step 8 may get no reply. Their repetition is then refused,
// and the room, or the keeper's znode, shows which party was faster, perhaps we ourselves.
type DoubleBarrier struct {
	line lock.Line // used for the path of the WaitGroup, and nothing else
	Room string    // full path of the room, the parent of the parties

	mu     sync.Mutex
	inside []*party // parties that have entered and not left, in order; guarded by mu

	// The paths of the room with the GUIDs of parties whose Enter is over, but whose znodes may still
	// exist. All DoubleBarrier values of a Session share it, because a caller may enter again with
	// another value.
	leftovers *sync.Map
}

// The type `party` is one membership, from the start of Enter to the end of Leave. The claim is its
// child.
type party struct {
	*lock.Claim
	room  int64 // czxid of the room; 0 before step 2
	size  int   // the number of parties of the room's rounds
	round int32 // the version that the room's data got when its round was let in; 0 before its latest request to let its round in

	// For a party that is inside:
	hold   *lock.Grant
	others []string // the names of the other parties of the round, if it has let the round in, and so is the keeper; otherwise nil
	left   bool     // the deletion of its child has begun
}

// The type `round` is a group of parties that were let in together. Their numbers are greater than
// `after`, and not greater than `last`.
type round struct {
	version     int32
	after, last int32
}

func (r round) has(seq int32) bool { return r.after < seq && seq <= r.last }

// roomState is the data of a room, "<n> <version>:<after>:<last>...". It has each round whose
// parties may still be inside. The latest round is the last element.
type roomState struct {
	n      int
	rounds []round
}

func (s roomState) admitted() int32 {
	if len(s.rounds) == 0 {
		return -1 // numbers begin at 0
	}
	return s.rounds[len(s.rounds)-1].last
}

// The method `of` returns the round of the party with the number `seq`. Its version is 0 if the party
// waits.
func (s roomState) of(seq int32) (r round) {
	if i := slices.IndexFunc(s.rounds, func(r round) bool { return r.has(seq) }); i >= 0 {
		r = s.rounds[i]
	}
	return r
}

func (s roomState) bytes() []byte {
	b := strconv.AppendInt(nil, int64(s.n), 10)
	for _, r := range s.rounds {
		b = fmt.Appendf(b, " %d:%d:%d", r.version, r.after, r.last)
	}
	return marks.Mark(b)
}

func parseRoomState(data []byte) (roomState, error) {
	n, rest, _ := strings.Cut(string(marks.Unmark(data)), " ")
	parties, bad := strconv.Atoi(n)
	s := roomState{n: parties}
	for f := range strings.FieldsSeq(rest) {
		var r round
		_, err := fmt.Sscanf(f, "%d:%d:%d", &r.version, &r.after, &r.last)
		s.rounds, bad = append(s.rounds, r), cmp.Or(bad, err)
	}
	if bad != nil || s.n < 1 {
		return s, session.Invalid("the znode holds %.64q, which is not from a double barrier", data)
	}
	return s, nil
}

// New returns the double barrier at `path`. It does no I/O.
func New(m *session.Manager, path string, leftovers *sync.Map) *DoubleBarrier {
	dir := m.Full(path)
	return &DoubleBarrier{
		line:      lock.Line{Manager: m, Dir: dir, Kind: trace.Party},
		Room:      znodes.ChildPath(dir, "parties"),
		leftovers: leftovers,
	}
}

// Check returns an error if rounds of n parties are not possible.
func (b *DoubleBarrier) Check(n int) error {
	if most := (znodes.MaxPacket - 1024) / (len(b.Room) + 128); n < 1 || n > most {
		return session.Invalid("%d parties; want from 1 to %d, which one transaction can let in", n, most)
	}
	return nil
}

const partyBase = "party-"

// partyOf returns the base of a party's name. It contains n, the number of parties that the caller
// of Enter wants. A party with another n than the room is about to leave, and does not count.
func partyOf(n int) string { return strconv.Itoa(n) + "-" + partyBase }

func isPartyOf(n int, name string) bool { return strings.Contains(name, "-"+partyOf(n)) }

// LastParty is the number at which a new room replaces the old room. Much later, the numbers are
// used up, and a server may give one number to many parties. If a round reaches LastParty, its
// transaction also closes the room for all other parties, so no party waits in the old room for
// parties of the next. If 2^30 parties come and leave between two rounds, all parties must leave
// before a new room can replace the old room.
const LastParty = 1 << 30

// keeperPath returns the path of the keeper's znode of p's round. All parties of the round use this
// path, and no other round does.
func (b *DoubleBarrier) keeperPath(p *party) string {
	return znodes.ChildPath(b.line.Dir, fmt.Sprintf("keeper-%x-%d", p.room, p.round))
}

// The operation becomeKeeper creates the keeper's znode of p's round. Its data is the name of p.
func (b *DoubleBarrier) becomeKeeper(p *party) any {
	return &zk.CreateRequest{Path: b.keeperPath(p), Data: []byte(p.Child.Name), Flags: zk.FlagEphemeral, Acl: b.line.Manager.Config.ACL}
}

// errShut is the reason for a party to leave the room at once: the room's rounds have another number of
// parties, or the room's numbers are used up.
var errShut = errors.New("the room lets nobody in")

// Enter waits until the caller and n-1 other parties are let in together. The returned hold is the
// caller's membership. [DoubleBarrier.Leave] ends it.
func (b *DoubleBarrier) Enter(ctx context.Context, n int) (*lock.Grant, error) {
	m := b.line.Manager
	m.Waiters.Add(1)
	defer m.Waiters.Add(-1)
	var p *party
	err := m.During(ctx, func(inc *session.Incarnation) (err error) {
		for err = session.ErrVanished; errors.Is(err, session.ErrVanished); {
			p, err = b.enter(ctx, inc, n)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inside = append(b.inside, p)
	return p.hold, nil
}

// Leave ends the earliest membership that Enter has returned, and waits until all parties of its
// round have left.
func (b *DoubleBarrier) Leave(ctx context.Context) error {
	b.mu.Lock()
	if len(b.inside) == 0 {
		b.mu.Unlock()
		return lock.ErrNotLocked
	}
	p := b.inside[0]
	b.inside = slices.Delete(b.inside, 0, 1)
	b.mu.Unlock()
	var err error
	for inc := p.Incarnation; err == nil; inc, err = b.line.Manager.Incarnation(ctx) {
		if err = b.depart(ctx, inc, p); err == nil {
			return nil
		}
		if !p.left {
			if p.hold.Err() != nil {
				return p.hold.Release()
			}
			p.hold.Left()
		}
		if !errors.Is(err, session.ErrEnded) {
			b.withdraw(inc, p).Await(session.Grace) // so another party becomes the keeper
			return err
		}
	}
	return err
}

// Membership returns the hold and the round of the membership that the next Leave ends, or nil. Each
// round has another value.
func (b *DoubleBarrier) Membership() (hold *lock.Grant, round any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.inside) == 0 {
		return nil, nil
	}
	return b.inside[0].hold, b.keeperPath(b.inside[0])
}

// The method `enter` is the part of Enter in one session. If the room or our child was deleted, the
// error is ErrVanished, and Enter must start again.
func (b *DoubleBarrier) enter(ctx context.Context, inc *session.Incarnation, n int) (*party, error) {
	// If ctx ends before there is a connection, nothing is sent.
	if _, err := inc.OpenConn(ctx); err != nil {
		return nil, err
	}
	if err := b.removeLeftovers(ctx, inc); err != nil {
		return nil, err
	}
	if err := znodes.Vet(ctx, inc, znodes.Dir{Path: b.line.Dir}); err != nil {
		return nil, err
	}
	guid := znodes.NewGUID()
	made := znodes.Creation{
		Dir:   znodes.Dir{Path: b.Room, Part: true, Data: roomState{n: n}.bytes()},
		Paths: []string{znodes.ChildPath(b.Room, znodes.ProtectedName(guid, partyOf(n)))}, GUID: guid,
		Data: inc.Manager.Owner, Read: true,
	}
	var p *party
	err := inc.EachChange(ctx, conn.WatchKey{Kind: conn.WatchData, Path: b.Room}, 0, func(w *conn.Watch) (inside bool, err error) {
		var room session.Node
		if p != nil {
			room.Data, room.Stat, err = inc.Get(ctx, b.Room) // Step 2.
		} else if err = znodes.CreateEphemeral(ctx, inc, &made); err != nil { // Steps 1 and 2.
			return false, err
		} else {
			me, _ := lock.ParseChild(znodes.BaseName(made.Path), partyBase)
			p = &party{Claim: &lock.Claim{Hold: lock.Hold{Incarnation: inc}, Line: &b.line, Path: made.Path, Child: me, Unwatched: true}}
			room, err = made.Node, made.ReadErr
		}
		switch {
		case session.IsNoNode(err), err == nil && p.room != 0 && p.room != room.Stat.Czxid:
			return false, session.ErrVanished // another client has deleted the room and our child
		case err != nil:
			return false, err
		}
		return b.look(ctx, inc, w, room, p, n)
	})
	if err == nil {
		err = p.TakeStake(ctx)
	}
	if err == nil {
		p.hold = p.Grant("enter")
		return p, nil
	}
	gone := made.Undo
	if p != nil {
		// At the same instant, another party may let us in. Then the deletion of our child counts as a
		// Leave.
		gone = b.withdraw(inc, p)
		gone.Await(session.Grace)
		if errors.Is(err, errShut) {
			if err = gone.Outcome(ctx); err == nil {
				return nil, b.replace(ctx, inc, n, p)
			}
		}
	}
	if errors.Is(err, session.ErrEnded) || gone != nil && (!session.IsClosed(gone.Done) || gone.Err != nil) {
		// Our child may exist: its deletion is under way, or our lost session may be alive at the servers.
		// The same caller may enter again. Then the old znode must not count as another party.
		b.leftovers.Store(znodes.ChildPath(b.Room, guid), nil)
	}
	return nil, err
}

// removeLeftovers deletes the znodes of leftover parties, the ghosts. Within one session, Find is
// exact. A create of an earlier session may arrive after Find. The znode then looks like a party that
// enters and crashes.
func (b *DoubleBarrier) removeLeftovers(ctx context.Context, inc *session.Incarnation) error {
	for ghost := range b.leftovers.Range {
		guid := znodes.BaseName(ghost.(string))
		if ghost != znodes.ChildPath(b.Room, guid) {
			continue // of another room
		}
		path, err := znodes.Find(ctx, inc, b.Room, guid)
		if path != "" {
			err = znodes.Remove(inc, path).Outcome(ctx) // if the session ends, the ghost is deleted, too
		}
		if err != nil && !session.IsNoNode(err) {
			return err
		}
		b.leftovers.Delete(ghost)
	}
	return nil
}

// The method `withdraw` deletes p's child in the background, and the keeper's znode if p is the keeper.
//
// A request of p that got no reply may have let a round in, or made p the keeper. Then another party
// must become the keeper of that round. The deletion of the child comes first: after that write, the
// servers have applied p's request, or they never will. A deletion of the keeper's znode that gets no
// reply is not simply repeated: by then, the znode may belong to another party.
func (b *DoubleBarrier) withdraw(inc *session.Incarnation, p *party) *znodes.Deletion {
	return znodes.Delete(inc, &znodes.Deletion{Paths: []string{p.Path}, By: func() error {
		// The ctx of the caller may have ended, and no other goroutine deletes the znodes.
		err := znodes.RemoveNow(inc.Ctx, inc, p.Path)
		if p.round != 0 && (err == nil || session.IsNoNode(err)) {
			err = znodes.RemoveOwn(inc, b.keeperPath(p), p.Child.Name)
		}
		if session.IsNoNode(err) {
			return nil
		}
		return err
	}})
}

// The method `replace` waits until the room of p is empty, and deletes it, so that Enter can make
// another. Then the error is ErrVanished. If the room is for another number of parties, and has such
// parties, `replace` fails.
func (b *DoubleBarrier) replace(ctx context.Context, inc *session.Incarnation, n int, p *party) error {
	for {
		err := znodes.RemoveNow(ctx, inc, b.Room)
		switch {
		case err == nil, session.IsNoNode(err):
			return session.ErrVanished
		case !errors.Is(err, zk.ErrNotEmpty):
			return err
		}
		names, stat, err := inc.Children(ctx, b.Room)
		switch {
		case session.IsNoNode(err), err == nil && stat.Czxid != p.room:
			return session.ErrVanished // another client has replaced the room
		case err != nil:
			return err
		case p.size != n && slices.ContainsFunc(names, func(name string) bool { return !isPartyOf(n, name) }):
			return session.Invalid("%d parties, while others enter or are inside with %d", n, p.size)
		}
		// No party is let into this room any more. Its waiting parties leave like us, and the others
		// are inside, and will leave later.
		if err := b.awaitAll(ctx, inc, names); err != nil {
			return err
		}
	}
}

// The method `look` performs steps 3 to 5. The argument `room` is the result of step 2, which has set
// the watch w. If p is not inside, p must look again when w has fired.
func (b *DoubleBarrier) look(ctx context.Context, inc *session.Incarnation, w *conn.Watch, room session.Node, p *party, n int) (inside bool, _ error) {
	state, err := parseRoomState(room.Data)
	if err != nil {
		return false, err
	}
	p.room, p.size = room.Stat.Czxid, state.n
	if r := state.of(p.Child.Seq); r.version != 0 && state.n == n { // Step 3.
		p.round = r.version
		if int(r.last-r.after) > n {
			// Some parties with numbers in this range were deleted before the round was let in. If
			// our child still exists, we were let in.
			err = p.MustStand(ctx)
		}
		return err == nil, err
	}
	if state.n != n || state.admitted() >= LastParty || p.Child.Exhausted() {
		return false, errShut
	}
	nth := int(p.Child.Seq - state.admitted()) // our place is at most the n'th: parties ahead may have left
	next := room.Stat.Version + 1
	if nth >= n && int(room.Stat.NumChildren) >= n {
		if nth, err = b.letIn(ctx, inc, state, next, p); err != nil || p.others != nil { // Step 4.
			return err == nil, err
		}
	}
	// If another party has joined the watch earlier, the watch is older than our read, and may have
	// fired for a change that our read has shown. So if the watch has fired, read the room again.
	if session.IsClosed(w.Fired) {
		return false, nil
	}
	if err := b.awaitWritten(ctx, inc, w, p); err != nil { // Step 5.
		return false, err
	}
	// Every write of the room lets the next n parties in. If fewer than n parties were ahead of us,
	// we are among these n. There is one exception: another client has deleted our child before we
	// watched it. Then Leave reports the loss.
	if w.Event != zk.EventNodeDataChanged || nth > n {
		return false, nil
	}
	p.round = next
	return true, nil
}

// ownAfter is the time that a party waits before it watches its own child.
const ownAfter = time.Second

// awaitWritten waits until the room is written. If another client deletes our child, the error is
// ErrVanished, even if our round was let in before: for us, it is as if our session had ended.
func (b *DoubleBarrier) awaitWritten(ctx context.Context, inc *session.Incarnation, room *conn.Watch, p *party) error {
	err := inc.AwaitAny(ctx, []*conn.Watch{room}, time.Now().Add(ownAfter))
	watched := room
	if err == nil && !session.IsClosed(room.Fired) {
		watched = inc.Watches.Join(conn.WatchKey{Kind: conn.WatchChildren, Path: p.Path})
		defer inc.Watches.Leave(watched)
		// If the party has waited for an earlier round, the watch is already set.
		if !inc.Watches.Stands(watched) || !inc.Watches.State(watched).Ours {
			err = p.MustStand(ctx)
		}
		if err == nil {
			err = inc.AwaitAny(ctx, []*conn.Watch{room, watched}, time.Time{})
		}
	}
	switch {
	case err == nil && watched != room && session.IsClosed(watched.Fired):
		return session.ErrVanished
	case err == nil && inc.Watches.State(room).ToldOn != inc.Watches.State(watched).ArmedOn:
		// If both events come over one connection, they come in the order of the changes. After an
		// outage, they may come in any order, so read our child. The read returns no older state:
		// if our child exists now, it existed when the round was let in.
		err = p.MustStand(ctx)
	}
	return err
}

// letIn performs step 4. The result `nth` is the place of p among the waiting parties, or a greater
// number if the room was written since step 2. If p has let its own round in, letIn sets p.others.
func (b *DoubleBarrier) letIn(ctx context.Context, inc *session.Incarnation, state roomState, version int32, p *party) (nth int, err error) {
	for {
		names, err := inc.Names(ctx, b.Room)
		if err != nil {
			return 0, err
		}
		all := slices.DeleteFunc(lock.ParseChildren(names, partyBase), lock.Child.Exhausted)
		waiting := slices.DeleteFunc(slices.Clone(all), func(c lock.Child) bool { return c.Seq <= state.admitted() || !isPartyOf(state.n, c.Name) })
		nth = 1 + slices.IndexFunc(waiting, func(c lock.Child) bool { return c.Name == p.Child.Name })
		switch {
		case nth == 0:
			return 0, session.ErrVanished
		case nth < state.n:
			return nth, nil
		}
		// p sees all parties before it. So these are the first n waiting parties, or the transaction fails.
		in := waiting[:state.n]
		gone := func(r round) bool { return !slices.ContainsFunc(all, func(c lock.Child) bool { return r.has(c.Seq) }) }
		next := roomState{state.n, slices.DeleteFunc(slices.Clone(state.rounds), gone)}
		next.rounds = append(next.rounds, round{version, state.admitted(), in[state.n-1].Seq})
		ops := []any{&zk.SetDataRequest{Path: b.Room, Data: next.bytes(), Version: version - 1}}
		others := make([]string, 0, state.n) // not nil
		for _, c := range in {
			ops = append(ops, &zk.CheckVersionRequest{Path: znodes.ChildPath(b.Room, c.Name), Version: -1})
			if c.Name != p.Child.Name {
				others = append(others, c.Name)
			}
		}
		if nth == state.n {
			// The n'th party becomes the keeper of the round. A party behind the round does not: it
			// will be inside a later round, and could not serve as the keeper of this round then.
			p.round = version
			ops = append(ops, b.becomeKeeper(p))
		}
		if err := znodes.CheckSize(inc.Manager, ops); err != nil {
			return 0, err
		}
		switch _, err = znodes.Multi(ctx, inc, ops...); {
		case err == nil && nth == state.n:
			p.others = others
			return nth, nil
		case err == nil, session.IsBadVersion(err):
			return state.n + 1, nil
		case !session.IsNoNode(err):
			return 0, err
		}
	}
}

// The method `depart` performs steps 6 to 11 in one session, at first in p's own. If that session has
// ended, the error is ErrEnded. If our child was deleted before, p has left, and waits on in the next.
func (b *DoubleBarrier) depart(ctx context.Context, inc *session.Incarnation, p *party) error {
	if p.others != nil && !p.left {
		return b.keep(ctx, inc, p)
	}
	path := b.keeperPath(p)
	return inc.EachChange(ctx, conn.WatchKey{Kind: conn.WatchData, Path: path}, 0, func(w *conn.Watch) (done bool, err error) {
		read, err := session.Start(ctx, inc, session.GetCall(path)) // Step 6.
		if err == nil && !p.left {
			err = p.remove(ctx, inc, false) // Step 7.
		}
		if err != nil {
			return false, err
		}
		keeper, err := read.Wait(ctx, inc)
		if session.OutcomeOf(err) != session.Answered {
			keeper.Data, keeper.Stat, err = inc.Get(ctx, path) // perhaps after the deletion; step 8 finds that out
		}
		for session.IsNoNode(err) { // Step 8.
			// The keeper has crashed, or all have left and the event of the keeper's write was lost with
			// the connection. p becomes the keeper, and finds that out.
			switch _, err = znodes.Multi(ctx, inc, b.becomeKeeper(p)); {
			case err == nil:
				// Even if our server has lagged, its state is now at least as new as this create.
				return true, b.keep(ctx, inc, p)
			case session.IsNoNode(err):
				return true, nil // the path of the WaitGroup is deleted, so all parties have left
			case session.IsNodeExists(err):
				keeper.Data, keeper.Stat, err = inc.Get(ctx, path)
			}
		}
		switch {
		case err != nil:
			return false, err
		case string(keeper.Data) == p.Child.Name:
			return true, b.keep(ctx, inc, p)
		}
		if err := session.AwaitIn(ctx, inc, w.Fired); err != nil { // Step 9.
			return false, err
		}
		// The event proves a write if it has come over the connection on which the watch was set. After an
		// outage, the servers report a change even if the next keeper has created another znode.
		fired := inc.Watches.State(w)
		return w.Event == zk.EventNodeDataChanged && fired.ToldOn == fired.ArmedOn, nil
	})
}

// The method `remove` deletes p's child, and ends p's hold. The deletion continues in the background
// if ctx ends, or the servers refuse it. If another client had deleted the child, the error is ErrLost,
// unless `mayBe` is true: then an earlier transaction of ours may have deleted it.
func (p *party) remove(ctx context.Context, inc *session.Incarnation, mayBe bool) error {
	p.left = true
	err := p.Claim.Leave().Outcome(ctx)
	switch {
	case errors.Is(err, session.ErrEnded):
		return p.hold.Release() // a loss
	case session.IsNoNode(err) && mayBe:
		err = nil
	case session.IsNoNode(err):
		p.Lose(inc.Deleted())
		return p.hold.Release()
	}
	p.hold.Left()
	return err
}

// The method `keep` performs steps 10 and 11. In the transaction, the write is the first operation, so
// the waiting parties get its event. If another client had deleted p's child, the error is ErrLost.
func (b *DoubleBarrier) keep(ctx context.Context, inc *session.Incarnation, p *party) error {
	others := p.others
	if p.left {
		names, rounds, room, err := b.Parties(ctx, inc)
		if err != nil {
			return err
		}
		others = nil
		for i, name := range names {
			if room == p.room && rounds[i] == p.round && name != p.Child.Name { // an empty room may have been replaced
				others = append(others, name)
			}
		}
	}
	if err := b.awaitAll(ctx, inc, others); err != nil {
		return err
	}
	path := b.keeperPath(p)
	ops := []any{&zk.SetDataRequest{Path: path, Version: -1}, &zk.DeleteRequest{Path: path, Version: -1}}
	var lost error
	if !p.left {
		_, open, err := znodes.MultiOpen(ctx, inc, append(ops, &zk.DeleteRequest{Path: p.Path, Version: -1}))
		switch {
		case err == nil:
			p.left = true
			p.hold.Left()
			return nil
		case !session.IsNoNode(err):
			return err
		}
		// An earlier attempt was applied, or another client has deleted one of the two znodes.
		if lost = p.remove(ctx, inc, open); lost != nil && !errors.Is(lost, session.ErrLost) {
			return lost
		}
	}
	if _, err := znodes.Multi(ctx, inc, ops...); err != nil && !session.IsNoNode(err) {
		return cmp.Or(lost, err)
	}
	return lost
}

// awaitAll waits until the children of the room with these names are deleted. It sends one request
// for each child, all in one round trip.
func (b *DoubleBarrier) awaitAll(ctx context.Context, inc *session.Incarnation, names []string) (err error) {
	gone := make(chan error, len(names))
	for _, name := range names {
		inc.Manager.Spawn(func() { gone <- inc.AwaitGone(ctx, znodes.ChildPath(b.Room, name)) })
	}
	for range names {
		err = cmp.Or(err, <-gone)
	}
	return err
}

// Parties returns the names of all parties in the room, in order, and the czxid of the room. A party
// inside has the version of its round in `rounds`, and a party that waits has 0.
//
// The listing comes before the read. In the other order, the listing could show a new room, whose numbers
// begin at 0 again, and a party that is inside could appear as a waiting party.
func (b *DoubleBarrier) Parties(ctx context.Context, inc *session.Incarnation) (names []string, rounds []int32, room int64, err error) {
	listed, err := inc.Names(ctx, b.Room)
	all := lock.ParseChildren(listed, partyBase)
	if err != nil || len(all) == 0 { // such a room may have no data yet
		return nil, nil, 0, err
	}
	data, stat, err := inc.Get(ctx, b.Room)
	switch {
	case session.IsNoNode(err):
		return nil, nil, 0, nil
	case err != nil:
		return nil, nil, 0, err
	}
	state, err := parseRoomState(data)
	for _, c := range all {
		names, rounds = append(names, c.Name), append(rounds, state.of(c.Seq).version)
	}
	return names, rounds, stat.Czxid, err
}
