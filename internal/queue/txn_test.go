package queue

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// Each of the two elements fits into a Txn, but both together do not. The Txn fails, the client sends
// no request, and the element of the Txn stays in hand.
func TestATxnWithSendsThatAreTooLargeTogetherFailsAndWritesNothing(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t)
		m := open(t, srv)
		from, to := queueAt(m, "/from"), queueAt(m, "/to")
		send(t, from, "x")
		it := receive(t, from)
		large := &Batch{Data: [][]byte{make([]byte, 300<<10)}, To: to}
		synctest.Wait()
		before := srv.Counts()
		_, err := it.Txn(t.Context(), []any{large, large})
		harness.WantErr(t, err, session.ErrTooLarge)
		if n := srv.Counts().Sub(before).Total(); n != 0 {
			t.Errorf("the client has sent %d requests; want none", n)
		}
		_, err = it.Txn(t.Context(), []any{large, &zk.CreateRequest{Path: "/alone", Acl: zk.WorldACL(zk.PermAll)}})
		harness.Must(t, err)
		if n, err := to.Len(t.Context()); n != 1 || err != nil {
			t.Errorf("the other queue has %d elements, and the error is %v; want 1", n, err)
		}
	})
}

// The error of a Txn without room says which of the operations is at fault.
func TestATxnWithMoreElementsThanAQueueCanHaveNamesTheOperation(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		m := open(t, zktest.Start(t))
		from, to := queueAt(m, "/from"), queueAt(m, "/to")
		to.cfg.MaxLen = 1
		send(t, from, "x")
		_, err := receive(t, from).Txn(t.Context(), []any{ring("/from"), &Batch{Data: [][]byte{{1}, {2}}, To: to}})
		if harness.WantErr(t, err, session.ErrInvalid); !strings.HasPrefix(err.Error(), "operation 1: ") {
			t.Errorf("Txn has returned %v", err)
		}
	})
}
