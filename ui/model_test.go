package ui

import (
	"testing"
	"time"
)

// A look may see that a holder has gone when the next does not hold yet.
func TestWhoCameInAHandOverIsLearntFromTheNextLookAndNotFromLaterOnes(t *testing.T) {
	start := time.Unix(1e9, 0)
	look := func(second int, owners ...string) *model {
		m := &model{At: start.Add(time.Duration(second) * time.Second), holds: map[string]held{}}
		for _, o := range owners {
			m.holds["/m "+o] = held{path: "/m", kind: "lock", node: o, owner: o, since: start}
		}
		return m
	}
	for name, c := range map[string]struct {
		looks []*model
		want  string
	}{
		"in the same look": {[]*model{look(0, "a"), look(1, "b"), look(2, "b")}, "b"},
		"in the next":      {[]*model{look(0, "a"), look(1), look(2, "b")}, "b"},
		"much later":       {[]*model{look(0, "a"), look(1), look(2), look(3, "b")}, ""},
	} {
		before := c.looks[0]
		for _, m := range c.looks[1:] {
			m.remember(before, nil, func(string, string) bool { return false })
			before = m
		}
		if len(before.Timeline) != 1 || before.Timeline[0].Owner != "a" || before.Timeline[0].Next != c.want {
			t.Errorf("%s: %+v; want a, and then %q", name, before.Timeline, c.want)
		}
	}
}
