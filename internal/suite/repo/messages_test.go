package repo

import (
	"context"
	"errors"
	"net"
	"os"
	"regexp"
	"strings"
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

// A zoo is a server that clients know as zk1:2181, with a session of host-a and a session of
// host-b.
type zoo struct {
	srv  *zktest.Server
	a, b *zsync.Session
	down atomic.Bool // from now on, dialing fails
}

// dial connects to the server by its name.
func (z *zoo) dial(network, _ string, timeout time.Duration) (net.Conn, error) {
	if z.down.Load() {
		return nil, errors.New("connection refused")
	}
	return z.srv.Dial(network, z.srv.Addrs()[0], timeout)
}

// as connects a session of owner.
func (z *zoo) as(t *testing.T, owner string, opts ...zsync.Option) *zsync.Session {
	t.Helper()
	opts = append(opts, zsync.WithDialer(z.dial), zsync.WithOwner(owner), zsync.WithSessionTimeout(harness.Timeout))
	s, err := zsync.Connect(t.Context(), "zk1", opts...)
	harness.Must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// cut makes the server unreachable.
func (z *zoo) cut() {
	z.down.Store(true)
	z.srv.Stop()
}

// messages provoke the messages that a user is most likely to meet. Each returns the error.
var messages = []struct {
	situation string
	provoke   func(t *testing.T, z *zoo) error
}{
	{"Connect, and no server answers", func(t *testing.T, z *zoo) error {
		z.down.Store(true)
		_, err := zsync.Connect(harness.Within(t, time.Second), "zk1", zsync.WithDialer(z.dial))
		return err
	}},
	{"Lock, and no server answers", func(t *testing.T, z *zoo) error {
		z.cut()
		return zsync.NewMutex(z.b, "/m").Lock(harness.Within(t, time.Minute))
	}},
	{"Load, and no server answers", func(t *testing.T, z *zoo) error {
		z.cut()
		_, _, err := zsync.NewValue[int](z.b, "/v").Load(harness.Within(t, time.Minute))
		return err
	}},
	{"Send, and no server answers", func(t *testing.T, z *zoo) error {
		z.cut()
		return zsync.NewQueue[int](z.b, "/q").Send(harness.Within(t, time.Minute), 1)
	}},
	{"Lock, for less than a second", func(t *testing.T, z *zoo) error {
		harness.Must(t, zsync.NewMutex(z.a, "/m").Lock(t.Context()))
		return zsync.NewMutex(z.b, "/m").Lock(harness.Within(t, 300*time.Millisecond))
	}},
	{"Lock, for longer", func(t *testing.T, z *zoo) error {
		harness.Must(t, zsync.NewMutex(z.a, "/m").Lock(t.Context()))
		return zsync.NewMutex(z.b, "/m").Lock(harness.Within(t, 1500*time.Millisecond))
	}},
	{"Acquire after a waiter", func(t *testing.T, z *zoo) error {
		harness.Must(t, zsync.NewSemaphore(z.a, "/s", 1).Acquire(t.Context(), 1))
		c := z.as(t, "host-c:1")
		go zsync.NewSemaphore(c, "/s", 1).Acquire(t.Context(), 1)
		synctest.Wait()
		return zsync.NewSemaphore(z.b, "/s", 1).Acquire(harness.Within(t, 3*time.Second), 1)
	}},
	{"Unlock after a loss", func(t *testing.T, z *zoo) error {
		m := zsync.NewMutex(z.a, "/m")
		harness.Must(t, m.Lock(t.Context()))
		z.srv.Expire(z.a.ID())
		<-m.Lost()
		return m.Unlock()
	}},
	{"Unlock after WithMaxHold", func(t *testing.T, z *zoo) error {
		m := zsync.NewMutex(z.a, "/m", zsync.WithMaxHold(50*time.Millisecond))
		harness.Must(t, m.Lock(t.Context()))
		<-m.Lost()
		return m.Unlock()
	}},
	{"Unlock after a failure of WithHealth", func(t *testing.T, z *zoo) error {
		m := zsync.NewMutex(z.a, "/m", zsync.WithHealth(func(context.Context) error { return errors.New("the disk is full") }))
		harness.Must(t, m.Lock(t.Context()))
		<-m.Lost()
		return m.Unlock()
	}},
	{"Unlock after a silence of WithHealth", func(t *testing.T, z *zoo) error {
		m := zsync.NewMutex(z.a, "/m", zsync.WithHealth(func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Second); return nil }))
		harness.Must(t, m.Lock(t.Context()))
		<-m.Lost()
		time.Sleep(time.Second)
		return m.Unlock()
	}},
	{"Campaign at the path of a Mutex", func(t *testing.T, z *zoo) error {
		harness.Must(t, zsync.NewMutex(z.a, "/m").Lock(t.Context()))
		return zsync.NewElection(z.b, "/m").Campaign(t.Context())
	}},
	{"Store at the path of a Mutex", func(t *testing.T, z *zoo) error {
		harness.Must(t, zsync.NewMutex(z.a, "/m").Lock(t.Context()))
		return zsync.NewValue[int](z.b, "/m").Store(t.Context(), 1)
	}},
	{"Acquire with another limit", func(t *testing.T, z *zoo) error {
		harness.Must(t, zsync.NewSemaphore(z.a, "/s", 3).Acquire(t.Context(), 1))
		return zsync.NewSemaphore(z.b, "/s", 5).Acquire(t.Context(), 1)
	}},
	{"Acquire above the limit", func(t *testing.T, z *zoo) error {
		return zsync.NewSemaphore(z.b, "/s", 3).Acquire(t.Context(), 4)
	}},
	{"Unlock without a lock", func(t *testing.T, z *zoo) error {
		return zsync.NewMutex(z.b, "/m").Unlock()
	}},
	{"Release of too many permits", func(t *testing.T, z *zoo) error {
		m := zsync.NewSemaphore(z.b, "/s", 3)
		harness.Must(t, m.Acquire(t.Context(), 1))
		return m.Release(2)
	}},
	{"Ack after Nack", func(t *testing.T, z *zoo) error {
		q := zsync.NewQueue[int](z.b, "/q")
		harness.Must(t, q.Send(t.Context(), 1))
		d, err := q.Receive(t.Context())
		harness.Must(t, err)
		harness.Must(t, d.Nack())
		return d.Ack(t.Context())
	}},
	{"Resign without a term", func(t *testing.T, z *zoo) error { return zsync.NewElection(z.b, "/e").Resign() }},
	{"Leave without an Enter", func(t *testing.T, z *zoo) error { return zsync.NewWaitGroup(z.b, "/w").Leave(t.Context()) }},
	{"Cond.Wait without its lock", func(t *testing.T, z *zoo) error {
		return zsync.NewCond(z.b, "/c", zsync.NewMutex(z.b, "/m")).Wait(t.Context())
	}},
	{"Lock inside Do", func(t *testing.T, z *zoo) error {
		m := zsync.NewMutex(z.b, "/m")
		return m.Do(t.Context(), func(ctx context.Context) error { return m.Lock(ctx) })
	}},
	{"Do inside RDo", func(t *testing.T, z *zoo) error {
		m := zsync.NewRWMutex(z.b, "/m")
		return m.RDo(t.Context(), func(ctx context.Context) error {
			return m.Do(ctx, func(context.Context) error { return nil })
		})
	}},
	{"Lock without permission", func(t *testing.T, z *zoo) error {
		suite.Create(t, z.a, "/acl", "")
		harness.SetACL(t, z.srv, "/acl", zk.WorldACL(zk.PermRead))
		return zsync.NewMutex(z.b, "/acl/x").Lock(t.Context())
	}},
	{"Lock where another client may write", func(t *testing.T, z *zoo) error {
		suite.Create(t, z.a, "/m", "")
		own := zsync.WithACL(zk.DigestACL(zk.PermAll, "me", "secret"))
		return zsync.NewMutex(z.as(t, "host-c:1", zsync.WithAuth("digest", []byte("me:secret")), own), "/m").Lock(t.Context())
	}},
	{"Lock with an ACL of an unknown scheme", func(t *testing.T, z *zoo) error {
		wrong := zsync.WithACL([]zk.ACL{{Perms: zk.PermAll, Scheme: "ldap", ID: "ops"}})
		return zsync.NewMutex(z.as(t, "host-c:1", wrong), "/m").Lock(t.Context())
	}},
	{"a transaction of too much", func(t *testing.T, z *zoo) error {
		_, err := z.b.Txn(t.Context(), &zk.SetDataRequest{Path: "/v", Data: make([]byte, 2<<20), Version: -1})
		return err
	}},
	{"Store of more than the servers' jute.maxbuffer", func(t *testing.T, z *zoo) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		small := suite.Open(t, zktest.Start(t, zktest.WithMaxBuffer(64<<10)))
		return zsync.NewValue[string](small, "/v").Store(ctx, strings.Repeat("x", 100<<10))
	}},
	{"Send of too much", func(t *testing.T, z *zoo) error {
		return zsync.NewQueue[string](z.b, "/q").Send(t.Context(), strings.Repeat("x", 2<<20))
	}},
	{"TrySend to a full queue", func(t *testing.T, z *zoo) error {
		q := zsync.NewQueue[int](z.b, "/q", zsync.WithMaxLen(1))
		harness.Must(t, q.Send(t.Context(), 1))
		return q.TrySend(t.Context(), 2)
	}},
	{"Send to a full queue", func(t *testing.T, z *zoo) error {
		q := zsync.NewQueue[int](z.b, "/q", zsync.WithMaxLen(1))
		harness.Must(t, q.Send(t.Context(), 1))
		return q.Send(harness.Within(t, 350*time.Millisecond), 2)
	}},
	{"Receive of another type", func(t *testing.T, z *zoo) error {
		harness.Must(t, zsync.NewQueue[string](z.b, "/q").Send(t.Context(), "x"))
		_, err := zsync.NewQueue[int](z.b, "/q").Receive(harness.Within(t, time.Second))
		return err
	}},
	{"Receive from an empty queue", func(t *testing.T, z *zoo) error {
		_, err := zsync.NewQueue[int](z.b, "/q").Receive(harness.Within(t, time.Second))
		return err
	}},
	{"Load of another type", func(t *testing.T, z *zoo) error {
		harness.Must(t, zsync.NewValue[string](z.b, "/v").Store(t.Context(), "text"))
		_, _, err := zsync.NewValue[int](z.b, "/v").Load(t.Context())
		return err
	}},
	{"Map.Load of no key", func(t *testing.T, z *zoo) error {
		_, _, err := zsync.NewMap[int](z.b, "/v").Load(t.Context(), "k")
		return err
	}},
	{"a zero value", func(t *testing.T, z *zoo) error { return new(zsync.Mutex).Lock(t.Context()) }},
	{"no Session", func(t *testing.T, z *zoo) error { return zsync.NewMutex(nil, "/m").Lock(t.Context()) }},
	{"Lock after Close", func(t *testing.T, z *zoo) error {
		z.b.Close()
		return zsync.NewMutex(z.b, "/m").Lock(t.Context())
	}},
	{"Close during a Lock", func(t *testing.T, z *zoo) error {
		harness.Must(t, zsync.NewMutex(z.a, "/m").Lock(t.Context()))
		got := harness.Async(func() error { return zsync.NewMutex(z.b, "/m").Lock(t.Context()) })
		time.Sleep(3 * time.Second)
		z.b.Close()
		return <-got
	}},
	{"a transaction that is refused", func(t *testing.T, z *zoo) error {
		_, err := z.b.Txn(t.Context(), &zk.CreateRequest{Path: "/x"}, &zk.CreateRequest{Path: "/a/b/c"})
		return err
	}},
	{"Done without a task", func(t *testing.T, z *zoo) error { return zsync.NewWaitGroup(z.b, "/w").Done() }},
	{"Wait for a task", func(t *testing.T, z *zoo) error {
		wg := zsync.NewWaitGroup(z.b, "/w")
		harness.Must(t, wg.Add(t.Context(), 2))
		return wg.Wait(harness.Within(t, time.Second))
	}},
	{"Wait for a Barrier", func(t *testing.T, z *zoo) error {
		b := zsync.NewBarrier(z.b, "/b")
		harness.Must(t, b.Close(t.Context()))
		return b.Wait(harness.Within(t, time.Second))
	}},
	{"Enter of one party of two", func(t *testing.T, z *zoo) error {
		return zsync.NewWaitGroup(z.b, "/w").Enter(harness.Within(t, time.Second), 2)
	}},
	{"SendPriority without priorities", func(t *testing.T, z *zoo) error {
		return zsync.NewQueue[int](z.b, "/q").SendPriority(t.Context(), 7, 1)
	}},
	{"a chroot behind each server", func(t *testing.T, z *zoo) error {
		_, err := zsync.Connect(t.Context(), "zk1:2181/app,zk2:2181/app")
		return err
	}},
	{"a scheme in the connect string", func(t *testing.T, z *zoo) error {
		_, err := zsync.Connect(t.Context(), "http://zk1:2181")
		return err
	}},
	{"a session timeout of zero", func(t *testing.T, z *zoo) error {
		_, err := zsync.Connect(t.Context(), "zk1:2181", zsync.WithSessionTimeout(0))
		return err
	}},
	{"WithRetention and WithHandoffs(0)", func(t *testing.T, z *zoo) error {
		return zsync.NewMutex(z.b, "/m", zsync.WithRetention(time.Second), zsync.WithHandoffs(0)).Lock(t.Context())
	}},
}

// Each message of the twenty situations that a user is most likely to meet, and of its kind, is
// in docs/errors.md as it is printed, with … for the random part of a znode's name.
func TestTheMessagesAreThoseOfTheDocuments(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/errors.md")
	harness.Must(t, err)
	guid := regexp.MustCompile(`_c_[0-9a-f-]{36}-`)
	for _, m := range messages {
		t.Run(m.situation, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				z := &zoo{srv: srv}
				z.a, z.b = z.as(t, "host-a:1"), z.as(t, "host-b:1")
				err := m.provoke(t, z)
				if err == nil {
					t.Fatal("no error")
				}
				got := guid.ReplaceAllString(err.Error(), "_c_…-")
				if want := "| " + m.situation + " | `" + got + "` |"; !strings.Contains(string(text), want) {
					t.Errorf("docs/errors.md does not have\n%s", want)
				}
			})
		})
	}
}
