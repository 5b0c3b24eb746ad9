package strangers

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// An exclusion is a lock, a turn or an element. Of two sessions, at most one has it at a time.
type exclusion struct {
	name string
	dirs []string // the parents of its znodes

	// The function `open` returns a function of the session. The returned function acquires the
	// exclusion, calls `in`, and releases. The argument `mine` is true for the session with the outage.
	open func(s *zsync.Session, mine bool) func(ctx context.Context, in func()) error
}

var errNotYet = errors.New("not yet")

// inside converts `in` to a function that fails, so that another function runs afterwards.
func inside(in func()) func(context.Context) error {
	return func(context.Context) error { in(); return errNotYet }
}

func unlessNotYet(err error) error {
	if errors.Is(err, errNotYet) {
		return nil
	}
	return err
}

// locking returns the function of an exclusion that has two halves.
func locking(acquire func(context.Context) error, release func() error) func(ctx context.Context, in func()) error {
	return func(ctx context.Context, in func()) error {
		if err := acquire(ctx); err != nil {
			return err
		}
		in()
		return release()
	}
}

var exclusions = []exclusion{
	{"Mutex", []string{"/x"}, func(s *zsync.Session, _ bool) func(context.Context, func()) error {
		m := zsync.NewMutex(s, "/x")
		return locking(m.Lock, m.Unlock)
	}},
	{"TryLock", []string{"/x"}, func(s *zsync.Session, _ bool) func(context.Context, func()) error {
		m := zsync.NewMutex(s, "/x")
		return locking(func(ctx context.Context) error {
			for {
				if ok, err := m.TryLock(ctx); ok || err != nil {
					return err
				}
				time.Sleep(50 * time.Millisecond)
			}
		}, m.Unlock)
	}},
	{"RLock", []string{"/x"}, func(s *zsync.Session, mine bool) func(context.Context, func()) error {
		m := zsync.NewRWMutex(s, "/x")
		if mine {
			return locking(m.RLock, m.RUnlock)
		}
		return locking(m.Lock, m.Unlock)
	}},
	{"Election", []string{"/x"}, func(s *zsync.Session, _ bool) func(context.Context, func()) error {
		e := zsync.NewElection(s, "/x", zsync.WithPriority(1))
		return func(ctx context.Context, in func()) error { return unlessNotYet(e.Run(ctx, inside(in))) }
	}},
	{"Semaphore", []string{"/x/leases", "/x/locks"}, func(s *zsync.Session, _ bool) func(context.Context, func()) error {
		return func(ctx context.Context, in func()) error {
			m := zsync.NewSemaphore(s, "/x", 2)
			return locking(func(ctx context.Context) error { return m.Acquire(ctx, 2) }, func() error { return m.Release(2) })(ctx, in)
		}
	}},
	{"Semaphore without the gate", []string{"/x/leases", "/x/locks"}, func(s *zsync.Session, _ bool) func(context.Context, func()) error {
		m := zsync.NewSemaphore(s, "/x", 2)
		return locking(func(ctx context.Context) error { return m.Acquire(ctx, 2) }, func() error { return m.Release(2) })
	}},
	{"Once", []string{"/x"}, func(s *zsync.Session, _ bool) func(context.Context, func()) error {
		o := zsync.NewOnce(s, "/x")
		return func(ctx context.Context, in func()) error { return unlessNotYet(o.Do(ctx, inside(in))) }
	}},
	{"OnceValue", []string{"/x"}, func(s *zsync.Session, _ bool) func(context.Context, func()) error {
		return func(ctx context.Context, in func()) error {
			_, err := zsync.OnceValue(s, "/x", func(ctx context.Context) (int, error) { return 0, inside(in)(ctx) })(ctx)
			return unlessNotYet(err)
		}
	}},
	{"Schedule", []string{"/x"}, func(s *zsync.Session, _ bool) func(context.Context, func()) error {
		c := zsync.NewSchedule(s, "/x")
		return func(ctx context.Context, in func()) error {
			_, err := c.Do(ctx, suite.Noon, inside(in))
			return unlessNotYet(err)
		}
	}},
	{"Flight", []string{"/x/k"}, func(s *zsync.Session, _ bool) func(context.Context, func()) error {
		f := zsync.NewFlight[int](s, "/x", 0)
		return func(ctx context.Context, in func()) error {
			_, _, err := f.Do(ctx, "k", func(ctx context.Context) (int, error) { return 0, inside(in)(ctx) })
			return unlessNotYet(err)
		}
	}},
	{"LockAll", []string{"/x", "/y"}, func(s *zsync.Session, _ bool) func(context.Context, func()) error {
		return func(ctx context.Context, in func()) error {
			unlock, err := zsync.LockAll(ctx, zsync.NewMutex(s, "/x"), zsync.NewRWMutex(s, "/y"))
			if err == nil {
				in()
				err = unlock()
			}
			return err
		}
	}},
	{"Cond", []string{"/x"}, func(s *zsync.Session, _ bool) func(context.Context, func()) error {
		m := zsync.NewMutex(s, "/x")
		c := zsync.NewCond(s, "/c", m)
		return locking(func(ctx context.Context) error {
			if err := m.Lock(ctx); err != nil {
				return err
			}
			time.AfterFunc(time.Second, func() { c.Signal(ctx) })
			return c.Wait(ctx)
		}, m.Unlock)
	}},
	{"Queue", []string{"/x-live"}, func(s *zsync.Session, mine bool) func(context.Context, func()) error {
		q := zsync.NewQueue[int](s, "/x")
		sent := !mine
		return func(ctx context.Context, in func()) error {
			if !sent {
				sent = true
				if err := q.Send(ctx, 1); err != nil {
					return err
				}
			}
			d, err := q.Receive(ctx)
			if err == nil {
				in()
				err = d.Return()
			}
			return err
		}
	}},
}

// lateness is longer than any call waits, without a context, for a server that does not answer. A
// caller that waits longer learns of no grant before the servers answer.
const lateness = 600 * time.Millisecond

// A session acquires an exclusion, and has an outage after its k'th request. If its call has returned
// by then, the session is a holder, and learns of a loss after the outage. If not, another client
// deletes the session's znodes, and another session acquires. After the outage, the first session must
// wait until the other has released.
func TestNobodyIsGrantedWhatAnotherClientHasDeletedInAnOutage(t *testing.T) {
	outages := []struct {
		name        string
		first, then zktest.Action
		long        bool
	}{
		{"the reply is lost", zktest.DropReply, zktest.DropRequest, false},
		{"the server is silent", zktest.Pass, zktest.Hang, false},
		{"the next request is lost", zktest.Pass, zktest.DropRequest, true},
		{"the request is lost", zktest.DropRequest, zktest.DropRequest, true},
	}
	for _, x := range exclusions {
		for _, o := range outages {
			for _, behind := range []bool{false, true} {
				for _, idle := range []time.Duration{20 * time.Second, 0} {
					if !harness.Long() && (o.long || idle == 0) {
						continue
					}
					t.Run(fmt.Sprintf("%s, %s, behind a holder %v, idle for %v", x.name, o.name, behind, idle), func(t *testing.T) {
						t.Parallel()
						struck := 0
						for k, more := int64(1), true; more; k++ {
							harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
								hit := false
								more, hit = deleteInOutage(t, srv, x, behind, idle, k, o.first, o.then)
								if hit {
									struck++
								}
							})
						}
						if struck == 0 {
							t.Log("no outage at which another session could acquire it")
						}
					})
				}
			}
		}
	}
}

func deleteInOutage(t *testing.T, srv *zktest.Server, x exclusion, behind bool, idle time.Duration, k int64, first, then zktest.Action) (more, struck bool) {
	s, other, conn := suite.Open(t, srv), suite.Open(t, srv), harness.Plain(t, srv)
	mine, third := x.open(s, true), x.open(other, false)
	for _, f := range []func(context.Context, func()) error{mine, third} {
		harness.Must(t, f(t.Context(), func() {}))
	}
	var in [2]atomic.Bool
	enter := func(i int, f func(context.Context, func()) error) (end chan struct{}, over <-chan error) {
		end = make(chan struct{})
		return end, harness.Async(func() error {
			return f(t.Context(), func() {
				in[i].Store(true)
				<-end
				in[i].Store(false)
			})
		})
	}
	hold, held := enter(1, third)
	time.Sleep(2 * time.Second) // third is a holder
	if !behind {
		close(hold)
		harness.Must(t, <-held)
	}
	time.Sleep(idle)
	var end chan struct{}
	var over <-chan error
	if behind {
		end, over = enter(0, mine)
		time.Sleep(idle + time.Second)
	}
	var on atomic.Bool
	var n atomic.Int64
	last := ""
	id := s.ID()
	srv.Intercept(func(r zktest.Request) zktest.Action {
		switch {
		case r.Session != id || r.Op == zktest.OpPing:
		case on.Load():
			return then
		case r.Op != zktest.OpConnect && n.Add(1) == k:
			last = fmt.Sprintf("%v %s", r.Op, r.Path)
			on.Store(true)
			return first
		}
		return zktest.Pass
	})
	if behind {
		close(hold)
		harness.Must(t, <-held)
	} else {
		end, over = enter(0, mine)
	}
	for t0 := time.Now(); !on.Load() && !in[0].Load() && time.Since(t0) < 4*time.Second; synctest.Wait() {
		time.Sleep(100 * time.Millisecond)
	}
	more = on.Load()
	time.Sleep(lateness)
	var thirdEnd chan struct{}
	var thirdOver <-chan error
	if more && !in[0].Load() {
		deleteOf(t, conn, id, x.dirs)
		thirdEnd, thirdOver = enter(1, third)
		for t0 := time.Now(); !in[1].Load() && time.Since(t0) < 2*time.Second; synctest.Wait() {
			time.Sleep(100 * time.Millisecond)
		}
		struck = in[1].Load() && !in[0].Load()
		srv.SetLatency(3 * time.Millisecond)
	}
	on.Store(false)
	for range 3000 {
		if time.Sleep(2 * time.Millisecond); struck && in[0].Load() {
			t.Errorf("request %d, %s: two sessions have it", k, last)
			break
		}
	}
	srv.Intercept(nil)
	srv.SetLatency(0)
	if thirdEnd != nil {
		close(thirdEnd)
	}
	close(end)
	<-over // a holder may have lost its hold
	if thirdOver != nil {
		harness.Must(t, <-thirdOver)
	}
	return more, struck
}

// deleteOf deletes the ephemeral znodes of a session that are children of dirs.
func deleteOf(t *testing.T, conn *zk.Conn, session int64, dirs []string) {
	t.Helper()
	for _, dir := range dirs {
		for _, name := range harness.Children(t, conn, dir) {
			path := dir + "/" + name
			if _, stat, err := conn.Exists(path); err == nil && stat.EphemeralOwner == session {
				conn.Delete(path, -1) // it may have left since
			}
		}
	}
}
