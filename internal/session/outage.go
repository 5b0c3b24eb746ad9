package session

// This file logs that no server can be reached. pacer.go decides when to try which server.

import (
	"sync"
	"time"
)

// The type `outage` is the time from the end of a connection, or from Connect, to the next
// connection. After firstWord, the log lists the servers that were tried, and why each has failed.
// An outage that lasts is logged again after each interval `reminder`. If the outage was logged,
// its end is logged, too.
type outage struct {
	say   func(began time.Time)
	spawn func(f func()) // runs f in a goroutine that Close waits for

	mu    sync.Mutex  // taken after Manager.mu
	began time.Time   // zero if there is a connection; guarded by mu
	said  bool        // the outage was logged; guarded by mu
	over  bool        // the Session has ended; guarded by mu
	timer *time.Timer // runs the method `lasts`; guarded by mu
}

const (
	firstWord = time.Second
	reminder  = time.Hour
)

// The log messages of an outage. The command zsync shows these messages, and no other log messages.
const (
	TextOutage      = "zsync: no connection to any server"
	TextReconnected = "zsync: connected again"
)

// The method `begin` is called when there is no connection.
func (o *outage) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.began.IsZero() && !o.over {
		o.began, o.said = time.Now(), false
		o.timer = time.AfterFunc(firstWord, o.lasts)
	}
}

// The method `finish` is called when the Session ends. Its last connection may end later: that
// begins no outage.
func (o *outage) finish() {
	o.mu.Lock()
	o.over = true
	o.mu.Unlock()
	o.end()
}

// The method `end` is called when there is a connection, or when the Session ends. It returns the
// time at which the outage began, and whether the outage was logged.
func (o *outage) end() (began time.Time, said bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil {
		o.timer.Stop()
	}
	began, o.began = o.began, time.Time{}
	return began, o.said && !began.IsZero()
}

// The method `lasts` logs the outage.
func (o *outage) lasts() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.began.IsZero() {
		return
	}
	o.said = true
	o.timer = time.AfterFunc(reminder, o.lasts)
	began := o.began
	o.spawn(func() { o.say(began) }) // no message follows Close: Close calls `finish`, which takes o.mu, and then waits for this goroutine
}
