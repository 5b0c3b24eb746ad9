package main

import (
	"encoding/csv"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync/zktest"
)

// client builds the command that measures zsync and go-zookeeper.
func client(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "client")
	if out, err := exec.Command("go", "build", "-o", file, "..").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return file
}

func TestARunWritesItsTableItsPlotAndEveryMeasurement(t *testing.T) {
	srv := zktest.Start(t)
	command := client(t) + " -servers {servers} -workload {workload} -n {n} -dur {dur}s -warm {warm}s -peer "
	p := plan{
		servers: srv.Addr(), reps: 2, dur: 100 * time.Millisecond, warm: 10 * time.Millisecond, limit: time.Minute,
		peers:  []peer{{"zsync", command + "zsync"}, {"zk.Lock", command + "zk.Lock"}},
		jobs:   []job{{"lock_uncontended", 1}, {"lock_sessions", 2}, {"lock_sessions", 4}, {"barrier", 2}},
		delays: []time.Duration{0, 2 * time.Millisecond},
	}
	r, err := p.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	doc := filepath.Join(dir, "doc.md")
	if err := os.WriteFile(doc, []byte("before\n"+beginMark+"\nold\n"+endMark+"\nafter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second replaces what the first has written
		for _, err := range []error{r.writeCSV(filepath.Join(dir, "all.csv")), r.writeDoc(doc), r.writePlots(dir)} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	f, err := os.Open(filepath.Join(dir, "all.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if want := 1 + 2*2*(2+2+2+1); err != nil || len(rows) != want {
		t.Errorf("%d rows, %v; want %d: zk.Lock has no barrier", len(rows), err, want)
	}
	text, err := os.ReadFile(doc)
	for _, want := range []string{"before\n", "after\n", "| loopback | zsync | zk.Lock |", "| round trip of 2ms |", "| lock_sessions, 4 |", "× zk.Lock", "-reps 2", "3."} {
		if err != nil || strings.Count(string(text), want) == 0 {
			t.Errorf("the document has no %q: %v\n%s", want, err, text)
		}
	}
	if strings.Contains(string(text), "old") || strings.Count(string(text), beginMark) != 1 || strings.Contains(string(text), os.TempDir()) {
		t.Errorf("the document is\n%s", text)
	}
	for _, name := range []string{"rates-0s.svg", "rates-2ms.svg", "sizes-lock_sessions.svg"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(b), "<svg") || !strings.Contains(string(b), "zk.Lock") {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	// What is carried takes its time.
	near, far := spreadOf(values(r.rates(0, p.jobs[0], "zk.Lock"))).median, spreadOf(values(r.rates(2*time.Millisecond, p.jobs[0], "zk.Lock"))).median
	if far > near || far > 1/(3*0.002)+1 {
		t.Errorf("zk.Lock: %.0f a second nearby, %.0f over a link of 2 ms: its three round trips take at least 6 ms", near, far)
	}
}

func TestAPeerThatFailsIsNotedAndOneThatTalksNonsenseIsRefused(t *testing.T) {
	srv := zktest.Start(t)
	p := plan{servers: srv.Addr(), reps: 1, limit: time.Minute, jobs: []job{{"x", 1}}, delays: []time.Duration{0}}
	for command, want := range map[string]string{
		"false":             "exit status 1",
		"echo hello":        "want name,workload,n,rate",
		"echo a,x,one,2":    "invalid syntax",
		"true":              "no CSV",
		"no-such-command-x": "not found",
	} {
		p.peers = []peer{{"a", command}}
		if _, err := p.run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", command, err, want)
		}
	}
	p.peers = []peer{{"a", "echo b,x,1,5"}, {"b", "false"}}
	r, err := p.run(t.Context())
	if err != nil || len(r.samples) != 1 || r.samples[0].peer != "a" || len(r.failed) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestPartsOfAPlanAreRead(t *testing.T) {
	if jobs, err := parseJobs("a:1,b:20"); err != nil || len(jobs) != 2 || jobs[1] != (job{"b", 20}) {
		t.Error(jobs, err)
	}
	if ds, err := parseDelays("0,10ms"); err != nil || len(ds) != 2 || ds[1] != 10*time.Millisecond {
		t.Error(ds, err)
	}
	for _, bad := range []string{"", "a", "a:0", "a:b"} {
		if _, err := parseJobs(bad); err == nil {
			t.Errorf("jobs %q are taken", bad)
		}
	}
	for _, bad := range []string{"", "5", "-1s"} {
		if _, err := parseDelays(bad); err == nil {
			t.Errorf("delays %q are taken", bad)
		}
	}
	if s := spreadOf([]float64{4, 1, 3, 2}); s != (spread{1, 2.5, 4}) {
		t.Error(s)
	}
	if s := rate(1234567.8); s != "1,234,568" {
		t.Error(s)
	}
}
