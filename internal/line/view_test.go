package line

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

func TestMain(m *testing.M) { harness.Main(m) }

// open connects a session to srv.
func open(t *testing.T, srv *zktest.Server) *session.Manager {
	t.Helper()
	m := session.New(srv.Addrs(), "", session.Config{
		Timeout: harness.Timeout,
		ACL:     zk.WorldACL(zk.PermAll),
		Log:     slog.New(slog.DiscardHandler),
		Owner:   "test",
		Retry:   session.Backoff{Min: 10 * time.Millisecond, Max: 2 * time.Second, Factor: 2, Jitter: 0.5},
		Dialer:  srv.Dial,
		Lost:    func(session.LossReason, int64, time.Time) error { return session.ErrLost },
	})
	harness.Must(t, m.Connect(t.Context()))
	t.Cleanup(m.Close)
	return m
}

// mutexOf is the line of a Mutex at path.
func mutexOf(m *session.Manager, path string) *Line {
	l := New(m, path, func(guid, base string) string { return session.ProtectedName(guid, base) }, "lock-")
	l.Settled = true
	return &l
}

// A directory is deleted and made again, and its numbers begin again, beside a
// waiter who lags: he has yet to say that the first of the former has gone when
// the first of this one has the lock.
func TestOneWhoHasGoneWithAFormerDirectoryIsNotStruckOffThePresentOne(t *testing.T) {
	for _, late := range []string{"who has gone", "where he is"} {
		harness.VirtualTime(t, func(t *testing.T) {
			srv := zktest.Start(t)
			ours, theirs := open(t, srv), open(t, srv)
			inc, err := ours.Incarnation(t.Context())
			harness.Must(t, err)
			admin, err := theirs.Incarnation(t.Context())
			harness.Must(t, err)
			line := mutexOf(ours, "/m")

			// In the former directory: one of theirs, and the one of ours who will lag.
			_, _, err = mutexOf(theirs, "/m").Enter(t.Context(), admin, "lock-", nil)
			harness.Must(t, err)
			lags, roll, err := line.Enter(t.Context(), inc, "lock-", nil)
			harness.Must(t, err)
			former := viewOf(inc, "/m", line.Bases)
			defer former.leave()
			former.update(line.ranks(roll))
			dir := roll.Czxid()
			for _, name := range roll.Names() {
				harness.Must(t, admin.RemoveNow(t.Context(), "/m/"+name))
			}
			harness.Must(t, admin.RemoveNow(t.Context(), "/m"))

			// In the present one: theirs, who has the lock, and two of ours behind.
			holder, err := mutexOf(theirs, "/m").Acquire(t.Context(), "lock-", nil, Exclusive, nil)
			harness.Must(t, err)
			second, leave := context.WithCancel(t.Context())
			granted := make(chan error, 2)
			go func() {
				_, err := line.Acquire(second, "lock-", nil, Exclusive, nil)
				granted <- err
			}()
			synctest.Wait()
			var third *Claim
			go func() {
				var err error
				third, err = line.Acquire(t.Context(), "lock-", nil, Exclusive, nil)
				granted <- err
			}()
			synctest.Wait()
			if holder.Child.Seq != 0 || lags.Child.Seq != 1 {
				t.Fatalf("numbers %d and %d: the directory was not made anew", holder.Child.Seq, lags.Child.Seq)
			}

			v := viewOf(inc, "/m", line.Bases)
			defer v.leave()
			switch late {
			case "who has gone":
				v.gone(dir, spotOf(holder.Child)) // one of the same name, in the former
			case "where he is": // 1 is there, but it is another
				if n := v.place(dir, lags.Child, Child{}); n != 0 || v.nobodyAhead(dir, lags.Child) {
					t.Errorf("one of the former directory finds himself in the present one, behind %d", n)
				}
			}
			leave()
			if err := <-granted; !errors.Is(err, context.Canceled) {
				t.Fatalf("%v", err)
			}
			synctest.Wait()
			select {
			case err := <-granted:
				t.Fatalf("granted beside the holder: %v", err)
			default:
			}
			harness.Must(t, holder.GiveBack())
			harness.Must(t, <-granted)
			harness.Must(t, third.GiveBack())
		})
	}
}
