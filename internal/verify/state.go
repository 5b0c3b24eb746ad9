package verify

// This file has the state of a judge between two records: the traces, and the holds and claims that
// it remembers. It judges nothing.

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"math"
	"time"

	"github.com/zsync/zsync/internal/trace"
)

// The type `judge` has the state between two records of the traces.
type judge struct {
	*Report
	traces   map[string]*one
	over     map[uint64]bool // traces that have ended, by a hash of their ids
	seed     maphash.Seed
	places   map[string]*place
	elements map[string][]*claim // by path and name
	words    map[string]string   // one copy of each text that is repeated

	newest     time.Time // of all records
	most       int       // if more holds and claims are remembered than this, some are forgotten
	remembered int
	window     time.Duration
	forgotten  bool
}

// The type `place` has the holds of one path.
type place struct {
	holds    []*hold
	greatest *hold // the hold with the greatest token

	// The latest end of the forgotten holds.
	ended time.Time
	over  int64
	late  bool // a hold that came late may have overlapped the forgotten holds
}

// The type `one` is for a trace: the records of one Session of one process.
type one struct {
	id       string
	turn     int // number of the trace, in the order of the first records
	owner    string
	root     string         // the chroot
	next     int64          // the number of the next record
	early    []trace.Record // records that were read before their turn
	complete bool           // no record is missing

	open    map[string]*hold  // by path and name, until the znode is deleted
	claimed map[string]*claim // by path, claimant and element
	last    map[string]sight  // by session
}

// The type `sight` describes the last record of a session: its time and its zxid. The field `most`
// is the greatest zxid of all records of the session.
type sight struct {
	time       time.Time
	zxid, most int64
}

func (t *one) name() string {
	if t.owner != "" {
		return t.owner
	}
	return t.id
}

// The method `odd` reports an inconsistency of a trace as a violation, unless records are missing.
func (j *judge) odd(t *one, l trace.Record, what, of string) {
	if t.complete {
		j.violation(l.Path, "%s: %s of %s (%s, line %d)", what, of, t.name(), l.Session, l.N)
	}
}

// The type `hold` is one hold by one znode, from the grant to the release, or to the time at which
// the holder learned of its loss.
type hold struct {
	path, kind, name string
	who              string // for the report
	session          string
	permits, limit   int64

	from  *hold // the hold that this hold continues, or nil
	turn  int   // the trace of the first record
	n     int64 // the number of the first record in that trace
	begun time.Time
	ended time.Time // without an end: the time of the last record of its session
	end   string    // the event, or ""
	why   string    // of a loss
	token int64

	// The hold was certainly held from the transaction `sure` up to, but without, the transaction
	// `over`. If no such transaction is known, `sure` is the constant `never`.
	first int64 // zxid of the first record
	sure  int64
	over  int64
	gone  int64 // the transaction that deleted the znode; 0 if it is unknown

	use  int  // the number of the last use
	used bool // the last use has not ended

	judged bool

	// If `skipped` is true, the hold had no end yet when many later holds had begun on its path, for
	// example because its process was killed. Some of these later holds may be forgotten. The first
	// forgotten hold began at the time `passed`. For each forgotten hold, the certain part begins at
	// transaction `passedFrom` or later.
	skipped    bool
	passed     time.Time
	passedFrom int64
}

const never = math.MaxInt64

func (h *hold) String() string {
	return fmt.Sprintf("%s of %s (%s)", h.name, h.who, h.session)
}

// The type `claim` is one claim of one element of a queue, from the record of its grant to its end.
type claim struct {
	path, element string
	who           string // for the report
	claimant      string
	session       string

	// The element was claimed in the transaction `from`. The claim was ended by the transaction
	// `over`, and the element was owned at least until then. An unknown transaction is 0.
	from, over int64

	begun time.Time
	lost  time.Time // when the owner learned of the loss, or zero
	why   string    // of a loss
	fate  string    // "" if the end is unknown
	ended time.Time // when the end was recorded
}

func (c *claim) String() string { return fmt.Sprintf("%s (%s)", c.who, cmp.Or(c.session, "TryRecv")) }
