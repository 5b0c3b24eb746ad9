package session

// This file logs that no server can be reached. pacer.go decides when to try which server.

import (
	"strings"
	"time"

	"github.com/zsync/zsync/internal/conn"
)

const (
	firstWord = time.Second
	reminder  = time.Hour
)

// The log messages of an outage. The command zsync shows these messages, and no other log messages.
const (
	TextOutage      = "zsync: no connection to any server"
	TextReconnected = "zsync: connected again"
)

// The method `logOutages` follows the phases of a Session, from the phase p until StateClosed, and logs
// outages. An outage is the time from the end of a connection, or from Connect, to
// the next connection that exists for the time conn.Lasting. It is logged after firstWord, and again
// after each interval `reminder`. If it was logged, so is its end.
func (m *Manager) logOutages(p *phase) {
	began, next := time.Now(), firstWord // the outage, or zero if there is none; its age at the next message
	var back time.Time                   // when the present connection began, or zero
	for p.state != StateClosed {
		var due <-chan time.Time
		switch {
		case began.IsZero():
		case back.IsZero():
			due = time.After(next - time.Since(began))
		default:
			due = time.After(time.Until(back.Add(conn.Lasting)))
		}
		select {
		case <-due:
		case <-p.over:
		}
		// Perhaps the timer is late, because the process was stopped.
		if !back.IsZero() && time.Since(back) >= conn.Lasting {
			if next > firstWord {
				// This is a warning, because the message about the outage was a warning.
				m.Log.Warn(TextReconnected, "since", back, "lasted", back.Sub(began).Round(time.Millisecond), "session", Text(m.newest().ID.Load()))
			}
			began, next = time.Time{}, firstWord
		}
		switch {
		case IsClosed(p.over):
			if p = p.next; p.state == StateConnected {
				back = time.Now()
			} else if back = (time.Time{}); began.IsZero() {
				began = time.Now()
			}
		case back.IsZero():
			next = time.Since(began) + reminder
			m.sayOutage(began)
		}
	}
}

// For each server, sayOutage logs why the client's last attempt to use that server failed. If there
// are holds, sayOutage also logs until when the session is confirmed.
func (m *Manager) sayOutage(began time.Time) {
	m.mu.Lock()
	var why []string
	for _, addr := range m.Hosts {
		if err := m.tried[addr]; err != nil {
			why = append(why, err.Error())
		} else {
			why = append(why, addr+": no answer yet")
		}
	}
	inc := m.cur
	m.mu.Unlock()
	err := strings.Join(why, "; ")
	if holds := m.Holds.Load(); holds > 0 && inc.left() > 0 {
		m.Log.Warn(TextOutage, "since", began, "holds", holds, "until", time.Now().Add(inc.left()).Round(time.Millisecond), "err", err)
	} else {
		m.Log.Warn(TextOutage, "since", began, "err", err)
	}
}
