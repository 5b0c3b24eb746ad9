package queue

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// An element belongs to the claimant in one of whose batches it is named, and
// to nobody otherwise. To claim:
//
//  1. List <path>-claims, and note its version.
//  2. Read the batches there that are not known yet; what they name never
//     changes.
//  3. List elements, from the first bucket on, until enough are found that no
//     batch names.
//  4. In one transaction, make a batch of them and write <path>-claims,
//     expecting the version of step 1, and the own live mark. If it fails,
//     somebody else has claimed in the meantime: go to 1.
//  5. Read the elements. One that is gone was consumed between 2 and 3, or
//     taken by TryRecv.
//
// So claims are exclusive by themselves. That consumers also stand in line
// before they claim only keeps them out of each other's way.

// A view is what somebody has seen of the claims.
type view struct {
	aside   bool              // by one who only looks, and writes nothing
	version int32             // of <path>-claims
	claimed map[string]bool   // by key of an element
	holders map[string]*claim // by guid
}

// A claim is what one claimant has below <path>-claims.
type claim struct {
	live    bool // its session stands
	state   bool
	gone    bool     // that it does not was noted
	batches []string // the names of their znodes
}

// A batchCache remembers what batches name.
type batchCache struct {
	mu   sync.Mutex
	keys map[string][]string // by name of the batch's znode; guarded by mu
}

// look is steps 1 and 2. With aside it writes nothing.
func (q *core) look(ctx context.Context, inc *session.Incarnation, aside bool) (*view, error) {
	for {
		names, stat, err := inc.Children(ctx, q.claims)
		if session.IsNoNode(err) && aside {
			return &view{aside: true}, nil // nobody has ever claimed anything
		}
		if session.IsNoNode(err) {
			// It is no container: its version must not start again.
			if _, err := inc.Create(ctx, q.claims, nil); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if stat.Version == -1 && !aside {
			// After 2^32 claims. To expect this version is to expect any.
			if _, err := inc.Set(ctx, q.claims, nil, -1); err != nil && !session.IsNoNode(err) {
				return nil, err
			}
			continue
		}
		v := &view{aside: aside, version: stat.Version, claimed: make(map[string]bool), holders: make(map[string]*claim)}
		var batches []string
		for _, name := range names {
			guid, suffix, ok := parseClaim(name)
			if !ok {
				continue
			}
			c := v.holders[guid]
			if c == nil {
				c = new(claim)
				v.holders[guid] = c
			}
			switch suffix {
			case liveSuffix:
				c.live = true
			case stateSuffix:
				c.state = true
			case goneSuffix:
				c.gone = true
			default:
				c.batches = append(c.batches, name)
				batches = append(batches, name)
			}
		}
		all, err := q.cache.read(ctx, inc, q.claims, batches)
		if session.IsNoNode(err) {
			continue // a batch is finished, or another has taken its place
		}
		if err != nil {
			return nil, err
		}
		for _, key := range all {
			v.claimed[key] = true
		}
		return v, nil
	}
}

// read returns the keys that batches name.
func (c *batchCache) read(ctx context.Context, inc *session.Incarnation, dir string, batches []string) ([]string, error) {
	c.mu.Lock()
	known := c.keys
	c.keys = make(map[string][]string)
	var missing []string
	for _, name := range batches {
		if keys, ok := known[name]; ok {
			c.keys[name] = keys
		} else {
			missing = append(missing, name)
		}
	}
	c.mu.Unlock()
	paths := make([]string, len(missing))
	for i, name := range missing {
		paths[i] = session.ChildPath(dir, name)
	}
	nodes, err := inc.GetAll(ctx, paths)
	if err != nil {
		return nil, err
	}
	for i, n := range nodes {
		if n.Stat == nil {
			return nil, zk.ErrNoNode
		}
		keys, _ := unmarshalKeys(n.Data)
		c.add(missing[i], keys)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, name := range batches {
		keys, ok := c.keys[name]
		if !ok {
			return nil, zk.ErrNoNode // another reader has seen that it is gone
		}
		all = append(all, keys...)
	}
	return all, nil
}

// named returns what a batch names, if that is known.
func (c *batchCache) named(batch string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keys[batch]
}

func (c *batchCache) add(name string, keys []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keys == nil {
		c.keys = make(map[string][]string)
	}
	c.keys[name] = keys
}

// free is step 3: at least want elements that nobody has claimed, if there are
// as many, and when the next delayed one is due.
func (q *core) free(ctx context.Context, inc *session.Incarnation, v *view, want int) (es []element, due time.Time, err error) {
	names, _, err := inc.Children(ctx, q.dir)
	if session.IsNoNode(err) {
		return nil, due, nil
	}
	if err != nil {
		return nil, due, err
	}
	again, full := q.skips.next()
	if full {
		return nil, again, nil
	}
	defer func() {
		if due.IsZero() || !again.IsZero() && again.Before(due) {
			due = again
		}
	}()
	buckets := parseBuckets(names)
	for i, b := range buckets {
		if len(es) >= want {
			break
		}
		if q.skips.skipped(b.name) {
			continue
		}
		names, _, err := inc.Children(ctx, session.ChildPath(q.dir, b.name))
		if session.IsNoNode(err) {
			continue // was empty, and deleted
		}
		if err != nil && session.OutcomeOf(err) == session.Answered {
			q.skips.unreadable(b.name, err)
			if at, _ := q.skips.next(); again.IsZero() {
				again = at
			}
			continue
		}
		if err != nil {
			return nil, due, err
		}
		if len(names) == 0 && i+1 < len(buckets) && !b.delayed && buckets[i+1].prio == b.prio {
			// It has a successor, so nothing comes into it any more.
			if !v.aside {
				bucket := session.ChildPath(q.dir, b.name)
				q.m.Tidy(inc.InBackground(bucket, func() error { return inc.RemoveNow(inc.Ctx, bucket) }))
			}
			continue
		}
		now := time.Now().UnixMilli()
		for _, e := range parseElements(b, names) {
			if e.due > now {
				if t := time.UnixMilli(e.due); due.IsZero() || t.Before(due) {
					due = t
				}
				break
			}
			if !v.claimed[e.key()] && !q.skips.skipped(e.key()) {
				es = append(es, e)
			}
		}
	}
	return es, due, nil
}

// orphanTime is how long the claims of a session that has ended are left to
// its process, if that still lives: it may have handed elements to a consumer
// and not been able to delete them. See ledger. It is more than the longest pause
// between two attempts to connect, so that the process can be back in time.
const orphanTime = 3 * time.Second

// orphanTimeByServers is how long they are left by the clock of the servers,
// which may be that of one server first and then of another.
const orphanTimeByServers = 6 * time.Second

// An reaper gives back the claims of those whose session has ended and who
// have not come back. It serves all consumers of a Queue value, whose lives may
// be shorter than orphanTime. So may be the lives of processes: a mark among the
// claims tells by the servers' clock when the first of them saw that a claimant
// was dead.
type reaper struct {
	q    *core
	mu   sync.Mutex
	seen map[string]time.Time // when a claim was first seen without its session; guarded by mu
}

// visit gives back what is due, and returns when to come again: the zero time
// if nobody is dead.
func (u *reaper) visit(ctx context.Context, inc *session.Incarnation, v *view) (next time.Time, buried bool, err error) {
	u.forget(v)
	for guid, c := range v.holders {
		if c.live {
			continue
		}
		at, err := u.due(ctx, inc, guid, c)
		if err != nil {
			return next, buried, err
		}
		if time.Now().Before(at) {
			if next.IsZero() || at.Before(next) {
				next = at
			}
			continue
		}
		if err := u.q.reclaim(ctx, inc, guid, c); err != nil {
			return next, buried, err
		}
		buried = true
	}
	return next, buried, nil
}

// forget drops those who are not dead.
func (u *reaper) forget(v *view) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for guid := range u.seen {
		if c := v.holders[guid]; c == nil || c.live {
			delete(u.seen, guid)
		}
	}
}

// due returns when the claims of a dead claimant go back. Two consumers may ask,
// and give back, at once: that does no harm.
func (u *reaper) due(ctx context.Context, inc *session.Incarnation, guid string, c *claim) (time.Time, error) {
	u.mu.Lock()
	since, ok := u.seen[guid]
	u.mu.Unlock()
	if ok {
		return since.Add(orphanTime), nil
	}
	over, err := u.mark(ctx, inc, guid, c)
	if err != nil {
		return since, err
	}
	if since = time.Now(); over {
		since = since.Add(-orphanTime)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.seen == nil {
		u.seen = make(map[string]time.Time)
	}
	u.seen[guid] = since
	return since.Add(orphanTime), nil
}

// mark notes among the claims that a claimant is dead, and reports whether its
// time is over: others have noted it long ago, or have begun to give back what
// it had. The mark is made only while its state is there, which goes first when
// the claimant, or another, tidies up.
func (u *reaper) mark(ctx context.Context, inc *session.Incarnation, guid string, c *claim) (over bool, err error) {
	if !c.state {
		return true, nil
	}
	path := session.ChildPath(u.q.claims, guid+"-"+goneSuffix)
	if !c.gone {
		_, err := inc.Multi(ctx, &zk.CheckVersionRequest{Path: session.ChildPath(u.q.claims, guid+"-"+stateSuffix), Version: -1},
			&zk.CreateRequest{Path: path, Acl: u.q.m.Config.ACL})
		if err == nil || session.IsNoNode(err) || session.OutcomeOf(err) == session.Answered && !session.IsNodeExists(err) {
			return false, nil // without the mark our own clock serves
		}
		if !session.IsNodeExists(err) {
			return false, err
		}
	}
	stat, err := inc.Set(ctx, path, nil, -1) // for the servers' time
	switch {
	case err == nil:
		return time.Duration(stat.Mtime-stat.Ctime)*time.Millisecond >= orphanTimeByServers, nil
	case session.OutcomeOf(err) == session.Answered:
		return false, nil
	}
	return false, err
}

// reclaim gives the elements of a dead claimant back to the queue, however many
// they are: it may be left halfway, and anybody begin again. The state goes
// first, and without it the claimant can change nothing any more. What was in a
// consumer's hands is counted as an attempt before the batches go that keep it
// from being claimed.
func (q *core) reclaim(ctx context.Context, inc *session.Incarnation, guid string, c *claim) error {
	if c.state {
		if err := inc.RemoveNow(ctx, session.ChildPath(q.claims, guid+"-"+stateSuffix)); err != nil && !session.IsNoNode(err) {
			return err
		}
	}
	if err := q.returnAll(ctx, inc, c); err != nil {
		return err
	}
	if err := inc.RemoveNow(ctx, session.ChildPath(q.claims, guid+"-"+goneSuffix)); err != nil && !session.IsNoNode(err) {
		return err
	}
	return nil
}

// returnAll gives back what the batches of a dead claimant name.
func (q *core) returnAll(ctx context.Context, inc *session.Incarnation, c *claim) error {
	if len(c.batches) == 0 {
		return nil
	}
	paths := make([]string, len(c.batches))
	for i, name := range c.batches {
		paths[i] = session.ChildPath(q.claims, name)
	}
	nodes, err := inc.GetAll(ctx, paths)
	if err != nil {
		return err
	}
	hand := make(map[string]int32)
	for _, n := range nodes {
		_, marked := unmarshalKeys(n.Data)
		maps.Copy(hand, marked)
	}
	keys := slices.Collect(maps.Keys(hand))
	err = session.Parallel(len(keys), func(i int) error { return q.bump(ctx, inc, keys[i], hand[keys[i]]) })
	if err != nil {
		return err
	}
	if err := inc.RemoveAllNow(ctx, paths); err != nil && !session.IsNoNode(err) {
		return err
	}
	q.m.Log.Warn("zsync: elements of a dead consumer are back in the queue", "path", q.cfg.Path, "batches", len(c.batches))
	_, err = inc.Set(ctx, q.dir, nil, -1) // the bell
	if session.IsNoNode(err) {
		return nil
	}
	return err
}

// bump counts an attempt of an element that was delivered when its znode had
// this version. The number of attempts is the version, which grows when the
// data is written, with the bytes it has; so none is counted twice.
func (q *core) bump(ctx context.Context, inc *session.Incarnation, key string, version int32) error {
	path := session.ChildPath(q.dir, key)
	data, stat, err := inc.Get(ctx, path)
	if err == nil && stat.Version == version {
		_, err = inc.Set(ctx, path, data, version)
	}
	if session.IsNoNode(err) || session.IsBadVersion(err) {
		return nil // it was consumed, or the attempt is counted
	}
	return err
}

// claim is step 4. It reports whether it was done; if not the view is stale.
func (l *ledger) claim(ctx context.Context, v *view, es []element) (*batch, bool, error) {
	q, inc := l.q, l.inc
	if err := l.open(ctx); err != nil {
		return nil, false, err
	}
	b := l.newBatch(es)
	if b == nil {
		return nil, false, l.ending()
	}
	path := session.ChildPath(q.claims, b.name)
	ops := []any{
		&zk.CreateRequest{Path: path, Data: marshalKeys(b.keys()), Acl: q.m.Config.ACL},
		&zk.SetDataRequest{Path: q.claims, Version: v.version},
		&zk.CheckVersionRequest{Path: session.ChildPath(q.claims, l.guid+"-"+liveSuffix), Version: -1},
	}
	// The batch's name is used once. When the reply is lost, a repetition that
	// finds the batch there says that the first attempt made it.
	rs, err := inc.Multi(context.Background(), ops...) // whatever becomes of ctx: it is known soon, or the session ends
	i := session.FailedOp(rs)
	switch {
	case err == nil, i == 0 && session.IsNodeExists(err):
		l.claimed(b)
		v.version++
		for _, e := range es {
			v.claimed[e.key()] = true
		}
		q.cache.add(b.name, b.keys())
		return b, true, nil
	case errors.Is(err, session.ErrEnded):
		// It may have been made, or be made yet: it stays in the ledger,
		// which gives it back.
		l.claimed(b)
		return nil, false, err
	}
	l.forget(b)
	switch {
	case i == 2:
		return nil, false, session.ErrVanished // somebody has deleted the live mark
	case i == 1 && (session.IsBadVersion(err) || session.IsNoNode(err)), i == 0 && session.IsNoNode(err):
		return nil, false, nil
	}
	return nil, false, err
}

// fetch is step 5. Elements that are gone are taken off the batch.
func (l *ledger) fetch(ctx context.Context, b *batch) ([]*item, error) {
	items := slices.Clone(b.items)
	paths := make([]string, len(items))
	for i, it := range items {
		paths[i] = session.ChildPath(l.q.dir, it.key())
	}
	nodes, err := l.inc.GetAll(ctx, paths)
	refused := make([]error, len(items))
	if err != nil && session.OutcomeOf(err) == session.Answered {
		nodes, err = l.fetchEach(ctx, paths, refused)
	}
	if err != nil {
		return nil, err
	}
	for i, err := range refused {
		if err != nil {
			l.settle(items[i], fateReturn, false)
			l.q.skips.unreadable(items[i].key(), err)
		}
	}
	for i, n := range nodes {
		it := items[i]
		if refused[i] != nil {
			continue
		}
		if it.missing = n.Stat == nil; !it.missing {
			it.read(n.Data, n.Stat)
		}
	}
	l.miss(items)
	i := -1
	return slices.DeleteFunc(items, func(it *item) bool { i++; return it.missing || refused[i] != nil }), nil
}

// fetchEach reads elements one by one, and notes which of them the servers do
// not let us read.
func (l *ledger) fetchEach(ctx context.Context, paths []string, refused []error) ([]session.Node, error) {
	nodes := make([]session.Node, len(paths))
	return nodes, session.Parallel(len(paths), func(i int) error {
		data, stat, err := l.inc.Get(ctx, paths[i])
		if err != nil && session.OutcomeOf(err) == session.Answered {
			if !session.IsNoNode(err) {
				refused[i] = err
			}
			return nil
		}
		nodes[i] = session.Node{Data: data, Stat: stat}
		return err
	})
}

// liveMarks returns the znodes whose going means that claims go back: those of
// everyone but self who has any.
func (q *core) liveMarks(v *view, self string) []string {
	var paths []string
	for guid, c := range v.holders {
		if guid != self && c.live && len(c.batches) > 0 {
			paths = append(paths, session.ChildPath(q.claims, guid+"-"+liveSuffix))
		}
	}
	return paths
}
