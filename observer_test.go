package zsync

import "testing"

// The kinds and states that are public are counted as the session counts its
// own, as one is made of the other by conversion.
func TestPublicKindsStatesAndReasonsAreThoseOfTheSession(t *testing.T) {
	for public, own := range map[EventKind]eventKind{
		Acquired: eventAcquired, GaveUp: eventGaveUp, Released: eventReleased, Lost: eventLost, Dead: eventDead,
		Connected: eventConnected, Suspended: eventSuspended, Reconnected: eventReconnected, Expired: eventExpired,
	} {
		if EventKind(own) != public {
			t.Errorf("%v is %d, in the session %d", public, public, own)
		}
	}
	for public, own := range map[LossReason]lossReason{
		LossExpired: lossExpired, LossCutOff: lossCutOff, LossPaused: lossPaused, LossReplaced: lossReplaced,
		LossDeleted: lossDeleted, LossClosed: lossClosed, LossSuspended: lossSuspended, LossGivenUp: lossGivenUp,
	} {
		if LossReason(own) != public {
			t.Errorf("%v is %d, in the session %d", public, public, own)
		}
	}
	for public, own := range map[State]state{
		StateConnecting: stateConnecting, StateConnected: stateConnected, StateSuspended: stateSuspended,
		StateExpired: stateExpired, StateClosed: stateClosed,
	} {
		if State(own) != public {
			t.Errorf("%v is %d, in the session %d", public, public, own)
		}
	}
}
