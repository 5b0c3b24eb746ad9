package lag

import (
	"context"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// Whoever asks a server that lags must not be answered from the past: each of
// these is asked, through such a server, after a change that has returned.
func TestNothingIsAnsweredFromThePast(t *testing.T) {
	var stored zsync.Version
	for _, c := range []struct {
		name   string
		change func(t *testing.T, s *zsync.Session)
		ask    func(t *testing.T, s *zsync.Session)
	}{{
		"TryLock after Unlock",
		func(t *testing.T, s *zsync.Session) {
			m := zsync.NewMutex(s, "/p")
			harness.Must(t, m.Lock(t.Context()))
			time.Sleep(time.Minute) // the other server has heard of this
			harness.Must(t, m.Unlock())
		},
		func(t *testing.T, s *zsync.Session) {
			ok, err := zsync.NewMutex(s, "/p").TryLock(t.Context())
			if harness.Must(t, err); !ok {
				t.Error("not locked, though it is free")
			}
		},
	}, {
		"TryLock after Lock",
		func(t *testing.T, s *zsync.Session) { harness.Must(t, zsync.NewMutex(s, "/p").Lock(t.Context())) },
		func(t *testing.T, s *zsync.Session) {
			ok, err := zsync.NewMutex(s, "/p").TryLock(t.Context())
			if harness.Must(t, err); ok {
				t.Error("locked, though it is held")
			}
		},
	}, {
		"TryRLock after Unlock",
		func(t *testing.T, s *zsync.Session) {
			rw := zsync.NewRWMutex(s, "/p")
			harness.Must(t, rw.Lock(t.Context()))
			time.Sleep(time.Minute)
			harness.Must(t, rw.Unlock())
		},
		func(t *testing.T, s *zsync.Session) {
			ok, err := zsync.NewRWMutex(s, "/p").TryRLock(t.Context())
			if harness.Must(t, err); !ok {
				t.Error("not locked, though it is free")
			}
		},
	}, {
		"TryAcquire after Release",
		func(t *testing.T, s *zsync.Session) {
			m := zsync.NewSemaphore(s, "/p", 2)
			harness.Must(t, m.Acquire(t.Context(), 2))
			time.Sleep(time.Minute)
			harness.Must(t, m.Release(2))
		},
		func(t *testing.T, s *zsync.Session) {
			ok, err := zsync.NewSemaphore(s, "/p", 2).TryAcquire(t.Context(), 2)
			if harness.Must(t, err); !ok {
				t.Error("not acquired, though they are free")
			}
		},
	}, {
		"Barrier.Wait after Close",
		func(t *testing.T, s *zsync.Session) { harness.Must(t, zsync.NewBarrier(s, "/p").Close(t.Context())) },
		func(t *testing.T, s *zsync.Session) {
			harness.PendingStill(t, harness.Async(func() error { return zsync.NewBarrier(s, "/p").Wait(t.Context()) }))
		},
	}, {
		"WaitGroup.Wait after Add",
		func(t *testing.T, s *zsync.Session) { harness.Must(t, zsync.NewWaitGroup(s, "/p").Add(t.Context(), 1)) },
		func(t *testing.T, s *zsync.Session) {
			wg := zsync.NewWaitGroup(s, "/p")
			suite.WantCount(t, wg, 1)
			harness.PendingStill(t, harness.Async(func() error { return wg.Wait(t.Context()) }))
		},
	}, {
		"Leader after Campaign",
		func(t *testing.T, s *zsync.Session) {
			harness.Must(t, zsync.NewElection(s, "/p", zsync.WithID("new")).Campaign(t.Context()))
		},
		func(t *testing.T, s *zsync.Session) {
			if l, err := zsync.NewElection(s, "/p").Leader(t.Context()); err != nil || l.Owner != "new" {
				t.Errorf("leader %+v, %v", l, err)
			}
		},
	}, {
		"Leader after Resign",
		func(t *testing.T, s *zsync.Session) {
			e := zsync.NewElection(s, "/p")
			harness.Must(t, e.Campaign(t.Context()))
			time.Sleep(time.Minute)
			harness.Must(t, e.Resign())
		},
		func(t *testing.T, s *zsync.Session) {
			_, err := zsync.NewElection(s, "/p").Leader(t.Context())
			harness.WantErr(t, err, zsync.ErrNoLeader)
		},
	}, {
		"Once.Done after Do",
		func(t *testing.T, s *zsync.Session) {
			harness.Must(t, zsync.NewOnce(s, "/p").Do(t.Context(), func(context.Context) error { return nil }))
		},
		func(t *testing.T, s *zsync.Session) {
			if done, err := zsync.NewOnce(s, "/p").Done(t.Context()); err != nil || !done {
				t.Errorf("done %v, %v", done, err)
			}
		},
	}, {
		"Value.Load after Store",
		func(t *testing.T, s *zsync.Session) {
			harness.Must(t, zsync.NewValue[int](s, "/p").Store(t.Context(), 7))
		},
		func(t *testing.T, s *zsync.Session) {
			if x, _, err := zsync.NewValue[int](s, "/p").Load(t.Context()); err != nil || x != 7 {
				t.Errorf("value %v, %v", x, err)
			}
		},
	}, {
		"TryRecv after Send",
		func(t *testing.T, s *zsync.Session) {
			harness.Must(t, zsync.NewQueue[int](s, "/p").Send(t.Context(), 7))
		},
		func(t *testing.T, s *zsync.Session) {
			q := zsync.NewQueue[int](s, "/p")
			if n, err := q.Len(t.Context()); err != nil || n != 1 {
				t.Errorf("length %v, %v", n, err)
			}
			if x, ok, err := q.TryRecv(t.Context()); err != nil || !ok || x != 7 {
				t.Errorf("received %v, %v, %v", x, ok, err)
			}
		},
	}, {
		"Queue.Dead after Reject",
		func(t *testing.T, s *zsync.Session) {
			q := zsync.NewQueue[int](s, "/p")
			harness.Must(t, q.Send(t.Context(), 7))
			d, err := q.Receive(t.Context())
			harness.Must(t, err)
			time.Sleep(time.Minute)
			harness.Must(t, d.Reject(t.Context(), "bad"))
		},
		func(t *testing.T, s *zsync.Session) {
			if n, err := zsync.NewQueue[int](s, "/p").RequeueDead(t.Context(), nil); err != nil || n != 1 {
				t.Errorf("%d dead letters, %v", n, err)
			}
		},
	}, {
		"Map after Store",
		func(t *testing.T, s *zsync.Session) {
			harness.Must(t, zsync.NewMap[int](s, "/p").Store(t.Context(), "k", 7))
		},
		func(t *testing.T, s *zsync.Session) {
			m := zsync.NewMap[int](s, "/p")
			if x, _, err := m.Load(t.Context(), "k"); err != nil || x != 7 {
				t.Errorf("Load = %v, %v", x, err)
			}
		},
	}, {
		"Map.Len after Store",
		func(t *testing.T, s *zsync.Session) {
			harness.Must(t, zsync.NewMap[int](s, "/p").Store(t.Context(), "k", 7))
		},
		func(t *testing.T, s *zsync.Session) {
			if n, err := zsync.NewMap[int](s, "/p").Len(t.Context()); err != nil || n != 1 {
				t.Errorf("Len = %v, %v", n, err)
			}
		},
	}, {
		"Map.Range after Store",
		func(t *testing.T, s *zsync.Session) {
			harness.Must(t, zsync.NewMap[int](s, "/p").Store(t.Context(), "k", 7))
		},
		func(t *testing.T, s *zsync.Session) {
			sum := 0
			err := zsync.NewMap[int](s, "/p").Range(t.Context(), func(_ string, x int) bool { sum += x; return true })
			if err != nil || sum != 7 {
				t.Errorf("Range goes through %v, %v", sum, err)
			}
		},
	}, {
		"Map.Watch after Store",
		func(t *testing.T, s *zsync.Session) {
			harness.Must(t, zsync.NewMap[int](s, "/p").Store(t.Context(), "k", 7))
		},
		func(t *testing.T, s *zsync.Session) {
			if all := <-zsync.NewMap[int](s, "/p").Watch(t.Context()); all["k"] != 7 {
				t.Errorf("Watch begins with %v", all)
			}
		},
	}, {
		"Map.LoadOrStore after Store",
		func(t *testing.T, s *zsync.Session) {
			harness.Must(t, zsync.NewMap[int](s, "/p").Store(t.Context(), "k", 7))
		},
		func(t *testing.T, s *zsync.Session) {
			if x, loaded, err := zsync.NewMap[int](s, "/p").LoadOrStore(t.Context(), "k", 8); err != nil || x != 7 || !loaded {
				t.Errorf("LoadOrStore = %v, %v, %v", x, loaded, err)
			}
		},
	}, {
		"Map.LoadAndDelete after Store",
		func(t *testing.T, s *zsync.Session) {
			harness.Must(t, zsync.NewMap[int](s, "/p").Store(t.Context(), "k", 7))
		},
		func(t *testing.T, s *zsync.Session) {
			if x, loaded, err := zsync.NewMap[int](s, "/p").LoadAndDelete(t.Context(), "k"); err != nil || x != 7 || !loaded {
				t.Errorf("LoadAndDelete = %v, %v, %v", x, loaded, err)
			}
		},
	}, {
		"Map.Clear after Store",
		func(t *testing.T, s *zsync.Session) {
			harness.Must(t, zsync.NewMap[int](s, "/p").Store(t.Context(), "k", 7))
		},
		func(t *testing.T, s *zsync.Session) {
			m := zsync.NewMap[int](s, "/p")
			harness.Must(t, m.Clear(t.Context()))
			if n, err := m.Len(t.Context()); err != nil || n != 0 {
				t.Errorf("Len after Clear = %v, %v", n, err)
			}
		},
	}, {
		"Int64 after Store",
		func(t *testing.T, s *zsync.Session) {
			harness.Must(t, zsync.NewInt64(s, "/p").Store(t.Context(), 7))
		},
		func(t *testing.T, s *zsync.Session) {
			if x, err := zsync.NewInt64(s, "/p").Load(t.Context()); err != nil || x != 7 {
				t.Errorf("Load = %v, %v", x, err)
			}
		},
	}, {
		"Value.CompareAndSwap after Store",
		func(t *testing.T, s *zsync.Session) {
			v := zsync.NewValue[int](s, "/p")
			harness.Must(t, v.Store(t.Context(), 7))
			var err error
			_, stored, err = v.Load(t.Context())
			harness.Must(t, err)
		},
		func(t *testing.T, s *zsync.Session) {
			v := zsync.NewValue[int](s, "/p")
			if ok, err := v.CompareAndSwap(t.Context(), stored, 8); err != nil || !ok {
				t.Errorf("CompareAndSwap = %v, %v", ok, err)
			}
			if ok, err := v.CompareAndSwap(t.Context(), stored, 9); err != nil || ok {
				t.Errorf("CompareAndSwap of what was = %v, %v", ok, err)
			}
		},
	}, {
		"Int64.CompareAndSwap after Store",
		func(t *testing.T, s *zsync.Session) {
			harness.Must(t, zsync.NewInt64(s, "/p").Store(t.Context(), 7))
		},
		func(t *testing.T, s *zsync.Session) {
			n := zsync.NewInt64(s, "/p")
			if ok, err := n.CompareAndSwap(t.Context(), 0, 8); err != nil || ok {
				t.Errorf("CompareAndSwap of what was = %v, %v", ok, err)
			}
			if ok, err := n.CompareAndSwap(t.Context(), 7, 8); err != nil || !ok {
				t.Errorf("CompareAndSwap = %v, %v", ok, err)
			}
		},
	}, {
		"Group.Members after Join",
		func(t *testing.T, s *zsync.Session) {
			_, err := zsync.NewGroup[int](s, "/p").Join(t.Context(), "id", 7)
			harness.Must(t, err)
		},
		func(t *testing.T, s *zsync.Session) {
			if all, err := zsync.NewGroup[int](s, "/p").Members(t.Context()); err != nil || len(all) != 1 || all[0].Info != 7 {
				t.Errorf("Members = %v, %v", all, err)
			}
		},
	}, {
		"Group.Watch after Leave",
		func(t *testing.T, s *zsync.Session) {
			m, err := zsync.NewGroup[int](s, "/p").Join(t.Context(), "id", 7)
			harness.Must(t, err)
			time.Sleep(time.Minute) // the other server has heard of this
			harness.Must(t, m.Leave())
		},
		func(t *testing.T, s *zsync.Session) {
			if all := <-zsync.NewGroup[int](s, "/p").Watch(t.Context()); len(all) != 0 {
				t.Errorf("Watch begins with %v", all)
			}
		},
	}, {
		"Schedule after Do",
		func(t *testing.T, s *zsync.Session) {
			_, err := zsync.NewSchedule(s, "/p").Do(t.Context(), time.Unix(7, 0), func(context.Context) error { return nil })
			harness.Must(t, err)
		},
		func(t *testing.T, s *zsync.Session) {
			ran, err := zsync.NewSchedule(s, "/p").Do(t.Context(), time.Unix(7, 0), func(context.Context) error { return nil })
			if err != nil || ran {
				t.Errorf("Do = %v, %v, though it is done", ran, err)
			}
		},
	}, {
		"Schedule.Last after Do",
		func(t *testing.T, s *zsync.Session) {
			_, err := zsync.NewSchedule(s, "/p").Do(t.Context(), time.Unix(7, 0), func(context.Context) error { return nil })
			harness.Must(t, err)
		},
		func(t *testing.T, s *zsync.Session) {
			if last, err := zsync.NewSchedule(s, "/p").Last(t.Context()); err != nil || !last.Equal(time.Unix(7, 0)) {
				t.Errorf("Last = %v, %v", last, err)
			}
		},
	}, {
		"Flight.Do after Do",
		func(t *testing.T, s *zsync.Session) {
			_, _, err := zsync.NewFlight[int](s, "/p", time.Minute).Do(t.Context(), "k", func(context.Context) (int, error) { return 7, nil })
			harness.Must(t, err)
		},
		func(t *testing.T, s *zsync.Session) {
			x, shared, err := zsync.NewFlight[int](s, "/p", time.Minute).Do(t.Context(), "k", func(context.Context) (int, error) { return 8, nil })
			if err != nil || x != 7 || !shared {
				t.Errorf("Do = %v, %v, %v, though there is a result", x, shared, err)
			}
		},
	}, {
		"Mutex.Revoke after Lock",
		func(t *testing.T, s *zsync.Session) { harness.Must(t, zsync.NewMutex(s, "/p").Lock(t.Context())) },
		func(t *testing.T, s *zsync.Session) { harness.Must(t, zsync.NewMutex(s, "/p").Revoke(t.Context())) },
	}} {
		t.Run(c.name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				quick, slow := suite.OpenAt(t, srv, 0), suite.OpenAt(t, srv, 1)
				srv.SetLag(srv.Addrs()[1], 5*time.Second)
				c.change(t, quick)
				c.ask(t, slow)
			}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2"))
		})
	}
}
