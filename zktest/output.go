package zktest

import (
	"net"
	"sync"
	"time"
)

// This file has the queue of bytes from the server to one client, with latency, partitions and a
// limit for clients that do not read. conn.go has the goroutine that sends the bytes.

const (
	// outputHigh is the number of unsent bytes at which the connection's reader
	// stops. So a client that reads no replies cannot send more requests.
	outputHigh = 1 << 20

	// outputLimit is the number of unsent bytes at which the connection ends. The bytes beyond
	// outputHigh are mostly watch events.
	outputLimit = 64 << 20

	// lastWords is the time for a connection that ends to send its remaining bytes.
	lastWords = 5 * time.Second
)

// The type `output` is the queue of bytes to a client. The readers of this and other connections
// append replies and events, and never block. The writer of the connection takes the bytes. If no
// byte has to wait, and the client is in the same process, the bytes need no writer.
type output struct {
	near *pipeEnd // the connection, if it is in memory

	mu      sync.Mutex // guards all fields below except the channels; a goroutine that holds mu locks nothing else but a stream
	buf     []byte
	marks   []mark            // the times at which the parts of buf may leave; nil: at once
	gates   []<-chan struct{} // no byte leaves before all gates are closed
	taken   bool              // the writer may still be sending the bytes that it has taken
	closing bool              // the connection ends after the last byte of buf
	mute    bool              // `append` discards all bytes

	timer *time.Timer   // wakes the writer when the first mark is due
	wake  chan struct{} // wakes the writer after a change; has room for one
	room  chan struct{} // wakes the reader after the writer took bytes; has room for one
}

// The type `mark` is the time at which the bytes of buf before the offset `end` may leave.
type mark struct {
	end int
	due time.Time
}

func newOutput(nc net.Conn) output {
	near, _ := nc.(*pipeEnd)
	return output{near: near, timer: time.NewTimer(time.Hour), wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// The method `append` puts b into the queue. The bytes of b leave after the time `latency`, and
// after all earlier bytes. The method returns the number of bytes in the queue.
func (o *output) append(b []byte, latency time.Duration) int {
	o.mu.Lock()
	if o.mute || o.closing {
		o.mu.Unlock()
		return 0
	}
	if latency == 0 && len(o.buf) == 0 && len(o.gates) == 0 && !o.taken && o.near != nil && o.near.out.put(b) {
		o.mu.Unlock()
		return 0
	}
	o.buf = append(o.buf, b...)
	if latency > 0 || len(o.marks) > 0 {
		o.marks = append(o.marks, mark{len(o.buf), time.Now().Add(latency)})
	}
	switch len(o.marks) {
	case 0:
		poke(o.wake)
	case 1:
		o.timer.Reset(latency)
	}
	n := len(o.buf)
	o.mu.Unlock()
	return n
}

// The method `finish` makes the writer end the connection after all queued bytes.
func (o *output) finish() {
	o.mu.Lock()
	o.closing = true
	o.mu.Unlock()
	poke(o.wake)
}

// The method `silence` makes `append` discard all bytes from now on.
func (o *output) silence() {
	o.mu.Lock()
	o.mute = true
	o.mu.Unlock()
}

// The method `shut` stops all unsent bytes until `gate` and every earlier gate are closed.
func (o *output) shut(gate <-chan struct{}) {
	o.mu.Lock()
	o.gates = append(o.gates, gate)
	o.mu.Unlock()
}

// The method `take` returns the bytes that may leave now. It uses `spare` as the next buffer. If no
// byte may leave now, it returns the gate to wait for, or sets the timer. The result `ok` is false
// if no byte will follow.
func (o *output) take(spare []byte) (b []byte, gate <-chan struct{}, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken = false
	for len(o.gates) > 0 {
		select {
		case <-o.gates[0]:
			o.gates = o.gates[1:]
		default:
			return nil, o.gates[0], true
		}
	}
	if len(o.buf) == 0 {
		return nil, nil, !o.closing
	}
	if len(o.marks) == 0 {
		b, o.buf = o.buf, spare[:0]
		o.taken = true
		return b, nil, true
	}
	if wait := time.Until(o.marks[0].due); wait > 0 {
		o.timer.Reset(wait)
		return nil, nil, true
	}
	end := 0
	o.taken = true
	for len(o.marks) > 0 && time.Until(o.marks[0].due) <= 0 {
		end = o.marks[0].end
		o.marks = o.marks[1:]
	}
	b = append(spare[:0], o.buf[:end]...)
	o.buf = append(o.buf[:0], o.buf[end:]...)
	for i := range o.marks {
		o.marks[i].end -= end
	}
	return b, nil, true
}

// The method `size` returns the number of queued bytes.
func (o *output) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.buf)
}

// The function `poke` puts a token into ch, unless ch has a token already.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
