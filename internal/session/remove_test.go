package session

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/go-zookeeper/zk"

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
