package zktest

import (
	"sync"
	"time"
)

// This file has the queue of bytes from the server to one client, with
// latency, partitions and a limit for clients that do not read.

const (
	// outputHigh is the number of unsent bytes at which the connection's
	// reader waits, so that a client that reads no replies cannot send more
	// requests.
	outputHigh = 1 << 20

	// outputLimit is the number of unsent bytes, by then of notifications, at
	// which the connection ends.
	outputLimit = 64 << 20

	// lastWords is how long a connection that ends may take to send the bytes
	// in its output.
	lastWords = 5 * time.Second
)

// An output is the queue of bytes on their way to a client. The reader of the
// connection and the notifications of others append; one writer takes.
// Appending never blocks.
type output struct {
	mu      sync.Mutex // guards all below but the channels; nothing is locked within
	buf     []byte
	marks   []mark            // the time for each stretch of buf to leave; nil: at once
	gates   []<-chan struct{} // nothing leaves until all are closed
	closing bool              // the connection ends with the last byte of buf
	mute    bool              // append throws its bytes away

	wake chan struct{} // has room for one; something was appended or changed
	room chan struct{} // has room for one; buf was taken
}

// A mark says when the bytes of an output up to end may leave.
type mark struct {
	end int
	due time.Time
}

func newOutput() output {
	return output{wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// append queues b. It leaves after latency, and after all that is already queued.
// append reports how many bytes are now queued.
func (o *output) append(b []byte, latency time.Duration) int {
	o.mu.Lock()
	if o.mute || o.closing {
		o.mu.Unlock()
		return 0
	}
	o.buf = append(o.buf, b...)
	if latency > 0 || len(o.marks) > 0 {
		o.marks = append(o.marks, mark{len(o.buf), time.Now().Add(latency)})
	}
	n := len(o.buf)
	o.mu.Unlock()
	poke(o.wake)
	return n
}

// finish ends the connection after all queued bytes.
func (o *output) finish() {
	o.mu.Lock()
	o.closing = true
	o.mu.Unlock()
	poke(o.wake)
}

// silence throws away all bytes that are appended from now on.
func (o *output) silence() {
	o.mu.Lock()
	o.mute = true
	o.mu.Unlock()
}

// shut holds back all unsent bytes until gate, and every earlier gate, is closed.
func (o *output) shut(gate <-chan struct{}) {
	o.mu.Lock()
	o.gates = append(o.gates, gate)
	o.mu.Unlock()
}

// take returns the bytes that may leave now, and keeps spare as the next buffer.
// If none may, it returns the gate or the time to wait for. It reports false when
// nothing will ever follow.
func (o *output) take(spare []byte) (b []byte, gate <-chan struct{}, wait time.Duration, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.gates) > 0 {
		select {
		case <-o.gates[0]:
			o.gates = o.gates[1:]
		default:
			return nil, o.gates[0], 0, true
		}
	}
	if len(o.buf) == 0 {
		return nil, nil, 0, !o.closing
	}
	if len(o.marks) == 0 {
		b, o.buf = o.buf, spare[:0]
		return b, nil, 0, true
	}
	if wait = time.Until(o.marks[0].due); wait > 0 {
		return nil, nil, wait, true
	}
	end := 0
	for len(o.marks) > 0 && time.Until(o.marks[0].due) <= 0 {
		end = o.marks[0].end
		o.marks = o.marks[1:]
	}
	b = append(spare[:0], o.buf[:end]...)
	o.buf = append(o.buf[:0], o.buf[end:]...)
	for i := range o.marks {
		o.marks[i].end -= end
	}
	return b, nil, 0, true
}

// size returns how many bytes are queued.
func (o *output) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.buf)
}

// poke sends to a channel with room for one, unless it is full.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
