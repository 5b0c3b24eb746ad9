package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/trace"
	"github.com/zsync/zsync/internal/verify"
	"github.com/zsync/zsync/zktest"
)

// events returns what a trace tells of a path, in order.
func events(f *verify.File, path string) (list []string) {
	for _, l := range f.Lines {
		if l.Path == path {
			list = append(list, l.Event+" "+l.Kind)
		}
	}
	return list
}

func TestTraceTellsGrantTokenHandOverReleaseAndLoss(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var w suite.TraceBuffer
		s := suite.Open(t, srv, zsync.WithTrace(&w), zsync.WithOwner("me"))
		ctx := t.Context()
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(ctx))
		token, err := m.Token(ctx)
		harness.Must(t, err)
		next := harness.Async(func() error { return m.Lock(ctx) })
		synctest.Wait()
		harness.Must(t, m.Unlock()) // to the next, without a request
		harness.Must(t, <-next)
		harness.Must(t, m.Unlock())

		rw := zsync.NewRWMutex(s, "/rw")
		harness.Must(t, rw.Lock(ctx))
		harness.Must(t, rw.Downgrade(ctx))
		harness.Must(t, rw.RUnlock())

		sem := zsync.NewSemaphore(s, "/s", 2000)
		harness.Must(t, sem.Acquire(ctx, 3))
		harness.Must(t, sem.Release(1))
		e := zsync.NewElection(s, "/e")
		harness.Must(t, e.Campaign(ctx))
		srv.Expire(s.ID())
		<-e.Lost()
		time.Sleep(time.Second)
		harness.Must(t, s.Close())

		f := w.File(t, "mine")
		for path, want := range map[string]string{
			"/m":  "grant mutex, token mutex, pass mutex, grant mutex, release mutex, gone mutex",
			"/rw": "grant write, move read, gone write, release read, gone read",
			"/s":  "grant semaphore, move semaphore, gone semaphore, loss semaphore",
			"/e":  "grant election, loss election",
		} {
			if got := strings.Join(events(f, path), ", "); got != want {
				t.Errorf("%s: %s; want %s", path, got, want)
			}
		}
		var grant, gone trace.Record
		for _, l := range f.Lines {
			switch {
			case l.Event == trace.Loss && l.Reason != "expired":
				t.Errorf("reason of a loss: %q", l.Reason)
			case l.Event == trace.Token && l.Token != token:
				t.Errorf("token %d, want %d", l.Token, token)
			case l.Path == "/m" && l.Event == trace.Grant && l.Use == 1:
				grant = l
			case l.Path == "/m" && l.Event == trace.Gone:
				gone = l
			}
		}
		if !(0 < grant.Zxid && grant.Zxid < token && token < gone.Zxid) {
			t.Errorf("granted at %d, token %d, gone at %d", grant.Zxid, token, gone.Zxid)
		}
		if first, last := f.Lines[0], f.Lines[len(f.Lines)-1]; first.Event != trace.Begin || first.Owner != "me" || last.Event != trace.End {
			t.Errorf("begins with %+v, ends with %+v", first, last)
		}
		r := verify.Files([]*verify.File{f}, 0)
		if !r.Whole() || r.Holds != 6 || r.Losses != 2 {
			t.Errorf("report: %+v", r)
		}
	})
}

// A deletion whose reply is lost is found out by a second request. Then the trace has the deletion without its
// transaction.
func TestTheTraceHasADeletionWhoseReplyIsLost(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var w suite.TraceBuffer
		s := suite.Open(t, srv, zsync.WithTrace(&w))
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		srv.Intercept(harness.First(zktest.DropReply, harness.Op(zktest.OpDelete)))
		harness.Must(t, m.Unlock())
		time.Sleep(harness.Timeout)
		harness.Must(t, s.Close())
		f := w.File(t, "mine")
		if got := strings.Join(events(f, "/m"), ", "); got != "grant mutex, release mutex, gone mutex" {
			t.Fatalf("the trace has %s", got)
		}
		for _, l := range f.Lines {
			if l.Event == trace.Gone && l.Zxid != 0 {
				t.Errorf("gone in transaction 0x%x, which is unknown", l.Zxid)
			}
		}
	})
}

// Two ensembles that know nothing of each other grant one lock twice: as if
// ZooKeeper, or zsync, had failed.
func TestVerifyFindsALockThatTwoHold(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		var ws [2]suite.TraceBuffer
		var ms [2]*zsync.Mutex
		for i := range ms {
			s := suite.Open(t, zktest.Start(t), zsync.WithTrace(&ws[i]), zsync.WithOwner(fmt.Sprint("party ", i)))
			ms[i] = zsync.NewMutex(s, "/m")
			harness.Must(t, ms[i].Lock(t.Context()))
			_, err := ms[i].Token(t.Context())
			harness.Must(t, err)
		}
		time.Sleep(time.Second)
		for _, m := range ms {
			harness.Must(t, m.Unlock())
		}
		synctest.Wait()
		files := []*verify.File{ws[0].File(t, "0"), ws[1].File(t, "1")}
		var out strings.Builder
		harness.Must(t, verify.Files(files, verify.DefaultTolerance).Print(&out))
		for _, want := range []string{"VIOLATION  /m: two holders", "party 0", "party 1", "tokens do not grow"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the report does not say %q:\n%s", want, out.String())
			}
		}
		for _, f := range files {
			if r := verify.Files([]*verify.File{f}, 0); !r.Whole() {
				t.Errorf("each alone is right: %+v", r)
			}
		}
	})
}

// An expiry that an operator forces comes without the warning that time gives.
func TestVerifyFindsALossThatIsToldTooLate(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var ws [2]suite.TraceBuffer
		a, b := suite.Open(t, srv, zsync.WithTrace(&ws[0])), suite.Open(t, srv, zsync.WithTrace(&ws[1]))
		m := zsync.NewMutex(a, "/m")
		harness.Must(t, m.Lock(t.Context()))
		next := harness.Async(func() error { return zsync.NewMutex(b, "/m").Lock(t.Context()) })
		synctest.Wait()
		id := a.ID()
		srv.Partition(id)
		srv.Expire(id)
		harness.Must(t, <-next)
		<-m.Lost()
		synctest.Wait()
		r := verify.Files([]*verify.File{ws[0].File(t, "0"), ws[1].File(t, "1")}, verify.DefaultTolerance)
		if len(r.Violations) != 1 || !strings.Contains(r.Violations[0].String(), "told at") {
			t.Errorf("violations: %v", r.Violations)
		}
	})
}

// tracedRun returns the traces of four processes, each of which begins to work in all,
// while they are disconnected at random, and every calm'th time cut off. Their ctx ends
// after a while, and then their sessions.
func tracedRun(t *testing.T, srv *zktest.Server, rnd *rand.Rand, long time.Duration, calm int,
	work func(ctx context.Context, i int, s *zsync.Session, all *sync.WaitGroup)) (files []*verify.File) {
	var ws [4]suite.TraceBuffer
	var ss [4]*zsync.Session
	for i := range ss {
		ss[i] = suite.Open(t, srv, zsync.WithTrace(&ws[i]), zsync.WithOwner(fmt.Sprint("process ", i)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	var all sync.WaitGroup
	for i, s := range ss {
		work(ctx, i, s, &all)
	}
	for ctx.Err() == nil {
		s := ss[rnd.IntN(len(ss))]
		time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond)
		id := s.ID()
		if id == 0 {
			continue
		}
		if rnd.IntN(calm) > 0 {
			srv.Disconnect(id)
			continue
		}
		srv.Partition(id)
		time.Sleep(time.Duration(rnd.IntN(15000)) * time.Millisecond)
		srv.Heal(id)
	}
	all.Wait()
	for i, s := range ss {
		harness.Must(t, s.Close())
		files = append(files, ws[i].File(t, fmt.Sprint(i)))
	}
	synctest.Wait()
	return files
}

func TestTracesOfARunWithFaultsHaveNoViolation(t *testing.T) {
	t.Parallel()
	for seed := range harness.Seeds(t, 6, 3, 500) {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 12))
			files := tracedRun(t, srv, rnd, 2*time.Minute, 3, func(ctx context.Context, i int, s *zsync.Session, all *sync.WaitGroup) {
				m, rw, sem, e := zsync.NewMutex(s, "/m"), zsync.NewRWMutex(s, "/rw"), zsync.NewSemaphore(s, "/s", 3), zsync.NewElection(s, "/e")
				for g := range 4 {
					d := rand.New(rand.NewPCG(uint64(seed), uint64(100+10*i+g)))
					hold := func(ctx context.Context) error {
						select {
						case <-time.After(time.Duration(d.IntN(1000)) * time.Millisecond):
						case <-ctx.Done():
						}
						return nil
					}
					withToken := func(ctx context.Context) error {
						_, _ = m.Token(ctx)
						return hold(ctx)
					}
					all.Go(func() {
						for ctx.Err() == nil {
							switch d.IntN(6) {
							case 0, 1:
								_ = m.Do(ctx, withToken)
							case 2:
								_ = rw.Do(ctx, hold)
							case 3:
								_ = rw.RDo(ctx, hold)
							case 4:
								_ = sem.Do(ctx, 1+d.Int64N(3), hold)
							case 5:
								if e.Campaign(ctx) == nil {
									_ = hold(ctx)
									_ = e.Resign()
								}
							}
						}
					})
				}
			})
			r := verify.Files(files, 0) // one clock
			if !r.Whole() || r.Holds < 100 || r.Tokens == 0 {
				var out strings.Builder
				_ = r.Print(&out)
				t.Errorf("seed %d:\n%s", seed, out.String())
			}
			if seed == 0 {
				t.Logf("seed 0: %d holds, %d losses, %d tokens in %d lines", r.Holds, r.Losses, r.Tokens, r.Lines)
			}
		})
	}
}

// failing fails, or hangs, or panics.
type failing struct {
	suite.TraceBuffer
	how atomic.Pointer[string]
	go_ chan struct{}
}

func (f *failing) Write(p []byte) (int, error) {
	switch how := f.how.Load(); {
	case how == nil:
	case *how == "error":
		return 0, errors.New("disk full")
	case *how == "half":
		f.TraceBuffer.Write(p[:len(p)/2])
		return len(p) / 2, io.ErrShortWrite
	case *how == "panic":
		panic("no")
	case *how == "hang":
		<-f.go_
	}
	return f.TraceBuffer.Write(p)
}

func TestATraceThatCannotBeWrittenHoldsNobodyUpAndIsToldOnce(t *testing.T) {
	for _, how := range []string{"error", "half", "panic", "hang"} {
		t.Run(how, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				var log suite.TraceBuffer
				w := &failing{go_: make(chan struct{})}
				s := suite.Open(t, srv, zsync.WithTrace(w), zsync.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
				m := zsync.NewMutex(s, "/m")
				synctest.Wait()
				w.how.Store(&how)
				start := time.Now()
				for range 3 {
					harness.Must(t, m.Lock(t.Context()))
					synctest.Wait()
					harness.Must(t, m.Unlock())
				}
				if how == "hang" {
					harness.Must(t, s.Close())
					if d := time.Since(start); d != 500*time.Millisecond { // the time of WithTrace
						t.Errorf("Close took %v", d)
					}
					close(w.go_)
					return
				}
				if d := time.Since(start); d != 0 {
					t.Errorf("took %v", d)
				}
				w.how.Store(nil)
				harness.Must(t, m.Lock(t.Context()))
				harness.Must(t, m.Unlock())
				harness.Must(t, s.Close())
				if n := strings.Count(log.String(), "cannot write the trace"); n != 1 {
					t.Errorf("told %d times:\n%s", n, log.String())
				}
				r := verify.Files([]*verify.File{w.File(t, how)}, 0)
				if len(r.Violations) != 0 || len(r.Missing) == 0 {
					t.Errorf("report %+v of\n%s", r, w.String())
				}
			})
		})
	}
}

// The writer is so slow that records are missing at the end of the trace.
func TestTheEndOfATraceSaysThatRecordsAreMissing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		w, how := &failing{go_: make(chan struct{})}, "hang"
		s := suite.Open(t, srv, zsync.WithTrace(w))
		m := zsync.NewMutex(s, "/m")
		w.how.Store(&how)
		for range 6000 {
			harness.Must(t, m.Lock(t.Context()))
			harness.Must(t, m.Unlock())
		}
		closed := harness.Async(s.Close)
		synctest.Wait()
		close(w.go_)
		harness.Must(t, <-closed)
		r := verify.Files([]*verify.File{w.File(t, how)}, 0)
		if len(r.Violations) != 0 || len(r.Missing) == 0 {
			t.Errorf("%d lines, missing %v, violations %v", r.Lines, r.Missing, r.Violations)
		}
	})
}

// Another client deletes the znode of a hold, and the holder learns of it only from its release.
func TestALossThatTheReleaseFindsIsNoViolation(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var ws [2]suite.TraceBuffer
		a, b := suite.Open(t, srv, zsync.WithTrace(&ws[0])), suite.Open(t, srv, zsync.WithTrace(&ws[1]))
		m := zsync.NewMutex(a, "/m")
		harness.Must(t, m.Lock(t.Context()))
		next := harness.Async(func() error { return zsync.NewMutex(b, "/m").Lock(t.Context()) })
		synctest.Wait()
		suite.DeleteContender(t, b, "/m", 0) // no watch is on the znode yet
		harness.Must(t, <-next)
		time.Sleep(time.Millisecond)
		harness.WantErr(t, m.Unlock(), zsync.ErrLost)
		harness.Must(t, a.Close())
		harness.Must(t, b.Close())
		r := verify.Files([]*verify.File{ws[0].File(t, "0"), ws[1].File(t, "1")}, 0)
		if len(r.Violations) > 0 || r.Losses == 0 {
			t.Errorf("%d losses, violations: %v", r.Losses, r.Violations)
		}
	})
}

// The servers write a token, and before their reply comes, WithMaxHold ends the hold.
func TestATokenThatComesAfterTheLossIsNotInTheTrace(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var w suite.TraceBuffer
		s := suite.Open(t, srv, zsync.WithTrace(&w))
		m := zsync.NewMutex(s, "/m", zsync.WithMaxHold(time.Second))
		harness.Must(t, m.Lock(t.Context()))
		srv.Intercept(harness.First(zktest.Delay(1100*time.Millisecond), harness.Op(zktest.OpSetData)))
		_, err := m.Token(t.Context())
		harness.WantErr(t, err, zsync.ErrLost)
		harness.WantErr(t, m.Unlock(), zsync.ErrLost)
		harness.Must(t, s.Close())
		f := w.File(t, "mine")
		if r := verify.Files([]*verify.File{f}, 0); len(r.Violations) > 0 || r.Losses != 1 {
			t.Errorf("%d losses, violations: %v", r.Losses, r.Violations)
		}
	})
}

// Equal paths below two chroots are two locks, which two processes may hold at once.
func TestTracesOfTwoChrootsAreOfTwoLocks(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var ws [2]suite.TraceBuffer
		for i, root := range []string{"/a", "/b"} {
			top := suite.Open(t, srv)
			_, err := top.Txn(t.Context(), &zk.CreateRequest{Path: root, Acl: zk.WorldACL(zk.PermAll)})
			harness.Must(t, err)
			s, err := zsync.Connect(t.Context(), srv.Addr()+root, zsync.WithDialer(srv.Dial), zsync.WithTrace(&ws[i]))
			harness.Must(t, err)
			defer s.Close()
			harness.Must(t, zsync.NewMutex(s, "/m").Lock(t.Context()))
		}
		time.Sleep(time.Second)
		r := verify.Files([]*verify.File{ws[0].File(t, "0"), ws[1].File(t, "1")}, 0)
		if !r.Whole() || r.Holds != 2 || r.Paths != 2 {
			t.Errorf("report: %+v", r)
		}
	})
}
