package interop_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/interop"
)

// These tests have zsync and a foreign program share one path.

// connect opens a session of zsync's own.
func connect(t *testing.T, servers string) *zsync.Session {
	t.Helper()
	s, err := zsync.Connect(brief(t), servers, zsync.WithSessionTimeout(long), zsync.WithOwner("zsync"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// brief returns a context for all that a test does.
func brief(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// layoutOf is the layout in which zsync meets the driver's program.
func layoutOf(d driver) zsync.Layout {
	if d.name == kazoo.name {
		return zsync.LayoutKazoo
	}
	return zsync.LayoutCurator
}

// must fails the test unless an operation of zsync has succeeded.
func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// mustNot fails the test unless an operation that does not wait was refused.
func mustNot(t *testing.T, what string) func(ok bool, err error) {
	return func(ok bool, err error) {
		t.Helper()
		if ok || err != nil {
			t.Fatalf("%s: got %v, %v; want false, nil", what, ok, err)
		}
	}
}

// start runs an operation that waits; the channel has what it returns.
func start(f func(context.Context) error, ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	return done
}

// queued waits until n contenders are in the line.
func queued(t *testing.T, l interface {
	Contenders(context.Context) ([]zsync.Contender, error)
}, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n), func() string {
		cs, err := l.Contenders(t.Context())
		must(t, "Contenders", err)
		return fmt.Sprint(len(cs))
	})
}

// A lock is what the tests below ask of a lock of zsync.
type lock interface {
	Lock(ctx context.Context) error
	TryLock(ctx context.Context) (bool, error)
	Unlock() error
	Contenders(ctx context.Context) ([]zsync.Contender, error)
}

func TestMutexIsSharedWithForeignLocks(t *testing.T) {
	acrossServers(t, func(t *testing.T, d driver, servers string) {
		p, s := d.mortal(t, servers, short), connect(t, servers)
		path := fresh(p) + "/lock"
		passesBetween(t, p, "lock", path, zsync.NewMutex(s, path, zsync.WithLayout(layoutOf(d))))
	})
}

func TestRWMutexWritersTakeTurnsWithForeignOnes(t *testing.T) {
	acrossServers(t, func(t *testing.T, d driver, servers string) {
		p, s := d.mortal(t, servers, short), connect(t, servers)
		path := fresh(p) + "/rw"
		passesBetween(t, p, "wlock", path, zsync.NewRWMutex(s, path, zsync.WithLayout(layoutOf(d))))
	})
}

// passesBetween has a lock of zsync and one of the program's take turns, each
// waiting for the other, and the program's holder die in the end.
func passesBetween(t *testing.T, p *interop.Program, verb, path string, l lock) {
	t.Helper()
	ctx := brief(t)
	check(t, "the program locks", p.Do("%s l %s 60", verb, path), "true")
	mustNot(t, "TryLock while the program holds")(l.TryLock(ctx))
	got := start(l.Lock, ctx)
	queued(t, l, 2)
	p.Do("release l")
	must(t, "Lock after the program's release", <-got)
	check(t, "the program tries", p.Do("%s l %s 0.2", verb, path), "false")
	p.Send("%s l %s 60", verb, path)
	queued(t, l, 2)
	must(t, "Unlock", l.Unlock())
	check(t, "the program locks after zsync's Unlock", p.Ok(), "true")
	got = start(l.Lock, ctx)
	queued(t, l, 2)
	p.Kill()
	must(t, "Lock after the program's death", <-got)
	must(t, "Unlock", l.Unlock())
}

func TestRWMutexReadersShareWithForeignOnesAndWaitBehindWriters(t *testing.T) {
	acrossServers(t, func(t *testing.T, d driver, servers string) {
		ctx, p := brief(t), d.program(t, servers, long)
		path := fresh(p) + "/rw"
		reader := zsync.NewRWMutex(connect(t, servers), path, zsync.WithLayout(layoutOf(d)))
		writer := zsync.NewRWMutex(connect(t, servers), path, zsync.WithLayout(layoutOf(d)))

		check(t, "the program reads", p.Do("rlock r %s 60", path), "true")
		must(t, "RLock beside it", reader.RLock(ctx))
		mustNot(t, "TryLock")(writer.TryLock(ctx))
		written := start(writer.Lock, ctx)
		queued(t, writer, 3)
		check(t, "the program reads past a writer", p.Do("rlock late %s 0.2", path), "false")
		must(t, "RUnlock", reader.RUnlock())
		p.Do("release r")
		must(t, "Lock when all readers have gone", <-written)

		check(t, "the program reads while zsync writes", p.Do("rlock r %s 0.2", path), "false")
		p.Send("rlock r %s 60", path)
		queued(t, writer, 2)
		must(t, "Unlock", writer.Unlock())
		check(t, "the program reads after zsync's Unlock", p.Ok(), "true")
		p.Do("release r")

		check(t, "the program writes", p.Do("wlock w %s 60", path), "true")
		mustNot(t, "TryRLock while it writes")(reader.TryRLock(ctx))
		read := start(reader.RLock, ctx)
		queued(t, reader, 2)
		p.Do("release w")
		must(t, "RLock after the program's release", <-read)
		check(t, "the program writes while zsync reads", p.Do("wlock w %s 0.2", path), "false")
		must(t, "RUnlock", reader.RUnlock())
	})
}

func TestForeignWriterDoesNotSlipInWhenAWriterIsDowngraded(t *testing.T) {
	acrossServers(t, func(t *testing.T, d driver, servers string) {
		ctx, p := brief(t), d.program(t, servers, long)
		path := fresh(p) + "/rw"
		rw := zsync.NewRWMutex(connect(t, servers), path, zsync.WithLayout(layoutOf(d)))
		must(t, "Lock", rw.Lock(ctx))
		p.Send("wlock w %s 8", path)
		queued(t, rw, 2)
		must(t, "Downgrade", rw.Downgrade(ctx))
		check(t, "the program writes", p.Ok(), "false")
		check(t, "the program reads", p.Do("rlock r %s 60", path), "true")
		p.Do("release r")
		must(t, "RUnlock", rw.RUnlock())
		check(t, "the program writes after RUnlock", p.Do("wlock w %s 60", path), "true")
	})
}

func TestMutexIsSharedWithTheLockOfGoZookeeper(t *testing.T) {
	t.Parallel()
	for name, open := range places() {
		t.Run(name, func(t *testing.T) {
			ctx, servers := brief(t), open(t).servers
			path := fresh(kazoo.program(t, servers, long)) + "/lock"
			conn, _, err := zk.Connect(strings.Split(servers, ","), long, zk.WithDialer(harness.Dial), zk.WithLogInfo(false))
			must(t, "zk.Connect", err)
			defer conn.Close()
			m, l := zsync.NewMutex(connect(t, servers), path), zk.NewLock(conn, path, zk.WorldACL(zk.PermAll))
			must(t, "zk.Lock.Lock", l.Lock())
			mustNot(t, "TryLock")(m.TryLock(ctx))
			got := start(m.Lock, ctx)
			queued(t, m, 2)
			must(t, "zk.Lock.Unlock", l.Unlock())
			must(t, "Lock", <-got)
			theirs := start(func(context.Context) error { return l.Lock() }, ctx)
			queued(t, m, 2)
			must(t, "Unlock", m.Unlock())
			must(t, "zk.Lock.Lock after Unlock", <-theirs)
			must(t, "zk.Lock.Unlock", l.Unlock())
		})
	}
}

func TestSemaphoreIsSharedWithForeignOnes(t *testing.T) {
	acrossServers(t, func(t *testing.T, d driver, servers string) {
		ctx, p := brief(t), d.mortal(t, servers, short)
		path := fresh(p) + "/semaphore"
		m := zsync.NewSemaphore(connect(t, servers), path, 2, zsync.WithLayout(layoutOf(d)))

		check(t, "the program acquires one of two", p.Do("acquire p %s 2 60", path), "true")
		must(t, "Acquire the other", m.Acquire(ctx, 1))
		mustNot(t, "TryAcquire a third")(m.TryAcquire(ctx, 1))
		check(t, "the program acquires a third", p.Do("acquire p3 %s 2 0.2", path), "false")

		got := start(func(ctx context.Context) error { return m.Acquire(ctx, 1) }, ctx)
		queued(t, m, 3)
		p.Do("release p")
		must(t, "Acquire after the program's release", <-got)
		check(t, "the program acquires while zsync has both", p.Do("acquire p %s 2 0.2", path), "false")

		p.Send("acquire p %s 2 60", path)
		must(t, "Release", m.Release(1))
		check(t, "the program acquires after Release", p.Ok(), "true")
		must(t, "Release", m.Release(1))
		mustNot(t, "TryAcquire both while the program has one")(m.TryAcquire(ctx, 2))
		got = start(func(ctx context.Context) error { return m.Acquire(ctx, 2) }, ctx)
		p.Kill()
		must(t, "Acquire both after the program's death", <-got)
		must(t, "Release", m.Release(2))
	})
}

// elections are the kinds there are, and the driver's words for them.
var elections = []struct {
	driver
	lead, leader string
	layout       zsync.Layout
}{
	{curator, "lead", "leader", zsync.LayoutCurator},
	{curator, "select", "selected", zsync.LayoutSelector},
	{kazoo, "lead", "leader", zsync.LayoutKazoo},
}

func TestElectionIsSharedWithForeignCandidates(t *testing.T) {
	t.Parallel()
	for name, open := range places() {
		for _, k := range elections {
			t.Run(fmt.Sprintf("%s/%s %s", name, k.name, k.lead), func(t *testing.T) {
				t.Parallel()
				ctx, servers := brief(t), open(t).one
				p := k.mortal(t, servers, short)
				path := fresh(p) + "/election"
				e := zsync.NewElection(connect(t, servers), path, zsync.WithLayout(k.layout), zsync.WithID("candidate"))

				check(t, "the program leads", p.Do("%s e %s 60", k.lead, path), "true")
				leader, err := e.Leader(ctx)
				must(t, "Leader", err)
				check(t, "Leader", leader.Owner, "driver")
				won := start(e.Campaign, ctx)
				queued(t, e, 2)
				p.Do("release e")
				must(t, "Campaign after the program's release", <-won)
				check(t, "the program sees the leader", p.Do("%s %s", k.leader, path), "candidate")

				check(t, "the program stands", p.Do("%s e %s 0.2", k.lead, path), "false")
				p.Send("%s e %s 60", k.lead, path)
				queued(t, e, 2)
				must(t, "Resign", e.Resign())
				check(t, "the program leads after Resign", p.Ok(), "true")
				won = start(e.Campaign, ctx)
				queued(t, e, 2)
				p.Kill()
				must(t, "Campaign after the program's death", <-won)
			})
		}
	}
}

func TestBarrierIsSharedWithForeignOnes(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		ctx, p := brief(t), d.program(t, servers, long)
		path := fresh(p) + "/barrier"
		b := zsync.NewBarrier(connect(t, servers), path)
		must(t, "Wait before it is closed", b.Wait(ctx))
		p.Do("close %s", path)
		soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		if err := b.Wait(soon); err == nil {
			t.Fatal("Wait passed a barrier that the program has closed")
		}
		passed := start(b.Wait, ctx)
		p.Do("open %s", path)
		must(t, "Wait after the program has opened it", <-passed)

		must(t, "Close", b.Close(ctx))
		check(t, "the program passes", p.Do("pass %s 0.2", path), "false")
		p.Send("pass %s 60", path)
		must(t, "Open", b.Open(ctx))
		check(t, "the program passes after Open", p.Ok(), "true")
	})
}

// queues are the kinds there are, and the driver's words for them.
var queues = []struct {
	driver
	put, take string
	layout    zsync.QueueLayout
}{
	{curator, "offer", "poll", zsync.LayoutSimpleQueue},
	{curator, "put", "take", zsync.LayoutDistributedQueue},
	{kazoo, "put", "take", zsync.LayoutKazooQueue},
}

func TestQueueIsSharedWithForeignOnes(t *testing.T) {
	t.Parallel()
	for name, open := range places() {
		for _, k := range queues {
			t.Run(fmt.Sprintf("%s/%s %s", name, k.name, k.put), func(t *testing.T) {
				t.Parallel()
				ctx, servers := brief(t), open(t).one
				p := k.program(t, servers, long)
				path := fresh(p) + "/queue"
				q := zsync.NewQueue[string](connect(t, servers), path, zsync.WithQueueLayout(k.layout), zsync.WithCodec(zsync.Raw))
				var values []string
				for i := range 20 {
					values = append(values, fmt.Sprint("v", i))
				}

				// What it puts is received, and in order, by one who takes and by one who waits.
				for _, v := range values {
					p.Do("%s %s %s", k.put, path, v)
				}
				n, err := q.Len(ctx)
				must(t, "Len", err)
				check(t, "Len", fmt.Sprint(n), "20")
				v, _, err := q.TryRecv(ctx)
				must(t, "TryRecv", err)
				check(t, "TryRecv", v, values[0])
				inner, cancel := context.WithCancel(ctx)
				received := q.Recv(inner)
				for _, v := range values[1:] {
					check(t, "Recv", <-received, v)
				}
				p.Do("%s %s late", k.put, path)
				check(t, "Recv of what comes later", <-received, "late")
				cancel()
				for range received {
				}

				// What is sent it takes, in order.
				must(t, "Send", q.Send(ctx, values[:10]...))
				must(t, "Send", q.Send(ctx, values[10:]...))
				for _, v := range values {
					check(t, "the program takes", p.Do("%s %s", k.take, path), v)
				}

				// Beside each other, producers and consumers of both, each element goes to one.
				taken := make(map[string]int)
				var sent []string
				inner, cancel = context.WithCancel(ctx)
				received = q.Recv(inner)
				for i := range 20 {
					mine, theirs := fmt.Sprint("mine", i), fmt.Sprint("theirs", i)
					must(t, "Send", q.Send(ctx, mine))
					p.Do("%s %s %s", k.put, path, theirs)
					sent = append(sent, mine, theirs)
				}
				for {
					p.Send("%s %s", k.take, path)
					if v, ok := soon(received); ok {
						taken[v]++
					}
					v := p.Ok()
					if v == "" {
						break
					}
					taken[v]++
				}
				for len(taken) < len(sent) { // however long the servers take with what Recv has in hand
					v, ok := <-received
					if !ok {
						break // ctx has ended
					}
					taken[v]++
				}
				for v, ok := soon(received); ok; v, ok = soon(received) {
					taken[v]++
				}
				cancel()
				for v := range received {
					taken[v]++
				}
				for _, v := range sent {
					if taken[v] != 1 {
						t.Errorf("%q was taken %d times", v, taken[v])
					}
				}
			})
		}
	}
}

// What Curator stores in one znode with putMulti is received one by one, and it takes itself, in order, what zsync has
// left of it.
func TestQueueTakesApartWhatCuratorPutsIntoOneZnode(t *testing.T) {
	t.Parallel()
	for name, open := range places() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, servers := brief(t), open(t).one
			p := curator.program(t, servers, long)
			path := fresh(p) + "/queue"
			q := zsync.NewQueue[string](connect(t, servers), path, zsync.WithQueueLayout(zsync.LayoutDistributedQueue), zsync.WithCodec(zsync.Raw))
			p.Do("puts %s a b c d e", path)
			p.Do("put %s f", path)
			v, _, err := q.TryRecv(ctx)
			must(t, "TryRecv", err)
			check(t, "TryRecv", v, "a")
			inner, cancel := context.WithCancel(ctx)
			received := q.Recv(inner)
			check(t, "Recv", <-received, "b")
			cancel()
			for range received {
			}
			for n := 0; n != 4 && ctx.Err() == nil; { // until what was not taken is back
				n, err = q.Len(ctx)
				must(t, "Len", err)
			}
			for _, want := range []string{"c", "d", "e", "f"} {
				check(t, "the program takes", p.Do("take %s", path), want)
			}
		})
	}
}

// soon receives what comes within a short time.
func soon(ch <-chan string) (string, bool) {
	select {
	case v, ok := <-ch:
		return v, ok
	case <-time.After(100 * time.Millisecond):
		return "", false
	}
}

func TestQueuePrioritiesAreSharedWithForeignOnes(t *testing.T) {
	t.Parallel()
	for name, open := range places() {
		for _, k := range queues {
			if k.layout == zsync.LayoutSimpleQueue {
				continue // has none
			}
			t.Run(name+"/"+k.name, func(t *testing.T) {
				t.Parallel()
				ctx, servers := brief(t), open(t).one
				p := k.program(t, servers, long)
				base := fresh(p)
				for i, takeTheirs := range []bool{true, false} {
					path := fmt.Sprintf("%s/queue%d", base, i)
					q := zsync.NewQueue[string](connect(t, servers), path,
						zsync.WithQueueLayout(k.layout), zsync.WithCodec(zsync.Raw), zsync.WithPriorities(200))
					must(t, "SendPriority", q.SendPriority(ctx, 150, "d"))
					p.Do("%s %s c 100", k.put, path)
					must(t, "SendPriority", q.SendPriority(ctx, 10, "b"))
					p.Do("%s %s a 9", k.put, path)
					for _, want := range []string{"a", "b", "c", "d"} {
						if takeTheirs {
							check(t, "the program takes", p.Do("%s %s", k.take, path), want)
							continue
						}
						v, _, err := q.TryRecv(ctx)
						must(t, "TryRecv", err)
						check(t, "TryRecv", v, want)
					}
				}
			})
		}
	}
}

// bigEndian is a codec of the forms in which Curator stores numbers: 4 bytes for
// SharedCount and DistributedAtomicInteger, 8 for DistributedAtomicLong. None are 0.
type bigEndian struct{}

func (bigEndian) Marshal(v any) ([]byte, error) { return binary.Append(nil, binary.BigEndian, v) }

func (bigEndian) Unmarshal(data []byte, v any) error {
	if len(data) == 0 {
		return nil
	}
	_, err := binary.Decode(data, binary.BigEndian, v)
	return err
}

func TestValueIsSharedWithForeignCounters(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		p, s := d.program(t, servers, long), connect(t, servers)
		base := fresh(p)
		if d.name == curator.name { // DistributedAtomicLong
			addsUp(t, p, "count", base+"/long", zsync.NewValue[int64](s, base+"/long", zsync.WithCodec(bigEndian{})))
		} else { // kazoo's Counter writes digits
			addsUp(t, p, "count", base+"/digits", zsync.NewValue[int64](s, base+"/digits"))
		}
		addsUp(t, p, "share", base+"/shared", zsync.NewValue[int32](s, base+"/shared", zsync.WithCodec(bigEndian{})))
	})
}

// addsUp has zsync and the program add to one counter, at the same time.
func addsUp[T int32 | int64](t *testing.T, p *interop.Program, verb, path string, v *zsync.Value[T]) {
	t.Helper()
	ctx := brief(t)
	check(t, "the program adds", p.Do("%s %s 5", verb, path), "5")
	latest := v.Watch(ctx)
	for range 10 {
		p.Send("%s %s 3", verb, path)
	}
	for range 10 {
		_, err := v.Update(ctx, func(x T) (T, error) { return x + 2, nil })
		must(t, "Update", err)
	}
	for range 10 {
		p.Ok()
	}
	for x := range latest {
		if x == 55 {
			break
		}
	}
	x, _, err := v.Load(ctx)
	must(t, "Load", err)
	check(t, "Load", fmt.Sprint(x), "55")
	check(t, "the program reads", p.Do("%s %s 0", verb, path), "55")
}

func TestInt64IsSharedWithForeignCounters(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		ctx, p := brief(t), d.program(t, servers, long)
		path := fresh(p) + "/number"
		var opts []zsync.ValueOption
		if d.name == curator.name { // DistributedAtomicLong; kazoo's Counter writes digits
			opts = append(opts, zsync.WithCodec(zsync.BigEndian))
		}
		n := zsync.NewInt64(connect(t, servers), path, opts...)
		load := func(want int64) {
			t.Helper()
			x, err := n.Load(ctx)
			must(t, "Load", err)
			check(t, "Load", fmt.Sprint(x), fmt.Sprint(want))
			check(t, "the program reads", p.Do("count %s 0", path), fmt.Sprint(want))
		}

		// The program makes it, and they add beside each other.
		check(t, "the program adds", p.Do("count %s 5", path), "5")
		for range 10 {
			p.Send("count %s 3", path)
		}
		for range 10 {
			_, err := n.Add(ctx, -2)
			must(t, "Add", err)
		}
		for range 10 {
			p.Ok()
		}
		load(15)

		// What zsync replaces the program adds to, below zero too.
		old, err := n.Swap(ctx, -1<<40)
		must(t, "Swap", err)
		check(t, "Swap", fmt.Sprint(old), "15")
		check(t, "the program adds", p.Do("count %s 1", path), fmt.Sprint(int64(-1<<40+1)))
		ok, err := n.CompareAndSwap(ctx, -1<<40, 7)
		must(t, "CompareAndSwap", err)
		check(t, "CompareAndSwap of what the program has changed", fmt.Sprint(ok), "false")
		ok, err = n.CompareAndSwap(ctx, -1<<40+1, 7)
		must(t, "CompareAndSwap", err)
		check(t, "CompareAndSwap of what the program has left", fmt.Sprint(ok), "true")
		load(7)
		must(t, "Store", n.Store(ctx, 0))
		check(t, "the program adds", p.Do("count %s 9", path), "9")
		load(9)

		// zsync makes it, and the program adds.
		path += "2"
		n = zsync.NewInt64(connect(t, servers), path, opts...)
		_, err = n.Add(ctx, 1)
		must(t, "Add", err)
		check(t, "the program adds", p.Do("count %s 1", path), "2")
		load(2)
	})
}

// Nobody has made the znode before they begin. kazoo's Counter makes it empty, and
// sets it then; Curator's makes it with a number.
func TestEachAdditionCountsWhereAForeignCounterAndOursBeginTogether(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		const rounds, each = 20, 3
		p, s := d.program(t, servers, long), connect(t, servers)
		base := fresh(p)
		var opts []zsync.ValueOption
		if d.name == curator.name { // DistributedAtomicLong; kazoo's Counter writes digits
			opts = append(opts, zsync.WithCodec(zsync.BigEndian))
		}
		for i := range rounds {
			path := fmt.Sprintf("%s/%d", base, i)
			add := func(ctx context.Context) error {
				_, err := zsync.NewInt64(s, path, opts...).Add(ctx, 2)
				return err
			}
			if i%2 == 0 {
				v := zsync.NewValue[int64](s, path, opts...)
				add = func(ctx context.Context) error {
					_, err := v.Update(ctx, func(x int64) (int64, error) { return x + 2, nil })
					return err
				}
			}
			ctx := brief(t)
			ours := make(chan error, 1)
			lead := time.Duration(i/2-rounds/4) * time.Millisecond // of the program
			go func() {
				time.Sleep(lead) // real time: in some rounds, our client begins later
				var err error
				for n := 0; n < each && err == nil; n++ {
					err = add(ctx)
				}
				ours <- err
			}()
			time.Sleep(-lead) // real time: in the others, the program begins later
			for range each {
				p.Send("count %s 3", path)
			}
			for range each {
				p.Ok()
			}
			must(t, "add", <-ours)
			want := fmt.Sprint(each * (2 + 3))
			check(t, "the program reads", p.Do("count %s 0", path), want)
			x, err := zsync.NewInt64(s, path, opts...).Load(ctx)
			must(t, "Load", err)
			check(t, "Load", fmt.Sprint(x), want)
		}
	})
}

func TestGroupIsSharedWithForeignMembers(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		ctx := brief(t)
		p, doomed := d.program(t, servers, long), d.mortal(t, servers, short)
		path := fresh(p) + "/group"
		g := zsync.NewGroup[string](connect(t, servers), path, zsync.WithLayout(layoutOf(d)), zsync.WithCodec(zsync.Raw))
		info := func(s string) string { // kazoo's members have none
			if d.name == kazoo.name {
				return ""
			}
			return s
		}

		// Who comes first makes the path: here the program, and then zsync sees it.
		p.Do("join theirs %s theirs one", path)
		watch, stop := context.WithCancel(ctx)
		seen := g.Watch(watch)
		wantSeen := func(want ...string) {
			t.Helper()
			all := strings.Join(want, ",")
			for members := range seen {
				if list(members) == all {
					break
				}
			}
			members, err := g.Members(ctx)
			must(t, "Members", err)
			check(t, "Members", list(members), all)
			eventually(t, all, func() string { return p.Do("members theirs") })
		}
		wantSeen("theirs=" + info("one"))

		mine, err := g.Join(ctx, "mine", info("two"))
		must(t, "Join", err)
		wantSeen("mine="+info("two"), "theirs="+info("one"))
		if d.name == curator.name {
			must(t, "Set", mine.Set(ctx, "three"))
			wantSeen("mine=three", "theirs=one")
			must(t, "Set", mine.Set(ctx, "two"))
		}

		// One that dies is gone for both when its session has ended.
		doomed.Do("join doomed %s doomed four", path)
		wantSeen("doomed="+info("four"), "mine="+info("two"), "theirs="+info("one"))
		doomed.Kill()
		wantSeen("mine="+info("two"), "theirs="+info("one"))

		must(t, "Leave", mine.Leave())
		wantSeen("theirs=" + info("one"))

		// The last goes, and zsync makes a path that the program then uses.
		p.Do("release theirs")
		for members := range seen {
			if len(members) == 0 {
				break
			}
		}
		stop()
		for range seen {
		}
		path += "2"
		g = zsync.NewGroup[string](connect(t, servers), path, zsync.WithLayout(layoutOf(d)), zsync.WithCodec(zsync.Raw))
		first, err := g.Join(ctx, "first", info("one"))
		must(t, "Join", err)
		p.Do("join theirs %s second two", path)
		eventually(t, "first="+info("one")+",second="+info("two"), func() string { return p.Do("members theirs") })
		must(t, "Leave", first.Leave())
		eventually(t, "second="+info("two"), func() string { return p.Do("members theirs") })
		members, err := g.Members(ctx)
		must(t, "Members", err)
		check(t, "Members", list(members), "second="+info("two"))
	})
}

// list writes members as the program does.
func list(members []zsync.Member[string]) string {
	var all []string
	for _, m := range members {
		all = append(all, m.ID+"="+m.Info)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}
