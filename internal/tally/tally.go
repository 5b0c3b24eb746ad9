// Package tally is the counter of a WaitGroup.
package tally

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/shared"
	"github.com/zsync/zsync/internal/txn"
)

// ErrNegativeCounter means a WaitGroup's counter would have become negative.
var ErrNegativeCounter = errors.New("negative counter")

// Tallies are those of one Session, one for each path that is in use or owes
// something. The zero value is ready for use.
type Tallies struct {
	m shared.Map[key, Tally]
}

// Of returns the tally of dir, the path as the server knows it. With keep, tasks
// outlive their session.
func (ts *Tallies) Of(m *session.Manager, dir string, keep bool) *Tally {
	return ts.m.Of(key{dir, keep}, &Tally{m: m, all: ts, dir: dir, keep: keep})
}

// Kept returns how many are kept because they owe something.
func (ts *Tallies) Kept() int { return ts.m.Kept() }

// A Tally is the counter of one path as one process sees it. All WaitGroups
// of a Session with the same path share it.
//
// How changes are applied:
//
//  1. Whoever changes the counter puts the change into the queue. If nobody
//     applies changes at present, a goroutine begins to.
//  2. That goroutine takes the whole queue. The changes in it are all under way
//     at once, so any order among them is right; those that add come first.
//  3. If this process has enough open tasks, its own znode is created,
//     written or deleted, once for all of them.
//  4. Otherwise the znodes of others are read, and written or deleted in one
//     transaction with ours. Each is checked to have the version that was read.
//  5. What finds too few tasks anywhere fails.
//  6. If the queue has filled meanwhile go to 2.
type Tally struct {
	m    *session.Manager
	all  *Tallies // those of the Session
	dir  string   // the path, as the server knows it
	keep bool     // tasks outlive their session

	mu    sync.Mutex
	queue []*change            // not taken yet; guarded by mu
	busy  bool                 // a goroutine applies changes; guarded by mu
	lost  int                  // tasks that ended with a session, and whose Done has not been called; guarded by mu
	why   error                // how the last of them ended; guarded by mu
	own   openTasks            // written with mu held, by the goroutine that applies or, if there is none, by submit
	inc   *session.Incarnation // the session of own's znode; nil if it has none; as own
}

type key struct {
	dir  string
	keep bool
}

// A change is one Add or Done.
type change struct {
	delta     int
	done      chan struct{} // closed when err is set
	err       error
	repaid    int  // how many of its tasks had ended with their session; written with Tally.mu held, as Tally.own
	abandoned bool // its caller has left; guarded by Tally.mu
	insist    bool // what the servers refuse is tried again: it gives up a task
	owed      bool // nobody learns of a refusal, so it is tried again; guarded by Tally.mu
	tries     int  // how often it was refused; guarded by Tally.mu
}

// An openTasks is a znode that says how many tasks are open.
type openTasks struct {
	path    string // "" if there is none
	count   int
	version int32
}

// Add adds delta, which is not 0, to the counter. If ctx ends first it is not
// added, or taken back.
func (t *Tally) Add(ctx context.Context, delta int) error {
	c := t.submit(&change{delta: delta})
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		t.abandon(c)
		return session.CtxErr(ctx)
	}
}

// Done ends one task. If it is not done soon, it is done in the background. Where
// nobody calls it again after an error, heard is false: then it is done in the
// background too if something is in the way, such as another program's znode.
func (t *Tally) Done(heard bool) error {
	c := t.submit(&change{delta: -1, insist: true, owed: !heard})
	select {
	case <-c.done:
	case <-t.m.Outage(): // usually the connection is replaced at once, and we can still tell
	case <-time.After(session.ReleaseTime):
	}
	if _, ok := session.AwaitFor(c.done, session.Grace); ok {
		return c.err
	}
	return t.owe(c)
}

// Wait waits until no task is open.
func (t *Tally) Wait(ctx context.Context) error {
	m, dir := t.m, t.dir
	m.Waiters.Add(1)
	defer m.Waiters.Add(-1)
	return m.During(ctx, func(inc *session.Incarnation) error {
		// A server that lags might not know of the tasks yet.
		list := inc.ChildrenFresh
		for {
			names, _, err := list(ctx, dir)
			list = inc.Children
			if session.IsNoNode(err) {
				return nil
			}
			if err != nil {
				return err
			}
			// One listing shows all sessions with open tasks at one instant:
			// if there is none, that was the instant to wait for.
			paths := t.pathsOf(names)
			if len(paths) == 0 {
				return nil
			}
			// A znode of such a name that holds something else is from another
			// program, and may stay for ever. Whoever waits must learn of it as
			// from Count, rather than wait without a word.
			if _, err := readTasks(ctx, inc, paths); err != nil {
				return err
			}
			// Waiting for one after the other costs a notification each, and
			// none for what the numbers do until they are zero.
			for _, path := range paths {
				if err := inc.AwaitGone(ctx, path); err != nil {
					return err
				}
			}
		}
	})
}

// Count returns how many tasks are open.
func (t *Tally) Count(ctx context.Context) (total int, err error) {
	const tries = 8
	err = t.m.During(ctx, func(inc *session.Incarnation) error {
		as, err := t.read(ctx, inc)
		for try := 0; err == nil && len(as) > 0 && try < tries; try++ {
			last := as
			if as, err = t.readAgain(ctx, inc); slices.Equal(as, last) {
				break
			}
		}
		total = sumOf(as)
		return err
	})
	return total, err
}

// submit begins a change. Step 1.
func (t *Tally) submit(c *change) *change {
	c.done = make(chan struct{})
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.busy {
		if t.inc != nil && !t.inc.Alive() {
			t.forfeitLocked()
		}
		if t.repayLocked(c); c.delta == 0 {
			c.err = t.why
			close(c.done)
			return c
		}
	}
	t.queueLocked(c)
	return c
}

func (t *Tally) queueLocked(c *change) {
	t.queue = append(t.queue, c)
	if !t.busy {
		t.busy = true
		// A Done may have returned while its task is still to be ended, in several round
		// trips: a Close right behind it, which ends no task of another session and none
		// that is persistent, lets it come to an end.
		_, stay := t.m.BeforeClose()
		t.m.Spawn(func() { defer stay(); t.run() })
	}
}

// abandon is the end of a change's ctx.
func (t *Tally) abandon(c *change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.abandoned = true
	if i := slices.Index(t.queue, c); i >= 0 {
		t.queue = slices.Delete(t.queue, i, i+1)
		t.unpayLocked(c)
		return
	}
	select {
	case <-c.done:
		t.takeBackLocked(c)
	default: // finish sees that it is abandoned
	}
}

// takeBackLocked undoes a change whose caller was told that it failed. What
// was ended stays ended: somebody may have returned from Wait.
func (t *Tally) takeBackLocked(c *change) {
	if c.err == nil && c.delta > 0 {
		t.queueLocked(&change{delta: -c.delta, owed: true, done: make(chan struct{})})
	}
}

// owe returns what came of c; if that is not known yet it is nil, and c is made
// whatever the servers say at first.
func (t *Tally) owe(c *change) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if session.IsClosed(c.done) {
		return c.err
	}
	c.owed = true
	return nil
}

// postponeLocked queues those of cs again, in a while or when the Session is about to be closed, that
// are owed but were refused, and returns the others. A Session that ends owes nothing more.
func (t *Tally) postponeLocked(cs []*change, err error) []*change {
	if err == nil || errors.Is(err, ErrNegativeCounter) || session.IsClosed(t.m.Over) {
		return cs
	}
	var owed, rest []*change
	var wait time.Duration
	for _, c := range cs {
		if !c.owed && !(c.insist && session.OutcomeOf(err) == session.Answered) {
			rest = append(rest, c)
			continue
		}
		if c.tries++; c.tries == 1 {
			t.m.Log.Error("zsync: cannot end tasks, and goes on trying", "path", t.m.Bare(t.dir), "tasks", -c.delta, "err", err)
		}
		owed = append(owed, c)
		wait = max(wait, t.m.Config.Retry.Delay(c.tries))
	}
	if len(owed) > 0 {
		leaving, stay := t.m.BeforeClose()
		if session.IsClosed(leaving) {
			leaving = nil // it was tried at once when that began
		}
		t.m.Spawn(func() {
			defer stay()
			// Close waits for the next attempt, for as long as for any farewell. If the time is over at the
			// same instant the attempt is made all the same.
			select {
			case <-time.After(wait):
			case <-leaving:
			case <-t.m.Over:
				return
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			for _, c := range owed {
				if leaving != nil && session.IsClosed(leaving) {
					c.tries = 1 // there is a second left
				}
				t.queueLocked(c)
			}
		})
	}
	return rest
}

// finish tells the callers of cs how it went.
func (t *Tally) finish(cs []*change, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.postponeLocked(cs, err) {
		switch c.err = err; {
		case err != nil && !c.owed: // what nobody hears of is not ended again
			t.unpayLocked(c)
		case err == nil && c.repaid > 0:
			c.err = t.why
		}
		close(c.done)
		if c.abandoned {
			t.takeBackLocked(c)
		}
	}
}

// forfeitLocked is the end of the session that own belongs to.
func (t *Tally) forfeitLocked() {
	t.lost += t.own.count
	t.why = t.inc.Loss()
	t.own, t.inc = openTasks{}, nil
	t.rememberLocked()
}

// rememberLocked keeps the tally while it knows of tasks that belong, or did, to
// a session of this process: their Done may come when every WaitGroup that added
// them is garbage, and must end no other task in their place. Persistent tasks
// belong to nobody.
func (t *Tally) rememberLocked() {
	t.all.m.Keep(key{t.dir, t.keep}, t, !t.keep && t.own.count+t.lost > 0)
}

// repayLocked takes from c what it would end but has ended already.
func (t *Tally) repayLocked(c *change) {
	if c.delta < 0 && t.lost > 0 {
		n := min(t.lost, -c.delta)
		t.lost -= n
		c.delta += n
		c.repaid += n
		t.rememberLocked()
	}
}

// unpayLocked is for a change that has failed, as its caller knows: no part of it was
// made, so the tasks that it was repaid are ended another time.
func (t *Tally) unpayLocked(c *change) {
	t.lost += c.repaid
	c.repaid = 0
	t.rememberLocked()
}

// setOwn records what own's znode has become.
func (t *Tally) setOwn(inc *session.Incarnation, a openTasks) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.own, t.inc = a, inc; t.keep || a.path == "" {
		t.inc = nil
	}
	t.rememberLocked()
}

// run applies what is in the queue until it is empty.
func (t *Tally) run() {
	for {
		t.mu.Lock()
		batch := t.queue // Step 2.
		t.queue = nil
		if len(batch) == 0 {
			t.busy = false
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
		err := t.m.During(session.Finishing, func(inc *session.Incarnation) error {
			return t.apply(inc, &batch)
		})
		t.finish(batch, err)
	}
}

// apply applies and finishes the changes of a batch. Those for which it fails
// stay in it.
//
// When the session ends while an own znode is written, nobody needs to know
// whether that was applied: the znode is gone in either case. What was added
// is added again in the next session, and what was ended has ended.
func (t *Tally) apply(inc *session.Incarnation, batch *[]*change) error {
	ctx := session.Finishing
	t.mu.Lock()
	if t.inc != nil && t.inc != inc {
		t.forfeitLocked()
	}
	var repaid []*change
	*batch = slices.DeleteFunc(*batch, func(c *change) bool {
		t.repayLocked(c)
		if c.delta == 0 {
			repaid = append(repaid, c)
		}
		return c.delta == 0
	})
	t.mu.Unlock()
	t.finish(repaid, nil)
	for len(*batch) > 0 {
		sum := 0
		for _, c := range *batch {
			sum += c.delta
		}
		if t.own.count+sum >= 0 { // Step 3.
			switch err := t.writeOwn(ctx, inc, t.own.count+sum); {
			case err == nil:
				t.finish(*batch, nil)
				*batch = nil
			case session.IsNoNode(err), session.IsBadVersion(err):
				// Somebody else has ended tasks of ours.
				if err := t.readOwn(ctx, inc); err != nil {
					return err
				}
			default:
				return err
			}
			continue
		}
		if err := t.reach(ctx, inc, batch); err != nil {
			return err
		}
	}
	return nil
}

// writeOwn makes next the number of our own open tasks. It is NoNode or
// BadVersion if somebody else has written the znode.
func (t *Tally) writeOwn(ctx context.Context, inc *session.Incarnation, next int) error {
	own, data := t.own, strconv.AppendInt(nil, int64(next), 10)
	var op any
	switch {
	case next == own.count:
		return nil
	case own.path == "":
		own = openTasks{path: session.ChildPath(t.dir, session.ProtectedName(session.NewGUID(), "tasks")), version: -1}
		create := &zk.CreateRequest{Path: own.path, Data: data, Acl: t.m.Config.ACL, Flags: zk.FlagEphemeral}
		if t.keep {
			create.Flags = zk.FlagPersistent
		}
		op = create
		if err := inc.Vet(ctx, session.Dir{Path: t.dir}); err != nil {
			return err
		}
	case next == 0:
		op = &zk.DeleteRequest{Path: own.path, Version: own.version}
	default:
		op = &zk.SetDataRequest{Path: own.path, Data: data, Version: own.version}
	}
	// An attempt may have been applied, or may be yet: one at most, as each expects the
	// same version.
	doubt := false
	for {
		err := t.commit(ctx, inc, op)
		unknown := session.OutcomeOf(err) == session.Unknown
		doubt = doubt || unknown
		if doubt && err != nil && !errors.Is(err, session.ErrEnded) {
			switch written, e := t.look(ctx, inc, own, data, err); {
			case written || e != nil:
				err = e
			case unknown:
				continue
			}
		}
		if _, ok := op.(*zk.CreateRequest); ok && session.IsNoNode(err) {
			if err = inc.MakeDir(ctx, session.Dir{Path: t.dir}); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		break
	}
	own.count, own.version = next, own.version+1
	if next == 0 {
		own = openTasks{}
	}
	t.setOwn(inc, own)
	return nil
}

// look finds out whether data was written to our own znode, where the receipt does not
// tell, as somebody has deleted it or the servers do not show it. Nobody but us writes
// the znode for more tasks. That another process has left the same number there, by
// ending tasks of ours at the instant at which our reply was lost, cannot be told.
//
// Where the znode is not shown either nobody can tell: then it is err, and what was made
// is deleted.
func (t *Tally) look(ctx context.Context, inc *session.Incarnation, own openTasks, data []byte, err error) (written bool, _ error) {
	var found []byte
	var stat *zk.Stat
	read := func(inc *session.Incarnation) (e error) {
		found, stat, e = inc.GetFresh(ctx, own.path)
		return e
	}
	var e error
	if t.keep {
		e = t.m.During(ctx, read)
	} else {
		e = read(inc)
	}
	switch made := own.version < 0; {
	case errors.Is(e, session.ErrEnded):
		return false, e
	case session.IsNoNode(e) && made:
		return false, nil
	case session.IsNoNode(e) && string(data) == "0":
		return true, nil // it was deleted, by whomever
	case session.IsNoNode(e):
		return false, e
	case e == nil && made:
		return true, nil // somebody may have ended a part of it since, which the next write tells
	case e == nil && stat.Version == own.version:
		return false, nil
	case e == nil && stat.Version == own.version+1 && string(found) == string(data):
		return true, nil
	case made:
		inc.Remove(own.path)
	}
	return false, err
}

// commit applies a change of our own znode exactly once. It is ErrEnded if the
// session, and the znode with it, ended first.
func (t *Tally) commit(ctx context.Context, inc *session.Incarnation, op any) error {
	if t.keep {
		_, err := txn.Across(ctx, t.m, t.dir+"-receipts", []any{op})
		return err
	}
	_, err := txn.Within(ctx, inc, t.dir, []any{op})
	if errors.Is(err, session.ErrLost) {
		err = session.ErrEnded
	}
	return err
}

// readOwn reads our own znode again.
func (t *Tally) readOwn(ctx context.Context, inc *session.Incarnation) error {
	if t.own.path == "" {
		return nil
	}
	as, err := readTasks(ctx, inc, []string{t.own.path})
	if err == nil {
		t.setOwn(inc, append(as, openTasks{})[0])
	}
	return err
}

// reach applies those changes of a batch for which there are enough open tasks
// anywhere, or, if there are none for any of them, fails them. When somebody
// else was quicker it does nothing. Steps 4 and 5.
func (t *Tally) reach(ctx context.Context, inc *session.Incarnation, batch *[]*change) error {
	all, err := t.read(ctx, inc)
	if err != nil {
		return err
	}
	others := slices.Clone(all)
	if t.own.path != "" {
		var own openTasks
		others = slices.DeleteFunc(others, func(a openTasks) bool {
			if a.path == t.own.path {
				own = a
			}
			return a.path == t.own.path
		})
		t.setOwn(inc, own)
	}
	// Those that add stand first, then whoever ends the fewest.
	fits, total := []*change(nil), sumOf(all)
	left := slices.Clone(*batch)
	slices.SortStableFunc(left, func(a, b *change) int { return cmp.Compare(b.delta, a.delta) })
	sum := 0
	left = slices.DeleteFunc(left, func(c *change) bool {
		ok := total+sum+c.delta >= 0
		if ok {
			sum += c.delta
			fits = append(fits, c)
		}
		return ok
	})
	switch {
	case len(fits) == 0:
		// The znodes were read one after another, and may never have stood
		// like that together. If they still stand as they were first read,
		// they did so when the last of them was read.
		again, err := t.readAgain(ctx, inc)
		if err != nil || !slices.Equal(all, again) {
			return err
		}
		var rest []*change
		*batch, rest = t.curtail(left, total)
		t.finish(rest, ErrNegativeCounter)
		return nil
	case t.own.count+sum >= 0:
		err = t.writeOwn(ctx, inc, t.own.count+sum)
	default:
		var ended int
		ended, err = t.writeOthers(ctx, inc, others, -sum)
		if err == nil && ended < -sum {
			var rest []*change
			fits, rest = t.divide(fits, ended)
			left = append(rest, left...)
		}
	}
	switch {
	case err == nil:
		t.finish(fits, nil)
		*batch = left
	case session.IsNoNode(err), session.IsBadVersion(err):
		return nil
	}
	return err
}

// curtail divides changes that each end more than the total of the open tasks.
// Those that are owed are brought down to what is left of it, and returned first
// unless that is nothing: of what an Add that failed has added others have ended
// the rest, and there is nobody to be told so.
func (t *Tally) curtail(cs []*change, total int) (owed, rest []*change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range cs {
		if !c.owed || total == 0 {
			rest = append(rest, c)
			continue
		}
		c.delta, total = -total, 0
		owed = append(owed, c)
	}
	return owed, rest
}

// divide divides changes of which one transaction has ended as many tasks as it could, and returns those
// that are made. A change that ends the tasks of more sessions than fit into a transaction is made in
// parts: what is left of it is in rest.
func (t *Tally) divide(cs []*change, ended int) (made, rest []*change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range cs { // those that add are ahead of those that end
		k := min(-c.delta, ended)
		if ended -= k; k == -c.delta {
			made = append(made, c)
			continue
		}
		c.delta += k
		rest = append(rest, c)
	}
	return made, rest
}

// writeOthers ends n open tasks: all of ours, and the rest among others. It ends fewer, and returns how
// many, if they are of so many sessions that they do not fit into one transaction.
func (t *Tally) writeOthers(ctx context.Context, inc *session.Incarnation, others []openTasks, n int) (ended int, err error) {
	var ops []any
	size := 0
	end := func(a openTasks) {
		k := min(n, a.count)
		n -= k
		ended += k
		size += t.m.SizeOf(a.path, nil) + 32
		if k == a.count {
			ops = append(ops, &zk.DeleteRequest{Path: a.path, Version: a.version})
			return
		}
		data := strconv.AppendInt(nil, int64(a.count-k), 10)
		ops = append(ops, &zk.SetDataRequest{Path: a.path, Data: data, Version: a.version})
	}
	if t.own.path != "" {
		end(t.own)
	}
	// Processes that begin with different ones are less in each other's way.
	rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	for _, a := range others {
		if n > 0 && size < session.MaxPacket/2 {
			end(a)
		}
	}
	// This is about tasks that outlive our session, so unlike a change of our
	// own znode it must be carried through. An attempt that failed cannot come
	// late: no znode has the same path and version twice.
	if _, err := txn.Across(ctx, t.m, t.dir+"-receipts", ops); err != nil {
		return 0, err
	}
	t.setOwn(inc, openTasks{})
	return ended, nil
}

// read reads all znodes with open tasks, ordered by path.
func (t *Tally) read(ctx context.Context, inc *session.Incarnation) ([]openTasks, error) {
	return t.readFrom(ctx, inc, inc.ChildrenFresh)
}

// readAgain is read where the server has caught up already.
func (t *Tally) readAgain(ctx context.Context, inc *session.Incarnation) ([]openTasks, error) {
	return t.readFrom(ctx, inc, inc.Children)
}

func (t *Tally) readFrom(ctx context.Context, inc *session.Incarnation, list func(context.Context, string) ([]string, *zk.Stat, error)) ([]openTasks, error) {
	names, _, err := list(ctx, t.dir)
	if session.IsNoNode(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return readTasks(ctx, inc, t.pathsOf(names))
}

// readTasks reads those znodes that are still there.
func readTasks(ctx context.Context, inc *session.Incarnation, paths []string) ([]openTasks, error) {
	nodes, err := inc.GetAll(ctx, paths)
	if err != nil {
		return nil, err
	}
	var as []openTasks
	for i, node := range nodes {
		if node.Stat == nil {
			continue
		}
		n, err := strconv.ParseUint(string(node.Data), 10, min(62, strconv.IntSize-1))
		if err != nil || n == 0 {
			return nil, session.Invalid("znode %s holds %.32q, which is no number of tasks", inc.Manager.Bare(paths[i]), node.Data)
		}
		as = append(as, openTasks{paths[i], int(n), node.Stat.Version})
	}
	return as, nil
}

func sumOf(as []openTasks) int {
	n := 0
	for _, a := range as {
		n += a.count
	}
	return n
}

// pathsOf returns the paths, in their order, of those of the children that are
// znodes with open tasks.
func (t *Tally) pathsOf(names []string) []string {
	var paths []string
	for _, name := range names {
		if strings.HasPrefix(name, "_c_") && strings.HasSuffix(name, "-tasks") {
			paths = append(paths, session.ChildPath(t.dir, name))
		}
	}
	slices.Sort(paths)
	return paths
}
