package zktest

import (
	"errors"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// connected returns a raw client with a session of the given timeout.
func connected(t *testing.T, s *Server, timeout time.Duration) *rawClient {
	t.Helper()
	c := rawDial(t, s)
	if err := c.handshake(int32(timeout.Milliseconds())); err != nil || c.id == 0 {
		t.Fatalf("handshake: session %d, %v", c.id, err)
	}
	return c
}

// again returns a client on a new connection to addr that asks for c's session.
func again(t *testing.T, s *Server, c *rawClient, addr string) *rawClient {
	t.Helper()
	nc, err := s.Dial("tcp", addr, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	d := newRaw(t, nc)
	d.id, d.password, d.zxid = c.id, c.password, c.zxid
	return d
}

func wantCode(t *testing.T, what string, r rawReply, code int32) {
	t.Helper()
	if r.code != code {
		t.Errorf("%s: got code %d, want %d", what, r.code, code)
	}
}

// wantClosed fails unless the server has closed the connection, with no packet before.
func wantClosed(t *testing.T, c *rawClient) {
	t.Helper()
	if b, err := c.readFrame(); err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %x, %v, want a closed connection", b, err)
	}
}

// wantSilence fails if a packet comes within d.
func wantSilence(t *testing.T, c *rawClient, d time.Duration) {
	t.Helper()
	_ = c.nc.SetReadDeadline(time.Now().Add(d))
	if b, err := c.readFrame(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %x, %v, want silence", b, err)
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(time.Minute))
}

// only intercepts requests of one kind.
func only(op Op, a Action) func(Request) Action {
	return func(r Request) Action {
		if r.Op == op {
			return a
		}
		return Pass
	}
}

func exists(t *testing.T, c *rawClient, path string) bool {
	t.Helper()
	return c.call(OpExists, watchBody(path, false)).code == CodeOK
}

func TestLostRequestIsNotAppliedAndLostReplyIs(t *testing.T) {
	for _, test := range []struct {
		name    string
		action  Action
		applied bool
	}{{"request", DropRequest, false}, {"reply", DropReply, true}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := Start(t)
				c := connected(t, s, time.Second)
				s.Intercept(only(OpCreate, test.action))
				ping := c.send(OpGetData, watchBody("/", false))
				c.send(OpCreate, createBody("/a", "", openACL, 0))
				if r, _, err := c.receive(); err != nil || r.xid != ping {
					t.Errorf("reply to the request before: got %+v, %v", r, err)
				}
				wantClosed(t, c)
				s.Intercept(nil)
				d := again(t, s, c, s.Addr())
				if err := d.handshake(1000); err != nil || d.id != c.id {
					t.Fatalf("the session did not survive: got %#x, %v", d.id, err)
				}
				if got := exists(t, d, "/a"); got != test.applied {
					t.Errorf("applied: got %v, want %v", got, test.applied)
				}
			})
		})
	}
}

func TestARefusedReadOfAMissingZnodeAnswersNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t)
		c := connected(t, s, 10*time.Second)
		s.Intercept(func(Request) Action { return Fail(CodeNoAuth) })
		for _, op := range []Op{OpExists, OpGetData, OpGetChildren, OpGetChildren2} {
			wantCode(t, op.String(), c.call(op, watchBody("/a", true)), CodeNoNode)
			wantCode(t, op.String(), c.call(op, watchBody("/", true)), CodeNoAuth)
		}
		wantCode(t, "create", c.call(OpCreate, createBody("/b/c", "", openACL, 0)), CodeNoAuth)
	})
}

func TestFailAnswersWithTheCodeAndDelayWithTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t)
		c := connected(t, s, 10*time.Second)
		s.Intercept(func(r Request) Action {
			if r.Op == OpCreate && r.Path == "/a" && string(r.Data) == "x" && r.Session == c.id && r.Addr == s.Addr() {
				return Fail(CodeOperationTimeout)
			}
			return Delay(3 * time.Second)
		})
		wantCode(t, "create", c.call(OpCreate, createBody("/a", "x", openACL, 0)), CodeOperationTimeout)
		start := time.Now()
		wantCode(t, "exists", c.call(OpExists, watchBody("/a", false)), CodeNoNode)
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("delayed by %v, want 3s", took)
		}
	})
}

func TestADozingServerAnswersWhenAnyClientSendsTheNextRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t)
		s.Intercept(only(OpCreate, Doze))
		c, other := connected(t, s, 10*time.Second), connected(t, s, 10*time.Second)
		for path, wake := range map[string]func(){
			"/own":       func() { c.send(OpPing, nil) },
			"/other":     func() { other.call(OpPing, nil) },
			"/handshake": func() { connected(t, s, time.Second) },
		} {
			xid := c.send(OpCreate, createBody(path, "", openACL, 0))
			wantSilence(t, c, time.Second)
			wake()
			if r, _, err := c.receive(); err != nil || r.xid != xid || r.code != CodeOK {
				t.Errorf("%s: got %+v, %v", path, r, err)
			}
			if path == "/own" {
				c.receive() // the reply to the ping
			}
		}
		s.Intercept(only(OpConnect, Doze))
		c = rawDial(t, s)
		c.writeFrame(connectFrame(0, 1000, 0, nil))
		wantSilence(t, c, time.Second)
	})
}

func TestHangingHandshakeAndAuthAnswerNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t)
		s.Intercept(only(OpConnect, Hang))
		c := rawDial(t, s)
		c.writeFrame(connectFrame(0, 1000, 0, nil))
		wantSilence(t, c, 5*time.Second)

		s.Intercept(only(OpConnect, HangReply))
		c = rawDial(t, s)
		c.writeFrame(connectFrame(0, 60000, 0, nil))
		var length [4]byte
		if _, err := io.ReadFull(c.nc, length[:]); err != nil || length[3] != 37 {
			t.Errorf("length of the reply: got %v, %v", length, err)
		}
		wantSilence(t, c, 5*time.Second)

		s.Intercept(only(OpConnect, DropRequest))
		c = rawDial(t, s)
		c.writeFrame(connectFrame(0, 1000, 0, nil))
		wantClosed(t, c)

		s.Intercept(only(OpAuth, Hang))
		c = connected(t, s, time.Second)
		c.send(OpAuth, authBody("digest", "u:p"))
		c.send(OpPing, nil)
		wantSilence(t, c, 900*time.Millisecond)
		time.Sleep(200 * time.Millisecond)
		wantClosed(t, c) // the session was not heard of

		s.Intercept(only(OpAuth, Fail(CodeAuthFailed)))
		c = connected(t, s, time.Second)
		wantCode(t, "auth", c.call(OpAuth, authBody("digest", "u:p")), CodeAuthFailed)
		wantClosed(t, c)
	})
}

func TestPartitionLetsNothingThroughUntilHealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t)
		a, b := connected(t, s, 10*time.Second), connected(t, s, 10*time.Second)
		a.call(OpExists, watchBody("/seen", true))
		s.Partition(a.id)
		a.send(OpCreate, createBody("/a", "", openACL, 0))
		b.call(OpCreate, createBody("/seen", "", openACL, 0))
		wantSilence(t, a, time.Second)
		if exists(t, b, "/a") {
			t.Error("a request passed a partition")
		}
		s.Heal(a.id)
		_, event, err := a.receive()
		if event != "event 1 /seen" {
			t.Errorf("first after the partition: got %q, %v", event, err)
		}
		synctest.Wait()
		if !exists(t, b, "/a") {
			t.Error("a request sent during the partition did not arrive after it")
		}

		s.Partition(a.id)
		d := again(t, s, a, s.Addr())
		d.writeFrame(connectFrame(0, 10000, a.id, a.password))
		wantSilence(t, d, time.Second)
		s.Heal(a.id)
		if b, err := d.readFrame(); err != nil || len(b) != 37 {
			t.Errorf("handshake after the partition: got %x, %v", b, err)
		}
	})
}

func TestPartitionedSessionExpiresUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t)
		a, b := connected(t, s, time.Second), connected(t, s, time.Minute)
		a.call(OpCreate, createBody("/e", "", openACL, flagEphemeral))
		s.Partition(a.id)
		wantSilence(t, a, 5*time.Second)
		if exists(t, b, "/e") {
			t.Error("the ephemeral outlived its session")
		}
		s.Heal(a.id)
		wantClosed(t, a)
		d := again(t, s, a, s.Addr())
		if err := d.handshake(1000); err != nil || d.id != 0 || d.timeout != 0 {
			t.Errorf("handshake of an expired session: got session %#x, timeout %d, %v", d.id, d.timeout, err)
		}
		wantClosed(t, d)
	})
}

func TestAPartitionOfNoSessionKeepsNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t)
		s.Partition(0) // of a client that had no session when its ID was asked for
		connected(t, s, time.Second)
	})
}

func TestReconnectMovesTheSessionAndWrongPasswordDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t)
		a := connected(t, s, time.Second)
		b := again(t, s, a, s.Addr())
		if err := b.handshake(1000); err != nil || b.id != a.id {
			t.Fatalf("reconnect: got %#x, %v", b.id, err)
		}
		wantClosed(t, a)
		d := again(t, s, a, s.Addr())
		d.password = make([]byte, passwordLen)
		if err := d.handshake(1000); err != nil || d.id != 0 {
			t.Errorf("wrong password: got %#x, %v", d.id, err)
		}
		if got := s.Sessions(); !slices.Equal(got, []int64{a.id}) {
			t.Errorf("sessions: got %v", got)
		}
	})
}

func TestExpiredSessionsEphemeralsGoInOneTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t)
		a, b := connected(t, s, time.Second), connected(t, s, time.Minute)
		var zxid int64
		for _, path := range []string{"/e2", "/e1", "/e3"} {
			zxid = a.call(OpCreate, createBody(path, "", openACL, flagEphemeral)).zxid
			b.call(OpGetData, watchBody(path, true))
		}
		s.Expire(a.id)
		wantClosed(t, a)
		if got := b.call(OpSync, pathBody("/")).zxid; got != zxid+1 {
			t.Errorf("zxid: got %d, want %d", got, zxid+1)
		}
		want := []string{"event 2 /e2", "event 2 /e1", "event 2 /e3"}
		if !slices.Equal(b.events, want) {
			t.Errorf("events: got %q, want %q", b.events, want)
		}
	})
}

func TestChangeSessionGrantsAnotherOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t)
		a := connected(t, s, time.Second)
		s.ChangeSession(a.id)
		s.Disconnect(a.id)
		wantClosed(t, a)
		b := again(t, s, a, s.Addr())
		if err := b.handshake(1000); err != nil || b.id == a.id || b.id == 0 {
			t.Errorf("got session %#x, %v, want a new one, not %#x", b.id, err, a.id)
		}
	})
}

func TestLatencyDoesNotAddUpForPipelinedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t)
		c := connected(t, s, time.Minute)
		s.SetLatency(time.Second)
		start := time.Now()
		for range 10 {
			c.send(OpExists, watchBody("/", false))
		}
		for range 10 {
			if _, _, err := c.receive(); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("10 replies took %v, want 1s", took)
		}
	})
}

func TestFrozenAddressServesThePastUntilItsClientWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t, WithAddrs("127.0.0.1:0", "127.0.0.1:0"))
		leader := connected(t, s, time.Minute)
		nc, err := s.Dial("tcp", s.Addrs()[1], time.Second)
		if err != nil {
			t.Fatal(err)
		}
		f := newRaw(t, nc)
		if err := f.handshake(60000); err != nil {
			t.Fatal(err)
		}
		f.call(OpExists, watchBody("/a", true))
		s.Freeze(s.Addrs()[1])
		seen := leader.call(OpCreate, createBody("/a", "", openACL, 0)).zxid
		if exists(t, f, "/a") || len(f.events) > 0 {
			t.Errorf("a frozen address shows the present; events %q", f.events)
		}
		d := again(t, s, leader, s.Addrs()[1])
		d.zxid = seen
		d.writeFrame(connectFrame(seen, 60000, leader.id, leader.password))
		wantClosed(t, d) // it has seen more than this address has

		f.call(OpCreate, createBody("/b", "", openACL, 0))
		if !exists(t, f, "/a") || !slices.Equal(f.events, []string{"event 1 /a"}) {
			t.Errorf("after a write of its own: events %q", f.events)
		}
		leader.call(OpDelete, versionBody("/a", -1))
		if !exists(t, f, "/a") {
			t.Error("no longer frozen after a write")
		}
		f.call(OpSync, pathBody("/"))
		if exists(t, f, "/a") {
			t.Error("in the past after a sync")
		}
		leader.call(OpDelete, versionBody("/b", -1))
		s.Thaw(s.Addrs()[1])
		if exists(t, f, "/b") {
			t.Error("in the past after Thaw")
		}
		s.SetLag(s.Addrs()[1], time.Second)
		leader.call(OpCreate, createBody("/c", "", openACL, 0))
		if exists(t, f, "/c") {
			t.Error("no lag")
		}
		time.Sleep(1100 * time.Millisecond)
		if !exists(t, f, "/c") {
			t.Error("longer behind than the lag")
		}
	})
}

func TestStoppedAddressRefusesAndTheOthersServeItsSessions(t *testing.T) {
	s := Start(t, WithAddrs("127.0.0.1:0", "127.0.0.1:0"))
	c := connected(t, s, 10*time.Second)
	s.StopAddr(s.Addr())
	wantClosed(t, c)
	_, err := s.Dial("tcp", s.Addr(), time.Second)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial in memory: got %v", err)
	}
	if _, err = net.DialTimeout("tcp", s.Addr(), time.Minute); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial by TCP: got %v", err)
	}
	d := again(t, s, c, s.Addrs()[1])
	if err := d.handshake(10000); err != nil || d.id != c.id {
		t.Errorf("session on the other address: got %#x, %v", d.id, err)
	}
	s.RestartAddr(s.Addr())
	nc, err := net.DialTimeout("tcp", s.Addr(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	if _, err := s.Dial("tcp", "127.0.0.1:1", time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial of an address of nobody: got %v", err)
	}
}

func TestSequenceNumbersWrap(t *testing.T) {
	s := Start(t)
	c := connected(t, s, 10*time.Second)
	c.call(OpCreate, createBody("/p", "", openACL, 0))
	s.SetSequence("/p", math.MaxInt32-1)
	for _, want := range []string{"/p/n2147483646", "/p/n2147483647", "/p/n-2147483648", "/p/n-2147483647"} {
		r := c.call(OpCreate, createBody("/p/n", "", openACL, flagSequence))
		if got := r.d.string(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestEmptyContainersAndOldTTLNodesAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t, WithContainerCheck(10*time.Second))
		c := connected(t, s, time.Minute)
		_ = c.nc.SetDeadline(time.Time{})
		c.call(OpCreateContainer, createBody("/new", "", openACL, flagContainer))
		c.call(OpCreateContainer, createBody("/used", "", openACL, flagContainer))
		c.call(OpCreateTTL, appendInt64(createBody("/ttl", "", openACL, flagTTL), 15000))
		c.call(OpCreate, createBody("/used/x", "", openACL, 0))
		c.call(OpDelete, versionBody("/used/x", -1))
		time.Sleep(11 * time.Second)
		if !exists(t, c, "/new") || exists(t, c, "/used") || !exists(t, c, "/ttl") {
			t.Error("after the first check: want /new and /ttl only")
		}
		time.Sleep(10 * time.Second)
		if !exists(t, c, "/new") || exists(t, c, "/ttl") {
			t.Error("after the second check: want /new only")
		}
	})
}

func TestCountsTellWhatAPieceOfWorkCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t)
		c := connected(t, s, time.Minute)
		before := s.Counts()
		c.call(OpCreate, createBody("/a", "", openACL, flagEphemeral))
		c.call(OpGetData, watchBody("/a", true))
		c.call(OpGetChildren2, watchBody("/a", true))
		c.call(OpPing, nil)
		if got := s.Counts().Sub(before); got.Watches != 2 || got.Znodes != 1 || got.Pings != 1 || got.Total() != 3 {
			t.Errorf("got %+v", got)
		}
		c.call(OpDelete, versionBody("/a", -1))
		got := s.Counts().Sub(before)
		if got.Requests["create"] != 1 || got.Notifications != 1 || got.Watches != 0 || got.Znodes != 0 || got.Sessions != 0 {
			t.Errorf("got %+v", got)
		}
	})
}

func TestDumpShowsWhatIsThere(t *testing.T) {
	s := Start(t)
	c := connected(t, s, time.Minute)
	c.call(OpCreate, createBody("/a", "hello", openACL, flagEphemeral))
	c.call(OpGetChildren2, watchBody("/a", true))
	var b strings.Builder
	s.Dump(&b)
	for _, want := range []string{`/a czxid 2 version 0 ephemeral of`, `"hello"`, "watches children of /a", "sessions: 1"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, &b)
		}
	}
}

func TestTimeoutsAreNegotiatedAndClockSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t, WithSessionTimeouts(time.Second, time.Hour))
		for asked, want := range map[time.Duration]time.Duration{time.Millisecond: time.Second, time.Minute: time.Minute, 2 * time.Hour: time.Hour} {
			if c := connected(t, s, asked); c.timeout != int32(want.Milliseconds()) {
				t.Errorf("asked for %v: got %d ms, want %v", asked, c.timeout, want)
			}
		}
	})
}

func TestStopStopsTheClocksOfSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t)
		c := connected(t, s, time.Second)
		c.call(OpCreate, createBody("/e", "", openACL, flagEphemeral))
		s.Stop()
		time.Sleep(time.Hour)
		s.Restart()
		time.Sleep(900 * time.Millisecond)
		d := again(t, s, c, s.Addr())
		if err := d.handshake(1000); err != nil || d.id != c.id || !exists(t, d, "/e") {
			t.Errorf("after the restart: session %#x, %v", d.id, err)
		}
	})
}

func TestRestartListensOnTheSamePorts(t *testing.T) {
	s := Start(t, WithAddrs("127.0.0.1:0", "127.0.0.1:0"))
	addrs := s.Addrs()
	for range 3 {
		s.Stop()
		if _, err := net.DialTimeout("tcp", addrs[1], time.Minute); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial of a stopped server: got %v", err)
		}
		s.Restart()
		for _, addr := range addrs {
			nc, err := net.DialTimeout("tcp", addr, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			c := newRaw(t, nc)
			if err := c.handshake(1000); err != nil || c.id == 0 {
				t.Errorf("handshake after the restart: %v", err)
			}
		}
	}
	if got := s.Addrs(); !slices.Equal(got, addrs) {
		t.Errorf("addresses: got %q, want %q", got, addrs)
	}
}

func TestRecursiveWatchSeesWhatHappensBelow(t *testing.T) {
	s := Start(t)
	a, b := connected(t, s, time.Minute), connected(t, s, time.Minute)
	a.call(OpAddWatch, versionBody("/", 1))
	b.call(OpCreate, createBody("/x", "", openACL, 0))
	b.call(OpCreate, createBody("/x/y", "", openACL, 0))
	b.call(OpSetData, setDataBody("/x/y", "1", -1))
	b.call(OpDelete, versionBody("/x/y", -1))
	a.call(OpSync, pathBody("/"))
	want := []string{"event 1 /x", "event 1 /x/y", "event 3 /x/y", "event 2 /x/y"}
	if !slices.Equal(a.events, want) {
		t.Errorf("got %q, want %q", a.events, want)
	}
	wantCode(t, "checkWatches", a.call(OpCheckWatches, versionBody("/", 3)), CodeOK)
	wantCode(t, "checkWatches of another", b.call(OpCheckWatches, versionBody("/", 3)), CodeNoWatcher)
	wantCode(t, "removeWatches", a.call(OpRemoveWatches, versionBody("/", 3)), CodeOK)
	b.call(OpDelete, versionBody("/x", -1))
	a.call(OpSync, pathBody("/"))
	if len(a.events) != len(want) {
		t.Errorf("an event after the watch was removed: %q", a.events)
	}
	if n := s.Counts().Watches; n != 0 {
		t.Errorf("%d watches left", n)
	}
}

func TestWatchersWhoMayNotReadAreNotTold(t *testing.T) {
	s := Start(t)
	a, b := connected(t, s, time.Minute), connected(t, s, time.Minute)
	b.call(OpAuth, authBody("digest", "u:p"))
	a.call(OpExists, watchBody("/secret", true))
	b.call(OpCreate, createBody("/secret", "", []acl{{permAll, identity{"auth", ""}}}, 0))
	a.call(OpSync, pathBody("/"))
	if len(a.events) > 0 || s.Counts().Watches > 0 {
		t.Errorf("events %q, %d watches left", a.events, s.Counts().Watches)
	}
}
