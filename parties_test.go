package zsync

import (
	"fmt"
	"testing"

	"github.com/zsync/zsync/zktest"
)

func TestWaitGroupTellsWhoIsInsideAndWhoWaits(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...Option) *Session) {
		a, b, c := connect(WithOwner("a")), connect(WithOwner("b")), connect(WithOwner("c"))
		wga, wgb, wgc := NewWaitGroup(a, "/w"), NewWaitGroup(b, "/w"), NewWaitGroup(c, "/w")
		// want waits until these stand in the room, in their order.
		want := func(owners string, inside int) {
			t.Helper()
			eventually(t, func() error {
				got, n := "", 0
				cs, err := wga.Contenders(t.Context())
				for _, c := range cs {
					if got += c.Owner; c.Holding {
						n++
					}
					if c.Mode != ModeParty || c.Session == 0 || c.Since.IsZero() {
						t.Errorf("got %+v", c)
					}
				}
				if err == nil && (got != owners || n != inside) {
					err = fmt.Errorf("got %q, %d of them inside; want %q, %d", got, n, owners, inside)
				}
				return err
			})
		}
		want("", 0)
		ea := enter(t, wga, 2)
		want("a", 0)
		must(t, wgb.Enter(t.Context(), 2))
		must(t, <-ea)
		want("ab", 2)
		ec := enter(t, wgc, 2)
		want("abc", 2)
		la := leave(t, wga)
		want("bc", 1)
		must(t, wgb.Leave(t.Context()))
		must(t, <-la)
		want("c", 0)
		must(t, c.Close())
		wantErr(t, <-ec, ErrClosed)
	})
}

func TestWaitGroupLostIsOfTheMembership(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		wg := NewWaitGroup(s, "/w")
		if !isClosed(wg.Lost()) {
			t.Error("not closed: Lost of one who is not inside")
		}
		must(t, wg.Enter(t.Context(), 1))
		first := wg.Lost()
		if isClosed(first) {
			t.Error("closed: Lost of one who is inside")
		}
		must(t, wg.Leave(t.Context()))
		if isClosed(first) {
			t.Error("closed: Lost of one who has left")
		}
		must(t, wg.Enter(t.Context(), 1))
		lost := wg.Lost()
		srv.Expire(s.ID())
		<-lost
		wantErr(t, wg.Leave(t.Context()), ErrLost)
		if !isClosed(wg.Lost()) {
			t.Error("not closed: Lost of one who has left")
		}
	})
}
