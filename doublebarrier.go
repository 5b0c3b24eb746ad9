package zsync

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// The other face of a WaitGroup is a double barrier: parties enter together
// and leave together, round after round.
//
// The parties are ephemeral, sequential children of one znode, the room. Its
// data tells up to which number they have been let in, so no marker of one
// round means anything to the next. Whoever completes a round lets all of it in
// with one transaction, which the servers apply only if each of its parties is
// still there, and becomes its keeper: it makes a znode, ephemeral too, that
// tells those who leave when all have left.
//
// Enter:
//
//  1. Create a child of the room.
//  2. Read the room, with a watch. Its Stat tells how many children it has.
//  3. If our number has been let in, we are inside.
//  4. If our number is the n'th or a later one after those let in, and there
//     are that many children, list them. If we are the n'th of those who wait,
//     or behind, let the first n in, and if we are the n'th be their keeper. If
//     that fails, or we are not among them, go to 2.
//  5. Wait until the room is written. If we were among the next n in any case,
//     we are inside; otherwise go to 2.
//
// Leave:
//
//  6. Read the keeper's znode, with a watch. If we are the keeper go to 10.
//  7. Delete our child, unless that is done.
//  8. If there is no keeper, be the keeper: create the znode. Go to 6.
//  9. Wait for the keeper's znode. If it is written all have left. If it is
//     deleted without that the keeper has died: go to 6.
//  10. Wait until all others of the round are gone.
//  11. Write and delete the keeper's znode, and delete our child if it is still
//     there, in one transaction.
//
// In step 4 it suffices that those look who are n'th or behind: of any n who
// wait, the last has such a number, and saw the others, who came before it. Nobody
// in such a place goes to sleep in step 5, so nobody needs to be woken for a party
// ahead that dies.
//
// Step 6 comes before step 7 because the keeper waits for our child: so its
// znode cannot go before we watch it unless the keeper dies.

// A doubleBarrier is that face of a WaitGroup. Each value keeps its own
// memberships.
type doubleBarrier struct {
	line line   // only says where the holds are
	room string // the parent of the parties, as the server knows it
	dir  string // the path of the WaitGroup, as the server knows it

	mu     sync.Mutex
	inside []*party // entered and not left, in order; guarded by mu
	ghosts []string // what names parties whose Enter is over but whose znodes may be there; guarded by mu
}

// A party is one who enters, is inside or leaves.
type party struct {
	name  string // of its child
	path  string
	seq   int32
	round roundID
	asked bool // it has asked to be the keeper

	// Of one who is inside.
	hold   *grant
	left   bool     // its child is deleted, or will be
	keeps  bool     // it certainly is the keeper: it let the round in
	others []string // if it keeps: the names of all others of the round

	making <-chan struct{} // if not nil, closed when the request that may make it the keeper is over
}

// A roundID identifies a round for ever: the room, and the version of its data
// that let the round in.
type roundID struct {
	room    int64 // czxid
	version int32
}

// A round is who was let in together: those whose numbers lie behind after and
// not behind last.
type round struct {
	version     int32
	after, last int32
}

func (r round) has(seq int32) bool { return r.after < seq && seq <= r.last }

// roomState is the data of a room: "<n> <version>:<after>:<last>...", with the
// rounds that may not have left, the latest one last.
type roomState struct {
	n      int
	rounds []round
}

// admitted returns the number of the last who was let in.
func (s roomState) admitted() int32 {
	if len(s.rounds) == 0 {
		return -1 // numbers begin at 0
	}
	return s.rounds[len(s.rounds)-1].last
}

// find returns the round that fits, if it is remembered.
func (s roomState) find(fits func(round) bool) (round, bool) {
	i := slices.IndexFunc(s.rounds, fits)
	if i < 0 {
		return round{}, false
	}
	return s.rounds[i], true
}

// next returns the state in which those in have been let in too, when all are
// the children of the room. Rounds of which nobody is left are forgotten.
func (s roomState) next(version int32, all, in []child) roomState {
	next := roomState{n: s.n}
	for _, r := range s.rounds {
		if slices.ContainsFunc(all, func(c child) bool { return r.has(c.seq) }) {
			next.rounds = append(next.rounds, r)
		}
	}
	next.rounds = append(next.rounds, round{version, s.admitted(), in[len(in)-1].seq})
	return next
}

func (s roomState) bytes() []byte {
	b := strconv.AppendInt(nil, int64(s.n), 10)
	for _, r := range s.rounds {
		b = fmt.Appendf(b, " %d:%d:%d", r.version, r.after, r.last)
	}
	return b
}

func parseRoomState(data []byte) (roomState, error) {
	var s roomState
	bad := invalid("the znode holds %.64q, which is not from a double barrier", data)
	n, rest, _ := strings.Cut(string(data), " ")
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

func newDoubleBarrier(m *manager, path string) *doubleBarrier {
	dir := m.full(path)
	return &doubleBarrier{line: line{m: m, dir: dir}, room: childPath(dir, "parties"), dir: dir}
}

const partyBase = "party-"

// partyOf is the base of a name that tells how many parties its own wants. Those
// of another number than the room's are about to leave, and do not count.
func partyOf(n int) string { return strconv.Itoa(n) + "-" + partyBase }

func isPartyOf(n int, name string) bool { return strings.Contains(name, "-"+partyOf(n)) }

// lastParty is where a room is given up for the next, long before its numbers
// are used up: see line.inOrder for what happens then. Whoever lets a round in
// that reaches it closes the room for all others at once, so nobody waits in it
// for those who have gone on. Between two rounds 2^30 parties may come and give
// up; the rest would have to leave before the others go on.
const lastParty = 1 << 30

// keeperPath is the same for everyone in a round, and never used again.
func (d *doubleBarrier) keeperPath(id roundID) string {
	return childPath(d.dir, fmt.Sprintf("keeper-%x-%d", id.room, id.version))
}

// Enter waits until n parties have entered and lets all n in together; it must
// be given the same n by all. Parties are goroutines of one process or of many,
// with one WaitGroup or with several. The party that comes next begins the next
// round, which is let in when it has n parties of its own.
//
// A party that dies, or whose Enter fails, before the round is let in does not
// count: the servers let a round in only if all n are there. (Who has died is
// known to the servers when its session has expired.) A party that dies later
// counts as having left. An Enter that waits while its session expires waits on
// in the next. What it has then is a membership that belongs to the session, and
// ends with it: Leave returns [ErrLost].
//
// When Enter returns an error the caller is not a member, and nothing of it is
// left. A different n than that of those who wait or are inside is
// [ErrInvalid].
//
// Each party writes one ephemeral, sequential znode,
// path/parties/_c_<uuid>-<n>-party-<seq>, whose data is the owner in plain text
// ([WithOwner]), and each round one ephemeral znode path/keeper-<zxid>-<number>
// with the name of the party that keeps it. The data of path/parties is n and
// which parties are inside. path and path/parties are containers. Apache
// Curator's DistributedDoubleBarrier and kazoo's DoubleBarrier use other znodes
// and cannot share the path: their marker, by its nature, outlives the round
// that it belongs to.
//
// Enter costs 2 requests and one notification, and Leave the same. For each
// round come 2 more requests by the last who enters and, as its part of
// leaving, some to find the others gone: n-1 at most, in whatever order they
// leave, and far fewer for n beyond 20, where it may rarely be one more.
// Together that is at most 5 a party, and about 4.4 for n = 32. A party that
// finds the containers missing, because nobody made them yet or because the
// servers have removed them empty, needs 2 to 4 more. Parties beyond n that wait
// for a later round are woken, and read the room, for each round before it.
//
// The algorithm is "Double Barriers" from the ZooKeeper recipes with the rounds
// told apart.
func (wg *WaitGroup) Enter(ctx context.Context, n int) error {
	return opError("enter", wg.path, wg.enter(ctx, n))
}

func (wg *WaitGroup) enter(ctx context.Context, n int) error {
	if wg.bad() != nil {
		return wg.bad()
	}
	d, m := wg.double, wg.s.manager
	if most := (maxPacket - 1024) / (len(d.room) + 128); n < 1 || n > most {
		return invalid("%d parties; want from 1 to %d, which one transaction can let in", n, most)
	}
	if ctx.Err() != nil {
		return ctxErr(ctx)
	}
	m.waiters.Add(1)
	defer m.waiters.Add(-1)
	start := time.Now()
	var p *party
	err := m.during(ctx, func(inc *incarnation) error {
		for {
			var err error
			if p, err = d.enter(ctx, inc, n); !errors.Is(err, errVanished) {
				return err
			}
		}
	})
	m.waited("enter", wg.path, start, err)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.inside = append(d.inside, p)
	d.mu.Unlock()
	return nil
}

// The reasons to leave a room at once.
var (
	errOtherSize = errors.New("zsync: other number of parties")
	errUsedUp    = errors.New("zsync: the room's numbers are used up")
)

// enter is Enter within one session. It is errVanished if Enter should begin
// anew, because the room or our child is gone.
func (d *doubleBarrier) enter(ctx context.Context, inc *incarnation, n int) (*party, error) {
	// Nothing is made while there is no connection, so that what is given up
	// then leaves no ghost.
	if err := inc.connection(ctx); err != nil {
		return nil, err
	}
	if err := d.exorcise(ctx, inc); err != nil {
		return nil, err
	}
	if err := inc.vet(ctx, d.dir, nil); err != nil {
		return nil, err
	}
	guid := newGUID()
	path, _, err := inc.createChildOf(ctx, d.room, roomState{n: n}.bytes(), // Step 1.
		protectedName(guid, partyOf(n)), guid, []byte(inc.m.cfg.owner), zk.FlagEphemeralSequential, false)
	if err != nil {
		d.haunt(guid)
		return nil, err
	}
	me, ok := parseChild(baseName(path), partyBase)
	if !ok {
		panic("zsync: BUG: created " + path + ", which is no party")
	}
	p := &party{name: me.name, path: path, seq: me.seq}
	var s *stake
	if err = d.await(ctx, inc, p, n); err == nil {
		s, err = inc.stake(ctx)
	}
	if err == nil {
		p.hold = (&lineClaim{line: &d.line, inc: inc, path: path, me: me, unwatched: true, stake: s}).grant("enter", false)
		return p, nil
	}
	// We may be let in at this same instant. Then we count as having left.
	gone := d.withdraw(inc, p)
	switch {
	case errors.Is(err, errOtherSize), errors.Is(err, errUsedUp):
		select {
		case <-gone.done:
			return nil, d.replace(ctx, inc, n, p.round.room, err)
		case <-gone.refused:
			err = gone.refusal
		case <-ctx.Done():
			err = ctxErr(ctx)
		case <-inc.ctx.Done():
			err = errEnded
		}
	default:
		gone.await(grace)
	}
	if !isClosed(gone.done) || gone.err != nil {
		d.haunt(guid)
	}
	return nil, err
}

// haunt remembers a party that is not, or no longer, waiting but may have a
// znode: its deletion is under way, or its session is lost to us and lives on for
// the servers. It must not make up the number together with the next Enter
// of the very caller that has left, or goes on in the next session.
func (d *doubleBarrier) haunt(guid string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ghosts = append(d.ghosts, guid)
}

// exorcise deletes the znodes of ghosts. They stay ghosts until that is done,
// so that everyone who enters meanwhile sees to it too.
//
// Within a session find is exact. A create of a former session can still come
// after it only if it is held up on its way for longer than the session can be
// taken for alive here; it is then, to the servers, a party that dies.
func (d *doubleBarrier) exorcise(ctx context.Context, inc *incarnation) error {
	d.mu.Lock()
	ghosts := slices.Clone(d.ghosts)
	d.mu.Unlock()
	for _, guid := range ghosts {
		path, err := inc.find(ctx, d.room, guid)
		if err != nil {
			return err
		}
		if path != "" {
			gone := inc.remove(path)
			select {
			case <-gone.done:
			case <-gone.refused:
				return gone.refusal
			case <-ctx.Done():
				return ctxErr(ctx)
			}
			if gone.err != nil && !isNoNode(gone.err) {
				return gone.err
			}
		}
		d.mu.Lock()
		d.ghosts = slices.DeleteFunc(d.ghosts, func(g string) bool { return g == guid })
		d.mu.Unlock()
	}
	return nil
}

// withdraw deletes what p has made, in the background: its child, and the
// keeper's znode if that is p's.
func (d *doubleBarrier) withdraw(inc *incarnation, p *party) *removal {
	return inc.inBackground(p.path, func() error {
		ctx := inc.ctx // there is nobody else to wait for
		if err := inc.removeNow(ctx, p.path); err != nil && !isNoNode(err) {
			return err
		}
		if !p.asked {
			return nil
		}
		// We may have let a round in without knowing it. Now that our child is
		// gone this cannot happen any more, and if it has, somebody else must be
		// the keeper.
		if p.making != nil {
			select {
			case <-p.making:
			case <-ctx.Done():
				return nil
			}
		}
		keeper := d.keeperPath(p.round)
		data, _, err := inc.get(ctx, keeper)
		if err == nil && string(data) == p.name {
			err = inc.removeNow(ctx, keeper)
		}
		if isNoNode(err) {
			err = nil
		}
		return err
	})
}

// replace deletes the room, so that another takes its place, when nobody is in
// it; if the room is for another number of parties, only if nobody of these is.
// It returns nothing but an error: errVanished if Enter should begin anew.
func (d *doubleBarrier) replace(ctx context.Context, inc *incarnation, n int, room int64, why error) error {
	for {
		err := inc.deleteEmpty(ctx, d.room)
		switch {
		case err == nil, isNoNode(err):
			return errVanished
		case !errors.Is(err, zk.ErrNotEmpty):
			return err
		}
		names, stat, err := inc.children(ctx, d.room)
		switch {
		case isNoNode(err), err == nil && stat.Czxid != room:
			return errVanished // others have replaced it
		case err != nil:
			return err
		}
		others := func(name string) bool { return !isPartyOf(n, name) }
		if errors.Is(why, errOtherSize) && slices.ContainsFunc(names, others) {
			return invalid("%d parties, while others enter or are inside with%s", n, strings.TrimPrefix(why.Error(), errOtherSize.Error()))
		}
		// Nobody is let in here any more: they leave as we do, or are inside.
		if err := d.awaitAll(ctx, inc, names); err != nil {
			return err
		}
	}
}

// await is Enter after step 1.
func (d *doubleBarrier) await(ctx context.Context, inc *incarnation, p *party, n int) error {
	for {
		w := inc.hub.join(watchKey{watchData, d.room})
		inside, err := d.look(ctx, inc, w, p, n)
		inc.hub.leave(w)
		switch {
		case err != nil, inside:
			return err
		}
	}
}

// look goes through steps 2 to 5 once.
func (d *doubleBarrier) look(ctx context.Context, inc *incarnation, w *watch, p *party, n int) (inside bool, err error) {
	data, stat, err := inc.get(ctx, d.room) // Step 2.
	switch {
	case isNoNode(err), err == nil && p.round.room != 0 && p.round.room != stat.Czxid:
		return false, errVanished // somebody deleted the room, and us with it
	case err != nil:
		return false, err
	}
	p.round = roundID{stat.Czxid, stat.Version + 1}
	state, err := parseRoomState(data)
	switch {
	case err != nil:
		return false, err
	case state.n != n:
		return false, fmt.Errorf("%w %d", errOtherSize, state.n)
	}
	if r, ok := state.find(func(r round) bool { return r.has(p.seq) }); ok { // Step 3.
		p.round.version = r.version
		return true, nil
	}
	if state.admitted() >= lastParty || (child{seq: p.seq}).exhausted() {
		return false, errUsedUp
	}
	nth := int(p.seq - state.admitted()) // at most: some who came before us may be gone
	if nth >= n && int(stat.NumChildren) >= n {
		place, inside, err := d.letIn(ctx, inc, state, p) // Step 4.
		if err != nil || inside || place >= n {
			return inside, err
		}
		nth = place
	}
	// The watch may be older than what we have read, if others have joined it
	// before. Then it has fired by now, for what we know already. That we may
	// look once more in vain, if the room was written just now, is the price.
	if isClosed(w.fired) {
		return false, nil
	}
	if err := inc.awaitFired(ctx, w); err != nil { // Step 5.
		return false, err
	}
	// The room is written for nothing else than to let the next n in, and if
	// there were fewer ahead of us we are one of them, unless somebody deletes
	// our child, not knowing what it is. Then Leave tells.
	return w.event == zk.EventNodeDataChanged && nth <= n, nil
}

// letIn is step 4: it lets the next round in if p is the n'th who waits, or
// behind. It says which p was, and whether p is inside. Unless p is inside or
// one of the first n-1, p has to look again.
func (d *doubleBarrier) letIn(ctx context.Context, inc *incarnation, state roomState, p *party) (nth int, inside bool, err error) {
	names, _, err := inc.children(ctx, d.room)
	if err != nil && !isNoNode(err) {
		return 0, false, err
	}
	all := slices.DeleteFunc(parseChildren(names, partyBase), child.exhausted)
	waiting := slices.DeleteFunc(slices.Clone(all), func(c child) bool { return c.seq <= state.admitted() || !isPartyOf(state.n, c.name) })
	nth = 1 + slices.IndexFunc(waiting, func(c child) bool { return c.name == p.name })
	switch {
	case nth == 0:
		return 0, false, errVanished
	case nth < state.n:
		return nth, false, nil
	}
	// Whoever lists after its own create sees all who came before it. So these
	// are the first n who wait, or the transaction fails.
	in := waiting[:state.n]
	next := state.next(p.round.version, all, in)
	data := next.bytes()
	ops := []any{&zk.SetDataRequest{Path: d.room, Data: data, Version: p.round.version - 1}}
	size := 512 + len(data)
	others := make([]string, 0, len(in)-1) // not nil
	for _, c := range in {
		path := childPath(d.room, c.name)
		ops = append(ops, &zk.CheckVersionRequest{Path: path, Version: -1})
		size += 32 + len(path)
		if c.name != p.name {
			others = append(others, c.name)
		}
	}
	if nth == state.n {
		// Somebody behind would keep it only until it is inside itself.
		ops = append(ops, &zk.CreateRequest{Path: d.keeperPath(p.round), Data: []byte(p.name), Flags: zk.FlagEphemeral, Acl: inc.m.cfg.acl})
	}
	if size > maxPacket {
		return nth, false, ErrTooLarge
	}
	p.asked = p.asked || nth == state.n
	_, err = inc.tryMulti(ctx, ops)
	switch {
	case err == nil && nth == state.n:
		p.keeps, p.others = true, others
		return nth, true, nil
	case err == nil, isNoNode(err), isBadVersion(err):
		// Done; or somebody has gone; or somebody was quicker. Look again.
		return state.n, false, nil
	case errors.Is(err, errEnded), ctx.Err() != nil, outcomeOf(err) == answered:
		return nth, false, err
	}
	// Whether it was applied is not known. The room tells if we are inside, and
	// the keeper's znode, when we leave, if we are the keeper. What was not
	// applied before the next connection cannot be applied any more (see find).
	return state.n, false, inc.pause(ctx, 1)
}

// Leave gives up a membership that Enter gave, and waits until all of that
// round have left. With several memberships, as goroutines that share wg have
// them, it is the earliest one.
//
// The membership is given up in any case, also if Leave fails. It returns
// [ErrNotLocked] if wg has no membership, [ErrLost] if the membership ended
// with its session before Leave, and the error of ctx if that ends while others
// are inside. Once it has left, Leave outlives a session. For the cost see
// [WaitGroup.Enter].
func (wg *WaitGroup) Leave(ctx context.Context) error {
	return opError("leave", wg.path, wg.leave(ctx))
}

func (wg *WaitGroup) leave(ctx context.Context) error {
	if wg.bad() != nil {
		return wg.bad()
	}
	d := wg.double
	d.mu.Lock()
	if len(d.inside) == 0 {
		d.mu.Unlock()
		return ErrNotLocked
	}
	p := d.inside[0]
	d.inside = slices.Delete(d.inside, 0, 1)
	d.mu.Unlock()
	if err := p.hold.err(); err != nil {
		p.hold.release()
		return err
	}
	err := d.leave(ctx, p.hold.claim.inc, p)
	if errors.Is(err, errEnded) {
		err = wg.s.during(ctx, func(inc *incarnation) error { return d.leave(ctx, inc, p) })
	}
	return err
}

// leave is Leave within one session, which is p's own the first time. It is
// errEnded only if p has left. If it fails, p keeps the round no longer, and
// somebody else becomes the keeper.
func (d *doubleBarrier) leave(ctx context.Context, inc *incarnation, p *party) error {
	err := d.depart(ctx, inc, p)
	switch {
	case err == nil, p.left && !p.asked:
		return err
	case p.left:
	case p.hold.err() != nil:
		return p.hold.release()
	default:
		p.left = true
		p.hold.left()
	}
	d.withdraw(inc, p).await(grace)
	return err
}

// depart goes through steps 6 to 11.
func (d *doubleBarrier) depart(ctx context.Context, inc *incarnation, p *party) error {
	if p.keeps {
		p.keeps = false
		return d.keep(ctx, inc, p)
	}
	for {
		w := inc.hub.join(watchKey{watchData, d.keeperPath(p.round)})
		done, err := d.follow(ctx, inc, w, p)
		inc.hub.leave(w)
		if done || err != nil {
			return err
		}
	}
}

// follow goes through steps 6 to 9 once, or becomes the keeper.
func (d *doubleBarrier) follow(ctx context.Context, inc *incarnation, w *watch, p *party) (done bool, err error) {
	data, stat, err := inc.get(ctx, w.key.path) // Step 6.
	if err == nil && string(data) == p.name && stat.EphemeralOwner == inc.id.Load() {
		return true, d.keep(ctx, inc, p)
	}
	if err != nil && !isNoNode(err) {
		return false, err
	}
	if !p.left { // Step 7.
		p.left = true
		if lost := inc.m.letGo(ctx, p.hold.release); lost != nil {
			return false, lost
		}
	}
	if err != nil { // Step 8.
		// Either the keeper has died, or it has told that all have left while
		// we did not listen. As the keeper we find out.
		return d.succeed(ctx, inc, p)
	}
	if err := inc.awaitFired(ctx, w); err != nil { // Step 9.
		return false, err
	}
	// A client that was away meanwhile hears only of the deletion.
	return w.event == zk.EventNodeDataChanged, nil
}

// succeed is step 8. Unless it has done or failed, p has to look again.
func (d *doubleBarrier) succeed(ctx context.Context, inc *incarnation, p *party) (done bool, err error) {
	p.asked = true
	create, err := inc.beginCreate(ctx, d.keeperPath(p.round), []byte(p.name), zk.FlagEphemeral)
	if err != nil {
		return false, err
	}
	p.making = create.done
	_, err = create.wait(ctx, inc)
	switch {
	case err == nil:
		// Our server, should it have lagged, has come up to this moment.
		return true, d.keep(ctx, inc, p)
	case isNoNode(err):
		return true, nil // the servers have removed the empty path
	case isNodeExists(err):
		return false, nil // somebody was quicker
	case errors.Is(err, errEnded), ctx.Err() != nil, outcomeOf(err) == answered:
		return false, err
	}
	return false, inc.pause(ctx, 1) // if it was made, step 6 finds that we are the keeper
}

// keep is steps 10 and 11.
func (d *doubleBarrier) keep(ctx context.Context, inc *incarnation, p *party) error {
	names, err := p.others, error(nil)
	if names == nil {
		names, err = d.rest(ctx, inc, p)
	}
	if err == nil {
		err = d.awaitAll(ctx, inc, names)
	}
	if err == nil {
		err = d.tell(ctx, inc, p)
	}
	return err
}

// rest returns the names of those of p's round, but for p, who are inside.
func (d *doubleBarrier) rest(ctx context.Context, inc *incarnation, p *party) ([]string, error) {
	data, stat, err := inc.get(ctx, d.room)
	if isNoNode(err) || err == nil && stat.Czxid != p.round.room {
		return nil, nil // a room goes only when nobody is in it
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
		return nil, nil // a round is forgotten only when nobody of it is left
	}
	names, _, err := inc.children(ctx, d.room)
	if err != nil && !isNoNode(err) {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool {
		c, ok := parseChild(name, partyBase)
		return !ok || !r.has(c.seq) || name == p.name
	}), nil
}

// awaitAll waits until none of these children of the room is left.
//
// One after the other, that costs a request each. In random order it takes few
// notifications, whatever the order of leaving: on average whom we wait for goes
// after half of those that are left. A listing tells of all who have gone since,
// but if that is nobody it is a request too many. So it must be paid for by what
// listings have saved before; or, once, be all but certain to save some: among
// many, several that were picked at random had gone already.
func (d *doubleBarrier) awaitAll(ctx context.Context, inc *incarnation, names []string) error {
	const several, many = 3, 16
	names = slices.Clone(names)
	guess := len(names) - 1 // those who come last often go last
	for found, saved := 0, 0; len(names) > 0; guess = rand.IntN(max(1, len(names))) {
		found++
		err := inc.whileThere(ctx, childPath(d.room, names[guess]), func(w *watch) error {
			found = 0
			return inc.awaitFired(ctx, w)
		})
		if err != nil {
			return err
		}
		names = slices.Delete(names, guess, guess+1)
		likely := saved == 0 && found >= several && len(names) > many
		if len(names) < 2 || saved <= 0 && !likely {
			continue
		}
		list, _, err := inc.children(ctx, d.room)
		if err != nil && !isNoNode(err) {
			return err
		}
		there := make(map[string]bool, len(list))
		for _, name := range list {
			there[name] = true
		}
		before := len(names)
		names = slices.DeleteFunc(names, func(name string) bool { return !there[name] })
		saved += before - len(names) - 1
	}
	return nil
}

// tell is step 11. Those who wait see that the znode was written, as that comes
// first in the transaction.
func (d *doubleBarrier) tell(ctx context.Context, inc *incarnation, p *party) error {
	path := d.keeperPath(p.round)
	ops := []any{&zk.SetDataRequest{Path: path, Version: -1}, &zk.DeleteRequest{Path: path, Version: -1}}
	apply := func(ops []any) error {
		_, err := inc.multi(ctx, ops...)
		return err
	}
	if !p.left {
		err := apply(append(ops, &zk.DeleteRequest{Path: p.path, Version: -1}))
		if err == nil || isNoNode(err) {
			p.left = true
			p.hold.left()
		}
		if !isNoNode(err) {
			return err
		}
		// A former attempt was applied, or somebody has deleted one of the two.
		if err := inc.removeNow(ctx, p.path); err != nil && !isNoNode(err) {
			return err
		}
	}
	if err := apply(ops); !isNoNode(err) {
		return err
	}
	return nil
}

// Lost returns a channel that is closed when the membership is lost that
// [WaitGroup.Enter] has given wg, and that Leave would end next: the session has
// ended, or may have. While wg has none, the channel is closed already. It is
// not closed by Leave. The counter is nobody's, so it has no Lost.
func (wg *WaitGroup) Lost() <-chan struct{} {
	if wg.bad() != nil {
		return closedChan
	}
	d := wg.double
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.inside) == 0 || d.inside[0].hold.err() != nil {
		return closedChan
	}
	return d.inside[0].hold.lost
}

// Contenders returns the parties of the double barrier, in their order: who is
// inside, which is Holding, and who waits to enter. It costs two requests and
// one read for every 128 of them.
func (wg *WaitGroup) Contenders(ctx context.Context) ([]Contender, error) {
	if wg.bad() != nil {
		return nil, opError("contenders", wg.path, wg.bad())
	}
	var out []Contender
	err := wg.s.during(ctx, func(inc *incarnation) (err error) {
		out, err = wg.double.parties(ctx, inc)
		if isNoNode(err) {
			return nil // there is no room
		}
		return err
	})
	return out, opError("contenders", wg.path, err)
}

// parties describes everyone in the room.
func (d *doubleBarrier) parties(ctx context.Context, inc *incarnation) ([]Contender, error) {
	names, _, err := inc.children(ctx, d.room)
	if err != nil {
		return nil, err
	}
	all := parseChildren(names, partyBase)
	if len(all) == 0 {
		return nil, nil // and perhaps the room has no data yet
	}
	data, _, err := inc.get(ctx, d.room) // after the listing, so that nobody who is inside seems to wait
	if err != nil {
		return nil, err
	}
	state, err := parseRoomState(data)
	if err != nil {
		return nil, err
	}
	names = names[:0]
	for _, c := range all {
		names = append(names, c.name)
	}
	return describe(ctx, inc, d.room, names, func(i int) (Mode, bool) {
		_, inside := state.find(func(r round) bool { return r.has(all[i].seq) })
		return ModeParty, inside
	})
}
