package zsync_test

import (
	"testing"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/session"
)

// The kinds and states that are public are counted as the session counts its
// own, as one is made of the other by conversion.
func TestPublicKindsStatesAndReasonsAreThoseOfTheSession(t *testing.T) {
	for public, own := range map[zsync.EventKind]session.EventKind{
		zsync.EventAcquired: session.EventAcquired, zsync.EventGaveUp: session.EventGaveUp, zsync.EventReleased: session.EventReleased, zsync.EventLost: session.EventLost, zsync.EventDead: session.EventDead,
		zsync.EventConnected: session.EventConnected, zsync.EventSuspended: session.EventSuspended, zsync.EventReconnected: session.EventReconnected, zsync.EventExpired: session.EventExpired,
		zsync.EventStarted: session.EventStarted, zsync.EventEnded: session.EventEnded, zsync.EventJoined: session.EventJoined, zsync.EventLeft: session.EventLeft,
	} {
		if zsync.EventKind(own) != public {
			t.Errorf("%v is %d, in the session %d", public, public, own)
		}
	}
	for public, own := range map[zsync.LossReason]session.LossReason{
		zsync.LossExpired: session.LossExpired, zsync.LossCutOff: session.LossCutOff, zsync.LossPaused: session.LossPaused, zsync.LossReplaced: session.LossReplaced,
		zsync.LossDeleted: session.LossDeleted, zsync.LossClosed: session.LossClosed, zsync.LossSuspended: session.LossSuspended, zsync.LossGivenUp: session.LossGivenUp,
	} {
		if zsync.LossReason(own) != public {
			t.Errorf("%v is %d, in the session %d", public, public, own)
		}
	}
	for public, own := range map[zsync.State]session.State{
		zsync.StateConnecting: session.StateConnecting, zsync.StateConnected: session.StateConnected, zsync.StateSuspended: session.StateSuspended,
		zsync.StateExpired: session.StateExpired, zsync.StateClosed: session.StateClosed,
	} {
		if zsync.State(own) != public {
			t.Errorf("%v is %d, in the session %d", public, public, own)
		}
	}
}
