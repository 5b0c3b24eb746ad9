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
//     become their keeper. If the transaction fails, or we are not among the first n, go to 2.
//  5. Wait until the room is written. After one second, also watch our child, and start again if
//     our child is deleted. When the room is written, we are inside if at most n-1 waiting parties
//     can have been ahead of us. If more can have been ahead, go to 2.
//
// Leave:
//
//  6. Read the keeper's znode, with a watch. If we are the keeper, go to 10.
//  7. Delete our child, unless it is already deleted. Steps 6 and 7 together take one round trip.
//  8. If there is no keeper, become the keeper: create the keeper's znode. Go to 6.
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
type DoubleBarrier struct {
	line lock.Line // used for the path of the WaitGroup, and nothing else
	room string    // full path of the room

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
	room  int64 // czxid of the room
	round int32 // the version that the room's data got when its round was let in
	asked bool  // it has sent a request that may make it the keeper
	tries int   // number of its requests to let a round in, or to become the keeper, that had no answer

	// For a party that is inside:
	hold   *lock.Grant
	left   bool     // the deletion of its child has begun
	others []string // the names of the other parties of the round, if it has let the round in, and so is the keeper; otherwise nil

	busy <-chan struct{} // closed when its latest create of the keeper's znode is over, which may outlast the caller's ctx; nil without such a request
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

func (s roomState) find(fits func(round) bool) (round, bool) {
	i := slices.IndexFunc(s.rounds, fits)
	if i < 0 {
		return round{}, false
	}
	return s.rounds[i], true
}

// The method `next` returns the state of the room after a round. The list `all` has the children of
// the room, and `in` has the parties of the round. A round without a child is left out.
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

// New returns the double barrier at `path`. It does no I/O. All double barriers of a Session share
// the map `leftovers`.
func New(m *session.Manager, path string, leftovers *sync.Map) *DoubleBarrier {
	dir := m.Full(path)
	return &DoubleBarrier{
		line:      lock.Line{Manager: m, Dir: dir, Kind: trace.Party},
		room:      session.ChildPath(dir, "parties"),
		leftovers: leftovers,
	}
}

// Room returns the full path of the room.
func (b *DoubleBarrier) Room() string { return b.room }

// Check returns an error if rounds of n parties are not possible.
func (b *DoubleBarrier) Check(n int) error {
	if most := (session.MaxPacket - 1024) / (len(b.room) + 128); n < 1 || n > most {
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
	return session.ChildPath(b.line.Dir, fmt.Sprintf("keeper-%x-%d", p.room, p.round))
}

// The reasons for a party to leave a room at once.
var (
	errOtherSize = errors.New("other number of parties")
	errUsedUp    = errors.New("the room's numbers are used up")
)

// Enter waits until the caller and n-1 other parties are let in together. The returned hold is the
// caller's membership. [DoubleBarrier.Leave] ends it.
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
	if err := p.hold.Err(); err != nil {
		p.hold.Release()
		return err
	}
	err := b.leave(ctx, p.Incarnation, p)
	if errors.Is(err, session.ErrEnded) {
		err = b.line.Manager.During(ctx, func(inc *session.Incarnation) error { return b.leave(ctx, inc, p) })
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
	// If ctx ends before there is a connection, no znode is left.
	if err := inc.Connection(ctx); err != nil {
		return nil, err
	}
	if err := b.removeLeftovers(ctx, inc); err != nil {
		return nil, err
	}
	if err := inc.Vet(ctx, session.Dir{Path: b.line.Dir}); err != nil {
		return nil, err
	}
	guid := session.NewGUID()
	watch := b.watch(inc)
	made := session.Creation{ // Steps 1 and 2.
		Dir:   session.Dir{Path: b.room, Part: true, Data: roomState{n: n}.bytes()},
		Paths: []string{session.ChildPath(b.room, session.ProtectedName(guid, partyOf(n)))}, GUID: guid,
		Data: inc.Manager.Owner, Read: true,
	}
	if err := inc.CreateEphemeral(ctx, &made); err != nil {
		inc.Watches.Leave(watch)
		b.leaveBehind(guid)
		return nil, err
	}
	me, ok := lock.ParseChild(session.BaseName(made.Path), partyBase)
	if !ok {
		panic("zsync: BUG: created " + made.Path + ", which is no party")
	}
	p := &party{Claim: &lock.Claim{Hold: lock.Hold{Incarnation: inc}, Line: &b.line, Path: made.Path, Child: me, Unwatched: true}}
	err := b.await(ctx, inc, watch, made.Node, made.ReadErr, p, n)
	if err == nil {
		err = p.TakeStake(ctx)
	}
	if err == nil {
		p.hold = p.Grant("enter")
		return p, nil
	}
	// At the same instant, another party may let us in. Then the deletion of our child counts as a
	// Leave.
	gone := b.withdraw(inc, p)
	switch {
	case errors.Is(err, errOtherSize), errors.Is(err, errUsedUp):
		refused := gone.Outcome(ctx)
		if session.IsClosed(gone.Done) {
			return nil, b.replace(ctx, inc, n, p.room, err)
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

// leaveBehind records the GUID of a party that no longer waits but may have a znode, whose deletion is
// under way, or whose lost session may be alive at the servers. The same caller may enter again. Then
// the old znode must not count as another party.
func (b *DoubleBarrier) leaveBehind(guid string) {
	b.leftovers.Store(session.ChildPath(b.room, guid), nil)
}

// removeLeftovers deletes the znodes of leftover parties, the ghosts. Within one session, Find is
// exact. A create of an earlier session may arrive after Find. The znode then looks like a party that
// enters and crashes.
func (b *DoubleBarrier) removeLeftovers(ctx context.Context, inc *session.Incarnation) error {
	for ghost := range b.leftovers.Range {
		guid := session.BaseName(ghost.(string))
		if ghost != session.ChildPath(b.room, guid) {
			continue // of another room
		}
		path, err := inc.Find(ctx, b.room, guid)
		if err != nil {
			return err
		}
		if path != "" {
			// If the session ends, the ghost is deleted, too.
			if err := inc.Remove(path).Outcome(ctx); err != nil && !session.IsNoNode(err) {
				return err
			}
		}
		b.leftovers.Delete(ghost)
	}
	return nil
}

// The method `withdraw` deletes p's child in the background, unless that has begun. If p is the keeper,
// `withdraw` also deletes the keeper's znode.
func (b *DoubleBarrier) withdraw(inc *session.Incarnation, p *party) *session.Deletion {
	busy, left, asked := p.busy, p.left, p.asked // p may be used again, in the next session
	return inc.Delete(&session.Deletion{Paths: []string{p.Path}, By: func() error {
		ctx := inc.Ctx // not the ctx of the caller, which may have ended: no other goroutine deletes the znodes
		if busy != nil {
			if err := session.AwaitIn(ctx, inc, busy); err != nil {
				return err
			}
		}
		if !left {
			if err := inc.RemoveNow(ctx, p.Path); err != nil && !session.IsNoNode(err) {
				return err
			}
		}
		if !asked {
			return nil
		}
		// An attempt of ours that got no reply may have let a round in. No later attempt can do this,
		// because our child is deleted. Then another party must become the keeper of that round. A
		// deletion that gets no reply is not simply repeated: by then, the keeper's znode may belong to
		// another party.
		err := inc.RemoveOwn(b.keeperPath(p), p.Child.Name)
		if session.IsNoNode(err) {
			err = nil
		}
		return err
	}})
}

// The method `replace` waits until the room is empty, and deletes it, so that Enter can make another.
// Then the error is ErrVanished. If the room has parties, and is for another number of parties,
// `replace` fails.
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
			return session.ErrVanished // another client has replaced the room
		case err != nil:
			return err
		}
		others := func(name string) bool { return !isPartyOf(n, name) }
		if errors.Is(why, errOtherSize) && slices.ContainsFunc(names, others) {
			return session.Invalid("%d parties, while others enter or are inside with%s", n, strings.TrimPrefix(why.Error(), errOtherSize.Error()))
		}
		// No party is let into this room any more. Its waiting parties leave like us, and the others
		// are inside, and will leave later.
		if err := b.awaitAll(ctx, inc, names); err != nil {
			return err
		}
	}
}

func (b *DoubleBarrier) watch(inc *session.Incarnation) *conn.Watch {
	return inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: b.room})
}

// The method `await` performs the rest of Enter. The arguments `room` and err are the result of step 2,
// which has set the watch w unless it has failed.
func (b *DoubleBarrier) await(ctx context.Context, inc *session.Incarnation, w *conn.Watch, room session.Node, err error, p *party, n int) error {
	for {
		inside := false
		switch {
		case session.IsNoNode(err), err == nil && p.room != 0 && p.room != room.Stat.Czxid:
			err = session.ErrVanished // another client has deleted the room and our child
		case err == nil:
			inside, err = b.look(ctx, inc, w, room, p, n)
		}
		inc.Watches.Leave(w)
		if err != nil || inside {
			return err
		}
		w = b.watch(inc)
		room.Data, room.Stat, err = inc.Get(ctx, b.room) // Step 2.
	}
}

// The method `look` performs steps 3 to 5 once. The arguments `room` and w are the result of step 2.
func (b *DoubleBarrier) look(ctx context.Context, inc *session.Incarnation, w *conn.Watch, room session.Node, p *party, n int) (inside bool, _ error) {
	p.room, p.round = room.Stat.Czxid, room.Stat.Version+1
	state, err := parseRoomState(room.Data)
	switch {
	case err != nil:
		return false, err
	case state.n != n:
		return false, fmt.Errorf("%w %d", errOtherSize, state.n)
	}
	if r, ok := state.find(func(r round) bool { return r.has(p.Child.Seq) }); ok { // Step 3.
		p.round = r.version
		if int(r.last-r.after) > n {
			// Some parties with numbers in this range were deleted before the round was let in. If
			// our child still exists, we were let in.
			if err := p.MustStand(ctx); err != nil {
				return false, err
			}
		}
		return true, nil
	}
	if state.admitted() >= LastParty || p.Child.Exhausted() {
		return false, errUsedUp
	}
	nth := int(p.Child.Seq - state.admitted()) // our place is at most the n'th: parties ahead may have left
	if nth >= n && int(room.Stat.NumChildren) >= n {
		place, inside, err := b.letIn(ctx, inc, state, p) // Step 4.
		if err != nil || inside || place >= n {
			return inside, err
		}
		nth = place
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
	return w.Event == zk.EventNodeDataChanged && nth <= n, nil
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

// letIn performs step 4. The result `nth` is the place of p among the waiting parties. If p is neither
// inside nor among the first n-1 waiting parties, p must look again.
func (b *DoubleBarrier) letIn(ctx context.Context, inc *session.Incarnation, state roomState, p *party) (nth int, inside bool, err error) {
	names, err := inc.Names(ctx, b.room)
	if err != nil {
		return 0, false, err
	}
	all := slices.DeleteFunc(lock.ParseChildren(names, partyBase), lock.Child.Exhausted)
	waiting := slices.DeleteFunc(slices.Clone(all), func(c lock.Child) bool { return c.Seq <= state.admitted() || !isPartyOf(state.n, c.Name) })
	nth = 1 + slices.IndexFunc(waiting, func(c lock.Child) bool { return c.Name == p.Child.Name })
	switch {
	case nth == 0:
		return 0, false, session.ErrVanished
	case nth < state.n:
		return nth, false, nil
	}
	// p sees all parties before it. So these are the first n waiting parties, or the transaction fails.
	in := waiting[:state.n]
	next := state.next(p.round, all, in)
	ops := []any{&zk.SetDataRequest{Path: b.room, Data: next.bytes(), Version: p.round - 1}}
	others := make([]string, 0, len(in)-1) // not nil
	for _, c := range in {
		ops = append(ops, &zk.CheckVersionRequest{Path: session.ChildPath(b.room, c.Name), Version: -1})
		if c.Name != p.Child.Name {
			others = append(others, c.Name)
		}
	}
	if nth == state.n {
		// The n'th party becomes the keeper of the round. A party behind the round does not: it
		// will be inside a later round, and could not serve as the keeper of this round then.
		ops = append(ops, &zk.CreateRequest{Path: b.keeperPath(p), Data: []byte(p.Child.Name), Flags: zk.FlagEphemeral, Acl: inc.Manager.Config.ACL})
	}
	if err := inc.Manager.CheckSize(ops); err != nil {
		return nth, false, err
	}
	p.asked = p.asked || nth == state.n
	_, err = inc.AttemptMulti(ctx, ops)
	switch {
	case err == nil && nth == state.n:
		p.others = others
		return nth, true, nil
	case err == nil, session.IsNoNode(err), session.IsBadVersion(err):
		// We have let the round in, or a party has left, or another party was faster. Look again.
		return state.n, false, nil
	}
	// If the outcome is unknown, the room will show whether we are inside. When we leave, the keeper's
	// znode will show whether we are the keeper. If the request was not applied before the next
	// connection, it cannot be applied later (see Find).
	return state.n, false, p.lookAgain(ctx, inc, err)
}

// lookAgain is called after a request of p has failed with err. If the outcome is unknown, it pauses,
// and returns nil: then p looks again.
func (p *party) lookAgain(ctx context.Context, inc *session.Incarnation, err error) error {
	switch {
	case errors.Is(err, session.ErrEnded), session.OutcomeOf(err) == session.Answered:
		return err
	case ctx.Err() != nil:
		return session.CtxErr(ctx) // even if the connection was lost at the same instant
	}
	p.tries++
	return inc.Pause(ctx, p.tries)
}

// The method `leave` is the part of Leave in one session, at first in p's own. If it returns ErrEnded,
// p has left. If it fails, another party becomes the keeper.
func (b *DoubleBarrier) leave(ctx context.Context, inc *session.Incarnation, p *party) error {
	err := b.depart(ctx, inc, p)
	switch {
	case err == nil, p.left && !p.asked:
		return err
	case p.left:
	case p.hold.Err() != nil:
		return p.hold.Release()
	default:
		p.hold.Left()
	}
	b.withdraw(inc, p).Await(session.Grace)
	return err
}

// The method `depart` performs steps 6 to 11.
func (b *DoubleBarrier) depart(ctx context.Context, inc *session.Incarnation, p *party) error {
	if p.others != nil {
		return b.keep(ctx, inc, p)
	}
	for {
		w := inc.Watches.Join(conn.WatchKey{Kind: conn.WatchData, Path: b.keeperPath(p)})
		done, err := b.follow(ctx, inc, w, p)
		inc.Watches.Leave(w)
		if done || err != nil {
			return err
		}
	}
}

// The method `follow` performs steps 6 to 9 once, or makes p the keeper. It sets w, which is a
// watch on the keeper's znode.
func (b *DoubleBarrier) follow(ctx context.Context, inc *session.Incarnation, w *conn.Watch, p *party) (done bool, err error) {
	read, err := inc.StartGet(ctx, w.Key.Path) // Step 6.
	if err == nil && !p.left {
		err = p.remove(ctx, inc, false) // Step 7.
	}
	if err != nil {
		return false, err
	}
	keeper, unread := read.Wait(ctx, inc)
	if session.OutcomeOf(unread) != session.Answered {
		keeper.Data, keeper.Stat, unread = inc.Get(ctx, w.Key.Path) // perhaps after the deletion; step 8 finds that out
	}
	switch {
	case unread == nil && string(keeper.Data) == p.Child.Name && keeper.Stat.EphemeralOwner == inc.ID.Load():
		return true, b.keep(ctx, inc, p)
	case session.IsNoNode(unread): // Step 8.
		// The keeper has crashed, or all have left and the event of the keeper's write was lost with the
		// connection. p becomes the keeper, and finds that out.
		return b.succeed(ctx, inc, p)
	case unread != nil:
		return false, unread
	}
	if err := inc.AwaitFired(ctx, w); err != nil { // Step 9.
		return false, err
	}
	// The event proves a write if it has come over the connection on which the watch was set. After an
	// outage, the servers report a change even if the next keeper has created another znode.
	fired := inc.Watches.State(w)
	return w.Event == zk.EventNodeDataChanged && fired.ToldOn == fired.ArmedOn, nil
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

// The method `succeed` performs step 8. If `done` is false and err is nil, p must look again.
func (b *DoubleBarrier) succeed(ctx context.Context, inc *session.Incarnation, p *party) (done bool, err error) {
	p.asked = true
	create, err := inc.StartCreate(ctx, b.keeperPath(p), []byte(p.Child.Name), zk.FlagEphemeral)
	if err != nil {
		return false, err
	}
	p.busy = create.Done
	_, err = create.Wait(ctx, inc)
	switch {
	case err == nil:
		// Even if our server has lagged, its state is now at least as new as this create.
		return true, b.keep(ctx, inc, p)
	case session.IsNoNode(err):
		return true, nil // the path of the WaitGroup is deleted, so all parties have left
	case session.IsNodeExists(err):
		return false, nil // another party was faster
	}
	return false, p.lookAgain(ctx, inc, err) // if the znode was created, step 6 finds that we are the keeper
}

// The method `keep` performs steps 10 and 11.
func (b *DoubleBarrier) keep(ctx context.Context, inc *session.Incarnation, p *party) error {
	others := p.others
	if p.others = nil; others == nil {
		all, state, room, err := b.list(ctx, inc)
		switch {
		case session.IsNoNode(err), room != 0 && room != p.room: // our room was deleted, so it was empty
			all = nil
		case err != nil:
			return err
		}
		r, _ := state.find(func(r round) bool { return r.version == p.round }) // without such a round, all its parties have left
		for _, c := range all {
			if r.has(c.Seq) && c.Name != p.Child.Name {
				others = append(others, c.Name)
			}
		}
	}
	if err := b.awaitAll(ctx, inc, others); err != nil {
		return err
	}
	return b.tell(ctx, inc, p)
}

// The method `list` returns all parties in the room, in order, the state of the room, and its czxid. If
// there are no parties, the other results are zero: such a room may have no data yet.
//
// The listing comes before the read. In the other order, the listing could show a new room, whose numbers
// begin at 0 again, and a party that is inside could appear as a waiting party.
func (b *DoubleBarrier) list(ctx context.Context, inc *session.Incarnation) (all []lock.Child, state roomState, room int64, err error) {
	names, err := inc.Names(ctx, b.room)
	if all = lock.ParseChildren(names, partyBase); err != nil || len(all) == 0 {
		return nil, state, 0, err
	}
	data, stat, err := inc.Get(ctx, b.room)
	if err != nil {
		return nil, state, 0, err
	}
	state, err = parseRoomState(data)
	return all, state, stat.Czxid, err
}

// awaitAll waits until the children of the room with these names are deleted. It sends one request
// for each child, all in one round trip.
func (b *DoubleBarrier) awaitAll(ctx context.Context, inc *session.Incarnation, names []string) (err error) {
	gone := make(chan error, len(names))
	for _, name := range names {
		inc.Manager.Spawn(func() { gone <- inc.AwaitGone(ctx, session.ChildPath(b.room, name)) })
	}
	for range names {
		err = cmp.Or(err, <-gone)
	}
	return err
}

// The method `tell` performs step 11. The write is the first operation, so the waiting parties get
// its event. If another client had deleted p's child, the error is ErrLost.
func (b *DoubleBarrier) tell(ctx context.Context, inc *session.Incarnation, p *party) (lost error) {
	path := b.keeperPath(p)
	ops := []any{&zk.SetDataRequest{Path: path, Version: -1}, &zk.DeleteRequest{Path: path, Version: -1}}
	if !p.left {
		_, open, err := inc.MultiOpen(ctx, append(ops, &zk.DeleteRequest{Path: p.Path, Version: -1}))
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
	if _, err := inc.Multi(ctx, ops...); err != nil && !session.IsNoNode(err) {
		return err
	}
	return lost
}

// Parties returns the names of all parties in the room, in order. The function `inside` reports
// whether the party names[i] is inside.
func (b *DoubleBarrier) Parties(ctx context.Context, inc *session.Incarnation) (names []string, inside func(i int) bool, err error) {
	all, state, _, err := b.list(ctx, inc)
	for _, c := range all {
		names = append(names, c.Name)
	}
	return names, func(i int) bool {
		_, inside := state.find(func(r round) bool { return r.has(all[i].Seq) })
		return inside
	}, err
}
