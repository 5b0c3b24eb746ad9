package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	txns "github.com/zsync/zsync/internal/txn"
)

// This file stores, reads and removes dead letters, for all layouts. Its callers decide which
// elements become dead letters.

// DeadLetters are the elements of a queue that could not be decoded, were rejected, or were delivered
// too often. They stay until a program or a Sweeper removes them.
//
// # Znodes
//
// One transaction moves an element to <path>-dead/dead-<priority>-<16 random digits>-<seq>, with
// its data unchanged. It also creates the znode why-<the same 16 digits>, with the reason, the
// attempts, and the time when the element was sent. Clients remove the two znodes together. If the
// two do not fit into one request, the transaction creates only the first.
type DeadLetters struct {
	Manager       *session.Manager
	Path          string // path of the queue, as the program knows it, for messages
	Dir, Receipts string // paths as the servers know them

	// Unframe returns the producer's data from the data that another library stores. If the stored
	// data is the producer's data, Unframe is nil.
	Unframe func(stored []byte) []byte
}

// NewDeadLetters returns the dead letters of the queue at path. It does no I/O.
func NewDeadLetters(m *session.Manager, path string, unframe func([]byte) []byte) DeadLetters {
	dir := m.Full(path)
	return DeadLetters{m, path, dir + "-dead", dir + "-receipts", unframe}
}

// letterDigits is the number of random digits in the name of a dead letter. The digits make the
// name unique. Sequence numbers alone are not unique, because they restart after the servers have
// deleted the empty parent znode.
const letterDigits = 16

// maxReason is the largest length of the reason of a dead letter, in bytes.
const maxReason = 1000

// The type `circumstance` is the JSON in the second znode of a dead letter.
type circumstance struct {
	Reason   string `json:"reason"`
	Attempts int    `json:"attempts"`
	First    int64  `json:"first"` // Unix milliseconds
}

// Make returns the operations that create a dead letter. The argument `stored` is the data of the
// dead letter. The argument `class` is its priority, as the layout writes it. If the parent znode
// does not exist, the caller must create it.
func (q *DeadLetters) Make(class string, stored []byte, sent time.Time, attempts int, fault error) []any {
	digits := strings.ReplaceAll(session.NewGUID(), "-", "")[:letterDigits]
	letter := &zk.CreateRequest{Path: session.ChildPath(q.Dir, "dead-"+class+"-"+digits+"-"), Data: stored, Acl: q.Manager.Config.ACL, Flags: zk.FlagSequence}
	reason := "unknown"
	if fault != nil {
		reason = strings.ToValidUTF8(fault.Error(), "\uFFFD")
	}
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	data, err := json.Marshal(circumstance{reason, attempts, sent.UnixMilli()})
	why := &zk.CreateRequest{Path: session.ChildPath(q.Dir, whyName(digits)), Data: data, Acl: q.Manager.Config.ACL}
	if err != nil || Oversized(q.Manager, q.Receipts, letter, why) {
		return []any{letter}
	}
	return []any{letter, why}
}

func whyName(digits string) string { return "why-" + digits }

// noGUID has the length of a GUID.
const noGUID = "00000000-0000-0000-0000-000000000000"

// Oversized reports whether `ops` are too large for a transaction with a receipt.
func Oversized(m *session.Manager, receipts string, ops ...*zk.CreateRequest) bool {
	size := m.SizeOf(session.ChildPath(receipts, noGUID), nil)
	for _, op := range ops {
		size += m.SizeOf(op.Path, op.Data) + m.SizeOf(op.Path, nil)
	}
	return size > session.MaxPacket
}

// Report logs that an element has become a dead letter, and calls the observer.
func (q *DeadLetters) Report(key string, err error) {
	q.Manager.Log.Error("zsync: an element becomes a dead letter", "path", q.Path, "element", key, "err", err)
	q.Manager.Observe(session.Report{Kind: session.EventDead, Op: "recv", Path: q.Path, Err: err})
}

// A deadName is the parsed name of a dead letter.
type deadName struct {
	id     string
	class  string
	digits string
	seq    int32
}

// parseDead reads the name of a dead letter.
func parseDead(name string) (deadName, bool) {
	rest, ok := strings.CutPrefix(name, "dead-")
	i := len(rest) - len("-0000000000")
	j := i - letterDigits - 1
	if !ok || j < 0 || rest[i] != '-' || rest[j] != '-' {
		return deadName{}, false
	}
	seq, ok := session.ParseSeq(rest[i+1:])
	return deadName{id: name, class: rest[:j], digits: rest[j+1 : i], seq: seq}, ok
}

// Count returns the number of dead letters.
func (q *DeadLetters) Count(ctx context.Context, inc *session.Incarnation) (int, error) {
	ds, err := q.names(ctx, inc)
	return len(ds), err
}

// The method `names` returns the names of the dead letters, the oldest first.
func (q *DeadLetters) names(ctx context.Context, inc *session.Incarnation) ([]deadName, error) {
	names, err := inc.Names(ctx, q.Dir)
	return parseAll(names, parseDead, func(a, b deadName) int { return cmp.Compare(a.seq-b.seq, 0) }), err
}

func (q *DeadLetters) Letters(ctx context.Context) iter.Seq2[*Letter, error] {
	return func(yield func(*Letter, error) bool) {
		var ds []deadName
		err := q.Manager.During(ctx, func(inc *session.Incarnation) (err error) {
			if err = inc.VetHere(ctx, q.Dir); err == nil {
				ds, err = q.names(ctx, inc)
			}
			return err
		})
		if err != nil {
			yield(nil, err)
			return
		}
		for _, d := range ds {
			l, err := q.read(ctx, d)
			if session.IsNoNode(err) {
				continue
			}
			if !yield(l, err) {
				return
			}
		}
	}
}

// The method `read` reads a dead letter and its reason. If the servers refuse to let the client
// read the data, the result is a Letter without data and the error zk.ErrNoAuth.
func (q *DeadLetters) read(ctx context.Context, name deadName) (*Letter, error) {
	d := &Letter{ID: name.id, Priority: name.class}
	paths := []string{session.ChildPath(q.Dir, name.id), session.ChildPath(q.Dir, whyName(name.digits))}
	err := q.Manager.During(ctx, func(inc *session.Incarnation) error {
		if err := inc.VetHere(ctx, q.Dir); err != nil {
			return err // an unauthorized client may have written the letter
		}
		nodes, err := inc.GetVisible(ctx, paths)
		switch {
		case err != nil:
			return err
		case nodes[0].Stat == nil:
			return zk.ErrNoNode
		}
		d.Data, d.Framed = slices.Clone(nodes[0].Data), nodes[0].Data
		for _, n := range nodes { // one transaction has made both
			if n.Stat != nil && !n.Concealed() && d.Since.IsZero() {
				d.Since = time.UnixMilli(n.Stat.Ctime)
			}
		}
		if q.Unframe != nil {
			d.Data = q.Unframe(d.Data)
		}
		if d.paths = paths[:1]; nodes[1].Stat != nil {
			d.paths = paths
		}
		var c circumstance
		if json.Unmarshal(nodes[1].Data, &c) == nil {
			d.Reason, d.Attempts, d.First = c.Reason, c.Attempts, time.UnixMilli(c.First)
		}
		if hidden(nodes[0]) {
			return zk.ErrNoAuth
		}
		return nil
	})
	return d, err
}

// Removal returns the operations that remove d, and their size.
func (q *DeadLetters) Removal(d *Letter) (ops []any, size int) {
	for _, path := range d.paths {
		ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
		size += q.Manager.SizeOf(path, nil)
	}
	return ops, size
}

func (q *DeadLetters) Discard(ctx context.Context, d *Letter) (removed bool, err error) {
	ops, _ := q.Removal(d)
	_, err = txns.Across(ctx, q.Manager, q.Receipts, ops)
	if session.IsNoNode(err) {
		return false, nil
	}
	return err == nil, err
}

// placeOf parses the priority and the key in the name of a dead letter of zsync's own layout.
func placeOf(d *Letter) (prio int, tag string, err error) {
	text, key, found := strings.Cut(d.Priority, "k")
	if found {
		tag = "k" + key
	}
	if prio, err = strconv.Atoi(text); err != nil || found && !isTag(tag) {
		return 0, "", session.Invalid("%q, of dead letter %s, is no priority", d.Priority, d.ID)
	}
	return prio, tag, nil
}
