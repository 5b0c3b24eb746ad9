package netproxy_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zsync/zsync/internal/netproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFramesPassBothWays(t *testing.T) {
	srv := newServer(t)
	c := dial(t, netproxy.Start(t, srv.addr()))
	c.hello()
	for xid := range int32(100) {
		c.send(xid, 1)
		c.want(xid)
	}
	if got := len(srv.seen()); got != 100 {
		t.Errorf("the server saw %d requests, want 100", got)
	}
}

func TestFourLetterWordsPassAsTheyAre(t *testing.T) {
	p := netproxy.Start(t, newServer(t).addr())
	c := dial(t, p)
	c.write([]byte("ruok"))
	answer, err := io.ReadAll(c)
	if string(answer) != "imok" || err != nil {
		t.Errorf("ruok answered %q, %v, want imok", answer, err)
	}
}

func TestPartitionIsSilentAndHealDeliversWhatWasSent(t *testing.T) {
	srv := newServer(t)
	p := netproxy.Start(t, srv.addr())
	c := dial(t, p)
	c.hello()

	p.Partition()
	p.Partition() // twice is once
	c.send(1, 1)
	late := dial(t, p)
	late.sendHello()
	c.wantSilence()
	late.wantSilence()
	if got := srv.seen(); len(got) != 0 {
		t.Errorf("the server saw %v through a partition", got)
	}

	p.Heal()
	p.Heal()
	c.want(1)
	late.wantHello()
}

func TestServerDoesNotLearnOfAHangUpDuringAPartition(t *testing.T) {
	srv := newServer(t)
	p := netproxy.Start(t, srv.addr())
	c := dial(t, p)
	c.hello()
	p.Partition()
	c.Close()
	select {
	case <-srv.gone:
		t.Error("the server learned through a partition that the client hung up")
	case <-time.After(50 * time.Millisecond):
	}
	p.Heal()
	<-srv.gone
}

func TestDisconnectDropsBothSidesAndAllowsTheNextConnection(t *testing.T) {
	srv := newServer(t)
	p := netproxy.Start(t, srv.addr())
	c := dial(t, p)
	c.hello()
	p.Disconnect()
	c.wantDropped()
	<-srv.gone
	dial(t, p).hello()
	if got := p.Accepted(); got != 2 {
		t.Errorf("Accepted = %d, want 2", got)
	}
}

func TestRefusedConnectionFailsAtOnceAndPresentOnesStay(t *testing.T) {
	p := netproxy.Start(t, newServer(t).addr())
	c := dial(t, p)
	c.hello()
	p.Refuse()
	if _, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial while refused: %v, want connection refused", err)
	}
	c.send(1, 1)
	c.want(1)
	p.Accept()
	p.Accept()
	dial(t, p).hello()
}

func TestLatencyDelaysEachDirectionAndKeepsOrder(t *testing.T) {
	const latency = 200 * time.Millisecond
	p := netproxy.Start(t, newServer(t).addr())
	c := dial(t, p)
	c.hello()
	p.SetLatency(latency)
	start := time.Now()
	for xid := range int32(500) {
		c.send(xid, 1)
	}
	for xid := range int32(500) {
		c.want(xid)
	}
	took := time.Since(start)
	if took < 2*latency {
		t.Errorf("500 requests at once took %v, want at least %v", took, 2*latency)
	}
	if took > 250*latency {
		t.Errorf("500 requests at once took %v: they waited for each other", took)
	}
}

func TestLostRequestNeverReachesTheServer(t *testing.T) {
	srv := newServer(t)
	p := netproxy.Start(t, srv.addr())
	p.OnRequest(func(op, xid int32) netproxy.Verdict {
		if op == 14 {
			return netproxy.DropRequest
		}
		return netproxy.Pass
	})
	c := dial(t, p)
	c.hello()
	c.send(1, 4)
	c.want(1)
	c.send(2, 14)
	c.wantDropped()
	<-srv.gone
	if got := srv.seen(); !slices.Equal(got, []int32{1}) {
		t.Errorf("the server saw requests %v, want [1]", got)
	}
}

func TestLostReplyComesAfterTheServerCarriedTheRequestOut(t *testing.T) {
	srv := newServer(t)
	p := netproxy.Start(t, srv.addr())
	p.OnRequest(func(op, xid int32) netproxy.Verdict {
		if xid == 3 {
			return netproxy.DropReply
		}
		return netproxy.Pass
	})
	c := dial(t, p)
	c.hello()
	c.send(1, 1)
	c.send(2, 1)
	c.want(1)
	c.want(2)
	c.send(3, 1)
	c.wantDropped()
	<-srv.gone
	if got := srv.seen(); !slices.Equal(got, []int32{1, 2, 3}) {
		t.Errorf("the server saw requests %v, want [1 2 3]", got)
	}
}

func TestConnectRequestCanLoseItsReplyToo(t *testing.T) {
	p := netproxy.Start(t, newServer(t).addr())
	p.OnRequest(func(op, xid int32) netproxy.Verdict {
		if op == netproxy.OpConnect {
			return netproxy.DropReply
		}
		return netproxy.Pass
	})
	c := dial(t, p)
	c.sendHello()
	c.wantDropped()
	p.OnRequest(nil)
	dial(t, p).hello()
}

func TestPartitionBegunByTheHandlerLetsTheRequestThrough(t *testing.T) {
	srv := newServer(t)
	p := netproxy.Start(t, srv.addr())
	p.OnRequest(func(op, xid int32) netproxy.Verdict {
		if op == 1 {
			p.Partition()
		}
		return netproxy.Pass
	})
	c := dial(t, p)
	c.hello()
	c.send(7, 1)
	<-srv.read
	c.wantSilence()
	if got := srv.seen(); !slices.Equal(got, []int32{7}) {
		t.Errorf("the server saw requests %v, want [7]", got)
	}
	p.Heal()
	c.want(7)
}

// down is where nobody listens. A port that was free a moment ago may be somebody else's.
const down = "127.0.0.1:1"

func TestNextUpstreamIsTriedWhenOneIsDown(t *testing.T) {
	p := netproxy.Start(t, down+","+newServer(t).addr())
	for range 4 {
		dial(t, p).hello()
	}
}

func TestConnectionIsDroppedWhenNoUpstreamAnswers(t *testing.T) {
	c := dial(t, netproxy.Start(t, down))
	c.sendHello()
	c.wantDropped()
}

func TestCloseEndsEverythingWhateverIsGoingOn(t *testing.T) {
	p := netproxy.Start(t, newServer(t).addr())
	c := dial(t, p)
	c.hello()
	p.SetLatency(time.Hour)
	c.send(1, 1)
	p.Partition()
	late := dial(t, p)
	p.Close()
	c.wantDropped()
	late.wantDropped()
	if got := p.Conns(); got != 0 {
		t.Errorf("Conns = %d after Close, want 0", got)
	}
	p.Accept()
	if _, err := net.Dial("tcp", p.Addr()); err == nil {
		t.Error("a closed proxy accepts a connection")
	}
	p.Close()
}

func TestFaultsFromManyGoroutines(t *testing.T) {
	p := netproxy.Start(t, newServer(t).addr())
	stop := make(chan struct{})
	var users, faults sync.WaitGroup
	for range 8 {
		users.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := net.Dial("tcp", p.Addr())
				if err != nil {
					continue
				}
				c.Write(frame(0))
				io.CopyN(io.Discard, c, 8)
				c.Close()
			}
		})
	}
	for _, fault := range []func(){
		func() { p.Partition(); p.Heal() },
		func() { p.Disconnect() },
		func() { p.SetLatency(time.Microsecond) },
		func() { p.OnRequest(func(op, xid int32) netproxy.Verdict { return netproxy.DropReply }) },
		func() { p.Refuse(); p.Accept() },
	} {
		faults.Go(func() {
			for range 100 {
				fault()
			}
		})
	}
	faults.Wait()
	close(stop)
	p.Heal()
	p.Disconnect() // frees users that wait for an answer
	p.Close()
	users.Wait()
}

// A server answers each frame as ZooKeeper does: the connect request with a
// frame of zeros, every other with its xid.
type server struct {
	l    net.Listener
	gone chan struct{} // gets a value for each connection that ended
	read chan struct{} // gets a value for each request

	mu   sync.Mutex
	xids []int32 // of all requests
}

func newServer(t *testing.T) *server {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{l: l, gone: make(chan struct{}, 10_000), read: make(chan struct{}, 10_000)}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				s.serve(c)
				c.Close()
				s.gone <- struct{}{}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	return s
}

func (s *server) addr() string { return s.l.Addr().String() }

func (s *server) seen() []int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.xids)
}

func (s *server) serve(c net.Conn) {
	for first := true; ; first = false {
		prefix := make([]byte, 4)
		if _, err := io.ReadFull(c, prefix); err != nil {
			return
		}
		if string(prefix) == "ruok" {
			io.WriteString(c, "imok")
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(prefix))
		if _, err := io.ReadFull(c, body); err != nil {
			return
		}
		var xid int32
		if !first {
			xid = int32(binary.BigEndian.Uint32(body))
			s.mu.Lock()
			s.xids = append(s.xids, xid)
			s.mu.Unlock()
			s.read <- struct{}{}
		}
		c.Write(frame(xid))
	}
}

// A client is a raw connection through the proxy, closed when the test ends.
type client struct {
	net.Conn
	t *testing.T
}

func dial(t *testing.T, p *netproxy.Proxy) client {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return client{c, t}
}

func (c client) hello() {
	c.t.Helper()
	c.sendHello()
	c.wantHello()
}

func (c client) sendHello() {
	c.t.Helper()
	c.write(frame(0, 1, 2, 3))
}

func (c client) wantHello() {
	c.t.Helper()
	c.want(0)
}

func (c client) send(xid, op int32) {
	c.t.Helper()
	c.write(frame(xid, op))
}

func (c client) write(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// want reads the reply to request xid.
func (c client) want(xid int32) {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(time.Minute))
	got := make([]byte, 8)
	if _, err := io.ReadFull(c, got); err != nil {
		c.t.Fatalf("reply to %d: %v", xid, err)
	}
	if want := frame(xid); !slices.Equal(got, want) {
		c.t.Fatalf("got reply %v, want %v", got, want)
	}
}

// wantSilence checks that nothing comes for a while, not even the end.
func (c client) wantSilence() {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Errorf("read %d bytes, %v, want silence", n, err)
	}
}

// wantDropped checks that the connection ends with nothing more to read.
func (c client) wantDropped() {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(time.Minute))
	n, err := c.Read(make([]byte, 1))
	if n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Errorf("read %d bytes, %v, want the connection dropped", n, err)
	}
}

// frame returns a frame whose body is the words given.
func frame(words ...int32) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4*len(words)))
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, uint32(w))
	}
	return b
}
