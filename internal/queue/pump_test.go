package queue

import (
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

func TestRoomForElementsIsNeverLessThanNone(t *testing.T) {
	for ahead := 1; ahead < 6; ahead++ {
		for offering := range 6 {
			for waiting := range 6 {
				for ready := range 12 {
					p := &pump{ahead: ahead, offering: offering, waiting: waiting, ready: make([]*item, ready)}
					if n := p.roomLocked(); n < 0 {
						t.Fatalf("ahead %d, offering %d, waiting %d, ready %d: room for %d", ahead, offering, waiting, ready, n)
					}
				}
			}
		}
	}
}

func TestBucketKnowsItsLastNumberHoweverManyItHasGiven(t *testing.T) {
	for _, made := range []int64{0, 1, 1000, 1<<30 - 1, 1 << 30, 1<<30 + 1, 1<<31 - 1} {
		for _, there := range []int64{0, min(made, 1), min(made, 30000)} {
			stat := &zk.Stat{Cversion: int32(2*made - there), NumChildren: int32(there)}
			if got := newLot(bucket{delayed: true}, session.Node{Stat: stat}).last; int64(got) != made-1 {
				t.Errorf("with %d made and %d there: the last is %d", made, there, got)
			}
		}
	}
}
