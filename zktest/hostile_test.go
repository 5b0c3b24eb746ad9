package zktest

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// FuzzDecodeRequest holds that no packet makes the decoder panic, or take far
// more memory than the packet itself.
func FuzzDecodeRequest(f *testing.F) {
	head := func(op Op) []byte { return appendInt32([]byte{0, 0, 0, 1}, int32(op)) }
	f.Add(append(head(OpCreate), createBody("/a", "x", openACL, 3)...))
	f.Add(append(head(OpMulti), multiBody(multiOp(OpCheck, versionBody("/a", 1)))...))
	f.Add(append(head(OpSetWatches2), stringsBody(appendInt64(nil, 1), []string{"/a", "/b"})...))
	f.Add(append(head(OpSetWatches), 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff))
	f.Add(connectFrame(0, 1000, 1, make([]byte, 16)))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, ok := decodeRequest(b, new([]Request))
		if !ok && len(b) >= 8 {
			t.Errorf("a packet of %d bytes has no header", len(b))
		}
		if len(r.Ops)*9 > len(b) || len(r.acl)*12 > len(b) {
			t.Errorf("%d operations and %d ACLs out of %d bytes", len(r.Ops), len(r.acl), len(b))
		}
		decodeConnect(b)
	})
}

// FuzzServerConn holds that whatever one client sends, the server lives, and
// another client is served.
func FuzzServerConn(f *testing.F) {
	frame := func(b []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }
	hello := frame(connectFrame(0, 1000, 0, make([]byte, 16)))
	request := func(op Op, body []byte) []byte {
		return frame(append(appendInt32([]byte{0, 0, 0, 1}, int32(op)), body...))
	}
	f.Add([]byte("ruok"))
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff, 1})
	f.Add(hello)
	f.Add(append(hello, request(OpCreate, createBody("/x", "x", openACL, 1))...))
	f.Add(append(hello, request(OpMulti, multiBody(multiOp(OpCreate, createBody("/y", "", openACL, 0)), multiOp(OpDelete, versionBody("/y", -1))))...))
	f.Add(append(hello, request(OpAddWatch, versionBody("/", 1))...))
	f.Add(append(hello, request(OpRemoveWatches, versionBody("", 3))...))
	f.Add(append(hello, request(Op(77), nil)...))
	s := NewServer(WithSessionTimeouts(40*time.Millisecond, time.Minute))
	f.Cleanup(func() { _ = s.Close() })
	dial := func(t *testing.T) net.Conn {
		nc, err := s.Dial("tcp", s.Addr(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return nc
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		other := newRaw(t, dial(t))
		if err := other.handshake(10000); err != nil {
			t.Fatal(err)
		}
		nc := dial(t)
		_, _ = nc.Write(b)
		_ = nc.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, _ = io.Copy(io.Discard, nc)
		_ = nc.Close()
		if r := other.call(OpExists, watchBody("/", false)); r.code != CodeOK {
			t.Errorf("the other client got code %d", r.code)
		}
		other.call(OpCloseSession, nil)
	})
}

func TestTooLongAPacketEndsItsConnection(t *testing.T) {
	s := Start(t)
	for _, length := range []uint32{defaultMaxBuffer + 1, 1 << 31, 1<<32 - 1, 7} {
		c := connected(t, s, 10*time.Second)
		if _, err := c.nc.Write(append(binary.BigEndian.AppendUint32(nil, length), make([]byte, 7)...)); err != nil {
			t.Fatal(err)
		}
		wantClosed(t, c)
	}
	c := connected(t, s, 10*time.Second)
	fits := createBody("/a", "", openACL, 0)
	data := strings.Repeat("x", defaultMaxBuffer-8-len(fits))
	wantCode(t, "the longest packet", c.call(OpCreate, createBody("/a", data, openACL, 0)), CodeOK)
	r := c.call(OpGetData, watchBody("/a", false))
	if got := r.d.buffer(); string(got) != data {
		t.Errorf("read %d bytes, want %d", len(got), len(data))
	}
}

func TestPromisedBytesCostNothingBeforeTheyCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t, WithMaxBuffer(1<<30))
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range 50 {
			nc, err := s.Dial("tcp", s.Addr(), time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			if _, err := nc.Write(binary.BigEndian.AppendUint32(nil, 1<<30)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait() // until the server has nothing more to do
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 20<<20 {
			t.Errorf("50 connections that promised 1 GiB each cost %d bytes", grown)
		}
	})
}

func TestUnknownRequestsAreUnimplemented(t *testing.T) {
	s := Start(t)
	c := connected(t, s, 10*time.Second)
	wantCode(t, "reconfig", c.call(OpReconfig, nil), CodeReconfigDisabled)
	wantCode(t, "half a create", c.call(OpCreate, pathBody("/a")), CodeMarshallingError)
	wantCode(t, "one that does not exist", c.call(Op(4711), nil), CodeUnimplemented)
	wantClosed(t, c)
}

// Of a path whose parent is there only the name is looked at.
func TestPathsThatMayNotBeAreRefusedWhateverIsThere(t *testing.T) {
	s := Start(t)
	c := connected(t, s, 10*time.Second)
	wantCode(t, "/a", c.call(OpCreate, createBody("/a", "", openACL, 0)), CodeOK)
	for _, path := range []string{"//a", "//b", "/a/", "/a/.", "/a/..", "/.", "/..", "/a/\x01", "/a/\uf000"} {
		wantCode(t, "create "+path, c.call(OpCreate, createBody(path, "", openACL, 0)), CodeBadArguments)
		wantCode(t, "set "+path, c.call(OpSetData, appendInt32(appendBuffer(pathBody(path), nil), -1)), CodeBadArguments)
	}
	wantCode(t, "set the empty path", c.call(OpSetData, appendInt32(appendBuffer(pathBody(""), nil), -1)), CodeBadArguments)
	wantCode(t, "create /", c.call(OpCreate, createBody("/", "", openACL, 0)), CodeNodeExists)
	for _, path := range []string{"/.-", "/a/b", "/a/.b", "/a/..."} {
		wantCode(t, "create "+path, c.call(OpCreate, createBody(path, "", openACL, 0)), CodeOK)
	}
	wantCode(t, "create /a//b", c.call(OpCreate, createBody("/a//b", "", openACL, 0)), CodeNoNode)
	// A number does not make a name of the dots that are none.
	wantCode(t, "create /a/. with a number", c.call(OpCreate, createBody("/a/.", "", openACL, flagSequence)), CodeOK)
	wantCode(t, "create /a/ with a number", c.call(OpCreate, createBody("/a/", "", openACL, flagSequence)), CodeOK)
	wantCode(t, "create //a with a number", c.call(OpCreate, createBody("//a", "", openACL, flagSequence)), CodeBadArguments)
}

func TestClientWithoutTheReadOnlyByteGetsNone(t *testing.T) {
	s := Start(t)
	c := rawDial(t, s)
	b := connectFrame(0, 1000, 0, make([]byte, 16))
	c.writeFrame(b[:len(b)-1])
	if reply, err := c.readFrame(); err != nil || len(reply) != 36 {
		t.Errorf("got %d bytes, %v, want 36", len(reply), err)
	}
}

func TestClientThatReadsNothingIsNotServedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t)
		c := connected(t, s, 10*time.Second)
		c.call(OpCreate, createBody("/a", strings.Repeat("x", 1<<19), openACL, 0))
		before := s.Counts()
		for range 200 {
			c.send(OpGetData, watchBody("/a", false))
		}
		synctest.Wait() // until the server has nothing more to do
		// What fits into the pipe and the output, and no more.
		if got := s.Counts().Sub(before).Total(); got > 30 {
			t.Errorf("%d replies of 512 KiB are queued", got)
		}
	})
}

func TestConfNamesThePortOfAnyKindOfAddress(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Logf("%s: no such addresses here: %v", addr, err)
			continue
		}
		l.Close()
		s := Start(t, WithAddr(addr))
		_, port, _ := net.SplitHostPort(s.Addr())
		answer, _ := s.fourLetter("conf")
		if want := "clientPort=" + port + "\n"; !strings.HasPrefix(answer, want) {
			t.Errorf("%s: conf says %q, want %q first", s.Addr(), answer, want)
		}
	}
}

func TestFourLetterWords(t *testing.T) {
	s := Start(t)
	connected(t, s, 10*time.Second)
	for word, want := range map[string]string{
		"ruok": "imok", "isro": "rw", "srvr": "Mode: standalone", "stat": "Clients:", "mntr": "zk_znode_count\t5",
		"cons": "sid=0x", "conf": "tickTime=20", "wchs": "Total watches:0", "envi": "zookeeper.version=",
	} {
		nc, err := net.DialTimeout("tcp", s.Addr(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = io.WriteString(nc, word); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(nc)
		if err != nil || !strings.Contains(string(answer), want) {
			t.Errorf("%s: got %q, %v, want %q in it", word, answer, err, want)
		}
		nc.Close()
	}
}

func TestPipeBehavesAsTCPDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so no deadline passes before its call has begun
		a, b := newPipe(textAddr("a"), textAddr("b"))
		if _, err := a.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		_ = a.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		if _, err := a.Read(make([]byte, 1)); !isTimeout(err) {
			t.Errorf("read past the deadline: got %v", err)
		}
		_ = b.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		if n, err := b.Write(make([]byte, pipeLimit+1)); n != pipeLimit || !isTimeout(err) {
			t.Errorf("write into a full pipe: got %d, %v", n, err)
		}
		_ = a.Close()
		if got, err := io.ReadAll(b); string(got) != "hello" || err != nil {
			t.Errorf("read after the other end closed: got %q, %v", got, err)
		}
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after Close: got %v", err)
		}
		_ = b.SetWriteDeadline(time.Time{})
		if _, err := b.Write([]byte("x")); err == nil {
			t.Error("write to a closed end succeeded")
		}
	})
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
