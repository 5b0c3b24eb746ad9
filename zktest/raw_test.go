package zktest

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// A rawClient speaks the protocol with no help and no guesses, so that a test
// sees every packet in its order.
type rawClient struct {
	t        testing.TB
	nc       net.Conn
	xid      int32
	id       int64
	password []byte
	timeout  int32
	zxid     int64    // of the last reply
	events   []string // notifications not yet looked at
}

// rawReply is a reply. The body is in d, not yet decoded.
type rawReply struct {
	xid  int32
	zxid int64
	code int32
	d    decoder
}

func rawDial(t testing.TB, s *Server) *rawClient {
	t.Helper()
	nc, err := s.Dial("tcp", s.Addr(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return newRaw(t, nc)
}

func newRaw(t testing.TB, nc net.Conn) *rawClient {
	t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(2 * time.Minute))
	return &rawClient{t: t, nc: nc}
}

func (c *rawClient) writeFrame(b []byte) {
	c.t.Helper()
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(b)))
	if _, err := c.nc.Write(append(frame, b...)); err != nil {
		c.t.Fatalf("write: %v", err)
	}
}

func (c *rawClient) readFrame() ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(c.nc, length[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(length[:]))
	_, err := io.ReadFull(c.nc, b)
	return b, err
}

// connectFrame builds a connect request.
func connectFrame(zxid int64, timeout int32, id int64, password []byte) []byte {
	b := appendInt32(nil, 0)
	b = appendInt64(b, zxid)
	b = appendInt32(b, timeout)
	b = appendInt64(b, id)
	b = appendBuffer(b, password)
	return appendBool(b, false)
}

// handshake asks for a session, c.id if that is set.
func (c *rawClient) handshake(timeout int32) error {
	password := c.password
	if password == nil {
		password = make([]byte, passwordLen)
	}
	c.writeFrame(connectFrame(c.zxid, timeout, c.id, password))
	b, err := c.readFrame()
	if err != nil {
		return err
	}
	d := decoder{b: b}
	d.int32()
	c.timeout = d.int32()
	c.id = d.int64()
	c.password = d.buffer()
	return nil
}

// send sends a request without waiting for its reply.
func (c *rawClient) send(op Op, body []byte) int32 {
	c.t.Helper()
	c.xid++
	xid := c.xid
	switch op {
	case OpPing:
		xid = xidPing
	case OpAuth:
		xid = -4
	}
	b := appendInt32(nil, xid)
	b = appendInt32(b, int32(op))
	c.writeFrame(append(b, body...))
	return xid
}

// receive returns the next packet, a notification as a text.
func (c *rawClient) receive() (reply rawReply, event string, err error) {
	b, err := c.readFrame()
	if err != nil {
		return reply, "", err
	}
	reply.d.b = b
	reply.xid, reply.zxid, reply.code = reply.d.int32(), reply.d.int64(), reply.d.int32()
	if reply.xid != xidNotification {
		return reply, "", nil
	}
	kind := reply.d.int32()
	reply.d.int32()
	return reply, fmt.Sprintf("event %d %s", kind, reply.d.string()), nil
}

// call sends a request and returns its reply. Notifications before the reply
// are added to c.events.
func (c *rawClient) call(op Op, body []byte) rawReply {
	c.t.Helper()
	xid := c.send(op, body)
	for {
		r, event, err := c.receive()
		if err != nil {
			c.t.Fatalf("reply to %v: %v", op, err)
		}
		if event != "" {
			c.events = append(c.events, event)
			continue
		}
		if r.xid != xid {
			c.t.Fatalf("reply to %v: got xid %d, want %d", op, r.xid, xid)
		}
		if op != OpAuth {
			c.zxid = r.zxid
		}
		return r
	}
}

// Bodies of requests.

func pathBody(path string) []byte              { return appendString(nil, path) }
func watchBody(path string, watch bool) []byte { return appendBool(pathBody(path), watch) }
func versionBody(path string, v int32) []byte  { return appendInt32(pathBody(path), v) }
func createBody(path, data string, list []acl, flags int32) []byte {
	b := appendBuffer(pathBody(path), []byte(data))
	return appendInt32(appendACLs(b, list), flags)
}
func setDataBody(path, data string, v int32) []byte {
	return appendInt32(appendBuffer(pathBody(path), []byte(data)), v)
}
func setACLBody(path string, list []acl, v int32) []byte {
	return appendInt32(appendACLs(pathBody(path), list), v)
}
func authBody(scheme, data string) []byte {
	return appendBuffer(appendString(appendInt32(nil, 0), scheme), []byte(data))
}
func stringsBody(b []byte, list []string) []byte {
	b = appendInt32(b, int32(len(list)))
	for _, s := range list {
		b = appendString(b, s)
	}
	return b
}
func multiBody(ops ...[]byte) []byte {
	var b []byte
	for _, op := range ops {
		b = append(b, op...)
	}
	return appendMultiEnd(b)
}
func multiOp(op Op, body []byte) []byte {
	return append(appendMultiHeader(nil, op, -1), body...)
}
