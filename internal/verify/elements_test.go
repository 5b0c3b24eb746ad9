package verify

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/zsync/zsync/internal/trace"
)

// of is a line about elements of a queue.
func of(id string, n int64, ms int, event, elements string, zxid int64, more ...func(*trace.Record)) trace.Record {
	named := func(l *trace.Record) { l.Claim, l.Elements = "of-"+id, strings.Fields(elements) }
	return at(id, n, ms, event, trace.Element, "", zxid, append([]func(*trace.Record){named}, more...)...)
}

func fate(s string) func(*trace.Record) { return func(l *trace.Record) { l.Fate = s } }

var elementCases = []verdict{
	{name: "returned, and removed by another", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x y", 10), of("a", 2, 900, trace.Release, "x", 12, fate(trace.Returned)), of("a", 3, 901, trace.Release, "y", 13, fate(trace.Removed)),
		of("b", 1, 20, trace.Grant, "x", 13), of("b", 2, 30, trace.Release, "x", 14, fate(trace.Removed)),
	}},
	{name: "two owners, whatever the clocks say", want: "x had two owners at transaction 0xb", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 10), of("a", 2, 1, trace.Release, "x", 12, fate(trace.Returned)),
		of("b", 1, 900, trace.Grant, "x", 11), of("b", 2, 901, trace.Release, "x", 13, fate(trace.Returned)),
	}},
	{name: "removed twice", want: "x was removed twice", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 0), of("a", 2, 1, trace.Release, "x", 0, fate(trace.Removed)),
		of("b", 1, 2, trace.Grant, "x", 0), of("b", 2, 3, trace.Release, "x", 0, fate(trace.Removed)),
	}},
	{name: "claimed after it was removed", want: "x was claimed after it was removed", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 10), of("a", 2, 1, trace.Release, "x", 11, fate(trace.Removed)), of("b", 1, 2, trace.Grant, "x", 12),
	}},
	{name: "a loss that is told late", want: "x had two owners by the clocks", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 10), of("a", 2, 900, trace.Loss, "x", 10, why("expired")), of("b", 1, 700, trace.Grant, "x", 12),
	}},
	{name: "a loss that could not be told in time", note: "x had two owners by the clocks", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 10), of("a", 2, 900, trace.Loss, "x", 10, why("paused")), of("b", 1, 700, trace.Grant, "x", 12),
	}},
	{name: "lost, and returned by its process later", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 10), of("a", 2, 100, trace.Loss, "x", 10, why("cut-off")), of("a", 3, 900, trace.Release, "x", 15, fate(trace.Returned)),
		of("b", 1, 890, trace.Grant, "x", 16),
	}},
	{name: "who is killed, and heard of what came after", want: "x had two owners at transaction 0xc", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 10), of("a", 2, 5, trace.Grant, "y", 14), of("b", 1, 700, trace.Grant, "x", 12),
	}},
	{name: "who is killed", lines: []trace.Record{of("a", 1, 0, trace.Grant, "x", 10), of("b", 1, 700, trace.Grant, "x", 12)}},
	{name: "claimed in an unknown transaction and removed, after another had returned it", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 10), of("a", 2, 5, trace.Release, "x", 11, fate(trace.Returned)),
		of("b", 1, 700, trace.Grant, "x", 0), of("b", 2, 701, trace.Release, "x", 15, fate(trace.Removed)),
	}},
	{name: "claimed in an unknown transaction and lost, after another had returned it", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 10), of("a", 2, 5, trace.Release, "x", 11, fate(trace.Returned)),
		of("b", 1, 700, trace.Grant, "x", 0), of("b", 2, 900, trace.Loss, "x", 12, why("expired")),
	}},
	{name: "claimed in an unknown transaction, returned, and claimed by another with a clock that is behind", lines: []trace.Record{
		of("a", 1, 60, trace.Grant, "x", 0), of("a", 2, 65, trace.Release, "x", 0, fate(trace.Returned)),
		of("b", 1, 10, trace.Grant, "x", 14), of("b", 2, 5000, trace.Loss, "x", 15, why("expired")),
	}},
	{name: "claimed in an unknown transaction, removed, and claimed by another with a clock that is behind", want: "x was claimed after it was removed", lines: []trace.Record{
		of("a", 1, 60, trace.Grant, "x", 0), of("a", 2, 65, trace.Release, "x", 12, fate(trace.Removed)), of("b", 1, 10, trace.Grant, "x", 14),
	}},
	{name: "claimed in an unknown transaction and removed, while another claims it", want: "x was claimed", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 0), of("b", 1, 700, trace.Grant, "x", 12), of("a", 2, 900, trace.Release, "x", 15, fate(trace.Removed)),
	}},
	{name: "claimed in an unknown transaction, and lost late", want: "x had two owners by the clocks: b", lines: []trace.Record{
		of("b", 1, 0, trace.Grant, "x", 0), of("b", 2, 900, trace.Loss, "x", 10, why("expired")), of("c", 1, 700, trace.Grant, "x", 12),
	}},
	{name: "claimed in an unknown transaction while another has it, who learns of the loss late", want: "x had two owners by the clocks: a", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 10), of("a", 2, 900, trace.Loss, "x", 10, why("expired")), of("b", 1, 700, trace.Grant, "x", 0),
	}},
	{name: "claimed in an unknown transaction and removed, while another has it by the transactions", want: "x had two owners at transaction 0x50", lines: []trace.Record{
		of("b", 1, 0, trace.Grant, "x", 0x40), of("b", 2, 1100, trace.Release, "x", 0x60, fate(trace.Returned)),
		of("a", 1, 1000, trace.Grant, "x", 0), of("a", 2, 1001, trace.Release, "x", 0x50, fate(trace.Removed)),
	}},
	{name: "the same within the tolerance of the clocks", want: "x had two owners at transaction 0x50", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 0), of("a", 2, 1, trace.Release, "x", 0x50, fate(trace.Removed)),
		of("b", 1, 50, trace.Grant, "x", 0x40), of("b", 2, 1100, trace.Release, "x", 0x60, fate(trace.Returned)),
	}},
	{name: "two who learn late of their losses, whoever was first", want: "x had two owners by the clocks", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 0), of("a", 2, 5000, trace.Loss, "x", 0, why("expired")),
		of("b", 1, 50, trace.Grant, "x", 0x40), of("b", 2, 6000, trace.Loss, "x", 0x40, why("expired")),
	}},
	{name: "the same, and one of them was paused", note: "x had two owners by the clocks", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 0), of("a", 2, 5000, trace.Loss, "x", 0, why("expired")),
		of("b", 1, 50, trace.Grant, "x", 0x40), of("b", 2, 6000, trace.Loss, "x", 0x40, why("paused")),
	}},
	{name: "settled without a claim", want: "removed, and was not claimed: x", lines: []trace.Record{of("a", 1, 0, trace.Release, "x", 10, fate(trace.Removed))}},
	{name: "claimed twice by one", want: "claimed a second time", lines: []trace.Record{of("a", 1, 0, trace.Grant, "x", 10), of("a", 2, 1, trace.Grant, "x", 0)}},
	{name: "two queues of one process, whose lines cross", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 10),
		of("a", 2, 1, trace.Grant, "x", 12, func(l *trace.Record) { l.Claim = "another" }), of("a", 3, 2, trace.Release, "x", 11, fate(trace.Returned)),
	}},
	{name: "locks beside queues", lines: []trace.Record{
		of("a", 1, 0, trace.Grant, "x", 10), at("a", 2, 1, trace.Grant, trace.Mutex, "m", 11), at("a", 3, 2, trace.Release, trace.Mutex, "m", 11), of("a", 4, 3, trace.Release, "x", 12, fate(trace.Buried)),
	}},
}

func TestVerifyJudgesClaimsOfElements(t *testing.T) {
	for _, c := range elementCases {
		t.Run(c.name, c.test)
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
		r := Files([]*File{file}, DefaultTolerance)
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
