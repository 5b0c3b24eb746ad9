package lag

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// A claim is held up on its way to the leader, and the servers refuse the next attempt because of the ACL of the
// bucket. If they carried out the first attempt later, nobody would deliver the elements while the session lives. Two
// mechanisms prevent that, and each is enough here: the claimant writes its mark (claimant.fence), and the session does
// not return to the server too soon (trail).
func TestAClaimThatWasRefusedIsNotCarriedOutLater(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		const timeout = 10 * time.Second
		ctx := t.Context()
		e := zktest.StartEnsemble(t, 3, zktest.WithTick(2*time.Second), zktest.WithSessionTimeouts(timeout, timeout))
		e.SetBacklog(time.Millisecond)
		connect := func(dial zk.Dialer) *zsync.Session {
			s, err := zsync.Connect(ctx, e.Addr(), zsync.WithDialer(dial), zsync.WithSessionTimeout(timeout))
			harness.Must(t, err)
			t.Cleanup(func() { s.Close() })
			return s
		}
		route := harness.NewRoute(e, 0)
		a, b := connect(route.Dial), connect(harness.NewRoute(e, 2).Dial)
		qa, qb := zsync.NewQueue[int](a, "/q"), zsync.NewQueue[int](b, "/q")
		harness.Must(t, qb.Send(ctx, -1, 0, 1, 2))
		d, err := qa.Receive(ctx) // from now on, there is a mark
		harness.Must(t, err)
		harness.Must(t, d.Ack(ctx))
		plain, _, err := zk.Connect(e.Addrs()[1:2], timeout, zk.WithDialer(e.Dial), zk.WithLogInfo(false))
		harness.Must(t, err)
		defer plain.Close()
		buckets := harness.Children(t, plain, "/q")
		permit := func(perms int32) {
			for _, name := range buckets {
				if strings.HasPrefix(name, "b-") {
					_, err := plain.SetACL("/q/"+name, zk.WorldACL(perms|zk.PermAdmin), -1)
					harness.Must(t, err)
				}
			}
		}
		id, claims := a.ID(), 0
		e.Server(0).Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == id && r.Op == zktest.OpMulti {
				claims++
			}
			return zktest.Pass
		})

		e.Cut(0, 2)
		done := make(chan error, 1)
		ctxA, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		go func() { done <- second(qa.Receive(ctxA)) }()
		time.Sleep(50 * time.Millisecond)
		permit(zk.PermRead)
		route.Move(1)
		harness.WantErr(t, <-done, context.DeadlineExceeded)
		permit(zk.PermAll)
		route.Move(0)
		time.Sleep(100 * time.Millisecond)
		e.Heal(0, 2)
		time.Sleep(time.Second)
		if claims == 0 {
			t.Fatal("no claim was held up")
		}
		for want := range 3 {
			ctx, cancel := context.WithTimeout(ctx, timeout/4)
			defer cancel()
			d, err := qb.Receive(ctx)
			harness.Must(t, err)
			if d.Value != want {
				t.Errorf("received %d, want %d", d.Value, want)
			}
		}
		if a.State() == zsync.StateExpired || a.ID() != id {
			t.Errorf("the session is %v, and %x after %x", a.State(), a.ID(), id)
		}
	})
}
