package zsync

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// Dead letters are the elements of a Queue that could not be decoded, were
// rejected ([Delivery.Reject]), or delivered too often ([WithMaxAttempts]). They are moved, in one transaction,
// to <path>-dead/dead-<priority>-<16 random digits>-<seq>, the data of their znodes as it was,
// reported to the logger and as [Dead] to the observer, and stay there until
// somebody removes them.
//
// Beside it stands why-<the same 16 digits>, made and removed in the same
// transactions: why, and what became of the element before. (If both do not fit
// into a request the dead letter stands alone.)

// letterDigits is how many random digits the name of a dead letter has. The
// numbers begin again when the servers have removed the directory of the dead
// letters because it was empty, so these keep one from being taken for another.
const letterDigits = 16

// maxReason is how long the reason of a dead letter is at most.
const maxReason = 1000

// A circumstance is what is written of a dead letter, as JSON.
type circumstance struct {
	Reason   string `json:"reason"`
	Attempts int    `json:"attempts"`
	First    int64  `json:"first"` // Unix milliseconds
}

// letter returns the operations that make a dead letter of an element. In another
// library's layout the priority is written as there.
func (q *queueCore) letter(it *item, fault error, attempts int) []any {
	class := it.class
	if q.foreign == nil {
		class = fmt.Sprintf("%05d", it.prio)
	}
	digits := strings.ReplaceAll(session.NewGUID(), "-", "")[:letterDigits]
	letter := &zk.CreateRequest{Path: session.ChildPath(q.dead, "dead-"+class+"-"+digits+"-"), Data: it.stored(), Acl: q.m.Config.ACL, Flags: zk.FlagSequence}
	reason := "unknown"
	if fault != nil {
		reason = strings.ToValidUTF8(fault.Error(), "\uFFFD")
	}
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	data, err := json.Marshal(circumstance{reason, attempts, it.sent.UnixMilli()})
	why := &zk.CreateRequest{Path: session.ChildPath(q.dead, whyName(digits)), Data: data, Acl: q.m.Config.ACL}
	if err != nil || q.oversized(letter, why) {
		return []any{letter}
	}
	return []any{letter, why}
}

func whyName(digits string) string { return "why-" + digits }

// letterNow prepares to make a dead letter in a transaction of its own, and
// returns the operations.
func (q *queueCore) letterNow(ctx context.Context, inc *session.Incarnation, it *item, fault error) ([]any, error) {
	ops := q.letter(it, fault, it.attempts())
	if q.oversized(ops[0].(*zk.CreateRequest)) {
		return nil, fmt.Errorf("the element %s cannot go to the dead letters: %w", it.key(), ErrTooLarge)
	}
	return ops, inc.MakeDir(ctx, q.dead)
}

// A DeadLetter is an element that was set aside.
type DeadLetter struct {
	ID    string    // no other dead letter of the queue has had it, or will have
	Data  []byte    // as it was sent
	Since time.Time // when it was set aside, by the servers' clock

	Reason   string    // why: what [Delivery.Reject] was given, or an error's text; at most 1,000 bytes
	Attempts int       // how often it had been delivered
	First    time.Time // when it was sent, by the servers' clock

	q     *queueCore
	class string // the priority, as it is written in the name
	alone bool   // Data was taken out of another library's frame
	why   string // the path of the znode that says why, or empty
}

func (q *queueCore) deadElements(ctx context.Context) (es []element, err error) {
	var names []string
	err = q.m.During(ctx, func(inc *session.Incarnation) (err error) {
		names, _, err = inc.Children(ctx, q.dead)
		return err
	})
	if session.IsNoNode(err) {
		return nil, nil
	}
	for _, name := range names {
		if e, ok := parseDead(name); ok {
			es = append(es, e)
		}
	}
	slices.SortFunc(es, func(a, b element) int { return cmp.Compare(a.seq-b.seq, 0) })
	return es, err
}

// parseDead reads the priority, as its class, and the number from the name of a
// dead letter.
func parseDead(name string) (element, bool) {
	rest, ok := strings.CutPrefix(name, "dead-")
	i := len(rest) - len("-0000000000")
	j := i - letterDigits - 1
	if !ok || j < 0 || rest[i] != '-' || rest[j] != '-' {
		return element{}, false
	}
	seq, ok := session.ParseSeq(rest[i+1:])
	return element{name: name, class: rest[:j], seq: seq}, ok
}

func (q *queueCore) deadLetter(ctx context.Context, e element) (DeadLetter, error) {
	d := DeadLetter{ID: e.name, q: q, class: e.class}
	digits := strings.TrimPrefix(e.name, "dead-"+e.class+"-")[:letterDigits]
	why := session.ChildPath(q.dead, whyName(digits))
	err := q.m.During(ctx, func(inc *session.Incarnation) error {
		nodes, err := inc.GetAll(ctx, []string{session.ChildPath(q.dead, e.name), why})
		switch {
		case err != nil:
			return err
		case nodes[0].Stat == nil:
			return zk.ErrNoNode
		}
		d.Data, d.Since = nodes[0].Data, time.UnixMilli(nodes[0].Stat.Ctime)
		if nodes[1].Stat == nil {
			return nil
		}
		d.why = why
		var c circumstance
		if json.Unmarshal(nodes[1].Data, &c) == nil {
			d.Reason, d.Attempts, d.First = c.Reason, c.Attempts, time.UnixMilli(c.First)
		}
		return nil
	})
	if q.foreign != nil && err == nil {
		if all, fault := q.foreign.open(d.Data); fault == nil && len(all) == 1 {
			d.Data, d.alone = all[0], true
		}
	}
	return d, err
}

// paths returns the znodes of d.
func (d DeadLetter) paths() []string {
	paths := []string{session.ChildPath(d.q.dead, d.ID)}
	if d.why != "" {
		paths = append(paths, d.why)
	}
	return paths
}

// discard removes a dead letter, and reports whether it was there.
func (q *queueCore) discard(ctx context.Context, d DeadLetter) (removed bool, err error) {
	err = q.m.During(ctx, func(inc *session.Incarnation) error { return inc.RemoveAllNow(ctx, d.paths()) })
	if session.IsNoNode(err) {
		return false, nil
	}
	return err == nil, err
}

// RequeueDead puts back the dead letters for which choose returns true, all if
// it is nil, as [DeadLetter.Requeue] does, and returns how many. Those that
// others remove in the meantime are left out. An error ends it.
func (q *Queue[T]) RequeueDead(ctx context.Context, choose func(DeadLetter) bool) (int, error) {
	n, err := q.eachDead(ctx, choose, func(d DeadLetter) (bool, error) {
		err := q.q.requeue(ctx, d)
		if session.IsNoNode(err) {
			return false, nil
		}
		return err == nil, err
	})
	return n, opError("requeue", q.path, err)
}

// PurgeDead deletes the dead letters for which choose returns true, all if it is
// nil, and returns how many. Those that others remove in the meantime are left
// out. An error ends it. To keep them for a time, choose by [DeadLetter].Since.
func (q *Queue[T]) PurgeDead(ctx context.Context, choose func(DeadLetter) bool) (int, error) {
	n, err := q.eachDead(ctx, choose, func(d DeadLetter) (bool, error) { return q.q.discard(ctx, d) })
	return n, opError("purge", q.path, err)
}

// eachDead does something with each dead letter that is chosen, and counts those
// for which it was done.
func (q *Queue[T]) eachDead(ctx context.Context, choose func(DeadLetter) bool, do func(DeadLetter) (bool, error)) (n int, err error) {
	if q.misuse() != nil {
		return 0, q.misuse()
	}
	es, err := q.q.deadElements(ctx)
	if err != nil {
		return 0, err
	}
	for _, e := range es {
		d, err := q.q.deadLetter(ctx, e)
		if session.IsNoNode(err) || err == nil && choose != nil && !choose(d) {
			continue
		}
		done := false
		if err == nil {
			done, err = do(d)
		}
		if err != nil {
			return n, err
		}
		if done {
			n++
		}
	}
	return n, nil
}

func (q *queueCore) requeue(ctx context.Context, d DeadLetter) error {
	var remove []any
	size := 0
	for _, path := range d.paths() {
		remove = append(remove, &zk.DeleteRequest{Path: path, Version: -1})
		size += q.m.SizeOf(path, nil)
	}
	if q.foreign != nil {
		data := d.Data
		if d.alone {
			data = q.foreign.frame(data)
		}
		err := q.m.During(ctx, func(inc *session.Incarnation) error {
			_, err := inc.Create(ctx, q.dir, nil) // others make it a container
			return err
		})
		if err != nil {
			return err
		}
		create := &zk.CreateRequest{Path: session.ChildPath(q.dir, q.foreign.prefix+d.class), Data: data, Acl: q.m.Config.ACL, Flags: zk.FlagSequence}
		_, err = q.m.CommitAcrossSessions(ctx, q.receipts, append(remove, create))
		return err
	}
	prio, err := strconv.Atoi(d.class)
	if err != nil {
		return session.Invalid("the priority of dead letter %s is no number", d.ID)
	}
	p := &parcel{ctx: ctx, prio: prio, data: [][]byte{d.Data}, with: remove, done: make(chan error, 1)}
	p.size = q.elementSize(d.Data) + size
	q.out.add(p)
	select {
	case err := <-p.done:
		return err
	case <-ctx.Done():
		return session.CtxErr(ctx)
	}
}
