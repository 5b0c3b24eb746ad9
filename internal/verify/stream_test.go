package verify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"

	"github.com/zsync/zsync/internal/trace"
)

// An endlessTrace reads as the traces of processes that take turns with locks, and work through a queue. It makes them
// during the reads, and measures how much memory is in use.
type endlessTrace struct {
	size    int // how much to read
	planted func(turn int) bool

	read, turn int
	n          map[string]int64
	out        bytes.Buffer
	zxid       int64
	most       uint64 // of memory in use
	measured   int
}

// record writes a record of a process.
func (e *endlessTrace) record(process string, at time.Time, l trace.Record) {
	e.n[process]++
	l.V, l.Trace, l.N, l.Time, l.Session = trace.Version, process, e.n[process], at, "0x"+process
	text, err := json.Marshal(l)
	if err != nil {
		panic(err)
	}
	e.out.Write(append(text, '\n'))
}

// next writes the records of a turn: a hold and an element.
func (e *endlessTrace) next() {
	begun := epoch.Add(time.Duration(e.turn) * 20 * time.Millisecond)
	process, path := string(rune('a'+e.turn%5)), fmt.Sprint("/locks/", e.turn%7)
	hold := fmt.Sprintf("_c_3c27c86d-7778-42dc-8758-%012d-lock-%010d", e.turn, e.turn/7)
	over := e.zxid + 3
	if e.planted(e.turn) {
		over += 100 // the next holder of the path comes within this
	}
	e.record(process, begun, trace.Record{Event: trace.Grant, Kind: trace.Mutex, Path: path, Hold: hold, Zxid: e.zxid + 1})
	e.record(process, begun.Add(5*time.Millisecond), trace.Record{Event: trace.Release, Kind: trace.Mutex, Path: path, Hold: hold, Zxid: e.zxid + 2})
	e.record(process, begun.Add(6*time.Millisecond), trace.Record{Event: trace.Gone, Kind: trace.Mutex, Path: path, Hold: hold, Zxid: over})
	element := []string{fmt.Sprintf("b-00000-%010d/e-%010d", e.turn, e.turn)}
	e.record(process, begun.Add(7*time.Millisecond), trace.Record{Event: trace.Grant, Kind: trace.Element, Path: "/q", Claim: "of-" + process, Elements: element, Zxid: e.zxid + 4})
	e.record(process, begun.Add(9*time.Millisecond), trace.Record{Event: trace.Release, Kind: trace.Element, Path: "/q", Claim: "of-" + process, Elements: element, Zxid: e.zxid + 5, Fate: trace.Removed})
	e.zxid += 5
	e.turn++
}

func (e *endlessTrace) Read(p []byte) (int, error) {
	if e.out.Len() == 0 {
		if e.read >= e.size {
			return 0, io.EOF
		}
		e.out.Reset()
		for e.out.Len() < 32<<10 {
			e.next()
		}
	}
	n, err := e.out.Read(p)
	if e.read += n; e.read-e.measured > 4<<20 {
		e.measured = e.read
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		e.most = max(e.most, m.HeapInuse)
	}
	return n, err
}

func TestVerifyNeedsNoMoreMemoryForALongTrace(t *testing.T) {
	size, most := 64<<20, mostRemembered
	if harness.UnderRace { // which is slow
		size, most = 6<<20, mostRemembered/20
	}
	planted := map[int]bool{1000: true, 20_000: !harness.UnderRace}
	in := &endlessTrace{size: size, planted: func(turn int) bool { return planted[turn] }, n: map[string]int64{}}
	r, err := verify([]source{newReader(in, "f")}, 0, most)
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for _, is := range planted {
		if is {
			want++
		}
	}
	if len(r.Violations) < want || len(r.Missing) > 0 || r.Holds != in.turn || r.Claims != in.turn || r.Removed != in.turn || r.Paths != 7 || r.Traces != 5 {
		t.Errorf("of %d turns: %d holds, %d claims, %d removed, %d paths, %d traces, missing %v, violations %v", in.turn, r.Holds, r.Claims, r.Removed, r.Paths, r.Traces, r.Missing, r.Violations)
	}
	for _, v := range r.Violations {
		if !strings.Contains(v.Text, "two holders at transaction") {
			t.Error(v)
		}
	}
	if in.most > 48<<20 {
		t.Errorf("%d MiB of memory were in use", in.most>>20)
	}
	t.Logf("%d MiB, %d lines: %d MiB of memory were in use at most", in.read>>20, r.Lines, in.most>>20)
}

// With room for few holds, the judge finds the same.
func TestVerifyThatForgetsFindsTheSame(t *testing.T) {
	for planted := 100; planted < 900; planted += 90 {
		in := &endlessTrace{size: 1 << 20, planted: func(turn int) bool { return turn == planted }, n: map[string]int64{}}
		text, err := io.ReadAll(in)
		harness.Must(t, err)
		var found [2]string
		for i, most := range []int{mostRemembered, 100} {
			r, err := verify([]source{newReader(bytes.NewReader(text), "f")}, 0, most)
			harness.Must(t, err)
			found[i] = fmt.Sprint(r.Violations, r.Missing, r.Holds, r.Claims, r.Removed, r.Lines)
		}
		if found[0] != found[1] || !strings.Contains(found[0], "two holders at transaction") {
			t.Errorf("planted at turn %d: with much room\n%s\nand with little\n%s", planted, found[0], found[1])
		}
	}
}

// The hold of a process that was killed has no end. It neither keeps the others in memory nor hides them.
func TestVerifyForgetsBesideTheHoldOfAProcessThatWasKilled(t *testing.T) {
	killed := &File{Name: "killed", Lines: []trace.Record{{V: trace.Version, Trace: "k", N: 1, Time: epoch.Add(10 * time.Millisecond), Event: trace.Grant, Kind: trace.Mutex, Path: "/locks/6", Hold: "k", Session: "0xk", Zxid: 1}}}
	for _, c := range []struct {
		writes int    // a token, at this turn; 0: it writes no more
		want   string // in the findings
	}{{0, "k of k (0xk) was held to the end of its trace"}, {30, "lasted so long"}, {900, "lasted so long"}} {
		in := &endlessTrace{size: 1 << 20, planted: func(int) bool { return false }, n: map[string]int64{}}
		file, err := Parse(in, "f")
		harness.Must(t, err)
		k := *killed
		if c.writes > 0 {
			k.Lines = append(k.Lines[:1:1], trace.Record{V: trace.Version, Trace: "k", N: 2, Time: epoch.Add(time.Duration(c.writes) * 20 * time.Millisecond), Event: trace.Token, Kind: trace.Mutex, Path: "/locks/6", Hold: "k", Session: "0xk", Zxid: int64(c.writes)*5 + 1, Token: int64(c.writes)*5 + 1})
		}
		r, err := verify([]source{&kept{File: &k}, &kept{File: file}}, 0, 100)
		harness.Must(t, err)
		if found := fmt.Sprint(r.Violations, r.Missing, r.Notes); !strings.Contains(found, c.want) || c.writes == 0 && !r.Whole() {
			t.Errorf("written at turn %d: %s; want %q", c.writes, found, c.want)
		}
	}
}

// Processes' traces one after another, as of cat, come too late if there are too many.
func TestVerifySaysIfItHasForgottenTheTimeOfARecord(t *testing.T) {
	in := &endlessTrace{size: 1 << 20, planted: func(int) bool { return false }, n: map[string]int64{}}
	text, err := io.ReadAll(in)
	harness.Must(t, err)
	one := bytes.ReplaceAll(text, []byte(`"trace":"`), []byte(`"trace":"of another `))
	for most, late := range map[int]bool{mostRemembered: false, 100: true} {
		r, err := verify([]source{newReader(bytes.NewReader(append(bytes.Clone(text), one...)), "f")}, 0, most)
		harness.Must(t, err)
		if got := strings.Contains(fmt.Sprint(r.Missing), "came so late,"); got != late {
			t.Errorf("with room for %d, missing: %v", most, r.Missing)
		}
	}
}

// A trace may continue in another file, which is given first, and some of its records may come early.
func TestVerifyPutsTheRecordsOfATraceInOrder(t *testing.T) {
	lines := []trace.Record{
		at("a", 1, 0, trace.Grant, trace.Mutex, "x", 10), at("a", 2, 5, trace.Release, trace.Mutex, "x", 11), at("a", 3, 6, trace.Gone, trace.Mutex, "x", 12),
		at("a", 4, 10, trace.Grant, trace.Mutex, "y", 12), at("a", 5, 15, trace.Release, trace.Mutex, "y", 13), at("a", 6, 16, trace.Gone, trace.Mutex, "y", 14),
	}
	for name, files := range map[string][]*File{
		"rotated":       {{Name: "2", Lines: lines[3:]}, {Name: "1", Lines: lines[:3]}},
		"in one file":   {{Name: "1", Lines: append(append([]trace.Record(nil), lines[3:]...), lines[:3]...)}},
		"at one moment": {{Name: "2", Lines: []trace.Record{lines[1], lines[3], lines[5]}}, {Name: "1", Lines: []trace.Record{lines[0], lines[2], lines[4]}}},
	} {
		if r := Files(files, 0); !r.Whole() || r.Holds != 2 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
