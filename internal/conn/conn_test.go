package conn

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/lease"
	"github.com/zsync/zsync/internal/wire"
)

func TestMain(m *testing.M) { harness.Main(m) }

// A read is a request for the data of /x.
type read struct{}

func (read) Encode(p []byte) []byte                   { return wire.AppendString(p, "/x") }
func (read) Path() string                             { return "/x" }
func (read) Op() int32                                { return wire.OpGetData }
func (read) Moot() bool                               { return false }
func (read) Deletes() []string                        { return nil }
func (read) Reply(code int32, _ []byte) (int32, bool) { return code, true }
func (read) Finish()                                  {}
func (read) Fail(error)                               {}

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

// openGated returns a connection over a gated connection, and what sends a request over it.
func openGated(t *testing.T) (c *gated, l *Conn, send func()) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Shared{
		Ctx: ctx, Watches: NewWatches(), Requests: new(atomic.Int64),
		Sending:  func() lease.Stamp { return lease.Stamp{At: time.Now()} },
		Answered: func(lease.Stamp, lease.Proof, time.Time) {},
		Served:   func() {},
	}
	c = &gated{gate: make(chan struct{}, 10)}
	l = New(s, c, "x:1", time.Now().Add(time.Minute))
	l.timeout = time.Hour
	l.timer.Stop() // the server may be silent for as long as a test likes
	l.began = true
	go l.write()
	t.Cleanup(func() {
		close(c.gate)
		l.Close()
		cancel()
	})
	return c, l, func() {
		if !l.Send(read{}) {
			t.Error("the connection takes no request")
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

func TestAReplyOutOfOrderEndsItsOwnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, send := openGated(t)
		for range 10 {
			c.gate <- struct{}{}
		}
		open := []int32{1, 2, 3, 4, 5, 6, 7, 8}
		for range open {
			send()
		}
		for _, xid := range []int32{3, 1, 7, 7, 99, 2, 8, 4, 5, 6} {
			harness.Must(t, l.received(xid, wire.CodeNoNode, nil, time.Now()))
			open = slices.DeleteFunc(open, func(o int32) bool { return o == xid })
			var left []int32
			for _, info := range l.openLocked() {
				left = append(left, info.xid)
			}
			if !slices.Equal(left, open) {
				t.Errorf("after the reply to %d, %v wait, want %v", xid, left, open)
			}
		}
	})
}

func TestAStallCostsOneEarlyPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, send := openGated(t)
		l.trip = 300 * time.Millisecond
		const most = 400 * time.Millisecond
		pings, ordinary := 0, lease.PingEvery(l.timeout)
		start := time.Now()
		step := func(early int, after time.Duration, what string) {
			t.Helper()
			for ; after > 0; after -= most / 4 {
				c.gate <- struct{}{} // at most one write in this time
				time.Sleep(most / 4)
				synctest.Wait()
				select {
				case <-c.gate:
				default:
				}
			}
			pings += early
			c.mu.Lock()
			n := strings.Count(fmt.Sprint(c.wrote), "-2")
			c.mu.Unlock()
			if want := pings + int(time.Since(start)/ordinary); n != want {
				t.Errorf("%s: %d pings, want %d", what, n, want)
			}
		}
		reply := func(xids ...int32) {
			for _, xid := range xids {
				harness.Must(t, l.received(xid, wire.CodeNoNode, nil, time.Now()))
			}
		}
		step(0, time.Hour, "an idle hour")
		for xid := range int32(100) {
			send()
			step(0, most/2, "a reply in time")
			reply(1 + xid)
		}
		step(0, time.Minute, "nothing waits")
		send()
		step(0, most/2, "not yet")
		step(1, most/2, "a stall")
		for range 100 {
			send()
			step(0, most, "the same stall")
		}
		reply(wire.XidPing)
		step(0, time.Hour, "an hour of the same stall")
		reply(101)
		step(0, most/2, "not yet after the reply")
		step(1, time.Hour, "the second stall")
		for xid := range int32(100) {
			reply(102 + xid)
		}
		step(0, time.Hour, "all is answered")
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
			harness.Must(t, l.received(1+xid, wire.CodeNoNode, nil, time.Now()))
		}
		l.mu.Lock()
		l.pingLocked()
		l.mu.Unlock()
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
		watches, key := l.s.Watches, WatchKey{WatchData, "/x"}
		w := watches.Join(key)
		watches.ask(key)
		watches.answered(key, 0, false)
		watches.Leave(w)
		c.gate <- struct{}{}
		l.RemoveWatch(key)
		synctest.Wait()
		send() // nothing more can be written, as far as is known
		c.check(t, "[1]")
		c.gate <- struct{}{}
		c.check(t, "[1]", "[2]")
		harness.Must(t, l.received(1, 0, nil, time.Now()))
		harness.Must(t, l.received(2, wire.CodeNoNode, nil, time.Now()))
		go send() // it writes itself
		synctest.Wait()
		if !l.busy {
			t.Error("who requests something when all is answered does not write it")
		}
	})
}

func TestAWatchThatIsWaitedForAgainIsNotRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, _ := openGated(t)
		watches, key := l.s.Watches, WatchKey{WatchData, "/x"}
		w := watches.Join(key)
		watches.ask(key)
		watches.answered(key, 0, false)
		watches.Leave(w)
		watches.Join(key) // after the watch was chosen for its removal
		c.gate <- struct{}{}
		l.RemoveWatch(key)
		c.check(t)
	})
}

// So the server may stop to read whatever it likes: what fits into the buffer is all that
// who requests something ever waits for.
func TestWhoWritesHisOwnRequestWritesNobodyElses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, send := openGated(t)
		mine, _ := l.put([]Request{read{}})
		send() // before the other comes to write
		c.gate <- struct{}{}
		l.writeOut(mine)
		c.check(t, "[1]")
		c.gate <- struct{}{}
		c.check(t, "[1]", "[2]")
	})
}

// The size of a reply comes first. The limit is in docs/costs.md.
func TestAReplyOfTheGreatestSizeIsReadAndALongerOneIsNot(t *testing.T) {
	for size, want := range map[uint32]error{wire.MaxReply: io.EOF, wire.MaxReply + 1: ErrProtocol} {
		client, srv := net.Pipe()
		l := New(&Shared{Answered: func(lease.Stamp, lease.Proof, time.Time) {}}, client, "x:1", time.Now().Add(time.Minute))
		l.timeout = time.Hour
		go func() {
			srv.Write(append(binary.BigEndian.AppendUint32(nil, size), make([]byte, replyHeader-4)...))
			srv.Close()
		}()
		if err := l.nextPacket(); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v, want %v", size, err, want)
		}
	}
}

func TestXidsBeginAgainWithoutZeroAndWithoutNegativeNumbers(t *testing.T) {
	var s Shared
	for _, last := range []uint32{1<<31 - 2, 1<<32 - 2} {
		s.xid.Store(last)
		for _, want := range []int32{1<<31 - 1, 1, 2} {
			if got := s.NextXid(); got != want {
				t.Errorf("after %d: the next xid is %d, want %d", last, got, want)
			}
		}
	}
}

// The server reads nothing before the client has closed the connection. What the client's machine has
// not sent by then is a request that has failed, so it must not arrive later. The end of a session
// must arrive.
func TestAMachineSendsNothingAfterACloseButTheEndOfASession(t *testing.T) {
	for name, end := range map[string]bool{"requests": false, "the end of a session": true} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			harness.Must(t, err)
			defer l.Close()
			socket, err := net.Dial("tcp", l.Addr().String())
			harness.Must(t, err)
			server, err := l.Accept()
			harness.Must(t, err)
			defer server.Close()
			c := New(&Shared{Requests: new(atomic.Int64), Sending: func() lease.Stamp { return lease.Stamp{At: time.Now()} }}, socket, "x:1", time.Now().Add(time.Minute))
			harness.Must(t, socket.(*net.TCPConn).SetWriteBuffer(64<<10)) // a fixed size, which the system does not increase
			harness.Must(t, server.(*net.TCPConn).SetReadBuffer(64<<10))
			socket.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
			sent, err := socket.Write(make([]byte, 64<<20)) // until no buffer has room
			harness.WantErr(t, err, os.ErrDeadlineExceeded)
			if end {
				c.Bye()
			}
			c.Close()
			c.Over()
			got, _ := io.Copy(io.Discard, server)
			if all := got >= int64(sent); all != end {
				t.Errorf("the server has received %d of %d bytes", got, sent)
			}
		})
	}
}
