package trace

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// of is a line about elements of a queue.
func of(id string, n int64, ms int, event, elements string, zxid int64, more ...func(*Record)) Record {
	named := func(l *Record) { l.Claim, l.Elements = "of-"+id, strings.Fields(elements) }
	return at(id, n, ms, event, Element, "", zxid, append([]func(*Record){named}, more...)...)
}

func fate(s string) func(*Record) { return func(l *Record) { l.Fate = s } }

var elementCases = []struct {
	name  string
	lines []Record
	want  string // in the only violation; "" for none
	note  string // in a note
}{
	{name: "returned, and removed by another", lines: []Record{
		of("a", 1, 0, Grant, "x y", 10), of("a", 2, 900, Release, "x", 12, fate(Returned)), of("a", 3, 901, Release, "y", 13, fate(Removed)),
		of("b", 1, 20, Grant, "x", 13), of("b", 2, 30, Release, "x", 14, fate(Removed)),
	}},
	{name: "two owners, whatever the clocks say", want: "x had two owners at transaction 0xb", lines: []Record{
		of("a", 1, 0, Grant, "x", 10), of("a", 2, 1, Release, "x", 12, fate(Returned)),
		of("b", 1, 900, Grant, "x", 11), of("b", 2, 901, Release, "x", 13, fate(Returned)),
	}},
	{name: "removed twice", want: "x was removed twice", lines: []Record{
		of("a", 1, 0, Grant, "x", 0), of("a", 2, 1, Release, "x", 0, fate(Removed)),
		of("b", 1, 2, Grant, "x", 0), of("b", 2, 3, Release, "x", 0, fate(Removed)),
	}},
	{name: "claimed after it was removed", want: "x was claimed after it was removed", lines: []Record{
		of("a", 1, 0, Grant, "x", 10), of("a", 2, 1, Release, "x", 11, fate(Removed)), of("b", 1, 2, Grant, "x", 12),
	}},
	{name: "a loss that is told late", want: "x had two owners by the clocks", lines: []Record{
		of("a", 1, 0, Grant, "x", 10), of("a", 2, 900, Loss, "x", 10, why("expired")), of("b", 1, 700, Grant, "x", 12),
	}},
	{name: "a loss that could not be told in time", note: "x had two owners by the clocks", lines: []Record{
		of("a", 1, 0, Grant, "x", 10), of("a", 2, 900, Loss, "x", 10, why("paused")), of("b", 1, 700, Grant, "x", 12),
	}},
	{name: "lost, and returned by its process later", lines: []Record{
		of("a", 1, 0, Grant, "x", 10), of("a", 2, 100, Loss, "x", 10, why("cut-off")), of("a", 3, 900, Release, "x", 15, fate(Returned)),
		of("b", 1, 890, Grant, "x", 16),
	}},
	{name: "who is killed, and heard of what came after", want: "x had two owners at transaction 0xc", lines: []Record{
		of("a", 1, 0, Grant, "x", 10), of("a", 2, 5, Grant, "y", 14), of("b", 1, 700, Grant, "x", 12),
	}},
	{name: "who is killed", lines: []Record{of("a", 1, 0, Grant, "x", 10), of("b", 1, 700, Grant, "x", 12)}},
	{name: "settled without a claim", want: "removed, and was not claimed: x", lines: []Record{of("a", 1, 0, Release, "x", 10, fate(Removed))}},
	{name: "claimed twice by one", want: "claimed a second time", lines: []Record{of("a", 1, 0, Grant, "x", 10), of("a", 2, 1, Grant, "x", 0)}},
	{name: "two queues of one process, whose lines cross", lines: []Record{
		of("a", 1, 0, Grant, "x", 10),
		of("a", 2, 1, Grant, "x", 12, func(l *Record) { l.Claim = "another" }), of("a", 3, 2, Release, "x", 11, fate(Returned)),
	}},
	{name: "locks beside queues", lines: []Record{
		of("a", 1, 0, Grant, "x", 10), at("a", 2, 1, Grant, Mutex, "m", 11), at("a", 3, 2, Release, Mutex, "m", 11), of("a", 4, 3, Release, "x", 12, fate(Buried)),
	}},
}

func TestVerifyJudgesClaimsOfElements(t *testing.T) {
	for _, c := range elementCases {
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

// FuzzParse feeds the parser and the judge with what may stand in a file.
func FuzzParse(f *testing.F) {
	for _, c := range elementCases {
		var text []byte
		for _, l := range c.lines {
			line, err := json.Marshal(l)
			if err != nil {
				f.Fatal(err)
			}
			text = append(append(text, line...), '\n')
		}
		f.Add(text)
	}
	f.Add([]byte(`{"v":1,"trace":"a","n":1,"time":"2026-01-02T03:04:05Z","event":"grant","kind":"semaphore","path":"/p","hold":"x","permits":2,"limit":1,"zxid":10}` + "\n" +
		`{"v":1,"trace":"a","n":2,"time":"2026-01-02T03:04:05Z","event":"move","kind":"semaphore","path":"/p","hold":"y","from":"x","permits":1,"limit":1,"zxid":-1}` + "\n" +
		`{"v":1,"trace":"b","n":9223372036854775807,"event":"dropped","dropped":-3}` + "\n{\"v\":1"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Parse(bytes.NewReader(text), "f")
		if err != nil {
			return
		}
		r := Verify([]*File{file}, DefaultTolerance)
		var out bytes.Buffer
		if err := r.Print(&out); err != nil || out.Len() == 0 {
			t.Fatal(err)
		}
		// What was read is written as what is read again.
		var again []byte
		for _, l := range file.Lines {
			line, err := json.Marshal(l)
			if err != nil {
				return // it has a year that JSON has not
			}
			again = append(append(again, line...), '\n')
		}
		if second, err := Parse(bytes.NewReader(again), "f"); len(file.Lines) > 0 && (err != nil || len(second.Lines) != len(file.Lines)) {
			t.Fatalf("read again: %v", err)
		}
	})
}
