package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
)

// A queueModel is a Queue as one process would have it: what became of each element,
// as far as the calls that were made tell. What they return, and what is there in the
// end, must agree with it.
type queueModel struct {
	r     *modelRun
	opts  []zsync.QueueOption
	limit int // of attempts; 0: none
	keyed bool
	clear bool // Clear is called

	mu        sync.Mutex
	dice      *rand.Rand // guarded by mu
	all       map[int]*queueElement
	ids       map[string][]int // what was sent, or may have been, with an ID
	cancelled map[string]bool
	clears    []string         // what they have said
	cleared   int              // by calls of Clear that have returned
	vague     bool             // and one has failed: it may have cleared more
	requeuing int              // calls that put dead letters back, under way
	requeued  time.Time        // when the last of them ended
	undone    bool             // a TryRecv has ended early: what it had removed is put back, later than others
	cuts      []queueCut       // when a session was cut off
	txns      map[string]*bool // by marker: whether it was done; nil if that is not known
}

// A queueElement is what is known of one element.
type queueElement struct {
	begun, ended time.Time // of the call that sends it
	sent         bool      // certainly
	refused      bool      // certainly not sent
	prio         int
	later        bool // it was sent for later
	log          []string

	first   time.Time // it was received
	taken   time.Time // it was certainly removed
	byRecv  bool      // by being taken from the channel of Recv
	maybe   bool      // it may have been removed
	buried  time.Time // it is with the dead letters since then, unless somebody has put it back
	back    bool      // it was put back from there
	attempt int
	claims  []context.Context // of its deliveries
	last    time.Time         // when the last of them began
	leaving bool              // a Txn may have removed it, whose claim ends when the reply is there
}

// A queueCut is the session that was cut off, and when the cut ended.
type queueCut struct {
	id  int64
	end time.Time
}

// Numbers are sent, and every eighth that follows has the same key; half have none.
func (m *queueModel) key(v int) string {
	if !m.keyed || v%8 >= 4 {
		return ""
	}
	return strconv.Itoa(v % 8)
}

func (m *queueModel) note(e *queueElement, format string, args ...any) {
	e.log = append(e.log, fmt.Sprintf("%s %s", time.Now().Format("05.000"), fmt.Sprintf(format, args...)))
}

func (m *queueModel) fault(v int, format string, args ...any) {
	m.r.t.Errorf("%d: %s\n\t%s", v, fmt.Sprintf(format, args...), strings.Join(m.all[v].log, "\n\t"))
}

// another returns an element that is about to be sent.
func (m *queueModel) another(id string, prio int, later bool) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := 8*len(m.all) + m.dice.IntN(8)
	m.all[v] = &queueElement{begun: time.Now(), prio: prio, later: later}
	if id != "" {
		m.ids[id] = append(m.ids[id], v)
	}
	return v
}

// sent is told what came of sending vs.
func (m *queueModel) sent(ctx context.Context, how string, vs []int, known bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range vs {
		e := m.all[v]
		e.ended, e.sent = time.Now(), err == nil && !known
		e.refused = known || errors.Is(err, zsync.ErrFull) || errors.Is(err, zk.ErrNoAuth)
		m.note(e, "%s since %s: known %v, %v", how, e.begun.Format("05.000"), known, err)
		if e.refused && !e.first.IsZero() {
			m.fault(v, "was received, and not sent")
		}
	}
	if err != nil && !errors.Is(err, zsync.ErrFull) {
		m.mayFail(how, ctx, err)
	}
}

func (m *queueModel) mayFail(how string, ctx context.Context, err error) {
	if !m.r.denies || !errors.Is(err, zk.ErrNoAuth) {
		m.r.mayFail(how, ctx, err)
	}
}

// received is told that somebody was given v. claim is its context, or nil if it was
// removed by that: it was not there any more at some time since begun.
func (m *queueModel) received(how string, v, attempt int, claim context.Context, begun time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, now := m.all[v], time.Now()
	if e == nil {
		m.r.t.Errorf("%d was received, and nobody has sent it", v)
		return
	}
	m.note(e, "%s, attempt %d", how, attempt)
	switch {
	case e.refused:
		m.fault(v, "was received, and not sent")
	case !e.taken.IsZero() && !(e.byRecv && m.cutOff(e.taken)):
		m.fault(v, "was received after it was removed")
	case !e.buried.IsZero() && m.requeuing == 0 && m.requeued.Before(e.buried):
		m.fault(v, "was received from among the dead letters")
	case m.limit > 0 && attempt > m.limit:
		m.fault(v, "was delivered more often than %d times", m.limit)
	case attempt > 0 && !e.back && (attempt < e.attempt || attempt == e.attempt && !(m.limit == 0 && m.endedWithSession(e))):
		// Without a limit, an attempt during which its session ends may not be counted.
		m.fault(v, "attempt %d comes after %d", attempt, e.attempt)
	}
	for u, other := range m.all {
		if u != v && (m.key(u) == "" || m.key(u) != m.key(v)) {
			continue
		}
		for _, c := range other.claims {
			if c.Err() == nil && (u == v || !other.leaving && other.last.Before(begun)) {
				m.fault(u, "was still held when %d was received", v)
				if u != v {
					m.fault(v, "is the other")
				}
			}
		}
		// Which of two sends was first is known only if one ended before the other began.
		if u != v && e.first.IsZero() && e.sent && e.ended.Before(other.begun) && !other.first.IsZero() && other.first.Before(begun) && e.prio == other.prio && !e.later && !other.later && !e.back && !m.undone {
			m.fault(v, "came after %d, which was received at %s", u, other.first.Format("05.000"))
		}
	}
	if e.first.IsZero() {
		e.first = now
	}
	if e.attempt = max(attempt, e.attempt); claim == nil {
		e.taken, e.byRecv = now, how == "recv"
	} else {
		// If Recv had taken e, the session of that Recv has ended before the removal.
		e.taken, e.claims, e.last = time.Time{}, append(e.claims, claim), now
	}
}

// cutOff reports whether the servers have ended a session that was cut off since at, so that what
// its process had taken was given to another. The end comes one timeout after the session's last packet,
// so it can come less than a timeout after the cut.
func (m *queueModel) cutOff(at time.Time) bool {
	return slices.ContainsFunc(m.cuts, func(c queueCut) bool {
		return (c.end.IsZero() || c.end.Add(harness.Timeout).After(at)) && !m.r.lives(c.id)
	})
}

// endedWithSession reports whether a delivery of e may have ended with its session.
func (m *queueModel) endedWithSession(e *queueElement) bool {
	return m.cutOff(e.last) || slices.ContainsFunc(e.claims, func(c context.Context) bool {
		return errors.Is(context.Cause(c), zsync.ErrLost) || errors.Is(context.Cause(c), zsync.ErrClosed)
	})
}

// settle settles a delivery somehow, or does not.
func (m *queueModel) settle(d *rand.Rand, s *zsync.Session, q *zsync.Queue[int], dv zsync.Delivery[int]) {
	harness.Nap(d, 30)
	ctx, cancel := m.cut(d)
	defer cancel()
	m.mu.Lock()
	e := m.all[dv.Value]
	m.mu.Unlock()
	if e == nil {
		return
	}
	how, fate := "ack", d.IntN(12)
	if fate > 6 {
		m.mu.Lock()
		e.maybe = e.maybe || fate != 7 // it is removed if the call is not waited for
		m.mu.Unlock()
	}
	var err error
	switch fate {
	case 0, 1:
		how, err = "nack", dv.Nack()
	case 2:
		how, err = "nackafter", dv.NackAfter(time.Duration(d.IntN(300))*time.Millisecond)
	case 3:
		how = "keep" // until the session ends
	case 4:
		how = "reject"
		m.mu.Lock()
		e.buried = time.Now()
		m.mu.Unlock()
		if err = dv.Reject(ctx, "no"); err != nil {
			m.mu.Lock()
			e.buried = time.Time{}
			m.mu.Unlock()
		}
	case 5, 6:
		m.txn(ctx, d, s, q, dv, e)
		return
	default:
		err = dv.Ack(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note(e, "%s: %v", how, err)
	switch {
	case errors.Is(err, zsync.ErrLost), how != "ack":
	case err == nil:
		m.removed(dv.Value, e)
	default:
		e.maybe = true
	}
	if err != nil && !errors.Is(err, zsync.ErrLost) {
		m.mayFail(how, ctx, err)
	}
}

func (m *queueModel) removed(v int, e *queueElement) {
	if !e.taken.IsZero() {
		m.fault(v, "was removed twice")
	}
	e.taken, e.byRecv = time.Now(), false
}

// txn removes an element together with the creation of a znode and a Send to another
// queue.
func (m *queueModel) txn(ctx context.Context, d *rand.Rand, s *zsync.Session, q *zsync.Queue[int], dv zsync.Delivery[int], e *queueElement) {
	m.mu.Lock()
	mark := fmt.Sprintf("%d-%d", dv.Value, len(m.txns))
	m.txns[mark] = nil
	e.leaving = true
	m.note(e, "txn %s begins", mark)
	m.mu.Unlock()
	ops := []any{&zk.CreateRequest{Path: "/marks/" + mark, Acl: zk.WorldACL(zk.PermAll)}, zsync.NewQueue[string](s, "/other").SendOp(mark)}
	refused := d.IntN(4) == 0
	if refused {
		ops = append(ops, &zk.CreateRequest{Path: "/marks", Acl: zk.WorldACL(zk.PermAll)})
	}
	_, err := dv.Txn(ctx, ops...)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note(e, "txn %s: %v", mark, err)
	yes, no := true, false
	switch {
	case err == nil:
		m.txns[mark] = &yes
		m.removed(dv.Value, e)
		if refused {
			m.fault(dv.Value, "a Txn was done, and one of its operations cannot be")
		}
	case errors.Is(err, zsync.ErrLost):
		m.txns[mark] = &no
	case errors.Is(err, zk.ErrNodeExists) && refused:
		m.txns[mark] = &no
	default:
		e.maybe = e.maybe || !refused
		m.mayFail("txn", ctx, err)
	}
}

// cut returns a context that ends early in one case of four.
func (m *queueModel) cut(d *rand.Rand) (context.Context, context.CancelFunc) {
	n := 3000
	if d.IntN(4) == 0 {
		n = d.IntN(40)
	}
	return context.WithTimeout(m.r.t.Context(), time.Duration(n)*time.Millisecond)
}

// send sends something.
func (m *queueModel) send(ctx context.Context, d *rand.Rand, q *zsync.Queue[int]) {
	switch d.IntN(6) {
	case 0:
		v := m.another("", 0, false)
		m.sent(ctx, "trysend", []int{v}, false, q.TrySend(ctx, v))
	case 1:
		prio := d.IntN(2)
		v := m.another("", prio, false)
		m.sent(ctx, "sendpriority", []int{v}, false, q.SendPriority(ctx, prio, v))
	case 2:
		v := m.another("", 0, true)
		m.sent(ctx, "sendat", []int{v}, false, q.SendAt(ctx, time.Now().Add(time.Duration(d.IntN(400)-100)*time.Millisecond), v))
	case 3:
		id := strconv.Itoa(d.IntN(8))
		v := m.another(id, 0, true) // it may be that of another call which is stored
		sent, err := q.SendID(ctx, id, v)
		m.sent(ctx, "sendid "+id, []int{v}, err == nil && !sent, err)
	default:
		var vs []int
		for range 1 + d.IntN(4) {
			vs = append(vs, m.another("", 0, false))
		}
		m.sent(ctx, "send", vs, false, q.Send(ctx, vs...))
	}
}

// consume receives for a while.
func (m *queueModel) consume(ctx context.Context, d *rand.Rand, s *zsync.Session, q *zsync.Queue[int]) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(d.IntN(400))*time.Millisecond)
	defer cancel()
	take := func(dv zsync.Delivery[int]) {
		m.received("delivery", dv.Value, dv.Attempt, dv.Context(), time.Now())
		m.settle(d, s, q, dv)
	}
	switch d.IntN(6) {
	case 0:
		for v := range q.Recv(ctx) {
			m.received("recv", v, 0, nil, time.Now())
			harness.Nap(d, 10)
		}
	case 1:
		for dv := range q.Deliveries(ctx) {
			take(dv)
		}
	case 2:
		for dv, err := range q.All(ctx) {
			if err == nil {
				take(dv)
			}
			if d.IntN(8) == 0 {
				break
			}
		}
	case 3:
		ds, err := q.ReceiveN(ctx, 1+d.IntN(5))
		if err != nil {
			m.mayFail("receive", ctx, err)
		}
		for _, dv := range ds {
			m.received("receive", dv.Value, dv.Attempt, dv.Context(), time.Now())
		}
		for _, dv := range ds {
			m.settle(d, s, q, dv)
		}
	default:
		begun := time.Now()
		v, ok, err := q.TryRecv(ctx)
		switch {
		case ok:
			m.received("tryrecv", v, 0, nil, begun)
			if ctx.Err() != nil { // the removal is under way, and may fail with its session
				m.mu.Lock()
				if e := m.all[v]; e != nil {
					e.taken, e.maybe = time.Time{}, true
				}
				m.mu.Unlock()
			}
		case err != nil:
			m.mu.Lock()
			m.undone = true
			m.clears = append(m.clears, fmt.Sprintf("TryRecv until %s: %v", time.Now().Format("05.000"), err))
			m.mu.Unlock()
			m.mayFail("tryrecv", ctx, err)
		}
	}
}

// tend looks after the queue.
func (m *queueModel) tend(ctx context.Context, d *rand.Rand, q *zsync.Queue[int]) {
	var err error
	begun := time.Now()
	defer func() {
		m.mu.Lock()
		m.clears = append(m.clears, fmt.Sprintf("tend %s until %s: %v", begun.Format("05.000"), time.Now().Format("05.000"), err))
		m.mu.Unlock()
	}()
	switch what := d.IntN(7); {
	case what == 0:
		_, err = q.Len(ctx)
	case what == 1:
		_, err = q.Stats(ctx)
	case what == 2:
		_, _, err = q.Peek(ctx)
	case what == 3 && m.clear:
		var n int
		n, err = q.Clear(ctx)
		m.mu.Lock()
		m.cleared += n
		m.clears = append(m.clears, fmt.Sprintf("Clear until %s: %d, %v", time.Now().Format("05.000"), n, err))
		m.vague = m.vague || err != nil
		m.mu.Unlock()
	case what == 4:
		id := strconv.Itoa(d.IntN(8))
		var done bool
		done, err = q.Cancel(ctx, id)
		m.mu.Lock()
		for _, v := range m.ids[id] {
			m.note(m.all[v], "cancel %s: %v %v", id, done, err)
			m.all[v].maybe = m.all[v].maybe || done || err != nil
			if done && !m.all[v].taken.IsZero() {
				m.fault(v, "was cancelled and received")
			}
		}
		m.cancelled[id] = m.cancelled[id] || done
		m.mu.Unlock()
	case what == 5:
		err = m.bury(ctx, d, q)
	default:
		m.mu.Lock()
		m.requeuing++
		m.mu.Unlock()
		_, err = q.RequeueDead(ctx, func(l zsync.DeadLetter) bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			e := m.all[valueOf(l)]
			e.back = true
			m.note(e, "requeued")
			return true
		})
		m.mu.Lock()
		m.requeuing--
		m.requeued = time.Now()
		m.mu.Unlock()
	}
	if err != nil {
		m.mayFail("tend", ctx, err)
	}
}

// bury removes a dead letter.
func (m *queueModel) bury(ctx context.Context, d *rand.Rand, q *zsync.Queue[int]) error {
	for l, err := range q.Dead(ctx) {
		if err != nil {
			return err
		}
		if d.IntN(3) > 0 {
			continue
		}
		_, err := suite.Remove(ctx, q, l)
		m.mu.Lock()
		e := m.all[valueOf(l)]
		m.note(e, "its letter is removed: %v", err)
		e.maybe = true // somebody may have put it back meanwhile
		m.mu.Unlock()
		return err
	}
	return nil
}

func valueOf(l zsync.DeadLetter) (v int) {
	json.Unmarshal(l.Data, &v)
	return v
}

// check compares what is left with what must be, and may be.
func (m *queueModel) check() {
	t := m.r.t
	s := m.r.open()
	q := zsync.NewQueue[int](s, "/q", m.opts...)
	found := make(map[int]int)
	n, err := q.Len(t.Context())
	harness.Must(t, err)
	st, err := q.Stats(t.Context())
	harness.Must(t, err)
	if st.Ready != n || st.Claimed != 0 || st.Delayed != 0 || len(st.Holders) != 0 {
		t.Errorf("%d are in the queue; Stats: %+v", n, st)
	}
	dead := 0
	for l, err := range q.Dead(t.Context()) {
		harness.Must(t, err)
		found[valueOf(l)]++
		dead++
	}
	if st.Dead != dead {
		t.Errorf("%d dead letters; Stats: %+v", dead, st)
	}
	// Who has no limit of attempts gets all.
	rest := zsync.NewQueue[int](s, "/q")
	for range n {
		v, ok, err := rest.TryRecv(t.Context())
		harness.Must(t, err)
		if !ok {
			t.Errorf("Len was %d, and something cannot be received", n)
			break
		}
		found[v]++
	}
	if _, ok, err := rest.TryRecv(t.Context()); ok || err != nil {
		t.Errorf("Len was %d, and there is one more: %v, %v", n, ok, err)
	}
	m.checkTxns(s)
	m.mu.Lock()
	defer m.mu.Unlock()
	missing, gone := 0, 0
	for v, e := range m.all {
		switch n := found[v]; {
		case n > 1:
			m.fault(v, "is there %d times", n)
		case n > 0 && e.refused:
			m.fault(v, "is there, and was not sent")
		case n > 0 && !e.taken.IsZero() && !(e.byRecv && m.cutOff(e.taken)):
			m.fault(v, "is there, and was removed")
		case n > 0:
		case e.sent && e.taken.IsZero() && !e.maybe:
			if missing++; !m.clear {
				m.fault(v, "is lost")
			}
		case e.taken.IsZero():
			gone++
		}
	}
	for v := range found {
		if m.all[v] == nil {
			t.Errorf("%d is there, and nobody has sent it", v)
		}
	}
	if missing > m.cleared && !m.vague {
		t.Errorf("%d are lost; Clear has removed %d", missing, m.cleared)
		for v, e := range m.all {
			if found[v] == 0 && e.sent && e.taken.IsZero() && !e.maybe {
				t.Logf("%d:\n\t%s", v, strings.Join(e.log, "\n\t"))
			}
		}
		for _, l := range m.clears {
			t.Log(l)
		}
	}
	if m.cleared > missing+gone {
		t.Errorf("Clear says that it has removed %d, and only %d may be", m.cleared, missing+gone)
	}
	for id, vs := range m.ids {
		stored := slices.DeleteFunc(slices.Clone(vs), func(v int) bool { return found[v] == 0 && m.all[v].first.IsZero() && !m.all[v].sent })
		if len(stored) > 1 {
			m.fault(stored[0], "was sent with the ID %s, and so were %v", id, stored)
		}
		for _, v := range stored {
			if m.cancelled[id] && found[v] > 0 {
				m.fault(v, "is there, and was cancelled")
			}
		}
	}
}

// checkTxns checks that of each Txn all was done or nothing.
func (m *queueModel) checkTxns(s *zsync.Session) {
	t := m.r.t
	other := zsync.NewQueue[string](s, "/other")
	sent := make(map[string]bool)
	for {
		mark, ok, err := other.TryRecv(t.Context())
		harness.Must(t, err)
		if !ok {
			break
		}
		if sent[mark] {
			t.Errorf("the Txn %s has sent twice", mark)
		}
		sent[mark] = true
	}
	created := suite.ChildrenOf(t, s, "/marks")
	m.mu.Lock()
	defer m.mu.Unlock()
	for mark, done := range m.txns {
		text, _, _ := strings.Cut(mark, "-")
		v, _ := strconv.Atoi(text)
		e := m.all[v]
		was := sent[mark]
		if was != slices.Contains(created, mark) {
			m.fault(v, "of a Txn one half was done: sent %v", was)
		}
		if done != nil && *done != was {
			m.fault(v, "a Txn was done: %v, and it said %v", was, *done)
		}
		if was && done == nil {
			m.removed(v, e)
		}
	}
}

func TestModelOfQueue(t *testing.T) {
	modelsOf(t, 20, func(r *modelRun) {
		t := r.t
		m := &queueModel{
			r: r, dice: r.dice(), all: make(map[int]*queueElement), ids: make(map[string][]int), cancelled: make(map[string]bool),
			txns: make(map[string]*bool), clear: r.rnd.IntN(3) == 0, keyed: r.rnd.IntN(2) == 0,
		}
		m.opts = append(m.opts, zsync.WithPriorities(2))
		if m.keyed {
			m.opts = append(m.opts, zsync.WithKey(m.key))
		}
		if r.rnd.IntN(2) == 0 {
			m.limit = 1 + r.rnd.IntN(5)
			m.opts = append(m.opts, zsync.WithMaxAttempts(m.limit))
		}
		if r.rnd.IntN(3) == 0 {
			m.opts = append(m.opts, zsync.WithMaxLen(4+r.rnd.IntN(10)))
		}
		if r.rnd.IntN(3) == 0 {
			m.opts = append(m.opts, zsync.WithPrefetch(1+r.rnd.IntN(4)))
		}
		r.denies, r.freezes = r.rnd.IntN(3) == 0, r.rnd.IntN(3) == 0
		r.cuts = func(id int64, begin bool) {
			m.mu.Lock()
			defer m.mu.Unlock()
			if begin {
				m.cuts = append(m.cuts, queueCut{id: id})
			} else {
				m.cuts[len(m.cuts)-1].end = time.Now()
			}
		}
		root := r.open()
		_, err := root.Txn(t.Context(), &zk.CreateRequest{Path: "/marks", Acl: zk.WorldACL(zk.PermAll)})
		harness.Must(t, err)
		r.hurt(r.rnd.IntN(3) > 0)
		var wg sync.WaitGroup
		for _, s := range r.ss {
			shared := zsync.NewQueue[int](s, "/q", m.opts...)
			for range 3 {
				d := r.dice()
				wg.Go(func() {
					for range 8 {
						q := shared
						if d.IntN(4) == 0 {
							q = zsync.NewQueue[int](s, "/q", m.opts...)
						}
						ctx, cancel := m.cut(d)
						switch d.IntN(7) {
						case 0, 1, 2:
							m.send(ctx, d, q)
						case 3:
							m.tend(ctx, d, q)
						default:
							m.consume(ctx, d, s, q)
						}
						cancel()
						harness.Nap(d, 20)
					}
				})
			}
		}
		wg.Wait()
		r.heal()
		time.Sleep(2 * time.Minute)                                                        // what was refused is tried again
		m.cuts = slices.DeleteFunc(m.cuts, func(c queueCut) bool { return r.lives(c.id) }) // Close ends no claim early
		for _, s := range r.ss {
			harness.Must(t, s.Close()) // what is held goes back
		}
		time.Sleep(time.Minute)
		m.check()
	})
}
