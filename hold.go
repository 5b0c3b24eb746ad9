package zsync

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// A hold is a place in line whose turn has come: a lock, a leadership, a
// permit. It stands as long as its znode and the session of its znode do.
type hold struct {
	place *place
	line  *line
	op    string // for the observer
	since time.Time
	stop  func() bool // undoes the registration with the incarnation
	count sync.Once   // takes h off the gauge

	mu   sync.Mutex
	gone bool          // lost is closed; guarded by mu
	over bool          // it is being released: that others do not find the znode is no loss; guarded by mu
	lost chan struct{} // closed when the hold is lost, and never when it is released
	why  error         // of the loss, an ErrLost; set before lost is closed; guarded by mu
	tok  int64         // the fencing token, 0 until it is asked for; guarded by mu
	user int           // grows when h goes to somebody else, or to another znode; guarded by mu
}

// newHold makes a hold of a place whose turn has come.
func newHold(l *line, p *place, op string) *hold {
	h := &hold{place: p, line: l, op: op, since: time.Now(), lost: make(chan struct{})}
	l.m.holds.Add(1)
	h.stop = context.AfterFunc(p.inc.ctx, func() { h.lose(p.inc.loss()) })
	return h
}

// lose marks h as lost, unless it is given up already.
func (h *hold) lose(why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.over {
		h.loseLocked(why)
	}
}

func (h *hold) loseLocked(why error) {
	if h.gone {
		return
	}
	h.gone, h.why = true, why
	close(h.lost)
	h.uncount()
	h.line.m.observe(event{kind: eventLost, op: h.op, path: h.line.m.bare(h.line.dir), wait: time.Since(h.since), err: why})
}

func (h *hold) uncount() { h.count.Do(func() { h.line.m.holds.Add(-1) }) }

// err returns nil while h stands, as far as can be known here; otherwise an
// error that is ErrLost, and ErrClosed too after Session.Close.
func (h *hold) err() error {
	if !h.place.inc.alive() {
		h.lose(h.place.inc.loss()) // the registration may not have had its turn yet
		return h.place.inc.loss()
	}
	return h.loss()
}

// loss returns why h is lost, or nil if it is not known to be.
func (h *hold) loss() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.why
}

// verdict turns the error of a request about h's own znode into what it means:
// if the znode or the session is gone, so is h.
func (h *hold) verdict(err error) error {
	switch {
	case err == nil:
		return h.err()
	case isNoNode(err):
		lost := h.place.inc.deleted()
		h.lose(lost)
		return lost
	}
	if lost := h.err(); lost != nil {
		return lost
	}
	return err
}

// token returns the fencing token of h: the zxid of a write to its own znode,
// made while h stands, and after every write of those who held before.
func (h *hold) token(ctx context.Context) (int64, error) {
	if err := h.err(); err != nil {
		return 0, err
	}
	h.mu.Lock()
	tok, path, user := h.tok, h.place.path, h.user
	h.mu.Unlock()
	if tok != 0 {
		return tok, nil
	}
	stat, err := h.place.inc.set(ctx, path, h.place.data, -1) // what it says already
	if isNoNode(err) && h.at() != path {
		return h.token(ctx) // it has moved in the meantime
	}
	if err := h.verdict(err); err != nil {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.user != user {
		return stat.Mzxid, nil // right for the caller, too old for who has h now
	}
	if h.tok == 0 { // two callers may have written: the first answer stays
		h.tok = stat.Mzxid
	}
	return h.tok, nil
}

// at returns the path of h's znode.
func (h *hold) at() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.place.path
}

// renew makes h the hold of another goroutine of this process.
func (h *hold) renew() {
	h.mu.Lock()
	h.renewLocked()
	h.mu.Unlock()
}

func (h *hold) renewLocked() {
	h.tok = 0
	h.user++
	h.since = time.Now()
}

// move makes h the hold of another znode of the same session, and returns the
// path of the former. Whoever waits for the loss of h goes on waiting.
func (h *hold) move(p *place, op string) (former string) {
	h.released() // as what it was
	h.mu.Lock()
	defer h.mu.Unlock()
	former = h.place.path
	h.place.path, h.place.me, h.op = p.path, p.me, op
	h.renewLocked()
	return former
}

// errMoved means that the znode of a hold was exchanged while it was named in a
// transaction. Nothing was applied.
var errMoved = errors.New("the lock was downgraded at the same time")

// txn applies ops if h still stands, in one transaction with the proof.
func (h *hold) txn(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	m, inc := h.line.m, h.place.inc
	path := h.at()
	ops, _, err := m.checkOps(ops, path, childPath(h.line.dir, receiptName))
	if err != nil {
		return nil, err
	}
	if err := h.err(); err != nil {
		return nil, err
	}
	proof := &zk.CheckVersionRequest{Path: path, Version: -1}
	rs, err := inc.commit(ctx, h.line.dir, append([]any{proof}, ops...))
	if len(rs) > 0 {
		if isNoNode(rs[0].Error) {
			if h.at() != path {
				return nil, errMoved
			}
			return nil, h.verdict(rs[0].Error)
		}
		rs = rs[1:]
	}
	if err == errEnded {
		err = h.err()
	}
	return rs, err
}

// release gives h up. It returns once the znode is gone; if the connection
// drops, or is down, it returns at once and the deletion goes on in the
// background. It is ErrLost if h was lost, even at the last moment.
func (h *hold) release() error {
	if err := h.finish(); err != nil {
		return err
	}
	if err := h.place.leave().verdict(); err != nil {
		if errors.Is(err, ErrLost) {
			h.mu.Lock()
			h.loseLocked(err)
			h.mu.Unlock()
		}
		return err
	}
	h.released()
	return nil
}

// finish begins a release. It is h.err if there is nothing to release any more.
func (h *hold) finish() error {
	h.uncount()
	h.stop()
	if err := h.err(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone { // found out at this same instant
		return h.why
	}
	h.over = true
	return nil
}

// released ends a release.
func (h *hold) released() {
	h.line.m.observe(event{kind: eventReleased, op: h.op, path: h.line.m.bare(h.line.dir), wait: time.Since(h.since)})
}
