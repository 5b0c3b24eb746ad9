package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// A watchWorld is a session that sets, leaves and removes watches at random, beside
// another that changes what is watched, while everything that can happen to
// connections, servers, requests and replies does.
type watchWorld struct {
	t     *testing.T
	srv   *zktest.Server
	rnd   *rand.Rand
	ours  *testSession
	other *Incarnation // who changes things, to whom nothing happens

	mu      sync.Mutex
	dice    *rand.Rand // of what happens to requests; guarded by mu
	harm    bool       // guarded by mu
	waiting []*waiting // guarded by mu
	checks  int
}

// A waiting is one who has joined a watch, and has read what is watched.
type waiting struct {
	inc  *Incarnation
	w    *conn.Watch
	read string
}

func (x *watchWorld) draw(n int) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.dice.IntN(n)
}

func (x *watchWorld) path() string { return fmt.Sprintf("/p%d", x.rnd.IntN(3)) }

func (x *watchWorld) key() conn.WatchKey {
	return conn.WatchKey{Kind: []int32{conn.WatchData, conn.WatchExists, conn.WatchChildren}[x.rnd.IntN(3)], Path: x.path()}
}

// happens is what becomes of a request of ours.
func (x *watchWorld) happens(r zktest.Request) zktest.Action {
	x.mu.Lock()
	harm := x.harm
	x.mu.Unlock()
	if !harm || r.Session == x.other.ID.Load() {
		return zktest.Pass
	}
	n := x.draw(100)
	switch r.Op {
	case zktest.OpConnect:
		return zktest.Pass
	case zktest.OpPing:
		n += 20 // one in the hundred is lost, or hangs
	case zktest.OpSetWatches, zktest.OpSync, zktest.OpRemoveWatches:
		n /= 2 // these have it hard
	}
	switch {
	case n < 2:
		return zktest.DropRequest
	case n < 4:
		return zktest.DropReply
	case n < 8:
		return zktest.Delay(time.Duration(x.draw(20)) * time.Millisecond)
	case n < 10:
		return zktest.Fail(zktest.CodeThrottled)
	case n < 12:
		return zktest.Fail(zktest.CodeNoAuth)
	case n == 50:
		return zktest.Hang
	case n == 51:
		return zktest.HangReply
	}
	return zktest.Pass
}

// read reads what key is of, and says what would change with it: "" if that is
// not known.
func readOf(ctx context.Context, inc *Incarnation, key conn.WatchKey) (string, error) {
	var stat *zk.Stat
	var err error
	switch key.Kind {
	case conn.WatchData:
		_, stat, err = inc.Get(ctx, key.Path)
	case conn.WatchExists:
		stat, err = inc.Exists(ctx, key.Path)
	default:
		_, stat, err = inc.Children(ctx, key.Path)
	}
	switch {
	case err != nil && !IsNoNode(err):
		return "", err
	case stat == nil:
		return "missing", err
	case key.Kind == conn.WatchChildren:
		return fmt.Sprint(stat.Czxid, " ", stat.Cversion), nil
	}
	return fmt.Sprint(stat.Czxid, " ", stat.Version), nil
}

// act does something with the present session.
func (x *watchWorld) act() {
	inc := x.ours.m.Present()
	if inc == nil || inc.ID.Load() == 0 {
		return
	}
	key := x.key()
	switch x.rnd.IntN(6) {
	case 0, 1: // wait for a change
		ctx, cancel := context.WithTimeout(inc.Ctx, time.Duration(1+x.rnd.IntN(40))*time.Millisecond)
		w := inc.Watches.Join(key)
		go func() {
			defer cancel()
			read, err := readOf(ctx, inc, key)
			if err != nil {
				inc.Watches.Leave(w)
				return
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			x.waiting = append(x.waiting, &waiting{inc, w, read})
		}()
	case 2: // read, and wait for nothing
		ctx, cancel := context.WithTimeout(inc.Ctx, time.Duration(1+x.rnd.IntN(40))*time.Millisecond)
		go func() {
			defer cancel()
			readOf(ctx, inc, key)
		}()
	case 3: // wait no more
		x.mu.Lock()
		defer x.mu.Unlock()
		if n := len(x.waiting); n > 0 {
			i := x.rnd.IntN(n)
			x.waiting[i].inc.Watches.Leave(x.waiting[i].w)
			x.waiting = slices.Delete(x.waiting, i, i+1)
		}
	case 4: // what is idle is removed
		if c := inc.NewestConn(); inc.serving() != nil { // c is not in its handshake
			go c.RemoveWatch(key)
		}
	case 5:
		x.change()
	}
}

// change changes something, for good.
func (x *watchWorld) change() {
	path, ctx := x.path(), x.other.Ctx
	switch x.rnd.IntN(4) {
	case 0:
		Attempt(ctx, x.other, createCall(path, nil, zk.FlagPersistent))
	case 1:
		x.other.Set(ctx, path, []byte("x"), -1)
	case 2:
		Attempt(ctx, x.other, createCall(path+"/c", nil, zk.FlagPersistent))
	case 3:
		remove(ctx, x.other, path+"/c")
		remove(ctx, x.other, path)
	}
}

// harms does something to servers and connections.
func (x *watchWorld) harms() {
	id, addrs := x.ours.ID(), x.srv.Addrs()
	addr := addrs[1+x.rnd.IntN(len(addrs)-1)]
	switch x.rnd.IntN(12) {
	case 0, 1, 2, 3:
		x.srv.Disconnect(id)
	case 4:
		x.srv.Freeze(addr)
	case 5:
		x.srv.SetLag(addr, time.Duration(1+x.rnd.IntN(300))*time.Millisecond)
	case 6, 7:
		x.srv.Thaw(addr)
	case 8:
		x.srv.SetLatency(time.Duration(x.rnd.IntN(4)) * time.Millisecond)
	case 9:
		x.srv.StopAddr(addr)
	case 10:
		for _, a := range addrs[1:] {
			x.srv.RestartAddr(a)
		}
	case 11:
		if x.rnd.IntN(8) == 0 {
			x.srv.Expire(id)
		}
	}
}

// unarmed returns a watch that the client takes for armed and the server has not,
// if there is one now; and whether that can be said, as there is a connection.
func (x *watchWorld) unarmed() (w *conn.Watch, known bool) {
	inc := x.ours.m.Present()
	if inc == nil || inc.ID.Load() == 0 || IsClosed(inc.Disconnection()) {
		return nil, false
	}
	there := make(map[[2]any]bool)
	for _, have := range x.srv.Watches(inc.ID.Load()) {
		there[[2]any{have.Path, have.Children}] = true
	}
	for _, w := range inc.Watches.All() {
		if inc.Watches.State(w).Armed && !there[[2]any{w.Key.Path, w.Key.Kind == conn.WatchChildren}] {
			return w, true
		}
	}
	return nil, true
}

// check fails if the client takes a watch for armed that the server has not, and
// whose event is not on its way.
func (x *watchWorld) check(step string) {
	synctest.Wait()
	first, known := x.unarmed()
	if !known {
		return
	}
	x.checks++
	if first == nil {
		return
	}
	// Its event may be on its way; or nothing comes on this connection any more,
	// which is noticed when half of the session timeout has passed.
	inc := x.ours.m.Present()
	before := inc.Watches.Connection()
	for range 20 {
		time.Sleep(testTimeout / 2 / 10)
		synctest.Wait()
		again, known := x.unarmed()
		if !known || again != first || inc.Ctx.Err() != nil || inc.Watches.Connection() != before {
			return
		}
	}
	x.t.Fatalf("after %s: %v is taken for armed, and the server has %v", step, first.Key, x.srv.Watches(inc.ID.Load()))
}

// told fails if somebody waits who has not been told of a change.
func (x *watchWorld) told() {
	x.mu.Lock()
	waiting := slices.Clone(x.waiting)
	x.mu.Unlock()
	for _, w := range waiting {
		if w.inc.Ctx.Err() != nil || IsClosed(w.w.Fired) {
			continue
		}
		now, err := readOf(x.other.Ctx, x.other, w.w.Key)
		if err != nil && !IsNoNode(err) {
			x.t.Fatal(err)
		}
		if now != w.read {
			x.t.Fatalf("who has read %q of %v sleeps, and it is %q", w.read, w.w.Key, now)
		}
	}
}

func (x *watchWorld) run() {
	x.srv.Intercept(x.happens)
	x.srv.SetLatency(time.Duration(x.rnd.IntN(4)) * time.Millisecond)
	x.mu.Lock()
	x.harm = true
	x.mu.Unlock()
	for step := range 40 {
		for range 1 + x.rnd.IntN(6) {
			x.act()
		}
		if x.rnd.IntN(3) == 0 {
			x.harms()
		}
		for range x.rnd.IntN(3) {
			x.act()
		}
		x.check(fmt.Sprintf("step %d", step))
		if x.rnd.IntN(2) == 0 {
			time.Sleep(time.Duration(x.rnd.IntN(200)) * time.Millisecond)
			x.check(fmt.Sprintf("step %d, and some time", step))
		}
	}
	x.mu.Lock()
	x.harm = false
	x.mu.Unlock()
	x.srv.SetLatency(0)
	for _, a := range x.srv.Addrs()[1:] {
		x.srv.RestartAddr(a)
		x.srv.Thaw(a)
	}
	time.Sleep(2 * testTimeout) // a connection that hangs is replaced
	x.check("everything is well again")
	x.told()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, w := range x.waiting {
		w.inc.Watches.Leave(w.w)
	}
}

// What the client takes for armed is a part of what the server has, after every
// step; and nobody sleeps through a change of what he has read.
func TestWhatIsTakenForArmedIsOnTheServerWhateverHappens(t *testing.T) {
	runs, checks := 0, 0
	for seed := range harness.Seeds(t, 40, 10, 2000) {
		harness.VirtualTime(t, func(t *testing.T) {
			srv := zktest.Start(t, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
			first := WithDialer(func(network, _ string, limit time.Duration) (net.Conn, error) {
				return srv.Dial(network, srv.Addrs()[0], limit)
			})
			x := &watchWorld{
				t: t, srv: srv,
				rnd:  rand.New(rand.NewPCG(uint64(seed), 11)),
				dice: rand.New(rand.NewPCG(uint64(seed), 12)),
				ours: open(t, srv),
			}
			x.other = live(t, open(t, srv, first))
			x.run()
			runs, checks = runs+1, checks+x.checks
		})
	}
	if checks < 30*runs {
		t.Errorf("only %d checks in %d runs", checks, runs)
	}
}
