package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/zsync/zsync"
)

// This file has the arena for Schedule.Run, whose function must return nil once for each scheduled
// time. The arena for Schedule.Do is in jobs.go.

func init() {
	arenas["nightly"] = func(w *world) arena {
		return &nightly{resource: &resource{w: w, name: "/nightly", limit: 1}, every: 15 * time.Minute, runs: map[int64]*turn{}}
	}
}

// The type `nightly` is for a job that Schedule.Run runs every 15 minutes. The process that runs
// the function holds the job.
type nightly struct {
	*resource
	every time.Duration
	runs  map[int64]*turn // by scheduled time; guarded by mu
}

// The type `turn` is the last successful run for a scheduled time: its function returned nil.
type turn struct {
	by      *actor
	session int64
	ended   time.Time
	told    bool // the context of the function ended before the function returned
}

func (n *nightly) make(s *zsync.Session) any {
	return zsync.NewSchedule(s, "/nightly", zsync.WithMissed(zsync.MissedAll), zsync.WithRetries(1000, zsync.Backoff{Min: time.Second, Max: n.w.timeout / 8}))
}

func (n *nightly) step(_ context.Context, a *actor, kit any) {
	left := max(time.Second, n.w.harm-time.Since(n.w.begun))
	ctx, cancel := context.WithTimeout(a.ctx, min(left, time.Duration(a.dice.Int64N(int64(8*time.Hour)))))
	defer cancel()
	err := kit.(*zsync.Schedule).Run(ctx, zsync.Every(n.every), func(inner context.Context, at time.Time) error {
		l := lock{resource: n.resource}
		h := n.grantInside(a, 1, l.toldInside(a, inner, nil))
		defer h.end()
		n.mu.Lock()
		t := n.runs[at.UnixNano()]
		n.mu.Unlock()
		// If the process of the earlier run is alive with the same session, it recorded the
		// scheduled time as done before it released its hold. If that process died or lost its
		// session, the record may be missing.
		if t != nil && !t.told && !t.by.gone() && t.by.s.ID() == t.session {
			n.w.fail("/nightly: an instant is run once: %s runs %v, and %s has at %v", a, n.w.at(at), t.by, n.w.at(t.ended))
		}
		a.hold()
		if a.dice.IntN(8) == 0 {
			return errOwn
		}
		n.mu.Lock()
		n.runs[at.UnixNano()] = &turn{a, a.s.ID(), time.Now(), inner.Err() != nil}
		n.mu.Unlock()
		return nil
	})
	if !errors.Is(err, zsync.ErrClosed) {
		a.may("Schedule.Run", ctx, err)
	}
}

// The method `final` checks that every scheduled time between the first run and the last run had a
// run, and that the last run was near the end of the day.
func (n *nightly) final(ctx context.Context, s *zsync.Session) {
	last, err := zsync.NewSchedule(s, "/nightly").Last(ctx)
	if err != nil && len(n.runs) > 0 {
		n.w.fail("/nightly: Last: %v", err)
	}
	var first time.Time
	for at := range n.runs {
		if t := time.Unix(0, at); first.IsZero() || t.Before(first) {
			first = t
		}
	}
	for at := first; !at.After(last) && !first.IsZero(); at = at.Add(n.every) {
		if n.runs[at.UnixNano()] == nil {
			n.w.fail("/nightly: an instant is run once: %v was not run, and %v was", n.w.at(at), n.w.at(last))
		}
	}
	if end := n.w.begun.Add(n.w.harm - n.every); !n.w.broken.Load() && last.Before(end.Truncate(n.every)) {
		n.w.fail("/nightly: the last instant is %v", n.w.at(last))
	}
}

func (n *nightly) keeps(path string) bool {
	return strings.HasPrefix(path, "/nightly") && !strings.Contains(path, "_c_")
}
