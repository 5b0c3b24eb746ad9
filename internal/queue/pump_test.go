package queue

import "testing"

func TestRoomForElementsIsNeverLessThanNone(t *testing.T) {
	for ahead := 1; ahead < 6; ahead++ {
		for offering := range 6 {
			for waiting := range 6 {
				for ready := range 12 {
					p := &pump{ahead: ahead, offering: offering, waiting: waiting, ready: make([]*item, ready)}
					if n := p.room(); n < 0 {
						t.Fatalf("ahead %d, offering %d, waiting %d, ready %d: room for %d", ahead, offering, waiting, ready, n)
					}
				}
			}
		}
	}
}
