package harness

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// This file has the faults for tests over real servers: it breaks the connections to them. Faults
// of the in-memory server are the business of faults.go.

// A Network is between sessions and real servers. It loses requests and replies, closes
// connections, cuts clients off for a while, and ends sessions at the servers.
type Network struct {
	mu    sync.Mutex
	conns []*cable       // guarded by mu
	ended map[int64]bool // the sessions that the network has ended or is about to end; guarded by mu
}

// The type `cable` is a connection that can lose packets.
type cable struct {
	net.Conn
	cut   *atomic.Bool // the client is cut off; shared by all its connections
	deaf  atomic.Bool  // packets from the server are lost
	mute  atomic.Bool  // packets from the client are lost
	hello []byte       // the bytes of the server's first packet so far; guarded by Network.mu
	n     *Network
}

// helloSize is the size of a connect response: length, protocol, timeout, session, length of the
// password, password.
const helloSize = 4 + 4 + 4 + 8 + 4 + 16

// Client returns the dialer of one Session.
func (n *Network) Client() zk.Dialer {
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

// Stands reports whether a session continues: the network has not ended it, and is not about to end
// it.
func (n *Network) Stands(session int64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.ended[session]
}

// Ended returns the number of sessions that the network has ended.
func (n *Network) Ended() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.ended)
}

// Hurt causes faults until the channel `until` is closed. Hurt closes each connection that has lost
// packets, so no client waits for a lost reply.
func (n *Network) Hurt(until <-chan struct{}) {
	var cutting sync.WaitGroup
	defer cutting.Wait()
	var busy atomic.Bool // a client is cut off
	pause := func(most time.Duration) {
		select {
		case <-until:
		case <-time.After(rand.N(most)):
		}
	}
	for !Closed(until) {
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

// The method `take` removes a random connection from n.conns, and returns it.
func (n *Network) take() *cable {
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

// The method `end` ends the session of w without the session's client: it continues the session on
// another connection, and closes the session there.
func (n *Network) end(w *cable) {
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
		io.Copy(io.Discard, c)                                          // wait for the end of the connection
	}
}
