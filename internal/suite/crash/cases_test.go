package crash

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
)

// crashes returns the operations in which a process is killed: all but those
// that only read, and so have nothing to leave behind.
func crashes() []crash {
	var all []crash
	for _, some := range [][]crash{
		mutexCrashes, rwMutexCrashes, waitGroupCrashes, onceCrashes, condCrashes,
		electionCrashes, barrierCrashes, semaphoreCrashes, valueCrashes, sessionCrashes,
		partyCrashes, queueCrashes, mapCrashes, int64Crashes, scheduleCrashes, flightCrashes,
		groupCrashes, partitionCrashes, resizeCrashes, transferCrashes,
	} {
		all = append(all, some...)
	}
	return all
}

// A helper runs beside the child: see crash.
type helper func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error

// holdBeside holds what the child wants, until it waits for it or is gone.
func holdBeside(lock func(s *zsync.Session) zsync.Locker) helper {
	return func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		l := lock(s)
		if err := l.Lock(ctx); err != nil {
			return err
		}
		ready()
		child.awaitWait(ctx)
		return l.Unlock()
	}
}

// queueBeside waits behind the child, and gets what it waits for in the end.
func queueBeside(lock func(s *zsync.Session) zsync.Locker) helper {
	return behind(func(ctx context.Context, s *zsync.Session) error { return lockOnce(ctx, lock(s)) })
}

// behind does f when the child is prepared, and has it go on when f is in the
// line behind it.
func behind(f func(ctx context.Context, s *zsync.Session) error) helper {
	return func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		<-child.begun
		done := harness.Async(func() error { return f(context.WithoutCancel(ctx), s) })
		if err := crowd(ctx, 2); err != nil {
			return err
		}
		ready()
		return <-done
	}
}

// crowd waits until crashPath has n children.
func crowd(ctx context.Context, n int) error {
	for {
		names, err := childrenOf(ctx, crashPath)
		if len(names) >= n || err != nil {
			return err
		}
		time.Sleep(time.Millisecond) // real time: a process of its own makes the children
	}
}

// holdAndBeAsked holds what the child wants revoked until that is gone, and is then
// told of it if, and only if, its znode says so.
func holdAndBeAsked(ctx context.Context, s *zsync.Session, ready func(), _ *crashChild) error {
	m := zsync.NewMutex(s, crashPath)
	if err := m.Lock(ctx); err != nil {
		return err
	}
	asked := m.Revoked()
	ready()
	<-ctx.Done()
	return errors.Join(toldIfAsked(context.WithoutCancel(ctx), m, asked), m.Unlock())
}

// toldIfAsked fails unless the holder of m is told what its znode says. Others may
// have come to the line behind it.
func toldIfAsked(ctx context.Context, m *zsync.Mutex, asked <-chan struct{}) error {
	cs, err := m.Contenders(ctx)
	if err != nil || len(cs) == 0 {
		return fmt.Errorf("no holder: %v, %w", cs, err)
	}
	if cs[0].Owner == "__REVOKE__" {
		select {
		case <-asked:
		case <-time.After(crashBound / 2):
			return errors.New("the holder is not told what is written in its znode")
		}
		return nil
	}
	// The child is dead, so what it has not written it never will.
	select {
	case <-asked:
		return errors.New("the holder is asked, and nobody has written it")
	default:
	}
	return nil
}

// awaitWait returns when the child waits for something, or is gone.
func (c *crashChild) awaitWait(ctx context.Context) {
	select {
	case <-c.waits:
	case <-ctx.Done():
	}
}

// awaitRequests returns when the child has sent n requests since it began, or is gone.
func (c *crashChild) awaitRequests(ctx context.Context, n int) {
	for {
		c.mu.Lock()
		enough := c.seen >= n || c.killed
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
		if enough {
			return
		}
	}
}

func lockOnce(ctx context.Context, l zsync.Locker) error {
	ctx, cancel := context.WithTimeout(ctx, crashBound)
	defer cancel()
	if err := l.Lock(ctx); err != nil {
		return err
	}
	return l.Unlock()
}

func crashNothing(context.Context) error { return nil }

// mutex is the one that is tested, and afterMutex what must always be possible.
func crashMutex(s *zsync.Session) zsync.Locker { return zsync.NewMutex(s, crashPath) }

func afterMutex(ctx context.Context, s *zsync.Session) error {
	m := zsync.NewMutex(s, crashPath)
	if err := m.Lock(ctx); err != nil {
		return err
	}
	if _, err := m.Token(ctx); err != nil {
		return err
	}
	if err := m.Unlock(); err != nil {
		return err
	}
	ok, err := m.TryLock(ctx)
	if err == nil && !ok {
		err = errors.New("TryLock of a free Mutex is refused")
	}
	return errors.Join(err, m.Unlock())
}

// withMutex does an operation of a Mutex that the child holds.
func withMutex(f func(ctx context.Context, m *zsync.Mutex) error) func(context.Context, *zsync.Session, func()) error {
	return func(ctx context.Context, s *zsync.Session, begin func()) error {
		m := zsync.NewMutex(s, crashPath)
		if err := m.Lock(ctx); err != nil {
			return err
		}
		begin()
		return f(ctx, m)
	}
}

var mutexCrashes = []crash{{
	name: "Mutex.Lock",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewMutex(s, crashPath).Lock(ctx)
	},
	after:    afterMutex,
	requests: 2,
}, {
	name: "Mutex.Lock in a line",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewMutex(s, crashPath).Lock(ctx)
	},
	beside:   holdBeside(crashMutex),
	after:    afterMutex,
	requests: 3,
}, {
	name: "Mutex.TryLock",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		_, err := zsync.NewMutex(s, crashPath).TryLock(ctx)
		return err
	},
	after:    afterMutex,
	requests: 3,
}, {
	name:     "Mutex.Unlock",
	child:    withMutex(func(_ context.Context, m *zsync.Mutex) error { return m.Unlock() }),
	after:    afterMutex,
	requests: 1,
}, {
	name:     "Mutex.Unlock for one who waits",
	child:    withMutex(func(_ context.Context, m *zsync.Mutex) error { return m.Unlock() }),
	beside:   queueBeside(crashMutex),
	after:    afterMutex,
	requests: 1,
}, {
	name: "Mutex.Lock that keeps its place later",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		m := zsync.NewMutex(s, crashPath, zsync.WithRetention(time.Minute))
		for range 3 {
			if err := lockOnce(ctx, m); err != nil {
				return err
			}
		}
		_, err := s.Txn(ctx, &zk.CheckVersionRequest{Path: crashPath, Version: -1}) // killed while it keeps it
		return err
	},
	after:    afterMutex,
	requests: 3,
}, {
	name: "Mutex.Unlock that keeps its place, until it is recalled",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		m := zsync.NewMutex(s, crashPath, zsync.WithRetention(time.Minute))
		if err := lockOnce(ctx, m); err != nil {
			return err
		}
		begin()
		return lockOnce(ctx, m) // behind who has recalled it, or before him
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		<-child.begun
		defer ready()
		return lockOnce(context.WithoutCancel(ctx), crashMutex(s))
	},
	after:    afterMutex,
	requests: 1,
	expires:  true,
}, {
	name: "Mutex.TryLock of a place that is kept",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		_, err := zsync.NewMutex(s, crashPath).TryLock(ctx)
		return err
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		m := zsync.NewMutex(s, crashPath, zsync.WithRetention(time.Minute))
		if err := lockOnce(ctx, m); err != nil {
			return err
		}
		ready()
		<-ctx.Done()
		return nil
	},
	after:    afterMutex,
	requests: 4,
}, {
	name: "Mutex.Do",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewMutex(s, crashPath).Do(ctx, crashNothing)
	},
	after:    afterMutex,
	requests: 3,
}, {
	name: "Mutex.Token",
	child: withMutex(func(ctx context.Context, m *zsync.Mutex) error {
		_, err := m.Token(ctx)
		return err
	}),
	beside:   queueBeside(crashMutex),
	after:    afterMutex,
	requests: 1,
}, {
	name: "Mutex.Txn",
	child: withMutex(func(ctx context.Context, m *zsync.Mutex) error {
		_, err := m.Txn(ctx, crashTxn...)
		return err
	}),
	after:    both(afterTxn, afterMutex),
	leaves:   crashTxnLeaves,
	requests: 1,
}, {
	name: "Mutex.Revoke",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewMutex(s, crashPath).Revoke(ctx)
	},
	beside:   holdAndBeAsked,
	after:    afterMutex,
	requests: 3,
}, {
	name: "LockAll",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		_, err := zsync.LockAll(ctx, zsync.NewMutex(s, crashPath), zsync.NewRWMutex(s, crashPath+"2"))
		return err
	},
	after: func(ctx context.Context, s *zsync.Session) error {
		return errors.Join(afterMutex(ctx, s), lockOnce(ctx, zsync.NewRWMutex(s, crashPath+"2")))
	},
	leaves:   crashPath + "2",
	requests: 4,
}}

func crashRWMutex(s *zsync.Session) zsync.Locker { return zsync.NewRWMutex(s, crashPath) }
func crashRLocker(s *zsync.Session) zsync.Locker { return zsync.NewRWMutex(s, crashPath).RLocker() }

func afterRWMutex(ctx context.Context, s *zsync.Session) error {
	rw := zsync.NewRWMutex(s, crashPath)
	if err := rw.Lock(ctx); err != nil {
		return err
	}
	if err := rw.Downgrade(ctx); err != nil {
		return err
	}
	return errors.Join(rw.RUnlock(), lockOnce(ctx, rw), lockOnce(ctx, rw.RLocker()))
}

// withRWMutex does an operation of an RWMutex that the child holds.
func withRWMutex(lock func(*zsync.RWMutex, context.Context) error, f func(ctx context.Context, rw *zsync.RWMutex) error) func(context.Context, *zsync.Session, func()) error {
	return func(ctx context.Context, s *zsync.Session, begin func()) error {
		rw := zsync.NewRWMutex(s, crashPath)
		if err := lock(rw, ctx); err != nil {
			return err
		}
		begin()
		return f(ctx, rw)
	}
}

// noLock is for an operation that takes the lock.
func noLock(*zsync.RWMutex, context.Context) error { return nil }

func lockRW(ctx context.Context, rw *zsync.RWMutex) error  { return rw.Lock(ctx) }
func rlockRW(ctx context.Context, rw *zsync.RWMutex) error { return rw.RLock(ctx) }

var rwMutexCrashes = []crash{{
	name:     "RWMutex.Lock",
	child:    withRWMutex(noLock, lockRW),
	after:    afterRWMutex,
	requests: 2,
}, {
	name:     "RWMutex.Lock behind a reader",
	child:    withRWMutex(noLock, lockRW),
	beside:   holdBeside(crashRLocker),
	after:    afterRWMutex,
	requests: 3,
}, {
	name:     "RWMutex.RLock",
	child:    withRWMutex(noLock, rlockRW),
	after:    afterRWMutex,
	requests: 2,
}, {
	name:     "RWMutex.RLock behind a writer",
	child:    withRWMutex(noLock, rlockRW),
	beside:   holdBeside(crashRWMutex),
	after:    afterRWMutex,
	requests: 3,
}, {
	name: "RWMutex.TryLock",
	child: withRWMutex(noLock, func(ctx context.Context, rw *zsync.RWMutex) error {
		_, err := rw.TryLock(ctx)
		return err
	}),
	after:    afterRWMutex,
	requests: 2,
}, {
	name: "RWMutex.TryRLock",
	child: withRWMutex(noLock, func(ctx context.Context, rw *zsync.RWMutex) error {
		_, err := rw.TryRLock(ctx)
		return err
	}),
	after:    afterRWMutex,
	requests: 2,
}, {
	name:     "RWMutex.Downgrade",
	child:    withRWMutex((*zsync.RWMutex).Lock, func(ctx context.Context, rw *zsync.RWMutex) error { return rw.Downgrade(ctx) }),
	after:    afterRWMutex,
	requests: 2,
}, {
	name:     "RWMutex.Downgrade before a writer",
	child:    withRWMutex((*zsync.RWMutex).Lock, func(ctx context.Context, rw *zsync.RWMutex) error { return rw.Downgrade(ctx) }),
	beside:   queueBeside(crashRWMutex),
	after:    afterRWMutex,
	requests: 2,
}, {
	name:     "RWMutex.Unlock",
	child:    withRWMutex((*zsync.RWMutex).Lock, func(_ context.Context, rw *zsync.RWMutex) error { return rw.Unlock() }),
	beside:   queueBeside(crashRLocker),
	after:    afterRWMutex,
	requests: 1,
}, {
	name:     "RWMutex.RUnlock",
	child:    withRWMutex((*zsync.RWMutex).RLock, func(_ context.Context, rw *zsync.RWMutex) error { return rw.RUnlock() }),
	beside:   queueBeside(crashRWMutex),
	after:    afterRWMutex,
	requests: 1,
}, {
	name:     "RWMutex.Do",
	child:    withRWMutex(noLock, func(ctx context.Context, rw *zsync.RWMutex) error { return rw.Do(ctx, crashNothing) }),
	after:    afterRWMutex,
	requests: 3,
}, {
	name:     "RWMutex.RDo",
	child:    withRWMutex(noLock, func(ctx context.Context, rw *zsync.RWMutex) error { return rw.RDo(ctx, crashNothing) }),
	after:    afterRWMutex,
	requests: 3,
}, {
	name: "RWMutex.Token",
	child: withRWMutex((*zsync.RWMutex).Lock, func(ctx context.Context, rw *zsync.RWMutex) error {
		_, err := rw.Token(ctx)
		return err
	}),
	after:    afterRWMutex,
	requests: 1,
}, {
	name: "RWMutex.Txn",
	child: withRWMutex((*zsync.RWMutex).Lock, func(ctx context.Context, rw *zsync.RWMutex) error {
		_, err := rw.Txn(ctx, crashTxn...)
		return err
	}),
	beside:   queueBeside(crashRLocker),
	after:    both(afterTxn, afterRWMutex),
	leaves:   crashTxnLeaves,
	requests: 1,
}}

// afterOnce makes the thing done, if it is not yet, and then undone.
func afterOnce(ctx context.Context, s *zsync.Session) error {
	o := zsync.NewOnce(s, crashPath)
	if err := o.Do(ctx, crashNothing); err != nil {
		return err
	}
	done, err := o.Done(ctx)
	if err == nil && !done {
		err = errors.New("not done after Do")
	}
	return errors.Join(err, o.Reset(ctx), o.Do(ctx, crashNothing))
}

// The mark is for ever, and a receipt of a Reset whose process has died stays.
const onceLeaves = crashPath + "/(done|_c_[-0-9a-f]{36}-receipt)"

func crashValue(s *zsync.Session, v int) func(context.Context) (int, error) {
	return zsync.OnceValue(s, crashPath, func(context.Context) (int, error) { return v, nil })
}

var onceCrashes = []crash{{
	name: "Once.Do",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewOnce(s, crashPath).Do(ctx, crashNothing)
	},
	after:    afterOnce,
	leaves:   onceLeaves,
	requests: 6,
}, {
	name: "Once.Do while another does it",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewOnce(s, crashPath).Do(ctx, crashNothing)
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		return zsync.NewOnce(s, crashPath).Do(context.WithoutCancel(ctx), func(context.Context) error {
			ready()
			child.awaitWait(ctx)
			return nil
		})
	},
	after:    afterOnce,
	leaves:   onceLeaves,
	requests: 3,
}, {
	name: "Once.Do before one who waits",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		return zsync.NewOnce(s, crashPath).Do(ctx, func(context.Context) error { begin(); return nil })
	},
	beside: behind(func(ctx context.Context, s *zsync.Session) error {
		return zsync.NewOnce(s, crashPath).Do(ctx, crashNothing)
	}),
	after:    afterOnce,
	leaves:   onceLeaves,
	requests: 2,
}, {
	name: "OnceValue",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		_, err := crashValue(s, 1)(ctx)
		return err
	},
	after: func(ctx context.Context, s *zsync.Session) error {
		v, err := crashValue(s, 2)(ctx)
		if err != nil {
			return err
		}
		again, err := crashValue(s, 3)(ctx)
		if err == nil && (v > 2 || again != v) {
			err = fmt.Errorf("got the value %d, and then %d", v, again)
		}
		return err
	},
	leaves:   onceLeaves,
	requests: 6,
}, {
	name: "Once.Reset",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		o := zsync.NewOnce(s, crashPath)
		if err := o.Do(ctx, crashNothing); err != nil {
			return err
		}
		begin()
		return o.Reset(ctx)
	},
	after:    afterOnce,
	leaves:   onceLeaves,
	requests: 2,
}}

// A receipt of a process that has died stays.
const barrierLeaves = crashPath + "-receipts(/[^/]*)?"

func afterBarrier(ctx context.Context, s *zsync.Session) error {
	b := zsync.NewBarrier(s, crashPath)
	if err := b.Close(ctx); err != nil {
		return err
	}
	waited := harness.Async(func() error { return b.Wait(ctx) })
	return errors.Join(b.Open(ctx), <-waited, b.Wait(ctx))
}

var barrierCrashes = []crash{{
	name: "Barrier.Close",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewBarrier(s, crashPath).Close(ctx)
	},
	after:    afterBarrier,
	leaves:   barrierLeaves,
	requests: 2,
}, {
	name: "Barrier.Open",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		b := zsync.NewBarrier(s, crashPath)
		if err := b.Close(ctx); err != nil {
			return err
		}
		begin()
		return b.Open(ctx)
	},
	after:    afterBarrier,
	leaves:   barrierLeaves,
	requests: 1,
}, {
	name: "Barrier.Wait",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewBarrier(s, crashPath).Wait(ctx)
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		b := zsync.NewBarrier(s, crashPath)
		if err := b.Close(ctx); err != nil {
			return err
		}
		ready()
		child.awaitWait(ctx)
		return b.Open(context.WithoutCancel(ctx))
	},
	after:    afterBarrier,
	leaves:   barrierLeaves,
	requests: 2,
}}

// crashElection has the methods of an Election as a Locker.
type crashElection struct{ *zsync.Election }

func (e crashElection) Lock(ctx context.Context) error { return e.Campaign(ctx) }
func (e crashElection) Unlock() error                  { return e.Resign() }

func electionLocker(s *zsync.Session) zsync.Locker {
	return crashElection{zsync.NewElection(s, crashPath)}
}

func afterElection(ctx context.Context, s *zsync.Session) error {
	e := zsync.NewElection(s, crashPath)
	if err := e.Campaign(ctx); err != nil {
		return err
	}
	_, err := e.Leader(ctx)
	return errors.Join(err, e.Resign())
}

// withElection does an operation of a leader.
func withElection(f func(ctx context.Context, e *zsync.Election) error) func(context.Context, *zsync.Session, func()) error {
	return func(ctx context.Context, s *zsync.Session, begin func()) error {
		e := zsync.NewElection(s, crashPath)
		if err := e.Campaign(ctx); err != nil {
			return err
		}
		begin()
		return f(ctx, e)
	}
}

var electionCrashes = []crash{{
	name: "Election.Campaign",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewElection(s, crashPath).Campaign(ctx)
	},
	after:    afterElection,
	requests: 2,
}, {
	name: "Election.Campaign against a leader",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewElection(s, crashPath).Campaign(ctx)
	},
	beside:   holdBeside(electionLocker),
	after:    afterElection,
	requests: 3,
}, {
	name:     "Election.Resign",
	child:    withElection(func(_ context.Context, e *zsync.Election) error { return e.Resign() }),
	beside:   queueBeside(electionLocker),
	after:    afterElection,
	requests: 1,
}, {
	name: "Election.Run",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		ctx, stop := context.WithCancel(ctx)
		zsync.NewElection(s, crashPath).Run(ctx, func(context.Context) error { stop(); return nil })
		return nil
	},
	after:    afterElection,
	requests: 3,
}, {
	name: "Election.Token",
	child: withElection(func(ctx context.Context, e *zsync.Election) error {
		_, err := e.Token(ctx)
		return err
	}),
	beside:   queueBeside(electionLocker),
	after:    afterElection,
	requests: 1,
}, {
	name: "Election.Txn",
	child: withElection(func(ctx context.Context, e *zsync.Election) error {
		_, err := e.Txn(ctx, crashTxn...)
		return err
	}),
	beside:   queueBeside(electionLocker),
	after:    both(afterTxn, afterElection),
	leaves:   crashTxnLeaves,
	requests: 1,
}, {
	name: "Election.Leader",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		_, err := zsync.NewElection(s, crashPath).Leader(ctx)
		return err
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), _ *crashChild) error {
		e := zsync.NewElection(s, crashPath)
		if err := e.Campaign(ctx); err != nil {
			return err
		}
		ready()
		<-ctx.Done()
		return e.Resign()
	},
	after:    afterElection,
	requests: 2,
}}

// crashTxn is applied as a whole, or not.
var crashTxn = []any{
	&zk.CreateRequest{Path: "/crash/txn", Acl: zk.WorldACL(zk.PermAll)},
	&zk.CreateRequest{Path: "/crash/txn/a", Acl: zk.WorldACL(zk.PermAll)},
	&zk.CreateRequest{Path: "/crash/txn/b", Acl: zk.WorldACL(zk.PermAll)},
}

const crashTxnLeaves = "/crash/txn(/[ab])?"

func afterTxn(ctx context.Context, _ *zsync.Session) error {
	names, err := childrenOf(ctx, "/crash/txn")
	if err == nil && len(names) != 0 && len(names) != 2 {
		err = fmt.Errorf("half of a transaction: %q", names)
	}
	return err
}

// both does f, and then g.
func both(f, g func(ctx context.Context, s *zsync.Session) error) func(ctx context.Context, s *zsync.Session) error {
	return func(ctx context.Context, s *zsync.Session) error {
		if err := f(ctx, s); err != nil {
			return err
		}
		return g(ctx, s)
	}
}

var sessionCrashes = []crash{{
	name: "Session.Txn",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		_, err := s.Txn(ctx, crashTxn...)
		return err
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), _ *crashChild) error {
		// The parent of what is created must be there.
		m := zsync.NewMutex(s, crashPath)
		err := lockOnce(ctx, m)
		ready()
		return err
	},
	after:    afterTxn,
	leaves:   crashTxnLeaves,
	requests: 1,
}, {
	name: "Session.Close",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		m := zsync.NewMutex(s, crashPath)
		if err := m.Lock(ctx); err != nil {
			return err
		}
		begin()
		return s.Close()
	},
	beside:   queueBeside(crashMutex),
	after:    afterMutex,
	requests: 1,
}}

func afterSemaphore(ctx context.Context, s *zsync.Session) error {
	m := zsync.NewSemaphore(s, crashPath, 3)
	if err := m.Acquire(ctx, 3); err != nil {
		return err
	}
	return m.Release(3)
}

// manyPermits are more than have a znode each.
const manyPermits = 3000

const semaphoreLeaves = crashPath + "/(leases|locks)"

// permits makes a Locker of n of the permits.
type permits struct {
	*zsync.Semaphore
	n int64
}

func (p permits) Lock(ctx context.Context) error { return p.Acquire(ctx, p.n) }
func (p permits) Unlock() error                  { return p.Release(p.n) }

func crashPermits(s *zsync.Session) zsync.Locker {
	return permits{zsync.NewSemaphore(s, crashPath, 3), 2}
}

var semaphoreCrashes = []crash{{
	name: "Semaphore.Acquire",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewSemaphore(s, crashPath, 3).Acquire(ctx, 2)
	},
	after:    afterSemaphore,
	leaves:   semaphoreLeaves,
	requests: 6,
}, {
	name: "Semaphore.Acquire of what others have",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewSemaphore(s, crashPath, 3).Acquire(ctx, 2)
	},
	beside:   holdBeside(crashPermits),
	after:    afterSemaphore,
	leaves:   semaphoreLeaves,
	requests: 6,
}, {
	name: "Semaphore.TryAcquire",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		_, err := zsync.NewSemaphore(s, crashPath, 3).TryAcquire(ctx, 3)
		return err
	},
	after:    afterSemaphore,
	leaves:   semaphoreLeaves,
	requests: 6,
}, {
	name: "Semaphore.Release",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		m := zsync.NewSemaphore(s, crashPath, 3)
		if err := m.Acquire(ctx, 3); err != nil {
			return err
		}
		begin()
		return m.Release(2)
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		<-child.begun
		ready()
		return lockOnce(context.WithoutCancel(ctx), crashPermits(s))
	},
	after:    afterSemaphore,
	leaves:   semaphoreLeaves,
	requests: 1,
}, {
	name: "Semaphore.Token",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		m := zsync.NewSemaphore(s, crashPath, 3)
		if err := m.Acquire(ctx, 3); err != nil {
			return err
		}
		begin()
		_, err := m.Token(ctx)
		return err
	},
	after:    afterSemaphore,
	leaves:   semaphoreLeaves,
	requests: 1,
}, {
	name: "Semaphore.Txn",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		m := zsync.NewSemaphore(s, crashPath, 3)
		if err := m.Acquire(ctx, 3); err != nil {
			return err
		}
		begin()
		_, err := m.Txn(ctx, &zk.SetDataRequest{Path: crashPath, Data: []byte("3"), Version: -1})
		return err
	},
	after:    afterSemaphore,
	leaves:   semaphoreLeaves,
	requests: 1,
}, {
	name: "Semaphore.Release of a part",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		m := zsync.NewSemaphore(s, crashPath, manyPermits)
		if err := m.Acquire(ctx, manyPermits); err != nil {
			return err
		}
		begin()
		return m.Release(manyPermits - 1000)
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		<-child.begun
		ready()
		return lockOnce(context.WithoutCancel(ctx), permits{zsync.NewSemaphore(s, crashPath, manyPermits), manyPermits - 1000})
	},
	after: func(ctx context.Context, s *zsync.Session) error {
		return lockOnce(ctx, permits{zsync.NewSemaphore(s, crashPath, manyPermits), manyPermits})
	},
	leaves:   semaphoreLeaves,
	requests: 1,
}}

// afterTasks has no Wait hang on the dead.
func afterTasks(ctx context.Context, s *zsync.Session) error {
	wg := zsync.NewWaitGroup(s, crashPath)
	if err := wg.Wait(ctx); err != nil {
		return err
	}
	err := errors.Join(wg.Add(ctx, 2), wg.Done(), wg.Done(), wg.Wait(ctx))
	if e := wg.Done(); !errors.Is(e, zsync.ErrNegativeCounter) {
		err = errors.Join(err, errors.New("a task is left"))
	}
	return err
}

// afterPersistentTasks ends the tasks of the dead, as somebody must.
func afterPersistentTasks(ctx context.Context, s *zsync.Session) error {
	wg := zsync.NewWaitGroup(s, crashPath, zsync.WithPersistentTasks())
	n, err := wg.Count(ctx)
	if err != nil {
		return err
	}
	return errors.Join(wg.Add(ctx, 1), wg.Add(ctx, -n-1), wg.Wait(ctx))
}

const tasksLeaves = crashPath + "-receipts(/[^/]*)?"

// withTasks does an operation on a WaitGroup to which the child has added two
// tasks.
func withTasks(f func(ctx context.Context, wg *zsync.WaitGroup) error, opts ...zsync.WaitGroupOption) func(context.Context, *zsync.Session, func()) error {
	return func(ctx context.Context, s *zsync.Session, begin func()) error {
		wg := zsync.NewWaitGroup(s, crashPath, opts...)
		if err := wg.Add(ctx, 2); err != nil {
			return err
		}
		begin()
		return f(ctx, wg)
	}
}

// waitBeside waits for the tasks of the child.
func waitBeside(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
	<-child.begun
	ready()
	return zsync.NewWaitGroup(s, crashPath).Wait(context.WithoutCancel(ctx))
}

var waitGroupCrashes = []crash{{
	name: "WaitGroup.Add",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewWaitGroup(s, crashPath).Add(ctx, 2)
	},
	after:    afterTasks,
	leaves:   tasksLeaves,
	requests: 1,
}, {
	name: "WaitGroup.Add of persistent tasks",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewWaitGroup(s, crashPath, zsync.WithPersistentTasks()).Add(ctx, 2)
	},
	after:    afterPersistentTasks,
	leaves:   tasksLeaves,
	requests: 1,
}, {
	name:     "WaitGroup.Add of more",
	child:    withTasks(func(ctx context.Context, wg *zsync.WaitGroup) error { return wg.Add(ctx, 1) }),
	beside:   waitBeside,
	after:    afterTasks,
	leaves:   tasksLeaves,
	requests: 1,
}, {
	name:     "WaitGroup.Done",
	child:    withTasks(func(_ context.Context, wg *zsync.WaitGroup) error { return wg.Done() }),
	beside:   waitBeside,
	after:    afterTasks,
	leaves:   tasksLeaves,
	requests: 1,
}, {
	name:     "WaitGroup.Done of the last",
	child:    withTasks(func(ctx context.Context, wg *zsync.WaitGroup) error { return wg.Add(ctx, -2) }),
	beside:   waitBeside,
	after:    afterTasks,
	leaves:   tasksLeaves,
	requests: 1,
}, {
	name:     "WaitGroup.Done of persistent tasks",
	child:    withTasks(func(_ context.Context, wg *zsync.WaitGroup) error { return wg.Done() }, zsync.WithPersistentTasks()),
	after:    afterPersistentTasks,
	leaves:   tasksLeaves,
	requests: 1,
}, {
	name: "WaitGroup.Done of another's task",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewWaitGroup(s, crashPath).Done()
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), _ *crashChild) error {
		wg := zsync.NewWaitGroup(s, crashPath)
		if err := wg.Add(ctx, 2); err != nil {
			return err
		}
		ready()
		<-ctx.Done()
		ctx = context.WithoutCancel(ctx)
		n, err := wg.Count(ctx)
		if err != nil || n < 1 {
			return errors.Join(err, errors.New("more than one task is ended"))
		}
		return wg.Add(ctx, -n)
	},
	after: func(ctx context.Context, s *zsync.Session) error {
		return zsync.NewWaitGroup(s, crashPath).Wait(ctx)
	},
	leaves:   tasksLeaves,
	requests: 3,
}, {
	name: "WaitGroup.Wait",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewWaitGroup(s, crashPath).Wait(ctx)
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		wg := zsync.NewWaitGroup(s, crashPath)
		if err := wg.Add(ctx, 1); err != nil {
			return err
		}
		ready()
		child.awaitWait(ctx)
		return wg.Done()
	},
	after:    afterTasks,
	leaves:   tasksLeaves,
	requests: 2,
}, {
	name: "WaitGroup.Go",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		wg := zsync.NewWaitGroup(s, crashPath)
		if err := wg.Go(ctx, func() {}); err != nil {
			return err
		}
		return wg.Wait(ctx)
	},
	after:    afterTasks,
	leaves:   tasksLeaves,
	requests: 2,
}}

func afterValue(ctx context.Context, s *zsync.Session) error {
	v := zsync.NewValue[int](s, crashPath)
	switch got, _, err := v.Load(ctx); {
	case errors.Is(err, zsync.ErrNoValue):
	case err != nil:
		return err
	case got != 1 && got != 2:
		return fmt.Errorf("got the value %d, want that before the operation or after it", got)
	}
	if err := v.Store(ctx, 5); err != nil {
		return err
	}
	got, err := v.Update(ctx, func(n int) (int, error) { return n + 1, nil })
	if err == nil && got != 6 {
		err = fmt.Errorf("got the value %d, want 6", got)
	}
	return err
}

// withValue does an operation on a Value that has been stored.
func withValue(f func(ctx context.Context, v *zsync.Value[int]) error) func(context.Context, *zsync.Session, func()) error {
	return func(ctx context.Context, s *zsync.Session, begin func()) error {
		v := zsync.NewValue[int](s, crashPath)
		if err := v.Store(ctx, 1); err != nil {
			return err
		}
		begin()
		return f(ctx, v)
	}
}

const valueLeaves = crashPath + "-receipts(/[^/]*)?"

var valueCrashes = []crash{{
	name: "Value.Store the first time",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewValue[int](s, crashPath).Store(ctx, 1)
	},
	after:    afterValue,
	leaves:   valueLeaves,
	requests: 1,
}, {
	name:     "Value.Store",
	child:    withValue(func(ctx context.Context, v *zsync.Value[int]) error { return v.Store(ctx, 2) }),
	after:    afterValue,
	leaves:   valueLeaves,
	requests: 1,
}, {
	name: "Value.CompareAndSwap",
	child: withValue(func(ctx context.Context, v *zsync.Value[int]) error {
		_, version, err := v.Load(ctx)
		if err == nil {
			_, err = v.CompareAndSwap(ctx, version, 2)
		}
		return err
	}),
	after:    afterValue,
	leaves:   valueLeaves,
	requests: 2,
}, {
	name: "Value.Update",
	child: withValue(func(ctx context.Context, v *zsync.Value[int]) error {
		_, err := v.Update(ctx, func(n int) (int, error) { return n + 1, nil })
		return err
	}),
	after:    afterValue,
	leaves:   valueLeaves,
	requests: 2,
}}

// The lock of the Cond lies beside it. A receipt of a Signal whose process has
// died stays.
const condLeaves = crashPath + "-lock|" + crashPath + "/_c_[-0-9a-f]{36}-receipt"

func newCrashCond(s *zsync.Session) *zsync.Cond {
	return zsync.NewCond(s, crashPath, zsync.NewMutex(s, crashPath+"-lock"))
}

// condWait waits once.
func condWait(ctx context.Context, s *zsync.Session) error {
	c := newCrashCond(s)
	if err := c.L.Lock(ctx); err != nil {
		return err
	}
	if err := c.Wait(ctx); err != nil {
		return err
	}
	return c.L.Unlock()
}

// afterCond has one wait, and be woken by another.
func afterCond(ctx context.Context, s *zsync.Session) error {
	woken := harness.Async(func() error { return condWait(ctx, s) })
	// real time: between two signals, beside a process that is killed
	for c := newCrashCond(s); ; time.Sleep(time.Millisecond) {
		if err := c.Signal(ctx); err != nil {
			return err
		}
		select {
		case err := <-woken:
			return err
		default:
		}
	}
}

// sweepCond lists the line: whoever does removes the signals of those who died
// after they were woken, with nobody behind them.
func sweepCond(ctx context.Context, s *zsync.Session) error { return newCrashCond(s).Signal(ctx) }

// condBeside waits while the child signals. If the child dies before it has
// signalled somebody else does it.
func condBeside(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
	woken := harness.Async(func() error { return condWait(context.WithoutCancel(ctx), s) })
	if err := crowd(ctx, 1); err != nil {
		return err
	}
	ready()
	<-ctx.Done()
	return errors.Join(newCrashCond(s).Signal(context.WithoutCancel(ctx)), <-woken)
}

var condCrashes = []crash{{
	name: "Cond.Wait",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		c := newCrashCond(s)
		if err := c.L.Lock(ctx); err != nil {
			return err
		}
		begin()
		return c.Wait(ctx)
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		ready()
		// Not when it watches: whoever holds the lock watches too.
		if err := crowd(ctx, 1); err != nil && ctx.Err() == nil {
			return err
		}
		return newCrashCond(s).Signal(context.WithoutCancel(ctx))
	},
	after:    afterCond,
	sweep:    sweepCond,
	leaves:   condLeaves,
	requests: 5,
}, {
	name: "Cond.Wait before another",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		c := newCrashCond(s)
		if err := c.L.Lock(ctx); err != nil {
			return err
		}
		begin()
		return c.Wait(ctx)
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		ready()
		if err := crowd(ctx, 1); err != nil && ctx.Err() == nil {
			return err
		}
		ctx = context.WithoutCancel(ctx)
		// One signal is enough for both if the dead does not take it: the
		// other must be the one that gets it.
		woken := harness.Async(func() error { return condWait(ctx, s) })
		// real time: between two signals, beside a process that is killed
		for c := newCrashCond(s); ; time.Sleep(time.Millisecond) {
			if err := c.Signal(ctx); err != nil {
				return err
			}
			select {
			case err := <-woken:
				return err
			default:
			}
		}
	},
	after:    afterCond,
	sweep:    sweepCond,
	leaves:   condLeaves,
	requests: 5,
}, {
	name: "Cond.Signal",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return newCrashCond(s).Signal(ctx)
	},
	beside:   condBeside,
	after:    afterCond,
	sweep:    sweepCond,
	leaves:   condLeaves,
	requests: 3,
}, {
	name: "Cond.Broadcast",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return newCrashCond(s).Broadcast(ctx)
	},
	beside:   condBeside,
	after:    afterCond,
	sweep:    sweepCond,
	leaves:   condLeaves,
	requests: 3,
}}
