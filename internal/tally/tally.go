// Package tally is the counter of a WaitGroup.
package tally

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/dice"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/shared"
	"github.com/zsync/zsync/internal/txn"
)

// ErrNegativeCounter means a WaitGroup's counter would have become negative.
var ErrNegativeCounter = errors.New("negative counter")

// Tallies holds the tallies of one Session: one for each path that is in use or owes a
// change. The zero value is ready for use.
type Tallies struct {
	m shared.WeakMap[key, Tally]
}

// Of returns the tally of dir, the path as the server knows it. With keep, tasks
// outlive their session.
func (ts *Tallies) Of(m *session.Manager, dir string, keep bool) *Tally {
	return ts.m.Of(key{dir, keep}, &Tally{m: m, all: ts, dir: dir, keep: keep})
}

// Kept returns the number of tallies that are kept because they owe a change.
func (ts *Tallies) Kept() int { return ts.m.Kept() }

// A Tally is the counter of one path as one process sees it. All WaitGroups
// of a Session with the same path share it.
//
// How changes are applied:
//
//  1. A caller puts its change into the queue. If no goroutine applies changes now, one
//     starts.
//  2. That goroutine takes the whole queue. The changes in it are all under way at once,
//     so any order is right; additions come first.
//  3. If this process has enough open tasks, its own znode is created,
//     written or deleted, once for all of them.
//  4. Otherwise the goroutine reads the znodes of other sessions, and writes or deletes
//     them in one transaction with ours. The transaction checks the version of each.
//  5. A change fails if there are too few tasks anywhere.
//  6. If the queue has filled since, go to 2.
type Tally struct {
	m    *session.Manager
	all  *Tallies // the tallies of the Session
	dir  string   // the path, as the server knows it
	keep bool     // tasks outlive their session

	mu    sync.Mutex
	queue []*change            // not taken yet; guarded by mu
	busy  bool                 // a goroutine applies changes; guarded by mu
	lost  int                  // tasks that ended with a session and still expect their Done; guarded by mu
	why   error                // the end of the last such session; guarded by mu
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
	repaid    int  // number of its tasks that ended with their session; written with Tally.mu held, as Tally.own
	abandoned bool // its caller has left; guarded by Tally.mu
	insist    bool // a refusal by the servers is tried again: the change releases a task
	owed      bool // the caller has returned, so a refusal is tried again; guarded by Tally.mu
	tries     int  // number of refusals; guarded by Tally.mu
}

// An openTasks is a znode with a number of open tasks.
type openTasks struct {
	path    string // "" if there is none
	count   int
	version int32
}

// Add adds delta, which is not 0, to the counter. If ctx ends first, delta is not added, or
// is taken back.
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

// Done ends one task; after a while, in the background. heard is false if the caller will
// not call Done again after an error. Then Done also continues in the background if the
// servers refuse or another program's znode is in the way.
func (t *Tally) Done(heard bool) error {
	c := t.submit(&change{delta: -1, insist: true, owed: !heard})
	select {
	case <-c.done:
	case <-t.m.Outage(): // usually the connection is replaced at once, and Done can still return the result
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
		// A server that lags might not have the tasks yet.
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
			// A znode of such a name with other data is from another program, and may stay forever.
			// Wait must return an error, as Count does, and not wait silently.
			if _, err := readTasks(ctx, inc, paths); err != nil {
				return err
			}
			// Waiting for one znode after the other costs an event each, and none for changes of the
			// numbers before zero.
			for _, path := range paths {
				if err := inc.AwaitGone(ctx, path); err != nil {
					return err
				}
			}
		}
	})
}

// Count returns the number of open tasks.
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
		// A Done may have returned before its task has ended, in several round trips. A Close
		// right after it would end no persistent task and no task of another session, so Close
		// waits for the change.
		_, stay := t.m.BeforeClose()
		t.m.Spawn(func() { defer stay(); t.run() })
	}
}

// abandon handles the end of a change's ctx.
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
	default: // finish handles abandoned changes
	}
}

// takeBackLocked undoes a change whose caller got an error. Ended tasks stay ended, because
// a Wait may have returned.
func (t *Tally) takeBackLocked(c *change) {
	if c.err == nil && c.delta > 0 {
		t.queueLocked(&change{delta: -c.delta, owed: true, done: make(chan struct{})})
	}
}

// owe returns the result of c. If there is none yet, it returns nil, and c is tried again
// after refusals.
func (t *Tally) owe(c *change) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if session.IsClosed(c.done) {
		return c.err
	}
	c.owed = true
	return nil
}

// postponeLocked queues the owed changes of cs that were refused, for later or for the
// moment before Close, and returns the other changes. A Session that has ended owes
// nothing.
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
			t.m.Log.Error("zsync: cannot end tasks; the Session keeps trying", "path", t.m.Bare(t.dir), "tasks", -c.delta, "err", err)
		}
		owed = append(owed, c)
		wait = max(wait, t.m.Config.Retry.Delay(c.tries))
	}
	if len(owed) > 0 {
		leaving, stay := t.m.BeforeClose()
		if session.IsClosed(leaving) {
			leaving = nil // it was tried at once when Close began
		}
		t.m.Spawn(func() {
			defer stay()
			// Close waits for the next attempt, within its usual limit. If the limit ends at the
			// same instant, the attempt is still made.
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

// finish reports the result to the callers of cs.
func (t *Tally) finish(cs []*change, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.postponeLocked(cs, err) {
		switch c.err = err; {
		case err != nil && !c.owed: // only owed changes end again without a caller
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

// forfeitLocked handles the end of own's session.
func (t *Tally) forfeitLocked() {
	t.lost += t.own.count
	t.why = t.inc.Loss()
	t.own, t.inc = openTasks{}, nil
	t.rememberLocked()
}

// rememberLocked keeps the tally while tasks belong, or belonged, to a session of this
// process. Their Done may come when every WaitGroup that added them is garbage, and must
// end no other task in their place. Persistent tasks belong to no session.
func (t *Tally) rememberLocked() {
	t.all.m.Keep(key{t.dir, t.keep}, t, !t.keep && t.own.count+t.lost > 0)
}

// repayLocked subtracts from c the tasks that have ended already.
func (t *Tally) repayLocked(c *change) {
	if c.delta < 0 && t.lost > 0 {
		n := min(t.lost, -c.delta)
		t.lost -= n
		c.delta += n
		c.repaid += n
		t.rememberLocked()
	}
}

// unpayLocked undoes repayLocked for a change whose caller got an error: no part of it was
// applied, so its tasks are ended another time.
func (t *Tally) unpayLocked(c *change) {
	t.lost += c.repaid
	c.repaid = 0
	t.rememberLocked()
}

// setOwn records the new state of own's znode.
func (t *Tally) setOwn(inc *session.Incarnation, a openTasks) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.own, t.inc = a, inc; t.keep || a.path == "" {
		t.inc = nil
	}
	t.rememberLocked()
}

// run applies the changes in the queue until it is empty.
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

// apply applies and finishes the changes of a batch. Failed changes stay in the batch.
//
// If the session ends during a write of its own znode, the outcome of the write does not
// matter: the znode is deleted with the session. Additions are applied again in the next
// session, and ended tasks have ended.
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
				// Another process has ended tasks of ours.
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

// writeOwn makes next the number of our own open tasks. It returns NoNode or BadVersion if
// another client has written the znode.
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
	// At most one of the attempts is applied, now or later, because each expects the same
	// version.
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

// look finds out whether data was written to our own znode, if the receipt was deleted or
// cannot be read. Only this process writes the znode for more tasks. If another process
// left the same number there, by ending tasks of ours when our reply was lost, look cannot
// notice that.
//
// If the znode cannot be read either, the outcome is unknown: look returns err and deletes
// the znode.
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
		return true, nil // another client deleted it
	case session.IsNoNode(e):
		return false, e
	case e == nil && made:
		return true, nil // another process may have ended a part of it since; the next write finds that
	case e == nil && stat.Version == own.version:
		return false, nil
	case e == nil && stat.Version == own.version+1 && string(found) == string(data):
		return true, nil
	case made:
		inc.Remove(own.path)
	}
	return false, err
}

// commit applies a change of our own znode exactly once. It returns ErrEnded if the
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

// reach applies the changes of a batch for which there are enough open tasks anywhere. If
// there are none for any change, it fails them. If another process was quicker, it does
// nothing. Steps 4 and 5.
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
	// Additions come first, then the changes that end the fewest tasks.
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
		// The znodes were read one after another, and may never have been in this state together.
		// If a second read finds them unchanged, they were in this state when the first read
		// ended.
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

// curtail divides changes that each end more than the total of the open tasks. It reduces
// owed changes to the remaining total, and returns them first if any total remains: other
// processes have ended the rest of a failed Add, and there is no caller for an error.
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
	// Processes that start with different znodes collide less often.
	dice.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	for _, a := range others {
		if n > 0 && size < session.MaxPacket/2 {
			end(a)
		}
	}
	// These tasks outlive our session, so unlike a change of our own znode, this change must
	// be completed. A failed attempt cannot be applied late: no znode has the same path and
	// version twice.
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

// readAgain is read for a server that has caught up already.
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

// readTasks reads the znodes that still exist.
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

// pathsOf returns, in order, the paths of the children that are znodes with open tasks.
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
