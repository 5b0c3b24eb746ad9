package zsync_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

func TestAHolderIsAskedToGiveUp(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		wantErr(t, mb.Revoke(t.Context()), zsync.ErrNotLocked)
		if !session.IsClosed(ma.Revoked()) {
			t.Error("Revoked of a Mutex that is not locked is open")
		}
		for range 2 { // each hold is asked for itself
			must(t, ma.Lock(t.Context()))
			asked := ma.Revoked()
			tok, err := ma.Token(t.Context())
			must(t, err)
			time.Sleep(time.Minute)
			if session.IsClosed(asked) {
				t.Fatal("asked by nobody")
			}
			must(t, mb.Revoke(t.Context()))
			<-asked
			if session.IsClosed(ma.Lost()) {
				t.Error("a question is no loss")
			}
			if again, err := ma.Token(t.Context()); again != tok || err != nil {
				t.Errorf("token %d, %v; it was %d", again, err, tok)
			}
			got := async(func() error { return mb.Lock(t.Context()) })
			must(t, ma.Unlock())
			must(t, <-got)
			must(t, mb.Unlock())
		}
	})
}

func TestAQuestionIsHeardThoughATokenIsTakenAtTheSameTime(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		for i := range 200 {
			must(t, ma.Lock(t.Context()))
			srv.SetLatency(10 * time.Millisecond)
			asked := ma.Revoked()
			time.Sleep(time.Duration(i%50) * time.Millisecond)
			token := async(func() error { _, err := ma.Token(t.Context()); return err })
			must(t, mb.Revoke(t.Context()))
			must(t, <-token)
			time.Sleep(time.Second)
			if !session.IsClosed(asked) {
				t.Fatalf("round %d: the question was not heard", i)
			}
			srv.SetLatency(0)
			must(t, ma.Unlock())
		}
	})
}

func TestWhatWasAskedForIsNotHandedOnInTheProcess(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		must(t, ma.Lock(t.Context()))
		<-async(func() error { ma.Revoked(); return nil })
		other := async(func() error { return mb.Lock(t.Context()) })
		synctest.Wait()
		local := async(func() error { return ma.Lock(t.Context()) })
		synctest.Wait()
		must(t, mb.Revoke(t.Context()))
		<-ma.Revoked()
		must(t, ma.Unlock())
		must(t, <-other)
		pendingStill(t, local)
		must(t, mb.Unlock())
		must(t, <-local)
	})
}

func TestAQuestionThatWasNotHeardYetIsNotOverwrittenByAToken(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		must(t, ma.Lock(t.Context()))
		for range 2 { // the token of the second is asked for when that of the first was written
			must(t, mb.Revoke(t.Context()))
			tok, err := ma.Token(t.Context())
			must(t, err)
			next := async(func() error { return ma.Lock(t.Context()) })
			synctest.Wait()
			must(t, ma.Unlock()) // handed on: nobody has listened
			must(t, <-next)
			if later, err := ma.Token(t.Context()); err != nil || later <= tok {
				t.Errorf("token %d after %d, %v", later, tok, err)
			}
		}
		select {
		case <-ma.Revoked():
		case <-time.After(time.Minute):
			t.Error("the question was not heard")
		}
		must(t, ma.Unlock())
	})
}

func TestATokenWhoseReplyIsLostIsTakenAgainAndAsksNobody(t *testing.T) {
	for _, fate := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			m := zsync.NewMutex(open(t, srv), "/m")
			must(t, m.Lock(t.Context()))
			lost := false
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpSetData && !lost {
					lost = true
					return fate
				}
				return zktest.Pass
			})
			tok, err := m.Token(t.Context())
			must(t, err)
			_, stat, err := live(t, zsync.SessionOf(m)).Get(t.Context(), "/m/"+childrenOf(t, zsync.SessionOf(m), "/m")[0])
			must(t, err)
			if !lost || stat.Mzxid != tok {
				t.Errorf("token %d, and the znode was written last at %d", tok, stat.Mzxid)
			}
			time.Sleep(time.Minute)
			if session.IsClosed(m.Revoked()) {
				t.Error("asked by nobody")
			}
			must(t, m.Unlock())
		})
	}
}
