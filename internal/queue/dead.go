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
)

// Dead letters are elements that could not be decoded, were rejected, or
// delivered too often. They are moved, in one transaction, to
// <path>-dead/dead-<priority>-<16 random digits>-<seq>, the data of their znodes as it was,
// and stay there until somebody removes them.
//
// Beside it stands why-<the same 16 digits>, made and removed in the same
// transactions: why, and what became of the element before. (If both do not fit
// into a request the dead letter stands alone.)
type deadLetters struct {
	site
	unframe func(stored []byte) ([][]byte, error) // the elements in a znode of this layout
}

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

// letter returns the operations that make a dead letter of what was stored, with
// the priority as class. The directory may have to be made.
func (q *deadLetters) letter(class string, stored []byte, sent time.Time, attempts int, fault error) []any {
	digits := strings.ReplaceAll(session.NewGUID(), "-", "")[:letterDigits]
	letter := &zk.CreateRequest{Path: session.ChildPath(q.dead, "dead-"+class+"-"+digits+"-"), Data: stored, Acl: q.m.Config.ACL, Flags: zk.FlagSequence}
	reason := "unknown"
	if fault != nil {
		reason = strings.ToValidUTF8(fault.Error(), "\uFFFD")
	}
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	data, err := json.Marshal(circumstance{reason, attempts, sent.UnixMilli()})
	why := &zk.CreateRequest{Path: session.ChildPath(q.dead, whyName(digits)), Data: data, Acl: q.m.Config.ACL}
	if err != nil || oversized(q.m, q.receipts, letter, why) {
		return []any{letter}
	}
	return []any{letter, why}
}

func whyName(digits string) string { return "why-" + digits }

// noGUID is as long as a GUID.
const noGUID = "00000000-0000-0000-0000-000000000000"

// oversized reports that ops are too large for a transaction with a receipt.
func oversized(m *session.Manager, receipts string, ops ...*zk.CreateRequest) bool {
	size := m.SizeOf(session.ChildPath(receipts, noGUID), nil)
	for _, op := range ops {
		size += m.SizeOf(op.Path, op.Data) + m.SizeOf(op.Path, nil)
	}
	return size > session.MaxPacket
}

// report tells the logger and the observer of an element that went to the dead
// letters.
func (q *deadLetters) report(key string, err error) {
	q.m.Log.Error("zsync: element goes to the dead letters", "path", q.path, "element", key, "err", err)
	q.m.Observe(session.Event{Kind: session.EventDead, Op: "recv", Path: q.path, Err: err})
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

// names returns the names of the dead letters, the oldest first.
func (q *deadLetters) names(ctx context.Context, inc *session.Incarnation) ([]deadName, error) {
	names, err := inc.Names(ctx, q.dead)
	return parseAll(names, parseDead, func(a, b deadName) int { return cmp.Compare(a.seq-b.seq, 0) }), err
}

func (q *deadLetters) Letters(ctx context.Context) iter.Seq2[*Letter, error] {
	return func(yield func(*Letter, error) bool) {
		var ds []deadName
		err := q.m.During(ctx, func(inc *session.Incarnation) (err error) {
			if err = inc.VetHere(ctx, q.dead); err == nil {
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

// read reads a dead letter, and why it is one. Of one that may not be read it returns the rest,
// with the error.
func (q *deadLetters) read(ctx context.Context, name deadName) (*Letter, error) {
	d := &Letter{ID: name.id, Priority: name.class}
	paths := []string{session.ChildPath(q.dead, name.id), session.ChildPath(q.dead, whyName(name.digits))}
	err := q.m.During(ctx, func(inc *session.Incarnation) error {
		if err := inc.VetHere(ctx, q.dead); err != nil {
			return err // a stranger may have written it
		}
		nodes, err := inc.GetVisible(ctx, paths)
		switch {
		case err != nil:
			return err
		case nodes[0].Stat == nil:
			return zk.ErrNoNode
		}
		d.Data, d.Framed, d.Since = slices.Clone(nodes[0].Data), nodes[0].Data, time.UnixMilli(nodes[0].Stat.Ctime)
		if all, fault := q.unframe(d.Data); fault == nil && len(all) == 1 {
			d.Data = all[0]
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

// removal returns the operations that remove d, and their size.
func (q *deadLetters) removal(d *Letter) (ops []any, size int) {
	for _, path := range d.paths {
		ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
		size += q.m.SizeOf(path, nil)
	}
	return ops, size
}

func (q *deadLetters) Discard(ctx context.Context, d *Letter) (removed bool, err error) {
	ops, _ := q.removal(d)
	_, err = q.commit(ctx, ops)
	if session.IsNoNode(err) {
		return false, nil
	}
	return err == nil, err
}

// placeOf reads the priority, and the key, that stand in the name of a dead letter
// of zsync's own layout.
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
