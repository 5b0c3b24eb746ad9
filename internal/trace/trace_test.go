package trace

import (
	"testing"
	"time"
)

// BenchmarkHold measures what a trace costs: the three records of one hold.
func BenchmarkHold(b *testing.B) {
	out := new(counter)
	w := NewWriter(out, "3c27c86d-7778-42dc-8758-13ec746acc07", "", "host:1", func(error) {})
	line := Record{Kind: Mutex, Path: "/locks/backup", Hold: "_c_3c27c86d-7778-42dc-8758-13ec746acc07-lock-0000000000", Use: 1, Session: "0x1a2174987810001", Zxid: 0x100000005}
	b.ReportAllocs()
	for b.Loop() {
		grant, release := line, line
		grant.Event, release.Event = Grant, Release
		w.Hold("/locks/backup/x", grant)
		w.Line(release)
		w.Gone("/locks/backup/x", 0x100000007)
		w.mu.Lock()
		behind := len(w.pending) > w.room/2
		w.mu.Unlock()
		if behind {
			time.Sleep(time.Millisecond) // real time: a benchmark whose writer writes meanwhile
		}
	}
	w.Close(time.Minute)
	b.ReportMetric(float64(out.n)/float64(b.N), "B/hold")
}

// A counter counts bytes.
type counter struct{ n int }

func (c *counter) Write(p []byte) (int, error) {
	c.n += len(p)
	return len(p), nil
}

// If a session ends before a deletion is answered, no reply tells the Writer that the znode is gone.
func TestAWriterForgetsTheHoldsOfASessionThatHasEnded(t *testing.T) {
	w := NewWriter(new(counter), "id", "", "me", func(error) {})
	defer w.Close(time.Minute)
	for _, session := range []string{"0x1", "0x2"} {
		w.Hold("/m/"+session, Record{Event: Grant, Kind: Mutex, Path: "/m", Hold: session, Session: session})
		w.Hold("/m/"+session, Record{Event: Release, Kind: Mutex, Path: "/m", Hold: session, Session: session})
	}
	w.Line(Record{Event: Expired, Session: "0x1"})
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.held["/m/0x2"]; !ok || len(w.held) != 1 {
		t.Errorf("the Writer remembers %v, want only the hold of the session 0x2", w.held)
	}
}
