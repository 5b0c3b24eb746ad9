package zktest

import (
	"testing"
	"time"
)

// lateCreate returns a client of member 1. Its session was at member 0 before, and has left
// a create on the way from there to the leader, which arrives a moment later.
func lateCreate(t *testing.T, e *Ensemble) *rawClient {
	t.Helper()
	c := client(t, e, 0)
	e.Cut(0, 2)
	c.send(OpCreate, createBody("/late", "", openACL, 0))
	time.Sleep(soon)
	if err := c.moveTo(e, 1); err != nil {
		t.Fatal(err)
	}
	c.call(OpSync, pathBody("/"))
	if c.call(OpExists, watchBody("/late", false)).code != CodeNoNode {
		t.Fatal("the create has overtaken the cut")
	}
	time.AfterFunc(soon, func() { e.Heal(0, 2) })
	return c
}

func TestARequestLeftBehindIsCarriedOutIfItsSessionIsBackWhenTheLeaderLooksAtIt(t *testing.T) {
	for _, backlog := range []time.Duration{0, time.Millisecond, 50 * time.Millisecond} {
		ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
			e.SetBacklog(backlog)
			c := lateCreate(t, e)
			if err := c.moveTo(e, 0); err != nil { // behind the create, on the same way
				t.Fatal(err)
			}
			c.call(OpSync, pathBody("/"))
			want := int32(CodeOK)
			if backlog == 0 {
				want = CodeNoNode // looked at before the session was back
			}
			if code := c.call(OpExists, watchBody("/late", false)).code; code != want {
				t.Errorf("backlog %v: the znode of the create that was left behind: code %d, want %d", backlog, code, want)
			}
		})
	}
}

func TestARequestLeftBehindIsRefusedIfItsSessionIsElsewhereWhenTheLeaderLooksAtIt(t *testing.T) {
	for _, backlog := range []time.Duration{0, time.Millisecond, 50 * time.Millisecond} {
		ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
			e.SetBacklog(backlog)
			c := lateCreate(t, e)
			time.Sleep(time.Second)
			c.call(OpSync, pathBody("/"))
			if code := c.call(OpExists, watchBody("/late", false)).code; code != CodeNoNode {
				t.Errorf("backlog %v: the create that was left behind was carried out: code %d", backlog, code)
			}
		})
	}
}

func TestARequestIsCarriedOutIfItsSessionHasGoneStraightBack(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		e.SetBacklog(50 * time.Millisecond)
		c := client(t, e, 0)
		e.Cut(0, 2)
		c.send(OpCreate, createBody("/late", "", openACL, 0))
		time.Sleep(soon) // the member has it
		time.AfterFunc(soon, func() { e.Heal(0, 2) })
		if err := c.moveTo(e, 0); err != nil {
			t.Fatal(err)
		}
		if code := c.call(OpExists, watchBody("/late", false)).code; code != CodeOK {
			t.Errorf("a read over the next connection to the same member does not see the create before it: code %d", code)
		}
	})
}

func TestALeaderAnswersItsOwnClientsBehindItsQueue(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		c := client(t, e, 2)
		e.SetBacklog(50 * time.Millisecond)
		start := time.Now()
		c.send(OpCreate, createBody("/n", "", openACL, 0))
		if c.call2(OpExists, watchBody("/n", false)).code != CodeOK {
			t.Error("a read was answered ahead of the write before it")
		}
		if d := time.Since(start); d < 50*time.Millisecond {
			t.Errorf("both were answered after %v, want 50ms at least", d)
		}
	})
}

func TestARefusedReadBehindTheCreateOfItsZnodeIsRefused(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		for i := range 3 {
			c := client(t, e, i)
			e.Server(i).Intercept(only(OpGetData, Fail(CodeNoAuth)))
			wantCode(t, "missing", c.call(OpGetData, watchBody("/n", false)), CodeNoNode)
			c.send(OpCreate, createBody("/n", "", openACL, 0))
			wantCode(t, "made", c.call2(OpGetData, watchBody("/n", false)), CodeNoAuth)
			wantCode(t, "delete", c.call(OpDelete, versionBody("/n", -1)), CodeOK)
		}
	})
}

// call2 is call, but it first reads the reply to one earlier request.
func (c *rawClient) call2(op Op, body []byte) rawReply {
	c.t.Helper()
	c.send(op, body)
	var r rawReply
	for range 2 {
		var err error
		if r, _, err = c.receive(); err != nil {
			c.t.Fatal(err)
		}
	}
	return r
}

func TestAFollowerTakesTheResultOfAnEarlierRequestForThatOfALaterWithTheSameXid(t *testing.T) {
	for _, again := range []bool{true, false} {
		ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
			c := client(t, e, 1)
			e.Cut(2, 0) // neither follower agrees to a proposal from here on
			e.Cut(2, 1)
			c.send(OpDelete, versionBody("/nothing", -1))
			time.Sleep(soon)
			time.AfterFunc(soon, func() { e.Heal(2, 0) })
			if err := c.moveTo(e, 0); err != nil { // which has the proposal by then, and not yet the commit
				t.Fatal(err)
			}
			want := int32(CodeOK)
			if again {
				c.xid, want = c.xid-1, CodeNoNode
			}
			if code := c.call(OpCreate, createBody("/n", "", openACL, 0)).code; code != want {
				t.Errorf("xid used twice: %v; the create is answered with code %d, want %d", again, code, want)
			}
			time.Sleep(soon)
			if code := c.call(OpExists, watchBody("/n", false)).code; code != CodeOK {
				t.Errorf("the create was not carried out: code %d", code)
			}
		})
	}
}

func TestEachMemberGrantsItsOwnTimeout(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		const short = 4 * time.Second
		e.Server(1).SetSessionTimeouts(short, short)
		c := client(t, e, 0)
		left := func() time.Duration {
			e.mu.Lock()
			defer e.mu.Unlock()
			return time.Until(e.leading().sessions[c.id].end)
		}
		want := func(what string, timeout time.Duration) {
			t.Helper()
			if d := left(); d < timeout-soon || d > timeout+testTick {
				t.Errorf("%s: the session has %v left, want %v and up to a tick of %v more", what, d, timeout, testTick)
			}
		}
		want("new", testTimeout)
		if err := c.moveTo(e, 1); err != nil || c.timeout != int32(short/time.Millisecond) {
			t.Fatalf("member 1: %v, granted %d ms", err, c.timeout)
		}
		want("at a member that grants less", short)
		time.Sleep(time.Second)
		c.call(OpPing, nil)
		beforePulse(e, 0)
		time.Sleep(soon)
		want("after a ping there", short)
		if err := c.moveTo(e, 0); err != nil || c.timeout != int32(testTimeout/time.Millisecond) {
			t.Fatalf("member 0: %v, granted %d ms", err, c.timeout)
		}
		want("back", testTimeout)
		if err := c.moveTo(e, 1); err != nil {
			t.Fatal(err)
		}
		e.Crash(2)
		time.Sleep(time.Second)
		if e.Leader() != 1 {
			t.Fatalf("member %d leads, want 1", e.Leader())
		}
		want("under a new leader", testTimeout-time.Second)
	})
}

func TestAHandshakeWhoseAnswerIsLostHasItsTimeoutAllTheSame(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		const short = 4 * time.Second
		e.Server(1).SetSessionTimeouts(short, short)
		e.Server(1).Intercept(func(r Request) Action {
			if r.Op == OpConnect {
				return DropReply
			}
			return Pass
		})
		c := client(t, e, 0)
		beforePulse(e, 0)
		time.Sleep(soon) // member 0 has answered the leader's ping
		if err := c.moveTo(e, 1); err == nil {
			t.Fatal("the handshake was answered")
		}
		moved := time.Now()
		if d := ended(t, e, c.id).Sub(moved); d > short+testTick+soon {
			t.Errorf("the session ended %v after a handshake with a member that grants %v", d, short)
		}
	})
}
