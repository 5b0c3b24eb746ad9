package session

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/zktest"
)

// A look finds what is ours. Right behind it the connection is replaced, and meanwhile
// another makes its own there: what is sent then has looked over the new connection.
func TestNothingIsSentToOnesOwnBehindALookOverAnotherConnection(t *testing.T) {
	for name, c := range map[string]func(version int32) call[struct{}]{
		"deletion": func(version int32) call[struct{}] { return deletion("/a", version) },
		"write": func(version int32) call[struct{}] {
			set := setCall("/a", []byte("mine"), version)
			return call[struct{}]{op: set.op, path: set.path, body: set.body}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				inc, other := live(t, s), live(t, open(t, srv))
				err := inc.CreateEphemeral(t.Context(), ours("/a", nil))
				must(t, err)
				inc.own.Delete("/a") // so that the first attempt looks
				looks := 0
				_, _, err = whileOurs(t.Context(), inc, "/a", func(ctx context.Context, path string) (*zk.Stat, error) {
					stat, err := inc.lookAtOwn(ctx, path)
					if looks++; looks == 1 {
						srv.Disconnect(s.ID())
						must(t, other.RemoveNow(t.Context(), "/a"))
						err := other.CreateEphemeral(t.Context(), ours("/a", []byte("another's")))
						must(t, err)
						synctest.Wait()
						must(t, inc.Connection(t.Context()))
					}
					return stat, err
				}, c)
				wantErr(t, err, zk.ErrNoNode)
				if data, _, err := other.Get(t.Context(), "/a"); string(data) != "another's" || err != nil || looks != 2 {
					t.Errorf("there is %q, %v, behind %d looks; want another's, and 2", data, err, looks)
				}
			})
		})
	}
}

func TestOnesOwnIsDeletedThoughTheServersRefuseThatForAWhile(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		inc := live(t, open(t, srv))
		must(t, inc.CreateEphemeral(t.Context(), ours("/a", nil)))
		var attempts atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpDelete && r.Path == "/a" && attempts.Add(1) <= 2 {
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		d := inc.Delete(&Deletion{Paths: []string{"/a"}, By: func() error { return inc.RemoveOwn("/a", "") }})
		<-d.Done
		if stat, err := inc.Exists(t.Context(), "/a"); err != nil || d.Err != nil || stat != nil {
			t.Errorf("%v; there is %+v, %v", d.Err, stat, err)
		}
	})
}
