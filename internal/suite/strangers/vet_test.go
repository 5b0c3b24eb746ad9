package strangers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// usersOf are operations that write, each below the path of its own name.
var usersOf = map[string]func(ctx context.Context, s *zsync.Session, path string) error{
	"mutex": func(ctx context.Context, s *zsync.Session, path string) error {
		m := zsync.NewMutex(s, path)
		if err := m.Lock(ctx); err != nil {
			return err
		}
		return m.Unlock()
	},
	"rwmutex": func(ctx context.Context, s *zsync.Session, path string) error {
		rw := zsync.NewRWMutex(s, path)
		if err := rw.RLock(ctx); err != nil {
			return err
		}
		return rw.RUnlock()
	},
	"election": func(ctx context.Context, s *zsync.Session, path string) error {
		e := zsync.NewElection(s, path)
		if err := e.Campaign(ctx); err != nil {
			return err
		}
		return e.Resign()
	},
	"semaphore": func(ctx context.Context, s *zsync.Session, path string) error {
		return zsync.NewSemaphore(s, path, 2).Do(ctx, 1, func(context.Context) error { return nil })
	},
	"once": func(ctx context.Context, s *zsync.Session, path string) error {
		return zsync.NewOnce(s, path).Do(ctx, func(context.Context) error { return nil })
	},
	"waitgroup": func(ctx context.Context, s *zsync.Session, path string) error {
		wg := zsync.NewWaitGroup(s, path)
		if err := wg.Add(ctx, 1); err != nil {
			return err
		}
		return wg.Done()
	},
	"parties": func(ctx context.Context, s *zsync.Session, path string) error {
		wg := zsync.NewWaitGroup(s, path)
		if err := wg.Enter(ctx, 1); err != nil {
			return err
		}
		return wg.Leave(ctx)
	},
	"value": func(ctx context.Context, s *zsync.Session, path string) error {
		return zsync.NewValue[int](s, path).Store(ctx, 1)
	},
	"barrier": func(ctx context.Context, s *zsync.Session, path string) error {
		return zsync.NewBarrier(s, path).Close(ctx)
	},
	"map": func(ctx context.Context, s *zsync.Session, path string) error {
		return zsync.NewMap[int](s, path).Store(ctx, "k", 1)
	},
	"schedule": func(ctx context.Context, s *zsync.Session, path string) error {
		_, err := zsync.NewSchedule(s, path).Do(ctx, suite.Noon, func(context.Context) error { return nil })
		return err
	},
	"group": func(ctx context.Context, s *zsync.Session, path string) error {
		m, err := zsync.NewGroup[int](s, path).Join(ctx, "me", 1)
		if err != nil {
			return err
		}
		return m.Leave()
	},
	"queue": func(ctx context.Context, s *zsync.Session, path string) error {
		q := zsync.NewQueue[int](s, path)
		if err := q.Send(ctx, 1); err != nil {
			return err
		}
		_, ok, err := q.TryRecv(ctx)
		if err == nil && !ok {
			return errors.New("nothing received")
		}
		return err
	},
	"cond": func(ctx context.Context, s *zsync.Session, path string) error {
		m := zsync.NewMutex(s, fmt.Sprintf("/lock-of-%x", s.ID()))
		if err := m.Lock(ctx); err != nil {
			return err
		}
		defer m.Unlock()
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		if err := zsync.NewCond(s, path, m).Wait(short); !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return nil
	},
	"flight": func(ctx context.Context, s *zsync.Session, path string) error {
		_, _, err := zsync.NewFlight[int](s, path, 0).Do(ctx, "k", func(context.Context) (int, error) { return 1, nil })
		return err
	},
	"int64": func(ctx context.Context, s *zsync.Session, path string) error {
		_, err := zsync.NewInt64(s, path).Add(ctx, 1)
		return err
	},
	"partition": func(ctx context.Context, s *zsync.Session, path string) error {
		enough := errors.New("enough")
		err := zsync.NewPartition(s, path).Run(ctx, []string{"a"}, func(context.Context, string) error { return enough })
		if errors.Is(err, enough) {
			return nil
		}
		return err
	},
}

func TestDirectoryThatAStrangerHasMadeIsRefused(t *testing.T) {
	t.Parallel()
	mine := zk.DigestACL(zk.PermAll, "me", "secret")
	both := append(zk.DigestACL(zk.PermAll, "other", "secret"), mine...)
	for name, use := range usersOf {
		for _, acl := range [][]zk.ACL{
			zk.WorldACL(zk.PermAll),
			zk.WorldACL(zk.PermDelete),
			both,
		} {
			t.Run(name, func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					ctx := t.Context()
					stranger := suite.Open(t, srv)
					_, err := stranger.Txn(ctx, &zk.CreateRequest{Path: "/p", Acl: acl})
					harness.Must(t, err)
					for _, own := range [][]zk.ACL{mine, zk.AuthACL(zk.PermAll)} {
						err := use(ctx, suite.OpenAs(t, srv, "me", own), "/p")
						if name == "int64" && acl[0].Perms == zk.PermDelete {
							harness.WantErr(t, err, zk.ErrNoAuth) // it reads first
							continue
						}
						harness.WantErr(t, err, zsync.ErrUnprotected)
					}
					other := name == "value" || name == "int64" || name == "barrier" // their receipts lie beside the path
					if !other && len(acl) == 1 && acl[0].Perms == zk.PermAll {
						harness.Must(t, use(ctx, stranger, "/p")) // who asks for nothing is not bothered
					}
				})
			})
		}
	}
}

// errgroup, say, cancels all with what the servers have refused to one.
func TestAContextThatEndsWithAnothersRefusalIsNoWordOnADirectory(t *testing.T) {
	for name, use := range usersOf {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				acl := zk.DigestACL(zk.PermAll, "me", "secret")
				s := suite.OpenAs(t, srv, "me", acl)
				harness.Must(t, use(t.Context(), s, "/p")) // which makes the directories
				s = suite.OpenAs(t, srv, "me", acl)
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == zktest.OpGetACL {
						return zktest.Hang
					}
					return zktest.Pass
				})
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(100*time.Millisecond, func() { cancel(zk.ErrNoAuth) })
				if err := use(ctx, s, "/p"); errors.Is(err, zsync.ErrUnprotected) {
					t.Errorf("ctx was cancelled, and it is said: %v", err)
				}
			})
		})
	}
}

// A queue has directories beside its path, each of which is vetted.
func TestQueueWhoseDirectoriesAStrangerHasMadeIsRefused(t *testing.T) {
	for _, suffix := range []string{"-live", "-receipts", "-ids", "-dead"} {
		t.Run(suffix, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				ctx := t.Context()
				stranger := suite.Open(t, srv)
				for _, path := range []string{"/q" + suffix, "/q" + suffix + "/dead-00000-0123456789abcdef0123456789abcdef-0000000000"} {
					_, err := stranger.Txn(ctx, &zk.CreateRequest{Path: path, Acl: zk.WorldACL(zk.PermAll)})
					harness.Must(t, err)
				}
				s := suite.OpenAs(t, srv, "me", zk.DigestACL(zk.PermAll, "me", "secret"))
				q := zsync.NewQueue[int](s, "/q")
				_, err := s.Txn(ctx, q.SendOp(1))
				harness.WantErr(t, err, zsync.ErrUnprotected)
				harness.WantErr(t, q.Send(ctx, 1), zsync.ErrUnprotected)
				if suffix == "-dead" {
					_, err := q.RequeueDead(ctx, nil)
					harness.WantErr(t, err, zsync.ErrUnprotected)
				}
			})
		})
	}
}

func TestDirectoryOfTheRightACLIsUsed(t *testing.T) {
	t.Parallel()
	mine := zk.DigestACL(zk.PermAll, "me", "secret")
	readable := append(zk.WorldACL(zk.PermRead), mine...)
	workers := zk.DigestACL(zk.PermAll&^zk.PermAdmin, "me", "secret") // their digest is shown as x
	for name, use := range usersOf {
		for _, acl := range [][]zk.ACL{mine, readable, append(workers, zk.DigestACL(zk.PermAdmin, "me", "secret")...), workers} {
			t.Run(name, func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					ctx := t.Context()
					if name != "value" && name != "int64" { // its znode would be a value
						_, err := suite.Open(t, srv).Txn(ctx, &zk.CreateRequest{Path: "/p", Acl: acl})
						harness.Must(t, err)
					}
					for _, own := range [][]zk.ACL{mine, zk.AuthACL(zk.PermAll)} {
						harness.Must(t, use(ctx, suite.OpenAs(t, srv, "me", own), "/p"))
					}
				})
			})
		}
	}
}

func TestWithAnACLDirectoriesStayAndKeepStrangersOut(t *testing.T) {
	t.Parallel()
	for name, use := range usersOf {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				ctx := t.Context()
				mine := zk.DigestACL(zk.PermAll, "me", "secret")
				s := suite.OpenAs(t, srv, "me", mine)
				harness.Must(t, use(ctx, s, "/a/p"))
				time.Sleep(time.Hour) // the servers have removed what is empty and may be removed
				acl, _, err := harness.Plain(t, srv, "me:secret").GetACL("/a/p")
				harness.Must(t, err)
				if !slices.Equal(acl, mine) {
					t.Errorf("its ACL is %v", acl)
				}
				if name == "once" { // that it is done is no secret: ZooKeeper tells everybody which znodes exist
					harness.Must(t, zsync.NewOnce(s, "/a/p").Reset(ctx))
				}
				stranger := suite.Open(t, srv)
				if err := use(ctx, stranger, "/a/p"); err == nil {
					t.Error("a stranger may use it")
				}
				harness.Must(t, use(ctx, s, "/a/p"))
				harness.Must(t, use(ctx, suite.OpenAs(t, srv, "me", mine), "/a/p"))
			})
		})
	}
}

func TestACLOfADirectoryIsAskedForOnceASession(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		mine := zk.DigestACL(zk.PermAll, "me", "secret")
		use := usersOf["mutex"]
		harness.Must(t, use(ctx, suite.OpenAs(t, srv, "me", mine), "/p"))
		count := func(s *zsync.Session) (n int) {
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpGetACL {
					n++
				}
				return zktest.Pass
			})
			for range 10 {
				harness.Must(t, use(ctx, s, "/p"))
			}
			return n
		}
		if n := count(suite.OpenAs(t, srv, "me", mine)); n != 1 {
			t.Errorf("with an ACL of one's own it is asked for %d times", n)
		}
		s := suite.OpenAs(t, srv, "me", zk.WorldACL(zk.PermAll))
		if n := count(s); n != 0 {
			t.Errorf("with the open ACL it is asked for %d times", n)
		}
	})
}

func TestWhatKazooSharesIsNotRemovedWhenItIsEmpty(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		use   func(ctx context.Context, s *zsync.Session) error
		paths []string
	}{
		"lock": {func(ctx context.Context, s *zsync.Session) error {
			return lockOnce(ctx, zsync.NewMutex(s, "/a/p", zsync.WithLayout(zsync.LayoutKazoo)))
		}, []string{"/a/p"}},
		"read lock": {func(ctx context.Context, s *zsync.Session) error {
			return lockOnce(ctx, zsync.NewRWMutex(s, "/a/p", zsync.WithLayout(zsync.LayoutKazoo)).RLocker())
		}, []string{"/a/p"}},
		"election": {func(ctx context.Context, s *zsync.Session) error {
			e := zsync.NewElection(s, "/a/p", zsync.WithLayout(zsync.LayoutKazoo))
			if err := e.Campaign(ctx); err != nil {
				return err
			}
			return e.Resign()
		}, []string{"/a/p"}},
		"semaphore": {func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewSemaphore(s, "/a/p", 2, zsync.WithLayout(zsync.LayoutKazoo)).Do(ctx, 1, func(context.Context) error { return nil })
		}, []string{"/a/p", "/a/p-__lock__"}},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv)
				harness.Must(t, c.use(t.Context(), s))
				harness.Must(t, lockOnce(t.Context(), zsync.NewMutex(s, "/b/p")))
				time.Sleep(time.Hour)
				if stat := suite.Exists(t, s, "/b/p"); stat != nil {
					t.Errorf("what nobody else shares stays: %v", stat)
				}
				for _, path := range c.paths {
					if stat := suite.Exists(t, s, path); stat == nil {
						t.Errorf("%s is gone", path)
					}
				}
			})
		})
	}
}

func TestAnEmptyZnodeIsNoValue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		ctx := t.Context()
		s := suite.Open(t, srv)
		for _, p := range []string{"/u", "/c", "/z", "/w", "/raw"} {
			_, err := s.Txn(ctx, &zk.CreateRequest{Path: p})
			harness.Must(t, err)
		}
		n, err := zsync.NewValue[int](s, "/u").Update(ctx, func(n int) (int, error) { return n + 1, nil })
		if harness.Must(t, err); n != 1 {
			t.Errorf("updated to %d, want 1", n)
		}
		c := zsync.NewValue[int](s, "/c")
		_, version, err := c.Load(ctx)
		harness.WantErr(t, err, zsync.ErrNoValue)
		if ok, err := c.CompareAndSwap(ctx, version, 2); !ok || err != nil {
			t.Errorf("swapped by its version: %v, %v", ok, err)
		}
		z := zsync.NewValue[int](s, "/z")
		if ok, err := z.CompareAndSwap(ctx, zsync.Version{}, 3); !ok || err != nil {
			t.Errorf("swapped as no value: %v, %v", ok, err)
		}
		if ok, err := z.CompareAndSwap(ctx, zsync.Version{}, 4); ok || err != nil {
			t.Errorf("swapped though there is a value: %v, %v", ok, err)
		}
		watch, stop := context.WithCancel(ctx)
		defer stop()
		values := zsync.NewValue[int](s, "/w").Watch(watch)
		time.Sleep(time.Second)
		harness.Must(t, zsync.NewValue[int](s, "/w").Store(ctx, 5))
		if x := <-values; x != 5 {
			t.Errorf("watched %d, want 5", x)
		}
		if x, _, err := zsync.NewValue[[]byte](s, "/raw", zsync.WithCodec(zsync.Raw)).Load(ctx); len(x) != 0 || err != nil {
			t.Errorf("to the raw codec it is %q, %v; want an empty value", x, err)
		}
	})
}

func TestAScheduleDoesNotBelieveARecordThatAStrangerMayWrite(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		stranger := suite.Open(t, srv)
		_, err := zsync.NewSchedule(stranger, "/p").Do(t.Context(), suite.Noon, func(context.Context) error { return nil })
		harness.Must(t, err)
		s := suite.OpenAs(t, srv, "me", zk.DigestACL(zk.PermAll, "me", "secret"))
		_, err = zsync.NewSchedule(s, "/p").Do(t.Context(), suite.Noon, func(context.Context) error { return nil })
		harness.WantErr(t, err, zsync.ErrUnprotected)
	})
}

func TestWhoAsksForTheLastInstantIsToldWhoeverHasMadeItAndRunsNothingForIt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		stranger := suite.Open(t, srv)
		_, err := zsync.NewSchedule(stranger, "/p").Do(t.Context(), suite.Noon, func(context.Context) error { return nil })
		harness.Must(t, err)
		c := zsync.NewSchedule(suite.OpenAs(t, srv, "me", zk.DigestACL(zk.PermAll, "me", "secret")), "/p")
		if last, err := c.Last(t.Context()); err != nil || !last.Equal(suite.Noon) {
			t.Errorf("the last is %v, %v; want %v", last, err, suite.Noon)
		}
		// What Last was told does not make Do believe that it has been done.
		_, err = c.Do(t.Context(), suite.Noon, func(context.Context) error { return nil })
		harness.WantErr(t, err, zsync.ErrUnprotected)
	})
}

func TestTheDirectoryOfAMapIsPersistent(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		m := zsync.NewMap[int](s, "/a/m")
		harness.Must(t, m.Store(t.Context(), "k", 1))
		_, version, err := m.Load(t.Context(), "k")
		harness.Must(t, err)
		harness.Must(t, m.Delete(t.Context(), "k"))
		time.Sleep(time.Hour) // the servers have removed what is empty and may be removed
		if stat := suite.Exists(t, s, "/a/m"); stat == nil {
			t.Error("its directory is gone")
		}
		if ok, err := m.CompareAndSwap(t.Context(), "k", version, 2); ok || err != nil {
			t.Errorf("swapped by the version of a deleted key: %v, %v", ok, err)
		}
	})
}

func TestThePathOfAQueueThatKazooSharesIsPersistent(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		q := zsync.NewQueue[string](s, "/a/q", zsync.WithQueueLayout(zsync.LayoutKazooQueue))
		harness.Must(t, q.Send(t.Context(), "x"))
		if v, ok, err := q.TryRecv(t.Context()); v != "x" || !ok || err != nil {
			t.Fatalf("TryRecv: %q, %v, %v", v, ok, err)
		}
		time.Sleep(time.Hour) // the servers have removed what is empty and may be removed
		if stat := suite.Exists(t, s, "/a/q"); stat == nil {
			t.Error("its path is gone")
		}
	})
}

func lockOnce(ctx context.Context, l zsync.Locker) error {
	if err := l.Lock(ctx); err != nil {
		return err
	}
	return l.Unlock()
}
