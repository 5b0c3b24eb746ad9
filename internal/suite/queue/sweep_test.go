package queue

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// killSending kills a process whose Send has just been applied, and returns the
// path of the journal that it leaves.
func killSending(t *testing.T, srv *zktest.Server) (journal string) {
	t.Helper()
	s, kill := mortal(t, srv)
	must(t, zsync.NewQueue[int](s, "/q").Send(t.Context(), 1))
	kill()
	time.Sleep(time.Minute)
	for _, name := range childrenOf(t, open(t, srv, longSession), "/q-receipts") {
		if !strings.Contains(name, "room-") {
			journal = "/q-receipts/" + name
		}
	}
	if journal == "" {
		t.Fatal("no journal is left: the case did not come about")
	}
	s.Close() // which tells the servers nothing, as it cannot connect; but it dials no more
	return journal
}

func TestWhatKilledProcessesLeaveIsGoneAfterADay(t *testing.T) {
	t.Parallel()
	for name, killed := range map[string]func(t *testing.T, srv *zktest.Server) (left string){"as it sends": killSending} {
		t.Run(name+", and a consumer waits", func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				left := killed(t, srv)
				ch := zsync.NewQueue[int](open(t, srv, longSession), "/q").Recv(t.Context())
				go func() {
					for range ch {
					}
				}()
				synctest.Wait()
				time.Sleep(10 * time.Hour)
				wantThere(t, srv, left, true) // who made it may be cut off
				time.Sleep(14 * time.Hour)
				wantThere(t, srv, left, false)
			}, longSessions)
		})
		t.Run(name+", and another produces", func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				q := zsync.NewQueue[int](open(t, srv, longSession), "/q")
				left := killed(t, srv)
				for range 24 {
					time.Sleep(time.Hour)
					must(t, q.Send(t.Context(), 2))
				}
				time.Sleep(time.Minute)
				wantThere(t, srv, left, false)
			}, longSessions)
		})
	}
}

func wantThere(t *testing.T, srv *zktest.Server, path string, want bool) {
	t.Helper()
	if there, _, err := plain(t, srv).Exists(path); err != nil || there != want {
		t.Errorf("%s is there: %v, %v; want %v", path, there, err, want)
	}
}

func TestASweepOfJournalsSparesOneThatIsWrittenAtThatMoment(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		journal := killSending(t, srv)
		time.Sleep(13 * time.Hour)
		writer, meddled := plain(t, srv), false
		read := oneByOne(srv, func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMulti && r.Ops[0].Op == zktest.OpDelete && r.Ops[0].Path == journal && !meddled {
				meddled = true
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		ch := zsync.NewQueue[int](open(t, srv), "/q").Recv(t.Context())
		go func() {
			for range ch {
			}
		}()
		time.Sleep(500 * time.Millisecond)
		read(func() {
			if !meddled {
				t.Fatal("the journal was not about to be deleted: the case did not come about")
			}
		})
		_, err := writer.Set(journal, []byte("7"), -1)
		must(t, err)
		time.Sleep(time.Minute)
		wantThere(t, srv, journal, true)
	}, longSessions)
}

// wantUnknown fails unless err says that nobody can say whether it was applied.
func wantUnknown(t *testing.T, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "may have been applied") {
		t.Errorf("got error %v, want one that says that it may have been applied", err)
	}
}

func TestAProducerThatFindsItsJournalSweptSaysThatTheOutcomeIsUnknown(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		q := zsync.NewQueue[int](s, "/q")
		must(t, q.Send(t.Context(), 1))
		id := s.ID()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session == id && r.Op == zktest.OpMulti:
				return zktest.DropReply
			case r.Op == zktest.OpConnect && r.Session == id:
				return zktest.Hang
			}
			return zktest.Pass
		})
		sent := make(chan error, 1)
		go func() { sent <- q.Send(t.Context(), 2) }()
		synctest.Wait()
		names := childrenOf(t, open(t, srv), "/q-receipts")
		if len(names) != 1 {
			t.Fatalf("%q are there, want the journal alone", names)
		}
		must(t, plain(t, srv).Delete("/q-receipts/"+names[0], -1)) // as the sweep of another process does
		srv.Intercept(nil)
		wantUnknown(t, <-sent)
		wantLen(t, q, 2)
		must(t, q.Send(t.Context(), 3))
		wantLen(t, q, 3)
	})
}

// The reply to the Send that has made the journal is lost, for longer than that is kept.
func TestAFirstSendWhoseJournalWasSweptIsNotStoredAgain(t *testing.T) {
	t.Parallel()
	for _, hours := range []float64{1, 11.5, 30} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			var cut atomic.Bool
			seldom := zsync.Backoff{Min: time.Second, Max: 30 * time.Second} // the session is cut off for hours
			s := open(t, srv, longSession, zsync.WithDialer(harness.DialUnless(&cut, srv)), zsync.WithRetry(seldom))
			id := s.ID()
			other := zsync.NewQueue[int](open(t, srv, longSession), "/q")
			must(t, other.Send(t.Context(), 0))
			ch := other.Recv(t.Context())
			<-ch
			srv.Intercept(first(zktest.DropReply, func(r zktest.Request) bool {
				hit := r.Session == id && r.Op == zktest.OpMulti
				cut.Store(cut.Load() || hit)
				return hit
			}))
			sent := async(func() error { return zsync.NewQueue[int](s, "/q").Send(t.Context(), 1) })
			if v := <-ch; v != 1 {
				t.Errorf("received %d", v)
			}
			time.Sleep(time.Duration(hours * float64(time.Hour)))
			if hours > 12 && len(childrenOf(t, open(t, srv), "/q-receipts")) > 0 {
				t.Fatal("the journal is there: the case did not come about")
			}
			cut.Store(false)
			if err := <-sent; hours > 12 {
				wantUnknown(t, err)
			} else {
				must(t, err)
			}
			time.Sleep(time.Minute)
			wantLen(t, other, 0)
			select {
			case v := <-ch:
				t.Errorf("after %v hours %d is received again", hours, v)
			default:
			}
		}, longSessions)
	}
}

// A sweep that meets a SendID in one directory leaves that one, and none that follows.
func TestSweepThatMeetsASendIDGoesOnWithTheOtherDirectories(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		mem := zsync.WithIDMemory(time.Hour)
		s := open(t, srv, longSession)
		q := zsync.NewQueue[int](s, "/q", mem)
		for i := range 400 {
			wantSentID(t, q, fmt.Sprint(i), i, true)
		}
		q.Clear(t.Context())
		time.Sleep(6*time.Hour + time.Minute)
		w := plain(t, srv)
		dirs := 0
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMulti && len(r.Ops) > 1 && r.Ops[1].Op == zktest.OpDelete && strings.HasPrefix(r.Ops[1].Path, "/q-ids/") {
				if dirs++; dirs == 3 {
					go func() { w.Set(r.Ops[1].Path, []byte("3600000"), -1) }()
					return zktest.Delay(time.Second)
				}
			}
			return zktest.Pass
		})
		must(t, zsync.NewQueue[int](open(t, srv), "/q", mem).Send(t.Context(), 1))
		c := zsync.NewQueue[int](open(t, srv), "/q", mem)
		c.TryRecv(t.Context())
		time.Sleep(time.Minute)
		srv.Intercept(nil)
		if left := notes(t, s); dirs < 100 || left > 10 {
			t.Errorf("%d of 400 notes are left, all of which are over, in %d directories", left, dirs)
		}
	}, longSessions)
}

// A sweep makes a transaction for each directory: who sends IDs that are over need not wait
// for the last.
func TestASweepDoesNotKeepProducersWithIDsThatAreOverFromSending(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		mem := zsync.WithIDMemory(time.Hour)
		a, b, c := open(t, srv, longSession), open(t, srv, longSession), open(t, srv, longSession)
		qa, qb, qc := zsync.NewQueue[int](a, "/q", mem), zsync.NewQueue[int](b, "/q", mem), zsync.NewQueue[int](c, "/q", mem)
		send := func(q *zsync.Queue[int], from, to int) time.Duration {
			var wg sync.WaitGroup
			start := time.Now()
			for i := from; i < to; i++ {
				wg.Go(func() {
					if ok, err := q.SendID(t.Context(), fmt.Sprint(i), i); !ok || err != nil {
						t.Error(ok, err)
					}
				})
			}
			wg.Wait()
			return time.Since(start)
		}
		send(qb, 0, 2000) // several in each directory
		time.Sleep(5 * time.Hour)
		srv.SetLatency(time.Millisecond)
		var swept atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMulti && r.Session == c.ID() && len(r.Ops) > 1 && r.Ops[len(r.Ops)-1].Op == zktest.OpDelete {
				swept.Add(1)
			}
			return zktest.Pass
		})
		must(t, qc.Send(t.Context(), 100))
		for range 2000 {
			if swept.Load() > 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if swept.Load() == 0 {
			t.Fatal("nobody sweeps: the case did not come about")
		}
		d := send(qa, 100, 120)
		if swept.Load() > 200 {
			t.Errorf("20 IDs that are over took %v beside a sweep, which has made %d of 256 transactions meanwhile", d, swept.Load())
		}
	}, longSessions)
}

// Where IDs are remembered a sweep takes several round trips for each of 256 directories.
func TestAnIdleConsumerReceivesAtOnceThoughItSweeps(t *testing.T) {
	t.Parallel()
	for _, layout := range []zsync.QueueLayout{zsync.LayoutZsync, zsync.LayoutSimpleQueue} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, other := open(t, srv, longSession), open(t, srv, longSession)
			in := zsync.NewQueue[int](s, "/q", zsync.WithIDMemory(time.Minute))
			for i := range 400 {
				wantSentID(t, in, fmt.Sprint(i), i, true)
			}
			in.Clear(t.Context())
			in = zsync.NewQueue[int](s, "/q", zsync.WithQueueLayout(layout))
			time.Sleep(7 * time.Hour)
			srv.SetLatency(10 * time.Millisecond)
			id, begun := other.ID(), make(chan bool, 1)
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Session == id && r.Op == zktest.OpSetData && strings.HasPrefix(r.Path, "/q-ids/") {
					select {
					case begun <- true:
					default:
					}
				}
				return zktest.Pass
			})
			ch := zsync.NewQueue[int](other, "/q", zsync.WithQueueLayout(layout)).Recv(t.Context())
			<-begun
			began := time.Now()
			must(t, in.Send(t.Context(), 1))
			if v, took := <-ch, time.Since(began); v != 1 || took > time.Second {
				t.Errorf("%v: received %d after %v", layout, v, took)
			}
			time.Sleep(time.Minute)
			if n := notes(t, s); n > 0 {
				t.Errorf("%v: %d of 400 notes are left, all of which are over", layout, n)
			}
		}, longSessions)
	}
}

func TestIDsAreForgottenThoughTheQueueIsAlwaysBusy(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv, longSession), open(t, srv, longSession)
		in, out := zsync.NewQueue[int](a, "/q", zsync.WithIDMemory(time.Minute)), zsync.NewQueue[int](b, "/q")
		for range 10 {
			must(t, in.Send(t.Context(), make([]int, 1000)...))
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMulti && len(r.Ops) > 0 && strings.HasPrefix(r.Ops[0].Path, "/q-receipts/") {
				return zktest.Delay(5 * time.Second)
			}
			return zktest.Pass
		})
		var n atomic.Int64
		for range 3 {
			go func() {
				for ctx.Err() == nil {
					in.SendID(ctx, fmt.Sprint(n.Add(1)), 1)
				}
			}()
		}
		go func() {
			for ctx.Err() == nil {
				d, err := out.Receive(ctx)
				if err != nil {
					return
				}
				if err := d.Ack(ctx); err != nil && ctx.Err() == nil { // ctx ends with the test
					t.Error(err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Second):
				}
			}
		}()
		for range 2 {
			time.Sleep(4 * time.Hour)
			t.Logf("%d sent, %d notes", n.Load(), notes(t, b))
		}
		if k := notes(t, b); k > int(n.Load()/2) {
			t.Errorf("of %d IDs, each remembered for a minute, %d are noted", n.Load(), k)
		}
	}, longSessions)
}

func TestDeadLettersAreNotKeptForLongerInAnyLayoutHoweverOneConsumes(t *testing.T) {
	t.Parallel()
	for _, layout := range []zsync.QueueLayout{zsync.LayoutZsync, zsync.LayoutSimpleQueue, zsync.LayoutDistributedQueue, zsync.LayoutKazooQueue} {
		for name, consume := range map[string]func(ctx context.Context, q *zsync.Queue[int]){
			"Recv": func(ctx context.Context, q *zsync.Queue[int]) {
				for range q.Recv(ctx) {
				}
			},
			"Receive": func(ctx context.Context, q *zsync.Queue[int]) {
				for ctx.Err() == nil {
					q.Receive(ctx)
				}
			},
			"TryRecv": func(ctx context.Context, q *zsync.Queue[int]) {
				for ctx.Err() == nil {
					q.TryRecv(ctx)
					time.Sleep(time.Minute)
				}
			},
		} {
			t.Run(layout.String()+"/"+name, func(t *testing.T) {
				bubble(t, func(t *testing.T, srv *zktest.Server) {
					s := open(t, srv, longSession)
					raw := zsync.NewQueue[string](s, "/q", zsync.WithCodec(zsync.Raw), zsync.WithQueueLayout(layout))
					must(t, raw.Send(t.Context(), "not a number"))
					q := zsync.NewQueue[int](open(t, srv, longSession), "/q", zsync.WithQueueLayout(layout), zsync.WithDeadRetention(time.Hour))
					ctx, cancel := context.WithTimeout(t.Context(), 8*time.Hour)
					defer cancel()
					go consume(ctx, q)
					time.Sleep(time.Minute)
					n := func() (n int) {
						for _, err := range raw.Dead(t.Context()) {
							must(t, err)
							n++
						}
						return n
					}
					if n() != 1 {
						t.Fatal("no dead letter")
					}
					time.Sleep(7 * time.Hour)
					if n() != 0 {
						t.Error("a dead letter is kept for seven hours, not one")
					}
					cancel()
					time.Sleep(2 * time.Minute)
				}, longSessions)
			})
		}
	}
}

// One that may not be read is as old as the others, and keeps none of them.
func TestDeadLettersAreNotKeptForLongerThoughOneMayNotBeRead(t *testing.T) {
	t.Parallel()
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
			if strings.HasSuffix(name, "-0000000000") {
				setACL(t, srv, "/q-dead/"+name, zk.WorldACL(zk.PermAdmin))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Hour)
		defer cancel()
		for range q.Recv(ctx) {
		}
		if left := childrenOf(t, s, "/q-dead"); len(left) > 0 {
			t.Errorf("after eight hours %q are left", left)
		}
	}, longSessions)
}

// Each request is lost once, or its reply, or the session with it.
func TestWhatIsDoneToAllDeadLettersIsCountedWhateverIsLost(t *testing.T) {
	for name, do := range map[string]func(ctx context.Context, q *zsync.Queue[int]) (int, error){
		"purge":   func(ctx context.Context, q *zsync.Queue[int]) (int, error) { return q.PurgeDead(ctx, nil) },
		"requeue": func(ctx context.Context, q *zsync.Queue[int]) (int, error) { return q.RequeueDead(ctx, nil) },
	} {
		loseEach(t, func(t *testing.T, srv *zktest.Server, s *zsync.Session, begin, end func()) {
			q, other := zsync.NewQueue[int](s, "/q"), zsync.NewQueue[int](open(t, srv), "/q")
			must(t, other.Send(t.Context(), 1, 2))
			ds, err := other.ReceiveN(t.Context(), 2)
			must(t, err)
			for _, d := range ds {
				must(t, d.Reject(t.Context(), "no"))
			}
			begin()
			n, err := do(t.Context(), q)
			end()
			if n != 2 || err != nil {
				t.Errorf("%s: %d, %v; want 2", name, n, err)
			}
			if name == "requeue" {
				wantLen(t, other, 2)
			}
		})
	}
}
