package zsync

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/double"
	"github.com/zsync/zsync/internal/session"
)

// A WaitGroup waits for tasks to end, across processes: [WaitGroup.Add] says
// how many there are, [WaitGroup.Done] is called by whoever has ended one, in
// whichever process, and [WaitGroup.Wait] returns when none is open. With
// nothing added Wait returns at once.
//
// Its other face is a double barrier, with which parties begin and end a piece
// of work together: see [WaitGroup.Enter] and [WaitGroup.Leave]. The two faces
// do not affect each other, even on one path.
//
// Every change of the counter is applied exactly once, even if connections
// drop, and the counter never goes below zero. A Wait sees every Add that
// returned before it began, in whichever process. As in sync, Add calls for the
// next set of tasks must wait until the Waits for the last one have returned,
// or these wait for both. In the terminology of the Go memory model, Done
// synchronizes before the Wait that it lets return, for callers in one process.
//
// # Loss
//
// A task belongs to the session that added it. When that session ends its
// tasks end with it, and no Wait hangs on the dead: whoever added them and
// lives on gets [ErrLost] from Done for each, which then ends no other task.
// Tasks have no names, so this takes for granted that a process which adds
// tasks and loses its session is the one that would have ended them. Where one
// process adds tasks for others to end, [WithPersistentTasks] keeps them. A
// Wait outlives a session.
//
// # Znodes
//
// Each session that has open tasks writes one ephemeral znode,
// path/_c_<uuid>-tasks, whose data is their number in ASCII; persistent tasks
// are written in the same way but into a persistent znode. A znode whose number
// comes down to zero is deleted. Receipts against lost replies are those of
// [Session.Txn], and the children of path-receipts. path is a container, and
// the servers remove it once it is empty.
//
// # Cost
//
// All Adds and Dones that goroutines of one process make while a request is
// under way go into the next one together. Such a request is 1 round trip; for
// persistent tasks there is 1 more in the background. A Done, or the part of one, that finds no
// open tasks of its own session ends those of another: that costs a sync, a
// listing and a read for every 128 sessions with open tasks besides. Wait costs
// 2 requests if nothing is open; otherwise that read and another listing, and
// one request, one watch and one notification for each session with open tasks,
// however many these are.
//
// # Algorithm
//
// ZooKeeper has no recipe for such a counter; the algorithm is zsync's own and
// stands with the code that follows it. That of the other face is "Double
// Barriers" from the recipes.
type WaitGroup struct {
	made
	tally  *tally
	double *double.Barrier
}

// A WaitGroupOption changes a WaitGroup.
type WaitGroupOption func(*waitGroupConfig)

type waitGroupConfig struct{ keep bool }

// WithPersistentTasks keeps the tasks that are added through this WaitGroup
// when the session that added them ends. They are open until somebody calls
// Done for each.
func WithPersistentTasks() WaitGroupOption { return func(c *waitGroupConfig) { c.keep = true } }

// NewWaitGroup returns the WaitGroup at path. It does no I/O; a bad argument is
// reported by every method.
func NewWaitGroup(s *Session, path string, opts ...WaitGroupOption) *WaitGroup {
	var c waitGroupConfig
	var err error
	for i, o := range opts {
		if o == nil {
			err = session.Invalid("WaitGroup option %d is nil", i)
			continue
		}
		o(&c)
	}
	wg := &WaitGroup{made: made{s: s, path: path}}
	if wg.err = checkNew(s, path, err); wg.err == nil {
		t := &tally{m: s.m, all: &s.tallies, dir: s.m.Full(path), keep: c.keep}
		wg.tally = s.tallies.of(tallyKey{t.dir, t.keep}, t)
		wg.double = double.New(s.m, path)
	}
	return wg
}

// Path returns the path that wg was made with.
func (wg *WaitGroup) Path() string { return wg.path }

// Add adds delta, which may be negative, to the counter. If it would become
// negative the error is [ErrNegativeCounter] and the counter stays as it is.
// A negative delta may fail with [ErrLost]: see [WaitGroup].
//
// If ctx ends first, a positive delta is not added, or is taken back; a
// negative one whose request is under way may still be applied.
func (wg *WaitGroup) Add(ctx context.Context, delta int) error {
	return opError("add", wg.path, wg.add(ctx, delta))
}

func (wg *WaitGroup) add(ctx context.Context, delta int) error {
	switch {
	case wg.misuse() != nil:
		return wg.misuse()
	case delta > math.MaxInt32 || delta < -math.MaxInt32:
		return session.Invalid("delta %d is out of range; want at most %d tasks at once", delta, math.MaxInt32)
	case ctx.Err() != nil:
		return session.CtxErr(ctx)
	case delta == 0:
		return nil
	}
	c := wg.tally.submit(delta, false)
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		wg.tally.abandon(c)
		return session.CtxErr(ctx)
	}
}

// Done ends one task. It returns [ErrNegativeCounter] if none is open, and
// [ErrLost] if the task ended with the session that this process added it in.
//
// Done cannot fail to give up: if the connection is down, or no server answers
// within half a second, or the servers refuse it, it returns nil, and the Session
// ends the task as soon as it can.
func (wg *WaitGroup) Done() error {
	if wg.misuse() != nil {
		return opError("done", wg.path, wg.misuse())
	}
	return opError("done", wg.path, wg.done())
}

func (wg *WaitGroup) done() error {
	c := wg.tally.submit(-1, true)
	select {
	case <-c.done:
	case <-wg.s.m.Outage(): // usually the connection is replaced at once, and we can still tell
	case <-time.After(session.ReleaseTime):
	}
	if _, ok := session.AwaitGrace(c.done, session.ClosedChan); ok {
		return c.err
	}
	return wg.tally.owe(c)
}

// Go adds one task, calls f in a goroutine and ends the task when f returns.
// If the task cannot be added f is not called.
//
// If f panics the panic goes on, as in sync, and ends the process. The task is
// not ended first, so that no Wait takes it for done: it ends with the session.
func (wg *WaitGroup) Go(ctx context.Context, f func()) error {
	if wg.misuse() == nil && f == nil {
		return opError("go", wg.path, session.Invalid("the function is nil"))
	}
	if err := wg.add(ctx, 1); err != nil {
		return opError("go", wg.path, err)
	}
	go func() {
		defer func() {
			if x := recover(); x != nil {
				panic(x)
			}
			if err := wg.done(); err != nil {
				wg.s.m.Log.Warn("zsync: task of Go", "path", wg.path, "err", err)
			}
		}()
		f()
	}()
	return nil
}

// Wait waits until no task is open. A ctx that has ended already fails even
// if none is. A Wait that fails leaves nothing behind. Where another program's
// znode stands among those with open tasks, Wait and Count are [ErrInvalid].
func (wg *WaitGroup) Wait(ctx context.Context) error {
	ctx, end := wg.tracers().waiting(ctx, "waitgroup", wg.path)
	err := wg.wait(ctx)
	end(err)
	return opError("wait", wg.path, err)
}

func (wg *WaitGroup) wait(ctx context.Context) error {
	if wg.misuse() != nil {
		return wg.misuse()
	}
	m, dir := wg.s.m, wg.tally.dir
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
			paths := wg.tally.pathsOf(names)
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

// Count returns how many tasks are open. While others change the counter all
// the time, so that no instant can be made out, it is the sum of what the
// sessions had one after another.
//
// It costs a sync, and twice a listing and a read for every 128 sessions with
// open tasks.
func (wg *WaitGroup) Count(ctx context.Context) (int, error) {
	if wg.misuse() != nil {
		return 0, opError("count", wg.path, wg.misuse())
	}
	const tries = 8
	total := 0
	err := wg.s.m.During(ctx, func(inc *session.Incarnation) error {
		as, err := wg.tally.read(ctx, inc)
		for try := 0; err == nil && len(as) > 0 && try < tries; try++ {
			last := as
			if as, err = wg.tally.readAgain(ctx, inc); slices.Equal(as, last) {
				break
			}
		}
		total = sumOf(as)
		return err
	})
	return total, opError("count", wg.path, err)
}

// submit begins a change. With insist the servers' refusal does not end it. Step 1.
func (t *tally) submit(delta int, insist bool) *change {
	c := &change{delta: delta, insist: insist, done: make(chan struct{})}
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

func (t *tally) queueLocked(c *change) {
	t.queue = append(t.queue, c)
	if !t.busy {
		t.busy = true
		t.m.Spawn(t.run)
	}
}

// abandon is the end of a change's ctx.
func (t *tally) abandon(c *change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.abandoned = true
	if i := slices.Index(t.queue, c); i >= 0 {
		t.queue = slices.Delete(t.queue, i, i+1)
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
func (t *tally) takeBackLocked(c *change) {
	if c.err == nil && c.delta > 0 {
		t.queueLocked(&change{delta: -c.delta, owed: true, done: make(chan struct{})})
	}
}

// owe returns what came of c; if that is not known yet it is nil, and c is made
// whatever the servers say at first.
func (t *tally) owe(c *change) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if session.IsClosed(c.done) {
		return c.err
	}
	c.owed = true
	return nil
}

// postponeLocked queues those of cs again, in a while, that are owed but were
// refused, and returns the others. A Session that ends owes nothing more.
func (t *tally) postponeLocked(cs []*change, err error) []*change {
	if err == nil || errors.Is(err, ErrNegativeCounter) || session.IsClosed(t.m.Closing) || t.m.Failure() != nil {
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
		t.m.Spawn(func() {
			select {
			case <-time.After(wait):
			case <-t.m.Closing:
				return
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			for _, c := range owed {
				t.queueLocked(c)
			}
		})
	}
	return rest
}

// finish tells the callers of cs how it went.
func (t *tally) finish(cs []*change, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.postponeLocked(cs, err) {
		if c.err = err; err == nil && c.lost {
			c.err = t.why
		}
		close(c.done)
		if c.abandoned {
			t.takeBackLocked(c)
		}
	}
}

// forfeitLocked is the end of the session that own belongs to.
func (t *tally) forfeitLocked() {
	t.lost += t.own.count
	t.why = t.inc.Loss()
	t.own, t.inc = openTasks{}, nil
	t.rememberLocked()
}

// rememberLocked keeps the tally while it knows of tasks that belong, or did, to
// a session of this process: their Done may come when every WaitGroup that added
// them is garbage, and must end no other task in their place. Persistent tasks
// belong to nobody.
func (t *tally) rememberLocked() {
	t.all.keep(tallyKey{t.dir, t.keep}, t, !t.keep && t.own.count+t.lost > 0)
}

// repayLocked takes from c what it would end but has ended already.
func (t *tally) repayLocked(c *change) {
	if c.delta < 0 && t.lost > 0 {
		n := min(t.lost, -c.delta)
		t.lost -= n
		c.delta += n
		c.lost = true
		t.rememberLocked()
	}
}

// setOwn records what own's znode has become.
func (t *tally) setOwn(inc *session.Incarnation, a openTasks) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.own, t.inc = a, inc; t.keep || a.path == "" {
		t.inc = nil
	}
	t.rememberLocked()
}

// run applies what is in the queue until it is empty.
func (t *tally) run() {
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
		err := t.m.During(context.Background(), func(inc *session.Incarnation) error {
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
func (t *tally) apply(inc *session.Incarnation, batch *[]*change) error {
	ctx := context.Background()
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
func (t *tally) writeOwn(ctx context.Context, inc *session.Incarnation, next int) error {
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
		if err := inc.Vet(ctx, t.dir, nil); err != nil {
			return err
		}
	case next == 0:
		op = &zk.DeleteRequest{Path: own.path, Version: own.version}
	default:
		op = &zk.SetDataRequest{Path: own.path, Data: data, Version: own.version}
	}
	for {
		err := t.commit(ctx, inc, op)
		if _, ok := op.(*zk.CreateRequest); ok && session.IsNoNode(err) {
			if err = inc.MakeDir(ctx, t.dir); err == nil {
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

// commit applies a change of our own znode exactly once. It is ErrEnded if the
// session, and the znode with it, ended first.
func (t *tally) commit(ctx context.Context, inc *session.Incarnation, op any) error {
	if t.keep {
		_, err := t.m.CommitAcrossSessions(ctx, t.dir+"-receipts", []any{op})
		return err
	}
	_, err := inc.Commit(ctx, t.dir, []any{op})
	if errors.Is(err, ErrLost) {
		err = session.ErrEnded
	}
	return err
}

// readOwn reads our own znode again.
func (t *tally) readOwn(ctx context.Context, inc *session.Incarnation) error {
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
func (t *tally) reach(ctx context.Context, inc *session.Incarnation, batch *[]*change) error {
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
		err = t.writeOthers(ctx, inc, others, -sum)
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
func (t *tally) curtail(cs []*change, total int) (owed, rest []*change) {
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

// writeOthers ends n open tasks: all of ours, and the rest among others.
func (t *tally) writeOthers(ctx context.Context, inc *session.Incarnation, others []openTasks, n int) error {
	var ops []any
	end := func(a openTasks) {
		k := min(n, a.count)
		n -= k
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
		if n > 0 {
			end(a)
		}
	}
	// This is about tasks that outlive our session, so unlike a change of our
	// own znode it must be carried through. An attempt that failed cannot come
	// late: no znode has the same path and version twice.
	if _, err := t.m.CommitAcrossSessions(ctx, t.dir+"-receipts", ops); err != nil {
		return err
	}
	t.setOwn(inc, openTasks{})
	return nil
}

// read reads all znodes with open tasks, ordered by path.
func (t *tally) read(ctx context.Context, inc *session.Incarnation) ([]openTasks, error) {
	return t.readFrom(ctx, inc, inc.ChildrenFresh)
}

// readAgain is read where the server has caught up already.
func (t *tally) readAgain(ctx context.Context, inc *session.Incarnation) ([]openTasks, error) {
	return t.readFrom(ctx, inc, inc.Children)
}

func (t *tally) readFrom(ctx context.Context, inc *session.Incarnation, list func(context.Context, string) ([]string, *zk.Stat, error)) ([]openTasks, error) {
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
		n, err := strconv.ParseUint(string(node.Data), 10, 31)
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
func (t *tally) pathsOf(names []string) []string {
	var paths []string
	for _, name := range names {
		if strings.HasPrefix(name, "_c_") && strings.HasSuffix(name, "-tasks") {
			paths = append(paths, session.ChildPath(t.dir, name))
		}
	}
	slices.Sort(paths)
	return paths
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
// # Znodes
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
// # Cost
//
// Enter costs 2 requests and one notification, and Leave the same. For each
// round come 2 more requests by the last who enters and, as its part of
// leaving, some to find the others gone: n-1 at most, in whatever order they
// leave, and far fewer for n beyond 20, where it may rarely be one more.
// Together that is at most 5 a party, and about 4.3 for n = 32. A round in which
// all come at once takes 5 round trips for n up to 8, and 6 for n = 32. A party that
// finds the containers missing, because nobody made them yet or because the
// servers have removed them empty, needs 2 to 4 more. Parties beyond n that wait
// for a later round are woken, and read the room, for each round before it.
//
// # Algorithm
//
// The algorithm is "Double Barriers" from the ZooKeeper recipes with the rounds
// told apart.
func (wg *WaitGroup) Enter(ctx context.Context, n int) error {
	return opError("enter", wg.path, wg.enter(ctx, n))
}

func (wg *WaitGroup) enter(ctx context.Context, n int) error {
	if wg.misuse() != nil {
		return wg.misuse()
	}
	if err := wg.double.Check(n); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return session.CtxErr(ctx)
	}
	start := time.Now()
	traced := func() Traced { return wg.s.tracers.traced("double barrier", "enter", wg.path) }
	end := wg.s.tracers.acquiring(ctx, traced)
	g, err := wg.double.Enter(ctx, n)
	wg.s.m.Waited("enter", wg.path, start, err)
	if err != nil {
		end("", err)
		return err
	}
	end(g.Name(), nil)
	wg.s.tracers.follow(ctx, traced, g)
	return nil
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
	if wg.misuse() != nil {
		return opError("leave", wg.path, wg.misuse())
	}
	return opError("leave", wg.path, wg.double.Leave(ctx))
}

// Lost returns a channel that is closed when the membership is lost that
// [WaitGroup.Enter] has given wg, and that Leave would end next: the session has
// ended, or may have. While wg has none, the channel is closed already. It is
// not closed by Leave. The counter is nobody's, so it has no Lost.
func (wg *WaitGroup) Lost() <-chan struct{} {
	if wg.misuse() != nil {
		return session.ClosedChan
	}
	hold, _ := wg.double.Membership()
	if hold == nil || hold.Err() != nil {
		return session.ClosedChan
	}
	return hold.Lost
}

// Contenders returns the parties of the double barrier, in their order: who is
// inside, which is Holding, and who waits to enter. It costs two requests and
// one read for every 128 of them.
func (wg *WaitGroup) Contenders(ctx context.Context) ([]Contender, error) {
	if wg.misuse() != nil {
		return nil, opError("contenders", wg.path, wg.misuse())
	}
	var out []Contender
	err := wg.s.m.During(ctx, func(inc *session.Incarnation) error {
		names, inside, err := wg.double.Parties(ctx, inc)
		if err == nil && len(names) > 0 {
			out, err = describe(ctx, inc, wg.double.Room(), names, func(i int) (Mode, bool) { return ModeParty, inside(i) })
		}
		if session.IsNoNode(err) {
			return nil // there is no room
		}
		return err
	})
	return out, opError("contenders", wg.path, err)
}
