package queue

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// orphanTime is how long the claims of a session that has ended are left to
// its process, if that still lives: it may have handed elements to a consumer
// and not been able to delete them. See ledger. It is more than the longest pause
// between two attempts to connect, so that the process can be back in time.
const orphanTime = 3 * time.Second

// orphanTimeByServers is how long they are left by the clock of the servers,
// which may be that of one server first and then of another.
const orphanTimeByServers = 6 * time.Second

// A reaper gives back the claims of those whose session has ended and who
// have not come back. It serves all consumers of an Engine, whose lives may
// be shorter than orphanTime. So may be the lives of processes: a mark beside the
// journal tells by the servers' clock when the first of them saw that a claimant
// was dead.
type reaper struct {
	site
	mu   sync.Mutex
	seen map[string]time.Time // when a claimant was first seen without its session; guarded by mu
	last time.Time            // when somebody looked for the dead, or has begun to; guarded by mu
}

// looked is told that whoever has died is known, or is about to be.
func (u *reaper) looked() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last = time.Now()
}

// look is visit for those who always find something, once in orphanTime: what the
// dead had must come back though nobody is ever idle.
func (u *reaper) look(ctx context.Context, inc *session.Incarnation) error {
	u.mu.Lock()
	late := time.Since(u.last) > orphanTime
	if late {
		u.last = time.Now() // one of those who come now is enough
	}
	u.mu.Unlock()
	if !late {
		return nil
	}
	// For the others it goes on though ctx ends. Were it theirs to look then, those who
	// come one after the other with too little time would keep everybody from it.
	var err error
	done := make(chan struct{})
	u.m.Spawn(func() {
		defer close(done)
		_, _, err = u.visit(inc.Ctx, inc)
	})
	if err := session.AwaitIn(ctx, inc, done); err != nil {
		return err
	}
	if refusal(err) {
		err = nil // which keeps nobody from consuming
	}
	return err
}

// refusal reports whether err is one that trying again does not cure.
func refusal(err error) bool {
	return err != nil && session.OutcomeOf(err) == session.Answered || errors.Is(err, session.ErrTooLarge)
}

// visit gives back what is due, and returns when to come again: the zero time
// if nobody is dead. If there is nothing else the error is that the servers refuse it.
//
// Journals are listed before live marks. A journal is made with its mark, so one
// without has lost it, whichever server answers.
func (u *reaper) visit(ctx context.Context, inc *session.Incarnation) (next time.Time, buried bool, err error) {
	defer func() {
		if err == nil { // at the end, so that what is due orphanTime later is due when somebody looks again
			u.looked()
		}
	}()
	names, _, err := inc.Children(ctx, u.claims)
	if session.IsNoNode(err) {
		return next, false, nil
	}
	if err != nil {
		return next, false, err
	}
	marks, err := inc.Names(ctx, u.live)
	if err != nil {
		return next, false, err
	}
	dead := deadOf(names, marks)
	u.forget(dead)
	var refused error
	for guid, marked := range dead {
		at, err := u.due(ctx, inc, guid, marked)
		if err != nil {
			return next, buried, err
		}
		if time.Now().Before(at) {
			next = earlier(next, at)
			continue
		}
		switch back, err := u.giveBack(ctx, inc, guid); {
		case refusal(err):
			refused = err // what the others had goes back all the same
		case err != nil:
			return next, buried, err
		case back:
			u.mu.Lock()
			u.seen[guid] = time.Now()
			u.mu.Unlock()
			next = earlier(next, time.Now().Add(orphanTime))
		default:
			buried = true
		}
	}
	if !buried && next.IsZero() {
		err = refused
	}
	return next, buried, err
}

// deadOf returns which claimants among names have no live mark, and of which of
// them that was noted. Of one that has come back and gone the note alone may be left.
func deadOf(names, marks []string) map[string]bool {
	live := make(map[string]bool)
	for _, name := range marks {
		live[name] = true
	}
	dead := make(map[string]bool)
	for _, name := range names {
		guid, marked := strings.CutSuffix(name, goneSuffix)
		if len(guid) == len(noGUID) && !live[guid] {
			dead[guid] = dead[guid] || marked
		}
	}
	return dead
}

// forget drops those who are not dead.
func (u *reaper) forget(dead map[string]bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for guid := range u.seen {
		if _, ok := dead[guid]; !ok {
			delete(u.seen, guid)
		}
	}
}

// due returns when the claims of a dead claimant go back. Two consumers may ask,
// and give back, at once: that does no harm.
func (u *reaper) due(ctx context.Context, inc *session.Incarnation, guid string, marked bool) (time.Time, error) {
	u.mu.Lock()
	since, ok := u.seen[guid]
	u.mu.Unlock()
	if ok {
		return since.Add(orphanTime), nil
	}
	over, err := u.mark(ctx, inc, guid, marked)
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

// mark notes beside the journal that a claimant is dead, and reports whether its
// time is over: others have noted it long ago. The mark is made only while the
// journal is there, which goes first when the claimant, or another, tidies up.
func (u *reaper) mark(ctx context.Context, inc *session.Incarnation, guid string, marked bool) (over bool, err error) {
	journal := session.ChildPath(u.claims, guid)
	if !marked {
		_, err := inc.Multi(ctx, &zk.CheckVersionRequest{Path: journal, Version: -1},
			&zk.CreateRequest{Path: journal + goneSuffix, Acl: u.m.Config.ACL})
		if err == nil || session.IsNoNode(err) || session.OutcomeOf(err) == session.Answered && !session.IsNodeExists(err) {
			return false, nil // without the mark our own clock serves
		}
		if !session.IsNodeExists(err) {
			return false, err
		}
	}
	stat, err := inc.Set(ctx, journal+goneSuffix, nil, -1) // for the servers' time
	switch {
	case err == nil:
		return time.Duration(stat.Mtime-stat.Ctime)*time.Millisecond >= orphanTimeByServers, nil
	case session.OutcomeOf(err) == session.Answered:
		return false, nil
	}
	return false, err
}

// giveBack gives the elements of a dead claimant back to the queue, bucket by
// bucket: it may be left halfway, and anybody begin again, because each
// transaction writes the journal, at the version at which it was read, without
// what it has given back. From the first on the claimant, if it lives after all,
// can change nothing any more.
//
// If the claimant is found to be back it is left alone.
func (u *reaper) giveBack(ctx context.Context, inc *session.Incarnation, guid string) (back bool, err error) {
	path := session.ChildPath(u.claims, guid)
	version, given := int32(-1), 0
	for {
		data, stat, err := inc.Get(ctx, path)
		if session.IsNoNode(err) {
			break
		}
		if err != nil {
			return false, err
		}
		r := parseRecord(data)
		if version < 0 && !r.givenBack {
			// Its mark may have been made since the marks were listed: with a write of
			// the journal, so it is there now, or the version will have moved on.
			if mark, err := inc.Exists(ctx, session.ChildPath(u.live, guid)); err != nil || mark != nil {
				return mark != nil, err
			}
		}
		if !r.givenBack && version >= 0 && stat.Version != version {
			return true, nil // it writes itself
		}
		r.givenBack, version = true, stat.Version
		done, err := u.giveBackSome(ctx, inc, path, version, r)
		switch {
		case outrun(err):
			// The bucket was written, or the journal, or this server lags.
			if err := inc.Sync(ctx, path); err != nil {
				return false, err
			}
			continue
		case err != nil:
			return false, err
		}
		if given++; done {
			break
		}
	}
	if err := inc.RemoveNow(ctx, path+goneSuffix); err != nil && !session.IsNoNode(err) {
		return false, err
	}
	if given > 0 {
		u.m.Log.Warn("zsync: elements of a dead consumer are back in the queue", "path", u.path)
	}
	return false, nil
}

// giveBackSome gives back what fits into a transaction, of one bucket, and reports
// whether that was the last. What was in a consumer's hands is counted as an
// attempt.
func (u *reaper) giveBackSome(ctx context.Context, inc *session.Incarnation, path string, version int32, r record) (done bool, err error) {
	var ops []any
	for name, h := range r.holdings {
		bucket := session.ChildPath(u.dir, name)
		data, stat, err := inc.Get(ctx, bucket)
		if session.IsNoNode(err) {
			delete(r.holdings, name) // it was empty, or the queue was deleted
			continue
		}
		if err != nil {
			return false, err
		}
		bumps, tried, err := u.bumps(ctx, inc, name, h)
		if err != nil {
			return false, err
		}
		if large := len(bumps) == 1 && len(bumps[0].(*zk.SetDataRequest).Data) > session.MaxPacket/2; large {
			// It does not fit beside what else is written. It is counted once, or, if we
			// die in between, not at all.
			h.hand = h.hand.minus(tried)
			r.holdings[name] = h
			stat, err := inc.Set(ctx, path, r.marshal(), version)
			if err != nil {
				return false, err
			}
			_, err = inc.Multi(ctx, &zk.CheckVersionRequest{Path: path, Version: stat.Version}, bumps[0])
			if session.OutcomeOf(err) == session.Answered {
				err = nil // somebody else goes on, or it is gone
			}
			return false, err
		}
		ops = bumps
		if h.hand = h.hand.minus(tried); len(h.hand) > 0 {
			r.holdings[name] = h // more attempts are to be counted first
			break
		}
		claimed := parseSpans(string(data)).minus(h.owned)
		delete(r.holdings, name)
		ops = append(ops, &zk.SetDataRequest{Path: bucket, Data: []byte(claimed.String()), Version: stat.Version},
			&zk.SetDataRequest{Path: u.dir, Version: -1}) // the bell
		break
	}
	if done = len(r.holdings) == 0; done {
		// The note goes with the journal: who does this may be over when it is done, and
		// nobody else may ever look. One that is made right now giveBack deletes.
		noted, err := inc.Exists(ctx, path+goneSuffix)
		if err != nil {
			return false, err
		}
		if noted != nil {
			ops = append(ops, &zk.DeleteRequest{Path: path + goneSuffix, Version: -1})
		}
		ops = append([]any{&zk.DeleteRequest{Path: path, Version: version}}, ops...)
	} else {
		ops = append([]any{&zk.SetDataRequest{Path: path, Data: r.marshal(), Version: version}}, ops...)
	}
	_, err = inc.Multi(ctx, ops...)
	return done, err
}

// bumps returns operations that count attempts of what a dead claimant had in hand
// of a bucket, as many as fit, and what these are of.
func (u *reaper) bumps(ctx context.Context, inc *session.Incarnation, name string, h holding) (ops []any, tried spans, err error) {
	if len(h.hand) == 0 {
		return nil, nil, nil
	}
	b, _ := parseBucket(name)
	names, _, err := inc.Children(ctx, session.ChildPath(u.dir, name))
	if err != nil {
		return nil, nil, err
	}
	var paths []string
	var numbers []int32
	for _, e := range parseElements(b, names) {
		if h.hand.has(e.seq) && h.owned.has(e.seq) && len(paths) < maxPost {
			paths, numbers = append(paths, session.ChildPath(u.dir, e.key())), append(numbers, e.seq)
		}
	}
	nodes, err := inc.GetAll(ctx, paths)
	if err != nil && session.OutcomeOf(err) != session.Answered {
		return nil, nil, err
	}
	if err != nil { // what may not be read cannot be counted
		return nil, h.hand, nil
	}
	size := 0
	var counted []int32
	for i, n := range nodes {
		if n.Stat != nil {
			if size += u.m.SizeOf(paths[i], n.Data); len(ops) > 0 && size > session.MaxPacket/2 {
				break
			}
			ops = append(ops, &zk.SetDataRequest{Path: paths[i], Data: n.Data, Version: n.Stat.Version})
		}
		counted = append(counted, numbers[i])
	}
	if tried = spansOf(counted); len(tried) == 0 || len(paths) < maxPost && size <= session.MaxPacket/2 {
		tried = h.hand // nothing else of it is there
	}
	return ops, tried, nil
}

// bump counts an attempt of an element that was delivered when its znode had
// this version. The number of attempts is the version, which grows when the
// data is written, with the bytes it has; so none is counted twice.
func (u *reaper) bump(ctx context.Context, inc *session.Incarnation, key string, version int32) error {
	path := session.ChildPath(u.dir, key)
	data, stat, err := inc.Get(ctx, path)
	if err == nil && stat.Version == version {
		_, err = inc.Set(ctx, path, data, version)
	}
	if outrun(err) {
		return nil // it was consumed, or the attempt is counted
	}
	return err
}
