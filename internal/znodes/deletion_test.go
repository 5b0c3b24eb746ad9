package znodes

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

// What has happened is told, not what else might have.
func TestADeletionWhoseOutcomeIsKnownIsToldThoughTheConnectionIsGone(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		srv.Stop()
		synctest.Wait()
		for range 100 {
			r := &Deletion{inc: inc, Done: make(chan struct{}), Err: zk.ErrNoNode}
			close(r.Done)
			if err := r.Result(); !errors.Is(err, session.ErrLost) {
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
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		srv.Stop()
		synctest.Wait()
		for range 100 {
			for code, want := range map[int32]error{0: nil, wire.CodeNoNode: session.ErrLost} {
				over := 0
				r := &Deletion{inc: inc, Paths: []string{"/m"}, Then: func() { over++ }, Done: make(chan struct{})}
				request := r.request()
				request.Reply(code, nil)
				request.Finish()
				if err := r.Result(); !errors.Is(err, want) || over != 1 {
					t.Fatalf("answered %d: %v, and the znode was said to be gone %d times", code, err, over)
				}
			}
		}
		srv.Restart()
	})
}

// Three znodes are deleted in two attempts, as the servers refuse the deletion of the
// second at first. That one of them was missing is told if none of the attempts can have
// deleted it, and not otherwise.
func TestWhatIsDeletedInTwoAttemptsIsMissingOnlyIfNeitherHasDeletedIt(t *testing.T) {
	for name, c := range map[string]struct {
		stranger int           // deletes one before; -1: none
		txn      zktest.Action // befalls the transaction of the first attempt
		want     error
	}{
		"all are there":                  {-1, zktest.Fail(zktest.CodeNoAuth), nil},
		"the transaction has no answer":  {-1, zktest.DropReply, nil},
		"the first is gone, and refused": {0, zktest.Fail(zktest.CodeNoAuth), zk.ErrNoNode},
		"the first is gone":              {0, zktest.Pass, zk.ErrNoNode},
		"the second is gone":             {1, zktest.Pass, zk.ErrNoNode},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				inc := live(t, open(t, srv))
				paths := []string{"/d/1", "/d/2", "/d/3"}
				for _, path := range paths {
					err := CreateEphemeral(t.Context(), inc, ours(path, nil))
					if err != nil {
						t.Fatal(err)
					}
				}
				if c.stranger >= 0 {
					if err := RemoveNow(t.Context(), inc, paths[c.stranger]); err != nil {
						t.Fatal(err)
					}
				}
				srv.Intercept(func(q zktest.Request) zktest.Action {
					switch {
					case q.Op == zktest.OpMulti:
						return c.txn
					case q.Op == zktest.OpDelete && q.Path == paths[1]:
						return zktest.Fail(zktest.CodeNoAuth)
					}
					return zktest.Pass
				})
				d := Remove(inc, paths...)
				if err := d.Outcome(t.Context()); !errors.Is(err, zk.ErrNoAuth) {
					t.Fatalf("refused, and the error is %v", err)
				}
				srv.Intercept(nil)
				if <-d.Done; !errors.Is(d.Err, c.want) {
					t.Errorf("in the end: %v, want %v", d.Err, c.want)
				}
				if names, _, err := inc.Children(t.Context(), "/d"); err != nil || len(names) > 0 {
					t.Errorf("left: %q, %v", names, err)
				}
			})
		})
	}
}

// A Deletion is repeated, and no znode gets the name again.
func TestADeletionDoesNoHarmWhenItIsCarriedOutLate(t *testing.T) {
	for _, paths := range [][]string{{"/x"}, {"/x", "/y"}} {
		if conn.Harms((&Deletion{Paths: paths}).request()) {
			t.Errorf("the deletion of %v does harm", paths)
		}
	}
}
