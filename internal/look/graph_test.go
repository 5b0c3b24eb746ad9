package look

import (
	"testing"
	"time"
)

// The servers conceal the sessions of contenders that this client may not read. Two such
// contenders make no deadlock, because their sessions may differ.
func TestConcealedSessionsMakeNoDeadlock(t *testing.T) {
	now := time.Now()
	line := func(path, session string, holding bool) Line {
		return Line{Path: path, Kind: "lock", Session: session, Holding: holding, Since: &now}
	}
	for other, want := range map[string]int{"0x2": 1, SessionText(-1): 0} {
		var g Graph
		g.Add([]Line{line("/a", "0x1", true), line("/a", other, false)})
		g.Add([]Line{line("/b", other, true), line("/b", "0x1", false)})
		if got := len(g.Circles()); got != want {
			t.Errorf("session %s: %d deadlocks, want %d", other, got, want)
		}
	}
}
