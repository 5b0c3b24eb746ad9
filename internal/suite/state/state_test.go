package state

import (
	"context"
	"errors"
	"path"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A kind of state: store stores it, in the znode at the path, and there reports whether it is
// there.
type kind struct {
	znode string
	store func(ctx context.Context, s *zsync.Session, znode string) error
	there func(ctx context.Context, s *zsync.Session, znode string) (bool, error)
}

// has reports whether want was read.
func has[T comparable](got, want T, err error) (bool, error) {
	if errors.Is(err, zsync.ErrNoValue) {
		err = nil
	}
	return err == nil && got == want, err
}

func mapOf(s *zsync.Session, znode string) (*zsync.Map[string], string) {
	return zsync.NewMap[string](s, path.Dir(znode)), path.Base(znode)
}

var states = map[string]kind{
	"Value": {"/x/y", func(ctx context.Context, s *zsync.Session, znode string) error {
		return zsync.NewValue[string](s, znode).Store(ctx, "kept")
	}, func(ctx context.Context, s *zsync.Session, znode string) (bool, error) {
		v, _, err := zsync.NewValue[string](s, znode).Load(ctx)
		return has(v, "kept", err)
	}},
	"Value, swapped in": {"/x/y", func(ctx context.Context, s *zsync.Session, znode string) error {
		_, err := zsync.NewValue[string](s, znode).Update(ctx, func(string) (string, error) { return "kept", nil })
		return err
	}, func(ctx context.Context, s *zsync.Session, znode string) (bool, error) {
		v, _, err := zsync.NewValue[string](s, znode).Load(ctx)
		return has(v, "kept", err)
	}},
	"Value of bytes": {"/x/y", func(ctx context.Context, s *zsync.Session, znode string) error {
		return zsync.NewValue[[]byte](s, znode, zsync.WithCodec(zsync.Raw)).Store(ctx, []byte("5"))
	}, func(ctx context.Context, s *zsync.Session, znode string) (bool, error) {
		v, _, err := zsync.NewValue[[]byte](s, znode, zsync.WithCodec(zsync.Raw)).Load(ctx)
		return has(string(v), "5", err)
	}},
	"Int64": {"/x/y", func(ctx context.Context, s *zsync.Session, znode string) error {
		_, err := zsync.NewInt64(s, znode).Add(ctx, 5)
		return err
	}, func(ctx context.Context, s *zsync.Session, znode string) (bool, error) {
		n, err := zsync.NewInt64(s, znode).Load(ctx)
		return has(n, 5, err)
	}},
	"Map": {"/x/y", func(ctx context.Context, s *zsync.Session, znode string) error {
		return zsync.NewMap[string](s, znode).Store(ctx, "k", "kept")
	}, func(ctx context.Context, s *zsync.Session, znode string) (bool, error) {
		v, _, err := zsync.NewMap[string](s, znode).Load(ctx, "k")
		return has(v, "kept", err)
	}},
	"key of a Map": {"/x/y", func(ctx context.Context, s *zsync.Session, znode string) error {
		m, key := mapOf(s, znode)
		return m.Store(ctx, key, "kept")
	}, func(ctx context.Context, s *zsync.Session, znode string) (bool, error) {
		m, key := mapOf(s, znode)
		v, _, err := m.Load(ctx, key)
		return has(v, "kept", err)
	}},
	"key of a Map, if it is not there": {"/x/y", func(ctx context.Context, s *zsync.Session, znode string) error {
		m, key := mapOf(s, znode)
		_, _, err := m.LoadOrStore(ctx, key, "kept")
		return err
	}, func(ctx context.Context, s *zsync.Session, znode string) (bool, error) {
		m, key := mapOf(s, znode)
		v, _, err := m.Load(ctx, key)
		return has(v, "kept", err)
	}},
	"Barrier": {"/x/y", func(ctx context.Context, s *zsync.Session, znode string) error {
		return zsync.NewBarrier(s, znode).Close(ctx)
	}, func(ctx context.Context, s *zsync.Session, znode string) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		err := zsync.NewBarrier(s, znode).Wait(ctx)
		return errors.Is(err, context.DeadlineExceeded), nil
	}},
	"Once": {"/x/done", func(ctx context.Context, s *zsync.Session, znode string) error {
		return zsync.NewOnce(s, path.Dir(znode)).Do(ctx, func(context.Context) error { return nil })
	}, func(ctx context.Context, s *zsync.Session, znode string) (bool, error) {
		return zsync.NewOnce(s, path.Dir(znode)).Done(ctx)
	}},
	"OnceValue": {"/x/done", func(ctx context.Context, s *zsync.Session, znode string) error {
		_, err := zsync.OnceValue(s, path.Dir(znode), func(context.Context) (string, error) { return "kept", nil })(ctx)
		return err
	}, func(ctx context.Context, s *zsync.Session, znode string) (bool, error) {
		v, err := zsync.OnceValue(s, path.Dir(znode), func(context.Context) (string, error) { return "lost", nil })(ctx)
		return has(v, "kept", err)
	}},
	"Schedule": {"/x/last", func(ctx context.Context, s *zsync.Session, znode string) error {
		_, err := zsync.NewSchedule(s, path.Dir(znode)).Do(ctx, time.Unix(1e9, 0), func(context.Context) error { return nil })
		return err
	}, func(ctx context.Context, s *zsync.Session, znode string) (bool, error) {
		last, err := zsync.NewSchedule(s, path.Dir(znode)).Last(ctx)
		return has(last.Unix(), 1e9, err)
	}},
}

// A use of a directory at a path: it is there until leave is called. How use fails is its own
// affair: nothing has been stored.
type use func(ctx context.Context, s *zsync.Session, at string) (leave func(), err error)

// enter is a use by what waits, or runs, until its context ends.
func enter(ctx context.Context, f func(ctx context.Context) error) (leave func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	done := harness.Async(func() error { return f(ctx) })
	time.Sleep(time.Second)
	return func() {
		cancel()
		<-done
	}, nil
}

func untilEnd(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func lock(ctx context.Context, l zsync.Locker) (leave func(), err error) {
	return func() { l.Unlock() }, l.Lock(ctx)
}

func join(ctx context.Context, g *zsync.Group[string], id string) (leave func(), err error) {
	m, err := g.Join(ctx, id, "info")
	return func() { m.Leave() }, err
}

var directories = map[string]use{
	"Mutex": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		return lock(ctx, zsync.NewMutex(s, at))
	},
	"Mutex of kazoo": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		return lock(ctx, zsync.NewMutex(s, at, zsync.WithLayout(zsync.LayoutKazoo)))
	},
	"RWMutex": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		return lock(ctx, zsync.NewRWMutex(s, at))
	},
	"Mutex below": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		return lock(ctx, zsync.NewMutex(s, at+"/lock"))
	},
	"Election": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		return enter(ctx, func(ctx context.Context) error { return zsync.NewElection(s, at).Run(ctx, untilEnd) })
	},
	"Semaphore": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		sem := zsync.NewSemaphore(s, at, 5)
		return func() { sem.Release(1) }, sem.Acquire(ctx, 1)
	},
	"Semaphore, resized": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		sem := zsync.NewSemaphore(s, at, 5)
		if err := sem.Resize(ctx, 3); err != nil {
			return nil, err
		}
		return func() { sem.Release(1) }, sem.Acquire(ctx, 1)
	},
	"tasks of a WaitGroup": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		wg := zsync.NewWaitGroup(s, at)
		return func() { wg.Done() }, wg.Add(ctx, 1)
	},
	"parties of a WaitGroup": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		wg := zsync.NewWaitGroup(s, at)
		return func() { wg.Leave(ctx) }, wg.Enter(ctx, 1)
	},
	"Cond": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		m := zsync.NewMutex(s, "/elsewhere")
		return enter(ctx, func(ctx context.Context) error {
			return m.Do(ctx, func(ctx context.Context) error { return zsync.NewCond(s, at, m).Wait(ctx) })
		})
	},
	"Once": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		return enter(ctx, func(ctx context.Context) error { return zsync.NewOnce(s, at).Do(ctx, untilEnd) })
	},
	"Schedule": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		return enter(ctx, func(ctx context.Context) error {
			_, err := zsync.NewSchedule(s, at).Do(ctx, time.Unix(1e9, 0), untilEnd)
			return err
		})
	},
	"Flight": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		return enter(ctx, func(ctx context.Context) error {
			_, _, err := zsync.NewFlight[string](s, path.Dir(at), 0).Do(ctx, path.Base(at), func(ctx context.Context) (string, error) { return "", untilEnd(ctx) })
			return err
		})
	},
	"Group": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		return join(ctx, zsync.NewGroup[string](s, at), "me")
	},
	"Group of kazoo": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		return join(ctx, zsync.NewGroup[string](s, at, zsync.WithLayout(zsync.LayoutKazoo)), "me")
	},
	"member of a Group": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		ctx, cancel := context.WithTimeout(ctx, time.Hour) // Join waits if the znode exists, and the sessions ping meanwhile
		defer cancel()
		return join(ctx, zsync.NewGroup[string](s, path.Dir(at)), path.Base(at))
	},
	"Partition": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		return enter(ctx, func(ctx context.Context) error {
			return zsync.NewPartition(s, at).Run(ctx, []string{"a"}, func(ctx context.Context, _ string) error { return untilEnd(ctx) })
		})
	},
	"Queue": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		q := zsync.NewQueue[string](s, at)
		if err := q.Send(ctx, "element"); err != nil {
			return nil, err
		}
		return enter(ctx, func(ctx context.Context) error {
			for range q.Recv(ctx) {
			}
			return nil
		})
	},
	"Queue with keys": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		q := zsync.NewQueue[string](s, at, zsync.WithKey(func(v string) string { return v }))
		if err := q.Send(ctx, "element"); err != nil {
			return nil, err
		}
		return enter(ctx, func(ctx context.Context) error {
			for d := range q.Deliveries(ctx) {
				if d.Attempt == 1 {
					d.NackAfter(time.Second)
				} else {
					d.Ack(ctx)
				}
			}
			return nil
		})
	},
	"container of another program": func(ctx context.Context, s *zsync.Session, at string) (func(), error) {
		return foreign(ctx, s, at)
	},
}

// foreign is in the table for anotherProgram, which needs the test and its server.
var foreign use

// anotherProgram has another program create a container at a path, as Curator does, with a child.
func anotherProgram(t *testing.T, srv *zktest.Server) use {
	return func(_ context.Context, _ *zsync.Session, at string) (func(), error) {
		c := harness.Plain(t, srv)
		if _, err := c.CreateContainer(path.Dir(at), nil, zk.FlagContainer, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return nil, err
		}
		if _, err := c.CreateContainer(at, nil, zk.FlagContainer, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return nil, err
		}
		_, err := c.Create(at+"/child", nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll))
		return func() { c.Delete(at+"/child", -1) }, err
	}
}

// What was confirmed to be stored stays, or the call was refused, whatever has its directory at
// the same path: before, at the time, or after.
func TestWhatWasStoredStaysWhateverHasItsDirectoryThere(t *testing.T) {
	for stateName, state := range states {
		for dirName, use := range directories {
			for _, order := range []string{"made before", "made and left before", "made after", "made again after"} {
				t.Run(stateName+"/"+dirName+"/"+order, func(t *testing.T) {
					t.Parallel()
					harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
						use := use // each order has its own
						if dirName == "container of another program" {
							use = anotherProgram(t, srv)
						}
						attack(t, srv, state, use, order)
					})
				})
			}
		}
	}
}

func attack(t *testing.T, srv *zktest.Server, state kind, use use, order string) {
	ctx := harness.Within(t, 24*time.Hour)
	a, b := suite.Open(t, srv), suite.Open(t, srv)
	var leave func()
	visit := func() {
		var err error
		if leave, err = use(ctx, b, state.znode); err != nil {
			leave = nil
			t.Logf("the use: %v", err)
		}
	}
	depart := func() {
		if leave != nil {
			leave()
		}
		leave = nil
	}
	if order != "made after" {
		visit()
	}
	if order == "made and left before" || order == "made again after" {
		depart()
	}
	err := state.store(harness.Within(t, time.Minute), a, state.znode)
	stored := err == nil
	if err != nil && !errors.Is(err, zsync.ErrMixed) && !errors.Is(err, zsync.ErrInvalid) {
		t.Errorf("store: %v", err)
	}
	if order == "made after" || order == "made again after" {
		visit()
	}
	depart()
	if !stored {
		return
	}
	time.Sleep(10*time.Minute + 7*time.Second)
	for range 2 {
		if there, err := state.there(harness.Within(t, time.Minute), a, state.znode); !there || err != nil {
			t.Fatalf("what was confirmed is there: %v, %v", there, err)
		}
		b.Close()
		time.Sleep(10 * time.Minute)
	}
}
