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
	"github.com/zsync/zsync/internal/znodes"
)

// ErrNegativeCounter is the error of a change that would make a WaitGroup's counter
// negative.
var ErrNegativeCounter = errors.New("negative counter")

// Of returns the tally of `dir`, a path as the server knows it. If `keep` is true, tasks
// outlive their session. The map `all` has the tallies of the Session. A tally exists while a
// WaitGroup uses it, and while this process has open or lost tasks.
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
//     order is correct. A change for tasks that ended with their session is over.
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
	queue []*change // changes that wait for the goroutine; guarded by mu
	busy  bool      // whether a goroutine is applying changes; guarded by mu

	// Only the goroutine that applies changes uses the following fields.
	own  openTasks            // the znode of this process
	inc  *session.Incarnation // the session of the znode `own`, or nil; always nil if `keep` is true
	lost int                  // number of tasks that ended with their session, and for which `Done` was not called yet
	why  error                // the reason why the last session with such tasks ended
	era  int                  // begins at 1; grows when tasks end with their session
}

// The type `change` is one call of `Add` or `Done`.
type change struct {
	delta  int
	done   chan struct{} // closed when `err` is set
	err    error
	repaid int  // number of tasks of the change that ended with their session
	owed   bool // `settle` repeats it, because no caller will
	era    int  // the era in which its tasks were added, or 0 if that is unknown
}

// An openTasks is the state of a znode that has open tasks.
type openTasks struct {
	path    string // "" if there is no znode
	count   int
	version int32
}

// The method `set` returns the operation that changes the number of open tasks in the znode to n.
func (a openTasks) set(n int) any {
	if n == 0 {
		return &zk.DeleteRequest{Path: a.path, Version: a.version}
	}
	return &zk.SetDataRequest{Path: a.path, Data: []byte(strconv.Itoa(n)), Version: a.version}
}

// Add adds `delta`, which is not 0, to the counter. If ctx ends first, a positive `delta` is not
// added, or it is taken back. A negative `delta` may be applied. The result `era` is for `End`.
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
	} else if delta > 0 { // do not reopen ended tasks, because a call of Wait may have returned
		_, stay := t.m.BeforeClose()
		t.m.Spawn(func() {
			defer stay()
			if <-c.done; c.err == nil {
				t.End(delta, c.era)
			}
		})
	}
	return 0, session.CtxErr(ctx)
}

// Done ends one task. If that takes long, or the servers refuse, Done continues in the background. The
// task may be one that ended with its session, and Done ends such a task first.
func (t *Tally) Done() error {
	c := t.submit(&change{delta: -1})
	select {
	case <-c.done:
	case <-t.m.Outage(): // usually the client reconnects at once, and Done can still return the result
	case <-time.After(session.ReleaseTime):
	}
	session.AwaitFor(c.done, session.Grace)
	if session.IsClosed(c.done) && (c.err == nil || session.OutcomeOf(c.err) != session.Answered) {
		return c.err
	}
	t.settle(c)
	return nil
}

// End ends n tasks in the background. The argument `era` is the result of the Add of these tasks.
func (t *Tally) End(n, era int) { t.settle(t.submit(&change{delta: -n, owed: true, era: era})) }

// The method `settle` waits in the background for the result of `c`. It repeats `c` after each error but
// ErrNegativeCounter: after a delay, and as soon as the Session begins to close.
func (t *Tally) settle(c *change) {
	leaving, stay := t.m.BeforeClose()
	t.m.Spawn(func() {
		defer stay() // Close waits for the next attempt, within its usual limit
		pace := t.m.Config.Retry
		pace.Jitter = 0 // changes that were refused together are tried again together
		for try := 1; ; try++ {
			<-c.done
			if err := c.err; err == nil || errors.Is(err, ErrNegativeCounter) || errors.Is(err, session.ErrLost) || session.IsClosed(t.m.Over) {
				if err != nil {
					t.m.Log.Warn("zsync: tasks were not ended", "path", t.m.Bare(t.dir), "err", err)
				}
				return
			}
			if try == 1 {
				t.m.Log.Error("zsync: cannot end tasks; the Session keeps trying", "path", t.m.Bare(t.dir), "tasks", -c.delta, "err", c.err)
			}
			select {
			case <-time.After(pace.Delay(try)):
			case <-leaving:
				leaving, try = nil, 1 // little time is left, so begin with short delays again
			case <-t.m.Over:
				return
			}
			c.owed = true
			t.submit(c)
		}
	})
}

// Wait waits until no task is open.
func (t *Tally) Wait(ctx context.Context, inc *session.Incarnation) error {
	// The first listing must be fresh: a server that lags may not show the tasks yet.
	for list := inc.NamesFresh; ; list = inc.Names {
		as, listed, err := t.read(ctx, inc, list)
		if err != nil || listed == 0 {
			return err
		}
		// The client gets one event for each znode, and none for a write that leaves tasks open.
		for _, a := range as {
			if err := inc.AwaitGone(ctx, a.path); err != nil {
				return err
			}
		}
	}
}

// Count returns the number of open tasks.
func (t *Tally) Count(ctx context.Context, inc *session.Incarnation) (total int, err error) {
	const tries = 8
	list, last := inc.NamesFresh, []openTasks(nil)
	for range 1 + tries {
		as, _, err := t.read(ctx, inc, list)
		if err != nil {
			return 0, err
		}
		total = 0
		for _, a := range as {
			total += a.count
		}
		if slices.Equal(as, last) {
			break
		}
		list, last = inc.Names, as
	}
	return total, nil
}

// The method `submit` performs step 1 for the change `c`.
func (t *Tally) submit(c *change) *change {
	c.done = make(chan struct{})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue = append(t.queue, c)
	if !t.busy {
		t.busy = true
		// Close waits until the change is applied: `Done` can return before, and a persistent task, or a
		// task of another session, does not end with this session.
		_, stay := t.m.BeforeClose()
		t.m.Spawn(func() { defer stay(); t.run() })
	}
	return c
}

// The method `run` applies changes until the queue is empty. If the session ends during a write of the
// znode of this process, the outcome does not matter: the znode ends with the session.
func (t *Tally) run() {
	var batch []*change
	for {
		if len(batch) == 0 {
			t.mu.Lock()
			batch, t.queue = t.queue, nil // Step 2.
			if t.busy = len(batch) > 0; !t.busy {
				// The WaitGroup can be freed before the program calls Done for tasks of this process that
				// are open or lost, and this Done must not end another task. So t stays in memory.
				if !t.keep && t.own.count+t.lost > 0 {
					t.m.Attached.Store(t, nil)
				} else {
					t.m.Attached.Delete(t)
				}
				t.mu.Unlock()
				return
			}
			t.mu.Unlock()
		}
		if batch = t.repay(batch); len(batch) == 0 {
			continue
		}
		inc, err := t.m.Incarnation(session.Finishing)
		if err == nil && (t.inc == nil || t.inc == inc) { // else t.inc has ended since
			batch, err = t.apply(inc, batch)
		}
		if err != nil && !errors.Is(err, session.ErrEnded) {
			t.finish(err, batch...)
			batch = nil
		}
	}
}

// The method `repay` ends the changes of a batch whose tasks have ended with their session, and returns
// the others. A change of which only some tasks are lost is reduced by these. No task of the present
// era is lost.
func (t *Tally) repay(batch []*change) []*change {
	if t.inc != nil && !t.inc.Alive() {
		if t.own.count > 0 {
			t.lost += t.own.count
			t.era++
			t.why = t.inc.Loss()
		}
		t.own, t.inc = openTasks{}, nil
	}
	return slices.DeleteFunc(batch, func(c *change) bool {
		if n := min(t.lost, -c.delta); n > 0 && c.era != t.era {
			t.lost -= n
			c.delta += n
			c.repaid += n
		}
		if c.delta == 0 {
			t.finish(nil, c)
		}
		return c.delta == 0
	})
}

// The method `finish` reports the result `err` to the callers of the changes `cs`.
func (t *Tally) finish(err error, cs ...*change) {
	for _, c := range cs {
		switch c.err = err; {
		case err == nil && c.repaid > 0:
			c.err = t.why
		case err == nil:
			c.era = t.era
		case !c.owed: // its caller gets an error, and so will end the same tasks
			t.lost += c.repaid
		}
		close(c.done)
	}
}

// The method `apply` performs steps 3 to 5 once, for some changes of a batch. It returns the changes
// without a result.
func (t *Tally) apply(inc *session.Incarnation, batch []*change) (left []*change, err error) {
	fits, others := batch, []openTasks(nil)
	if t.own.count+sumOf(batch) < 0 {
		if fits, left, others, err = t.fit(inc, batch); err != nil {
			return left, err
		}
	}
	short, err := t.write(inc, sumOf(fits), others)
	switch {
	case err == nil:
		for ; short > 0; fits = fits[:len(fits)-1] { // the transaction had no room for more znodes
			c := fits[len(fits)-1]
			open := min(short, -c.delta)
			short -= open
			c.delta = -open
			left = append(left, c)
		}
		t.finish(nil, fits...)
		return left, nil
	case session.IsNoNode(err), session.IsBadVersion(err):
		err = nil
		if others == nil && t.own.path != "" { // another process has ended tasks of this process
			var as []openTasks
			if as, err = readTasks(session.Finishing, inc, []string{t.own.path}); err == nil {
				t.own = append(as, openTasks{})[0]
			}
		}
	}
	return append(left, fits...), err
}

// The method `fit` returns the changes for which all sessions together have enough open tasks,
// the other changes, and the znodes of other sessions. If there are too few tasks even for one
// change, all changes fail, except for an owed change, whose caller gets no error: it is reduced to
// the open tasks, because other processes have ended the others.
func (t *Tally) fit(inc *session.Incarnation, batch []*change) (fits, left []*change, others []openTasks, err error) {
	all, _, err := t.read(session.Finishing, inc, inc.NamesFresh)
	if err != nil {
		return nil, batch, nil, err
	}
	var own openTasks
	total := 0
	for _, a := range all {
		if total += a.count; a.path == t.own.path {
			own = a
		} else {
			others = append(others, a)
		}
	}
	t.own = own
	// Additions come first, then the changes that end the fewest tasks.
	slices.SortStableFunc(batch, func(a, b *change) int { return cmp.Compare(b.delta, a.delta) })
	sum := total
	for _, c := range batch {
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
	again, _, err := t.read(session.Finishing, inc, inc.Names)
	if err != nil || !slices.Equal(all, again) {
		return nil, batch, others, err
	}
	if i := slices.IndexFunc(left, func(c *change) bool { return c.owed }); i >= 0 && total > 0 {
		left[i].delta = -total
		fits = append(fits, left[i])
		left = slices.Delete(left, i, i+1)
	}
	t.finish(ErrNegativeCounter, left...)
	return fits, nil, others, nil
}

// The method `write` adds `sum` to the number of open tasks, in one transaction, exactly once. If this
// process has too few tasks, it ends all of them, and tasks of the znodes in `others`. The result
// `short` is the number of tasks that stay open because their znodes do not fit into the transaction. If
// the error is NoNode or BadVersion, another client has changed a znode.
func (t *Tally) write(inc *session.Incarnation, sum int, others []openTasks) (short int, err error) {
	ctx := session.Finishing
	own, next := t.own, max(t.own.count+sum, 0)
	short = next - (own.count + sum)
	if next == own.count && short == 0 {
		return 0, nil
	}
	var ops []any
	switch {
	case own.path != "":
		ops = append(ops, own.set(next))
	case next > 0:
		own = openTasks{path: znodes.ChildPath(t.dir, znodes.ProtectedName(znodes.NewGUID(), "tasks")), version: -1}
		create := &zk.CreateRequest{Path: own.path, Data: []byte(strconv.Itoa(next)), Acl: t.m.Config.ACL, Flags: zk.FlagEphemeral}
		if t.keep {
			create.Flags = zk.FlagPersistent
		}
		ops = append(ops, create)
		done, err := znodes.RoomFor(ctx, inc, create)
		defer done()
		if err = cmp.Or(err, znodes.Vet(ctx, inc, znodes.Dir{Path: t.dir})); err != nil {
			return 0, err
		}
	}
	alone := short == 0 // the tasks of other sessions outlive this session; so does the transaction that ends them
	// The order is random, because processes that start with different znodes collide less.
	dice.Rand().Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	size := 0
	for _, a := range others {
		if short > 0 && size < znodes.MaxPacket/2 {
			k := min(short, a.count)
			short -= k
			size += znodes.SizeOf(t.m, a.path, nil) + 32
			ops = append(ops, a.set(a.count-k))
		}
	}
	// At most one attempt is applied, now or later: all attempts expect the same versions, and no znode
	// has the same path and version twice.
	for doubt := false; ; {
		if t.keep || !alone {
			_, err = txn.Across(ctx, t.m, t.dir+"-receipts", ops)
		} else if _, err = txn.Within(ctx, inc, t.dir, ops); errors.Is(err, session.ErrLost) {
			return 0, session.ErrEnded // the znode ends with the session
		}
		unknown := errors.Is(err, txn.ErrUnknown)
		if doubt = doubt || unknown; doubt && alone && err != nil && !errors.Is(err, session.ErrEnded) {
			switch written, e := t.look(inc, own, next); {
			case written:
				err = nil
			case unknown && e == nil:
				continue
			}
		}
		if err == nil {
			break
		}
		if own.version < 0 && session.IsNoNode(err) {
			if err = znodes.MakeDir(ctx, inc, znodes.Dir{Path: t.dir}); err == nil {
				continue
			}
		}
		return 0, err
	}
	t.own, t.inc = openTasks{}, nil
	if next > 0 {
		t.own = openTasks{own.path, next, own.version + 1}
		if !t.keep {
			t.inc = inc
		}
	}
	return short, nil
}

// The method `look` finds out whether the znode of this process, whose state was `own`, was changed to
// `next` tasks. Its caller has found that the log of the write was deleted or cannot be read. Other
// processes write this znode too, to end tasks of this process. If another process wrote the same
// number instead, `look` mistakes that write for this one. If it cannot read a znode that this write
// was to create, it also deletes the znode.
func (t *Tally) look(inc *session.Incarnation, own openTasks, next int) (written bool, err error) {
	var found []byte
	var stat *zk.Stat
	err = t.m.During(session.Finishing, func(inc *session.Incarnation) (err error) {
		found, stat, err = inc.GetFresh(session.Finishing, own.path)
		return err
	})
	made := own.version < 0
	switch {
	case err == nil: // if another process has ended some tasks of a new znode, the next write fails with BadVersion
		return made || stat.Version == own.version+1 && string(found) == strconv.Itoa(next), nil
	case session.IsNoNode(err): // or another client deleted the znode
		return !made && next == 0, nil
	case made:
		znodes.Remove(inc, own.path)
	}
	return false, err
}

// The method `read` reads all znodes with open tasks, ordered by path. It also returns how many such
// znodes the listing shows, which existed at one instant; some of these may be deleted by the time of
// the read. After a first read with inc.NamesFresh, the server has caught up.
func (t *Tally) read(ctx context.Context, inc *session.Incarnation, list func(context.Context, string) ([]string, error)) (as []openTasks, listed int, err error) {
	names, err := list(ctx, t.dir)
	if err != nil {
		return nil, 0, err
	}
	var paths []string
	for _, name := range names {
		if strings.HasPrefix(name, "_c_") && strings.HasSuffix(name, "-tasks") {
			paths = append(paths, znodes.ChildPath(t.dir, name))
		}
	}
	slices.Sort(paths)
	as, err = readTasks(ctx, inc, paths)
	return as, len(paths), err
}

// readTasks reads the znodes at `paths`. It leaves out znodes that do not exist.
func readTasks(ctx context.Context, inc *session.Incarnation, paths []string) ([]openTasks, error) {
	nodes, err := znodes.GetAll(ctx, inc, paths)
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
