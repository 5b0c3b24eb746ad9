package line

import (
	"context"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// An Entering is a line to enter, and as what.
type Entering struct {
	Line *Line
	Base string
}

// EnterTogether makes a claim at the end of each of several lines, all or none, and
// lists who is in them. Without an error it returns an arrival for each; nil where
// that did not succeed, and nothing is left, or it is being deleted. After an error that
// is so for all: whatever is wrong, who enters one line alone finds out.
func EnterTogether(ctx context.Context, inc *session.Incarnation, es []Entering, data []byte) ([]*Arrival, error) {
	start := time.Now()
	ns, places := make([]newcomer, len(es)), make([]session.Place, len(es))
	for i, e := range es {
		ns[i] = e.Line.newcomer(inc, e.Base)
		places[i] = session.Place{Dir: e.Line.SessionDir(), Name: ns[i].name, GUID: ns[i].guid}
	}
	paths, rolls, err := inc.CreateTogether(ctx, places, data)
	if err != nil {
		for _, n := range ns {
			n.turnBack(inc)
		}
		return nil, err
	}
	arrivals := make([]*Arrival, len(es))
	for i, n := range ns {
		if rolls[i] == nil {
			n.turnBack(inc)
			inc.TakeBack(paths[i])
			continue
		}
		c, err := n.arrive(inc, paths[i], data, rolls[i])
		if err != nil {
			inc.TakeBack(paths[i])
			c.disown()
			continue
		}
		arrivals[i] = newArrival(c, rolls[i], time.Since(start))
	}
	return arrivals, nil
}

// Free reports whether nobody stood in the way of a when it arrived.
func (a *Arrival) Free(ctx context.Context, rule Rule) bool {
	ahead, err := a.Claim.Ahead(ctx, a.roll)
	if err != nil {
		return false // Proceed finds out
	}
	blocker, _ := rule(ahead)
	return blocker == nil
}

// Take takes the turn of a, which is free. After an error, or if what was taken is not
// used and its stake dropped, a can go to Line.Proceed.
func (a *Arrival) Take(ctx context.Context) error {
	if err := a.Claim.confirm(); err != nil {
		return err
	}
	return a.Claim.assure(ctx)
}
