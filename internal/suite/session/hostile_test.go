package session

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

// What a server sends is data from outside: whatever it is, it ends a
// connection at most, and neither the process nor the patience of a context.

// An impostor is a server that answers what it likes. hello is its whole answer
// to the handshake, and reply its whole answer to each later request.
type impostor struct {
	hello []byte
	reply func(xid, op int32) []byte
	dials atomic.Int32
}

func (i *impostor) dial(string, string, time.Duration) (net.Conn, error) {
	i.dials.Add(1)
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		if _, err := readFrame(server); err != nil {
			return
		}
		if _, err := server.Write(i.hello); err != nil {
			return
		}
		for {
			p, err := readFrame(server)
			if err != nil || len(p) < 8 {
				return
			}
			xid, op := int32(binary.BigEndian.Uint32(p)), int32(binary.BigEndian.Uint32(p[4:]))
			out := frame(replyTo(xid, 0))
			if op != wire.OpPing && op != wire.OpCloseSession {
				out = i.reply(xid, op)
			}
			if _, err := server.Write(out); err != nil {
				return
			}
		}
	}()
	return client, nil
}

func readFrame(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	p := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(r, p)
	return p, err
}

func frame(p []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(p))), p...)
}

// words is the big-endian form of some int32s.
func words(ns ...int64) (p []byte) {
	for _, n := range ns {
		p = binary.BigEndian.AppendUint32(p, uint32(n))
	}
	return p
}

func replyTo(xid, code int32, body ...byte) []byte {
	p := wire.AppendInt64(words(int64(xid)), 1)
	return append(append(p, words(int64(code))...), body...)
}

// welcome is a reply to the handshake.
func welcome(timeout, passwd int64) []byte {
	p := wire.AppendInt64(words(0, timeout), 77)
	return frame(append(append(p, words(passwd)...), make([]byte, 16)...))
}

func TestAServerThatAnswersGarbageToTheHandshakeIsLeft(t *testing.T) {
	for name, hello := range map[string][]byte{
		"nothing":            {},
		"an HTTP server":     []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
		"a TLS alert":        {21, 3, 1, 0, 2, 2, 22},
		"an empty packet":    words(0),
		"a huge packet":      words(math.MaxInt32),
		"a negative size":    words(-1, 0, 0, 0, 0),
		"no timeout":         welcome(0, 16),
		"a negative timeout": welcome(-1, 16),
		"a long password":    welcome(10_000, math.MaxInt32),
		"half of it":         welcome(10_000, 16)[:20],
		"no session":         frame(make([]byte, 36)),
	} {
		t.Run(name, func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				i := &impostor{hello: hello}
				_, err := zsync.Connect(harness.Within(t, 20*time.Second), "x:1", zsync.WithDialer(i.dial))
				harness.WantErr(t, err, context.DeadlineExceeded)
				if i.dials.Load() < 2 {
					t.Error("it was not tried again")
				}
			})
		})
	}
}

func TestAServerThatAnswersGarbageToARequestCostsAConnectionAtMost(t *testing.T) {
	stat := make([]byte, wire.StatSize)
	for name, reply := range map[string]func(xid, op int32) []byte{
		"an empty packet":           func(xid, op int32) []byte { return words(0) },
		"half a header":             func(xid, op int32) []byte { return words(4, -1, 0, 0, 0, 0) },
		"a header without a byte":   func(xid, op int32) []byte { return words(15, int64(xid), 0, 0, 0, 0) },
		"a negative size":           func(xid, op int32) []byte { return words(-1, int64(xid), 0, 0, 0, 0) },
		"a huge size":               func(xid, op int32) []byte { return words(math.MaxInt32, int64(xid), 0, 0, 0, 0) },
		"no body":                   func(xid, op int32) []byte { return frame(replyTo(xid, 0)) },
		"a body of one byte":        func(xid, op int32) []byte { return frame(replyTo(xid, 0, 1)) },
		"a list of 2^32-1":          func(xid, op int32) []byte { return frame(replyTo(xid, 0, words(-1)...)) },
		"a list of 2^28":            func(xid, op int32) []byte { return frame(replyTo(xid, 0, words(1<<28)...)) },
		"data of 2 GiB":             func(xid, op int32) []byte { return frame(replyTo(xid, 0, words(math.MaxInt32)...)) },
		"an event without a path":   func(xid, op int32) []byte { return frame(replyTo(wire.XidEvent, 0, words(1, 3)...)) },
		"an event with half a path": func(xid, op int32) []byte { return frame(replyTo(wire.XidEvent, 0, words(1, 3, 100)...)) },
		"another's xid":             func(xid, op int32) []byte { return frame(replyTo(xid+1, 0, stat...)) },
		"pings":                     func(xid, op int32) []byte { return frame(replyTo(wire.XidPing, 0)) },
		"multi without an end":      func(xid, op int32) []byte { return frame(replyTo(xid, 0, words(2, 0)...)) },
		"multi of unknown results":  func(xid, op int32) []byte { return frame(replyTo(xid, 0, append(words(99, 0), 0)...)) },
		"multi with half a path": func(xid, op int32) []byte {
			return frame(replyTo(xid, 0, append(words(1, 0), append([]byte{0}, words(50)...)...)...))
		},
		"foreign names": func(xid, op int32) []byte { return frame(replyTo(xid, 0, append(words(2), "/x"...)...)) },
	} {
		t.Run(name, func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				i := &impostor{hello: welcome(10_000, 16), reply: reply}
				s, err := zsync.Connect(t.Context(), "x:1", zsync.WithDialer(i.dial))
				harness.Must(t, err)
				defer s.Close()
				for n, f := range []func(context.Context) error{
					zsync.NewMutex(s, "/m").Lock,
					zsync.NewMutex(s, "/m", zsync.WithHandoffs(0)).Lock,
					func(ctx context.Context) error { _, err := zsync.NewMutex(s, "/m").Contenders(ctx); return err },
					func(ctx context.Context) error { _, _, err := inside.Live(t, s).Get(ctx, "/m"); return err },
					func(ctx context.Context) error { _, err := inside.Live(t, s).Exists(ctx, "/m"); return err },
					func(ctx context.Context) error { _, err := s.Txn(ctx, &zk.DeleteRequest{Path: "/m"}); return err },
				} {
					start := time.Now()
					err := f(harness.Within(t, time.Second))
					if d := time.Since(start); d > 1100*time.Millisecond {
						t.Errorf("call %d returned after %v: %v", n, d, err)
					}
				}
			})
		})
	}
}

// FuzzReplies lets a server answer whatever it likes.
func FuzzReplies(f *testing.F) {
	f.Add(welcome(10_000, 16), replyTo(1, 0, words(1, 2)...), true)
	f.Add(welcome(0, 16), []byte{}, false)
	f.Add(welcome(10_000, 16), append(words(1, 0), 0, 0, 0, 0, 2, '/', 'x', 0xff, 0xff, 0xff, 0xff, 1), true)
	f.Add(welcome(10_000, 16), append(words(2, 1), "a\x00\x00\x00\x01b"...), true)
	f.Add(welcome(10_000, 16), append(words(1), append([]byte("x"), make([]byte, wire.StatSize)...)...), true)
	for _, state := range []int64{3, 0, -112, 5} {
		for kind := int64(-2); kind <= 7; kind++ {
			f.Add(welcome(10_000, 16), frame(replyTo(wire.XidEvent, 0, wire.AppendString(words(kind, state), "/m")...)), false)
		}
	}
	f.Fuzz(func(t *testing.T, hello, body []byte, framed bool) {
		harness.VirtualTime(t, func(t *testing.T) { callsEndDespite(t, hello, body, framed) })
	})
}

// callsEndDespite connects to a server that answers everything with hello and body, and makes
// requests of several kinds. Each of them must end.
func callsEndDespite(t *testing.T, hello, body []byte, framed bool) {
	i := &impostor{hello: hello, reply: func(xid, op int32) []byte {
		if framed {
			return frame(replyTo(xid, 0, body...))
		}
		return body
	}}
	var dials atomic.Int32
	dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
		if dials.Add(1) > 2 {
			return nil, errors.New("enough")
		}
		return i.dial(network, addr, timeout)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	s, err := zsync.Connect(ctx, "x:1", zsync.WithDialer(dial))
	if err != nil {
		return
	}
	defer s.Close()
	calls := []<-chan error{
		harness.Async(func() error { return zsync.NewMutex(s, "/m").Lock(ctx) }),
		harness.Async(func() error { _, err := zsync.NewMutex(s, "/m").Contenders(ctx); return err }),
		harness.Async(func() error { return zsync.NewBarrier(s, "/m").Wait(ctx) }),
		harness.Async(func() error { _, err := s.Txn(ctx, &zk.DeleteRequest{Path: "/m"}); return err }),
	}
	for _, c := range calls {
		<-c
	}
}

// One server that lies, or is broken, does not keep the client from the others for as long as it says.
func TestAServerThatGrantsFarMoreThanWasAskedForIsLeft(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		i := &impostor{hello: welcome(math.MaxInt32, 16), reply: func(xid, op int32) []byte {
			return frame(append(append(words(int64(xid)), bytes.Repeat([]byte{0x7f}, 8)...), words(-101)...))
		}}
		var first atomic.Bool
		dial := func(network, addr string, d time.Duration) (net.Conn, error) {
			if !first.Swap(true) {
				return i.dial(network, addr, d)
			}
			return srv.Dial(network, srv.Addr(), d)
		}
		start := time.Now()
		s, err := zsync.Connect(t.Context(), "a:1,b:1", zsync.WithDialer(dial), zsync.WithSessionTimeout(harness.Timeout))
		harness.Must(t, err)
		defer s.Close()
		harness.Must(t, zsync.NewMutex(s, "/m").Lock(t.Context()))
		if took := time.Since(start); took > harness.Timeout || s.Timeout() > 2*harness.Timeout {
			t.Errorf("held after %v in a session of %v; asked for %v", took, s.Timeout(), harness.Timeout)
		}
	})
}

// A nameless is a connection to a server that answers some creates with an empty path.
type nameless struct {
	net.Conn
	part    string // of the paths of these creates
	mu      sync.Mutex
	creates map[uint32]bool // by xid; guarded by mu
	answers atomic.Int64    // without a path
	hello   bool
	rest    []byte // of the reply that is being read
}

func (c *nameless) Write(p []byte) (int, error) {
	c.mu.Lock()
	for q := p; len(q) >= 12; { // each write has whole packets
		size := 4 + int(binary.BigEndian.Uint32(q))
		if op := binary.BigEndian.Uint32(q[8:]); op == wire.OpCreate && strings.Contains(string(q[:size]), c.part) {
			c.creates[binary.BigEndian.Uint32(q[4:])] = true
		}
		q = q[size:]
	}
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *nameless) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		reply, err := readFrame(c.Conn)
		if err != nil {
			return 0, err
		}
		c.mu.Lock()
		if c.hello && len(reply) > 16 && c.creates[binary.BigEndian.Uint32(reply)] {
			reply = append(reply[:16], words(0)...)
			c.answers.Add(1)
		}
		c.mu.Unlock()
		c.hello, c.rest = true, frame(reply)
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// namelessAtFirst returns an Option with which the first connection of a Session is a nameless, and
// that connection, which is nil before it exists.
func namelessAtFirst(srv *zktest.Server, part string) (zsync.Option, func() *nameless) {
	var first *nameless
	return zsync.WithDialer(func(network, addr string, limit time.Duration) (net.Conn, error) {
		c, err := srv.Dial(network, addr, limit)
		if first != nil || err != nil {
			return c, err
		}
		first = &nameless{Conn: c, part: part, creates: map[uint32]bool{}}
		return first, nil
	}), func() *nameless { return first }
}

// wantOneNameless fails if the connection did not answer one create without a path, or if the Session
// did not replace it then.
func wantOneNameless(t *testing.T, s *zsync.Session, c *nameless) {
	t.Helper()
	if n := c.answers.Load(); n != 1 || s.Stats().Reconnects != 1 {
		t.Errorf("%d answers had no path, %d reconnects; want one of each", n, s.Stats().Reconnects)
	}
}

// An answer without a path costs the connection, and fails the call: the client cannot rely on a
// server that does not name the znode which it has created. The znode exists, but only until the
// client has deleted it. So the other party waits until this one has entered over a sound connection.
func TestAPartyWhoseCreateIsAnsweredWithoutAPathFailsAndLeavesNoZnode(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		dialer, bad := namelessAtFirst(srv, "-party-")
		s := suite.Open(t, srv, dialer)
		o := suite.Open(t, srv)
		wg, other := zsync.NewWaitGroup(s, "/w"), zsync.NewWaitGroup(o, "/w")
		entered := harness.Async(func() error { return other.Enter(t.Context(), 2) })
		harness.PendingStill(t, entered)
		if err := wg.Enter(t.Context(), 2); err == nil || !strings.Contains(err.Error(), "malformed reply") {
			t.Errorf("Enter returned %v; want an error that names the malformed reply", err)
		}
		time.Sleep(time.Second)
		harness.PendingStill(t, entered)
		wantOneNameless(t, s, bad())
		for _, name := range suite.ChildrenOf(t, o, "/w/parties") {
			_, stat, err := o.Get(t.Context(), "/w/parties/"+name)
			harness.Must(t, err)
			if stat.EphemeralOwner == s.ID() {
				t.Errorf("%s is still there", name)
			}
		}
		harness.Must(t, wg.Enter(t.Context(), 2))
		harness.Must(t, <-entered)
		left := harness.Async(func() error { return wg.Leave(t.Context()) })
		harness.PendingStill(t, left)
		harness.Must(t, other.Leave(t.Context()))
		harness.Must(t, <-left)
		suite.WantEmptyRoom(t, o)
	})
}

// The client has given the whole name of a member's znode, so an answer without a path withholds
// nothing. It creates the znode again, and finds that it exists.
func TestAMemberWhoseCreateIsAnsweredWithoutAPathIsInTheGroup(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		dialer, bad := namelessAtFirst(srv, "/g/m")
		s := suite.Open(t, srv, dialer)
		g := zsync.NewGroup[string](s, "/g")
		m, err := g.Join(t.Context(), "m", "here")
		harness.Must(t, err)
		wantOneNameless(t, s, bad())
		members, err := g.Members(t.Context())
		harness.Must(t, err)
		if len(members) != 1 || members[0].ID != "m" || members[0].Info != "here" {
			t.Errorf("the members are %v", members)
		}
		harness.Must(t, m.Leave())
	})
}
