package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
	txns "github.com/zsync/zsync/internal/txn"
)

// This file stores elements: it groups the calls of Send of many goroutines, finds the newest
// bucket, and creates the next bucket when the newest is full. room.go waits for room in the queue.

// The type `parcel` has the elements of one call of Send. The outbox stores all of them or none.
type parcel struct {
	ctx  context.Context // context of the Send that waits for the result
	prio int
	due  int64 // in Unix milliseconds; 0 if it is not delayed
	data [][]byte
	tags []string   // of each element
	id   string     // the hash of its ID, or empty
	size int        // upper bound of the size of its requests
	with []any      // additional operations; a parcel with additional operations has its own transaction
	done chan error // has room for the result

	// The fields below are for a parcel with an ID. Only the goroutine that sends uses them.

	stale *zk.Stat // Stat of the ID's note, if the note has expired and the transaction must replace it
	swept int32    // version of the znode `ids` before the note was read: while `ids` has this version, no sweep has deleted the note
	err   error    // if not nil, the reason why the outbox does not send the parcel
}

// The method `keyed` reports whether an element of `p` has a key.
func (p *parcel) keyed() bool {
	return slices.ContainsFunc(p.tags, func(tag string) bool { return keyOf(tag) != "" })
}

// The type `producer` has what all outboxes of a Queue value share.
type producer struct {
	*Common
	slots slots
	gate  gate
	full  sync.Map // by priority, the number of the newest bucket that a response showed to be full
}

// The method `parcel` returns the parcel of the batch `b`.
func (q *Common) parcel(ctx context.Context, b Batch) (*parcel, error) {
	p := &parcel{ctx: ctx, prio: b.Priority, data: b.Data, done: make(chan error, 1)}
	if p.prio == Middle {
		p.prio = (q.cfg.Priorities - 1) / 2
	}
	if !b.Due.IsZero() {
		p.due = dueAt(b.Due)
	}
	if b.ID != "" {
		p.id = tagOf("", b.ID)[1:]
		p.size += 2 * q.m.SizeOf(q.idPath(p.id), make([]byte, 64))
	}
	for i, data := range b.Data {
		key := ""
		if b.Keys != nil {
			key = b.Keys[i]
		}
		p.tags = append(p.tags, tagOf(key, b.ID))
		p.size += q.elementSize(data)
	}
	limit := session.MaxPacket - q.overhead()
	if len(b.Data) == 1 {
		// A client that returns or requeues the element, or makes it a dead letter, needs a larger
		// request: that request also has the paths of other znodes, which can be long.
		limit -= 96 + 12*max(0, len(q.dir)-32)
	}
	if p.size > limit {
		return nil, fmt.Errorf("a request of %[2]d bytes (elements: %[1]d), %[3]d too many: %[4]w", len(b.Data), p.size, p.size-limit, session.ErrTooLarge)
	}
	return p, nil
}

// elementSize returns an upper bound of the bytes that an element adds to a transaction.
func (q *Common) elementSize(data []byte) int {
	return len(data) + len(q.dir) + len("/b-00000-0000000000/t0000000000000-") + 48 + 2 + keyDigits + idDigits + q.m.SizeOfACL(q.m.Config.ACL)
}

// The method `overhead` returns the bytes that a transaction needs in addition to its elements.
func (q *Common) overhead() int {
	return 64 + 2*q.m.SizeOf(q.senders+"/"+noGUID, nil) + 3*q.m.SizeOf(q.dir+"/"+bucketName(0, math.MaxInt64), nil)
}

// The type `outbox` stores the parcels of all goroutines, one transaction after another, in the
// order in which they arrive. A parcel that arrives during a transaction is stored by the next
// transaction.
//
// A receipt ensures that each transaction is applied exactly once. It is tempting to look for the
// elements instead. Their absence would prove nothing, because consumers may have removed them.
type outbox struct {
	*producer

	mu      sync.Mutex
	waiting []*parcel // guarded by mu
	running bool      // the goroutine that sends is running; guarded by mu

	// Only the goroutine that sends uses the fields below.

	brief bool          // the outbox is for one transaction; to save a round trip, it does not read how full a bucket is
	first int64         // the czxid of the queue's znode
	tails map[int]*tail // the known tails, by priority
}

// The type `tail` is an outbox's knowledge of the tail of a priority.
type tail struct {
	made    bool  // the znode exists
	version int32 // of the znode
	bucket  int64 // number of the newest bucket; if the znode does not exist, the next number belongs to the first bucket
	full    bool  // the newest bucket is full, or does not exist
	gone    bool  // another client has deleted the newest bucket, but not the queue
	last    int   // for the tail after a transaction: index of the step that creates the last element of this priority
}

// maxGroup is the largest number of elements that a transaction stores for several calls of Send. A
// single Send can have more elements.
const maxGroup = 1000

// The method `send` puts a parcel into the outbox, and waits until the parcel is stored or refused,
// or the parcel's context ends.
func (o *outbox) send(p *parcel) error {
	o.mu.Lock()
	o.waiting = append(o.waiting, p)
	if !o.running {
		o.running = true
		o.m.Spawn(o.run)
	}
	o.mu.Unlock()
	select {
	case err := <-p.done:
		return err
	case <-p.ctx.Done():
		return session.CtxErr(p.ctx)
	}
}

// The method `run` stores parcels until there are no more.
func (o *outbox) run() {
	_, stay := o.m.BeforeClose()
	defer stay()
	for {
		group := o.take()
		if group == nil {
			return
		}
		err := o.post(group)
		for _, p := range group {
			p.done <- cmp.Or(p.err, err)
		}
		if inc := o.m.Present(); inc != nil {
			o.Sweep(inc)
		}
	}
}

// The method `take` removes the parcels of the next transaction from the outbox. If there are none, it
// returns nil, and `run` must end.
func (o *outbox) take() (group []*parcel) {
	o.mu.Lock()
	defer o.mu.Unlock()
	size, n := o.overhead(), 0
	for len(o.waiting) > 0 {
		p := o.waiting[0]
		if p.ctx.Err() != nil {
			// It was never sent.
			p.done <- session.CtxErr(p.ctx)
			o.waiting = o.waiting[1:]
			continue
		}
		size += p.size + o.overhead() // the parcel may need a new bucket
		n += len(p.data)
		twice := p.id != "" && slices.ContainsFunc(group, func(o *parcel) bool { return o.id == p.id })
		if len(group) > 0 && (size > session.MaxPacket || n > maxGroup || twice || len(p.with)+len(group[0].with) > 0) {
			break
		}
		group = append(group, p)
		o.waiting = o.waiting[1:]
	}
	o.running = group != nil
	return group
}

// The method `post` stores a group.
func (o *outbox) post(group []*parcel) error {
	// If one call of Send ends early, the other calls of its group must continue. So ctx ends only
	// when the contexts of all these calls have ended.
	ctx, cancel := context.WithCancel(session.Finishing)
	defer cancel()
	var left atomic.Int64
	left.Store(int64(len(group)))
	for _, p := range group {
		defer context.AfterFunc(p.ctx, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		})()
	}
	x := &load{m: o.m, sends: []*shipment{{o: o, group: slices.Clone(group)}}}
	_, err := x.apply(ctx, func(ops []any) ([]zk.MultiResponse, error) { return txns.Across(ctx, o.m, o.senders, ops) })
	if err != nil && len(group) > 1 && (session.OutcomeOf(err) == session.Answered || errors.Is(err, session.ErrMixed)) {
		// Nothing was applied. Perhaps only one of the calls is at fault.
		for _, p := range group {
			err := o.post([]*parcel{p})
			p.err = cmp.Or(p.err, err)
		}
		return nil
	}
	return err
}

// The type `load` has the operations and sends of a program in one transaction. The transaction can
// also remove an element. Until it is applied, the element stays in hand: a refused load changes
// nothing.
type load struct {
	m     *session.Manager
	ops   []any       // the program's own operations, with paths as the servers know them
	sends []*shipment // one for each queue; each of the program has an outbox of its own, so that it keeps its knowledge of the queue from the first attempt to the last
	size  int         // upper bound, in bytes

	rs []zk.MultiResponse // if it removes an element: responses to the program's operations
}

// The type `shipment` has all elements that one transaction sends to one queue. Two shipments to a
// queue could fail: each checks the version of the tail, and the first could change the version that
// the second checks.
type shipment struct {
	o     *outbox
	group []*parcel
	op    int // for a load of the program: index of the first operation that sends to the queue
	at    int // index of its first step in the load

	steps []step
	tails map[int]*tail // by priority, as the `steps` leave them
}

// The method `apply` applies the load with the function `commit`. It cures the refusals of steps that
// store elements. It returns the responses to the program's operations.
func (x *load) apply(ctx context.Context, commit func(ops []any) ([]zk.MultiResponse, error)) (rs []zk.MultiResponse, err error) {
	for {
		var steps []step
		err := x.m.During(ctx, func(inc *session.Incarnation) (err error) {
			steps, err = x.steps(inc)
			return err
		})
		if err != nil || len(steps) == 0 {
			return nil, err
		}
		rs, err := commit(opsOf(steps))
		if err == nil {
			return x.answered(rs), nil
		}
		// If the outcome is unknown, the responses show only which operation the last attempt has failed at.
		i := session.FailedOp(rs)
		if i < len(x.ops) || session.OutcomeOf(err) != session.Answered {
			for _, s := range x.sends {
				s.o.forget() // the transaction may have been applied, and then the versions have changed
			}
			return rs[:min(len(rs), len(x.ops))], err
		}
		if err := x.m.During(ctx, func(inc *session.Incarnation) error { return steps[i].cure(inc, rs[i].Error) }); err != nil {
			return nil, err // not the error of the refusal, which would mean that an operation of the program was at fault
		}
	}
}

// The method `steps` returns the steps of one attempt.
func (x *load) steps(inc *session.Incarnation) (steps []step, err error) {
	for _, op := range x.ops {
		steps = append(steps, step{op, incurable})
	}
	for _, s := range x.sends {
		if err := s.build(inc); err != nil {
			return nil, err
		}
		s.at = len(steps)
		steps = append(steps, s.steps...)
	}
	return steps, nil
}

// The method `answered` is called with the responses to the steps, after the load was applied. It
// returns the responses to the program's operations.
func (x *load) answered(rs []zk.MultiResponse) []zk.MultiResponse {
	for _, s := range x.sends {
		s.learn(rs[s.at : s.at+len(s.steps)])
	}
	return x.m.BareResponses(rs[:len(x.ops)])
}

// The method `build` sets g.steps to the transaction of one attempt. It uses the buckets that the
// outbox knows. If the servers have refused an attempt, for example because the newest bucket was
// deleted, a cure has corrected that knowledge.
func (g *shipment) build(inc *session.Incarnation) error {
	g.group = slices.DeleteFunc(g.group, func(p *parcel) bool { return p.err != nil })
	if g.steps, g.tails = nil, nil; len(g.group) == 0 {
		return nil
	}
	err := g.o.vet(session.Finishing, inc)
	if err == nil {
		err = g.o.locate(inc, g.group)
	}
	if err == nil {
		err = g.assemble(inc)
	}
	return err
}

// The method `learn` reads from the responses to g.steps which buckets are full now.
func (g *shipment) learn(rs []zk.MultiResponse) {
	for prio, t := range g.tails {
		e, ok := parseElement(bucket{}, session.BaseName(rs[t.last].String))
		if !ok { // the reply was lost
			g.o.forget()
			return
		}
		if t.full = e.seq >= bucketSize-1; t.full {
			if last, _ := g.o.full.Swap(prio, t.bucket); g.o.brief && last != t.bucket {
				g.o.makeSuccessor(prio)
			}
		}
		g.o.tails[prio] = t
	}
	for _, r := range rs {
		g.o.slots.learn(r.String)
	}
}

// makeSuccessor creates the successor of a full bucket, in the background. A brief outbox calls it,
// because the next outbox may be brief, too. Then that outbox does not know that the bucket is full.
func (o *outbox) makeSuccessor(prio int) {
	_, stay := o.m.BeforeClose()
	o.m.Spawn(func() {
		defer stay()
		o.m.During(session.Finishing, func(inc *session.Incarnation) error {
			g := &shipment{o: &outbox{producer: o.producer}, group: []*parcel{{prio: prio}}}
			err := g.build(inc)
			if err == nil {
				_, err = inc.Multi(session.Finishing, opsOf(g.steps)...) // a refusal means that another client was faster
			}
			return err
		})
	})
}

// The method `locate` reads the tails that a group needs and the outbox does not know.
func (o *outbox) locate(inc *session.Incarnation, group []*parcel) error {
	ctx := session.Finishing // ends with the session
	paths := []string{o.dir}
	var prios []int
	for _, p := range group {
		if o.tails[p.prio] == nil && !slices.Contains(prios, p.prio) {
			prios = append(prios, p.prio)
			paths = append(paths, session.ChildPath(o.dir, tailName(p.prio)))
		}
	}
	if prios == nil {
		return nil
	}
	nodes, err := inc.GetAll(ctx, paths)
	switch {
	case err != nil:
		return err
	case nodes[0].Stat == nil:
		if err := o.makeQueue(inc); err != nil {
			return err
		}
		return o.locate(inc, group)
	case !ours(nodes[0].Data):
		return o.m.Mixed(o.dir)
	case nodes[0].Stat.Czxid != o.first && len(o.tails) > 0:
		o.forget() // the known tails belong to a queue that was deleted
		return o.locate(inc, group)
	}
	o.first = nodes[0].Stat.Czxid
	if o.tails == nil {
		o.tails = make(map[int]*tail)
	}
	for i, prio := range prios {
		// A priority without a tail begins with a new number. Each transaction that creates a bucket also
		// writes the queue's znode. So its last write has a higher zxid than the number of any bucket.
		t := &tail{bucket: nodes[0].Stat.Mzxid - 1, full: true}
		if n := nodes[i+1]; n.Stat != nil {
			t.made, t.version = true, n.Stat.Version
			if t.bucket, err = strconv.ParseInt(string(n.Data), 10, 64); err != nil || t.bucket < 0 {
				return o.m.Mixed(o.dir)
			}
			last, ok := o.full.Load(prio)
			t.full = ok && last == t.bucket
		}
		o.tails[prio] = t
	}
	if o.brief {
		return nil
	}
	return o.fathom(ctx, inc, prios)
}

// The method `fathom` finds out which of the newest buckets of these priorities are full or deleted. A
// producer that has filled a bucket creates the next bucket in its next Send. But if each producer
// sends only once, no producer creates the next bucket, and the tail still names the full bucket.
func (o *outbox) fathom(ctx context.Context, inc *session.Incarnation, prios []int) error {
	var known []int
	var paths []string
	for _, prio := range prios {
		if t := o.tails[prio]; t.made {
			known, paths = append(known, prio), append(paths, session.ChildPath(o.dir, bucketName(prio, t.bucket)))
		}
	}
	if paths == nil {
		return nil
	}
	nodes, err := inc.GetAll(ctx, paths)
	if err != nil {
		o.forget()
		return err
	}
	for i, n := range nodes {
		t := o.tails[known[i]]
		t.gone = n.Stat == nil
		t.full = t.full || t.gone || newLot(bucket{}, n).last >= bucketSize-1
	}
	return nil
}

// The method `assemble` sets g.steps and g.tails.
func (g *shipment) assemble(inc *session.Incarnation) error {
	o := g.o
	g.tails = make(map[int]*tail)
	anew := func(*session.Incarnation) error {
		o.forget() // another producer has created the next bucket, or another client has deleted a bucket or the queue
		o.brief = false
		return nil
	}
	g.add(ring(o.dir), when(session.IsNoNode, o.makeQueue)) // the bell
	if keys := session.ChildPath(o.dir, keysName); slices.ContainsFunc(g.group, (*parcel).keyed) {
		g.add(&zk.CheckVersionRequest{Path: keys, Version: -1}, when(session.IsNoNode, func(inc *session.Incarnation) error {
			_, err := inc.Create(session.Finishing, keys, nil)
			if session.IsNoNode(err) {
				err = nil // the queue was deleted: the servers refuse the next attempt, and then the cure of the bell creates the queue
			}
			return err
		}))
	}
	for _, p := range g.group {
		for _, op := range p.with {
			g.add(op, incurable)
		}
		var dir string
		var makeDir func(*session.Incarnation, error) error
		if p.due == 0 {
			if g.tails[p.prio] == nil {
				g.tails[p.prio] = g.open(p.prio, when(func(err error) bool { return outrun(err) || session.IsNodeExists(err) }, anew))
			}
			dir = session.ChildPath(o.dir, bucketName(p.prio, g.tails[p.prio].bucket))
			makeDir = when(session.IsNoNode, anew)
		} else {
			at := slotOf(p.prio, p.due, time.Now().UnixMilli())
			err := zk.ErrNoNode
			for session.IsNoNode(err) {
				if dir, err = o.slots.bucket(inc, at); session.IsNoNode(err) {
					err = cmp.Or(o.makeQueue(inc), err)
				}
			}
			if err != nil {
				return err
			}
			makeDir = o.slots.cure(at)
		}
		g.identify(p, session.BaseName(dir))
		for i, data := range p.data {
			if p.due == 0 {
				g.tails[p.prio].last = len(g.steps)
			}
			g.add(&zk.CreateRequest{Path: session.ChildPath(dir, elementName(p.due, p.tags[i])), Data: data, Acl: o.m.Config.ACL, Flags: zk.FlagSequence}, makeDir)
		}
	}
	return nil
}

// makeQueue creates the queue's znode. The znode is not a container: the servers delete an empty
// container, and the numbers of the buckets would then begin with the zxid of another znode.
func (o *outbox) makeQueue(inc *session.Incarnation) error {
	o.forget()
	_, err := inc.Create(session.Finishing, o.dir, []byte(marks.Dir))
	return err
}

func (g *shipment) add(op any, c func(*session.Incarnation, error) error) {
	g.steps = append(g.steps, step{op, c})
}

// The method `open` adds the steps that a bucket needs before it gets elements: a check that it is
// the newest bucket, or the creation of the next bucket. It returns the tail as it will be after
// these steps.
func (g *shipment) open(prio int, anew func(*session.Incarnation, error) error) *tail {
	t, acl := *g.o.tails[prio], g.o.m.Config.ACL
	path := session.ChildPath(g.o.dir, tailName(prio))
	if !t.full {
		g.add(&zk.CheckVersionRequest{Path: path, Version: t.version}, anew)
		return &t
	}
	t.bucket++
	number := []byte(strconv.FormatInt(t.bucket, 10))
	if t.made && !t.gone {
		// Another client may have deleted the queue and created it again, and the new tail may have
		// this version too. But then this check fails, because the new queue has no bucket of this
		// name: the numbers of its buckets begin with its own zxid.
		g.add(&zk.CheckVersionRequest{Path: session.ChildPath(g.o.dir, bucketName(prio, t.bucket-1)), Version: -1}, anew)
	}
	if t.made {
		g.add(&zk.SetDataRequest{Path: path, Data: number, Version: t.version}, anew)
		t.version++
	} else {
		g.add(&zk.CreateRequest{Path: path, Data: number, Acl: acl}, anew)
		t.version = 0
	}
	g.add(&zk.CreateRequest{Path: session.ChildPath(g.o.dir, bucketName(prio, t.bucket)), Acl: acl}, when(session.IsNodeExists, func(*session.Incarnation) error {
		g.o.tails[prio].bucket++ // another client has created this bucket without the tail: pass over it
		return nil
	}))
	t.made, t.full, t.gone = true, false, false
	return &t
}

func (o *outbox) forget() { o.tails = nil }

// idPath returns the path of the note of an ID, by its hash.
func (q *Common) idPath(hash string) string { return q.ids + "/" + hash[:2] + "/" + hash[2:] }

// If a parcel has an ID, `identify` adds the steps that write the note of the ID. The note names
// the bucket of the element.
func (g *shipment) identify(p *parcel, bucket string) {
	if p.id == "" {
		return
	}
	q := g.o
	path := q.idPath(p.id)
	add := func(op any) {
		g.add(op, func(inc *session.Incarnation, err error) error { return g.known(session.Finishing, inc, p, err) })
	}
	data := noteOf(q.cfg.IDMemory, bucket)
	if p.stale != nil {
		add(&zk.CheckVersionRequest{Path: q.ids, Version: p.swept})
		add(&zk.SetDataRequest{Path: path, Data: data, Version: p.stale.Version})
	} else {
		add(&zk.CreateRequest{Path: path, Data: data, Acl: q.m.Config.ACL})
	}
}

// The method `known` is the cure for a refusal of the note of a parcel's ID.
func (g *shipment) known(ctx context.Context, inc *session.Incarnation, p *parcel, err error) error {
	switch {
	case session.IsNoNode(err) && p.stale == nil:
		// MakeDir creates the znode `ids` as a persistent znode. If `ids` were deleted and created
		// again, its version would be 0 again, and the checks of the version would prove nothing.
		return inc.MakeDir(ctx, session.Dir{Path: session.ParentPath(g.o.idPath(p.id))})
	case outrun(err), session.IsNodeExists(err):
		return g.reread(ctx, inc)
	}
	return err
}

// The method `reread` reads the notes of all IDs of the group, including the notes that the group
// replaces. It reads all notes at once, because a concurrent sweep can change one note after
// another, and each change would make another attempt fail. A parcel whose ID the queue remembers
// gets the error ErrKnown, and leaves the group.
func (g *shipment) reread(ctx context.Context, inc *session.Incarnation) error {
	q := g.o
	ids, err := inc.Exists(ctx, q.ids)
	if err != nil {
		return err
	}
	var with []*parcel
	var paths []string
	for _, p := range g.group {
		if p.id != "" {
			with, paths = append(with, p), append(paths, q.idPath(p.id))
		}
	}
	nodes, err := inc.GetAll(ctx, paths)
	if err != nil {
		return err
	}
	for i, p := range with {
		n, known := nodes[i], p.stale
		if p.stale = nil; ids == nil || n.Stat == nil {
			continue
		}
		if known == nil || known.Mzxid != n.Stat.Mzxid {
			remembered, err := q.remembers(ctx, inc, paths[i], n)
			if err != nil {
				return err
			}
			if remembered {
				p.err = ErrKnown
				continue
			}
		}
		p.stale, p.swept = n.Stat, ids.Version
	}
	return nil
}
