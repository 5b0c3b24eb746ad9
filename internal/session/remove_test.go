package session

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

// What has happened is told, not what else might have.
func TestADeletionWhoseOutcomeIsKnownIsToldThoughTheConnectionIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		srv.Stop()
		synctest.Wait()
		for range 100 {
			r := &Removal{reaper: inc.reaper(), Done: make(chan struct{}), Refused: make(chan struct{}), Err: zk.ErrNoNode}
			close(r.Done)
			if err := r.Result(); !errors.Is(err, ErrLost) {
				t.Fatalf("a znode that somebody else has deleted: %v", err)
			}
		}
		srv.Restart()
	})
}

// A release is answered that somebody else has deleted the znode, and the connection
// drops right behind the answer: whoever has read the answer has settled it before
// he reads on, and no other goroutine needs a turn for that.
func TestAnAnswerToADeletionIsToldThoughTheConnectionDropsRightBehindIt(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		srv.Stop()
		synctest.Wait()
		for range 100 {
			for code, want := range map[int32]error{0: nil, wire.CodeNoNode: ErrLost} {
				over := 0
				r := &Removal{reaper: inc.reaper(), path: "/m", kind: removeOwn, told: func() { over++ }, Done: make(chan struct{}), Refused: make(chan struct{})}
				r.answer(code, nil)
				r.done()
				if err := r.Result(); !errors.Is(err, want) || over != 1 {
					t.Fatalf("answered %d: %v, and the znode was said to be gone %d times", code, err, over)
				}
			}
		}
		srv.Restart()
	})
}
