package session

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
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
			m := &Manager{Config: Config{Timeout: time.Hour}, Hosts: []string{"x:1", "y:1"}}
			inc := newIncarnation(m)
			defer inc.cancel(nil)
			l := newLink(inc, scripted{r: strings.NewReader(string(in)), piece: piece}, "x:1", time.Minute, time.Now().Add(time.Minute))
			l.shook.Store(true)
			l.open()
			var waits []*Watch
			for _, k := range []watchKind{WatchData, WatchExists, WatchChildren} {
				waits = append(waits, inc.Watches.Join(WatchKey{k, "/x"}))
			}
			r, said := someRequest(kind)
			if !l.send(r) {
				t.Fatal("the link takes no request")
			}
			l.bye()
			l.read()
			l.over() // a second answer closes a channel again
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
			inc := newIncarnation(&Manager{Config: Config{Timeout: time.Hour}})
			in := frame(replyTo(wire.XidEvent, 0, wire.AppendString(words(kind, state), "/x")...))
			l := newLink(inc, scripted{r: strings.NewReader(string(in)), piece: 3}, "x:1", time.Minute, time.Now().Add(time.Minute))
			l.shook.Store(true)
			l.open()
			ws, others := make(map[watchKind]*Watch), []*Watch(nil)
			for _, k := range []watchKind{WatchData, WatchExists, WatchChildren} {
				ws[k] = inc.Watches.Join(WatchKey{k, "/x"})
				others = append(others, inc.Watches.Join(WatchKey{k, "/y"}))
			}
			err := l.nextPacket()
			want := map[int64][]watchKind{1: {WatchExists}, 2: {WatchData, WatchExists, WatchChildren}, 3: {WatchData, WatchExists}, 4: {WatchChildren}}[kind]
			if (err == nil) != (want != nil) {
				t.Errorf("type %d in state %d: %v", kind, state, err)
			}
			for k, w := range ws {
				if IsClosed(w.Fired) != slices.Contains(want, k) {
					t.Errorf("type %d in state %d: the watch of kind %d has fired: %v", kind, state, k, IsClosed(w.Fired))
				}
			}
			if slices.ContainsFunc(others, func(w *Watch) bool { return IsClosed(w.Fired) }) {
				t.Errorf("type %d in state %d: a watch of another znode has fired", kind, state)
			}
			inc.cancel(nil)
		}
	}
}

// someRequest returns a request of one of the kinds there are, and what tells its
// answer.
func someRequest(kind uint8) (r request, said func() string) {
	switch kind % 6 {
	case 0:
		return tellingOf(getCall("/x"))
	case 1:
		return tellingOf(childrenCall("/x"))
	case 2:
		return tellingOf(multiCall([]any{&zk.DeleteRequest{Path: "/x"}, &zk.SetDataRequest{Path: "/x"}}))
	case 3:
		return tellingOf(bundleCall([]string{"/x", "/y"}))
	case 4:
		return tellingOf(aclCall("/x"))
	}
	return tellingOf(existsCall("/x"))
}

func tellingOf[T any](c call[T]) (request, func() string) {
	p := &pending[T]{Done: make(chan struct{}), call: c}
	return p, func() string {
		<-p.Done
		b, _ := json.Marshal(p.val)
		return fmt.Sprintf("%s %v", b, p.err)
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
			&zk.CheckVersionRequest{Path: path, Version: version},
		}
		s := wire.Scanner{Rest: wire.AppendOps(nil, ops)}
		for i := range ops {
			op, more := s.Next()
			if got := s.String(); !more || got != path {
				t.Fatalf("operation %d: path %q, %v; want %q", i, got, more, path)
			}
			if op != wire.OpCheck {
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
		parseBundle(data, int(version))
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

func (c scripted) SetReadDeadline(time.Time) error { return nil }

// A gated connection takes what is written only while its gate lets it, and keeps it.
type gated struct {
	net.Conn
	gate  chan struct{} // has a token for each write
	mu    sync.Mutex
	wrote []string // the xids of each write
}

func (c *gated) Write(p []byte) (int, error) {
	<-c.gate
	var xids []int
	for rest := p; len(rest) > 0; rest = rest[4+binary.BigEndian.Uint32(rest):] {
		xids = append(xids, int(int32(binary.BigEndian.Uint32(rest[4:]))))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrote = append(c.wrote, fmt.Sprint(xids))
	return len(p), nil
}

func (c *gated) Close() error { return nil }

// openGated returns a link over a gated connection, and what sends a request over it.
func openGated(t *testing.T) (c *gated, l *link, send func()) {
	inc := newIncarnation(&Manager{Config: Config{Timeout: time.Hour}})
	c = &gated{gate: make(chan struct{}, 10)}
	l = newLink(inc, c, "x:1", time.Minute, time.Now().Add(time.Minute))
	l.shook.Store(true)
	l.open()
	go l.write()
	t.Cleanup(func() {
		close(c.gate)
		l.Close()
		inc.cancel(nil)
	})
	return c, l, func() {
		if !l.send(newPending(getCall("/x"))) {
			t.Error("the link takes no request")
		}
	}
}

func (c *gated) check(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.wrote, want) {
		t.Errorf("written together: %v, want %v", c.wrote, want)
	}
}

func TestWhatIsRequestedWhileAnotherWritesGoesBehindItInOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, send := openGated(t)
		go send() // it writes itself
		synctest.Wait()
		send() // these do not wait, though nothing can be written
		send()
		c.check(t)
		c.gate <- struct{}{}
		c.check(t, "[1]")
		c.gate <- struct{}{}
		c.check(t, "[1]", "[2 3]")
	})
}

func TestNobodyWaitsInAWriteWhileTheServerOwesAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, send := openGated(t)
		c.gate <- struct{}{}
		send()
		send() // the server may have stopped to read, as far as is known
		c.check(t, "[1]")
		c.gate <- struct{}{}
		c.check(t, "[1]", "[2]")
		for xid := range int32(2) {
			must(t, l.received(1+xid, wire.CodeNoNode, nil, time.Now()))
		}
		l.ping()
		c.gate <- struct{}{}
		synctest.Wait()
		send() // nor is it known of a ping
		c.check(t, "[1]", "[2]", "[-2]")
		c.gate <- struct{}{}
		synctest.Wait()
	})
}

func TestNobodyWaitsInAWriteWhileTheServerOwesAnAnswerToTheRemovalOfAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, send := openGated(t)
		l.inc.link = l
		watches, key := l.inc.Watches, WatchKey{WatchData, "/x"}
		w := watches.Join(key)
		watches.answered(watches.ask(key), 0, false)
		watches.Leave(w)
		c.gate <- struct{}{}
		if !l.removeWatch(key) {
			t.Fatal("the watch is not removed")
		}
		synctest.Wait()
		send() // nothing more can be written, as far as is known
		c.check(t, "[1]")
		c.gate <- struct{}{}
		c.check(t, "[1]", "[2]")
		must(t, l.received(1, 0, nil, time.Now()))
		must(t, l.received(2, wire.CodeNoNode, nil, time.Now()))
		go send() // it writes itself
		synctest.Wait()
		if !l.busy {
			t.Error("who requests something when all is answered does not write it")
		}
	})
}

func second[T any](_ T, err error) error { return err }

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
		if n := inc.Manager.reconnects.Load(); n != 1 || inc.Ctx.Err() != nil {
			t.Errorf("%d reconnects in a minute, %v", n, inc.Ctx.Err())
		}
	})
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
			conn, err := srv.Dial(network, addr, limit)
			if err == nil && again {
				conn = &brimful{Conn: conn, closed: make(chan struct{})}
			}
			return conn, err
		}))
		inc := live(t, s)
		again = true
		srv.Disconnect(inc.ID.Load())
		time.Sleep(100 * time.Millisecond)
		if !IsClosed(inc.connection()) {
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

// So the server may stop to read whatever it likes: what fits into the buffer is all that
// who requests something ever waits for.
func TestWhoWritesHisOwnRequestWritesNobodyElses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, send := openGated(t)
		mine, _ := l.put([]request{newPending(getCall("/x"))})
		send() // before the other comes to write
		c.gate <- struct{}{}
		l.writeOut(mine)
		c.check(t, "[1]")
		c.gate <- struct{}{}
		c.check(t, "[1]", "[2]")
	})
}
