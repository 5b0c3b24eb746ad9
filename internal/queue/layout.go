package queue

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/zsync/zsync/internal/session"
)

// This file knows how a Queue's elements and claims are named. It does no I/O.
//
// Elements stand in buckets, which are children of the queue's path:
//
//	b-<priority>-<number>   a bucket; its children are e-<seq>, in order
//	d-<priority>-<number>   elements that wait for their time: t<unix ms>-<seq>, or
//	                        t<unix ms>-<attempts>.<unix ms when first sent>-<seq>
//
// The number of a first bucket, and of what waits, is the zxid that made the
// queue's path. So when somebody deletes a queue with all its elements and
// another is made in its place, no name comes again, and who still has an
// element of the former in hand cannot remove one of the new.
//
// A producer that finds a bucket full seals it, by writing its data, and makes
// the next in the same transaction; every Send checks that its bucket is not
// sealed. So a bucket that has a successor gets no more elements, buckets are
// in order and so are the elements in each, no listing is ever long, and no
// sequence number wraps, however much the queue holds.

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
func delayedName(prio int, number int64) string {
	return fmt.Sprintf("d-%05d-%010d", prio, number)
}

// parseBucket reads a name that bucketName or delayedName has made.
func parseBucket(name string) (bucket, bool) {
	rest, delayed := strings.CutPrefix(name, "d-")
	if !delayed {
		var ok bool
		if rest, ok = strings.CutPrefix(name, "b-"); !ok {
			return bucket{}, false
		}
	}
	p, n, ok := strings.Cut(rest, "-")
	prio, err := strconv.Atoi(p)
	number, err2 := strconv.ParseInt(n, 10, 64)
	return bucket{name: name, prio: prio, number: number, delayed: delayed}, ok && err == nil && err2 == nil && prio >= 0 && number >= 0
}

// parseBuckets returns the buckets among names in the order in which they are
// served: by priority, the delayed of each before the others, which came later
// than those whose time has come.
func parseBuckets(names []string) []bucket {
	var bs []bucket
	for _, name := range names {
		if b, ok := parseBucket(name); ok {
			bs = append(bs, b)
		}
	}
	slices.SortFunc(bs, func(a, b bucket) int {
		switch {
		case a.prio != b.prio:
			return cmp.Compare(a.prio, b.prio)
		case a.delayed != b.delayed && a.delayed:
			return -1
		case a.delayed != b.delayed:
			return 1
		}
		return cmp.Compare(a.number, b.number)
	})
	return bs
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
	part   string // in another library's layout: its place in a znode of several
}

// key names the element within its queue, for as long as the queue exists.
func (e element) key() string { return strings.TrimPrefix(e.bucket+"/"+e.name, "/") }

// elementName is the name of an element up to its number.
func elementName(due int64) string {
	if due == 0 {
		return "e-"
	}
	return fmt.Sprintf("t%013d-", due)
}

// laterName is elementName for one that was delivered and waits for its time
// again.
func laterName(due int64, tries int32, first int64) string {
	return fmt.Sprintf("t%013d-%d.%d-", due, tries, first)
}

// parseElements returns the elements among the children of b, in order.
func parseElements(b bucket, names []string) []element {
	es := make([]element, 0, len(names))
	for _, name := range names {
		e := element{bucket: b.name, name: name, prio: b.prio}
		var seq string
		var ok bool
		if b.delayed {
			var due string
			due, seq, ok = strings.Cut(strings.TrimPrefix(name, "t"), "-")
			e.due, _ = strconv.ParseInt(due, 10, 64)
			ok = ok && e.due > 0
			if history, rest, more := strings.Cut(seq, "-"); ok && more && history != "" {
				seq = rest
				ok = e.parseHistory(history)
			}
		} else {
			seq, ok = strings.CutPrefix(name, "e-")
		}
		if !ok {
			continue
		}
		if e.seq, ok = session.ParseSeq(seq); ok {
			es = append(es, e)
		}
	}
	slices.SortFunc(es, func(a, b element) int {
		if a.due != b.due {
			return cmp.Compare(a.due, b.due)
		}
		return cmp.Compare(a.seq, b.seq)
	})
	return es
}

// parseHistory reads the part of a name that laterName has made.
func (e *element) parseHistory(text string) bool {
	tries, first, ok := strings.Cut(text, ".")
	n, err := strconv.ParseInt(tries, 10, 32)
	ms, err2 := strconv.ParseInt(first, 10, 64)
	e.tries, e.first = int32(n), ms
	return ok && err == nil && err2 == nil && n >= 0 && ms >= 0
}

// Claims stand below <path>-claims. A claimant, which is the consumers of one
// Queue value in one ZooKeeper session, has there
//
//	<guid>-live     ephemeral: the claimant's session stands
//	<guid>-state    persistent: counts its transactions
//	<guid>-r<n>     persistent: a batch of elements that are its own
//	<guid>-gone     persistent: made by whoever first finds that the mark has gone
//
// and the data of a batch is one line for each bucket: its name, and the names
// of the elements in it. One that is in a consumer's hands is marked with the
// version that its znode has, as in e-0000000012*0.

const (
	liveSuffix  = "live"
	stateSuffix = "state"
	goneSuffix  = "gone"
)

// parseClaim splits the name of a znode below <path>-claims.
func parseClaim(name string) (guid, suffix string, ok bool) {
	const n = 36
	if len(name) < n+2 || name[n] != '-' {
		return "", "", false
	}
	guid, suffix = name[:n], name[n+1:]
	return guid, suffix, suffix == liveSuffix || suffix == stateSuffix || suffix == goneSuffix || suffix[0] == 'r'
}

// marked is the key of an element that is in hand.
func marked(key string, version int32) string { return key + "*" + strconv.Itoa(int(version)) }

// marshalKeys writes the keys of elements, marked or not, as the data of a
// batch.
func marshalKeys(keys []string) []byte {
	var b strings.Builder
	last := ""
	for _, key := range keys {
		dir, name, _ := strings.Cut(key, "/")
		if dir != last {
			if last != "" {
				b.WriteByte('\n')
			}
			b.WriteString(dir)
			last = dir
		}
		b.WriteByte(' ')
		b.WriteString(name)
	}
	return []byte(b.String())
}

// unmarshalKeys is the inverse of marshalKeys. hand holds the keys that were
// marked, and the versions.
func unmarshalKeys(data []byte) (keys []string, hand map[string]int32) {
	hand = make(map[string]int32)
	for line := range strings.SplitSeq(string(data), "\n") {
		words := strings.Fields(line)
		for i := 1; i < len(words); i++ {
			name, version, _ := strings.Cut(words[i], "*")
			key := words[0] + "/" + name
			keys = append(keys, key)
			if n, err := strconv.ParseInt(version, 10, 32); err == nil {
				hand[key] = int32(n)
			}
		}
	}
	return keys, hand
}
