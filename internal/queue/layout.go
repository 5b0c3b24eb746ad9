package queue

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

// This file knows how a Queue's elements and claims are named. It does no I/O.
//
// Elements are the children of buckets, which are children of the queue's path:
//
//	b-<priority>-<number>            a bucket; its children are e-<seq>, in order
//	d-<priority>-<unix ms>-<digits>  elements that wait, due at that time at the earliest:
//	                                 t<unix ms>-<seq>, or t<unix ms>-<history>-<seq>
//	t-<priority>                     the tail: its data is the number of the newest bucket
//	keys                             exists if elements may have keys: every claim writes it
//	paused                           exists while no consumer claims
//
// Before the number of an element may stand its tag: k and a hash of its key, i and
// a hash of its ID. The history of one that was delivered before says how often that was,
// when it was first sent, and what its first name was.
//
// The data of a bucket is its board: it says which of its numbers are claimed, and by which
// mark. An element is free if it exists and its number is not on the board. ZooKeeper gives
// numbers in order and never twice, so a number without an element, and below one that has
// an element, never comes again.
//
// A mark is an ephemeral znode, <path>-live/<digits>. Each Queue value has one in each
// session in which it claims. Its name never comes again. What a mark has claimed is free
// when the mark is gone.
//
// The number of a first bucket is the zxid that made the queue's path. So when somebody
// deletes a queue with all its elements and another is made in its place, no name comes
// again, and nobody who still has an element of the former can remove one of the new.
//
// A producer that finds a bucket full makes the next and writes its number into
// the tail, in one transaction; every Send checks the version of the tail. So a
// bucket that has a successor gets no more elements, buckets are in order and so
// are the elements in each, no listing is ever long, and no sequence number wraps,
// however much the queue holds. The tail stays as long as the queue, so no bucket is
// made twice, though those that are empty are deleted.
//
// What waits for its time goes into a bucket for a short time around that: see slotOf. The
// digits are random, so no such bucket is made twice either. A consumer reads only those
// whose time has come.

// A site is where a queue is: the Session through which it is reached, and the paths
// of its znodes as the servers know them.
type site struct {
	m    *session.Manager
	path string // as the program knows it, for messages

	dir, live, senders, receipts, ids, dead string
}

func newSite(m *session.Manager, path string) site {
	dir := m.Full(path)
	return site{m, path, dir, dir + "-live", dir + "-senders", dir + "-receipts", dir + "-ids", dir + "-dead"}
}

// maxPost is how many elements one transaction settles.
const maxPost = 500

// bucketSize is how many elements a bucket gets before the next is made. One
// Send may exceed it.
const bucketSize = 1000

// A bucket is the parsed name of one.
type bucket struct {
	name    string
	prio    int
	number  int64 // of a delayed one: nothing in it is due before, in Unix milliseconds
	delayed bool
}

func bucketName(prio int, number int64) string { return fmt.Sprintf("b-%05d-%010d", prio, number) }
func tailName(prio int) string                 { return fmt.Sprintf("t-%05d", prio) }

// A slot is where elements stand that wait for about the same time.
type slot struct {
	prio  int
	start int64 // in Unix milliseconds
}

// slotOf returns the slot of an element that is due at a time. Slots are as long as a 32nd of
// the delay, or twice that, and at least a second: so there are few, whatever the delays are.
// All elements that are due now share a slot, however long ago they were due.
func slotOf(prio int, due, now int64) slot {
	width := int64(1000)
	due = max(due, now)
	for width < math.MaxInt64/64 && width*64 <= due-now {
		width *= 2
	}
	return slot{prio, due - due%width}
}

func (s slot) prefix() string { return fmt.Sprintf("d-%05d-%013d-", s.prio, s.start) }

// parseBucket reads a name that bucketName has made, or that begins with the prefix of a slot.
func parseBucket(name string) (bucket, bool) {
	kind, rest, _ := strings.Cut(name, "-")
	p, n, _ := strings.Cut(rest, "-")
	delayed := kind == "d"
	if delayed {
		n, _, _ = strings.Cut(n, "-")
	}
	prio, err := strconv.Atoi(p)
	number, err2 := strconv.ParseInt(n, 10, 64)
	ok := (kind == "b" || delayed) && err == nil && err2 == nil && prio >= 0 && number >= 0
	return bucket{name: name, prio: prio, number: number, delayed: delayed}, ok
}

// parseBuckets returns the buckets among names in the order in which they are
// served: by priority, the delayed of each before the others, which came later
// than those whose time has come.
func parseBuckets(names []string) []bucket {
	return parseAll(names, parseBucket, func(a, b bucket) int {
		return cmp.Or(cmp.Compare(a.prio, b.prio), firstIf(a.delayed, b.delayed), cmp.Compare(a.number, b.number), cmp.Compare(a.name, b.name))
	})
}

// parseAll returns what parse reads of names, in order.
func parseAll[E any](names []string, parse func(name string) (E, bool), compare func(a, b E) int) []E {
	es := make([]E, 0, len(names))
	for _, name := range names {
		if e, ok := parse(name); ok {
			es = append(es, e)
		}
	}
	slices.SortFunc(es, compare)
	return es
}

// firstIf compares two of which those for which something holds are first.
func firstIf(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// An element is the parsed name of one.
type element struct {
	bucket string
	name   string
	prio   int
	due    int64 // in Unix milliseconds; 0 if it is not delayed
	tries  int32 // how many attempts there were before it was delayed
	first  int64 // when it was first sent, in Unix milliseconds; 0: when its znode was made
	seq    int32
	tag    string // of its key and its ID, if it has any
	origin string // its first key, if it was given back for later
}

// key names the element within its queue, for as long as it has this place.
func (e element) key() string { return e.bucket + "/" + e.name }

// id names it for good.
func (e element) id() string { return cmp.Or(e.origin, e.key()) }

// before reports whether e precedes d in the queue, for two that were claimed one after the
// other.
func (e element) before(d element) bool {
	return cmp.Or(
		cmp.Compare(e.prio, d.prio),
		firstIf(e.due != 0, d.due != 0), cmp.Compare(e.due, d.due),
		cmp.Compare(len(e.bucket), len(d.bucket)), // longer if the number is
		cmp.Compare(e.bucket, d.bucket), cmp.Compare(e.seq-d.seq, 0),
	) < 0
}

// What else may exist in the queue's znode.
const (
	keysName   = "keys"   // if elements have keys: every claim writes it
	pausedName = "paused" // while no consumer claims
)

// markDigits is the length of the name of a mark.
const markDigits = 16

// randomDigits returns random hexadecimal digits, at most 32.
func randomDigits(n int) string { return strings.ReplaceAll(session.NewGUID(), "-", "")[:n] }

// The lengths of hashes. Two keys with one hash are taken for one, which does no
// more harm than that; two IDs must not be.
const (
	keyDigits = 8
	idDigits  = 32
)

func hash(text string, digits int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:digits]
}

// tagOf returns the tag of an element. The empty key, and ID, are none.
func tagOf(key, id string) (tag string) {
	if key != "" {
		tag = "k" + hash(key, keyDigits)
	}
	if id != "" {
		tag += "i" + hash(id, idDigits)
	}
	return tag
}

// keyOf returns the part of a tag that is of the key.
func keyOf(tag string) string {
	if strings.HasPrefix(tag, "k") {
		return tag[:1+keyDigits]
	}
	return ""
}

// isTag reports whether text is what tagOf returns.
func isTag(text string) bool {
	if rest, ok := strings.CutPrefix(text, "k"); ok && len(rest) >= keyDigits {
		if text = rest[keyDigits:]; text == "" {
			return true
		}
	}
	return len(text) == 1+idDigits && text[0] == 'i'
}

func withTag(name, tag string) string {
	if tag == "" {
		return name
	}
	return name + tag + "-"
}

// elementName is the name of an element up to its number.
func elementName(due int64, tag string) string {
	if due == 0 {
		return withTag("e-", tag)
	}
	return withTag(fmt.Sprintf("t%013d-", due), tag)
}

// laterName is elementName for one that was delivered and waits for its time
// again.
func laterName(due int64, tries int32, first int64, origin, tag string) string {
	return withTag(fmt.Sprintf("t%013d-%d.%d.%s-", due, tries, first, quoted.Replace(origin)), tag)
}

// quoted makes a part of a name of a key.
var quoted, unquoted = strings.NewReplacer("-", "_", "/", ":"), strings.NewReplacer("_", "-", ":", "/")

// parseElements returns the elements among the children of b, in order.
func parseElements(b bucket, names []string) []element {
	return parseAll(names, func(name string) (element, bool) { return parseElement(b, name) }, func(a, b element) int {
		return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.seq, b.seq))
	})
}

func parseElement(b bucket, name string) (e element, ok bool) {
	e = element{bucket: b.name, name: name, prio: b.prio}
	rest, ok := strings.CutPrefix(name, "e-")
	if b.delayed {
		var due string
		due, rest, ok = strings.Cut(strings.TrimPrefix(name, "t"), "-")
		e.due, _ = strconv.ParseInt(due, 10, 64)
		ok = ok && e.due > 0
		if history, more, found := strings.Cut(rest, "-"); ok && found && strings.Contains(history, ".") {
			rest, ok = more, e.parseHistory(history)
		}
	}
	if tag, more, found := strings.Cut(rest, "-"); ok && found && tag != "" {
		e.tag, rest, ok = tag, more, isTag(tag)
	}
	if ok {
		e.seq, ok = session.ParseSeq(rest)
	}
	return e, ok
}

// parseHistory reads the part of a name that laterName has made.
func (e *element) parseHistory(text string) bool {
	tries, rest, ok := strings.Cut(text, ".")
	first, origin, _ := strings.Cut(rest, ".")
	e.origin = unquoted.Replace(origin)
	n, err := strconv.ParseInt(tries, 10, 32)
	ms, err2 := strconv.ParseInt(first, 10, 64)
	e.tries, e.first = int32(n), ms
	return ok && err == nil && err2 == nil && n >= 0 && ms >= 0
}

// dueAt returns t in Unix milliseconds, or the next number that is one: an
// int64 holds those of 292 million years, and 0 stands for no delay.
func dueAt(t time.Time) int64 {
	switch s := t.Unix(); {
	case s < 0:
		return 1
	case s >= math.MaxInt64/1000:
		return math.MaxInt64
	}
	return max(t.UnixMilli(), 1)
}

// What was sent with an ID is noted in the transaction that stores it, in
//
//	<path>-ids/<2 digits>/<30 digits>   of the ID's hash
//
// whose data say for how long, and where the element was put. While that is there
// the servers refuse to make it again; one whose time is over, by the servers'
// clock, is replaced. Whoever looks after the queue deletes those, see sweep.

// A note is the data of the znode of an ID.
type note struct {
	memory time.Duration
	bucket string // into which the element went
}

func (n note) marshal() []byte { return fmt.Appendf(nil, "%d %s", n.memory.Milliseconds(), n.bucket) }

func parseNote(data []byte) (n note) {
	var ms int64
	fmt.Sscan(string(data), &ms, &n.bucket)
	n.memory = time.Duration(ms) * time.Millisecond
	return n
}

// over reports whether the time of a note with this Stat is over, when now was just
// written.
func (n note) over(stat, now *zk.Stat) bool { return now.Mtime-stat.Mtime >= n.memory.Milliseconds() }
