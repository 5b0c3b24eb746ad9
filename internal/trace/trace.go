// Package trace has the format in which a Session records its holds, from grant to end: see
// [Record]. The package does not decide when a hold begins or ends. Package verify judges the
// records.
package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"sync"
	"time"
)

// Version is the version of the format. It changes if a reader of the old format would misread the
// new format. It does not change if a field or an event is added.
const Version = 1

// The events.
const (
	Begin   = "begin"   // the first record of a trace
	Session = "session" // a ZooKeeper session was established
	Expired = "expired" // the session ended, and every hold through it is lost
	Grant   = "grant"   // a caller was granted the hold
	Pass    = "pass"    // a goroutine released the hold, and the process keeps it for its next goroutine
	Token   = "token"   // a caller has received a fencing token
	Move    = "move"    // the hold continues with another znode: after a downgrade, or for a part of a weight
	Loss    = "loss"    // the holder learned that the hold is lost
	Release = "release" // the hold has ended, and its znode is about to be deleted
	Gone    = "gone"    // the servers have deleted the znode of a hold
	Dropped = "dropped" // records are missing here, because they came faster than they could be written
	End     = "end"     // the last record: the Session was closed
)

// The kinds of holds.
const (
	Mutex     = "mutex"
	Read      = "read"  // of an RWMutex, or of a lock in kazoo's layout
	Write     = "write" // of an RWMutex, or of a lock in kazoo's layout
	Election  = "election"
	Once      = "once" // the right to run the function of a Once
	Party     = "party"
	Semaphore = "semaphore" // one record for each znode of permits
	Element   = "element"   // of a queue: one record for all elements of a transaction
)

// The ends of a claim.
const (
	Removed  = "removed"  // received, or acknowledged
	Returned = "returned" // returned to their positions
	Delayed  = "delayed"  // returned under other names; consumers receive them at a later time
	Buried   = "buried"   // moved to the dead letters
	Missing  = "missing"  // another client had deleted the elements
)

// A Record is one line of a trace.
type Record struct {
	V     int       `json:"v"`     // Version
	Trace string    `json:"trace"` // the unique id of the Session
	N     int64     `json:"n"`     // number of the record in its trace, from 1
	Time  time.Time `json:"time"`  // by the clock of the process
	Event string    `json:"event"`

	Kind string `json:"kind,omitempty"`
	Path string `json:"path,omitempty"` // of the primitive, without the chroot
	Hold string `json:"hold,omitempty"` // the name of the znode of the hold
	Use  int    `json:"use,omitempty"`  // grant, pass: number of this use of the hold
	From string `json:"from,omitempty"` // move: the hold that this hold continues

	Elements []string `json:"elements,omitempty"` // names of elements of a queue, never used again
	Claim    string   `json:"claim,omitempty"`    // with Elements: the name of the claimant's mark
	Fate     string   `json:"fate,omitempty"`     // release of elements: the end of the claim

	Session string `json:"session,omitempty"`
	Owner   string `json:"owner,omitempty"` // begin
	Root    string `json:"root,omitempty"`  // begin: the chroot, to which Path is relative
	Timeout string `json:"timeout,omitempty"`

	// Zxid is the transaction of a write. Records of a deletion, of a token, and of the grant or
	// release of elements have it. For elements, 0 means unknown. For other events, Zxid is the newest
	// transaction that the session had seen. Blind means that the session has seen a newer state since
	// then, but does not know its transaction.
	Zxid  int64 `json:"zxid,omitempty"`
	Blind bool  `json:"blind,omitempty"`

	Token   int64      `json:"token,omitempty"`
	Permits int64      `json:"permits,omitempty"`
	Limit   int64      `json:"limit,omitempty"`   // grant: the limit of the semaphore
	Reason  string     `json:"reason,omitempty"`  // reason of a loss, or of the end of a session
	Since   *time.Time `json:"since,omitempty"`   // loss: the time from which the hold must not be trusted; set if this is before Time
	Dropped int64      `json:"dropped,omitempty"` // number of dropped records
}

// A Writer writes the records of one Session, in order, in its own goroutine. Callers never wait
// for the Writer: the Writer drops and counts records that it cannot write in time. A nil Writer
// writes nothing.
type Writer struct {
	w   io.Writer
	id  string
	log func(error) // called with the first error

	mu      sync.Mutex
	n       int64
	pending []byte            // whole lines
	room    int               // greatest total size of `pending`
	dropped int64             // number of dropped records since the last written record
	closed  bool              // no more records come
	held    map[string]Record // by the full path of a znode: the records to write when it is deleted

	wake  chan struct{} // has a token if there are records to write
	ended chan struct{} // closed when all records are written
}

// NewWriter returns a Writer that writes to w, and begins the trace with this id, of a Session with
// the chroot `root`. The function log is called with the first error.
func NewWriter(w io.Writer, id, root, owner string, log func(error)) *Writer {
	t := &Writer{w: w, id: id, log: log, room: 4 << 20, held: make(map[string]Record), wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go t.run()
	t.Line(Record{Event: Begin, Root: root, Owner: owner})
	return t
}

// Line writes l. The Writer sets the fields that every record has.
func (t *Writer) Line(l Record) { t.Hold("", l) }

func (t *Writer) lineLocked(l Record) {
	if t.closed {
		return
	}
	if d := t.dropped; d > 0 && len(t.pending) < t.room/2 {
		t.dropped = 0
		t.lineLocked(Record{Event: Dropped, Dropped: d})
	}
	t.n++
	if t.dropped > 0 || len(t.pending) > t.room {
		t.dropped++
		return
	}
	l.V, l.Trace, l.N, l.Time = Version, t.id, t.n, time.Now()
	text, err := json.Marshal(l)
	if err != nil {
		panic("zsync: BUG: " + err.Error()) // a Record is plain data
	}
	t.pending = append(append(t.pending, text...), '\n')
	select {
	case t.wake <- struct{}{}:
	default: // the token is already there
	}
}

// Hold is Line for a record about the hold whose znode is at the path `full`, with the chroot. After
// a grant or a move, [Writer.Gone] must be called when that znode is deleted, unless the hold is
// lost or its session has ended.
func (t *Writer) Hold(full string, l Record) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch gone, known := t.held[full]; {
	case l.Event == Expired: // no deletion is answered any more
		maps.DeleteFunc(t.held, func(_ string, gone Record) bool { return gone.Session == l.Session })
	case full == "":
	case l.Event == Grant, l.Event == Move:
		t.held[full] = Record{Event: Gone, Kind: l.Kind, Path: l.Path, Hold: l.Hold, Session: l.Session}
	case l.Event == Gone && !known:
		return
	case l.Event == Gone:
		gone.Zxid = l.Zxid
		l = gone
		fallthrough
	case l.Event == Loss:
		delete(t.held, full)
	}
	t.lineLocked(l)
}

// Gone writes the record of a deletion: the transaction `zxid` has deleted the znode at the path
// `full`. If the transaction is unknown, `zxid` is 0.
func (t *Writer) Gone(full string, zxid int64) { t.Hold(full, Record{Event: Gone, Zxid: zxid}) }

// The method `run` writes pending records until the Writer is closed. It passes whole lines to the
// io.Writer in one call, or drops them if that fails.
func (t *Writer) run() {
	defer close(t.ended)
	failed, torn := false, false // torn: the last call failed in the middle of a line
	for range t.wake {
		t.mu.Lock()
		text, closed := t.pending, t.closed
		t.pending = nil
		t.mu.Unlock()
		lines := int64(bytes.Count(text, []byte("\n")))
		if torn {
			text = append([]byte("\n"), text...)
		}
		n, err := t.write(text)
		if torn = err != nil && (torn || n > 0); err != nil {
			t.mu.Lock()
			t.dropped += lines
			t.mu.Unlock()
			if !failed {
				failed = true
				t.log(err)
			}
		}
		if closed {
			return
		}
	}
}

// The method `write` calls the io.Writer, unless text is empty.
func (t *Writer) write(text []byte) (n int, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the writer panicked: %v", p)
		}
	}()
	if len(text) > 0 {
		n, err = t.w.Write(text)
	}
	if err == nil && n < len(text) {
		err = io.ErrShortWrite
	}
	return n, err
}

// Close writes the last record, and waits until all are written, but no longer than `limit`.
func (t *Writer) Close(limit time.Duration) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.room = math.MaxInt             // the last records always fit: they say how many are missing
	t.lineLocked(Record{Event: End}) // wakes the method run, which then sees that t is closed
	t.closed = true
	t.mu.Unlock()
	select {
	case <-t.ended:
	case <-time.After(limit):
	}
}
