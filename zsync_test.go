package zsync_test

import (
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/txn"
	"github.com/zsync/zsync/zktest"
)

func TestMain(m *testing.M) { harness.Main(m) }

// The harness by short names.

const testTimeout = harness.Timeout

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
	pause        = harness.Pause
	closedFunc   = harness.ClosedFunc
	wantCount    = suite.WantCount
	rollCall     = suite.RollCall
	arrive       = harness.Arrive
	first        = harness.First
	op           = harness.Op
	oneByOne     = harness.OneByOne
	seeds        = harness.EachSeed
	chaos        = harness.Chaos[*zsync.Session]
	standing     = harness.Standing
	open         = suite.Open
	openAt       = suite.OpenAt
	childrenOf   = suite.ChildrenOf
	openAs       = suite.OpenAs
	nap          = harness.Nap
	anywhere     = suite.Anywhere
	onServers    = suite.OnServers
)

// In a test in which days pass the sessions have long timeouts: each pings three
// times in its timeout, and with the usual one that is most of what such a test does.
var (
	longSession  = zsync.WithSessionTimeout(10 * time.Minute)
	longSessions = zktest.WithSessionTimeouts(40*time.Millisecond, time.Hour) // the server grants it
)

// What the library has as its defaults and limits.
const (
	defaultHandoffs = 16
	maxUnits        = 1000
)

// awaitLogs waits until the logs are deleted that transactions have left for the next.
func awaitLogs() { time.Sleep(txn.IdleTime + time.Second) }
