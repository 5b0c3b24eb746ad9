package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// This file reports outages, so that a user can distinguish a wait for the servers from a wait for
// a holder. waiting.go reports the holders.

// An outageLog is a slog.Handler that prints the start and the end of each outage, and reminders,
// to standard error. It also prints the end of a membership, because the command of zsync group join
// continues. It drops all other records, because zsync itself reports its errors.
type outageLog struct {
	h   *host
	off atomic.Bool // drop all records: the command itself reports outages
}

func (l *outageLog) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && !l.off.Load()
}
func (l *outageLog) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *outageLog) WithGroup(string) slog.Handler      { return l }

func (l *outageLog) Handle(_ context.Context, r slog.Record) error {
	attrs := map[string]slog.Value{}
	r.Attrs(func(a slog.Attr) bool { attrs[a.Key] = a.Value; return true })
	switch r.Message {
	case session.TextOutage:
		words := "no connection to any server since " + attrs["since"].Time().Local().Format(time.DateTime)
		if until, ok := attrs["until"]; ok {
			words += ", and the hold is certain until " + until.Time().Local().Format(time.TimeOnly)
		}
		l.h.say(errors.New(words + ": " + attrs["err"].String()))
	case "zsync: cannot stay in the group":
		l.h.say(fmt.Errorf("%s: %s is no longer a member: %s", attrs["path"], attrs["id"], attrs["err"]))
	case session.TextReconnected:
		l.h.say(fmt.Errorf("connected again after %v", attrs["lasted"].Duration().Round(time.Second)))
	}
	return nil
}
