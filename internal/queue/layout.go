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

	"github.com/zsync/zsync/internal/znodes"
)

// This file defines the znodes of a queue in zsync's own layout. Every claim and every Send relies on
// the properties below. Elements are the children of buckets, which are children of the queue's path:
//
//	b-<priority>-<number>            a bucket; its children are e-<seq>, in order
//	d-<priority>-<unix ms>-<digits>  a bucket of elements that are due at that time or later:
//	                                 t<unix ms>-<seq>, or t<unix ms>-<history>-<seq>
//	t-<priority>                     the tail: its data is the number of the newest bucket
//	keys                             exists if elements may have keys: every claim writes it
//	paused                           exists while the queue is paused: no consumer claims
//
// In the name of an element, a tag can precede the number: the letter k and a hash of the element's
// key, the letter i and a hash of its ID, or both. If a consumer has returned an element with the
// fate Later, the name also has a history: the number of attempts, the time of the Send, and the
// element's first name.
//
// # Claims
//
// A mark is an ephemeral znode, <path>-live/<digits>. Each Queue value has one mark in each session
// in which it claims elements. Its name is never used again. The data of a bucket is its board: it lists
// the numbers that each mark has claimed, see board.go. An element is free if it exists and no existing
// mark has claimed its number. ZooKeeper assigns the numbers in order, and assigns no number twice. So a
// number without an element is never used again if a higher number has an element.
//
// # Bell
//
// The bell is the data of the queue's znode. A client writes it ("rings the bell") when an element may
// have become free. That wakes the first idle consumer: see idle.go.
//
// # Names
//
// No element gets the name of an earlier element, even if an operator deletes the queue and a
// client creates it again. The reason is the number of the first bucket: it is at least the zxid of the
// transaction that created the queue's znode. So a process that still has an element of the deleted
// queue cannot remove an element of the new queue. Only if another client deletes a bucket and creates it by that
// name again, names come again: see `claimant.same`, and the field `czxid` of an item.
//
// If the newest bucket is full, a producer creates the next bucket and writes the number of the new
// bucket into the tail, in one transaction. Every Send checks the version of the tail. These rules
// have three consequences:
//
//   - Once a bucket has a successor, no Send adds elements to it.
//   - Buckets are in order, and the elements in each bucket are in order.
//   - No listing is long, and no sequence number wraps, however large the queue is.
//
// The tail exists as long as the queue. So no bucket is created twice, although clients delete empty
// buckets.
//
// # Delay
//
// A delayed element is in a bucket for the period of its due time: see slotOf. The digits in the name of
// the bucket are random, so it is not created twice either. Unless elements have keys, a consumer reads
// such a bucket only after its period has begun.

const (
	maxPost    = 500  // the largest number of elements that a transaction settles
	bucketSize = 1000 // the number of elements after which a producer creates the next bucket; the last Sends can exceed it
)

// The type `bucket` is the parsed name of a bucket.
type bucket struct {
	name    string
	prio    int
	number  int64 // if delayed: the earliest time at which an element can be due, in Unix milliseconds
	delayed bool
}

func pathsOf[E any](dir string, es []E, name func(E) string) []string {
	paths := make([]string, len(es))
	for i, e := range es {
		paths[i] = znodes.ChildPath(dir, name(e))
	}
	return paths
}

func (b bucket) text() string { return b.name }

func bucketName(prio int, number int64) string { return fmt.Sprintf("b-%05d-%010d", prio, number) }
func tailName(prio int) string                 { return fmt.Sprintf("t-%05d", prio) }

// A slot is a period of time. Delayed elements that are due in the same slot share buckets. slotOf
// returns the slot of the time `due`, as the beginning of the names of these buckets. A slot is between
// a 64th and a 32nd of the delay long, but at least a second. So there are few slots, however long the
// delays are. All elements that are already due share a slot.
func slotOf(prio int, due, now int64) string {
	width := int64(1000)
	due = max(due, now)
	for width < math.MaxInt64/64 && width*64 <= due-now {
		width *= 2
	}
	return fmt.Sprintf("d-%05d-%013d-", prio, due-due%width)
}

// parseBucket parses the result of bucketName, or a name that begins with a slot.
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

// parseBuckets returns the buckets among names, in the order of compareBuckets.
func parseBuckets(names []string) []bucket { return ParseAll(names, parseBucket, compareBuckets) }

// compareBuckets compares by the order in which consumers read buckets: by priority, and within a priority the
// delayed buckets first. So when a delayed element is due, it precedes all elements of its priority that were sent
// without a delay.
func compareBuckets(a, b bucket) int {
	return cmp.Or(cmp.Compare(a.prio, b.prio), cmp.Compare(b.name[0], a.name[0]), cmp.Compare(a.number, b.number))
}

// ParseAll returns the parsed names in order, without the names that the function `parse` rejects.
func ParseAll[E any](names []string, parse func(name string) (E, bool), compare func(a, b E) int) []E {
	es := make([]E, 0, len(names))
	for _, name := range names {
		if e, ok := parse(name); ok {
			es = append(es, e)
		}
	}
	slices.SortFunc(es, compare)
	return es
}

// The type `element` is the parsed name of an element.
type element struct {
	bucket string
	name   string
	prio   int
	due    int64 // in Unix milliseconds; 0 if it is not delayed
	tries  int32 // attempts up to the last return with the fate Later
	first  int64 // time of the Send, in Unix milliseconds; 0: the time when its znode was created
	seq    int32
	tag    string // tag of its key and its ID, or empty
	origin string // if a consumer has returned the element with the fate Later, the result of key() for its first name
}

// The method `keyed` reports whether the element has a key.
func (e *element) keyed() bool { return strings.HasPrefix(e.tag, "k") }

// The method `key` returns a name that identifies the element in its queue until the element moves.
func (e *element) key() string { return e.bucket + "/" + e.name }

// The method `id` returns a name that identifies the element permanently.
func (e *element) id() string { return cmp.Or(e.origin, e.key()) }

// Other names of znodes.
const (
	keysName   = "keys"
	pausedName = "paused"
	markDigits = 16 // the length of the name of a mark
)

// randomDigits returns random hexadecimal digits, at most 32.
func randomDigits(n int) string { return strings.ReplaceAll(znodes.NewGUID(), "-", "")[:n] }

// The lengths of hashes. If two keys have the same hash, zsync treats the two as one key. That does
// no other harm. Two IDs must not have the same hash, so the hash of an ID is longer.
const (
	keyDigits = 8
	idDigits  = 32
)

func hash(text string, digits int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:digits]
}

// tagOf returns the tag of an element with a key or an ID, or both.
func tagOf(key, id string) (tag string) {
	if key != "" {
		tag = "k" + hash(key, keyDigits)
	}
	if id != "" {
		tag += "i" + hash(id, idDigits)
	}
	return tag
}

// keyOf returns the key's part of a tag, or "".
func keyOf(tag string) string {
	if strings.HasPrefix(tag, "k") {
		return tag[:1+keyDigits]
	}
	return ""
}

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

func elementName(due int64, tag string) string {
	if due == 0 {
		return withTag("e-", tag)
	}
	return withTag(fmt.Sprintf("t%013d-", due), tag)
}

// laterName returns the name, up to the number, of an element that is returned with the fate Later.
func laterName(due int64, tries int32, first int64, origin, tag string) string {
	return withTag(fmt.Sprintf("t%013d-%d.%d.%s-", due, tries, first, quoted.Replace(origin)), tag)
}

// The replacer quoted turns the result of key() into a part of a name.
var quoted, unquoted = strings.NewReplacer("-", "_", "/", ":"), strings.NewReplacer("_", "-", ":", "/")

func parseElements(b bucket, names []string) []*element {
	return ParseAll(names, func(name string) (*element, bool) { return parseElement(b, name) }, func(a, b *element) int {
		return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.seq, b.seq))
	})
}

func parseElement(b bucket, name string) (e *element, ok bool) {
	e = &element{bucket: b.name, name: name, prio: b.prio}
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
		e.seq, ok = znodes.ParseSeq(rest)
	}
	return e, ok
}

func (e *element) parseHistory(text string) bool {
	tries, rest, ok := strings.Cut(text, ".")
	first, origin, _ := strings.Cut(rest, ".")
	e.origin = unquoted.Replace(origin)
	n, err := strconv.ParseInt(tries, 10, 32)
	ms, err2 := strconv.ParseInt(first, 10, 64)
	e.tries, e.first = int32(n), ms
	return ok && err == nil && err2 == nil && n >= 0 && ms >= 0
}

// dueAt returns `t` in Unix milliseconds, at most math.MaxInt64.
func dueAt(t time.Time) int64 {
	if t.Unix() >= math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return t.UnixMilli()
}

// A note is the record of an ID. A transaction that stores an element with an ID also creates the
// note:
//
//	<path>-ids/<2 digits>/<30 digits>   of the ID's hash
//
// While the note exists, the servers refuse the transaction of a second Send with this ID. If a note has
// expired by the servers' clock, a producer replaces it, or a sweep deletes it.

func noteOf(memory time.Duration, bucket string) []byte {
	return fmt.Appendf(nil, "%d %s", memory.Milliseconds(), bucket)
}

// parseNote returns the time in milliseconds for which the queue remembers the ID, and the first bucket
// of the element.
func parseNote(data []byte) (memory int64, bucket string) {
	fmt.Sscan(string(data), &memory, &bucket)
	return memory, bucket
}

// The function `expired` reports whether a note has expired. The argument `now` is the Stat from a recent
// write of this client: the Mtime of that Stat is the servers' time.
func expired(data []byte, stat, now *zk.Stat) bool {
	memory, _ := parseNote(data)
	return now.Mtime-stat.Mtime >= memory
}
