package session

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"
)

// A transaction across sessions is applied exactly once through as many sessions as
// it takes. An attempt of a former session may still be on its way to the leader
// when the next is made. So its receipt is a persistent znode that only we write,
// and that every attempt writes at the same version: whichever comes first is
// applied, and every other fails, in whatever order and through whichever session
// they come. It is the first operation, so that it bars them whatever else has
// become of what they are about.
//
// A receipt is kept for a moment, for the next transaction: that expects the version
// which this one has left. The first makes the znode, that is, it expects that there
// is none; so such a receipt is deleted only when no attempt that would make it again
// can be on its way: at once, or where the session has changed when the former one
// cannot exist any more. Who ends before leaves it.
type across struct {
	m    *Manager
	dir  string // of the receipts
	ops  []any
	r    *receipt
	last *Incarnation

	open    bool  // an attempt without a reply may have been applied, or may be yet
	moved   bool  // one of them was made in a former session
	refusal error // why we bar what a former session may still send, once we do

	swept bool      // others delete a receipt that nobody has written for SweptAfter
	sent  time.Time // when the first attempt was made that is open

	rs []zk.MultiResponse
}

// CommitAcrossSessions applies ops in one transaction, exactly once, through as many
// sessions as it takes. The receipt is a persistent child of the container
// receipts; it and the paths of ops are the server's.
//
// When ctx ends first the outcome is unknown to the caller: all of ops or none.
// So it is after an error that says so. After any other error nothing has been
// applied, nor will be.
func (m *Manager) CommitAcrossSessions(ctx context.Context, receipts string, ops []any) ([]zk.MultiResponse, error) {
	return m.commit(ctx, &across{m: m, dir: receipts, ops: ops})
}

// CommitSwept is CommitAcrossSessions where others sweep the receipts. If no session could tell
// within eleven hours whether ops were applied, and the receipt is gone, nobody can.
func (m *Manager) CommitSwept(ctx context.Context, receipts string, ops []any) ([]zk.MultiResponse, error) {
	return m.commit(ctx, &across{m: m, dir: receipts, ops: ops, swept: true})
}

// SweptAfter is how long something that tells of a transaction must not have been written, by
// the servers' clock, before somebody deletes it: who was to do that has been killed.
const SweptAfter = 12 * time.Hour

// Late reports whether what was sent at that time may have made something that was swept since.
// The machine may have slept, or its clock been set: the clock counts by which it is later.
func Late(sent time.Time) bool {
	now := time.Now()
	m := momentOf(sent)
	return m.since(now) > SweptAfter-time.Hour
}

func (m *Manager) commit(ctx context.Context, x *across) ([]zk.MultiResponse, error) {
	receipts, ops := x.dir, x.ops
	if err := CheckSize(append([]any{&zk.CreateRequest{Path: ChildPath(receipts, ReceiptName), Acl: m.Config.ACL}}, ops...)); err != nil {
		return nil, err
	}
	err := m.During(ctx, func(inc *Incarnation) error { return x.during(ctx, inc) })
	if x.r != nil {
		x.file(err)
	}
	switch {
	case err == nil || !x.open || ctx.Err() != nil:
	case IsNoNode(err), IsNodeExists(err), IsBadVersion(err), errors.Is(err, ErrUnprotected):
		err = fmt.Errorf("it may have been applied: %v", err) // not the answer to ops, for which callers would take it
	default:
		err = fmt.Errorf("it may have been applied: %w", err)
	}
	return m.BareResponses(x.rs), err
}

// file keeps the receipt for the next transaction, or deletes it.
func (x *across) file(err error) {
	r := x.r
	switch {
	case err != nil && !x.open && !x.moved:
		// Nothing was applied, nor will be: the receipt is as it was.
		if r.version >= 0 {
			x.m.keepReceipt(x.last, x.dir, r)
		}
	case err == nil && !x.moved:
		r.version++
		x.m.keepReceipt(x.last, x.dir, r)
	default:
		// One that bars what a former session may still send is deleted as late as
		// one that was given.
		x.m.DropReceipt(x.last, r.path, true)
	}
}

// during makes attempts within one session.
func (x *across) during(ctx context.Context, inc *Incarnation) error {
	x.moved = x.moved || x.open && x.last != inc
	x.last = inc
	if x.r == nil {
		x.r = x.m.shelf.take(x.dir)
	}
	// What only deletes makes no directory. See makeDir. While an attempt may have
	// been applied that is what must be found out, whoever may write here by now.
	if _, deletes := x.ops[0].(*zk.DeleteRequest); !x.open && (!deletes || len(x.ops) > 1) {
		if err := inc.Vet(ctx, Dir{Path: x.dir}); err != nil {
			return err
		}
	}
	return inc.repeat(ctx, func(a *attempts) error { return x.attempt(ctx, inc, a) })
}

func (x *across) attempt(ctx context.Context, inc *Incarnation, a *attempts) error {
	switch {
	case !x.open:
		x.sent = time.Now()
	case x.swept && x.r.version < 0 && Late(x.sent):
		return a.last(x.late(ctx, inc))
	}
	var got []zk.MultiResponse
	p, err := inc.StartMulti(ctx, slices.Insert(slices.Clone(x.ops), 0, x.op()))
	if err == nil {
		got, err = p.Wait(ctx, inc)
		x.open = x.open || OutcomeOf(err) == Unknown
	}
	if err == nil {
		x.rs = got[1:]
		return nil
	}
	if OutcomeOf(err) != Answered {
		return err
	}
	var own error // what was said of the receipt, if anything was
	if x.rs = nil; len(got) > 0 {
		if own = got[0].Error; own == nil {
			x.rs = got[1:]
		}
	}
	kept := x.r.version >= 0
	switch {
	case !kept && IsNodeExists(own), kept && IsBadVersion(own) && x.open:
		return a.last(x.given(ctx, inc))
	case !kept && IsNoNode(own):
		return x.makeDir(ctx, inc, a)
	case kept && IsNoNode(own) && x.open:
		// Nothing can come late, as there is nothing of that version any more.
		return a.last(fmt.Errorf("its receipt %s was deleted: %w", x.m.Bare(x.r.path), err))
	case kept && (IsNoNode(own) || IsBadVersion(own)), kept && IsAnswer(own, zk.ErrNoAuth) && !x.open:
		// Somebody else has deleted it, or written it, or we may not write what we
		// have made. Nothing of ours that expects it is on its way.
		return x.anew(inc, own)
	case x.open:
		// The receipt was as it was before: what failed is behind it.
		e := x.refused(ctx, inc, err, len(got) > 0 && own == nil)
		if e != nil && !x.open && !x.moved && kept && IsAnswer(own, zk.ErrNoAuth) {
			return x.anew(inc, own) // nothing was applied, and it may be with another
		}
		return a.last(e)
	}
	return err
}

// anew takes a new receipt in place of one that was kept, because of what was said of
// that.
func (x *across) anew(inc *Incarnation, own error) error {
	if IsAnswer(own, zk.ErrNoAuth) {
		x.m.shelf.refuse()
	}
	if !IsNoNode(own) {
		x.m.DropReceipt(inc, x.r.path, false)
	}
	x.r = newReceipt(x.dir)
	return errAgain
}

// op is the operation that gives the receipt.
func (x *across) op() any {
	if x.r.version < 0 {
		return &zk.CreateRequest{Path: x.r.path, Acl: x.m.Config.ACL}
	}
	return &zk.SetDataRequest{Path: x.r.path, Data: x.r.said(), Version: x.r.version}
}

// given is called when the receipt is found given: by an attempt before, or by our
// own bar, if we have tried to bar them and were not told what came of it. One that
// was kept may have been written by a stranger; then nobody can say.
func (x *across) given(ctx context.Context, inc *Incarnation) error {
	if x.refusal != nil {
		return x.refused(ctx, inc, x.refusal, false)
	}
	if x.r.version >= 0 {
		if applied, err := x.find(ctx, inc); err != nil || !applied {
			return cmp.Or(err, zk.ErrBadVersion)
		}
	}
	x.rs = presumed(x.ops)
	return nil
}

// late finds out what came of attempts that are so old that the receipt may have been swept:
// another would make it again, and be applied a second time.
func (x *across) late(ctx context.Context, inc *Incarnation) error {
	data, _, err := inc.GetFresh(ctx, x.r.path)
	switch {
	case err != nil:
		return err
	case string(data) == barred:
		x.open = false
		return x.refusal
	}
	x.rs = presumed(x.ops)
	return nil
}

// find looks whether the receipt is given.
func (x *across) find(ctx context.Context, inc *Incarnation) (applied bool, err error) {
	data, stat, err := inc.GetFresh(ctx, x.r.path)
	switch {
	case IsNoNode(err) && x.r.version < 0:
		return false, nil
	case IsNoNode(err):
		return false, fmt.Errorf("its receipt %s was deleted: %w", x.m.Bare(x.r.path), err)
	case err != nil || !x.r.given(stat):
		return false, err
	}
	return x.ours(data, stat)
}

// ours reports that the receipt was given by this transaction, or that nobody can say,
// as a stranger has written it.
func (x *across) ours(data []byte, stat *zk.Stat) (bool, error) {
	if x.r.version >= 0 && (stat.Version != x.r.version+1 || !bytes.Equal(data, x.r.said())) {
		return false, fmt.Errorf("its receipt %s was written by another", x.m.Bare(x.r.path))
	}
	return true, nil
}

// makeDir makes the directory of the receipts, for the next attempt.
func (x *across) makeDir(ctx context.Context, inc *Incarnation, a *attempts) error {
	x.open = x.open && x.moved // where there is no directory there is no receipt
	// Nothing is made for what finds nothing to delete: a container
	// that never has a child is never removed.
	if d, ok := x.ops[0].(*zk.DeleteRequest); ok && !x.moved {
		rs, err := inc.Multi(ctx, &zk.CheckVersionRequest{Path: d.Path, Version: -1})
		if err != nil && !IsAnswer(err, zk.ErrNoAuth) { // what may not be read is there
			x.rs = rs
			return err
		}
	}
	if err := inc.MakeDir(ctx, Dir{Path: x.dir}); err != nil {
		return a.last(err)
	}
	return errAgain
}

// refused finds out, after an attempt that was refused with err, whether one before
// it that had no reply has been applied, and sees to it that none will be. absent
// is that the refusal was such that the receipt was not given then.
//
// Within one session no attempt comes late (see Find). So one that is not given at
// the refusal means that none was applied; but a refusal of the receipt itself, such
// as NoAuth, which servers find before NodeExists and BadVersion, or of the whole
// request says nothing of those before it.
//
// An attempt of a former session can still come, and may then find the state that
// it wants. The receipt alone bars it.
func (x *across) refused(ctx context.Context, inc *Incarnation, err error, absent bool) error {
	var applied bool
	var e error
	switch {
	case x.moved:
		x.refusal = err
		applied, e = x.bar(ctx, inc)
	case !absent:
		applied, e = x.find(ctx, inc)
	}
	if e != nil {
		return e
	}
	x.open = false
	if applied {
		x.rs = presumed(x.ops)
		return nil
	}
	return err
}

// bar gives a receipt without its transaction, so that no attempt can be applied any
// more, unless one has been already: that is reported.
func (x *across) bar(ctx context.Context, inc *Incarnation) (applied bool, err error) {
	r, done := x.r, false
	if r.version < 0 {
		done, err = inc.CreateIn(ctx, Dir{Path: x.dir}, r.path, []byte(barred))
	} else {
		_, err = inc.Set(ctx, r.path, []byte(barred), r.version)
		done = err == nil
	}
	if done || err != nil && OutcomeOf(err) != Answered {
		return false, err
	}
	// It is given already; the reply to our own write may have been lost. Where
	// that was refused it may be given as well: the attempt came before whoever
	// refuses it.
	data, stat, e := inc.GetFresh(ctx, r.path)
	switch {
	case e != nil && OutcomeOf(e) != Answered:
		return false, e // the next session asks again
	case e != nil:
		return false, cmp.Or(err, e)
	case !r.given(stat):
		return false, err
	case string(data) == barred:
		return false, nil
	}
	return x.ours(data, stat)
}

// barred is the data of a receipt that bars its transaction.
const barred = "barred"

// keepReceipt keeps a receipt for the next transaction in dir, or deletes it.
func (m *Manager) keepReceipt(inc *Incarnation, dir string, r *receipt) {
	switch kept, sweep := m.shelf.keep(dir, r, time.Now()); {
	case sweep:
		leaving, done := m.BeforeClose() // here, so that a Close right after the call waits for it
		m.Spawn(func() {
			defer done()
			m.sweepReceipts(leaving)
		})
	case !kept:
		m.DropReceipt(inc, r.path, false)
	}
}

// sweepReceipts deletes the receipts that nobody has used for a while, for as long as
// any are kept; all of them when the session is closed.
func (m *Manager) sweepReceipts(leaving <-chan struct{}) {
	ctx := Finishing
	for {
		idle, next, more := m.shelf.idle(time.Now().Add(-receiptIdle))
		for some := range slices.Chunk(idle, removeAtOnce) {
			drop := func() error {
				return m.During(ctx, func(inc *Incarnation) error { return inc.RemoveAllNow(ctx, some) })
			}
			if inc, err := m.Incarnation(ctx); err == nil {
				inc.Tidy(some[0], drop)
			}
		}
		if !more {
			return
		}
		select {
		case <-time.After(time.Until(next.Add(receiptIdle))):
		case <-leaving:
			// Here, and not behind us: Close waits for us.
			all, _, _ := m.shelf.idle(time.Now().Add(time.Hour)) // whenever they were used
			for some := range slices.Chunk(all, removeAtOnce) {
				m.During(ctx, func(inc *Incarnation) error { return inc.RemoveAllNow(ctx, some) })
			}
			return
		case <-m.Over:
			return
		}
	}
}

// DropReceipt deletes a receipt in the background, in this session or, if it ends
// first, the next: at once, or when no attempt that carries it can still be on its
// way. What the servers refuse is tried again in this session alone.
func (m *Manager) DropReceipt(inc *Incarnation, receipt string, later bool) {
	drop := func() error {
		return m.During(Finishing, func(inc *Incarnation) error { return inc.RemoveNow(Finishing, receipt) })
	}
	if !later {
		inc.Tidy(receipt, drop)
		return
	}
	wait := 2 * time.Duration(inc.Timeout.Load())
	m.Spawn(func() {
		select {
		case <-time.After(wait):
		case <-m.Over:
			return
		}
		inc.InBackground(receipt, drop)
	})
}
