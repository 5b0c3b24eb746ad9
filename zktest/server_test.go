package zktest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/zsync/zsync/zktest"
)

func TestClientFindsWhatItWrote(t *testing.T) {
	s := zktest.Start(t)
	conn, events, err := zk.Connect([]string{s.Addr()}, time.Second, zk.WithLogger(silent{}))
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
