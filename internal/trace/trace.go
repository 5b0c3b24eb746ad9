// Package trace is the format in which a Session writes down what it holds, from
// when to when, and the judge of such writings: see [Line] and [Verify].
package trace

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Version is that of the format. It changes when a reader of the old one would
// misread the new one, not when a field or an event is added.
const Version = 1

// The events.
const (
	Begin   = "begin"   // the first line of a trace
	Session = "session" // a ZooKeeper session was established
	Expired = "expired" // it ended, and all that was held through it is lost
	Grant   = "grant"   // somebody was told that he holds it
	Pass    = "pass"    // he gave it up, and the process keeps it, for its next goroutine
	Token   = "token"   // a fencing token was handed out
	Move    = "move"    // what was held is held by another znode from here on: a downgrade, a part of a weight
	Loss    = "loss"    // the holder was told that it is lost
	Release = "release" // it is held no more, and its znode is about to be deleted
	Gone    = "gone"    // the servers have deleted the znode
	Take    = "take"    // elements of a queue were removed by who had not claimed them
	Dropped = "dropped" // lines are missing here: they came faster than they could be written
	End     = "end"     // the last line: the Session was closed
)

// The kinds of what is held.
const (
	Mutex     = "mutex"
	Read      = "read"  // of an RWMutex, or of a lock in kazoo's layout
	Write     = "write" // likewise
	Election  = "election"
	Once      = "once" // the right to run its function
	Party     = "party"
	Semaphore = "semaphore" // one line for each znode of permits
	Element   = "element"   // of a queue: one line for all of a transaction
)

// What has become of elements that were claimed.
const (
	Removed  = "removed"  // received, or acknowledged
	Returned = "returned" // to their places
	Delayed  = "delayed"  // given back for a later time, under other names
	Buried   = "buried"   // set aside as dead letters
	Missing  = "missing"  // somebody had deleted them
)

// A Line is one line of a trace.
type Line struct {
	V     int       `json:"v"`     // Version
	Trace string    `json:"trace"` // of which Session of which process
	N     int64     `json:"n"`     // counts the lines of a trace from 1
	Time  time.Time `json:"time"`  // by the clock of the process
	Event string    `json:"event"`

	Kind string `json:"kind,omitempty"`
	Path string `json:"path,omitempty"` // of the primitive, without the chroot
	Hold string `json:"hold,omitempty"` // the name of the znode by which it is held
	Use  int    `json:"use,omitempty"`  // grant, pass: which use of the hold
	From string `json:"from,omitempty"` // move: the hold that this one continues; grant: that beside which it stands

	Elements []string `json:"elements,omitempty"` // of a queue: what the line is about, names that are never used again
	Claim    string   `json:"claim,omitempty"`    // of elements: which claimant of the process
	Fate     string   `json:"fate,omitempty"`     // release and take of elements: what has become of them

	Session string `json:"session,omitempty"`
	Owner   string `json:"owner,omitempty"` // begin
	Timeout string `json:"timeout,omitempty"`

	// Zxid of gone and token is that of the very write, and of elements that of
	// the grant, release and take, or 0 where it is not known. Of other events it is
	// the newest transaction that the session had been told of. Blind says that
	// the servers have told something since without saying of which transaction.
	Zxid  int64 `json:"zxid,omitempty"`
	Blind bool  `json:"blind,omitempty"`

	Token   int64      `json:"token,omitempty"`
	Permits int64      `json:"permits,omitempty"`
	Limit   int64      `json:"limit,omitempty"`   // of the semaphore, at a grant
	Reason  string     `json:"reason,omitempty"`  // of a loss, or of the end of a session
	Since   *time.Time `json:"since,omitempty"`   // loss: from when it must not be counted on, if that is earlier
	Dropped int64      `json:"dropped,omitempty"` // how many
}

// A Writer writes the lines of one Session, in order, from a goroutine of its
// own. Nobody waits for it: what it cannot write in time is counted as dropped.
// A nil Writer writes nothing.
type Writer struct {
	w   io.Writer
	id  string
	log func(error) // told of the first failure

	mu      sync.Mutex
	n       int64
	pending []byte          // whole lines
	dropped int64           // since the last line that was kept
	missing bool            // the last Write failed in the middle of a line
	closed  bool            // no line comes any more
	held    map[string]Line // by the full path of its znode: what "gone" says of it

	wake  chan struct{} // has a token when there is something to write
	ended chan struct{} // closed when all is written
}

// room bounds what waits to be written.
const room = 4 << 20

// NewWriter returns a Writer to w, and begins the trace of that id. log is told of
// the first line that cannot be written.
func NewWriter(w io.Writer, id, owner string, log func(error)) *Writer {
	t := &Writer{w: w, id: id, log: log, held: make(map[string]Line), wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go t.run()
	t.Line(Line{Event: Begin, Owner: owner})
	return t
}

// Line writes l; the fields that every line has are filled in.
func (t *Writer) Line(l Line) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lineLocked(l)
}

func (t *Writer) lineLocked(l Line) {
	if t.closed {
		return
	}
	if t.dropped > 0 && len(t.pending) < room/2 {
		d := t.dropped
		t.dropped = 0
		t.putLocked(Line{Event: Dropped, Dropped: d})
	}
	t.putLocked(l)
	select {
	case t.wake <- struct{}{}:
	default: // it has been told
	}
}

func (t *Writer) putLocked(l Line) {
	t.n++
	if t.dropped > 0 || len(t.pending) > room {
		t.dropped++
		return
	}
	l.V, l.Trace, l.N, l.Time = Version, t.id, t.n, time.Now()
	text, err := json.Marshal(l)
	if err != nil {
		panic("zsync: BUG: " + err.Error()) // a Line is plain data
	}
	t.pending = append(append(t.pending, text...), '\n')
}

// Held writes l, of what is held from here on by the znode at full. [Writer.Gone]
// will be told when that is deleted.
func (t *Writer) Held(full string, l Line) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held[full] = Line{Event: Gone, Kind: l.Kind, Path: l.Path, Hold: l.Hold, Session: l.Session}
	t.lineLocked(l)
}

// Lost writes l: what was held by the znode at full is lost.
func (t *Writer) Lost(full string, l Line) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.held, full)
	t.lineLocked(l)
}

// Gone is told that the znode at full has been deleted in transaction zxid, or, if
// that is 0, in an unknown one.
func (t *Writer) Gone(full string, zxid int64) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	l, ok := t.held[full]
	if !ok {
		return
	}
	delete(t.held, full)
	l.Zxid = zxid
	t.lineLocked(l)
}

// run writes what there is, until the end.
func (t *Writer) run() {
	defer close(t.ended)
	failed := false
	for range t.wake {
		t.mu.Lock()
		text, closed := t.pending, t.closed
		t.pending = nil
		t.mu.Unlock()
		if len(text) > 0 {
			if err := t.write(text); err != nil && !failed {
				failed = true
				t.log(err)
			}
		}
		if closed {
			return
		}
	}
}

// write writes whole lines with one Write. What fails is dropped.
func (t *Writer) write(text []byte) (err error) {
	lines := int64(0)
	for _, b := range text {
		if b == '\n' {
			lines++
		}
	}
	if t.missing {
		text = append([]byte("\n"), text...) // the rest of a line that was cut off is one of its own
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the writer panicked: %v", p)
		}
		if err != nil {
			t.mu.Lock()
			t.dropped += lines
			t.mu.Unlock()
		}
	}()
	n, err := t.w.Write(text)
	if err == nil && n < len(text) {
		err = io.ErrShortWrite
	}
	t.missing = err != nil && (n > 0 || t.missing)
	return err
}

// Close writes the last line, and waits for the rest to be written, but no longer
// than limit.
func (t *Writer) Close(limit time.Duration) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.lineLocked(Line{Event: End})
	t.closed = true
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default:
	}
	select {
	case <-t.ended:
	case <-time.After(limit):
	}
}
