package session

// This file logs that no server can be reached. pacer.go decides when to try which server.

import (
	"errors"
	"time"

	"github.com/zsync/zsync/internal/conn"
)

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

// logOutages logs the outages of a Session, from Connect until `changes`, of the Session's state, is
// closed. An outage is the time from the end of a connection, or from Connect, to the next connection
// that exists for the time conn.Lasting. After firstWord, `say` logs the outage, and again after each
// interval `reminder`. If the outage was logged, `ended` logs its end.
func logOutages(changes <-chan ConnState, say func(began time.Time), ended func(at, began time.Time)) {
	began, said := time.Now(), false // of the outage; `began` is zero if there is none
	next := began.Add(firstWord)     // time of the next message
	var back time.Time               // time of the present connection, or zero
	timer := time.NewTimer(firstWord)
	defer timer.Stop()
	lasted := func() {
		if said {
			ended(back, began)
		}
		began, said = time.Time{}, false
	}
	for {
		// If the timer and a change are ready at once, either order is right: a message about an outage
		// at its end is true, and so is none; and a connection that ends at the moment at which it has
		// lasted ends the outage in both cases (see `lasted`).
		select {
		case s, open := <-changes:
			if !open {
				return
			}
			switch s {
			case StateConnected:
				back = time.Now()
				timer.Reset(conn.Lasting)
			case StateSuspended, StateExpired:
				if !back.IsZero() && time.Since(back) >= conn.Lasting {
					lasted() // perhaps the timer is late, because the process was stopped
				}
				if began.IsZero() {
					began = time.Now()
					next = began.Add(firstWord)
				}
				back = time.Time{}
				timer.Reset(time.Until(next))
			}
		case <-timer.C:
			if !back.IsZero() {
				lasted()
				continue
			}
			said, next = true, time.Now().Add(reminder)
			timer.Reset(reminder)
			say(began)
		}
	}
}
