package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/shared"
	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

// FuzzLinkRead holds that a link takes any stream apart in the same way, in
// whatever pieces it comes, hands on to go-zookeeper nothing but the reply that
// it waits for, and gives every other request one answer.
func FuzzLinkRead(f *testing.F) {
	f.Add(frame(replyTo(1, 0, words(0)...)), 3, uint8(0))
	f.Add(append(frame(replyTo(wire.XidPing, 0)), frame(replyTo(1, -101))...), 1, uint8(1))
	f.Add(frame(replyTo(1, 0, append(words(-1, 0), 1, 2, 3, 4)...)), 7, uint8(2))
	f.Add(frame(replyTo(2, 0)), 7, uint8(2))
	f.Add(words(-5), 1, uint8(3))
	for _, e := range everyEvent() {
		f.Add(append(e, frame(replyTo(1, 0, words(0)...))...), 5, uint8(0))
		f.Add(append(frame(replyTo(1, -101)), e...), 9, uint8(5))
	}
	f.Fuzz(func(t *testing.T, in []byte, piece int, kind uint8) {
		if piece < 1 || piece > 64 {
			piece = 5
		}
		read := func(piece int) string {
			inc, c := openScripted(t, in, piece)
			defer inc.cancel(nil)
			defer c.Close()
			var waits []*conn.Watch
			for _, k := range []int32{conn.WatchData, conn.WatchExists, conn.WatchChildren} {
				waits = append(waits, inc.Watches.Join(conn.WatchKey{Kind: k, Path: "/x"}))
			}
			r, said := someRequest(kind)
			if !c.Send(r) {
				t.Fatal("the connection takes no request")
			}
			c.Bye()
			c.Read()
			conn.Fail(c.Over()) // a second answer closes a channel again
			text := said()
			for _, w := range waits {
				if IsClosed(w.Fired) {
					text += fmt.Sprint(" ", w.Key.Kind, " ", w.Event)
				}
				inc.Watches.Leave(w) // whether or not it has fired
			}
			return text
		}
		whole := read(1 << 20)
		if got := read(piece); got != whole {
			t.Errorf("in pieces of %d: %s; at once: %s", piece, got, whole)
		}
	})
}

// everyEvent is every type of event, those that there are not included, in every
// state of a server; of znodes that are watched, and not; and ill-made ones.
func everyEvent() (all [][]byte) {
	for _, state := range []int64{3, -112, -1, 0, 1, 2, 4, 5, 6, math.MaxInt32} {
		for t := int64(-3); t <= 9; t++ {
			for _, path := range []string{"/x", "/y", ""} {
				all = append(all, frame(replyTo(wire.XidEvent, 0, wire.AppendString(words(t, state), path)...)))
			}
		}
	}
	return append(all,
		frame(replyTo(wire.XidEvent, 0)),
		frame(replyTo(wire.XidEvent, 0, words(4, 3)...)),
		frame(replyTo(wire.XidEvent, 0, words(4, 3, -1)...)),
		frame(replyTo(wire.XidEvent, 0, words(4, 3, math.MaxInt32)...)),
		frame(replyTo(wire.XidEvent, -4, wire.AppendString(words(4, 3), "/x")...)),
		frame(replyTo(wire.XidEvent, 0, append(wire.AppendString(words(4, 3), "/x"), 1, 2, 3)...)))
}

// What comes as an event and is none is not the protocol; and none there is fires
// anything but the watches of its znode.
func TestEveryEventFiresTheWatchesOfItsZnodeOrEndsTheConnection(t *testing.T) {
	for state := int64(-3); state <= 7; state++ {
		for kind := int64(-3); kind <= 9; kind++ {
			inc, c := openScripted(t, frame(replyTo(wire.XidEvent, 0, wire.AppendString(words(kind, state), "/x")...)), 3)
			ws, others := make(map[int32]*conn.Watch), []*conn.Watch(nil)
			for _, k := range []int32{conn.WatchData, conn.WatchExists, conn.WatchChildren} {
				ws[k] = inc.Watches.Join(conn.WatchKey{Kind: k, Path: "/x"})
				others = append(others, inc.Watches.Join(conn.WatchKey{Kind: k, Path: "/y"}))
			}
			err := c.Read()
			want := map[int64][]int32{1: {conn.WatchExists}, 2: {conn.WatchData, conn.WatchExists, conn.WatchChildren}, 3: {conn.WatchData, conn.WatchExists}, 4: {conn.WatchChildren}}[kind]
			if errors.Is(err, conn.ErrProtocol) != (want == nil) {
				t.Errorf("type %d in state %d: %v", kind, state, err)
			}
			for k, w := range ws {
				if IsClosed(w.Fired) != slices.Contains(want, k) {
					t.Errorf("type %d in state %d: the watch of kind %d has fired: %v", kind, state, k, IsClosed(w.Fired))
				}
			}
			if slices.ContainsFunc(others, func(w *conn.Watch) bool { return IsClosed(w.Fired) }) {
				t.Errorf("type %d in state %d: a watch of another znode has fired", kind, state)
			}
			c.Close()
			inc.cancel(nil)
		}
	}
}

// someRequest returns a request of one of the kinds there are, and what tells its
// answer.
func someRequest(kind uint8) (r conn.Request, said func() string) {
	switch kind % 6 {
	case 0:
		return tellingOf(GetCall("/x"))
	case 1:
		return tellingOf(ChildrenCall("/x"))
	case 2:
		return tellingOf(txnCall([]any{&zk.DeleteRequest{Path: "/x"}, &zk.SetDataRequest{Path: "/x"}}))
	case 3:
		return tellingOf(SetCall("/x", nil, 0))
	case 4:
		return tellingOf(Call[[]zk.ACL]{Op: wire.OpGetACL, Path: "/x", Take: (*wire.Scanner).ACL})
	}
	return tellingOf(existsCall("/x"))
}

func tellingOf[T any](c Call[T]) (conn.Request, func() string) {
	p := &Pending[T]{Done: make(chan struct{}), Call: c}
	return p, func() string {
		<-p.Done
		b, _ := json.Marshal(p.Val)
		return fmt.Sprintf("%s %v", b, p.Err)
	}
}

// FuzzPackets holds that a server reads of a request what was asked for.
func FuzzPackets(f *testing.F) {
	f.Add("/a/b", []byte{1}, int32(3))
	f.Add("", []byte{}, int32(-1))
	f.Fuzz(func(t *testing.T, path string, data []byte, version int32) {
		acl := []zk.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}
		ops := []any{
			&zk.CreateRequest{Path: path, Data: data, Acl: acl, Flags: version},
			&zk.SetDataRequest{Path: path, Data: data, Version: version},
			&zk.DeleteRequest{Path: path, Version: version},
			&zk.CheckVersionRequest{Path: path, Version: version},
		}
		for i := range len(ops) + 1 {
			if got, want := wire.SizeOfOps(ops[:i]), len(wire.AppendOps(nil, ops[:i])); got != want {
				t.Fatalf("the first %d operations have %d bytes, SizeOfOps returns %d", i, want, got)
			}
		}
		s := wire.Scanner{Rest: wire.AppendOps(nil, ops)}
		for i := range ops {
			op, more := s.Next()
			if got := s.String(); !more || got != path {
				t.Fatalf("operation %d: path %q, %v; want %q", i, got, more, path)
			}
			if op == wire.OpCreate || op == wire.OpSetData {
				if got := s.Data(); !bytes.Equal(got, data) || (got == nil) != (data == nil) {
					t.Fatalf("operation %d: data %q, want %q", i, got, data)
				}
			}
			if op == wire.OpCreate {
				if got := s.ACL(); !slices.Equal(got, acl) {
					t.Fatalf("permissions %v, want %v", got, acl)
				}
			}
			if got := s.Int32(); got != version {
				t.Fatalf("operation %d: version %d, want %d", i, got, version)
			}
		}
		if _, more := s.Next(); more || s.Bad || len(s.Rest) > 0 {
			t.Fatal("the transaction does not end where it should")
		}
		names := []string{path, string(data), ""}
		s = wire.Scanner{Rest: wire.AppendStrings(nil, names)}
		names = slices.DeleteFunc(names, func(name string) bool { return name == "" }) // which is none
		if got := s.Strings(); !slices.Equal(got, names) || s.Bad || len(s.Rest) > 0 {
			t.Fatalf("names %q, want %q", got, names)
		}
	})
}

// A scripted connection gives a link what it reads, in pieces of one size.
type scripted struct {
	net.Conn
	r     io.Reader
	piece int
}

func (c scripted) Read(p []byte) (int, error)  { return c.r.Read(p[:min(len(p), c.piece)]) }
func (c scripted) Write(p []byte) (int, error) { return len(p), nil }
func (c scripted) Close() error                { return nil }

// openScripted returns an open connection of a new session that reads in, in pieces, after the
// server's answer to the handshake.
func openScripted(t *testing.T, in []byte, piece int) (*Incarnation, *conn.Conn) {
	inc := newIncarnation(&Manager{Config: Config{Timeout: time.Hour}, Hosts: []string{"x:1", "y:1"}, Closing: ClosedChan})
	hello := wire.Connect(0, time.Hour, 1, make([]byte, 16)) // an answer, but for what comes before the timeout
	answer := frame(append(wire.AppendInt32(nil, 0), hello[4+4+8:]...))
	c := conn.New(&inc.conns, scripted{r: bytes.NewReader(append(answer, in...)), piece: piece}, "x:1", time.Now().Add(time.Minute))
	must(t, inc.handshake(c))
	return inc, c
}

// Servers may be configured differently: the next may grant more than was granted
// first. The session goes on with what it had, and so do the pings: the connection is
// not given up for want of one.
func TestAServerThatGrantsALongerTimeoutKeepsItsConnection(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		zktest.WithSessionTimeouts(4*testTimeout, 4*testTimeout)(srv)
		srv.Disconnect(inc.ID.Load())
		time.Sleep(time.Minute)
		if n := inc.Manager.Reconnects.Load(); n != 1 || inc.Ctx.Err() != nil {
			t.Errorf("%d reconnects in a minute, %v", n, inc.Ctx.Err())
		}
	})
}

// For a server that grants much more than was asked, a client would wait too long if the server hung.
func TestAServerThatGrantsALongerTimeoutThanTheLimitIsNotUsed(t *testing.T) {
	for granted, want := range map[time.Duration]error{maxGranted: nil, maxGranted + time.Millisecond: context.DeadlineExceeded} {
		bubble(t, func(t *testing.T, srv *zktest.Server) {
			cfg := testConfig()
			cfg.Dialer = srv.Dial
			m := New(srv.Addrs(), "", cfg)
			defer m.Close()
			err := m.Connect(within(t, testTimeout))
			if !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), granted.String()) {
				t.Errorf("%v instead of %v: %v", granted, cfg.Timeout, err)
			}
		}, zktest.WithSessionTimeouts(granted, time.Hour))
	}
}

// A session that a server continues is not ended, whatever timeout the server grants: the client knows
// the timeout of the session, and its holds are still held.
func TestASessionOutlivesAServerThatGrantsALongerTimeoutThanTheLimit(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		inc := live(t, open(t, srv))
		srv.SetSessionTimeouts(maxGranted+time.Millisecond, time.Hour)
		srv.Disconnect(inc.ID.Load())
		stake, err := inc.Stake(within(t, testTimeout))
		must(t, err)
		defer stake.Drop()
		time.Sleep(2 * testTimeout)
		if inc.Ctx.Err() != nil || time.Duration(inc.Timeout.Load()) != testTimeout || len(srv.Sessions()) != 1 {
			t.Errorf("sessions %x, timeout %v, end: %v", srv.Sessions(), time.Duration(inc.Timeout.Load()), context.Cause(inc.Ctx))
		}
	})
}

// A server is asked for the first timeout of a session, and later perhaps for less.
func TestTheAnswerToTheLongestRequestTellsWhatAServerGrants(t *testing.T) {
	type answer struct{ asked, granted time.Duration }
	const s = time.Second
	for _, c := range []struct {
		answers []answer
		ask     time.Duration
		want    time.Duration
	}{
		{nil, 10 * s, leastOfAll},
		{nil, 2 * s, 2 * s},
		{[]answer{{10 * s, 8 * s}, {6 * s, 6 * s}}, 10 * s, 8 * s},
		{[]answer{{10 * s, 8 * s}, {6 * s, 6 * s}}, 6 * s, 6 * s},
		{[]answer{{10 * s, 8 * s}, {6 * s, 6 * s}}, 11 * s, 8 * s}, // never less to a longer request
		{[]answer{{2 * s, 5 * s}}, 5 * s, 5 * s},                   // the least of this server
		{[]answer{{10 * s, 10 * s}, {10 * s, 8 * s}}, 10 * s, 8 * s},
		{[]answer{{10 * s, 10 * s}, {8 * s, 6 * s}}, 10 * s, 6 * s}, // restarted with another configuration
	} {
		var granted shared.Cache[time.Duration]
		for _, a := range c.answers {
			noteGrant(&granted, "a", a.asked, a.granted)
		}
		if got := leastGrant(&granted, "a", c.ask); got != c.want {
			t.Errorf("after %v, to a request for %v, it may grant %v; want %v", c.answers, c.ask, got, c.want)
		}
	}
}

// A brimful connection takes no more than the handshake and what goes with it.
type brimful struct {
	net.Conn
	writes atomic.Int32
	closed chan struct{}
	once   sync.Once
}

func (c *brimful) Write(p []byte) (int, error) {
	switch c.writes.Add(1) {
	case 1:
		return c.Conn.Write(p)
	case 2:
		return len(p), nil // it is on its way to a server that does not read it
	}
	<-c.closed
	return 0, net.ErrClosed
}

func (c *brimful) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// Watches that are set again may fill the socket's buffer, and then the server may stop to read.
func TestACallEndsWithItsContextWhileTheServerOwesAnAnswerToWhatWentWithTheHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := zktest.Start(t)
		again := false
		s := open(t, srv, WithDialer(func(network, addr string, limit time.Duration) (net.Conn, error) {
			socket, err := srv.Dial(network, addr, limit)
			if err == nil && again {
				socket = &brimful{Conn: socket, closed: make(chan struct{})}
			}
			return socket, err
		}))
		inc := live(t, s)
		again = true
		srv.Disconnect(inc.ID.Load())
		time.Sleep(100 * time.Millisecond)
		if inc.serving() == nil {
			t.Fatal("not connected again")
		}
		const limit = 50 * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		start := time.Now()
		_, _, err := inc.Children(ctx, "/")
		wantErr(t, err, context.DeadlineExceeded)
		if took := time.Since(start); took != limit {
			t.Errorf("it took %v, want %v", took, limit)
		}
	})
}
