package znodes

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/zktest"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
)

// A look finds what is ours. Right behind it the connection is replaced, and meanwhile
// another makes its own there: what is sent then has looked over the new connection.
func TestNothingIsSentToOnesOwnBehindALookOverAnotherConnection(t *testing.T) {
	for name, c := range map[string]func(version int32) session.Call[struct{}]{
		"deletion": func(version int32) session.Call[struct{}] { return session.DeleteCall("/a", version) },
		"write": func(version int32) session.Call[struct{}] {
			set := session.SetCall("/a", []byte("mine"), version)
			return session.Call[struct{}]{Op: set.Op, Path: set.Path, Body: set.Body}
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				inc, other := live(t, s), live(t, open(t, srv))
				err := CreateEphemeral(t.Context(), inc, ours("/a", nil))
				harness.Must(t, err)
				of(inc).own.Delete("/a") // so that the first attempt looks
				looks := 0
				_, _, _, err = whileOurs(t.Context(), inc, "/a", func(ctx context.Context, inc *session.Incarnation, path string) (*zk.Stat, error) {
					stat, err := lookAtOwn(ctx, inc, path)
					if looks++; looks == 1 {
						srv.Disconnect(s.SessionID())
						harness.Must(t, RemoveNow(t.Context(), other, "/a"))
						err := CreateEphemeral(t.Context(), other, ours("/a", []byte("another's")))
						harness.Must(t, err)
						synctest.Wait()
						harness.Must(t, second(inc.OpenConn(t.Context())))
					}
					return stat, err
				}, c)
				harness.WantErr(t, err, zk.ErrNoNode)
				if data, _, err := other.Get(t.Context(), "/a"); string(data) != "another's" || err != nil || looks != 2 {
					t.Errorf("there is %q, %v, behind %d looks; want another's, and 2", data, err, looks)
				}
			})
		})
	}
}

// The reply to a write of ours has come. Before the writer reads on, another client deletes our znode and makes its own, of
// the same version. Then a create of ours is given up: it leaves the other's znode alone.
func TestACreateThatIsGivenUpSparesAnothersZnodeThoughAWriteEndsLate(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc, other := live(t, s), live(t, open(t, srv))
		harness.Must(t, CreateEphemeral(t.Context(), inc, ours("/a", nil)))
		gone := harness.Async(func() error { return AwaitOwnGone(t.Context(), inc, "/a") })
		synctest.Wait()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpCreate && r.Session == s.SessionID() {
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		asked := false
		late := harness.Asking(t.Context(), func() { // the write was sent
			if synctest.Wait(); !asked {
				asked = true
				harness.Must(t, RemoveNow(t.Context(), other, "/a"))
				harness.Must(t, CreateEphemeral(t.Context(), other, ours("/a", nil)))
				harness.Must(t, SetOwn(t.Context(), other, "/a", []byte("another's")))
				harness.Must(t, <-gone)
			}
		})
		harness.Must(t, SetOwn(late, inc, "/a", nil))
		c := ours("/a", nil)
		harness.WantErr(t, CreateEphemeral(harness.Within(t, time.Second/2), inc, c), context.DeadlineExceeded)
		<-c.Undo.Done
		if data, _, err := other.Get(t.Context(), "/a"); string(data) != "another's" || err != nil {
			t.Errorf("there is %q, %v; want another's", data, err)
		}
	})
}

func TestOnesOwnIsDeletedThoughTheServersRefuseThatForAWhile(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		inc := live(t, open(t, srv))
		harness.Must(t, CreateEphemeral(t.Context(), inc, ours("/a", nil)))
		var attempts atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpDelete && r.Path == "/a" && attempts.Add(1) <= 2 {
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		d := Delete(inc, &Deletion{Paths: []string{"/a"}, By: func() error { return RemoveOwn(inc, "/a", "") }})
		<-d.Done
		if stat, err := inc.Exists(t.Context(), "/a"); err != nil || d.Err != nil || stat != nil {
			t.Errorf("%v; there is %+v, %v", d.Err, stat, err)
		}
	})
}

func TestCase08AWaitForTheEndOfOnesOwnThatIsCancelledLeavesItsWatch(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		inc := live(t, open(t, srv))
		harness.Must(t, CreateEphemeral(t.Context(), inc, ours("/ours", nil)))
		harness.WantErr(t, AwaitOwnGone(harness.Within(t, time.Second), inc, "/ours"), context.DeadlineExceeded)
		if len(inc.Watches.All()) == 0 {
			t.Error("it has set no watch: the test shows nothing")
		}
		for _, w := range inc.Watches.All() {
			if waiters := inc.Watches.State(w).Waiters; waiters > 0 {
				t.Errorf("the watch %v has %d waiters", w.Key, waiters)
			}
		}
	})
}
