package zktest_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/zsync/zsync/zktest"
)

func TestWatchesFireOnceByTheirKind(t *testing.T) {
	s := zktest.Start(t)
	a, b := dial(t, s, time.Minute), dial(t, s, time.Minute)
	_, _, created, err := a.ExistsW("/n")
	if err != nil {
		t.Fatal(err)
	}
	_, _, rootChanged, err := a.ChildrenW("/")
	if err != nil {
		t.Fatal(err)
	}
	create(t, b, "/n", "", 0)
	wantEvent(t, created, zk.EventNodeCreated, "/n")
	wantEvent(t, rootChanged, zk.EventNodeChildrenChanged, "/")

	_, _, data, err := a.GetW("/n")
	if err != nil {
		t.Fatal(err)
	}
	_, _, children, err := a.ChildrenW("/n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Set("/n", nil, -1); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, data, zk.EventNodeDataChanged, "/n")
	wantNoEvent(t, children)
	before := s.Counts()
	if _, _, data, err = a.GetW("/n"); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete("/n", -1); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, data, zk.EventNodeDeleted, "/n")
	wantEvent(t, children, zk.EventNodeDeleted, "/n")
	if got := s.Counts().Sub(before).Notifications; got != 1 {
		t.Errorf("%d notifications of one deletion, want 1", got)
	}
}

func TestFailedMultiTellsWhoseFaultAndChangesNothing(t *testing.T) {
	s := zktest.Start(t)
	conn := dial(t, s, time.Minute)
	create(t, conn, "/a", "old", 0)
	_, before, err := conn.Get("/a")
	if err != nil {
		t.Fatal(err)
	}
	results, err := conn.Multi(
		&zk.SetDataRequest{Path: "/a", Data: []byte("new"), Version: -1},
		&zk.CreateRequest{Path: "/a/child", Acl: open},
		&zk.DeleteRequest{Path: "/a/child", Version: -1},
		&zk.CreateRequest{Path: "/a", Acl: open},
		&zk.DeleteRequest{Path: "/a", Version: -1})
	wantErr(t, "multi", err, zk.ErrNodeExists)
	if len(results) != 5 || results[0].Error != nil || !errors.Is(results[3].Error, zk.ErrNodeExists) || results[4].Error == nil {
		t.Errorf("results: got %+v", results)
	}
	data, after, err := conn.Get("/a")
	if err != nil || string(data) != "old" || *after != *before {
		t.Errorf("after the failure: got %q, %+v, %v, want %+v", data, after, err, before)
	}

	results, err = conn.Multi(
		&zk.CreateRequest{Path: "/a/n-", Acl: open, Flags: zk.FlagSequence},
		&zk.SetDataRequest{Path: "/a", Data: []byte("new"), Version: 0},
		&zk.CheckVersionRequest{Path: "/a", Version: 1})
	if err != nil || results[0].String != "/a/n-0000000000" || results[1].Stat.Version != 1 {
		t.Errorf("multi: got %+v, %v", results, err)
	}
}

func TestACLsAreEnforced(t *testing.T) {
	s := zktest.Start(t)
	owner, other := dial(t, s, time.Minute), dial(t, s, time.Minute)
	if err := owner.AddAuth("digest", []byte("user:secret")); err != nil {
		t.Fatal(err)
	}
	if _, err := owner.Create("/mine", nil, 0, zk.AuthACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := owner.Get("/mine"); err != nil {
		t.Errorf("get by the owner: %v", err)
	}
	_, _, err := other.Get("/mine")
	wantErr(t, "get by another", err, zk.ErrNoAuth)
	_, err = other.Create("/mine/x", nil, 0, open)
	wantErr(t, "create by another", err, zk.ErrNoAuth)
	_, err = other.Create("/x", nil, 0, zk.AuthACL(zk.PermAll))
	wantErr(t, "auth without any", err, zk.ErrInvalidACL)
	acl, _, err := owner.GetACL("/mine")
	if want := zk.DigestACL(zk.PermAll, "user", "secret"); err != nil || !slices.Equal(acl, want) {
		t.Errorf("got ACL %v, %v, want %v", acl, err, want)
	}
}

func TestWatchMissedWhileAwayFiresAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := zktest.Start(t)
		a, b := dial(t, s, 10*time.Second), dial(t, s, 10*time.Second)
		create(t, b, "/a", "", 0)
		_, _, data, err := a.GetW("/a")
		if err != nil {
			t.Fatal(err)
		}
		_, _, exist, err := a.ExistsW("/b")
		if err != nil {
			t.Fatal(err)
		}
		_, _, children, err := a.ChildrenW("/")
		if err != nil {
			t.Fatal(err)
		}
		_, _, kept, err := a.ExistsW("/c")
		if err != nil {
			t.Fatal(err)
		}
		id := a.SessionID()
		s.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpConnect && r.Session == id {
				return zktest.Delay(time.Second) // while b changes things
			}
			return zktest.Pass
		})
		s.Disconnect(id)
		if _, err := b.Set("/a", nil, -1); err != nil {
			t.Fatal(err)
		}
		create(t, b, "/b", "", 0)
		time.Sleep(5 * time.Second)
		wantEvent(t, data, zk.EventNodeDataChanged, "/a")
		wantEvent(t, exist, zk.EventNodeCreated, "/b")
		wantEvent(t, children, zk.EventNodeChildrenChanged, "/")
		wantNoEvent(t, kept)
		create(t, b, "/c", "", 0)
		wantEvent(t, kept, zk.EventNodeCreated, "/c")
		if a.SessionID() != id {
			t.Errorf("session changed from %#x to %#x", id, a.SessionID())
		}
	})
}

func TestClientFailsOverBetweenAddressesWithItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := zktest.Start(t, zktest.WithAddrs("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"))
		conn := dialAddrs(t, s, 10*time.Second, s.Addrs()...)
		id := conn.SessionID()
		create(t, conn, "/e", "", zk.FlagEphemeral)
		for range 4 {
			at := conn.Server()
			s.StopAddr(at)
			time.Sleep(2 * time.Second)
			if conn.State() != zk.StateHasSession || conn.SessionID() != id || conn.Server() == at {
				t.Fatalf("after %s went: %v with session %#x at %s", at, conn.State(), conn.SessionID(), conn.Server())
			}
			s.RestartAddr(at)
		}
		if ok, _, err := conn.Exists("/e"); !ok {
			t.Errorf("the ephemeral is gone: %v", err)
		}
	})
}

func TestClientLearnsThatItsSessionHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := zktest.Start(t)
		conn, events, err := zk.Connect([]string{s.Addr()}, time.Second, zk.WithDialer(s.Dial), zk.WithLogger(silent{}))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		expired := false
		for ev := range events {
			switch {
			case ev.State == zk.StateExpired:
				expired = true
			case ev.State == zk.StateHasSession && expired:
				return
			case ev.State == zk.StateHasSession:
				s.Expire(conn.SessionID())
			}
		}
	})
}

// No reply may show a change before the notification of it. The watcher reads
// as fast as it can while another client writes; whenever a read shows a new
// version, the event of the watch before it must be there.
func TestEventComesBeforeAnyReplyThatShowsTheChange(t *testing.T) {
	s := zktest.Start(t)
	watcher, writer := dial(t, s, time.Minute), dial(t, s, time.Minute)
	create(t, writer, "/a", "", 0)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 300 {
			if _, err := writer.Set("/a", nil, -1); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for {
		_, stat, changed, err := watcher.GetW("/a")
		if err != nil {
			t.Fatal(err)
		}
		seen := stat.Version
		if seen == 300 {
			break
		}
		for stat.Version == seen {
			if _, stat, err = watcher.Get("/a"); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-changed:
		default:
			t.Fatalf("version %d was read before the event of the change of version %d", stat.Version, seen)
		}
	}
	wg.Wait()
}

func TestHeavyUseByManyClientsAddsUp(t *testing.T) {
	s := zktest.Start(t)
	const clients, rounds = 8, 50
	first := dial(t, s, time.Minute)
	create(t, first, "/q", "", 0)
	var wg sync.WaitGroup
	for range clients {
		conn := dial(t, s, time.Minute)
		wg.Go(func() {
			for range rounds {
				path, err := conn.Create("/q/n-", nil, zk.FlagEphemeral|zk.FlagSequence, open)
				if err != nil {
					t.Error(err)
					return
				}
				if err := conn.Delete(path, -1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	_, stat, err := first.Exists("/q")
	if err != nil || stat.Cversion != 2*clients*rounds || stat.NumChildren != 0 {
		t.Errorf("got %+v, %v", stat, err)
	}
}

func TestCloseWaitsForEveryGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := zktest.NewServer()
		for range 5 {
			dial(t, s, time.Second)
		}
		entered, release := make(chan struct{}, 1), make(chan struct{})
		s.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpPing {
				select {
				case entered <- struct{}{}:
				default:
				}
				<-release
			}
			return zktest.Pass
		})
		<-entered
		closed := make(chan struct{})
		go func() {
			_ = s.Close()
			close(closed)
		}()
		time.Sleep(time.Second)
		select {
		case <-closed:
			t.Error("closed while a function still runs")
		default:
		}
		close(release)
		<-closed
		if _, err := s.Dial("tcp", s.Addr(), time.Second); err == nil {
			t.Error("dial of a closed server succeeded")
		}
		_ = s.Close()
	})
}
