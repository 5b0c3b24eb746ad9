package zsync_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

func increment(n int) (int, error) { return n + 1, nil }

func TestValueIsStoredLoadedSwappedAndUpdated(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		ctx := within(t, 2*time.Minute)
		s := connect()
		a, b := zsync.NewValue[int](s, "/deep/v"), zsync.NewValue[int](connect(), "/deep/v")
		_, none, err := a.Load(ctx)
		wantErr(t, err, zsync.ErrNoValue)
		if none != (zsync.Version{}) {
			t.Errorf("Version %v of no value", none)
		}
		swap := func(v *zsync.Value[int], old zsync.Version, x int, want bool) {
			t.Helper()
			if ok, err := v.CompareAndSwap(ctx, old, x); ok != want || err != nil {
				t.Fatalf("CompareAndSwap = %v, %v; want %v", ok, err, want)
			}
		}
		load := func(v *zsync.Value[int], want int) zsync.Version {
			t.Helper()
			x, ver, err := v.Load(ctx)
			if x != want || err != nil {
				t.Fatalf("Load = %v, %v; want %v", x, err, want)
			}
			return ver
		}
		swap(a, none, 1, true)
		swap(b, none, 2, false)
		v1 := load(b, 1)
		must(t, a.Store(ctx, 1)) // the same value, another write
		v2 := load(b, 1)
		if v1 == v2 {
			t.Error("two writes have one Version")
		}
		swap(a, v1, 3, false)
		swap(b, v2, 3, true)
		load(a, 3)
		if x, err := b.Update(ctx, increment); x != 4 || err != nil {
			t.Fatalf("Update = %v, %v; want 4", x, err)
		}
		boom := errors.New("boom")
		_, err = a.Update(ctx, func(int) (int, error) { return 9, boom })
		wantErr(t, err, boom)
		load(b, 4)
		inc, err := inside.Manager(s).Incarnation(ctx)
		must(t, err)
		data, _, err := inc.Get(ctx, inside.Manager(s).Full("/deep/v"))
		if string(data) != "4" || err != nil {
			t.Errorf("the znode is %q, %v; want the JSON and nothing else", data, err)
		}
		// The znode made anew counts from 0 again, as the first did.
		must(t, znodes.RemoveNow(ctx, inc, inside.Manager(s).Full("/deep/v")))
		swap(a, v1, 5, false)
		must(t, b.Store(ctx, 6))
		swap(a, v1, 5, false)
		if x, err := zsync.NewValue[int](s, "/deep/w").Update(ctx, increment); x != 1 || err != nil {
			t.Errorf("Update of no value = %v, %v; want 1", x, err)
		}
	})
}

func TestValueRefusesBadInputBeforeAnythingIsSent(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for _, v := range []*zsync.Value[string]{
			zsync.NewValue[string](nil, "/v"), zsync.NewValue[string](s, "v"), zsync.NewValue[string](s, "/"),
			zsync.NewValue[string](s, "/v", nil), zsync.NewValue[string](s, "/v", zsync.WithCodec(nil)),
		} {
			_, _, err := v.Load(t.Context())
			wantErr(t, err, zsync.ErrInvalid)
			wantErr(t, v.Store(t.Context(), "x"), zsync.ErrInvalid)
			_, err = v.CompareAndSwap(t.Context(), zsync.Version{}, "x")
			wantErr(t, err, zsync.ErrInvalid)
			_, err = v.Update(t.Context(), func(string) (string, error) { return "", nil })
			wantErr(t, err, zsync.ErrInvalid)
			if _, ok := <-v.Watch(t.Context()); ok {
				t.Error("Watch of a bad Value is open")
			}
		}
		v := zsync.NewValue[string](s, "/v", zsync.WithCodec(zsync.Raw))
		_, err := v.Update(t.Context(), nil)
		wantErr(t, err, zsync.ErrInvalid)
		big := strings.Repeat("x", 1<<20)
		wantErr(t, v.Store(t.Context(), big), zsync.ErrTooLarge)
		_, err = v.CompareAndSwap(t.Context(), zsync.Version{}, big)
		wantErr(t, err, zsync.ErrTooLarge)
		_, err = v.Update(t.Context(), func(string) (string, error) { return big, nil })
		wantErr(t, err, zsync.ErrTooLarge)
		wantErr(t, zsync.NewValue[int](s, "/v", zsync.WithCodec(zsync.Raw)).Store(t.Context(), 1), zsync.ErrInvalid)
		if err := zsync.NewValue[func()](s, "/v").Store(t.Context(), nil); err == nil {
			t.Error("a function was stored")
		}
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		wantErr(t, v.Store(ctx, "x"), cause, context.Canceled)
		_, _, err = v.Load(ctx)
		wantErr(t, err, cause, context.Canceled)
		c := srv.Counts()
		if c.Requests["multi"]+c.Requests["create"]+c.Requests["createContainer"]+c.Requests["setData"] != 0 {
			t.Errorf("something was written: %v", c.Requests)
		}
		must(t, v.Store(t.Context(), big[:1<<20-2000])) // just below it fits
		if x, _, err := v.Load(t.Context()); len(x) != 1<<20-2000 || err != nil {
			t.Errorf("Load = %d bytes, %v", len(x), err)
		}
	})
}

func TestValueCosts(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		v := zsync.NewValue[int](s, "/v")
		must(t, v.Store(t.Context(), 1))
		_, ver, err := v.Load(t.Context())
		must(t, err)
		synctest.Wait()
		for _, c := range []struct {
			name string
			want int64 // the receipt is kept
			f    func() error
		}{
			{"CompareAndSwap", 2, func() error { _, err := v.CompareAndSwap(t.Context(), ver, 2); return err }},
			{"Store", 1, func() error { return v.Store(t.Context(), 2) }},
			{"Load", 2, func() error { _, _, err := v.Load(t.Context()); return err }},
			{"Update", 2, func() error { _, err := v.Update(t.Context(), increment); return err }},
		} {
			before := s.Stats().Requests
			must(t, c.f())
			synctest.Wait()
			if got := s.Stats().Requests - before; got != c.want {
				t.Errorf("%s costs %d requests, want %d", c.name, got, c.want)
			}
		}
		must(t, v.Store(t.Context(), 3))
		must(t, s.Close()) // with the receipt kept
		s = open(t, srv)
		if names := childrenOf(t, s, "/v-receipts"); len(names) != 0 {
			t.Errorf("%q are left", names)
		}
	})
}

func TestUndecodableValueIsAnErrorAndCanBeReplaced(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		must(t, zsync.NewValue[string](s, "/v", zsync.WithCodec(zsync.Raw)).Store(t.Context(), "{"))
		v := zsync.NewValue[int](s, "/v")
		values := v.Watch(t.Context())
		_, ver, err := v.Load(t.Context())
		if err == nil || errors.Is(err, zsync.ErrNoValue) {
			t.Errorf("Load = %v", err)
		}
		if _, err := v.Update(t.Context(), increment); err == nil {
			t.Error("Update of an undecodable value succeeded")
		}
		if ok, err := v.CompareAndSwap(t.Context(), zsync.Version{}, 7); ok || err != nil {
			t.Errorf("CompareAndSwap of no value = %v, %v; want false, because there is a value", ok, err)
		}
		if ok, err := v.CompareAndSwap(t.Context(), ver, 7); !ok || err != nil {
			t.Errorf("CompareAndSwap = %v, %v", ok, err)
		}
		if x := <-values; x != 7 {
			t.Errorf("Watch sends %d, want 7", x)
		}
	})
}

// Two processes may write equal bytes, so a lost reply cannot be told from the
// znode.
func TestEveryWriteIsAppliedOnceWhateverBefallsItsRequests(t *testing.T) {
	t.Parallel()
	type write struct {
		name string
		do   func(ctx context.Context, v *zsync.Value[int]) error
	}
	swap := func(ctx context.Context, v *zsync.Value[int], old zsync.Version) error {
		ok, err := v.CompareAndSwap(ctx, old, 7)
		if err == nil && !ok {
			err = errors.New("not swapped")
		}
		return err
	}
	for _, before := range []string{"nobody", "another", "itself, a moment ago"} {
		for _, w := range []write{
			{"Store", func(ctx context.Context, v *zsync.Value[int]) error { return v.Store(ctx, 7) }},
			{"CompareAndSwap", func(ctx context.Context, v *zsync.Value[int]) error {
				_, old, err := v.Load(ctx)
				if err != nil && !errors.Is(err, zsync.ErrNoValue) {
					return err
				}
				return swap(ctx, v, old)
			}},
			{"Update", func(ctx context.Context, v *zsync.Value[int]) error {
				x, err := v.Update(ctx, func(n int) (int, error) { return n + 7, nil })
				if err == nil && x != 7 {
					err = fmt.Errorf("Update = %d", x)
				}
				return err
			}},
		} {
			t.Run(fmt.Sprintf("%s, written before by %s", w.name, before), func(t *testing.T) {
				eachRequest(t, func(t *testing.T, srv *zktest.Server, arm func(*zsync.Session)) {
					s, o := open(t, srv), open(t, srv)
					v, other := zsync.NewValue[int](s, "/deep/v"), zsync.NewValue[int](o, "/deep/v")
					switch before {
					case "another":
						must(t, other.Store(t.Context(), 0))
					case "itself, a moment ago": // so it has a receipt already
						must(t, v.Store(t.Context(), 0))
					}
					arm(s)
					must(t, w.do(t.Context(), v))
					if x, _, err := other.Load(t.Context()); x != 7 || err != nil {
						t.Fatalf("Load = %d, %v; want 7", x, err)
					}
					must(t, other.Store(t.Context(), 100))
					time.Sleep(5 * testTimeout) // for whatever comes late
					if x, _, err := other.Load(t.Context()); x != 100 || err != nil {
						t.Errorf("Load = %d, %v; the write was applied again", x, err)
					}
					awaitLogs()
					if names := childrenOf(t, o, "/deep/v-receipts"); len(names) != 0 {
						t.Errorf("receipts %q are left", names)
					}
				})
			})
		}
	}
}

// The client has given its session up and stored in the next, when the servers get
// what it sent in the first, which they have not given up yet.
func TestAWriteThatComesLateFromAFormerSessionIsNotApplied(t *testing.T) {
	t.Parallel()
	late := int64(0)
	for i := range 20 { // now and then the next session comes too late for that
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			s, o := open(t, srv), open(t, srv)
			v, other := zsync.NewValue[int](s, "/v"), zsync.NewValue[int](o, "/v")
			must(t, other.Store(t.Context(), 0))
			if i%2 == 1 { // it has a receipt already
				must(t, v.Store(t.Context(), 0))
			}
			id := s.ID()
			srv.Partition(id)
			must(t, v.Store(t.Context(), 7))
			must(t, other.Store(t.Context(), 100))
			writes := srv.Counts().Requests["multi"]
			srv.Heal(id)
			synctest.Wait()
			late += srv.Counts().Requests["multi"] - writes
			time.Sleep(5 * testTimeout)
			if x, _, err := other.Load(t.Context()); x != 100 || err != nil {
				t.Errorf("Load = %d, %v; the write was applied again", x, err)
			}
			awaitLogs()
			if names := childrenOf(t, o, "/v-receipts"); len(names) != 0 {
				t.Errorf("receipts %q are left", names)
			}
		})
	}
	if late == 0 {
		t.Error("nothing came late, so nothing is tested")
	}
}

// A swap that is beaten says so, and is not applied later either.
func TestABeatenSwapIsNeverAppliedWhateverBefallsItsRequests(t *testing.T) {
	eachRequest(t, func(t *testing.T, srv *zktest.Server, arm func(*zsync.Session)) {
		s, o := open(t, srv), open(t, srv)
		v, other := zsync.NewValue[int](s, "/v"), zsync.NewValue[int](o, "/v")
		must(t, other.Store(t.Context(), 1))
		_, old, err := v.Load(t.Context())
		must(t, err)
		must(t, other.Store(t.Context(), 1)) // equal, and another write
		arm(s)
		if ok, err := v.CompareAndSwap(t.Context(), old, 7); ok || err != nil {
			t.Errorf("CompareAndSwap = %v, %v", ok, err)
		}
		// One that passes the look at the Version, and is beaten then.
		if ok, err := zsync.SwapBlindly(t.Context(), v, old, []byte("7")); ok || err != nil {
			t.Errorf("swap = %v, %v", ok, err)
		}
		time.Sleep(5 * testTimeout)
		if x, _, err := other.Load(t.Context()); x != 1 || err != nil {
			t.Errorf("Load = %d, %v", x, err)
		}
		awaitLogs()
		if names := childrenOf(t, o, "/v-receipts"); len(names) != 0 {
			t.Errorf("receipts %q are left", names)
		}
	})
}

func TestLoadAndWatchAreRightWhateverBefallsTheirRequests(t *testing.T) {
	t.Parallel()
	eachRequest(t, func(t *testing.T, srv *zktest.Server, arm func(*zsync.Session)) {
		s, o := open(t, srv), open(t, srv)
		v, w := zsync.NewValue[int](s, "/v"), zsync.NewValue[int](o, "/v")
		arm(o)
		values := w.Watch(t.Context()) // before there is a value
		synctest.Wait()
		last := 0
		for i := 1; i <= 4; i++ {
			if i == 3 { // deleted, and made anew
				must(t, znodes.RemoveNow(t.Context(), live(t, s), "/v"))
				synctest.Wait()
			}
			must(t, v.Store(t.Context(), i))
			if x, _, err := w.Load(t.Context()); x != i || err != nil {
				t.Fatalf("Load = %d, %v; want %d", x, err, i)
			}
			for last < i {
				x, ok := <-values
				if !ok || x < last || x > i {
					t.Fatalf("Watch sends %d, %v after %d", x, ok, last)
				}
				last = x
			}
		}
		time.Sleep(5 * testTimeout)
		if x, ok := sent(t, values); ok {
			t.Errorf("Watch sends %d when nothing has changed", x)
		}
	})
}

func TestUpdatesFromEverywhereAreAllCounted(t *testing.T) {
	seeds(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		var sessions []*zsync.Session
		for range 3 {
			sessions = append(sessions, open(t, srv))
		}
		var done, total atomic.Int64
		quiet := make(chan struct{})
		for i := range 6 {
			v := zsync.NewValue[int](sessions[i%3], "/v")
			go func() {
				for range 10 {
					if _, err := v.Update(t.Context(), increment); err != nil {
						t.Error(err)
					}
					total.Add(1)
					time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				}
				if done.Add(1) == 6 {
					close(quiet)
				}
			}()
		}
		chaos(t, srv, rnd, sessions, quiet)
		if x, _, err := zsync.NewValue[int](sessions[0], "/v").Load(t.Context()); int64(x) != total.Load() || err != nil {
			t.Errorf("%d after %d Updates that add one, %v", x, total.Load(), err)
		}
	})
}

// Case 34: the counter of the servers wraps, and -1 means any.
func TestCase34ASwapAtMinusOneIsStillACompareAndSwap(t *testing.T) {
	if ops := znodes.SwapOps("/v", nil, -2); len(ops) != 1 || ops[0].(*zk.SetDataRequest).Version != -2 {
		t.Errorf("at -2: %+v", ops)
	}
	ops := znodes.SwapOps("/v", nil, -1)
	if len(ops) != 2 || ops[0].(*zk.SetDataRequest).Version != -1 || ops[1].(*zk.CheckVersionRequest).Version != 0 {
		t.Fatalf("at -1: %+v; want a write, and the check that it took the counter to 0", ops)
	}
	// That servers let a check see the write before it, shown where the counter
	// can be brought to.
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		s := connect()
		ctx := within(t, 2*time.Minute)
		v := zsync.NewValue[int](s, "/v")
		for i := range 4 {
			must(t, v.Store(ctx, i))
		}
		for version := range int32(8) {
			_, before, err := v.Load(ctx)
			must(t, err)
			_, err = s.Txn(ctx, &zk.SetDataRequest{Path: "/v", Data: []byte("9"), Version: -1},
				&zk.CheckVersionRequest{Path: "/v", Version: version + 1})
			_, after, e := v.Load(ctx)
			must(t, e)
			if fits := strings.HasPrefix(before.String(), fmt.Sprint(version, "@")); fits != (err == nil) || fits == (before == after) || err != nil && !errors.Is(err, zk.ErrBadVersion) {
				t.Errorf("at %v, taken for %d: %v, then %v", before, version, err, after)
			}
		}
	})
}

// A countedConn makes a client believe that the znode at path has been written by
// more often than it was: its counter is that much ahead in each direction.
type countedConn struct {
	net.Conn
	path   string
	by     int32
	shaken bool         // the client's handshake has passed
	in     bytes.Buffer // what the server has sent; used by the reading goroutine alone
	opened bool         // and its handshake has passed

	mu    sync.Mutex
	reads map[int32]int32 // kinds of reads of path without a reply, by xid
}

// packet is a cursor in one.
type packet []byte

func (p *packet) int() int32 {
	n := int32(binary.BigEndian.Uint32(*p))
	*p = (*p)[4:]
	return n
}

func (p *packet) bytes() string {
	n := max(p.int(), 0)
	b := (*p)[:n]
	*p = (*p)[n:]
	return string(b)
}

// ahead changes a version in place, but not what means any.
func (p *packet) ahead(by int32, change bool) {
	if v := int32(binary.BigEndian.Uint32(*p)); change && v != -1 {
		binary.BigEndian.PutUint32(*p, uint32(v+by))
	}
	*p = (*p)[4:]
}

func (c *countedConn) Write(b []byte) (int, error) {
	out := bytes.Clone(b)
	for rest := packet(out); len(rest) > 0; {
		n := rest.int()
		p := rest[:n]
		rest = rest[n:]
		if !c.shaken {
			c.shaken = true
			continue
		}
		switch xid, op := p.int(), p.int(); zktest.Op(op) {
		case zktest.OpGetData, zktest.OpExists:
			if p.bytes() == c.path {
				c.mu.Lock()
				c.reads[xid] = op
				c.mu.Unlock()
			}
		case zktest.OpMulti:
			c.multi(p)
		}
	}
	return c.Conn.Write(out)
}

func (c *countedConn) multi(p packet) {
	for {
		op := zktest.Op(p.int())
		if p = p[5:]; op == -1 { // done, and an error code
			return
		}
		mine := p.bytes() == c.path
		switch op {
		case zktest.OpSetData:
			p.bytes()
			p.ahead(-c.by, mine)
		case zktest.OpCheck, zktest.OpDelete:
			p.ahead(-c.by, mine)
		case zktest.OpCreate:
			p.bytes()
			for range p.int() {
				p.int()
				p.bytes()
				p.bytes()
			}
			p.int()
		}
	}
}

func (c *countedConn) Read(b []byte) (int, error) {
	if c.in.Len() == 0 {
		head := make([]byte, 4)
		if _, err := io.ReadFull(c.Conn, head); err != nil {
			return 0, err
		}
		body := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(c.Conn, body); err != nil {
			return 0, err
		}
		if c.opened {
			c.reply(body)
		}
		c.opened = true
		c.in.Write(head)
		c.in.Write(body)
	}
	return c.in.Read(b)
}

func (c *countedConn) reply(p packet) {
	xid := p.int()
	p = p[8:] // the zxid
	c.mu.Lock()
	op := c.reads[xid]
	delete(c.reads, xid)
	c.mu.Unlock()
	if failed := p.int() != 0; failed || op == 0 {
		return
	}
	if zktest.Op(op) == zktest.OpGetData {
		p.bytes()
	}
	p = p[32:] // czxid, mzxid, ctime, mtime
	binary.BigEndian.PutUint32(p, binary.BigEndian.Uint32(p)+uint32(c.by))
}

func TestCase34AValueGoesOnWhenItsVersionOverflowsAndPassesMinusOne(t *testing.T) {
	for _, by := range []int32{math.MaxInt32 - 5, -6} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			ctx := t.Context()
			counted := zsync.WithDialer(func(network, addr string, limit time.Duration) (net.Conn, error) {
				c, err := srv.Dial(network, addr, limit)
				return &countedConn{Conn: c, path: "/v", by: by, reads: make(map[int32]int32)}, err
			})
			v, other := zsync.NewValue[int](open(t, srv, counted), "/v"), zsync.NewValue[int](open(t, srv, counted), "/v")
			must(t, v.Store(ctx, 0))
			values := other.Watch(ctx)
			wantSent(t, values, 0)
			var before []zsync.Version
			for n := 0; n < 12; n++ {
				x, now, err := other.Load(ctx)
				if x != n || !strings.HasPrefix(now.String(), fmt.Sprint(by+int32(n), "@")) || err != nil {
					t.Fatalf("Load = %d, %v, %v; want %d at %d", x, now, err, n, by+int32(n))
				}
				// None that is over is taken for the present one, not even with
				// the server's comparison alone.
				for _, old := range before {
					if ok, err := v.CompareAndSwap(ctx, old, -1); ok || err != nil {
						t.Fatalf("at %v: CompareAndSwap of %v = %v, %v", now, old, ok, err)
					}
					if ok, err := zsync.SwapBlindly(ctx, v, old, []byte("-1")); ok || err != nil {
						t.Fatalf("at %v: swap of %v = %v, %v", now, old, ok, err)
					}
				}
				before = append(before, now)
				if n%3 == 0 {
					if _, err := v.Update(ctx, increment); err != nil {
						t.Fatal(err)
					}
				} else if ok, err := v.CompareAndSwap(ctx, now, n+1); !ok || err != nil {
					t.Fatalf("at %v: CompareAndSwap = %v, %v", now, ok, err)
				}
				wantSent(t, values, n+1)
			}
		})
	}
}

func TestUpdateThatPausesEndsWhenTheSessionIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		other := zsync.NewValue[int](open(t, srv), "/v")
		s := open(t, srv, zsync.WithRetry(zsync.Backoff{Min: time.Hour, Max: time.Hour}))
		got := async(func() error {
			_, err := zsync.NewValue[int](s, "/v").Update(t.Context(), func(x int) (int, error) { return x + 1, other.Store(t.Context(), x) })
			return err
		})
		pendingStill(t, got)
		must(t, s.Close())
		start := time.Now()
		wantErr(t, <-got, zsync.ErrClosed)
		if d := time.Since(start); d > 0 {
			t.Errorf("Update returned %v after Close", d)
		}
	})
}

// sent reads what a Watch sends next, if anything, when all is quiet.
func sent[T any](t testing.TB, c <-chan T) (x T, ok bool) {
	t.Helper()
	synctest.Wait()
	select {
	case x, open := <-c:
		if !open {
			t.Fatal("the channel is closed")
		}
		return x, true
	default:
		return x, false
	}
}

func wantSent[T comparable](t testing.TB, c <-chan T, want T) {
	t.Helper()
	if x, ok := sent(t, c); x != want || !ok {
		t.Fatalf("Watch sends %v, %v; want %v", x, ok, want)
	}
	if x, ok := sent(t, c); ok {
		t.Fatalf("Watch sends %v, and there is nothing new", x)
	}
}

func TestWatchSendsTheLatestAndThenIsQuiet(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := open(t, srv), open(t, srv)
		v := zsync.NewValue[int](s, "/deep/v")
		ctx, cancel := context.WithCancel(t.Context())
		c := zsync.NewValue[int](o, "/deep/v").Watch(ctx)
		if x, ok := sent(t, c); ok {
			t.Fatalf("%d is sent, and there is no value", x)
		}
		must(t, v.Store(t.Context(), 1))
		wantSent(t, c, 1)
		for i := range 10 { // and nobody reads
			must(t, v.Store(t.Context(), i))
			synctest.Wait()
		}
		wantSent(t, c, 9)
		awaitLogs()
		before := srv.Counts()
		time.Sleep(time.Hour)
		if d := srv.Counts().Sub(before); d.Total() != 0 || d.Notifications != 0 {
			t.Errorf("an hour of watching cost %v and %d notifications", d.Requests, d.Notifications)
		}
		inc, err := inside.Manager(s).Incarnation(t.Context())
		must(t, err)
		must(t, znodes.RemoveNow(t.Context(), inc, "/deep/v"))
		if x, ok := sent(t, c); ok {
			t.Fatalf("%d is sent, and the value is gone", x)
		}
		must(t, v.Store(t.Context(), 9)) // made anew
		wantSent(t, c, 9)
		cancel()
		if _, ok := <-c; ok {
			t.Error("the channel is open after its context has ended")
		}
		c = zsync.NewValue[int](o, "/deep/v").Watch(t.Context())
		synctest.Wait()
		must(t, o.Close())
		if _, ok := <-c; ok {
			t.Error("the channel is open after Close")
		}
	})
}

// Case 34, with CURATOR-311 and -329.
func TestCase34WatchIsNotStaleAfterReconnectsAndNewSessions(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, o := open(t, srv), open(t, srv)
		v := zsync.NewValue[int](s, "/v")
		must(t, v.Store(t.Context(), 0))
		c := zsync.NewValue[int](o, "/v").Watch(t.Context())
		wantSent(t, c, 0)
		for i, hurt := range []func(id int64){
			srv.Disconnect,
			srv.Expire,
			func(id int64) { srv.Partition(id); time.Sleep(testTimeout / 2); srv.Heal(id) },
			func(id int64) { srv.Partition(id); time.Sleep(3 * testTimeout); srv.Heal(id) },
			func(int64) { srv.Stop(); time.Sleep(time.Second); srv.Restart() },
		} {
			stored := async(func() error { return v.Store(t.Context(), 2*i+1) })
			hurt(o.ID())
			must(t, <-stored)
			time.Sleep(5 * time.Second)
			wantSent(t, c, 2*i+1)
			must(t, v.Store(t.Context(), 2*i+2))
			wantSent(t, c, 2*i+2)
		}
	})
}

func TestWatchNeverGoesBackWhicheverServerAnswers(t *testing.T) {
	t.Parallel()
	for seed := range 30 {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 34))
			s, o := open(t, srv), open(t, srv)
			v, w := zsync.NewValue[int](s, "/v"), zsync.NewValue[int](o, "/v")
			must(t, v.Store(t.Context(), 0))
			c := w.Watch(t.Context())
			var last atomic.Int64
			go func() {
				for x := range c {
					if int64(x) < last.Swap(int64(x)) {
						t.Errorf("Watch sends %d after a later value", x)
					}
				}
			}()
			for i := range 40 {
				must(t, v.Store(t.Context(), i))
				if x, _, err := w.Load(t.Context()); x != i || err != nil {
					t.Fatalf("Load = %d, %v; want %d", x, err, i)
				}
				switch addr := srv.Addrs()[rnd.IntN(3)]; rnd.IntN(4) {
				case 0:
					srv.Freeze(addr)
				case 1:
					srv.Thaw(addr)
				case 2:
					srv.Disconnect(o.ID())
				case 3:
					srv.Expire(o.ID())
				}
				time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond)
			}
			for _, addr := range srv.Addrs() {
				srv.Thaw(addr)
			}
			time.Sleep(time.Minute)
			if n := last.Load(); n != 39 {
				t.Errorf("Watch sent %d last, want 39", n)
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}, zktest.WithAddrs("127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"))
	}
}

func TestWatchAndObserveBeginWithWhatIsNewOnServersThatLag(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var sessions []*zsync.Session
		for range 6 { // on all of the servers, very likely
			sessions = append(sessions, open(t, srv))
		}
		v := zsync.NewValue[int](sessions[0], "/v")
		must(t, v.Store(t.Context(), 0))
		for _, addr := range srv.Addrs() {
			srv.Freeze(addr)
		}
		for i, s := range sessions {
			must(t, v.Store(t.Context(), i))
			e := zsync.NewElection(sessions[0], "/e", zsync.WithID(fmt.Sprint(i)))
			must(t, e.Campaign(t.Context()))
			ctx, cancel := context.WithCancel(t.Context())
			if x := <-zsync.NewValue[int](s, "/v").Watch(ctx); x != i {
				t.Errorf("Watch begins with %d, want %d", x, i)
			}
			if c := <-zsync.NewElection(s, "/e").Observe(ctx); c.Owner != fmt.Sprint(i) {
				t.Errorf("Observe begins with %s, want %d", c.Owner, i)
			}
			cancel()
			must(t, e.Resign())
		}
	}, zktest.WithAddrs("127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"))
}

// Whoever finds that others were quicker waits as WithRetry says: no longer than Max, and
// whatever that is.
func TestUpdateThatOthersOutrunWaitsNoLongerThanARetry(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		other := zsync.NewValue[int](open(t, srv), "/v")
		must(t, other.Store(t.Context(), 0))
		for _, most := range []time.Duration{time.Nanosecond, time.Second, math.MaxInt64} {
			const rounds = 10
			v := zsync.NewValue[int](open(t, srv, zsync.WithRetry(zsync.Backoff{Min: most, Max: most})), "/v")
			ctx, start, n := within(t, rounds*time.Second), time.Now(), 0
			_, err := v.Update(ctx, func(x int) (int, error) {
				if n++; n <= rounds {
					must(t, other.Store(t.Context(), x+1))
				}
				return x + 1, nil
			})
			if most == math.MaxInt64 {
				wantErr(t, err, context.DeadlineExceeded)
			} else if must(t, err); time.Since(start) > rounds*most {
				t.Errorf("%d pauses of %v took %v", rounds, most, time.Since(start))
			}
		}
	})
}

// A lock below the path of a Value has made that as a container, which the servers remove when
// nothing is left in it. The value stays all the same, however it was stored.
func TestAValueOutlivesTheLockThatHasMadeItsPath(t *testing.T) {
	for name, store := range map[string]func(ctx context.Context, s *zsync.Session) error{
		"Store": func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewValue[int](s, "/config").Store(ctx, 5)
		},
		"CompareAndSwap": func(ctx context.Context, s *zsync.Session) error {
			ok, err := zsync.NewValue[int](s, "/config").CompareAndSwap(ctx, zsync.Version{}, 5)
			if err == nil && !ok {
				err = errors.New("not swapped")
			}
			return err
		},
		"Update": func(ctx context.Context, s *zsync.Session) error {
			_, err := zsync.NewValue[int](s, "/config").Update(ctx, func(int) (int, error) { return 5, nil })
			return err
		},
		"Add": func(ctx context.Context, s *zsync.Session) error {
			_, err := zsync.NewInt64(s, "/config").Add(ctx, 5)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				lock := zsync.NewMutex(s, "/config/lock")
				must(t, lock.Lock(t.Context()))
				must(t, store(t.Context(), s))
				must(t, lock.Unlock())
				time.Sleep(10 * time.Minute)
				n, _, err := zsync.NewValue[int](s, "/config").Load(t.Context())
				if n != 5 || err != nil {
					t.Errorf("the value is %d, %v", n, err)
				}
			})
		})
	}
}

// The path of a Value is deleted with all that is below it, and a lock makes it again: what is
// stored there then stays as what was stored before did.
func TestAValueOutlivesTheLockThatHasMadeItsPathAgain(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		lock, v := zsync.NewMutex(s, "/config/lock"), zsync.NewValue[int](s, "/config")
		admin := harness.Plain(t, srv)
		for n := range 2 {
			must(t, lock.Lock(t.Context()))
			must(t, v.Store(t.Context(), n))
			must(t, lock.Unlock())
			time.Sleep(10*time.Minute + 7*time.Second) // and not just as the servers look for what is empty
			if got, _, err := v.Load(t.Context()); got != n || err != nil {
				t.Errorf("the value is %d, %v, want %d", got, err, n)
			}
			for _, path := range []string{"/config/%kept", "/config"} {
				must(t, admin.Delete(path, -1))
			}
		}
	})
}

// Another client deletes the znode of a Value, and the Value is stored anew: its znode is persistent, and needs no child.
func TestAValueThatIsStoredAgainHasNoChild(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		v := zsync.NewValue[int](open(t, srv), "/v")
		admin := harness.Plain(t, srv)
		for range 2 {
			for n := range 2 {
				must(t, v.Store(t.Context(), n))
			}
			must(t, admin.Delete("/v", -1))
		}
	})
}

// The reply to a Store is lost, and then the servers refuse to read the znode: the value was stored, and the error says so.
func TestAStoreWhoseZnodeMayNotBeReadIsNotSaidToBeRefused(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		v := zsync.NewValue[int](open(t, srv), "/v")
		for n := range 2 {
			must(t, v.Store(t.Context(), n)) // the session now knows the znode
		}
		dropped := false
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpMulti && !dropped:
				dropped = true
				return zktest.DropReply
			case r.Op == zktest.OpExists && r.Path == "/v":
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		if err := v.Store(t.Context(), 2); err == nil || !strings.Contains(err.Error(), "was stored") {
			t.Errorf("Store says %v", err)
		}
		if n, _, err := v.Load(t.Context()); n != 2 || err != nil {
			t.Errorf("the value is %d, %v: the case did not come about", n, err)
		}
	})
}

func TestInt64DoesWhatAtomicInt64Does(t *testing.T) {
	for name, opts := range map[string][]zsync.ValueOption{"decimal": nil, "Curator's": {zsync.WithCodec(zsync.BigEndian)}} {
		t.Run(name, func(t *testing.T) {
			anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
				ctx := within(t, 2*time.Minute)
				a, b := zsync.NewInt64(connect(), "/deep/n", opts...), zsync.NewInt64(connect(), "/deep/n", opts...)
				want := func(got int64, err error, want int64) {
					t.Helper()
					if got != want || err != nil {
						t.Fatalf("got %d, %v; want %d", got, err, want)
					}
				}
				is := func(got bool, err error, want bool) {
					t.Helper()
					if got != want || err != nil {
						t.Fatalf("got %v, %v; want %v", got, err, want)
					}
				}
				x, err := a.Load(ctx)
				want(x, err, 0)
				ok, err := a.CompareAndSwap(ctx, 1, 2)
				is(ok, err, false)
				ok, err = a.CompareAndSwap(ctx, 0, 2)
				is(ok, err, true)
				x, err = b.Add(ctx, -5)
				want(x, err, -3)
				x, err = a.Swap(ctx, math.MaxInt64)
				want(x, err, -3)
				x, err = b.Add(ctx, 1)
				want(x, err, math.MinInt64)
				must(t, a.Store(ctx, 7))
				x, err = b.Load(ctx)
				want(x, err, 7)
				ok, err = b.CompareAndSwap(ctx, 7, 8)
				is(ok, err, true)
				ok, err = a.CompareAndSwap(ctx, 7, 9)
				is(ok, err, false)
			})
		})
	}
}

func TestAnEmptyZnodeIsZeroToAnInt64(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for path, opts := range map[string][]zsync.ValueOption{"/decimal": nil, "/big": {zsync.WithCodec(zsync.BigEndian)}} {
			must(t, zsync.NewValue[[]byte](s, path, zsync.WithCodec(zsync.Raw)).Store(t.Context(), nil))
			n := zsync.NewInt64(s, path, opts...)
			if x, err := n.Add(t.Context(), 3); x != 3 || err != nil {
				t.Errorf("Add = %d, %v; want 3", x, err)
			}
		}
	})
}

func TestInt64RefusesWhatIsNoNumber(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		must(t, zsync.NewValue[string](s, "/n").Store(t.Context(), "text"))
		for _, n := range []*zsync.Int64{zsync.NewInt64(s, "/n"), zsync.NewInt64(s, "/n", zsync.WithCodec(zsync.BigEndian)), zsync.NewInt64(s, "n"), zsync.NewInt64(nil, "/n"), {}} {
			if _, err := n.Load(t.Context()); err == nil {
				t.Error("Load of no number succeeds")
			}
			if _, err := n.Add(t.Context(), 1); err == nil {
				t.Error("Add to no number succeeds")
			}
			if _, err := n.Swap(t.Context(), 1); err == nil {
				t.Error("Swap of no number succeeds")
			}
			if ok, err := n.CompareAndSwap(t.Context(), 0, 1); ok || err == nil {
				t.Error("CompareAndSwap of no number succeeds")
			}
		}
		n := zsync.NewInt64(s, "/n")
		must(t, n.Store(t.Context(), 1))
		if x, err := n.Load(t.Context()); x != 1 || err != nil {
			t.Errorf("Load after Store = %d, %v", x, err)
		}
	})
}

func TestCompareAndSwapDoesNotAnswerByANumberOfBeforeTheCall(t *testing.T) {
	// The first look is at a server that lags: there the number is still 0. The
	// look that is to tell whether that was so at the time of the call fails.
	fails := map[string]func(cancel func()) zktest.Action{
		"ctx ends":    func(cancel func()) zktest.Action { cancel(); return zktest.DropReply },
		"refused":     func(func()) zktest.Action { return zktest.Fail(zktest.CodeNoAuth) },
		"is answered": func(func()) zktest.Action { return zktest.Pass },
	}
	for name, fail := range fails {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				quick, slow := openAt(t, srv, 0), openAt(t, srv, 1)
				srv.SetLag(srv.Addrs()[1], 5*time.Second)
				must(t, zsync.NewInt64(quick, "/n").Store(t.Context(), 1))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				looks := 0
				read := oneByOne(srv, func(r zktest.Request) zktest.Action {
					if r.Session != slow.ID() || r.Op != zktest.OpGetData {
						return zktest.Pass
					}
					if looks++; looks == 2 {
						return fail(cancel)
					}
					return zktest.Pass
				})
				ok, err := zsync.NewInt64(slow, "/n").CompareAndSwap(ctx, 1, 2)
				switch name {
				case "ctx ends":
					wantErr(t, err, context.Canceled)
				case "refused":
					wantErr(t, err, zk.ErrNoAuth)
				default:
					if !ok || err != nil {
						t.Errorf("CompareAndSwap = %v, %v of a number that is as it expects", ok, err)
					}
				}
				read(func() {
					if looks < 2 {
						t.Error("the case did not come about")
					}
				})
			}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2"))
		})
	}
}

func TestInt64DoesNotTakeNullForANumber(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		must(t, zsync.NewValue[string](s, "/n", zsync.WithCodec(zsync.Raw)).Store(t.Context(), "null"))
		n := zsync.NewInt64(s, "/n")
		if x, err := n.Load(t.Context()); err == nil {
			t.Errorf("Load of null = %v, nil", x)
		}
		if x, err := n.Add(t.Context(), 1); err == nil {
			t.Errorf("Add to null = %v, nil", x)
		}
	})
}

func TestAZnodeOfTheServersStoresNoValue(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, ctx := open(t, srv), within(t, time.Second)
		srv.SetLatency(time.Millisecond) // so that a Store that tries forever ends with ctx
		for _, path := range []string{"/zookeeper", "/zookeeper/quota"} {
			wantErr(t, zsync.NewValue[string](s, path).Store(ctx, "x"), zsync.ErrMixed)
			wantErr(t, zsync.NewMap[string](s, path).Store(ctx, "key", "x"), zsync.ErrMixed)
		}
	})
}
