package zsync_test

import (
	"testing"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/suite"
)

func TestMain(m *testing.M) {
	harness.WaitTogether(6)
	harness.Main(m)
}

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
	requests     = harness.Requests
	pause        = harness.Pause
	wantCount    = suite.WantCount
	rollCall     = suite.RollCall
	arrive       = harness.Arrive
	first        = harness.First
	op           = harness.Op
	oneByOne     = harness.OneByOne
	seeds        = harness.EachSeed
	chaos        = harness.Chaos[*zsync.Session]
	open         = suite.Open
	longSession  = suite.LongSession
	longSessions = suite.LongSessions
	openAt       = suite.OpenAt
	childrenOf   = suite.ChildrenOf
	anywhere     = suite.Anywhere
	requestsOf   = suite.RequestsOf
	eachRequest  = suite.EachRequest
	multisOf     = suite.MultisOf
	afterEvent   = suite.AfterEvent
	lossOf       = suite.LossOf
	noon         = suite.Noon
	quickly      = suite.Quickly
	awaitLogs    = suite.AwaitLogs

	live     = inside.Live
	leasesOf = inside.Leases
)

type timetable = suite.Timetable

// What the library has as its defaults and limits.
const (
	defaultHandoffs = suite.DefaultHandoffs
	maxUnits        = suite.MaxUnits
)
