package trace

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// at is a line of trace id, ms milliseconds after the epoch.
func at(id string, n int64, ms int, event, kind, hold string, zxid int64, more ...func(*Record)) Record {
	l := Record{V: Version, Trace: id, N: n, Time: epoch.Add(time.Duration(ms) * time.Millisecond), Event: event, Kind: kind, Path: "/p", Hold: hold, Session: "0x" + id, Zxid: zxid}
	for _, f := range more {
		f(&l)
	}
	return l
}

func blind(l *Record)                      { l.Blind = true }
func permits(n, limit int64) func(*Record) { return func(l *Record) { l.Permits, l.Limit = n, limit } }
func why(s string) func(*Record)           { return func(l *Record) { l.Reason = s } }
func token(n int64) func(*Record)          { return func(l *Record) { l.Token, l.Zxid = n, n } }
func from(s string) func(*Record)          { return func(l *Record) { l.From = s } }

func TestVerify(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []Record
		want  string // in the only violation; "" for none
		note  string // in a note
	}{
		{name: "one after the other", lines: []Record{
			at("a", 1, 0, Grant, Mutex, "x", 10), at("a", 2, 5, Release, Mutex, "x", 11), at("a", 3, 6, Gone, Mutex, "x", 12),
			at("b", 1, 6, Grant, Mutex, "y", 12), at("b", 2, 9, Release, Mutex, "y", 12), at("b", 3, 9, Gone, Mutex, "y", 13),
		}},
		{name: "the clocks hide it, the transactions show it", want: "two holders at transaction 0xc", lines: []Record{
			at("a", 1, 0, Grant, Mutex, "x", 10), at("a", 2, 5, Release, Mutex, "x", 11), at("a", 3, 6, Gone, Mutex, "x", 14),
			at("b", 1, 6, Grant, Mutex, "y", 12), at("b", 2, 9, Release, Mutex, "y", 12), at("b", 3, 9, Gone, Mutex, "y", 15),
		}},
		{name: "the transactions hide it, the clocks show it", want: "two holders by the clocks", lines: []Record{
			at("a", 1, 0, Grant, Mutex, "x", 10, blind), at("a", 2, 500, Release, Mutex, "x", 10, blind),
			at("b", 1, 60, Grant, Mutex, "y", 10, blind), at("b", 2, 500, Release, Mutex, "y", 10, blind),
		}},
		{name: "clocks that differ by less than the tolerance", lines: []Record{
			at("a", 1, 0, Grant, Mutex, "x", 10, blind), at("a", 2, 150, Release, Mutex, "x", 10, blind), at("a", 3, 160, Gone, Mutex, "x", 12),
			at("b", 1, 60, Grant, Mutex, "y", 10, blind), at("b", 2, 500, Release, Mutex, "y", 10, blind),
		}},
		{name: "a loss that is told late", want: "(cut-off)", lines: []Record{
			at("a", 1, 0, Grant, Mutex, "x", 10), at("a", 2, 900, Loss, Mutex, "x", 10, why("cut-off")),
			at("b", 1, 700, Grant, Mutex, "y", 10, blind),
		}},
		{name: "a loss that could not be told in time", note: "(paused)", lines: []Record{
			at("a", 1, 0, Grant, Mutex, "x", 10), at("a", 2, 900, Loss, Mutex, "x", 10, why("paused")),
			at("b", 1, 700, Grant, Mutex, "y", 10, blind), at("b", 2, 950, Release, Mutex, "y", 10, blind),
		}},
		{name: "who never lets go, and goes on to write", want: "without an end", lines: []Record{
			at("a", 1, 0, Grant, Mutex, "x", 10), at("b", 1, 100, Grant, Mutex, "y", 10, blind),
			at("a", 2, 800, Token, Mutex, "x", 0, token(11)),
		}},
		{name: "who is killed", note: "held to the end of its trace", lines: []Record{
			at("a", 1, 0, Grant, Mutex, "x", 10), at("b", 1, 5000, Grant, Mutex, "y", 10, blind),
		}},
		{name: "tokens that do not grow", want: "tokens do not grow: 20", lines: []Record{
			at("a", 1, 0, Grant, Mutex, "x", 0, blind), at("a", 2, 1, Token, Mutex, "x", 0, token(21)), at("a", 3, 2, Release, Mutex, "x", 0, blind),
			at("b", 1, 3, Grant, Mutex, "y", 0, blind), at("b", 2, 4, Token, Mutex, "y", 0, token(20)), at("b", 3, 5, Release, Mutex, "y", 0, blind),
		}},
		{name: "a release of what was not granted", want: "the release of what was not held", lines: []Record{at("a", 1, 0, Release, Mutex, "x", 10)}},
		{name: "released twice", want: "released after its release", lines: []Record{
			at("a", 1, 0, Grant, Mutex, "x", 10), at("a", 2, 1, Release, Mutex, "x", 10), at("a", 3, 2, Release, Mutex, "x", 10),
		}},
		{name: "lost twice", want: "lost twice", lines: []Record{
			at("a", 1, 0, Grant, Mutex, "x", 10), at("a", 2, 1, Loss, Mutex, "x", 10), at("a", 3, 2, Loss, Mutex, "x", 10),
		}},
		{name: "two goroutines of one process", want: "second goroutine", lines: []Record{
			at("a", 1, 0, Grant, Mutex, "x", 10), at("a", 2, 1, Grant, Mutex, "x", 10), at("a", 3, 2, Release, Mutex, "x", 10),
		}},
		{name: "readers together", lines: []Record{
			at("a", 1, 0, Grant, Read, "x", 10), at("b", 1, 1, Grant, Read, "y", 11),
			at("a", 2, 900, Release, Read, "x", 12), at("b", 2, 900, Release, Read, "y", 12),
		}},
		{name: "a reader with a writer", want: "two holders", lines: []Record{
			at("a", 1, 0, Grant, Read, "x", 10), at("b", 1, 1, Grant, Write, "y", 11),
			at("a", 2, 900, Release, Read, "x", 12), at("b", 2, 900, Release, Write, "y", 12),
		}},
		{name: "a writer that becomes a reader", lines: []Record{
			at("a", 1, 0, Grant, Write, "x", 10), at("a", 2, 500, Move, Read, "x2", 11, from("x")), at("a", 3, 501, Gone, Write, "x", 12),
			at("b", 1, 502, Grant, Read, "y", 12), at("a", 4, 900, Release, Read, "x2", 13), at("b", 2, 950, Release, Read, "y", 13),
		}},
		{name: "a reader beside the writer of the same Do", lines: []Record{
			at("a", 1, 0, Grant, Write, "x", 10), at("a", 2, 500, Grant, Read, "x2", 11, from("x")),
			at("a", 3, 900, Release, Read, "x2", 13), at("a", 4, 950, Release, Write, "x", 13),
		}},
		{name: "permits up to the limit", lines: []Record{
			at("a", 1, 0, Grant, Semaphore, "x", 10, permits(2, 3)), at("b", 1, 1, Grant, Semaphore, "y", 11, permits(1, 3)),
			at("a", 2, 900, Release, Semaphore, "x", 12), at("b", 2, 900, Release, Semaphore, "y", 12),
		}},
		{name: "permits over the limit", want: "4 permits of 3", lines: []Record{
			at("a", 1, 0, Grant, Semaphore, "x", 10, permits(2, 3)), at("b", 1, 1, Grant, Semaphore, "y", 11, permits(2, 3)),
			at("a", 2, 900, Release, Semaphore, "x", 12), at("b", 2, 900, Release, Semaphore, "y", 12),
		}},
		{name: "permits that are over the limit one after another", lines: []Record{
			at("a", 1, 0, Grant, Semaphore, "x", 10, permits(1, 3)), at("a", 2, 500, Release, Semaphore, "x", 20), at("a", 3, 500, Gone, Semaphore, "x", 24),
			at("a", 4, 500, Grant, Semaphore, "z", 26, permits(1, 3)), at("a", 5, 900, Release, Semaphore, "z", 40),
			at("b", 1, 500, Grant, Semaphore, "y", 22, permits(2, 3)), at("b", 2, 950, Release, Semaphore, "y", 41),
		}},
		{name: "permits over the limit for a while", want: "4 permits of 3", lines: []Record{
			at("a", 1, 0, Grant, Semaphore, "x", 10, permits(1, 3)), at("a", 2, 500, Release, Semaphore, "x", 20), at("a", 3, 500, Gone, Semaphore, "x", 28),
			at("a", 4, 500, Grant, Semaphore, "z", 26, permits(1, 3)), at("a", 5, 900, Release, Semaphore, "z", 40),
			at("b", 1, 500, Grant, Semaphore, "y", 22, permits(2, 3)), at("b", 2, 950, Release, Semaphore, "y", 41),
		}},
		{name: "a short hold between hides nothing", want: "two holders", lines: []Record{
			at("a", 1, 0, Grant, Mutex, "x", 10), at("a", 2, 1, Release, Mutex, "x", 10), at("a", 3, 2, Gone, Mutex, "x", 30),
			at("c", 1, 1500, Grant, Mutex, "z", 40), at("c", 2, 1600, Release, Mutex, "z", 40), at("c", 3, 1601, Gone, Mutex, "z", 41),
			at("b", 1, 2000, Grant, Mutex, "y", 20), at("b", 2, 2001, Release, Mutex, "y", 21), at("b", 3, 2001, Gone, Mutex, "y", 22),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Verify([]*File{{Name: "f", Lines: c.lines}}, DefaultTolerance)
			if c.want == "" && len(r.Violations) > 0 || len(r.Missing) > 0 {
				t.Fatalf("violations %v, missing %v", r.Violations, r.Missing)
			}
			if c.want != "" && (len(r.Violations) != 1 || !strings.Contains(r.Violations[0].String(), c.want)) {
				t.Fatalf("violations %v; want one that says %q", r.Violations, c.want)
			}
			if c.note != "" && !slices.ContainsFunc(r.Notes, func(f Finding) bool { return strings.Contains(f.String(), c.note) }) {
				t.Fatalf("notes %v; want one that says %q", r.Notes, c.note)
			}
		})
	}
}

func TestParseRefusesWhatIsNoTraceAndSaysWhatIsMissing(t *testing.T) {
	good, _ := json.Marshal(at("a", 1, 0, Begin, "", "", 0))
	for text, want := range map[string]string{
		"hello\n":                   "no line of a trace",
		`{"some":"json"}` + "\n":    "version 0",
		`{"v":9,"trace":"a","n":1}`: "version 9",
		`{"v":1}` + "\n":            "no line of a trace",
	} {
		if _, err := Parse(strings.NewReader(text), "f"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
	f, err := Parse(strings.NewReader(string(good)+"\n{\"v\":1,\n\n"+string(good)[:20]), "f")
	if err != nil || len(f.Lines) != 1 || fmt.Sprint(f.Torn) != "[2]" || !f.Cut {
		t.Errorf("%+v, %v", f, err)
	}
	if r := Verify([]*File{f}, 0); len(r.Missing) != 1 || r.Whole() {
		t.Errorf("%+v", r)
	}
	l := at("a", 3, 0, Begin, "", "", 0)
	if r := Verify([]*File{{Lines: []Record{at("a", 1, 0, Begin, "", "", 0), l}}}, 0); len(r.Missing) != 1 || !strings.Contains(r.Missing[0].String(), "lines 2 to 2 are missing") {
		t.Errorf("%+v", r)
	}
}

// An endless reads as zeros, without a newline.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	clear(p)
	e.read += len(p)
	return len(p), nil
}

func TestParseRefusesALineThatDoesNotEnd(t *testing.T) {
	in := new(endless)
	_, err := Parse(in, "f")
	if err == nil || !strings.HasPrefix(err.Error(), "f:1: no line of a trace: longer than ") {
		t.Errorf("error %v", err)
	}
	if in.read > 4<<20 {
		t.Errorf("%d bytes were read", in.read)
	}
}
