package zsync

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

// Dead letters are the elements of a Queue that could not be decoded, or were
// delivered too often ([WithMaxAttempts]). They are moved, in one transaction,
// to <path>-dead/dead-<priority>-<16 random digits>-<seq>, the data of their znodes as it was,
// reported to the logger and as [Dead] to the observer, and stay there until
// somebody removes them.

// deadName is the name of a dead letter up to its number. In another library's
// layout the priority is written as there. The numbers begin again when the
// servers have removed the directory of the dead letters because it was empty,
// so what is random in the name keeps one from being taken for another.
func (q *queueCore) deadName(e element) string {
	class := e.class
	if q.foreign == nil {
		class = fmt.Sprintf("%05d", e.prio)
	}
	return "dead-" + class + "-" + strings.ReplaceAll(newGUID(), "-", "")[:deadDigits] + "-"
}

// deadDigits is how many random digits the name of a dead letter has.
const deadDigits = 16

// letter prepares to make it a dead letter, and returns the operation.
func (q *queueCore) letter(ctx context.Context, inc *incarnation, it *item) (*zk.CreateRequest, error) {
	op := &zk.CreateRequest{Path: childPath(q.dead, q.deadName(it.element)), Data: it.stored(), Acl: q.m.cfg.acl, Flags: zk.FlagSequence}
	if q.oversized(op) {
		return nil, fmt.Errorf("the element %s cannot go to the dead letters: %w", it.key(), ErrTooLarge)
	}
	return op, inc.makeDir(ctx, q.dead)
}

// A DeadLetter is an element that was set aside.
type DeadLetter struct {
	ID    string    // no other dead letter of the queue has had it, or will have
	Data  []byte    // as it was sent
	Since time.Time // when it was set aside, by the servers' clock
	q     *queueCore
	class string // the priority, as it is written in the name
	alone bool   // Data was taken out of another library's frame
}

// Dead yields the dead letters of q, the oldest first, those that are there
// when it begins. An error ends it. It costs one listing and one read for each.
func (q *Queue[T]) Dead(ctx context.Context) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		es, err := []element(nil), q.bad()
		if err == nil {
			es, err = q.q.deadElements(ctx)
		}
		if err != nil {
			yield(DeadLetter{}, opError("dead", q.path, err))
			return
		}
		for _, e := range es {
			d, err := q.q.deadLetter(ctx, e)
			if isNoNode(err) {
				continue // somebody has removed it
			}
			if !yield(d, opError("dead", q.path, err)) || err != nil {
				return
			}
		}
	}
}

func (q *queueCore) deadElements(ctx context.Context) (es []element, err error) {
	var names []string
	err = q.m.during(ctx, func(inc *incarnation) (err error) {
		names, _, err = inc.children(ctx, q.dead)
		return err
	})
	if isNoNode(err) {
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
	j := i - deadDigits - 1
	if !ok || j < 0 || rest[i] != '-' || rest[j] != '-' {
		return element{}, false
	}
	seq, ok := parseSeq(rest[i+1:])
	return element{name: name, class: rest[:j], seq: seq}, ok
}

func (q *queueCore) deadLetter(ctx context.Context, e element) (DeadLetter, error) {
	d := DeadLetter{ID: e.name, q: q, class: e.class}
	err := q.m.during(ctx, func(inc *incarnation) error {
		data, stat, err := inc.get(ctx, childPath(q.dead, e.name))
		if err == nil {
			d.Data, d.Since = data, time.UnixMilli(stat.Ctime)
		}
		return err
	})
	if q.foreign != nil && err == nil {
		if all, fault := q.foreign.open(d.Data); fault == nil && len(all) == 1 {
			d.Data, d.alone = all[0], true
		}
	}
	return d, err
}

// Remove deletes the dead letter. One that is gone already is no error.
func (d DeadLetter) Remove(ctx context.Context) error {
	if d.q == nil {
		return opError("remove", d.ID, invalid("the DeadLetter did not come from a Queue"))
	}
	err := d.q.m.during(ctx, func(inc *incarnation) error { return inc.removeNow(ctx, childPath(d.q.dead, d.ID)) })
	if isNoNode(err) {
		err = nil
	}
	return opError("remove", d.q.path, err)
}

// Requeue puts the element back at the end of the queue, with the priority it
// had, and no attempts. If ctx ends first it is either there or still among
// the dead letters. The error is go-zookeeper's ErrNoNode if somebody else has
// removed it.
func (d DeadLetter) Requeue(ctx context.Context) error {
	if d.q == nil {
		return opError("requeue", d.ID, invalid("the DeadLetter did not come from a Queue"))
	}
	return opError("requeue", d.q.path, d.q.requeue(ctx, d))
}

func (q *queueCore) requeue(ctx context.Context, d DeadLetter) error {
	remove := &zk.DeleteRequest{Path: childPath(q.dead, d.ID), Version: -1}
	if q.foreign != nil {
		data := d.Data
		if d.alone {
			data = q.foreign.frame(data)
		}
		err := q.m.during(ctx, func(inc *incarnation) error {
			_, err := inc.create(ctx, q.dir, nil) // others make it a container
			return err
		})
		if err != nil {
			return err
		}
		create := &zk.CreateRequest{Path: childPath(q.dir, q.foreign.prefix+d.class), Data: data, Acl: q.m.cfg.acl, Flags: zk.FlagSequence}
		_, err = q.m.commitOnce(ctx, q.receipts, []any{remove, create})
		return err
	}
	prio, err := strconv.Atoi(d.class)
	if err != nil {
		return invalid("the priority of dead letter %s is no number", d.ID)
	}
	p := &parcel{ctx: ctx, prio: prio, data: [][]byte{d.Data}, with: remove, done: make(chan error, 1)}
	p.size = q.elementSize(d.Data) + q.m.sizeOf(remove.Path, nil)
	q.out.add(p)
	select {
	case err := <-p.done:
		return err
	case <-ctx.Done():
		return ctxErr(ctx)
	}
}
