package session

// This file logs that no server can be reached. pacer.go decides when to try which server.

import (
	"errors"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/conn"
)

// The type `outage` is the time from the end of a connection, or from Connect, to the next
// connection that lasts. A connection lasts if it exists for the time conn.Lasting. After
// firstWord, the log lists the servers that were tried, and why each has failed. An outage that
// lasts is logged again after each interval `reminder`. If the outage was logged, its end is
// logged, too.
//
// Manager.enter calls the methods `begin` and `connected`, so the outage follows the state of the
// Session.
type outage struct {
	say   func(began time.Time)
	ended func(at, began time.Time)
	spawn func(f func()) // runs f in a goroutine that Close waits for

	mu    sync.Mutex  // taken after Manager.mu
	began time.Time   // zero if there is no outage; guarded by mu
	back  time.Time   // time of the present connection, which has not lasted yet; or zero; guarded by mu
	next  time.Time   // time of the next message; guarded by mu
	said  bool        // the outage was logged; guarded by mu
	over  bool        // the Session has ended; guarded by mu
	timer *time.Timer // runs the method `lasts` or `settle`; guarded by mu
}

const (
	firstWord = time.Second
	reminder  = time.Hour
)

// errShort is the end of a connection that did not last. The server has accepted the client, so
// Manager.noneFits does not count the server as out of reach.
var errShort = errors.New("the connection ended at once")

// The log messages of an outage. The command zsync shows these messages, and no other log messages.
const (
	TextOutage      = "zsync: no connection to any server"
	TextReconnected = "zsync: connected again"
)

// The method `begin` is called when there is no connection.
func (o *outage) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return
	}
	if time.Since(o.back) >= conn.Lasting {
		o.settleLocked() // perhaps the timer is late, because the process was stopped
	}
	if o.began.IsZero() {
		o.began, o.said = time.Now(), false
		o.next = o.began.Add(firstWord)
	}
	o.back = time.Time{}
	o.after(time.Until(o.next), o.lasts)
}

// The method `connected` is called when there is a connection.
func (o *outage) connected() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.over {
		o.back = time.Now()
		o.after(conn.Lasting, o.settle)
	}
}

// The method `finish` is called when the Session ends. Its last connection may end later: that
// begins no outage.
func (o *outage) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over, o.began = true, time.Time{}
	o.timer.Stop()
}

// The method `after` replaces the timer. The caller holds mu.
func (o *outage) after(d time.Duration, f func()) {
	if o.timer != nil {
		o.timer.Stop()
	}
	o.timer = time.AfterFunc(d, f)
}

// The method `settle` ends the outage if the connection exists still.
func (o *outage) settle() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.settleLocked()
}

func (o *outage) settleLocked() {
	if o.began.IsZero() || o.back.IsZero() {
		return // there is no outage, or the connection has just ended
	}
	if began, at := o.began, o.back; o.said {
		o.spawn(func() { o.ended(at, began) })
	}
	o.began = time.Time{}
}

// The method `lasts` logs the outage.
func (o *outage) lasts() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.began.IsZero() || !o.back.IsZero() {
		return
	}
	o.said, o.next = true, time.Now().Add(reminder)
	o.after(reminder, o.lasts)
	began := o.began
	o.spawn(func() { o.say(began) }) // no message follows Close: Close calls `finish`, which takes o.mu, and then waits for this goroutine
}
