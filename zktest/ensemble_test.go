package zktest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// In these tests a tick is 2 s, a session's timeout 10 s, the sync limit 5 ticks, an
// election 200 ms, and a way 1 ms long. Of three members, 2 leads.
const (
	testTick    = 2 * time.Second
	testTimeout = 10 * time.Second
	testLimit   = 5 * testTick
	soon        = 20 * time.Millisecond
)

func ensembleTest(t *testing.T, n int, f func(t *testing.T, e *Ensemble)) {
	synctest.Test(t, func(t *testing.T) {
		e := StartEnsemble(t, n, WithTick(testTick), WithSessionTimeouts(4*time.Second, time.Minute))
		f(t, e)
		if t.Failed() {
			var b strings.Builder
			e.Dump(&b)
			t.Log(b.String())
		}
	})
}

// client returns a client of member i, with a session. It sends nothing by itself.
func client(t *testing.T, e *Ensemble, i int) *rawClient {
	t.Helper()
	return clientFor(t, e, i, testTimeout)
}

func clientFor(t *testing.T, e *Ensemble, i int, timeout time.Duration) *rawClient {
	t.Helper()
	c := rawDial(t, e.Server(i))
	_ = c.nc.SetDeadline(time.Time{})
	if err := c.handshake(int32(timeout / time.Millisecond)); err != nil || c.id == 0 {
		t.Fatalf("handshake with member %d: session %#x, %v", i, c.id, err)
	}
	return c
}

// moveTo has a client go on with its session at member i. It returns the error that ends the handshake.
func (c *rawClient) moveTo(e *Ensemble, i int) error {
	to := rawDial(c.t, e.Server(i))
	_ = to.nc.SetDeadline(time.Now().Add(time.Second))
	to.id, to.password, to.zxid = c.id, c.password, c.zxid
	err := to.handshake(int32(testTimeout / time.Millisecond))
	_ = to.nc.SetDeadline(time.Time{})
	if err == nil {
		xid := c.xid
		*c = *to
		c.xid = xid
	}
	return err
}

// answered sends a request and reports whether its reply comes within d.
func (c *rawClient) answered(op Op, body []byte, d time.Duration) bool {
	c.t.Helper()
	_ = c.nc.SetReadDeadline(time.Now().Add(d))
	defer func() { _ = c.nc.SetReadDeadline(time.Time{}) }()
	c.send(op, body)
	_, _, err := c.receive()
	return err == nil
}

// closedWithin reports whether the member closes the connection within d.
func (c *rawClient) closedWithin(d time.Duration) bool {
	_ = c.nc.SetReadDeadline(time.Now().Add(d))
	defer func() { _ = c.nc.SetReadDeadline(time.Time{}) }()
	_, err := c.readFrame()
	return err != nil && !strings.Contains(err.Error(), "timeout")
}

// ended waits until no leader has the session any more, and says when that was.
func ended(t *testing.T, e *Ensemble, id int64) time.Time {
	t.Helper()
	for range 60000 {
		e.mu.Lock()
		ld := e.leading()
		over := ld != nil && ld.sessions[id] == nil
		e.mu.Unlock()
		if over {
			return time.Now()
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("session %#x has not ended in a minute", id)
	return time.Time{}
}

// wantEndAfter checks that a session ends a timeout after touched, rounded up to the next tick.
func wantEndAfter(t *testing.T, e *Ensemble, id int64, touched time.Time) {
	t.Helper()
	if d := ended(t, e, id).Sub(touched); d < testTimeout || d > testTimeout+testTick+soon {
		t.Errorf("the session ended %v after it was last heard of, want %v and up to a tick of %v more", d, testTimeout, testTick)
	}
}

// wantEndBefore checks that a session ends before its timeout has passed since at.
func wantEndBefore(t *testing.T, e *Ensemble, id int64, at time.Time) {
	t.Helper()
	if d := ended(t, e, id).Sub(at); d >= testTimeout {
		t.Errorf("the session ended %v later, want less than its timeout of %v: this was not to count", d, testTimeout)
	}
}

// beforePulse waits until d before the leader next asks its followers.
func beforePulse(e *Ensemble, d time.Duration) {
	e.mu.Lock()
	begun := e.leading().begun
	e.mu.Unlock()
	const period = testTick / 2
	passed := time.Since(begun) % period
	wait := period - passed - d
	if wait <= 0 {
		wait += period
	}
	time.Sleep(wait)
}

func TestTheLeaderEndsASessionATimeoutAfterItLastHeardOfIt(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		for i := range 6 {
			at := []int{0, 2}[i%2] // a follower's client, and the leader's
			time.Sleep(730 * time.Millisecond)
			c := client(t, e, at)
			c.call(OpCreate, createBody("/e", "", openACL, flagEphemeral))
			time.Sleep(3 * time.Second)
			beforePulse(e, 300*time.Millisecond)
			c.call(OpPing, nil)
			touched := time.Now()
			if at == 0 {
				touched = touched.Add(300 * time.Millisecond) // when the leader is told
			}
			watcher := clientFor(t, e, 1, time.Minute)
			if watcher.call(OpExists, watchBody("/e", true)).code != CodeOK {
				t.Fatal("/e is not there")
			}
			wantEndAfter(t, e, c.id, touched)
			if _, event, err := watcher.receive(); err != nil || event != fmt.Sprintf("event %d /e", eventDeleted) {
				t.Errorf("who watches the ephemeral of the session: %q, %v, want to be told of its deletion", event, err)
			}
			if !c.closedWithin(soon) {
				t.Error("the connection of a session that has ended is still open")
			}
		}
	})
}

func TestAFollowerPassesOnWhomItHeardOfWhenTheLeaderAsks(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		c := client(t, e, 0)
		time.Sleep(3 * time.Second)
		beforePulse(e, 300*time.Millisecond)
		c.call(OpPing, nil)
		time.Sleep(300*time.Millisecond + soon) // the leader asks, and is told
		asked := time.Now()
		e.Crash(0)
		wantEndAfter(t, e, c.id, asked.Add(-soon))
	})
}

func TestWhatADyingFollowerHeardLastIsNeverPassedOn(t *testing.T) {
	for _, die := range []func(e *Ensemble){
		func(e *Ensemble) { e.Crash(0) },
		func(e *Ensemble) { e.Isolate(0) },
		func(e *Ensemble) { e.Freeze(0) },
		func(e *Ensemble) { e.Cut(0, 2) },
		func(e *Ensemble) { e.Cut(2, 0) },
	} {
		ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
			c := client(t, e, 0)
			beforePulse(e, 300*time.Millisecond)
			time.Sleep(3 * time.Second)
			c.call(OpPing, nil)
			last := time.Now()
			time.Sleep(soon)
			die(e)
			wantEndBefore(t, e, c.id, last)
		})
	}
}

func TestAWriteThatIsPassedOnDoesNotCountAtTheLeader(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		c := client(t, e, 0)
		time.Sleep(3 * time.Second)
		beforePulse(e, 300*time.Millisecond)
		if r := c.call(OpCreate, createBody("/w", "", openACL, 0)); r.code != CodeOK {
			t.Fatalf("create: code %d", r.code)
		}
		last := time.Now()
		e.Crash(0)
		wantEndBefore(t, e, c.id, last)
	})
}

func TestThePacketBeforeAWriteHalfATickLaterCounts(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		c := client(t, e, 0)
		for i := range 20 {
			sent := time.Now()
			c.call(OpPing, nil)
			time.Sleep(testTick/2 + time.Duration(i)*37*time.Millisecond)
			c.call(OpDelete, versionBody("/nothing", -1))
			if i == 19 {
				e.Crash(0)
				if d := ended(t, e, c.id).Sub(sent); d < testTimeout {
					t.Errorf("the session ended %v after the ping that was confirmed, want %v at least", d, testTimeout)
				}
			}
		}
	})
}

func TestAFollowerThatIsCutOffAnswersPingsAndReadsForTheSyncLimit(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		c := client(t, e, 0)
		c.call(OpCreate, createBody("/old", "", openACL, 0))
		beforePulse(e, 300*time.Millisecond)
		time.Sleep(300*time.Millisecond + soon)
		e.Isolate(0)
		heard := time.Now() // of the leader, for the last time; or up to soon earlier
		other := client(t, e, 1)
		other.call(OpCreate, createBody("/new", "", openACL, 0))
		for time.Since(heard) < testLimit-500*time.Millisecond {
			if c.call(OpPing, nil).code != CodeOK || c.call(OpExists, watchBody("/old", false)).code != CodeOK {
				t.Fatal("a ping or a read is not answered")
			}
			if c.call(OpExists, watchBody("/new", false)).code != CodeNoNode {
				t.Fatal("a follower that is cut off knows what was done since")
			}
			time.Sleep(250 * time.Millisecond)
		}
		if !c.closedWithin(time.Second) {
			t.Error("the connection is still open after the sync limit")
		}
		if d := time.Since(heard); d > testLimit {
			t.Errorf("the connection was closed %v after the leader was last heard of, want %v", d, testLimit)
		}
		if e.Serving(0) {
			t.Error("the follower still serves")
		}
		if err := c.moveTo(e, 0); err == nil {
			t.Error("a member that has no leader took a client")
		}
		e.HealAll()
		time.Sleep(time.Second)
		if !e.Serving(0) {
			t.Error("the follower does not serve again though it is healed")
		}
		n := client(t, e, 0)
		if n.call(OpExists, watchBody("/new", false)).code != CodeOK {
			t.Error("the follower that came back does not know what was done meanwhile")
		}
	})
}

func TestASyncNeedsNoMajorityAndAWriteDoes(t *testing.T) {
	ensembleTest(t, 5, func(t *testing.T, e *Ensemble) {
		c := client(t, e, 3) // of the leader, 4, and 3 the others are cut off
		for _, o := range []int{0, 1, 2} {
			for _, i := range []int{3, 4} {
				e.Cut(o, i)
				e.Cut(i, o)
			}
		}
		if !c.answered(OpSync, pathBody("/"), soon) {
			t.Error("a sync with a leader that has no majority was not answered")
		}
		if c.answered(OpSetData, setDataBody("/zookeeper/quota", "x", -1), testLimit/2) {
			t.Error("a write was answered without a majority")
		}
		e.HealAll()
		if r, _, err := c.receive(); err != nil || r.code != CodeOK {
			t.Errorf("the write after the heal: code %d, %v", r.code, err)
		}
	})
}

func TestASyncBehindAProposalWaitsForIt(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		a, b := client(t, e, 0), client(t, e, 1)
		e.SetDelay(2, 1, 100*time.Millisecond)
		e.SetDelay(2, 0, 300*time.Millisecond)
		a.send(OpCreate, createBody("/n", "", openACL, 0))
		time.Sleep(10 * time.Millisecond) // the leader has it, and proposes it
		if b.call(OpExists, watchBody("/n", false)).code != CodeNoNode {
			t.Error("a follower knows of a transaction before the leader can have told it")
		}
		b.call(OpSync, pathBody("/"))
		if b.call(OpExists, watchBody("/n", false)).code != CodeOK {
			t.Error("after a sync a proposal that the leader had then is not there")
		}
	})
}

func TestAWriteThatFailsIsAgreedUponToo(t *testing.T) {
	for _, at := range []int{0, 2} {
		ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
			c := client(t, e, at)
			before := c.call(OpDelete, versionBody("/nothing", -1))
			after := c.call(OpDelete, versionBody("/nothing", -1))
			if before.code != CodeNoNode || after.code != CodeNoNode || after.zxid != before.zxid+1 {
				t.Errorf("two failed writes: codes %d and %d, zxids %#x and %#x; want NoNode and consecutive zxids", before.code, after.code, before.zxid, after.zxid)
			}
			e.Isolate(2)
			if c.answered(OpDelete, versionBody("/nothing", -1), testLimit) {
				t.Error("a write that fails was answered without a majority")
			}
		})
	}
}

func TestComingBackToASessionCountsWithoutAMajority(t *testing.T) {
	ensembleTest(t, 5, func(t *testing.T, e *Ensemble) {
		c := client(t, e, 3)
		time.Sleep(5 * time.Second)
		for _, o := range []int{0, 1, 2} {
			for _, i := range []int{3, 4} {
				e.Cut(o, i)
				e.Cut(i, o)
			}
		}
		if err := c.moveTo(e, 3); err != nil || c.id == 0 {
			t.Fatalf("coming back: session %#x, %v", c.id, err)
		}
		e.mu.Lock()
		left := time.Until(e.members[4].ld.sessions[c.id].end)
		e.mu.Unlock()
		if left < testTimeout-soon {
			t.Errorf("the session has %v left, want its whole timeout of %v", left, testTimeout)
		}
	})
}

func TestANewLeaderGivesEverySessionItsWholeTimeout(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		c := client(t, e, 0)
		time.Sleep(9 * time.Second)
		e.Crash(2)
		time.Sleep(time.Second)
		if l := e.Leader(); l != 0 && l != 1 {
			t.Fatalf("member %d leads, want 0 or 1", l)
		}
		e.mu.Lock()
		begun := e.leading().begun
		e.mu.Unlock()
		if !c.closedWithin(soon) {
			t.Error("a change of leader left a client's connection open")
		}
		wantEndAfter(t, e, c.id, begun)
	})
}

func TestALeaderThatLosesItsFollowersNoticesAfterTheSyncLimit(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		c := client(t, e, 2)
		time.Sleep(time.Second)
		e.Isolate(2)
		cut := time.Now()
		time.Sleep(testLimit - testTick)
		if !c.answered(OpPing, nil, soon) || !c.answered(OpExists, watchBody("/", false), soon) {
			t.Error("a leader that has lost its followers and cannot know yet does not answer")
		}
		c.send(OpCreate, createBody("/lost", "", openACL, 0))
		if !c.closedWithin(3 * testTick) {
			t.Error("a leader without followers goes on after the sync limit")
		}
		if d := time.Since(cut); d < testLimit-testTick || d > testLimit+2*testTick {
			t.Errorf("the leader noticed after %v, want about %v", d, testLimit)
		}
		time.Sleep(time.Second)
		if l := e.Leader(); l == 2 || l < 0 {
			t.Fatalf("member %d leads, want one of the other two", l)
		}
		// What a minority had logged is forgotten.
		o := client(t, e, e.Leader())
		o.call(OpCreate, createBody("/kept", "", openACL, 0))
		e.HealAll()
		time.Sleep(time.Second)
		n := client(t, e, 2)
		if n.call(OpExists, watchBody("/lost", false)).code != CodeNoNode || n.call(OpExists, watchBody("/kept", false)).code != CodeOK {
			t.Error("the old leader came back with what only it had logged, or without what the others agreed to")
		}
	})
}

func TestADeposedLeaderDoesNotCountAsTheLeader(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		for _, m := range []int{0, 1} {
			e.CutLosing(m, 2)
			e.CutLosing(2, m)
			e.Crash(m)
			e.Restart(m)
		}
		time.Sleep(testLimit / 2)
		replacement := e.Leader()
		if replacement == 2 || replacement < 0 || !e.Serving(2) {
			t.Fatalf("member %d leads, and member 2 serves: %v; want another leader, and that member 2 has not noticed it", replacement, e.Serving(2))
		}
		e.Crash(replacement)
		if l := e.Leader(); l != -1 || !e.Serving(2) {
			t.Errorf("member %d leads, and member 2 serves: %v; want no leader, and that member 2 has not noticed it", l, e.Serving(2))
		}
	})
}

func TestWhatAMajorityLoggedSurvivesTheLeader(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		c := client(t, e, 2)
		e.Cut(0, 2) // both log it, but the leader does not hear of that
		e.Cut(1, 2)
		if c.answered(OpCreate, createBody("/n", "", openACL, 0), time.Second) {
			t.Fatal("the write was answered")
		}
		e.Crash(2)
		time.Sleep(testLimit + time.Second) // that it has crashed is heard of
		o := client(t, e, 0)
		if o.call(OpExists, watchBody("/n", false)).code != CodeOK {
			t.Error("what a majority had logged is not there under the new leader")
		}
	})
}

func TestAMemberThatJoinsALeaderThatLagsKnowsTheSessionsOfItsTree(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		e.Crash(0)
		e.SetLag(2, time.Hour) // the leader is late to apply that the session begins
		c := client(t, e, 1)
		if r := c.call(OpCreate, createBody("/n", "", openACL, 1 /* ephemeral */)); r.code != CodeOK {
			t.Fatalf("create: code %d", r.code)
		}
		e.Restart(0)
		time.Sleep(time.Second)
		e.mu.Lock()
		_, znode := e.members[0].s.leader.tree.nodes["/n"]
		known := e.members[0].s.sessions[c.id] != nil
		e.mu.Unlock()
		if !znode || !known {
			t.Errorf("the member that has joined has the ephemeral znode: %v, and knows its session: %v", znode, known)
		}
	})
}

func TestAMemberThatLagsAnswersFromThePastAndRefusesWhoKnowsMore(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		old, c := client(t, e, 0), client(t, e, 1)
		e.SetLag(0, time.Hour)
		c.call(OpCreate, createBody("/n", "", openACL, 0))
		time.Sleep(time.Second)
		if old.call(OpExists, watchBody("/n", true)).code != CodeNoNode {
			t.Error("a member that lags knows what it has not applied")
		}
		if err := c.moveTo(e, 0); err == nil {
			t.Error("a member that lags took a client that has seen more")
		}
		before := &rawClient{t: t, id: old.id, password: old.password, zxid: old.zxid}
		if err := before.moveTo(e, 1); err != nil || before.id != old.id {
			t.Errorf("coming from a member that lags: %v", err)
		}
		e.SetLag(0, 0)
		if err := c.moveTo(e, 0); err != nil {
			t.Errorf("a member that lags no more: %v", err)
		}
	})
}

func TestRepliesKeepTheirOrder(t *testing.T) {
	for _, at := range []int{0, 2} {
		ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
			c := client(t, e, at)
			e.SetDelay(2, 0, 50*time.Millisecond)
			var want []int32
			for i := range 10 {
				want = append(want, c.send(OpCreate, createBody(fmt.Sprint("/n", i), "", openACL, 0)))
				want = append(want, c.send(OpExists, watchBody(fmt.Sprint("/n", i), false)))
				want = append(want, c.send(OpSync, pathBody("/")), c.send(OpPing, nil))
			}
			var got []int32
			for range want {
				r, _, err := c.receive()
				if err != nil || r.code != CodeOK {
					t.Fatalf("reply %d: code %d, %v", len(got), r.code, err)
				}
				got = append(got, r.xid)
			}
			if !slices.Equal(got, want) {
				t.Errorf("replies to %v, want %v", got, want)
			}
		})
	}
}

func TestWhoComesBackToAMemberWaitsForWhatHeHasAskedIt(t *testing.T) {
	for _, at := range []int{0, 2} {
		ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
			c := client(t, e, at)
			e.SetDelay(0, 2, 200*time.Millisecond)
			e.SetDelay(1, 2, 200*time.Millisecond)
			c.send(OpCreate, createBody("/n", "", openACL, 0))
			time.Sleep(time.Millisecond) // the member has it
			_ = c.nc.Close()
			if err := c.moveTo(e, at); err != nil {
				t.Fatal(err)
			}
			if c.call(OpExists, watchBody("/n", false)).code != CodeOK {
				t.Error("a read over the next connection was answered before the write over the one before it was done")
			}
		})
	}
}

func TestWhoComesToTheLeaderWaitsForWhatItWasAskedThroughAFollower(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		c := client(t, e, 0)
		e.SetDelay(2, 0, 200*time.Millisecond)
		e.SetDelay(2, 1, 200*time.Millisecond)
		c.send(OpCreate, createBody("/n", "", openACL, 0))
		time.Sleep(10 * time.Millisecond) // the leader has proposed it
		if err := c.moveTo(e, 2); err != nil {
			t.Fatal(err)
		}
		if c.call(OpExists, watchBody("/n", false)).code != CodeOK {
			t.Error("a read at the leader was answered before the session's write through a follower was done")
		}
	})
}

func TestAFollowerThatIsBackBeforeItsFarewellArrivesStays(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		e.SetDelay(0, 2, time.Second)
		time.Sleep(3 * testTick) // the leader hears a second later than the follower
		e.Cut(2, 0)
		for e.Serving(0) {
			time.Sleep(time.Millisecond)
		}
		e.Heal(2, 0)
		time.Sleep(3 * time.Second) // more than an election and the delay
		c := client(t, e, 1)
		c.call(OpCreate, createBody("/n", "", openACL, 0))
		time.Sleep(soon)
		e.SetDelay(0, 2, time.Millisecond)
		if err := c.moveTo(e, 0); err != nil || c.call(OpExists, watchBody("/n", false)).code != CodeOK {
			t.Errorf("the follower hears no more of its leader: %v", err)
		}
	})
}

func TestAWriteThroughAConnectionThatTheSessionHasLeftIsNotDone(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		c := client(t, e, 0)
		left := *c
		if err := c.moveTo(e, 1); err != nil {
			t.Fatal(err)
		}
		left.send(OpCreate, createBody("/n", "", openACL, 0))
		if !left.closedWithin(time.Second) {
			t.Error("the connection that the session has left is still open")
		}
		if c.call(OpExists, watchBody("/n", false)).code != CodeNoNode {
			t.Error("a write through a connection that the session has left was done")
		}
	})
}

func TestAFrozenMemberIsSilentAndGoesOnWhenThawed(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		c := client(t, e, 0)
		e.Freeze(0)
		if c.answered(OpPing, nil, time.Second) {
			t.Error("a frozen member answers")
		}
		e.Thaw(0)
		if r, _, err := c.receive(); err != nil || r.xid != xidPing {
			t.Errorf("after the thaw: xid %d, %v", r.xid, err)
		}
		e.Freeze(2) // the leader
		c.send(OpCreate, createBody("/n", "", openACL, 0))
		if !c.closedWithin(testLimit + testTick) {
			t.Error("a frozen leader keeps its followers for longer than the sync limit")
		}
		time.Sleep(time.Second)
		if l := e.Leader(); l != 2 && l < 0 {
			t.Errorf("member %d leads while the old leader is frozen", l)
		}
		e.Thaw(2)
		time.Sleep(testTick * 2)
		if l := e.Leader(); l == 2 || l < 0 || !e.Serving(2) {
			t.Errorf("after the thaw member %d leads; the old leader serves: %v", l, e.Serving(2))
		}
	})
}

func TestADozingMemberAnswersAtItsNextRequest(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		c, near, far := client(t, e, 0), client(t, e, 0), client(t, e, 1)
		e.Server(0).Intercept(only(OpCreate, Doze))
		xid := c.send(OpCreate, createBody("/n", "", openACL, 0))
		wantSilence(t, c, time.Second)
		far.call(OpPing, nil)
		wantSilence(t, c, time.Second)
		near.call(OpPing, nil)
		if r, _, err := c.receive(); err != nil || r.xid != xid || r.code != CodeOK {
			t.Errorf("got %+v, %v", r, err)
		}
	})
}

func TestACutLosesWhatIsOnItsWayOrNot(t *testing.T) {
	for _, lose := range []bool{false, true} {
		ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
			c := client(t, e, 0)
			e.SetDelay(0, 2, 50*time.Millisecond)
			c.send(OpCreate, createBody("/n", "", openACL, 0))
			time.Sleep(10 * time.Millisecond)
			if lose {
				e.CutLosing(0, 2)
			} else {
				e.Cut(0, 2)
			}
			time.Sleep(time.Second)
			o := client(t, e, 2)
			code := o.call(OpExists, watchBody("/n", false)).code
			if lose != (code == CodeNoNode) {
				t.Errorf("lose %v: code %d", lose, code)
			}
			e.Heal(0, 2)
			if r, _, err := c.receive(); err != nil || r.code != CodeOK {
				t.Errorf("after the heal: code %d, %v", r.code, err)
			}
		})
	}
}

func TestACrashedMemberComesBackWithItsTree(t *testing.T) {
	ensembleTest(t, 3, func(t *testing.T, e *Ensemble) {
		c := client(t, e, 0)
		c.call(OpCreate, createBody("/n", "kept", openACL, 0))
		for i := range 3 {
			e.Crash(i)
		}
		if e.Leader() != -1 {
			t.Error("somebody leads though all have crashed")
		}
		for i := range 3 {
			e.Restart(i)
		}
		time.Sleep(time.Second)
		if err := c.moveTo(e, 1); err != nil || c.id == 0 {
			t.Fatalf("coming back: session %#x, %v", c.id, err)
		}
		r := c.call(OpGetData, watchBody("/n", false))
		if got := r.d.buffer(); r.code != CodeOK || !bytes.Equal(got, []byte("kept")) {
			t.Errorf("after the crash of all: code %d, %q", r.code, got)
		}
	})
}
