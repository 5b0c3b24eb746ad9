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
