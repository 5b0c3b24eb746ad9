package verify

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/trace"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// at is a line of trace id, ms milliseconds after the epoch.
func at(id string, n int64, ms int, event, kind, hold string, zxid int64, more ...func(*trace.Record)) trace.Record {
	l := trace.Record{V: trace.Version, Trace: id, N: n, Time: epoch.Add(time.Duration(ms) * time.Millisecond), Event: event, Kind: kind, Path: "/p", Hold: hold, Session: "0x" + id, Zxid: zxid}
	for _, f := range more {
		f(&l)
	}
	return l
}

func blind(l *trace.Record) { l.Blind = true }
func permits(n, limit int64) func(*trace.Record) {
	return func(l *trace.Record) { l.Permits, l.Limit = n, limit }
}
func why(s string) func(*trace.Record)  { return func(l *trace.Record) { l.Reason = s } }
func token(n int64) func(*trace.Record) { return func(l *trace.Record) { l.Token, l.Zxid = n, n } }
func from(s string) func(*trace.Record) { return func(l *trace.Record) { l.From = s } }

// A verdict is a trace, and what the judge must say of it.
type verdict struct {
	name  string
	lines []trace.Record
	want  string // in the only violation; "" for none
	note  string // in a note
}

func (c verdict) test(t *testing.T) {
	r := Files([]*File{{Name: "f", Lines: c.lines}}, DefaultTolerance)
	if c.want == "" && len(r.Violations) > 0 || len(r.Missing) > 0 {
		t.Fatalf("violations %v, missing %v", r.Violations, r.Missing)
	}
	if c.want != "" && (len(r.Violations) != 1 || !strings.Contains(r.Violations[0].String(), c.want)) {
		t.Fatalf("violations %v; want one that says %q", r.Violations, c.want)
	}
	if c.note != "" && !slices.ContainsFunc(r.Notes, func(f Finding) bool { return strings.Contains(f.String(), c.note) }) {
		t.Fatalf("notes %v; want one that says %q", r.Notes, c.note)
	}
}

func TestVerify(t *testing.T) {
	for _, c := range []verdict{
		{name: "one after the other", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 10), at("a", 2, 5, trace.Release, trace.Mutex, "x", 11), at("a", 3, 6, trace.Gone, trace.Mutex, "x", 12),
			at("b", 1, 6, trace.Grant, trace.Mutex, "y", 12), at("b", 2, 9, trace.Release, trace.Mutex, "y", 12), at("b", 3, 9, trace.Gone, trace.Mutex, "y", 13),
		}},
		{name: "the clocks hide it, the transactions show it", want: "two holders at transaction 0xc", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 10), at("a", 2, 5, trace.Release, trace.Mutex, "x", 11), at("a", 3, 6, trace.Gone, trace.Mutex, "x", 14),
			at("b", 1, 6, trace.Grant, trace.Mutex, "y", 12), at("b", 2, 9, trace.Release, trace.Mutex, "y", 12), at("b", 3, 9, trace.Gone, trace.Mutex, "y", 15),
		}},
		{name: "the transactions hide it, the clocks show it", want: "two holders by the clocks", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 10, blind), at("a", 2, 500, trace.Release, trace.Mutex, "x", 10, blind),
			at("b", 1, 60, trace.Grant, trace.Mutex, "y", 10, blind), at("b", 2, 500, trace.Release, trace.Mutex, "y", 10, blind),
		}},
		{name: "clocks that differ by less than the tolerance", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 10, blind), at("a", 2, 150, trace.Release, trace.Mutex, "x", 10, blind), at("a", 3, 160, trace.Gone, trace.Mutex, "x", 12),
			at("b", 1, 60, trace.Grant, trace.Mutex, "y", 10, blind), at("b", 2, 500, trace.Release, trace.Mutex, "y", 10, blind),
		}},
		{name: "a loss that is told late", want: "(cut-off)", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 10), at("a", 2, 900, trace.Loss, trace.Mutex, "x", 10, why("cut-off")),
			at("b", 1, 700, trace.Grant, trace.Mutex, "y", 10, blind),
		}},
		{name: "a loss that could not be told in time", note: "(paused)", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 10), at("a", 2, 900, trace.Loss, trace.Mutex, "x", 10, why("paused")),
			at("b", 1, 700, trace.Grant, trace.Mutex, "y", 10, blind), at("b", 2, 950, trace.Release, trace.Mutex, "y", 10, blind),
		}},
		{name: "who never lets go, and goes on to write", want: "without an end", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 10), at("b", 1, 100, trace.Grant, trace.Mutex, "y", 10, blind),
			at("a", 2, 800, trace.Token, trace.Mutex, "x", 0, token(11)),
		}},
		{name: "who is killed", note: "held to the end of its trace", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 10), at("b", 1, 5000, trace.Grant, trace.Mutex, "y", 10, blind),
		}},
		{name: "tokens that do not grow", want: "tokens do not grow: 20", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 0, blind), at("a", 2, 1, trace.Token, trace.Mutex, "x", 0, token(21)), at("a", 3, 2, trace.Release, trace.Mutex, "x", 0, blind),
			at("b", 1, 300, trace.Grant, trace.Mutex, "y", 0, blind), at("b", 2, 301, trace.Token, trace.Mutex, "y", 0, token(20)), at("b", 3, 302, trace.Release, trace.Mutex, "y", 0, blind),
		}},
		{name: "tokens that do not grow, in one trace within the tolerance", want: "tokens do not grow: 20", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 0, blind), at("a", 2, 1, trace.Token, trace.Mutex, "x", 0, token(21)), at("a", 3, 2, trace.Release, trace.Mutex, "x", 0, blind),
			at("a", 4, 3, trace.Grant, trace.Mutex, "y", 0, blind), at("a", 5, 4, trace.Token, trace.Mutex, "y", 0, token(20)), at("a", 6, 5, trace.Release, trace.Mutex, "y", 0, blind),
		}},
		{name: "tokens that grow, in one trace, though its clock was put back within the tolerance", lines: []trace.Record{
			at("a", 1, 50, trace.Grant, trace.Mutex, "x", 0, blind), at("a", 2, 51, trace.Token, trace.Mutex, "x", 0, token(20)), at("a", 3, 52, trace.Release, trace.Mutex, "x", 0, blind),
			at("a", 4, 3, trace.Grant, trace.Mutex, "y", 0, blind), at("a", 5, 4, trace.Token, trace.Mutex, "y", 0, token(21)), at("a", 6, 5, trace.Release, trace.Mutex, "y", 0, blind),
		}},
		{name: "tokens that grow, though the clocks show another order within the tolerance", lines: []trace.Record{
			at("a", 1, 50, trace.Grant, trace.Mutex, "x", 10), at("a", 2, 51, trace.Token, trace.Mutex, "x", 0, token(11)),
			at("a", 3, 52, trace.Release, trace.Mutex, "x", 11), at("a", 4, 53, trace.Gone, trace.Mutex, "x", 12),
			at("b", 1, 2, trace.Grant, trace.Mutex, "y", 13), at("b", 2, 3, trace.Token, trace.Mutex, "y", 0, token(14)),
			at("b", 3, 4, trace.Release, trace.Mutex, "y", 14), at("b", 4, 5, trace.Gone, trace.Mutex, "y", 15),
		}},
		{name: "tokens whose order nothing shows within the tolerance, as the reply to a deletion was lost", lines: []trace.Record{
			at("a", 1, 50, trace.Grant, trace.Mutex, "x", 10), at("a", 2, 51, trace.Token, trace.Mutex, "x", 0, token(11)),
			at("a", 3, 52, trace.Release, trace.Mutex, "x", 11), at("a", 4, 53, trace.Gone, trace.Mutex, "x", 0),
			at("b", 1, 2, trace.Grant, trace.Mutex, "y", 13), at("b", 2, 3, trace.Token, trace.Mutex, "y", 0, token(14)),
			at("b", 3, 4, trace.Release, trace.Mutex, "y", 14), at("b", 4, 5, trace.Gone, trace.Mutex, "y", 15),
		}},
		{name: "a reader's token below that of an earlier writer", want: "tokens do not grow: 20", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Write, "x", 0, blind), at("a", 2, 1, trace.Token, trace.Write, "x", 0, token(21)), at("a", 3, 2, trace.Release, trace.Write, "x", 0, blind),
			at("b", 1, 300, trace.Grant, trace.Read, "y", 0, blind), at("b", 2, 301, trace.Token, trace.Read, "y", 0, token(20)), at("b", 3, 302, trace.Release, trace.Read, "y", 0, blind),
		}},
		{name: "readers whose tokens have another order than their grants", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Read, "x", 10), at("b", 1, 300, trace.Grant, trace.Read, "y", 11), at("b", 2, 301, trace.Token, trace.Read, "y", 0, token(12)),
			at("a", 2, 400, trace.Token, trace.Read, "x", 0, token(13)), at("a", 3, 401, trace.Release, trace.Read, "x", 13), at("b", 3, 402, trace.Release, trace.Read, "y", 13),
		}},
		{name: "a token below that of an earlier hold, behind a hold within the tolerance", want: "tokens do not grow: 30", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 0, blind), at("a", 2, 1, trace.Token, trace.Mutex, "x", 0, token(31)), at("a", 3, 2, trace.Release, trace.Mutex, "x", 0, blind),
			at("b", 1, 500, trace.Grant, trace.Mutex, "y", 0, blind), at("b", 2, 501, trace.Token, trace.Mutex, "y", 0, token(32)), at("b", 3, 502, trace.Release, trace.Mutex, "y", 0, blind),
			at("c", 1, 550, trace.Grant, trace.Mutex, "z", 0, blind), at("c", 2, 551, trace.Token, trace.Mutex, "z", 0, token(30)), at("c", 3, 552, trace.Release, trace.Mutex, "z", 0, blind),
		}},
		{name: "granted again after a loss", want: "granted after its loss", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 10), at("a", 2, 100, trace.Loss, trace.Mutex, "x", 10), at("a", 3, 200, trace.Grant, trace.Mutex, "x", 10),
		}},
		{name: "granted again after a release", want: "granted after its release", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Read, "x", 10), at("a", 2, 100, trace.Release, trace.Read, "x", 10), at("a", 3, 200, trace.Grant, trace.Read, "x", 10),
		}},
		{name: "a release of what was not granted", want: "the release of what was not held", lines: []trace.Record{at("a", 1, 0, trace.Release, trace.Mutex, "x", 10)}},
		{name: "released twice", want: "released after its release", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 10), at("a", 2, 1, trace.Release, trace.Mutex, "x", 10), at("a", 3, 2, trace.Release, trace.Mutex, "x", 10),
		}},
		{name: "lost twice", want: "lost twice", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 10), at("a", 2, 1, trace.Loss, trace.Mutex, "x", 10), at("a", 3, 2, trace.Loss, trace.Mutex, "x", 10),
		}},
		{name: "two goroutines of one process", want: "second goroutine", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 10), at("a", 2, 1, trace.Grant, trace.Mutex, "x", 10), at("a", 3, 2, trace.Release, trace.Mutex, "x", 10),
		}},
		{name: "readers together", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Read, "x", 10), at("b", 1, 1, trace.Grant, trace.Read, "y", 11),
			at("a", 2, 900, trace.Release, trace.Read, "x", 12), at("b", 2, 900, trace.Release, trace.Read, "y", 12),
		}},
		{name: "a reader with a writer", want: "two holders", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Read, "x", 10), at("b", 1, 1, trace.Grant, trace.Write, "y", 11),
			at("a", 2, 900, trace.Release, trace.Read, "x", 12), at("b", 2, 900, trace.Release, trace.Write, "y", 12),
		}},
		{name: "a writer that becomes a reader", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Write, "x", 10), at("a", 2, 500, trace.Move, trace.Read, "x2", 11, from("x")), at("a", 3, 501, trace.Gone, trace.Write, "x", 12),
			at("b", 1, 502, trace.Grant, trace.Read, "y", 12), at("a", 4, 900, trace.Release, trace.Read, "x2", 13), at("b", 2, 950, trace.Release, trace.Read, "y", 13),
		}},
		{name: "permits up to the limit", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Semaphore, "x", 10, permits(2, 3)), at("b", 1, 1, trace.Grant, trace.Semaphore, "y", 11, permits(1, 3)),
			at("a", 2, 900, trace.Release, trace.Semaphore, "x", 12), at("b", 2, 900, trace.Release, trace.Semaphore, "y", 12),
		}},
		{name: "permits over the limit", want: "4 permits of 3", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Semaphore, "x", 10, permits(2, 3)), at("b", 1, 1, trace.Grant, trace.Semaphore, "y", 11, permits(2, 3)),
			at("a", 2, 900, trace.Release, trace.Semaphore, "x", 12), at("b", 2, 900, trace.Release, trace.Semaphore, "y", 12),
		}},
		{name: "permits that are over the limit one after another", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Semaphore, "x", 10, permits(1, 3)), at("a", 2, 500, trace.Release, trace.Semaphore, "x", 20), at("a", 3, 500, trace.Gone, trace.Semaphore, "x", 24),
			at("a", 4, 500, trace.Grant, trace.Semaphore, "z", 26, permits(1, 3)), at("a", 5, 900, trace.Release, trace.Semaphore, "z", 40),
			at("b", 1, 500, trace.Grant, trace.Semaphore, "y", 22, permits(2, 3)), at("b", 2, 950, trace.Release, trace.Semaphore, "y", 41),
		}},
		{name: "permits over the limit for a while", want: "4 permits of 3", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Semaphore, "x", 10, permits(1, 3)), at("a", 2, 500, trace.Release, trace.Semaphore, "x", 20), at("a", 3, 500, trace.Gone, trace.Semaphore, "x", 28),
			at("a", 4, 500, trace.Grant, trace.Semaphore, "z", 26, permits(1, 3)), at("a", 5, 900, trace.Release, trace.Semaphore, "z", 40),
			at("b", 1, 500, trace.Grant, trace.Semaphore, "y", 22, permits(2, 3)), at("b", 2, 950, trace.Release, trace.Semaphore, "y", 41),
		}},
		{name: "a part of the permits whose znode replaces another late, beside permits up to the limit", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Semaphore, "x", 10, permits(1254, 4000)), at("a", 2, 500, trace.Move, trace.Semaphore, "x2", 11, from("x"), permits(1124, 4000), blind),
			at("a", 3, 510, trace.Grant, trace.Semaphore, "y", 15, permits(2000, 4000)), at("a", 4, 800, trace.Release, trace.Semaphore, "x2", 16, blind),
			at("a", 5, 900, trace.Gone, trace.Semaphore, "x", 20), at("a", 6, 950, trace.Release, trace.Semaphore, "y", 30),
		}},
		{name: "a part of the permits beside permits over the limit", want: "4124 permits of 4000", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Semaphore, "x", 10, permits(1254, 4000)), at("a", 2, 500, trace.Move, trace.Semaphore, "x2", 11, from("x"), permits(1124, 4000)),
			at("a", 3, 505, trace.Gone, trace.Semaphore, "x", 12),
			at("a", 4, 510, trace.Grant, trace.Semaphore, "y", 15, permits(3000, 4000)), at("a", 5, 800, trace.Release, trace.Semaphore, "x2", 20),
			at("a", 6, 950, trace.Release, trace.Semaphore, "y", 30),
		}},
		{name: "a short hold between hides nothing", want: "two holders", lines: []trace.Record{
			at("a", 1, 0, trace.Grant, trace.Mutex, "x", 10), at("a", 2, 1, trace.Release, trace.Mutex, "x", 10), at("a", 3, 2, trace.Gone, trace.Mutex, "x", 30),
			at("c", 1, 1500, trace.Grant, trace.Mutex, "z", 40), at("c", 2, 1600, trace.Release, trace.Mutex, "z", 40), at("c", 3, 1601, trace.Gone, trace.Mutex, "z", 41),
			at("b", 1, 2000, trace.Grant, trace.Mutex, "y", 20), at("b", 2, 2001, trace.Release, trace.Mutex, "y", 21), at("b", 3, 2001, trace.Gone, trace.Mutex, "y", 22),
		}},
	} {
		t.Run(c.name, c.test)
	}
}

func TestParseRefusesWhatIsNoTraceAndSaysWhatIsMissing(t *testing.T) {
	good, _ := json.Marshal(at("a", 1, 0, trace.Begin, "", "", 0))
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
	if r := Files([]*File{f}, 0); len(r.Missing) != 1 || r.Whole() {
		t.Errorf("%+v", r)
	}
	l := at("a", 3, 0, trace.Begin, "", "", 0)
	if r := Files([]*File{{Lines: []trace.Record{at("a", 1, 0, trace.Begin, "", "", 0), l}}}, 0); len(r.Missing) != 1 || !strings.Contains(r.Missing[0].String(), "lines 2 to 2 are missing") {
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

func TestVerifySaysThatFilesWithoutRecordsShowNothing(t *testing.T) {
	some := &File{Name: "some", Lines: []trace.Record{at("a", 1, 0, trace.Grant, trace.Mutex, "x", 10)}}
	for _, c := range []struct {
		files []*File
		notes string
		whole bool
	}{
		{[]*File{{Name: "empty"}}, "empty: there is no record", false},
		{[]*File{some, {Name: "empty"}}, "empty: there is no record", true},
		{nil, "", false},
	} {
		r := Files(c.files, DefaultTolerance)
		if text := fmt.Sprint(r.Notes); !strings.Contains(text, c.notes) || r.Whole() != c.whole {
			t.Errorf("%d files: notes %s, missing %v", len(c.files), text, r.Missing)
		}
	}
}

func TestVerifyTellsThePathsOfTwoChrootsApart(t *testing.T) {
	under := func(root string) func(*trace.Record) { return func(l *trace.Record) { l.Root, l.Path = root, "" } }
	for roots, want := range map[[2]string]int{{"/a", "/b"}: 0, {"/a", ""}: 0, {"/a", "/a"}: 1} {
		r := Files([]*File{{Name: "f", Lines: []trace.Record{
			at("a", 1, 0, trace.Begin, "", "", 0, under(roots[0])), at("b", 1, 0, trace.Begin, "", "", 0, under(roots[1])),
			at("a", 2, 1, trace.Grant, trace.Mutex, "x", 10), at("b", 2, 2, trace.Grant, trace.Mutex, "y", 11),
			at("a", 3, 500, trace.Release, trace.Mutex, "x", 12), at("b", 3, 501, trace.Release, trace.Mutex, "y", 13),
		}}}, DefaultTolerance)
		if (len(r.Violations) > 0) != (want > 0) || r.Paths != 2-want {
			t.Errorf("%q: %d paths, violations %v", roots, r.Paths, r.Violations)
		}
	}
}
