package queue

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// Servers since 3.8.4 and 3.9.2 conceal even the Stat of a znode that the client may not read.

func TestStatsCountsAnElementThatTheServersConceal(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1, 2, 3))
		bucket := "/q/" + childrenOf(t, s, "/q")[0]
		setACL(t, srv, bucket+"/e-0000000000", zk.WorldACL(zk.PermAdmin))
		st, err := q.Stats(t.Context())
		if err != nil || st.Ready != 3 || st.Oldest.IsZero() {
			t.Errorf("%+v, %v", st, err)
		}
		i := 0
		for l, err := range q.List(t.Context(), zsync.QueueReady) {
			if l.Sent.IsZero() != (i == 0) || errors.Is(err, zk.ErrNoAuth) != (i == 0) { // the first is concealed
				t.Errorf("element %d: %+v, %v", i, l, err)
			}
			i++
		}
		setACL(t, srv, bucket, zk.WorldACL(zk.PermAdmin))
		_, err = q.Len(t.Context())
		wantErr(t, err, zk.ErrNoAuth)
	})
}

func TestADeadLetterWithoutAnAgeKeepsNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv, longSession)
		q := zsync.NewQueue[int](s, "/q", zsync.WithDeadRetention(time.Hour))
		must(t, q.Send(t.Context(), counted(3)...))
		ds, err := q.ReceiveN(t.Context(), 3)
		must(t, err)
		for _, d := range ds {
			must(t, d.Reject(t.Context(), "no"))
		}
		for _, name := range childrenOf(t, s, "/q-dead") {
			if digits, ok := strings.CutSuffix(strings.TrimPrefix(name, "dead-00000-"), "-0000000000"); ok {
				setACL(t, srv, "/q-dead/"+name, zk.WorldACL(zk.PermAdmin))
				setACL(t, srv, "/q-dead/why-"+digits, zk.WorldACL(zk.PermAdmin))
			}
		}
		for range q.Recv(within(t, 8*time.Hour)) {
		}
		if left := childrenOf(t, s, "/q-dead"); len(left) != 2 { // the letter that has no age, with its reason
			t.Errorf("after eight hours %q are left", left)
		}
	}, longSessions)
}
