package suite

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/txn"
	"github.com/zsync/zsync/zktest"
)

// This file has constants, znodes and errors that several suites use. Faults are the business of
// faults.go and route.go.

// Copies of defaults and limits of the library.
const (
	DefaultHandoffs = 16
	MaxUnits        = 1000
)

// LongSession and LongSessions give sessions a long timeout, for tests in which days pass. A
// session pings three times in each timeout. So with a short timeout, such a test would mostly
// process pings.
var (
	LongSession  = zsync.WithSessionTimeout(10 * time.Minute)
	LongSessions = zktest.WithSessionTimeouts(40*time.Millisecond, time.Hour) // makes the server grant the timeout of LongSession
)

// AwaitLogs waits until the logs of earlier transactions are deleted.
func AwaitLogs() { time.Sleep(txn.IdleTime + time.Second) }

// Noon is a scheduled time.
var Noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Quickly is the backoff of a schedule whose function has failed.
var Quickly = zsync.Backoff{Min: 10 * time.Millisecond, Max: 2 * time.Second}

// A Timetable is a list of scheduled times.
type Timetable []time.Time

func (l Timetable) Next(t time.Time) time.Time {
	for _, at := range l {
		if at.After(t) {
			return at
		}
	}
	return time.Time{}
}

// LossOf returns the reason of a loss, or 0 if err is none.
func LossOf(err error) zsync.LossReason {
	var lost *zsync.LostError
	if !errors.As(err, &lost) {
		return 0
	}
	return lost.Reason
}

// IsAnswer reports whether err is the error answer of a server, and not the error of a context.
func IsAnswer(err, answer error) bool {
	return errors.Is(err, answer) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// Exists returns the Stat of a znode, or nil if there is none.
func Exists(t testing.TB, s *zsync.Session, path string) *zk.Stat {
	t.Helper()
	_, stat, err := s.Get(t.Context(), path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	return stat
}

// Create creates a persistent znode.
func Create(t testing.TB, s *zsync.Session, path, data string) {
	t.Helper()
	_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: path, Data: []byte(data)})
	harness.Must(t, err)
}

// Delete deletes znodes, as an operator would.
func Delete(t testing.TB, s *zsync.Session, paths ...string) {
	t.Helper()
	for _, path := range paths {
		_, err := s.Txn(t.Context(), &zk.DeleteRequest{Path: path, Version: -1})
		harness.Must(t, err)
	}
}

// DeleteContender deletes the znode of the i'th contender at path, as an operator would.
func DeleteContender(t testing.TB, s *zsync.Session, path string, i int) {
	t.Helper()
	names := ChildrenOf(t, s, path)
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(a[len(a)-10:], b[len(b)-10:]) })
	Delete(t, s, path+"/"+names[i])
}

// WantEmptyRoom fails if znodes of the double barrier at /w remain, except its containers.
func WantEmptyRoom(t testing.TB, s *zsync.Session) {
	t.Helper()
	names := ChildrenOf(t, s, "/w/parties")
	for _, name := range ChildrenOf(t, s, "/w") {
		if name != "parties" {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
}

// SemaphoreForms has the ways to store permits: layouts, and a znode with a weight.
var SemaphoreForms = []struct {
	Name   string
	Limit  int64
	Unit   int64 // Limit is four times Unit
	Layout zsync.Layout
}{
	{"curator", 4, 1, zsync.LayoutCurator},
	{"heavy", 4000, 1000, zsync.LayoutCurator},
	{"kazoo", 4, 1, zsync.LayoutKazoo},
}
