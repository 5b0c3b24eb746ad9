package zsync

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

// A QueueLayout is a choice of znodes for a Queue, so that programs written
// with other libraries can share its path.
//
// In the layouts of others a consumer owns an element by deleting its znode,
// and there are no claims that those others would respect. So there zsync
// deletes an element before it is offered to the consumer, and the guarantees
// are weaker: one that was not taken is written back to its place when the
// context ends, but is lost if the process dies, and so is a Delivery that was
// not acknowledged. [WithPrefetch] bounds how many, 1 by default. There is no
// [WithMaxLen] and no [Queue.SendAt]; attempts are not counted; a listing
// grows with the queue, to about 1 MiB at 50,000 elements. Sequence numbers are
// used up after 2^31 elements, and Send then returns go-zookeeper's
// ErrNodeExists: delete and make path anew, when it is empty.
type QueueLayout int

const (
	// LayoutZsync is zsync's own, with all guarantees. It is the default.
	LayoutZsync QueueLayout = iota
	// LayoutSimpleQueue is that of Curator's SimpleDistributedQueue:
	// qn-<seq>, without priorities.
	LayoutSimpleQueue
	// LayoutDistributedQueue is that of Curator's DistributedQueue without a
	// lock path, and of its DistributedPriorityQueue: queue-<seq>, or with
	// [WithPriorities] queue-<priority><seq>, the data in Curator's frame.
	LayoutDistributedQueue
	// LayoutKazooQueue is that of kazoo's Queue: entry-<priority>-<seq>. An
	// element without a priority has kazoo's default, 100.
	LayoutKazooQueue
)

// String returns the layout in a word.
func (l QueueLayout) String() string {
	switch l {
	case LayoutZsync:
		return "zsync"
	case LayoutSimpleQueue:
		return "SimpleDistributedQueue"
	case LayoutDistributedQueue:
		return "DistributedQueue"
	case LayoutKazooQueue:
		return "kazoo"
	}
	return "QueueLayout(" + strconv.Itoa(int(l)) + ")"
}

// A foreign is the layout of another library.
type foreign struct {
	prefix string
	name   func(prio int) string // up to the number; prio is -1 if there is none
	frame  func(data []byte) []byte
	open   func(data []byte) ([][]byte, error) // the inverse; a znode can hold several elements
}

func asIs(data []byte) []byte               { return data }
func justOne(data []byte) ([][]byte, error) { return [][]byte{data}, nil }

var foreignLayouts = map[QueueLayout]*foreign{
	LayoutSimpleQueue: {
		prefix: "qn-",
		name:   func(int) string { return "qn-" },
		frame:  asIs,
		open:   justOne,
	},
	LayoutDistributedQueue: {
		prefix: "queue-",
		name: func(prio int) string {
			if prio < 0 {
				return "queue-"
			}
			return fmt.Sprintf("queue-1%08X", prio)
		},
		frame: curatorFrame,
		open:  curatorOpen,
	},
	LayoutKazooQueue: {
		prefix: "entry-",
		name: func(prio int) string {
			if prio < 0 {
				prio = 100
			}
			return fmt.Sprintf("entry-%03d-", prio)
		},
		frame: asIs,
		open:  justOne,
	},
}

// foreignElement parses a name: what stands between the prefix and the number
// is the priority, which all these libraries compare as text.
func (f *foreign) element(name string) (e element, prio string, ok bool) {
	rest, ok := strings.CutPrefix(name, f.prefix)
	if !ok || strings.Contains(rest, "|") { // of Curator's delay and id queues
		return e, "", false
	}
	for _, n := range []int{11, 10} {
		if len(rest) < n {
			continue
		}
		text := rest[len(rest)-n:]
		if n == 11 && text[0] != '-' || n == 11 && len(rest) > n && f.prefix == "entry-" && rest[len(rest)-n-1] != '-' {
			continue
		}
		if seq, ok := parseSeq(text); ok {
			return element{name: name, seq: seq}, rest[:len(rest)-n], true
		}
	}
	return e, "", false
}

// elements returns the elements among names, in order.
func (f *foreign) elements(names []string) []element {
	type ordered struct {
		element
		prio string
	}
	var all []ordered
	for _, name := range names {
		if e, prio, ok := f.element(name); ok {
			all = append(all, ordered{e, prio})
		}
	}
	slices.SortFunc(all, func(a, b ordered) int {
		if a.prio != b.prio {
			return strings.Compare(a.prio, b.prio)
		}
		return cmp.Compare(a.seq-b.seq, 0)
	})
	es := make([]element, len(all))
	for i, o := range all {
		es[i] = o.element
		es[i].prio = i // they are in order: see element.before
	}
	return es
}

// Curator's frame: a version, then each element behind a byte and its length,
// then another byte.
const (
	curatorVersion = 0x00010001
	curatorItem    = 0x01
	curatorEnd     = 0x02
)

func curatorFrame(data []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, curatorVersion)
	b = append(b, curatorItem)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	b = append(b, data...)
	return append(b, curatorEnd)
}

var errFrame = errors.New("not an element in Curator's frame")

func curatorOpen(b []byte) (all [][]byte, err error) {
	if len(b) < 4 || binary.BigEndian.Uint32(b) != curatorVersion {
		return nil, errFrame
	}
	for b = b[4:]; ; {
		switch {
		case len(b) > 0 && b[0] == curatorEnd:
			return all, nil
		case len(b) < 5 || b[0] != curatorItem:
			return nil, errFrame
		}
		n := int(int32(binary.BigEndian.Uint32(b[1:])))
		if n < 0 || n > len(b)-5 {
			return nil, errFrame
		}
		all, b = append(all, b[5:5+n]), b[5+n:]
	}
}

// firstForeign reads the first element.
func (q *queueCore) firstForeign(ctx context.Context, inc *incarnation) (*item, error) {
	for synced := false; ; {
		names, _, err := inc.children(ctx, q.dir)
		if err != nil && !isNoNode(err) {
			return nil, err
		}
		es := q.foreign.elements(names)
		if len(es) == 0 && synced {
			return nil, nil
		}
		if len(es) == 0 { // there is nothing only if the leader says so
			synced = true
			if err := inc.sync(ctx, q.dir); err != nil {
				return nil, err
			}
		}
		for _, e := range es {
			data, stat, err := inc.get(ctx, childPath(q.dir, e.name))
			if isNoNode(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			all, err := q.foreign.open(data)
			if err != nil || len(all) != 1 {
				all = [][]byte{data}
			}
			return &item{element: e, data: all[0], framed: data, version: stat.Version, sent: time.UnixMilli(stat.Ctime)}, nil
		}
	}
}

// pluckForeign is pluck for another library's layout. An element that shares
// its znode with others is left to consumers that can keep the others.
func (q *queueCore) pluckForeign(ctx context.Context, check func(it *item) error) (*item, error) {
	var taken *item
	err := q.m.during(ctx, func(inc *incarnation) error {
		for {
			it, err := q.firstForeign(ctx, inc)
			if err != nil || it == nil {
				taken = nil
				return err
			}
			all, fault := q.foreign.open(it.framed)
			if fault == nil && len(all) != 1 {
				fault = fmt.Errorf("%d elements in one znode, which TryRecv cannot take apart", len(all))
				return fault
			}
			if fault == nil {
				fault = check(it)
			}
			ops := []any{&zk.DeleteRequest{Path: childPath(q.dir, it.name), Version: it.version}}
			if fault != nil {
				ops = append(ops, &zk.CreateRequest{Path: childPath(q.dead, deadName(0)), Data: it.framed, Acl: q.m.cfg.acl, Flags: zk.FlagSequence})
				if err := inc.makeDir(ctx, q.dead); err != nil {
					return err
				}
			}
			err = q.remove(ctx, it, ops)
			if isNoNode(err) || isBadVersion(err) {
				if err := inc.sync(ctx, q.dir); err != nil {
					return err
				}
				continue
			}
			if err != nil {
				return err
			}
			if fault != nil {
				it.missing = true
				q.buried(it.name, fault)
			}
			taken = it
			return nil
		}
	})
	return taken, err
}

// turnForeign is turn in another library's layout: it watches the children of
// the queue, and claims by deleting.
func (p *pump) turnForeign(inc *incarnation, l *ledger) error {
	q, ctx := p.q, p.ctx
	var es []element
	claimed := 0
	for {
		if err := p.awaitRoom(inc, patienceForRoom); err == errNoRoom {
			return nil
		} else if err != nil {
			return err
		}
		if len(es) == 0 {
			w := inc.hub.join(watchKey{watchChildren, q.dir})
			names, _, err := inc.children(ctx, q.dir)
			if isNoNode(err) {
				inc.hub.leave(w)
				if _, err := inc.create(ctx, q.dir, nil); err != nil {
					return err
				}
				continue
			}
			if es = q.foreign.elements(names); err == nil && len(es) == 0 {
				q.m.waiters.Add(1)
				err = inc.awaitFired(ctx, w)
				q.m.waiters.Add(-1)
			}
			inc.hub.leave(w)
			if err != nil {
				return err
			}
			if len(es) == 0 {
				continue
			}
		}
		room := p.room()
		n := min(len(es), room)
		if n == 0 {
			continue
		}
		items, err := q.seize(ctx, inc, l, es[:n])
		es = es[n:]
		claimed += n
		full := p.fill(items, n, n == room)
		if err != nil {
			return err
		}
		if (full || claimed >= q.cfg.prefetch) && q.othersWait(ctx, inc) {
			return nil
		}
	}
}

// seize reads and deletes elements; those that others were quicker to delete
// are left out.
func (q *queueCore) seize(ctx context.Context, inc *incarnation, l *ledger, es []element) ([]*item, error) {
	found := make([]*item, len(es))
	err := parallel(len(es), func(i int) error {
		data, stat, err := inc.get(ctx, childPath(q.dir, es[i].name))
		if isNoNode(err) {
			return nil
		}
		if err == nil {
			found[i] = &item{element: es[i], framed: data, version: stat.Version, sent: time.UnixMilli(stat.Ctime)}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(it *item) bool { return it == nil })
	for len(found) > 0 {
		ops := make([]any, len(found))
		for i, it := range found {
			ops[i] = &zk.DeleteRequest{Path: childPath(q.dir, it.name), Version: it.version}
		}
		// Once it is begun the outcome is waited for, whatever becomes of the
		// consumers: what is deleted must be given to them, or put back.
		rs, err := q.m.commitOnce(context.Background(), q.receipts, ops)
		if err == nil {
			break
		}
		i := failedOp(rs)
		if i < 0 || !isNoNode(rs[i].Error) && !isBadVersion(rs[i].Error) {
			return nil, err
		}
		found = slices.Delete(found, i, i+1)
	}
	var items []*item
	for _, it := range found {
		all, err := q.foreign.open(it.framed)
		if err != nil {
			it.fault, all = err, [][]byte{it.framed}
		}
		for _, data := range all {
			items = append(items, &item{element: it.element, data: data, framed: it.framed, fault: it.fault, shared: len(all) > 1, sent: it.sent})
		}
	}
	l.adopt(items)
	return items, nil
}

// adopt puts items into the ledger that are ours because we have deleted them.
func (l *ledger) adopt(items []*item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := &batch{left: make(map[*item]bool), items: items}
	for _, it := range items {
		it.ledger, it.batch = l, b
		b.left[it] = true
	}
	if len(items) > 0 {
		l.batches[b] = struct{}{}
	}
	if l.ended {
		for _, it := range items {
			l.enterLocked(it, fateReturn, false)
		}
	}
}

// enterForeignLocked carries out an entry by itself.
func (l *ledger) enterForeignLocked(e *entry) {
	l.q.m.spawn(func() {
		switch it := e.item; {
		case e.fate == fateReturn && it.shared:
			e.err = l.q.create(childPath(l.q.dir, l.q.foreign.name(-1)), l.q.foreign.frame(it.data))
		case e.fate == fateReturn:
			l.q.restore(&item{element: it.element, data: it.framed})
		case e.fate == fateBury && it.fault != nil:
			e.err = l.q.create(childPath(l.q.dead, deadName(0)), it.framed)
		case e.fate == fateBury:
			e.err = l.q.create(childPath(l.q.dead, deadName(0)), it.data)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if e.fate != fateHand {
			delete(e.item.batch.left, e.item)
			if len(e.item.batch.left) == 0 {
				delete(l.batches, e.item.batch)
			}
		}
		close(e.done)
		l.startLocked() // it may be over
	})
}

// create stores an element that is ours under a new number, exactly once.
func (q *queueCore) create(path string, data []byte) error {
	ctx := context.Background()
	err := q.m.during(ctx, func(inc *incarnation) error { return inc.makeDir(ctx, parentPath(path)) })
	if err == nil {
		_, err = q.m.commitOnce(ctx, q.receipts, []any{&zk.CreateRequest{Path: path, Data: data, Acl: q.m.cfg.acl, Flags: zk.FlagSequence}})
	}
	if err != nil {
		q.m.log.Error("zsync: cannot store an element", "path", path, "err", err)
	}
	return err
}
