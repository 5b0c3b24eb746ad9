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
	"github.com/zsync/zsync/internal/znodes"
)

// This file stores, reads and removes dead letters, for all layouts.
//
// One transaction moves an element to <path>-dead/dead-<priority>-<16 random digits>-<seq>, with
// its data unchanged. It also creates the znode why-<the same 16 digits>, with the reason, the
// attempts, and the time when the element was sent. Clients remove the two znodes together. If the
// two do not fit into one request, the transaction creates only the first.

// letterDigits is the number of random digits in the name of a dead letter. Sequence numbers alone are not
// unique, because they restart after the servers have deleted the empty parent znode.
const letterDigits = 16

const maxReason = 1000 // bytes

// Make returns the operations that create a dead letter with the data `stored`. The argument `class` is its
// priority, as the layout writes it. If the parent znode does not exist, the caller must create it.
func (q *Common) Make(class string, stored []byte, sent time.Time, attempts int, fault error) []any {
	digits := randomDigits(letterDigits)
	letter := &zk.CreateRequest{Path: znodes.ChildPath(q.Dead, "dead-"+class+"-"+digits+"-"), Data: stored, Acl: q.m.Config.ACL, Flags: zk.FlagSequence}
	reason := "unknown"
	if fault != nil {
		reason = strings.ToValidUTF8(fault.Error(), "\uFFFD")
	}
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	data, _ := json.Marshal(map[string]any{"reason": reason, "attempts": attempts, "first": sent.UnixMilli()})
	why := &zk.CreateRequest{Path: znodes.ChildPath(q.Dead, whyName(digits)), Data: data, Acl: q.m.Config.ACL}
	if znodes.SizeOf(q.m, letter.Path, stored)+znodes.SizeOf(q.m, why.Path, data)+3*znodes.SizeOf(q.m, letter.Path, nil) > znodes.MaxPacket {
		return []any{letter} // both would be too large for a transaction that also deletes the element, and has a receipt
	}
	return []any{letter, why}
}

func whyName(digits string) string { return "why-" + digits }

func (q *Common) Report(key string, err error) {
	q.m.Log.Error("zsync: an element becomes a dead letter", "path", q.cfg.Path, "element", key, "err", err)
	q.m.Observe(session.Report{Kind: session.EventDead, Op: "recv", Path: q.cfg.Path, Err: err})
}

func parseDead(name string) (*Letter, bool) {
	rest, ok := strings.CutPrefix(name, "dead-")
	i := len(rest) - len("-0000000000")
	j := i - letterDigits - 1
	if !ok || j < 0 || rest[i] != '-' || rest[j] != '-' {
		return nil, false
	}
	seq, ok := znodes.ParseSeq(rest[i+1:])
	return &Letter{ID: name, Priority: rest[:j], digits: rest[j+1 : i], seq: seq}, ok
}

// Unread lists the dead letters, the oldest first. It does not read them.
func (q *Common) Unread(ctx context.Context, inc *session.Incarnation) ([]*Letter, error) {
	names, err := inc.Names(ctx, q.Dead)
	return ParseAll(names, parseDead, func(a, b *Letter) int { return cmp.Compare(a.seq-b.seq, 0) }), err
}

func (q *Common) Letters(ctx context.Context) iter.Seq2[*Letter, error] {
	return func(yield func(*Letter, error) bool) {
		ds, err := Synced(ctx, q, func(ctx context.Context, inc *session.Incarnation) ([]*Letter, error) {
			if err := znodes.VetHere(ctx, inc, q.Dead); err != nil {
				return nil, err
			}
			return q.Unread(ctx, inc)
		})
		if err != nil {
			yield(nil, err)
			return
		}
		for _, d := range ds {
			if err := q.read(ctx, d); !session.IsNoNode(err) && !yield(d, err) {
				return
			}
		}
	}
}

// If the servers refuse to let the client read the data, `d` stays without data, and the error is
// zk.ErrNoAuth.
func (q *Common) read(ctx context.Context, d *Letter) error {
	paths := []string{znodes.ChildPath(q.Dead, d.ID), znodes.ChildPath(q.Dead, whyName(d.digits))}
	return q.m.During(ctx, func(inc *session.Incarnation) error {
		if err := znodes.VetHere(ctx, inc, q.Dead); err != nil {
			return err // an unauthorized client may have written the letter
		}
		nodes, err := znodes.GetVisible(ctx, inc, paths)
		switch {
		case err != nil:
			return err
		case nodes[0].Stat == nil:
			return zk.ErrNoNode
		}
		d.Data, d.Framed = slices.Clone(nodes[0].Data), nodes[0].Data
		d.Removal = nil
		for i, n := range nodes { // one transaction has made both
			if n.Stat != nil {
				d.Removal = append(d.Removal, &zk.DeleteRequest{Path: paths[i], Version: -1})
			}
			if n.Stat != nil && !znodes.Concealed(n) && d.Since.IsZero() {
				d.Since = time.UnixMilli(n.Stat.Ctime)
			}
		}
		if q.unframe != nil {
			d.Data = q.unframe(d.Data)
		}
		var why struct {
			Reason          string
			Attempts, First int64
		}
		if json.Unmarshal(nodes[1].Data, &why) == nil {
			d.Reason, d.Attempts, d.First = why.Reason, int(why.Attempts), time.UnixMilli(why.First)
		}
		if hidden(nodes[0]) {
			return zk.ErrNoAuth
		}
		return nil
	})
}

// Commit applies `ops` in one transaction, exactly once, even if sessions end during the call.
func (q *Common) Commit(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	return txns.Across(ctx, q.m, q.Receipts, ops)
}

func (q *Common) Discard(ctx context.Context, d *Letter) error {
	_, err := q.Commit(ctx, d.Removal)
	return err
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
