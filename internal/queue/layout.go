package queue

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
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
// Elements stand in buckets, which are children of the queue's path:
//
//	b-<priority>-<number>   a bucket; its children are e-<seq>, in order
//	d-<priority>-<number>   elements that wait for their time: t<unix ms>-<seq>, or
//	                        t<unix ms>-<attempts>.<unix ms when first sent>-<seq>
//	t-<priority>            the tail: its data is the number of the newest bucket
//	keys                    there if elements may have keys: every claim writes it
//
// Before the number of an element may stand its tag: k and a hash of its key, i and
// a hash of its ID.
//
// The data of a bucket are the numbers of its elements that are claimed, as
// spans. An element is free if it is there and not among them. ZooKeeper gives
// numbers in order and never twice, so a number that is not there, and is lower
// than one that is, never comes again: claims are a few spans, however many
// elements they are of.
//
// The number of a first bucket, and of what waits, is the zxid that made the
// queue's path. So when somebody deletes a queue with all its elements and
// another is made in its place, no name comes again, and who still has an
// element of the former in hand cannot remove one of the new.
//
// A producer that finds a bucket full makes the next and writes its number into
// the tail, in one transaction; every Send checks the version of the tail. So a
// bucket that has a successor gets no more elements, buckets are in order and so
// are the elements in each, no listing is ever long, and no sequence number wraps,
// however much the queue holds. The tail stays as long as the queue, so no bucket is
// made twice, though those that are empty are deleted.

// A site is where a queue is: the Session through which it is reached, and the paths
// of its znodes as the servers know them.
type site struct {
	m    *session.Manager
	path string // as the program knows it, for messages

	dir, claims, live, senders, receipts, ids, dead string
}

func newSite(m *session.Manager, path string) site {
	dir := m.Full(path)
	return site{m, path, dir, dir + "-claims", dir + "-live", dir + "-senders", dir + "-receipts", dir + "-ids", dir + "-dead"}
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
	number  int64
	delayed bool
}

func bucketName(prio int, number int64) string { return fmt.Sprintf("b-%05d-%010d", prio, number) }
func tailName(prio int) string                 { return fmt.Sprintf("t-%05d", prio) }
func delayedName(prio int, number int64) string {
	return fmt.Sprintf("d-%05d-%010d", prio, number)
}

// parseBucket reads a name that bucketName or delayedName has made.
func parseBucket(name string) (bucket, bool) {
	kind, rest, _ := strings.Cut(name, "-")
	p, n, _ := strings.Cut(rest, "-")
	prio, err := strconv.Atoi(p)
	number, err2 := strconv.ParseInt(n, 10, 64)
	ok := (kind == "b" || kind == "d") && err == nil && err2 == nil && prio >= 0 && number >= 0
	return bucket{name: name, prio: prio, number: number, delayed: kind == "d"}, ok
}

// parseBuckets returns the buckets among names in the order in which they are
// served: by priority, the delayed of each before the others, which came later
// than those whose time has come.
func parseBuckets(names []string) []bucket {
	return parseAll(names, parseBucket, func(a, b bucket) int {
		return cmp.Or(cmp.Compare(a.prio, b.prio), firstIf(a.delayed, b.delayed), cmp.Compare(a.number, b.number))
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
	class  string // in another library's layout: its priority
	due    int64  // in Unix milliseconds; 0 if it is not delayed
	tries  int32  // how many attempts there were before it was delayed
	first  int64  // when it was first sent, in Unix milliseconds; 0: when its znode was made
	seq    int32
	tag    string // of its key and its ID, if it has any
	part   string // in another library's layout: its place in a znode of several
}

// key names the element within its queue, for as long as the queue exists.
func (e element) key() string { return strings.TrimPrefix(e.bucket+"/"+e.name, "/") }

// keysName is the name of the znode that every claim writes if elements have keys.
const keysName = "keys"

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
func laterName(due int64, tries int32, first int64, tag string) string {
	return withTag(fmt.Sprintf("t%013d-%d.%d-", due, tries, first), tag)
}

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
	tries, first, ok := strings.Cut(text, ".")
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

// A claimant is the consumers of one Engine in one ZooKeeper session. It has
//
//	<path>-claims/<guid>       persistent: its journal, with what it owns
//	<path>-live/<guid>         ephemeral: its session stands
//	<path>-claims/<guid>-gone  persistent: made by whoever first finds that it does not

const goneSuffix = "-gone"

// A holding is what a claimant has of one bucket: the numbers that it owns, and
// those of them that are in a consumer's hands. What was removed may be among
// either: it never comes again.
type holding struct{ owned, hand spans }

// A record is the data of a journal. That of a producer has no holdings.
type record struct {
	serial    int64 // of the last transaction that was applied
	givenBack bool  // others have begun to give back what it owned
	holdings  map[string]holding
}

// marshal writes r.
func (r record) marshal() []byte {
	b := strconv.AppendInt(nil, r.serial, 10)
	if r.givenBack {
		b = append(b, " given back"...)
	}
	for _, name := range slices.Sorted(maps.Keys(r.holdings)) {
		h := r.holdings[name]
		b = append(b, "\n"+name+" "+h.owned.String()...)
		if len(h.hand) > 0 {
			b = append(b, " "+h.hand.String()...)
		}
	}
	return b
}

// parseRecord reads what marshal has written.
func parseRecord(data []byte) record {
	head, rest, _ := strings.Cut(string(data), "\n")
	number, flag, _ := strings.Cut(head, " ")
	r := record{givenBack: flag != "", holdings: make(map[string]holding)}
	r.serial, _ = strconv.ParseInt(number, 10, 64)
	for line := range strings.SplitSeq(rest, "\n") {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		h := holding{owned: parseSpans(words[1])}
		if len(words) > 2 {
			h.hand = parseSpans(words[2])
		}
		r.holdings[words[0]] = h
	}
	return r
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
