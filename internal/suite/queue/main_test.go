package queue

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

func TestMain(m *testing.M) { harness.Main(m) }

// The harness by short names.

var (
	longTests    = harness.Long
	bubble       = harness.Bubble
	within       = harness.Within
	must         = harness.Must
	wantErr      = harness.WantErr
	async        = harness.Async
	pendingStill = harness.PendingStill
	plain        = harness.Plain
	setACL       = harness.SetACL
	eventually   = harness.Eventually
	counted      = harness.Counted
	requests     = harness.Requests
	first        = harness.First
	oneByOne     = harness.OneByOne
	open         = suite.Open
	openAs       = suite.OpenAs
	anywhere     = suite.Anywhere
	childrenOf   = suite.ChildrenOf
)

// In a test in which days pass the sessions have long timeouts: each pings three
// times in its timeout, and with the usual one that is most of what such a test does.
var (
	longSession  = zsync.WithSessionTimeout(10 * time.Minute)
	longSessions = zktest.WithSessionTimeouts(40*time.Millisecond, time.Hour) // the server grants it
)

// sendAll sends vs in requests that are not too large.
func sendAll[T any](t *testing.T, q *zsync.Queue[T], vs []T) {
	t.Helper()
	suite.SendAll(t, q, vs)
}

// create makes a persistent znode, unless it is there.
func create(t testing.TB, s *zsync.Session, path string) {
	t.Helper()
	if _, err := s.Txn(t.Context(), &zk.CreateRequest{Path: path}); !errors.Is(err, zk.ErrNodeExists) {
		must(t, err)
	}
}

// remove deletes a znode.
func remove(t testing.TB, s *zsync.Session, path string) {
	t.Helper()
	_, err := s.Txn(t.Context(), &zk.DeleteRequest{Path: path, Version: -1})
	must(t, err)
}
