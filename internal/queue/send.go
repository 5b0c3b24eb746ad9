package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/line"
	"github.com/zsync/zsync/internal/session"
)

// A parcel is what one Send stores, all or none of it.
type parcel struct {
	ctx  context.Context // of that Send, which waits: nothing is sent, or tried again, for nobody
	prio int
	due  int64 // in Unix milliseconds; 0 if it is not delayed
	data [][]byte
	size int        // of its requests, estimated from above
	with []any      // more operations; a parcel that has some travels alone
	done chan error // has room for the result
}

// An outbox stores parcels, those of all goroutines in one transaction after
// another: what comes while one is under way goes into the next. The order is
// that in which they came.
//
// Each transaction is applied exactly once, whatever happens to its reply and
// to the session, because it carries a receipt: a persistent znode,
// <path>-senders/<guid>, of which it expects and increases the version. Sent
// again after it was applied it fails with BadVersion, and an attempt of a
// former session that comes late fails likewise. To look for the elements
// instead would prove nothing: they may have been consumed already.
type outbox struct {
	q *core

	mu      sync.Mutex
	waiting []*parcel     // guarded by mu
	running bool          // the goroutine that sends runs; guarded by mu
	more    chan struct{} // has a token when waiting may not be empty

	// What follows belongs to the goroutine that sends.

	receipt string        // of this outbox; empty if it has none
	made    bool          // the receipt certainly exists
	version int32         // of the receipt; -1 before it is made
	wait    time.Duration // for how long a former session's attempt may still come
	newest  map[int]*newest
	last    *session.Incarnation // in which the receipt was used
}

// newest is the bucket of a priority that gets its elements.
type newest struct {
	number int64 // -1: there is none yet
	first  int64 // the number of the first, and of what is delayed
	full   bool
}

// A lastOp is the creation of the last element of a priority in a transaction.
type lastOp struct {
	op     int   // which operation it is
	bucket int64 // the number of the bucket that it goes into
}

// linger is how long a receipt is kept for the next Send.
const linger = 50 * time.Millisecond

// maxGroup is how many elements are stored in one transaction, unless a single
// Send has more.
const maxGroup = 1000

// overhead is what a transaction needs besides its elements.
func (o *outbox) overhead() int {
	m := o.q.m
	return 64 + 2*m.SizeOf(o.q.senders+"/"+noGUID, nil) + 3*m.SizeOf(o.q.dir+"/"+bucketName(0, math.MaxInt64), nil)
}

// add puts a parcel into the outbox.
func (o *outbox) add(p *parcel) {
	o.mu.Lock()
	o.waiting = append(o.waiting, p)
	if !o.running {
		o.running = true
		o.q.m.Spawn(o.run)
	}
	o.mu.Unlock()
	select {
	case o.more <- struct{}{}:
	default:
	}
}

// run sends until nothing is left and the receipt has been tidied away.
func (o *outbox) run() {
	leaving, stay := o.q.m.BeforeClose()
	defer stay()
	for {
		if group := o.take(); len(group) > 0 {
			err := o.post(group)
			for _, p := range group {
				p.done <- err
			}
			continue
		}
		if o.receipt != "" {
			select {
			case <-o.more:
				continue
			case <-time.After(max(linger, o.wait)):
				o.drop()
			case <-leaving:
				if o.wait == 0 {
					o.drop()
				}
				o.receipt = "" // rather left behind than applied twice
			}
		}
		o.mu.Lock()
		if len(o.waiting) == 0 {
			o.running = false
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
	}
}

// take removes from the outbox what goes into the next transaction.
func (o *outbox) take() (group []*parcel) {
	o.mu.Lock()
	defer o.mu.Unlock()
	size, n := o.overhead(), 0
	for len(o.waiting) > 0 {
		p := o.waiting[0]
		if p.ctx.Err() != nil {
			// It has not been sent, and will not be.
			p.done <- session.CtxErr(p.ctx)
			o.waiting = o.waiting[1:]
			continue
		}
		size += p.size + o.overhead() // it may need a bucket of its own
		n += len(p.data)
		if len(group) > 0 && (size > session.MaxPacket || n > maxGroup || len(p.with) > 0) {
			break
		}
		group = append(group, p)
		o.waiting = o.waiting[1:]
		if len(p.with) > 0 {
			break
		}
	}
	return group
}

// drop deletes the receipt, in the background.
func (o *outbox) drop() {
	o.q.m.DropReceipt(o.last, o.receipt, o.last.Ctx.Err() != nil)
	o.receipt, o.wait = "", 0
}

// post stores a group.
func (o *outbox) post(group []*parcel) error {
	// Those who wait are told the result when it is there; the attempt is
	// given up only when nobody waits any more.
	ctx, cancel := context.WithCancel(context.Background())
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
	if o.receipt == "" {
		o.receipt, o.made, o.version = session.ChildPath(o.q.senders, session.NewGUID()), false, -1
	}
	open := false // an attempt is of unknown outcome
	err := o.q.m.During(ctx, func(inc *session.Incarnation) error {
		if open && o.last != inc {
			o.wait = 2 * time.Duration(o.last.Timeout.Load())
		}
		o.last = inc
		return o.attempt(ctx, inc, group, &open)
	})
	switch {
	case err == nil:
		o.made = true
		if o.version++; o.version > 1<<30 {
			o.drop()
		}
	case open:
		// The receipt's version is unknown. An attempt may still be on its
		// way, and must not find that a receipt it would make was deleted.
		o.q.m.DropReceipt(o.last, o.receipt, true)
		o.receipt = ""
	case !o.made:
		o.receipt = ""
	}
	return err
}

// attempt stores a group within one session.
func (o *outbox) attempt(ctx context.Context, inc *session.Incarnation, group []*parcel, open *bool) error {
	for try := 0; ; {
		if err := o.locate(ctx, inc, group); err != nil {
			return err
		}
		ops, prios, lasts := o.ops(group)
		p, err := inc.StartMulti(ctx, ops)
		if err != nil {
			return err
		}
		rs, err := p.Wait(ctx, inc)
		switch {
		case err == nil:
			for prio, last := range lasts {
				if c, ok := line.ParseChild(rs[last.op].String, "/e-"); ok {
					o.newest[prio] = &newest{number: last.bucket, first: o.newest[prio].first, full: c.Seq >= bucketSize-1}
				}
			}
			return nil
		case errors.Is(err, session.ErrEnded), ctx.Err() != nil, session.OutcomeOf(err) == session.Unknown:
			*open = true
			o.forget() // the queue may be another when the next attempt is made
			if errors.Is(err, session.ErrEnded) || ctx.Err() != nil {
				return err
			}
		case session.OutcomeOf(err) == session.Answered:
			i := session.FailedOp(rs)
			if i >= 0 {
				var stored bool
				if stored, err = o.failed(ctx, inc, i, prios[i], ops[i], rs[i].Error, *open); stored {
					return nil
				} else if err == nil {
					continue
				}
			}
			if *open && i != 0 && session.OutcomeOf(err) == session.Answered {
				// It is refused, so an attempt without a reply must not store it
				// any more, unless it has done so already.
				if stored, e := o.close(ctx, inc); e != nil || stored {
					return e
				}
				*open = false
			}
			return err
		}
		if err := inc.Pause(ctx, try); err != nil {
			return err
		}
		try++
	}
}

// close finds out whether an attempt of open outcome was applied, and sees to it
// that otherwise it never is: it makes, or writes, the receipt itself, and an
// attempt that comes later finds it so. What it writes is unique, so that if the
// reply to this is lost too the receipt says who was first.
func (o *outbox) close(ctx context.Context, inc *session.Incarnation) (applied bool, err error) {
	mark := session.NewGUID()
	if o.made {
		_, err = inc.Set(ctx, o.receipt, []byte(mark), o.version)
	} else {
		var created bool
		if created, err = inc.Create(ctx, o.receipt, []byte(mark)); err == nil && !created {
			err = zk.ErrNodeExists
		}
	}
	if session.IsBadVersion(err) || session.IsNodeExists(err) {
		var data []byte
		if data, _, err = inc.Get(ctx, o.receipt); err == nil {
			applied = string(data) != mark
		}
	}
	if err == nil && !applied {
		o.made = true
		o.version++ // from -1, if it was made
	}
	return applied, err
}

// locate finds the newest bucket of each priority that a group needs.
func (o *outbox) locate(ctx context.Context, inc *session.Incarnation, group []*parcel) error {
	if o.q.foreign != nil {
		return nil
	}
	missing := false
	for _, p := range group {
		missing = missing || o.newest[p.prio] == nil
	}
	if !missing {
		return nil
	}
	names, stat, err := inc.Children(ctx, o.q.dir)
	for session.IsNoNode(err) {
		// It is no container: its zxid is in the names of the buckets.
		if _, err := inc.Create(ctx, o.q.dir, nil); err != nil {
			return err
		}
		names, stat, err = inc.Children(ctx, o.q.dir)
	}
	if err != nil {
		return err
	}
	found := make(map[int]*newest)
	for _, b := range parseBuckets(names) {
		if !b.delayed {
			found[b.prio] = &newest{number: b.number, first: stat.Czxid}
		}
	}
	for _, p := range group {
		if found[p.prio] == nil {
			found[p.prio] = &newest{number: -1, first: stat.Czxid}
		}
	}
	o.newest = found
	return nil
}

// ops returns the transaction that stores a group. prios tells for each
// operation on a bucket which priority it is of, and is -1 for others; lasts
// tells where the last element of each priority is made.
func (o *outbox) ops(group []*parcel) (ops []any, prios []int, lasts map[int]lastOp) {
	acl := o.q.m.Config.ACL
	add := func(prio int, op any) {
		ops, prios = append(ops, op), append(prios, prio)
	}
	if o.made {
		add(-1, &zk.SetDataRequest{Path: o.receipt, Version: o.version})
	} else {
		add(-1, &zk.CreateRequest{Path: o.receipt, Acl: acl})
	}
	lasts = make(map[int]lastOp)
	if f := o.q.foreign; f != nil {
		for _, p := range group {
			for _, data := range p.data {
				add(-1, &zk.CreateRequest{Path: session.ChildPath(o.q.dir, f.name(o.q.foreignPriority(p.prio))), Data: f.frame(data), Acl: acl, Flags: zk.FlagSequence})
			}
		}
		return ops, prios, lasts
	}
	add(-1, &zk.SetDataRequest{Path: o.q.dir, Version: -1}) // the bell
	into := make(map[int]string)
	numbers := make(map[int]int64)
	for _, p := range group {
		for _, op := range p.with {
			add(-1, op)
		}
		dir := session.ChildPath(o.q.dir, delayedName(p.prio, o.newest[p.prio].first))
		if p.due == 0 {
			if into[p.prio] == "" {
				n := o.newest[p.prio]
				switch number := n.number; {
				case number < 0:
					n = &newest{number: n.first}
					add(p.prio, &zk.CreateRequest{Path: session.ChildPath(o.q.dir, bucketName(p.prio, n.number)), Acl: acl})
				case n.full:
					n = &newest{number: number + 1}
					add(p.prio, &zk.SetDataRequest{Path: session.ChildPath(o.q.dir, bucketName(p.prio, number)), Version: 0, Data: []byte("sealed")})
					add(p.prio, &zk.CreateRequest{Path: session.ChildPath(o.q.dir, bucketName(p.prio, n.number)), Acl: acl})
				default:
					add(p.prio, &zk.CheckVersionRequest{Path: session.ChildPath(o.q.dir, bucketName(p.prio, number)), Version: 0})
				}
				into[p.prio] = session.ChildPath(o.q.dir, bucketName(p.prio, n.number))
				numbers[p.prio] = n.number
			}
			dir = into[p.prio]
		}
		for _, data := range p.data {
			if p.due == 0 {
				lasts[p.prio] = lastOp{op: len(ops), bucket: numbers[p.prio]}
			}
			add(p.prio, &zk.CreateRequest{Path: session.ChildPath(dir, elementName(p.due)), Data: data, Acl: acl, Flags: zk.FlagSequence})
		}
	}
	return ops, prios, lasts
}

// failed cures what made the i'th operation fail, or reports that the
// transaction had been applied before, or that nothing can be done.
func (o *outbox) failed(ctx context.Context, inc *session.Incarnation, i, prio int, op any, err error, open bool) (applied bool, _ error) {
	switch {
	case i == 0 && open && (session.IsNodeExists(err) || session.IsBadVersion(err)):
		o.forget() // how full the buckets are is unknown
		return true, nil
	case i == 0 && !o.made && session.IsNoNode(err):
		return false, inc.MakeDir(ctx, o.q.senders)
	case i == 0 && o.made && !open && (session.IsNoNode(err) || session.IsBadVersion(err)):
		// Somebody has tampered with the receipt. Nothing is under way, so
		// another will do.
		o.receipt, o.made, o.version = session.ChildPath(o.q.senders, session.NewGUID()), false, -1
		return false, nil
	case i == 0 && session.IsNoNode(err):
		return false, fmt.Errorf("the receipt has been deleted, so whether it was stored is unknown: %w", err)
	case i == 1 && prio < 0 && session.IsNoNode(err):
		// The queue itself. It is no container: the numbers of its buckets
		// must not start again.
		_, err := inc.Create(ctx, o.q.dir, nil)
		return false, err
	case session.IsNodeExists(err) && isSequential(op):
		// A server stays at the number 2147483647 when it has given it. A
		// bucket never gets so far, but the delayed elements of one priority
		// and another library's layout do, after 2^31 elements.
		return false, fmt.Errorf("%s has used its sequence numbers up: %w", session.ParentPath(op.(*zk.CreateRequest).Path), err)
	case prio >= 0 && (session.IsNoNode(err) || session.IsNodeExists(err) || session.IsBadVersion(err)):
		// Another producer has made the next bucket, or ours was deleted.
		c, ok := op.(*zk.CreateRequest)
		first := o.newest[prio].first
		o.forget()
		dir := session.ChildPath(o.q.dir, delayedName(prio, first))
		if !ok || !session.IsNoNode(err) || session.ParentPath(c.Path) != dir {
			return false, nil
		}
		// It was never made, or the queue was deleted, and made anew.
		if stat, err := inc.Exists(ctx, o.q.dir); err != nil || stat == nil || stat.Czxid != first {
			return false, err
		}
		_, err := inc.Create(ctx, dir, nil)
		return false, err
	}
	return false, err
}

func (o *outbox) forget() { o.newest = nil }

func isSequential(op any) bool {
	c, ok := op.(*zk.CreateRequest)
	return ok && c.Flags&zk.FlagSequence != 0
}
