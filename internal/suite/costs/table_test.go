package costs

import (
	"context"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A cost is an operation of the table "Requests" in docs/costs.md. prepare
// gets the session that is charged, with another one beside it, and returns the
// operation. Paths have been made by then.
type cost struct {
	operation string
	prepare   func(t *testing.T, s, other *zsync.Session) (operation func())
}

var costs = []cost{
	{"`Mutex.Lock`, free", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewMutex(s, "/p/m")
		return func() { harness.Must(t, m.Lock(t.Context())) }
	}},
	{"`Mutex.Lock`, free, below three missing levels", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewMutex(s, "/p/x/y/z")
		return func() { harness.Must(t, m.Lock(t.Context())) }
	}},
	{"`Mutex.Lock`, behind a holder", func(t *testing.T, s, other *zsync.Session) func() {
		holder, m := zsync.NewMutex(other, "/p/m"), zsync.NewMutex(s, "/p/m")
		harness.Must(t, holder.Lock(t.Context()))
		return func() {
			locked := harness.Async(func() error { return m.Lock(t.Context()) })
			time.Sleep(100 * time.Millisecond) // it is in the line
			from = time.Now()
			harness.Must(t, holder.Unlock())
			harness.Must(t, <-locked)
		}
	}},
	{"`Mutex.Lock`, handed over in the process", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewMutex(s, "/p/m")
		harness.Must(t, m.Lock(t.Context()))
		return func() {
			locked := harness.Async(func() error { return m.Lock(t.Context()) })
			synctest.Wait()
			harness.Must(t, m.Unlock())
			harness.Must(t, <-locked)
		}
	}},
	{"`Mutex.Lock`, retained", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewMutex(s, "/p/m", zsync.WithRetention(time.Minute))
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		return func() { harness.Must(t, m.Lock(t.Context())) }
	}},
	{"`Mutex.Unlock`, keeping the place", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewMutex(s, "/p/m", zsync.WithRetention(time.Minute))
		harness.Must(t, m.Lock(t.Context()))
		return func() { harness.Must(t, m.Unlock()) }
	}},
	{"`Mutex.Lock`, the place kept elsewhere", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewMutex(other, "/p/m", zsync.WithRetention(time.Minute))
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		return func() { harness.Must(t, zsync.NewMutex(s, "/p/m").Lock(t.Context())) }
	}},
	{"`Mutex.TryLock`, the place kept elsewhere", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewMutex(other, "/p/m", zsync.WithRetention(time.Minute))
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		return func() {
			if ok, err := zsync.NewMutex(s, "/p/m").TryLock(t.Context()); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
	}},
	{"`Mutex.TryLock`, held elsewhere", func(t *testing.T, s, other *zsync.Session) func() {
		harness.Must(t, zsync.NewMutex(other, "/p/m").Lock(t.Context()))
		m := zsync.NewMutex(s, "/p/m")
		return func() {
			if ok, err := m.TryLock(t.Context()); ok || err != nil {
				t.Fatal(ok, err)
			}
		}
	}},
	{"`Mutex.TryLock`, free", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewMutex(s, "/p/m")
		return func() {
			if ok, err := m.TryLock(t.Context()); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
	}},
	{"`Mutex.Unlock`", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewMutex(s, "/p/m")
		harness.Must(t, m.Lock(t.Context()))
		return func() { harness.Must(t, m.Unlock()) }
	}},
	{"`Mutex.Token`, first of a hold", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewMutex(s, "/p/m")
		harness.Must(t, m.Lock(t.Context()))
		return func() { _, err := m.Token(t.Context()); harness.Must(t, err) }
	}},
	{"`Mutex.Token`, later", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewMutex(s, "/p/m")
		harness.Must(t, m.Lock(t.Context()))
		_, err := m.Token(t.Context())
		harness.Must(t, err)
		return func() { _, err := m.Token(t.Context()); harness.Must(t, err) }
	}},
	{"`Mutex.Txn`, the first of a session", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewMutex(s, "/p/m")
		harness.Must(t, m.Lock(t.Context()))
		return func() {
			_, err := m.Txn(t.Context(), &zk.CreateRequest{Path: "/p/x", Acl: zk.WorldACL(zk.PermAll)})
			harness.Must(t, err)
		}
	}},
	{"`Mutex.Txn`, later", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewMutex(s, "/p/m")
		harness.Must(t, m.Lock(t.Context()))
		_, err := m.Txn(t.Context(), &zk.CreateRequest{Path: "/p/x", Acl: zk.WorldACL(zk.PermAll)})
		harness.Must(t, err)
		return func() {
			_, err := m.Txn(t.Context(), &zk.CreateRequest{Path: "/p/y", Acl: zk.WorldACL(zk.PermAll)})
			harness.Must(t, err)
		}
	}},
	{"`Mutex.Revoke`", func(t *testing.T, s, other *zsync.Session) func() {
		harness.Must(t, zsync.NewMutex(other, "/p/m").Lock(t.Context()))
		return func() { harness.Must(t, zsync.NewMutex(s, "/p/m").Revoke(t.Context())) }
	}},
	{"`RWMutex.RLock`, free", func(t *testing.T, s, other *zsync.Session) func() {
		rw := zsync.NewRWMutex(s, "/p/rw")
		return func() { harness.Must(t, rw.RLock(t.Context())) }
	}},
	{"`RWMutex.RLock`, with a reader in the process", func(t *testing.T, s, other *zsync.Session) func() {
		rw := zsync.NewRWMutex(s, "/p/rw")
		harness.Must(t, rw.RLock(t.Context()))
		return func() { harness.Must(t, rw.RLock(t.Context())) }
	}},
	{"`RWMutex.RUnlock`, last reader of the process", func(t *testing.T, s, other *zsync.Session) func() {
		rw := zsync.NewRWMutex(s, "/p/rw")
		harness.Must(t, rw.RLock(t.Context()))
		return func() { harness.Must(t, rw.RUnlock()) }
	}},
	{"`RWMutex.Downgrade`", func(t *testing.T, s, other *zsync.Session) func() {
		rw := zsync.NewRWMutex(s, "/p/rw")
		harness.Must(t, rw.Lock(t.Context()))
		return func() { harness.Must(t, rw.Downgrade(t.Context())) }
	}},
	{"`Semaphore.Acquire`, free", func(t *testing.T, s, other *zsync.Session) func() {
		sem := zsync.NewSemaphore(s, "/p/sem", 3)
		harness.Must(t, zsync.NewSemaphore(other, "/p/sem", 3).Acquire(t.Context(), 1))
		harness.Must(t, sem.Acquire(t.Context(), 1))
		return func() { harness.Must(t, sem.Acquire(t.Context(), 1)) }
	}},
	{"`Semaphore.Release`, all of one Acquire", func(t *testing.T, s, other *zsync.Session) func() {
		sem := zsync.NewSemaphore(s, "/p/sem", 3)
		harness.Must(t, sem.Acquire(t.Context(), 1))
		return func() { harness.Must(t, sem.Release(1)) }
	}},
	{"`Semaphore.Txn`, the first of a session", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewSemaphore(s, "/p/sem", 3)
		harness.Must(t, m.Acquire(t.Context(), 2))
		return func() {
			_, err := m.Txn(t.Context(), &zk.CreateRequest{Path: "/p/x", Acl: zk.WorldACL(zk.PermAll)})
			harness.Must(t, err)
		}
	}},
	{"`Semaphore.Token`, first after an Acquire", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewSemaphore(s, "/p/sem", 3)
		harness.Must(t, m.Acquire(t.Context(), 2))
		return func() { _, err := m.Token(t.Context()); harness.Must(t, err) }
	}},
	{"`Semaphore.Resize`", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewSemaphore(s, "/p/sem", 2)
		harness.Must(t, m.Resize(t.Context(), 3))
		return func() { harness.Must(t, m.Resize(t.Context(), 4)) }
	}},
	{"`WaitGroup.Add`", func(t *testing.T, s, other *zsync.Session) func() {
		wg := zsync.NewWaitGroup(s, "/p/wg")
		harness.Must(t, wg.Add(t.Context(), 1))
		return func() { harness.Must(t, wg.Add(t.Context(), 1)) }
	}},
	{"`WaitGroup.Done`", func(t *testing.T, s, other *zsync.Session) func() {
		wg := zsync.NewWaitGroup(s, "/p/wg")
		harness.Must(t, wg.Add(t.Context(), 2))
		return func() { harness.Must(t, wg.Done()) }
	}},
	{"`WaitGroup.Wait`, nothing open", func(t *testing.T, s, other *zsync.Session) func() {
		wg := zsync.NewWaitGroup(s, "/p/wg")
		return func() { harness.Must(t, wg.Wait(t.Context())) }
	}},
	{"`Once.Do`, the first", func(t *testing.T, s, other *zsync.Session) func() {
		o := zsync.NewOnce(s, "/p/m") // a path that is there
		return func() { harness.Must(t, o.Do(t.Context(), nothing)) }
	}},
	{"`OnceValue`, the first", func(t *testing.T, s, other *zsync.Session) func() {
		get := zsync.OnceValue(s, "/p/m", func(context.Context) (int, error) { return 1, nil })
		return func() { _, err := get(t.Context()); harness.Must(t, err) }
	}},
	{"`OnceValue`, done in another", func(t *testing.T, s, other *zsync.Session) func() {
		one := func(context.Context) (int, error) { return 1, nil }
		_, err := zsync.OnceValue(other, "/p/m", one)(t.Context())
		harness.Must(t, err)
		get := zsync.OnceValue(s, "/p/m", one)
		return func() { _, err := get(t.Context()); harness.Must(t, err) }
	}},
	{"`Once.Do`, done in this process", func(t *testing.T, s, other *zsync.Session) func() {
		o := zsync.NewOnce(s, "/p/once")
		harness.Must(t, o.Do(t.Context(), nothing))
		return func() { harness.Must(t, o.Do(t.Context(), nothing)) }
	}},
	{"`Once.Do`, done in another", func(t *testing.T, s, other *zsync.Session) func() {
		harness.Must(t, zsync.NewOnce(other, "/p/once").Do(t.Context(), nothing))
		o := zsync.NewOnce(s, "/p/once")
		return func() { harness.Must(t, o.Do(t.Context(), nothing)) }
	}},
	{"`Cond.Signal`, one waits", func(t *testing.T, s, other *zsync.Session) func() {
		l := zsync.NewMutex(other, "/p/l")
		c := zsync.NewCond(other, "/p/cond", l)
		harness.Must(t, l.Lock(t.Context()))
		harness.Async(func() error { return c.Wait(t.Context()) })
		return func() { harness.Must(t, zsync.NewCond(s, "/p/cond", zsync.NewMutex(s, "/p/l")).Signal(t.Context())) }
	}},
	{"`Cond.Signal`, nobody waits", func(t *testing.T, s, other *zsync.Session) func() {
		return func() { harness.Must(t, zsync.NewCond(s, "/p/cond", zsync.NewMutex(s, "/p/l")).Signal(t.Context())) }
	}},
	{"`Election.Campaign`, free", func(t *testing.T, s, other *zsync.Session) func() {
		e := zsync.NewElection(s, "/p/e")
		return func() { harness.Must(t, e.Campaign(t.Context())) }
	}},
	{"`Election.Resign`", func(t *testing.T, s, other *zsync.Session) func() {
		e := zsync.NewElection(s, "/p/e")
		harness.Must(t, e.Campaign(t.Context()))
		return func() { harness.Must(t, e.Resign()) }
	}},
	{"`Election.Leader`, the first time", func(t *testing.T, s, other *zsync.Session) func() {
		harness.Must(t, zsync.NewElection(other, "/p/e").Campaign(t.Context()))
		e := zsync.NewElection(s, "/p/e")
		return func() { _, err := e.Leader(t.Context()); harness.Must(t, err) }
	}},
	{"`Election.Leader`, later", func(t *testing.T, s, other *zsync.Session) func() {
		harness.Must(t, zsync.NewElection(other, "/p/e").Campaign(t.Context()))
		e := zsync.NewElection(s, "/p/e")
		_, err := e.Leader(t.Context())
		harness.Must(t, err)
		return func() { _, err := e.Leader(t.Context()); harness.Must(t, err) }
	}},
	{"`Election.Observe`, while nothing changes", func(t *testing.T, s, other *zsync.Session) func() {
		harness.Must(t, zsync.NewElection(other, "/p/e").Campaign(t.Context()))
		<-zsync.NewElection(s, "/p/e").Observe(t.Context())
		return func() { idle() }
	}},
	{"`Barrier.Wait`, open", func(t *testing.T, s, other *zsync.Session) func() {
		return func() { harness.Must(t, zsync.NewBarrier(s, "/p/b").Wait(t.Context())) }
	}},
	{"`Barrier.Wait`, closed and then opened", func(t *testing.T, s, other *zsync.Session) func() {
		b := zsync.NewBarrier(other, "/p/b")
		harness.Must(t, b.Close(t.Context()))
		return func() {
			through := harness.Async(func() error { return zsync.NewBarrier(s, "/p/b").Wait(t.Context()) })
			time.Sleep(100 * time.Millisecond)
			from = time.Now()
			harness.Must(t, b.Open(t.Context()))
			harness.Must(t, <-through)
		}
	}},
	{"`Value.Load`", func(t *testing.T, s, other *zsync.Session) func() {
		v := zsync.NewValue[int](s, "/p/v")
		harness.Must(t, v.Store(t.Context(), 1))
		return func() { _, _, err := v.Load(t.Context()); harness.Must(t, err) }
	}},
	{"`Value.Store`", func(t *testing.T, s, other *zsync.Session) func() {
		v := zsync.NewValue[int](s, "/p/v")
		harness.Must(t, v.Store(t.Context(), 0))
		harness.Must(t, v.Store(t.Context(), 1))
		return func() { harness.Must(t, v.Store(t.Context(), 2)) }
	}},
	{"`Value.Store`, the first of a session", func(t *testing.T, s, other *zsync.Session) func() {
		harness.Must(t, zsync.NewValue[int](other, "/p/v").Store(t.Context(), 1))
		v := zsync.NewValue[int](s, "/p/v")
		return func() { harness.Must(t, v.Store(t.Context(), 2)) }
	}},
	{"`Value.Update`", func(t *testing.T, s, other *zsync.Session) func() {
		v := zsync.NewValue[int](s, "/p/v")
		harness.Must(t, v.Store(t.Context(), 1))
		return func() { _, err := v.Update(t.Context(), increment); harness.Must(t, err) }
	}},
	{"`Map.Load`", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewMap[int](s, "/p/map")
		harness.Must(t, m.Store(t.Context(), "k", 1))
		return func() { _, _, err := m.Load(t.Context(), "k"); harness.Must(t, err) }
	}},
	{"`Map.Store`", func(t *testing.T, s, other *zsync.Session) func() {
		m := mapInUse(t, s)
		return func() { harness.Must(t, m.Store(t.Context(), "k", 2)) }
	}},
	{"`Map.CompareAndSwap`", func(t *testing.T, s, other *zsync.Session) func() {
		m := mapInUse(t, s)
		_, version, err := m.Load(t.Context(), "k")
		harness.Must(t, err)
		return func() { _, err := m.CompareAndSwap(t.Context(), "k", version, 2); harness.Must(t, err) }
	}},
	{"`Map.LoadOrStore`, of a new key", func(t *testing.T, s, other *zsync.Session) func() {
		m := mapInUse(t, s)
		return func() { _, _, err := m.LoadOrStore(t.Context(), "l", 2); harness.Must(t, err) }
	}},
	{"`Map.LoadAndDelete`", func(t *testing.T, s, other *zsync.Session) func() {
		m := mapInUse(t, s)
		return func() { _, _, err := m.LoadAndDelete(t.Context(), "k"); harness.Must(t, err) }
	}},
	{"`Map.Range`, three keys", func(t *testing.T, s, other *zsync.Session) func() {
		m := zsync.NewMap[int](s, "/p/map")
		for _, key := range []string{"k", "l", "m"} {
			harness.Must(t, m.Store(t.Context(), key, 1))
		}
		return func() { harness.Must(t, m.Range(t.Context(), func(string, int) bool { return true })) }
	}},
	{"`Map.Watch`, while nothing changes", func(t *testing.T, s, other *zsync.Session) func() {
		harness.Must(t, zsync.NewMap[int](other, "/p/map").Store(t.Context(), "k", 1))
		<-zsync.NewMap[int](s, "/p/map").Watch(t.Context())
		return func() { idle() }
	}},
	{"`Int64.Load`", func(t *testing.T, s, other *zsync.Session) func() {
		n := zsync.NewInt64(s, "/p/n")
		harness.Must(t, n.Store(t.Context(), 1))
		return func() { _, err := n.Load(t.Context()); harness.Must(t, err) }
	}},
	{"`Int64.CompareAndSwap`", func(t *testing.T, s, other *zsync.Session) func() {
		n := zsync.NewInt64(s, "/p/n")
		harness.Must(t, n.Store(t.Context(), 1))
		return func() { _, err := n.CompareAndSwap(t.Context(), 1, 2); harness.Must(t, err) }
	}},
	{"`Int64.CompareAndSwap`, of another number", func(t *testing.T, s, other *zsync.Session) func() {
		n := zsync.NewInt64(s, "/p/n")
		harness.Must(t, n.Store(t.Context(), 1))
		return func() { _, err := n.CompareAndSwap(t.Context(), 2, 3); harness.Must(t, err) }
	}},
	{"`Group.Watch`, while nothing changes", func(t *testing.T, s, other *zsync.Session) func() {
		_, err := zsync.NewGroup[int](other, "/p/group").Join(t.Context(), "other", 1)
		harness.Must(t, err)
		<-zsync.NewGroup[int](s, "/p/group").Watch(t.Context())
		return func() { idle() }
	}},
	{"`Schedule.Do`, done in this process", func(t *testing.T, s, other *zsync.Session) func() {
		c, today := zsync.NewSchedule(s, "/p/jobs"), time.Now() // what lies far ahead is not remembered
		do := func() {
			_, err := c.Do(t.Context(), today, func(context.Context) error { return nil })
			harness.Must(t, err)
		}
		do()
		return do
	}},
	{"`Int64.Add`", func(t *testing.T, s, other *zsync.Session) func() {
		n := zsync.NewInt64(s, "/p/n")
		harness.Must(t, n.Store(t.Context(), 1))
		return func() { _, err := n.Add(t.Context(), 1); harness.Must(t, err) }
	}},
	{"`Schedule.Do`, done in another process", func(t *testing.T, s, other *zsync.Session) func() {
		_, err := zsync.NewSchedule(other, "/p/jobs").Do(t.Context(), noon, func(context.Context) error { return nil })
		harness.Must(t, err)
		c := zsync.NewSchedule(s, "/p/jobs")
		return func() {
			_, err := c.Do(t.Context(), noon, func(context.Context) error { return nil })
			harness.Must(t, err)
		}
	}},
	{"`Flight.Do`, with a result", func(t *testing.T, s, other *zsync.Session) func() {
		one := func(context.Context) (int, error) { return 1, nil }
		_, _, err := zsync.NewFlight[int](other, "/p/f", time.Minute).Do(t.Context(), "k", one)
		harness.Must(t, err)
		f := zsync.NewFlight[int](s, "/p/f", time.Minute)
		return func() { _, _, err := f.Do(t.Context(), "k", one); harness.Must(t, err) }
	}},
	{"`Flight.Do`, which runs the function", func(t *testing.T, s, other *zsync.Session) func() {
		f := zsync.NewFlight[int](s, "/p/f", 2*time.Second)
		do := func() {
			_, _, err := f.Do(t.Context(), "k", func(context.Context) (int, error) { return 1, nil })
			harness.Must(t, err)
		}
		do() // the paths are there
		time.Sleep(1500 * time.Millisecond)
		return do // half a second after the time of the result, and before it is deleted
	}},
	{"`Group.Join`", func(t *testing.T, s, other *zsync.Session) func() {
		_, err := zsync.NewGroup[int](other, "/p/group").Join(t.Context(), "other", 1)
		harness.Must(t, err)
		g := zsync.NewGroup[int](s, "/p/group")
		return func() { _, err := g.Join(t.Context(), "me", 1); harness.Must(t, err) }
	}},
	{"`Membership.Leave`", func(t *testing.T, s, other *zsync.Session) func() {
		m, err := zsync.NewGroup[int](s, "/p/group").Join(t.Context(), "me", 1)
		harness.Must(t, err)
		return func() { harness.Must(t, m.Leave()) }
	}},
	{"`Membership.Set`", func(t *testing.T, s, other *zsync.Session) func() {
		m, err := zsync.NewGroup[int](s, "/p/group").Join(t.Context(), "me", 1)
		harness.Must(t, err)
		return func() { harness.Must(t, m.Set(t.Context(), 2)) }
	}},
	{"`Group.Members`", func(t *testing.T, s, other *zsync.Session) func() {
		g := zsync.NewGroup[int](s, "/p/group")
		_, err := g.Join(t.Context(), "me", 1)
		harness.Must(t, err)
		return func() { _, err := g.Members(t.Context()); harness.Must(t, err) }
	}},
	{"`LockAllContext`, two free locks", func(t *testing.T, s, other *zsync.Session) func() {
		ls := free(t, s, 2)
		return func() { _, _, err := zsync.LockAllContext(t.Context(), ls...); harness.Must(t, err) }
	}},
	{"`LockAll`, five free locks", func(t *testing.T, s, other *zsync.Session) func() {
		ls := free(t, s, 5)
		return func() { _, err := zsync.LockAll(t.Context(), ls...); harness.Must(t, err) }
	}},
	{"`LockAll`, the first of three held elsewhere", func(t *testing.T, s, other *zsync.Session) func() {
		ls, holder := free(t, s, 3), zsync.NewMutex(other, "/p/a")
		harness.Must(t, holder.Lock(t.Context()))
		return func() {
			locked := harness.Async(func() error { _, err := zsync.LockAll(t.Context(), ls...); return err })
			time.Sleep(100 * time.Millisecond) // it is in the line
			from = time.Now()
			harness.Must(t, holder.Unlock())
			harness.Must(t, <-locked)
		}
	}},
	{"the unlock of `LockAll`, five locks", func(t *testing.T, s, other *zsync.Session) func() {
		unlock, err := zsync.LockAll(t.Context(), free(t, s, 5)...)
		harness.Must(t, err)
		return func() { harness.Must(t, unlock()) }
	}},
	{"`Election.Transfer`, to the next in the line", func(t *testing.T, s, other *zsync.Session) func() {
		e := zsync.NewElection(s, "/p/e")
		harness.Must(t, e.Campaign(t.Context()))
		waits := harness.Async(func() error { return zsync.NewElection(other, "/p/e").Campaign(t.Context()) })
		time.Sleep(time.Second)
		all, err := e.Contenders(t.Context())
		harness.Must(t, err)
		return func() {
			from = time.Now()
			harness.Must(t, e.Transfer(t.Context(), all[1]))
			harness.Must(t, <-waits)
		}
	}},
	{"`Partition.Run`, until one shard is owned", func(t *testing.T, s, other *zsync.Session) func() {
		stop := ownAll(t, s, "a") // the paths are there
		stop()
		return func() { ownAll(t, s, "a") }
	}},
	{"`Value.Watch`, while nothing changes", func(t *testing.T, s, other *zsync.Session) func() {
		harness.Must(t, zsync.NewValue[int](other, "/p/v").Store(t.Context(), 1))
		<-zsync.NewValue[int](s, "/p/v").Watch(t.Context())
		return func() { idle() }
	}},
	{"`Delivery.Ack`", func(t *testing.T, s, other *zsync.Session) func() {
		d := waitingDelivery(t, s)
		return func() { harness.Must(t, d.Ack(t.Context())) }
	}},
	{"`Delivery.Txn`, with writes", func(t *testing.T, s, other *zsync.Session) func() {
		d := waitingDelivery(t, s)
		return func() {
			_, err := d.Txn(t.Context(), &zk.CreateRequest{Path: "/done"}, &zk.SetDataRequest{Path: "/p", Version: -1})
			harness.Must(t, err)
		}
	}},
	{"`Delivery.Txn`, with a Send", func(t *testing.T, s, other *zsync.Session) func() {
		to := zsync.NewQueue[int](s, "/p/to")
		harness.Must(t, to.Send(t.Context(), 1))
		d := waitingDelivery(t, s)
		return func() { _, err := d.Txn(t.Context(), to.SendOp(2)); harness.Must(t, err) }
	}},
	{"`Queue.SendID`", func(t *testing.T, s, other *zsync.Session) func() {
		q := zsync.NewQueue[int](s, "/p/q")
		_, err := q.SendID(t.Context(), "a", 1)
		harness.Must(t, err)
		makeZnode(t, other, "/p/q-ids/3e") // that of b
		return func() { _, err := q.SendID(t.Context(), "b", 1); harness.Must(t, err) }
	}},
	{"`Queue.Cancel`", func(t *testing.T, s, other *zsync.Session) func() {
		q := zsync.NewQueue[int](s, "/p/q")
		_, err := q.SendID(t.Context(), "a", 1)
		harness.Must(t, err)
		makeZnode(t, other, "/p/q-receipts/other") // so that the container stays
		time.Sleep(time.Minute)
		return func() { _, err := q.Cancel(t.Context(), "a"); harness.Must(t, err) }
	}},
	{"`Session.Txn`, with a Send", func(t *testing.T, s, other *zsync.Session) func() {
		to := zsync.NewQueue[int](s, "/p/to")
		harness.Must(t, to.Send(t.Context(), 1))
		_, err := s.Txn(t.Context(), &zk.CheckVersionRequest{Path: "/p", Version: -1})
		harness.Must(t, err)
		return func() {
			_, err := s.Txn(t.Context(), &zk.SetDataRequest{Path: "/p", Version: -1}, to.SendOp(2))
			harness.Must(t, err)
		}
	}},
	{"`Queue.Pause`", func(t *testing.T, s, other *zsync.Session) func() {
		q := zsync.NewQueue[int](s, "/p/q")
		harness.Must(t, q.Send(t.Context(), 1))
		harness.Must(t, q.Pause(t.Context()))
		harness.Must(t, q.Resume(t.Context()))
		return func() { harness.Must(t, q.Pause(t.Context())) }
	}},
	{"`Queue.Resume`", func(t *testing.T, s, other *zsync.Session) func() {
		q := zsync.NewQueue[int](s, "/p/q")
		harness.Must(t, q.Pause(t.Context()))
		return func() { harness.Must(t, q.Resume(t.Context())) }
	}},
	{"`Queue.Recv`, while nothing comes", func(t *testing.T, s, other *zsync.Session) func() {
		ctx, cancel := context.WithCancel(t.Context())
		ch := zsync.NewQueue[int](s, "/p/q").Recv(ctx)
		t.Cleanup(func() {
			cancel()
			for range ch {
			}
		})
		return func() { idle() }
	}},
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func nothing(context.Context) error { return nil }

func increment(n int) (int, error) { return n + 1, nil }

func makeZnode(t *testing.T, s *zsync.Session, path string) {
	_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: path})
	harness.Must(t, err)
}

// waitingDelivery returns a delivery whose consumer waits for another.
func waitingDelivery(t *testing.T, s *zsync.Session) zsync.Delivery[int] {
	q := zsync.NewQueue[int](s, "/p/q")
	harness.Must(t, q.Send(t.Context(), 1))
	ctx, cancel := context.WithCancel(t.Context())
	ch := q.Deliveries(ctx)
	d := <-ch
	t.Cleanup(func() {
		cancel()
		for range ch {
		}
	})
	time.Sleep(time.Second)
	return d
}

// idle lets an hour pass.
func idle() {
	time.Sleep(time.Hour)
	from = time.Now()
}

// free are n locks of s whose paths are there.
func free(t *testing.T, s *zsync.Session, n int) (ls []zsync.Locker) {
	for i := range n {
		m := zsync.NewMutex(s, "/p/"+string(rune('a'+i)))
		harness.Must(t, m.Lock(t.Context()))
		harness.Must(t, m.Unlock())
		ls = append(ls, m)
	}
	return ls
}

// from is when the round trips of the operation that is measured begin to count:
// when it began, or when what it waits for was begun.
var from time.Time

// TestRequestCountsAreThoseOfTheTable measures each row of the table "Requests"
// in docs/costs.md. Requests in the background count, pings do not. Round
// trips are the time that the operation takes where nothing but the way takes
// time.
func TestRequestCountsAreThoseOfTheTable(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/costs.md")
	harness.Must(t, err)
	_, section, _ := strings.Cut(string(doc), "\n## Requests\n")
	section, _, _ = strings.Cut(section, "\nCosts that depend on")
	row := regexp.MustCompile(`(?m)^\| (.+?) \| (\d+) \| (\d+) \|`)
	type figures struct{ requests, trips int64 }
	table := make(map[string]figures)
	for _, m := range row.FindAllStringSubmatch(section, -1) {
		requests, _ := strconv.ParseInt(m[2], 10, 64)
		trips, _ := strconv.ParseInt(m[3], 10, 64)
		table[m[1]] = figures{requests, trips}
	}
	for _, c := range costs {
		want, ok := table[c.operation]
		if delete(table, c.operation); !ok {
			t.Errorf("the table has no row %q", c.operation)
		}
		t.Run(c.operation, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s, f := c.begin(t, srv)
				// Without latency it is the processor that decides which of two
				// requests of different goroutines comes first. What is held for
				// 10 ms costs a watch, which is in no row.
				const latency = 2 * time.Millisecond
				srv.SetLatency(latency)
				before := s.Stats().Requests
				from = time.Now()
				f()
				took := time.Since(from)
				synctest.Wait()
				if got := s.Stats().Requests - before; got != want.requests {
					t.Errorf("%d requests, want %d", got, want.requests)
				}
				if got := int64(took / latency); got != want.trips || took%latency > latency/4 {
					t.Errorf("%v with a latency of %v: %d round trips, want %d", took, latency, got, want.trips)
				}
				srv.SetLatency(0)
			})
		})
	}
	for operation := range table {
		t.Errorf("row %q is not measured", operation)
	}
}

// ownAll takes part in a Partition, returns when it owns the shards, and stops on
// demand.
func ownAll(t *testing.T, s *zsync.Session, shards ...string) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	owned := make(chan struct{}, len(shards))
	done := harness.Async(func() error {
		return zsync.NewPartition(s, "/p/shards").Run(ctx, shards, func(ctx context.Context, _ string) error {
			owned <- struct{}{}
			<-ctx.Done()
			return nil
		})
	})
	for range shards {
		<-owned
	}
	return func() {
		cancel()
		<-done
	}
}

// begin prepares the operation, and returns the session that is charged.
func (c cost) begin(t *testing.T, srv *zktest.Server) (*zsync.Session, func()) {
	s, other := suite.Open(t, srv), suite.Open(t, srv)
	harness.Must(t, zsync.NewMutex(other, "/p/keep").Lock(t.Context()))
	for _, f := range []func(){
		func() {
			m := zsync.NewMutex(s, "/p/m")
			harness.Must(t, m.Lock(t.Context()))
			harness.Must(t, m.Unlock())
		},
		func() {
			m := zsync.NewRWMutex(s, "/p/rw")
			harness.Must(t, m.Lock(t.Context()))
			harness.Must(t, m.Unlock())
		},
		func() {
			e := zsync.NewElection(s, "/p/e")
			harness.Must(t, e.Campaign(t.Context()))
			harness.Must(t, e.Resign())
		},
	} {
		f()
	}
	f := c.prepare(t, s, other)
	time.Sleep(1100 * time.Millisecond) // what is held is watched by then
	return s, f
}

// mapInUse returns a Map whose session has written its key "k" before, as what is there.
func mapInUse(t *testing.T, s *zsync.Session) *zsync.Map[int] {
	m := zsync.NewMap[int](s, "/p/map")
	for n := range 2 {
		harness.Must(t, m.Store(t.Context(), "k", n))
	}
	return m
}
