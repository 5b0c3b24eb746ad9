package session

import (
	"testing"
	"time"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
)

func TestAServerIsLeftOutWhileItMayCarryOutWhatTheSessionHasLeftThere(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		const timeout = 30 * time.Second
		var tr trail
		late := []conn.Request{NewPending(DeleteCall("/x", -1))}
		want := func(what, addr string, want bool) {
			t.Helper()
			if got := tr.bars(addr, timeout); got != want {
				t.Errorf("%s: %s is left out: %v, want %v", what, addr, got, want)
			}
		}
		tr.leave("a", late)
		want("straight back", "a", false)
		tr.leave("d", late) // which has answered no sync
		want("after a server that has answered no sync", "a", false)
		want("straight back", "d", false)
		tr.caughtUp("b")
		want("after another server", "a", true)
		want("after another server", "d", true)
		want("after another server", "b", false)
		want("after another server", "c", false)
		tr.caughtUp("c")
		want("without a write there", "b", false)
		want("after two other servers", "a", true)
		time.Sleep(timeout)
		tr.written = time.Now()
		want("after a write that was sent at the timeout", "a", true)
		time.Sleep(time.Nanosecond)
		tr.written = time.Now()
		want("after a later write", "a", false)
		want("after a later write", "d", false)

		tr.caughtUp("a")
		tr.leave("a", late)
		tr.caughtUp("a")
		tr.caughtUp("b")
		want("after it has answered a sync behind the write", "a", false)

		tr.leave("b", late)
		tr.caughtUp("a")
		if !tr.bars("b", time.Second) {
			t.Error("not left out")
		}
		time.Sleep(time.Second)
		tr.written = time.Now()
		if !tr.bars("b", time.Second) {
			t.Errorf("not left out for %v after a timeout of a second", SyncLimit)
		}
		time.Sleep(2*SyncLimit - time.Second - 1)
		if !tr.bars("b", time.Second) {
			t.Errorf("without a write, not left out for twice %v", SyncLimit)
		}
		time.Sleep(time.Nanosecond)
		if tr.bars("b", time.Second) {
			t.Errorf("left out for more than twice %v", SyncLimit)
		}
	})
}

// A handshake without an answer may still reach the leader, right after a write over the same server.
func TestAWriteWaitsForAHandshakeThatMayCarryItOut(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		late := []conn.Request{NewPending(DeleteCall("/x", -1))}
		for _, c := range []struct {
			name  string
			do    func(tr *trail)
			addr  string
			waits bool
		}{
			{"another server", func(*trail) {}, "b", false},
			{"another server, after a handshake", func(tr *trail) { tr.unanswered("a") }, "b", true},
			{"a return", func(tr *trail) { tr.unanswered("a") }, "a", false},
			{"a handshake before the write", func(tr *trail) { tr.unanswered("a"); tr.leave("a", late) }, "b", false},
			{"a handshake with another server", func(tr *trail) { tr.unanswered("c") }, "b", false},
			{"a server without a sync in between", func(tr *trail) { tr.unanswered("b"); tr.leave("b", late); tr.unanswered("a") }, "c", true},
			{"an earlier move", func(tr *trail) { tr.unanswered("a"); tr.caughtUp("c"); tr.leave("c", late) }, "b", false},
			{"a server that has caught up", func(tr *trail) { tr.unanswered("a"); tr.caughtUp("c"); tr.leave("c", late); tr.unanswered("c") }, "b", true},
		} {
			var tr trail
			tr.leave("a", late)
			c.do(&tr)
			given, _, waits := tr.caughtUp(c.addr)
			if len(given) == 0 || len(tr.late) > 0 {
				t.Errorf("%s: %d writes are given back, %d stay", c.name, len(given), len(tr.late))
			}
			if waits != c.waits {
				t.Errorf("%s: the writes wait: %v, want %v", c.name, waits, c.waits)
			}
		}
	})
}

func TestWritesAloneDoHarmWhenTheyAreCarriedOutLate(t *testing.T) {
	moot := DeleteCall("/x", -1)
	moot.Moot = true
	for _, c := range []struct {
		r    conn.Request
		want bool
	}{
		{NewPending(DeleteCall("/x", -1)), true},
		{NewPending(txnCall(nil)), true},
		{NewPending(moot), false},
		{NewPending(GetCall("/x")), false},
		{NewPending(new(Incarnation).Flush()), false}, // the watchdog sends it, too
	} {
		if got := conn.Harms(c.r); got != c.want {
			t.Errorf("%T of type %d: %v, want %v", c.r, c.r.Op(), got, c.want)
		}
	}
}

func TestAPacerPassesOverServersThatMayNotBeUsedAndWaitsARoundIfNoneMay(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		p := pacer{hosts: []string{"a", "b", "c"}, retry: RetryPolicy{Min: time.Second, Max: time.Second, Factor: 1}}
		not := func(addrs ...string) func(string) bool {
			return func(addr string) bool {
				for _, a := range addrs {
					if a == addr {
						return false
					}
				}
				return true
			}
		}
		for _, c := range []struct {
			mayUse func(string) bool
			addr   string
			delay  time.Duration
		}{
			{not("a"), "b", 0},
			{not("a"), "c", 0},
			{not("a"), "b", time.Second},
			{not("a", "b", "c"), "", time.Second},
			{not(), "c", 0},
			{not(), "a", time.Second},
		} {
			if addr, delay := p.pick(time.Hour, c.mayUse); addr != c.addr || delay != c.delay {
				t.Errorf("server %q after %v, want %q after %v", addr, delay, c.addr, c.delay)
			}
		}
	})
}

// A server that accepts connections and closes them at once is dialled after longer and longer pauses. A connection
// that has lived for a second is replaced without a pause.
func TestAPacerPausesOnlyAfterAConnectionThatDidNotLast(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		p := pacer{hosts: []string{"a", "b"}, retry: RetryPolicy{Min: 4 * time.Second, Max: time.Hour, Factor: 2}}
		for _, c := range []struct {
			lives time.Duration // the connection before, or 0 if there was none
			want  time.Duration
		}{
			{0, 0},
			{time.Millisecond, 0}, // to the other server
			{time.Millisecond, 4*time.Second - time.Millisecond},
			{time.Second - 1, 0},
			{time.Second - 1, 8*time.Second - time.Second + 1},
			{time.Second, 0},
			{0, 0},
			{0, 4 * time.Second},
		} {
			if c.lives > 0 {
				p.success()
				time.Sleep(c.lives)
			}
			if addr, delay := p.pick(time.Hour, func(string) bool { return true }); delay != c.want {
				t.Errorf("%s after a connection of %v: a pause of %v, want %v", addr, c.lives, delay, c.want)
			}
		}
	})
}
