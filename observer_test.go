package zsync

import (
	"testing"

	"github.com/zsync/zsync/internal/session"
)

// The kinds and states that are public are counted as the session counts its
// own, as one is made of the other by conversion.
func TestPublicKindsStatesAndReasonsAreThoseOfTheSession(t *testing.T) {
	for public, own := range map[EventKind]session.EventKind{
		Acquired: session.EventAcquired, GaveUp: session.EventGaveUp, Released: session.EventReleased, Lost: session.EventLost, Dead: session.EventDead,
		Connected: session.EventConnected, Suspended: session.EventSuspended, Reconnected: session.EventReconnected, Expired: session.EventExpired,
	} {
		if EventKind(own) != public {
			t.Errorf("%v is %d, in the session %d", public, public, own)
		}
	}
	for public, own := range map[LossReason]session.LossReason{
		LossExpired: session.LossExpired, LossCutOff: session.LossCutOff, LossPaused: session.LossPaused, LossReplaced: session.LossReplaced,
		LossDeleted: session.LossDeleted, LossClosed: session.LossClosed, LossSuspended: session.LossSuspended, LossGivenUp: session.LossGivenUp,
	} {
		if LossReason(own) != public {
			t.Errorf("%v is %d, in the session %d", public, public, own)
		}
	}
	for public, own := range map[State]session.State{
		StateConnecting: session.StateConnecting, StateConnected: session.StateConnected, StateSuspended: session.StateSuspended,
		StateExpired: session.StateExpired, StateClosed: session.StateClosed,
	} {
		if State(own) != public {
			t.Errorf("%v is %d, in the session %d", public, public, own)
		}
	}
}
