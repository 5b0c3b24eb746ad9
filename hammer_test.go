package zsync_test

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// seeds runs f in a bubble of its own with one random source after another:
// 100, 8 under the race detector, or 1,000 in a long run. The first failure ends it and names the seed;
// ZSYNC_TEST_SEED runs that one alone.
func seeds(t *testing.T, f func(t *testing.T, srv *zktest.Server, rnd *rand.Rand)) {
	t.Helper()
	t.Parallel()
	for seed := range harness.Seeds(t, 100, 8, 1000) {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				f(t, srv, rand.New(rand.NewPCG(uint64(seed), 2)))
			})
		})
	}
}

// chaos hurts sessions at random until the channel is closed: it expires them,
// drops their connections, partitions them for a while, and loses requests and
// replies. When it returns everything is whole again. rnd is chaos's own.
func chaos(t testing.TB, srv *zktest.Server, rnd *rand.Rand, sessions []*zsync.Session, until <-chan struct{}) {
	t.Helper()
	var mu sync.Mutex
	loss := rnd.Float64() * 0.02
	srv.Intercept(func(r zktest.Request) zktest.Action {
		if r.Op == zktest.OpConnect || r.Op == zktest.OpPing || r.Op == zktest.OpCloseSession {
			return zktest.Pass
		}
		mu.Lock()
		defer mu.Unlock()
		switch x := rnd.Float64(); {
		case x < loss:
			return zktest.DropRequest
		case x < 2*loss:
			return zktest.DropReply
		case x < 4*loss:
			return zktest.Delay(time.Duration(rnd.IntN(20)) * time.Millisecond)
		}
		return zktest.Pass
	})
	defer srv.Intercept(nil)
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n)
	}
	for {
		select {
		case <-until:
			return
		case <-time.After(time.Duration(draw(1000)) * time.Millisecond):
		}
		id := sessions[draw(len(sessions))].ID()
		if id == 0 {
			continue
		}
		switch draw(6) {
		case 0:
			srv.Expire(id)
		case 1:
			srv.Partition(id)
			select {
			case <-until:
			case <-time.After(time.Duration(draw(20_000)) * time.Millisecond):
			}
			srv.Heal(id)
		default:
			srv.Disconnect(id)
		}
	}
}

// onServers runs f, a hammer of about a minute, on the ensemble that
// ZSYNC_TEST_SERVERS names, beside other such hammers, while everything happens
// to the sessions that connect opens: see network. stands tells whether the
// servers can still know a session; one that was cut off is not among those that
// cannot, as its holders must know first.
func onServers(t *testing.T, f func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(session int64) bool)) {
	t.Helper()
	if os.Getenv("ZSYNC_TEST_SERVERS") == "" || !longTests() {
		t.Skip("needs ZSYNC_TEST_SERVERS and ZSYNC_TEST_LONG")
	}
	t.Parallel()
	var n network
	stop := make(chan struct{})
	var hurting sync.WaitGroup
	hurting.Go(func() { n.hurt(stop) })
	defer func() {
		close(stop)
		hurting.Wait()
		t.Logf("%d sessions were ended", len(n.ended))
	}()
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		f(t, func(opts ...zsync.Option) *zsync.Session {
			return connect(append([]zsync.Option{zsync.WithDialer(n.client()), zsync.WithSessionTimeout(6 * time.Second)}, opts...)...)
		}, n.stands)
	})
}

// A network stands between sessions and real servers. It drops connections,
// loses requests and replies before it does, cuts sessions off for a while, and
// ends them at the servers.
type network struct {
	mu    sync.Mutex
	conns []*cable       // guarded by mu
	ended map[int64]bool // sessions that were ended, or are about to be; guarded by mu
}

// A cable is a connection that can lose what passes.
type cable struct {
	net.Conn
	cut   *atomic.Bool // whether the client is cut off
	deaf  atomic.Bool  // what the server sends is lost
	mute  atomic.Bool  // what the client sends is lost
	hello []byte       // the server's first packet, as far as it has come; guarded by network.mu
	n     *network
}

// A connect response: length, protocol, timeout, session, length of the password, password.
const helloSize = 4 + 4 + 4 + 8 + 4 + 16

// client returns the dialer of one Session.
func (n *network) client() zk.Dialer {
	cut := new(atomic.Bool)
	return func(network, addr string, timeout time.Duration) (net.Conn, error) {
		if cut.Load() {
			return nil, os.ErrDeadlineExceeded
		}
		c, err := net.DialTimeout(network, addr, timeout)
		if err != nil {
			return nil, err
		}
		w := &cable{Conn: c, cut: cut, n: n}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.conns = append(n.conns, w)
		return w, nil
	}
}

func (w *cable) Read(p []byte) (int, error) {
	for {
		k, err := w.Conn.Read(p)
		w.n.mu.Lock()
		w.hello = append(w.hello, p[:min(k, helloSize-len(w.hello))]...)
		w.n.mu.Unlock()
		if err != nil || !w.deaf.Load() && !w.cut.Load() {
			return k, err
		}
	}
}

func (w *cable) Write(p []byte) (int, error) {
	if w.mute.Load() || w.cut.Load() {
		return len(p), nil
	}
	return w.Conn.Write(p)
}

// stands reports whether the network has not ended a session.
func (n *network) stands(session int64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.ended[session]
}

// hurt goes on until the channel is closed. What it lost it has dropped then, so that nobody waits for it.
func (n *network) hurt(until <-chan struct{}) {
	var cutting sync.WaitGroup
	defer cutting.Wait()
	var busy atomic.Bool // somebody is cut off
	pause := func(most time.Duration) {
		select {
		case <-until:
		case <-time.After(rand.N(most)):
		}
	}
	for !session.IsClosed(until) {
		pause(200 * time.Millisecond)
		w := n.take()
		if w == nil {
			continue
		}
		switch k := rand.IntN(100); {
		case k < 4:
			n.end(w)
		case k < 6 && busy.CompareAndSwap(false, true):
			cutting.Go(func() {
				w.cut.Store(true)
				pause(9 * time.Second)
				w.Close()
				w.cut.Store(false)
				busy.Store(false)
			})
			continue
		case k < 30:
			w.deaf.Store(true)
			pause(50 * time.Millisecond)
		case k < 50:
			w.mute.Store(true)
			pause(50 * time.Millisecond)
		}
		w.Close()
	}
}

// take picks a connection and forgets it.
func (n *network) take() *cable {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.conns) == 0 {
		return nil
	}
	i := rand.IntN(len(n.conns))
	w := n.conns[i]
	n.conns = slices.Delete(n.conns, i, i+1)
	return w
}

// end ends the session of w as its client could: by continuing it elsewhere, and closing it there.
func (n *network) end(w *cable) {
	n.mu.Lock()
	whole := len(w.hello) == helloSize
	if whole {
		if n.ended == nil {
			n.ended = make(map[int64]bool)
		}
		n.ended[int64(binary.BigEndian.Uint64(w.hello[12:]))] = true
	}
	n.mu.Unlock()
	if !whole {
		return
	}
	c, err := net.DialTimeout("tcp", w.RemoteAddr().String(), time.Second)
	if err != nil {
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	hello := binary.BigEndian.AppendUint32(nil, helloSize-4+8)
	hello = append(hello, make([]byte, 4+8)...)    // protocol, last zxid seen
	hello = append(hello, w.hello[8:helloSize]...) // timeout, session, password
	c.Write(hello)
	if _, err := io.ReadFull(c, make([]byte, helloSize)); err == nil {
		c.Write([]byte{0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5}) // closeSession
		io.Copy(io.Discard, c)                                          // until it is done
	}
}
