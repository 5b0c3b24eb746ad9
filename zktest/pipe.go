package zktest

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// This file has connections in memory, for tests in a synctest bubble and for clients in the same
// process. They behave like TCP, and never lose or reorder bytes. output.go and fault.go have the
// faults.

// pipeLimit is the number of unread bytes in one direction at which writes block.
const pipeLimit = 4 << 20

// A pipeEnd is one end of a connection in memory. It behaves like a TCP connection: a write returns
// before the other end has read the bytes, the other end can still read them after a Close, and
// deadlines work. In a testing/synctest bubble, a goroutine that waits for a pipe is durably
// blocked.
type pipeEnd struct {
	in, out       *stream
	local, remote net.Addr
}

var _ net.Conn = (*pipeEnd)(nil)

// newPipe returns the two ends of a connection, with the addresses a and b.
func newPipe(a, b net.Addr) (*pipeEnd, *pipeEnd) {
	ab, ba := newStream(), newStream()
	return &pipeEnd{in: ba, out: ab, local: a, remote: b}, &pipeEnd{in: ab, out: ba, local: b, remote: a}
}

func (p *pipeEnd) Read(b []byte) (int, error) {
	n, err := p.in.read(b)
	return n, p.opError("read", err)
}

func (p *pipeEnd) Write(b []byte) (int, error) {
	n, err := p.out.write(b)
	return n, p.opError("write", err)
}

// opError wraps err in a net.OpError, as a network connection does. It returns io.EOF unchanged.
func (p *pipeEnd) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: p.local, Addr: p.remote, Err: err}
}

func (p *pipeEnd) Close() error {
	p.out.closeWriter()
	p.in.closeReader()
	return nil
}

func (p *pipeEnd) LocalAddr() net.Addr  { return p.local }
func (p *pipeEnd) RemoteAddr() net.Addr { return p.remote }

func (p *pipeEnd) SetDeadline(t time.Time) error {
	p.in.setDeadline(&p.in.readBy, t)
	p.out.setDeadline(&p.out.writeBy, t)
	return nil
}

func (p *pipeEnd) SetReadDeadline(t time.Time) error {
	p.in.setDeadline(&p.in.readBy, t)
	return nil
}

func (p *pipeEnd) SetWriteDeadline(t time.Time) error {
	p.out.setDeadline(&p.out.writeBy, t)
	return nil
}

// The type `stream` is one direction of a pipe.
type stream struct {
	mu      sync.Mutex // guards all fields below
	changed *sync.Cond // signals every change of a field below
	buf     []byte     // buf[off:] is written and not read
	off     int

	writerClosed, readerClosed bool
	readBy, writeBy            time.Time // deadlines; zero: none

	alarm *time.Timer // broadcasts `changed` at the next deadline; nil: no wait had a deadline
}

func newStream() *stream {
	s := &stream{}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *stream) read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.readerClosed:
			return 0, net.ErrClosed
		case expired(s.readBy):
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case s.off < len(s.buf):
			n := copy(b, s.buf[s.off:])
			s.off += n
			if s.off == len(s.buf) {
				s.buf, s.off = s.buf[:0], 0
			}
			s.changed.Broadcast()
			return n, nil
		case s.writerClosed:
			return 0, io.EOF
		}
		s.wait()
	}
}

func (s *stream) write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	written := 0
	for {
		switch room := pipeLimit - (len(s.buf) - s.off); {
		case s.writerClosed:
			return written, net.ErrClosed
		case expired(s.writeBy):
			return written, os.ErrDeadlineExceeded
		case s.readerClosed:
			return written, syscall.EPIPE
		case written == len(b):
			return written, nil
		case room > 0:
			n := min(room, len(b)-written)
			s.append(b[written : written+n])
			written += n
			continue
		}
		s.wait()
	}
}

// The method `put` writes b as one piece if there is room for b. It never waits.
func (s *stream) put(b []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writerClosed || s.readerClosed || expired(s.writeBy) || pipeLimit-(len(s.buf)-s.off) < len(b) {
		return false
	}
	s.append(b)
	return true
}

// The method `append` adds b to the unread bytes. The caller holds s.mu.
func (s *stream) append(b []byte) {
	if s.off > len(s.buf)/2 { // otherwise buf would grow without end
		s.buf = s.buf[:copy(s.buf, s.buf[s.off:])]
		s.off = 0
	}
	s.buf = append(s.buf, b...)
	s.changed.Broadcast()
}

// The method `wait` waits for a change of s or for a deadline. The caller holds s.mu.
func (s *stream) wait() {
	var due time.Time
	for _, t := range []time.Time{s.readBy, s.writeBy} {
		if !t.IsZero() && !expired(t) && (due.IsZero() || t.Before(due)) {
			due = t
		}
	}
	switch {
	case due.IsZero():
	case s.alarm == nil:
		s.alarm = time.AfterFunc(time.Until(due), func() {
			// A waiter holds s.mu until it sleeps, so it does not miss the broadcast.
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changed.Broadcast()
		})
	default:
		s.alarm.Reset(time.Until(due))
	}
	s.changed.Wait()
}

func (s *stream) setDeadline(which *time.Time, t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*which = t
	s.changed.Broadcast()
}

func (s *stream) closeWriter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writerClosed = true
	s.closed()
}

func (s *stream) closeReader() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readerClosed = true
	s.buf, s.off = nil, 0
	s.closed()
}

// The method `closed` wakes all waiters, which wait no more.
func (s *stream) closed() {
	if s.alarm != nil {
		s.alarm.Stop()
	}
	s.changed.Broadcast()
}

func expired(deadline time.Time) bool {
	return !deadline.IsZero() && time.Until(deadline) <= 0
}
