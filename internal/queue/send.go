package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/shared"
	"github.com/zsync/zsync/internal/znodes"
)

// This file stores elements in the newest bucket, and creates the next bucket when the newest is full.

// The type `parcel` has the elements of one call of Send. The outbox stores all of them or none.
type parcel struct {
	ctx  context.Context // context of the Send that waits for the result
	prio int
	due  int64 // in Unix milliseconds; 0 if it is not delayed
	data [][]byte
	tags []string   // of each element
	id   string     // the hash of its ID, or empty
	size int        // upper bound of the size of its requests
	done chan error // has room for the result

	// The fields below are for a parcel with an ID. Only the goroutine that sends uses them.

	stale *zk.Stat // Stat of the ID's note, if the note has expired and the transaction must replace it
	swept int32    // version of the znode `ids` before the note was read: while `ids` has this version, no sweep has deleted the note
	err   error    // if not nil, the reason why the outbox does not send the parcel
}

// The type `producer` is the part of a Queue value that sends. It stores the parcels of all goroutines, one
// transaction after another, in the order in which they arrive. A parcel that arrives during a transaction
// is stored by the next transaction.
type producer struct {
	*Common
	known sync.Map             // by priority, the *tail that this client has read or left last
	slots shared.Cache[string] // by slot, a bucket that probably exists and is not full

	mu      sync.Mutex
	waiting []*parcel // guarded by mu
	running bool      // the goroutine that sends is running; guarded by mu

	// The fields below are for a queue with a limit: see room.go.

	turn     chan struct{} // a goroutine puts a token in before it looks for room, and takes it out when it has room: so Sends keep their order
	full     chan struct{} // the goroutine with the token of `turn` sends to it while it waits for room
	unstored atomic.Int64  // elements that have room, and are not stored yet

	// Only the goroutine with the token of `turn` uses these fields.

	have    int           // elements at the last count, plus the elements that this client has sent since
	again   time.Duration // time between two counts, by the number of buckets at the last count
	counted time.Time     // time of the last count
}

func (q *Common) parcel(ctx context.Context, b Batch) (*parcel, error) {
	p := &parcel{ctx: ctx, prio: b.Priority, data: b.Data, done: make(chan error, 1)}
	if !b.Due.IsZero() {
		p.due = dueAt(b.Due)
	}
	if b.ID != "" {
		p.id = tagOf("", b.ID)[1:]
		p.size += 2 * znodes.SizeOf(q.m, q.idPath(p.id), make([]byte, 64))
	}
	for i, data := range b.Data {
		key := ""
		if b.Keys != nil {
			key = b.Keys[i]
		}
		p.tags = append(p.tags, tagOf(key, b.ID))
		p.size += len(data) + len(q.dir) + len("/b-00000-0000000000/t0000000000000-") + 48 + 2 + keyDigits + idDigits + znodes.SizeOfACL(q.m, q.m.Config.ACL)
	}
	limit := znodes.MaxPacket - q.overhead()
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

// The method `overhead` returns the bytes that a transaction needs in addition to its elements.
func (q *Common) overhead() int {
	return 62 + 2*znodes.SizeOf(q.m, q.Receipts, make([]byte, 37)) + 3*znodes.SizeOf(q.m, q.dir+"/"+bucketName(0, math.MaxInt64), nil)
}

// The type `outbox` has the parcels of one transaction for one queue.
//
// A receipt ensures that each transaction is applied exactly once. It is tempting to look for the
// elements instead. Their absence would prove nothing, because consumers may have removed them.
type outbox struct {
	*producer
	group []*parcel
	tails map[int]*tail // by priority, the tails as the `steps` leave them
	steps []step        // one attempt

	// The fields below are for a transaction of the program.

	op   int // index of the first operation that sends to the queue
	need int // number of elements for which there must be room
	room int // number of these that count as unstored, until the load is applied or refused
}

// The type `tail` is a producer's knowledge of the tail of a priority. A tail is never changed in place.
type tail struct {
	version int32 // of the znode; -1 if it does not exist
	bucket  int64 // number of the newest bucket; -1 if it does not exist
	next    int64 // if the newest bucket is full or does not exist, the number of the next bucket; otherwise 0
}

// maxGroup is the largest number of elements that a transaction stores for several calls of Send. A
// single Send can have more elements.
const maxGroup = 1000

func (q *producer) Send(ctx context.Context, b Batch) error {
	p, err := q.parcel(ctx, b)
	if err == nil {
		err = q.admit(ctx, len(p.data), p, b.NoWait)
	}
	if err != nil {
		return err
	}
	q.mu.Lock()
	q.waiting = append(q.waiting, p)
	if !q.running {
		q.running = true
		q.m.Spawn(q.run)
	}
	q.mu.Unlock()
	select {
	case err := <-p.done:
		return err
	case <-ctx.Done():
		return session.CtxErr(ctx)
	}
}

func (q *producer) run() {
	_, stay := q.m.BeforeClose()
	defer stay()
	for group := q.take(); group != nil; group = q.take() {
		err := q.post(group)
		for _, p := range group {
			q.unstored.Add(-int64(len(p.data)))
			p.done <- cmp.Or(p.err, err)
		}
		if inc := q.m.Present(); inc != nil {
			q.Sweep(inc)
		}
	}
}

// The method `take` returns the waiting parcels for the next transaction. If there are none, it returns
// nil, and `run` must end.
func (q *producer) take() (group []*parcel) {
	q.mu.Lock()
	defer q.mu.Unlock()
	size, n := q.overhead(), 0
	for len(q.waiting) > 0 {
		p := q.waiting[0]
		if p.ctx.Err() != nil {
			// It was never sent.
			q.unstored.Add(-int64(len(p.data)))
			p.done <- session.CtxErr(p.ctx)
			q.waiting = q.waiting[1:]
			continue
		}
		size += p.size + q.overhead() // the parcel may need a new bucket
		n += len(p.data)
		twice := p.id != "" && slices.ContainsFunc(group, func(o *parcel) bool { return o.id == p.id })
		if len(group) > 0 && (size > znodes.MaxPacket || n > maxGroup || twice) {
			break
		}
		group = append(group, p)
		q.waiting = q.waiting[1:]
	}
	q.running = group != nil
	return group
}

func (q *producer) post(group []*parcel) error {
	// If one call of Send ends early, the other calls of its group must continue. So ctx ends only
	// when the contexts of all these calls have ended.
	ctx := session.Finish(group[0].ctx)
	for _, p := range group[1:] {
		either, stop := session.WhileEither(ctx, p.ctx.Done())
		defer stop()
		ctx = either
	}
	x := &load{m: q.m, sends: []*outbox{{producer: q, group: slices.Clone(group)}}}
	_, err := x.apply(ctx, func(ops []any) ([]zk.MultiResponse, error) { return q.Commit(ctx, ops) })
	if err != nil && len(group) > 1 && (session.OutcomeOf(err) == session.Answered || errors.Is(err, znodes.ErrMixed)) {
		// Nothing was applied. Perhaps only one of the calls is at fault.
		for _, p := range group {
			err := q.post([]*parcel{p})
			p.err = cmp.Or(p.err, err)
		}
		return nil
	}
	return err
}

// The type `load` has the operations and sends of a program in one transaction, which can also remove
// an element.
type load struct {
	m     *session.Manager
	ops   []any     // the program's own operations, with paths as the servers know them
	sends []*outbox // one for each queue: two could fail, because each checks the version of the tail, and the first could change it

	rs []zk.MultiResponse // if it removes an element: responses to the program's operations
}

// The method `apply` applies the load with the function `commit`. It cures the refusals of steps that
// store elements. It returns the responses to the program's operations.
func (x *load) apply(ctx context.Context, commit func(ops []any) ([]zk.MultiResponse, error)) (rs []zk.MultiResponse, err error) {
	for {
		var steps []step
		err := x.m.During(ctx, func(inc *session.Incarnation) (err error) {
			steps, err = x.steps(ctx, inc)
			return err
		})
		if err != nil || len(steps) == 0 {
			return nil, err
		}
		rs, err := commit(opsOf(steps))
		if err == nil {
			return x.learn(rs), nil
		}
		// If the outcome is unknown, the responses show only which operation the last attempt has failed at.
		i, open := znodes.FailedOp(rs), session.OutcomeOf(err) != session.Answered
		if open {
			x.learn(nil)
		}
		if i < len(x.ops) || open {
			return rs[:min(len(rs), len(x.ops))], err
		}
		if err := x.m.During(ctx, func(inc *session.Incarnation) error { return steps[i].cure(inc, rs[i].Error) }); err != nil {
			return nil, err // not the error of the refusal, which would mean that an operation of the program was at fault
		}
	}
}

func (x *load) steps(ctx context.Context, inc *session.Incarnation) (steps []step, err error) {
	for _, op := range x.ops {
		steps = append(steps, step{op, incurable})
	}
	for _, s := range x.sends {
		if err := s.build(ctx, inc); err != nil {
			return nil, err
		}
		steps = append(steps, s.steps...)
	}
	return steps, nil
}

// The method `learn` records how the applied steps have left the tails. The argument `rs` has the responses to
// the steps. It is nil if the reply was lost: the transaction may have filled a bucket. The method returns the
// responses to the program's operations.
func (x *load) learn(rs []zk.MultiResponse) []zk.MultiResponse {
	at := len(x.ops)
	for _, o := range x.sends {
		for prio, t := range o.tails {
			o.known.Store(prio, t)
		}
		for i, s := range o.steps {
			if _, creates := s.op.(*zk.CreateRequest); creates && (rs == nil || rs[at+i].String == "") {
				o.forget()
			} else if creates {
				o.filled(rs[at+i].String)
			}
		}
		at += len(o.steps)
	}
	return rs[:min(len(rs), len(x.ops))]
}

// The method `leave` is called when the load is applied or refused.
func (x *load) leave() {
	for _, o := range x.sends {
		o.unstored.Add(-int64(o.room))
		o.room = 0
	}
}

// The method `filled` is called with the path of each znode that a transaction has created. If the znode
// is an element that fills its bucket, the next element needs another bucket.
func (q *producer) filled(path string) {
	b, ok := parseBucket(znodes.BaseName(znodes.ParentPath(path)))
	e, is := parseElement(b, znodes.BaseName(path))
	if !ok || !is || e.seq < bucketSize-1 {
		return
	}
	if b.delayed {
		q.slots.Delete(b.name[:strings.LastIndex(b.name, "-")+1])
	} else if t, ok := q.known.Load(b.prio); ok && t.(*tail).bucket == b.number {
		q.known.Store(b.prio, &tail{t.(*tail).version, b.number, b.number + 1})
	}
}

// The method `locate` returns the tail of a priority. Unless the producer knows the tail, it reads the tail. If
// the queue does not exist, it first creates the queue.
func (q *producer) locate(ctx context.Context, inc *session.Incarnation, prio int) (*tail, error) {
	if t, ok := q.known.Load(prio); ok {
		return t.(*tail), nil
	}
	nodes, err := znodes.GetAll(ctx, inc, []string{q.dir, znodes.ChildPath(q.dir, tailName(prio))})
	switch {
	case err != nil:
		return nil, err
	case nodes[0].Stat == nil:
		// The znode is not a container: the servers delete an empty container, and the numbers of the buckets
		// would then begin with the zxid of another znode.
		if _, err := znodes.Create(ctx, inc, q.dir, []byte(marks.Dir)); err != nil {
			return nil, err
		}
		return q.locate(ctx, inc, prio)
	case !ours(nodes[0].Data):
		return nil, znodes.Mixed(q.m, q.dir)
	}
	// Each transaction that creates a bucket has a higher zxid than the number of that bucket. It writes the
	// queue's znode, and adds a child.
	zxid := max(nodes[0].Stat.Mzxid, nodes[0].Stat.Pzxid)
	n := nodes[1]
	if n.Stat == nil {
		return &tail{-1, -1, zxid}, nil
	}
	number, err := strconv.ParseInt(string(n.Data), 10, 64)
	if err != nil || number < 0 {
		return nil, znodes.Mixed(q.m, q.dir)
	}
	// The producer that fills a bucket creates the next one in its next Send. If it sends no more, the tail
	// still names the full bucket.
	if nodes, err = znodes.GetAll(ctx, inc, []string{znodes.ChildPath(q.dir, bucketName(prio, number))}); err != nil {
		return nil, err
	}
	next := max(number+1, zxid) // the client does not remember it: a new queue might have a bucket of this number
	if nodes[0].Stat == nil {
		return &tail{n.Stat.Version, -1, next}, nil // another client has deleted the newest bucket, but not the queue
	}
	if newLot(bucket{}, nodes[0]).last >= bucketSize-1 {
		return &tail{n.Stat.Version, number, next}, nil
	}
	t := &tail{n.Stat.Version, number, 0}
	q.known.Store(prio, t)
	return t, nil
}

// The method `build` sets o.steps to the transaction of one attempt. It uses the buckets that the
// producer knows. After a refusal, a cure has corrected that knowledge.
func (o *outbox) build(ctx context.Context, inc *session.Incarnation) error {
	o.group = slices.DeleteFunc(o.group, func(p *parcel) bool { return p.err != nil })
	o.steps, o.tails = nil, make(map[int]*tail)
	if len(o.group) == 0 {
		return nil
	}
	if err := o.vet(ctx, inc); err != nil {
		return err
	}
	o.add(ring(o.dir), o.anew) // the bell
	keyed := false
	for _, p := range o.group {
		if o.tails[p.prio] == nil {
			t, err := o.locate(ctx, inc, p.prio)
			if err != nil {
				return err
			}
			o.open(p.prio, t)
		}
		dir, cure := znodes.ChildPath(o.dir, bucketName(p.prio, o.tails[p.prio].bucket)), o.anew
		if p.due > 0 {
			var err error
			dir, cure, err = o.slot(ctx, inc, slotOf(p.prio, p.due, time.Now().UnixMilli()))
			if session.IsNoNode(err) {
				o.forget() // another client has deleted the queue
				return o.build(ctx, inc)
			} else if err != nil {
				return err
			}
		}
		if p.id != "" {
			o.identify(ctx, p, znodes.BaseName(dir))
		}
		for i, data := range p.data {
			keyed = keyed || keyOf(p.tags[i]) != ""
			o.add(&zk.CreateRequest{Path: znodes.ChildPath(dir, elementName(p.due, p.tags[i])), Data: data, Acl: o.m.Config.ACL, Flags: zk.FlagSequence}, cure)
		}
	}
	if path := znodes.ChildPath(o.dir, keysName); keyed {
		o.add(&zk.CheckVersionRequest{Path: path, Version: -1}, created(ctx, path))
	}
	return nil
}

func (o *outbox) add(op any, c func(*session.Incarnation, error) error) {
	o.steps = append(o.steps, step{op, c})
}

// The method `anew` is a cure: another producer has created the next bucket, or another client has deleted a
// bucket or the queue.
func (o *outbox) anew(_ *session.Incarnation, err error) error {
	if outrun(err) || session.IsNodeExists(err) {
		o.forget()
		return nil
	}
	return err
}

// The method `open` adds the steps that a bucket needs before it gets elements: a check that it is
// the newest bucket, or the creation of the next bucket. It records in o.tails the tail as it will be
// after these steps.
func (o *outbox) open(prio int, t *tail) {
	acl := o.m.Config.ACL
	path := znodes.ChildPath(o.dir, tailName(prio))
	if o.tails[prio] = t; t.next == 0 {
		o.add(&zk.CheckVersionRequest{Path: path, Version: t.version}, o.anew)
		return
	}
	if t.bucket >= 0 {
		// Another client may have deleted the queue and created it again, and the new tail may have
		// this version too. But then this check fails, because the new queue has no bucket of this
		// name: the numbers of its buckets begin with its own zxid.
		o.add(&zk.CheckVersionRequest{Path: znodes.ChildPath(o.dir, bucketName(prio, t.bucket)), Version: -1}, o.anew)
	}
	number := []byte(strconv.FormatInt(t.next, 10))
	if t.version >= 0 {
		o.add(&zk.SetDataRequest{Path: path, Data: number, Version: t.version}, o.anew)
	} else {
		o.add(&zk.CreateRequest{Path: path, Data: number, Acl: acl}, o.anew)
	}
	o.add(&zk.CreateRequest{Path: znodes.ChildPath(o.dir, bucketName(prio, t.next)), Acl: acl}, o.anew)
	o.tails[prio] = &tail{t.version + 1, t.next, 0}
}

func (q *producer) forget() { q.known.Clear() }

// The method `slot` returns the path of a bucket of the slot `at`. It creates a bucket if the newest
// that it finds is full. If the servers refuse a transaction because the bucket was deleted, the function `cure`
// forgets the bucket.
func (q *producer) slot(ctx context.Context, inc *session.Incarnation, at string) (path string, cure func(*session.Incarnation, error) error, err error) {
	cure = when(session.IsNoNode, func(*session.Incarnation) error { q.slots.Delete(at); return nil })
	name, ok := q.slots.Load(at)
	if !ok {
		all, _, err := inc.Children(ctx, q.dir)
		if err != nil {
			return "", nil, err
		}
		all = slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !strings.HasPrefix(name, at) })
		nodes, err := znodes.GetSmall(ctx, inc, pathsOf(q.dir, all, func(name string) string { return name }))
		if err != nil {
			return "", nil, err
		}
		newest := &lot{last: bucketSize} // an older bucket may have room, but comes before the elements in the newest
		for i, n := range nodes {
			if n.Stat != nil && !znodes.Concealed(n) && n.Stat.Czxid > newest.czxid {
				newest = newLot(bucket{name: all[i]}, n)
			}
		}
		if name = newest.name; newest.last >= bucketSize-1 {
			name = at + randomDigits(12)
			if _, err := znodes.Create(ctx, inc, znodes.ChildPath(q.dir, name), nil); err != nil {
				return "", nil, err
			}
		}
		q.slots.Store(at, name)
	}
	return znodes.ChildPath(q.dir, name), cure, nil
}

func (q *Common) idPath(hash string) string { return q.ids + "/" + hash[:2] + "/" + hash[2:] }

// The method `identify` adds the steps that write the note of a parcel's ID. The note names the bucket of the
// element.
func (o *outbox) identify(ctx context.Context, p *parcel, bucket string) {
	path, data := o.idPath(p.id), noteOf(o.cfg.IDMemory, bucket)
	cure := func(inc *session.Incarnation, err error) error {
		switch {
		case session.IsNoNode(err) && p.stale == nil:
			// MakeDir creates the znode `ids` as a persistent znode. If `ids` were deleted and created
			// again, its version would be 0 again, and the checks of the version would prove nothing.
			return znodes.MakeDir(ctx, inc, znodes.Dir{Path: znodes.ParentPath(path)})
		case outrun(err), session.IsNodeExists(err):
			return o.reread(ctx, inc)
		}
		return err
	}
	if p.stale == nil {
		o.add(&zk.CreateRequest{Path: path, Data: data, Acl: o.m.Config.ACL}, cure)
		return
	}
	o.add(&zk.CheckVersionRequest{Path: o.ids, Version: p.swept}, cure)
	o.add(&zk.SetDataRequest{Path: path, Data: data, Version: p.stale.Version}, cure)
}

// The method `reread` reads the notes of all IDs of the group. It reads all notes at once, because a
// concurrent sweep can change one note after another, and each change would make another attempt fail. A
// parcel whose ID the queue remembers gets the error ErrKnown, and leaves the group.
func (o *outbox) reread(ctx context.Context, inc *session.Incarnation) error {
	ids, err := inc.Exists(ctx, o.ids)
	if err != nil {
		return err
	}
	with := slices.DeleteFunc(slices.Clone(o.group), func(p *parcel) bool { return p.id == "" })
	nodes, err := znodes.GetAll(ctx, inc, pathsOf(o.ids, with, func(p *parcel) string { return p.id[:2] + "/" + p.id[2:] }))
	if err != nil {
		return err
	}
	var now *zk.Stat
	for i, p := range with {
		n, known := nodes[i], p.stale
		if p.stale = nil; ids == nil || n.Stat == nil {
			continue
		}
		if known == nil || known.Mzxid != n.Stat.Mzxid { // a note that has expired stays expired
			if now == nil {
				now, err = inc.Set(ctx, znodes.ParentPath(o.idPath(p.id)), nil, -1) // for the servers' time
				if session.IsNoNode(err) {
					continue // a sweep has deleted the note
				} else if err != nil {
					return err
				}
			}
			if !expired(n.Data, n.Stat, now) {
				p.err = ErrKnown
				continue
			}
		}
		p.stale, p.swept = n.Stat, ids.Version
	}
	return nil
}
