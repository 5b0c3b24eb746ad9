package locks

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

func TestAHolderIsAskedToGiveUp(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		harness.WantErr(t, mb.Revoke(t.Context()), zsync.ErrNotLocked)
		if !harness.Closed(ma.Revoked()) {
			t.Error("Revoked of a Mutex that is not locked is open")
		}
		for range 2 { // each hold is asked for itself
			harness.Must(t, ma.Lock(t.Context()))
			asked := ma.Revoked()
			tok, err := ma.Token(t.Context())
			harness.Must(t, err)
			time.Sleep(time.Minute)
			if harness.Closed(asked) {
				t.Fatal("asked by nobody")
			}
			harness.Must(t, mb.Revoke(t.Context()))
			<-asked
			if harness.Closed(ma.Lost()) {
				t.Error("a question is no loss")
			}
			if again, err := ma.Token(t.Context()); again != tok || err != nil {
				t.Errorf("token %d, %v; it was %d", again, err, tok)
			}
			got := harness.Async(func() error { return mb.Lock(t.Context()) })
			harness.Must(t, ma.Unlock())
			harness.Must(t, <-got)
			harness.Must(t, mb.Unlock())
		}
	})
}

// The servers execute the request of Revoke, and its reply is lost. Later holders are not asked, even if
// the session of Revoke ends; and a later refusal is not the outcome.
func TestRevokeAsksOneHolderThoughItsReplyIsLost(t *testing.T) {
	for _, then := range []string{"the session ends", "the servers refuse it"} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			s := suite.Open(t, srv)
			first, second := zsync.NewMutex(suite.Open(t, srv), "/m"), zsync.NewMutex(suite.Open(t, srv), "/m")
			harness.Must(t, first.Lock(t.Context()))
			next := harness.Async(func() error { return second.Lock(t.Context()) })
			synctest.Wait()
			asked, id := first.Revoked(), s.ID()
			requests := 0
			srv.Intercept(func(r zktest.Request) zktest.Action {
				switch {
				case r.Session == id && r.Op == zktest.OpSetData:
					if requests++; requests > 1 {
						return zktest.Fail(zktest.CodeNoAuth)
					}
					if then == "the session ends" {
						return zktest.HangReply
					}
					return zktest.DropReply
				}
				return zktest.Pass
			})
			revoke := harness.Async(func() error { return zsync.NewMutex(s, "/m").Revoke(t.Context()) })
			<-asked
			if then == "the session ends" {
				harness.Must(t, first.Unlock())
				harness.Must(t, <-next)
				later := second.Revoked()
				srv.Expire(id)
				harness.Must(t, <-revoke)
				synctest.Wait()
				if harness.Closed(later) {
					t.Error("the second holder is asked, too")
				}
			} else if err := <-revoke; err == nil || errors.Is(err, zk.ErrNoAuth) {
				t.Errorf("Revoke = %v, though the holder was asked", err)
			}
		})
	}
}

// The servers refuse to delete the holder's znode. Nobody looks for a question there any longer.
func TestAReleasedHoldIsNotReadAnyLonger(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		m.Revoked()
		synctest.Wait()
		srv.SetLatency(time.Millisecond)
		var reads atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch r.Op {
			case zktest.OpDelete:
				return zktest.Fail(zktest.CodeNoAuth)
			case zktest.OpGetData:
				reads.Add(1)
			}
			return zktest.Pass
		})
		m.Unlock()
		time.Sleep(time.Second)
		if n := reads.Load(); n > 1 {
			t.Errorf("%d reads in a second", n)
		}
	})
}

func TestAQuestionIsHeardThoughATokenIsTakenAtTheSameTime(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		for i := range 200 {
			harness.Must(t, ma.Lock(t.Context()))
			srv.SetLatency(10 * time.Millisecond)
			asked := ma.Revoked()
			time.Sleep(time.Duration(i%50) * time.Millisecond)
			token := harness.Async(func() error { _, err := ma.Token(t.Context()); return err })
			harness.Must(t, mb.Revoke(t.Context()))
			harness.Must(t, <-token)
			time.Sleep(time.Second)
			if !harness.Closed(asked) {
				t.Fatalf("round %d: the question was not heard", i)
			}
			srv.SetLatency(0)
			harness.Must(t, ma.Unlock())
		}
	})
}

func TestWhatWasAskedForIsNotHandedOnInTheProcess(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		harness.Must(t, ma.Lock(t.Context()))
		<-harness.Async(func() error { ma.Revoked(); return nil })
		other := harness.Async(func() error { return mb.Lock(t.Context()) })
		synctest.Wait()
		local := harness.Async(func() error { return ma.Lock(t.Context()) })
		synctest.Wait()
		harness.Must(t, mb.Revoke(t.Context()))
		<-ma.Revoked()
		harness.Must(t, ma.Unlock())
		harness.Must(t, <-other)
		harness.PendingStill(t, local)
		harness.Must(t, mb.Unlock())
		harness.Must(t, <-local)
	})
}

func TestAQuestionThatWasNotHeardYetIsNotOverwrittenByAToken(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := suite.Open(t, srv), suite.Open(t, srv)
		ma, mb := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		harness.Must(t, ma.Lock(t.Context()))
		for range 2 { // the token of the second is asked for when that of the first was written
			harness.Must(t, mb.Revoke(t.Context()))
			tok, err := ma.Token(t.Context())
			harness.Must(t, err)
			next := harness.Async(func() error { return ma.Lock(t.Context()) })
			synctest.Wait()
			harness.Must(t, ma.Unlock()) // handed on: nobody has listened
			harness.Must(t, <-next)
			if later, err := ma.Token(t.Context()); err != nil || later <= tok {
				t.Errorf("token %d after %d, %v", later, tok, err)
			}
		}
		select {
		case <-ma.Revoked():
		case <-time.After(time.Minute):
			t.Error("the question was not heard")
		}
		harness.Must(t, ma.Unlock())
	})
}

func TestATokenWhoseReplyIsLostIsTakenAgainAndAsksNobody(t *testing.T) {
	for _, fate := range []zktest.Action{zktest.DropRequest, zktest.DropReply} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			m := zsync.NewMutex(suite.Open(t, srv), "/m")
			harness.Must(t, m.Lock(t.Context()))
			lost := false
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpSetData && !lost {
					lost = true
					return fate
				}
				return zktest.Pass
			})
			tok, err := m.Token(t.Context())
			harness.Must(t, err)
			_, stat, err := inside.Live(t, inside.Session(m)).Get(t.Context(), "/m/"+suite.ChildrenOf(t, inside.Session(m), "/m")[0])
			harness.Must(t, err)
			if !lost || stat.Mzxid != tok {
				t.Errorf("token %d, and the znode was written last at %d", tok, stat.Mzxid)
			}
			time.Sleep(time.Minute)
			if harness.Closed(m.Revoked()) {
				t.Error("asked by nobody")
			}
			harness.Must(t, m.Unlock())
		})
	}
}
