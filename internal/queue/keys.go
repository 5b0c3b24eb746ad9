package queue

import (
	"context"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// Elements with keys. Of those of one key one is claimed at a time, in order; the
// next is free when it is gone for good.
//
// Where an element has a key the znode "keys" is there: producers check it in the
// transaction that stores the element. Every claim writes it, at the version that
// was read before anything else; so claims of such a queue have one order, and what
// one has read is, as far as claims go, still so when it is applied. What else
// may happen in between:
//
//   - An element is removed, buried, or cancelled: then its key is free. It was
//     seen before, so others of its key waited in vain. The removal rings the bell.
//   - An element is given back to its place, by its consumer or because that
//     died: it was there all the time, so the others waited for it and go on to.
//   - An element is given back for later, and so gets another place: that writes
//     "keys" too. Otherwise a claim could look in its new place before it is
//     there, and in the old one after it has gone, and take the next of its key.
//     In its new place it goes before all others of its key, that they wait for,
//     due or not.
//   - An element is sent, or one that was sent for later is due: if it stands before
//     what is claimed it is as if it had been sent a moment later.
//
// An element that is sent for later is not there for its key before its time.
// Between priorities it is the priority that counts, as without keys; but
// one at a time holds across all of them.

// exclusion returns the operation that is refused if another claim was made, or an
// element was moved, since the lot was read.
func (t *lot) exclusion(q *core) any {
	return &zk.SetDataRequest{Path: session.ChildPath(q.dir, keysName), Version: t.keys}
}

// A ward tells, by key, which element alone may be claimed next: none if the value
// is another's name that nobody has.
type ward map[string]string

const nobody = "*"

// allows reports whether e may be claimed as far as its key goes.
func (w ward) allows(e element) bool {
	owner, ok := w[keyOf(e.tag)]
	return keyOf(e.tag) == "" || !ok || owner == e.key()
}

// bar keeps the key of e from everybody but owner, if it has one.
func (w ward) bar(e element, owner string) {
	if key := keyOf(e.tag); key != "" {
		w[key] = owner
	}
}

// searchKeyed is search where elements have keys. It must look at every element
// that is claimed, to know its key.
func (q *core) searchKeyed(ctx context.Context, inc *session.Incarnation, f *finding, buckets []bucket, n int, keys int32, aside bool) (*finding, error) {
	var lots []*lot
	for from := 0; from < len(buckets); from += lotsAtOnce {
		part, err := q.lots(ctx, inc, buckets[from:min(from+lotsAtOnce, len(buckets))])
		if err != nil {
			return nil, err
		}
		lots = append(lots, part...)
	}
	if !aside {
		q.deleteEmpty(inc, lots, buckets)
	}
	q.delays.keep(lots)
	w := make(ward)
	for _, t := range lots {
		t.keyed, t.keys = true, keys
		if t.children == 0 || len(t.claimed) == 0 && !t.delayed {
			continue
		}
		if err := q.list(ctx, inc, t); err != nil {
			return nil, err
		}
		for _, e := range t.elements {
			if t.claimed.has(e.seq) {
				w.bar(e, nobody)
			} else if e.first > 0 && w.allows(e) {
				w.bar(e, e.key())
			}
		}
	}
	for _, t := range lots {
		if !t.exhausted() {
			if err := q.list(ctx, inc, t); err != nil { // again, from memory
				return nil, err
			}
			var due time.Time
			if f.es, due = t.free(n, func(e element) bool {
				skip := q.skips.skipped(e.key())
				ok := !skip && w.allows(e)
				if ok || skip {
					w.bar(e, nobody) // what is passed over keeps its place
				}
				return ok
			}); len(f.es) > 0 {
				f.lot = t
				return f, nil
			}
			f.wait(due)
		}
		f.claims[t.name] = t.taken()
	}
	return f, nil
}
