// Package tally implements the counter of a WaitGroup: it adds tasks, ends tasks, and waits
// until no task is open. Package double implements the double barrier of a WaitGroup.
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

// ErrNegativeCounter is the error of a change that would make a WaitGroup's counter
// negative.
var ErrNegativeCounter = errors.New("negative counter")

// Of returns the tally of `dir`, a path as the server knows it. If `keep` is true, tasks
// outlive their session. The map `all` has the tallies of the Session. A tally exists while a
// WaitGroup uses it, and while rememberLocked keeps it.
func Of(all *shared.WeakMap[string, Tally], m *session.Manager, dir string, keep bool) *Tally {
	key := dir
	if keep {
		key = "keep " + dir
	}
	return all.Of(key, &Tally{m: m, dir: dir, keep: keep, era: 1})
}

// A Tally is the counter of one path as one Session sees it. All WaitGroups of that
// Session with the same path share the Tally.
//
// How changes are applied:
//
//  1. A caller puts its change into the queue. If no goroutine is applying changes, one starts.
//  2. The goroutine takes all changes from the queue. Their callers wait at the same time, so every
//     order is correct.
//  3. If this process has enough open tasks, one request applies all these changes: it creates,
//     writes or deletes the znode of this process.
//  4. Otherwise, one transaction writes or deletes the znodes of other sessions and that of this
//     process. It checks the version of each znode.
//  5. A change fails if all sessions together have too few open tasks.
//  6. If the queue has new changes, the goroutine continues with step 2.
type Tally struct {
	m    *session.Manager
	dir  string // the full path on the server
	keep bool   // tasks outlive their session

	mu    sync.Mutex
	queue []*change            // changes that wait for the goroutine; guarded by mu
	busy  bool                 // whether a goroutine is applying changes; guarded by mu
	lost  int                  // number of tasks that ended with their session, and for which `Done` was not called yet; guarded by mu
	why   error                // the reason why the last session with such tasks ended; guarded by mu
	era   int                  // begins at 1; grows when tasks end with their session; guarded by mu
	own   openTasks            // the znode of this process; written with mu held, by the goroutine that applies changes or, if none runs, by `submit`
	inc   *session.Incarnation // the session of the znode `own`; nil without a znode, or if `keep` is true; written like `own`
}

// The type `change` is one call of `Add` or `Done`.
type change struct {
	delta  int
	done   chan struct{} // closed when `err` is set
	err    error
	repaid int  // number of tasks of the change that ended with their session; written like Tally.own
	insist bool // whether the change ends a task, and so is tried again if the servers refuse it
	owed   bool // try again after any error but ErrNegativeCounter, because no caller will; guarded by Tally.mu
	tries  int  // number of refusals; guarded by Tally.mu
	era    int  // the era in which its tasks were added, or 0 if that is unknown; guarded by Tally.mu
}

// An openTasks is the state of a znode that has open tasks.
type openTasks struct {
	path    string // "" if there is no znode
	count   int
	version int32
}

// Add adds `delta`, which is not 0, to the counter. If ctx ends first, a positive `delta` is not
// added, or it is taken back. A negative `delta` may be applied. The result `era` is for `Done`.
func (t *Tally) Add(ctx context.Context, delta int) (era int, err error) {
	c := t.submit(&change{delta: delta})
	select {
	case <-c.done:
		return c.era, c.err
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.queue, c); i >= 0 {
		t.queue = slices.Delete(t.queue, i, i+1)
		t.unpayLocked(c)
	} else if delta > 0 { // do not reopen ended tasks, because a call of Wait may have returned
		_, stay := t.m.BeforeClose()
		t.m.Spawn(func() {
			defer stay()
			if <-c.done; c.err == nil {
				t.submit(&change{delta: -delta, owed: true, era: c.era})
			}
		})
	}
	return 0, session.CtxErr(ctx)
}

// Done ends one task. If that takes long, or the servers refuse, Done continues in the background.
// If `heard` is false, the caller will not call Done again, and Done also continues after any error
// but ErrNegativeCounter. The argument `era` is the result of the Add of this task, or 0. If it is
// 0, the task may be one that ended with its session, and Done ends such a task first.
func (t *Tally) Done(heard bool, era int) error {
	c := t.submit(&change{delta: -1, insist: true, owed: !heard, era: era})
	select {
	case <-c.done:
	case <-t.m.Outage(): // usually the client reconnects at once, and Done can still return the result
	case <-time.After(session.ReleaseTime):
	}
	session.AwaitFor(c.done, session.Grace)
	t.mu.Lock()
	defer t.mu.Unlock()
	if session.IsClosed(c.done) {
		return c.err
	}
	c.owed = true // from now on, the change is tried again after a refusal
	return nil
}

// Wait waits until no task is open.
func (t *Tally) Wait(ctx context.Context) error {
	t.m.Waiters.Add(1)
	defer t.m.Waiters.Add(-1)
	return t.m.During(ctx, func(inc *session.Incarnation) error {
		// The first listing must be fresh: a server that lags may not show the tasks yet.
		for list := inc.NamesFresh; ; list = inc.Names {
			names, err := list(ctx, t.dir)
			paths := t.pathsOf(names) // all znodes with open tasks at one instant
			if err == nil {
				_, err = readTasks(ctx, inc, paths) // finds the znode of another program, which may stay forever
			}
			if err != nil || len(paths) == 0 {
				return err
			}
			// The client gets one event for each znode, and none for a write that leaves tasks open.
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
		as, err := t.read(ctx, inc, inc.NamesFresh)
		for try := 0; err == nil && len(as) > 0 && try < tries; try++ {
			last := as
			if as, err = t.read(ctx, inc, inc.Names); slices.Equal(as, last) {
				break
			}
		}
		total = 0
		for _, a := range as {
			total += a.count
		}
		return err
	})
	return total, err
}

// The method `submit` starts the change `c` (step 1).
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
		// Close waits until the change is applied: `Done` can return before, and a persistent task, or a
		// task of another session, does not end with this session.
		_, stay := t.m.BeforeClose()
		t.m.Spawn(func() { defer stay(); t.run() })
	}
}

// postponeLocked reports whether the caller of `c` does not get the result `err`: then `c` returns to
// the queue after a delay, or as soon as the Session begins to close.
func (t *Tally) postponeLocked(c *change, err error) bool {
	again := c.owed || c.insist && session.OutcomeOf(err) == session.Answered
	if err == nil || errors.Is(err, ErrNegativeCounter) || session.IsClosed(t.m.Over) || !again {
		return false
	}
	c.tries++
	pace := t.m.Config.Retry
	pace.Jitter = 0 // changes that were refused together are tried again together
	wait, first, tasks := pace.Delay(c.tries), c.tries == 1, -c.delta
	leaving, stay := t.m.BeforeClose()
	if session.IsClosed(leaving) {
		leaving = nil // the attempt at the beginning of Close has failed, so wait for the whole delay
	}
	t.m.Spawn(func() {
		defer stay() // Close waits for the next attempt, within its usual limit
		if first {   // without mu: the log may call the WaitGroup
			t.m.Log.Error("zsync: cannot end tasks; the Session keeps trying", "path", t.m.Bare(t.dir), "tasks", tasks, "err", err)
		}
		select {
		case <-time.After(wait):
		case <-leaving:
		case <-t.m.Over:
			return
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if leaving != nil && session.IsClosed(leaving) {
			c.tries = 1 // little time is left, so begin with short delays again
		}
		t.queueLocked(c)
	})
	return true
}

// The method `finish` reports the result `err` to the callers of the changes `cs`.
func (t *Tally) finish(cs []*change, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range cs {
		if t.postponeLocked(c, err) {
			continue
		}
		switch c.err = err; {
		case err != nil && !c.owed: // an owed change has no caller that ends its tasks later
			t.unpayLocked(c)
		case err == nil && c.repaid > 0:
			c.err = t.why
		case err == nil && c.delta > 0:
			c.era = t.era
		}
		close(c.done)
	}
}

// forfeitLocked moves the open tasks of t.own to t.lost. Their session has ended, and the
// tasks have ended with it.
func (t *Tally) forfeitLocked() {
	t.lost += t.own.count
	t.era++
	t.why = t.inc.Loss()
	t.own, t.inc = openTasks{}, nil
	t.rememberLocked()
}

// rememberLocked keeps the tally in memory while this process has open or lost tasks: the WaitGroup
// can be freed before the program calls Done for them, and this Done must not end another task.
func (t *Tally) rememberLocked() {
	switch {
	case t.keep:
	case t.own.count+t.lost > 0:
		t.m.Attached.Store(t, nil) // with this reference, t is not freed
	default:
		t.m.Attached.Delete(t)
	}
}

// repayLocked reduces the change `c` by the lost tasks. No task of the present era is lost.
func (t *Tally) repayLocked(c *change) {
	if c.delta < 0 && t.lost > 0 && c.era != t.era {
		n := min(t.lost, -c.delta)
		t.lost -= n
		c.delta += n
		c.repaid += n
		t.rememberLocked()
	}
}

// unpayLocked undoes repayLocked if the caller of `c` gets an error, and so will end the same tasks.
func (t *Tally) unpayLocked(c *change) {
	t.lost += c.repaid
	c.repaid = 0
	t.rememberLocked()
}

// setOwn records `a` as the new state of the znode of this process.
func (t *Tally) setOwn(inc *session.Incarnation, a openTasks) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.own, t.inc = a, inc; t.keep || a.path == "" {
		t.inc = nil
	}
	t.rememberLocked()
}

// The method `run` applies changes until the queue is empty.
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

// The method `apply` applies the changes of a batch and reports their results. After an error, the
// changes without a result stay in the batch. If the session ends during a write of the znode of
// this process, the outcome does not matter: the znode ends with the session.
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
		fits, left, others := *batch, []*change(nil), []openTasks(nil)
		var err error
		if t.own.count+sumOf(fits) < 0 { // Steps 4 and 5.
			if fits, left, others, err = t.fit(ctx, inc, batch); err != nil {
				return err
			}
		}
		sum := sumOf(fits)
		if t.own.count+sum >= 0 { // Step 3.
			err = t.writeOwn(ctx, inc, t.own.count+sum)
		} else {
			var ended int
			if ended, err = t.writeOthers(ctx, inc, others, -sum); err == nil && ended < -sum {
				// The transaction had no room for more znodes. Additions come first.
				fits = slices.DeleteFunc(fits, func(c *change) bool {
					k := min(-c.delta, ended)
					if ended -= k; k == -c.delta {
						return false
					}
					c.delta += k
					left = append(left, c)
					return true
				})
			}
		}
		switch {
		case err == nil:
			t.finish(fits, nil)
			*batch = left
		case !session.IsNoNode(err) && !session.IsBadVersion(err):
			return err
		case others == nil && t.own.path != "": // another process has ended tasks of this process
			as, err := readTasks(ctx, inc, []string{t.own.path})
			if err != nil {
				return err
			}
			t.setOwn(inc, append(as, openTasks{})[0])
		}
	}
	return nil
}

// The method `fit` returns the changes for which all sessions together have enough open tasks,
// the other changes, and the znodes of other sessions. If there are too few tasks even for one
// change, all changes fail, except for an owed change, whose caller gets no error: it is reduced to
// the open tasks, because other processes have ended the others.
func (t *Tally) fit(ctx context.Context, inc *session.Incarnation, batch *[]*change) (fits, left []*change, others []openTasks, err error) {
	all, err := t.read(ctx, inc, inc.NamesFresh)
	if err != nil {
		return nil, nil, nil, err
	}
	var own openTasks
	total := 0
	others = []openTasks{} // not nil
	for _, a := range all {
		if total += a.count; a.path == t.own.path {
			own = a
		} else {
			others = append(others, a)
		}
	}
	t.setOwn(inc, own)
	// Additions come first, then the changes that end the fewest tasks.
	slices.SortStableFunc(*batch, func(a, b *change) int { return cmp.Compare(b.delta, a.delta) })
	sum := total
	for _, c := range *batch {
		if sum+c.delta >= 0 {
			sum += c.delta
			fits = append(fits, c)
		} else {
			left = append(left, c)
		}
	}
	if len(fits) > 0 {
		return fits, left, others, nil
	}
	// The znodes were read one after another. Perhaps there was no instant at which all of them had
	// these numbers. If a second read finds the same numbers and versions, all znodes had them when
	// the first read ended.
	again, err := t.read(ctx, inc, inc.Names)
	if err != nil || !slices.Equal(all, again) {
		return nil, *batch, others, err
	}
	t.mu.Lock()
	left = slices.DeleteFunc(left, func(c *change) bool {
		owed := c.owed && total > 0
		if owed {
			c.delta, total = -total, 0
			fits = append(fits, c)
		}
		return owed
	})
	t.mu.Unlock()
	t.finish(left, ErrNegativeCounter)
	*batch = fits
	return fits, nil, others, nil
}

// writeOwn sets the number of open tasks of this process to `next`. It returns NoNode or
// BadVersion if another client has changed the znode.
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
		done, err := inc.RoomFor(ctx, op)
		defer done()
		if err = cmp.Or(err, inc.Vet(ctx, session.Dir{Path: t.dir})); err != nil {
			return err
		}
	case next == 0:
		op = &zk.DeleteRequest{Path: own.path, Version: own.version}
	default:
		op = &zk.SetDataRequest{Path: own.path, Data: data, Version: own.version}
	}
	// At most one attempt is applied, now or later: all attempts expect the same version.
	doubt := false
	for {
		err := t.commit(ctx, inc, op)
		unknown := errors.Is(err, txn.ErrUnknown)
		doubt = doubt || unknown
		if doubt && err != nil && !errors.Is(err, session.ErrEnded) {
			switch written, e := t.look(ctx, inc, own, data); {
			case written:
				err = nil
			case unknown && e == nil:
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

// The method `look` finds out whether the write of `data` to the znode of this process, whose
// state was `own`, was applied. Its caller has found that the log of the write was deleted or cannot
// be read. Other processes write this znode too, to end tasks of this process. If another process
// wrote the same number instead, `look` mistakes that write for this one. If it cannot read a znode
// that this write was to create, it also deletes the znode.
func (t *Tally) look(ctx context.Context, inc *session.Incarnation, own openTasks, data []byte) (written bool, err error) {
	var found []byte
	var stat *zk.Stat
	err = t.m.During(ctx, func(inc *session.Incarnation) (err error) {
		found, stat, err = inc.GetFresh(ctx, own.path)
		return err
	})
	made := own.version < 0
	switch {
	case err == nil: // if another process has ended some tasks of a new znode, the next write fails with BadVersion
		return made || stat.Version == own.version+1 && string(found) == string(data), nil
	case session.IsNoNode(err): // or another client deleted the znode
		return !made && string(data) == "0", nil
	case made:
		inc.Remove(own.path)
	}
	return false, err
}

// The method `commit` applies `op`, a write of the znode of this process, exactly once. It
// returns ErrEnded if the session ends first: the znode ends with the session.
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

// writeOthers ends `n` open tasks: all tasks of this process, and then tasks of the znodes
// in `others`. It returns the number of ended tasks. That number is less than `n` if the
// znodes do not fit into one transaction.
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
	// The order is random, because processes that start with different znodes collide less.
	dice.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	for _, a := range others {
		if n > 0 && size < session.MaxPacket/2 {
			end(a)
		}
	}
	// The tasks of other sessions outlive this session, so the transaction does, too. A failed attempt
	// cannot be applied late, because no znode has the same path and version twice.
	if _, err := txn.Across(ctx, t.m, t.dir+"-receipts", ops); err != nil {
		return 0, err
	}
	t.setOwn(inc, openTasks{})
	return ended, nil
}

// The method `read` reads all znodes with open tasks, ordered by path. After a first read with
// inc.NamesFresh, the server has caught up.
func (t *Tally) read(ctx context.Context, inc *session.Incarnation, list func(context.Context, string) ([]string, error)) ([]openTasks, error) {
	names, err := list(ctx, t.dir)
	if err != nil {
		return nil, err
	}
	return readTasks(ctx, inc, t.pathsOf(names))
}

// readTasks reads the znodes at `paths`. It leaves out znodes that do not exist.
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

func sumOf(cs []*change) (n int) {
	for _, c := range cs {
		n += c.delta
	}
	return n
}

// pathsOf returns the sorted paths of the children that are znodes with open tasks.
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
