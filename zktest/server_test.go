package zktest_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/zsync/zsync/zktest"
)

func TestClientFindsWhatItWrote(t *testing.T) {
	s := zktest.Start(t)
	byTCP := func(network, addr string, _ time.Duration) (net.Conn, error) { // by itself it has a second for that
		return net.DialTimeout(network, addr, time.Minute)
	}
	conn, events, err := zk.Connect([]string{s.Addr()}, time.Minute, zk.WithDialer(byTCP), zk.WithLogger(silent{}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		for range events {
		}
	}()
	create(t, conn, "/a", "x", 0)
	if got := create(t, conn, "/a/n-", "", zk.FlagSequence); got != "/a/n-0000000000" {
		t.Errorf("first sequential node: got %s", got)
	}
	create(t, conn, "/a/e", "", zk.FlagEphemeral)
	data, stat, err := conn.Get("/a")
	if err != nil || string(data) != "x" || stat.NumChildren != 2 || stat.Cversion != 2 {
		t.Errorf("get /a: got %q, %+v, %v", data, stat, err)
	}
	_, err = conn.Set("/a", []byte("y"), 5)
	wantErr(t, "set with a wrong version", err, zk.ErrBadVersion)
	wantErr(t, "delete with children", conn.Delete("/a", -1), zk.ErrNotEmpty)
	_, err = conn.Create("/a/e/below", nil, 0, open)
	wantErr(t, "create below an ephemeral", err, zk.ErrNoChildrenForEphemerals)
	_, err = conn.Create("/no/parent", nil, 0, open)
	wantErr(t, "create without a parent", err, zk.ErrNoNode)
	ok, _, gone, err := conn.ExistsW("/a/e")
	if !ok || err != nil {
		t.Fatalf("exists: %v, %v", ok, err)
	}
	if err := conn.Delete("/a/e", -1); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, gone, zk.EventNodeDeleted, "/a/e")
}

func TestSilentSessionExpiresOnTheTickAfterItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := zktest.Start(t, zktest.WithTick(100*time.Millisecond))
		a := dial(t, s, time.Second)
		b := dial(t, s, time.Second)
		create(t, a, "/e", "", zk.FlagEphemeral)
		_, _, gone, err := b.ExistsW("/e")
		if err != nil {
			t.Fatal(err)
		}
		s.Partition(a.SessionID())
		start := time.Now()
		wantEvent(t, gone, zk.EventNodeDeleted, "/e")
		if took := time.Since(start); took < 600*time.Millisecond || took > 1100*time.Millisecond {
			t.Errorf("expired after %v, want between 2/3 s and 1.1 s", took)
		}
		s.Heal(a.SessionID())
	})
}

func TestStoppedServerRefusesAndRestartsWithTreeAndSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := zktest.Start(t)
		conn := dial(t, s, time.Second)
		id := conn.SessionID()
		create(t, conn, "/e", "", zk.FlagEphemeral)
		s.Stop()
		if _, err := s.Dial("tcp", s.Addr(), time.Second); err == nil {
			t.Error("dial of a stopped server succeeded")
		}
		s.RestartAddr(s.Addr()) // takes effect at the restart
		if _, err := s.Dial("tcp", s.Addr(), time.Second); err == nil {
			t.Error("a stopped server accepts connections at an address")
		}
		time.AfterFunc(3*time.Second, s.Restart)
		time.Sleep(time.Second)
		if !eventually(func() bool { return conn.State() == zk.StateHasSession }) {
			t.Fatal("no session after the restart")
		}
		if conn.SessionID() != id {
			t.Errorf("session %#x after the restart, want %#x", conn.SessionID(), id)
		}
		_, stat, err := conn.Get("/e")
		if err != nil || stat.EphemeralOwner != id {
			t.Errorf("get /e: got %+v, %v", stat, err)
		}
	})
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	for want, opt := range map[string]zktest.Option{
		`WithAddr: the address "" is not host:port`:                  zktest.WithAddr(""),
		`WithAddrs: the address "localhost" is not host:port`:        zktest.WithAddrs("127.0.0.1:0", "localhost"),
		"WithAddrs: no address is given":                             zktest.WithAddrs(),
		"WithTick: the tick is 0s":                                   zktest.WithTick(0),
		"WithSessionTimeouts: the timeouts are 10ns and 5ns":         zktest.WithSessionTimeouts(10, 5),
		"WithSessionTimeouts: the timeouts are 0s and 0s":            zktest.WithSessionTimeouts(0, 0),
		"WithMaxBuffer: the longest packet is 0 bytes":               zktest.WithMaxBuffer(0),
		"WithContainerCheck: the interval is -1ns; want more than 0": zktest.WithContainerCheck(-1),
	} {
		got := panics(func() { _ = zktest.NewServer(opt).Close() })
		if !strings.HasPrefix(got, "zktest: "+want) {
			t.Errorf("got the panic %q, want %q", got, "zktest: "+want)
		}
	}
}

func TestServerWorksOnAfterAPanicOverAnUnknownAddress(t *testing.T) {
	s := zktest.NewServer()
	for name, f := range map[string]func(){
		"StopAddr":    func() { s.StopAddr("127.0.0.1:1") },
		"RestartAddr": func() { s.RestartAddr("127.0.0.1:1") },
		"SetLag":      func() { s.SetLag("127.0.0.1:1", time.Second) },
		"Freeze":      func() { s.Freeze("127.0.0.1:1") },
		"Thaw":        func() { s.Thaw("127.0.0.1:1") },
		"SetSequence": func() { s.SetSequence("/none", 1) },
	} {
		if panics(f) == "" {
			t.Errorf("%s: no panic", name)
		}
		answered := make(chan struct{})
		go func() {
			s.Counts()
			close(answered)
		}()
		select {
		case <-answered:
		case <-time.After(time.Minute):
			t.Fatalf("the server hangs after %s", name)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// panics returns what f panics with.
func panics(f func()) (message string) {
	defer func() {
		if p := recover(); p != nil {
			message = fmt.Sprint(p)
		}
	}()
	f()
	return ""
}
