package zktest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/zsync/zsync/zktest"
)

var open = zk.WorldACL(zk.PermAll)

// inOrder is a zk.HostProvider that hands out the servers in order, without
// the shuffle and the look-ups of go-zookeeper's own. The client pauses for a
// second whenever all have refused.
type inOrder struct {
	servers []string
	next    int
	tries   int
}

func (h *inOrder) Init(servers []string) error { h.servers = servers; return nil }
func (h *inOrder) Len() int                    { return len(h.servers) }
func (h *inOrder) Connected()                  { h.tries = 0 }
func (h *inOrder) Next() (string, bool) {
	server := h.servers[h.next%len(h.servers)]
	pause := h.tries > 0 && h.tries%len(h.servers) == 0
	h.next++
	h.tries++
	return server, pause
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// dial connects go-zookeeper to the server in memory and waits for its session.
func dial(t testing.TB, s *zktest.Server, timeout time.Duration) *zk.Conn {
	t.Helper()
	return dialAddrs(t, s, timeout, s.Addr())
}

func dialAddrs(t testing.TB, s *zktest.Server, timeout time.Duration, addrs ...string) *zk.Conn {
	t.Helper()
	conn, events, err := zk.Connect(addrs, timeout, zk.WithDialer(s.Dial), zk.WithLogger(silent{}),
		zk.WithHostProvider(&inOrder{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	for ev := range events {
		if ev.State == zk.StateHasSession {
			break
		}
	}
	return conn
}

func create(t testing.TB, conn *zk.Conn, path, data string, flags int32) string {
	t.Helper()
	got, err := conn.Create(path, []byte(data), flags, open)
	if err != nil {
		t.Fatalf("create %s: %v", path, err)
	}
	return got
}

func wantErr(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func wantEvent(t testing.TB, ch <-chan zk.Event, kind zk.EventType, path string) {
	t.Helper()
	select {
	case ev := <-ch:
		if ev.Type != kind || ev.Path != path {
			t.Errorf("got event %v %s, want %v %s", ev.Type, ev.Path, kind, path)
		}
	case <-time.After(time.Minute):
		t.Errorf("no event, want %v %s", kind, path)
	}
}

func wantNoEvent(t testing.TB, ch <-chan zk.Event) {
	t.Helper()
	select {
	case ev := <-ch:
		t.Errorf("got event %v %s, want none", ev.Type, ev.Path)
	default:
	}
}

// eventually waits for up to 10 s for f to report true.
func eventually(f func() bool) bool {
	for range 1000 {
		if f() {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}
