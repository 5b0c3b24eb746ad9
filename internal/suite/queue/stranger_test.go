package queue

import (
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// A stranger deletes znodes of a queue, or creates them.

// soon receives from ch within two session timeouts.
func soon[T any](t *testing.T, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(2 * harness.Timeout):
		t.Fatal("nothing came within two session timeouts")
	}
	return v
}

// deleteChildren deletes the children of a znode whose names begin with prefix.
func deleteChildren(t *testing.T, stranger *zk.Conn, dir, prefix string) (names []string) {
	t.Helper()
	for _, name := range harness.Children(t, stranger, dir) {
		if strings.HasPrefix(name, prefix) {
			must(t, stranger.Delete(dir+"/"+name, -1))
			names = append(names, name)
		}
	}
	if names == nil {
		t.Fatalf("%s has no child %s…", dir, prefix)
	}
	return names
}

func TestAnOnlyConsumerGetsItsElementAgainThoughItsMarkIsDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		must(t, zsync.NewQueue[int](open(t, srv), "/q").Send(t.Context(), 7))
		ch := zsync.NewQueue[int](open(t, srv), "/q").Deliveries(t.Context())
		lost := soon(t, ch)
		time.Sleep(time.Second)
		deleteChildren(t, plain(t, srv), "/q-live", "")
		must(t, soon(t, ch).Ack(t.Context()))
		wantErr(t, lost.Ack(t.Context()), zsync.ErrLost)
	})
}
